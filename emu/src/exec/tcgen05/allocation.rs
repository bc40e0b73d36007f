//! `tcgen05.alloc` and `tcgen05.dealloc` (PTX ISA 9.0, 9.7.16.7.1).

use super::{Fault, illegal, outside};
use crate::check::Use;
use crate::code::{Address, Order, Slot};
use crate::exec::memory::Target;
use crate::machine::{Allocation, Issuer, Joint, Machine, Wait, Warp};
use crate::report::FindingKind;
use crate::tensor::tcgen05::memory::{COLUMNS, UNIT};

/// The lane in whose name a warp allocates.
const LANE: usize = 0;

fn legal_columns(columns: u32) -> Result<(), Fault> {
    match columns.is_power_of_two() && (UNIT..=COLUMNS).contains(&columns) {
        true => Ok(()),
        false => Err(illegal(format!(
            "{columns} columns are no power of two from {UNIT} to {COLUMNS}"
        ))),
    }
}

impl Machine {
    /// Allocates columns and writes their address to shared memory; `None` while there are none.
    pub(super) fn allocate(
        &mut self,
        warp: &mut Warp,
        at: usize,
        (group, dst, columns): (u32, &Address, Slot),
        active: u32,
    ) -> Result<Option<()>, Fault> {
        let columns = Self::uniform(warp, columns, active, "the number of columns")?;
        legal_columns(columns)?;
        if let Some(pc) = self.block(warp.block).tensor.relinquished {
            let line = warp.entry.code.get(pc as usize).map_or(0, |code| code.line);
            return Err(illegal(format!(
                "the block has given up allocating, with the relinquish_alloc_permit of line {line}"
            )));
        }
        let last = self.block(warp.block).tensor.last;
        if last != 0 && columns > last {
            return Err(illegal(format!(
                "{columns} columns after an allocation of {last}: the block's allocations do not grow"
            )));
        }
        let issuer = self.issuer(warp, at, LANE);
        let first = match group {
            1 => self.tensor_memory(warp.block).free(columns, None),
            _ => self.allocate_jointly(warp, columns, &issuer)?,
        };
        let Some(first) = first else {
            warp.fragments[at].wait = Wait::Columns(columns, group);
            return Ok(None);
        };
        let block = warp.block;
        self.block_mut(block).tensor.last = columns;
        let memory = self.tensor_memory(block);
        memory.cells.forget(first, columns);
        // The peer may have taken them for this block.
        memory
            .allocations
            .retain(|own| (own.block, own.first, own.left) != (block, first, false));
        memory.allocations.push(Allocation {
            block,
            first,
            columns,
            left: false,
            issuer,
        });
        let sm = self.sm_of(block);
        self.checked(|check| check.tensor_alloc(sm, first, columns));
        let address = Self::address_of(warp, dst, LANE);
        let target = self.target(warp, dst.space, address).map_err(outside)?;
        let Target::Place(place @ crate::machine::Place::Shared(to, _)) = target else {
            return Err(outside(format!("{address:#x} is not in shared memory")));
        };
        if to != block || address % 4 != 0 {
            return Err(illegal(format!(
                "the address goes to {address:#x}, which is no word of the block's own shared memory"
            )));
        }
        self.bytes_of(warp, LANE, target, 4)
            .map_err(|message| outside(format!("writes {message}")))?;
        self.check_access(LANE, place, 4, Use::Write, Order::default());
        self.write_place(place, &first.to_le_bytes(), None)
            .map_err(outside)?;
        self.progress += 1;
        Ok(Some(()))
    }

