//! `cvt` with a float on either side.

use super::float::{finish, format};
use super::int::{clamp, number};
use super::op::{Op, ScalarOp};
use super::soft::{F32, Fmt, Round, TF32, Top, Val, shift_round, to_integer};
use super::types::Ty;

/// Evaluates the float conversions; `None` if `op` is none of them.
pub(crate) fn eval(op: &ScalarOp, s: &[u64; 6]) -> Option<u64> {
    Some(match op.op {
        Op::CvtToInt => to_int(op, s[0]),
        Op::CvtFromInt => from_int(op, s[0]),
        Op::CvtFloat => float(op, s[0] & op.from.mask()),
        Op::CvtPacked => packed(op, s),
        _ => return None,
    })
}

/// The operand as a value; `.ftz` flushes f32 subnormals and no others. Towards f16 an H200
/// does not flush at all: `cvt.rp.ftz.f16.f32` of a subnormal is the least f16.
fn operand(op: &ScalarOp, ty: Ty, bits: u64) -> Val {
    let f = format(ty);
    let flush = op.mods.ftz && f == F32 && op.ty != Ty::F16;
    f.unpack(if flush { f.flush(bits) } else { bits })
}

/// Saturates always (PTX ISA, `cvt`). NaN: zero, but for 64-bit results and f64 sources, which
/// give the top bit alone.
fn to_int(op: &ScalarOp, a: u64) -> u64 {
    let ty = op.ty;
    let value = match to_integer(operand(op, op.from, a & op.from.mask()), op.mods.round) {
        Val::Nan if op.from == Ty::F64 || ty.bits() == 64 => return 1 << (ty.bits() - 1),
        Val::Nan => return 0,
        Val::Inf(neg) => {
            if neg {
                i128::MIN
            } else {
                i128::MAX
            }
        }
        // Past 2^66 every integer type saturates.
        Val::Num { neg, sig, exp } => {
            let magnitude = if exp > 66 && sig != 0 {
                i128::MAX
            } else {
                (sig << exp.clamp(0, 66)) as i128
            };
            if neg { -magnitude } else { magnitude }
        }
    };
    clamp(ty, value)
}

fn from_int(op: &ScalarOp, a: u64) -> u64 {
    let value = number(op.from, a);
    let f = format(op.ty);
    let value = Val::Num {
        neg: value < 0,
        sig: value.unsigned_abs(),
        exp: 0,
    };
    finish(f, &op.mods, f.pack(value, op.mods.round))
}

/// Rounds to `f` with `.satfinite` and `.relu`.
fn narrow(op: &ScalarOp, f: Fmt, value: Val) -> u64 {
    let neg = matches!(value, Val::Inf(true) | Val::Num { neg: true, .. });
    if op.mods.relu && neg {
        return 0;
    }
    let d = f.pack(value, op.mods.round);
    // Infinities and overflow keep their sign.
    if op.mods.satfinite && f.top == Top::Ieee && d & f.magnitude() == f.inf() {
        d & f.sign() | f.max()
    } else {
        d
    }
}

fn float(op: &ScalarOp, a: u64) -> u64 {
    let (f, g) = (format(op.ty), format(op.from));
    let m = &op.mods;
    if op.ty == Ty::Tf32 {
        return tf32(op, a);
    }
    if g.is_nan(a) && !m.sat {
        return nan(op, f, g, a);
    }
    let value = operand(op, op.from, a);
    let value = if m.integral {
        to_integer(value, m.round)
    } else {
        value
    };
    let mut mods = *m;
    mods.ftz &= op.ty == Ty::F32;
    let d = narrow(op, f, value);
    let tiny = mods.ftz && f.is_tiny(value, m.round);
    finish(f, &mods, if tiny { d & f.sign() } else { d })
}

/// What becomes of a NaN. The ISA leaves it open; this is what an H200 does: f64 on either side
/// keeps the payload's upper bits, made quiet; what is only a move keeps all bits; else canonical.
fn nan(op: &ScalarOp, f: Fmt, g: Fmt, a: u64) -> u64 {
    let m = &op.mods;
    let moved = !m.integral && !m.ftz;
    match (op.ty, op.from) {
        (Ty::F64, Ty::F64) | (Ty::F32, Ty::F32) if moved => a,
        (Ty::F32, Ty::Bf16) if moved => a << 16,
        (Ty::F64, _) | (_, Ty::F64) => {
            // With .ftz an f32 source has become canonical first.
            let a = if m.ftz && op.from == Ty::F32 {
                g.nan()
            } else {
                a
            };
            let sign = if a & g.sign() != 0 { f.sign() } else { 0 };
            let payload = (a & g.fraction()) << (52 - g.man) >> (52 - f.man);
            sign | f.inf() | payload | 1 << (f.man - 1)
        }
        _ => f.nan(),
    }
}

