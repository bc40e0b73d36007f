//! Operands: what the programs read, and constants in their text.

use mok_emu::scalar::Ty;

use crate::random::Random;

/// A table of inputs. Each thread reads an entry of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Bytes, for 8-bit floats too.
    I8,
    /// 16-bit integers.
    I16,
    /// 32-bit integers.
    I32,
    /// 64-bit integers.
    I64,
    /// 32-bit numbers up to 70: shift amounts, positions, lengths.
    Small,
    /// f16.
    F16,
    /// bf16.
    Bf16,
    /// f32.
    F32,
    /// f32 of moderate size, where approximations have bounds.
    Moderate,
    /// f64.
    F64,
    /// f64 with no NaN among them.
    Number,
}

/// Every table, in the order of memory.
pub const KINDS: [Kind; 11] = [
    Kind::I8,
    Kind::I16,
    Kind::I32,
    Kind::I64,
    Kind::Small,
    Kind::F16,
    Kind::Bf16,
    Kind::F32,
    Kind::Moderate,
    Kind::F64,
    Kind::Number,
];

/// Entries of a table.
pub const ENTRIES: usize = 2048;
/// Bytes of an entry: as many values as fit.
pub const ENTRY: usize = 16;

impl Kind {
    /// What an operand of this type is read from.
    pub fn of(ty: Ty) -> Kind {
        match ty.element() {
            Ty::F16 => Kind::F16,
            Ty::Bf16 => Kind::Bf16,
            Ty::F32 | Ty::Tf32 => Kind::F32,
            Ty::F64 => Kind::F64,
            ty => match ty.bits() {
                0..=8 => Kind::I8,
                16 => Kind::I16,
                32 => Kind::I32,
                _ => Kind::I64,
            },
        }
    }

    /// Bits of a value.
    pub fn bits(self) -> u32 {
        match self {
            Kind::I8 => 8,
            Kind::I16 | Kind::F16 | Kind::Bf16 => 16,
            Kind::I32 | Kind::Small | Kind::F32 | Kind::Moderate => 32,
            Kind::I64 | Kind::F64 | Kind::Number => 64,
        }
    }

    /// Byte offset of its table.
    pub fn offset(self) -> usize {
        self as usize * ENTRIES * ENTRY
    }

    fn value(self, random: &mut Random) -> u64 {
        match self {
            Kind::Small => random.below(71) as u64,
            Kind::F16 => float(random, 5, 10),
            Kind::Bf16 => float(random, 8, 7),
            Kind::F32 => float(random, 8, 23),
            Kind::F64 => float(random, 11, 52),
            Kind::Moderate => {
                let exponent = 127 - 12 + random.below(20) as u64;
                random.bits() & 0x807f_ffff | exponent << 23
            }
            Kind::Number => loop {
                let value = float(random, 11, 52);
                if !f64::from_bits(value).is_nan() {
                    break value;
                }
            },
            kind => integer(random, kind.bits()),
        }
    }
}

/// The tables of all programs, as bytes.
pub fn tables(seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(KINDS.len() * ENTRIES * ENTRY);
    for kind in KINDS {
        let mut random = Random::new(seed, 0x7ab1_e500 + kind as u64);
        let size = kind.bits() as usize / 8;
        for _ in 0..ENTRIES * ENTRY / size {
            bytes.extend_from_slice(&kind.value(&mut random).to_le_bytes()[..size]);
        }
    }
    bytes
}

/// An integer of `bits` bits, often at an edge, a power of two, or halfway between floats.
pub fn integer(random: &mut Random, bits: u32) -> u64 {
    let ones = u64::MAX >> (64 - bits);
    let edges = [0, 1, 2, 3, ones, ones - 1, ones >> 1, (ones >> 1) + 1];
    let value = match random.below(9) {
        0 => *random.pick(&edges),
        1 => random.below(70) as u64,
        2 => (random.below(70) as u64).wrapping_neg(),
        3 => random.bits() & ones << random.below(bits as usize),
        4 => (random.bits() & ones) >> random.below(bits as usize),
        5 => 1 << random.below(bits as usize),
        6 => {
            // A one far above another: conversions to floats tie, or nearly.
            let top = random.below(bits as usize);
            let low = random.below(top + 1);
            (1u64 << top | 1 << low)
                .wrapping_add(random.below(3) as u64)
                .wrapping_sub(1)
        }
        _ => random.bits(),
    };
    value & ones
}

