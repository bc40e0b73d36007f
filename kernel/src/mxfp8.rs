//! The contract of MXFP8 (OCP microscaling formats, version 1.0): its scales, what quantizes to it, and
//! the product of it.
//!
//! A matrix in MXFP8 is e4m3 values, contiguous along the contraction, and an e8m0 scale for each
//! [`BLOCK`] of them: an element is `value * 2^(scale - 127)`, and NaN where the scale is [`NAN`]. The
//! scale of a block is `2^ceil(log2(amax / 448))`, 448 being the largest e4m3; where that is under 2^-127,
//! or `amax` is 0, the smallest scale; of a block with a NaN or an infinity it is NaN, and so are all values.
//!
//! **Scales lie in tiles** of [`TILE_BYTES`] for [`TILE`] rows by [`TILE`] elements of the contraction, as
//! `tcgen05.cp.32x128b.warpx4` brings them into tensor memory and as cuBLAS takes them. Tiles of the same rows
//! follow each other along the contraction. [`scale_offset`] is where a scale is; rows are padded to whole
//! tiles.
//!
//! | entry | computes | architectures |
//! |---|---|---|
//! | `mok_quantize` | MXFP8 along the columns of a bf16 matrix, along its rows (transposed, so that rows are contiguous), or both from one read | all |
//! | `mok_dequantize` | bf16 from MXFP8, for tensor cores that have no block scaling | all |
//! | `mok_gemm_forward_mxfp8` | `D[r, n] = sum_k A[r, k] B[g, n, k]`, D in bf16 | where [pairs](crate::gemm::pair) of blocks multiply |
//!
//! The product's tiles, stages and warps are those of bf16 ([`pair`]): a stage has as many bytes of K, so
//! twice the elements. What differs is here and in `role::pair::elements`.

use bytemuck::{Pod, Zeroable};

use crate::arch::Arch;
use crate::gemm::pair::{self, BLOCKS, BUFFER};
use crate::gemm::{GemmArgs, STAGE_FIXED, TILE_K};
use crate::launch::{LaunchSpec, Param};

/// Elements that share a scale.
pub const BLOCK: u32 = 32;
/// Rows, and elements of the contraction, whose scales lie together. Sizes are multiples of it.
pub const TILE: u32 = 128;
/// Bytes of their scales.
pub const TILE_BYTES: u32 = TILE * TILE / BLOCK;
/// The scale that is no number.
pub const NAN: u32 = 255;

/// Byte offset of the scale of row `row` and element `k`, in a matrix whose tiles of one row band are
/// `band` bytes from the next band's ([`band_bytes`] if packed).
pub const fn scale_offset(row: u64, k: u64, band: u64) -> u64 {
    let tile = TILE as u64;
    let (row_in, k_in) = (row % tile, k % tile);
    row / tile * band
        + k / tile * TILE_BYTES as u64
        + row_in % 32 * 16
        + row_in / 32 * 4
        + k_in / BLOCK as u64
}

/// Bytes of the scales of [`TILE`] rows with `k` elements each.
pub const fn band_bytes(k: u64) -> u64 {
    k / TILE as u64 * TILE_BYTES as u64
}

/// The scale of a block of bf16, by the largest of their bits without signs.
///
/// `amax / 448` is `1.m / 1.75 * 2^(e - 8)`: over a power of two, which the scale is rounded up to, where the
/// seven bits of m are over those of 0.75.
pub const fn scale(most: u32) -> u32 {
    const INFINITY: u32 = 0x7f80;
    if most >= INFINITY {
        return NAN;
    }
    ((most + 31) >> 7).saturating_sub(8)
}

/// Bits of the f32 that values of a block are multiplied by before they are rounded to e4m3: `2^(127 - scale)`,
/// or NaN.
pub const fn factor(scale: u32) -> u32 {
    if scale == NAN {
        f32::NAN.to_bits()
    } else {
        (254 - scale) << 23
    }
}

/// Bits of the f32 that values of a block are multiplied by to be what they stand for: `2^(scale - 127)`, or NaN.
pub const fn power(scale: u32) -> u32 {
    match scale {
        NAN => f32::NAN.to_bits(),
        // Subnormal.
        0 => 1 << 22,
        _ => scale << 23,
    }
}

