//! Comparison and selection.

use super::{Random, op, run};

/// Whether `cmp` holds, said once more: by the sets of outcomes (less, equal, greater, unordered).
fn table(cmp: &str, outcome: usize) -> bool {
    let holds = match cmp {
        "eq" => "0100",
        "ne" => "1010",
        "lt" | "lo" => "1000",
        "le" | "ls" => "1100",
        "gt" | "hi" => "0010",
        "ge" | "hs" => "0110",
        "equ" => "0101",
        "neu" => "1011",
        "ltu" => "1001",
        "leu" => "1101",
        "gtu" => "0011",
        "geu" => "0111",
        "num" => "1110",
        "nan" => "0001",
        other => panic!("{other}"),
    };
    holds.as_bytes()[outcome] == b'1'
}

fn outcome<T: PartialOrd>(a: T, b: T) -> usize {
    a.partial_cmp(&b).map_or(3, |o| (o as i8 + 1) as usize)
}

const ORDERED: [&str; 6] = ["eq", "ne", "lt", "le", "gt", "ge"];
const UNORDERED: [&str; 8] = ["equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];

#[test]
fn setp_of_integers() {
    let mut random = Random(20);
    for _ in 0..2000 {
        let (a, b) = (random.int(64), random.int(64));
        let b = if random.below(4) == 0 { a } else { b };
        for cmp in ORDERED.iter().chain(&["lo", "ls", "hi", "hs"]) {
            let check = |ty: &str, a: u64, b: u64, outcome| {
                let [p, q] = op(&format!("setp.{cmp}.{ty}")).eval(&[a, b], &mut false);
                assert_eq!(
                    (p == 1, q == 1),
                    (table(cmp, outcome), !table(cmp, outcome)),
                    "{cmp}.{ty} {a:x} {b:x}"
                );
            };
            check("u64", a, b, outcome(a, b));
            check(
                "u32",
                a & 0xffff_ffff,
                b & 0xffff_ffff,
                outcome(a as u32, b as u32),
            );
            check("u16", a & 0xffff, b & 0xffff, outcome(a as u16, b as u16));
            if ORDERED.contains(cmp) {
                check("s64", a, b, outcome(a as i64, b as i64));
                check(
                    "s32",
                    a & 0xffff_ffff,
                    b & 0xffff_ffff,
                    outcome(a as i32, b as i32),
                );
                check("s16", a & 0xffff, b & 0xffff, outcome(a as i16, b as i16));
            }
        }
    }
}

#[test]
fn setp_and_set_of_floats() {
    let mut random = Random(21);
    for _ in 0..3000 {
        let (a, b) = (random.f32(), random.f32());
        let b = match random.below(4) {
            0 => a,
            1 => -a,
            _ => b,
        };
        let bits = [a, b].map(|x| u64::from(x.to_bits()));
        let wide = [f64::from(a), f64::from(b)].map(f64::to_bits);
        let flush = |x: f32| if x.is_subnormal() { 0.0 } else { x };
        for cmp in ORDERED.iter().chain(&UNORDERED) {
            let holds = table(cmp, outcome(a, b));
            let flushed = table(cmp, outcome(flush(a), flush(b)));
            assert_eq!(
                run(&format!("setp.{cmp}.f32"), &bits) == 1,
                holds,
                "{cmp} {a:e} {b:e}"
            );
            assert_eq!(
                run(&format!("setp.{cmp}.ftz.f32"), &bits) == 1,
                flushed,
                "{cmp} {a:e} {b:e}"
            );
            assert_eq!(
                run(&format!("setp.{cmp}.f64"), &wide) == 1,
                holds,
                "{cmp} {a:e} {b:e}"
            );
            for (ty, one) in [
                ("u32", 0xffff_ffff),
                ("s32", 0xffff_ffff),
                ("f32", 0x3f80_0000),
                ("f16", 0x3c00),
                ("bf16", 0x3f80),
            ] {
                assert_eq!(
                    run(&format!("set.{cmp}.{ty}.f32"), &bits),
                    if holds { one } else { 0 }
                );
            }
            for c in 0..2 {
                let three = [bits[0], bits[1], c];
                let [p, q] = op(&format!("setp.{cmp}.and.f32")).eval(&three, &mut false);
                assert_eq!((p, q), (u64::from(holds) & c, u64::from(!holds) & c));
                let [p, q] = op(&format!("setp.{cmp}.or.f32")).eval(&three, &mut false);
                assert_eq!((p, q), (u64::from(holds) | c, u64::from(!holds) | c));
                let [p, q] = op(&format!("setp.{cmp}.xor.f32")).eval(&three, &mut false);
                assert_eq!((p, q), (u64::from(holds) ^ c, u64::from(!holds) ^ c));
            }
        }
    }
}

#[test]
fn pairs_compare_by_half() {
    // Low halves: 1 and 2; upper halves: NaN and 0.
    let (f, g) = ([0x7e00_3c00, 0x0000_4000], [0x7fc0_3f80, 0x0000_4000]);
    assert_eq!(op("setp.lt.f16x2").eval(&f, &mut false), [1, 0]);
    assert_eq!(op("setp.geu.f16x2").eval(&f, &mut false), [0, 1]);
    assert_eq!(op("setp.ltu.bf16x2").eval(&g, &mut false), [1, 1]);
    assert_eq!(run("set.lt.f16x2.f16x2", &f), 0x3c00);
    assert_eq!(run("set.nan.u32.f16x2", &f), 0xffff_0000);
    assert_eq!(run("set.num.bf16x2.bf16x2", &g), 0x3f80);
    assert_eq!(run("set.neu.s32.bf16x2", &g), 0xffff_ffff);
    assert_eq!(run("set.eq.u16.f16", &[0x8000, 0]), 0xffff);
    // 2^-24 and 0 differ unless flushed.
    assert_eq!(
        (run("setp.eq.f16", &[1, 0]), run("setp.eq.ftz.f16", &[1, 0])),
        (0, 1)
    );
}

#[test]
fn selection() {
    assert_eq!(
        (run("selp.b32", &[7, 9, 1]), run("selp.b32", &[7, 9, 0])),
        (7, 9)
    );
    // Floats are moved, not read: a signalling NaN stays.
    assert_eq!(run("selp.f32", &[0x7f80_0001, 9, 1]), 0x7f80_0001);
    assert_eq!(
        run("mov.f64", &[0x7ff0_0000_0000_0001]),
        0x7ff0_0000_0000_0001
    );
    assert_eq!(run("mov.pred", &[1]), 1);
    let f = |x: f32| u64::from(x.to_bits());
    for (c, first) in [
        (0.0, true),
        (-0.0, true),
        (1.0, true),
        (-1e-40, false),
        (f32::NAN, false),
        (f32::NEG_INFINITY, false),
    ] {
        assert_eq!(
            run("slct.u32.f32", &[1, 2, f(c)]),
            if first { 1 } else { 2 },
            "{c}"
        );
    }
    assert_eq!(run("slct.ftz.u32.f32", &[1, 2, f(-1e-40)]), 1);
    assert_eq!(
        (
            run("slct.b64.s32", &[1, 2, 0]),
            run("slct.b64.s32", &[1, 2, 0x8000_0000])
        ),
        (1, 2)
    );
}
