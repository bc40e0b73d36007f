//! What each instruction does to a warp and the machine.

mod atomics;
mod cancel;
mod collective;
mod copies;
mod maps;
mod memory;
mod receivers;
mod registers;
mod sync;
mod tcgen05;
mod tensor;
mod wmma;

pub(crate) use atomics::reduce_bytes;
pub(crate) use copies::{SmallCopy, bulk_settled};
pub(crate) use tcgen05::{IssuedLoad, IssuedStore};
pub(crate) use tensor::IssuedWgmma;

use crate::code::{Entry, Op, Slot};
use crate::machine::{Fragment, Machine, Wait, Warp};
use crate::memory::{Memory, PARAM_WINDOW, SHARED_WINDOW, value_of, window};
use crate::ptx::ast::Space;
use crate::report::FindingKind;

/// Sources of an operation on registers, at most.
const MOST_SOURCES: usize = 6;

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It went on.
    Next,
    /// It looked at something that others change; let others run.
    Poll,
    /// The fragment waits.
    Blocked,
}

/// The lanes of a mask.
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let lane = left.trailing_zeros();
        left &= left.wrapping_sub(1);
        (lane < 32).then_some(lane as usize)
    })
}

/// The lanes whose predicate lets an instruction happen.
fn guarded(warp: &Warp, guard: Option<(Slot, bool)>, mask: u32) -> u32 {
    let Some((slot, negated)) = guard else {
        return mask;
    };
    let predicate = warp.lanes(slot);
    lanes(mask)
        .filter(|&lane| (predicate[lane] != 0) != negated)
        .fold(0, |mask, lane| mask | 1 << lane)
}

impl Machine {
    /// Runs one instruction of a fragment.
    pub(crate) fn step(&mut self, id: usize, warp: &mut Warp, at: usize) -> Step {
        let entry: std::sync::Arc<Entry> = warp.entry.clone();
        let Fragment { mask, pc, .. } = warp.fragments[at];
        let instruction = &entry.code[pc as usize];
        let active = guarded(warp, instruction.guard, mask);
        self.instructions += u64::from(mask.count_ones());
        self.check_enter(warp, pc, mask, active);
        if active == 0 {
            warp.fragments[at].pc += 1;
            return Step::Next;
        }
        match &instruction.op {
            Op::Branch(target) => {
                if active == mask {
                    warp.fragments[at].pc = *target;
                } else {
                    warp.fragments[at] = Fragment {
                        mask: mask & !active,
                        pc: pc + 1,
                        wait: Wait::Ready,
                    };
                    warp.fragments.push(Fragment {
                        mask: active,
                        pc: *target,
                        wait: Wait::Ready,
                    });
                }
                // A loop that only polls ends its turn in the poll itself.
                Step::Next
            }
            Op::BranchIndexed { index, targets } => {
                self.branch_indexed(warp, at, active, *index, targets)
            }
            Op::Exit => {
                self.exit(id, warp, at, active);
                Step::Next
            }
            Op::Trap => {
                self.report(
                    warp,
                    pc,
                    Some(active.trailing_zeros()),
                    FindingKind::Trap,
                    "the kernel trapped".into(),
                );
                self.exit(id, warp, at, active);
                Step::Next
            }
            Op::AssertFail(places) => {
                let lane = active.trailing_zeros();
                let message = Self::assertion(&self.memory, warp, lane as usize, places);
                self.report(warp, pc, Some(lane), FindingKind::Trap, message);
                self.exit(id, warp, at, active);
                Step::Next
            }
            op => {
                let step = self.straight(id, warp, at, op, active);
                if step != Step::Blocked {
                    warp.fragments[at].pc += 1;
                }
                step
            }
        }
    }

    /// What an `assert` that failed says.
    fn assertion(memory: &Memory, warp: &Warp, lane: usize, places: &[u32; 4]) -> String {
        /// Longer texts are cut.
        const MOST: usize = 200;
        let value = |place: u32, bytes: usize| {
            Self::local(warp, lane, place, bytes).map_or(0, |range| value_of(&warp.local[range]))
        };
        let text = |place: u32| {
            let start = value(place, 8);
            let bytes = (0..MOST as u64).map_while(|at| {
                let byte = memory.read(start.wrapping_add(at), 1).ok()?[0];
                (byte != 0).then_some(byte)
            });
            String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
        };
        let [what, file, line, function] = *places;
        format!(
            "assertion `{}` failed at {}:{}, in {}",
            text(what),
            text(file),
            value(line, 4),
            text(function)
        )
    }

