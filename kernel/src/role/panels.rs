//! wgrad's way out: panels of 64 rows of 128 bytes, through a ring of buffers for each 64 rows of the
//! fixed side.
//!
//! A consumer fills a buffer that is open and says that it is ready; a thread of its own carries it to D
//! ([`carry`](super::carry)). A thread that issues copies waits while the copy engine is busy with others,
//! loads among them: in a program that does nothing but wgrad's copies, consumers that issued their own waited
//! for 3,600 clocks of the 10,600 that a tile of f32 took.
//!
//! Where D counts, a buffer opens with what D holds in it. Sums are added to that, and a bf16 is rounded
//! once, after the addition.

use super::order::Order;
use super::store::{Place, Spot};
use crate::gemm::{PANEL_BYTES, PANELS};
use crate::layout::fragment::{accumulator, stmatrix};
use crate::layout::swizzle::in_tile;
use crate::mma::accumulators::Accumulators;
use crate::ptx::cvt::{pack_bf16, unpack_bf16};
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::{fence, mbarrier, reg};
use crate::{for_each_32_columns, for_each_64_columns, store_matrix, warp_sync};

/// A consumer's walk through its buffers.
#[derive(Clone, Copy)]
pub struct Panels {
    next: u32,
    parity: u32,
}

/// A buffer that a warp may fill.
struct Panel {
    at: SmemAddr,
    ready: SmemAddr,
}

/// Says that the warp has filled its rows of a panel. The literals number the place.
///
/// # Safety
/// All lanes are here.
macro_rules! close {
    ($panel:expr, $index:literal, $what:literal) => {{
        fence::proxy_async_shared();
        warp_sync!($index, $what);
        if reg::lane() == 0 {
            mbarrier::arrive($panel.ready);
        }
    }};
}

/// Has `$put(at, low, high)` put two f32 side by side, for all of this thread's sums.
macro_rules! panels_of_f32 {
    ($walk:ident $sums:ident $order:ident $place:ident $put:ident $what:literal; $($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal $d8:literal $d9:literal $d10:literal $d11:literal $d12:literal $d13:literal $d14:literal $d15:literal])*) => {
        let d = &$sums.0;
        let (row, column) = first_of($place);
        $(
            if 32 * $j < $order.count {
                // SAFETY: the warp's rows of a panel, which are closed once they are filled.
                unsafe {
                    let panel = $walk.open(&$place.sums);
                    let at = |to: u32, below: u32| panel.at.add(in_tile(row + below, 4 * (to + column)));
                    $put(at(0, 0), d[$d0], d[$d1]);
                    $put(at(0, 8), d[$d2], d[$d3]);
                    $put(at(8, 0), d[$d4], d[$d5]);
                    $put(at(8, 8), d[$d6], d[$d7]);
                    $put(at(16, 0), d[$d8], d[$d9]);
                    $put(at(16, 8), d[$d10], d[$d11]);
                    $put(at(24, 0), d[$d12], d[$d13]);
                    $put(at(24, 8), d[$d14], d[$d15]);
                    close!(panel, $j, $what);
                }
            }
        )*
    };
}

impl Panels {
    /// Before the first panel.
    pub const START: Panels = Panels { next: 0, parity: 0 };

    /// Waits for the next buffer to be open.
    ///
    /// # Safety
    /// The barriers are initialised; the warp says `close!` of it before it opens another.
    #[inline(always)]
    unsafe fn open(&mut self, spot: &Spot) -> Panel {
        let (at, parity) = (reg::anew(self.next), self.parity);
        self.next = reg::opaque(at + 1);
        if self.next == PANELS {
            self.next = 0;
            self.parity = reg::anew(self.parity ^ 1);
        }
        // SAFETY: the caller's contract.
        unsafe { mbarrier::wait(spot.open.add(8 * at), parity) };
        Panel {
            at: spot.staging.add(PANEL_BYTES * at),
            ready: spot.ready.add(8 * at),
        }
    }

