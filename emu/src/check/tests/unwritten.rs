use super::Plant;
use crate::report::FindingKind::Uninitialised;

#[test]
fn what_nobody_wrote_is_found_where_it_is_used() {
    let load = "mul.wide.u32 %rd2, %r0, 4;\nadd.u64 %rd2, %rd2, %rd0;\nadd.u64 %rd3, %rd2, %rd1;\nsub.u64 %rd3, %rd3, %rd0;\nld.global.u32 %r3, [%rd2];\nadd.u32 %r4, %r3, 1;\n";
    let store = Plant::new(&format!("{load}st.global.u32 [%rd3], %r4;\n"));
    store.clean();
    let message = store
        .with("st.global", "st.global")
        .written(128)
        .finds(Uninitialised, "st.global.u32");
    assert!(
        message.contains("stored to device memory") && message.contains("line 18"),
        "{message}"
    );
    // Dropped, or never stored: nothing.
    Plant::new(load).written(128).clean();
    Plant::new(&format!(
        "{load}setp.lt.u32 %p0, %r0, 32;\n@%p0 st.global.u32 [%rd3], %r4;\n"
    ))
    .written(128)
    .clean();
    Plant::new(&format!(
        "{load}setp.lt.u32 %p0, %r0, 32;\nselp.b32 %r4, %r4, 0, %p0;\nst.global.u32 [%rd3], %r4;\n"
    ))
    .written(128)
    .clean();
    let message = Plant::new(&format!(
        "{load}setp.eq.u32 %p0, %r4, 7;\n@%p0 bra $end;\n$end:\n"
    ))
    .written(128)
    .finds(Uninitialised, "bra");
    assert!(message.contains("predicate"), "{message}");
    let message = Plant::new(&format!(
        "{load}mul.wide.u32 %rd4, %r3, 4;\nadd.u64 %rd4, %rd4, %rd1;\nld.global.u32 %r5, [%rd4];\n"
    ))
    .written(128)
    .finds(Uninitialised, "ld.global.u32 %r5");
    assert!(message.contains("address"), "{message}");
    Plant::new("red.relaxed.gpu.global.add.u32 [%rd0], 1;\n")
        .written(0)
        .finds(Uninitialised, "red");
}

#[test]
fn shared_memory_starts_unwritten() {
    let right = Plant::new(
        "mov.u32 %r2, smem;\nshl.b32 %r3, %r0, 2;\nadd.u32 %r3, %r3, %r2;\nst.shared.u32 [%r3], %r0;\n\
         bar.sync 0;\nld.shared.u32 %r4, [%r3];\nmul.wide.u32 %rd2, %r0, 4;\nadd.u64 %rd2, %rd2, %rd1;\nst.global.u32 [%rd2], %r4;\n",
    );
    right.clean();
    right
        .without("st.shared.u32 [%r3], %r0;\n")
        .finds(Uninitialised, "st.global.u32");
    // What was not written stays so on its way through shared memory.
    right
        .with(
            "st.shared.u32 [%r3], %r0;\n",
            "ld.global.u32 %r5, [%rd0];\nst.shared.u32 [%r3], %r5;\n",
        )
        .written(0)
        .finds(Uninitialised, "st.global.u32");
}

#[test]
fn products_carry_rows_and_columns() {
    let product = Plant::new(
        "mov.u32 %r2, smem;\nshl.b32 %r3, %r0, 5;\nadd.u32 %r3, %r3, %r2;\nsetp.ge.u32 %p0, %r0, 64;\n\
         @%p0 bra $over;\nst.shared.v4.u32 [%r3], {%r0, %r0, %r0, %r0};\nst.shared.v4.u32 [%r3+16], {%r0, %r0, %r0, %r0};\n\
         $over:\nfence.proxy.async;\nbar.sync 0;\n\
         bfe.u32 %r4, %r2, 4, 14;\ncvt.u64.u32 %rd2, %r4;\nor.b64 %rd2, %rd2, 0x0000000800080000;\n\
         wgmma.fence.sync.aligned;\n\
         wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %rd2, %rd2, 0, 1, 1, 0, 0;\n\
         wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n\
         mul.wide.u32 %rd3, %r0, 4;\nadd.u64 %rd3, %rd3, %rd1;\nst.global.f32 [%rd3], %f0;\n",
    )
    .threads(128);
    product.clean();
    product
        .with("%r0, 64", "%r0, 3")
        .finds(Uninitialised, "st.global.f32");
}

