//! wgrad's way out where D is f32, or is added to: panel by panel through a ring of buffers.
//!
//! A panel is 64 rows of 128 bytes. Thread 0 of a consumer issues the copies, each in a bulk group of
//! its own, so that a buffer is free again once all but so many groups have been read.
//!
//! What is added in f32 is added by the copy. What is added to bf16 is rounded once, after the
//! addition: the old panels come while the tile is multiplied, and each thread adds its sums in place.

use super::order::Order;
use super::store::{BARRIER, Place};
use crate::gemm::{CONSUMERS, GemmArgs, MAX_WIDTH, PANEL_BYTES, PANELS, boxes};
use crate::layout::fragment::accumulator;
use crate::layout::swizzle::in_tile;
use crate::mma::accumulators::Accumulators;
use crate::ptx::cvt::{pack_bf16, unpack_bf16};
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::tma::{self, TensorMapRef};
use crate::ptx::{bulk, fence, mbarrier, reg};
use crate::{for_each_16_columns, for_each_32_columns, named_sync};

/// Panels of bf16 in the widest tile.
const MOST: u32 = MAX_WIDTH / boxes::PANEL;
const _: () = assert!(MOST < PANELS);

/// A consumer's walk through its buffers.
#[derive(Clone, Copy)]
pub struct Panels {
    next: u32,
    /// Of the barrier that tells of old panels; where halves are shared, a bit for each consumer's.
    parity: u32,
}

impl Panels {
    /// Before the first panel.
    pub const START: Panels = Panels { next: 0, parity: 0 };

    /// The buffer after so many more, of some consumer's.
    #[inline(always)]
    fn buffer(&self, panels: SmemAddr, after: u32) -> SmemAddr {
        let at = self.next + after;
        panels.add(PANEL_BYTES * if at < PANELS { at } else { at - PANELS })
    }

    #[inline(always)]
    fn advance(&mut self, panels: u32) {
        self.next += panels;
        if self.next >= PANELS {
            self.next -= PANELS;
        }
    }

