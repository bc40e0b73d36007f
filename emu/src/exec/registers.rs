//! Registers that move between the warps of a block.

use super::Step;
use crate::machine::{Apart, Machine, Wait, Warp};
use crate::report::FindingKind;

impl Machine {
    /// `setmaxnreg`: a warp gives registers to the block's pool, or waits until the pool has enough.
    pub(super) fn set_max_registers(
        &mut self,
        warp: &mut Warp,
        at: usize,
        (increase, count): (bool, u32),
        active: u32,
    ) -> Step {
        if !self.whole_warp(warp, at) {
            return Step::Blocked;
        }
        let pc = warp.fragments[at].pc;
        if active != warp.live {
            let message = "a predicate keeps threads of the warp from setmaxnreg".into();
            let lane = Some(active.trailing_zeros());
            self.report(warp, pc, lane, FindingKind::Divergent, message);
        }
        let pool = &mut self.block_mut(warp.block).pool;
        if let Err(apart) = pool.come(warp.number, warp.resized, pc) {
            self.report_apart(warp, pc, apart);
        }
        if warp.entry.launch_registers.is_some()
            && let Some(step) = self.resize(warp, at, increase, count)
        {
            return step;
        }
        warp.resized += 1;
        Step::Next
    }

    /// Gives registers a thread, or takes them; `None` when that is done.
    fn resize(&mut self, warp: &mut Warp, at: usize, increase: bool, count: u32) -> Option<Step> {
        let owned = warp.owned;
        if (increase && count < owned) || (!increase && count > owned) {
            let (word, than) = if increase {
                ("inc", "more")
            } else {
                ("dec", "fewer")
            };
            let message = format!(
                "illegal setmaxnreg.{word} {count}: the warp must own no {than} registers a thread, and owns {owned}"
            );
            let pc = warp.fragments[at].pc;
            self.report(warp, pc, None, FindingKind::Illegal, message);
            return None;
        }
        let moved = 32 * count.abs_diff(owned);
        let pool = &mut self.block_mut(warp.block).pool;
        if !increase {
            pool.free += moved;
            warp.owned = count;
            self.wake_cluster_of(warp.block);
        } else if moved <= pool.free {
            pool.free -= moved;
            warp.owned = count;
        } else {
            // It comes back to this instruction when the pool has enough.
            warp.fragments[at].wait = Wait::Registers(moved);
            return Some(Step::Blocked);
        }
        None
    }

    /// A warp has ended: had it to execute what the rest of its warpgroup did?
    pub(crate) fn end_registers(&mut self, warp: &Warp) {
        let pool = &mut self.block_mut(warp.block).pool;
        if let Some(pc) = pool.end(warp.number, warp.resized) {
            let message = format!(
                "warp {} has ended without this setmaxnreg, which others of its warpgroup executed",
                warp.number
            );
            self.report(warp, pc, None, FindingKind::Divergent, message);
        }
    }

    fn report_apart(&mut self, warp: &Warp, pc: u32, apart: Apart) {
        let line = |pc: u32| {
            let instruction = warp.entry.code.get(pc as usize);
            instruction.map_or(0, |instruction| instruction.line)
        };
        let others = match apart {
            Apart::Other(pc) => format!("have executed the one at line {}", line(pc)),
            Apart::Ended => "have ended".into(),
        };
        let message = format!(
            "all warps of a warpgroup execute the same setmaxnreg, but others than warp {} {others}",
            warp.number
        );
        self.report(warp, pc, None, FindingKind::Divergent, message);
    }
}
