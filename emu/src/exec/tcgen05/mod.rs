//! `tcgen05`: tensor memory, and what the tensor cores do with it.
//!
//! Products and copies go into their block's pipe and are executed in the order in which they were
//! issued, as late as the run's completion has it; their operands are read then. That order is more
//! than the ISA keeps (9.7.16.6.2): what it does not keep, the checker finds.

mod allocation;
mod complete;
mod issue;
mod moves;

pub(crate) use moves::{IssuedLoad, IssuedStore};

use super::{Step, lanes};
use crate::code::{Address, Slot, Tcgen05};
use crate::machine::{Machine, Warp};
use crate::report::FindingKind;
use crate::tensor::tcgen05::memory::Area;

/// A kind of finding and its message.
type Fault = (FindingKind, String);

/// What is wrong with an operand.
fn illegal(message: String) -> Fault {
    (FindingKind::Illegal, message)
}

/// What is wrong with a place.
fn outside(message: String) -> Fault {
    (FindingKind::OutOfBounds, message)
}

impl Machine {
    pub(super) fn tcgen05(
        &mut self,
        warp: &mut Warp,
        at: usize,
        op: &Tcgen05,
        active: u32,
    ) -> Step {
        let pc = warp.fragments[at].pc;
        if op.is_collective() {
            if !self.whole_warp(warp, at) {
                return Step::Blocked;
            }
            if active != warp.live || warp.live != u32::MAX {
                let message = format!("only threads {active:#010x} of the warp take part");
                self.report(warp, pc, None, FindingKind::Divergent, message);
            }
        }
        let done = match op {
            Tcgen05::Alloc {
                group,
                dst,
                columns,
            } => match self.allocate(warp, at, (*group, dst, *columns), active) {
                Ok(None) => return Step::Blocked,
                Ok(Some(())) => Ok(()),
                Err(fault) => Err(fault),
            },
            Tcgen05::Dealloc {
                group,
                at: address,
                columns,
            } => self.deallocate(warp, (*group, *address, *columns), active),
            Tcgen05::Relinquish { .. } => {
                self.block_mut(warp.block)
                    .tensor
                    .relinquished
                    .get_or_insert(pc);
                Ok(())
            }
            Tcgen05::Load {
                fragment,
                dst,
                address,
                reduction,
            } => self.tensor_load(warp, (fragment, dst, address, *reduction), active),
            Tcgen05::Store {
                fragment,
                src,
                address,
            } => self.tensor_store(warp, (fragment, src, address), active),
            Tcgen05::Wait { load } => {
                self.tensor_wait(warp, *load, active);
                Ok(())
            }
            Tcgen05::Fence { before } => {
                self.checked(|check| check.tensor_fence(*before, active));
                Ok(())
            }
            Tcgen05::Mma(_) | Tcgen05::Copy { .. } | Tcgen05::Commit { .. } => {
                for lane in lanes(active) {
                    if let Err((kind, message)) = self.tensor_issue(warp, at, op, lane) {
                        self.report(warp, pc, Some(lane as u32), kind, message);
                    }
                }
                Ok(())
            }
        };
        if let Err((kind, message)) = done {
            self.report(warp, pc, None, kind, message);
        }
        Step::Next
    }

    /// The value of a register that all threads of the warp must agree on.
    fn uniform(warp: &Warp, slot: Slot, active: u32, what: &str) -> Result<u32, Fault> {
        let values = warp.lanes(slot);
        let first = values[active.trailing_zeros() as usize & 31] as u32;
        match lanes(active).find(|&lane| values[lane] as u32 != first) {
            None => Ok(first),
            Some(lane) => Err(illegal(format!(
                "{what} is {first:#x} in one thread of the warp and {:#x} in lane {lane}: all have the same",
                values[lane] as u32
            ))),
        }
    }

    fn uniform_address(warp: &Warp, address: &Address, active: u32) -> Result<u32, Fault> {
        let base = Self::uniform(warp, address.base, active, "the address")?;
        Ok(base.wrapping_add(address.offset as u32))
    }

    /// Whether a block has the columns of all areas.
    fn owned(&mut self, block: usize, areas: &[Area], verb: &str) -> Result<(), Fault> {
        let memory = self.tensor_memory(block);
        areas.iter().try_for_each(|area| {
            memory
                .owns(block, area)
                .map_err(|what| outside(format!("{verb} {what}")))
        })
    }
}
