//! bf16 to MXFP8: a block of threads takes 128 rows by 128 columns at a time, which are 512 bytes of scales
//! either way.
//!
//! Along columns, four lanes have the 32 elements of a scale, and a warp two rows. Along rows, the tile stands in
//! shared memory, and a thread has two neighbouring columns of 32 rows.

use crate::mxfp8::{
    QUANTIZE_THREADS, QuantizeArgs, QuantizedArgs, TILE, TILE_BYTES, factor, scale, scale_offset,
};
use crate::ptx::cvt::{pack_e4m3, unpack_bf16};
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::{global, reg};
use crate::{block_sync, shuffle_xor};

/// Bytes of a row of the tile.
const ROW: u32 = TILE * 2;
/// Lanes that have a row, eight elements each.
const LANES: u32 = TILE / 8;

/// Any grid of whole blocks.
///
/// # Safety
/// [`QUANTIZE_THREADS`] threads a block run it, with
/// [`QUANTIZE_SHARED`](crate::mxfp8::QUANTIZE_SHARED) bytes of shared memory if it quantizes along rows; `args`
/// describes live memory, whose results nobody else touches.
#[inline(always)]
pub unsafe fn quantize(args: &QuantizeArgs) {
    let bands = args.rows.div_ceil(TILE);
    let across = args.columns / TILE;
    // NonZero: a plain division would bring a panic into the kernel.
    let (Some(bands_of), Some(across_of)) = (
        core::num::NonZeroU32::new(bands),
        core::num::NonZeroU32::new(across),
    ) else {
        return;
    };
    let tiles = args.groups * bands * across;
    let mut number = reg::block_idx();
    while number < tiles {
        let at = At {
            group: number / across_of / bands_of,
            row: number / across_of % bands_of * TILE,
            column: number % across_of * TILE,
        };
        // SAFETY: the caller's contract; the whole block has the same tile.
        unsafe {
            lines(args, at);
            if args.along_rows.values != 0 {
                block_sync!();
                columns(&args.along_rows, at);
                block_sync!();
                scales(&args.along_rows, at);
            }
        }
        let next = number.wrapping_add(reg::grid_dim());
        number = if next < number { tiles } else { next };
    }
}

/// A tile: its group, first row and first column.
#[derive(Clone, Copy)]
struct At {
    group: u32,
    row: u32,
    column: u32,
}

/// The larger one of two bf16's bits without signs, and of what there was.
#[inline(always)]
fn most(word: u32, so_far: u32) -> u32 {
    let (low, high) = (word & 0x7fff, word >> 16 & 0x7fff);
    let larger = if low > high { low } else { high };
    if larger > so_far { larger } else { so_far }
}

/// Four bf16 times a power of two as e4m3, from the least significant byte on.
#[inline(always)]
fn four([low, high]: [u32; 2], factor: f32) -> u32 {
    let ((a, b), (c, d)) = (unpack_bf16(low), unpack_bf16(high));
    let low = pack_e4m3(a * factor, b * factor);
    let high = pack_e4m3(c * factor, d * factor);
    low as u32 | (high as u32) << 16
}

/// Where values of row `row` and column `column` of a result go.
#[inline(always)]
fn value_at(to: &QuantizedArgs, group: u32, row: u32, column: u32) -> u64 {
    to.values + group as u64 * to.group_stride + row as u64 * to.row_stride + column as u64
}

/// Where the scale of row `row` and column `column` goes.
#[inline(always)]
fn scale_at(to: &QuantizedArgs, group: u32, row: u32, column: u32) -> u64 {
    let inside = scale_offset(row as u64, column as u64, to.scale_band_stride);
    to.scales + group as u64 * to.scale_group_stride + inside
}

