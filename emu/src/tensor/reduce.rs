//! The reductions of `cp.reduce.async.bulk` and `cp.reduce.async.bulk.tensor` (PTX ISA 9.0,
//! 9.7.9.25.4.2 and 9.7.9.27.1.3).
//!
//! Additions keep subnormal numbers, those of `f32` too: an H200 does, where the ISA says that they
//! are flushed. Rounding is to nearest even. Minima and maxima of a NaN and a number
//! are the number.

use super::number::{NAN_F16, canonical, f16_from_f64, f16_to_f32};
use super::tma::Dtype;

/// `.redOp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operator {
    /// Sum.
    Add,
    /// Smaller.
    Min,
    /// Larger.
    Max,
    /// `d >= s ? 0 : d + 1`.
    Inc,
    /// `d == 0 || d > s ? s : d - 1`.
    Dec,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
}

/// Operators, their qualifiers and the types each takes in global memory. A type of bits
/// (`.b32`, `.b64`) is any integer type of that size.
const TABLE: [(Operator, &str, &[Dtype]); 8] = [
    (
        Operator::Add,
        "add",
        &[
            Dtype::U32,
            Dtype::S32,
            Dtype::U64,
            Dtype::F32,
            Dtype::F64,
            Dtype::F16,
            Dtype::Bf16,
        ],
    ),
    (Operator::Min, "min", MINIMUM),
    (Operator::Max, "max", MINIMUM),
    (Operator::Inc, "inc", &[Dtype::U32]),
    (Operator::Dec, "dec", &[Dtype::U32]),
    (Operator::And, "and", BITS),
    (Operator::Or, "or", BITS),
    (Operator::Xor, "xor", BITS),
];
const MINIMUM: &[Dtype] = &[
    Dtype::U32,
    Dtype::S32,
    Dtype::U64,
    Dtype::S64,
    Dtype::F16,
    Dtype::Bf16,
];
const BITS: &[Dtype] = &[Dtype::U32, Dtype::S32, Dtype::U64, Dtype::S64];

/// An operator on elements of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reduction {
    operator: Operator,
    dtype: Dtype,
}

impl Operator {
    /// The operator of a qualifier.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Operator> {
        TABLE
            .into_iter()
            .find(|(_, word, _)| *word == name)
            .map(|(operator, ..)| operator)
    }

    /// The qualifier.
    #[must_use]
    pub fn name(self) -> &'static str {
        TABLE
            .into_iter()
            .find(|(operator, ..)| *operator == self)
            .map_or("", |(_, name, _)| name)
    }
}

impl Reduction {
    /// The reduction, if the ISA has it for a tensor in global memory: as for the plain bulk
    /// reduction, but no `f64`.
    pub fn tensor(operator: Operator, dtype: Dtype) -> Result<Reduction, String> {
        if dtype == Dtype::F64 {
            return Err(format!(
                ".{} on a tensor of f64: no such reduction",
                operator.name()
            ));
        }
        Reduction::global(operator, dtype)
    }

    /// The reduction, if the ISA has it for a destination in global memory.
    pub fn global(operator: Operator, dtype: Dtype) -> Result<Reduction, String> {
        let types = TABLE
            .into_iter()
            .find(|row| row.0 == operator)
            .map_or(&[][..], |row| row.2);
        if types.contains(&dtype) {
            Ok(Reduction { operator, dtype })
        } else {
            Err(format!(
                ".{} on {}: no such reduction",
                operator.name(),
                dtype.name()
            ))
        }
    }

