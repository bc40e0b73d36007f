//! How a tensor core sums: `d[m][n] += sum over k of a[m][k] b[k][n]`.
//!
//! The ISA fixes no order and no intermediate precision ("at least single precision"). Three
//! answers are offered, [`Numerics`]; on small integers all three agree with the hardware and
//! with each other.

use super::number::{Accumulator, Element, canonical, f16_from_f64, f16_to_f32, f32_toward_zero};

/// The arithmetic of the floating-point products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Numerics {
    /// The default. Bit for bit the loop `for k in 0..K { d = d + a[k] * b[k] }` in `f32`
    /// with round-to-nearest: products are exact (the operands have at most 11 bits; beyond
    /// the range of `f32` they over- and underflow as in `f32`), the accumulator comes first,
    /// k ascends. An `f16` accumulator is widened, summed so and rounded once at the end.
    #[default]
    Exact,
    /// 8-bit floating types sum as Hopper's do, and lose bits as there; others as in `Exact`.
    ///
    /// DeepSeek-V3's report (3.3.2, 3.5.2) measures about 14 bits; MMA-Sim (arXiv 2511.10909,
    /// validated on hardware by its authors) gives the rule used here: all K products and the
    /// accumulator are aligned to their largest exponent, cut after 13 fractional bits, added
    /// exactly, and the sum is cut to 13 fractional bits when D is `f32` (rounded to nearest
    /// even when it is `f16`).
    HopperFp8,
    /// Every floating type as Hopper sums it: as above, with 25 fractional bits and a result cut
    /// to `f32` for f16, bf16 and tf32.
    HopperTruncate,
}

/// Fractional bits that survive the alignment on Hopper.
const fn fractional_bits(element: Element) -> i32 {
    match element {
        Element::E4m3 | Element::E5m2 => 13,
        _ => 25,
    }
}

/// The shape and types of one multiplication.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Rows of A and D.
    pub m: usize,
    /// Columns of B and D.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Type of A's elements.
    pub a: Element,
    /// Type of B's elements.
    pub b: Element,
    /// Type of C and D.
    pub d: Accumulator,
    /// Whether an integer sum is clamped (`.satfinite`) or wraps.
    pub saturate: bool,
}

impl Shape {
    /// The accumulators of `d` (one element each, as its bits) plus A (`[m][k]`) times B
    /// (`[k][n]`), both decoded.
    ///
    /// # Panics
    /// If a slice is shorter than the shape says.
    pub fn multiply(&self, numerics: Numerics, a: &[f32], b: &[f32], d: &mut [u32]) {
        let hopper = match numerics {
            Numerics::Exact => false,
            Numerics::HopperFp8 => self.a.is_fp8(),
            Numerics::HopperTruncate => !self.a.is_integer(),
        };
        if hopper {
            self.aligned(a, b, d);
            return;
        }
        let mut sums: Vec<f32> = match self.d {
            Accumulator::F32 => d.iter().map(|bits| f32::from_bits(*bits)).collect(),
            Accumulator::F16 => d.iter().map(|bits| f16_to_f32(*bits as u16)).collect(),
            // At most 32 * 255 * 255: exact in f32, whatever the accumulator holds.
            Accumulator::S32 => vec![0.0; d.len()],
        };
        in_order(self.n, self.k, a, b, &mut sums);
        for (bits, sum) in d.iter_mut().zip(&sums) {
            *bits = match self.d {
                Accumulator::F32 => canonical(*sum),
                Accumulator::F16 => u32::from(f16_from_f64(f64::from(*sum))),
                Accumulator::S32 => {
                    let (old, more) = (*bits as i32, *sum as i32);
                    let new = if self.saturate {
                        old.saturating_add(more)
                    } else {
                        old.wrapping_add(more)
                    };
                    new as u32
                }
            };
        }
    }

