//! Before wgrad's producer: one thread that works out the block's next tiles.
//!
//! A tile of weight gradients is a few stages long, and finding it takes as long as one or two of them take
//! to multiply: the producer would load nothing meanwhile.

use super::carry::Ahead;
use super::load::Source;
use crate::gemm::{DEALS, ORDER, SharedPlan};
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::{mbarrier, reg};
use crate::schedule::grouped::Tile;

/// Who reads what is dealt: the producer and the carrier.
const READERS: u32 = 2;

/// What the dealer has between it and the producer and the carrier: tiles in turn, and two mbarriers each.
#[derive(Clone, Copy)]
pub struct Deals {
    tiles: SmemAddr,
    dealt: SmemAddr,
    taken: SmemAddr,
    wanted: SmemAddr,
    next: u32,
    parity: u32,
}

impl Deals {
    /// The block's.
    pub fn new(base: SmemAddr, plan: &SharedPlan) -> Deals {
        Deals {
            tiles: base.add(plan.deals),
            dealt: base.add(plan.dealt),
            taken: base.add(plan.taken),
            wanted: base.add(plan.wanted),
            next: 0,
            parity: 0,
        }
    }

    /// Initialises the barriers.
    ///
    /// # Safety
    /// One thread of the block calls it, before anyone uses them; a `fence::mbarrier_init` and a block
    /// barrier follow.
    pub unsafe fn init(self) {
        let mut place = 0;
        while place < DEALS {
            // SAFETY: the plan reserves 8 aligned bytes a barrier for them.
            unsafe {
                mbarrier::init(self.dealt.add(8 * place), 1);
                mbarrier::init(self.taken.add(8 * place), READERS);
            }
            place += 1;
        }
        // SAFETY: likewise.
        unsafe { mbarrier::init(self.wanted, 1) };
    }

    #[inline(always)]
    fn advance(&mut self) {
        self.next = reg::opaque(self.next + 1);
        if self.next == DEALS {
            self.next = 0;
            self.parity ^= 1;
        }
    }
}

/// Deals tiles until there are no more: each when the producer has taken the one before, so that a block
/// draws no more tiles at the end than it is about to need.
///
/// Waits for: that (`wanted`), and a free place (`taken`). Signals: a tile (`dealt`).
///
/// # Safety
/// One thread of the block runs it; the barriers are initialised.
#[inline(always)]
pub unsafe fn deal(mut source: impl Source, mut deals: Deals) {
    let mut parity = 1;
    loop {
        // SAFETY: the caller's contract; the place is this thread's until it says that it is dealt. Before
        // the first round the phase of the opposite parity counts as complete.
        unsafe {
            let tile = source.next();
            let at = deals.tiles.add(ORDER * deals.next);
            mbarrier::wait(deals.wanted, parity);
            parity ^= 1;
            mbarrier::wait(deals.taken.add(8 * deals.next), deals.parity ^ 1);
            let (first, second) = Tile::to_words(tile);
            shared::store_v4(at, first);
            shared::store_v4(at.add(16), second);
            mbarrier::arrive(deals.dealt.add(8 * deals.next));
            deals.advance();
            if tile.is_none() {
                return;
            }
        }
    }
}

/// A reader's end.
impl Ahead for Deals {
    #[inline(always)]
    unsafe fn read(&self) -> Option<Tile> {
        let at = self.tiles.add(ORDER * self.next);
        // SAFETY: the barriers are initialised; the place is the readers' until all of them are done with it.
        unsafe {
            mbarrier::wait(self.dealt.add(8 * self.next), self.parity);
            Tile::from_words((shared::load_v4(at), shared::load_v4(at.add(16))))
        }
    }

    #[inline(always)]
    fn skip(&mut self) {
        self.advance();
    }

    #[inline(always)]
    unsafe fn done(&mut self) {
        // SAFETY: the barriers are initialised, and this arrival is pending.
        unsafe { mbarrier::arrive(self.taken.add(8 * self.next)) };
        self.advance();
    }
}

/// The producer's end.
impl Source for Deals {
    #[inline(always)]
    unsafe fn next(&mut self) -> Option<Tile> {
        // SAFETY: the caller's contract.
        unsafe {
            let tile = self.read();
            mbarrier::arrive(self.wanted);
            self.done();
            tile
        }
    }
}
