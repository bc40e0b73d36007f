//! Which warp runs next, and what happens when none can.

use super::{Looked, Machine, Place, Wait, Warp};
use crate::exec::Step;
use crate::report::{Finding, FindingKind};

/// Instructions of one turn, at most.
const TURN: u64 = 200;
/// Polls without progress after which a warp counts as only polling.
const IDLE_POLLS: u32 = 8;
/// How often time may jump with nothing but polls before it is called a deadlock, in kernels that
/// read a clock (they may have deadlines).
const MOST_JUMPS: u32 = 64;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything launched has ended.
    Done,
    /// The slice is over, and there is more to do.
    More,
    /// Only polls are left, and time is held: see [`Machine::hold_time`].
    Polling,
    /// Nothing can run: the blocks were dropped, a finding says why.
    Stopped,
}

/// What [`Machine::unblock`] could do.
enum Unblock {
    Something,
    Nothing,
    /// Nothing but let time pass, which is held.
    Held,
    /// Nothing but let time pass, and a launch has ended in this slice.
    Ended,
}

impl Machine {
    /// Runs until everything launched has ended.
    pub fn run(&mut self) -> Outcome {
        loop {
            match self.run_turns(u64::MAX) {
                Outcome::More => {}
                outcome => return outcome,
            }
        }
    }

    /// Runs at most so many turns. Where nothing goes on after a launch has ended, the slice is
    /// over too: what is launched next may be what the others wait for.
    pub fn run_turns(&mut self, turns: u64) -> Outcome {
        self.launch_ended = false;
        for _ in 0..turns {
            self.start_blocks();
            if self.ready.is_empty() {
                match self.unblock() {
                    Unblock::Nothing => return self.idle(),
                    Unblock::Held => return Outcome::Polling,
                    Unblock::Ended => return Outcome::More,
                    Unblock::Something => continue,
                }
            }
            if self.instructions >= self.config.instruction_limit {
                let message = format!(
                    "{} thread-instructions were executed, the limit",
                    self.instructions
                );
                return self.stop(FindingKind::Limit, &message);
            }
            if self.all_polling() {
                match self.unblock() {
                    Unblock::Nothing => return self.idle(),
                    Unblock::Held => return Outcome::Polling,
                    Unblock::Ended => return Outcome::More,
                    Unblock::Something => {}
                }
            }
            let Some(id) = self.choose() else { continue };
            let before = self.progress;
            self.turn(id);
            if self.progress != before {
                self.jumps = 0;
            }
            self.complete_due();
        }
        Outcome::More
    }

    fn choose(&mut self) -> Option<usize> {
        let mut at = self.random.below(self.ready.len() as u64) as usize;
        if let Some(starved) = self.config.starved_warp {
            // Those that only poll may be polling for a starved warp.
            let runs = |at: usize| {
                let warp = self.warps[self.ready[at]].as_ref();
                warp.is_none_or(|warp| warp.number != starved && !self.only_polls(warp))
            };
            let count = self.ready.len();
            let mut from = (0..count).map(|step| (at + step) % count);
            at = from.find(|&at| runs(at)).unwrap_or(at);
        }
        let id = self.ready.swap_remove(at);
        self.warps[id].is_some().then_some(id)
    }

    /// Runs one warp for a while.
    fn turn(&mut self, id: usize) {
        let Some(mut warp) = self.warps[id].take() else {
            return;
        };
        self.memory.viewer = self.blocks[warp.block].as_ref().map(|block| block.gpu);
        let turn = 1 + self.random.below(TURN);
        let mut ran = 0;
        while ran < turn {
            let Some(fragment) = self.pick(&mut warp) else {
                break;
            };
            let mask = warp.fragments[fragment].mask;
            match self.step(id, &mut warp, fragment) {
                Step::Next => ran += 1,
                Step::Poll => {
                    let polls = if warp.polls.0 == self.progress {
                        warp.polls.1
                    } else {
                        0
                    };
                    if polls == 0 {
                        warp.polled = 0;
                    }
                    warp.polls = (self.progress, polls.saturating_add(1));
                    warp.polled |= mask;
                    break;
                }
                Step::Blocked => ran += 1,
            }
            if warp.live == 0 {
                break;
            }
        }
        self.time += ran.max(1);
        self.memory.viewer = None;
        if warp.live == 0 {
            self.check_end_warp(&warp);
            self.end_registers(&warp);
            let block = warp.block;
            self.end_warp(block);
            return;
        }
        let again = warp
            .fragments
            .iter()
            .any(|fragment| fragment.wait == Wait::Ready);
        self.warps[id] = Some(warp);
        if again {
            self.ready.push(id);
        }
    }

