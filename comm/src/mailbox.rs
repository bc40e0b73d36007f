//! Where a rank waits for what the hub says.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::wire::Cause;

/// What a wait ended with.
#[derive(Debug, PartialEq)]
pub(crate) enum Arrival {
    Done(Vec<Vec<u8>>),
    Failed(Cause),
    Nothing,
}

#[derive(Default)]
struct Slot {
    done: Option<(u64, Vec<Vec<u8>>)>,
    failed: Option<Cause>,
}

#[derive(Default)]
struct State {
    groups: HashMap<String, Slot>,
    /// Nothing will come any more.
    closed: Option<Cause>,
}

/// Replies of the hub by group.
#[derive(Default)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
    changed: Condvar,
}

impl Mailbox {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is one assignment: a panic leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn done(&self, group: &str, number: u64, parts: Vec<Vec<u8>>) {
        let mut state = self.state();
        state.groups.entry(group.into()).or_default().done = Some((number, parts));
        self.changed.notify_all();
    }

    pub(crate) fn fail(&self, group: &str, cause: Cause) {
        let mut state = self.state();
        let slot = state.groups.entry(group.into()).or_default();
        slot.failed.get_or_insert(cause);
        self.changed.notify_all();
    }

    pub(crate) fn close(&self, cause: Cause) {
        self.state().closed.get_or_insert(cause);
        self.changed.notify_all();
    }

    /// Why a group is of no use any more.
    pub(crate) fn failure(&self, group: &str) -> Option<Cause> {
        let state = self.state();
        let failed = state.groups.get(group).and_then(|slot| slot.failed.clone());
        failed.or_else(|| state.closed.clone())
    }

    pub(crate) fn forget(&self, group: &str) {
        self.state().groups.remove(group);
    }

    /// Waits for the end of a call. A result that has come counts, whatever came after it.
    pub(crate) fn wait(&self, group: &str, number: u64, until: Instant) -> Arrival {
        let mut state = self.state();
        loop {
            let slot = state.groups.entry(group.into()).or_default();
            if let Some((_, parts)) = slot.done.take_if(|(done, _)| *done == number) {
                return Arrival::Done(parts);
            }
            if let Some(cause) = slot.failed.clone().or_else(|| state.closed.clone()) {
                return Arrival::Failed(cause);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Arrival::Nothing;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Departure;

    #[test]
    fn what_came_first_counts() {
        let mailbox = Mailbox::default();
        let lost = Cause::Lost {
            rank: 1,
            how: Departure::Left,
        };
        mailbox.done("0", 4, vec![vec![1]]);
        mailbox.fail("0", lost.clone());
        let now = Instant::now();
        assert_eq!(mailbox.wait("0", 4, now), Arrival::Done(vec![vec![1]]));
        assert_eq!(mailbox.wait("0", 5, now), Arrival::Failed(lost.clone()));
        assert_eq!(mailbox.failure("0"), Some(lost.clone()));
        // Another group isn't concerned, until nothing can come for any.
        assert_eq!(mailbox.wait("0/1.2", 0, now), Arrival::Nothing);
        mailbox.close(lost.clone());
        assert_eq!(mailbox.wait("0/1.2", 0, now), Arrival::Failed(lost));
    }
}