    fn branch_indexed(
        &mut self,
        warp: &mut Warp,
        at: usize,
        active: u32,
        index: Slot,
        targets: &[u32],
    ) -> Step {
        let Fragment { mask, pc, .. } = warp.fragments[at];
        let values = *warp.lanes(index);
        let mut parts: Vec<Fragment> = Vec::new();
        if mask & !active != 0 {
            parts.push(Fragment {
                mask: mask & !active,
                pc: pc + 1,
                wait: Wait::Ready,
            });
        }
        for lane in lanes(active) {
            let Some(&target) = targets.get(values[lane] as usize) else {
                let message = format!("index {} of a table of {}", values[lane], targets.len());
                self.report(warp, pc, Some(lane as u32), FindingKind::Illegal, message);
                parts.push(Fragment {
                    mask: 1 << lane,
                    pc: warp.entry.code.len() as u32 - 1,
                    wait: Wait::Ready,
                });
                continue;
            };
            match parts.iter_mut().find(|part| part.pc == target) {
                Some(part) => part.mask |= 1 << lane,
                None => parts.push(Fragment {
                    mask: 1 << lane,
                    pc: target,
                    wait: Wait::Ready,
                }),
            }
        }
        warp.fragments.swap_remove(at);
        warp.fragments.extend(parts);
        Step::Next
    }

    /// Threads end. What they left behind unfinished is a finding.
    fn exit(&mut self, _: usize, warp: &mut Warp, at: usize, active: u32) {
        let pc = warp.fragments[at].pc;
        warp.live &= !active;
        for lane in lanes(active) {
            if !bulk_settled(warp, 1 << lane, 0, true) {
                let message =
                    "the thread ends before its bulk stores have read their source".into();
                self.report(warp, pc, Some(lane as u32), FindingKind::Pending, message);
            }
        }
        if warp.live == 0 && (!warp.wgmma.is_empty() || !warp.wgmma_open.is_empty()) {
            self.report(
                warp,
                pc,
                None,
                FindingKind::Pending,
                "the warp ends with products in flight".into(),
            );
        }
        if warp.live == 0 && warp.tensor_open != [false; 2] {
            let message = "the warp ends with tcgen05.ld or tcgen05.st that no wait has covered";
            self.report(warp, pc, None, FindingKind::Pending, message.into());
        }
        // With fewer threads the warp may have arrived at a barrier.
        self.settle_gathered(warp, pc, None);
        // Whoever waited for these threads looks again.
        for fragment in &mut warp.fragments {
            if fragment.wait == Wait::Lanes {
                fragment.wait = Wait::Ready;
            }
        }
        let fragment = &mut warp.fragments[at];
        fragment.mask &= !active;
        fragment.pc += 1;
        if fragment.mask == 0 {
            warp.fragments.swap_remove(at);
        }
        self.progress += 1;
    }

