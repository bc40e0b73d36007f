//! The way out of a consumer warpgroup's sums.
//!
//! Fresh bf16 goes through shared memory, so that whole lines of D are written at once and, in
//! forward and dgrad, rows and columns change places: there the sums' fixed side is D's columns.
//! Other sinks (wgrad) go straight from registers, 32 bytes of a row at a time.

use super::order::Order;
use super::product::Product;
use crate::gemm::{CONSUMERS, Form, GemmArgs, Sink};
use crate::layout::fragment::{accumulator, stmatrix};
use crate::layout::swizzle::in_tile;
use crate::mma::accumulators::Accumulators;
use crate::mma::tile::PANEL;
use crate::ptx::cvt::{pack_bf16, unpack_bf16};
use crate::ptx::global;
use crate::ptx::shared::{self, SmemAddr};
use crate::{for_each_16_columns, named_sync, store_matrix};

/// The named barrier of consumer 0, and the next one's of the next; 0 is the block's.
const BARRIER: u32 = 1;
const _: () = assert!(BARRIER + CONSUMERS <= 16);

/// Where a warpgroup's half of a tile goes: rows and columns of D.
#[derive(Clone, Copy)]
struct Target {
    /// Device address of D's element in the tile's first row and column.
    address: u64,
    /// Bytes from one row of D to the next.
    row_bytes: u64,
    /// Rows of the tile that exist; may be more than the tile has, or 0.
    rows: u32,
    /// Columns of the tile that exist, a multiple of 8; may be more than the tile has, or 0.
    columns: u32,
}

/// Writes the half tile of consumer `part` to D.
///
/// # Safety
/// The 128 threads of the warpgroup call it with settled sums; `staging` is
/// [`STAGING`](crate::gemm::STAGING) bytes of its own; the tile's existing elements are D's,
/// aligned to 16 bytes, and accessed by this warpgroup only.
#[inline(always)]
pub unsafe fn store<P: Product>(
    sums: &Accumulators,
    args: &GemmArgs,
    order: &Order,
    part: u32,
    thread: u32,
    staging: SmemAddr,
) {
    let left = order.left.saturating_sub(64 * part);
    let half = 64 * part as u64;
    let row_bytes = |size| args.d_row_stride * size;
    // SAFETY: the caller's contract.
    unsafe {
        match P::FORM {
            Form::Forward | Form::Dgrad => {
                let target = Target {
                    address: args.d + 2 * (order.offset + half),
                    row_bytes: row_bytes(2),
                    rows: order.count,
                    columns: left,
                };
                store_across(sums, order.width, target, part, thread, staging);
            }
            Form::Wgrad => {
                let target = |size| Target {
                    address: args.d + size * (order.offset + half * args.d_row_stride),
                    row_bytes: row_bytes(size),
                    rows: left,
                    columns: order.count,
                };
                if args.sink == Sink::F32 as u32 {
                    store_pairs::<FreshF32>(sums, thread, target(4));
                } else if args.sink == Sink::AddF32 as u32 {
                    store_pairs::<AddF32>(sums, thread, target(4));
                } else if args.sink == Sink::AddBf16 as u32 {
                    store_pairs::<AddBf16>(sums, thread, target(2));
                } else {
                    store_along(sums, order.width, target(2), part, thread, staging);
                }
            }
        }
    }
}

/// Rounds to bf16 and stores with rows and columns exchanged: the sums' 64 rows are columns of D.
///
/// # Safety
/// As [`store`].
#[inline(always)]
unsafe fn store_across(
    sums: &Accumulators,
    width: u32,
    target: Target,
    part: u32,
    thread: u32,
    staging: SmemAddr,
) {
    let d = &sums.0;
    let line = staging.add(stmatrix::across(thread));
    // SAFETY: every thread of the warpgroup is here, at both barriers; the lines and chunks lie in
    // the staging memory. The first barrier is for its readers of the tile before.
    unsafe {
        named_sync!(BARRIER + part, 128u32);
        macro_rules! columns {
            ($($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal])*) => {$(
                if 16 * $j < width {
                    store_matrix!(x4 trans, line.add(16 * $j * 128), [
                        pack_bf16(d[$d0], d[$d1]), pack_bf16(d[$d2], d[$d3]),
                        pack_bf16(d[$d4], d[$d5]), pack_bf16(d[$d6], d[$d7]),
                    ], $j);
                }
            )*};
        }
        for_each_16_columns!(columns);
        named_sync!(BARRIER + part, 128u32);
        copy_out(target, thread, staging);
    }
}

