//! f32 and f64 arithmetic. Directed roundings are checked against exact products and two-term
//! sums in f64, which know on which side of the exact value a candidate lies.

use super::{Random, run, run32, run64};
use std::cmp::Ordering::{self, Equal, Greater};

/// `a + b` as a rounded sum and its exact error (Knuth), for operands far from overflow.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let t = s - a;
    (s, (a - (s - t)) + (b - t))
}

/// The f32 that rounding `near` in direction `mode` gives; `side` compares an f64 with the exact value.
fn directed(mode: &str, near: f32, side: impl Fn(f64) -> Ordering) -> f32 {
    // Start a step off on both sides, so that a wrong `near` doesn't pass.
    let mut below = near.next_down();
    while below.next_up().is_finite() && side(below.next_up().into()) != Greater {
        below = below.next_up();
    }
    let above = if side(below.into()) == Equal {
        below
    } else {
        below.next_up()
    };
    match mode {
        "rm" => below,
        "rp" => above,
        _ if below < 0.0 => above,
        _ => below,
    }
}

/// Same bits, or both NaN.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

const DIRECTED: [&str; 3] = ["rz", "rm", "rp"];

/// A finite f32 whose square and products stay finite in f32.
fn moderate(random: &mut Random) -> f32 {
    loop {
        let x = random.f32();
        if x.is_finite() && x.abs() < 1e18 {
            return x;
        }
    }
}

#[test]
fn f32_to_nearest_is_the_hosts() {
    let mut random = Random(30);
    for _ in 0..100_000 {
        let (a, b, c) = (random.f32(), random.f32(), random.f32());
        for (name, got, want) in [
            ("add", run32("add.f32", &[a, b]), a + b),
            ("sub", run32("sub.rn.f32", &[a, b]), a - b),
            ("mul", run32("mul.f32", &[a, b]), a * b),
            ("div", run32("div.rn.f32", &[a, b]), a / b),
            ("fma", run32("fma.rn.f32", &[a, b, c]), a.mul_add(b, c)),
            ("sqrt", run32("sqrt.rn.f32", &[a]), a.sqrt()),
            ("rcp", run32("rcp.rn.f32", &[a]), 1.0 / a),
        ] {
            assert!(
                same(got, want),
                "{name} {a:e} {b:e} {c:e}: {got:e} {want:e}"
            );
            assert!(!got.is_nan() || got.to_bits() == 0x7fff_ffff);
        }
    }
}

#[test]
fn f32_directed() {
    let mut random = Random(31);
    for _ in 0..30_000 {
        let (a, b, c) = (
            moderate(&mut random),
            moderate(&mut random),
            moderate(&mut random),
        );
        let (x, y, z) = (f64::from(a), f64::from(b), f64::from(c));
        for mode in DIRECTED {
            // f64 holds products of f32 exactly.
            let mul = run32(&format!("mul.{mode}.f32"), &[a, b]);
            if x * y != 0.0 {
                let want = directed(mode, a * b, |v| v.total_cmp(&(x * y)));
                assert!(
                    same(mul, want) || (mul == 0.0 && want == 0.0),
                    "{mode} {a:e} * {b:e}: {mul:e} {want:e}"
                );
            }
            let sum = |p: f64, z: f64| {
                let (s, e) = two_sum(p, z);
                move |v: f64| (v - s).partial_cmp(&e).unwrap_or(Equal)
            };
            if x + y != 0.0 {
                let add = run32(&format!("add.{mode}.f32"), &[a, b]);
                assert_eq!(
                    add,
                    directed(mode, a + b, sum(x, y)),
                    "{mode} {a:e} + {b:e}"
                );
                let sub = run32(&format!("sub.{mode}.f32"), &[a, -b]);
                assert_eq!(sub, add);
            }
            let exact = x * y + z;
            if exact != 0.0 && exact.abs() > 1e-300 {
                let fma = run32(&format!("fma.{mode}.f32"), &[a, b, c]);
                assert_eq!(
                    fma,
                    directed(mode, a.mul_add(b, c), sum(x * y, z)),
                    "{mode} {a:e} * {b:e} + {c:e}"
                );
                assert!(same(fma, run32(&format!("mad.{mode}.f32"), &[a, b, c])));
            }
            // A quotient or root lies where its product with the divisor, or its square, does.
            if b > 0.0 && a != 0.0 && (a / b).is_finite() && a / b != 0.0 {
                let div = run32(&format!("div.{mode}.f32"), &[a, b]);
                assert_eq!(
                    div,
                    directed(mode, a / b, |v| (v * y).total_cmp(&x)),
                    "{mode} {a:e} / {b:e}"
                );
            }
            if b > 1e-36 {
                let rcp = run32(&format!("rcp.{mode}.f32"), &[b]);
                assert_eq!(
                    rcp,
                    directed(mode, 1.0 / b, |v| (v * y).total_cmp(&1.0)),
                    "{mode} 1 / {b:e}"
                );
                let sqrt = run32(&format!("sqrt.{mode}.f32"), &[b]);
                assert_eq!(
                    sqrt,
                    directed(mode, b.sqrt(), |v| (v * v).total_cmp(&y)),
                    "{mode} sqrt {b:e}"
                );
            }
        }
    }
}

