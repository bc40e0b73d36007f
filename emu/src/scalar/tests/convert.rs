//! Conversions. Narrow formats are checked by brute force over all their codes.

use super::{Random, Ty, op, run, run32, to_bf16, to_f16};
use half::{bf16, f16};

/// The value of a code with `exp` and `man` bits; `None` for infinities and NaN.
fn code_value(code: u64, exp: u32, man: u32, ieee: bool) -> Option<f64> {
    let (field, frac) = (
        (code >> man & ((1 << exp) - 1)) as i32,
        (code & ((1 << man) - 1)) as f64,
    );
    let bias = (1 << (exp - 1)) - 1;
    let last = field == (1 << exp) - 1;
    if last && (ieee || (exp == 4 && code & 7 == 7)) {
        return None;
    }
    let unit = 2f64.powi(field.max(1) - bias - man as i32);
    let magnitude = unit * (frac + if field > 0 { (1 << man) as f64 } else { 0.0 });
    Some(if code >> (exp + man) & 1 == 1 {
        -magnitude
    } else {
        magnitude
    })
}

/// Format, exponent bits, fraction bits, whether it has infinities.
const NARROW: [(&str, u32, u32, bool); 5] = [
    ("e4m3", 4, 3, false),
    ("e5m2", 5, 2, true),
    ("e2m3", 2, 3, false),
    ("e3m2", 3, 2, false),
    ("e2m1", 2, 1, false),
];

#[test]
fn every_narrow_code_to_f16_and_back() {
    for (name, exp, man, ieee) in NARROW {
        let width = op(&format!("cvt.rn.f16x2.{name}x2")).src()[0].bits() / 2;
        for code in 0..1u64 << (1 + exp + man) {
            // The other half holds 1.0, to see that they keep apart.
            let one = ((1u64 << (exp - 1)) - 1) << man;
            let pair = run(&format!("cvt.rn.f16x2.{name}x2"), &[code << width | one]);
            assert_eq!(pair & 0xffff, 0x3c00);
            let got = f16::from_bits((pair >> 16) as u16);
            let negative = code >> (exp + man) & 1 == 1;
            let relu = run(
                &format!("cvt.rn.relu.f16x2.{name}x2"),
                &[code << width | one],
            ) >> 16;
            match code_value(code, exp, man, ieee) {
                Some(value) => {
                    assert_eq!(
                        got.to_bits(),
                        f16::from_f64(value).to_bits(),
                        "{name} {code:x}"
                    );
                    let back = run(
                        &format!("cvt.rn.satfinite.{name}x2.f32"),
                        &[(value as f32).to_bits().into(), 0],
                    );
                    assert_eq!(back, code << width, "{name} {code:x}");
                    assert_eq!(relu, if negative { 0 } else { pair >> 16 });
                    if exp > 3 {
                        assert_eq!(
                            run(
                                &format!("cvt.rn.satfinite.{name}x2.f16x2"),
                                &[pair & 0xffff_0000]
                            ),
                            back
                        );
                    }
                }
                None if ieee && code & 3 == 0 => {
                    assert!(got.is_infinite() && got.is_sign_negative() == negative)
                }
                None => assert_eq!((got.to_bits(), relu), (0x7fff, 0x7fff), "{name} {code:x}"),
            }
        }
    }
}

/// The code nearest to `x`, ties to even, by search.
fn nearest(x: f64, exp: u32, man: u32, ieee: bool) -> u64 {
    let codes = 0..1u64 << (exp + man);
    let distance =
        |code: &u64| code_value(*code, exp, man, ieee).map(|v| (v - x.abs().min(1e6)).abs());
    let best = codes.filter(|c| distance(c).is_some()).min_by(|a, b| {
        distance(a)
            .partial_cmp(&distance(b))
            .unwrap()
            .then((a & 1).cmp(&(b & 1)))
    });
    best.unwrap() | u64::from(x.is_sign_negative()) << (exp + man)
}

