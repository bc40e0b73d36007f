//! What orders one thread behind another.

use std::collections::{BTreeMap, HashMap};

use super::Check;
use super::clock::{Agent, Clock, Known, Released};
use super::shadow::Use;
use crate::code::{Fence, Order, Scope};
use crate::machine::Place;
use crate::report::FindingKind;

/// Threads that meet at a named barrier, or at a cluster's.
#[derive(Debug, Default)]
struct Meeting {
    arriving: Known,
    /// What the last phase that ended has brought.
    done: Known,
    waiting: Vec<(u32, u32)>,
}

/// An mbarrier.
#[derive(Debug, Default)]
struct Bar {
    /// Who wrote it: agent, clock and lane, and the line.
    init: (Agent, u32, u32, u32),
    /// The clock of the copies that it counts.
    agent: Agent,
    arriving: Released,
    done: Released,
    /// The phases whose copies are complete.
    complete: u32,
    /// Copies that have not arrived, by the phase in which they were issued.
    copies: BTreeMap<u64, u32>,
    /// What commits of `tcgen05` have told in this phase, and in those before. It needs no acquire:
    /// that is what they are for.
    committing: Known,
    committed: Known,
    /// Who arrived last, so that lanes that arrive together count once.
    last: Option<(Agent, u32, Scope)>,
}

/// A word that strong writes have released something at.
#[derive(Debug, Default)]
struct Word {
    released: Released,
    /// Its last change.
    stamp: u64,
}

/// Everything that threads meet at.
#[derive(Debug, Default)]
pub(super) struct Sync {
    bars: HashMap<(usize, u32), Bar>,
    named: HashMap<(usize, u32), Meeting>,
    clusters: HashMap<usize, Meeting>,
    /// What strong writes have left, by block (or none) and address.
    words: HashMap<(usize, u64), Word>,
    /// Changes of words so far.
    stamps: u64,
}

impl Sync {
    /// A commit of `tcgen05` arrives.
    pub fn told_by_commit(&mut self, (block, offset): (usize, u32), known: &Known) {
        if let Some(bar) = self.bars.get_mut(&(block, offset)) {
            bar.committing.join(known);
        }
    }

    pub fn end_block(&mut self, block: usize) {
        self.bars.retain(|key, _| key.0 != block);
        self.named.retain(|key, _| key.0 != block);
        self.words.retain(|key, _| key.0 != block);
        self.clusters.remove(&block);
    }
}

fn key_of(place: Place) -> (usize, u64) {
    match place {
        Place::Global(address) => (usize::MAX, address),
        Place::Shared(block, offset) => (block, offset.into()),
        Place::Fill(_) => (usize::MAX, 0),
    }
}

impl Check {
    /// A load, store or atomic of a lane.
    pub(crate) fn access(&mut self, lane: u32, place: Place, bytes: u32, what: Use, order: Order) {
        let strong = (order.strong || what == Use::Change).then_some(order.scope);
        let Some(record) = self.ordinary(lane, strong) else {
            return;
        };
        self.touch(lane, record, place, bytes, what);
        let what = match what {
            Use::Rewrite => Use::Write,
            what => what,
        };
        if strong.is_some() {
            self.strong(lane, place, what, order);
        } else if what == Use::Write && !self.sync.words.is_empty() {
            self.sync.words.remove(&key_of(place));
        }
    }

    fn strong(&mut self, lane: u32, place: Place, what: Use, order: Order) {
        let at = self.now.warp as usize;
        let domain = self.warps[at].domain;
        let Some(state) = self.states[at].as_mut() else {
            return;
        };
        let group = state.group_mut(lane);
        let key = key_of(place);
        if what != Use::Write
            && let Some(word) = self.sync.words.get(&key)
            && group.polled != Some((key, word.stamp, order.acquire))
        {
            group.polled = Some((key, word.stamp, order.acquire));
            if order.acquire {
                word.released
                    .acquired(order.scope, domain, &mut group.known);
            } else {
                group.relaxed.join(&word.released);
            }
        }
        if what == Use::Read {
            return;
        }
        // What a read-modify-write changes still carries the releases before it.
        if what == Use::Write {
            self.sync.words.remove(&key);
        }
        if !order.release && group.fences.is_empty() && group.fenced.is_empty() {
            return;
        }
        self.sync.stamps += 1;
        let word = self.sync.words.entry(key).or_default();
        word.stamp = self.sync.stamps;
        if order.release {
            word.released.add(order.scope, domain, &group.known);
            group.told = true;
        }
        for (scope, known) in &group.fences {
            word.released.add((*scope).min(order.scope), domain, known);
        }
        if !group.fenced.is_empty() {
            let known = Known {
                seen: group.fenced.clone(),
                ..Known::default()
            };
            word.released.add(order.scope, domain, &known);
        }
    }

