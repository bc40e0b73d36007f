//! The ring of stages between one producer warp and the consumer warps.
//!
//! Each stage has two mbarriers. `full` completes when the producer has arrived and
//! all bytes it announced have been delivered; `empty` completes when every consumer
//! warp has let go. Where stages need a hand before they are consumed, a [`Relay`] passes each one on,
//! by a third barrier, `clear`, and lets go of it as well; a stage that needs none is consumed without
//! waiting for it. All walk the stages in the same order, and a position in
//! that walk fixes stage and parity, so neither is ever passed around on its own.

use crate::gemm::{CONSUMERS, STAGES};
use crate::ptx::shared::SmemAddr;
use crate::ptx::{mbarrier, reg};

/// Warps that release each stage.
const CONSUMER_WARPS: u32 = 4 * CONSUMERS;

/// The ring's barriers in shared memory.
#[derive(Clone, Copy)]
pub struct Ring {
    full: SmemAddr,
    empty: SmemAddr,
    clear: SmemAddr,
}

/// A stage that the producer may fill: its index, and the barrier that must get the bytes.
#[derive(Clone, Copy)]
pub struct Slot {
    /// Index of the stage.
    pub stage: u32,
    /// The mbarrier that counts this stage's bytes.
    pub bar: SmemAddr,
}

impl Ring {
    /// The ring of [`STAGES`] stages whose barriers lie at these addresses.
    pub fn new(full: SmemAddr, empty: SmemAddr, clear: SmemAddr) -> Ring {
        Ring { full, empty, clear }
    }

    /// Initialises the barriers, for a ring with a [`Relay`] or without.
    ///
    /// # Safety
    /// One thread of the block calls it, before anyone uses the ring; a
    /// `fence::mbarrier_init` and a block barrier follow.
    pub unsafe fn init(self, relayed: bool) {
        let mut stage = 0;
        while stage < STAGES {
            // SAFETY: the plan reserves 8 aligned bytes a barrier for them.
            unsafe {
                mbarrier::init(self.full.add(8 * stage), 1);
                mbarrier::init(self.empty.add(8 * stage), CONSUMER_WARPS + relayed as u32);
                mbarrier::init(self.clear.add(8 * stage), 1);
            }
            stage += 1;
        }
    }
}

/// A walk over the stages: which one is next, and in which parity.
#[derive(Clone, Copy)]
struct Position {
    stage: u32,
    parity: u32,
}

impl Position {
    const START: Position = Position {
        stage: 0,
        parity: 0,
    };

    #[inline(always)]
    fn advance(&mut self) {
        self.stage += 1;
        if self.stage == STAGES {
            self.stage = 0;
            self.parity ^= 1;
        }
    }
}

/// The producer's end: one thread.
pub struct Producer {
    ring: Ring,
    at: Position,
}

impl Producer {
    /// The producer's end of a ring that has been initialised.
    pub fn new(ring: Ring) -> Producer {
        Producer {
            ring,
            at: Position::START,
        }
    }

    /// Waits for the next stage to be free.
    ///
    /// # Safety
    /// One thread only; it announces each stage before it acquires the next.
    #[inline(always)]
    pub unsafe fn acquire(&mut self) -> Slot {
        let Position { stage, parity } = self.at;
        self.at.advance();
        let bar = self.ring.full.add(8 * stage);
        // SAFETY: the barriers are initialised. Before the first round the phase of the
        // opposite parity counts as complete, so a fresh ring is free.
        unsafe {
            mbarrier::wait(self.ring.empty.add(8 * stage), parity ^ 1);
        }
        Slot { stage, bar }
    }

    /// Announces `bytes` to come to an acquired stage.
    ///
    /// # Safety
    /// Once for each acquired stage, after all that this thread itself writes for it; exactly
    /// as many bytes are then delivered to the slot's barrier.
    #[inline(always)]
    pub unsafe fn announce(&self, slot: Slot, bytes: u32) {
        // SAFETY: the barrier is initialised, and this arrival is pending.
        unsafe { mbarrier::arrive_expect(slot.bar, bytes) };
    }

    /// Announces that nothing more comes.
    ///
    /// # Safety
    /// In place of [`announce`](Producer::announce), for the last stage acquired.
    #[inline(always)]
    pub unsafe fn end(&self, slot: Slot) {
        // SAFETY: the barrier is initialised, and this arrival is pending.
        unsafe { mbarrier::arrive(slot.bar) };
    }
}

