//! The way out of a consumer warpgroup's sums.
//!
//! They go through shared memory, where rows and columns change places in forward and dgrad, and from there
//! as 16-byte stores of whole lines. Tensor copies would do it with less work, but the engine that makes
//! them is the one that brings the operands, in order: an H200 was measured to store 16 bytes a clock with
//! it, and loads wait meanwhile.

use core::marker::PhantomData;

use super::order::Order;
use super::product::Product;
use super::wide;
use crate::gemm::{CONSUMERS, Form, GemmArgs, Sink, boxes};
use crate::layout::fragment::stmatrix;
use crate::layout::swizzle::in_tile;
use crate::mma::accumulators::Accumulators;
use crate::mma::tile::PANEL;
use crate::ptx::cvt::pack_bf16;
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::{global, reg};
use crate::{consumer_sync, for_each_16_columns, store_matrix};

/// The named barrier of consumer 0, and the next one's of the next; 0 is the block's.
pub(super) const BARRIER: u32 = 1;
const _: () = assert!(BARRIER + CONSUMERS <= 16);

/// A consumer warpgroup's half of a tile on its way out.
#[derive(Clone, Copy)]
pub struct Place {
    /// Which consumer.
    pub part: u32,
    /// Its thread, 0 to 127.
    pub thread: u32,
    /// [`STAGING`](crate::gemm::STAGING) bytes of its own.
    pub staging: SmemAddr,
}

/// Where a product's sums go.
pub trait WayOut {
    /// Before a tile is multiplied.
    ///
    /// # Safety
    /// As [`store`](WayOut::store), which follows for the same tile.
    #[inline(always)]
    unsafe fn begin(&mut self, _order: &Order, _place: Place) {}

    /// Writes a consumer's half tile.
    ///
    /// # Safety
    /// The 128 threads of the warpgroup call it with settled sums; the tile's existing elements are
    /// D's, aligned to 16 bytes, and accessed by this warpgroup only.
    unsafe fn store(&mut self, sums: &Accumulators, order: &Order, place: Place);
}

/// To D, as the arguments' sink says.
pub struct Linear<'a, P> {
    args: &'a GemmArgs,
    product: PhantomData<P>,
}

impl<'a, P: Product> Linear<'a, P> {
    /// The way to the D of `args`.
    pub const fn new(args: &'a GemmArgs) -> Linear<'a, P> {
        Linear {
            args,
            product: PhantomData,
        }
    }
}

impl<P: Product> WayOut for Linear<'_, P> {
    #[inline(always)]
    unsafe fn begin(&mut self, order: &Order, place: Place) {
        let sink = self.args.sink;
        let adds = sink == Sink::AddBf16 as u32 || sink == Sink::AddF32 as u32;
        if matches!(P::FORM, Form::Wgrad) && adds {
            // SAFETY: the caller's contract.
            unsafe { wide::prefetch(self.args, order, &place) };
        }
    }

    #[inline(always)]
    unsafe fn store(&mut self, sums: &Accumulators, order: &Order, place: Place) {
        // SAFETY: the caller's contract.
        unsafe {
            match P::FORM {
                Form::Forward | Form::Dgrad => rows(sums, self.args, order, &place),
                Form::Wgrad if self.args.sink == Sink::Bf16 as u32 => {
                    columns(sums, self.args, order, &place);
                }
                Form::Wgrad => wide::store(sums, self.args, order, &place),
            }
        }
    }
}

/// Waits until every thread of the warpgroup is done with the staging memory: has read it, or written it.
///
/// # Safety
/// All threads of the warpgroup are here. The literals tell the places apart.
#[macro_export]
macro_rules! consumer_sync {
    ($place:expr, $index:literal, $what:literal) => {
        $crate::named_sync!(
            $crate::role::store::BARRIER + $place.part,
            128u32,
            $index,
            $what
        )
    };
}

/// Rounds sums to bf16 and has `$store!(column, words, index)` stage each 16 columns of them.
macro_rules! stage_bf16 {
    ($store:ident $d:ident $width:ident; $($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal])*) => {$(
        if 16 * $j < $width {
            $store!(16 * $j, [
                pack_bf16($d[$d0], $d[$d1]), pack_bf16($d[$d2], $d[$d3]),
                pack_bf16($d[$d4], $d[$d5]), pack_bf16($d[$d6], $d[$d7]),
            ], $j);
        }
    )*};
}

