//! The way out of a consumer warpgroup's sums.
//!
//! They go through shared memory, from where tensor copies write D while the warpgroup multiplies
//! its next tile: at 27 bytes a clock, which ordinary stores from both warpgroups were measured to
//! get through, a tile of weight gradients would keep it waiting for a third of its time. In forward
//! and dgrad rows and columns change places on the way, since the sums' fixed side is D's columns.
//!
//! [`Linear`] is the way of a plain product. Sums that are added to bf16 go straight from registers: they are rounded once, after the addition.

use core::marker::PhantomData;

use super::order::Order;
use super::product::Product;
use crate::gemm::{CONSUMERS, Form, GemmArgs, PANEL_F32, PANELS_F32, Sink, boxes};
use crate::layout::fragment::{accumulator, stmatrix};
use crate::layout::swizzle::in_tile;
use crate::mma::accumulators::Accumulators;
use crate::mma::tile::PANEL;
use crate::ptx::cvt::{pack_bf16, unpack_bf16};
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::tma::{self, TensorMapRef};
use crate::ptx::{bulk, fence, global};
use crate::{for_each_16_columns, for_each_32_columns, named_sync, store_matrix};

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
    /// Or [`PANELS_F32`] panels of its own.
    pub panels: SmemAddr,
}

/// Where a product's sums go.
pub trait WayOut {
    /// Writes a consumer's half tile.
    ///
    /// # Safety
    /// The 128 threads of the warpgroup call it with settled sums; the tile's existing elements are
    /// D's, aligned to 16 bytes, and accessed by this warpgroup only.
    unsafe fn store(&mut self, sums: &Accumulators, order: &Order, place: Place);

    /// Waits until nothing reads the staging memory any more.
    fn finish(&self) {}
}

/// To D, as the arguments' sink says.
pub struct Linear<'a, P> {
    args: &'a GemmArgs,
    map: TensorMapRef,
    /// The next panel of f32.
    panel: u32,
    product: PhantomData<P>,
}

impl<'a, P: Product> Linear<'a, P> {
    /// The way to the D of `args`, whose tensor map is `map`.
    pub const fn new(args: &'a GemmArgs, map: TensorMapRef) -> Linear<'a, P> {
        Linear {
            args,
            map,
            panel: 0,
            product: PhantomData,
        }
    }
}

impl<P: Product> WayOut for Linear<'_, P> {
    #[inline(always)]
    unsafe fn store(&mut self, sums: &Accumulators, order: &Order, place: Place) {
        let args = self.args;
        let adds = args.sink == Sink::AddF32 as u32;
        let way = Way {
            map: self.map,
            part: place.part,
            thread: place.thread,
            staging: place.staging,
        };
        // SAFETY: the caller's contract.
        unsafe {
            match P::FORM {
                Form::Forward | Form::Dgrad => way.rows(sums, args, order),
                Form::Wgrad if adds || args.sink == Sink::F32 as u32 => {
                    way.wide_panels(sums, args, order, adds, place.panels, &mut self.panel);
                }
                Form::Wgrad if args.sink == Sink::AddBf16 as u32 => {
                    add_bf16(sums, args, order, place.part, place.thread);
                }
                Form::Wgrad => way.panels(sums, args, order),
            }
        }
    }

    #[inline(always)]
    fn finish(&self) {
        bulk::wait::<0>();
    }
}

/// Waits until the staging memory may be written again; the copies out of it are thread 0's.
///
/// # Safety
/// All threads of the warpgroup are here. The literal numbers the place.
macro_rules! free {
    ($way:expr, $index:literal) => {{
        bulk::wait_read::<0>();
        named_sync!(BARRIER + $way.part, 128u32, $index, "free");
    }};
}

