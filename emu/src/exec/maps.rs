//! Tensor maps in memory: fences, replaced fields, copies.

use super::{Step, lanes};
use crate::check::Use;
use crate::code::{Address, Fence, Op, Order};
use crate::machine::{Machine, Place, Warp};
use crate::report::FindingKind;
use crate::tensor::map::replace;
use crate::tensor::tma::{BYTES, MAP_ALIGNMENT};

use super::memory::Target;

impl Machine {
    pub(super) fn tensor_maps(&mut self, warp: &mut Warp, at: usize, op: &Op, active: u32) -> Step {
        let pc = warp.fragments[at].pc;
        match op {
            Op::MapFence { map, scope } => {
                let fence = Fence::Memory {
                    scope: *scope,
                    acquire: true,
                    release: false,
                };
                self.check_fence(fence, active);
                for lane in lanes(active) {
                    let address = Self::address_of(warp, map, lane);
                    match self.target(warp, map.space, address) {
                        Ok(Target::Place(Place::Global(address))) => {
                            self.checked(|check| check.acquire_map(lane as u32, address));
                        }
                        Ok(_) => {}
                        Err(message) => {
                            let kind = FindingKind::OutOfBounds;
                            self.report(warp, pc, Some(lane as u32), kind, message);
                        }
                    }
                }
            }
            Op::MapReplace {
                map,
                field,
                ordinal,
                value,
            } => {
                for lane in lanes(active) {
                    let value = warp.lanes(*value)[lane];
                    let done = self.map_at(warp, map, lane).and_then(|(place, mut bytes)| {
                        self.check_access(lane, place, BYTES, Use::Write, Order::default());
                        replace(&mut bytes, *field, *ordinal as usize, value)
                            .map_err(|message| (FindingKind::Illegal, message))?;
                        self.write_place(place, &bytes, None)
                            .map_err(|message| (FindingKind::OutOfBounds, message))
                    });
                    if let Err((kind, message)) = done {
                        self.report(warp, pc, Some(lane as u32), kind, message);
                    }
                }
            }
            Op::MapCopy { dst, src, scope } => {
                if !self.whole_warp(warp, at) {
                    return Step::Blocked;
                }
                let lane = active.trailing_zeros() as usize;
                let done = self.map_at(warp, src, lane).and_then(|(from, bytes)| {
                    let (to, _) = self.map_at(warp, dst, lane)?;
                    self.check_access(lane, from, BYTES, Use::Read, Order::default());
                    self.check_access(lane, to, BYTES, Use::Write, Order::default());
                    self.write_place(to, &bytes, None)
                        .map_err(|message| (FindingKind::OutOfBounds, message))
                });
                if let Err((kind, message)) = done {
                    self.report(warp, pc, Some(lane as u32), kind, message);
                }
                let fence = Fence::Memory {
                    scope: *scope,
                    acquire: false,
                    release: true,
                };
                self.check_fence(fence, active);
                self.progress += 1;
            }
            _ => {}
        }
        Step::Next
    }

    /// Where a lane's map is, and its bytes.
    fn map_at(
        &mut self,
        warp: &Warp,
        map: &Address,
        lane: usize,
    ) -> Result<(Place, [u8; BYTES]), (FindingKind, String)> {
        let bounds = |message| (FindingKind::OutOfBounds, message);
        let address = Self::address_of(warp, map, lane);
        if !address.is_multiple_of(MAP_ALIGNMENT) {
            let message =
                format!("the tensor map at {address:#x} is not aligned to {MAP_ALIGNMENT} bytes");
            return Err((FindingKind::Misaligned, message));
        }
        let target = self.target(warp, map.space, address).map_err(bounds)?;
        let Target::Place(place) = target else {
            return Err(bounds("a tensor map in local memory or parameters".into()));
        };
        let bytes = self.bytes_of(warp, lane, target, BYTES).map_err(bounds)?;
        let bytes = bytes
            .try_into()
            .map_err(|_| bounds("no tensor map".into()))?;
        Ok((place, bytes))
    }
}
