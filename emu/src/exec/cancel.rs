//! `clusterlaunchcontrol`.
//!
//! The ISA leaves the response's form open; here its low half holds the first block along x and y,
//! its high half that along z, and in the highest bit whether a cluster was cancelled.

use super::{Step, lanes};
use crate::code::{Address, Query, Slot};
use crate::machine::{Machine, Piece, Place, Warp, Work};
use crate::report::FindingKind;

/// Bytes of a response.
const BYTES: u32 = 16;
/// Set in the high half of what was granted.
const GRANTED: u64 = 1 << 63;

impl Machine {
    pub(super) fn try_cancel(
        &mut self,
        warp: &Warp,
        at: usize,
        (to, bar, all): (&Address, &Address, bool),
        active: u32,
    ) -> Step {
        let pc = warp.fragments[at].pc;
        for lane in lanes(active) {
            if let Err(message) = self.request(warp, at, lane, (to, bar, all)) {
                self.report(warp, pc, Some(lane as u32), FindingKind::Illegal, message);
            }
        }
        Step::Next
    }

    fn request(
        &mut self,
        warp: &Warp,
        at: usize,
        lane: usize,
        (to, bar, all): (&Address, &Address, bool),
    ) -> Result<(), String> {
        let (block, offset) = self.shared_place(warp, to, lane)?;
        let (bar_block, bar_offset) = self.shared_place(warp, bar, lane)?;
        if (block, bar_block) != (warp.block, warp.block) {
            return Err(
                "the response and the mbarrier are in the block's own shared memory".into(),
            );
        }
        if self.block(block).refused {
            return Err("a request after the block saw that one was refused".into());
        }
        if !offset.is_multiple_of(BYTES) {
            return Err(format!(
                "the response goes to {offset:#x}, which is no multiple of {BYTES}"
            ));
        }
        let members = self.block(block).cluster.clone();
        if all && members.iter().any(|&member| self.block(member).live == 0) {
            return Err("a block of the cluster has ended, and all are to get the response".into());
        }
        let [low, high] = match self.cancel_cluster(block) {
            Some([x, y, z]) => [u64::from(x) | u64::from(y) << 32, u64::from(z) | GRANTED],
            None => [0, 0],
        };
        let receivers = if all { members.to_vec() } else { vec![block] };
        for member in receivers {
            let piece = |half: u32, value: u64| Piece {
                from: Place::Fill(value),
                to: Place::Shared(member, offset + 8 * half),
                bytes: 8,
            };
            let pieces = vec![piece(0, low), piece(1, high)];
            let bar = (member, bar_offset);
            self.check_counted(lane, &pieces, bar, (true, false));
            let issuer = self.issuer(warp, at, lane);
            let work = Work::Load {
                pieces,
                bar,
                bytes: BYTES,
                reduce: None,
            };
            self.later(issuer, work);
        }
        Ok(())
    }

    pub(super) fn query_cancel(
        &mut self,
        warp: &mut Warp,
        at: usize,
        (query, dst, response): (Query, &[Option<Slot>], [Slot; 2]),
        active: u32,
    ) -> Step {
        let pc = warp.fragments[at].pc;
        for lane in lanes(active) {
            let [low, high] = response.map(|slot| warp.lanes(slot)[lane]);
            let granted = high & GRANTED != 0;
            if query == Query::IsCanceled && !granted {
                self.block_mut(warp.block).refused = true;
            }
            if !granted && query != Query::IsCanceled {
                let message = "the response is that no cluster was cancelled".into();
                self.report(warp, pc, Some(lane as u32), FindingKind::Illegal, message);
            }
            let first = [low & 0xffff_ffff, low >> 32, high & 0xffff_ffff, 0];
            let values = match query {
                Query::IsCanceled => vec![u64::from(granted)],
                Query::First => first.to_vec(),
                Query::Axis(axis) => vec![first[axis as usize]],
            };
            for (slot, value) in dst.iter().zip(values) {
                if let Some(slot) = slot {
                    warp.registers[*slot as usize][lane] = value;
                }
            }
        }
        Step::Next
    }
}