/// Makes the staging memory visible to thread 0's copies.
///
/// # Safety
/// As [`free`].
macro_rules! staged {
    ($way:expr, $index:literal $($what:literal)?) => {{
        fence::proxy_async_shared();
        named_sync!(BARRIER + $way.part, 128u32, $index, "staged" $(, $what)?);
    }};
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

/// A warpgroup's way to D by tensor copies.
struct Way {
    map: TensorMapRef,
    part: u32,
    thread: u32,
    staging: SmemAddr,
}

impl Way {
    /// Rounded to bf16, rows and columns exchanged: the sums' 64 rows are columns of D.
    ///
    /// # Safety
    /// As [`WayOut::store`].
    #[inline(always)]
    unsafe fn rows(&self, sums: &Accumulators, args: &GemmArgs, order: &Order) {
        let (d, width) = (&sums.0, order.width());
        let line = self.staging.add(stmatrix::across(self.thread));
        // SAFETY: every thread of the warpgroup is here; the lines lie in the staging memory.
        unsafe {
            free!(self, 0);
            macro_rules! across {
                ($column:expr, $words:expr, $index:literal) => {
                    store_matrix!(x4 trans, line.add($column * 128), $words, $index)
                };
            }
            for_each_16_columns!(lower stage_bf16 across d width;);
            for_each_16_columns!(upper stage_bf16 across d width;);
            staged!(self, 0);
        }
        let column = order.column + 64 * self.part;
        if column >= args.n {
            return;
        }
        let whole = order.count / 8;
        if self.thread == 0 {
            let mut band = 0;
            while band < whole {
                let at = [column as i32, (order.row + 8 * band) as i32];
                // SAFETY: eight staged lines, and rows of D that are this tile's.
                unsafe { tma::store_2d(self.map, at, self.staging.add(band * 8 * 128)) };
                band += 1;
            }
            bulk::commit();
        }
        // A box would write the rows of the next tile or group besides a group's last ones.
        let (chunk, row) = (self.thread % 8, 8 * whole + self.thread / 8);
        if row < order.count && 8 * chunk < args.n - column {
            let offset = (order.row + row) as u64 * args.d_row_stride + (column + 8 * chunk) as u64;
            // SAFETY: a staged line, and a row of D that is this tile's.
            unsafe {
                let words = shared::load_v4(self.staging.add(in_tile(row, 16 * chunk)));
                global::store_v4(args.d + 2 * offset, words);
            }
        }
    }

    /// Rounded to bf16, as the sums lie.
    ///
    /// # Safety
    /// As [`WayOut::store`].
    #[inline(always)]
    unsafe fn panels(&self, sums: &Accumulators, args: &GemmArgs, order: &Order) {
        let (d, width) = (&sums.0, order.width());
        // SAFETY: as in `rows`; a panel of 64 columns is 64 lines.
        unsafe {
            free!(self, 1);
            macro_rules! along {
                ($column:expr, $words:expr, $index:literal) => {{
                    let line = stmatrix::along(self.thread, $column % 64);
                    store_matrix!(
                        x4,
                        self.staging.add($column / 64 * PANEL + line),
                        $words,
                        $index
                    )
                }};
            }
            for_each_16_columns!(lower stage_bf16 along d width;);
            for_each_16_columns!(upper stage_bf16 along d width;);
            staged!(self, 1);
            self.copy_panels(args, order);
        }
    }

    /// In f32, as the sums lie, panel by panel: each waits for the copy that last read its memory.
    ///
    /// # Safety
    /// As [`WayOut::store`]; `panels` are this warpgroup's, and `next` counts through them.
    #[inline(always)]
    unsafe fn wide_panels(
        &self,
        sums: &Accumulators,
        args: &GemmArgs,
        order: &Order,
        add: bool,
        panels: SmemAddr,
        next: &mut u32,
    ) {
        let d = &sums.0;
        let row = accumulator::row(self.thread, 0);
        let column = accumulator::column(self.thread, 0);
        macro_rules! panels {
            ($($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal $d8:literal $d9:literal $d10:literal $d11:literal $d12:literal $d13:literal $d14:literal $d15:literal])*) => {$(
                if 32 * $j < order.count {
                    let panel = panels.add(*next * PANEL_F32);
                    *next = if *next + 1 == PANELS_F32 { 0 } else { *next + 1 };
                    let put = |to: u32, low: f32, high: f32, below: u32| {
                        let at = panel.add(in_tile(row + below, 4 * (to + column)));
                        // SAFETY: this thread's place in the panel.
                        unsafe { shared::store_2f32(at, low, high) };
                    };
                    // SAFETY: every thread of the warpgroup is here.
                    unsafe {
                        bulk::wait_read::<{ PANELS_F32 - 1 }>();
                        named_sync!(BARRIER + self.part, 128u32, $j, "panel_free");
                        put(0, d[$d0], d[$d1], 0);
                        put(0, d[$d2], d[$d3], 8);
                        put(8, d[$d4], d[$d5], 0);
                        put(8, d[$d6], d[$d7], 8);
                        put(16, d[$d8], d[$d9], 0);
                        put(16, d[$d10], d[$d11], 8);
                        put(24, d[$d12], d[$d13], 0);
                        put(24, d[$d14], d[$d15], 8);
                        staged!(self, $j "panel");
                        self.copy_wide(args, order, 32 * $j, panel, add);
                    }
                }
            )*};
        }
        for_each_32_columns!(panels);
    }

    /// Copies a staged panel of the tile's columns from `first` on, or adds it, in a group of its own.
    ///
    /// # Safety
    /// As [`copy_panels`](Way::copy_panels).
    #[inline(always)]
    unsafe fn copy_wide(
        &self,
        args: &GemmArgs,
        order: &Order,
        first: u32,
        panel: SmemAddr,
        add: bool,
    ) {
        let row = order.row + 64 * self.part;
        if self.thread != 0 {
            return;
        }
        if row < args.m {
            let column = order.column + first;
            let at = [column as i32, row as i32, order.group as i32];
            // SAFETY: a staged panel, and elements of D that are this tile's.
            unsafe {
                if add {
                    tma::reduce_add_3d(self.map, at, panel)
                } else {
                    tma::store_3d(self.map, at, panel)
                }
            };
        }
        bulk::commit();
    }

    /// Copies the staged panels of 64 columns. Rows and columns that D doesn't have are left out by the
    /// copy itself.
    ///
    /// # Safety
    /// All threads of the warpgroup have passed `staged!`.
    #[inline(always)]
    unsafe fn copy_panels(&self, args: &GemmArgs, order: &Order) {
        let row = order.row + 64 * self.part;
        if self.thread != 0 || row >= args.m {
            return;
        }
        let mut panel = 0;
        while panel * boxes::PANEL < order.count {
            let column = order.column + panel * boxes::PANEL;
            let at = [column as i32, row as i32, order.group as i32];
            // SAFETY: a staged panel, and elements of D that are this tile's.
            unsafe { tma::store_3d(self.map, at, self.staging.add(panel * PANEL)) };
            panel += 1;
        }
        bulk::commit();
    }
}