#[test]
fn narrowing_is_to_the_nearest_code() {
    let mut random = Random(60);
    for (name, exp, man, ieee) in NARROW {
        let cvt = |relu: &str, a: f32, b: f32| {
            run(
                &format!("cvt.rn.satfinite{relu}.{name}x2.f32"),
                &[a.to_bits().into(), b.to_bits().into()],
            )
        };
        let width = op(&format!("cvt.rn.satfinite.{name}x2.f32")).dst()[0].bits() / 2;
        for _ in 0..4000 {
            let [a, b] = [0; 2].map(|_| {
                let x = random.f32();
                // Half of them near the format's range, some on its ties.
                let grid = f32::from_bits(random.next() as u32 & 0x8078_0000 | 0x3f80_0000);
                let scale = 2f32.powi(random.below(40) as i32 - 22);
                if x.is_nan() || random.below(2) == 0 {
                    grid * scale
                } else {
                    x
                }
            });
            let want = |x: f32| nearest(x.into(), exp, man, ieee);
            assert_eq!(
                cvt("", a, b),
                want(a) << width | want(b),
                "{name} {a:e} {b:e}"
            );
            let relu = |x: f32| if x.is_sign_negative() { 0 } else { want(x) };
            assert_eq!(
                cvt(".relu", a, b),
                relu(a) << width | relu(b),
                "{name} {a:e} {b:e}"
            );
        }
        let nan = if exp > 3 {
            0x7f
        } else {
            (1 << (exp + man)) - 1
        };
        assert_eq!(cvt("", f32::NAN, -f32::NAN), nan << width | nan, "{name}");
    }
    // Infinities are the largest finite, with their sign.
    let (inf, minus) = (
        f32::INFINITY.to_bits().into(),
        f32::NEG_INFINITY.to_bits().into(),
    );
    assert_eq!(run("cvt.rn.satfinite.e4m3x2.f32", &[inf, minus]), 0x7efe);
    assert_eq!(run("cvt.rn.satfinite.e5m2x2.f32", &[inf, minus]), 0x7bfb);
    assert_eq!(run("cvt.rn.satfinite.e5m2x2.f16x2", &[0x7e00_fc00]), 0x7ffb);
}

#[test]
fn scales_of_e8m0() {
    for code in 0..=0xffu64 {
        let bf = run("cvt.rn.bf16x2.ue8m0x2", &[code << 8 | 127]);
        assert_eq!(bf & 0xffff, 0x3f80);
        let value = bf16::from_bits((bf >> 16) as u16);
        if code == 0xff {
            assert_eq!(value.to_bits(), 0x7fff);
            continue;
        }
        let exact = 2f64.powi(code as i32 - 127);
        assert_eq!(value.to_f64(), exact);
        let f = |x: f64| u64::from((x as f32).to_bits());
        for (name, at, above) in [("rz", code, code), ("rp", code, (code + 1).min(0xfe))] {
            let cvt = format!("cvt.{name}.satfinite.ue8m0x2.f32");
            assert_eq!(
                run(&cvt, &[f(exact), f(exact * 1.5)]),
                at << 8 | above,
                "{name} {code}"
            );
            assert_eq!(
                run(&format!("cvt.{name}.satfinite.ue8m0x2.bf16x2"), &[bf]),
                code << 8 | 127
            );
        }
    }
    let max = u64::from(f32::MAX.to_bits());
    assert_eq!(run("cvt.rp.ue8m0x2.f32", &[max, 0]), 0xff00);
    assert_eq!(
        run("cvt.rp.satfinite.ue8m0x2.f32", &[0x7fc0_0000, 0x7f80_0000]),
        0xfffe
    );
    assert_eq!(
        run("cvt.rp.satfinite.ue8m0x2.f32", &[1, 0x0040_0001]),
        0x0001
    );
}

