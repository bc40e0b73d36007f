//! How the sums round: the default against the loop it is said to be, Hopper's against a slow
//! statement of the rule.

use super::Random;
use crate::tensor::number::{Accumulator, Element};
use crate::tensor::product::{Numerics, Shape};

fn shape(k: usize, a: Element, d: Accumulator) -> Shape {
    Shape {
        m: 4,
        n: 24,
        k,
        a,
        b: a,
        d,
        saturate: false,
    }
}

/// Values of the type over a range of exponents, subnormals among them.
fn values(random: &mut Random, element: Element, count: usize) -> Vec<f32> {
    (0..count)
        .map(|_| {
            loop {
                let mut bits = random.next() as u32;
                if matches!(element, Element::Bf16 | Element::Tf32) {
                    // Exponents near 0, in both places where the type keeps them.
                    let exponent = 120 + random.below(14) as u32;
                    let at = if element == Element::Bf16 { 7 } else { 23 };
                    bits = bits & !(0xff << at) | exponent << at;
                }
                let value = element.decode(bits);
                if value.is_finite() {
                    break value;
                }
            }
        })
        .collect()
}

const FLOATS: [(Element, usize); 5] = [
    (Element::F16, 16),
    (Element::Bf16, 16),
    (Element::Tf32, 8),
    (Element::E4m3, 32),
    (Element::E5m2, 32),
];

#[test]
fn the_default_is_the_loop_in_k_order() {
    let mut random = Random(23);
    let mut reversed_differs = 0;
    for (element, k) in FLOATS {
        let s = shape(k, element, Accumulator::F32);
        for _ in 0..50 {
            let a = values(&mut random, element, s.m * k);
            let b = values(&mut random, element, k * s.n);
            let old: Vec<f32> = (0..s.m * s.n)
                .map(|_| random.next() as i32 as f32 / 1e7)
                .collect();
            let mut d: Vec<u32> = old.iter().map(|v| v.to_bits()).collect();
            s.multiply(Numerics::Exact, &a, &b, &mut d);
            for i in 0..s.m {
                for j in 0..s.n {
                    let (mut sum, mut reversed) = (old[i * s.n + j], old[i * s.n + j]);
                    for l in 0..k {
                        sum += a[i * k + l] * b[l * s.n + j];
                        let l = k - 1 - l;
                        reversed += a[i * k + l] * b[l * s.n + j];
                    }
                    assert_eq!(d[i * s.n + j], sum.to_bits(), "{element:?}");
                    reversed_differs += u32::from(reversed != sum);
                }
            }
        }
    }
    // The order is visible, so the test above can fail.
    assert!(reversed_differs > 1000, "{reversed_differs}");
}

/// Significand and exponent with `f64` alone, as the papers write them.
fn split(value: f64, min: i32) -> (f64, i32) {
    if value == 0.0 {
        return (0.0, -126);
    }
    let mut exponent = value.abs().log2().floor() as i32;
    if f64::powi(2.0, exponent) > value.abs() {
        exponent -= 1;
    }
    exponent = exponent.max(min);
    (value / f64::powi(2.0, exponent), exponent)
}

/// Hopper's sum: align to the largest exponent, cut to `bits` fractional bits, add.
fn slow(a: &[f32], b: &[f32], c: f32, min: i32, bits: i32) -> f64 {
    let mut parts = vec![split(f64::from(c), -126)];
    for (a, b) in a.iter().zip(b) {
        let ((x, ex), (y, ey)) = (split(f64::from(*a), min), split(f64::from(*b), min));
        parts.push((x * y, ex + ey));
    }
    let largest = parts.iter().map(|part| part.1).max().unwrap();
    let scale = f64::powi(2.0, bits);
    let sum: f64 = parts
        .iter()
        .map(|(s, e)| (s * f64::powi(2.0, bits + e - largest)).trunc() / scale)
        .sum();
    sum * f64::powi(2.0, largest)
}

fn cut(value: f64, bits: i32) -> f32 {
    let (s, e) = split(value, -126);
    ((s * f64::powi(2.0, bits)).trunc() * f64::powi(2.0, e - bits)) as f32
}