/// Adds to bf16, in f32, a pair of neighbouring sums at a time.
///
/// # Safety
/// As [`WayOut::store`].
#[inline(always)]
unsafe fn add_bf16(sums: &Accumulators, args: &GemmArgs, order: &Order, part: u32, thread: u32) {
    let rows = args.m.saturating_sub(order.row + 64 * part);
    let row = accumulator::row(thread, 0);
    let column = accumulator::column(thread, 0);
    let offset = order.group as u64 * args.d_group_stride
        + (order.row + 64 * part + row) as u64 * args.d_row_stride
        + (order.column + column) as u64;
    let upper = args.d + 2 * offset;
    let lower = upper + 16 * args.d_row_stride;
    let put = |at: u64, low: f32, high: f32| {
        // SAFETY: two elements of D that only this thread accesses.
        unsafe {
            let (old_low, old_high) = unpack_bf16(global::load_u32(at));
            global::store_u32(at, pack_bf16(old_low + low, old_high + high));
        }
    };
    macro_rules! columns {
        ($($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal])*) => {$(
            if 16 * $j < order.count {
                if row < rows {
                    put(upper + 32 * $j, sums.0[$d0], sums.0[$d1]);
                }
                if row + 8 < rows {
                    put(lower + 32 * $j, sums.0[$d2], sums.0[$d3]);
                }
            }
            if 16 * $j + 8 < order.count {
                if row < rows {
                    put(upper + 32 * $j + 16, sums.0[$d4], sums.0[$d5]);
                }
                if row + 8 < rows {
                    put(lower + 32 * $j + 16, sums.0[$d6], sums.0[$d7]);
                }
            }
        )*};
    }
    for_each_16_columns!(columns);
}
