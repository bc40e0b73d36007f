//! Element types of the tensor instructions, decoded to `f32` (exact for every one of them).

/// Type of an element of A or B.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// IEEE binary16.
    F16,
    /// The upper half of an `f32`.
    Bf16,
    /// An `f32` of which the tensor core reads the upper 19 bits.
    Tf32,
    /// 8 bits, 4 of exponent: no infinities, largest 448.
    E4m3,
    /// 8 bits, 5 of exponent, as in IEEE.
    E5m2,
    /// Signed 8-bit integer.
    S8,
    /// Unsigned 8-bit integer.
    U8,
    /// 6 bits, 2 of exponent: no infinities, no NaN. In memory a byte of its own, or 12 bytes for
    /// 16 of them, as the instruction says; so the other small ones.
    E2m3,
    /// 6 bits, 3 of exponent: no infinities, no NaN.
    E3m2,
    /// 4 bits, 2 of exponent: no infinities, no NaN.
    E2m1,
}

/// Type of an element of C and D.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Accumulator {
    /// One `f32` a register.
    F32,
    /// Two `f16` a register.
    F16,
    /// One 32-bit signed integer a register.
    S32,
}

impl Element {
    /// All of them.
    pub const ALL: [Element; 10] = [
        Element::F16,
        Element::Bf16,
        Element::Tf32,
        Element::E4m3,
        Element::E5m2,
        Element::S8,
        Element::U8,
        Element::E2m3,
        Element::E3m2,
        Element::E2m1,
    ];

    /// The qualifier in an opcode.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Element::F16 => "f16",
            Element::Bf16 => "bf16",
            Element::Tf32 => "tf32",
            Element::E4m3 => "e4m3",
            Element::E5m2 => "e5m2",
            Element::S8 => "s8",
            Element::U8 => "u8",
            Element::E2m3 => "e2m3",
            Element::E3m2 => "e3m2",
            Element::E2m1 => "e2m1",
        }
    }

    /// The element type of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Element> {
        Element::ALL
            .into_iter()
            .find(|element| element.name() == name)
    }

    /// Bytes in memory and in a register.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Element::F16 | Element::Bf16 => 2,
            Element::Tf32 => 4,
            _ => 1,
        }
    }

    /// Elements in a 32-bit register.
    #[must_use]
    pub fn per_register(self) -> usize {
        4 / self.bytes()
    }

    /// Whether it is one of the two 8-bit floating types.
    #[must_use]
    pub fn is_fp8(self) -> bool {
        matches!(self, Element::E4m3 | Element::E5m2)
    }

    /// Whether it is an integer type.
    #[must_use]
    pub fn is_integer(self) -> bool {
        matches!(self, Element::S8 | Element::U8)
    }

    /// Exponent of the smallest normal number.
    #[must_use]
    pub fn min_exponent(self) -> i32 {
        match self {
            Element::F16 | Element::E5m2 => -14,
            Element::E4m3 => -6,
            Element::E3m2 => -2,
            Element::E2m3 | Element::E2m1 => 0,
            _ => -126,
        }
    }

    /// The value of the low bits of `bits`.
    #[must_use]
    pub fn decode(self, bits: u32) -> f32 {
        match self {
            Element::F16 => f16_to_f32(bits as u16),
            Element::Bf16 => f32::from_bits(bits << 16),
            Element::Tf32 => f32::from_bits(bits & 0xffff_e000),
            Element::E4m3 => E4M3[(bits & 0xff) as usize],
            Element::E5m2 => E5M2[(bits & 0xff) as usize],
            Element::S8 => f32::from(bits as u8 as i8),
            Element::U8 => f32::from(bits as u8),
            Element::E2m3 => E2M3[(bits & 0x3f) as usize],
            Element::E3m2 => E3M2[(bits & 0x3f) as usize],
            Element::E2m1 => E2M1[(bits & 0xf) as usize],
        }
    }

    /// Decodes the elements of a 16-byte chunk in order and hands each on with its index.
    pub fn each(self, chunk: &[u8; 16], mut take: impl FnMut(usize, f32)) {
        match self.bytes() {
            1 => {
                for (i, byte) in chunk.iter().enumerate() {
                    take(i, self.decode(u32::from(*byte)));
                }
            }
            2 => {
                for (i, pair) in chunk.chunks_exact(2).enumerate() {
                    let bits = u16::from_le_bytes([pair[0], pair[1]]);
                    take(i, self.decode(u32::from(bits)));
                }
            }
            _ => {
                for (i, word) in chunk.chunks_exact(4).enumerate() {
                    take(
                        i,
                        self.decode(u32::from_le_bytes([word[0], word[1], word[2], word[3]])),
                    );
                }
            }
        }
    }

    /// Decodes the elements of a register, lowest first.
    pub fn each_in_register(self, register: u32, mut take: impl FnMut(usize, f32)) {
        let bits = 8 * self.bytes() as u32;
        for i in 0..self.per_register() {
            take(i, self.decode(register >> (bits * i as u32)));
        }
    }
}