#[test]
fn f64_to_nearest_and_bracketed() {
    let mut random = Random(32);
    for _ in 0..50_000 {
        let (a, b, c) = (random.f64(), random.f64(), random.f64());
        let same = |x: f64, y: f64| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
        for (form, src, near) in [
            ("add", vec![a, b], a + b),
            ("sub", vec![a, b], a - b),
            ("mul", vec![a, b], a * b),
            ("div", vec![a, b], a / b),
            ("fma", vec![a, b, c], a.mul_add(b, c)),
            ("sqrt", vec![a], a.sqrt()),
            ("rcp", vec![a], 1.0 / a),
        ] {
            let [rn, rz, rm, rp] =
                ["rn", "rz", "rm", "rp"].map(|mode| run64(&format!("{form}.{mode}.f64"), &src));
            assert!(same(rn, near), "{form} {src:?}: {rn:e} {near:e}");
            if near.is_nan() {
                assert!(rz.is_nan() && rm.is_nan() && rp.is_nan());
                continue;
            }
            assert!(
                rm <= rn && rn <= rp && (rm == rp || rm.next_up() == rp),
                "{form} {src:?}: {rm:e} {rn:e} {rp:e}"
            );
            assert!(
                same(
                    rz,
                    if rm < 0.0 || (rm == 0.0 && rm.is_sign_negative()) {
                        rp
                    } else {
                        rm
                    }
                ) || rm == rp
            );
        }
        // The side, where the error of the nearest result is itself an f64.
        let product = a * b;
        if product.is_normal() && product.abs() > 1e-200 && product.abs() < 1e200 {
            let error = a.mul_add(b, -product);
            let down = if error < 0.0 {
                product.next_down()
            } else {
                product
            };
            let up = if error > 0.0 {
                product.next_up()
            } else {
                product
            };
            assert_eq!(
                (run64("mul.rm.f64", &[a, b]), run64("mul.rp.f64", &[a, b])),
                (down, up)
            );
        }
        if a.abs() < 1e300 && b.abs() < 1e300 && a + b != 0.0 {
            let (sum, error) = two_sum(a, b);
            let down = if error < 0.0 { sum.next_down() } else { sum };
            let up = if error > 0.0 { sum.next_up() } else { sum };
            assert_eq!(
                (run64("add.rm.f64", &[a, b]), run64("add.rp.f64", &[a, b])),
                (down, up)
            );
        }
    }
}

#[test]
fn a_remainder_far_below_the_quotient_counts() {
    // 1 / (1 - 2^-52) = 1 + 2^-52 + 2^-104 + ...
    let (one, e) = (1f64, f64::EPSILON);
    assert_eq!(run64("div.rm.f64", &[one, 1.0 - e]), 1.0 + e);
    assert_eq!(run64("div.rp.f64", &[one, 1.0 - e]), 1.0 + 2.0 * e);
    // Addends too far apart to share a significand.
    assert_eq!(run64("add.rp.f64", &[1e300, 5e-324]), 1e300f64.next_up());
    assert_eq!(
        run64("fma.rm.f64", &[1e150, 1e150, -5e-324]),
        run64("mul.rm.f64", &[1e150, 1e150])
    );
    assert_eq!(run64("add.rz.f64", &[1.0, -5e-324]), 1f64.next_down());
}

#[test]
fn zeros_of_exact_sums() {
    for (mode, zero) in [("rn", 0u64), ("rz", 0), ("rm", 0x8000_0000), ("rp", 0)] {
        let one = u64::from(1f32.to_bits());
        assert_eq!(run(&format!("sub.{mode}.f32"), &[one, one]), zero, "{mode}");
        assert_eq!(
            run(&format!("add.{mode}.f32"), &[0x8000_0000, 0]),
            zero,
            "{mode}"
        );
        assert_eq!(
            run(&format!("add.{mode}.f32"), &[0x8000_0000, 0x8000_0000]),
            0x8000_0000
        );
        assert_eq!(
            run(&format!("fma.{mode}.f32"), &[one, one, one ^ 0x8000_0000]),
            zero,
            "{mode}"
        );
    }
}

