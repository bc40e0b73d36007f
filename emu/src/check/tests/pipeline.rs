//! A persistent kernel as they are written: a warp that loads, one that multiplies, four that store
//! what the previous tile has become, with two stages of operands and two of accumulators.

use super::Plant;
use crate::report::FindingKind::Race;

const AFTER: &str = "tcgen05.fence::after_thread_sync;\n";
const BEFORE: &str = "tcgen05.fence::before_thread_sync;\n";

fn wait(label: &str, bar: &str, phase: &str) -> String {
    format!(
        "{label}: mbarrier.try_wait.parity.shared::cta.b64 %p8, [{bar}], {phase};\n@!%p8 bra {label};\n"
    )
}

/// 12 stages make 4 tiles. Bars: full, empty, accumulators full, accumulators empty, two of each.
fn kernel() -> Plant {
    let init: String = [
        (0, 1),
        (8, 1),
        (16, 1),
        (24, 1),
        (32, 1),
        (40, 1),
        (48, 128),
        (56, 128),
    ]
    .map(|(at, count)| format!("@%p1 mbarrier.init.shared::cta.b64 [%r3+{at}], {count};\n"))
    .concat();
    let stage = "and.b32 %r13, %r12, 1;\nshr.u32 %r14, %r12, 1;\nand.b32 %r14, %r14, 1;\n\
        xor.b32 %r15, %r14, 1;\nshl.b32 %r16, %r13, 13;\nadd.u32 %r16, %r16, %r2;\n\
        shl.b32 %r17, %r13, 3;\nadd.u32 %r17, %r17, %r3;\nadd.u32 %r18, %r17, 16;\n";
    let tile = "and.b32 %r21, %r20, 1;\nshr.u32 %r22, %r20, 1;\nand.b32 %r22, %r22, 1;\n\
        xor.b32 %r23, %r22, 1;\nshl.b32 %r24, %r21, 3;\nadd.u32 %r24, %r24, %r3;\n\
        add.u32 %r25, %r24, 48;\nadd.u32 %r24, %r24, 32;\nshl.b32 %r26, %r21, 4;\nadd.u32 %r26, %r26, %r10;\n";
    Plant::new(&format!(
        "mov.u32 %r2, smem;\nadd.u32 %r3, %r2, 32768;\nshr.u32 %r7, %r0, 5;\nsetp.eq.u32 %p1, %r0, 32;\n\
         {init}@%p1 fence.mbarrier_init.release.cluster;\nsetp.ne.u32 %p2, %r7, 2;\n@%p2 bra ALLOCATED;\n\
         tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3+64], 32;\n\
         tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n\
         ALLOCATED:\nbar.sync 0;\nld.shared.u32 %r10, [%r3+64];\n\
         setp.eq.u32 %p3, %r7, 0;\n@%p3 bra LOAD;\nsetp.eq.u32 %p3, %r7, 1;\n@%p3 bra MULTIPLY;\n\
         setp.ge.u32 %p3, %r7, 4;\n@%p3 bra STORE;\nbra END;\n\
         LOAD:\nelect.sync _|%p4, -1;\n@!%p4 bra END;\nmov.u32 %r12, 0;\nLOADS:\n{stage}{}\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r16], [%rd0], 4096, [%r17];\n\
         add.u32 %r19, %r16, 4096;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r19], [%rd0], 512, [%r17];\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r17], 4608;\n\
         add.u32 %r12, %r12, 1;\nsetp.lt.u32 %p5, %r12, 12;\n@%p5 bra LOADS;\nbra END;\n\
         MULTIPLY:\nmov.u32 %r12, 0;\nmov.u32 %r20, 0;\nTILES:\n{tile}{}{AFTER}mov.u32 %r27, 0;\n\
         STEPS:\n{stage}{}{AFTER}bfe.u32 %r28, %r16, 4, 14;\ncvt.u64.u32 %rd2, %r28;\n\
         add.s64 %rd3, %rd2, 0x0000400800800000;\nadd.s64 %rd4, %rd2, 0x0000400800100100;\n\
         setp.ne.u32 %p3, %r27, 0;\nelect.sync _|%p4, -1;\n\
         @%p4 tcgen05.mma.cta_group::1.kind::f16 [%r26], %rd3, %rd4, 134481040, %p3;\nbar.warp.sync -1;\n\
         @%p4 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r18];\n\
         setp.eq.and.u32 %p6, %r27, 2, %p4;\n\
         @%p6 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r24];\n\
         bar.warp.sync -1;\nadd.u32 %r12, %r12, 1;\nadd.u32 %r27, %r27, 1;\nsetp.lt.u32 %p5, %r27, 3;\n@%p5 bra STEPS;\n\
         add.u32 %r20, %r20, 1;\nsetp.lt.u32 %p5, %r20, 4;\n@%p5 bra TILES;\nbra END;\n\
         STORE:\nmov.u32 %r20, 0;\nsub.u32 %r5, %r7, 4;\nshl.b32 %r5, %r5, 21;\nmul.lo.u32 %r6, %r0, 4;\nadd.u32 %r6, %r6, %r2;\n\
         STORES:\n{tile}{}{AFTER}add.u32 %r26, %r26, %r5;\n\
         tcgen05.ld.sync.aligned.32x32b.x4.b32 {{%r30, %r31, %r32, %r33}}, [%r26];\n\
         tcgen05.ld.sync.aligned.32x32b.x4.b32 {{%r34, %r35, %r36, %r37}}, [%r26+12];\n\
         tcgen05.wait::ld.sync.aligned;\n{BEFORE}mbarrier.arrive.shared::cta.b64 _, [%r25];\n\
         add.u32 %r30, %r30, %r37;\nst.shared.u32 [%r6+40960], %r30;\n\
         add.u32 %r20, %r20, 1;\nsetp.lt.u32 %p5, %r20, 4;\n@%p5 bra STORES;\n\
         END:\nbar.sync 0;\nsetp.ne.u32 %p3, %r7, 0;\n@%p3 bra OUT;\n\
         tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 32;\nOUT:\n",
        wait("W0", "%r18", "%r15"),
        wait("W1", "%r25", "%r23"),
        wait("W2", "%r17", "%r14"),
        wait("W3", "%r24", "%r22"),
    ))
    .threads(256)
    .target("sm_100a")
}

#[test]
fn stages_go_round() {
    let right = kernel();
    right.clean();
    let arrive = "mbarrier.arrive.shared::cta.b64 _, [%r25];\n";
    // The accumulators are given back before they are loaded.
    let early = right.with(
        &format!("tcgen05.wait::ld.sync.aligned;\n{BEFORE}{arrive}"),
        &format!("{BEFORE}{arrive}tcgen05.wait::ld.sync.aligned;\n"),
    );
    early.finds(Race, "");
    right.with(&wait("W1", "%r25", "%r23"), "").finds(Race, "");
    right
        .with(&wait("W0", "%r18", "%r15"), "")
        .finds_one_of(&[Race, crate::report::FindingKind::Mbarrier]);
}
