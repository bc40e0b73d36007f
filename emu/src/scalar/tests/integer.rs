//! Integer arithmetic and bit operations.

use super::{Random, Ty, op, run};

/// Two operands and a third, `count` times.
fn each(seed: u64, bits: u32, count: u32, mut check: impl FnMut(u64, u64, u64)) {
    let mut random = Random(seed);
    for _ in 0..count {
        check(random.int(bits), random.int(bits), random.int(bits));
    }
}

macro_rules! arithmetic {
    ($test:ident, $int:ty, $wide:ty, $name:literal, $bits:literal) => {
        #[test]
        fn $test() {
            let bits = |v: $int| (v as u64) & (u64::MAX >> (64 - $bits));
            let two = |name: &str, a: u64, b: u64| run(&format!("{name}.{}", $name), &[a, b]);
            each($bits, $bits, 3000, |x, y, z| {
                let (a, b, c) = (x as $int, y as $int, z as $int);
                let full = (a as $wide) * (b as $wide);
                let high = (full >> $bits) as $int;
                assert_eq!(two("add", x, y), bits(a.wrapping_add(b)));
                assert_eq!(two("sub", x, y), bits(a.wrapping_sub(b)));
                assert_eq!(two("mul.lo", x, y), bits(a.wrapping_mul(b)));
                assert_eq!(two("mul.hi", x, y), bits(high), "{a} {b}");
                assert_eq!(
                    run(concat!("mad.lo.", $name), &[x, y, z]),
                    bits(a.wrapping_mul(b).wrapping_add(c))
                );
                assert_eq!(
                    run(concat!("mad.hi.", $name), &[x, y, z]),
                    bits(high.wrapping_add(c))
                );
                assert_eq!(
                    two("div", x, y),
                    bits(a.checked_div(b).unwrap_or(if b == 0 { !0 } else { a }))
                );
                assert_eq!(
                    two("rem", x, y),
                    bits(a.checked_rem(b).unwrap_or(if b == 0 { !0 } else { 0 }))
                );
                assert_eq!(two("min", x, y), bits(a.min(b)));
                assert_eq!(two("max", x, y), bits(a.max(b)));
                let apart = a.abs_diff(b) as $int;
                assert_eq!(
                    run(concat!("sad.", $name), &[x, y, z]),
                    bits(c.wrapping_add(apart))
                );
                let by = z % 80;
                let shifted = if by < $bits {
                    a >> by
                } else if a < (0 as $int) {
                    !0
                } else {
                    0
                };
                assert_eq!(two("shr", x, by), bits(shifted), "{a} >> {by}");
            });
        }
    };
}

arithmetic!(u16_arithmetic, u16, u64, "u16", 16);
arithmetic!(u32_arithmetic, u32, u64, "u32", 32);
arithmetic!(u64_arithmetic, u64, u128, "u64", 64);
arithmetic!(s16_arithmetic, i16, i64, "s16", 16);
arithmetic!(s32_arithmetic, i32, i64, "s32", 32);
arithmetic!(s64_arithmetic, i64, i128, "s64", 64);

