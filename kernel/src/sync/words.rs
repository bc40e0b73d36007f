//! Words in device memory that the tasks of a launch wait for, whichever block does them.
//!
//! They count from zero up and are cleared when the launch has ended. A wait ends as well once the rank
//! has failed: what it waits for may never come then.

use crate::ptx::{atom, reg};
use crate::unfused::STATE_FAILED;

/// The words of a rank's launch.
#[derive(Clone, Copy)]
pub struct Words {
    words: u64,
    state: u64,
}

impl Words {
    /// The words at an address, of the rank with this state.
    #[inline(always)]
    pub fn new(words: u64, state: u64) -> Words {
        Words { words, state }
    }

    /// Address of a word.
    #[inline(always)]
    pub fn at(self, word: u32) -> u64 {
        self.words + 8 * word as u64
    }

    /// Draws the next number from a word.
    ///
    /// # Safety
    /// The words are the launch's.
    #[inline(always)]
    pub unsafe fn draw(self, word: u32) -> u64 {
        // SAFETY: the caller's contract.
        unsafe { atom::add_relaxed_gpu_u64(self.at(word) as *mut u64, 1) }
    }

    /// Counts one more, after all that this thread has done or knows to be done.
    ///
    /// # Safety
    /// As [`draw`](Words::draw).
    #[inline(always)]
    pub unsafe fn count(self, word: u32) {
        // SAFETY: the caller's contract.
        unsafe { atom::red_release_gpu_u64(self.at(word) as *mut u64, 1) };
    }

    /// Whether a word has come to `target`; if so, what was done before it was counted is done.
    ///
    /// # Safety
    /// As [`draw`](Words::draw).
    #[inline(always)]
    pub unsafe fn reached(self, word: u32, target: u64) -> bool {
        // SAFETY: the caller's contract.
        unsafe { atom::load_acquire_gpu_u64(self.at(word) as *const u64) >= target }
    }

    /// Whether the rank has failed.
    ///
    /// # Safety
    /// As [`draw`](Words::draw).
    #[inline(always)]
    pub unsafe fn failed(self) -> bool {
        // SAFETY: a word that may change meanwhile is read atomically.
        unsafe { atom::load_relaxed_gpu_u64((self.state + 8 * STATE_FAILED) as *const u64) != 0 }
    }

    /// Waits until a word has [come to](Words::reached) `target`; false if the rank has failed instead.
    ///
    /// # Safety
    /// As [`draw`](Words::draw); what brings it there waits for nothing that comes after this wait in the
    /// order of all tasks.
    #[inline(always)]
    pub unsafe fn wait(self, word: u32, target: u64) -> bool {
        // SAFETY: the caller's contract.
        unsafe {
            while !self.reached(word, target) {
                if self.failed() {
                    return false;
                }
                reg::nanosleep(PAUSE);
            }
        }
        true
    }
}

/// Nanoseconds between two looks at a word: fewer than a row takes to come, so that nobody waits for long, and
/// more than a look takes, so that they don't crowd those who count.
const PAUSE: u32 = 200;
