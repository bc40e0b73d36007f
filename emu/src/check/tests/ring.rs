//! A kernel with roles: one warp loads into a ring, one multiplies into two accumulators, four store
//! the sums; and what is found when one of them waits for too little.

use super::Plant;
use crate::report::FindingKind::{Deadlock, Proxy, Race};

const TILES: usize = 5;
const STEPS: usize = 3;
const AFTER: &str = "tcgen05.fence::after_thread_sync;\n";
const BEFORE: &str = "tcgen05.fence::before_thread_sync;\n";

/// mbarriers, behind two stages of 8 KiB: of the ring and of the accumulators.
const FULL: usize = 16384;
const EMPTY: usize = FULL + 16;
const SUMS: usize = EMPTY + 16;
const TAKEN: usize = SUMS + 16;

fn wait(name: &str, bar: usize, number: usize) -> String {
    let (at, parity) = (bar + 8 * (number % 2), number / 2 % 2);
    format!(
        "{name}{number}: mbarrier.try_wait.parity.shared.b64 %p4, [%r2+{at}], {parity};\n@!%p4 bra {name}{number};\n"
    )
}

/// The loading thread: each stage is free before it is filled.
fn load() -> String {
    let mut text = String::new();
    for number in 0..TILES * STEPS {
        let stage = number % 2;
        if number >= 2 {
            text += &wait("FREE", EMPTY, number - 2);
        }
        text += &format!(
            "mbarrier.arrive.expect_tx.shared.b64 _, [%r2+{0}], 4608;\n\
             cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+{1}], [%rd0], 4608, [%r2+{0}];\n",
            FULL + 8 * stage,
            8192 * stage
        );
    }
    text
}

/// The multiplying thread.
fn multiply() -> String {
    let commit = |bar: usize| {
        format!(
            "add.u32 %r6, %r2, {bar};\ntcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r6];\n"
        )
    };
    let mut text = String::new();
    for tile in 0..TILES {
        if tile >= 2 {
            text += &wait("TAKEN", TAKEN, tile - 2);
            text += AFTER;
        }
        for step in 0..STEPS {
            let number = tile * STEPS + step;
            let stage = number % 2;
            text += &wait("FULL", FULL, number);
            text += &format!(
                "add.s64 %rd5, %rd3, {0};\nadd.s64 %rd6, %rd4, {0};\nsetp.ne.u32 %p3, {step}, 0;\n\
                 tcgen05.mma.cta_group::1.kind::f16 [%r10+{1}], %rd5, %rd6, 134481040, %p3;\n",
                512 * stage,
                16 * (tile % 2)
            );
            text += &commit(EMPTY + 8 * stage);
        }
        text += &commit(SUMS + 8 * (tile % 2));
    }
    text
}

/// A storing warp.
fn store() -> String {
    let mut text = String::new();
    for tile in 0..TILES {
        text += &wait("SUMS", SUMS, tile);
        text += &format!(
            "{AFTER}tcgen05.ld.sync.aligned.32x32b.x2.b32 {{%r20, %r21}}, [%r5+{}];\n\
             tcgen05.wait::ld.sync.aligned;\n{BEFORE}bar.warp.sync -1;\n\
             @%p5 mbarrier.arrive.shared.b64 _, [%r2+{}];\nst.global.v2.u32 [%rd7+{}], {{%r20, %r21}};\n",
            16 * (tile % 2),
            TAKEN + 8 * (tile % 2),
            8 * tile
        );
    }
    text
}