#[test]
fn f32_to_f16_and_bf16() {
    let mut random = Random(61);
    for _ in 0..200_000 {
        let a = match random.below(3) {
            // Ties and their neighbours.
            0 => {
                f32::from(f16::from_bits(random.next() as u16)).to_bits()
                    ^ [0, 0x1000, 0xfff, 0x1001][random.below(4) as usize]
            }
            1 => {
                (random.next() as u32) << 16 | [0x8000, 0x7fff, 0x8001, 0][random.below(4) as usize]
            }
            _ => random.f32().to_bits(),
        };
        let x = f32::from_bits(a);
        let (h, b) = if x.is_nan() {
            (0x7fff, 0x7fff)
        } else {
            (
                u64::from(f16::from_f32(x).to_bits()),
                u64::from(bf16::from_f32(x).to_bits()),
            )
        };
        let a = u64::from(a);
        assert_eq!(
            (run("cvt.rn.f16.f32", &[a]), run("cvt.rn.bf16.f32", &[a])),
            (h, b),
            "{x:e}"
        );
        // The first source goes to the upper half.
        assert_eq!(
            run("cvt.rn.bf16x2.f32", &[a, 0x3f80_0000]),
            b << 16 | 0x3f80
        );
        assert_eq!(run("cvt.rn.f16x2.f32", &[0x3f80_0000, a]), 0x3c00 << 16 | h);
        let negative = x.is_sign_negative() && !x.is_nan();
        assert_eq!(
            run("cvt.rn.relu.bf16.f32", &[a]),
            if negative { 0 } else { b }
        );
        let finite = if h & 0x7fff == 0x7c00 { h - 1 } else { h };
        assert_eq!(run("cvt.rn.satfinite.f16.f32", &[a]), finite, "{x:e}");
        if x.is_nan() {
            continue;
        }
        let wide = |bits: u64| f64::from(f16::from_bits(bits as u16));
        let (rz, rm, rp) = (
            run("cvt.rz.f16.f32", &[a]),
            run("cvt.rm.f16.f32", &[a]),
            run("cvt.rp.f16.f32", &[a]),
        );
        assert!(wide(rm) <= x.into() && f64::from(x) <= wide(rp), "{x:e}");
        let adjacent = (rm & 0x7fff).abs_diff(rp & 0x7fff) <= 1;
        assert!(
            adjacent && (wide(rm) == wide(rp)) == (wide(rm) == f64::from(x)),
            "{x:e} {rm:x} {rp:x}"
        );
        assert_eq!(rz, if negative { rp } else { rm });
        // Cutting the lower half is rounding towards zero.
        assert_eq!(
            run("cvt.rz.bf16.f32", &[a]),
            if x.is_infinite() { b } else { a >> 16 }
        );
    }
    assert_eq!(
        (
            run("cvt.rz.f16.f32", &[0x7f00_0000]),
            run("cvt.rn.f16.f32", &[0x7f00_0000])
        ),
        (0x7bff, 0x7c00)
    );
    // Towards f16 .ftz flushes nothing; towards bf16 it does (read off an H200).
    assert_eq!(
        (
            run("cvt.rp.ftz.f16.f32", &[1]),
            run("cvt.rp.ftz.bf16.f32", &[1])
        ),
        (1, 0)
    );
}

#[test]
fn between_floats() {
    for a in 0..=0xffffu64 {
        let h = f16::from_bits(a as u16);
        let b = bf16::from_bits(a as u16);
        if !h.is_nan() {
            assert_eq!(run("cvt.f32.f16", &[a]), h.to_f32().to_bits().into());
            assert_eq!(run("cvt.f64.f16", &[a]), h.to_f64().to_bits());
            assert_eq!(
                run("cvt.rn.bf16.f16", &[a]),
                bf16::from_f32(h.to_f32()).to_bits().into()
            );
            assert_eq!(
                run("cvt.rni.f16.f16", &[a]),
                f16::from_f32(h.to_f32().round_ties_even()).to_bits().into()
            );
        }
        if !b.is_nan() {
            assert_eq!(run("cvt.f32.bf16", &[a]), a << 16);
            assert_eq!(
                run("cvt.rn.f16.bf16", &[a]),
                f16::from_f32(b.to_f32()).to_bits().into()
            );
            assert_eq!(
                run("cvt.rpi.bf16.bf16", &[a]),
                bf16::from_f32(b.to_f32().ceil()).to_bits().into()
            );
        }
    }
    let mut random = Random(62);
    for _ in 0..50_000 {
        let x = random.f64();
        let y = random.f32();
        if !x.is_nan() {
            assert_eq!(
                run("cvt.rn.f32.f64", &[x.to_bits()]),
                (x as f32).to_bits().into(),
                "{x:e}"
            );
            let [rm, rp] = ["rm", "rp"]
                .map(|m| f32::from_bits(run(&format!("cvt.{m}.f32.f64"), &[x.to_bits()]) as u32));
            assert!(
                f64::from(rm) <= x && x <= f64::from(rp) && (rm == rp || rm.next_up() == rp),
                "{x:e}"
            );
            assert_eq!(run("cvt.rmi.f64.f64", &[x.to_bits()]), x.floor().to_bits());
        }
        if !y.is_nan() {
            let f = |name: &str| run32(name, &[y]).to_bits();
            assert_eq!(
                run("cvt.f64.f32", &[y.to_bits().into()]),
                f64::from(y).to_bits()
            );
            assert_eq!(f("cvt.rni.f32.f32"), y.round_ties_even().to_bits(), "{y:e}");
            assert_eq!(f("cvt.rzi.f32.f32"), y.trunc().to_bits(), "{y:e}");
            assert_eq!(f("cvt.rpi.f32.f32"), y.ceil().to_bits(), "{y:e}");
            assert_eq!(f("cvt.sat.f32.f32"), (y.clamp(0.0, 1.0) + 0.0).to_bits());
            let flushed = if y.is_subnormal() {
                0f32.copysign(y)
            } else {
                y
            };
            assert_eq!(f("cvt.ftz.f32.f32"), flushed.to_bits());
        }
    }
}

