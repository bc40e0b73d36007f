//! What the warps of a pair of blocks have between them.
//!
//! The even block leads: it draws tiles and issues products, for both. Each mbarrier exists in both
//! blocks, at one offset; where "in" says leader, only the leader's is used.
//!
//! | mbarrier | for each | in | completes when |
//! |---|---|---|---|
//! | full | stage | leader | its producer has announced, and brought are, both blocks' bytes |
//! | empty | stage | both | the products that read the stage are done |
//! | soiled | stage | both | the block's own bytes are there, of a stage that is to be cleared |
//! | clear | stage | leader | both relays have cleared theirs |
//! | dealt | place | both | a tile is there |
//! | taken | place | leader | all that read it in both blocks have |
//! | accumulated | buffer | both | a tile's products are done |
//! | drained | buffer | leader | all consumer warps of both blocks have their sums |
//! | open | panel | both | the panel may be filled (`role::panels`) |
//! | ready | panel | both | it has been |
//!
//! Stages are walked in one order by all, as in [`ring`](super::ring). `soiled` and `clear` are used in
//! some rounds only, so their parities are counted by stage.

mod deals;

pub use deals::{Dealer, Dealt};

use crate::gemm::pair::{BLOCKS, BUFFER, BUFFERS, DEALS, PairPlan, STAGES};
use crate::gemm::{CONSUMERS, ORDER, PANEL_WARPS, PANELS};
use crate::ptx::shared::{ClusterAddr, SmemAddr};
use crate::ptx::{mbarrier, reg, tcgen05};
use crate::warp_sync;

/// The rank of the block that draws and multiplies for both.
pub const LEADER: u32 = 0;
/// Both blocks, where a commit arrives.
const BOTH: u16 = (1 << BLOCKS) - 1;
/// Warps that bring sums out, of one block.
const CONSUMER_WARPS: u32 = 4 * CONSUMERS;

const FULL: u32 = 0;
const EMPTY: u32 = FULL + STAGES;
const SOILED: u32 = EMPTY + STAGES;
const CLEAR: u32 = SOILED + STAGES;
const DEALT: u32 = CLEAR + STAGES;
const TAKEN: u32 = DEALT + DEALS;
const ACCUMULATED: u32 = TAKEN + DEALS;
const DRAINED: u32 = ACCUMULATED + BUFFERS;
const OPEN: u32 = DRAINED + BUFFERS;
const READY: u32 = OPEN + CONSUMERS * PANELS;
const _: () = assert!(READY + CONSUMERS * PANELS == crate::gemm::pair::BARRIERS);

/// A block's view of what the pair shares.
#[derive(Clone, Copy)]
pub struct Pair {
    /// This block's rank.
    pub rank: u32,
    barriers: SmemAddr,
    deals: SmemAddr,
}

impl Pair {
    /// Of the block of this rank.
    pub fn new(rank: u32, base: SmemAddr, plan: &PairPlan) -> Pair {
        Pair {
            rank,
            barriers: base.add(plan.barriers),
            deals: base.add(plan.deals),
        }
    }

    #[inline(always)]
    fn bar(&self, kind: u32, index: u32) -> SmemAddr {
        self.barriers.add(8 * (kind + index))
    }

    /// The leader's.
    #[inline(always)]
    fn leaders(&self, kind: u32, index: u32) -> ClusterAddr {
        self.bar(kind, index).in_block(LEADER)
    }

    /// Arrives at a barrier of the leader. From the other block that is a memory barrier of the whole GPU in
    /// SASS; it is spared where it isn't needed.
    ///
    /// # Safety
    /// As [`mbarrier::arrive_cluster`].
    #[inline(always)]
    unsafe fn tell_leader(&self, kind: u32, index: u32) {
        // SAFETY: the caller's contract.
        unsafe {
            if self.rank == LEADER {
                mbarrier::arrive(self.bar(kind, index));
            } else {
                mbarrier::arrive_cluster(self.leaders(kind, index));
            }
        }
    }

    /// The first mbarrier that tells that a panel of this consumer's may be filled.
    #[inline(always)]
    pub fn open(&self, consumer: u32) -> SmemAddr {
        self.bar(OPEN, PANELS * consumer)
    }

    /// The first that tells that one has been.
    #[inline(always)]
    pub fn ready(&self, consumer: u32) -> SmemAddr {
        self.bar(READY, PANELS * consumer)
    }