    /// The fragment to run: the one that is furthest behind, so that threads meet again; now and
    /// then any, so that each makes progress. When all that is left waits for lanes that can't
    /// come, that is a finding, and they go on without them.
    fn pick(&mut self, warp: &mut Warp) -> Option<usize> {
        // Most of the time all threads are together.
        if let [fragment] = &warp.fragments[..]
            && fragment.wait == Wait::Ready
        {
            return Some(0);
        }
        self.refresh(warp);
        merge(warp);
        let ready = |warp: &Warp| {
            (0..warp.fragments.len())
                .filter(|&at| warp.fragments[at].wait == Wait::Ready)
                .collect::<Vec<_>>()
        };
        let mut candidates = ready(warp);
        if candidates.is_empty() {
            let stuck = warp
                .fragments
                .iter()
                .position(|fragment| fragment.wait == Wait::Lanes)?;
            let elsewhere = warp
                .fragments
                .iter()
                .any(|fragment| fragment.wait != Wait::Lanes);
            if elsewhere {
                // They may still come, when what the others wait for happens.
                return None;
            }
            let fragment = warp.fragments[stuck].clone();
            let message = format!(
                "threads {:#010x} of the warp wait for others that are at line {}",
                fragment.mask,
                warp.fragments
                    .iter()
                    .find(|other| other.pc != fragment.pc)
                    .map_or(0, |other| warp.entry.code[other.pc as usize].line)
            );
            self.report(
                warp,
                fragment.pc,
                Some(fragment.mask.trailing_zeros()),
                FindingKind::Divergent,
                message,
            );
            // As if the instruction were not collective: the kernel is wrong, but the run goes on.
            warp.fragments[stuck].wait = Wait::Ready;
            warp.fragments[stuck].pc += 1;
            candidates = ready(warp);
        }
        // Threads that only polled since anything happened give way to those that may make it happen.
        if warp.polls.0 == self.progress && warp.polls.1 > 0 {
            let fresh = |&at: &usize| warp.fragments[at].mask & !warp.polled != 0;
            if candidates.iter().any(fresh) {
                candidates.retain(fresh);
            }
        }
        if candidates.len() > 1 && self.random.below(8) == 0 {
            let at = self.random.below(candidates.len() as u64) as usize;
            return Some(candidates[at]);
        }
        candidates
            .into_iter()
            .min_by_key(|&at| warp.fragments[at].pc)
    }

    /// Whether nothing but polls has happened for a while.
    fn all_polling(&self) -> bool {
        self.ready.iter().all(|&id| {
            let warp = self.warps[id].as_ref();
            warp.is_none_or(|warp| self.only_polls(warp))
        })
    }

    /// Whether a warp has done nothing but poll for a while.
    fn only_polls(&self, warp: &Warp) -> bool {
        let idle = warp.polls.0 == self.progress && warp.polls.1 >= IDLE_POLLS;
        let ready = |fragment: &&super::Fragment| fragment.wait == Wait::Ready;
        let polled = |fragment: &super::Fragment| fragment.mask & !warp.polled == 0;
        idle && warp.fragments.iter().filter(ready).all(polled)
    }

    /// Holds simulated time while only polls are left, since whoever uses the machine may still
    /// launch what they wait for. Runs then end with [`Outcome::Polling`], and time passes by
    /// [`Machine::pass_time`].
    pub fn hold_time(&mut self, hold: bool) {
        self.time_held = hold;
    }