impl Accumulator {
    /// All of them.
    pub const ALL: [Accumulator; 3] = [Accumulator::F32, Accumulator::F16, Accumulator::S32];

    /// The qualifier in an opcode.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Accumulator::F32 => "f32",
            Accumulator::F16 => "f16",
            Accumulator::S32 => "s32",
        }
    }

    /// The accumulator type of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Accumulator> {
        Accumulator::ALL.into_iter().find(|d| d.name() == name)
    }
}

/// What the tensor cores and the ISA's canonical NaN look like in `f32`.
pub const NAN_F32: u32 = 0x7fff_ffff;
/// The canonical NaN of `f16`.
pub const NAN_F16: u16 = 0x7fff;

/// Exact.
#[must_use]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    if magnitude >= 0x0f80_0000 {
        return f32::from_bits(sign | magnitude | 0x7000_0000); // infinity, NaN
    }
    // 2^112 rebiases the exponent, of subnormals too; the product is exact.
    let scaled = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    f32::from_bits(sign | scaled.to_bits())
}

/// To nearest, ties to even; NaN to the canonical one. From `f64`, which holds every sum that
/// a tensor core rounds to `f16`, so that nothing is rounded twice.
#[must_use]
pub fn f16_from_f64(value: f64) -> u16 {
    if value.is_nan() {
        return NAN_F16;
    }
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = value.abs();
    if magnitude >= 65520.0 {
        return sign | 0x7c00; // half an ulp above 65504 rounds to infinity
    }
    let exponent = if magnitude < 6.103_515_625e-5 {
        -14
    } else {
        ((magnitude.to_bits() >> 52) as i32) - 1023
    };
    // In units of the last place; below 2^12, so the conversion is exact after rounding.
    let units = (magnitude * f64::powi(2.0, 10 - exponent)).round_ties_even() as u32;
    let biased = (exponent + 14) as u32;
    sign | (units + (biased << 10)) as u16
}

/// Rounds a value that `f64` holds exactly to `f32`, toward zero; beyond the range, infinity.
#[must_use]
pub fn f32_toward_zero(value: f64) -> f32 {
    if value.abs() >= f64::powi(2.0, 128) {
        return if value > 0.0 {
            f32::INFINITY
        } else {
            f32::NEG_INFINITY
        };
    }
    let nearest = value as f32;
    if f64::from(nearest).abs() > value.abs() {
        f32::from_bits(nearest.to_bits() - 1)
    } else {
        nearest
    }
}

/// Bits of an `f32` result, its NaNs made canonical.
#[must_use]
pub fn canonical(value: f32) -> u32 {
    if value.is_nan() {
        NAN_F32
    } else {
        value.to_bits()
    }
}

static E4M3: [f32; 256] = fp8_table(4, false);
static E5M2: [f32; 256] = fp8_table(5, true);

static E2M3: [f32; 64] = tiny_table(2, 3);
static E3M2: [f32; 64] = tiny_table(3, 2);
static E2M1: [f32; 16] = tiny_table(2, 1);

/// The formats of 4 and 6 bits: every code is a finite number.
const fn tiny_table<const N: usize>(exponent_bits: u32, fraction_bits: u32) -> [f32; N] {
    let bias = (1 << (exponent_bits - 1)) - 1;
    let mut table = [0.0; N];
    let mut bits = 0;
    while bits < N {
        let fraction = bits as u32 & ((1 << fraction_bits) - 1);
        let exponent = bits as u32 >> fraction_bits & ((1 << exponent_bits) - 1);
        let sign = bits as u32 >> (fraction_bits + exponent_bits) << 31;
        // fraction * 2^(1 - bias - fraction_bits), or (1 + fraction) * 2^(exponent - bias)
        let magnitude = if exponent == 0 {
            fraction as f32 * f32::from_bits((127 + 1 - bias - fraction_bits) << 23)
        } else {
            f32::from_bits((exponent + 127 - bias) << 23 | fraction << (23 - fraction_bits))
        };
        table[bits] = f32::from_bits(magnitude.to_bits() | sign);
        bits += 1;
    }
    table
}

const fn fp8_table(exponent_bits: u32, ieee: bool) -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut bits = 0;
    while bits < 256 {
        table[bits as usize] = fp8(bits, exponent_bits, ieee);
        bits += 1;
    }
    table
}