#[test]
fn nan_as_an_h200_converts_it() {
    for (name, a, want) in [
        ("cvt.f32.f32", 0xff80_0001, 0xff80_0001),
        ("cvt.ftz.f32.f32", 0xff80_0001, 0x7fff_ffff),
        ("cvt.f32.bf16", 0x7f81, 0x7f81_0000),
        ("cvt.ftz.f32.bf16", 0x7f81, 0x7fff_ffff),
        ("cvt.f32.f16", 0xfc01, 0x7fff_ffff),
        ("cvt.f64.f32", 0x7f80_0001, 0x7ff8_0000_2000_0000),
        ("cvt.ftz.f64.f32", 0xff80_0001, 0x7fff_ffff_e000_0000),
        ("cvt.f64.f16", 0xfe01, 0xfff8_0400_0000_0000),
        ("cvt.f64.bf16", 0xff81, 0xfff8_2000_0000_0000),
        ("cvt.f64.f64", 0x7ff0_0000_0000_0001, 0x7ff0_0000_0000_0001),
        (
            "cvt.rni.f64.f64",
            0x7ff0_0000_0000_0001,
            0x7ff8_0000_0000_0001,
        ),
        ("cvt.rn.f32.f64", 0xfff0_0000_0000_0001, 0xffc0_0000),
        ("cvt.rn.bf16.f64", 0xffff_ffff_ffff_ffff, 0xffff),
        ("cvt.rn.f16.f64", 0xfff0_0000_0000_0001, 0xfe00),
        ("cvt.rn.tf32.f32", 0xffc0_0000, 0x7fff_e000),
        ("cvt.rna.tf32.f32", 0xffc0_0001, 0xffc0_0000),
        ("cvt.rna.satfinite.tf32.f32", 0x7fff_ffff, 0x7fff_c000),
        ("cvt.sat.f32.f32", 0x7fc0_0000, 0),
    ] {
        assert_eq!(run(name, &[a]), want, "{name} {a:x}");
    }
}

#[test]
fn tf32_keeps_ten_bits() {
    for (a, rn, rna, rz) in [
        (
            0x3f80_1000u64,
            0x3f80_0000u64,
            0x3f80_2000u64,
            0x3f80_0000u64,
        ),
        (0x3f80_3000, 0x3f80_4000, 0x3f80_4000, 0x3f80_2000),
        (0xbf80_0fff, 0xbf80_0000, 0xbf80_0000, 0xbf80_0000),
        (0x7f7f_f000, 0x7f80_0000, 0x7f80_0000, 0x7f7f_e000),
        (0x0000_1000, 0, 0x0000_2000, 0),
        (0x7f80_0000, 0x7f80_0000, 0x7f80_0000, 0x7f80_0000),
    ] {
        let got = ["rn", "rna", "rz"].map(|m| run(&format!("cvt.{m}.tf32.f32"), &[a]));
        assert_eq!(got, [rn, rna, rz], "{a:x}");
    }
    assert_eq!(
        run("cvt.rn.satfinite.tf32.f32", &[0x7f80_0000]),
        0x7f7f_e000
    );
    assert_eq!(
        run("cvt.rna.satfinite.tf32.f32", &[0xff80_0000]),
        0xff7f_e000
    );
    assert_eq!(run("cvt.rn.relu.tf32.f32", &[0xbf80_0000]), 0);
}

