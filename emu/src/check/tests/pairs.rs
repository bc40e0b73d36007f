//! Pairs of blocks: what one has must be known to the other.

use super::Plant;
use crate::report::FindingKind::{Deadlock, Illegal, OutOfBounds, Pending, Proxy, Race};

const MEET: &str = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n";
const ALLOC: &str = "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r2+8208], 32;\n";
const DEALLOC: &str = "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r10, 32;\n";
const FENCE: &str = "fence.proxy.async;\n";
/// M = 256, N = 32, bf16 to f32, by one thread of the even block.
const MMA: &str = "@%p1 tcgen05.mma.cta_group::2.kind::f16 [%r10], %rd3, %rd4, 268960912, %p3;\n";
const COMMIT: &str = "@%p1 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r4], %r6;\n";
const WAIT: &str = "W0: mbarrier.try_wait.parity.shared.b64 %p4, [%r2+8192], 0;\n@!%p4 bra W0;\n";
const AFTER: &str = "tcgen05.fence::after_thread_sync;\n";
const BEFORE: &str = "tcgen05.fence::before_thread_sync;\n";
const LOAD: &str =
    "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r20, %r21}, [%r5];\ntcgen05.wait::ld.sync.aligned;\n";

/// Both blocks fill their shared memory and allocate; the even one multiplies for both.
fn product() -> Plant {
    let store = |at: u32| format!("st.shared.v4.u32 [%r3+{at}], {{%r0, %r0, %r0, %r0}};\n");
    let fill: String = [0, 16, 32, 48].map(store).concat();
    Plant::new(&format!(
        "mov.u32 %r2, smem;\nshl.b32 %r3, %r0, 6;\nadd.u32 %r3, %r3, %r2;\n{fill}{FENCE}\
         mov.u32 %r7, %cluster_ctarank;\nor.b32 %r8, %r7, %r0;\nsetp.eq.u32 %p1, %r8, 0;\n\
         setp.ne.u32 %p3, %r0, %r0;\nsetp.eq.u32 %p6, %r0, 0;\n\
         @%p6 mbarrier.init.shared.b64 [%r2+8192], 1;\n@%p6 fence.mbarrier_init.release.cluster;\n\
         setp.lt.u32 %p2, %r0, 32;\n@!%p2 bra A0;\n{ALLOC}A0:\n{BEFORE}{MEET}{AFTER}\
         ld.shared.u32 %r10, [%r2+8208];\nadd.u32 %r4, %r2, 8192;\nmov.u32 %r6, 3;\n\
         bfe.u32 %r9, %r2, 4, 14;\ncvt.u64.u32 %rd2, %r9;\nadd.s64 %rd3, %rd2, 0x0000400800800000;\n\
         add.s64 %rd4, %rd2, 0x0000400800100100;\nshr.u32 %r5, %r0, 5;\nshl.b32 %r5, %r5, 21;\n\
         add.u32 %r5, %r5, %r10;\n{MMA}{COMMIT}{WAIT}{AFTER}{LOAD}st.shared.u32 [%r3], %r0;\n\
         {BEFORE}{MEET}@!%p2 bra E0;\n{DEALLOC}E0:\n"
    ))
    .threads(128)
    .blocks(4)
    .cluster(2)
    .target("sm_100a")
}

#[test]
fn a_product_reads_both_blocks() {
    let right = product();
    right.clean();
    let said = right.without(FENCE).finds(Proxy, "tcgen05.mma");
    assert!(said.contains("no fence.proxy.async"), "{said}");
    // What the other block wrote is not known; it may even not have its columns.
    let met = format!("{BEFORE}{MEET}{AFTER}ld.shared");
    let alone = format!("{BEFORE}bar.sync 0;\n{AFTER}ld.shared");
    right.with(&met, &alone).finds(Race, "");
}

#[test]
fn its_sums_are_in_both_blocks() {
    let right = product();
    let said = right
        .with(&format!("{WAIT}{AFTER}"), WAIT)
        .finds(Race, "tcgen05.ld");
    assert!(
        said.contains("no tcgen05.fence::after_thread_sync"),
        "{said}"
    );
    // The odd block waits for an arrival of its own.
    let plain = COMMIT
        .replace(".multicast::cluster", "")
        .replace(", %r6", "");
    let said = right.with(COMMIT, &plain).finds(Deadlock, "");
    assert!(
        said.contains("block (1, 0, 0) warp 0, 1, 2, 3")
            && said.contains("waits for phase 0 of the mbarrier"),
        "{said}"
    );
    right
        .with("mov.u32 %r6, 3;", "mov.u32 %r6, 12;")
        .finds(Illegal, "tcgen05.commit");
}

