//! What `tcgen05` rejects: the message says which value, and what is allowed.

use super::tcgen05::{decode, descriptor};
use crate::tensor::tcgen05::copy::Copy;
use crate::tensor::tcgen05::fragment::Fragment;
use crate::tensor::tcgen05::instruction::{Fields, Kind};
use crate::tensor::tcgen05::memory::Address;
use crate::tensor::tcgen05::product::{Mma, OperandA, Operands};

/// M = 128, N = 64, f32 += bf16 * bf16.
const PLAIN: u32 = 1 << 4 | 1 << 7 | 1 << 10 | 8 << 17 | 8 << 24;
/// M = 128, N = 64, e4m3, ue8m0.
const SCALED: u32 = 8 << 17 | 1 << 23 | 1 << 27;

#[test]
fn instruction_descriptors() {
    let with = |bits: u32, clear: u32, set: u32| bits & !clear | set;
    let (m, n) = (31 << 24, 63 << 17);
    for (kind, group, bits, says) in [
        (
            Kind::F16,
            1,
            with(PLAIN, m, 6 << 24),
            "M = 96, and with cta_group::1 M is 64 or 128",
        ),
        (
            Kind::F16,
            2,
            with(PLAIN, m, 4 << 24),
            "M = 64, and with cta_group::2 M is 128 or 256",
        ),
        (
            Kind::F16,
            1,
            with(PLAIN, n, 0),
            "N = 0, and with cta_group::1 N is 8 to 256 in steps of 8",
        ),
        (Kind::F16, 1, with(PLAIN, n, 34 << 17), "N = 272"),
        (
            Kind::F16,
            2,
            with(PLAIN, n, 3 << 17),
            "N = 24, and with cta_group::2 N is 16 to 256 in steps of 16",
        ),
        (
            Kind::F16,
            1,
            with(PLAIN, 0, 7 << 7),
            "the type of A is 7, and there are 0 f16, 1 bf16",
        ),
        (
            Kind::F16,
            1,
            with(PLAIN, 0, 2 << 4),
            "the type of D is 3, and there are 0 f16, 1 f32",
        ),
        (
            Kind::F16,
            1,
            with(PLAIN, 1 << 4, 0),
            "D in f16 takes A and B in f16, not bf16 and bf16",
        ),
        (Kind::F16, 1, with(PLAIN, 0, 1 << 2), "sparse"),
        (Kind::F16, 1, with(PLAIN, 0, 1 << 3), "must be 0"),
        (Kind::F16, 1, with(PLAIN, 0, 1 << 29), "must be 0"),
        (Kind::F16, 1, with(PLAIN, 0, 1 << 30), "`.ws`"),
        (
            Kind::Tf32,
            1,
            PLAIN,
            "the type of A is 1, and there are 2 tf32",
        ),
        (
            Kind::F8f6f4,
            1,
            with(PLAIN, 7 << 7, 2 << 7),
            "0 e4m3, 1 e5m2, 3 e2m3, 4 e3m2, 5 e2m1",
        ),
        (
            Kind::I8,
            1,
            with(PLAIN, 3 << 4, 2 << 4 | 1 << 13),
            "not negated",
        ),
        (
            Kind::I8,
            2,
            with(PLAIN, 3 << 4 | n, 2 << 4 | 6 << 17),
            "32 to 256 in steps of 32",
        ),
        (Kind::F8f6f4, 2, with(PLAIN, n, 1 << 16 | 6 << 17), "N = 48"),
        (Kind::Mxf8f6f4, 1, with(SCALED, 1 << 23, 0), "bit 23"),
        (
            Kind::Mxf8f6f4,
            1,
            with(SCALED, 3 << 27, 2 << 27),
            "M = 256, and with cta_group::1 M is 128",
        ),
        (Kind::Mxf8f6f4, 1, with(SCALED, 0, 1 << 24), "must be 0"),
        (
            Kind::Mxf4,
            1,
            with(SCALED, 0, 1 << 7 | 1 << 10 | 1 << 31),
            "K = 96",
        ),
        (
            Kind::Mxf4,
            1,
            with(SCALED, 0, 1 << 7 | 1 << 10 | 1 << 15),
            "not transposed",
        ),
        (
            Kind::Mxf4,
            1,
            SCALED,
            "the type of A is 0, and there are 1 e2m1",
        ),
    ] {
        let error = Fields::decode(bits, kind, group).expect_err(says);
        assert!(error.contains(says), "{error}");
    }
    Fields::decode(PLAIN, Kind::F16, 1).unwrap();
    Fields::decode(with(PLAIN, n, 9 << 17), Kind::F16, 1).unwrap();
    Fields::decode(SCALED, Kind::Mxf8f6f4, 1).unwrap();
}