    /// Lets simulated nanoseconds pass, for kernels that wait with a deadline.
    pub fn pass_time(&mut self, nanoseconds: u64) {
        self.time = self.time.saturating_add(nanoseconds);
        self.wake_try_waits();
        for warp in self.warps.iter_mut().flatten() {
            warp.polls = (self.progress, 0);
        }
    }

    /// `try_wait` gives up after a while. Says whether any thread was in one.
    fn wake_try_waits(&mut self) -> bool {
        let mut woken = false;
        for id in 0..self.warps.len() {
            let Some(warp) = self.warps[id].as_mut() else {
                continue;
            };
            let mut own = false;
            for fragment in &mut warp.fragments {
                if let Wait::Mbarrier(..) = fragment.wait {
                    fragment.wait = Wait::Ready;
                    own = true;
                }
            }
            woken |= own;
            if own && !self.ready.contains(&id) {
                self.ready.push(id);
            }
        }
        woken
    }

    /// Lets something happen while nothing runs: the next event, or time passing for those who
    /// wait with a time limit.
    fn unblock(&mut self) -> Unblock {
        if !self.events.is_empty() {
            self.complete_next();
            return Unblock::Something;
        }
        if self.grids.iter().any(Option::is_some) {
            if self.launch_ended {
                return Unblock::Ended;
            }
            if self.time_held {
                return Unblock::Held;
            }
        }
        // Kernels with deadlines see time pass.
        let woken = self.wake_try_waits();
        if !woken && self.ready.is_empty() {
            return Unblock::Nothing;
        }
        self.jumps += 1;
        let clocks = std::mem::take(&mut self.clock_reads);
        if self.jumps > MOST_JUMPS || (self.jumps > 3 && clocks == 0) {
            return Unblock::Nothing;
        }
        // A microsecond at first, hours in the end.
        self.time = self.time.saturating_add(1000 << self.jumps.min(40));
        for warp in self.warps.iter_mut().flatten() {
            warp.polls = (self.progress, 0);
        }
        Unblock::Something
    }

    /// Ends all launches with a finding that says where each warp is: for callers whose time is up.
    pub fn interrupt(&mut self, reason: &str) -> Outcome {
        self.stop(FindingKind::Limit, reason)
    }

    /// Nothing can run: either all is done, or it never will be.
    fn idle(&mut self) -> Outcome {
        if self.grids.iter().all(Option::is_none) {
            self.check_idle();
            return Outcome::Done;
        }
        self.stop(FindingKind::Deadlock, "nothing can run any more")
    }

    /// Ends all launches with a finding.
    fn stop(&mut self, kind: FindingKind, what: &str) -> Outcome {
        // Warps of a block that wait alike share a line: there is room for few.
        let mut waits: Vec<(String, Vec<String>, String)> = Vec::new();
        let mut first = None;
        for (warp, fragment) in self.in_order() {
            let Some(block) = self.blocks[warp.block].as_ref() else {
                continue;
            };
            let line = warp
                .entry
                .code
                .get(fragment.pc as usize)
                .map_or(0, |instruction| instruction.line);
            first.get_or_insert((
                warp.entry.name.clone(),
                line,
                block.gpu,
                block.index,
                warp.number * 32,
            ));
            let [x, y, z] = block.index;
            let of = format!("block ({x}, {y}, {z})");
            let how = match (fragment.wait, kind) {
                (Wait::Ready, FindingKind::Limit) => "runs".into(),
                (Wait::Ready, _) => self.describe_poll(warp, fragment.mask),
                (wait, _) => self.describe(warp, wait),
            };
            let how = format!("threads {:#010x} at line {line} {how}", fragment.mask);
            let number = warp.number.to_string();
            let alike = waits
                .iter()
                .position(|(block, _, same)| (block, same) == (&of, &how));
            match alike {
                Some(at) => waits[at].1.push(number),
                None if waits.len() < 12 => waits.push((of, vec![number], how)),
                None => {}
            }
        }
        let waits: Vec<String> = waits
            .into_iter()
            .map(|(block, warps, how)| format!("{block} warp {} {how}", warps.join(", ")))
            .collect();
        let (entry, line, gpu, block, thread) = first.unwrap_or_default();
        let message = format!("{what}: {}", waits.join("; "));
        self.find(Finding {
            kind,
            entry,
            line,
            gpu,
            block,
            thread: Some(thread),
            message,
        });
        self.abandon();
        Outcome::Stopped
    }