#[test]
fn bulk_stores_store_what_was_written() {
    let right = Plant::new(
        "mov.u32 %r2, smem;\nsetp.ne.u32 %p0, %r0, 0;\n@%p0 bra $end;\nst.shared.v4.u32 [%r2], {%r0, %r0, %r0, %r0};\nfence.proxy.async;\n\
         cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r2], 16;\ncp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n$end:\n",
    );
    right.clean();
    right
        .with("[%rd0], [%r2], 16", "[%rd0], [%r2], 32")
        .finds(Uninitialised, "cp.async.bulk.global");
}

#[test]
fn padding_is_copied_and_not_computed_with() {
    // A structure of a byte, a word and a double: written member by member, copied in words.
    let right = Plant::new(
        "mov.u32 %r2, smem;\nmul.lo.u32 %r3, %r0, 16;\nadd.u32 %r3, %r3, %r2;\nst.shared.u8 [%r3], %r0;\nst.shared.u16 [%r3+8], %r0;\n\
         bar.sync 0;\nld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r3];\nmov.b32 %r8, %r5;\nmul.wide.u32 %rd2, %r0, 16;\nadd.u64 %rd2, %rd2, %rd1;\n\
         st.global.v4.u32 [%rd2], {%r4, %r8, %r6, %r7};\n",
    );
    right.clean();
    right
        .with("mov.b32 %r8, %r5", "add.u32 %r8, %r5, 1")
        .finds(Uninitialised, "st.global.v4.u32");
    right
        .with("v4.u32 {%r4, %r5, %r6, %r7}, [%r3]", "u32 %r5, [%r3+4]")
        .with(
            "st.global.v4.u32 [%rd2], {%r4, %r8, %r6, %r7}",
            "st.global.u32 [%rd2], %r8",
        )
        .clean();
    // Nothing around it was written: no structure.
    right
        .without("st.shared.u8 [%r3], %r0;\n")
        .without("st.shared.u16 [%r3+8], %r0;\n")
        .finds(Uninitialised, "st.global.v4.u32");
}

#[test]
fn local_memory_starts_unwritten() {
    let right = Plant::new(
        ".local .align 8 .b8 own[64];\nmov.u64 %rd2, own;\ncvta.local.u64 %rd3, %rd2;\nst.local.u32 [own+8], %r0;\n\
         ld.u32 %r4, [%rd3+8];\nadd.u32 %r4, %r4, 1;\nmul.wide.u32 %rd4, %r0, 4;\nadd.u64 %rd4, %rd4, %rd1;\nst.global.u32 [%rd4], %r4;\n",
    );
    right.clean();
    for wrong in [
        right.with("[%rd3+8]", "[%rd3+16]"),
        right.without("st.local.u32 [own+8], %r0;\n"),
    ] {
        wrong.finds(Uninitialised, "st.global.u32");
    }
    // An argument that the caller left out.
    let call = Plant::new(
        "{.param .b32 a;\nst.param.b32 [a], %r0;\n{.reg .b32 t;\nld.param.b32 t, [a];\nmov.b32 %r4, t;\n}\n}\nadd.u32 %r4, %r4, 1;\n\
         mul.wide.u32 %rd4, %r0, 4;\nadd.u64 %rd4, %rd4, %rd1;\nst.global.u32 [%rd4], %r4;\n",
    );
    call.clean();
    call.without("st.param.b32 [a], %r0;\n")
        .finds(Uninitialised, "st.global.u32");
}
