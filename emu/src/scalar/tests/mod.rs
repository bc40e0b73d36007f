//! Checks against references that share no code with the module: the host's arithmetic, the
//! `half` crate, brute force over narrow formats, the ISA's pseudo-code, and bits read off an H200.

mod approx;
mod compare;
mod convert;
mod float;
mod half;
mod integer;
mod table;

use super::{ScalarOp, Ty};
use ::half::{bf16, f16};
use std::cell::RefCell;
use std::collections::HashMap;

/// The decoded operation; a name that doesn't decode fails the test.
fn op(name: &str) -> ScalarOp {
    thread_local!(static SEEN: RefCell<HashMap<String, ScalarOp>> = RefCell::default());
    if let Some(op) = SEEN.with_borrow(|seen| seen.get(name).copied()) {
        return op;
    }
    let op = decode(name);
    SEEN.with_borrow_mut(|seen| seen.insert(name.to_string(), op));
    op
}

fn decode(name: &str) -> ScalarOp {
    let parts: Vec<_> = name.split('.').collect();
    ScalarOp::decode(&parts)
        .unwrap_or_else(|e| panic!("{e}"))
        .unwrap_or_else(|| panic!("{name}: not scalar"))
}

/// The first result of `name` on `src`.
fn run(name: &str, src: &[u64]) -> u64 {
    op(name).eval(src, &mut false)[0]
}

/// f32 results as floats.
fn run32(name: &str, src: &[f32]) -> f32 {
    let bits: Vec<u64> = src.iter().map(|x| x.to_bits().into()).collect();
    f32::from_bits(run(name, &bits) as u32)
}

/// f64 results as floats.
fn run64(name: &str, src: &[f64]) -> f64 {
    let bits: Vec<u64> = src.iter().map(|x| x.to_bits()).collect();
    f64::from_bits(run(name, &bits))
}

/// `x` rounded once to the nearest of a 16-bit format, ties to even. `half` gives the place to
/// look: its own conversion from f64 rounds twice, through f32, where the processor helps.
fn nearest16(near: u16, x: f64, value: fn(u16) -> f64, inf: u16) -> u64 {
    if x.is_nan() {
        return 0x7fff;
    }
    let sign = near & 0x8000;
    let magnitude = near & 0x7fff;
    // Infinity stands where the next number would.
    let at = |m: u16| {
        if m >= inf {
            2.0 * value(inf - 1) - value(inf - 2)
        } else {
            value(m)
        }
    };
    let candidates = [magnitude.saturating_sub(1), magnitude, magnitude + 1];
    let best = candidates.into_iter().filter(|m| *m <= inf).min_by(|a, b| {
        let [p, q] = [at(*a), at(*b)].map(|v| (v - x.abs().min(at(inf))).abs());
        p.total_cmp(&q).then((a & 1).cmp(&(b & 1)))
    });
    u64::from(best.unwrap_or(magnitude) | sign)
}

fn to_f16(x: f64) -> u64 {
    nearest16(
        f16::from_f64(x).to_bits(),
        x,
        |m| f16::from_bits(m).to_f64(),
        0x7c00,
    )
}

fn to_bf16(x: f64) -> u64 {
    nearest16(
        bf16::from_f64(x).to_bits(),
        x,
        |m| bf16::from_bits(m).to_f64(),
        0x7f80,
    )
}

/// SplitMix64: the same values on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// An integer of `bits` bits, often at an edge.
    fn int(&mut self, bits: u32) -> u64 {
        let ones = u64::MAX >> (64 - bits);
        let edges = [0, 1, 2, ones, ones - 1, ones >> 1, (ones >> 1) + 1];
        match self.below(6) {
            0 => edges[self.below(7) as usize],
            1 => self.below(70) & ones,
            2 => self.next() & ones & ones << self.below(u64::from(bits)),
            3 => (self.next() & ones) >> self.below(u64::from(bits)),
            _ => self.next() & ones,
        }
    }

    /// A float with `exp` exponent and `man` fraction bits: special, subnormal, near 1, or any.
    fn float(&mut self, exp: u32, man: u32) -> u64 {
        let (inf, frac) = (((1 << exp) - 1) << man, (1 << man) - 1);
        let bias = (1 << (exp - 1)) - 1;
        let special = [
            0,
            1,
            frac,
            1 << man,
            inf - 1,
            inf,
            inf | 1,
            inf | frac,
            bias << man,
            (bias << man) - 1,
        ];
        let few = frac & frac << self.below(u64::from(man));
        let magnitude = match self.below(6) {
            0 => special[self.below(10) as usize],
            1 => self.next() & frac,
            2 => (bias - 3 + self.below(6)) << man | self.next() & frac,
            3 => (bias - 3 + self.below(6)) << man | self.next() & few,
            4 => self.next() & (inf | few),
            _ => self.next() & (inf | frac),
        };
        self.below(2) << (exp + man) | magnitude
    }

    fn f32(&mut self) -> f32 {
        f32::from_bits(self.float(8, 23) as u32)
    }

    fn f64(&mut self) -> f64 {
        f64::from_bits(self.float(11, 52))
    }

    /// Bits for an operand of `ty`.
    fn operand(&mut self, ty: Ty) -> u64 {
        let pair = |lo: u64, hi: u64| lo | hi << 16;
        match ty {
            Ty::Pred => self.below(2),
            Ty::F16 => self.float(5, 10),
            Ty::Bf16 => self.float(8, 7),
            Ty::F16x2 => pair(self.float(5, 10), self.float(5, 10)),
            Ty::Bf16x2 => pair(self.float(8, 7), self.float(8, 7)),
            Ty::F32 => self.float(8, 23),
            Ty::F32x2 => self.float(8, 23) | self.float(8, 23) << 32,
            Ty::F64 => self.float(11, 52),
            ty => self.int(ty.bits()),
        }
    }
}