    /// All fragments, in the order of reports, which hold few: who waits for registers comes first,
    /// with the rest of its block, since the others wait for what such a warp would do.
    fn in_order(&self) -> Vec<(&Warp, &super::Fragment)> {
        let mut all: Vec<(&Warp, &super::Fragment)> = self
            .warps
            .iter()
            .flatten()
            .flat_map(|warp| warp.fragments.iter().map(move |part| (&**warp, part)))
            .collect();
        let short = |part: &super::Fragment| matches!(part.wait, Wait::Registers(_));
        if let Some(block) = all.iter().find(|(_, part)| short(part)) {
            let block = block.0.block;
            all.sort_by_key(|(warp, part)| (warp.block != block, !short(part)));
        }
        all
    }

    /// What threads poll, and what they saw last.
    fn describe_poll(&self, warp: &Warp, mask: u32) -> String {
        let looked = warp.looked.iter().find(|(of, _)| of & mask != 0);
        match looked {
            None => "polls".into(),
            Some((_, Looked::Mbarrier(block, at, phase))) => {
                self.describe(warp, Wait::Mbarrier(*block, *at, *phase))
            }
            Some((_, Looked::Value(place, bytes, value))) => {
                let place = match place {
                    Place::Shared(_, at) => format!("shared memory at {at:#x}"),
                    Place::Global(at) => format!("device memory at {at:#x}"),
                    Place::Fill(_) => "memory".into(),
                };
                format!("polls {bytes} bytes of {place}, which were last {value:#x}")
            }
        }
    }

    fn describe(&self, warp: &Warp, wait: Wait) -> String {
        match wait {
            Wait::Ready => "polls".into(),
            Wait::Lanes => "waits for the rest of its warp".into(),
            Wait::Barrier(id, _) => {
                let barrier = &self.block(warp.block).named[id as usize];
                let (arrived, needed) = (barrier.arrived, barrier.needed);
                format!("waits at barrier {id}, where {arrived} of {needed} threads have arrived")
            }
            Wait::Cluster(_) => {
                let members = &self.block(warp.block).cluster;
                let live: u32 = members.iter().map(|&member| self.block(member).live).sum();
                let arrived = self
                    .clusters
                    .get(&members[0])
                    .map_or(0, |barrier| barrier.arrived);
                format!(
                    "waits at the cluster's barrier, where {arrived} of {live} warps have arrived"
                )
            }
            Wait::Mbarrier(block, at, phase) => {
                let bar = self.blocks[block]
                    .as_ref()
                    .and_then(|block| block.mbarriers.get(&at));
                match bar {
                    Some(bar) => format!(
                        "waits for phase {phase} of the mbarrier at {at:#x}, which is in phase {} with {} arrivals and {} bytes missing",
                        bar.phase, bar.pending, bar.bytes
                    ),
                    None => format!("waits for an mbarrier at {at:#x} that is not initialised"),
                }
            }
            Wait::Bulk { pending, .. } => format!("waits until {pending} bulk groups are left"),
            Wait::Wgmma(pending) => format!("waits until {pending} wgmma groups are left"),
            Wait::Sleep(_) => "sleeps".into(),
            Wait::Columns(columns, 1) => {
                format!("waits for {columns} columns of tensor memory")
            }
            Wait::Columns(columns, _) => {
                format!("waits for {columns} columns of tensor memory, with its peer block")
            }
            Wait::Registers(wanted) => {
                let free = self.block(warp.block).pool.free;
                format!(
                    "waits for {wanted} registers ({} a thread more than its {}), of which the block's pool has {free}",
                    wanted / 32,
                    warp.owned
                )
            }
        }
    }