/// A float of `exp` exponent and `man` fraction bits: special, subnormal, near 1, halfway between
/// narrower floats or integers, or any bits.
pub fn float(random: &mut Random, exp: u32, man: u32) -> u64 {
    let (inf, frac) = (((1u64 << exp) - 1) << man, (1u64 << man) - 1);
    let bias = (1u64 << (exp - 1)) - 1;
    let special = [
        0,
        0,
        1,
        frac,
        1 << man,
        (1 << man) + 1,
        inf - 1,
        inf,
        inf,
        inf | 1,
        inf | frac,
        inf | 1 << (man - 1),
        bias << man,
        (bias << man) - 1,
        // What `fma.oob` takes for out of bounds, in the 16-bit formats.
        0x7ff7 & (inf | frac),
    ];
    let near_one = |random: &mut Random| (bias - 4 + random.below(9) as u64) << man;
    let magnitude = match random.below(10) {
        0 => *random.pick(&special),
        1 => random.bits() & frac,
        2 => near_one(random) | random.bits() & frac,
        // Few bits from the top: products and sums that are exact or tie.
        3 => near_one(random) | random.bits() & frac & frac << random.below(man as usize),
        // Halfway for some narrower format, or one bit off it.
        4 => {
            let at = random.below(man as usize);
            let base = near_one(random) | random.bits() & frac & !0 << at | 1 << at;
            base.wrapping_add(random.below(3) as u64).wrapping_sub(1)
        }
        // Integers and halves.
        5 => {
            let value = random.below(1 << 10) as f64 * 0.5;
            narrow(value, exp, man)
        }
        // About where the integer types end.
        6 => {
            let power = *random.pick(&[7u64, 8, 15, 16, 31, 32, 63, 64]);
            let exponent = (bias + power).min((1 << exp) - 2);
            (exponent << man)
                .wrapping_add(random.below(5) as u64)
                .wrapping_sub(2)
        }
        _ => random.bits() & (inf | frac),
    };
    (random.bits() & 1) << (exp + man) | magnitude & (inf | frac)
}

/// A small exact value in a format.
fn narrow(value: f64, exp: u32, man: u32) -> u64 {
    if value == 0.0 {
        return 0;
    }
    let bits = value.to_bits();
    let exponent = (bits >> 52) + (1 << (exp - 1)) - 1024;
    exponent << man | (bits & ((1 << 52) - 1)) >> (52 - man)
}

/// A constant of this type as PTX writes it, if it has any. No NaN, whose bits an assembler need
/// not keep.
pub fn immediate(random: &mut Random, ty: Ty) -> Option<String> {
    if ty.lanes() > 1 || ty.bits() < 16 {
        return None;
    }
    match ty {
        Ty::F32 => loop {
            let bits = float(random, 8, 23) as u32;
            if !f32::from_bits(bits).is_nan() {
                return Some(format!("0f{bits:08X}"));
            }
        },
        Ty::F64 => Some(format!("0d{:016X}", Kind::Number.value(random))),
        ty if ty.is_float() => None,
        ty => {
            let value = integer(random, ty.bits());
            Some(if ty.is_signed() {
                (ty.extend(value) as i64).to_string()
            } else if random.percent(50) {
                format!("{value:#x}")
            } else {
                format!("{value}U")
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_hold_what_they_promise() {
        let bytes = tables(5);
        assert_eq!(bytes.len(), KINDS.len() * ENTRIES * ENTRY);
        let of = |kind: Kind| &bytes[kind.offset()..kind.offset() + ENTRIES * ENTRY];
        let doubles = |kind| {
            let words = of(kind).chunks_exact(8);
            words.map(|word| f64::from_bits(u64::from_le_bytes(word.try_into().expect("8 bytes"))))
        };
        assert!(doubles(Kind::Number).all(|value| !value.is_nan()));
        let classes =
            |test: fn(f64) -> bool| doubles(Kind::F64).filter(|&value| test(value)).count();
        for test in [
            f64::is_nan,
            f64::is_infinite,
            f64::is_subnormal,
            f64::is_normal,
        ] {
            assert!(classes(test) > 20);
        }
        assert!(classes(|value| value == 0.0) > 20 && classes(|value| value.fract() == 0.0) > 20);
        assert!(
            of(Kind::Small)
                .chunks_exact(4)
                .all(|word| word[0] <= 70 && word[1..] == [0; 3])
        );
    }

    #[test]
    fn halves_and_integers_are_exact() {
        for (value, bits) in [(0.5, 0x3800), (3.0, 0x4200), (511.5, 0x5ffe)] {
            assert_eq!(narrow(value, 5, 10), bits, "{value}");
        }
        assert_eq!(narrow(2.5, 11, 52), 2.5f64.to_bits());
        assert_eq!(narrow(511.5, 8, 23), u64::from(511.5f32.to_bits()));
    }
}
