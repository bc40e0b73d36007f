use super::Plant;
use crate::report::FindingKind::{InFlight, Proxy, Race};

fn product() -> Plant {
    Plant::new(
        "mov.u32 %r2, smem;\nshl.b32 %r3, %r0, 5;\nadd.u32 %r3, %r3, %r2;\n\
         st.shared.v4.u32 [%r3], {%r0, %r0, %r0, %r0};\nst.shared.v4.u32 [%r3+16], {%r0, %r0, %r0, %r0};\n\
         fence.proxy.async;\nbar.sync 0;\n\
         mov.f32 %f0, 0f00000000;\nmov.f32 %f1, 0f00000000;\nmov.f32 %f2, 0f00000000;\nmov.f32 %f3, 0f00000000;\n\
         bfe.u32 %r4, %r2, 4, 14;\ncvt.u64.u32 %rd2, %r4;\nor.b64 %rd2, %rd2, 0x0000000800080000;\n\
         wgmma.fence.sync.aligned;\n\
         wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %rd2, %rd2, 1, 1, 1, 0, 0;\n\
         wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n\
         add.f32 %f4, %f0, %f1;\nbar.sync 0;\nst.shared.u32 [%r3], %r0;\n",
    )
    .threads(128)
}

#[test]
fn sums_are_touched_after_their_wait() {
    let right = product();
    right.clean();
    right
        .with(
            "wgmma.wait_group.sync.aligned 0;\nadd.f32 %f4, %f0, %f1;",
            "add.f32 %f4, %f0, %f1;\nwgmma.wait_group.sync.aligned 0;",
        )
        .finds(InFlight, "add.f32");
    right
        .with(
            "wgmma.wait_group.sync.aligned 0;\nadd.f32 %f4, %f0, %f1;",
            "mov.f32 %f1, 0f00000000;\nwgmma.wait_group.sync.aligned 0;",
        )
        .finds(InFlight, "mov.f32 %f1");
    right
        .with("aligned 0;", "aligned 1;\nwgmma.wait_group.sync.aligned 1;")
        .with(
            "bar.sync 0;\nst.shared",
            "wgmma.wait_group.sync.aligned 0;\nbar.sync 0;\nst.shared",
        )
        .finds(InFlight, "add.f32");
}

#[test]
fn registers_are_fenced_before_a_product() {
    let right = product();
    right
        .without("wgmma.fence.sync.aligned;\n")
        .finds(InFlight, "wgmma.mma_async");
    right
        .with(
            "wgmma.fence.sync.aligned;\n",
            "wgmma.fence.sync.aligned;\nadd.f32 %f2, %f4, %f4;\n",
        )
        .finds(InFlight, "wgmma.mma_async");
}

#[test]
fn products_read_through_the_asynchronous_proxy() {
    let right = product();
    right
        .without("fence.proxy.async;\n")
        .finds(Proxy, "wgmma.mma_async");
    right
        .with("fence.proxy.async;\nbar.sync 0;\n", "fence.proxy.async;\n")
        .finds(Race, "");
    right
        .with("add.f32 %f4, %f0, %f1;\nbar.sync 0;\n", "")
        .finds(Race, "");
    right
        .with("wgmma.wait_group.sync.aligned 0;\nadd.f32 %f4, %f0, %f1;\nbar.sync 0;\nst.shared.u32 [%r3], %r0;\n", "bar.sync 0;\nst.shared.u32 [%r3], %r0;\nwgmma.wait_group.sync.aligned 0;\n")
        .finds(Race, "");
}
