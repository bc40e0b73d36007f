//! Approximate functions: inside the ISA's bounds, and its special values.

use super::{Random, run, run32};
use half::{bf16, f16};

/// Distance in units of the last place of `want`'s f32.
fn ulps(got: f32, want: f64) -> f64 {
    let near = (want as f32).abs().max(f32::MIN_POSITIVE);
    (f64::from(got) - want).abs() / f64::from(near.next_up() - near)
}

#[test]
fn within_the_bounds() {
    let mut random = Random(50);
    for _ in 0..50_000 {
        let a = random.f32();
        let x = f64::from(a);
        if a.is_finite() && a != 0.0 && (1.0 / a).is_finite() {
            assert!(ulps(run32("rcp.approx.f32", &[a]), 1.0 / x) <= 1.0, "{a:e}");
        }
        if a.is_finite() && a > 0.0 {
            assert!(ulps(run32("sqrt.approx.f32", &[a]), x.sqrt()) <= 2.0);
            assert!(ulps(run32("rsqrt.approx.f32", &[a]), 1.0 / x.sqrt()) <= 2.0);
            let lg2 = f64::from(run32("lg2.approx.f32", &[a]));
            assert!((lg2 - x.log2()).abs() <= 2f64.powi(-22) * x.log2().abs().max(1.0));
        }
        let b = random.f32();
        let quotient = x / f64::from(b);
        if quotient.abs() > 1e-37 && quotient.abs() < 3e38 && b.abs() < 1e37 {
            assert!(ulps(run32("div.approx.f32", &[a, b]), quotient) <= 2.0);
            assert!(ulps(run32("div.full.f32", &[a, b]), quotient) <= 2.0);
        }
        if x.abs() <= std::f64::consts::PI {
            assert!((f64::from(run32("sin.approx.f32", &[a])) - x.sin()).abs() <= 2f64.powf(-20.5));
            assert!((f64::from(run32("cos.approx.f32", &[a])) - x.cos()).abs() <= 2f64.powf(-20.5));
        }
        if x.abs() < 126.0 {
            assert!(ulps(run32("ex2.approx.f32", &[a]), x.exp2()) <= 2.0);
        }
        if a.is_finite() && a != 0.0 {
            let tanh = f64::from(run32("tanh.approx.f32", &[a]));
            assert!((tanh - x.tanh()).abs() <= x.tanh().abs() * 2f64.powi(-11) + 1e-45);
        }
    }
    for bits in 0..=0xffffu16 {
        let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
        let value = |name: &str| run(name, &[bits.into()]) as u16;
        if h.is_finite() {
            let tanh = f16::from_bits(value("tanh.approx.f16")).to_f64();
            assert!((tanh - h.to_f64().tanh()).abs() <= 2f64.powf(-10.987));
            let ex2 = f16::from_bits(value("ex2.approx.f16")).to_f64();
            let want = h.to_f64().exp2();
            assert!(
                want > 65504.0 || (ex2 - want).abs() <= want * 2f64.powf(-9.9) + 2f64.powi(-25),
                "{h}"
            );
        }
        if b.is_finite() {
            let tanh = bf16::from_bits(value("tanh.approx.bf16")).to_f64();
            assert!((tanh - b.to_f64().tanh()).abs() <= 2f64.powi(-8));
            let ex2 = bf16::from_bits(value("ex2.approx.ftz.bf16")).to_f64();
            let want = b.to_f64().exp2();
            let far = !(1.2e-38..3.3e38).contains(&want);
            assert!(far || (ex2 - want).abs() <= want * 2f64.powi(-7), "{b}");
        }
    }
}

#[test]
fn special_values() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for (name, a, want) in [
        ("rcp.approx.f32", 0.0, inf),
        ("rcp.approx.f32", -0.0, -inf),
        ("rcp.approx.f32", -inf, -0.0),
        ("rcp.approx.ftz.f32", 1e-40, inf),
        ("sqrt.approx.f32", -0.0, -0.0),
        ("sqrt.approx.f32", -1.0, nan),
        ("sqrt.approx.ftz.f32", -1e-40, -0.0),
        ("rsqrt.approx.f32", 0.0, inf),
        ("rsqrt.approx.f32", -0.0, -inf),
        ("rsqrt.approx.f32", inf, 0.0),
        ("rsqrt.approx.f32", -1.0, nan),
        ("sin.approx.f32", -0.0, -0.0),
        ("sin.approx.f32", inf, nan),
        ("cos.approx.f32", -0.0, 1.0),
        ("cos.approx.ftz.f32", 1e-40, 1.0),
        ("lg2.approx.f32", -0.0, -inf),
        ("lg2.approx.f32", 0.0, -inf),
        ("lg2.approx.f32", -1.0, nan),
        ("lg2.approx.f32", inf, inf),
        ("ex2.approx.f32", -inf, 0.0),
        ("ex2.approx.f32", inf, inf),
        ("ex2.approx.ftz.f32", -127.0, 0.0),
        ("ex2.approx.f32", 1e-40, 1.0),
        ("tanh.approx.f32", -inf, -1.0),
        ("tanh.approx.f32", -0.0, -0.0),
    ] {
        let got = run32(name, &[a]);
        let bits = if want.is_nan() {
            0x7fff_ffff
        } else {
            want.to_bits()
        };
        assert_eq!(got.to_bits(), bits, "{name} {a}: {got}");
    }
    // Divisors above 2^126: nothing, or NaN under an infinity; not so in div.full.
    assert_eq!(run32("div.approx.f32", &[1e38, 2e38]), 0.0);
    assert_eq!(
        run32("div.approx.ftz.f32", &[-1e38, 2e38]).to_bits(),
        0x8000_0000
    );
    assert_eq!(run32("div.approx.f32", &[inf, 2e38]).to_bits(), 0x7fff_ffff);
    assert_eq!(run32("div.full.f32", &[1e38, 2e38]), 0.5);
    assert_eq!(run32("div.approx.f32", &[1.0, inf]), 0.0);
}

#[test]
fn f64_of_upper_words() {
    let f = f64::to_bits;
    assert_eq!(run("rcp.approx.ftz.f64", &[f(4.0) | 77]), f(0.25));
    assert_eq!(run("rcp.approx.ftz.f64", &[1]), f(f64::INFINITY));
    assert_eq!(run("rcp.approx.ftz.f64", &[f(1.7e308)]), 0);
    assert_eq!(
        run("rcp.approx.ftz.f64", &[f(f64::NAN)]),
        0x7fff_ffff_0000_0000
    );
    assert_eq!(
        run("rsqrt.approx.ftz.f64", &[f(-1.0)]),
        0x7fff_ffff_0000_0000
    );
    assert_eq!(run("rsqrt.approx.ftz.f64", &[f(4.0)]), f(0.5));
    assert_eq!(
        run("rsqrt.approx.f64", &[1]),
        f(1.0 / f64::from_bits(1).sqrt())
    );
    assert_eq!(run("rcp.approx.ftz.f64", &[f(3.0)]) & 0xffff_ffff, 0);
    let third = f64::from_bits(run("rcp.approx.ftz.f64", &[f(3.0)]));
    assert!((third * 3.0 - 1.0).abs() < 2f64.powi(-19));
}