    /// Everything that isn't a branch.
    fn straight(&mut self, id: usize, warp: &mut Warp, at: usize, op: &Op, active: u32) -> Step {
        match op {
            Op::Scalar(scalar) => {
                let mut out = [[0u64; 32]; 2];
                let mut negated = [[0u64; 32]; MOST_SOURCES];
                let count = scalar.src.len().min(MOST_SOURCES);
                {
                    for (position, &slot) in scalar.src.iter().enumerate().take(count) {
                        if scalar.negated >> position & 1 != 0 {
                            negated[position] = warp.lanes(slot).map(|value| u64::from(value == 0));
                        }
                    }
                    let mut sources: [&[u64; 32]; MOST_SOURCES] = [&[0; 32]; MOST_SOURCES];
                    for (position, &slot) in scalar.src.iter().enumerate().take(count) {
                        sources[position] = if scalar.negated >> position & 1 != 0 {
                            &negated[position]
                        } else {
                            warp.lanes(slot)
                        };
                    }
                    let mut carry = warp.carry;
                    scalar
                        .op
                        .eval_warp(active, &sources[..count], &mut carry, &mut out);
                    warp.carry = carry;
                }
                for (values, extend) in out.iter_mut().zip(&scalar.extend) {
                    if let Some((ty, bits)) = extend {
                        *values = values.map(|value| ty.extend(value) & low_bits(*bits));
                    }
                }
                for (slot, values) in scalar.dst.iter().zip(&out) {
                    if let Some(slot) = slot {
                        let to = &mut warp.registers[*slot as usize];
                        if active == u32::MAX {
                            *to = *values;
                        } else {
                            for lane in lanes(active) {
                                to[lane] = values[lane];
                            }
                        }
                    }
                }
                Step::Next
            }
            Op::Pack { dst, parts, bits } => {
                let part_bits = bits / parts.len().max(1) as u32;
                for lane in lanes(active) {
                    let mut value = 0u64;
                    for (position, &part) in parts.iter().enumerate() {
                        let shift = position as u32 * part_bits;
                        if shift < 64 {
                            value |= (warp.lanes(part)[lane] & low_bits(part_bits)) << shift;
                        }
                    }
                    warp.registers[*dst as usize][lane] = value;
                }
                Step::Next
            }
            Op::Moves(moves) => {
                let values: Vec<[u64; 32]> =
                    moves.iter().map(|&(_, src)| *warp.lanes(src)).collect();
                for ((dst, _), values) in moves.iter().zip(&values) {
                    for lane in lanes(active) {
                        warp.registers[*dst as usize][lane] = values[lane];
                    }
                }
                Step::Next
            }
            Op::Unpack { parts, src, bits } => {
                let part_bits = bits / parts.len().max(1) as u32;
                let values = *warp.lanes(*src);
                for (position, part) in parts.iter().enumerate() {
                    let Some(slot) = part else { continue };
                    for lane in lanes(active) {
                        let shift = position as u32 * part_bits;
                        let value = if shift < 64 {
                            values[lane] >> shift & low_bits(part_bits)
                        } else {
                            0
                        };
                        warp.registers[*slot as usize][lane] = value;
                    }
                }
                Step::Next
            }
            Op::Load(access) => self.load(warp, at, access, active),
            Op::Store(access) => self.store(warp, at, access, active),
            Op::Atomic(atomic) => self.atomic(warp, at, atomic, active),
            Op::Window {
                dst,
                src,
                window,
                to,
            } => {
                let values = *warp.lanes(*src);
                for lane in lanes(active) {
                    let value = values[lane];
                    warp.registers[*dst as usize][lane] = match (*to, *window) {
                        (_, 0) => value,
                        (true, window) => window | value & 0xffff_ffff,
                        (false, window) => value & !window,
                    };
                }
                Step::Next
            }
            Op::IsSpace { dst, src, space } => {
                let values = *warp.lanes(*src);
                let rank = u64::from(self.block(warp.block).rank);
                for lane in lanes(active) {
                    let inside = window(values[lane]);
                    let own = values[lane] >> 24 & 0xff == rank;
                    warp.registers[*dst as usize][lane] = u64::from(match space {
                        Space::Shared => inside == SHARED_WINDOW && own,
                        Space::SharedCluster => inside == SHARED_WINDOW,
                        Space::Local => inside == crate::memory::LOCAL_WINDOW,
                        Space::Param => inside == PARAM_WINDOW,
                        _ => inside == 0,
                    });
                }
                Step::Next
            }
            Op::MapAddress {
                dst,
                src,
                rank,
                generic,
            } => {
                let (values, ranks) = (*warp.lanes(*src), *warp.lanes(*rank));
                let members = self.block(warp.block).cluster.len() as u64;
                for lane in lanes(active) {
                    if ranks[lane] >= members {
                        let message = format!("rank {} in a cluster of {members}", ranks[lane]);
                        self.report(
                            warp,
                            warp.fragments[at].pc,
                            Some(lane as u32),
                            FindingKind::Illegal,
                            message,
                        );
                        continue;
                    }
                    let address = values[lane] & 0x00ff_ffff | ranks[lane] << 24;
                    let address = if *generic {
                        SHARED_WINDOW | address
                    } else {
                        address
                    };
                    warp.registers[*dst as usize][lane] = address;
                }
                Step::Next
            }
            Op::BlockRank { dst, src, .. } => {
                let values = *warp.lanes(*src);
                for lane in lanes(active) {
                    warp.registers[*dst as usize][lane] = values[lane] >> 24 & 0xff;
                }
                Step::Next
            }
            Op::Clock {
                dst,
                global,
                bits,
                high,
            } => {
                self.clock_reads += 1;
                self.time += 1;
                // The device's timer ticks in nanoseconds, the clock at about 1.7 GHz.
                let value = if *global {
                    self.time
                } else {
                    self.time.wrapping_mul(17) / 10
                };
                let value = if *high { value >> 32 } else { value } & low_bits(*bits);
                for lane in lanes(active) {
                    warp.registers[*dst as usize][lane] = value;
                }
                Step::Next
            }
            Op::Nanosleep(slot) => {
                let longest = lanes(active)
                    .map(|lane| warp.lanes(*slot)[lane] & 0xffff_ffff)
                    .max()
                    .unwrap_or(0);
                let until = self.time + 1 + self.random.below(2 * longest + 1);
                warp.fragments[at].pc += 1;
                warp.fragments[at].wait = Wait::Sleep(until);
                self.wake_at(until, id);
                Step::Blocked
            }
            Op::SetMaxRegisters { increase, count } => {
                self.set_max_registers(warp, at, (*increase, *count), active)
            }
            Op::Nothing => Step::Next,
            Op::Fence(fence) => {
                self.check_fence(*fence, active);
                Step::Next
            }
            Op::MapFence { .. } | Op::MapReplace { .. } | Op::MapCopy { .. } => {
                self.tensor_maps(warp, at, op, active)
            }
            Op::BlockBarrier { .. }
            | Op::WarpBarrier { .. }
            | Op::ClusterBarrier { .. }
            | Op::Mbarrier(_) => self.synchronise(warp, at, op, active),
            Op::Shuffle(_)
            | Op::Vote { .. }
            | Op::Match { .. }
            | Op::Reduce { .. }
            | Op::ActiveMask { .. }
            | Op::Elect { .. } => self.exchange(warp, at, op, active),
            Op::Bulk(_)
            | Op::Tensor(_)
            | Op::BulkCommit
            | Op::BulkWait { .. }
            | Op::CopyAsync { .. }
            | Op::StoreAsync(_)
            | Op::CopyCommit
            | Op::CopyWait { .. }
            | Op::CopyArrive { .. } => self.copy(id, warp, at, op, active),
            Op::WgmmaFence
            | Op::WgmmaCommit
            | Op::WgmmaWait { .. }
            | Op::Wgmma(_)
            | Op::Mma { .. }
            | Op::WmmaMove { .. }
            | Op::WmmaProduct { .. }
            | Op::LoadMatrix { .. }
            | Op::StoreMatrix { .. }
            | Op::MoveMatrix { .. } => self.tensor(warp, at, op, active),
            Op::TryCancel { to, bar, all } => self.try_cancel(warp, at, (to, bar, *all), active),
            Op::QueryCancel {
                query,
                dst,
                response,
            } => self.query_cancel(warp, at, (*query, dst, *response), active),
            Op::Tcgen05(op) => self.tcgen05(warp, at, op, active),
            Op::Branch(_) | Op::BranchIndexed { .. } | Op::Exit | Op::Trap | Op::AssertFail(_) => {
                Step::Next
            }
        }
    }

    /// Whether all living threads of the warp are at this instruction; if not, the fragment waits
    /// for them.
    pub(crate) fn whole_warp(&mut self, warp: &mut Warp, at: usize) -> bool {
        let here = warp.fragments[at].mask;
        if here == warp.live {
            return true;
        }
        warp.fragments[at].wait = Wait::Lanes;
        false
    }
}

/// A mask of low bits.
pub(crate) fn low_bits(bits: u32) -> u64 {
    if bits >= 64 {
        u64::MAX
    } else {
        (1 << bits) - 1
    }
}
