//! Comparison and selection: `setp`, `set`, `selp`, `slct`.

use super::bits::combine;
use super::float::{format, one};
use super::int::number;
use super::op::{Cmp, Op, ScalarOp};
use super::soft::Fmt;
use super::types::Ty;
use std::cmp::Ordering;

/// Whether `cmp` holds of two operands in this order; `None` is unordered.
pub(crate) fn holds(cmp: Cmp, order: Option<Ordering>) -> bool {
    use Ordering::{Equal, Greater, Less};
    match (cmp, order) {
        (Cmp::Nan | Cmp::Neu | Cmp::Equ | Cmp::Ltu | Cmp::Leu | Cmp::Gtu | Cmp::Geu, None) => true,
        (_, None) => false,
        (Cmp::Nan, _) => false,
        (Cmp::Num, _) => true,
        (Cmp::Eq | Cmp::Equ, Some(o)) => o == Equal,
        (Cmp::Ne | Cmp::Neu, Some(o)) => o != Equal,
        (Cmp::Lt | Cmp::Ltu, Some(o)) => o == Less,
        (Cmp::Le | Cmp::Leu, Some(o)) => o != Greater,
        (Cmp::Gt | Cmp::Gtu, Some(o)) => o == Greater,
        (Cmp::Ge | Cmp::Geu, Some(o)) => o != Less,
    }
}

/// How two floats compare.
fn float_order(f: Fmt, a: u64, b: u64) -> Option<Ordering> {
    if f.is_nan(a) || f.is_nan(b) {
        return None;
    }
    let key = |x: u64| {
        let magnitude = i128::from(x & f.magnitude());
        if x & f.sign() != 0 {
            -magnitude
        } else {
            magnitude
        }
    };
    Some(key(a).cmp(&key(b)))
}

/// How two operands of `ty` (one element) compare.
fn order(ty: Ty, ftz: bool, a: u64, b: u64) -> Option<Ordering> {
    let (a, b) = (a & ty.mask(), b & ty.mask());
    if !ty.is_float() {
        return Some(number(ty, a).cmp(&number(ty, b)));
    }
    let f = format(ty);
    if ftz {
        float_order(f, f.flush(a), f.flush(b))
    } else {
        float_order(f, a, b)
    }
}

/// What `set` writes for true.
fn truth(ty: Ty, bits: u32) -> u64 {
    match ty {
        Ty::F32 | Ty::F16 | Ty::Bf16 => one(format(ty)),
        _ => (1 << bits) - 1,
    }
}

/// Evaluates the comparisons and selections; `None` if `op` is none of them.
pub(crate) fn eval(op: &ScalarOp, s: &[u64; 6]) -> Option<[u64; 2]> {
    let of = if op.op == Op::Setp { op.ty } else { op.from };
    let ty = of.element();
    let t = |lane: u32| {
        let by = ty.bits() * lane;
        holds(op.mods.cmp, order(ty, op.mods.ftz, s[0] >> by, s[1] >> by))
    };
    let with = |t: bool| combine(op.mods.with, t, s[2]);
    Some(match op.op {
        Op::Setp if of.lanes() == 2 => [with(t(0)).into(), with(t(1)).into()],
        Op::Setp => {
            let t = t(0);
            [with(t).into(), with(!t).into()]
        }
        Op::Set if of.lanes() == 2 => {
            let half = |lane| {
                if with(t(lane)) {
                    truth(op.ty.element(), 16)
                } else {
                    0
                }
            };
            [half(0) | half(1) << 16, 0]
        }
        Op::Set => [
            if with(t(0)) {
                truth(op.ty, op.ty.bits())
            } else {
                0
            },
            0,
        ],
        Op::Selp => [(if s[2] & 1 != 0 { s[0] } else { s[1] }) & op.ty.mask(), 0],
        Op::Slct => {
            // NaN is not at least zero; -0 is.
            let at_least = order(op.from, op.mods.ftz, s[2], 0).is_some_and(Ordering::is_ge);
            [(if at_least { s[0] } else { s[1] }) & op.ty.mask(), 0]
        }
        _ => return None,
    })
}
