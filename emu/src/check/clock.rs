//! Vector clocks, and what a release leaves for an acquire.

use crate::code::Scope;

/// Who has a clock: some threads of a warp, the bulk copies of an mbarrier, the products of a
/// warp, ...
pub(super) type Agent = u32;

/// For each agent the latest of its accesses that are ordered before.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    /// Ascending by agent.
    at: Vec<(Agent, u32)>,
    /// For each GPU the last of its launches of which everything is ordered before. Within one
    /// GPU launches are in order anyway, so this is empty where there is only one.
    launches: Vec<u64>,
    /// Of an agent's accesses up to a clock those of some lanes: what a part of a warp knows of
    /// what the warp did since its last barrier.
    parts: Vec<(Agent, u32, u32)>,
}

impl Clock {
    /// Whether an access of an agent's lane is ordered before.
    pub fn has(&self, agent: Agent, clock: u32, lane: u32) -> bool {
        self.get(agent) >= clock
            || self
                .parts
                .iter()
                .any(|part| part.0 == agent && part.1 >= clock && part.2 >> lane & 1 != 0)
    }

    /// Of what an agent did up to a clock, and after an earlier one, only some lanes' is known.
    pub fn part(&mut self, agent: Agent, (after, clock): (u32, u32), lanes: u32) {
        if let Ok(at) = self.at.binary_search_by_key(&agent, |entry| entry.0)
            && self.at[at].1 > after
        {
            let clock = self.at[at].1.min(clock);
            self.at[at].1 = after;
            self.join_part((agent, clock, lanes));
        }
    }

    fn join_part(&mut self, (agent, clock, lanes): (Agent, u32, u32)) {
        if self.get(agent) >= clock {
            return;
        }
        match self
            .parts
            .iter_mut()
            .find(|part| (part.0, part.2) == (agent, lanes))
        {
            Some(part) => part.1 = part.1.max(clock),
            None => self.parts.push((agent, clock, lanes)),
        }
    }

    /// Whether it says of no agent anything.
    pub fn is_empty(&self) -> bool {
        self.at.is_empty() && self.parts.is_empty()
    }

    pub fn get(&self, agent: Agent) -> u32 {
        match self.at.binary_search_by_key(&agent, |entry| entry.0) {
            Ok(at) => self.at[at].1,
            Err(_) => 0,
        }
    }

    pub fn raise(&mut self, agent: Agent, clock: u32) {
        match self.at.binary_search_by_key(&agent, |entry| entry.0) {
            Ok(at) => self.at[at].1 = self.at[at].1.max(clock),
            Err(at) => self.at.insert(at, (agent, clock)),
        }
    }

    /// Everything of a GPU's launches up to this one is ordered before.
    pub fn raise_launch(&mut self, gpu: usize, launch: u64) {
        if self.launches.len() <= gpu {
            self.launches.resize(gpu + 1, 0);
        }
        self.launches[gpu] = self.launches[gpu].max(launch);
    }

    /// Whether all of a launch is ordered before.
    pub fn has_launch(&self, gpu: usize, launch: u64) -> bool {
        self.launches.get(gpu).is_some_and(|&last| last >= launch)
    }

    /// What it says of some agents, and of launches.
    pub fn only(&self, keep: impl Fn(Agent) -> bool) -> Clock {
        let kept = self.at.iter().filter(|entry| keep(entry.0)).copied();
        Clock {
            at: kept.collect(),
            launches: self.launches.clone(),
            parts: self
                .parts
                .iter()
                .filter(|part| keep(part.0))
                .copied()
                .collect(),
        }
    }

    pub fn join(&mut self, other: &Clock) {
        for (gpu, &launch) in other.launches.iter().enumerate() {
            self.raise_launch(gpu, launch);
        }
        self.join_whole(other);
        for &part in &other.parts {
            self.join_part(part);
        }
        if !self.parts.is_empty() {
            let parts = std::mem::take(&mut self.parts).into_iter();
            self.parts = parts.filter(|part| self.get(part.0) < part.1).collect();
        }
    }

    fn join_whole(&mut self, other: &Clock) {
        // Most joins bring nothing new, or only larger values.
        let mut at = 0;
        let mut missing = false;
        for &(agent, clock) in &other.at {
            while self.at.get(at).is_some_and(|entry| entry.0 < agent) {
                at += 1;
            }
            match self.at.get_mut(at) {
                Some(entry) if entry.0 == agent => entry.1 = entry.1.max(clock),
                _ => missing = true,
            }
        }
        if !missing {
            return;
        }
        let mut joined = Vec::with_capacity(self.at.len() + other.at.len());
        let mut own = self.at.iter().peekable();
        for &(agent, clock) in &other.at {
            while let Some(entry) = own.next_if(|entry| entry.0 < agent) {
                joined.push(*entry);
            }
            let mine = own.next_if(|entry| entry.0 == agent);
            joined.push((agent, mine.map_or(clock, |entry| entry.1.max(clock))));
        }
        joined.extend(own);
        self.at = joined;
    }
}