fn plain() -> Operands {
    let desc = descriptor(0x400, 16, 1024, 2);
    Operands {
        d: Address { lane: 0, column: 0 },
        a: OperandA::Shared(desc),
        b: desc,
        instruction: PLAIN,
        scales: None,
        input_d: false,
        scale_d: 0,
        disabled: [[0; 4]; 2],
    }
}

#[test]
fn operands() {
    let at = |lane: u32, column: u32| Address { lane, column };
    let mma = decode(Kind::F16, 1);
    mma.plan(plain()).unwrap();
    let desc = descriptor(0x400, 16, 1024, 2);
    for (operands, says) in [
        (
            Operands {
                d: at(16, 0),
                ..plain()
            },
            "D begins in lane 16 of tensor memory, and must in lane 0",
        ),
        (
            Operands {
                d: at(0, 500),
                ..plain()
            },
            "D reaches columns 500 to 563, and tensor memory has 512",
        ),
        (
            Operands {
                a: OperandA::Tensor(at(0, 508)),
                ..plain()
            },
            "A reaches columns 508 to 515",
        ),
        (
            Operands {
                b: desc & !(1 << 46),
                ..plain()
            },
            "operand B: matrix descriptor",
        ),
        (
            Operands {
                b: desc | 1 << 61,
                ..plain()
            },
            "the swizzle in bits 61-63 is 3",
        ),
        (
            Operands {
                b: desc | 1 << 52,
                ..plain()
            },
            "bit 52",
        ),
        (
            Operands {
                b: desc | 1 << 53,
                ..plain()
            },
            "reserved bits",
        ),
        (
            Operands {
                b: descriptor(0x400, 16, 1024, 1),
                ..plain()
            },
            "for transposed operands only",
        ),
        (
            Operands {
                instruction: PLAIN | 1 << 15,
                a: OperandA::Tensor(at(0, 64)),
                ..plain()
            },
            "A in tensor memory is not transposed",
        ),
        (
            Operands {
                instruction: PLAIN | 1 << 16,
                b: descriptor(0x400, 16, 1024, 1),
                ..plain()
            },
            "takes no 128-byte swizzle in atoms of 32 bytes",
        ),
    ] {
        let error = mma.plan(operands).expect_err(says);
        assert!(error.contains(says), "{error}");
    }
    let tf32 = Operands {
        instruction: 1 << 4 | 2 << 7 | 2 << 10 | 1 << 16 | 8 << 17 | 8 << 24,
        ..plain()
    };
    let error = decode(Kind::Tf32, 1).plan(tf32).unwrap_err();
    assert!(
        error.contains("elements of 32 bits takes the 128-byte swizzle in atoms"),
        "{error}"
    );
}

#[test]
fn scales() {
    let at = |column: u32| Address { lane: 0, column };
    let with = |instruction: u32, scales: (Address, Address)| Operands {
        instruction,
        scales: Some(scales),
        ..plain()
    };
    let packed = SCALED | 1 << 7 | 1 << 10;
    for (kind, operands, says) in [
        (
            Kind::Mxf4,
            with(packed | 1 << 29, (at(0), at(8))),
            "A's scale id is 1, and with .scale_vec::2X it is 0, 2",
        ),
        (
            Kind::Mxf4nvf4,
            with(packed | 2 << 4, (at(0), at(8))),
            "B's scale id is 2, and with .scale_vec::4X it is 0",
        ),
        (
            Kind::Mxf8f6f4,
            with(SCALED, (at(510), at(8))),
            "A's scales reaches columns 510 to 513",
        ),
    ] {
        let error = decode(kind, 1).plan(operands).expect_err(says);
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn opcodes() {
    for (parts, says) in [
        (&["cta_group::3", "kind::f16"][..], "cta_group::3"),
        (&["cta_group::1", "kind::f32"], "kind::f32"),
        (&["cta_group::1", "kind::f16", "block_scale"], "block_scale"),
        (
            &["cta_group::1", "kind::mxf4nvf4", "block_scale"],
            "no .scale_vec",
        ),
        (
            &["cta_group::1", "kind::mxf4", "block_scale", "scale_vec::4X"],
            "scale_vec::4X",
        ),
        (
            &["cta_group::1", "kind::f16", "collector::a::keep"],
            "collector::a::keep",
        ),
        (&["cta_group::1", "kind::f16", "ashift"], "ashift"),
        (&["ws", "cta_group::1", "kind::f16"], "ws"),
    ] {
        let error = Mma::decode(parts).expect_err(says);
        assert!(error.contains(says), "{error}");
    }
    assert!(Copy::decode(&["64x128b"]).unwrap_err().contains("64x128b"));
    assert!(Copy::decode(&["128x128b", "b8x16", "b5x16_p48"]).is_err());
    assert!(
        Fragment::decode(&["16x256b", "x64"], true)
            .unwrap_err()
            .contains("x32")
    );
    assert!(Fragment::decode(&["16x256b", "x2", "unpack::16b"], true).is_err());
}