/// Reads the tile; quantizes along columns, if that is wanted, and stages it, if it is along rows.
///
/// # Safety
/// As [`quantize`]; all threads of the block call it, after all have read what is staged.
#[inline(always)]
unsafe fn lines(args: &QuantizeArgs, at: At) {
    let thread = reg::thread_idx();
    let (lane, line) = (thread % LANES, thread / LANES);
    let mut row = line;
    while row < TILE {
        let (real, column) = (at.row + row < args.rows, at.column + 8 * lane);
        let mut words = [0; 4];
        if real {
            let offset = at.group as u64 * args.group_stride
                + (at.row + row) as u64 * args.row_stride
                + column as u64;
            // SAFETY: eight elements of the matrix.
            words = unsafe { global::load_v4(args.from + 2 * offset) };
        }
        if args.along_rows.values != 0 {
            // SAFETY: this thread's part of the tile in shared memory.
            unsafe { shared::store_v4(staged(row).add(16 * lane), words) };
        }
        if args.along_columns.values != 0 {
            let to = &args.along_columns;
            let mut largest = most(words[0], most(words[1], most(words[2], most(words[3], 0))));
            // SAFETY: whole warps are here: a warp has two rows.
            let all = unsafe {
                let other = shuffle_xor!(largest, 1u32, "pair");
                largest = if other > largest { other } else { largest };
                let other = shuffle_xor!(largest, 2u32, "block");
                largest = if other > largest { other } else { largest };
                // The row's four scales, in each of its lanes.
                let mut all = scale(largest) << (lane / 4 * 8);
                all |= shuffle_xor!(all, 4u32, "blocks");
                all | shuffle_xor!(all, 8u32, "row")
            };
            let factor = f32::from_bits(factor(scale(largest)));
            let low = four([words[0], words[1]], factor) as u64;
            let high = four([words[2], words[3]], factor) as u64;
            // SAFETY: eight values of a row that there is, and four scales of one that there is room for.
            unsafe {
                if real {
                    let to = value_at(to, at.group, at.row + row, column);
                    global::store_u64(to, high << 32 | low);
                }
                if lane == 0 {
                    global::store_u32(scale_at(to, at.group, at.row + row, at.column), all);
                }
            }
        }
        row = reg::opaque(row + QUANTIZE_THREADS / LANES);
    }
}

/// Row `row` of the tile in shared memory.
#[inline(always)]
fn staged(row: u32) -> SmemAddr {
    shared::dynamic_base().add(row * ROW)
}

/// Scales of a tile in shared memory, behind it.
#[inline(always)]
fn staged_scales() -> SmemAddr {
    staged(TILE)
}

/// Quantizes the staged tile along its rows: a column's 32 rows are 32 bytes of a row of the result.
///
/// # Safety
/// As [`quantize`]; all threads of the block call it, when the tile is staged.
#[inline(always)]
unsafe fn columns(to: &QuantizedArgs, at: At) {
    const PAIRS: u32 = TILE / 2;
    const _: () = assert!(QUANTIZE_THREADS == PAIRS * 4 && TILE == 4 * 32);
    let (pair, block) = (reg::thread_idx() % PAIRS, reg::thread_idx() / PAIRS);
    let first = staged(32 * block).add(4 * pair);
    // SAFETY: words of the tile.
    let word = |row: u32| unsafe { shared::load_u32(first.add(row * ROW)) };
    let (mut low, mut high) = (0, 0);
    let mut row = 0;
    while row < 32 {
        let word = word(row);
        low = most(word & 0xffff, low);
        high = most(word >> 16, high);
        row = reg::opaque(row + 1);
    }
    let (low, high) = (scale(low), scale(high));
    let at_scale = |column: u32| scale_offset(column as u64, 32 * block as u64, 0) as u32;
    let scales = staged_scales();
    // SAFETY: the bytes of this thread's two blocks.
    unsafe {
        shared::store_u8(scales.add(at_scale(2 * pair)), low);
        shared::store_u8(scales.add(at_scale(2 * pair + 1)), high);
    }
    let (low, high) = (f32::from_bits(factor(low)), f32::from_bits(factor(high)));
    // Four rows of both columns.
    let quad = |row: u32| {
        let [a, b, c, d] = [word(row), word(row + 1), word(row + 2), word(row + 3)];
        let lower = |a: u32, b: u32| a & 0xffff | b << 16;
        let upper = |a: u32, b: u32| a >> 16 | b & 0xffff_0000;
        (
            four([lower(a, b), lower(c, d)], low),
            four([upper(a, b), upper(c, d)], high),
        )
    };
    let mut row = 0;
    while row < 32 {
        let [a, b, c, d] = [quad(row), quad(row + 4), quad(row + 8), quad(row + 12)];
        let column = at.row + 32 * block + row;
        let line = at.column + 2 * pair;
        // SAFETY: 16 values of two rows of the result.
        unsafe {
            global::store_v4(value_at(to, at.group, line, column), [a.0, b.0, c.0, d.0]);
            global::store_v4(
                value_at(to, at.group, line + 1, column),
                [a.1, b.1, c.1, d.1],
            );
        }
        row = reg::opaque(row + 16);
    }
}

/// Writes a tile's staged scales.
///
/// # Safety
/// As [`quantize`]; all threads of the block call it, when the scales are staged.
#[inline(always)]
unsafe fn scales(to: &QuantizedArgs, at: At) {
    let thread = reg::thread_idx();
    if thread < TILE_BYTES / 16 {
        // SAFETY: 16 bytes of the tile of scales.
        unsafe {
            let words = shared::load_v4(staged_scales().add(16 * thread));
            let tile = scale_at(to, at.group, at.column, at.row);
            global::store_v4(tile + 16 * thread as u64, words);
        }
    }
}
