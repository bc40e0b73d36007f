//! Warps, and which of their threads have a clock together.
//!
//! A simplification: threads of a warp that execute an instruction together are ordered, as if
//! each instruction ended with a barrier among them. Threads that took different branches are
//! not, until they meet again at a barrier; executing another collective instruction together
//! (a shuffle, a product) orders nothing.

use std::collections::HashMap;
use std::sync::Arc;

use super::clock::{Agent, Clock, Domain, Known, Released};
use super::registers::{Flight, Plan};
use super::unwritten::{Taint, Written};
use crate::code::{Entry, Scope};

/// What reports say about a warp, and what orders it.
#[derive(Clone, Debug)]
pub(super) struct WarpInfo {
    pub entry: Arc<Entry>,
    pub block: [u32; 3],
    pub number: u32,
    pub domain: Domain,
    pub launch: u64,
    /// The agent of the group whose lowest lane is 0; those of other lanes follow, and others.
    pub first: Agent,
}

/// Agents of a warp: its lanes, its products, its small copies, all lanes together, and two each for
/// its loads from tensor memory and its stores there.
pub(super) const AGENTS: u32 = 39;
/// All lanes together.
const TOGETHER: u32 = 34;

impl WarpInfo {
    pub fn products(&self) -> Agent {
        self.first + 32
    }

    pub fn copies(&self) -> Agent {
        self.first + 33
    }

    /// Those of what its threads access themselves.
    pub fn own(&self) -> std::ops::Range<Agent> {
        self.first..self.first + TOGETHER + 1
    }

    /// The first of two for loads from tensor memory, or stores.
    pub fn moves(&self, load: bool) -> Agent {
        self.first + if load { 35 } else { 37 }
    }
}

/// Which launches have ended, and before which others.
#[derive(Debug, Default)]
pub(super) struct Launches {
    /// Launches enqueued when one ended.
    ended: HashMap<u64, u64>,
}

impl Launches {
    pub fn end(&mut self, launch: u64, enqueued: u64) {
        self.ended.entry(launch).or_insert(enqueued);
    }

    /// Whether all of one warp's launch came before the other's.
    pub fn ordered(&self, before: &WarpInfo, after: &WarpInfo) -> bool {
        before.launch != after.launch
            && (before.domain.gpu == after.domain.gpu && before.launch < after.launch
                || self
                    .ended
                    .get(&before.launch)
                    .is_some_and(|&enqueued| after.launch > enqueued))
    }
}

/// Threads of a warp with one clock.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub mask: u32,
    pub agent: Agent,
    pub clock: u32,
    pub known: Known,
    /// What release fences released, by their scope.
    pub fences: Vec<(Scope, Known)>,
    /// What relaxed reads saw, for an acquire fence.
    pub relaxed: Released,
    /// The word that was read last, with its stamp: polls that see nothing new learn nothing.
    pub polled: Option<((usize, u64), u64, bool)>,
    /// Whether somebody may know of the clock as it is.
    pub told: bool,
    /// The clock at its last barrier: up to there each thread knows of all.
    pub met: u32,
    /// What its last `tcgen05.fence::before_thread_sync` covers, for what is relaxed.
    pub fenced: Clock,
}

impl Group {
    /// A clock that nobody knows yet, for an access.
    pub fn stamp(&mut self) -> u32 {
        if self.told {
            self.clock += 1;
            self.known.seen.raise(self.agent, self.clock);
            self.told = false;
        }
        self.clock
    }

    /// Whether threads have ended since what all did together.
    fn bereft(&self, first: Agent, live: u32) -> bool {
        self.mask & !live != 0 && self.agent == first + TOGETHER && self.clock > self.met
    }

    /// Only some of its threads are left: what the others did since the last barrier they don't know.
    fn part(&mut self, lanes: u32) {
        let (agent, since) = (self.agent, (self.met, self.clock));
        let fences = self.fences.iter_mut().map(|(_, known)| known);
        for known in fences.chain([&mut self.known]) {
            known.seen.part(agent, since, lanes);
        }
    }

    /// Threads that have a clock of their own from now on, their first one's.
    fn lead(&mut self, first: Agent, lanes: u32, clocks: &mut [u32]) {
        let lane = lanes.trailing_zeros();
        self.mask = lanes;
        self.agent = first + lane;
        clocks[lane as usize] += 1;
        self.clock = clocks[lane as usize];
        self.known.seen.raise(self.agent, self.clock);
        self.told = false;
    }

    fn join(&mut self, other: &Group) {
        self.known.join(&other.known);
        self.known.tensor.join(&other.known.tensor);
        self.fenced.join(&other.fenced);
        self.relaxed.join(&other.relaxed);
        for (scope, known) in &other.fences {
            match self.fences.iter_mut().find(|fence| fence.0 == *scope) {
                Some((_, all)) => all.join(known),
                None => self.fences.push((*scope, known.clone())),
            }
        }
    }

    /// A release fence.
    pub fn fence(&mut self, scope: Scope) {
        self.fences.retain(|fence| fence.0 != scope);
        self.fences.push((scope, self.known.clone()));
        self.told = true;
    }
}