    pub(crate) fn fence(&mut self, fence: Fence, mask: u32) {
        let Some((state, info)) = self.running() else {
            return;
        };
        let domain = info.domain;
        for group in state.inside(mask) {
            match fence {
                Fence::Memory {
                    scope,
                    acquire,
                    release,
                } => {
                    if acquire {
                        group.relaxed.acquired(scope, domain, &mut group.known);
                    }
                    if release {
                        group.fence(scope);
                    }
                }
                Fence::ProxyAsync { shared, global } => {
                    let known = &mut group.known;
                    if shared {
                        known.shared.join(&known.seen);
                    }
                    if global {
                        known.global.join(&known.seen);
                    }
                    group.told = true;
                }
                Fence::MbarrierInit => group.fence(Scope::Cluster),
            }
        }
    }

    /// Threads of the running warp arrive at a named barrier, and may wait there.
    pub(crate) fn arrive_named(&mut self, block: usize, id: u32, mask: u32, wait: bool) {
        let warp = self.now.warp;
        let Some(state) = self.states[warp as usize].as_mut() else {
            return;
        };
        let meeting = self.sync.named.entry((block, id)).or_default();
        for group in state.inside(mask) {
            meeting.arriving.join(&group.known);
            group.told = true;
        }
        if wait {
            meeting.waiting.push((warp, mask));
        }
    }

    /// A phase of a named barrier is over.
    pub(crate) fn settle_named(&mut self, block: usize, id: u32) {
        if let Some(meeting) = self.sync.named.remove(&(block, id)) {
            self.release(&meeting.arriving, &meeting.waiting);
        }
    }

    fn release(&mut self, known: &Known, waiting: &[(u32, u32)]) {
        for &(warp, mask) in waiting {
            if let Some(state) = self.states[warp as usize].as_mut() {
                state.inside(mask).for_each(|group| group.known.join(known));
            }
        }
    }

    pub(crate) fn arrive_cluster(&mut self, cluster: usize, mask: u32, relaxed: bool) {
        let Some(state) = self.states[self.now.warp as usize].as_mut() else {
            return;
        };
        let meeting = self.sync.clusters.entry(cluster).or_default();
        for group in state.inside(mask) {
            if !relaxed {
                meeting.arriving.join(&group.known);
                group.told = true;
            }
            meeting.arriving.seen.join(&group.fenced);
            for (scope, known) in &group.fences {
                if *scope >= Scope::Cluster {
                    meeting.arriving.join(known);
                }
            }
        }
    }

    /// Threads wait for the cluster: what they know then is known when the phase is over.
    pub(crate) fn wait_cluster(&mut self, cluster: usize, mask: u32, over: bool) {
        let warp = self.now.warp;
        let meeting = self.sync.clusters.entry(cluster).or_default();
        if !over {
            meeting.waiting.push((warp, mask));
            return;
        }
        let done = meeting.done.clone();
        self.release(&done, &[(warp, mask)]);
    }

    pub(crate) fn settle_cluster(&mut self, cluster: usize) {
        let Some(meeting) = self.sync.clusters.get_mut(&cluster) else {
            return;
        };
        meeting.done = std::mem::take(&mut meeting.arriving);
        let (done, waiting) = (meeting.done.clone(), std::mem::take(&mut meeting.waiting));
        self.release(&done, &waiting);
    }

    pub(crate) fn init_bar(&mut self, lane: u32, block: usize, offset: u32) {
        let agent = self.agent(1, self.gpu());
        let pc = self.now.pc;
        let Some(record) = self.ordinary(lane, None) else {
            return;
        };
        let bar = Bar {
            init: (record.agent, record.clock, lane, pc),
            agent,
            ..Bar::default()
        };
        self.sync.bars.insert((block, offset), bar);
    }

    /// Whether the running lane comes after the mbarrier's initialisation.
    fn after_init(&mut self, lane: u32, block: usize, offset: u32) -> Option<&mut Bar> {
        let (agent, clock, by, pc) = self.sync.bars.get(&(block, offset))?.init;
        if !self.state()?.group(lane).known.seen.has(agent, clock, by) {
            let warp = &self.warps[self.now.warp as usize];
            let line = super::line_of(&warp.entry, pc);
            let message = format!(
                "uses the mbarrier at {offset:#x}, and its initialisation at line {line} is not ordered before it"
            );
            self.report(FindingKind::Race, Some(lane), pc + 1, message);
        }
        self.sync.bars.get_mut(&(block, offset))
    }