#[test]
fn columns_are_allocated_and_freed_together() {
    let right = product();
    let one = right.with(
        "@!%p2 bra A0;\n",
        "setp.eq.and.u32 %p2, %r7, 0, %p2;\n@!%p2 bra A0;\n",
    );
    let said = one.finds(Deadlock, "tcgen05.alloc");
    assert!(said.contains("with its peer block"), "{said}");
    right
        .with(
            ALLOC,
            &format!(
                "mov.u32 %r11, 32;\nshl.b32 %r11, %r11, %r7;\n{}",
                ALLOC.replace("32;", "%r11;")
            ),
        )
        .finds(Illegal, "tcgen05.alloc");
    right
        .with(
            "@!%p2 bra E0;\n",
            "setp.eq.and.u32 %p2, %r7, 0, %p2;\n@!%p2 bra E0;\n",
        )
        .finds(Pending, "tcgen05.alloc");
    right
        .with(MMA, &MMA.replace("[%r10]", "[%r10+8]"))
        .finds(OutOfBounds, "tcgen05.mma");
    // Freed while the product is not known to be over.
    right
        .without(&format!("{WAIT}{AFTER}{LOAD}st.shared.u32 [%r3], %r0;\n"))
        .finds(Race, "tcgen05.dealloc");
}

/// A barrier that releases nothing orders tensor memory all the same, behind a fence.
#[test]
fn a_relaxed_meeting_is_an_order() {
    let right = product();
    let last = format!("{BEFORE}{MEET}@!%p2 bra E0;\n");
    let relaxed = MEET.replace("arrive.", "arrive.relaxed.");
    right
        .with(&last, &format!("{BEFORE}{relaxed}@!%p2 bra E0;\n"))
        .clean();
    right
        .with(&last, &format!("{relaxed}@!%p2 bra E0;\n"))
        .finds(Race, "tcgen05.dealloc");
}

#[test]
fn a_pair_is_a_cluster_of_two() {
    product().cluster(1).finds(Illegal, "tcgen05.alloc");
}

/// Both blocks have a tensor map load 64 bytes, which the even block's mbarrier counts.
#[test]
fn loads_of_a_pair_are_counted_in_one_block() {
    let load = "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::2 [%r8], [%rd2, {%r4}], [%r9];\n";
    let right = Plant::new(&format!(
        "mov.u32 %r2, smem;\nmov.u32 %r4, 0;\nmov.u32 %r7, %cluster_ctarank;\nmul.wide.u32 %rd2, %r7, 128;\n\
         add.s64 %rd2, %rd2, %rd0;\nshl.b32 %r3, %r0, 2;\nadd.u32 %r3, %r3, %r2;\nst.shared.u32 [%r3], 0;\n\
         bar.warp.sync -1;\nsetp.ne.u32 %p0, %r0, 0;\n@%p0 bra $copy;\n\
         tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r2], %rd1;\n\
         tensormap.replace.tile.rank.shared::cta.b1024.b32 [%r2], 0;\n\
         tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r2], 0, 64;\n\
         tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r2], 0, 64;\n\
         tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%r2], 0, 1;\n\
         tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%r2], 0;\n\
         mbarrier.init.shared.b64 [%r2+1024], 1;\nfence.mbarrier_init.release.cluster;\n$copy:\nbar.warp.sync -1;\n\
         tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd2], [%r2], 128;\n\
         bar.warp.sync -1;\nfence.proxy.tensormap::generic.acquire.gpu [%rd2], 128;\n\
         barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\nadd.u32 %r8, %r2, 2048;\n\
         add.u32 %r9, %r2, 1024;\nmapa.shared::cluster.u32 %r9, %r9, 0;\n\
         setp.ne.or.u32 %p1, %r7, 0, %p0;\n@!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r2+1024], 128;\n\
         @%p0 bra $wait;\n{load}$wait:\nsetp.ne.u32 %p2, %r7, 0;\n@%p2 bra $end;\n\
         W0: mbarrier.try_wait.parity.shared.b64 %p3, [%r2+1024], 0;\n@!%p3 bra W0;\n$end:\n\
         barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
    ))
    .threads(32)
    .blocks(2)
    .cluster(2)
    .target("sm_100a");
    right.clean();
    // The even block's address has the lowest bit of the rank cleared.
    right
        .with(
            "mapa.shared::cluster.u32 %r9, %r9, 0;",
            "and.b32 %r9, %r9, 0xfeffffff;",
        )
        .clean();
    let said = right
        .with(load, &load.replace(".cta_group::2", ""))
        .finds(Illegal, "cp.async.bulk.tensor");
    assert!(said.contains("without .cta_group::2"), "{said}");
}
