//! The reduction of `tcgen05.ld.red`: over the columns that a thread loads (PTX ISA 9.0, 9.7.16.8.3).
//!
//! Of `.16x32bx2`, whose lanes two threads share, the ISA does not say which columns a thread's
//! result covers; only `.32x32b` is implemented.

use super::super::number::canonical;

/// Numbers that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    /// Of which the signs may be dropped first, and of which NaNs may count.
    F32 {
        abs: bool,
        nan: bool,
    },
    U32,
    S32,
}

/// A minimum or maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reduction {
    max: bool,
    ty: Type,
}

impl Reduction {
    /// Decodes the parts behind the number, in whatever order: operation, `.abs`, `.NaN`, type.
    pub fn decode(parts: &[&str]) -> Result<Reduction, String> {
        let has = |name: &str| parts.iter().filter(|part| **part == name).count() == 1;
        let max = match (has("min"), has("max")) {
            (true, false) => false,
            (false, true) => true,
            _ => return Err("a reduction is .min or .max".into()),
        };
        let (abs, nan) = (has("abs"), has("NaN"));
        let (ty, count) = match (has("f32"), has("u32"), has("s32")) {
            (true, false, false) => (
                Type::F32 { abs, nan },
                2 + usize::from(abs) + usize::from(nan),
            ),
            (false, true, false) => (Type::U32, 2),
            (false, false, true) => (Type::S32, 2),
            _ => return Err("a reduction is of .f32, .u32 or .s32".into()),
        };
        if parts.len() != count {
            return Err(format!("`.{}` does not fit together", parts.join(".")));
        }
        Ok(Reduction { max, ty })
    }

    /// The result over some values.
    #[must_use]
    pub fn of(&self, values: impl Iterator<Item = u32>) -> u32 {
        values
            .reduce(|a, b| self.pair(a, b))
            .map_or(0, |only| match self.ty {
                Type::F32 { abs, .. } => canonical(sign_dropped(only, abs)),
                _ => only,
            })
    }

    fn pair(&self, a: u32, b: u32) -> u32 {
        match self.ty {
            Type::U32 if self.max => a.max(b),
            Type::U32 => a.min(b),
            Type::S32 if self.max => (a as i32).max(b as i32) as u32,
            Type::S32 => (a as i32).min(b as i32) as u32,
            Type::F32 { abs, nan } => {
                let (a, b) = (sign_dropped(a, abs), sign_dropped(b, abs));
                if a.is_nan() || b.is_nan() {
                    let other = if a.is_nan() { b } else { a };
                    return canonical(if nan { f32::NAN } else { other });
                }
                // -0 is less than +0.
                let below = a < b || a == b && a.is_sign_negative();
                let (low, high) = if below { (a, b) } else { (b, a) };
                if self.max { high } else { low }.to_bits()
            }
        }
    }
}

fn sign_dropped(bits: u32, abs: bool) -> f32 {
    f32::from_bits(if abs { bits & 0x7fff_ffff } else { bits })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_as_their_type_has_it() {
        let over = |parts: &[&str], values: &[u32]| {
            Reduction::decode(parts).map(|reduction| reduction.of(values.iter().copied()))
        };
        let [one, two, minus] = [1.0f32, 2.0, -3.0].map(f32::to_bits);
        let nan = f32::NAN.to_bits();
        for (parts, values, want) in [
            (&["max", "f32"][..], &[one, minus, two][..], two),
            (&["min", "f32"], &[one, minus, two], minus),
            (&["max", "abs", "f32"], &[one, minus, two], 3.0f32.to_bits()),
            (&["f32", "min", "abs"], &[minus, minus], 3.0f32.to_bits()),
            (&["max", "f32"], &[nan, one], one),
            (&["max", "NaN", "f32"], &[nan, one], 0x7fff_ffff),
            (&["min", "f32"], &[0, 0x8000_0000], 0x8000_0000),
            (&["min", "u32"], &[5, u32::MAX], 5),
            (&["s32", "min"], &[5, u32::MAX], u32::MAX),
            (&["max", "s32"], &[5, u32::MAX], 5),
        ] {
            assert_eq!(over(parts, values), Ok(want), "{parts:?}");
        }
        for parts in [
            &["f32"][..],
            &["min", "b32"],
            &["min", "abs", "u32"],
            &["min", "max", "u32"],
        ] {
            assert!(over(parts, &[]).is_err(), "{parts:?}");
        }
    }
}
