//! Floating-point arithmetic that IEEE 754 defines, for f64, f32, f16, bf16 and their pairs.
//!
//! Round-to-nearest f32 and f64 go through the host's operations (exact by IEEE 754); all else
//! through [`super::soft`]. NaN results are canonical (0x7fffffff, 0x7fff) but in f64, where a NaN
//! operand is passed on, made quiet: the second before the third before the first, in `div` the
//! first before the second (seen on an H200; the ISA leaves it open).

use super::op::{Mods, Op, ScalarOp, Test};
use super::soft::{self, BF16, F16, F32, F64, Fmt, Round, Val};
use super::types::Ty;

/// The format of an element type; f32 for types that have none.
pub(crate) fn format(ty: Ty) -> Fmt {
    match ty {
        Ty::F64 => F64,
        Ty::F16 => F16,
        Ty::Bf16 => BF16,
        Ty::Tf32 => soft::TF32,
        Ty::E4m3 => soft::E4M3,
        Ty::E5m2 => soft::E5M2,
        Ty::E2m1 => soft::E2M1,
        Ty::E2m3 => soft::E2M3,
        Ty::E3m2 => soft::E3M2,
        _ => F32,
    }
}

/// The value 1.
pub(crate) const fn one(f: Fmt) -> u64 {
    ((1 << (f.exp - 1)) - 1) << f.man
}

/// The NaN of a result whose operands are `from`.
fn nan(f: Fmt, from: &[u64]) -> u64 {
    match from.iter().find(|&&x| f == F64 && F64.is_nan(x)) {
        Some(x) => x | 1 << 51,
        None => f.nan(),
    }
}

/// Clamps of a finished result: `.ftz`, then `.sat` or `.relu`.
pub(crate) fn finish(f: Fmt, mods: &Mods, d: u64) -> u64 {
    let d = if mods.ftz { f.flush(d) } else { d };
    let below = d & f.sign() != 0;
    if mods.sat {
        if f.is_nan(d) || below {
            0
        } else {
            d.min(one(f))
        }
    } else if mods.relu && below && !f.is_nan(d) {
        0
    } else {
        d
    }
}

/// f32 or f64 by the host, for round to nearest.
fn native(op: Op, f: Fmt, [a, b, c]: [u64; 3]) -> Option<u64> {
    macro_rules! by {
        ($float:ty, $int:ty) => {{
            let [a, b, c] = [a, b, c].map(|x| <$float>::from_bits(x as $int));
            let d = match op {
                Op::Add => a + b,
                Op::Sub => a - b,
                Op::Mul => a * b,
                Op::Div => a / b,
                Op::Fma => a.mul_add(b, c),
                Op::Rcp => 1.0 / a,
                Op::Sqrt => a.sqrt(),
                _ => return None,
            };
            if d.is_nan() {
                None
            } else {
                Some(u64::from(d.to_bits()))
            }
        }};
    }
    if f == F32 {
        by!(f32, u32)
    } else if f == F64 {
        by!(f64, u64)
    } else {
        None
    }
}

/// One of add, sub, mul, fma, div, rcp, sqrt in format `f`.
pub(crate) fn arithmetic(op: Op, f: Fmt, mods: &Mods, s: [u64; 3]) -> u64 {
    let all = f.magnitude() | f.sign();
    let [a, b, c] = s.map(|x| if mods.ftz { f.flush(x & all) } else { x & all });
    let round = mods.round;
    if round == Round::Rn
        && let Some(d) = native(op, f, [a, b, c])
        // It may be a tiny value rounded up.
        && !(mods.ftz && d & f.magnitude() == 1 << f.man)
    {
        return finish(f, mods, d);
    }
    // What the operation lacks must not pass for a NaN operand.
    let (b, c) = match op {
        Op::Rcp | Op::Sqrt => (0, 0),
        Op::Fma => (b, c),
        _ => (b, 0),
    };
    let (x, y) = (f.unpack(a), f.unpack(b));
    let value = match op {
        Op::Add => soft::add(x, y, round),
        Op::Sub => soft::add(x, f.unpack(b ^ f.sign()), round),
        Op::Mul => soft::mul(x, y),
        Op::Fma => soft::add(soft::mul(x, y), f.unpack(c), round),
        Op::Div => soft::div(x, y),
        Op::Rcp => soft::div(
            Val::Num {
                neg: false,
                sig: 1,
                exp: 0,
            },
            x,
        ),
        _ => soft::sqrt(x),
    };
    let d = match value {
        Val::Nan => nan(f, &if op == Op::Div { [a, b, c] } else { [b, c, a] }),
        value if mods.ftz && f.is_tiny(value, round) => f.pack(value, Round::Rz) & f.sign(),
        value => f.pack(value, round),
    };
    finish(f, mods, d)
}