#[test]
fn floats_to_integers() {
    let mut random = Random(63);
    let integers = [
        Ty::U8,
        Ty::S8,
        Ty::U16,
        Ty::S16,
        Ty::U32,
        Ty::S32,
        Ty::U64,
        Ty::S64,
    ];
    for _ in 0..20_000 {
        let x = random.f64() * 2f64.powi(random.below(64) as i32);
        let (f, h) = (x as f32, f16::from_f64(x));
        for ty in integers {
            for (mode, round) in [
                ("rni", f64::round_ties_even as fn(f64) -> f64),
                ("rzi", f64::trunc),
                ("rmi", f64::floor),
                ("rpi", f64::ceil),
            ] {
                let want = |x: f64, nan: u64| {
                    // `as` saturates.
                    let v = round(x);
                    let v = match ty {
                        _ if x.is_nan() => nan,
                        Ty::U8 => (v as u8).into(),
                        Ty::S8 => v as i8 as u64,
                        Ty::U16 => (v as u16).into(),
                        Ty::S16 => v as i16 as u64,
                        Ty::U32 => (v as u32).into(),
                        Ty::S32 => v as i32 as u64,
                        Ty::U64 => v as u64,
                        _ => v as i64 as u64,
                    };
                    v & ty.mask()
                };
                let top = 1 << (ty.bits() - 1);
                let nan = if ty.bits() == 64 { top } else { 0 };
                let name = |from: &str| format!("cvt.{mode}.{}.{from}", ty.name());
                assert_eq!(
                    run(&name("f64"), &[x.to_bits()]),
                    want(x, top),
                    "{mode} {ty:?} {x:e}"
                );
                assert_eq!(
                    run(&name("f32"), &[f.to_bits().into()]),
                    want(f.into(), nan),
                    "{mode} {ty:?} {f:e}"
                );
                assert_eq!(
                    run(&name("f16"), &[h.to_bits().into()]),
                    want(h.into(), nan),
                    "{mode} {ty:?} {h}"
                );
            }
        }
    }
    assert_eq!(
        (
            run("cvt.rpi.s32.f32", &[1]),
            run("cvt.rpi.ftz.s32.f32", &[1])
        ),
        (1, 0)
    );
}

#[test]
fn integers_to_floats() {
    let mut random = Random(64);
    for _ in 0..50_000 {
        let x = random.int(64);
        let (f, d) = (|x: f32| u64::from(x.to_bits()), f64::to_bits);
        assert_eq!(run("cvt.rn.f32.u64", &[x]), f(x as f32));
        assert_eq!(run("cvt.rn.f32.s64", &[x]), f(x as i64 as f32));
        assert_eq!(run("cvt.rn.f32.u32", &[x]), f(x as u32 as f32));
        assert_eq!(run("cvt.rn.f32.s16", &[x]), f(x as i16 as f32));
        assert_eq!(run("cvt.rn.f64.u64", &[x]), d(x as f64));
        assert_eq!(run("cvt.rn.f64.s64", &[x]), d(x as i64 as f64));
        assert_eq!(
            run("cvt.rn.f16.s8", &[x]),
            f16::from_f32(x as i8 as f32).to_bits().into()
        );
        assert_eq!(run("cvt.rn.f16.s32", &[x]), to_f16((x as i32).into()));
        assert_eq!(run("cvt.rn.bf16.s32", &[x]), to_bf16((x as i32).into()));
        // Bracketed by the directed ones, compared as integers.
        let y = x as i64 as i128;
        let [rz, rm, rp] = ["rz", "rm", "rp"]
            .map(|m| f32::from_bits(run(&format!("cvt.{m}.f32.s64"), &[x]) as u32));
        assert!(
            rm as i128 <= y && y <= rp as i128 && (rm == rp || rm.next_up() == rp),
            "{y}"
        );
        assert_eq!(rz, if y < 0 { rp } else { rm });
    }
    assert_eq!(run("cvt.rn.sat.f32.s32", &[5]), 0x3f80_0000);
    assert_eq!(run("cvt.rn.f16.u32", &[70000]), 0x7c00);
    assert_eq!(run("cvt.rz.f16.u32", &[70000]), 0x7bff);
}

