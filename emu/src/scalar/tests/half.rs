//! f16 and bf16 against the `half` crate and exact f64.

use super::{Random, run, to_bf16, to_f16};
use half::{bf16, f16};

fn wide(bits: u64) -> f64 {
    f16::from_bits(bits as u16).to_f64()
}

fn brain(bits: u64) -> f64 {
    bf16::from_bits(bits as u16).to_f64()
}

/// Whether `a + b` is exact in f64.
fn exact(a: f64, b: f64) -> bool {
    let s = a + b;
    !s.is_finite() || (s - a == b && s - b == a)
}

#[test]
fn sums_products_and_fused() {
    let mut random = Random(40);
    let mut fused = 0;
    for _ in 0..200_000 {
        let [a, b, c] = [0; 3].map(|_| random.float(5, 10));
        let (x, y, z) = (wide(a), wide(b), wide(c));
        assert_eq!(run("add.f16", &[a, b]), to_f16(x + y), "{a:x} {b:x}");
        assert_eq!(run("sub.rn.f16", &[a, b]), to_f16(x - y), "{a:x} {b:x}");
        assert_eq!(run("mul.f16", &[a, b]), to_f16(x * y), "{a:x} {b:x}");
        if exact(x * y, z) {
            fused += 1;
            let want = to_f16(x * y + z);
            assert_eq!(run("fma.rn.f16", &[a, b, c]), want, "{a:x} {b:x} {c:x}");
            let relu = if want >= 0x8000 { 0 } else { want };
            assert_eq!(
                run("fma.rn.relu.f16", &[a, b, c]),
                relu,
                "{a:x} {b:x} {c:x}"
            );
            let sat = if want == 0x7fff { 0 } else { relu.min(0x3c00) };
            assert_eq!(run("fma.rn.sat.f16", &[a, b, c]), sat, "{a:x} {b:x} {c:x}");
        }
        let [a, b, c] = [0; 3].map(|_| random.float(8, 7));
        let (x, y, z) = (brain(a), brain(b), brain(c));
        if exact(x, y) {
            assert_eq!(run("add.bf16", &[a, b]), to_bf16(x + y), "{a:x} {b:x}");
        }
        assert_eq!(run("mul.bf16", &[a, b]), to_bf16(x * y), "{a:x} {b:x}");
        if exact(x * y, z) {
            fused += 1;
            assert_eq!(
                run("fma.rn.bf16", &[a, b, c]),
                to_bf16(x * y + z),
                "{a:x} {b:x} {c:x}"
            );
        }
    }
    assert!(fused > 200_000, "{fused}");
}

#[test]
fn one_rounding_in_a_fused_bf16() {
    // 1.0078125^2 = 1.01568603515625; the product alone would round to 1.015625 and lose the bit
    // that decides this tie.
    let a = 0x3f81;
    let c = to_bf16(2.0);
    assert_eq!(run("fma.rn.bf16", &[a, a, c]), 0x4041);
    let product = run("mul.bf16", &[a, a]);
    assert_eq!(run("add.bf16", &[product, c]), 0x4041);
    // 1 + 2^-8 is a tie to even; a far smaller addend breaks it.
    assert_eq!(run("fma.rn.bf16", &[0x3f80, 0x3f80, 0x3b80]), 0x3f80);
    assert_eq!(run("fma.rn.bf16", &[0x3f81, 0x3b80, 0x3f80]), 0x3f81);
}

#[test]
fn every_value_alone() {
    for a in 0..=0xffffu64 {
        let nan = |bits: u64, nan: bool| if nan { 0x7fff } else { bits };
        let (n, m) = (wide(a).is_nan(), brain(a).is_nan());
        assert_eq!(run("abs.f16", &[a]), nan(a & 0x7fff, n));
        assert_eq!(run("neg.f16", &[a]), nan(a ^ 0x8000, n));
        assert_eq!(run("abs.bf16", &[a]), nan(a & 0x7fff, m));
        assert_eq!(
            run("neg.bf16x2", &[a << 16 | 0x3f80]),
            nan(a ^ 0x8000, m) << 16 | 0xbf80
        );
        let flushed = if wide(a).abs() < 6.103515625e-5 {
            a & 0x8000
        } else {
            a
        };
        assert_eq!(run("add.ftz.f16", &[a, 0x8000]), nan(flushed, n), "{a:x}");
    }
}

#[test]
fn pairs_are_two_of_one() {
    let mut random = Random(41);
    for _ in 0..20_000 {
        let [a, b, c, d, e, f] = [0; 6].map(|_| random.float(5, 10));
        let join = |lo: u64, hi: u64| lo | hi << 16;
        for (name, count) in [
            ("add.sat", 2),
            ("mul.ftz", 2),
            ("fma.rn", 3),
            ("fma.rn.relu", 3),
            ("max.NaN", 2),
            ("min.xorsign.abs", 2),
        ] {
            let (lo, hi) = ([a, c, e], [b, d, f]);
            let one = |src: &[u64]| run(&format!("{name}.f16"), &src[..count]);
            let src = [join(a, b), join(c, d), join(e, f)];
            assert_eq!(
                run(&format!("{name}.f16x2"), &src[..count]),
                join(one(&lo), one(&hi)),
                "{name}"
            );
        }
    }
}

#[test]
fn least_and_greatest() {
    // -0 is below +0; NaN loses, unless it is asked for.
    assert_eq!(
        (run("min.f16", &[0, 0x8000]), run("max.f16", &[0x8000, 0])),
        (0x8000, 0)
    );
    assert_eq!(
        (
            run("min.bf16", &[0x7fc1, 0x3f80]),
            run("min.NaN.bf16", &[0x7fc1, 0x3f80])
        ),
        (0x3f80, 0x7fff)
    );
    assert_eq!(run("max.xorsign.abs.bf16", &[0xc040, 0x4000]), 0xc040);
    assert_eq!(run("max.bf16x2", &[0x3f80_4000, 0xbf80_4040]), 0x3f80_4040);
}

#[test]
fn the_nan_that_counts_as_zero() {
    // Of all values these two alone, by a run over all on an H200; the addend is lost too.
    for name in ["fma.rn.oob.f16", "fma.rn.oob.bf16", "fma.rn.oob.relu.f16"] {
        let zeros: Vec<u64> = (0..=0xffff)
            .filter(|a| run(name, &[*a, 0x3c00, 0x4321]) == 0)
            .collect();
        let others: Vec<u64> = zeros
            .iter()
            .copied()
            .filter(|a| a & 0x7fff != 0x7ff7)
            .collect();
        assert!(zeros.contains(&0x7ff7) && zeros.contains(&0xfff7));
        assert!(
            others
                .iter()
                .all(|a| run(&name.replace(".oob", ""), &[*a, 0x3c00, 0x4321]) == 0),
            "{others:x?}"
        );
        assert_eq!(run(name, &[0x3c00, 0x7ff7, 0x4321]), 0);
        assert_eq!(run(name, &[0x3c00, 0x3c00, 0x7ff7]), 0x7fff);
    }
}
