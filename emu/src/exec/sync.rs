//! Barriers and mbarriers.

use super::{Step, lanes};
use crate::code::{BarrierReduce, Mbarrier as MbarrierCall, MbarrierOp, Op};
use crate::machine::{Fragment, Looked, MOST_ARRIVALS, Machine, Mbarrier, Place, Wait, Warp};
use crate::report::FindingKind;

use super::memory::Target;

/// The cluster's barrier, which has no number.
const CLUSTER: u32 = u32::MAX;

impl Machine {
    pub(super) fn synchronise(&mut self, warp: &mut Warp, at: usize, op: &Op, active: u32) -> Step {
        match op {
            Op::WarpBarrier { mask } => match self.teams(warp, at, *mask, active) {
                Some(_) => Step::Next,
                None => Step::Blocked,
            },
            Op::BlockBarrier { .. } => self.block_barrier(warp, at, op, active),
            Op::ClusterBarrier {
                wait,
                relaxed,
                aligned,
            } => self.cluster_barrier(warp, at, (*wait, *relaxed, *aligned), active),
            Op::Mbarrier(call) => self.mbarrier(warp, at, call, active),
            _ => Step::Next,
        }
    }

    fn block_barrier(&mut self, warp: &mut Warp, at: usize, op: &Op, active: u32) -> Step {
        let Op::BlockBarrier {
            id,
            threads,
            wait,
            reduce,
            aligned,
        } = op
        else {
            return Step::Next;
        };
        let pc = warp.fragments[at].pc;
        let first = active.trailing_zeros() as usize;
        if *aligned {
            if !self.whole_warp(warp, at) {
                return Step::Blocked;
            }
            if active != warp.live {
                let message =
                    "a predicate keeps threads of the warp from an aligned barrier".into();
                self.report(
                    warp,
                    pc,
                    Some(first as u32),
                    FindingKind::Divergent,
                    message,
                );
            }
        }
        let id = warp.lanes(*id)[first] as u32;
        if id > 15 {
            self.report(
                warp,
                pc,
                Some(first as u32),
                FindingKind::Illegal,
                format!("barrier {id} is not 0 to 15"),
            );
            return Step::Next;
        }
        let back = warp.reducing & active;
        if let Some((kind, dst, ..)) = reduce.filter(|_| back != 0) {
            // Others may have come to the instruction meanwhile.
            self.leave_behind(warp, at, active & !back);
            warp.reducing &= !back;
            self.barrier_result(warp, back, id, kind, dst);
            return Step::Next;
        }
        let needed = threads.map(|slot| warp.lanes(slot)[first] as u32);
        if let Some(needed) = needed
            && (needed == 0 || needed % 32 != 0 || needed > 1024)
        {
            let message = format!("{needed} threads are no multiple of 32 up to 1024");
            self.report(warp, pc, Some(first as u32), FindingKind::Illegal, message);
            return Step::Next;
        }
        let counted = reduce.map_or(0, |(_, _, pred, negated)| {
            lanes(active)
                .filter(|&lane| (warp.lanes(pred)[lane] != 0) != negated)
                .count() as u32
        });
        let came = warp
            .gathered
            .named
            .get(&id)
            .map_or(0, |gathered| gathered.0);
        if came & active != 0 {
            // The rest of the warp has not been at the last one yet.
            warp.fragments[at].wait = Wait::Lanes;
            return Step::Blocked;
        }
        let phase = self.block(warp.block).named[id as usize].phase;
        self.check_named(warp, at, id, *wait);
        let gathered = warp.gathered.named.entry(id).or_default();
        *gathered = (came | active, gathered.1 + counted, needed);
        self.settle_gathered(warp, pc, aligned.then_some(id));
        if !*wait {
            return Step::Next;
        }
        let over = self.block(warp.block).named[id as usize].phase > phase;
        match reduce {
            Some((kind, dst, ..)) if over => {
                self.barrier_result(warp, active, id, *kind, *dst);
                return Step::Next;
            }
            // It comes back to this instruction for the result.
            Some(_) => warp.reducing |= active,
            None if over => return Step::Next,
            None => {}
        }
        self.leave_behind(warp, at, warp.fragments[at].mask & !active);
        warp.fragments[at].pc += u32::from(reduce.is_none());
        warp.fragments[at].wait = Wait::Barrier(id, phase);
        Step::Blocked
    }