    /// Writes sums in f32.
    ///
    /// # Safety
    /// As [`WayOut::store`](super::store::WayOut::store).
    #[inline(always)]
    pub unsafe fn f32(&mut self, sums: &Accumulators, order: &Order, place: &Place) {
        let put = |at, low, high| {
            // SAFETY: this thread's place in a panel that is open.
            unsafe { shared::store_2f32(at, low, high) };
        };
        for_each_32_columns!(panels_of_f32 self sums order place put "f32";);
    }

    /// Adds sums to the old panels.
    ///
    /// # Safety
    /// As [`WayOut::store`](super::store::WayOut::store).
    #[inline(always)]
    pub unsafe fn add_f32(&mut self, sums: &Accumulators, order: &Order, place: &Place) {
        let add = |at, low, high| {
            // SAFETY: this thread's place in a panel that is open.
            unsafe {
                let [old_low, old_high] = shared::load_2f32(at);
                shared::store_2f32(at, old_low + low, old_high + high);
            }
        };
        for_each_32_columns!(panels_of_f32 self sums order place add "add_f32";);
    }

    /// Writes sums rounded to bf16.
    ///
    /// # Safety
    /// As [`WayOut::store`](super::store::WayOut::store).
    #[inline(always)]
    pub unsafe fn bf16(&mut self, sums: &Accumulators, order: &Order, place: &Place) {
        let d = &sums.0;
        let thread = place.sums.thread;
        macro_rules! panels {
            ($($j:literal [$($k:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal])*])*) => {$(
                if 64 * $j < place.most && 64 * $j < reg::anew(order.count) {
                    // SAFETY: the warp's rows of a panel that is open.
                    unsafe {
                        let panel = self.open(&place.sums);
                        $(
                            store_matrix!(x4, panel.at.add(stmatrix::along(thread, 16 * ($k % 4))), [
                                pack_bf16(d[$d0], d[$d1]), pack_bf16(d[$d2], d[$d3]),
                                pack_bf16(d[$d4], d[$d5]), pack_bf16(d[$d6], d[$d7]),
                            ], $k);
                        )*
                        close!(panel, $j, "bf16");
                    }
                }
            )*};
        }
        for_each_64_columns!(panels);
    }

    /// Adds sums to the old panels in f32, and rounds.
    ///
    /// # Safety
    /// As [`WayOut::store`](super::store::WayOut::store).
    #[inline(always)]
    pub unsafe fn add_bf16(&mut self, sums: &Accumulators, order: &Order, place: &Place) {
        let d = &sums.0;
        let (row, column) = first_of(place);
        macro_rules! panels {
            ($($j:literal [$($k:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal])*])*) => {$(
                if 64 * $j < order.count {
                    // SAFETY: the warp's rows of a panel that is open, this thread's places in them.
                    unsafe {
                        let panel = self.open(&place.sums);
                        let add = |to: u32, low: f32, high: f32, below: u32| {
                            let at = panel.at.add(in_tile(row + below, 2 * (to + column)));
                            let (old_low, old_high) = unpack_bf16(shared::load_u32(at));
                            shared::store_u32(at, pack_bf16(old_low + low, old_high + high));
                        };
                        $(
                            add(16 * ($k % 4), d[$d0], d[$d1], 0);
                            add(16 * ($k % 4), d[$d2], d[$d3], 8);
                            add(16 * ($k % 4) + 8, d[$d4], d[$d5], 0);
                            add(16 * ($k % 4) + 8, d[$d6], d[$d7], 8);
                        )*
                        close!(panel, $j, "add_bf16");
                    }
                }
            )*};
        }
        for_each_64_columns!(panels);
    }
}

/// Row and column of this thread's first sum. Unknown to the compiler: it would work out all places in
/// all panels before the first tile, and keep them in memory.
#[inline(always)]
fn first_of(place: &Place) -> (u32, u32) {
    let thread = reg::opaque(place.sums.thread);
    (accumulator::row(thread, 0), accumulator::column(thread, 0))
}