/// Rounds to bf16 and stores as the sums lie.
///
/// # Safety
/// As [`store`].
#[inline(always)]
unsafe fn store_along(
    sums: &Accumulators,
    width: u32,
    target: Target,
    part: u32,
    thread: u32,
    staging: SmemAddr,
) {
    let d = &sums.0;
    // SAFETY: as in `store_across`; a panel of 64 columns is 64 lines.
    unsafe {
        named_sync!(BARRIER + part, 128u32);
        macro_rules! columns {
            ($($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal])*) => {$(
                if 16 * $j < width {
                    let line = staging.add(16 * $j / 64 * PANEL + stmatrix::along(thread, 16 * $j % 64));
                    store_matrix!(x4, line, [
                        pack_bf16(d[$d0], d[$d1]), pack_bf16(d[$d2], d[$d3]),
                        pack_bf16(d[$d4], d[$d5]), pack_bf16(d[$d6], d[$d7]),
                    ], $j);
                }
            )*};
        }
        for_each_16_columns!(columns);
        named_sync!(BARRIER + part, 128u32);
        let mut panel = 0;
        while panel < width {
            let of_panel = Target {
                address: target.address + 2 * panel as u64,
                rows: if target.rows < 64 { target.rows } else { 64 },
                columns: target.columns - panel,
                ..target
            };
            copy_out(of_panel, thread, staging.add(panel / 64 * PANEL));
            panel += 64;
        }
    }
}

/// Copies swizzled lines of 64 bf16 to rows of D, eight threads a row.
///
/// # Safety
/// Every thread of the warpgroup calls it once the lines are there; the target's rows and columns
/// are its own.
#[inline(always)]
unsafe fn copy_out(target: Target, thread: u32, staging: SmemAddr) {
    let chunk = thread % 8;
    if 8 * chunk >= target.columns {
        return;
    }
    let mut row = thread / 8;
    // Rows are 16 apart, so a thread's chunk is swizzled alike in all of them.
    let mut from = staging.add(in_tile(row, 16 * chunk));
    let mut to = target.address + row as u64 * target.row_bytes + 16 * chunk as u64;
    while row < target.rows {
        // Four at a time, so that one wait covers their loads. The staging memory has a multiple of
        // 64 lines; those past the tile are loaded and not stored.
        macro_rules! four {
            ($($i:literal $words:ident)*) => {
                // SAFETY: the caller's contract.
                unsafe {
                    $(let $words = shared::load_v4(from.add($i * 16 * 128));)*
                    $(if row + 16 * $i < target.rows {
                        global::store_v4(to + $i * 16 * target.row_bytes, $words);
                    })*
                }
            };
        }
        four!(0 a 1 b 2 c 3 d);
        row += 64;
        from = from.add(64 * 128);
        to += 64 * target.row_bytes;
    }
}

/// One pair of neighbouring sums on its way to D.
trait Pair {
    const SIZE: u64;
    /// # Safety
    /// `at` addresses two elements of D, aligned to both, that only this thread accesses.
    unsafe fn put(at: u64, low: f32, high: f32);
}

struct FreshF32;
struct AddF32;
struct AddBf16;

impl Pair for FreshF32 {
    const SIZE: u64 = 4;
    #[inline(always)]
    unsafe fn put(at: u64, low: f32, high: f32) {
        // SAFETY: the trait's contract.
        unsafe { global::store_2f32(at, low, high) };
    }
}

impl Pair for AddF32 {
    const SIZE: u64 = 4;
    #[inline(always)]
    unsafe fn put(at: u64, low: f32, high: f32) {
        // SAFETY: the trait's contract.
        unsafe {
            let (old_low, old_high) = global::load_2f32(at);
            global::store_2f32(at, old_low + low, old_high + high);
        }
    }
}

impl Pair for AddBf16 {
    const SIZE: u64 = 2;
    #[inline(always)]
    unsafe fn put(at: u64, low: f32, high: f32) {
        // SAFETY: the trait's contract.
        unsafe {
            let (old_low, old_high) = unpack_bf16(global::load_u32(at));
            global::store_u32(at, pack_bf16(old_low + low, old_high + high));
        }
    }
}

/// Stores each pair of sums on its own.
///
/// # Safety
/// As [`store`].
#[inline(always)]
unsafe fn store_pairs<P: Pair>(sums: &Accumulators, thread: u32, target: Target) {
    let row = accumulator::row(thread, 0);
    let column = accumulator::column(thread, 0);
    let upper = target.address + row as u64 * target.row_bytes + column as u64 * P::SIZE;
    let lower = upper + 8 * target.row_bytes;
    let (has_upper, has_lower) = (row < target.rows, row + 8 < target.rows);
    macro_rules! columns {
        ($($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal])*) => {$(
            let at = 16 * $j * P::SIZE;
            // SAFETY: the rows and columns exist.
            unsafe {
                if 16 * $j < target.columns {
                    if has_upper {
                        P::put(upper + at, sums.0[$d0], sums.0[$d1]);
                    }
                    if has_lower {
                        P::put(lower + at, sums.0[$d2], sums.0[$d3]);
                    }
                }
                if 16 * $j + 8 < target.columns {
                    if has_upper {
                        P::put(upper + at + 8 * P::SIZE, sums.0[$d4], sums.0[$d5]);
                    }
                    if has_lower {
                        P::put(lower + at + 8 * P::SIZE, sums.0[$d6], sums.0[$d7]);
                    }
                }
            }
        )*};
    }
    for_each_16_columns!(columns);
}