    /// Parts threads from a fragment; they are where they were.
    fn leave_behind(&mut self, warp: &mut Warp, at: usize, others: u32) {
        let fragment = &mut warp.fragments[at];
        if others == 0 || others == fragment.mask {
            return;
        }
        fragment.mask &= !others;
        let pc = fragment.pc;
        warp.fragments.push(Fragment {
            mask: others,
            pc,
            wait: Wait::Ready,
        });
    }

    /// A warp arrives at the barriers to which all of its threads have come that have not ended.
    /// At the barrier `aligned` it counts as a whole, whoever has come.
    pub(super) fn settle_gathered(&mut self, warp: &mut Warp, pc: u32, aligned: Option<u32>) {
        let all = 32 * self.block(warp.block).live;
        let live = warp.live;
        let complete = |id: u32, came: u32| live & !came == 0 || aligned == Some(id);
        let ids: Vec<u32> = warp
            .gathered
            .named
            .iter()
            .filter(|(id, gathered)| complete(**id, gathered.0))
            .map(|(&id, _)| id)
            .collect();
        for id in ids {
            let Some((came, counted, threads)) = warp.gathered.named.remove(&id) else {
                continue;
            };
            let needed = threads.unwrap_or(all);
            let barrier = &mut self.block_mut(warp.block).named[id as usize];
            let before = barrier.needed;
            let fits = barrier.arrived == 0 || before == needed || threads.is_none();
            // A whole warp counts as 32, also with fewer threads.
            barrier.arrived += 32;
            barrier.needed = needed;
            barrier.all = threads.is_none();
            barrier.count += counted;
            barrier.brought += came.count_ones();
            if !fits {
                let message = format!(
                    "barrier {id} is joined with {needed} threads, others joined it with {before}"
                );
                let lane = came.trailing_zeros();
                self.report(warp, pc, Some(lane), FindingKind::Illegal, message);
            }
            self.settle_named(warp.block);
        }
        if warp.gathered.cluster != 0 && complete(CLUSTER, warp.gathered.cluster) {
            warp.gathered.cluster = 0;
            let members = self.block(warp.block).cluster.clone();
            self.clusters.entry(members[0]).or_default().arrived += 1;
            self.settle_cluster(&members);
        }
    }

    fn barrier_result(
        &mut self,
        warp: &mut Warp,
        active: u32,
        id: u32,
        kind: BarrierReduce,
        dst: u32,
    ) {
        let barrier = &self.block(warp.block).named[id as usize];
        let value = match kind {
            BarrierReduce::Popc => barrier.result,
            BarrierReduce::And => u32::from(barrier.result == barrier.result_of),
            BarrierReduce::Or => u32::from(barrier.result > 0),
        };
        for lane in lanes(active) {
            warp.registers[dst as usize][lane] = value.into();
        }
    }

    /// Ends the phases of a block's named barriers that have all their threads.
    pub(crate) fn settle_named(&mut self, block: usize) {
        let live = self.block(block).live;
        let mut any = 0u32;
        for (id, barrier) in self.block_mut(block).named.iter_mut().enumerate() {
            let needed = match barrier.all {
                true => barrier.needed.min(32 * live.max(1)),
                false => barrier.needed,
            };
            if barrier.arrived > 0 && barrier.arrived >= needed {
                barrier.phase += 1;
                barrier.result = barrier.count;
                barrier.result_of = barrier.brought;
                (barrier.arrived, barrier.needed) = (0, 0);
                (barrier.count, barrier.brought) = (0, 0);
                any |= 1 << id;
            }
        }
        if any != 0 {
            self.checked(|check| lanes(any).for_each(|id| check.settle_named(block, id as u32)));
            self.wake_cluster_of(block);
        }
    }