#[test]
fn signs_and_saturation() {
    each(5, 64, 3000, |x, y, z| {
        let (a, b, c) = (x as i32, y as i32, z as i32);
        let [u, v, w] = [a, b, c].map(|v| u64::from(v as u32));
        assert_eq!(run("abs.s32", &[u]) as i32, a.wrapping_abs());
        assert_eq!(run("neg.s64", &[x]) as i64, (x as i64).wrapping_neg());
        assert_eq!(
            run("abs.s16", &[x & 0xffff]) as i16,
            (x as i16).wrapping_abs()
        );
        assert_eq!(run("add.sat.s32", &[u, v]) as i32, a.saturating_add(b));
        assert_eq!(run("sub.sat.s32", &[u, v]) as i32, a.saturating_sub(b));
        let high = ((i64::from(a) * i64::from(b)) >> 32) as i32;
        assert_eq!(
            run("mad.hi.sat.s32", &[u, v, w]) as i32,
            high.saturating_add(c)
        );
        assert_eq!(run("max.relu.s32", &[u, v]) as i32, a.max(b).max(0));
        assert_eq!(run("min.relu.s32", &[u, v]) as i32, a.min(b).max(0));
        assert_eq!(
            run("mul.wide.s32", &[u, v]) as i64,
            i64::from(a) * i64::from(b)
        );
        assert_eq!(run("mul.wide.u32", &[u, v]), u * v);
        assert_eq!(
            run("mul.wide.s16", &[u & 0xffff, v & 0xffff]) as i32,
            i32::from(a as i16) * i32::from(b as i16)
        );
        assert_eq!(run("mad.wide.u32", &[u, v, z]), (u * v).wrapping_add(z));
        assert_eq!(
            run("mad.wide.s32", &[u, v, z]) as i64,
            (i64::from(a) * i64::from(b)).wrapping_add(z as i64)
        );
        let (p, q) = (i64::from(a << 8 >> 8), i64::from(b << 8 >> 8));
        assert_eq!(run("mul24.lo.s32", &[u, v]) as i32, (p * q) as i32);
        assert_eq!(run("mul24.hi.s32", &[u, v]) as i32, ((p * q) >> 16) as i32);
        assert_eq!(
            run("mul24.hi.u32", &[u, v]),
            ((u & 0xff_ffff) * (v & 0xff_ffff)) >> 16 & 0xffff_ffff
        );
        assert_eq!(
            run("mad24.lo.u32", &[u, v, w]) as u32,
            ((u & 0xff_ffff) * (v & 0xff_ffff)).wrapping_add(w) as u32
        );
        assert_eq!(
            run("mad24.hi.sat.s32", &[u, v, w]) as i32,
            (((p * q) >> 16) as i32).saturating_add(c)
        );
    });
}

#[test]
fn packed_halves() {
    each(6, 32, 3000, |x, y, _| {
        let join = |f: &dyn Fn(u16, u16) -> u16| {
            u64::from(f(x as u16, y as u16))
                | u64::from(f((x >> 16) as u16, (y >> 16) as u16)) << 16
        };
        let signed = |f: fn(i16, i16) -> i16| join(&|a, b| f(a as i16, b as i16) as u16);
        assert_eq!(run("add.u16x2", &[x, y]), join(&u16::wrapping_add));
        assert_eq!(run("add.s16x2", &[x, y]), join(&u16::wrapping_add));
        assert_eq!(run("min.u16x2", &[x, y]), join(&|a, b| a.min(b)));
        assert_eq!(run("max.s16x2", &[x, y]), signed(|a, b| a.max(b)));
        assert_eq!(
            run("min.relu.s16x2", &[x, y]),
            signed(|a, b| a.min(b).max(0))
        );
    });
}

#[test]
fn sums_and_differences_share_the_hardwares_flag() {
    let mixed = |first: &str, next: &str, a: u64, b: u64| {
        let mut flag = false;
        op(first).eval(&[a, b], &mut flag);
        op(next).eval(&[10, 3], &mut flag)[0]
    };
    // Read off an H200: a carry is no borrow, and no borrow is a carry.
    assert_eq!(mixed("add.cc.u32", "subc.u32", 1, 1), 6);
    assert_eq!(mixed("add.cc.u32", "subc.u32", u64::from(u32::MAX), 1), 7);
    assert_eq!(mixed("sub.cc.u32", "addc.u32", 1, 1), 14);
    assert_eq!(mixed("sub.cc.u32", "addc.u32", 0, 1), 13);
}

