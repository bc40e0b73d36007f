use super::Plant;
use crate::report::FindingKind::Race;

#[test]
fn a_barrier_orders_a_block() {
    let right = Plant::new(
        "mov.u32 %r2, smem;\nshl.b32 %r3, %r0, 2;\nadd.u32 %r3, %r3, %r2;\nst.shared.u32 [%r3], %r0;\n\
         bar.sync 0;\nxor.b32 %r4, %r0, 32;\nshl.b32 %r4, %r4, 2;\nadd.u32 %r4, %r4, %r2;\nld.shared.u32 %r5, [%r4];\n",
    );
    right.clean();
    let wrong = right.without("bar.sync 0;\n");
    let message = wrong.finds(Race, "shared.u32");
    assert!(message.contains("shared memory at") && message.contains("block (0, 0, 0), thread"));
}

#[test]
fn threads_that_diverge_meet_at_a_warp_barrier() {
    let right = Plant::new(
        "mov.u32 %r2, smem;\nsetp.ne.u32 %p0, %r0, 3;\n@%p0 bra $over;\nst.shared.u32 [%r2], %r0;\n\
         $over:\nbar.warp.sync 0xffffffff;\nld.shared.u32 %r5, [%r2];\n",
    )
    .threads(32);
    right.clean();
    right
        .without("bar.warp.sync 0xffffffff;\n")
        .finds(Race, "shared.u32");
}

#[test]
fn an_arrival_at_a_named_barrier_releases() {
    let right = Plant::new(
        "mov.u32 %r2, smem;\nsetp.lt.u32 %p0, %r0, 32;\n@%p0 bra $first;\nbar.sync 3, 64;\n\
         ld.shared.u32 %r5, [%r2];\nbra $end;\n$first:\nst.shared.u32 [%r2], 1;\nbar.arrive 3, 64;\n$end:\n",
    );
    right.clean();
    right
        .with(
            "st.shared.u32 [%r2], 1;\nbar.arrive 3, 64;",
            "bar.arrive 3, 64;\nst.shared.u32 [%r2], 1;",
        )
        .finds(Race, "shared.u32");
}

/// Block 0 writes and tells the others, or GPU 0's block another GPU's.
fn message(release: &str, acquire: &str) -> Plant {
    Plant::new(&format!(
        "setp.ne.u32 %p1, %r0, 0;\n@%p1 bra $end;\natom.relaxed.sys.global.add.u32 %r6, [%rd0+64], 1;\nsetp.ne.u32 %p0, %r6, 0;\n@%p0 bra $poll;\n\
         st.global.u32 [%rd1], 7;\n{release}\nbra $end;\n$poll:\n{acquire}\n\
         setp.eq.u32 %p2, %r3, 0;\n@%p2 bra $poll;\n{{after}}ld.global.u32 %r4, [%rd1];\n$end:\n"
    ))
    .with("{after}", "")
    .threads(32)
    .blocks(2)
}

#[test]
fn a_release_is_acquired() {
    let right = message(
        "st.release.gpu.global.u32 [%rd0], 1;",
        "ld.acquire.gpu.global.u32 %r3, [%rd0];",
    );
    right.clean();
    right
        .with("release", "relaxed")
        .finds(Race, "ld.global.u32 %r4");
    right
        .with("acquire", "relaxed")
        .finds(Race, "ld.global.u32 %r4");
    right.with("release.gpu", "release.cta").finds(Race, "");
    right.with("st.release.gpu.", "st.").finds(Race, "[%rd0]");
    right
        .with(
            "st.release.gpu.global.u32 [%rd0], 1;",
            "red.release.gpu.global.add.u32 [%rd0], 1;",
        )
        .clean();
}

#[test]
fn a_scope_does_not_reach_another_gpu() {
    let one = message(
        "st.release.gpu.global.u32 [%rd0], 1;",
        "ld.acquire.gpu.global.u32 %r3, [%rd0];",
    );
    let two = one.blocks(1).gpus(2);
    two.finds(Race, "");
    two.with(".gpu.", ".sys.").clean();
}

