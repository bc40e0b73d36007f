//! The table, the decoder, and that the warp form agrees with the one-lane form.

use super::{Random, ScalarOp, Ty, op};
use crate::scalar::isa;
use std::collections::BTreeSet;

fn names() -> BTreeSet<String> {
    isa().iter().flat_map(|row| row.names()).collect()
}

#[test]
fn every_name_computes_alone_and_in_a_warp() {
    let names = names();
    assert!(names.len() > 5000, "{}", names.len());
    let mut random = Random(1);
    // Enough rounds that every kind of operand meets every name, NaNs of any payload too.
    let rounds = names.iter().enumerate().cycle().take(24 * names.len());
    for (nth, name) in rounds {
        let op = op(name);
        // Garbage above an operand's type must not matter, nor make anything panic.
        let garbage = nth % 3 == 0;
        let mut src = vec![[0u64; 32]; op.src().len()];
        for (column, ty) in src.iter_mut().zip(op.src()) {
            column.fill_with(|| {
                random.operand(*ty)
                    | if garbage {
                        random.next() & !ty.mask()
                    } else {
                        0
                    }
            });
        }
        let sources: Vec<&[u64; 32]> = src.iter().take(op.src_required()).collect();
        for mask in [u32::MAX, random.next() as u32] {
            let before = random.next() as u32;
            let mut carry = before;
            let mut dst = [[0xdead_beef_dead_beef; 32]; 2];
            op.eval_warp(mask, &sources, &mut carry, &mut dst);
            for lane in 0..32 {
                let one: Vec<u64> = sources.iter().map(|s| s[lane]).collect();
                let clean: Vec<u64> = one
                    .iter()
                    .zip(op.src())
                    .map(|(x, ty)| x & ty.mask())
                    .collect();
                let mut flag = before >> lane & 1 == 1;
                let expected = op.eval(&one, &mut flag);
                assert_eq!(
                    expected,
                    op.eval(&clean, &mut (before >> lane & 1 == 1)),
                    "{name} {one:x?}"
                );
                if mask >> lane & 1 == 0 {
                    assert_eq!(
                        (dst[0][lane], dst[1][lane]),
                        (0xdead_beef_dead_beef, 0xdead_beef_dead_beef),
                        "{name}"
                    );
                    assert_eq!(carry >> lane & 1, before >> lane & 1, "{name}");
                    continue;
                }
                assert_eq!(dst[0][lane], expected[0], "{name} {one:x?}");
                if op.dst().len() == 2 {
                    assert_eq!(dst[1][lane], expected[1], "{name} {one:x?}");
                }
                assert_eq!(carry >> lane & 1 == 1, flag, "{name} {one:x?}");
                for (result, ty) in expected.iter().zip(op.dst()) {
                    assert_eq!(
                        result & !ty.mask(),
                        0,
                        "{name}: {result:x} is wider than {ty:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn ties_in_a_warp() {
    // Random bits seldom tie, so each lane here does: an even or odd last place, and a half.
    let ties: [u64; 32] = std::array::from_fn(|i| (0x3f80_0000 + ((i as u64) << 16)) | 0x8000);
    for name in ["cvt.rn.bf16.f32", "cvt.rn.bf16x2.f32"] {
        let mut dst = [[0; 32]; 2];
        op(name).eval_warp(u32::MAX, &[&ties, &ties], &mut 0, &mut dst);
        for (lane, tie) in ties.iter().enumerate() {
            assert_eq!(
                dst[0][lane],
                op(name).eval(&[*tie, *tie], &mut false)[0],
                "{name} {tie:x}"
            );
            assert_eq!(dst[0][lane] & 1, 0, "{name} {tie:x}");
        }
    }
}

#[test]
fn a_tiny_product_is_flushed_in_a_warp() {
    let (least, below_one) = ([0x0080_0000; 32], [0x3f7f_ffff; 32]);
    let mut dst = [[7; 32]; 2];
    op("mul.ftz.f32").eval_warp(u32::MAX, &[&least, &below_one], &mut 0, &mut dst);
    assert_eq!(dst[0], [0; 32]);
    op("mul.f32").eval_warp(u32::MAX, &[&least, &below_one], &mut 0, &mut dst);
    assert_eq!(dst[0], least);
}

#[test]
fn fewer_or_more_sources_than_it_takes_are_no_panic() {
    for name in names() {
        let op = op(&name);
        op.eval(&[], &mut false);
        op.eval(&[u64::MAX; 9], &mut true);
        let mut dst = [[0; 32]; 2];
        op.eval_warp(u32::MAX, &[], &mut 0, &mut dst);
        op.eval_warp(7, &[&[u64::MAX; 32]; 8], &mut 0, &mut dst);
    }
}

#[test]
fn other_instructions_are_left_to_the_machine() {
    for name in [
        "ld.global.u32",
        "bra.uni",
        "bar.sync",
        "shfl.sync.idx.b32",
        "wgmma.fence.sync.aligned",
        "",
    ] {
        let parts: Vec<_> = name.split('.').collect();
        assert_eq!(ScalarOp::decode(&parts), Ok(None), "{name}");
    }
    assert_eq!(ScalarOp::decode(&[]), Ok(None));
}

#[test]
fn errors_name_what_is_wrong() {
    // Each of these is refused by ptxas 13.0 too.
    for (name, text) in [
        ("add.frob.f32", ".frob"),
        ("add.sat.u32", ".sat"),
        ("add.rz.f16", ".rz"),
        ("add.f16.f32", "types"),
        ("mul.s32", ".hi"),
        ("fma.f32", ".rn"),
        ("fma.rn.relu.f32", ".relu"),
        ("setp.lo.s32", ".lo"),
        ("setp.ltu.s32", ".ltu"),
        ("setp.lt.b32", ".lt"),
        ("cvt.f16.f32", ".rn"),
        ("cvt.sat.s32.s32", ".sat"),
        ("cvt.sat.s64.u32", ".sat"),
        ("cvt.rn.f32.f16", ".rn"),
        ("cvt.rn.bf16x2.e4m3x2", "types"),
        ("cvt.rn.e5m2x2.f32", "satfinite"),
        ("shf.l.b32", "clamp"),
        ("min.NaN.f64", ".NaN"),
        ("add.u8", "u8"),
        ("tanh.approx.ftz.f32", ".ftz"),
        ("add", "types"),
    ] {
        let parts: Vec<_> = name.split('.').collect();
        let error = ScalarOp::decode(&parts).expect_err(name);
        assert!(
            error.contains(text) && error.starts_with(name),
            "{name}: {error}"
        );
    }
}

#[test]
fn modifiers_stand_in_any_order() {
    for (a, b) in [
        (
            "cvt.rn.relu.satfinite.e4m3x2.f32",
            "cvt.rn.satfinite.relu.e4m3x2.f32",
        ),
        ("add.rn.ftz.sat.f32", "add.sat.ftz.rn.f32"),
        ("cvt.rn.f32.s32", "cvt.f32.rn.s32"),
    ] {
        assert_eq!(op(a), op(b));
    }
    assert_ne!(op("cvt.rn.f32.f64"), op("cvt.f64.f32"));
}

#[test]
fn operand_types() {
    use Ty::*;
    let types: [(&str, &[Ty], &[Ty]); 16] = [
        ("mad.wide.s32", &[S64], &[S32, S32, S64]),
        ("mul.wide.u16", &[U32], &[U16, U16]),
        ("shl.b64", &[B64], &[B64, U32]),
        ("popc.b64", &[U32], &[B64]),
        ("bfe.s64", &[S64], &[S64, U32, U32]),
        ("setp.lt.f32", &[Pred, Pred], &[F32, F32]),
        ("setp.lt.and.f16x2", &[Pred, Pred], &[F16x2, F16x2, Pred]),
        ("setp.lt.f16", &[Pred], &[F16, F16]),
        ("set.eq.u32.f64", &[U32], &[F64, F64]),
        ("slct.b64.f32", &[B64], &[B64, B64, F32]),
        ("lop3.or.b32", &[B32, Pred], &[B32, B32, B32, U32, Pred]),
        ("dp4a.u32.s32", &[S32], &[U32, S32, S32]),
        ("cvt.rn.bf16x2.f32", &[Bf16x2], &[F32, F32]),
        ("cvt.rn.satfinite.e4m3x2.f16x2", &[E4m3x2], &[F16x2]),
        ("add.f32.bf16", &[F32], &[Bf16, F32]),
        ("cvt.pack.sat.u8.s32.b32", &[B32], &[S32, S32, B32]),
    ];
    for (name, dst, src) in types {
        assert_eq!((op(name).dst(), op(name).src()), (dst, src), "{name}");
    }
    assert_eq!(
        (op("max.f32").src().len(), op("max.f32").src_required()),
        (3, 2)
    );
    assert_eq!(
        (
            op("setp.eq.u32").dst_required(),
            op("lop3.and.b32").dst_required()
        ),
        (1, 2)
    );
    assert_eq!(op("madc.lo.cc.u32").uses_carry(), (true, true));
    assert_eq!(op("addc.u32").uses_carry(), (true, false));
    assert_eq!(op("add.cc.u32").uses_carry(), (false, true));
    assert_eq!(
        (
            op("add.f32").arch(),
            op("add.f32x2").arch(),
            op("cvt.rn.bf16x2.ue8m0x2").arch()
        ),
        (90, 100, 100)
    );
    assert!(op("ex2.approx.f32").is_approximate() && op("div.full.f32").is_approximate());
    assert!(!op("div.rn.f32").is_approximate());
}

#[test]
fn types_of_operands() {
    for ty in Ty::ALL {
        assert_eq!(Ty::from_name(ty.name()), Some(*ty));
        assert!(ty.lanes() == 1 || ty.element().lanes() == 1, "{ty:?}");
    }
    assert_eq!(Ty::from_name("f99"), None);
    assert_eq!(
        (
            Ty::S8.extend(0x180),
            Ty::U8.extend(0x180),
            Ty::S16.extend(0x8000)
        ),
        (!0x7f, 0x80, !0x7fff)
    );
    assert!(Ty::F16.is_float() && Ty::Ue8m0x2.is_float() && !Ty::S16x2.is_float());
    assert_eq!(
        (Ty::E2m1x2.bits(), Ty::E4m3x4.lanes(), Ty::S16x2.lanes()),
        (8, 4, 2)
    );
}