    /// Initialises the barriers, with relays or without.
    ///
    /// # Safety
    /// One thread of each block calls it, before anyone uses them; a `fence::mbarrier_init` and a
    /// cluster barrier follow.
    pub unsafe fn init(&self, relayed: bool) {
        // In both blocks: producer, consumers, relay and carrier; and the issuer.
        let readers = BLOCKS * (1 + CONSUMER_WARPS + 2 * relayed as u32) + 1;
        let all = [
            (FULL, STAGES, 1),
            (EMPTY, STAGES, 1),
            (SOILED, STAGES, 1),
            (CLEAR, STAGES, BLOCKS),
            (DEALT, DEALS, 1),
            (TAKEN, DEALS, readers),
            (ACCUMULATED, BUFFERS, 1),
            (DRAINED, BUFFERS, BLOCKS * CONSUMER_WARPS),
            (OPEN, CONSUMERS * PANELS, 1),
            (READY, CONSUMERS * PANELS, PANEL_WARPS),
        ];
        macro_rules! init {
            ($($at:literal)*) => {$(
                let (kind, count, arrivals) = all[$at];
                let mut index = 0;
                while index < count {
                    // SAFETY: the plan reserves 8 aligned bytes a barrier for them.
                    unsafe { mbarrier::init(self.bar(kind, index), arrivals) };
                    index = reg::opaque(index + 1);
                }
            )*};
        }
        init!(0 1 2 3 4 5 6 7 8 9);
        let mut place = 0;
        while place < DEALS {
            // SAFETY: the dealer's first bytes come after the cluster barrier.
            unsafe { mbarrier::arrive_expect(self.bar(DEALT, place), ORDER) };
            place += 1;
        }
    }
}

/// A walk over places in turn: which one is next, and in which parity.
#[derive(Clone, Copy)]
struct Walk {
    at: u32,
    parity: u32,
}

impl Walk {
    const START: Walk = Walk { at: 0, parity: 0 };

    /// Takes the next of `count`.
    #[inline(always)]
    fn next(&mut self, count: u32) -> Walk {
        let now = *self;
        self.at = reg::opaque(self.at + 1);
        if self.at == count {
            self.at = 0;
            self.parity ^= 1;
        }
        now
    }
}

/// Parities of barriers that aren't used in every round: a bit a stage.
#[derive(Clone, Copy)]
struct Parities(u32);

impl Parities {
    /// That of the stage's next phase.
    #[inline(always)]
    fn next(&mut self, stage: u32) -> u32 {
        let parity = self.0 >> stage & 1;
        self.0 ^= 1 << stage;
        parity
    }
}

/// A producer's end of the ring: one thread of each block.
pub struct Producer {
    pair: Pair,
    at: Walk,
}

impl Producer {
    /// A producer of a pair.
    pub fn new(pair: Pair) -> Producer {
        Producer {
            pair,
            at: Walk::START,
        }
    }

    /// Waits for the next stage to be free; returns its index.
    ///
    /// # Safety
    /// One thread; it announces each stage before it acquires the next.
    #[inline(always)]
    pub unsafe fn acquire(&mut self) -> u32 {
        let Walk { at, parity } = self.at.next(STAGES);
        // SAFETY: the barriers are initialised; a fresh ring is free.
        unsafe { mbarrier::wait(self.pair.bar(EMPTY, at), parity ^ 1) };
        at
    }

    /// Announces `bytes` to come to this block's part of a stage, and as many to the other block's;
    /// returns the mbarrier that must get them.
    ///
    /// A stage that is to be cleared is waited for by the block's own relay. The leader's barrier passes
    /// such a round by without bytes, so that its parity is that of the round.
    ///
    /// # Safety
    /// Once for each stage acquired; exactly as many bytes are then delivered.
    #[inline(always)]
    pub unsafe fn announce(&self, stage: u32, bytes: u32, soiled: bool) -> ClusterAddr {
        let leads = self.pair.rank == LEADER;
        let full = self.pair.bar(FULL, stage);
        // SAFETY: the barriers are initialised, and these arrivals are pending.
        unsafe {
            if soiled {
                let own = self.pair.bar(SOILED, stage);
                if leads {
                    mbarrier::arrive(full);
                }
                mbarrier::arrive_expect(own, bytes);
                own.in_block(self.pair.rank)
            } else {
                if leads {
                    mbarrier::arrive_expect(full, BLOCKS * bytes);
                }
                full.in_block(LEADER)
            }
        }
    }

    /// Waits until all stages are free: commits arrive here as long as some aren't, and a block must not
    /// end before.
    ///
    /// # Safety
    /// The last thing that the producer does with the ring.
    #[inline(always)]
    pub unsafe fn drain(&mut self) {
        let mut left = STAGES;
        while left > 0 {
            // SAFETY: the caller's contract.
            unsafe { self.acquire() };
            left = reg::opaque(left - 1);
        }
    }
}

/// A relay's end of the ring: one warp of each block.
pub struct Relay {
    pair: Pair,
    /// The stage that the next tile starts in.
    next: u32,
    parities: Parities,
}

impl Relay {
    /// A relay of a pair.
    pub fn new(pair: Pair) -> Relay {
        Relay {
            pair,
            next: 0,
            parities: Parities(0),
        }
    }

    /// The last stage of the next tile, which takes so many.
    #[inline(always)]
    pub fn last_of(&mut self, depth: u32) -> u32 {
        let after = (self.next + depth) % STAGES;
        self.next = after;
        if after == 0 { STAGES - 1 } else { after - 1 }
    }

