//! Opcodes: the listing and the decoders agree, and nothing else is taken.

use super::Random;
use crate::tensor::isa;
use crate::tensor::matrix::Matrix;
use crate::tensor::mma::Mma;
use crate::tensor::wgmma::Wgmma;

fn parts(opcode: &str) -> Vec<&str> {
    opcode.split('.').collect()
}

#[test]
fn every_row_of_the_listing_decodes() {
    let (mut wgmma, mut mma) = (0, 0);
    for (pattern, types) in isa() {
        let plain = pattern.replace("{.satfinite}", "");
        if pattern.starts_with("wgmma") {
            let (types, columns) = types.split_once(", N = ").unwrap();
            for n in columns.split(' ') {
                let opcode = format!("{}.{types}", plain.replace('N', n));
                let decoded = Wgmma::decode(&parts(&opcode)).unwrap().unwrap();
                assert_eq!(decoded.n().to_string(), n);
                assert_eq!(Mma::decode(&parts(&opcode)), Ok(None));
                wgmma += 1;
            }
        } else if pattern.starts_with("mma") {
            let opcode = format!("{plain}.{types}");
            assert!(Mma::decode(&parts(&opcode)).unwrap().is_some(), "{opcode}");
            assert_eq!(Wgmma::decode(&parts(&opcode)), Ok(None));
            mma += 1;
        }
    }
    // f16 2, bf16 1, tf32 1, fp8 4 * 2 of 32 N; integers 4 of 18 N.
    assert_eq!(wgmma, 12 * 32 + 4 * 18);
    // f16 2, bf16 1, tf32 1, fp8 8, integers 4; two K each.
    assert_eq!(mma, 32);
}

#[test]
fn illegal_opcodes_are_named() {
    for (opcode, what) in [
        (
            "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16",
            "sparse",
        ),
        (
            "wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc",
            "single-bit",
        ),
        (
            "wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16",
            "shape",
        ),
        (
            "wgmma.mma_async.sync.aligned.m64n264k16.f32.f16.f16",
            "shape",
        ),
        ("wgmma.mma_async.sync.aligned.m64n8k8.f32.f16.f16", "shape"),
        ("wgmma.mma_async.sync.aligned.m64n40k32.s32.s8.s8", "shape"),
        (
            "wgmma.mma_async.sync.aligned.m64n8k16.f16.bf16.bf16",
            "go together",
        ),
        (
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.f16",
            "go together",
        ),
        ("wgmma.mma_async.sync.aligned.m64n8k16.f32.f64.f64", "type"),
        (
            "wgmma.mma_async.sync.aligned.m64n8k16.satfinite.f32.f16.f16",
            "satfinite",
        ),
        ("wgmma.mma_async.sync.m64n8k16.f32.f16.f16", "aligned"),
    ] {
        let error = Wgmma::decode(&parts(opcode)).unwrap_err();
        assert!(error.starts_with(opcode) && error.contains(what), "{error}");
    }
    for (opcode, what) in [
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32", "m16n8k8"),
        (
            "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32",
            "row.col",
        ),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f16",
            "different",
        ),
        (
            "mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16",
            "go together",
        ),
        (
            "mma.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
            "m16n8k16",
        ),
        (
            "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e4m3.f32",
            "kinds",
        ),
        (
            "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
            "sparse",
        ),
    ] {
        let error = Mma::decode(&parts(opcode)).unwrap_err();
        assert!(error.starts_with(opcode) && error.contains(what), "{error}");
    }
    for (opcode, what) in [
        ("ldmatrix.sync.aligned.m8n8.x3.shared.b16", "x4"),
        (
            "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8",
            "Blackwell",
        ),
        ("stmatrix.sync.aligned.m8n8.x1.global.b16", "shared"),
        ("movmatrix.sync.aligned.m8n8.b16", "trans"),
    ] {
        let error = Matrix::decode(&parts(opcode)).unwrap_err();
        assert!(error.starts_with(opcode) && error.contains(what), "{error}");
    }
    for opcode in ["", "add.s32", "wgmma.fence.sync.aligned", "mapa.u64"] {
        assert_eq!(Wgmma::decode(&parts(opcode)), Ok(None));
        assert_eq!(Mma::decode(&parts(opcode)), Ok(None));
        assert_eq!(Matrix::decode(&parts(opcode)), Ok(None));
    }
}

#[test]
fn random_opcodes_do_not_panic() {
    let words = [
        "wgmma",
        "mma_async",
        "mma",
        "sync",
        "aligned",
        "m64n8k16",
        "m16n8k16",
        "row",
        "col",
        "f32",
        "f16",
        "bf16",
        "s32",
        "s8",
        "satfinite",
        "ldmatrix",
        "m8n8",
        "x4",
        "trans",
        "b16",
        "",
        "é",
        "sp",
    ];
    let mut random = Random(43);
    for _ in 0..100_000 {
        let count = random.below(11) as usize;
        let opcode: Vec<&str> = (0..count)
            .map(|_| words[random.below(words.len() as u64) as usize])
            .collect();
        let _ = (
            Wgmma::decode(&opcode),
            Mma::decode(&opcode),
            Matrix::decode(&opcode),
        );
    }
}
