//! Tensor memory: who may read what, and when.

use super::Plant;
use crate::report::FindingKind::{
    Deadlock, Divergent, Illegal, InFlight, Mbarrier, OutOfBounds, Pending, Proxy, Race,
    Uninitialised,
};

const FILL: &str = "st.shared.v4.u32 [%r3], {%r0, %r0, %r0, %r0};\nst.shared.v4.u32 [%r3+16], {%r0, %r0, %r0, %r0};\n\
     st.shared.v4.u32 [%r3+32], {%r0, %r0, %r0, %r0};\nst.shared.v4.u32 [%r3+48], {%r0, %r0, %r0, %r0};\n";
const ALLOC: &str = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2+8208], 32;\n";
const DEALLOC: &str = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 32;\n";
/// M = 128, N = 16, bf16 to f32.
const MMA: &str = "@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r10], %rd3, %rd4, 134481040, %p3;\n";
const COMMIT: &str = "@%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%rd5];\n";
const WAIT: &str = "W0: mbarrier.try_wait.parity.shared.b64 %p4, [%r2+8192], 0;\n@!%p4 bra W0;\n";
const AFTER: &str = "tcgen05.fence::after_thread_sync;\n";
const BEFORE: &str = "tcgen05.fence::before_thread_sync;\n";
const LOAD: &str = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r20, %r21}, [%r5];\n";
const WAIT_LOAD: &str = "tcgen05.wait::ld.sync.aligned;\n";
const STORE: &str = "tcgen05.st.sync.aligned.32x32b.x2.b32 [%r5], {%r0, %r0};\n";
const WAIT_STORE: &str = "tcgen05.wait::st.sync.aligned;\n";

/// Shared memory is filled, columns are allocated, and everybody knows.
fn start() -> String {
    format!(
        "mov.u32 %r2, smem;\nshl.b32 %r3, %r0, 6;\nadd.u32 %r3, %r3, %r2;\n{FILL}fence.proxy.async;\n\
         setp.eq.u32 %p1, %r0, 0;\nsetp.ne.u32 %p3, %r0, %r0;\n\
         @%p1 mbarrier.init.shared.b64 [%r2+8192], 1;\nsetp.lt.u32 %p2, %r0, 32;\n@!%p2 bra A0;\n{ALLOC}A0:\n\
         {BEFORE}bar.sync 0;\n{AFTER}ld.shared.u32 %r10, [%r2+8208];\n\
         add.u32 %r4, %r2, 8192;\ncvt.u64.u32 %rd5, %r4;\ncvta.shared.u64 %rd5, %rd5;\n\
         bfe.u32 %r4, %r2, 4, 14;\ncvt.u64.u32 %rd2, %r4;\nadd.s64 %rd3, %rd2, 0x0000400800800000;\n\
         add.s64 %rd4, %rd2, 0x0000400800100100;\nshr.u32 %r5, %r0, 5;\nshl.b32 %r5, %r5, 21;\nadd.u32 %r5, %r5, %r10;\n"
    )
}

fn end() -> String {
    format!("{BEFORE}bar.sync 0;\n@!%p2 bra E0;\n{DEALLOC}E0:\n")
}

fn plant(body: &str) -> Plant {
    Plant::new(&format!("{}{body}{}", start(), end()))
        .threads(128)
        .target("sm_100a")
}

/// A product, its sums, and then its operands are overwritten.
fn product() -> Plant {
    plant(&format!(
        "{MMA}{COMMIT}{WAIT}{AFTER}{LOAD}{WAIT_LOAD}add.u32 %r30, %r20, %r21;\nst.shared.u32 [%r3], %r30;\n"
    ))
}

#[test]
fn sums_are_read_after_their_commit() {
    product().clean();
    // One warp, so that the order of the run is that of the text.
    let right = product().threads(32);
    let said = right.without(WAIT).finds(Race, "tcgen05.ld");
    assert!(said.contains("no tcgen05.commit"), "{said}");
    let said = right
        .with(&format!("{WAIT}{AFTER}"), WAIT)
        .finds(Race, "tcgen05.ld");
    assert!(
        said.contains("no tcgen05.fence::after_thread_sync"),
        "{said}"
    );
    // A commit before the product says nothing of it.
    let early = right.with(&format!("{MMA}{COMMIT}"), &format!("{COMMIT}{MMA}"));
    early.finds(Race, "tcgen05.ld");
}

#[test]
fn loaded_registers_are_used_after_their_wait() {
    let right = product();
    right
        .without(WAIT_LOAD)
        .finds(InFlight, "add.u32 %r30, %r20");
    right
        .with(
            &format!("{WAIT_LOAD}add.u32 %r30, %r20, %r21;\n"),
            &format!("mov.u32 %r21, 1;\n{WAIT_LOAD}add.u32 %r30, %r20, %r21;\n"),
        )
        .finds(InFlight, "mov.u32 %r21");
    right.without(WAIT_LOAD).finds(Pending, "ret");
}