#[test]
fn overflow_by_direction() {
    let (max, inf) = (f32::MAX, f32::INFINITY);
    for (mode, up, down) in [
        ("rn", inf, -inf),
        ("rz", max, -max),
        ("rm", max, -inf),
        ("rp", inf, -max),
    ] {
        assert_eq!(run32(&format!("mul.{mode}.f32"), &[max, 2.0]), up, "{mode}");
        assert_eq!(
            run32(&format!("mul.{mode}.f32"), &[max, -2.0]),
            down,
            "{mode}"
        );
        assert_eq!(run32(&format!("add.{mode}.f32"), &[inf, -max]), inf);
    }
}

#[test]
fn flushing() {
    let tiny = f32::from_bits(0x0040_0000);
    assert_eq!(run32("add.f32", &[tiny, tiny]), f32::MIN_POSITIVE);
    assert_eq!(run32("add.ftz.f32", &[tiny, tiny]), 0.0);
    assert_eq!(run("add.ftz.f32", &[0x8040_0000, 0x8040_0000]), 0x8000_0000);
    assert_eq!(run("mul.ftz.f32", &[0x8080_0000, 0x3f00_0000]), 0x8000_0000);
    assert_eq!(run("abs.ftz.f32", &[0x8000_0001]), 0);
    assert_eq!(run("neg.ftz.f32", &[1]), 0x8000_0000);
    assert_eq!(run("max.ftz.f32", &[1, 0x8000_0000]), 0);
    // Tiny if still below the least normal once rounded as if exponents had no limit (read off an H200).
    assert_eq!(run("mul.f32", &[0x0080_0000, 0x3f7f_ffff]), 0x0080_0000);
    assert_eq!(run("mul.ftz.f32", &[0x0080_0000, 0x3f7f_ffff]), 0);
    assert_eq!(
        run("mul.rm.ftz.f32", &[0x8080_0000, 0x3f7f_ffff]),
        0x8000_0000
    );
    assert_eq!(run("mul.ftz.f16", &[0x8400, 0xbbff]), 0);
    assert_eq!(run("fma.rn.ftz.f16", &[0x0400, 0x8908, 0x0400]), 0x0400);
}

#[test]
fn clamps() {
    let mut random = Random(33);
    for _ in 0..20_000 {
        let (a, b) = (random.f32(), random.f32());
        let sum = a + b;
        let want = if sum.is_nan() {
            0.0
        } else {
            sum.clamp(0.0, 1.0) + 0.0
        };
        assert_eq!(
            run32("add.sat.f32", &[a, b]).to_bits(),
            want.to_bits(),
            "{a:e} {b:e}"
        );
    }
    assert_eq!(
        run("fma.rn.sat.f32", &[0x8000_0000, 0x3f80_0000, 0x8000_0000]),
        0
    );
}

#[test]
fn nan_of_f64_is_passed_on() {
    // Read off an H200: the second operand before the third before the first; division the first.
    let [p, q, r] = [
        0x7ff8_0000_0000_0001u64,
        0xfff0_0000_0000_0002,
        0x7ff0_0000_0000_0003,
    ];
    let quiet = 1u64 << 51;
    assert_eq!(run("add.f64", &[p, 0]), p);
    assert_eq!(run("add.f64", &[p, q]), q | quiet);
    assert_eq!(run("sub.f64", &[p, q]), q | quiet);
    assert_eq!(run("fma.rn.f64", &[p, q, r]), q | quiet);
    assert_eq!(run("fma.rn.f64", &[p, 0, r]), r | quiet);
    assert_eq!(run("div.rn.f64", &[p, q]), p);
    assert_eq!(run("max.f64", &[p, q]), q | quiet);
    assert_eq!(run("abs.f64", &[q]), q | quiet);
    assert_eq!(run("neg.f64", &[q]), q | quiet);
    assert_eq!(
        run("mul.f64", &[0, f64::INFINITY.to_bits()]),
        0xfff8_0000_0000_0000
    );
    assert_eq!(run("neg.f32", &[0xffc0_0001]), 0x7fff_ffff);
}

