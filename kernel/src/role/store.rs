//! The way out of a consumer warpgroup's sums: into shared memory, where rows and columns change places in
//! forward and dgrad, and from there to D by a warp of its own ([`leave`](super::leave)).
//!
//! An H200's SM was measured to send 16 bytes a clock, by tensor copies or by stores: a tile of weight
//! gradients takes as long to leave as to be multiplied. Tensor copies would keep the next tiles' loads
//! waiting, which the same engine makes in order; stores, the warps that multiply.

use core::marker::PhantomData;

use super::leave::Leaving;
use super::product::Product;
use super::order::Order;
use crate::gemm::{CONSUMERS, Form, GemmArgs, MAX_WIDTH, STAGING, Sink};
use crate::layout::fragment::{accumulator, stmatrix};
use crate::layout::swizzle::in_tile;
use crate::mma::accumulators::Accumulators;
use crate::mma::tile::PANEL;
use crate::ptx::cvt::pack_bf16;
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::{global, mbarrier, reg};
use crate::{for_each_16_columns, store_matrix, warp_sync};

/// The named barrier of consumer 0, and the next one's of the next; 0 is the block's.
pub(super) const BARRIER: u32 = 1;
const _: () = assert!(BARRIER + CONSUMERS <= 16);

/// Columns of f32 that are staged at a time: half of the widest tile.
pub(super) const HALF: u32 = STAGING / PANEL * F32_COLUMNS;
/// Columns of f32 in a panel: 64 rows of 128 bytes.
pub(super) const F32_COLUMNS: u32 = 32;
const _: () = assert!(2 * HALF == MAX_WIDTH);

/// A consumer warpgroup's half of a tile on its way out.
#[derive(Clone, Copy)]
pub struct Place {
    /// Which consumer.
    pub part: u32,
    /// Its thread, 0 to 127.
    pub thread: u32,
    /// [`STAGING`] bytes of its own.
    pub staging: SmemAddr,
    /// Its [`Exit`].
    pub exit: Exit,
}

/// What a consumer and the warp behind it tell each other.
#[derive(Clone, Copy)]
pub struct Exit {
    /// An mbarrier: the staging memory is full, and what it holds is described.
    pub staged: SmemAddr,
    /// An mbarrier: it has been read.
    pub drained: SmemAddr,
    /// The description.
    pub leaving: SmemAddr,
}

impl Exit {
    /// Initialises the barriers.
    ///
    /// # Safety
    /// One thread of the block calls it, before anyone uses them; a `fence::mbarrier_init` and a block
    /// barrier follow.
    pub unsafe fn init(self) {
        // SAFETY: the plan reserves 8 aligned bytes a barrier for them.
        unsafe {
            mbarrier::init(self.staged, 4);
            mbarrier::init(self.drained, 1);
        }
    }
}

/// Where a product's sums go.
pub trait WayOut {
    /// Whether a warp behind each consumer does the last part.
    const LEAVES: bool;

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

    /// After the last tile.
    ///
    /// # Safety
    /// The 128 threads of the warpgroup call it once.
    #[inline(always)]
    unsafe fn finish(&mut self, _place: Place) {}
}

/// To D, as the arguments' sink says.
pub struct Linear<'a, P> {
    args: &'a GemmArgs,
    /// Of the barrier that tells of drained staging memory.
    parity: u32,
    product: PhantomData<P>,
}

impl<'a, P: Product> Linear<'a, P> {
    /// The way to the D of `args`.
    pub const fn new(args: &'a GemmArgs) -> Linear<'a, P> {
        Linear {
            args,
            // A barrier's phase before the first counts as complete: the memory is free.
            parity: 1,
            product: PhantomData,
        }
    }

    /// Waits until the staging memory is free.
    ///
    /// # Safety
    /// The barriers are initialised.
    #[inline(always)]
    unsafe fn free(&mut self, place: &Place) {
        // SAFETY: the caller's contract.
        unsafe { mbarrier::wait(place.exit.drained, self.parity) };
        self.parity ^= 1;
    }
}

/// Tells the warp behind that the staging memory holds `$leaving`.
///
/// # Safety
/// All threads of the warpgroup are here, and have staged. The literal numbers the place.
macro_rules! staged {
    ($place:expr, $leaving:expr, $index:literal) => {{
        if $place.thread == 0 {
            $leaving.put($place.exit.leaving);
        }
        // One lane speaks for all of its warp.
        warp_sync!($index);
        if $place.thread.is_multiple_of(32) {
            mbarrier::arrive($place.exit.staged);
        }
    }};
}

impl<P: Product> WayOut for Linear<'_, P> {
    const LEAVES: bool = true;

