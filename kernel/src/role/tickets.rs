//! Which block computes which tile: blocks draw numbers when they need them.
//!
//! Tiles take unequal times, and blocks that were dealt theirs beforehand drift apart. Those that
//! multiply different rows by the same weights then read them at different times, and from memory
//! again. Drawn, neighbouring numbers start one soon after the other.
//!
//! Some blocks draw tiles of the second class first, so that memory and tensor cores are busy at the same time
//! ([`Tiles::first_class`]).

use super::load::Source;
use crate::gemm::TICKETS;
use crate::ptx::{atom, reg};
use crate::schedule::grouped::{ByBlock, Class, GroupTable, Tile, Tiles, Tiling};

/// The end of one block, or of a pair that draws together: one thread.
pub struct Tickets {
    words: u64,
    class: Class,
    /// Whether the other class is known to have no more.
    last: bool,
}

const _: () = assert!(TICKETS == Class::ALL.len() as u32 + 1);

impl Tickets {
    /// `words` is [`GemmArgs::tickets`](crate::gemm::GemmArgs::tickets); the first class is drawn from first.
    #[inline(always)]
    pub fn new(words: u64, first: Class) -> Tickets {
        Tickets {
            words,
            class: first,
            last: false,
        }
    }

    /// The class that is drawn from.
    #[inline(always)]
    pub fn class(&self) -> Class {
        self.class
    }

    fn word(&self, index: u32) -> *mut u64 {
        (self.words + 8 * index as u64) as *mut u64
    }

    /// Draws the next number of the class. It may be one too many.
    ///
    /// # Safety
    /// The words are the launch's.
    #[inline(always)]
    pub unsafe fn draw(&self) -> u64 {
        // SAFETY: the caller's contract.
        unsafe { atom::add_relaxed_gpu_u64(self.word(self.class as u32), 1) }
    }

    /// The class has no more: on to the other one. False if it has no more either.
    #[inline(always)]
    pub fn switch(&mut self) -> bool {
        let first = !self.last;
        self.class = self.class.other();
        self.last = true;
        first
    }

    /// This block draws no more; the last of so many blocks or pairs makes the words zero again.
    ///
    /// # Safety
    /// The words are the launch's, and every block calls it once.
    #[inline(always)]
    pub unsafe fn end(&self, blocks: u32) {
        let done = Class::ALL.len() as u32;
        // SAFETY: the caller's contract. The others' draws come before they end.
        unsafe {
            if atom::add_acq_rel_gpu_u64(self.word(done), 1) == blocks as u64 - 1 {
                let mut word = 0;
                while word < TICKETS {
                    atom::store_release_gpu_u64(self.word(word), 0);
                    word += 1;
                }
            }
        }
    }
}

/// The tiles that a block draws, or a pair.
pub struct Drawn<T, S = ByBlock> {
    tiles: Tiles<T, S>,
    tickets: Tickets,
    /// The next number.
    drawn: u64,
}

impl<T: GroupTable, S: Tiling> Drawn<T, S> {
    /// Draws the first number, for block or pair `block`; `words` is as in [`Tickets::new`].
    ///
    /// # Safety
    /// The tickets' words are the launch's.
    #[inline(always)]
    pub unsafe fn new(tiles: Tiles<T, S>, words: u64, block: u32) -> Drawn<T, S> {
        let tickets = Tickets::new(words, tiles.first_class(block));
        Drawn {
            tiles,
            // SAFETY: the caller's contract.
            drawn: unsafe { tickets.draw() },
            tickets,
        }
    }
}

impl<T: GroupTable, S: Tiling> Source for Drawn<T, S> {
    #[inline(always)]
    unsafe fn next(&mut self) -> Option<Tile> {
        loop {
            let class = self.tickets.class();
            if self.drawn < self.tiles.total(class) as u64 {
                let tile = self.tiles.get(class, self.drawn as u32);
                // The next one's number comes while this one is loaded.
                // SAFETY: as in `new`.
                self.drawn = unsafe { self.tickets.draw() };
                return tile;
            }
            // SAFETY: as in `new`; every block ends once.
            unsafe {
                if !self.tickets.switch() {
                    self.tickets.end(reg::grid_dim() / S::BLOCKS);
                    return None;
                }
                self.drawn = self.tickets.draw();
            }
        }
    }
}
