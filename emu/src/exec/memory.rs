//! Loads and stores, and where an address leads.

use super::{Step, lanes, low_bits};
use crate::check::Use;
use crate::code::{Access, Address, Special};
use crate::machine::{Looked, Machine, Place, Warp};
use crate::memory::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, value_of, window};
use crate::ptx::ast::Space;
use crate::report::FindingKind;

/// Where a lane's address leads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// Device memory, or shared memory of a block.
    Place(Place),
    /// Local memory: an offset in the thread's own.
    Local(u32),
    /// The launch's parameters.
    Param(u32),
}

impl Machine {
    /// The address of a lane, in its space.
    pub(crate) fn address_of(warp: &Warp, address: &Address, lane: usize) -> u64 {
        warp.lanes(address.base)[lane].wrapping_add_signed(address.offset)
    }

    /// Where it leads.
    pub(crate) fn target(&self, warp: &Warp, space: Space, address: u64) -> Result<Target, String> {
        // The block's rank in the cluster is in bits 24-31, of a block's own addresses too: so ptxas
        // makes them, and programs clear the lowest bit for the even block of a pair. Without any
        // rank an address of `.shared::cta` is good as well.
        let shared = |address: u64| -> Result<Target, String> {
            let block = self.block(warp.block);
            let (rank, offset) = (address >> 24 & 0xff, (address & 0x00ff_ffff) as u32);
            if rank == 0 && space == Space::Shared {
                return Ok(Target::Place(Place::Shared(warp.block, offset)));
            }
            match block.cluster.get(rank as usize) {
                Some(&member) => Ok(Target::Place(Place::Shared(member, offset))),
                None => Err(format!(
                    "{address:#x} is in block {rank} of a cluster of {}",
                    block.cluster.len()
                )),
            }
        };
        match space {
            Space::Global | Space::Const => Ok(Target::Place(Place::Global(address))),
            Space::Shared | Space::SharedCluster => shared(address & 0xffff_ffff),
            Space::Local => Ok(Target::Local(address as u32)),
            Space::Param => Ok(Target::Param(address as u32)),
            Space::Generic => match window(address) {
                SHARED_WINDOW => shared(address & 0xffff_ffff),
                LOCAL_WINDOW => Ok(Target::Local(address as u32)),
                PARAM_WINDOW => Ok(Target::Param(address as u32)),
                _ => Ok(Target::Place(Place::Global(address))),
            },
        }
    }

    /// Bytes of a target, for one lane.
    pub(crate) fn bytes_of(
        &self,
        warp: &Warp,
        lane: usize,
        target: Target,
        bytes: usize,
    ) -> Result<&[u8], String> {
        match target {
            Target::Place(Place::Global(address)) => self
                .memory
                .read(address, bytes as u64)
                .map_err(|fault| format!("{bytes} bytes at {address:#x}: {}", fault.reason)),
            Target::Place(Place::Shared(block, offset)) => {
                let shared = &self.block(block).shared;
                let range = offset as usize..offset as usize + bytes;
                // The system's first KiB is nobody's to read, but for those who ask where it is.
                let inside = offset >= crate::code::SHARED_START
                    || warp
                        .entry
                        .specials
                        .iter()
                        .any(|(_, special)| *special == Special::Reserved);
                shared.get(range).filter(|_| inside).ok_or_else(|| {
                    format!(
                        "{bytes} bytes at {offset:#x} of {} bytes of shared memory",
                        shared.len()
                    )
                })
            }
            Target::Place(Place::Fill(_)) => Err("no memory".into()),
            Target::Local(_) => Err(format!(
                "local memory of lane {lane} of warp {}",
                warp.number
            )),
            Target::Param(offset) => {
                let block = self.block(warp.block);
                let params = self.grids[block.grid]
                    .as_ref()
                    .map(|grid| grid.launch.params.as_slice())
                    .unwrap_or_default();
                params
                    .get(offset as usize..offset as usize + bytes)
                    .ok_or_else(|| {
                        format!(
                            "{bytes} bytes at {offset} of {} bytes of parameters",
                            params.len()
                        )
                    })
            }
        }
    }

    /// The local bytes of a lane.
    pub(super) fn local(
        warp: &Warp,
        lane: usize,
        offset: u32,
        bytes: usize,
    ) -> Result<std::ops::Range<usize>, String> {
        let each = warp.entry.local_bytes as usize;
        match offset as usize + bytes <= each {
            true => Ok(lane * each + offset as usize..lane * each + offset as usize + bytes),
            false => Err(format!(
                "{bytes} bytes at {offset} of {each} bytes of local memory"
            )),
        }
    }