#[test]
fn carry_chains_make_wide_integers() {
    each(7, 64, 3000, |a, b, c| {
        let (x, y) = (
            u128::from(a) << 64 | u128::from(b),
            u128::from(c) << 64 | u128::from(a ^ c),
        );
        for (first, next, sum, out) in [
            (
                "add.cc.u64",
                "addc.cc.u64",
                x.wrapping_add(y),
                x.checked_add(y).is_none(),
            ),
            // A difference sets the flag where nothing is borrowed.
            ("sub.cc.u64", "subc.cc.u64", x.wrapping_sub(y), x >= y),
        ] {
            // The flag before the first must not matter.
            let mut flag = b & 1 == 1;
            let low = op(first).eval(&[x as u64, y as u64], &mut flag)[0];
            let high = op(next).eval(&[(x >> 64) as u64, (y >> 64) as u64], &mut flag)[0];
            assert_eq!(
                (u128::from(high) << 64 | u128::from(low), flag),
                (sum, out),
                "{first} {x:x} {y:x}"
            );
        }
        // 64 x 64 -> 128 from 32-bit parts, as compilers write it.
        let word = |v: u64, i: u32| v >> (32 * i) & 0xffff_ffff;
        let mut flag = false;
        let [a0, a1, b0, b1] = [word(a, 0), word(a, 1), word(b, 0), word(b, 1)];
        let r0 = run("mul.lo.u32", &[a0, b0]);
        let r1 = run("mul.hi.u32", &[a0, b0]);
        let r1 = op("mad.lo.cc.u32").eval(&[a0, b1, r1], &mut flag)[0];
        let r2 = op("madc.hi.cc.u32").eval(&[a0, b1, 0], &mut flag)[0];
        let r3 = op("addc.u32").eval(&[0, 0], &mut flag)[0];
        let r1 = op("mad.lo.cc.u32").eval(&[a1, b0, r1], &mut flag)[0];
        let r2 = op("madc.hi.cc.u32").eval(&[a1, b0, r2], &mut flag)[0];
        let r3 = op("addc.u32").eval(&[r3, 0], &mut flag)[0];
        let r2 = op("mad.lo.cc.u32").eval(&[a1, b1, r2], &mut flag)[0];
        let r3 = op("madc.hi.u32").eval(&[a1, b1, r3], &mut flag)[0];
        let product = [r0, r1, r2, r3]
            .iter()
            .rev()
            .fold(0u128, |p, r| p << 32 | u128::from(*r));
        assert_eq!(product, u128::from(a) * u128::from(b), "{a:x} {b:x}");
    });
    // What reads but does not write leaves the flag.
    let mut flag = true;
    op("addc.u32").eval(&[1, 1], &mut flag);
    op("add.u32").eval(&[u32::MAX.into(), 1], &mut flag);
    assert!(flag);
}

#[test]
fn counting_bits() {
    each(8, 64, 3000, |x, y, z| {
        let a = x as u32;
        assert_eq!(run("popc.b64", &[x]), x.count_ones().into());
        assert_eq!(run("popc.b32", &[a.into()]), a.count_ones().into());
        assert_eq!(run("clz.b32", &[a.into()]), a.leading_zeros().into());
        assert_eq!(run("clz.b64", &[x]), x.leading_zeros().into());
        assert_eq!(run("brev.b32", &[a.into()]), a.reverse_bits().into());
        assert_eq!(run("brev.b64", &[x]), x.reverse_bits());
        assert_eq!(run("cnot.b32", &[a.into()]), u64::from(a == 0));
        assert_eq!(run("not.b16", &[x & 0xffff]), !x & 0xffff);
        let top = |v: u64| {
            (0..64)
                .rev()
                .find(|i| v >> i & 1 == 1)
                .unwrap_or(0xffff_ffff)
        };
        assert_eq!(run("bfind.u64", &[x]), top(x));
        assert_eq!(
            run("bfind.s64", &[x]),
            top(if (x as i64) < 0 { !x } else { x })
        );
        let signed = top(if (a as i32) < 0 {
            u64::from(!a)
        } else {
            a.into()
        });
        assert_eq!(run("bfind.s32", &[a.into()]), signed);
        let amount = if signed == 0xffff_ffff {
            signed
        } else {
            31 - signed
        };
        assert_eq!(run("bfind.shiftamt.s32", &[a.into()]), amount);
        // fns, as the ISA's pseudo-code walks.
        let (base, offset) = (y % 32, (z % 20) as i64 - 10);
        let mut want = 0xffff_ffff;
        if offset == 0 {
            if a >> base & 1 == 1 {
                want = base;
            }
        } else {
            let (mut pos, mut count) = (base as i64, offset.abs() - 1);
            while (0..32).contains(&pos) {
                if a >> pos & 1 == 1 {
                    if count == 0 {
                        want = pos as u64;
                        break;
                    }
                    count -= 1;
                }
                pos += offset.signum();
            }
        }
        assert_eq!(
            run("fns.b32", &[a.into(), base, u64::from(offset as u32)]),
            want,
            "{a:x} {base} {offset}"
        );
    });
    assert_eq!(run("fns.b32", &[u32::MAX.into(), 40, 1]), 0xffff_ffff);
}