    /// Drops everything that was launched.
    fn abandon(&mut self) {
        self.jumps = 0;
        self.check_idle();
        self.grids.clear();
        self.blocks.clear();
        self.warps.clear();
        self.ready.clear();
        self.clusters.clear();
        self.tensors.clear();
        self.events = super::events::Queue::default();
        for waiting in &mut self.waiting {
            waiting.clear();
        }
        for sms in &mut self.usage {
            sms.fill(super::blocks::Usage::default());
        }
    }

    /// Whether what a fragment waits for has happened.
    fn is_over(&self, warp: &Warp, fragment: &super::Fragment) -> bool {
        match fragment.wait {
            Wait::Ready | Wait::Lanes | Wait::Wgmma(_) => false,
            Wait::Barrier(id, phase) => self.block(warp.block).named[id as usize].phase > phase,
            Wait::Cluster(phase) => {
                let first = self.block(warp.block).cluster[0];
                self.clusters
                    .get(&first)
                    .is_none_or(|barrier| barrier.phase > phase)
            }
            Wait::Mbarrier(block, at, phase) => {
                let bar = self.blocks[block]
                    .as_ref()
                    .and_then(|block| block.mbarriers.get(&at));
                bar.is_none_or(|bar| bar.phase > phase)
            }
            Wait::Bulk { pending, read } => {
                crate::exec::bulk_settled(warp, fragment.mask, pending, read)
            }
            Wait::Sleep(until) => self.time >= until,
            Wait::Registers(wanted) => self.block(warp.block).pool.free >= wanted,
            Wait::Columns(columns, group) => self.can_allocate(warp.block, columns, group),
        }
    }

    /// Lets the fragments of a warp go on whose wait is over.
    fn refresh(&self, warp: &mut Warp) -> bool {
        let mut any = false;
        for at in 0..warp.fragments.len() {
            if warp.fragments[at].wait != Wait::Ready && self.is_over(warp, &warp.fragments[at]) {
                warp.fragments[at].wait = Wait::Ready;
            }
            any |= warp.fragments[at].wait == Wait::Ready;
        }
        any
    }

    /// Looks again at what a warp waits for.
    pub(crate) fn make_ready(&mut self, id: usize) {
        let Some(mut warp) = self.warps.get_mut(id).and_then(Option::take) else {
            return;
        };
        let runs = self.refresh(&mut warp);
        self.warps[id] = Some(warp);
        if runs && !self.ready.contains(&id) {
            self.ready.push(id);
        }
    }

    /// Looks again at what the warps of a block's cluster wait for.
    pub(crate) fn wake_cluster_of(&mut self, block: usize) {
        self.progress += 1;
        let Some(members) = self.blocks[block]
            .as_ref()
            .map(|block| block.cluster.clone())
        else {
            return;
        };
        for &member in members.iter() {
            for at in 0..self.blocks[member]
                .as_ref()
                .map_or(0, |block| block.warps.len())
            {
                let id = self.block(member).warps[at];
                // The warp that runs now is looked at when it next picks a fragment.
                if self.warps[id]
                    .as_ref()
                    .is_some_and(|warp| warp.block == member)
                {
                    self.make_ready(id);
                }
            }
        }
    }
}

/// Joins fragments that are at the same instruction.
fn merge(warp: &mut Warp) {
    if warp.fragments.len() < 2 {
        return;
    }
    let mut merged: Vec<super::Fragment> = Vec::with_capacity(warp.fragments.len());
    for fragment in warp.fragments.drain(..) {
        let joins = |wait: Wait| matches!(wait, Wait::Ready | Wait::Lanes);
        match merged
            .iter_mut()
            .find(|other| other.pc == fragment.pc && joins(other.wait) && joins(fragment.wait))
        {
            Some(other) => {
                other.mask |= fragment.mask;
                // Whoever waited for lanes looks again.
                if other.wait != fragment.wait || other.wait == Wait::Lanes {
                    other.wait = Wait::Ready;
                }
            }
            None => merged.push(fragment),
        }
    }
    warp.fragments = merged;
}