    /// The same columns in both blocks of a pair, when both have come.
    fn allocate_jointly(
        &mut self,
        warp: &Warp,
        columns: u32,
        issuer: &Issuer,
    ) -> Result<Option<u32>, Fault> {
        let block = warp.block;
        self.group_of(block, 2).map_err(illegal)?;
        let peer = self.peer_of(block).unwrap_or(block);
        if let Some(Joint::Granted(first)) = self.block(block).tensor.joint {
            self.block_mut(block).tensor.joint = None;
            return Ok(Some(first));
        }
        if self.sm_of(block) == self.sm_of(peer) {
            return Err(illegal("both blocks of the pair are on one SM".into()));
        }
        match self.block(peer).tensor.joint {
            Some(Joint::Waits(others)) if others == columns => {}
            Some(Joint::Waits(others)) => {
                return Err(illegal(format!(
                    "{columns} columns, and the peer block allocates {others} with them"
                )));
            }
            _ => {
                self.block_mut(block).tensor.joint = Some(Joint::Waits(columns));
                return Ok(None);
            }
        }
        self.tensor_memory(peer);
        self.tensor_memory(block);
        let (own, others) = (self.sm_of(block), self.sm_of(peer));
        let first = self.tensors[&own].free(columns, self.tensors.get(&others));
        let Some(first) = first else {
            self.block_mut(block).tensor.joint = Some(Joint::Waits(columns));
            return Ok(None);
        };
        self.block_mut(block).tensor.joint = None;
        self.block_mut(peer).tensor.joint = Some(Joint::Granted(first));
        // Taken now, before another pair comes.
        self.tensor_memory(peer).allocations.push(Allocation {
            block: peer,
            first,
            columns,
            left: false,
            issuer: issuer.clone(),
        });
        self.wake_cluster_of(block);
        Ok(Some(first))
    }

    /// Frees columns; those of a pair when both blocks have.
    pub(super) fn deallocate(
        &mut self,
        warp: &Warp,
        (group, at, columns): (u32, Slot, Slot),
        active: u32,
    ) -> Result<(), Fault> {
        let columns = Self::uniform(warp, columns, active, "the number of columns")?;
        let address = Self::uniform(warp, at, active, "the address")?;
        legal_columns(columns)?;
        let block = warp.block;
        let memory = self.tensor_memory(block);
        let own = memory
            .allocations
            .iter_mut()
            .find(|own| own.block == block && own.first == address && !own.left);
        let Some(own) = own else {
            return Err(illegal(format!(
                "no allocation of the block begins at {address:#x}"
            )));
        };
        if own.columns != columns {
            return Err(illegal(format!(
                "{columns} columns, and {} were allocated at {address:#x}",
                own.columns
            )));
        }
        own.left = true;
        let sm = self.sm_of(block);
        self.checked(|check| check.tensor_free(LANE as u32, sm, address, columns));
        // The peer may have freed its part and ended.
        let mut members = vec![block];
        members.extend(self.peer_of(block).filter(|_| group == 2));
        let waits = |machine: &Machine, member: usize| {
            let memory = machine.tensors.get(&machine.sm_of(member));
            memory.is_some_and(|memory| {
                memory
                    .allocations
                    .iter()
                    .any(|own| own.block == member && own.first == address && !own.left)
            })
        };
        if members.iter().any(|&member| waits(self, member)) {
            return Ok(());
        }
        for &member in &members {
            let gone =
                |own: &Allocation| own.left && own.first == address && members.contains(&own.block);
            self.tensor_memory(member)
                .allocations
                .retain(|own| !gone(own));
        }
        for member in members {
            self.wake_sm(self.sm_of(member));
        }
        Ok(())
    }

    /// A block is over: it should have freed its columns, and waited for its tensor cores.
    pub(crate) fn end_tensor(&mut self, block: usize) {
        let sm = self.sm_of(block);
        let pending = self.block_mut(block).tensor.pipe.pop_front();
        if let Some((issuer, _)) = pending {
            let message = "the block ends before this is known to be complete".into();
            self.find_issued(Some(&issuer), FindingKind::Pending, message);
        }
        let Some(memory) = self.tensors.get_mut(&sm) else {
            return;
        };
        let (own, others): (Vec<Allocation>, Vec<Allocation>) =
            std::mem::take(&mut memory.allocations)
                .into_iter()
                .partition(|own| own.block == block);
        memory.allocations = others;
        for own in own.iter().filter(|own| !own.left) {
            let message = format!(
                "the block ends, and its {} columns of tensor memory from {} on are not deallocated",
                own.columns, own.first
            );
            self.find_issued(Some(&own.issuer), FindingKind::Pending, message);
        }
        if !own.is_empty() {
            self.wake_sm(sm);
        }
    }
}
