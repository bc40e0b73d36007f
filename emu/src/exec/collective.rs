//! Exchange among the lanes of a warp.

use super::{Step, lanes};
use crate::code::{Op, ReduceOp, Shuffle, ShuffleMode, Slot, VoteKind};
use crate::machine::{Fragment, Machine, Wait, Warp};
use crate::report::FindingKind;

/// Sets of lanes that execute a collective instruction with one another: those whose masks are the
/// same. Compilers leave lanes of several masks together, as for tiles of half a warp.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Teams {
    teams: [u32; 32],
    count: usize,
}

impl Teams {
    fn add(&mut self, lanes: u32) {
        self.teams[self.count] = lanes;
        self.count += 1;
    }

    /// The lanes of each team.
    pub fn each(&self) -> impl Iterator<Item = u32> + use<> {
        let Teams { teams, count } = *self;
        teams.into_iter().take(count)
    }
}

impl Machine {
    /// The teams that are here as a whole. Lanes whose teams are not wait for the rest of them, and
    /// leave the fragment, unless none is whole.
    pub(super) fn teams(
        &mut self,
        warp: &mut Warp,
        at: usize,
        mask: Slot,
        active: u32,
    ) -> Option<Teams> {
        let (masks, here, pc) = (
            *warp.lanes(mask),
            warp.fragments[at].mask,
            warp.fragments[at].pc,
        );
        let (mut teams, mut waiting, mut left) = (Teams::default(), 0, active);
        while left != 0 {
            let first = left.trailing_zeros();
            let wanted = masks[first as usize] as u32;
            let team = lanes(left)
                .filter(|&lane| masks[lane] as u32 == wanted)
                .fold(0, |team, lane| team | 1 << lane);
            left &= !team;
            let missing = wanted & warp.live & !team;
            if team & !wanted == 0 && missing & !here != 0 {
                waiting |= team;
                continue;
            }
            // Lanes that a predicate holds back, or that name others, never come.
            let message = if team & !wanted != 0 {
                format!("threads {team:#010x} execute it, but the mask is {wanted:#010x}")
            } else if missing & active != 0 {
                format!(
                    "the mask of threads {team:#010x} is {wanted:#010x}, but threads {:#010x} have another",
                    missing & active
                )
            } else if missing != 0 {
                format!(
                    "the mask is {wanted:#010x}, but a predicate lets only {team:#010x} take part"
                )
            } else {
                String::new()
            };
            if !message.is_empty() {
                self.report(warp, pc, Some(first), FindingKind::Divergent, message);
            }
            teams.add(team);
        }
        if waiting == 0 {
            return Some(teams);
        }
        if teams.count == 0 {
            warp.fragments[at].wait = Wait::Lanes;
            return None;
        }
        warp.fragments[at].mask = here & !waiting;
        warp.fragments.push(Fragment {
            mask: waiting,
            pc,
            wait: Wait::Lanes,
        });
        Some(teams)
    }

    pub(super) fn exchange(&mut self, warp: &mut Warp, at: usize, op: &Op, active: u32) -> Step {
        let mask = match op {
            Op::ActiveMask { dst } => {
                for lane in lanes(active) {
                    warp.registers[*dst as usize][lane] = active.into();
                }
                return Step::Next;
            }
            Op::Elect { mask, .. }
            | Op::Vote { mask, .. }
            | Op::Match { mask, .. }
            | Op::Reduce { mask, .. } => *mask,
            Op::Shuffle(shuffle) => shuffle.mask,
            _ => return Step::Next,
        };
        let Some(teams) = self.teams(warp, at, mask, active) else {
            return Step::Blocked;
        };
        for members in teams.each() {
            self.exchange_among(warp, at, op, members);
        }
        Step::Next
    }

    fn exchange_among(&mut self, warp: &mut Warp, at: usize, op: &Op, members: u32) {
        match op {
            Op::Elect { dst, pred, .. } => {
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
                ..
            } => {
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
                ..
            } => {
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
                ..
            } => {
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
            Op::Shuffle(shuffle) => self.shuffle(warp, at, shuffle, members),
            _ => {}
        }
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