    fn cluster_barrier(
        &mut self,
        warp: &mut Warp,
        at: usize,
        (wait, relaxed, aligned): (bool, bool, bool),
        active: u32,
    ) -> Step {
        if aligned && !self.whole_warp(warp, at) {
            return Step::Blocked;
        }
        let first = self.block(warp.block).cluster[0];
        if wait {
            let phase = warp.cluster_phase;
            let over = self
                .clusters
                .get(&first)
                .is_none_or(|barrier| barrier.phase > phase);
            self.checked(|check| check.wait_cluster(first, active, over));
            if over {
                return Step::Next;
            }
            self.leave_behind(warp, at, warp.fragments[at].mask & !active);
            warp.fragments[at].pc += 1;
            warp.fragments[at].wait = Wait::Cluster(phase);
            return Step::Blocked;
        }
        self.checked(|check| check.arrive_cluster(first, active, relaxed));
        warp.cluster_phase = self.clusters.entry(first).or_default().phase;
        warp.gathered.cluster |= active;
        let pc = warp.fragments[at].pc;
        self.settle_gathered(warp, pc, aligned.then_some(CLUSTER));
        Step::Next
    }

    /// Ends the phase of a cluster's barrier if all its living warps have arrived.
    pub(crate) fn settle_cluster(&mut self, members: &[usize]) {
        let live: u32 = members.iter().map(|&member| self.block(member).live).sum();
        let Some(barrier) = self.clusters.get_mut(&members[0]) else {
            return;
        };
        if barrier.arrived > 0 && barrier.arrived >= live {
            barrier.phase += 1;
            barrier.arrived = 0;
            self.checked(|check| check.settle_cluster(members[0]));
            self.wake_cluster_of(members[0]);
        }
    }

    fn mbarrier(&mut self, warp: &mut Warp, at: usize, call: &MbarrierCall, active: u32) -> Step {
        let pc = warp.fragments[at].pc;
        if let MbarrierOp::PendingCount { dst, state } = call.op {
            for lane in lanes(active) {
                let value = warp.lanes(state)[lane] >> 32 & 0xf_ffff;
                warp.registers[dst as usize][lane] = value;
            }
            return Step::Next;
        }
        let mut step = Step::Next;
        let mut blocked = 0;
        for lane in lanes(active) {
            let address = Self::address_of(warp, &call.address, lane);
            let place = match self.target(warp, call.address.space, address) {
                Ok(Target::Place(Place::Shared(block, offset))) => (block, offset),
                Ok(_) => {
                    let message = format!("{address:#x} is not in shared memory");
                    self.report(warp, pc, Some(lane as u32), FindingKind::Mbarrier, message);
                    continue;
                }
                Err(message) => {
                    self.report(
                        warp,
                        pc,
                        Some(lane as u32),
                        FindingKind::OutOfBounds,
                        message,
                    );
                    continue;
                }
            };
            match self.mbarrier_lane(warp, lane, place, call) {
                Ok(Lane::Done) => {}
                Ok(Lane::NotYet { suspend, phase }) => {
                    step = Step::Poll;
                    warp.look(1 << lane, Looked::Mbarrier(place.0, place.1, phase));
                    if suspend {
                        blocked |= 1 << lane;
                        warp.fragments[at].wait = Wait::Mbarrier(place.0, place.1, phase);
                    }
                }
                Err(message) => {
                    self.report(warp, pc, Some(lane as u32), FindingKind::Mbarrier, message);
                    // A loop around it would never end.
                    if matches!(call.op, MbarrierOp::Wait { .. }) {
                        step = Step::Poll;
                    }
                }
            }
        }
        // A suspended wait says "not yet" when it gives up: it goes on behind the instruction.
        if blocked != 0 && blocked == active && active == warp.fragments[at].mask {
            warp.fragments[at].pc += 1;
            return Step::Blocked;
        }
        warp.fragments[at].wait = Wait::Ready;
        step
    }

