//! Logic, shifts, bit fields and byte permutation.

use super::int::number;
use super::op::{Bool, Bytes, Op, ScalarOp};
use super::types::Ty;

/// Evaluates the bit operations; `None` if `op` is none of them.
pub(crate) fn eval(op: &ScalarOp, s: &[u64; 6]) -> Option<[u64; 2]> {
    let (ty, bits, mask) = (op.ty, op.ty.bits(), op.ty.mask());
    let (a, b, c) = (s[0] & mask, s[1], s[2]);
    let d = match op.op {
        Op::And => a & b,
        Op::Or => a | b,
        Op::Xor => a ^ b,
        Op::Not => !a,
        Op::Cnot => u64::from(a == 0),
        Op::Popc => u64::from(a.count_ones()),
        Op::Clz => u64::from(a.leading_zeros() - (64 - bits)),
        Op::Brev => a.reverse_bits() >> (64 - bits),
        Op::Bfind => return Some([bfind(op, a), 0]),
        Op::Fns => return Some([fns(a as u32, b as u32, c as i32), 0]),
        Op::Bfe => bfe(ty, a, field(bits, b), field(bits, c)),
        Op::Bfi => bfi(bits, a, b, field(bits, c), field(bits, s[3])),
        Op::Szext => szext(op, a as u32, b as u32).into(),
        Op::Bmsk => bmsk(op.mods.wrap, a as u32, b as u32).into(),
        Op::Lop3 => {
            let d = u64::from(lop3(a as u32, b as u32, c as u32, s[3] as u8));
            let q = op
                .mods
                .with
                .is_some_and(|with| combine(Some(with), d != 0, s[4]));
            return Some([d, u64::from(q)]);
        }
        Op::Shf => shf(op, a as u32, b as u32, c as u32).into(),
        // Amounts beyond the width act as the width.
        Op::Shl => a.checked_shl(b as u32).unwrap_or(0),
        Op::Shr if ty.is_signed() => (number(ty, a) >> (b as u32).min(bits)) as u64,
        Op::Shr => a.checked_shr(b as u32).unwrap_or(0),
        Op::Prmt => prmt(op.mods.bytes, a, b & mask, c).into(),
        _ => return None,
    };
    Some([d & op.dst()[0].mask(), 0])
}

/// `value` combined with the predicate source, as `setp.and` does.
pub(crate) fn combine(with: Option<Bool>, value: bool, source: u64) -> bool {
    let source = source & 1 != 0;
    match with {
        None => value,
        Some(Bool::And) => value & source,
        Some(Bool::Or) => value | source,
        Some(Bool::Xor) => value ^ source,
    }
}

/// A bit field's position or length. The ISA confines them to 0 to 255; beyond, an H200 takes the
/// low byte in the 32-bit forms and the whole word in the 64-bit ones.
fn field(bits: u32, value: u64) -> u64 {
    if bits == 32 {
        value & 0xff
    } else {
        value & 0xffff_ffff
    }
}

fn bfind(op: &ScalarOp, a: u64) -> u64 {
    let value = number(op.ty, a);
    let a = if value < 0 { !a & op.ty.mask() } else { a };
    if a == 0 {
        return 0xffff_ffff;
    }
    let top = 63 - a.leading_zeros();
    u64::from(if op.mods.shiftamt {
        op.ty.bits() - 1 - top
    } else {
        top
    })
}

/// The `offset`-th set bit from `base`; a base beyond 31 (undefined) finds none.
fn fns(mask: u32, base: u32, offset: i32) -> u64 {
    let set = |i: &u32| mask >> i & 1 == 1;
    let nth = offset.unsigned_abs().saturating_sub(1) as usize;
    let found = match offset {
        _ if base > 31 => None,
        // Has no magnitude; an H200 gives 0.
        i32::MIN => Some(0),
        0 => Some(base).filter(set),
        1.. => (base..32).filter(set).nth(nth),
        _ => (0..=base).rev().filter(set).nth(nth),
    };
    found.map_or(0xffff_ffff, u64::from)
}

fn bfe(ty: Ty, a: u64, pos: u64, len: u64) -> u64 {
    let msb = u64::from(ty.bits()) - 1;
    let sign = ty.is_signed() && len != 0 && a >> (pos + len - 1).min(msb) & 1 == 1;
    let field = if pos > msb { 0 } else { a >> pos };
    // Bits of the field that exist in `a`.
    let have = if pos > msb { 0 } else { len.min(msb + 1 - pos) };
    let keep = if have >= 64 {
        u64::MAX
    } else {
        (1 << have) - 1
    };
    field & keep | if sign { !keep } else { 0 }
}

fn bfi(bits: u32, a: u64, b: u64, pos: u64, len: u64) -> u64 {
    if pos >= u64::from(bits) {
        return b;
    }
    let ones = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
    b & !(ones << pos) | (a & ones) << pos
}

fn szext(op: &ScalarOp, a: u32, b: u32) -> u32 {
    let n = b & 31;
    if b >= 32 && !op.mods.wrap {
        return a;
    }
    if n == 0 {
        return 0;
    }
    let up = 32 - n;
    if op.ty.is_signed() {
        ((a << up) as i32 >> up) as u32
    } else {
        a << up >> up
    }
}

fn bmsk(wrap: bool, a: u32, b: u32) -> u32 {
    if !wrap && a >= 32 {
        return 0;
    }
    let (from, width) = (a & 31, if wrap { b & 31 } else { b.min(32) });
    let ones = 1u32.checked_shl(width).unwrap_or(0).wrapping_sub(1);
    ones << from
}

/// `lut`'s bit `4a + 2b + c` for each bit position.
#[inline]
pub(crate) fn lop3(a: u32, b: u32, c: u32, lut: u8) -> u32 {
    let on = |bit: u32| 0u32.wrapping_sub(u32::from(lut) >> bit & 1);
    let of_c = |bit: u32| c & on(bit + 1) | !c & on(bit);
    let of_bc = |bit: u32| b & of_c(bit + 2) | !b & of_c(bit);
    a & of_bc(4) | !a & of_bc(0)
}

fn shf(op: &ScalarOp, a: u32, b: u32, c: u32) -> u32 {
    let n = if op.mods.wrap { c & 31 } else { c.min(32) };
    let both = u64::from(b) << 32 | u64::from(a);
    if op.mods.left {
        (both << n >> 32) as u32
    } else {
        (both >> n) as u32
    }
}

fn prmt(mode: Bytes, a: u64, b: u64, c: u64) -> u32 {
    let source = b << 32 | a;
    let k = c & 3;
    (0..4u64).fold(0, |d, i| {
        let sel = c >> (4 * i) & 15;
        let at = match mode {
            Bytes::Any => sel & 7,
            Bytes::F4e => k + i,
            Bytes::B4e => (k + 8 - i) & 7,
            Bytes::Rc8 => k,
            Bytes::Ecl => i.max(k),
            Bytes::Ecr => i.min(k),
            Bytes::Rc16 => 2 * (k & 1) + (i & 1),
        };
        let byte = (source >> (8 * at)) as u8;
        // In the general mode the selector's top bit spreads the byte's sign.
        let byte = if mode == Bytes::Any && sel & 8 != 0 {
            (byte as i8 >> 7) as u8
        } else {
            byte
        };
        d | u32::from(byte) << (8 * i)
    })
}
