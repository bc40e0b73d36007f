//! Exchange among the lanes of a warp.

use super::{Step, lanes};
use crate::code::{Op, ReduceOp, Shuffle, ShuffleMode, Slot, VoteKind};
use crate::machine::{Machine, Warp};
use crate::report::FindingKind;

impl Machine {
    /// Whether all lanes that an instruction's mask names are here. If not, the fragment waits.
    fn members(&mut self, warp: &mut Warp, at: usize, mask: Slot, active: u32) -> Option<u32> {
        let first = active.trailing_zeros() as usize;
        let wanted = warp.lanes(mask)[first] as u32;
        let pc = warp.fragments[at].pc;
        if active & !wanted != 0 {
            let message =
                format!("threads {active:#010x} execute it, but the mask is {wanted:#010x}");
            self.report(
                warp,
                pc,
                Some(first as u32),
                FindingKind::Divergent,
                message,
            );
            return Some(active);
        }
        if wanted & warp.live & !active != 0 {
            // Lanes that a guard holds back never come.
            if wanted & warp.live & !warp.fragments[at].mask == 0 {
                let message = format!(
                    "the mask is {wanted:#010x}, but a predicate lets only {active:#010x} take part"
                );
                self.report(
                    warp,
                    pc,
                    Some(first as u32),
                    FindingKind::Divergent,
                    message,
                );
                return Some(active);
            }
            warp.fragments[at].wait = crate::machine::Wait::Lanes;
            return None;
        }
        Some(wanted & active)
    }

    pub(super) fn exchange(&mut self, warp: &mut Warp, at: usize, op: &Op, active: u32) -> Step {
        match op {
            Op::ActiveMask { dst } => {
                for lane in lanes(active) {
                    warp.registers[*dst as usize][lane] = active.into();
                }
            }
            Op::Elect { dst, pred, mask } => {
                let Some(members) = self.members(warp, at, *mask, active) else {
                    return Step::Blocked;
                };
                let leader = members.trailing_zeros();
                for lane in lanes(members) {
                    if let Some(dst) = dst {
                        warp.registers[*dst as usize][lane] = leader.into();
                    }
                    warp.registers[*pred as usize][lane] = u64::from(lane as u32 == leader);
                }
            }
            Op::Vote {
                kind,
                dst,
                src,
                negated,
                mask,
            } => {
                let Some(members) = self.members(warp, at, *mask, active) else {
                    return Step::Blocked;
                };
                let values = *warp.lanes(*src);
                let ballot = lanes(members)
                    .filter(|&lane| (values[lane] != 0) != *negated)
                    .fold(0u32, |set, lane| set | 1 << lane);
                let result = match kind {
                    VoteKind::All => u64::from(ballot == members),
                    VoteKind::Any => u64::from(ballot != 0),
                    VoteKind::Uni => u64::from(ballot == 0 || ballot == members),
                    VoteKind::Ballot => ballot.into(),
                };
                for lane in lanes(members) {
                    warp.registers[*dst as usize][lane] = result;
                }
            }
            Op::Match {
                all,
                wide,
                dst,
                pred,
                src,
                mask,
            } => {
                let Some(members) = self.members(warp, at, *mask, active) else {
                    return Step::Blocked;
                };
                let bits = if *wide { u64::MAX } else { 0xffff_ffff };
                let values = warp.lanes(*src).map(|value| value & bits);
                let same = |lane: usize| {
                    lanes(members)
                        .filter(|&other| values[other] == values[lane])
                        .fold(0u32, |set, lane| set | 1 << lane)
                };
                for lane in lanes(members) {
                    let set = same(lane);
                    let agree = set == members;
                    warp.registers[*dst as usize][lane] =
                        u64::from(if *all && !agree { 0 } else { set });
                    if let Some(pred) = pred {
                        warp.registers[*pred as usize][lane] = u64::from(agree);
                    }
                }
            }
            Op::Reduce {
                op,
                signed,
                dst,
                src,
                mask,
            } => {
                let Some(members) = self.members(warp, at, *mask, active) else {
                    return Step::Blocked;
                };
                let values = *warp.lanes(*src);
                let of = |a: u32, b: u32| match op {
                    ReduceOp::Add => a.wrapping_add(b),
                    ReduceOp::And => a & b,
                    ReduceOp::Or => a | b,
                    ReduceOp::Xor => a ^ b,
                    ReduceOp::Min if *signed => (a as i32).min(b as i32) as u32,
                    ReduceOp::Max if *signed => (a as i32).max(b as i32) as u32,
                    ReduceOp::Min => a.min(b),
                    ReduceOp::Max => a.max(b),
                };
                let result = lanes(members)
                    .map(|lane| values[lane] as u32)
                    .reduce(of)
                    .unwrap_or(0);
                for lane in lanes(members) {
                    warp.registers[*dst as usize][lane] = result.into();
                }
            }
            Op::Shuffle(shuffle) => {
                let Some(members) = self.members(warp, at, shuffle.mask, active) else {
                    return Step::Blocked;
                };
                self.shuffle(warp, at, shuffle, members);
            }
            _ => {}
        }
        Step::Next
    }

    /// PTX ISA, "shfl.sync": the segment and the clamp come from the last operand.
    fn shuffle(&mut self, warp: &mut Warp, at: usize, shuffle: &Shuffle, members: u32) {
        let (values, b, c) = (
            *warp.lanes(shuffle.src),
            *warp.lanes(shuffle.b),
            *warp.lanes(shuffle.c),
        );
        for lane in lanes(members) {
            let (value, control) = (b[lane] as u32 & 0x1f, c[lane] as u32);
            let (clamp, segment) = (control & 0x1f, control >> 8 & 0x1f);
            let own = lane as u32;
            let most = own & segment | clamp & !segment;
            let least = own & segment;
            let (source, inside) = match shuffle.mode {
                // Upwards the clamp is a lower limit.
                ShuffleMode::Up => (
                    own.wrapping_sub(value),
                    own as i32 - value as i32 >= most as i32,
                ),
                ShuffleMode::Down => (own + value, own + value <= most),
                ShuffleMode::Butterfly => (own ^ value, own ^ value <= most),
                ShuffleMode::Index => {
                    (least | value & !segment, (least | value & !segment) <= most)
                }
            };
            let source = if inside { source & 0x1f } else { own };
            if members >> source & 1 == 0 {
                let message = format!("lane {own} reads lane {source}, which takes no part");
                self.report(
                    warp,
                    warp.fragments[at].pc,
                    Some(own),
                    FindingKind::Divergent,
                    message,
                );
            }
            warp.registers[shuffle.dst as usize][lane] = values[source as usize];
            if let Some(pred) = shuffle.pred {
                warp.registers[pred as usize][lane] = u64::from(inside);
            }
        }
    }
}
