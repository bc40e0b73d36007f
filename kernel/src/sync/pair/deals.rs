//! Tiles on their way from the dealer to those that read them.

use super::{DEALT, Pair, TAKEN, Walk};
use crate::gemm::ORDER;
use crate::gemm::pair::{BLOCKS, DEALS};
use crate::ptx::shared;
use crate::ptx::{mbarrier, reg};
use crate::role::carry::Ahead;
use crate::schedule::grouped::Tile;
use crate::warp_sync;

/// The dealer's end: one thread of the leader.
pub struct Dealer {
    pair: Pair,
    at: Walk,
}

impl Dealer {
    /// The dealer of a pair.
    pub fn new(pair: Pair) -> Dealer {
        Dealer {
            pair,
            at: Walk::START,
        }
    }

    /// Deals a tile to both blocks, or that there is none any more.
    ///
    /// # Safety
    /// One thread of the leader calls it; the barriers are initialised in both blocks, which end after
    /// all that is dealt was read.
    #[inline(always)]
    pub unsafe fn deal(&mut self, tile: Option<Tile>) {
        // SAFETY: the caller's contract.
        unsafe { self.deal_tagged(tile, 0) };
    }

    /// [`deal`](Dealer::deal), with a word beside the tile.
    ///
    /// # Safety
    /// As `deal`.
    #[inline(always)]
    pub unsafe fn deal_tagged(&mut self, tile: Option<Tile>, tag: u32) {
        let Walk { at, parity } = self.at.next(DEALS);
        let (first, [wide, count, _, last]) = Tile::to_words(tile);
        let second = [wide, count, tag, last];
        let pair = &self.pair;
        // SAFETY: the caller's contract; the place is this thread's until it is dealt. Before the first
        // round the phase of the opposite parity counts as complete. A producer has announced the bytes.
        unsafe {
            mbarrier::wait_cluster(pair.bar(TAKEN, at), parity ^ 1);
            let mut rank = 0;
            while rank < BLOCKS {
                let bar = pair.bar(DEALT, at).in_block(rank);
                let place = pair.deals.add(ORDER * at);
                shared::store_async_v4(place.in_block(rank), first, bar);
                shared::store_async_v4(place.add(16).in_block(rank), second, bar);
                rank = reg::opaque(rank + 1);
            }
        }
    }
}

/// The end of one that reads what is dealt: a thread, or a warp.
#[derive(Clone, Copy)]
pub struct Dealt {
    pair: Pair,
    at: Walk,
}

impl Dealt {
    /// A reader of a pair's tiles.
    pub fn new(pair: Pair) -> Dealt {
        Dealt {
            pair,
            at: Walk::START,
        }
    }

    /// Waits for the next tile and reads it; `None` ends the work.
    ///
    /// # Safety
    /// The barriers are initialised; [`done`](Dealt::done) follows before the next one is read.
    #[inline(always)]
    pub unsafe fn read(&self) -> Option<Tile> {
        let Walk { at, parity } = self.at;
        let place = self.pair.deals.add(ORDER * at);
        // SAFETY: the caller's contract; the place is the readers' until all of them are done with it.
        unsafe {
            mbarrier::wait_cluster(self.pair.bar(DEALT, at), parity);
            Tile::from_words((shared::load_v4(place), shared::load_v4(place.add(16))))
        }
    }

    /// [`read`](Dealt::read), with the word that was dealt beside the tile.
    ///
    /// # Safety
    /// As `read`.
    #[inline(always)]
    pub unsafe fn read_tagged(&self) -> Option<(Tile, u32)> {
        // SAFETY: the caller's contract.
        unsafe {
            let tile = self.read()?;
            let place = self.pair.deals.add(ORDER * self.at.at);
            let [_, _, tag, _] = shared::load_v4(place.add(16));
            Some((tile, tag))
        }
    }

    /// [`read_tagged`](Dealt::read_tagged), for a reader that is one thread: it is done with it. The producer of a block
    /// says that it is one.
    ///
    /// # Safety
    /// As [`next`](Dealt::next).
    #[inline(always)]
    pub unsafe fn next_tagged(&mut self, loads: bool) -> Option<(Tile, u32)> {
        // SAFETY: the caller's contract.
        unsafe {
            let tile = self.read_tagged();
            if loads {
                self.expect();
            }
            self.done(true);
            tile
        }
    }

    /// Has the place's next bytes expected.
    ///
    /// # Safety
    /// The producer of each block calls it, between `read` and `done`.
    #[inline(always)]
    unsafe fn expect(&self) {
        // SAFETY: the phase that was read is complete, and the next one's bytes come when all are done.
        unsafe { mbarrier::arrive_expect(self.pair.bar(DEALT, self.at.at), ORDER) };
    }

    /// The tile has been read, by this thread or, if it is of a warp, by the warp.
    ///
    /// # Safety
    /// Each thread that reads calls it; of a warp one `speaks`, after a barrier of the warp.
    #[inline(always)]
    pub unsafe fn done(&mut self, speaks: bool) {
        let Walk { at, .. } = self.at.next(DEALS);
        if speaks {
            // SAFETY: the barrier is initialised, and this arrival is pending.
            unsafe { self.pair.tell_leader(TAKEN, at) };
        }
    }

    /// The next tile, for a reader that is one thread.
    ///
    /// # Safety
    /// As [`read`](Dealt::read); one thread.
    #[inline(always)]
    pub unsafe fn next(&mut self) -> Option<Tile> {
        // SAFETY: the caller's contract.
        unsafe {
            let tile = self.read();
            self.done(true);
            tile
        }
    }

    /// [`next`](Dealt::next), for the producer of a block.
    ///
    /// # Safety
    /// As `next`.
    #[inline(always)]
    pub unsafe fn next_to_load(&mut self) -> Option<Tile> {
        // SAFETY: the caller's contract.
        unsafe {
            let tile = self.read();
            self.expect();
            self.done(true);
            tile
        }
    }

    /// [`next`](Dealt::next), for a warp.
    ///
    /// # Safety
    /// As `next`; all lanes of one warp call it.
    #[inline(always)]
    pub unsafe fn next_of_warp(&mut self) -> Option<Tile> {
        // SAFETY: the caller's contract.
        unsafe {
            let tile = self.read();
            warp_sync!();
            self.done(reg::lane() == 0);
            tile
        }
    }
}

/// The carrier's walks.
impl Ahead for Dealt {
    #[inline(always)]
    unsafe fn read(&self) -> Option<Tile> {
        // SAFETY: the caller's contract.
        unsafe { Dealt::read(self) }
    }

    #[inline(always)]
    fn skip(&mut self) {
        self.at.next(DEALS);
    }

    #[inline(always)]
    unsafe fn done(&mut self) {
        // SAFETY: the caller's contract.
        unsafe { Dealt::done(self, true) };
    }
}