/// Between the producer and the consumers: one warp.
pub struct Relay {
    ring: Ring,
    at: Position,
}

impl Relay {
    /// The relay of a ring that has been initialised.
    pub fn new(ring: Ring) -> Relay {
        Relay {
            ring,
            at: Position::START,
        }
    }

    /// Waits for the next stage's bytes; returns its index.
    ///
    /// # Safety
    /// The producer fills as many stages as are awaited.
    #[inline(always)]
    pub unsafe fn acquire(&mut self) -> u32 {
        let Position { stage, parity } = self.at;
        self.at.advance();
        // SAFETY: the barriers are initialised.
        unsafe { mbarrier::wait(self.ring.full.add(8 * stage), parity) };
        stage
    }

    /// Passes a stage on to the consumers, and lets go of it.
    ///
    /// # Safety
    /// One lane calls it, once for each stage acquired, after all that the warp does to it.
    #[inline(always)]
    pub unsafe fn pass(&self, stage: u32) {
        // SAFETY: the barriers are initialised, and these arrivals are pending.
        unsafe {
            mbarrier::arrive(self.ring.clear.add(8 * stage));
            mbarrier::arrive(self.ring.empty.add(8 * stage));
        }
    }
}

/// A consumer warp's end.
pub struct Consumer {
    ring: Ring,
    wait: Position,
    release: u32,
    /// Whether this lane lets go for its warp.
    elected: bool,
}

impl Consumer {
    /// A consumer's end of a ring that has been initialised.
    pub fn new(ring: Ring) -> Consumer {
        Consumer {
            ring,
            wait: Position::START,
            release: 0,
            elected: reg::thread_idx().is_multiple_of(32),
        }
    }

    /// Waits for the next stage's bytes without taking it; returns its index.
    ///
    /// # Safety
    /// As [`acquire`](Consumer::acquire).
    #[inline(always)]
    pub unsafe fn peek(&self) -> u32 {
        let Position { stage, parity } = self.wait;
        // SAFETY: the barriers are initialised.
        unsafe { mbarrier::wait(self.ring.full.add(8 * stage), parity) };
        stage
    }

    /// Index of the stage that is let go of next.
    #[inline(always)]
    pub fn oldest(&self) -> u32 {
        self.release
    }

    /// Waits for the next stage's bytes; returns its index.
    ///
    /// # Safety
    /// The producer fills as many stages as are awaited.
    #[inline(always)]
    pub unsafe fn acquire(&mut self) -> u32 {
        // SAFETY: the caller's contract.
        let stage = unsafe { self.peek() };
        self.wait.advance();
        stage
    }

    /// Waits until the next stage's bytes have come and passed the [`Relay`]; returns its index.
    ///
    /// # Safety
    /// As [`acquire`](Consumer::acquire); the ring has a relay.
    #[inline(always)]
    pub unsafe fn acquire_clear(&mut self) -> u32 {
        let parity = self.wait.parity;
        // A stage that is full has passed the relay in the round before, so the parity can't be taken
        // for that of two rounds ago.
        // SAFETY: the caller's contract; the barriers are initialised.
        unsafe {
            let stage = self.acquire();
            mbarrier::wait(self.ring.clear.add(8 * stage), parity);
            stage
        }
    }

    /// Takes the next stage, which has been awaited, and lets go of it at once.
    ///
    /// # Safety
    /// As [`release`](Consumer::release), after a [`peek`](Consumer::peek); no other stage is held.
    #[inline(always)]
    pub unsafe fn skip(&mut self) {
        self.wait.advance();
        // SAFETY: the caller's contract.
        unsafe { self.release() };
    }

    /// Lets go of the oldest stage still held.
    ///
    /// # Safety
    /// Every read of that stage by this warp is done; all its lanes call it, and the first one
    /// arrives.
    #[inline(always)]
    pub unsafe fn release(&mut self) {
        let stage = self.release;
        self.release = if stage + 1 == STAGES { 0 } else { stage + 1 };
        if self.elected {
            // SAFETY: the barriers are initialised, and this warp's arrival is pending.
            unsafe { mbarrier::arrive(self.ring.empty.add(8 * stage)) };
        }
    }
}