/// Where a matrix in MXFP8 stands, or one for each group.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct QuantizedArgs {
    /// Device address of the values, 16-byte aligned like all strides; 0 for a result that isn't wanted.
    pub values: u64,
    /// Bytes from one row of values to the next.
    pub row_stride: u64,
    /// Bytes from one group's values to the next.
    pub group_stride: u64,
    /// Device address of the scales.
    pub scales: u64,
    /// Bytes from [`TILE`] rows' scales to the next ones'.
    pub scale_band_stride: u64,
    /// Bytes from one group's scales to the next.
    pub scale_group_stride: u64,
}

/// Arguments of `mok_quantize`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct QuantizeArgs {
    /// Device address of bf16 `[groups][rows][columns]`, 16-byte aligned like the strides.
    pub from: u64,
    /// Elements from one row to the next.
    pub row_stride: u64,
    /// Elements from one group to the next.
    pub group_stride: u64,
    /// In blocks of columns: values `[rows][columns]`. Rows past the last count as zeros in the scales.
    pub along_columns: QuantizedArgs,
    /// In blocks of rows, transposed: values `[columns][rows]`; `rows` is then a multiple of [`TILE`].
    pub along_rows: QuantizedArgs,
    /// Matrices; there are fewer than 2^32 tiles of [`TILE`] by [`TILE`] in all.
    pub groups: u32,
    /// Rows of each.
    pub rows: u32,
    /// Columns, a multiple of [`TILE`].
    pub columns: u32,
    /// Unused.
    pub padding: u32,
}

/// Arguments of `mok_dequantize`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct DequantizeArgs {
    /// `[groups][rows][columns]`, in blocks of columns.
    pub from: QuantizedArgs,
    /// Device address of bf16 `[groups][rows][columns]`, packed, 16-byte aligned.
    pub to: u64,
    /// Matrices; they have fewer than 2^32 rows in all.
    pub groups: u32,
    /// Rows of each.
    pub rows: u32,
    /// Columns, a multiple of [`TILE`].
    pub columns: u32,
    /// Unused.
    pub padding: u32,
}

/// Threads of a block that quantizes.
pub const QUANTIZE_THREADS: u32 = 256;
/// Bytes of shared memory that it needs to quantize along rows: a tile of bf16, and scales.
pub const QUANTIZE_SHARED: u32 = TILE * TILE * 2 + TILE_BYTES;

/// `mok_quantize`, on any grid.
pub static QUANTIZE: LaunchSpec = LaunchSpec {
    entry: "mok_quantize",
    threads: QUANTIZE_THREADS,
    min_blocks: 1,
    cluster: 1,
    params: &[Param::Bytes(size_of::<QuantizeArgs>() as u32)],
    max_shared: QUANTIZE_SHARED,
};

/// `mok_dequantize`, on any grid.
pub static DEQUANTIZE: LaunchSpec = LaunchSpec {
    entry: "mok_dequantize",
    params: &[Param::Bytes(size_of::<DequantizeArgs>() as u32)],
    max_shared: 0,
    ..QUANTIZE
};

/// Tiles of a product start at multiples of so many rows of their group. Scales of a product's columns are
/// read from any column of tensor memory on, so 32 rows would do by the ISA; starts at even columns are what
/// is known to be used on hardware (CUTLASS, tiles of 64 and 192). A coarser cut costs nothing: only the last tile
/// of a group is ragged either way.
pub const CUT: u32 = 64;
/// The most of a tile's wide side. Two accumulators of 256 columns would be all of tensor memory; of 192 they
/// leave 64 columns each for scales. 224 would leave 32, but isn't a multiple of the cut, and at most 256 rows of
/// scales, two tiles, cover 192 rows from a cut on.
pub const MAX_WIDTH: u32 = 192;
/// Tiles of scales that a tile's wide side has at most.
pub const WIDE_TILES: u32 = (TILE - CUT + MAX_WIDTH).div_ceil(TILE);
/// Columns of tensor memory that a tile of scales takes.
pub const SCALE_COLUMNS: u32 = TILE / 32;
/// Columns of one stage's scales: those of the wide side, those of the fixed side, rounded up.
pub const SLOT: u32 = ((WIDE_TILES + 1) * SCALE_COLUMNS).next_power_of_two();
/// Stages whose scales are in tensor memory at a time, behind the accumulator that they are for: while one's
/// are multiplied by, the next ones' are copied.
pub const SLOTS: u32 = (BUFFER - MAX_WIDTH) / SLOT;
const _: () = assert!(SLOTS >= 2 && SLOTS.is_power_of_two());

