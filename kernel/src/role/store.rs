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
use crate::gemm::{CONSUMERS, Form, GemmArgs, MAX_WIDTH, PANELS, STAGING, SharedPlan, Sink};
use crate::layout::fragment::stmatrix;
use crate::layout::swizzle::in_tile;
use crate::mma::accumulators::Accumulators;
use crate::ptx::cvt::pack_bf16;
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::tma::{self, TensorMapRef};
use crate::ptx::{bulk, fence, global, reg};
use crate::{for_each_16_columns, named_sync, store_matrix};

/// The named barrier of consumer 0, and the next one's of the next; 0 is the block's.
pub(crate) const BARRIER: u32 = 1;
const _: () = assert!(BARRIER + CONSUMERS <= 16);

/// A consumer warpgroup's half of a tile on its way out.
#[derive(Clone, Copy)]
pub struct Place {
    /// Which consumer.
    pub part: u32,
    /// Its thread, 0 to 127.
    pub thread: u32,
    /// [`STAGING`] bytes of its own.
    pub staging: SmemAddr,
    /// Where the thread's sums belong.
    pub sums: Spot,
    /// The warps that stage together, by the number of their named barrier from the consumers' first one on.
    pub team: u32,
    /// Their threads: the consumer's, or both consumers'.
    pub threads: u32,
    /// Columns that there are sums of at most.
    pub most: u32,
}

impl Place {
    /// Whether the thread is the one of its team that speaks for it.
    #[inline(always)]
    pub fn speaks(&self) -> bool {
        self.thread == 0 && self.part == self.team
    }

    /// Of consumer `part`, whose threads have the sums of its own half.
    #[inline(always)]
    pub fn of_consumer(part: u32, base: SmemAddr, plan: &SharedPlan) -> Place {
        let thread = reg::anew(reg::thread_idx()) % 128;
        let staging = base.add(plan.staging + part * STAGING);
        Place {
            part,
            thread,
            staging,
            sums: Spot {
                part,
                thread,
                staging,
                open: base.add(plan.open + 8 * PANELS * part),
                ready: base.add(plan.ready + 8 * PANELS * part),
            },
            team: part,
            threads: 128,
            most: MAX_WIDTH,
        }
    }
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
    /// An mbarrier for each of the [`PANELS`] there, for wgrad: the panel may be filled.
    pub open: SmemAddr,
    /// As many: it has been.
    pub ready: SmemAddr,
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
    unsafe fn store(&mut self, sums: &Accumulators, order: &Order, place: Place) {
        let (args, sink) = (self.args, self.args.sink);
        // SAFETY: the caller's contract.
        unsafe {
            match P::FORM {
                Form::Forward | Form::Dgrad => rows(sums, args, self.map, order, &place),
                Form::Wgrad if sink == Sink::F32 as u32 => {
                    self.panels.f32(sums, order, &place);
                }
                Form::Wgrad if sink == Sink::AddF32 as u32 => {
                    self.panels.add_f32(sums, order, &place);
                }
                Form::Wgrad if sink == Sink::AddBf16 as u32 => {
                    self.panels.add_bf16(sums, order, &place);
                }
                Form::Wgrad => self.panels.bf16(sums, order, &place),
            }
        }
    }

    #[inline(always)]
    fn finish(&self) {
        // wgrad's copies are the carrier's.
        if !matches!(P::FORM, Form::Wgrad) {
            bulk::wait::<0>();
        }
    }
}

/// Rounds sums to bf16 and stages each 16 columns of them, rows and columns exchanged.
macro_rules! stage_bf16 {
    ($line:ident $d:ident $width:ident; $($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal])*) => {$(
        if 16 * $j < $width {
            store_matrix!(x4 trans, $line.add(16 * $j * 128), [
                pack_bf16($d[$d0], $d[$d1]), pack_bf16($d[$d2], $d[$d3]),
                pack_bf16($d[$d4], $d[$d5]), pack_bf16($d[$d6], $d[$d7]),
            ], $j);
        }
    )*};
}

/// Rounded to bf16, rows and columns exchanged: the sums' 64 rows are columns of D.
///
/// # Safety
/// As [`WayOut::store`]; `map` is D's.
#[inline(always)]
unsafe fn rows(
    sums: &Accumulators,
    args: &GemmArgs,
    map: TensorMapRef,
    order: &Order,
    place: &Place,
) {
    let (d, width) = (&sums.0, order.width());
    let line = place.sums.staging.add(stmatrix::across(place.sums.thread));
    // SAFETY: every thread that stages is here; the lines lie in the staging memory.
    unsafe {
        bulk::wait_read::<0>();
        named_sync!(BARRIER + place.team, place.threads, 0, "free");
        for_each_16_columns!(lower stage_bf16 line d width;);
        for_each_16_columns!(upper stage_bf16 line d width;);
        fence::proxy_async_shared();
        named_sync!(BARRIER + place.team, place.threads, 0, "staged");
    }
    let column = order.column + 64 * place.part;
    if column >= args.n {
        return;
    }
    let whole = order.count / 8;
    if reg::anew(place.thread) == 0 {
        let mut band = 0;
        while band < whole {
            let at = [column as i32, (order.row + 8 * band) as i32];
            // SAFETY: eight staged lines, and rows of D that are this tile's.
            unsafe { tma::store_2d(map, at, place.staging.add(band * 8 * 128)) };
            band += 1;
        }
        bulk::commit();
    }
    // A box would write the rows of the next tile or group besides a group's last ones.
    let (chunk, row) = (place.thread % 8, 8 * whole + place.thread / 8);
    if row < order.count && 8 * chunk < args.n - column {
        let offset = (order.row + row) as u64 * args.d_row_stride + (column + 8 * chunk) as u64;
        // SAFETY: a staged line, and a row of D that is this tile's.
        unsafe {
            let words = shared::load_v4(place.staging.add(in_tile(row, 16 * chunk)));
            global::store_v4(args.d + 2 * offset, words);
        }
    }
}
