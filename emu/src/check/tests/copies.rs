use super::Plant;
use crate::report::FindingKind::{Proxy, Race};

/// Threads write, one stores in bulk.
fn bulk_store() -> Plant {
    Plant::new(
        "mov.u32 %r2, smem;\nshl.b32 %r3, %r0, 2;\nadd.u32 %r3, %r3, %r2;\nst.shared.u32 [%r3], %r0;\n\
         fence.proxy.async.shared::cta;\nbar.sync 0;\nsetp.ne.u32 %p0, %r0, 0;\n@%p0 bra $over;\n\
         cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r2], 256;\ncp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;\n\
         $over:\nbar.sync 0;\nst.shared.u32 [%r3], 0;\n",
    )
}

#[test]
fn bulk_copies_see_what_a_proxy_fence_shows_them() {
    let right = bulk_store();
    right.clean();
    let message = right
        .without("fence.proxy.async.shared::cta;\n")
        .finds(Proxy, "cp.async.bulk.global");
    assert!(message.contains("no fence.proxy.async"), "{message}");
    right
        .with(
            "fence.proxy.async.shared::cta;\nbar.sync 0;",
            "bar.sync 0;\nfence.proxy.async.shared::cta;",
        )
        .clean();
    right
        .with(
            "fence.proxy.async.shared::cta;\nbar.sync 0;",
            "fence.proxy.async.shared::cta;",
        )
        .finds(Race, "");
    right
        .with("fence.proxy.async.shared::cta", "fence.proxy.async.global")
        .finds(Proxy, "cp.async.bulk.global");
}

#[test]
fn a_bulk_store_reads_until_its_wait() {
    bulk_store()
        .with("$over:\nbar.sync 0;", "$over:")
        .finds(Race, "");
    let early = bulk_store().with(
        "cp.async.bulk.wait_group.read 0;\n$over:\nbar.sync 0;\nst.shared.u32 [%r3], 0;\n",
        "st.shared.u32 [%r2], 0;\ncp.async.bulk.wait_group.read 0;\n$over:\n",
    );
    early.finds(Race, "st.shared.u32 [%r2], 0");
    // Without its commit a store is in no group that the wait waits for.
    let open = bulk_store().with("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;\n", "cp.async.bulk.wait_group.read 0;\nst.shared.u32 [%r2+16], 0;\ncp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n");
    open.finds(Race, "st.shared.u32 [%r2+16], 0");
}

/// One loads in bulk, all read.
fn bulk_load() -> Plant {
    Plant::new(
        "mov.u32 %r2, smem;\nsetp.ne.u32 %p0, %r0, 0;\n@%p0 bra $init;\nmbarrier.init.shared.b64 [%r2], 1;\n\
         fence.mbarrier_init.release.cluster;\n$init:\nbar.sync 0;\n@%p0 bra $wait;\n\
         mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+1024], [%rd0], 256, [%r2];\n\
         $wait:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0;\n@!%p1 bra $wait;\n\
         shl.b32 %r3, %r0, 2;\nadd.u32 %r3, %r3, %r2;\nld.shared.u32 %r4, [%r3+1024];\nbar.sync 0;\n@%p0 bra $again;\n\
         mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+1024], [%rd0+256], 256, [%r2];\n\
         $again:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r2], 1;\n@!%p1 bra $again;\nld.shared.u32 %r4, [%r3+1024];\n",
    )
}

#[test]
fn a_bulk_load_is_read_after_its_phase() {
    let right = bulk_load();
    right.clean();
    let message = right
        .without("mbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0;\n@!%p1 bra $wait;\n")
        .finds(Proxy, "ld.shared.u32");
    assert!(message.contains("completion"), "{message}");
    right
        .with(
            "ld.shared.u32 %r4, [%r3+1024];\nbar.sync 0;\n",
            "ld.shared.u32 %r4, [%r3+1024];\n",
        )
        .finds(Race, "cp.async.bulk");
}

#[test]
fn device_memory_has_proxies_too() {
    // Another block's ordinary writes, read by a bulk load.
    let right = Plant::new(
        "mov.u32 %r2, smem;\nsetp.ne.u32 %p1, %r0, 0;\n@%p1 bra $end;\natom.relaxed.gpu.global.add.u32 %r6, [%rd0+64], 1;\nsetp.ne.u32 %p0, %r6, 0;\n@%p0 bra $poll;\n\
         st.global.u32 [%rd1], 7;\nfence.proxy.async.global;\nst.release.gpu.global.u32 [%rd0], 1;\nbra $end;\n\
         $poll:\nld.acquire.gpu.global.u32 %r3, [%rd0];\nsetp.eq.u32 %p2, %r3, 0;\n@%p2 bra $poll;\n\
         mbarrier.init.shared.b64 [%r2], 1;\nmbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+1024], [%rd1], 256, [%r2];\n\
         $wait:\nmbarrier.try_wait.parity.shared.b64 %p3, [%r2], 0;\n@!%p3 bra $wait;\nld.shared.u32 %r4, [%r2+1024];\n$end:\n",
    )
    .threads(32)
    .blocks(2);
    right.clean();
    right
        .without("fence.proxy.async.global;\n")
        .finds(Proxy, "cp.async.bulk");
    right
        .with("release", "relaxed")
        .finds(Race, "cp.async.bulk");
}

#[test]
fn a_bulk_store_is_seen_after_its_full_wait() {
    let right = Plant::new(
        "mov.u32 %r2, smem;\nsetp.ne.u32 %p0, %r0, 0;\n@%p0 bra $end;\nst.shared.v4.u32 [%r2], {%r0, %r0, %r0, %r0};\nfence.proxy.async;\n\
         cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r2], 16;\ncp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nld.global.u32 %r3, [%rd0];\n$end:\n",
    );
    right.clean();
    right
        .with("wait_group 0", "wait_group.read 0")
        .finds(Proxy, "ld.global");
}