/// Where a stage's scales stand behind its wide side: the fixed side's tile, then the wide side's.
pub const STAGE_SCALES: u32 = MAX_WIDTH / BLOCKS * TILE_K * 2;
const _: () = assert!(
    STAGE_FIXED + STAGE_SCALES + (1 + WIDE_TILES) * TILE_BYTES <= pair::STAGE
        && STAGE_SCALES.is_multiple_of(128)
);

/// Tiles of scales that `count` rows from row `wide` of a group on have.
pub const fn wide_tiles(wide: u32, count: u32) -> u32 {
    (wide % TILE + count).div_ceil(TILE)
}

/// The box of scales that is loaded, in words: `(words of a tile, tiles along K, bands of rows, groups)`.
pub const SCALES_BOX: [u32; 4] = [TILE_BYTES / 4, 1, 1, 1];

/// `mok_gemm_forward_mxfp8`: A in all of its [boxes](crate::gemm::boxes::ROWS), B and D as in bf16, two e4m3 in
/// the place of one bf16; scales of A and of B in [`SCALES_BOX`].
pub static FORWARD: LaunchSpec = pair::of(&LaunchSpec {
    entry: "mok_gemm_forward_mxfp8",
    params: &[
        Param::TensorMap,
        Param::TensorMap,
        Param::TensorMap,
        Param::TensorMap,
        Param::TensorMap,
        Param::TensorMap,
        Param::TensorMap,
        Param::Bytes(size_of::<GemmArgs>() as u32),
    ],
    ..crate::gemm::FORWARD
});

/// Launch spec of the product, where there is one.
pub const fn forward(arch: Arch) -> Option<&'static LaunchSpec> {
    if arch.pairs() { Some(&FORWARD) } else { None }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    /// By definition, in f64, for every bf16 that can be the largest of a block.
    #[test]
    fn scales_are_the_least_power_of_two_that_fits() {
        for most in 0..0x7f80u32 {
            let amax = f64::from(f32::from_bits(most << 16));
            let at = |scale: u32| 2f64.powi(scale as i32 - 127);
            let scale = scale(most);
            assert!(amax <= 448.0 * at(scale), "{most:#x}: {scale}");
            assert!(
                scale == 0 || amax > 448.0 * at(scale - 1),
                "{most:#x}: {scale}"
            );
            assert!(scale < NAN);
            assert_eq!(f64::from(f32::from_bits(factor(scale))), 1.0 / at(scale));
            assert_eq!(f64::from(f32::from_bits(power(scale))), at(scale));
        }
        for most in 0x7f80..0x8000 {
            assert_eq!(scale(most), NAN);
        }
        assert!(
            [factor(NAN), power(NAN)]
                .map(f32::from_bits)
                .iter()
                .all(|f| f.is_nan())
        );
    }

    #[test]
    fn every_scale_has_its_byte() {
        let (rows, k) = (2 * u64::from(TILE), 3 * u64::from(TILE));
        let mut seen = std::vec![false; (2 * band_bytes(k)) as usize];
        for row in 0..rows {
            for block in 0..k / 32 {
                let at = scale_offset(row, 32 * block, band_bytes(k)) as usize;
                assert!(!core::mem::replace(&mut seen[at], true));
                assert_eq!(scale_offset(row, 32 * block + 31, band_bytes(k)), at as u64);
            }
        }
        assert!(seen.iter().all(|&seen| seen));
        // As tensor memory wants it: a row's four in a word, rows 32 apart in neighbouring words.
        assert_eq!(scale_offset(0, 96, 0), 3);
        assert_eq!(scale_offset(32, 0, 0), 4);
        assert_eq!(scale_offset(1, 0, 0), 16);
    }
}