fn ring() -> Plant {
    let init: String = (0..8)
        .map(|at| {
            let count = if at >= 6 { 4 } else { 1 };
            format!(
                "@%p1 mbarrier.init.shared.b64 [%r2+{}], {count};\n",
                FULL + 8 * at
            )
        })
        .collect();
    Plant::new(&format!(
        "mov.u32 %r2, smem;\nsetp.eq.u32 %p1, %r0, 0;\n{init}@%p1 fence.mbarrier_init.release.cluster;\n\
         setp.lt.u32 %p2, %r0, 32;\n@!%p2 bra A0;\n\
         tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2+16448], 32;\nA0:\n{BEFORE}bar.sync 0;\n{AFTER}\
         ld.shared.u32 %r10, [%r2+16448];\nbfe.u32 %r4, %r2, 4, 14;\ncvt.u64.u32 %rd2, %r4;\n\
         add.s64 %rd3, %rd2, 0x0000400800800000;\nadd.s64 %rd4, %rd2, 0x0000400800100100;\nshr.u32 %r5, %r0, 5;\n\
         shl.b32 %r5, %r5, 21;\nadd.u32 %r5, %r5, %r10;\nmul.wide.u32 %rd7, %r0, 64;\nadd.s64 %rd7, %rd7, %rd1;\n\
         and.b32 %r7, %r0, 31;\nsetp.eq.u32 %p5, %r7, 0;\nsetp.eq.u32 %p6, %r0, 128;\n@%p6 bra LOAD;\n\
         setp.eq.u32 %p6, %r0, 160;\n@%p6 bra MULTIPLY;\nsetp.lt.u32 %p6, %r0, 128;\n@%p6 bra STORE;\nbra END;\n\
         LOAD:\n{}bra END;\nMULTIPLY:\n{}bra END;\nSTORE:\n{}END:\n{BEFORE}barrier.sync 0;\n@!%p2 bra E0;\n\
         tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 32;\nE0:\n",
        load(),
        multiply(),
        store()
    ))
    .threads(192)
    .target("sm_100a")
}

#[test]
fn roles_that_wait_for_each_other_are_fine() {
    ring().clean();
}

#[test]
fn a_stage_is_free_before_it_is_filled() {
    let right = ring();
    right.without(&wait("FREE", EMPTY, 4)).finds(Race, "");
    // The commit of the stage says nothing of a product that comes after it.
    let tail = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r6];\n";
    let product = "tcgen05.mma.cta_group::1.kind::f16 [%r10+0], %rd5, %rd6, 134481040, %p3;\n";
    let of_stage = format!("add.u32 %r6, %r2, {};\n{tail}", EMPTY);
    right
        .with(
            &format!("{product}{of_stage}"),
            &format!("{of_stage}{product}"),
        )
        .finds(Race, "");
}

#[test]
fn a_stage_is_full_before_it_is_multiplied() {
    // Who is ahead is the run's matter; a phase that is missed ends in a deadlock.
    ring()
        .without(&wait("FULL", FULL, TILES * STEPS - 1))
        .finds_one_of(&[Race, Proxy, Deadlock]);
}

#[test]
fn sums_are_taken_before_the_next_product() {
    let right = ring();
    let taken = wait("TAKEN", TAKEN, 1);
    right.without(&taken).finds(Race, "");
    let said = right
        .with(&format!("{taken}{AFTER}"), &taken)
        .finds(Race, "tcgen05.mma");
    assert!(
        said.contains("no tcgen05.fence::after_thread_sync"),
        "{said}"
    );
    let fenced = format!("{BEFORE}bar.warp.sync -1;\n");
    let said = right
        .with(&fenced, "bar.warp.sync -1;\n")
        .finds(Race, "tcgen05.mma");
    assert!(
        said.contains("no tcgen05.fence::before_thread_sync"),
        "{said}"
    );
    // The loads are waited for after the arrival.
    let late = format!("tcgen05.wait::ld.sync.aligned;\n{fenced}");
    let arrive = format!("@%p5 mbarrier.arrive.shared.b64 _, [%r2+{TAKEN}];\n");
    right
        .with(
            &format!("{late}{arrive}"),
            &format!("{fenced}{arrive}tcgen05.wait::ld.sync.aligned;\n"),
        )
        .finds(Race, "tcgen05.mma");
    // Nobody says that they were taken.
    right.without(&arrive).finds(Deadlock, "");
}

#[test]
fn sums_are_there_before_they_are_taken() {
    let right = ring();
    let sums = wait("SUMS", SUMS, TILES - 1);
    right.without(&sums).finds_one_of(&[Race, Deadlock]);
    let said = right
        .with(&format!("{sums}{AFTER}"), &sums)
        .finds(Race, "tcgen05.ld");
    assert!(
        said.contains("no tcgen05.fence::after_thread_sync"),
        "{said}"
    );
}
