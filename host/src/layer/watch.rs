//! While a rank waits for its device, somebody looks whether the others are still there.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use mok_comm::{Error as GroupError, Group};

/// How often it is looked.
const EVERY: Duration = Duration::from_millis(5);

/// Looks as long as it lives.
#[derive(Debug)]
pub(super) struct Watch {
    live: Arc<Mutex<bool>>,
    thread: Option<Thread>,
}

impl Watch {
    /// Calls `lost`, once, if the group fails before the watch is dropped; never later.
    pub fn new(group: &Arc<Group>, lost: impl FnOnce(&GroupError) + Send + 'static) -> Watch {
        let live = Arc::new(Mutex::new(true));
        let (shared, weak) = (live.clone(), Arc::downgrade(group));
        let look = move || {
            loop {
                {
                    let live = shared.lock().unwrap_or_else(PoisonError::into_inner);
                    // Held only under the lock, so that this is never the group's last owner.
                    let Some(group) = weak.upgrade().filter(|_| *live) else {
                        return;
                    };
                    if let Some(error) = group.failed() {
                        return lost(&error);
                    }
                }
                thread::park_timeout(EVERY);
            }
        };
        // With no thread to spare, the device's own deadlines end the wait.
        let started = thread::Builder::new().name("mok watch".into()).spawn(look);
        Watch {
            live,
            thread: started.ok().map(|handle| handle.thread().clone()),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = false;
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_rank_that_leaves_is_noticed_and_one_that_left_later_is_not() {
        let mut groups = Group::threads(2).unwrap();
        let (leaver, group) = (groups.pop(), Arc::new(groups.remove(0)));
        let (tell, told) = mpsc::channel();
        let seen = tell.clone();
        let early = Watch::new(&group, move |_| seen.send("early").unwrap());
        drop(early);
        let late = Watch::new(&group, move |_| tell.send("late").unwrap());
        drop(leaver);
        assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok("late"));
        drop(late);
        // Nobody keeps the group, however soon its owner goes.
        assert_eq!(Arc::strong_count(&group), 1);
        assert!(told.recv_timeout(Duration::from_millis(20)).is_err());
    }
}