    /// Hopper's fused sum.
    fn aligned(&self, a: &[f32], b: &[f32], d: &mut [u32]) {
        let parts = |values: &[f32], element: Element| -> Vec<Part> {
            values
                .iter()
                .map(|value| Part::of(*value, element.min_exponent(), 10))
                .collect()
        };
        let (left, right) = (parts(a, self.a), parts(b, self.b));
        let mut column = vec![Part::default(); self.k];
        for j in 0..self.n {
            for (k, part) in column.iter_mut().enumerate() {
                *part = right[k * self.n + j];
            }
            for i in 0..self.m {
                let row = i * self.k..(i + 1) * self.k;
                let bits = &mut d[i * self.n + j];
                let (c, min) = match self.d {
                    Accumulator::F16 => (f16_to_f32(*bits as u16), -14),
                    _ => (f32::from_bits(*bits), -126),
                };
                let special = {
                    let b = b[j..].iter().step_by(self.n);
                    a[row.clone()]
                        .iter()
                        .zip(b)
                        .fold(f64::from(c), |sum, (a, b)| {
                            sum + f64::from(*a) * f64::from(*b)
                        })
                };
                let sum = if special.is_finite() {
                    let c = Part::of(c, min, 23);
                    fused(&left[row], &column, c, fractional_bits(self.a))
                } else {
                    special
                };
                *bits = match self.d {
                    Accumulator::F16 => u32::from(f16_from_f64(sum)),
                    _ if sum.is_nan() => canonical(f32::NAN),
                    _ if self.a.is_fp8() && sum.is_finite() => {
                        f32_toward_zero(sum).to_bits() & 0xffff_fc00
                    }
                    _ => f32_toward_zero(sum).to_bits(),
                };
            }
        }
    }
}

/// A number as an integer significand and an exponent, as the alignment sees it.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    significand: i64,
    exponent: i32,
}

impl Part {
    /// `value` = significand * 2^(exponent - `fraction`); a subnormal keeps `min`, zero takes
    /// -126 (as MMA-Sim found).
    fn of(value: f32, min: i32, fraction: u32) -> Part {
        if value == 0.0 || !value.is_finite() {
            return Part {
                significand: 0,
                exponent: -126,
            };
        }
        let bits = f64::from(value).to_bits();
        let exponent = (((bits >> 52) & 0x7ff) as i32 - 1023).max(min);
        let scaled = f64::from(value) * f64::powi(2.0, fraction as i32 - exponent);
        Part {
            significand: scaled as i64,
            exponent,
        }
    }
}

/// The exact sum of the parts after each was cut to `bits` fractional bits of the largest
/// exponent.
fn fused(a: &[Part], b: &[Part], c: Part, bits: i32) -> f64 {
    let mut largest = c.exponent;
    for (a, b) in a.iter().zip(b) {
        largest = largest.max(a.exponent + b.exponent);
    }
    // Toward zero, so the magnitude is shifted.
    let cut = |significand: i64, exponent: i32, fraction: i32| -> i64 {
        let shift = bits - fraction + exponent - largest;
        match shift {
            0.. => significand << shift.min(30),
            -62..0 => significand.signum() * (significand.abs() >> -shift),
            _ => 0,
        }
    };
    let mut sum = cut(c.significand, c.exponent, 23);
    for (a, b) in a.iter().zip(b) {
        sum += cut(a.significand * b.significand, a.exponent + b.exponent, 20);
    }
    sum as f64 * f64::powi(2.0, largest - bits)
}

/// The loop of [`Numerics::Exact`], blocked so that sums stay in vector registers.
fn in_order(n: usize, k: usize, a: &[f32], b: &[f32], d: &mut [f32]) {
    for (row, sums) in a.chunks_exact(k).zip(d.chunks_exact_mut(n)) {
        let mut at = 0;
        while at < n {
            at += match n - at {
                32.. => block::<32>(n, at, row, b, sums),
                16.. => block::<16>(n, at, row, b, sums),
                8.. => block::<8>(n, at, row, b, sums),
                _ => block::<1>(n, at, row, b, sums),
            };
        }
    }
}

#[inline(always)]
fn block<const N: usize>(n: usize, at: usize, row: &[f32], b: &[f32], sums: &mut [f32]) -> usize {
    let mut block = [0.0; N];
    block.copy_from_slice(&sums[at..at + N]);
    for (a, b) in row.iter().zip(b.chunks_exact(n)) {
        let b = &b[at..at + N];
        for (sum, b) in block.iter_mut().zip(b) {
            *sum += a * b;
        }
    }
    sums[at..at + N].copy_from_slice(&block);
    N
}
