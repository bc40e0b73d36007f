//! The way out of a consumer warpgroup's sums.
//!
//! They go through shared memory, from where tensor copies write D while the warpgroup multiplies
//! its next tile: at 27 bytes a clock, which ordinary stores from both warpgroups were measured to
//! get through, a tile of weight gradients would keep it waiting for a third of its time. In forward
//! and dgrad rows and columns change places on the way, since the sums' fixed side is D's columns.

use core::marker::PhantomData;

use super::order::Order;
use super::panels::Panels;
use super::product::Product;
use crate::gemm::{CONSUMERS, Form, GemmArgs, Sink, boxes};
use crate::layout::fragment::stmatrix;
use crate::layout::swizzle::in_tile;
use crate::mma::accumulators::Accumulators;
use crate::mma::tile::PANEL;
use crate::ptx::cvt::pack_bf16;
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::tma::{self, TensorMapRef};
use crate::ptx::{bulk, fence, global, reg};
use crate::{for_each_16_columns, named_sync, store_matrix};

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
    /// Or [`PANELS`](crate::gemm::PANELS) panels of its own.
    pub panels: SmemAddr,
    /// An mbarrier of its own: D's old panels have arrived.
    pub old: SmemAddr,
    /// Where the thread's sums belong.
    pub sums: Spot,
    /// The warps that stage together, by the number of their named barrier from the consumers' first one on.
    pub team: u32,
    /// Their threads: the consumer's, or both consumers'.
    pub threads: u32,
}

/// Where a thread's sums belong: to its own consumer's half, or to some consumer's half where a
/// consumer's warps have sums of both.
#[derive(Clone, Copy)]
pub struct Spot {
    /// Which consumer.
    pub part: u32,
    /// The thread that has such sums where each consumer has its own half's: 0 to 127.
    pub thread: u32,
    /// That consumer's staging memory.
    pub staging: SmemAddr,
    /// Its panels.
    pub panels: SmemAddr,
}

impl Place {
    /// Whether consumers have sums of each other's halves.
    #[inline(always)]
    pub const fn is_shared(&self) -> bool {
        self.threads > 128
    }
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

    /// Waits until nothing reads the staging memory any more.
    fn finish(&self) {}
}

/// To D, as the arguments' sink says.
pub struct Linear<'a, P> {
    args: &'a GemmArgs,
    map: TensorMapRef,
    panels: Panels,
    product: PhantomData<P>,
}

impl<'a, P: Product> Linear<'a, P> {
    /// The way to the D of `args`, whose tensor map is `map`.
    pub const fn new(args: &'a GemmArgs, map: TensorMapRef) -> Linear<'a, P> {
        Linear {
            args,
            map,
            panels: Panels::START,
            product: PhantomData,
        }
    }
}

impl<P: Product> WayOut for Linear<'_, P> {
    #[inline(always)]
    unsafe fn begin(&mut self, order: &Order, place: Place) {
        if matches!(P::FORM, Form::Wgrad) && self.args.sink == Sink::AddBf16 as u32 {
            // SAFETY: the caller's contract.
            unsafe { self.panels.fetch(self.args, self.map, order, &place) };
        }
    }

    #[inline(always)]
    unsafe fn store(&mut self, sums: &Accumulators, order: &Order, place: Place) {
        let (args, map) = (self.args, self.map);
        let adds = args.sink == Sink::AddF32 as u32;
        let way = Way {
            map,
            part: place.part,
            thread: place.thread,
            staging: place.staging,
            sums: place.sums,
            team: place.team,
            threads: place.threads,
        };
        // SAFETY: the caller's contract.
        unsafe {
            match P::FORM {
                Form::Forward | Form::Dgrad => way.rows(sums, args, order),
                Form::Wgrad if adds || args.sink == Sink::F32 as u32 => {
                    self.panels.write_f32(sums, args, map, order, &place, adds);
                }
                Form::Wgrad if args.sink == Sink::AddBf16 as u32 => {
                    self.panels.add_bf16(sums, args, map, order, &place);
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
/// All threads that stage together are here. The literal numbers the place.
macro_rules! free {
    ($way:expr, $index:literal) => {{
        bulk::wait_read::<0>();
        named_sync!(BARRIER + $way.team, $way.threads, $index, "free");
    }};
}

/// Makes the staging memory visible to thread 0's copies.
///
/// # Safety
/// As [`free`].
macro_rules! staged {
    ($way:expr, $index:literal) => {{
        fence::proxy_async_shared();
        named_sync!(BARRIER + $way.team, $way.threads, $index, "staged");
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
    sums: Spot,
    team: u32,
    threads: u32,
}

impl Way {
    /// Rounded to bf16, rows and columns exchanged: the sums' 64 rows are columns of D.
    ///
    /// # Safety
    /// As [`WayOut::store`].
    #[inline(always)]
    unsafe fn rows(&self, sums: &Accumulators, args: &GemmArgs, order: &Order) {
        let (d, width) = (&sums.0, order.width());
        let line = self.sums.staging.add(stmatrix::across(self.sums.thread));
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
                    let line = stmatrix::along(self.sums.thread, $column % 64);
                    store_matrix!(
                        x4,
                        self.sums.staging.add($column / 64 * PANEL + line),
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
            panel = reg::opaque(panel + 1);
        }
        bulk::commit();
    }
}