    /// Waits for a stage that is to be cleared.
    ///
    /// # Safety
    /// The producer announces it as such.
    #[inline(always)]
    pub unsafe fn acquire(&mut self, stage: u32) {
        let parity = self.parities.next(stage);
        // SAFETY: the barriers are initialised.
        unsafe { mbarrier::wait(self.pair.bar(SOILED, stage), parity) };
    }

    /// Passes it on to the issuer.
    ///
    /// # Safety
    /// One lane calls it, once for each stage acquired, after all that the warp does to it.
    #[inline(always)]
    pub unsafe fn pass(&self, stage: u32) {
        // SAFETY: the barrier is initialised, and this arrival is pending.
        unsafe { self.pair.tell_leader(CLEAR, stage) };
    }
}

/// The issuer's end of the ring and of tensor memory: one thread of the leader.
pub struct Issuer {
    pair: Pair,
    stages: Walk,
    buffers: Walk,
    cleared: Parities,
}

impl Issuer {
    /// The issuer of a pair.
    pub fn new(pair: Pair) -> Issuer {
        Issuer {
            pair,
            stages: Walk::START,
            buffers: Walk::START,
            cleared: Parities(0),
        }
    }

    /// Waits until the next buffer's sums have been brought out; returns its index.
    ///
    /// # Safety
    /// One thread; a stage is [acquired](Issuer::acquire) next, and
    /// [`accumulated`](Issuer::accumulated) follows for each.
    #[inline(always)]
    pub unsafe fn buffer(&mut self) -> u32 {
        let Walk { at, parity } = self.buffers.next(BUFFERS);
        // SAFETY: the barriers are initialised; fresh buffers are free. Tensor memory is all that is told of,
        // in the order of tcgen05's fences.
        unsafe { mbarrier::wait(self.pair.bar(DRAINED, at), parity ^ 1) };
        at
    }

    /// Waits for the next stage, in both blocks, which have cleared it if it is soiled; returns its index.
    /// Products come after all that this thread has waited for.
    ///
    /// # Safety
    /// The producers fill as many stages as are awaited.
    #[inline(always)]
    pub unsafe fn acquire(&mut self, soiled: bool) -> u32 {
        let Walk { at, parity } = self.stages.next(STAGES);
        // SAFETY: the barriers are initialised. Nothing but tensor copies has written a stage that isn't
        // soiled, and nothing but products reads it: a wait that acquires in the cluster would only
        // invalidate the SM's cache, each time.
        unsafe {
            if soiled {
                mbarrier::wait_cluster(self.pair.bar(CLEAR, at), self.cleared.next(at));
            } else {
                mbarrier::wait(self.pair.bar(FULL, at), parity);
            }
        }
        tcgen05::fence_after();
        at
    }

    /// Lets go of a stage, in both blocks, when the products issued so far are done.
    ///
    /// # Safety
    /// Once for each stage acquired, after its products have been issued.
    #[inline(always)]
    pub unsafe fn release(&self, stage: u32) {
        // SAFETY: the barriers are initialised, and this arrival is pending.
        unsafe { tcgen05::commit_pair(self.pair.leaders(EMPTY, stage), BOTH) };
    }

    /// Hands a buffer's sums to the consumers of both blocks when the products issued so far are done.
    ///
    /// # Safety
    /// Once for each buffer acquired, after all its products have been issued.
    #[inline(always)]
    pub unsafe fn accumulated(&self, buffer: u32) {
        // SAFETY: as above.
        unsafe { tcgen05::commit_pair(self.pair.leaders(ACCUMULATED, buffer), BOTH) };
    }
}

/// A consumer warp's end of tensor memory.
pub struct Buffers {
    pair: Pair,
    at: Walk,
}

impl Buffers {
    /// A consumer warp of a pair.
    pub fn new(pair: Pair) -> Buffers {
        Buffers {
            pair,
            at: Walk::START,
        }
    }

    /// Waits for the next tile's sums; returns their first column.
    ///
    /// # Safety
    /// The issuer hands over as many buffers as are awaited.
    #[inline(always)]
    pub unsafe fn acquire(&self) -> u32 {
        let Walk { at, parity } = self.at;
        // SAFETY: the barriers are initialised.
        unsafe { mbarrier::wait(self.pair.bar(ACCUMULATED, at), parity) };
        tcgen05::fence_after();
        at * BUFFER
    }

    /// Lets the issuer have the buffer.
    ///
    /// # Safety
    /// All lanes of the warp call it, once for each buffer acquired, after their loads from it are done.
    #[inline(always)]
    pub unsafe fn release(&mut self) {
        let Walk { at, .. } = self.at.next(BUFFERS);
        tcgen05::fence_before();
        // SAFETY: all lanes are here; the barrier is initialised, and the warp's arrival is pending. A
        // release would be a memory barrier of the whole GPU.
        unsafe {
            warp_sync!();
            if reg::lane() == 0 {
                mbarrier::arrive_cluster_relaxed(self.pair.leaders(DRAINED, at));
            }
        }
    }
}