    fn mbarrier_lane(
        &mut self,
        warp: &mut Warp,
        lane: usize,
        (block, offset): (usize, u32),
        call: &MbarrierCall,
    ) -> Result<Lane, String> {
        if offset % 8 != 0 {
            return Err(format!(
                "an mbarrier at {offset:#x}, which is no multiple of 8"
            ));
        }
        self.bytes_of(warp, lane, Target::Place(Place::Shared(block, offset)), 8)?;
        let value = |slot: u32| warp.lanes(slot)[lane];
        match call.op {
            MbarrierOp::Init { count } => {
                let count = value(count) as u32;
                if count == 0 || count > MOST_ARRIVALS {
                    return Err(format!("a count of {count} is not 1 to {MOST_ARRIVALS}"));
                }
                if self
                    .block_mut(block)
                    .mbarriers
                    .insert(offset, Mbarrier::new(count))
                    .is_some()
                {
                    return Err(format!(
                        "the mbarrier at {offset:#x} is initialised already"
                    ));
                }
                self.progress += 1;
                self.checked(|check| check.init_bar(lane as u32, block, offset));
                return Ok(Lane::Done);
            }
            MbarrierOp::Invalidate => {
                self.progress += 1;
                self.checked(|check| check.end_bar(block, offset));
                return match self.block_mut(block).mbarriers.remove(&offset) {
                    Some(_) => Ok(Lane::Done),
                    None => Err(format!("there is no mbarrier at {offset:#x} to invalidate")),
                };
            }
            MbarrierOp::Arrive { .. } => {
                let arrive = (block, offset);
                self.checked(|check| check.arrive_bar(lane as u32, arrive, call.order, None));
            }
            _ => {}
        }
        let missing = || format!("the mbarrier at {offset:#x} is not initialised");
        let (phase, after, result) = {
            let arrivals = match call.op {
                MbarrierOp::Arrive {
                    count: Some(count), ..
                } => value(count) as u32,
                _ => 1,
            };
            let amount = match call.op {
                MbarrierOp::Arrive {
                    expect: Some(bytes),
                    ..
                }
                | MbarrierOp::ExpectTx { bytes }
                | MbarrierOp::CompleteTx { bytes } => i64::from(value(bytes) as u32),
                _ => 0,
            };
            let state = match call.op {
                MbarrierOp::Wait { state, .. } => value(state),
                _ => 0,
            };
            let bar = self
                .block_mut(block)
                .mbarriers
                .get_mut(&offset)
                .ok_or_else(missing)?;
            let phase = bar.phase;
            let result = match call.op {
                MbarrierOp::Arrive { drop, .. } => {
                    bar.count_bytes(amount)?;
                    let token = bar.phase & 0xffff_ffff | u64::from(bar.pending) << 32;
                    bar.arrive(arrivals, drop)?;
                    bar.settle();
                    token
                }
                MbarrierOp::ExpectTx { .. } => {
                    bar.count_bytes(amount)?;
                    0
                }
                MbarrierOp::CompleteTx { .. } => {
                    bar.count_bytes(-amount)?;
                    bar.settle();
                    0
                }
                MbarrierOp::Wait { parity: true, .. } => u64::from(bar.parity_done(state)),
                MbarrierOp::Wait { .. } => {
                    u64::from(bar.phase & 0xffff_ffff != state & 0xffff_ffff)
                }
                _ => 0,
            };
            (phase, bar.phase, result)
        };
        if after != phase {
            self.check_settled_bar((block, offset), after);
        }
        match call.op {
            MbarrierOp::Arrive { state, .. } => {
                if let Some(state) = state {
                    warp.registers[state as usize][lane] = result;
                }
                self.wake_cluster_of(block);
                Ok(Lane::Done)
            }
            MbarrierOp::ExpectTx { .. } | MbarrierOp::CompleteTx { .. } => {
                self.wake_cluster_of(block);
                Ok(Lane::Done)
            }
            MbarrierOp::Wait { done, suspend, .. } => {
                warp.registers[done as usize][lane] = result;
                Ok(if result != 0 {
                    let place = (block, offset);
                    self.checked(|check| check.wait_bar(lane as u32, place, call.order));
                    Lane::Done
                } else {
                    Lane::NotYet { suspend, phase }
                })
            }
            _ => Ok(Lane::Done),
        }
    }
}

/// How an mbarrier instruction of one lane ended.
enum Lane {
    Done,
    /// The phase isn't over.
    NotYet {
        suspend: bool,
        phase: u64,
    },
}