    pub(super) fn load(
        &mut self,
        warp: &mut Warp,
        at: usize,
        access: &Access,
        active: u32,
    ) -> Step {
        let size = access.bytes as usize;
        let bytes = size * access.values.len();
        for lane in lanes(active) {
            let address = Self::address_of(warp, &access.address, lane);
            let found = self
                .target(warp, access.address.space, address)
                .and_then(|target| {
                    let mut all = [0u8; 128];
                    match target {
                        Target::Local(offset) => {
                            let range = Self::local(warp, lane, offset, bytes)?;
                            all[..bytes].copy_from_slice(&warp.local[range.clone()]);
                            self.check_loaded_local(lane, (offset, range), size, &access.values);
                        }
                        target => {
                            all[..bytes].copy_from_slice(self.bytes_of(warp, lane, target, bytes)?);
                            if let Target::Place(place) = target {
                                self.check_access(lane, place, bytes, Use::Read, access.order);
                                self.check_loaded(lane, place, size, &access.values);
                            } else {
                                self.check_loaded(lane, Place::Fill(0), size, &access.values);
                            }
                        }
                    }
                    Ok(all)
                });
            let all = match found {
                Ok(all)
                    if address % bytes.min(16) as u64 == 0
                        || access.address.space == Space::Param =>
                {
                    all
                }
                Ok(all) => {
                    self.misaligned(warp, at, lane, address, bytes);
                    all
                }
                Err(message) => {
                    self.report(
                        warp,
                        warp.fragments[at].pc,
                        Some(lane as u32),
                        FindingKind::OutOfBounds,
                        format!("reads {message}"),
                    );
                    [0; 128]
                }
            };
            for (slot, value) in access.values.iter().zip(all.chunks(size)) {
                let Some(slot) = slot else { continue };
                let mut value = value_of(&value[..size.min(8)]);
                if access.signed {
                    let unused = 64 - 8 * access.bytes.min(8);
                    value = ((value << unused) as i64 >> unused) as u64 & low_bits(access.bits);
                }
                warp.registers[*slot as usize][lane] = value;
            }
        }
        if access.order.strong {
            let lane = active.trailing_zeros() as usize;
            let address = Self::address_of(warp, &access.address, lane);
            let target = self.target(warp, access.address.space, address);
            if let (Ok(Target::Place(place)), Some(slot)) =
                (target, access.values.iter().flatten().next())
            {
                let value = warp.lanes(*slot)[lane];
                warp.look(active, Looked::Value(place, bytes as u32, value));
            }
            Step::Poll
        } else {
            Step::Next
        }
    }

    pub(super) fn store(
        &mut self,
        warp: &mut Warp,
        at: usize,
        access: &Access,
        active: u32,
    ) -> Step {
        let size = access.bytes as usize;
        let bytes = size * access.values.len();
        for lane in lanes(active) {
            let address = Self::address_of(warp, &access.address, lane);
            let mut all = [0u8; 128];
            for (slot, to) in access.values.iter().flatten().zip(all.chunks_mut(size)) {
                let value = warp.lanes(*slot)[lane].to_le_bytes();
                to[..size.min(8)].copy_from_slice(&value[..size.min(8)]);
            }
            if address % bytes.min(16) as u64 != 0 {
                self.misaligned(warp, at, lane, address, bytes);
            }
            let stored = self
                .target(warp, access.address.space, address)
                .and_then(|target| match target {
                    Target::Local(offset) => {
                        let range = Self::local(warp, lane, offset, bytes)?;
                        warp.local[range.clone()].copy_from_slice(&all[..bytes]);
                        self.check_stored_local(lane, range, size, &access.values);
                        Ok(())
                    }
                    Target::Param(_) => Err("parameters, which are constant".into()),
                    Target::Place(place) => {
                        // Checks the range first: what a store says is about stores.
                        let old = self.bytes_of(warp, lane, target, bytes)?;
                        let what = match *old == all[..bytes] {
                            true => Use::Rewrite,
                            false => Use::Write,
                        };
                        self.check_access(lane, place, bytes, what, access.order);
                        self.write_place(place, &all[..bytes], None)?;
                        self.check_stored(lane, place, size, &access.values);
                        Ok(())
                    }
                });
            if let Err(message) = stored {
                self.report(
                    warp,
                    warp.fragments[at].pc,
                    Some(lane as u32),
                    FindingKind::OutOfBounds,
                    format!("writes {message}"),
                );
            }
        }
        self.progress += 1;
        Step::Next
    }

    pub(super) fn misaligned(
        &mut self,
        warp: &Warp,
        at: usize,
        lane: usize,
        address: u64,
        bytes: usize,
    ) {
        let message = format!("an access of {bytes} bytes at {address:#x}");
        self.report(
            warp,
            warp.fragments[at].pc,
            Some(lane as u32),
            FindingKind::Misaligned,
            message,
        );
    }
}