/// `min` and `max` of two.
fn extreme(op: Op, f: Fmt, mods: &Mods, a: u64, b: u64) -> u64 {
    let sign = if mods.xorsign { (a ^ b) & f.sign() } else { 0 };
    let (a, b) = if mods.abs {
        (a & f.magnitude(), b & f.magnitude())
    } else {
        (a, b)
    };
    let d = match (f.is_nan(a), f.is_nan(b)) {
        (true, true) => return nan(f, &[b, a]),
        (true, _) | (_, true) if mods.nan => return nan(f, &[b, a]),
        (true, _) => b,
        (_, true) => a,
        // Sign and magnitude order: -0 is below +0.
        _ if (order(f, a) < order(f, b)) == (op == Op::Min) => a,
        _ => b,
    };
    d | sign
}

/// A number whose order is that of the bits read as floats, zeros apart.
fn order(f: Fmt, a: u64) -> i128 {
    let magnitude = i128::from(a & f.magnitude());
    if a & f.sign() != 0 {
        -1 - magnitude
    } else {
        magnitude
    }
}

/// One element of `op`.
fn element(op: &ScalarOp, f: Fmt, s: [u64; 3], count: usize) -> u64 {
    let mods = &op.mods;
    match op.op {
        Op::Abs | Op::Neg => {
            let a = if mods.ftz { f.flush(s[0]) } else { s[0] };
            if f.is_nan(a) {
                return nan(f, &[a]);
            }
            if op.op == Op::Abs {
                a & f.magnitude()
            } else {
                a ^ f.sign()
            }
        }
        Op::Min | Op::Max => {
            let [a, b, c] = s.map(|x| if mods.ftz { f.flush(x) } else { x });
            let d = extreme(op.op, f, mods, a, b);
            if count < 3 {
                d
            } else {
                extreme(op.op, f, mods, d, c)
            }
        }
        // Out-of-bounds elements arrive as a NaN that counts as zero.
        Op::Fma if mods.oob && (is_oob(f, s[0]) || is_oob(f, s[1])) => 0,
        _ => arithmetic(op.op, f, mods, s),
    }
}

/// The NaN that TMA fills in where zero is to be multiplied (`.oob`): the ISA gives no bits; of
/// all 65,536 an H200 takes these two for it, in f16 and bf16 alike.
fn is_oob(f: Fmt, a: u64) -> bool {
    a & f.magnitude() == 0x7ff7
}

/// Evaluates the float forms; `None` if `op` is none of them. `count`: the sources given.
pub(crate) fn eval(op: &ScalarOp, s: &[u64; 6], count: usize) -> Option<u64> {
    let ty = op.ty.element();
    let f = format(ty);
    match op.op {
        Op::Copysign => return Some(s[0] & f.sign() | s[1] & f.magnitude()),
        Op::Testp => return Some(u64::from(test(op.mods.test, f, s[0] & op.ty.mask()))),
        Op::Add | Op::Sub | Op::Mul | Op::Fma | Op::Abs | Op::Neg | Op::Min | Op::Max => {}
        Op::Div | Op::Rcp | Op::Sqrt => {}
        _ => return None,
    }
    if op.from != op.ty {
        // Mixed precision: the narrow operands are exact in f32.
        let wide = |x: u64| F32.pack(format(op.from).unpack(x & op.from.mask()), Round::Rn);
        let s = if op.op == Op::Fma {
            [wide(s[0]), wide(s[1]), s[2]]
        } else {
            [wide(s[0]), s[1], 0]
        };
        return Some(arithmetic(op.op, f, &op.mods, s));
    }
    let bits = ty.bits();
    let lane = |i: u32| {
        let part = |x: u64| x >> (bits * i) & ty.mask();
        element(op, f, [part(s[0]), part(s[1]), part(s[2])], count)
    };
    Some(if op.ty.lanes() == 2 {
        lane(0) | lane(1) << bits
    } else {
        lane(0)
    })
}

fn test(test: Test, f: Fmt, a: u64) -> bool {
    let magnitude = a & f.magnitude();
    let subnormal = magnitude != 0 && magnitude <= f.fraction();
    match test {
        Test::Finite => magnitude < f.inf(),
        Test::Infinite => magnitude == f.inf(),
        Test::Number => !f.is_nan(a),
        Test::Nan => f.is_nan(a),
        // Zeros count as normal.
        Test::Normal => magnitude < f.inf() && !subnormal,
        Test::Subnormal => subnormal,
    }
}