#[test]
fn a_reduction_is_over_what_is_loaded() {
    let load = "tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {%r20, %r21}, %r22, [%r5];\n";
    let right = product()
        .with(LOAD, load)
        .with("%r20, %r21;", "%r22, %r22;")
        .target("sm_103a");
    right.clean();
    right
        .without(WAIT_LOAD)
        .finds(InFlight, "add.u32 %r30, %r22");
}

#[test]
fn operands_go_through_the_asynchronous_proxy() {
    let right = product();
    right
        .without("fence.proxy.async;\n")
        .finds(Proxy, "tcgen05.mma");
    // And they stay until the commit was seen.
    let body = format!("{MMA}{COMMIT}st.shared.u32 [%r3], %r0;\n{WAIT}");
    plant(&body).threads(32).finds(Race, "st.shared.u32");
    plant(&body).finds(Race, "");
    plant(&format!("{MMA}{COMMIT}{WAIT}st.shared.u32 [%r3], %r0;\n")).clean();
}

#[test]
fn stores_are_over_after_their_wait() {
    let right = plant(&format!("{STORE}{WAIT_STORE}{LOAD}{WAIT_LOAD}"));
    right.clean();
    let said = right.without(WAIT_STORE).finds(Race, "tcgen05.ld");
    assert!(said.contains("no tcgen05.wait"), "{said}");
    right.without(WAIT_STORE).finds(Pending, "ret");
}

#[test]
fn stores_reach_a_product_of_another_thread() {
    let right = plant(&format!(
        "{STORE}{WAIT_STORE}{BEFORE}bar.sync 0;\n{AFTER}setp.eq.u32 %p3, %r0, %r0;\n{MMA}{COMMIT}{WAIT}"
    ));
    right.clean();
    let meet = format!("{WAIT_STORE}{BEFORE}bar.sync 0;\n{AFTER}setp");
    for (wrong, says) in [
        (
            format!("{WAIT_STORE}bar.sync 0;\n{AFTER}setp"),
            "no tcgen05.fence::before_thread_sync",
        ),
        (
            format!("{WAIT_STORE}{BEFORE}bar.sync 0;\nsetp"),
            "no tcgen05.fence::after_thread_sync",
        ),
        (
            format!("{WAIT_STORE}{BEFORE}{AFTER}setp"),
            "no tcgen05.wait covers it, or nothing orders",
        ),
        (
            format!("{BEFORE}bar.sync 0;\n{AFTER}{WAIT_STORE}setp"),
            "no tcgen05.wait covers it, or nothing orders",
        ),
    ] {
        let said = right.with(&meet, &wrong).finds(Race, "");
        let either = said.contains("tcgen05.st") && said.contains("no tcgen05.commit");
        assert!(said.contains(says) || either, "{said}");
    }
}

/// The next product overwrites what other threads have loaded.
#[test]
fn loads_are_over_before_the_next_product() {
    let again = format!(
        "{MMA}{COMMIT}W1: mbarrier.try_wait.parity.shared.b64 %p4, [%r2+8192], 1;\n@!%p4 bra W1;\n"
    );
    let right = plant(&format!(
        "{MMA}{COMMIT}{WAIT}{AFTER}{LOAD}{WAIT_LOAD}{BEFORE}bar.sync 0;\n{AFTER}{again}"
    ));
    right.clean();
    let meet = format!("{WAIT_LOAD}{BEFORE}bar.sync 0;\n{AFTER}");
    let said = right
        .with(&meet, &format!("{WAIT_LOAD}bar.sync 0;\n{AFTER}"))
        .finds(Race, "tcgen05.mma");
    assert!(
        said.contains("no tcgen05.fence::before_thread_sync"),
        "{said}"
    );
    let met = format!("{WAIT_LOAD}{BEFORE}bar.sync 0;\n");
    let said = right.with(&meet, &met).finds(Race, "tcgen05.mma");
    assert!(
        said.contains("no tcgen05.fence::after_thread_sync"),
        "{said}"
    );
}

#[test]
fn products_of_one_form_are_in_order() {
    let right = plant(&format!(
        "{MMA}setp.eq.u32 %p3, %r0, %r0;\n{MMA}{COMMIT}{WAIT}"
    ));
    right.clean();
    // N = 32 on the same accumulators.
    let other = MMA.replace("134481040", "134743184");
    right
        .with(
            &format!("%r0;\n{MMA}{COMMIT}"),
            &format!("%r0;\n{other}{COMMIT}"),
        )
        .finds(Race, "tcgen05.mma");
}

const COPY: &str = "@%p1 tcgen05.cp.cta_group::1.128x128b [%r10], %rd3;\n";