    #[inline(always)]
    unsafe fn begin(&mut self, order: &Order, place: Place) {
        let sink = self.args.sink;
        let adds = sink == Sink::AddBf16 as u32 || sink == Sink::AddF32 as u32;
        if matches!(P::FORM, Form::Wgrad) && adds {
            // SAFETY: the caller's contract.
            unsafe { prefetch(self.args, order, &place) };
        }
    }

    #[inline(always)]
    unsafe fn store(&mut self, sums: &Accumulators, order: &Order, place: Place) {
        let leaving = Leaving::new(order, place.part, P::FORM);
        // SAFETY: the caller's contract.
        unsafe {
            self.free(&place);
            match P::FORM {
                Form::Forward | Form::Dgrad => stage_rows(sums, order, &place),
                Form::Wgrad if self.args.sink == Sink::Bf16 as u32 => {
                    stage_columns(sums, order, &place);
                }
                Form::Wgrad => {
                    stage_f32(sums, order, &place, false);
                    if order.count > HALF {
                        staged!(place, leaving.lower(), 0);
                        self.free(&place);
                        stage_f32(sums, order, &place, true);
                        staged!(place, leaving.upper(), 1);
                        return;
                    }
                }
            }
            staged!(place, leaving, 2);
        }
    }

    #[inline(always)]
    unsafe fn finish(&mut self, place: Place) {
        // SAFETY: the caller's contract.
        unsafe {
            self.free(&place);
            staged!(place, Leaving::END, 3);
        }
    }
}

/// Brings what D holds of a consumer's half tile to L2.
///
/// # Safety
/// As [`WayOut::store`].
#[inline(always)]
unsafe fn prefetch(args: &GemmArgs, order: &Order, place: &Place) {
    let size = if args.sink == Sink::AddBf16 as u32 { 2 } else { 4 };
    let row = order.row + 64 * place.part + place.thread % 64;
    if row >= args.m {
        return;
    }
    let offset = order.group as u64 * args.d_group_stride
        + row as u64 * args.d_row_stride
        + order.column as u64;
    let to = args.d + size as u64 * offset;
    let end = order.count * size;
    // Two threads a row, in turn.
    let mut byte = place.thread / 64 * 128;
    while byte < end {
        // SAFETY: an element of the tile.
        unsafe { global::prefetch_l2(to + byte as u64) };
        byte = reg::opaque(byte + 256);
    }
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

/// Rounded to bf16, rows and columns exchanged: the sums' 64 rows are columns of D.
///
/// # Safety
/// Every thread of the warpgroup calls it; the staging memory is free.
#[inline(always)]
unsafe fn stage_rows(sums: &Accumulators, order: &Order, place: &Place) {
    let (d, width) = (&sums.0, order.width());
    let line = place.staging.add(stmatrix::across(place.thread));
    // SAFETY: the caller's contract; the lines lie in the staging memory.
    unsafe {
        macro_rules! across {
            ($column:expr, $words:expr, $index:literal) => {
                store_matrix!(x4 trans, line.add($column * 128), $words, $index)
            };
        }
        for_each_16_columns!(lower stage_bf16 across d width;);
        for_each_16_columns!(upper stage_bf16 across d width;);
    }
}

/// Rounded to bf16, as the sums lie: a panel of 64 columns is 64 lines.
///
/// # Safety
/// As [`stage_rows`].
#[inline(always)]
unsafe fn stage_columns(sums: &Accumulators, order: &Order, place: &Place) {
    let (d, width) = (&sums.0, order.width());
    // SAFETY: as in `stage_rows`.
    unsafe {
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
    }
}

/// In f32, the lower half of the columns or the upper: a panel of 32 columns is 64 lines.
///
/// # Safety
/// As [`stage_rows`].
#[inline(always)]
unsafe fn stage_f32(sums: &Accumulators, order: &Order, place: &Place, upper: bool) {
    // Unknown to the compiler: it would work out all places before the first tile, and keep them.
    let thread = reg::anew(place.thread);
    let (row, column) = (accumulator::row(thread, 0), accumulator::column(thread, 0));
    macro_rules! columns {
        ($($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal])*) => {$(
            if 16 * $j < order.count {
                let panel = place.staging.add(16 * $j % HALF / F32_COLUMNS * PANEL);
                let put = |to: u32, low: f32, high: f32, below: u32| {
                    let byte = 4 * ((16 * $j + to) % F32_COLUMNS + column);
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