/// What is ordered before something, and what of it a proxy fence has made visible to the
/// asynchronous proxy.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// Ordered before.
    pub seen: Clock,
    /// Visible to the asynchronous proxy, in shared memory.
    pub shared: Clock,
    /// Visible to the asynchronous proxy, in device memory.
    pub global: Clock,
    /// What later accesses to tensor memory come after: see [`super::tensor`]. It is a thread's
    /// own, so joins leave it alone.
    pub tensor: Clock,
}

impl Known {
    /// What is ordered before a launch is visible to every proxy.
    pub fn start(&mut self, before: &Clock) {
        for clock in [&mut self.seen, &mut self.shared, &mut self.global] {
            clock.join(before);
        }
    }

    pub fn join(&mut self, other: &Known) {
        self.seen.join(&other.seen);
        self.shared.join(&other.shared);
        self.global.join(&other.global);
    }
}

/// Where threads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Domain {
    pub block: usize,
    pub cluster: usize,
    pub gpu: usize,
}

impl Domain {
    /// Keeps what two have in common.
    fn widen(&mut self, other: Domain) {
        for (own, others) in [
            (&mut self.block, other.block),
            (&mut self.cluster, other.cluster),
            (&mut self.gpu, other.gpu),
        ] {
            if *own != others {
                *own = usize::MAX;
            }
        }
    }

    /// Whether a scope around one holds the other.
    pub fn shares(self, scope: Scope, other: Domain) -> bool {
        match scope {
            Scope::Block => self.block == other.block,
            Scope::Cluster => self.cluster == other.cluster,
            Scope::Gpu => self.gpu == other.gpu,
            Scope::System => true,
        }
    }
}

/// What releases have left at a place, by scope and by who released.
#[derive(Clone, Debug, Default)]
pub(super) struct Released {
    entries: Vec<(Scope, Domain, Known)>,
}

impl Released {
    /// Adds what a thread released. What has one scope is one entry; where several blocks
    /// released, an acquire of a narrower scope than theirs no longer sees it.
    pub fn add(&mut self, scope: Scope, domain: Domain, known: &Known) {
        let same =
            |entry: &&mut (Scope, Domain, Known)| entry.0 == scope && domain.shares(scope, entry.1);
        match self.entries.iter_mut().find(same) {
            Some((_, from, all)) => {
                from.widen(domain);
                all.join(known);
            }
            None => self.entries.push((scope, domain, known.clone())),
        }
    }

    pub fn join(&mut self, other: &Released) {
        for (scope, domain, known) in &other.entries {
            self.add(*scope, *domain, known);
        }
    }

    /// What each release saw.
    pub fn each_seen(&self, mut visit: impl FnMut(&Clock)) {
        self.entries
            .iter()
            .for_each(|(_, _, known)| visit(&known.seen));
    }

    /// What a thread acquires: the scopes of both must hold the other.
    pub fn acquired(&self, scope: Scope, domain: Domain, known: &mut Known) {
        for (released, from, all) in &self.entries {
            if domain.shares(*released, *from) && domain.shares(scope, *from) {
                known.join(all);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_take_the_larger() {
        let mut a = Clock::default();
        a.raise(3, 5);
        a.raise(1, 2);
        let mut b = Clock::default();
        b.raise(2, 9);
        b.raise(3, 4);
        a.join(&b);
        assert_eq!(a.at, [(1, 2), (2, 9), (3, 5)]);
        a.join(&b);
        assert_eq!((a.get(2), a.get(7)), (9, 0));
    }

    #[test]
    fn scopes_hold_both_sides() {
        let at = |block, gpu| Domain {
            block,
            cluster: block,
            gpu,
        };
        let mut known = Known::default();
        known.seen.raise(1, 1);
        let mut released = Released::default();
        released.add(Scope::Gpu, at(0, 0), &known);
        for (scope, domain, seen) in [
            (Scope::Gpu, at(1, 0), 1),
            (Scope::System, at(1, 0), 1),
            (Scope::System, at(1, 1), 0),
            (Scope::Block, at(1, 0), 0),
            (Scope::Block, at(0, 0), 1),
        ] {
            let mut own = Known::default();
            released.acquired(scope, domain, &mut own);
            assert_eq!(own.seen.get(1), seen, "{scope:?} {domain:?}");
        }
    }
}