/// A commit tells of products, not of what its thread stored meanwhile.
#[test]
fn a_commit_is_no_release() {
    let store = "@%p1 st.shared.u32 [%r2+8220], 7;\n";
    let read = "ld.shared.u32 %r31, [%r2+8220];\n";
    let right = plant(&format!("{store}bar.sync 0;\n{MMA}{COMMIT}{WAIT}{read}"));
    right.clean();
    right
        .with(&format!("bar.sync 0;\n{MMA}"), MMA)
        .finds(Race, "");
}

#[test]
fn copies_are_in_order_with_products_only() {
    // A is what was copied.
    let from_tensor =
        "@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r10], [%r10+16], %rd4, 134481040, %p3;\n";
    let copy = COPY
        .replace("[%r10]", "[%r10+16]")
        .replace("128x128b", "128x256b");
    let right = plant(&format!("{copy}{from_tensor}{COMMIT}{WAIT}"));
    right.clean();
    let loads = plant(&format!("{COPY}{COMMIT}{WAIT}{AFTER}{LOAD}{WAIT_LOAD}"));
    loads.clean();
    let loads = loads.threads(32);
    let said = loads.without(WAIT).finds(Race, "tcgen05.ld");
    assert!(said.contains("the tcgen05.cp of line"), "{said}");
    plant(&format!("{COPY}{COMMIT}st.shared.u32 [%r3], %r0;\n{WAIT}"))
        .threads(32)
        .finds(Race, "st.shared.u32");
    loads
        .without("fence.proxy.async;\n")
        .finds(Proxy, "tcgen05.cp");
    // What a product is making is no operand yet.
    let reads_sums = from_tensor.replace("[%r10], [%r10+16]", "[%r10+16], [%r10]");
    plant(&format!("{MMA}{reads_sums}{COMMIT}{WAIT}")).finds(Race, "[%r10+16], [%r10]");
}

#[test]
fn columns_are_used_while_they_are_allocated() {
    let right = product();
    right
        .with(LOAD, &LOAD.replace("[%r5]", "[%r5+31]"))
        .finds(OutOfBounds, "tcgen05.ld");
    right
        .with(LOAD, &LOAD.replace("[%r5]", "[%r5+511]"))
        .finds(Illegal, "tcgen05.ld");
    right
        .with(MMA, &MMA.replace("[%r10]", "[%r10+24]"))
        .finds(OutOfBounds, "tcgen05.mma");
    // Freed before it is read.
    right
        .with(DEALLOC, &format!("{DEALLOC}{LOAD}{WAIT_LOAD}"))
        .finds(OutOfBounds, "tcgen05.ld");
    right.without(DEALLOC).finds(Pending, "tcgen05.alloc");
    right
        .with(DEALLOC, &DEALLOC.replace("32;", "64;"))
        .finds(Illegal, "tcgen05.dealloc");
    right
        .with(DEALLOC, &format!("{DEALLOC}{DEALLOC}"))
        .finds(Illegal, "tcgen05.dealloc");
    right
        .with(ALLOC, &ALLOC.replace("32;", "48;"))
        .finds(Illegal, "tcgen05.alloc");
    right
        .with(ALLOC, &ALLOC.replace("32;", "1024;"))
        .finds(Illegal, "tcgen05.alloc");
    let second = ALLOC.replace("8208", "8212");
    right
        .with(ALLOC, &format!("{ALLOC}{}", second.replace("32;", "64;")))
        .finds(Illegal, "tcgen05.alloc");
    let relinquish = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n";
    right.with(ALLOC, &format!("{ALLOC}{relinquish}")).clean();
    right
        .with(ALLOC, &format!("{relinquish}{ALLOC}"))
        .finds(Illegal, "tcgen05.alloc");
}

#[test]
fn columns_are_freed_when_their_use_is_over() {
    let right = product();
    let free = format!("{BEFORE}bar.sync 0;\n@!%p2 bra E0;\n{DEALLOC}E0:\n");
    right.without(WAIT_LOAD).finds(Race, "tcgen05.dealloc");
    // The product is still at it.
    plant(MMA).finds(Race, "tcgen05.dealloc");
    // No tcgen05 fence is needed: the barrier is enough.
    right.with(&free, &free.replace(BEFORE, "")).clean();
}

#[test]
fn a_warp_reaches_its_quarter() {
    let right = product();
    let said = right
        .with(LOAD, &LOAD.replace("[%r5]", "[%r10]"))
        .finds(Illegal, "tcgen05.ld");
    assert!(said.contains("reaches only lanes"), "{said}");
    right
        .with(LOAD, &LOAD.replace("[%r5]", "[%r5+524288]"))
        .finds(Illegal, "tcgen05.ld");
    let half = "tcgen05.ld.sync.aligned.16x64b.x2.b32 {%r20, %r21}, [%r5+1048576];\n";
    right.with(LOAD, half).clean();
    right
        .with(LOAD, &half.replace("1048576", "524288"))
        .finds(Illegal, "tcgen05.ld");
}

