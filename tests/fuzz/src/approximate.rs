//! Approximate instructions: how far results are from f64, in units of what the ISA allows.

use mok_emu::scalar::Ty;

use crate::isa::Name;

/// What is known of an instruction's result.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Want {
    /// This value within this distance.
    Near(f64, f64),
    /// This value alone: a zero or an infinity with its sign, or NaN.
    Only(f64),
    /// The ISA gives no bound here.
    Open,
}

/// Formats with a least normal number and a last place.
#[derive(Clone, Copy)]
struct Format {
    fraction: i32,
    least: i32,
    most: f64,
}

impl Format {
    fn of(ty: Ty) -> Format {
        match ty {
            Ty::F16 => Format {
                fraction: 10,
                least: -14,
                most: 65504.0,
            },
            Ty::Bf16 => Format {
                fraction: 7,
                least: -126,
                most: 3.3895313892515355e38,
            },
            Ty::F64 => Format {
                fraction: 52,
                least: -1022,
                most: f64::MAX,
            },
            _ => Format {
                fraction: 23,
                least: -126,
                most: f32::MAX.into(),
            },
        }
    }

    /// One place of the last digit at `value`.
    fn place(self, value: f64) -> f64 {
        let exponent = if value == 0.0 {
            self.least
        } else {
            exponent(value).max(self.least)
        };
        2f64.powi(exponent - self.fraction)
    }

    fn is_subnormal(self, value: f64) -> bool {
        value != 0.0 && value.abs() < 2f64.powi(self.least)
    }
}

/// The power of two at or below a finite value other than 0.
fn exponent(value: f64) -> i32 {
    let field = (value.to_bits() >> 52 & 0x7ff) as i32;
    if field == 0 {
        value.abs().log2().floor() as i32
    } else {
        field - 1023
    }
}

/// The value of one element's bits.
fn value(ty: Ty, bits: u64) -> f64 {
    match ty {
        Ty::F64 => f64::from_bits(bits),
        Ty::F32 => f32::from_bits(bits as u32).into(),
        Ty::Bf16 => f32::from_bits((bits as u32 & 0xffff) << 16).into(),
        _ => half(bits as u16),
    }
}

/// The value of an f16.
fn half(bits: u16) -> f64 {
    let fraction = f64::from(bits & 0x3ff);
    let magnitude = match i32::from(bits >> 10 & 31) {
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        0 => fraction * 2f64.powi(-24),
        exponent => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
    };
    if bits >> 15 == 1 {
        -magnitude
    } else {
        magnitude
    }
}

/// The largest distance of a result from f64, 1.0 being all that is allowed; infinite where a
/// special value is not the one that it must be. `None`: nothing is said of these operands.
///
/// The bounds are those of the PTX ISA, 9.7.3 and 9.7.4, but for the f64 forms: it gives none, and
/// 2^-19 stands for "20 bits", 2^-50 for a software routine with room for its last steps.
pub fn error(name: &Name, sources: [u64; 2], result: u64) -> Option<f64> {
    let ty = name.op.src()[0];
    let element = ty.element();
    let worst = (0..ty.lanes()).filter_map(|lane| {
        let at = lane * element.bits();
        let part = |bits: u64| value(element, bits >> at & element.mask());
        element_error(name, element, sources.map(part), part(result))
    });
    worst.reduce(f64::max)
}

fn element_error(name: &Name, ty: Ty, sources: [f64; 2], got: f64) -> Option<f64> {
    let format = Format::of(ty);
    let ftz = name.has("ftz");
    let read = |x: f64| {
        // Only the upper word of an f64 counts there.
        let x = if ftz && ty == Ty::F64 {
            f64::from_bits(x.to_bits() & !0xffff_ffff)
        } else {
            x
        };
        if ftz && format.is_subnormal(x) {
            0f64.copysign(x)
        } else {
            x
        }
    };
    let [a, b] = sources.map(read);
    let tiny = |value: f64| format.is_subnormal(value);
    match want(name, ty, format, a, b) {
        Want::Open => None,
        Want::Only(value) if value.is_nan() => Some(if got.is_nan() { 0.0 } else { f64::INFINITY }),
        Want::Only(value) => Some(if got.to_bits() == value.to_bits() {
            0.0
        } else {
            f64::INFINITY
        }),
        Want::Near(value, _) if got.is_nan() || value.is_nan() => Some(f64::INFINITY),
        // At the border the result may fall either way.
        Want::Near(value, within) if got.is_infinite() => {
            let overflows = value.abs() + within >= format.most && got.signum() == value.signum();
            Some(if overflows { 0.0 } else { f64::INFINITY })
        }
        Want::Near(value, within) if ftz && tiny(value.abs() - within) && got == 0.0 => Some(0.0),
        Want::Near(value, within) => Some((got - value).abs() / within),
    }
}

