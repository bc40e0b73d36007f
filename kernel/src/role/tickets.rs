//! Which block computes which tile: blocks draw numbers when they need them.
//!
//! Tiles take unequal times, and blocks that were dealt theirs beforehand drift apart. Those that
//! multiply different rows by the same weights then read them at different times, and from memory
//! again. Drawn, neighbouring numbers start one soon after the other.
//!
//! Every other block draws tiles of the second class first, so that memory and tensor cores are busy at
//! the same time.

use crate::gemm::TICKETS;
use crate::ptx::atom;
use crate::schedule::grouped::Class;

/// One block's end: one thread.
pub struct Tickets {
    words: u64,
    class: Class,
    /// Whether the other class is known to have no more.
    last: bool,
}

const _: () = assert!(TICKETS == Class::ALL.len() as u32 + 1);

impl Tickets {
    /// Of block `block`; `words` is [`GemmArgs::tickets`](crate::gemm::GemmArgs::tickets).
    #[inline(always)]
    pub fn new(words: u64, block: u32) -> Tickets {
        Tickets {
            words,
            class: if block.is_multiple_of(2) {
                Class::Many
            } else {
                Class::Few
            },
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

    /// This block draws no more; the last of `blocks` makes the words zero again.
    ///
    /// # Safety
    /// The words are the launch's, and every block calls it once.
    #[inline(always)]
    pub unsafe fn end(self, blocks: u32) {
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
