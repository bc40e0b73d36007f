//! Each instruction against a slow definition of its own, and against planted faults.

// Matrices are walked by row and column.
#![allow(clippy::needless_range_loop)]

mod decode;
mod fragments;
mod layouts;
mod numerics;
mod reduce;
mod tcgen05;
mod tcgen05_copy;
mod tcgen05_faults;
mod tma;
mod wgmma;
mod wgmma_faults;

use super::number::{Accumulator, Element};

/// SplitMix64: the same numbers on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A small integer that the type has: -4 to 4, or any byte of an integer type.
    pub fn small(&mut self, element: Element) -> i64 {
        match element {
            Element::S8 => self.below(256) as i64 - 128,
            Element::U8 => self.below(256) as i64,
            _ => self.below(9) as i64 - 4,
        }
    }
}

/// The code of a small integer, from the formats' definitions.
pub fn encode(element: Element, value: i64) -> u32 {
    let size = value.unsigned_abs() as usize;
    let (table, sign): ([u32; 5], u32) = match element {
        Element::F16 => ([0, 0x3c00, 0x4000, 0x4200, 0x4400], 0x8000),
        Element::Bf16 => ([0, 0x3f80, 0x4000, 0x4040, 0x4080], 0x8000),
        Element::Tf32 => (
            [0, 0x3f80_0000, 0x4000_0000, 0x4040_0000, 0x4080_0000],
            0x8000_0000,
        ),
        Element::E4m3 => ([0, 0x38, 0x40, 0x44, 0x48], 0x80),
        Element::E5m2 => ([0, 0x3c, 0x40, 0x42, 0x44], 0x80),
        Element::S8 | Element::U8 => return value as u32 & 0xff,
        Element::E2m3 => ([0, 0x08, 0x10, 0x14, 0x18], 0x20),
        Element::E3m2 => ([0, 0x0c, 0x10, 0x12, 0x14], 0x20),
        Element::E2m1 => ([0, 0x2, 0x4, 0x5, 0x6], 0x8),
    };
    table[size] | if value < 0 { sign } else { 0 }
}

/// The value of an accumulator that holds an integer.
pub fn integer(d: Accumulator, bits: u32) -> i64 {
    match d {
        Accumulator::F32 => f32::from_bits(bits) as i64,
        Accumulator::S32 => i64::from(bits as i32),
        Accumulator::F16 => {
            let (e, f) = ((bits >> 10 & 31) as i32, bits & 0x3ff);
            let magnitude =
                f64::from(f | if e == 0 { 0 } else { 0x400 }) * f64::powi(2.0, e.max(1) - 25);
            (if bits & 0x8000 == 0 {
                magnitude
            } else {
                -magnitude
            }) as i64
        }
    }
}

/// The bits of a small integer as an accumulator.
pub fn accumulator(d: Accumulator, value: i64) -> u32 {
    match d {
        Accumulator::F32 => (value as f32).to_bits(),
        Accumulator::S32 => value as u32,
        Accumulator::F16 => encode(Element::F16, value),
    }
}
