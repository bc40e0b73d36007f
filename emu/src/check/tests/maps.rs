use super::Plant;
use crate::report::FindingKind::{Illegal, Proxy, Race};

/// One warp makes a map of 64 bytes in shared memory, copies it to device memory, and stores a box
/// through it.
fn made() -> Plant {
    Plant::new(
        "mov.u32 %r2, smem;\nshl.b32 %r3, %r0, 2;\nadd.u32 %r3, %r3, %r2;\nst.shared.u32 [%r3], 0;\n\
         st.shared.u32 [%r3+1024], %r0;\nbar.warp.sync -1;\nsetp.ne.u32 %p0, %r0, 0;\n@%p0 bra $copy;\n\
         tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r2], %rd1;\n\
         tensormap.replace.tile.rank.shared::cta.b1024.b32 [%r2], 0;\n\
         tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r2], 0, 64;\n\
         tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r2], 0, 64;\n\
         tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%r2], 0, 1;\n\
         tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%r2], 0;\n\
         $copy:\nbar.warp.sync -1;\n\
         tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd0], [%r2], 128;\n\
         bar.warp.sync -1;\n\
         fence.proxy.tensormap::generic.acquire.gpu [%rd0], 128;\n\
         fence.proxy.async.shared::cta;\nbar.warp.sync -1;\n@%p0 bra $end;\n\
         cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd0, {0}], [%r2+1024];\n\
         cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n$end:\n"
            .replace("{0}", "{%r4}")
            .replace("mov.u32 %r2, smem;", "mov.u32 %r2, smem;\nmov.u32 %r4, 0;")
            .as_str(),
    )
    .threads(32)
}

#[test]
fn a_map_made_on_the_device_is_acquired_before_it_is_used() {
    made().clean();
    let message = made()
        .without("fence.proxy.tensormap::generic.acquire.gpu [%rd0], 128;\n")
        .finds(Proxy, "cp.async.bulk.tensor");
    assert!(message.contains("acquire"), "{message}");
    // Another map's fence doesn't count, nor one that comes before the copy.
    made()
        .with("acquire.gpu [%rd0]", "acquire.gpu [%rd0+128]")
        .finds(Proxy, "cp.async.bulk.tensor");
    let copy = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd0], [%r2], 128;\n";
    let early = made()
        .without("fence.proxy.tensormap::generic.acquire.gpu [%rd0], 128;\n")
        .with(
            copy,
            &format!("fence.proxy.tensormap::generic.acquire.gpu [%rd0], 128;\n{copy}"),
        );
    let message = early.finds(Proxy, "cp.async.bulk.tensor");
    assert!(message.contains("written after"), "{message}");
}

#[test]
fn a_map_is_made_whole_and_in_order() {
    made()
        .without("tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r2], 0, 64;\n")
        .finds(Illegal, "cp.async.bulk.tensor");
    // Two warps make it, and none waits for the other.
    made().threads(64).finds(Race, "");
}