/// A warp as the checker sees it.
#[derive(Debug)]
pub(super) struct WarpState {
    pub groups: Vec<Group>,
    /// What threads that have ended knew: the warp's end tells it, its living threads don't know it.
    pub left: Clock,
    /// The last clock of each agent of a lane.
    clocks: [u32; AGENTS as usize],
    /// wgmma groups committed, and how many of them are complete.
    pub products: (u32, u32),
    /// Groups of `cp.async` committed.
    pub copies: u32,
    /// Stores to tensor memory and loads from it: issued, and waited for.
    pub moves: [(u32, u32); 2],
    pub plan: Arc<Plan>,
    pub flight: Flight,
    pub taint: Taint,
    /// Bytes of its threads' local memory that were written, lane after lane.
    pub local: Written,
}

impl WarpState {
    pub fn new(first: Agent, live: u32, plan: Arc<Plan>) -> WarpState {
        let mut group = Group {
            mask: live,
            agent: first + TOGETHER,
            clock: 1,
            known: Known::default(),
            fences: Vec::new(),
            relaxed: Released::default(),
            polled: None,
            told: false,
            met: 0,
            fenced: Clock::default(),
        };
        group.known.seen.raise(first + TOGETHER, 1);
        WarpState {
            groups: vec![group],
            left: Clock::default(),
            clocks: [0; AGENTS as usize],
            products: (0, 0),
            copies: 0,
            moves: [(0, 0); 2],
            flight: Flight::new(&plan),
            taint: Taint::default(),
            local: Written::new(32 * plan.local),
            plan,
        }
    }

    /// Parts the groups so that each lies inside the mask or outside, as far as threads live.
    pub fn select(&mut self, first: Agent, mask: u32, live: u32) {
        if let [group] = &self.groups[..]
            && group.mask & live & !mask == 0
            && !group.bereft(first, live)
        {
            return;
        }
        let left = &mut self.left;
        self.groups.retain(|group| {
            let lives = group.mask & live != 0;
            if !lives {
                left.join(&group.known.seen);
            }
            lives
        });
        for at in 0..self.groups.len() {
            let group = &mut self.groups[at];
            if group.bereft(first, live) {
                self.clocks[TOGETHER as usize] = group.clock;
                group.part(group.mask & live);
                group.lead(first, group.mask & live, &mut self.clocks);
            }
            group.mask &= live;
            let (inside, outside) = (group.mask & mask, group.mask & !mask);
            if inside == 0 || outside == 0 {
                continue;
            }
            let lowest = group.mask.trailing_zeros();
            self.clocks[(group.agent - first) as usize] = group.clock;
            // The part with the lowest lane keeps the clock; neither knows of the other's future.
            let (keeps, leaves) = if inside >> lowest & 1 != 0 {
                (inside, outside)
            } else {
                (outside, inside)
            };
            group.told = true;
            let mut part = group.clone();
            if group.agent == first + TOGETHER {
                group.part(keeps);
                part.part(leaves);
                group.lead(first, keeps, &mut self.clocks);
            }
            group.mask = keeps;
            part.lead(first, leaves, &mut self.clocks);
            self.groups.push(part);
        }
    }

    /// Joins the groups inside the mask, of the threads that live.
    pub fn meet(&mut self, first: Agent, mask: u32, live: u32) {
        if let [group] = &mut self.groups[..]
            && (group.mask & live & !mask != 0 || group.agent == first + TOGETHER)
        {
            if group.mask & live & !mask == 0 {
                group.met = group.clock;
                group.told = true;
            }
            return;
        }
        let Some(to) = (0..self.groups.len())
            .filter(|&at| self.groups[at].mask & !mask == 0)
            .min_by_key(|&at| self.groups[at].mask.trailing_zeros())
        else {
            return;
        };
        let mut all = self.groups[to].clone();
        for (at, group) in self.groups.iter().enumerate() {
            self.clocks[(group.agent - first) as usize] = group.clock;
            if at != to && group.mask & !mask == 0 {
                all.join(group);
                all.mask |= group.mask;
            }
        }
        self.groups.retain(|group| group.mask & !mask != 0);
        if self.groups.is_empty() {
            let clock = &mut self.clocks[TOGETHER as usize];
            *clock += 1;
            all.known.seen.raise(first + TOGETHER, *clock);
            (all.agent, all.clock, all.met, all.told) = (first + TOGETHER, *clock, *clock, true);
        }
        self.groups.push(all);
    }

    fn place(&self, lane: u32) -> usize {
        self.groups
            .iter()
            .position(|group| group.mask >> lane & 1 != 0)
            .unwrap_or(0)
    }

    /// The group of a lane.
    pub fn group(&self, lane: u32) -> &Group {
        &self.groups[self.place(lane)]
    }

    /// The group of a lane, to change it.
    pub fn group_mut(&mut self, lane: u32) -> &mut Group {
        let at = self.place(lane);
        &mut self.groups[at]
    }

    /// The groups inside a mask, to change them.
    pub fn inside(&mut self, mask: u32) -> impl Iterator<Item = &mut Group> {
        self.groups
            .iter_mut()
            .filter(move |group| group.mask & mask != 0)
    }
}