#[test]
fn warps_take_part_as_a_whole() {
    let right = product();
    right
        .with(
            LOAD,
            &format!("and.b32 %r31, %r0, 1;\nsetp.eq.u32 %p5, %r31, 0;\n@%p5 {LOAD}"),
        )
        .finds(Divergent, "tcgen05.ld");
    right
        .with(
            LOAD,
            &format!("add.u32 %r6, %r5, %r0;\n{}", LOAD.replace("[%r5]", "[%r6]")),
        )
        .finds(Illegal, "tcgen05.ld");
}

#[test]
fn commits_arrive_at_mbarriers() {
    let right = product();
    right
        .without("@%p1 mbarrier.init.shared.b64 [%r2+8192], 1;\n")
        .finds(Mbarrier, "");
    right
        .with(MMA, &MMA.replace("134481040", "134481041"))
        .finds(Illegal, "tcgen05.mma");
    let said = right
        .without("cvta.shared.u64 %rd5, %rd5;\n")
        .finds(Illegal, "tcgen05.commit");
    assert!(said.contains("must be generic"), "{said}");
    // One for each commit.
    let twice = right.with(COMMIT, &format!("{COMMIT}{COMMIT}"));
    twice.with("8192], 1;", "8192], 2;").clean();
    right
        .with("8192], 1;", "8192], 2;")
        .finds(Deadlock, "bra W0");
}

#[test]
fn what_nobody_wrote_stays_so() {
    let store =
        "mul.wide.u32 %rd6, %r0, 4;\nadd.s64 %rd6, %rd6, %rd0;\nst.global.u32 [%rd6], %r20;\n";
    let right = product().with(
        "add.u32 %r30, %r20, %r21;\n",
        &format!("{store}add.u32 %r30, %r20, %r21;\n"),
    );
    right.clean();
    // Nobody filled B.
    right
        .with(
            FILL,
            &format!("setp.lt.u32 %p5, %r0, 64;\n@!%p5 bra F0;\n{FILL}F0:\n"),
        )
        .finds(Uninitialised, "st.global");
    // The old sums are no sums.
    right
        .with(MMA, &format!("setp.eq.u32 %p3, %r0, %r0;\n{MMA}"))
        .finds(Uninitialised, "st.global");
    // The accumulators beyond the product's.
    right
        .with(LOAD, &LOAD.replace("[%r5]", "[%r5+16]"))
        .finds(Uninitialised, "st.global");
}

/// Fences of tensor memory order nothing else.
#[test]
fn fences_release_no_ordinary_stores() {
    let init = "@%p1 mbarrier.init.shared.b64 [%r2+8200], 1;\nbar.sync 0;\n";
    let store = "@%p1 st.shared.u32 [%r2+8220], 7;\n";
    let wait = "W5: mbarrier.try_wait.parity.shared.b64 %p4, [%r2+8200], 0;\n@!%p4 bra W5;\n";
    let right = plant(&format!(
        "{init}{store}{AFTER}{BEFORE}@%p1 mbarrier.arrive.shared.b64 _, [%r2+8200];\n\
         {wait}{AFTER}ld.shared.u32 %r31, [%r2+8220];\n"
    ));
    right.clean();
    let relaxed = right
        .with("mbarrier.arrive.", "mbarrier.arrive.relaxed.cluster.")
        .with(
            "W5: mbarrier.try_wait.parity.",
            "W5: mbarrier.try_wait.parity.relaxed.cluster.",
        );
    relaxed.finds(Race, "");
}

/// Fences of tensor memory need no release and acquire between them, only an order.
#[test]
fn fences_compose_with_relaxed_flags() {
    let start = "@%p1 st.shared.u32 [%r2+8220], 0;\nbar.sync 0;\nsetp.ge.u32 %p5, %r0, 32;\n";
    let wait = "W5: ld.relaxed.cta.shared.u32 %r20, [%r2+8220];\nsetp.ne.u32 %p4, %r20, 0;\n@!%p4 bra W5;\n";
    let right = plant(&format!(
        "{start}{MMA}{COMMIT}@%p5 bra W5;\n{WAIT}{AFTER}{BEFORE}\
         @%p1 st.relaxed.cta.shared.u32 [%r2+8220], 1;\n{wait}{AFTER}{LOAD}{WAIT_LOAD}"
    ));
    right.clean();
    let told = format!("{BEFORE}@%p1 st.relaxed");
    right
        .with(&told, "@%p1 st.relaxed")
        .finds(Race, "tcgen05.ld");
    right
        .with(&format!("{wait}{AFTER}"), wait)
        .finds(Race, "tcgen05.ld");
}