/// Threads that store a line of 128 bytes, 16 bytes each.
const LINE: u32 = 8;
/// Lines that the warpgroup stores at a time.
const LINES: u32 = 128 / LINE;

/// Rounded to bf16, rows and columns exchanged: the sums' 64 rows are columns of D.
///
/// # Safety
/// As [`WayOut::store`].
#[inline(always)]
unsafe fn rows(sums: &Accumulators, args: &GemmArgs, order: &Order, place: &Place) {
    let (d, width) = (&sums.0, order.width());
    let line = place.staging.add(stmatrix::across(place.thread));
    // SAFETY: every thread of the warpgroup is here; the lines lie in the staging memory.
    unsafe {
        consumer_sync!(place, 0, "free");
        macro_rules! across {
            ($column:expr, $words:expr, $index:literal) => {
                store_matrix!(x4 trans, line.add($column * 128), $words, $index)
            };
        }
        for_each_16_columns!(lower stage_bf16 across d width;);
        for_each_16_columns!(upper stage_bf16 across d width;);
        consumer_sync!(place, 0, "staged");
    }
    let (chunk, first) = (place.thread % LINE, place.thread / LINE);
    let column = order.column + 64 * reg::anew(place.part) + 8 * chunk;
    if column >= args.n {
        return;
    }
    let to = (order.row + first) as u64 * args.d_row_stride + column as u64;
    let lines = Lines {
        from: place.staging.add(in_tile(first, 16 * chunk)),
        to: args.d + 2 * to,
        step: 2 * LINES as u64 * args.d_row_stride,
    };
    // SAFETY: staged lines, and rows of D that are this tile's.
    unsafe { lines.store(first, order.count) };
}

/// Rounded to bf16, as the sums lie.
///
/// # Safety
/// As [`WayOut::store`].
#[inline(always)]
unsafe fn columns(sums: &Accumulators, args: &GemmArgs, order: &Order, place: &Place) {
    let (d, width) = (&sums.0, order.width());
    // SAFETY: as in `rows`; a panel of 64 columns is 64 lines.
    unsafe {
        consumer_sync!(place, 1, "free");
        macro_rules! along {
            ($column:expr, $words:expr, $index:literal) => {{
                let line = stmatrix::along(place.thread, $column % 64);
                store_matrix!(
                    x4,
                    place.staging.add($column / 64 * PANEL + line),
                    $words,
                    $index
                )
            }};
        }
        for_each_16_columns!(lower stage_bf16 along d width;);
        for_each_16_columns!(upper stage_bf16 along d width;);
        consumer_sync!(place, 1, "staged");
    }
    let (chunk, first) = (place.thread % LINE, place.thread / LINE);
    let row = order.row + 64 * place.part;
    let rows = if row + 64 < args.m { row + 64 } else { args.m };
    let mut column = 8 * chunk;
    let mut from = place.staging.add(in_tile(first, 16 * chunk));
    let mut to = args.d
        + 2 * (order.group as u64 * args.d_group_stride
            + (row + first) as u64 * args.d_row_stride
            + (order.column + column) as u64);
    while column < order.count {
        let lines = Lines {
            from,
            to,
            step: 2 * LINES as u64 * args.d_row_stride,
        };
        // SAFETY: staged lines, and rows of D that are this tile's.
        unsafe { lines.store(row + first, rows) };
        column = reg::opaque(column + boxes::PANEL);
        from = from.add(PANEL);
        to += 2 * boxes::PANEL as u64;
    }
}

/// One thread's part of staged lines.
struct Lines {
    from: SmemAddr,
    to: u64,
    /// Bytes of D from one to the next.
    step: u64,
}

impl Lines {
    /// Stores those from line `line` to `end`, [`LINES`] apart.
    ///
    /// # Safety
    /// They are staged, and this thread's to write.
    #[inline(always)]
    unsafe fn store(self, line: u32, end: u32) {
        let Lines {
            mut from,
            mut to,
            step,
        } = self;
        let mut line = line;
        while line < end {
            // SAFETY: the caller's contract.
            unsafe { global::store_v4(to, shared::load_v4(from)) };
            line = reg::opaque(line + LINES);
            // The swizzle repeats after eight lines.
            from = from.add(LINES * 128);
            to += step;
        }
    }
}