fn want(name: &Name, ty: Ty, format: Format, a: f64, b: f64) -> Want {
    use std::f64::consts::PI;
    let relative = |value: f64, power: f64| special(value, value.abs() * 2f64.powf(power), format);
    let places = |value: f64, count: f64| special(value, count * format.place(value), format);
    match (name.opcode(), ty) {
        ("rcp", Ty::F64) => relative(1.0 / a, -19.0),
        ("rsqrt", Ty::F64) => {
            let root = if a == 0.0 { 1.0 / a } else { 1.0 / a.sqrt() };
            relative(root, if name.has("ftz") { -19.0 } else { -50.0 })
        }
        ("rcp", _) => places(1.0 / a, 1.0),
        ("div", _) => {
            let (huge, tiny) = (
                b.is_finite() && b.abs() > 2f64.powi(126),
                b != 0.0 && b.abs() < 2f64.powi(-126),
            );
            match name.has("full") {
                false if huge && a.is_infinite() => Want::Only(f64::NAN),
                false if huge && !a.is_nan() => Want::Only(0f64.copysign(a) * b.signum()),
                false if tiny => Want::Open,
                _ => places(a / b, 2.0),
            }
        }
        ("sqrt", _) => relative(a.sqrt(), -23.0),
        ("rsqrt", _) => {
            let root = if a == 0.0 { 1.0 / a } else { 1.0 / a.sqrt() };
            relative(root, -22.9)
        }
        ("sin" | "cos", _) => {
            let exact = if name.opcode() == "sin" {
                a.sin()
            } else {
                a.cos()
            };
            match a.abs() {
                _ if !a.is_finite() || a == 0.0 => Want::Only(exact),
                size if size <= 2.0 * PI => Want::Near(exact, 2f64.powf(-20.5)),
                size if size <= 100.0 * PI => Want::Near(exact, 2f64.powf(-14.7)),
                _ => Want::Open,
            }
        }
        ("lg2", _) if a > 0.5 && a < 2.0 => Want::Near(a.log2(), 2f64.powi(-22)),
        ("lg2", _) => relative(a.log2(), -22.0),
        ("ex2", Ty::F16) => relative(a.exp2(), -9.9),
        ("ex2", Ty::Bf16) => relative(a.exp2(), -7.0),
        ("ex2", _) => places(a.exp2(), 2.0),
        ("tanh", Ty::F16) if !a.is_nan() => Want::Near(a.tanh(), 2f64.powf(-10.987)),
        // An H200 is beyond the ISA's 2^-8 by 65 millionths, at 0.74609375 (bits 3f3f) alone.
        ("tanh", Ty::Bf16) if !a.is_nan() => Want::Near(a.tanh(), 1.0001 * 2f64.powi(-8)),
        ("tanh", _) => relative(a.tanh(), -11.0),
        _ => Want::Open,
    }
}

