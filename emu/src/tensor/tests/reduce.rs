//! Reductions against plain arithmetic.

use super::Random;
use crate::tensor::number::{f16_from_f64, f16_to_f32};
use crate::tensor::reduce::{Operator, Reduction};
use crate::tensor::tma::Dtype;

fn apply(name: &str, dtype: Dtype, d: u64, s: u64) -> u64 {
    let operator = Operator::from_name(name).unwrap();
    Reduction::global(operator, dtype).unwrap().apply(d, s)
}

#[test]
fn integers() {
    let mut random = Random(37);
    for _ in 0..10_000 {
        let mask = if random.below(2) == 0 { 7 } else { u64::MAX };
        let (d, s) = (random.next() & mask, random.next() & mask);
        let (x, y) = (d as u32, s as u32);
        let word = |value: u32| u64::from(value);
        assert_eq!(apply("add", Dtype::U32, d, s), word(x.wrapping_add(y)));
        assert_eq!(apply("add", Dtype::S32, d, s), word(x.wrapping_add(y)));
        assert_eq!(apply("add", Dtype::U64, d, s), d.wrapping_add(s));
        assert_eq!(apply("min", Dtype::U32, d, s), word(x.min(y)));
        assert_eq!(
            apply("max", Dtype::S32, d, s),
            word((x as i32).max(y as i32) as u32)
        );
        assert_eq!(
            apply("min", Dtype::S64, d, s),
            (d as i64).min(s as i64) as u64
        );
        assert_eq!(apply("max", Dtype::U64, d, s), d.max(s));
        assert_eq!(
            apply("inc", Dtype::U32, d, s),
            word(if x >= y { 0 } else { x + 1 })
        );
        let down = if x == 0 || x > y { y } else { x - 1 };
        assert_eq!(apply("dec", Dtype::U32, d, s), word(down));
        assert_eq!(apply("and", Dtype::U32, d, s), word(x & y));
        assert_eq!(apply("or", Dtype::S64, d, s), d | s);
        assert_eq!(apply("xor", Dtype::U64, d, s), d ^ s);
    }
}

#[test]
fn floats() {
    let mut random = Random(41);
    let f32_sum = |d: f32, s: f32| {
        f32::from_bits(apply(
            "add",
            Dtype::F32,
            u64::from(d.to_bits()),
            u64::from(s.to_bits()),
        ) as u32)
    };
    assert_eq!(f32_sum(1.5, 2.25), 3.75);
    assert_eq!(f32_sum(1e-40, -1e-40).to_bits(), 0);
    assert_eq!(f32_sum(-1e-40, 0.0), -1e-40);
    assert_eq!(f32_sum(-1e-40, -1e-40), -1e-40 - 1e-40);
    assert_eq!(f32_sum(1.5e-38, -1.4e-38), 1.5e-38 - 1.4e-38); // the result is subnormal
    assert!(f32_sum(f32::INFINITY, f32::NEG_INFINITY).to_bits() == 0x7fff_ffff);
    let (d, s) = (1.1_f64.to_bits(), 2.2_f64.to_bits());
    assert_eq!(apply("add", Dtype::F64, d, s), (1.1_f64 + 2.2).to_bits());
    for _ in 0..50_000 {
        let (d, s) = (random.next() as u16, random.next() as u16);
        let (x, y) = (f64::from(f16_to_f32(d)), f64::from(f16_to_f32(s)));
        let sum = apply("add", Dtype::F16, d.into(), s.into()) as u16;
        assert_eq!(sum, f16_from_f64(x + y));
        // bf16: the nearest of the candidates, by exact distances in f64 (exponents kept near).
        let near = |bits: u16| bits & 0x807f | (110 + (bits >> 7 & 31)) << 7;
        let value = |bits: u16| f64::from(f32::from_bits(u32::from(bits) << 16));
        let (d, s) = (near(d), near(s));
        let sum = value(d) + value(s);
        let found = apply("add", Dtype::Bf16, d.into(), s.into()) as u16;
        for other in [found.wrapping_sub(1), found.wrapping_add(1)] {
            let (near, far) = ((value(found) - sum).abs(), (value(other) - sum).abs());
            assert!(near < far || (near == far && found & 1 == 0) || !value(other).is_finite());
        }
    }
    assert_eq!(apply("add", Dtype::Bf16, 0x7f7f, 0x7f7f), 0x7f80);
    assert_eq!(apply("add", Dtype::Bf16, 0x7f80, 0xff80), 0x7fff);
    // 1 + 2^-8: a tie, to even; a hair more: up.
    assert_eq!(apply("add", Dtype::Bf16, 0x3f80, 0x3b80), 0x3f80);
    assert_eq!(apply("add", Dtype::Bf16, 0x3f80, 0x3b81), 0x3f81);
    // NaN loses, -0 is below +0.
    for dtype in [Dtype::F16, Dtype::Bf16] {
        assert_eq!(apply("min", dtype, 0x7fff, 0x1234), 0x1234);
        assert_eq!(apply("max", dtype, 0x1234, 0xffff), 0x1234);
        assert_eq!(apply("max", dtype, 0x7fff, 0xffff), 0x7fff);
        assert_eq!(apply("min", dtype, 0, 0x8000), 0x8000);
        assert_eq!(apply("max", dtype, 0x8000, 0), 0);
        assert_eq!(apply("max", dtype, 0xbc00, 0xc000), 0xbc00);
    }
}

#[test]
fn combinations_of_the_isa() {
    let global = |name: &str, dtype| Reduction::global(Operator::from_name(name).unwrap(), dtype);
    let error = global("min", Dtype::F32).unwrap_err();
    assert!(error.contains(".min on f32"), "{error}");
    assert!(global("add", Dtype::S64).is_err());
    assert!(global("add", Dtype::U8).is_err());
    assert!(global("inc", Dtype::S32).is_err());
    assert!(global("xor", Dtype::F16).is_err());
    assert!(Reduction::tensor(Operator::Add, Dtype::F64).is_err());
    assert!(Reduction::tensor(Operator::Add, Dtype::F32).is_ok());
    assert!(Reduction::shared(Operator::Add, Dtype::F32).is_err());
    assert!(Reduction::shared(Operator::Add, Dtype::U64).is_ok());
    assert!(Operator::from_name("mul").is_none());
}

#[test]
fn runs_of_bytes() {
    let reduction = Reduction::global(Operator::Add, Dtype::U32).unwrap();
    let mut destination = [1_u8, 0, 0, 0, 255, 255, 255, 255, 9, 9];
    reduction.apply_bytes(&mut destination, &[2, 0, 0, 0, 2, 0, 0, 0, 7, 7]);
    assert_eq!(destination, [3, 0, 0, 0, 1, 0, 0, 0, 9, 9]);
}