#[test]
fn fences_make_relaxed_accesses_order() {
    let right = message(
        "fence.acq_rel.gpu;\nst.relaxed.gpu.global.u32 [%rd0], 1;",
        "ld.relaxed.gpu.global.u32 %r3, [%rd0];\nfence.acq_rel.gpu;",
    );
    right.clean();
    right
        .with("[%rd0];\nfence.acq_rel.gpu;", "[%rd0];")
        .finds(Race, "ld.global.u32 %r4");
    right
        .with("fence.acq_rel.gpu;\nst.", "st.")
        .finds(Race, "ld.global.u32 %r4");
    right
        .with("fence.acq_rel.gpu", "fence.acq_rel.cta")
        .finds(Race, "ld.global.u32 %r4");
    right.with("fence.acq_rel.gpu", "membar.gl").clean();
}

#[test]
fn atomics_do_not_race_with_each_other() {
    let right = Plant::new("red.relaxed.gpu.global.add.u32 [%rd0], 1;\n").blocks(4);
    right.clean();
    right
        .with("red.relaxed.gpu", "red.relaxed.cta")
        .finds(Race, "red");
    Plant::new("st.global.u32 [%rd0], %r1;\n")
        .blocks(2)
        .finds(Race, "st.global");
    // Bytes of one word are apart.
    Plant::new("cvt.u64.u32 %rd2, %r1;\nadd.u64 %rd2, %rd2, %rd0;\nsetp.eq.u32 %p0, %r0, 0;\n@%p0 st.global.u8 [%rd2], %r1;\n")
        .blocks(4)
        .clean();
}

#[test]
fn a_cluster_meets() {
    let right = Plant::new(
        "mov.u32 %r2, smem;\nmov.u32 %r3, %cluster_ctarank;\nxor.b32 %r3, %r3, 1;\nmapa.shared::cluster.u32 %r4, %r2, %r3;\n\
         setp.ne.u32 %p0, %r0, 0;\n@%p0 bra $over;\nst.shared::cluster.u32 [%r4], 5;\n$over:\n\
         barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\nld.shared.u32 %r5, [%r2];\n",
    )
    .blocks(2)
    .cluster(2);
    right.clean();
    right
        .with("arrive.release", "arrive.relaxed")
        .finds(Race, "ld.shared.u32 %r5");
}

#[test]
fn an_mbarrier_is_initialised_before_it_is_used() {
    let right = Plant::new(
        "mov.u32 %r2, smem;\nsetp.ne.u32 %p0, %r0, 0;\n@%p0 bra $over;\nmbarrier.init.shared.b64 [%r2], 64;\n$over:\n\
         bar.sync 0;\nst.shared.u32 [%r2+64], %r0;\n",
    );
    right.finds(Race, "st.shared.u32");
    let right = right.with(
        "st.shared.u32 [%r2+64], %r0;\n",
        "shl.b32 %r3, %r0, 2;\nadd.u32 %r3, %r3, %r2;\nst.shared.u32 [%r3+64], 1;\nmbarrier.arrive.shared.b64 %rd3, [%r2];\n\
         $wait:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0;\n@!%p1 bra $wait;\nld.shared.u32 %r4, [%r2+64];\nld.shared.u32 %r4, [%r2+192];\n",
    );
    right.clean();
    right
        .with(
            "mbarrier.arrive.shared",
            "mbarrier.arrive.relaxed.cta.shared",
        )
        .finds(Race, "ld.shared.u32 %r4");
}

/// Lanes of the second warp read what the first one's thread wrote; one of them lets go of it for
/// all, and it is written again. `{between}` is where the lanes are together before that.
fn let_go(between: &str) -> Plant {
    Plant::new(
        "mov.u32 %r2, smem;\nmov.u32 %r6, 0;\nsetp.ne.u32 %p0, %r0, 0;\n@%p0 bra $over;\nmbarrier.init.shared.b64 [%r2], 1;\n\
         st.shared.u32 [%r2+64], 1;\n$over:\nbar.sync 0;\nsetp.lt.u32 %p1, %r0, 32;\n@%p1 bra $first;\n\
         setp.ne.u32 %p2, %r0, 32;\n@%p2 bra $apart;\nmov.u32 %r6, 1;\nst.shared.u32 [%r2+128], %r6;\n$apart:\n\
         ld.shared.u32 %r3, [%r2+64];\n{between}\n\
         @%p2 bra $end;\nmbarrier.arrive.shared.b64 %rd3, [%r2];\nbra $end;\n\
         $first:\nmbarrier.try_wait.parity.shared.b64 %p3, [%r2], 0;\n@!%p3 bra $first;\n\
         @%p0 bra $end;\nst.shared.u32 [%r2+64], 2;\n$end:\n",
    )
    .with("{between}", between)
}