const fn fp8(bits: u32, exponent_bits: u32, ieee: bool) -> f32 {
    let fraction_bits = 7 - exponent_bits;
    let bias = (1 << (exponent_bits - 1)) - 1;
    let sign = (bits >> 7) << 31;
    let exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    let fraction = bits & ((1 << fraction_bits) - 1);
    let all_ones = exponent == (1 << exponent_bits) - 1;
    if ieee && all_ones {
        return f32::from_bits(sign | if fraction == 0 { 0x7f80_0000 } else { NAN_F32 });
    }
    if !ieee && all_ones && fraction == (1 << fraction_bits) - 1 {
        return f32::from_bits(sign | NAN_F32);
    }
    let magnitude = if exponent == 0 {
        // fraction * 2^(1 - bias - fraction_bits), by a power of two written as bits
        fraction as f32 * f32::from_bits((127 + 1 - bias - fraction_bits) << 23)
    } else {
        f32::from_bits(((exponent + 127 - bias) << 23) | (fraction << (23 - fraction_bits)))
    };
    f32::from_bits(magnitude.to_bits() | sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Value from the format's definition, by powers of two in `f64`.
    fn slow(bits: u32, exponent_bits: u32, fraction_bits: u32) -> f64 {
        let sign = if bits >> (exponent_bits + fraction_bits) & 1 == 1 {
            -1.0
        } else {
            1.0
        };
        let e = ((bits >> fraction_bits) & ((1 << exponent_bits) - 1)) as i32;
        let f = f64::from(bits & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
        let bias = (1 << (exponent_bits - 1)) - 1;
        sign * if e == 0 {
            f * f64::powi(2.0, 1 - bias)
        } else {
            (1.0 + f) * f64::powi(2.0, e - bias)
        }
    }

    #[test]
    fn every_code_of_the_small_formats() {
        for bits in 0..256_u32 {
            let e4 = Element::E4m3.decode(bits);
            if bits & 0x7f == 0x7f {
                assert!(e4.is_nan());
            } else {
                assert_eq!(f64::from(e4), slow(bits, 4, 3), "e4m3 {bits:#x}");
                assert_eq!(e4.is_sign_negative(), bits >= 128);
            }
            let e5 = Element::E5m2.decode(bits);
            match bits & 0x7f {
                0x7c => assert!(e5.is_infinite()),
                0x7d.. => assert!(e5.is_nan()),
                _ => assert_eq!(f64::from(e5), slow(bits, 5, 2), "e5m2 {bits:#x}"),
            }
        }
        assert_eq!(Element::E4m3.decode(0x7e), 448.0);
        assert_eq!(Element::E5m2.decode(0x7b), 57344.0);
        assert_eq!(Element::S8.decode(0x80), -128.0);
        assert_eq!(Element::U8.decode(0x80), 128.0);
    }

    #[test]
    fn every_code_of_the_tiny_formats() {
        for (element, exponent, fraction) in [
            (Element::E2m3, 2, 3),
            (Element::E3m2, 3, 2),
            (Element::E2m1, 2, 1),
        ] {
            for bits in 0..1 << (1 + exponent + fraction) {
                let value = f64::from(element.decode(bits));
                assert_eq!(
                    value,
                    slow(bits, exponent, fraction),
                    "{element:?} {bits:#x}"
                );
            }
        }
        assert_eq!(Element::E2m1.decode(0x7), 6.0);
        assert_eq!(Element::E2m3.decode(0x1f), 7.5);
        assert_eq!(Element::E3m2.decode(0x3f), -28.0);
    }

    #[test]
    fn every_f16_there_and_back() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            if bits & 0x7fff > 0x7c00 {
                assert!(value.is_nan());
                assert_eq!(f16_from_f64(f64::from(value)), NAN_F16);
                continue;
            }
            if bits & 0x7fff < 0x7c00 {
                assert_eq!(f64::from(value), slow(u32::from(bits), 5, 10), "{bits:#x}");
            }
            assert_eq!(f16_from_f64(f64::from(value)), bits);
        }
    }

    #[test]
    fn f16_rounds_to_nearest_even() {
        for bits in 0..0x7bff_u16 {
            let (low, high) = (f64::from(f16_to_f32(bits)), f64::from(f16_to_f32(bits + 1)));
            let middle = f64::midpoint(low, high);
            assert_eq!(f16_from_f64(middle), bits + (bits & 1), "{bits:#x}");
            assert_eq!(f16_from_f64(middle * (1.0 - 1e-15)), bits);
            assert_eq!(f16_from_f64(-middle * (1.0 + 1e-15)), (bits + 1) | 0x8000);
        }
        assert_eq!(f16_from_f64(65519.999), 0x7bff);
        assert_eq!(f16_from_f64(65520.0), 0x7c00);
    }

    #[test]
    fn toward_zero_never_grows() {
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let value =
                f64::from_bits((seed & !(0x7ff << 52)) | ((850 + (seed >> 40) % 300) << 52));
            let rounded = f32_toward_zero(value);
            let up = f32::from_bits(rounded.to_bits() + 1);
            assert!(f64::from(rounded).abs() <= value.abs());
            assert!(f64::from(up).abs() > value.abs(), "{value:e}");
        }
        assert_eq!(f32_toward_zero(1e300), f32::INFINITY);
        assert_eq!(
            f32_toward_zero(f64::from(f32::MAX) * (1.0 + 1e-9)),
            f32::MAX
        );
    }
}
