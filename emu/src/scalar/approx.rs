//! The `.approx` functions: computed in f64 and rounded once, so within every bound that the
//! ISA documents (hardware gives other bits inside that bound). Special values are the ISA's.

use super::float::{finish, format};
use super::op::{Op, ScalarOp};
use super::soft::{F64, Round};
use super::types::Ty;

/// Evaluates an approximate form; `None` if `op` is none.
pub(crate) fn eval(op: &ScalarOp, s: &[u64; 6]) -> Option<u64> {
    if !op.mods.approx {
        return None;
    }
    if op.ty == Ty::F64 {
        return double(op, s[0]);
    }
    let ty = op.ty.element();
    let f = format(ty);
    let lane = |i: u32| {
        let operand = |x: u64| {
            let x = x >> (ty.bits() * i) & ty.mask();
            let x = if op.mods.ftz { f.flush(x) } else { x };
            f64::from_bits(F64.pack(f.unpack(x), Round::Rn))
        };
        let (a, b) = (operand(s[0]), operand(s[1]));
        let d = match op.op {
            Op::Div => divide(op, a, b),
            Op::Rcp => 1.0 / a,
            Op::Sqrt => a.sqrt(),
            Op::Rsqrt if a == 0.0 => 1.0 / a,
            Op::Rsqrt => 1.0 / a.sqrt(),
            Op::Sin => a.sin(),
            Op::Cos => a.cos(),
            Op::Lg2 => a.log2(),
            Op::Ex2 => a.exp2(),
            Op::Tanh => a.tanh(),
            _ => return None,
        };
        Some(finish(
            f,
            &op.mods,
            f.pack(F64.unpack(d.to_bits()), Round::Rn),
        ))
    };
    if op.ty.lanes() == 2 {
        Some(lane(0)? | lane(1)? << 16)
    } else {
        lane(0)
    }
}

/// `div.approx` multiplies by a reciprocal that has vanished for divisors above 2^126;
/// `div.full` has no such hole.
fn divide(op: &ScalarOp, a: f64, b: f64) -> f64 {
    let hole = !op.mods.full && b.is_finite() && b.abs() > f64::from_bits(0x47d0_0000_0000_0000);
    if !hole {
        a / b
    } else if a.is_infinite() {
        f64::NAN
    } else {
        a * 0f64.copysign(b)
    }
}

/// `rcp.approx.ftz.f64` and `rsqrt.approx{.ftz}.f64`. With `.ftz` only the upper words count.
fn double(op: &ScalarOp, a: u64) -> Option<u64> {
    const UPPER: u64 = 0xffff_ffff_0000_0000;
    let input = if op.mods.ftz { F64.flush(a & UPPER) } else { a };
    let x = f64::from_bits(input);
    let d = match op.op {
        Op::Rcp => 1.0 / x,
        Op::Rsqrt if x == 0.0 => 1.0 / x,
        Op::Rsqrt => 1.0 / x.sqrt(),
        _ => return None,
    };
    if d.is_nan() {
        // The fast forms have a canonical NaN of their own.
        return Some(match (op.mods.ftz, x.is_nan()) {
            (true, _) => 0x7fff_ffff_0000_0000,
            (false, true) => input | 1 << 51,
            (false, false) => F64.nan(),
        });
    }
    Some(if op.mods.ftz {
        F64.flush(d.to_bits()) & UPPER
    } else {
        d.to_bits()
    })
}