    /// A lane has an mbarrier tracked by a commit.
    pub(crate) fn see_bar(&mut self, lane: u32, block: usize, offset: u32) {
        self.after_init(lane, block, offset);
    }

    /// An arrival. `copies` is the clock of small copies that it stands for as well.
    pub(crate) fn arrive_bar(
        &mut self,
        lane: u32,
        (block, offset): (usize, u32),
        order: Order,
        copies: Option<u32>,
    ) {
        if self.after_init(lane, block, offset).is_none() {
            return;
        }
        let at = self.now.warp as usize;
        let (domain, own_copies) = (self.warps[at].domain, self.warps[at].copies());
        let (Some(state), Some(bar)) = (
            self.states[at].as_mut(),
            self.sync.bars.get_mut(&(block, offset)),
        ) else {
            return;
        };
        let group = state.group_mut(lane);
        bar.committing.seen.join(&group.fenced);
        if !order.release {
            for (scope, known) in &group.fences {
                bar.arriving.add((*scope).min(order.scope), domain, known);
            }
            return;
        }
        let mark = (group.agent, group.clock, order.scope);
        if bar.last == Some(mark) && copies.is_none() {
            return;
        }
        match copies {
            None => bar.arriving.add(order.scope, domain, &group.known),
            Some(clock) => {
                let mut known = group.known.clone();
                known.seen.raise(own_copies, clock);
                bar.arriving.add(order.scope, domain, &known);
            }
        }
        bar.last = Some(mark);
        group.told = true;
    }

    /// An arrival that stands for the small copies of its thread.
    pub(crate) fn arrive_small(&mut self, lane: u32, bar: (usize, u32)) {
        let clock = self.small_clock();
        let order = Order {
            release: true,
            ..Order::default()
        };
        self.arrive_bar(lane, bar, order, clock);
    }

    /// Phases of an mbarrier that have ended.
    pub(crate) fn settle_bar(&mut self, block: usize, offset: u32, phase: u64) {
        let Some(bar) = self.sync.bars.get_mut(&(block, offset)) else {
            return;
        };
        let arriving = std::mem::take(&mut bar.arriving);
        bar.done.join(&arriving);
        let committing = std::mem::take(&mut bar.committing);
        bar.committed.join(&committing);
        bar.last = None;
        // Copies that are still under way keep their phase from counting as complete.
        let open = bar.copies.keys().next().copied().unwrap_or(u64::MAX);
        bar.complete = bar.complete.max(phase.min(open) as u32);
    }

    /// A lane saw that a phase of an mbarrier is over.
    pub(crate) fn wait_bar(&mut self, lane: u32, (block, offset): (usize, u32), order: Order) {
        if self.after_init(lane, block, offset).is_none() {
            return;
        }
        let at = self.now.warp as usize;
        let domain = self.warps[at].domain;
        let (Some(state), Some(bar)) = (
            self.states[at].as_mut(),
            self.sync.bars.get(&(block, offset)),
        ) else {
            return;
        };
        let group = state.group_mut(lane);
        group.known.join(&bar.committed);
        if !order.acquire {
            group.relaxed.join(&bar.done);
        } else {
            bar.done.acquired(order.scope, domain, &mut group.known);
            group.known.seen.raise(bar.agent, bar.complete);
        }
    }

    pub(crate) fn end_bar(&mut self, block: usize, offset: u32) {
        self.sync.bars.remove(&(block, offset));
    }

    /// A bulk copy that an mbarrier will count: its clock.
    pub(crate) fn issue_counted(
        &mut self,
        lane: u32,
        (block, offset): (usize, u32),
        phase: u64,
    ) -> Option<(Agent, u32)> {
        let bar = self.after_init(lane, block, offset)?;
        *bar.copies.entry(phase).or_default() += 1;
        Some((bar.agent, phase as u32 + 1))
    }

    /// A counted bulk copy has arrived.
    pub(crate) fn delivered(&mut self, block: usize, offset: u32) {
        let Some(bar) = self.sync.bars.get_mut(&(block, offset)) else {
            return;
        };
        if let Some(mut first) = bar.copies.first_entry() {
            *first.get_mut() -= 1;
            if *first.get() == 0 {
                first.remove();
            }
        }
    }

    /// What the running lane comes to know of an agent.
    pub(crate) fn learn(&mut self, mask: u32, agent: Agent, clock: u32) {
        if let Some(state) = self.state() {
            let raise = |seen: &mut Clock| seen.raise(agent, clock);
            state
                .inside(mask)
                .for_each(|group| raise(&mut group.known.seen));
        }
    }
}
