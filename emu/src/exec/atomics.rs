//! Read-modify-write.

use super::{Step, lanes, low_bits};
use crate::check::Use;
use crate::code::{Atomic, AtomicOp, Number};
use crate::machine::{Looked, Machine, Place, Warp};
use crate::memory::value_of;
use crate::report::FindingKind;

use super::memory::Target;

/// One element's new value. Sums of f32 by threads in device memory flush subnormal numbers (PTX
/// ISA, "atom"); those in shared memory do not, nor, on an H200, those of bulk reductions.
fn combine(op: AtomicOp, number: Number, bytes: u32, old: u64, value: u64, flushes: bool) -> u64 {
    let bits = 8 * bytes;
    let sign = |value: u64| (value << (64 - bits)) as i64 >> (64 - bits);
    match number {
        Number::Unsigned | Number::Signed => {
            let signed = number == Number::Signed;
            let new = match op {
                AtomicOp::And => old & value,
                AtomicOp::Or => old | value,
                AtomicOp::Xor => old ^ value,
                AtomicOp::Exch | AtomicOp::Cas => value,
                AtomicOp::Add => old.wrapping_add(value),
                AtomicOp::Inc => {
                    if old >= value {
                        0
                    } else {
                        old + 1
                    }
                }
                AtomicOp::Dec => {
                    if old == 0 || old > value {
                        value
                    } else {
                        old - 1
                    }
                }
                AtomicOp::Min if signed => sign(old).min(sign(value)) as u64,
                AtomicOp::Max if signed => sign(old).max(sign(value)) as u64,
                AtomicOp::Min => old.min(value),
                AtomicOp::Max => old.max(value),
            };
            new & low_bits(bits)
        }
        Number::F32 => {
            let flushed = |value: f32| match flushes && value.is_subnormal() {
                true => 0f32.copysign(value),
                false => value,
            };
            let (a, b) = (f32::from_bits(old as u32), f32::from_bits(value as u32));
            u64::from(canonical32(flushed(flushed(a) + flushed(b))))
        }
        Number::F64 => (f64::from_bits(old) + f64::from_bits(value)).to_bits(),
        Number::F16 | Number::Bf16 => half(op, number, old as u16, value as u16).into(),
    }
}

fn canonical32(value: f32) -> u32 {
    if value.is_nan() {
        0x7fff_ffff
    } else {
        value.to_bits()
    }
}

/// f16 and bf16: their sums are exact in f64, so they are rounded once.
fn half(op: AtomicOp, number: Number, old: u16, value: u16) -> u16 {
    use crate::tensor::number::{f16_from_f64, f16_to_f32};
    let wide = |bits: u16| match number {
        Number::F16 => f64::from(f16_to_f32(bits)),
        _ => f64::from(f32::from_bits(u32::from(bits) << 16)),
    };
    let (a, b) = (wide(old), wide(value));
    // The smaller and the larger of a NaN and a number are the number.
    let new = match op {
        AtomicOp::Min => a.min(b),
        AtomicOp::Max => a.max(b),
        _ => a + b,
    };
    match number {
        Number::F16 => f16_from_f64(new),
        _ => bf16_from_f64(new),
    }
}

/// To nearest, ties to even; NaN to the canonical one.
fn bf16_from_f64(value: f64) -> u16 {
    if value.is_nan() {
        return 0x7fff;
    }
    // Rounded to odd in f32 first, so that the second rounding sees what the first dropped.
    let near = value as f32;
    let bits = near.to_bits();
    let odd = if f64::from(near) == value || near.is_infinite() {
        bits
    } else if f64::from(near).abs() > value.abs() {
        (bits - 1) | 1
    } else {
        bits | 1
    };
    ((odd + 0x7fff + (odd >> 16 & 1)) >> 16) as u16
}

/// Combines elements of `size` bytes with what is there.
pub(crate) fn reduce_bytes(
    to: &mut [u8],
    from: &[u8],
    op: AtomicOp,
    number: Number,
    size: u32,
    flushes: bool,
) -> Result<(), String> {
    let size = size as usize;
    if size == 0 || size > 8 || !to.len().is_multiple_of(size) {
        return Err(format!(
            "{} bytes are no whole elements of {size}",
            to.len()
        ));
    }
    for (to, from) in to.chunks_mut(size).zip(from.chunks(size)) {
        let new = combine(
            op,
            number,
            size as u32,
            value_of(to),
            value_of(from),
            flushes,
        );
        to.copy_from_slice(&new.to_le_bytes()[..size]);
    }
    Ok(())
}

impl Machine {
    pub(super) fn atomic(
        &mut self,
        warp: &mut Warp,
        at: usize,
        atomic: &Atomic,
        active: u32,
    ) -> Step {
        let size = (atomic.bytes * atomic.lanes) as usize;
        let bytes = size * atomic.a.len();
        for lane in lanes(active) {
            let address = Self::address_of(warp, &atomic.address, lane);
            if address % bytes.min(16) as u64 != 0 {
                self.misaligned(warp, at, lane, address, bytes);
            }
            let mut before = [0u8; 64];
            let done = self
                .target(warp, atomic.address.space, address)
                .and_then(|target| {
                    let Target::Place(place) = target else {
                        return Err("atomics on local memory or parameters".into());
                    };
                    before[..bytes].copy_from_slice(self.bytes_of(warp, lane, target, bytes)?);
                    let mut after = before;
                    // Halves are compared together.
                    let whole = !atomic.halves
                        || atomic
                            .a
                            .iter()
                            .zip(before.chunks(size))
                            .all(|(&slot, part)| value_of(part) == warp.lanes(slot)[lane]);
                    for (index, &slot) in atomic.a.iter().enumerate() {
                        let part = &mut after[index * size..(index + 1) * size];
                        let value = warp.lanes(slot)[lane];
                        if atomic.op == AtomicOp::Cas {
                            let index = if atomic.halves { index as u32 } else { 0 };
                            let new = atomic.b.map_or(0, |slot| warp.lanes(slot + index)[lane]);
                            if whole && value_of(part) == value & low_bits(8 * size as u32) {
                                part.copy_from_slice(&new.to_le_bytes()[..size]);
                            }
                        } else {
                            reduce_bytes(
                                part,
                                &value.to_le_bytes()[..size],
                                atomic.op,
                                atomic.number,
                                atomic.bytes,
                                matches!(place, Place::Global(_)),
                            )?;
                        }
                    }
                    if after != before {
                        self.progress += 1;
                    } else {
                        let value = value_of(&before[..size]);
                        warp.look(1 << lane, Looked::Value(place, bytes as u32, value));
                    }
                    self.check_access(lane, place, bytes, Use::Change, atomic.order);
                    self.check_loaded(lane, place, size, &atomic.dst);
                    if atomic.op != AtomicOp::Exch && !self.all_written(place, bytes) {
                        self.checked(|check| check.unwritten(lane as u32, "changed"));
                    }
                    self.write_place(place, &after[..bytes], None)
                });
            if let Err(message) = done {
                self.report(
                    warp,
                    warp.fragments[at].pc,
                    Some(lane as u32),
                    FindingKind::OutOfBounds,
                    format!("changes {message}"),
                );
            }
            for (slot, old) in atomic.dst.iter().zip(before.chunks(size)) {
                if let Some(slot) = slot {
                    warp.registers[*slot as usize][lane] = value_of(&old[..size]);
                }
            }
        }
        Step::Poll
    }
}