#[test]
fn bit_fields_as_the_isa_walks_them() {
    let mut random = Random(9);
    for ty in [Ty::U32, Ty::S32, Ty::U64, Ty::S64] {
        let msb = u64::from(ty.bits()) - 1;
        for _ in 0..4000 {
            let (a, b, pos, len) = (
                random.int(ty.bits()),
                random.int(ty.bits()),
                random.below(100),
                random.below(100),
            );
            let sign = ty.is_signed() && len != 0 && a >> (pos + len - 1).min(msb) & 1 == 1;
            let bit = |i: u64| {
                if i < len && pos + i <= msb {
                    a >> (pos + i) & 1
                } else {
                    sign.into()
                }
            };
            let field = (0..=msb).fold(0, |d, i| d | bit(i) << i);
            assert_eq!(
                run(&format!("bfe.{}", ty.name()), &[a, pos, len]),
                field,
                "{a:x} {pos} {len}"
            );
            let mut insert = b;
            for i in (0..len).take_while(|i| pos + i <= msb) {
                insert = insert & !(1 << (pos + i)) | (a >> i & 1) << (pos + i);
            }
            assert_eq!(
                run(&format!("bfi.b{}", ty.bits()), &[a, b, pos, len]),
                insert,
                "{a:x} {b:x} {pos} {len}"
            );
        }
    }
    // Beyond 255: the low byte in 32 bits, the whole in 64 (an H200).
    assert_eq!(run("bfe.u32", &[0xff00, 0x108, 0x104]), 0xf);
    assert_eq!(run("bfe.s64", &[1 << 63, 0x23b9_1304, 1]), u64::MAX);
}

#[test]
fn masks_and_extensions() {
    let ones = |n: u64| {
        if n >= 32 {
            0xffff_ffff
        } else {
            (1u64 << n) - 1
        }
    };
    for a in 0..70u64 {
        for b in 0..70u64 {
            let clamp = if a >= 32 {
                0
            } else {
                ones(b) << a & 0xffff_ffff
            };
            assert_eq!(run("bmsk.clamp.b32", &[a, b]), clamp, "{a} {b}");
            assert_eq!(
                run("bmsk.wrap.b32", &[a, b]),
                ones(b & 31) << (a & 31) & 0xffff_ffff,
                "{a} {b}"
            );
        }
        let x = 0xa5c3_96f1u32;
        let low = |n: u64| u64::from(x) & ones(n);
        let signed = |n: u64| {
            if n > 0 && n < 32 && x >> (n - 1) & 1 == 1 {
                low(n) | !ones(n) & 0xffff_ffff
            } else {
                low(n)
            }
        };
        assert_eq!(run("szext.clamp.u32", &[x.into(), a]), low(a));
        assert_eq!(run("szext.wrap.u32", &[x.into(), a]), low(a & 31));
        assert_eq!(run("szext.clamp.s32", &[x.into(), a]), signed(a), "{a}");
        assert_eq!(run("szext.wrap.s32", &[x.into(), a]), signed(a & 31), "{a}");
    }
}

#[test]
fn shifts_and_funnels() {
    each(10, 32, 3000, |a, b, c| {
        let c = c % 100;
        let both = b << 32 | a;
        assert_eq!(
            run("shl.b32", &[a, c]),
            if c > 31 { 0 } else { a << c & 0xffff_ffff }
        );
        assert_eq!(
            run("shl.b16", &[a & 0xffff, c]),
            if c > 15 { 0 } else { a << c & 0xffff }
        );
        assert_eq!(
            run("shl.b64", &[both, c]),
            if c > 63 { 0 } else { both << c }
        );
        let (clamp, wrap) = (c.min(32), c & 31);
        assert_eq!(
            run("shf.l.clamp.b32", &[a, b, c]),
            if clamp == 32 { a } else { both << clamp >> 32 }
        );
        assert_eq!(run("shf.l.wrap.b32", &[a, b, c]), both << wrap >> 32);
        assert_eq!(
            run("shf.r.clamp.b32", &[a, b, c]),
            both >> clamp & 0xffff_ffff
        );
        assert_eq!(
            run("shf.r.wrap.b32", &[a, b, c]),
            both >> wrap & 0xffff_ffff
        );
    });
    assert_eq!(run("shl.b32", &[1, 0xffff_ffff]), 0);
    assert_eq!(run("shr.s32", &[0x8000_0000, 0xffff_ffff]), 0xffff_ffff);
}

