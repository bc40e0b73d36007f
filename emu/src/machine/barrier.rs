//! Barriers: named ones of a block, and mbarriers.

/// A named barrier of a block.
#[derive(Clone, Debug, Default)]
pub struct NamedBarrier {
    /// Threads that have arrived in this phase.
    pub arrived: u32,
    /// Threads that this phase needs; 0 while nobody has arrived.
    pub needed: u32,
    /// Whether it needs all threads of the block that have not ended.
    pub all: bool,
    /// Phases completed.
    pub phase: u64,
    /// Threads with a true predicate (reductions).
    pub count: u32,
    /// Threads that brought one: fewer than have arrived where a warp is not full.
    pub brought: u32,
    /// Result of the last reduction.
    pub result: u32,
    /// Threads that took part in the last reduction.
    pub result_of: u32,
}

/// An mbarrier (PTX ISA, "Parallel Synchronization and Communication: mbarrier").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mbarrier {
    /// Arrivals that each phase needs.
    pub expected: u32,
    /// Arrivals that this phase still needs.
    pub pending: u32,
    /// Bytes that this phase still expects; negative while more came than were announced.
    pub bytes: i64,
    /// Phases completed.
    pub phase: u64,
    /// Arrivals that leave for good with this phase.
    pub dropped: u32,
}

/// The range of counts and of pending bytes.
pub const MOST_ARRIVALS: u32 = (1 << 20) - 1;
/// The range of pending bytes, both ways.
pub const MOST_BYTES: i64 = (1 << 20) - 1;

impl Mbarrier {
    /// A fresh one.
    pub fn new(count: u32) -> Mbarrier {
        Mbarrier {
            expected: count,
            pending: count,
            bytes: 0,
            phase: 0,
            dropped: 0,
        }
    }

    /// Whether the phase of this parity is over.
    pub fn parity_done(&self, parity: u64) -> bool {
        self.phase & 1 != parity & 1
    }

    /// Ends the phase if nothing is missing; says whether it did.
    pub fn settle(&mut self) -> bool {
        if self.pending > 0 || self.bytes != 0 {
            return false;
        }
        self.expected -= self.dropped.min(self.expected);
        self.dropped = 0;
        self.pending = self.expected;
        self.phase += 1;
        true
    }

    /// Arrivals of this phase; an error if it doesn't wait for so many.
    pub fn arrive(&mut self, count: u32, drop: bool) -> Result<(), String> {
        if count > self.pending {
            return Err(format!(
                "{count} arrivals where the phase waits for {}",
                self.pending
            ));
        }
        self.pending -= count;
        if drop {
            self.dropped += count;
        }
        Ok(())
    }

    /// Expected (positive) or delivered (negative) bytes.
    pub fn count_bytes(&mut self, bytes: i64) -> Result<(), String> {
        self.bytes += bytes;
        match self.bytes.abs() <= MOST_BYTES {
            true => Ok(()),
            false => Err(format!(
                "{} pending bytes are over the limit of {MOST_BYTES}",
                self.bytes
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_needs_its_arrivals_and_its_bytes() {
        let mut bar = Mbarrier::new(2);
        assert!(bar.parity_done(1) && !bar.parity_done(0));
        bar.arrive(1, false).unwrap();
        bar.count_bytes(64).unwrap();
        bar.arrive(1, false).unwrap();
        assert!(!bar.settle());
        assert!(bar.arrive(1, false).is_err());
        bar.count_bytes(-64).unwrap();
        assert!(bar.settle());
        assert_eq!((bar.phase, bar.pending), (1, 2));
        assert!(bar.parity_done(0) && !bar.parity_done(1));
    }

    #[test]
    fn dropped_arrivals_leave_with_their_phase() {
        let mut bar = Mbarrier::new(3);
        bar.arrive(1, true).unwrap();
        bar.arrive(2, false).unwrap();
        assert!(bar.settle());
        assert_eq!((bar.expected, bar.pending), (2, 2));
    }
}