#[test]
fn integers_to_integers() {
    let mut random = Random(65);
    for _ in 0..20_000 {
        let x = random.int(64);
        assert_eq!(run("cvt.s64.s32", &[x]), x as i32 as i64 as u64);
        assert_eq!(run("cvt.u64.s8", &[x]), x as i8 as u64);
        assert_eq!(run("cvt.u32.u16", &[x]), (x as u16).into());
        assert_eq!(run("cvt.u8.u64", &[x]), (x as u8).into());
        assert_eq!(run("cvt.sat.u8.s32", &[x]), (x as i32).clamp(0, 255) as u64);
        assert_eq!(
            run("cvt.sat.s8.s32", &[x]),
            ((x as i32).clamp(-128, 127) as u64) & 0xff
        );
        assert_eq!(run("cvt.sat.s32.u64", &[x]), x.min(0x7fff_ffff));
        assert_eq!(run("cvt.sat.u64.s64", &[x]), (x as i64).max(0) as u64);
        let y = random.int(32);
        let clamp = |v: u64, lo: i32, hi: i32| (v as i32).clamp(lo, hi) as u32 as u64;
        assert_eq!(
            run("cvt.pack.sat.s16.s32", &[x, y]),
            (clamp(x, -32768, 32767) & 0xffff) << 16 | clamp(y, -32768, 32767) & 0xffff
        );
        assert_eq!(
            run("cvt.pack.sat.u16.s32", &[x, y]),
            clamp(x, 0, 65535) << 16 | clamp(y, 0, 65535)
        );
        let c = random.int(32);
        let want = c << 16 | clamp(x, 0, 255) << 8 | clamp(y, 0, 255);
        assert_eq!(
            run("cvt.pack.sat.u8.s32.b32", &[x, y, c]),
            want & 0xffff_ffff
        );
        let want = c << 8 | (clamp(x, -8, 7) & 15) << 4 | clamp(y, -8, 7) & 15;
        assert_eq!(
            run("cvt.pack.sat.s4.s32.b32", &[x, y, c]),
            want & 0xffff_ffff
        );
        let want = c << 4 | clamp(x, 0, 3) << 2 | clamp(y, 0, 3);
        assert_eq!(
            run("cvt.pack.sat.u2.s32.b32", &[x, y, c]),
            want & 0xffff_ffff
        );
    }
}

#[test]
fn random_bits_decide_the_rounding() {
    // A quarter above 1.0 in units of bf16's last place: one in four random words carries.
    let a = 0x3f80_4000;
    for (random, want) in [
        (0u64, 0x3f80),
        (0xbfff, 0x3f80),
        (0xc000, 0x3f81),
        (0xffff, 0x3f81),
    ] {
        assert_eq!(
            run("cvt.rs.bf16x2.f32", &[0, a, random]),
            want,
            "{random:x}"
        );
        assert_eq!(
            run("cvt.rs.bf16x2.f32", &[a | 1 << 31, 0, random << 16]),
            (want | 0x8000) << 16
        );
    }
    // f16 takes 13 bits.
    for (random, want) in [(0x17ffu64, 0x3c00), (0x1800, 0x3c01), (0xf7ff, 0x3c00)] {
        assert_eq!(
            run("cvt.rs.f16x2.f32", &[0, 0x3f80_0800, random]),
            want,
            "{random:x}"
        );
    }
    assert_eq!(
        run(
            "cvt.rs.relu.satfinite.f16x2.f32",
            &[0xbf80_0000, 0x7f80_0000, 0]
        ),
        0x7bff
    );
    assert_eq!(
        run("cvt.rs.f16x2.f32", &[0x7fc0_0000, 0x7f80_0000, 0]),
        0x7fff_7c00
    );
}
