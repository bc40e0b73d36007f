//! wgrad's way out where D is f32, or is added to: through panels.
//!
//! A panel is 64 rows of 128 bytes. Thread 0 of a consumer issues the copies, each in a bulk group of
//! its own, so that a buffer is free again once all but so many groups have been read.
//!
//! What is added to: the old panels come while the tile is multiplied, and each thread adds its sums in
//! place; bf16 is rounded once, after the addition. The copies could add f32 themselves, in L2, which an
//! H200 was measured to do at 1.2 TB/s, less than a third of what it copies.

use super::order::Order;
use super::store::{BARRIER, Place};
use crate::gemm::{GemmArgs, MAX_WIDTH, MAX_WIDTH_F32, PANEL_BYTES, PANELS, Sink, boxes};
use crate::layout::fragment::accumulator;
use crate::layout::swizzle::in_tile;
use crate::mma::accumulators::Accumulators;
use crate::ptx::cvt::{pack_bf16, unpack_bf16};
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::tma::{self, TensorMapRef};
use crate::ptx::{bulk, fence, mbarrier, reg};
use crate::{for_each_16_columns, named_sync};

/// Panels of bf16 in the widest tile.
const MOST: u32 = MAX_WIDTH / boxes::PANEL;
const _: () = assert!(MOST < PANELS);
/// Columns of f32 in a panel.
const F32_PANEL: u32 = boxes::WGRAD_D_F32[0];

/// A consumer's walk through its buffers.
#[derive(Clone, Copy)]
pub struct Panels {
    next: u32,
    /// Of the barrier that tells of old panels.
    parity: u32,
}

impl Panels {
    /// Before the first panel.
    pub const START: Panels = Panels { next: 0, parity: 0 };

    /// The buffer after so many more.
    #[inline(always)]
    fn buffer(&self, place: &Place, after: u32) -> SmemAddr {
        let at = self.next + after;
        place
            .panels
            .add(PANEL_BYTES * if at < PANELS { at } else { at - PANELS })
    }

    #[inline(always)]
    fn advance(&mut self, panels: u32) {
        self.next += panels;
        if self.next >= PANELS {
            self.next -= PANELS;
        }
    }

    /// Has the old panels of a tile brought, while it is multiplied.
    ///
    /// # Safety
    /// All threads of the warpgroup call it, and then [`write_f32`](Panels::write_f32), told to add, or
    /// [`add_bf16`](Panels::add_bf16) for the same tile.
    #[inline(always)]
    pub unsafe fn fetch(&self, args: &GemmArgs, map: TensorMapRef, order: &Order, place: &Place) {
        let (_, inside) = place_of(args, order, place, 0);
        if place.thread != 0 || !inside {
            return;
        }
        let columns = if args.sink == Sink::AddF32 as u32 {
            // All buffers.
            bulk::wait_read::<0>();
            F32_PANEL
        } else {
            // The last of these buffers was read from a whole ring before it is written to again.
            bulk::wait_read::<{ PANELS - MOST }>();
            boxes::PANEL
        };
        // Not a division by a variable.
        let panels = if columns == F32_PANEL {
            order.count.div_ceil(F32_PANEL)
        } else {
            order.count.div_ceil(boxes::PANEL)
        };
        // SAFETY: the barrier is initialised, and one fetch at a time is awaited; the buffers are free.
        unsafe {
            mbarrier::arrive_expect(place.old, panels * PANEL_BYTES);
            let mut panel = 0;
            while panel < panels {
                let (at, _) = place_of(args, order, place, panel * columns);
                tma::load_3d(self.buffer(place, panel), map, at, place.old);
                panel = reg::opaque(panel + 1);
            }
        }
    }

