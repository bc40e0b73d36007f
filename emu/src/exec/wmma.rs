//! `wmma`: fragments from memory, their products, and back.

use super::tensor::narrow;
use crate::check::Use;
use crate::code::{Address, Op, Order, Slot};
use crate::machine::{Machine, Warp};
use crate::memory::value_of;
use crate::report::FindingKind;
use crate::tensor::product::Numerics;
use crate::tensor::wmma::{Fragment, Wmma};

use super::memory::Target;

impl Machine {
    /// The whole warp is here.
    pub(super) fn wmma(&mut self, warp: &mut Warp, at: usize, op: &Op) {
        let pc = warp.fragments[at].pc;
        match op {
            Op::WmmaProduct { op, d, a, b, c } => {
                let read = |slots: &[Slot]| -> Vec<[u32; 32]> {
                    slots.iter().map(|&slot| narrow(warp.lanes(slot))).collect()
                };
                match op.execute(Numerics::default(), &read(a), &read(b), &read(c)) {
                    Ok(sums) => {
                        for (&slot, values) in d.iter().zip(&sums) {
                            warp.registers[slot as usize] = values.map(u64::from);
                        }
                    }
                    Err(message) => self.report(warp, pc, None, FindingKind::Illegal, message),
                }
            }
            Op::WmmaMove {
                op,
                slots,
                address,
                stride,
            } => {
                let (fragment, row, store) = match op {
                    Wmma::Load { fragment, row } => (fragment, *row, false),
                    Wmma::Store { fragment, row } => (fragment, *row, true),
                    Wmma::Product(_) => return,
                };
                for lane in 0..32 {
                    let line = stride.map(|slot| warp.lanes(slot)[lane] & 0xffff_ffff);
                    let line =
                        line.unwrap_or(if row { fragment.columns } else { fragment.rows } as u64);
                    let moved = if store {
                        self.wmma_store(warp, lane, (fragment, row, line), slots, address)
                    } else {
                        self.wmma_load(warp, lane, (fragment, row, line), slots, address)
                    };
                    if let Err((kind, message)) = moved {
                        self.report(warp, pc, Some(lane as u32), kind, message);
                        return;
                    }
                }
            }
            _ => {}
        }
    }

    /// Where each element of a lane's register lies.
    fn wmma_places(
        &self,
        warp: &Warp,
        lane: usize,
        (fragment, row, line): (&Fragment, bool, u64),
        register: usize,
        address: &Address,
    ) -> Result<Vec<Target>, (FindingKind, String)> {
        let base = Self::address_of(warp, address, lane);
        // Rows begin at multiples of 16 bytes.
        if !base.is_multiple_of(16) || !line.wrapping_mul(fragment.bytes as u64).is_multiple_of(16)
        {
            let message = format!("a fragment at {base:#x} with lines of {line} elements");
            return Err((FindingKind::Misaligned, message));
        }
        (0..fragment.per_register())
            .map(|index| {
                let (i, j) = fragment.place(lane, register, index);
                let (i, j) = if row { (i, j) } else { (j, i) };
                let element = (i as u64).wrapping_mul(line).wrapping_add(j as u64);
                let at = base.wrapping_add(element.wrapping_mul(fragment.bytes as u64));
                self.target(warp, address.space, at)
                    .map_err(|message| (FindingKind::OutOfBounds, message))
            })
            .collect()
    }

    fn wmma_load(
        &mut self,
        warp: &mut Warp,
        lane: usize,
        shape: (&Fragment, bool, u64),
        slots: &[Slot],
        address: &Address,
    ) -> Result<(), (FindingKind, String)> {
        let bytes = shape.0.bytes;
        for (register, &slot) in slots.iter().enumerate() {
            let mut value = 0;
            let places = self.wmma_places(warp, lane, shape, register, address)?;
            for (index, target) in places.into_iter().enumerate() {
                let found = self
                    .bytes_of(warp, lane, target, bytes)
                    .map_err(|message| (FindingKind::OutOfBounds, format!("reads {message}")))?;
                value |= value_of(found) << (8 * bytes * index);
                if let Target::Place(place) = target {
                    self.check_access(lane, place, bytes, Use::Read, Order::default());
                    self.check_loaded(lane, place, bytes, &[Some(slot)]);
                }
            }
            warp.registers[slot as usize][lane] = value;
        }
        Ok(())
    }

    fn wmma_store(
        &mut self,
        warp: &mut Warp,
        lane: usize,
        shape: (&Fragment, bool, u64),
        slots: &[Slot],
        address: &Address,
    ) -> Result<(), (FindingKind, String)> {
        let bytes = shape.0.bytes;
        let bounds = |message| (FindingKind::OutOfBounds, format!("writes {message}"));
        for (register, &slot) in slots.iter().enumerate() {
            let value = warp.lanes(slot)[lane].to_le_bytes();
            let places = self.wmma_places(warp, lane, shape, register, address)?;
            for (target, value) in places.into_iter().zip(value.chunks(bytes)) {
                self.bytes_of(warp, lane, target, bytes).map_err(bounds)?;
                let Target::Place(place) = target else {
                    return Err(bounds("local memory or parameters".into()));
                };
                self.check_access(lane, place, bytes, Use::Write, Order::default());
                self.write_place(place, value, None).map_err(bounds)?;
                self.check_stored(lane, place, bytes, &[Some(slot)]);
            }
        }
        self.progress += 1;
        Ok(())
    }
}
