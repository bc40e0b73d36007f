//! wgrad's way out where D is f32, or is added to.
//!
//! Sums go through the staging memory in f32, half of them at a time, so that each thread has neighbouring
//! columns of a row; then it stores them, or adds them to what D holds. bf16 is rounded once, after the
//! addition. What D holds is brought to L2 while the tile is multiplied. (Copies could add f32 in L2
//! themselves, which an H200 was measured to do at 1.2 TB/s, less than a third of what it copies.)

use super::order::Order;
use super::store::Place;
use crate::gemm::{GemmArgs, MAX_WIDTH, STAGING, Sink};
use crate::layout::fragment::accumulator;
use crate::layout::swizzle::in_tile;
use crate::mma::accumulators::Accumulators;
use crate::mma::tile::PANEL;
use crate::ptx::cvt::{pack_bf16, unpack_bf16};
use crate::ptx::{global, reg, shared};
use crate::{consumer_sync, for_each_16_columns};

/// Columns of a panel: 64 rows of 128 bytes.
const COLUMNS: u32 = 32;
/// Columns that are staged at a time.
const HALF: u32 = STAGING / PANEL * COLUMNS;
const _: () = assert!(2 * HALF == MAX_WIDTH);

/// Brings what D holds of a consumer's half tile to L2.
///
/// # Safety
/// As [`store`].
#[inline(always)]
pub unsafe fn prefetch(args: &GemmArgs, order: &Order, place: &Place) {
    let size = size_of_element(args);
    let row = order.row + 64 * place.part + place.thread % 64;
    if row >= args.m {
        return;
    }
    let to = address(args, order, row, order.column, size);
    let end = order.count * size;
    // Two threads a row, in turn.
    let mut byte = place.thread / 64 * 128;
    while byte < end {
        // SAFETY: an element of the tile.
        unsafe { global::prefetch_l2(to + byte as u64) };
        byte = reg::opaque(byte + 256);
    }
}

/// Writes a consumer's half tile, or adds it to what D holds.
///
/// # Safety
/// As [`WayOut::store`](super::store::WayOut::store).
#[inline(always)]
pub unsafe fn store(sums: &Accumulators, args: &GemmArgs, order: &Order, place: &Place) {
    // SAFETY: the caller's contract.
    unsafe {
        consumer_sync!(place, 0, "wide_free");
        stage(sums, order, place, false);
        consumer_sync!(place, 0, "wide_staged");
        leave(args, order, place, 0);
        if order.count > HALF {
            consumer_sync!(place, 1, "wide_free");
            stage(sums, order, place, true);
            consumer_sync!(place, 1, "wide_staged");
            leave(args, order, place, HALF);
        }
    }
}

/// Stages the lower half of the columns, or the upper.
///
/// # Safety
/// The staging memory is free.
#[inline(always)]
unsafe fn stage(sums: &Accumulators, order: &Order, place: &Place, upper: bool) {
    // Unknown to the compiler: it would work out all places before the first tile, and keep them.
    let thread = reg::anew(place.thread);
    let (row, column) = (accumulator::row(thread, 0), accumulator::column(thread, 0));
    macro_rules! columns {
        ($($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal])*) => {$(
            if 16 * $j < order.count {
                let panel = place.staging.add(16 * $j % HALF / COLUMNS * PANEL);
                let put = |to: u32, low: f32, high: f32, below: u32| {
                    let byte = 4 * ((16 * $j + to) % COLUMNS + column);
                    // SAFETY: this thread's place in a panel.
                    unsafe { shared::store_2f32(panel.add(in_tile(row + below, byte)), low, high) };
                };
                put(0, sums.0[$d0], sums.0[$d1], 0);
                put(0, sums.0[$d2], sums.0[$d3], 8);
                put(8, sums.0[$d4], sums.0[$d5], 0);
                put(8, sums.0[$d6], sums.0[$d7], 8);
            }
        )*};
    }
    if upper {
        for_each_16_columns!(upper columns);
    } else {
        for_each_16_columns!(lower columns);
    }
}

/// Writes what is staged of the columns from `half` on, or adds it.
///
/// # Safety
/// All threads have staged.
#[inline(always)]
unsafe fn leave(args: &GemmArgs, order: &Order, place: &Place, half: u32) {
    let size = size_of_element(args);
    let adds = args.sink == Sink::AddF32 as u32;
    // Four threads a row of a panel, eight columns each.
    let (eight, first) = (place.thread % 4, place.thread / 4);
    let row = order.row + 64 * place.part + first;
    let end = if order.count < half + HALF {
        order.count
    } else {
        half + HALF
    };
    let mut column = half + 8 * eight;
    let mut panel = place.staging;
    let mut to = address(args, order, row, order.column + column, size);
    let step = (32 * size) as u64 * args.d_row_stride;
    while column < end {
        let (mut line, mut at) = (first, to);
        while line < 64 && row + (line - first) < args.m {
            let from = |byte: u32| panel.add(in_tile(line, 32 * eight + byte));
            // SAFETY: staged, and elements of the tile that are this thread's.
            unsafe {
                let low = shared::load_v4(from(0)).map(f32::from_bits);
                let high = shared::load_v4(from(16)).map(f32::from_bits);
                if size == 2 {
                    let old = global::load_v4(at).map(unpack_bf16);
                    let sum = |pair: usize, low: f32, high: f32| {
                        pack_bf16(old[pair].0 + low, old[pair].1 + high)
                    };
                    let words = [
                        sum(0, low[0], low[1]),
                        sum(1, low[2], low[3]),
                        sum(2, high[0], high[1]),
                        sum(3, high[2], high[3]),
                    ];
                    global::store_v4(at, words);
                } else if adds {
                    let (old_low, old_high) = (global::load_v4(at), global::load_v4(at + 16));
                    global::store_v4(at, added(old_low, low));
                    global::store_v4(at + 16, added(old_high, high));
                } else {
                    global::store_v4(at, low.map(f32::to_bits));
                    global::store_v4(at + 16, high.map(f32::to_bits));
                }
            }
            line = reg::opaque(line + 32);
            at += step;
        }
        column += COLUMNS;
        panel = panel.add(PANEL);
        to += (COLUMNS * size) as u64;
    }
}

#[inline(always)]
fn added(old: [u32; 4], sums: [f32; 4]) -> [u32; 4] {
    let sum = |at: usize| (f32::from_bits(old[at]) + sums[at]).to_bits();
    [sum(0), sum(1), sum(2), sum(3)]
}

/// Bytes of an element of D. (bf16 comes here only to be added to.)
#[inline(always)]
fn size_of_element(args: &GemmArgs) -> u32 {
    if args.sink == Sink::AddBf16 as u32 {
        2
    } else {
        4
    }
}

/// Address of an element of the tile's group.
#[inline(always)]
fn address(args: &GemmArgs, order: &Order, row: u32, column: u32, size: u32) -> u64 {
    let offset = order.group as u64 * args.d_group_stride
        + row as u64 * args.d_row_stride
        + column as u64;
    args.d + size as u64 * offset
}
