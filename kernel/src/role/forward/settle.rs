//! The way out of a forward pass: H or Y, and that it is there.

use super::source::{Note, map_at};
use super::stamp::Stamp;
use crate::forward::{ForwardArgs, map};
use crate::gate_up::GateUpArgs;
use crate::gemm::GemmArgs;
use crate::mma::accumulators::Accumulators;
use crate::named_sync;
use crate::ptx::tma::TensorMapRef;
use crate::ptx::{bulk, reg};
use crate::role::activate::Activate;
use crate::role::order::Order;
use crate::role::product::Forward;
use crate::role::store::{BARRIER, Linear, Place, WayOut};
use crate::sync::words::Words;
use crate::trace::CONSUMER;

/// To H or Y of the routed experts or of the shared one.
///
/// That a tile is in memory is told when the next one is about to be stored: it has long arrived then, and nobody waits
/// for it. If there is none, or the producer has to wait, it is told at once.
pub struct Settle<'a, D> {
    args: &'a ForwardArgs,
    /// The first of the tensor maps.
    maps: D,
    words: Words,
    /// The word that counts the tile which was stored last and not told of; 0 if there is none.
    untold: u32,
}

/// Tells of a tile, by the word that counts it, once it is in memory; the word may be 0, for none. The literal names the
/// place.
///
/// # Safety
/// The threads of the place's team are here, and have stored the tile.
macro_rules! tell {
    ($settle:expr, $counts:expr, $place:expr, $what:literal) => {{
        // Not only read: written.
        bulk::wait::<0>();
        // After the barrier the first thread knows of the others' stores.
        named_sync!(BARRIER + $place.team, $place.threads, 0, $what);
        if $place.speaks() && $counts != 0 {
            $settle.words.count($counts);
        }
    }};
}

impl<'a, D: Fn() -> TensorMapRef> Settle<'a, D> {
    /// The way out of a launch.
    pub fn new(args: &'a ForwardArgs, maps: D, words: Words) -> Settle<'a, D> {
        Settle {
            args,
            maps,
            words,
            untold: 0,
        }
    }

    /// The words of the launch.
    pub fn words(&self) -> Words {
        self.words
    }

    /// Stamps a task of consumer `part`, by its first thread.
    ///
    /// # Safety
    /// The threads of the warpgroup call it.
    #[inline(always)]
    pub unsafe fn stamp(&self, part: u32, stamp: impl FnOnce(Stamp<'a>)) {
        if reg::anew(reg::thread_idx()).is_multiple_of(128) {
            stamp(Stamp::new(self.args, CONSUMER + part));
        }
    }

    /// Stores a consumer's half tile, and tells of the one before.
    ///
    /// # Safety
    /// As [`WayOut::store`].
    #[inline(always)]
    pub unsafe fn store(&mut self, sums: &Accumulators, order: &Order, note: Note, place: Place) {
        // SAFETY: the caller's contract.
        unsafe {
            tell!(self, self.untold, place, "before");
            self.put(sums, order, note, place);
        }
        self.untold = note.counts;
    }

    /// Stores a half tile, and tells of nothing.
    ///
    /// # Safety
    /// As [`WayOut::store`].
    #[inline(always)]
    pub unsafe fn put(&self, sums: &Accumulators, order: &Order, note: Note, place: Place) {
        let (args, shared) = (self.args, note.is_shared());
        let order = &Order {
            row: note.row,
            column: note.column,
            ..*order
        };
        // SAFETY: the caller's contract.
        unsafe {
            if note.is_down() {
                let (routed, own) = (&args.routed.down, &args.shared.down);
                // Either may be without experts, and hold nothing.
                let to = GemmArgs {
                    d: if shared { own.d } else { routed.d },
                    d_row_stride: if shared {
                        own.d_row_stride
                    } else {
                        routed.d_row_stride
                    },
                    n: args.moves.hidden,
                    ..*routed
                };
                let map = map_at((self.maps)(), shared, map::Y);
                Linear::<Forward>::new(&to, map).store(sums, order, place);
            } else {
                let (routed, own) = (&args.routed.gate_up, &args.shared.gate_up);
                let of = if reg::anew(note.kind) > 1 {
                    *own
                } else {
                    *routed
                };
                // Nothing is kept.
                let to = GateUpArgs { gate: 0, ..of };
                Activate { args: &to }.store(sums, order, place);
            }
        }
    }

    /// Tells at once of a tile that has been stored.
    ///
    /// # Safety
    /// The threads of the place's team call it, for a tile that all of them have stored.
    #[inline(always)]
    pub unsafe fn tell(&self, note: Note, place: Place) {
        // SAFETY: the caller's contract.
        unsafe { tell!(self, note.counts, place, "told") };
    }

    /// Tells of the tile that was stored last: nothing follows for a while.
    ///
    /// # Safety
    /// The threads of the warpgroup call it.
    #[inline(always)]
    pub unsafe fn rest(&mut self, place: Place) {
        // SAFETY: the caller's contract.
        unsafe { tell!(self, self.untold, place, "rest") };
        self.untold = 0;
    }

    /// Likewise: nothing follows any more.
    ///
    /// # Safety
    /// As [`rest`](Settle::rest).
    #[inline(always)]
    pub unsafe fn end(&mut self, place: Place) {
        // SAFETY: the caller's contract.
        unsafe { tell!(self, self.untold, place, "end") };
        self.untold = 0;
    }
}