#[test]
fn hopper_truncates() {
    let mut random = Random(29);
    let mut differs = 0;
    for (element, k) in FLOATS {
        let s = shape(k, element, Accumulator::F32);
        let bits = if element.is_fp8() { 13 } else { 25 };
        for _ in 0..30 {
            let a = values(&mut random, element, s.m * k);
            let b = values(&mut random, element, k * s.n);
            let old: Vec<f32> = (0..s.m * s.n)
                .map(|_| random.next() as i32 as f32 / 1e6)
                .collect();
            let start: Vec<u32> = old.iter().map(|v| v.to_bits()).collect();
            let (mut d, mut fp8, mut exact) = (start.clone(), start.clone(), start);
            s.multiply(Numerics::HopperTruncate, &a, &b, &mut d);
            s.multiply(Numerics::HopperFp8, &a, &b, &mut fp8);
            s.multiply(Numerics::Exact, &a, &b, &mut exact);
            assert_eq!(
                fp8,
                if element.is_fp8() {
                    d.clone()
                } else {
                    exact.clone()
                }
            );
            for i in 0..s.m {
                for j in 0..s.n {
                    let column: Vec<f32> = (0..k).map(|l| b[l * s.n + j]).collect();
                    let row = &a[i * k..(i + 1) * k];
                    let sum = slow(row, &column, old[i * s.n + j], element.min_exponent(), bits);
                    let expected = cut(sum, if element.is_fp8() { 13 } else { 23 });
                    assert_eq!(f32::from_bits(d[i * s.n + j]), expected, "{element:?}");
                    differs += u32::from(d[i * s.n + j] != exact[i * s.n + j]);
                }
            }
        }
    }
    assert!(differs > 1000, "{differs}");
}

/// 32 products of 2^-14 beside an accumulator of 1 vanish on Hopper, one by one.
#[test]
fn small_fp8_products_are_lost() {
    let s = Shape {
        m: 1,
        n: 8,
        ..shape(32, Element::E4m3, Accumulator::F32)
    };
    let (a, b) = (vec![f32::powi(2.0, -7); 32], vec![f32::powi(2.0, -7); 256]);
    let run = |numerics| {
        let mut d = vec![1.0_f32.to_bits(); 8];
        s.multiply(numerics, &a, &b, &mut d);
        f32::from_bits(d[0])
    };
    assert_eq!(run(Numerics::Exact), 1.0 + f32::powi(2.0, -9));
    assert_eq!(run(Numerics::HopperFp8), 1.0);
}

#[test]
fn f16_sums_round_once() {
    let mut random = Random(31);
    for numerics in [Numerics::Exact, Numerics::HopperTruncate] {
        let s = shape(16, Element::F16, Accumulator::F16);
        // 1 + 15 * 2^-12 rounds up once at the end; rounding each sum would lose every one.
        let (a, b) = (vec![1.0; 64], vec![f32::powi(2.0, -12); 16 * 24]);
        let mut d = vec![0xdead_0000 | 0x3c00; 96];
        s.multiply(numerics, &a, &b, &mut d);
        assert_eq!(d[0], 0x3c04);
        let _ = random.next();
    }
}

#[test]
fn nan_is_canonical_and_infinity_passes() {
    for numerics in [
        Numerics::Exact,
        Numerics::HopperFp8,
        Numerics::HopperTruncate,
    ] {
        for (element, k) in FLOATS {
            for (d, nan, infinity) in [
                (Accumulator::F32, 0x7fff_ffff, 0x7f80_0000),
                (Accumulator::F16, 0x7fff, 0x7c00),
            ] {
                let s = Shape {
                    m: 1,
                    n: 8,
                    ..shape(k, element, d)
                };
                let run = |first: f32, other: f32| {
                    let mut a = vec![1.0; k];
                    a[0] = first;
                    let mut b = vec![1.0; 8 * k];
                    b[8] = other; // k = 1, column 0
                    let mut sums = vec![0; 8];
                    s.multiply(numerics, &a, &b, &mut sums);
                    sums
                };
                assert_eq!(run(f32::from_bits(0xffc0_1234), 1.0), [nan; 8]);
                assert_eq!(run(f32::INFINITY, 1.0), [infinity; 8]);
                let both = run(f32::INFINITY, f32::NEG_INFINITY);
                assert_eq!(both[0], nan);
                assert_eq!(both[1], infinity);
            }
        }
    }
}