    /// The reduction, if the ISA has it for a destination in another CTA's shared memory.
    pub fn shared(operator: Operator, dtype: Dtype) -> Result<Reduction, String> {
        let has = match operator {
            Operator::Add => matches!(dtype, Dtype::U32 | Dtype::S32 | Dtype::U64),
            Operator::Inc | Operator::Dec => dtype == Dtype::U32,
            _ => matches!(dtype, Dtype::U32 | Dtype::S32),
        };
        if has {
            Ok(Reduction { operator, dtype })
        } else {
            let name = dtype.name();
            Err(format!(
                ".{} on {name} in shared memory: no such reduction",
                operator.name()
            ))
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.dtype.bytes()
    }

    /// The new bits of an element: `d` in memory, `s` from the source.
    #[must_use]
    pub fn apply(&self, d: u64, s: u64) -> u64 {
        use Operator::{Add, And, Dec, Inc, Max, Min, Or, Xor};
        let mask = if self.bytes() == 8 {
            u64::MAX
        } else {
            (1 << (8 * self.bytes())) - 1
        };
        let (d, s) = (d & mask, s & mask);
        let less = self.less(d, s);
        let new = match (self.operator, self.dtype) {
            (Add, Dtype::F32) => {
                let sum = f32::from_bits(d as u32) + f32::from_bits(s as u32);
                u64::from(canonical(sum))
            }
            (Add, Dtype::F64) => {
                let sum = f64::from_bits(d) + f64::from_bits(s);
                if sum.is_nan() {
                    0x7fff_ffff_ffff_ffff
                } else {
                    sum.to_bits()
                }
            }
            (Add, Dtype::F16) => {
                let sum = f64::from(f16_to_f32(d as u16)) + f64::from(f16_to_f32(s as u16));
                u64::from(f16_from_f64(sum))
            }
            (Add, Dtype::Bf16) => u64::from(bf16_sum(d as u16, s as u16)),
            (Add, _) => d.wrapping_add(s),
            (Min, _) => match less {
                Some(less) => {
                    if less {
                        d
                    } else {
                        s
                    }
                }
                None => self.number_of(d, s),
            },
            (Max, _) => match less {
                Some(less) => {
                    if less {
                        s
                    } else {
                        d
                    }
                }
                None => self.number_of(d, s),
            },
            (Inc, _) => {
                if d >= s {
                    0
                } else {
                    d + 1
                }
            }
            (Dec, _) => {
                if d == 0 || d > s {
                    s
                } else {
                    d - 1
                }
            }
            (And, _) => d & s,
            (Or, _) => d | s,
            (Xor, _) => d ^ s,
        };
        new & mask
    }

    /// [`Self::apply`] on every element of two runs of bytes of equal length; an element that
    /// is cut short is left alone.
    pub fn apply_bytes(&self, destination: &mut [u8], source: &[u8]) {
        let bytes = self.bytes();
        for (d, s) in destination
            .chunks_exact_mut(bytes)
            .zip(source.chunks_exact(bytes))
        {
            let word = |part: &[u8]| {
                let mut word = [0; 8];
                word[..bytes].copy_from_slice(part);
                u64::from_le_bytes(word)
            };
            let new = self.apply(word(d), word(s));
            d.copy_from_slice(&new.to_le_bytes()[..bytes]);
        }
    }

    /// Whether `d` is less than `s`; `None` if one is a NaN.
    fn less(&self, d: u64, s: u64) -> Option<bool> {
        match self.dtype {
            Dtype::S32 => Some((d as i32) < s as i32),
            Dtype::S64 => Some((d as i64) < s as i64),
            Dtype::F16 | Dtype::Bf16 => {
                let (x, y) = (self.half(d), self.half(s));
                if x.is_nan() || y.is_nan() {
                    return None;
                }
                // -0 is less than +0.
                Some(x < y || (x == y && x.is_sign_negative() && y.is_sign_positive()))
            }
            _ => Some(d < s),
        }
    }

    fn half(&self, bits: u64) -> f32 {
        match self.dtype {
            Dtype::F16 => f16_to_f32(bits as u16),
            _ => f32::from_bits((bits as u32) << 16),
        }
    }

    fn number_of(&self, d: u64, s: u64) -> u64 {
        match (self.half(d).is_nan(), self.half(s).is_nan()) {
            (true, true) => u64::from(NAN_F16), // the same bits for both types
            (true, false) => s,
            _ => d,
        }
    }
}

/// To nearest even. Rounding to `f32` first does no harm: 24 bits are more than 2 * 8 + 1.
fn bf16_sum(d: u16, s: u16) -> u16 {
    let wide = |bits: u16| f32::from_bits(u32::from(bits) << 16);
    let sum = wide(d) + wide(s);
    if sum.is_nan() {
        return NAN_F16;
    }
    let bits = sum.to_bits();
    (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Rows of the table of what is executed.
#[must_use]
pub fn isa() -> Vec<(String, String)> {
    let names = |types: &[Dtype], wide: bool| -> String {
        let kept = types
            .iter()
            .filter(|t| wide || **t != Dtype::F64)
            .map(|t| t.name());
        kept.collect::<Vec<_>>().join(" ")
    };
    let mut rows = Vec::new();
    for (_, name, types) in TABLE {
        rows.push((
            format!("cp.reduce.async.bulk.global.shared::cta.bulk_group.{name}"),
            names(types, true),
        ));
        rows.push((
            format!("cp.reduce.async.bulk.tensor.1d-5d.global.shared::cta.{name}.bulk_group"),
            names(types, false),
        ));
    }
    rows
}