#[test]
fn only_a_barrier_orders_the_lanes_of_a_warp() {
    let right = let_go("bar.warp.sync 0xffffffff;");
    right.clean();
    right
        .without("bar.warp.sync 0xffffffff;\n")
        .finds(Race, "st.shared.u32 [%r2+64]");
    // Nor does a read by all of them together, with nothing but the arrival apart.
    let whole = "$apart:\n";
    let apart = right
        .with("@%p2 bra $apart;\n", "")
        .with(whole, "")
        .with("mov.u32 %r6, 1;\nst.shared.u32 [%r2+128], %r6;\n", "");
    apart.clean();
    let predicated = apart.with("@%p2 bra $end;\nmbarrier.arrive", "@!%p2 mbarrier.arrive");
    predicated.clean();
    for apart in [apart, predicated] {
        apart
            .without("bar.warp.sync 0xffffffff;\n")
            .finds(Race, "st.shared.u32 [%r2+64]");
    }
    // Executed together, but no barrier.
    for together in [
        "wgmma.fence.sync.aligned;",
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;",
        "shfl.sync.idx.b32 %r7, %r3, 0, 31, 0xffffffff;",
        "vote.sync.any.pred %p4, %p2, 0xffffffff;",
        "redux.sync.add.s32 %r7, %r3, 0xffffffff;",
        "match.any.sync.b32 %r7, %r3, 0xffffffff;",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r7}, [%r2+64];",
        "elect.sync %r7|%p4, 0xffffffff;",
    ] {
        right
            .with("bar.warp.sync 0xffffffff;", together)
            .finds(Race, "st.shared.u32 [%r2+64]");
        right
            .with(
                "bar.warp.sync 0xffffffff;",
                &format!("{together}\nbar.warp.sync 0xffffffff;"),
            )
            .clean();
    }
}

#[test]
fn one_store_of_one_value_by_many_threads_is_no_race() {
    let right = Plant::new(
        "mov.u32 %r2, smem;\nst.shared.u32 [%r2+64], 7;\nbar.sync 0;\nld.shared.u32 %r4, [%r2+64];\n",
    );
    right.clean();
    // Two values, two stores, a read before the barrier, other blocks: each is one.
    right.with("], 7", "], %r0").finds(Race, "st.shared.u32");
    right
        .with(
            "st.shared.u32 [%r2+64], 7;\n",
            "setp.lt.u32 %p0, %r0, 32;\n@%p0 st.shared.u32 [%r2+64], 7;\n@!%p0 st.shared.u32 [%r2+64], 7;\n",
        )
        .finds(Race, "st.shared.u32");
    right.without("bar.sync 0;\n").finds(Race, "shared.u32");
    Plant::new("st.global.u32 [%rd0], 7;\n")
        .blocks(2)
        .finds(Race, "st.global.u32");
}

#[test]
fn small_copies_are_complete_after_their_wait() {
    let right = Plant::new(
        "mov.u32 %r2, smem;\nshl.b32 %r3, %r0, 4;\nadd.u32 %r4, %r3, %r2;\ncvt.u64.u32 %rd2, %r3;\nadd.u64 %rd2, %rd2, %rd0;\n\
         cp.async.ca.shared.global [%r4], [%rd2], 16;\ncp.async.commit_group;\ncp.async.wait_group 0;\nbar.sync 0;\n\
         xor.b32 %r5, %r3, 512;\nadd.u32 %r5, %r5, %r2;\nld.shared.u32 %r6, [%r5];\n",
    );
    right.clean();
    for line in [
        "cp.async.wait_group 0;\n",
        "cp.async.commit_group;\n",
        "bar.sync 0;\n",
    ] {
        right.without(line).finds(Race, "");
    }
    right
        .without("cp.async.commit_group;\n")
        .with("wait_group 0", "wait_all")
        .clean();
}