/// An f32 whose 13 lowest bits are zero. `.rna` is an addition and a mask on an H200, which leaves
/// infinities and NaNs as they are but for those bits, and with `.satfinite` takes one
/// place off them.
fn tf32(op: &ScalarOp, a: u64) -> u64 {
    if op.mods.round != Round::Rna {
        return narrow(op, TF32, F32.unpack(a)) << 13;
    }
    let d = if a & F32.inf() == F32.inf() {
        a
    } else {
        a + 0x1000
    } & !0x1fff;
    if op.mods.satfinite && d & F32.inf() == F32.inf() {
        d - 0x2000
    } else {
        d
    }
}

fn packed(op: &ScalarOp, s: &[u64; 6]) -> u64 {
    let (to, from) = (op.ty.element(), op.from.element());
    let width = op.ty.bits() / op.ty.lanes();
    let half = |upper: u32| {
        // From two registers the first is the upper one; from a pair each half is its own.
        let (bits, from_width) = if op.from.lanes() == 1 {
            (s[1 - upper as usize], 0)
        } else {
            (s[0], op.from.bits() / 2)
        };
        let bits = bits >> (from_width * upper) & from.mask();
        match (to, from) {
            (Ty::Ue8m0, _) => to_ue8m0(op, from, bits),
            (_, Ty::Ue8m0) => from_ue8m0(bits),
            _ if op.mods.stochastic => {
                stochastic(op, format(to), bits, (s[2] >> (16 * upper)) as u16)
            }
            _ => narrow(op, format(to), operand(op, from, narrow_bits(from, bits))),
        }
    };
    half(0) | half(1) << width
}

/// The bits of a narrow float without its padding.
fn narrow_bits(ty: Ty, bits: u64) -> u64 {
    let f = format(ty);
    bits & (f.magnitude() | f.sign())
}

/// `.rs`: random bits are added below the last place kept, then all below it is cut off
/// (13 of them for f16, 16 for bf16, aligned below the last place also for subnormals).
fn stochastic(op: &ScalarOp, f: Fmt, a: u64, random: u16) -> u64 {
    let drop = F32.man - f.man;
    let random = u128::from(random) & ((1 << drop) - 1);
    let value = match F32.unpack(a) {
        Val::Num { neg, sig, exp } if sig != 0 => {
            let top = exp + 127 - sig.leading_zeros() as i32;
            let low = 2 - (1 << (f.exp - 1)) - f.man as i32;
            let place = (top - f.man as i32).max(low);
            // In units of 2^(place - drop); lower bits of the operand are beyond the adder.
            let sig = shift_round(sig, place - drop as i32 - exp, neg, Round::Rz) + random;
            Val::Num {
                neg,
                sig: sig >> drop,
                exp: place,
            }
        }
        value => value,
    };
    let d = narrow(op, f, value);
    // Cut, not rounded, but overflow still overflows.
    if f.is_nan(d) { f.nan() } else { d }
}

/// A power of two, its exponent biased by 127; 0xff is NaN. The sign is ignored and zero is the
/// least code, as CUDA's own conversion functions do.
fn to_ue8m0(op: &ScalarOp, from: Ty, bits: u64) -> u64 {
    let (sig, exp) = match format(from).unpack(bits) {
        Val::Nan => return 0xff,
        Val::Inf(_) => return if op.mods.satfinite { 0xfe } else { 0xff },
        Val::Num { sig: 0, .. } => return 0,
        Val::Num { sig, exp, .. } => (sig, exp),
    };
    let top = exp + 127 - sig.leading_zeros() as i32;
    let up = op.mods.round == Round::Rp && !sig.is_power_of_two();
    let code = (top + 127 + i32::from(up)).max(0);
    match code {
        0..=0xfe => code as u64,
        _ if op.mods.satfinite => 0xfe,
        _ => 0xff,
    }
}

fn from_ue8m0(code: u64) -> u64 {
    match code {
        0xff => 0x7fff,
        // 2^-127 is a subnormal of bf16.
        0 => 0x0040,
        _ => code << 7,
    }
}