    /// Writes sums in f32, or adds them.
    ///
    /// # Safety
    /// As [`WayOut::store`](super::store::WayOut::store); `map` is D's.
    #[inline(always)]
    pub unsafe fn write_f32(
        &mut self,
        sums: &Accumulators,
        args: &GemmArgs,
        map: TensorMapRef,
        order: &Order,
        place: &Place,
        add: bool,
    ) {
        let d = &sums.0;
        let (row, column) = first_of(place);
        macro_rules! panels {
            ($($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal $d8:literal $d9:literal $d10:literal $d11:literal $d12:literal $d13:literal $d14:literal $d15:literal])*) => {$(
                if 32 * $j < order.count {
                    let buffer = self.buffer(place.panels, 0);
                    let to_buffer = self.buffer(place.sums.panels, 0);
                    self.advance(1);
                    let put = |to: u32, low: f32, high: f32, below: u32| {
                        let at = to_buffer.add(in_tile(row + below, 4 * (to + column)));
                        // SAFETY: this thread's place in the panel.
                        unsafe { shared::store_2f32(at, low, high) };
                    };
                    // SAFETY: every thread that stages is here.
                    unsafe {
                        bulk::wait_read::<{ PANELS - 1 }>();
                        named_sync!(BARRIER + place.team, place.threads, $j, "panel_free");
                        put(0, d[$d0], d[$d1], 0);
                        put(0, d[$d2], d[$d3], 8);
                        put(8, d[$d4], d[$d5], 0);
                        put(8, d[$d6], d[$d7], 8);
                        put(16, d[$d8], d[$d9], 0);
                        put(16, d[$d10], d[$d11], 8);
                        put(24, d[$d12], d[$d13], 0);
                        put(24, d[$d14], d[$d15], 8);
                        fence::proxy_async_shared();
                        named_sync!(BARRIER + place.team, place.threads, $j, "panel_staged");
                    }
                    if place.thread == 0 {
                        let (at, inside) = place_of(args, order, place, 32 * $j);
                        // SAFETY: a staged panel, and elements of D that are this tile's.
                        unsafe {
                            match (inside, add) {
                                (false, _) => {}
                                (true, true) => tma::reduce_add_3d(map, at, buffer),
                                (true, false) => tma::store_3d(map, at, buffer),
                            }
                        }
                        bulk::commit();
                    }
                }
            )*};
        }
        for_each_32_columns!(panels);
    }

    /// Has the old panels of a tile brought, while it is multiplied.
    ///
    /// # Safety
    /// All threads of the warpgroup call it, and then [`add_bf16`](Panels::add_bf16) for the same tile.
    #[inline(always)]
    pub unsafe fn fetch(&self, args: &GemmArgs, map: TensorMapRef, order: &Order, place: &Place) {
        let (_, inside) = place_of(args, order, place, 0);
        if place.thread != 0 || !inside {
            return;
        }
        let panels = order.count.div_ceil(boxes::PANEL);
        // The last of these buffers was read from a whole ring before it is written to again.
        bulk::wait_read::<{ PANELS - MOST }>();
        // SAFETY: the barrier is initialised, and one fetch at a time is awaited; the buffers are free.
        unsafe {
            mbarrier::arrive_expect(place.old, panels * PANEL_BYTES);
            let mut panel = 0;
            while panel < panels {
                let (at, _) = place_of(args, order, place, panel * boxes::PANEL);
                tma::load_3d(self.buffer(place.panels, panel), map, at, place.old);
                panel = reg::opaque(panel + 1);
            }
        }
    }

    /// Adds sums to the old panels in f32, rounds, and writes them back.
    ///
    /// # Safety
    /// As [`write_f32`](Panels::write_f32), after [`fetch`](Panels::fetch).
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
        if place.is_shared() {
            // SAFETY: the caller's contract.
            if !unsafe { self.old_of_both(args, order, place) } {
                return;
            }
        } else {
            if !inside {
                return;
            }
            // SAFETY: the barrier is initialised, and thread 0 has fetched.
            unsafe { mbarrier::wait(place.old, self.parity) };
            self.parity = reg::opaque(self.parity ^ 1);
        }
        let (row, column) = first_of(place);
        let add = |to: u32, low: f32, high: f32, below: u32| {
            let panel = self.buffer(place.sums.panels, to / boxes::PANEL);
            let inside = in_tile(row + below, 2 * (to % boxes::PANEL + column));
            // SAFETY: this thread's place in a panel that has arrived.
            unsafe {
                let (old_low, old_high) = unpack_bf16(shared::load_u32(panel.add(inside)));
                let sum = pack_bf16(old_low + low, old_high + high);
                shared::store_u32(panel.add(inside), sum);
            }
        };
        let count = match place.is_shared() {
            // For rows that D doesn't have, the other consumer has brought nothing.
            true if order.row + 64 * place.sums.part >= args.m => 0,
            _ => order.count,
        };
        macro_rules! columns {
            ($($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal])*) => {$(
                if 16 * $j < reg::anew(count) {
                    add(16 * $j, sums.0[$d0], sums.0[$d1], 0);
                    add(16 * $j, sums.0[$d2], sums.0[$d3], 8);
                    add(16 * $j + 8, sums.0[$d4], sums.0[$d5], 0);
                    add(16 * $j + 8, sums.0[$d6], sums.0[$d7], 8);
                }
            )*};
        }
        for_each_16_columns!(columns);
        fence::proxy_async_shared();
        // SAFETY: every thread that stages is here.
        unsafe { named_sync!(BARRIER + place.team, place.threads, 0, "added") };
        let panels = order.count.div_ceil(boxes::PANEL);
        if place.is_shared() && !inside {
            commit_nothing(place, panels);
        } else if place.thread == 0 {
            let mut panel = 0;
            while panel < panels {
                let (at, _) = place_of(args, order, place, panel * boxes::PANEL);
                // SAFETY: a staged panel, and elements of D that are this tile's.
                unsafe { tma::store_3d(map, at, self.buffer(place.panels, panel)) };
                bulk::commit();
                // A few rounds aren't worth a copy of the loop's body each.
                panel = reg::opaque(panel + 1);
            }
        }
        self.advance(panels);
    }

    /// Waits for the old panels of all consumers whose rows D has; false if it has none of them.
    ///
    /// # Safety
    /// As [`add_bf16`](Panels::add_bf16).
    #[inline(always)]
    unsafe fn old_of_both(&mut self, args: &GemmArgs, order: &Order, place: &Place) -> bool {
        let first = place.old.0 - 8 * place.part;
        let mut part = 0;
        while part < CONSUMERS && order.row + 64 * part < args.m {
            // SAFETY: the barriers are initialised, and a thread of that consumer has fetched.
            unsafe { mbarrier::wait(SmemAddr(first + 8 * part), self.parity >> part & 1) };
            self.parity ^= 1 << part;
            part = reg::opaque(part + 1);
        }
        part > 0
    }
}

/// An empty group for each panel of rows that D doesn't have: groups are counted to know which buffers are
/// free.
#[inline(always)]
fn commit_nothing(place: &Place, panels: u32) {
    let mut left = if place.thread == 0 { panels } else { 0 };
    while left > 0 {
        bulk::commit();
        left = reg::opaque(left - 1);
    }
}

/// Row and column of this thread's first sum. Unknown to the compiler: it would work out all places in
/// all panels before the first tile, and keep them in memory.
#[inline(always)]
fn first_of(place: &Place) -> (u32, u32) {
    let thread = reg::opaque(place.sums.thread);
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
