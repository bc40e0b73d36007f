//! Integer arithmetic, on `i128` so that no width is a special case.

use super::op::{Op, Part, ScalarOp};
use super::types::Ty;

/// `value` of type `ty` as a number.
pub(crate) fn number(ty: Ty, value: u64) -> i128 {
    let value = ty.extend(value);
    if ty.is_signed() {
        i128::from(value as i64)
    } else {
        i128::from(value)
    }
}

/// The low bits of `value` that `ty` holds.
pub(crate) fn cut(ty: Ty, value: i128) -> u64 {
    value as u64 & ty.mask()
}

/// The least and the greatest value of an integer type.
pub(crate) fn range(ty: Ty) -> (i128, i128) {
    let bits = ty.bits();
    if ty.is_signed() {
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        (0, (1 << bits) - 1)
    }
}

/// `value` clamped to what `ty` holds.
pub(crate) fn clamp(ty: Ty, value: i128) -> u64 {
    let (low, high) = range(ty);
    cut(ty, value.clamp(low, high))
}

/// Applies `f` to each half of packed operands.
pub(crate) fn halves(a: u64, b: u64, f: impl Fn(u64, u64) -> u64) -> u64 {
    f(a & 0xffff, b & 0xffff) & 0xffff | f(a >> 16 & 0xffff, b >> 16 & 0xffff) << 16 & 0xffff_0000
}

/// Part of a product, as a number.
fn product(op: &ScalarOp, a: u64, b: u64) -> i128 {
    let full = number(op.ty, a).wrapping_mul(number(op.ty, b));
    let bits = op.ty.bits();
    match op.mods.part {
        Part::Wide => full,
        Part::Lo => number(op.ty, cut(op.ty, full)),
        // u64 products fill 128 bits: shift them without a sign.
        Part::Hi if op.ty.is_signed() => full >> bits,
        Part::Hi => (full as u128 >> bits) as i128,
    }
}

/// A 24-bit operand.
fn low24(ty: Ty, value: u64) -> i128 {
    let value = value & 0xff_ffff;
    if ty.is_signed() {
        i128::from((value as i32) << 8 >> 8)
    } else {
        i128::from(value)
    }
}

/// `a + b + carry` or `a - b - borrow`, modulo the width; the carry or borrow out goes to `flag`.
///
/// The flag is that of the hardware, where a difference is `a + !b + 1` and a borrow a carry that
/// did not come. The ISA calls both `CC.CF`; chains that mix sums and differences see which it is.
fn with_carry(op: &ScalarOp, a: u64, b: u64, flag: &mut bool) -> u64 {
    let (reads, _) = op.uses_carry();
    let (a, b) = (i128::from(a & op.ty.mask()), i128::from(b & op.ty.mask()));
    let subtracts = matches!(op.op, Op::Sub | Op::Subc);
    let full = match subtracts {
        true => a - b - i128::from(reads && !*flag),
        false => a + b + i128::from(reads && *flag),
    };
    if op.mods.cc {
        *flag = (full >> op.ty.bits() & 1 != 0) != subtracts;
    }
    cut(op.ty, full)
}

/// Evaluates the integer forms of arithmetic; `None` if `op` is none of them.
pub(crate) fn eval(op: &ScalarOp, s: &[u64; 6], flag: &mut bool) -> Option<u64> {
    let ty = op.ty;
    let (a, b, c) = (s[0], s[1], s[2]);
    let (x, y) = (number(ty, a), number(ty, b));
    let relu = |v: i128| if op.mods.relu { v.max(0) } else { v };
    let fit = |v: i128| {
        if op.mods.sat {
            clamp(ty, v)
        } else {
            cut(ty, v)
        }
    };
    let element = ty.element();
    let pair = |f: &dyn Fn(i128, i128) -> i128| {
        halves(a, b, |a, b| {
            cut(element, relu(f(number(element, a), number(element, b))))
        })
    };
    let packed = ty.lanes() == 2;
    Some(match op.op {
        Op::Add if packed => pair(&|x, y| x + y),
        Op::Min if packed => pair(&|x, y| x.min(y)),
        Op::Max if packed => pair(&|x, y| x.max(y)),
        Op::Add | Op::Sub if op.mods.cc => with_carry(op, a, b, flag),
        Op::Addc | Op::Subc => with_carry(op, a, b, flag),
        Op::Add => fit(x + y),
        Op::Sub => fit(x - y),
        Op::Mul => cut(op.dst()[0], product(op, a, b)),
        Op::Mad if op.mods.cc => with_carry(op, cut(ty, product(op, a, b)), c, flag),
        Op::Madc => with_carry(op, cut(ty, product(op, a, b)), c, flag),
        Op::Mad if op.mods.sat => clamp(ty, product(op, a, b) + number(ty, c)),
        Op::Mad => cut(op.dst()[0], product(op, a, b).wrapping_add(i128::from(c))),
        Op::Mul24 | Op::Mad24 => {
            let full = low24(ty, a) * low24(ty, b);
            let part = if op.mods.part == Part::Hi {
                full >> 16
            } else {
                full
            };
            let part = number(ty, cut(ty, part));
            if op.op == Op::Mad24 {
                fit(part + number(ty, c))
            } else {
                cut(ty, part)
            }
        }
        Op::Sad => cut(ty, number(ty, c) + (x - y).abs()),
        // By zero, quotient and remainder: all ones, as an H200 gives (the ISA leaves it open).
        Op::Div if y == 0 => ty.mask(),
        Op::Div => cut(ty, x / y),
        Op::Rem if y == 0 => ty.mask(),
        Op::Rem => cut(ty, x % y),
        Op::Abs => cut(ty, x.abs()),
        Op::Neg => cut(ty, -x),
        Op::Min => cut(ty, relu(x.min(y))),
        Op::Max => cut(ty, relu(x.max(y))),
        Op::Dp4a | Op::Dp2a => dot(op, a, b, c),
        _ => return None,
    })
}

/// `dp4a` and `dp2a`.
fn dot(op: &ScalarOp, a: u64, b: u64, c: u64) -> u64 {
    let (ta, tb) = if op.ty.is_signed() {
        (Ty::S8, Ty::S16)
    } else {
        (Ty::U8, Ty::U16)
    };
    let byte = if op.from.is_signed() { Ty::S8 } else { Ty::U8 };
    let first = if op.mods.part == Part::Hi { 2 } else { 0 };
    let sum: i128 = if op.op == Op::Dp4a {
        (0..4)
            .map(|i| number(ta, a >> (8 * i)) * number(byte, b >> (8 * i)))
            .sum()
    } else {
        (0..2)
            .map(|i| number(tb, a >> (16 * i)) * number(byte, b >> (8 * (first + i))))
            .sum()
    };
    cut(Ty::U32, sum + i128::from(c))
}

/// `cvt` between integers. The result has the destination's width; see [`Ty::extend`].
pub(crate) fn convert(op: &ScalarOp, a: u64) -> u64 {
    let value = number(op.from, a);
    if op.mods.sat {
        clamp(op.ty, value)
    } else {
        cut(op.ty, value)
    }
}

/// `cvt.pack`: two saturated halves below, and for narrow types the third source moved above them.
pub(crate) fn pack(op: &ScalarOp, a: u64, b: u64, c: u64) -> u64 {
    let size = op.ty.bits();
    let low = clamp(op.ty, number(Ty::S32, a)) << size | clamp(op.ty, number(Ty::S32, b));
    let above = if size < 16 { c << (2 * size) } else { 0 };
    (low | above) & Ty::B32.mask()
}