#[test]
fn every_three_input_function() {
    // The ISA's own way to name one: the same function of three constants.
    let functions: [fn(u64, u64, u64) -> u64; 5] = [
        |a, b, c| a & b & c,
        |a, b, c| a | b | c,
        |a, b, c| a & b & !c,
        |a, b, c| (a & b | c) ^ a,
        |a, _, _| !a,
    ];
    each(11, 32, 200, |a, b, c| {
        for f in functions {
            let lut = f(0xf0, 0xcc, 0xaa) & 0xff;
            assert_eq!(run("lop3.b32", &[a, b, c, lut]), f(a, b, c) & 0xffff_ffff);
        }
        for lut in 0..256u64 {
            let bit = |i: u32| lut >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1;
            let want = (0..32).fold(0, |d, i| d | bit(i) << i);
            assert_eq!(run("lop3.b32", &[a, b, c, lut]), want);
            for q in 0..2 {
                let or = op("lop3.or.b32").eval(&[a, b, c, lut, q], &mut false);
                let and = op("lop3.and.b32").eval(&[a, b, c, lut, q], &mut false);
                let set = u64::from(want != 0);
                assert_eq!((or, and), ([want, set | q], [want, set & q]));
            }
        }
    });
}

#[test]
fn permutations() {
    // The ISA's table, bytes from the most significant down, by mode and selector.
    let table: [(&str, [[u32; 4]; 4]); 6] = [
        (
            "f4e",
            [[3, 2, 1, 0], [4, 3, 2, 1], [5, 4, 3, 2], [6, 5, 4, 3]],
        ),
        (
            "b4e",
            [[5, 6, 7, 0], [6, 7, 0, 1], [7, 0, 1, 2], [0, 1, 2, 3]],
        ),
        (
            "rc8",
            [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]],
        ),
        (
            "ecl",
            [[3, 2, 1, 0], [3, 2, 1, 1], [3, 2, 2, 2], [3, 3, 3, 3]],
        ),
        (
            "ecr",
            [[0, 0, 0, 0], [1, 1, 1, 0], [2, 2, 1, 0], [3, 2, 1, 0]],
        ),
        (
            "rc16",
            [[1, 0, 1, 0], [3, 2, 3, 2], [1, 0, 1, 0], [3, 2, 3, 2]],
        ),
    ];
    each(12, 32, 300, |a, b, c| {
        let byte = |i: u32| (b << 32 | a) >> (8 * i) & 0xff;
        for (mode, rows) in &table {
            let want = rows[(c & 3) as usize]
                .iter()
                .fold(0, |d, i| d << 8 | byte(*i));
            assert_eq!(
                run(&format!("prmt.b32.{mode}"), &[a, b, c]),
                want,
                "{mode} {c}"
            );
        }
        let want = (0..4).fold(0, |d, i| {
            let sel = (c >> (4 * i) & 15) as u32;
            let value = byte(sel & 7);
            d | if sel & 8 == 0 {
                value
            } else if value & 0x80 != 0 {
                0xff
            } else {
                0
            } << (8 * i)
        });
        assert_eq!(run("prmt.b32", &[a, b, c]), want);
    });
}

#[test]
fn dot_products() {
    each(13, 32, 3000, |a, b, c| {
        let (x, y) = ((a as u32).to_le_bytes(), (b as u32).to_le_bytes());
        let signed: i32 = (0..4)
            .map(|i| i32::from(x[i] as i8) * i32::from(y[i] as i8))
            .sum();
        let mixed: i32 = (0..4)
            .map(|i| i32::from(x[i]) * i32::from(y[i] as i8))
            .sum();
        assert_eq!(
            run("dp4a.s32.s32", &[a, b, c]) as i32,
            signed.wrapping_add(c as i32)
        );
        assert_eq!(
            run("dp4a.u32.s32", &[a, b, c]) as i32,
            mixed.wrapping_add(c as i32)
        );
        let (lo, hi) = (i32::from(a as i16), i32::from((a >> 16) as i16));
        let two = |first: usize| lo * i32::from(y[first]) + hi * i32::from(y[first + 1]);
        assert_eq!(
            run("dp2a.lo.s32.u32", &[a, b, c]) as i32,
            two(0).wrapping_add(c as i32)
        );
        assert_eq!(
            run("dp2a.hi.s32.u32", &[a, b, c]) as i32,
            two(2).wrapping_add(c as i32)
        );
    });
}