/// Zeros, infinities and NaNs are exact; else within so much, and a place for a subnormal result,
/// which has fewer digits than the bound: its neighbours are what an approximation rounds to.
fn special(value: f64, within: f64, format: Format) -> Want {
    if value == 0.0 || !value.is_finite() {
        return Want::Only(value);
    }
    let least = if format.is_subnormal(value) {
        format.place(0.0)
    } else {
        0.0
    };
    Want::Near(value, within.max(least).max(f64::from_bits(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mok_emu::scalar::ScalarOp;

    fn name(text: &str) -> Name {
        let parts: Vec<&str> = text.split('.').collect();
        Name {
            text: text.into(),
            row: 0,
            op: ScalarOp::decode(&parts).expect("a name").expect("scalar"),
        }
    }

    fn single(text: &str, sources: [f32; 2], result: f32) -> Option<f64> {
        error(
            &name(text),
            sources.map(|x| x.to_bits().into()),
            result.to_bits().into(),
        )
    }

    #[test]
    fn results_that_are_off_are_seen() {
        let third = 1.0f32 / 3.0;
        for (text, sources, right, wrong) in [
            ("rcp.approx.f32", [3.0, 0.0], third, third + 4e-8),
            ("div.approx.f32", [1.0, 3.0], third, third + 8e-8),
            ("div.full.ftz.f32", [1.0, 3.0], third, third - 8e-8),
            (
                "sqrt.approx.f32",
                [2.0, 0.0],
                2f32.sqrt(),
                2f32.sqrt() + 5e-7,
            ),
            (
                "rsqrt.approx.f32",
                [2.0, 0.0],
                0.5f32.sqrt(),
                0.5f32.sqrt() + 3e-7,
            ),
            ("sin.approx.f32", [1.0, 0.0], 1f32.sin(), 1f32.sin() + 8e-7),
            (
                "cos.approx.f32",
                [100.0, 0.0],
                100f32.cos(),
                100f32.cos() + 5e-5,
            ),
            (
                "lg2.approx.f32",
                [1.5, 0.0],
                1.5f32.log2(),
                1.5f32.log2() + 3e-7,
            ),
            (
                "lg2.approx.f32",
                [1e30, 0.0],
                1e30f32.log2(),
                1e30f32.log2() * 1.000_001,
            ),
            (
                "ex2.approx.f32",
                [0.5, 0.0],
                2f32.sqrt(),
                2f32.sqrt() + 5e-7,
            ),
            (
                "tanh.approx.f32",
                [0.5, 0.0],
                0.5f32.tanh(),
                0.5f32.tanh() * 1.001,
            ),
            // Special values are exact.
            ("rcp.approx.f32", [0.0, 0.0], f32::INFINITY, f32::MAX),
            ("rcp.approx.f32", [-f32::INFINITY, 0.0], -0.0, 0.0),
            ("rcp.approx.ftz.f32", [1e-40, 0.0], f32::INFINITY, 1e38),
            ("sqrt.approx.f32", [-1.0, 0.0], f32::NAN, 0.0),
            ("lg2.approx.f32", [0.0, 0.0], -f32::INFINITY, f32::NAN),
            ("div.approx.f32", [1.0, 2e38], 0.0, 5e-39),
            ("ex2.approx.f32", [200.0, 0.0], f32::INFINITY, 1.0),
            ("ex2.approx.ftz.f32", [-126.5, 0.0], 0.0, 1e-37),
            ("cos.approx.f32", [f32::INFINITY, 0.0], f32::NAN, 1.0),
        ] {
            let (good, bad) = (single(text, sources, right), single(text, sources, wrong));
            assert!(
                good.is_some_and(|error| error <= 1.0),
                "{text} {sources:?}: {good:?}"
            );
            assert!(
                bad.is_some_and(|error| error > 1.0),
                "{text} {sources:?}: {bad:?}"
            );
        }
        assert_eq!(single("sin.approx.f32", [1e6, 0.0], 7.0), None);
        assert_eq!(single("div.approx.f32", [1.0, 1e-39], 7.0), None);
    }

    #[test]
    fn both_halves_of_pairs_and_upper_words_count() {
        let tanh = name("tanh.approx.f16x2");
        assert_eq!(error(&tanh, [0, 0], 0), Some(0.0));
        assert!(error(&tanh, [0, 0], 0x2000_0000).is_some_and(|error| error > 1.0));
        assert!(error(&tanh, [0, 0], 0x0000_2000).is_some_and(|error| error > 1.0));
        let bf16 = name("ex2.approx.ftz.bf16x2");
        assert_eq!(error(&bf16, [0, 0], 0x3f80_3f80), Some(0.0));
        assert!(error(&bf16, [0, 0], 0x3f83_3f80).is_some_and(|error| error > 1.0));
        let rcp = name("rcp.approx.ftz.f64");
        let bits = f64::to_bits;
        // A NaN whose upper word is an infinity's is one.
        assert_eq!(error(&rcp, [0x7ff0_0000_0000_0001, 0], 0), Some(0.0));
        assert!(error(&rcp, [bits(3.0) | 5, 0], bits(0.3333)).is_some_and(|error| error > 1.0));
        assert!(
            error(&rcp, [bits(3.0) | 5, 0], bits(0.333_333_3)).is_some_and(|error| error < 1.0)
        );
    }

    #[test]
    fn halves() {
        for (bits, want) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (1, 2f64.powi(-24)),
            (0x7bff, 65504.0),
        ] {
            assert_eq!(half(bits), want);
        }
        assert!(half(0x7e00).is_nan() && half(0xfc00) == f64::NEG_INFINITY);
    }
}