#[test]
fn least_and_greatest() {
    let nan = f32::NAN;
    for (a, b, min, max) in [
        (1.0f32, 2.0, 1.0f32, 2.0f32),
        (2.0, -1.0, -1.0, 2.0),
        (-0.0, 0.0, -0.0, 0.0),
        (0.0, -0.0, -0.0, 0.0),
        (nan, 3.0, 3.0, 3.0),
        (3.0, nan, 3.0, 3.0),
        (f32::NEG_INFINITY, nan, f32::NEG_INFINITY, f32::NEG_INFINITY),
    ] {
        assert_eq!(
            run32("min.f32", &[a, b]).to_bits(),
            min.to_bits(),
            "{a} {b}"
        );
        assert_eq!(
            run32("max.f32", &[a, b]).to_bits(),
            max.to_bits(),
            "{a} {b}"
        );
        let wide = [f64::from(a), f64::from(b)];
        assert_eq!(run64("max.f64", &wide).to_bits(), f64::from(max).to_bits());
        let wins = a.is_nan() || b.is_nan();
        assert_eq!(
            run32("min.NaN.f32", &[a, b]).to_bits(),
            if wins { 0x7fff_ffff } else { min.to_bits() }
        );
    }
    assert_eq!(run("max.f32", &[0xffc0_0000, 0x7f80_0001]), 0x7fff_ffff);
    assert_eq!(run32("max.xorsign.abs.f32", &[-3.0, 2.0]), -3.0);
    assert_eq!(run32("min.xorsign.abs.f32", &[-3.0, -2.0]), 2.0);
    assert_eq!(run32("min.f32", &[3.0, 2.0, 1.0]), 1.0);
    assert_eq!(run32("max.f32", &[3.0, f32::NAN, 5.0]), 5.0);
    assert_eq!(
        run32("max.NaN.f32", &[3.0, f32::NAN, 5.0]).to_bits(),
        0x7fff_ffff
    );
    assert_eq!(run32("max.abs.f32", &[3.0, -4.0, 1.0]), 4.0);
}

#[test]
fn classes_and_signs() {
    let f = |x: f32| u64::from(x.to_bits());
    for x in [
        0.0,
        -0.0,
        1.0,
        -1e-40,
        f32::MIN_POSITIVE,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
    ] {
        let is = |what: &str| run(&format!("testp.{what}.f32"), &[f(x)]) == 1;
        assert_eq!(is("finite"), x.is_finite());
        assert_eq!(is("infinite"), x.is_infinite());
        assert_eq!(is("number"), !x.is_nan());
        assert_eq!(is("notanumber"), x.is_nan());
        assert_eq!(is("normal"), x.is_normal() || x == 0.0);
        assert_eq!(is("subnormal"), x.is_subnormal());
        // The first gives the sign.
        assert_eq!(run("copysign.f32", &[f(-2.0), f(x)]), f(x.copysign(-1.0)));
    }
    assert_eq!(run("testp.subnormal.f64", &[1]), 1);
    assert_eq!(run64("copysign.f64", &[-0.0, 5.0]), -5.0);
}

#[test]
fn pairs_of_f32_and_mixed_precision() {
    let mut random = Random(34);
    for _ in 0..5000 {
        let [a, b, c, d] = [0; 4].map(|_| random.f32());
        let join = |lo: f32, hi: f32| u64::from(lo.to_bits()) | u64::from(hi.to_bits()) << 32;
        for name in ["add.rz", "mul", "sub.ftz", "fma.rp"] {
            let src = [join(a, b), join(c, d), join(b, a)];
            let one = |x: [f32; 3]| {
                run32(
                    &format!("{name}.f32"),
                    &x[..if name == "fma.rp" { 3 } else { 2 }],
                )
            };
            let want = join(one([a, c, b]), one([b, d, a]));
            assert_eq!(run(&format!("{name}.f32x2"), &src), want, "{name}");
        }
        let (h, g) = (random.float(8, 7), random.float(8, 7));
        let wide = |h: u64| f32::from_bits((h as u32) << 16);
        let bits = u64::from(a.to_bits());
        assert!(same(
            f32::from_bits(run("add.f32.bf16", &[h, bits]) as u32),
            wide(h) + a
        ));
        assert!(same(
            f32::from_bits(run("sub.f32.bf16", &[h, bits]) as u32),
            wide(h) - a
        ));
        let fma = f32::from_bits(run("fma.rn.f32.bf16", &[h, g, bits]) as u32);
        assert!(same(fma, wide(h).mul_add(wide(g), a)));
    }
}