    /// Writes sums in f32, or adds them to the old panels and writes these back. All buffers are used
    /// at once, from the first one on.
    ///
    /// # Safety
    /// As [`WayOut::store`](super::store::WayOut::store); `map` is D's. To add, after
    /// [`fetch`](Panels::fetch).
    #[inline(always)]
    pub unsafe fn write_f32(
        &mut self,
        sums: &Accumulators,
        args: &GemmArgs,
        map: TensorMapRef,
        order: &Order,
        place: &Place,
        adds: bool,
    ) {
        let (_, inside) = place_of(args, order, place, 0);
        if !inside {
            return;
        }
        let d = &sums.0;
        if adds {
            // SAFETY: the barrier is initialised, and thread 0 has fetched.
            unsafe { mbarrier::wait(place.old, self.parity) };
            self.parity ^= 1;
        } else {
            bulk::wait_read::<0>();
            // SAFETY: every thread of the warpgroup is here.
            unsafe { named_sync!(BARRIER + place.part, 128u32, 0, "panels_free") };
        }
        let (row, column) = first_of(place);
        macro_rules! columns {
            ($($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal])*) => {$(
                if 16 * $j < MAX_WIDTH_F32 && 16 * $j < order.count {
                    let panel = place.panels.add(16 * $j / F32_PANEL * PANEL_BYTES);
                    let put = |to: u32, low: f32, high: f32, below: u32| {
                        let at = panel.add(in_tile(row + below, 4 * ((16 * $j + to) % F32_PANEL + column)));
                        // SAFETY: this thread's place in a panel that is free, or has arrived.
                        unsafe {
                            if adds {
                                let (old_low, old_high) = shared::load_2f32(at);
                                shared::store_2f32(at, old_low + low, old_high + high);
                            } else {
                                shared::store_2f32(at, low, high);
                            }
                        }
                    };
                    put(0, d[$d0], d[$d1], 0);
                    put(0, d[$d2], d[$d3], 8);
                    put(8, d[$d4], d[$d5], 0);
                    put(8, d[$d6], d[$d7], 8);
                }
            )*};
        }
        for_each_16_columns!(columns);
        fence::proxy_async_shared();
        // SAFETY: every thread of the warpgroup is here.
        unsafe { named_sync!(BARRIER + place.part, 128u32, 0, "panels_staged") };
        if place.thread == 0 {
            let mut panel = 0;
            while F32_PANEL * panel < order.count {
                let (at, _) = place_of(args, order, place, F32_PANEL * panel);
                // SAFETY: a staged panel, and elements of D that are this tile's.
                unsafe { tma::store_3d(map, at, place.panels.add(panel * PANEL_BYTES)) };
                panel = reg::opaque(panel + 1);
            }
            bulk::commit();
        }
    }

    /// Adds sums to the old panels in f32, rounds, and writes them back.
    ///
    /// # Safety
    /// As [`WayOut::store`](super::store::WayOut::store), after [`fetch`](Panels::fetch); `map` is D's.
    #[inline(always)]
    pub unsafe fn add_bf16(
        &mut self,
        sums: &Accumulators,
        args: &GemmArgs,
        map: TensorMapRef,
        order: &Order,
        place: &Place,
    ) {
        let (_, inside) = place_of(args, order, place, 0);
        if !inside {
            return;
        }
        // SAFETY: the barrier is initialised, and thread 0 has fetched.
        unsafe { mbarrier::wait(place.old, self.parity) };
        self.parity ^= 1;
        let (row, column) = first_of(place);
        let add = |to: u32, low: f32, high: f32, below: u32| {
            let panel = self.buffer(place, to / boxes::PANEL);
            let inside = in_tile(row + below, 2 * (to % boxes::PANEL + column));
            // SAFETY: this thread's place in a panel that has arrived.
            unsafe {
                let (old_low, old_high) = unpack_bf16(shared::load_u32(panel.add(inside)));
                let sum = pack_bf16(old_low + low, old_high + high);
                shared::store_u32(panel.add(inside), sum);
            }
        };
        macro_rules! columns {
            ($($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal])*) => {$(
                if 16 * $j < order.count {
                    add(16 * $j, sums.0[$d0], sums.0[$d1], 0);
                    add(16 * $j, sums.0[$d2], sums.0[$d3], 8);
                    add(16 * $j + 8, sums.0[$d4], sums.0[$d5], 0);
                    add(16 * $j + 8, sums.0[$d6], sums.0[$d7], 8);
                }
            )*};
        }
        for_each_16_columns!(columns);
        fence::proxy_async_shared();
        // SAFETY: every thread of the warpgroup is here.
        unsafe { named_sync!(BARRIER + place.part, 128u32, 0, "added") };
        let panels = order.count.div_ceil(boxes::PANEL);
        if place.thread == 0 {
            let mut panel = 0;
            while panel < panels {
                let (at, _) = place_of(args, order, place, panel * boxes::PANEL);
                // SAFETY: a staged panel, and elements of D that are this tile's.
                unsafe { tma::store_3d(map, at, self.buffer(place, panel)) };
                bulk::commit();
                // A few rounds aren't worth a copy of the loop's body each.
                panel = reg::opaque(panel + 1);
            }
        }
        self.advance(panels);
    }
}

/// Row and column of this thread's first sum. Unknown to the compiler: it would work out all places in
/// all panels before the first tile, and keep them in memory.
#[inline(always)]
fn first_of(place: &Place) -> (u32, u32) {
    let thread = reg::opaque(place.thread);
    (accumulator::row(thread, 0), accumulator::column(thread, 0))
}

/// Where in D the consumer's part of a tile has its column `column`, and whether D has any row of it.
#[inline(always)]
fn place_of(args: &GemmArgs, order: &Order, place: &Place, column: u32) -> ([i32; 3], bool) {
    let row = order.row + 64 * place.part;
    let at = [
        (order.column + column) as i32,
        row as i32,
        order.group as i32,
    ];
    (at, row < args.m)
}
