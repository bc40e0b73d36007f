//! What a pair's operands are made of: how tiles are cut, what comes beside the operands, and how a stage
//! is multiplied.

use crate::gemm::pair::BLOCKS;
use crate::gemm::{SIDE, TILE_K};
use crate::layout::descriptor::advance;
use crate::layout::tcgen05::{instruction_mxfp8, of_step, operand, scales};
use crate::mma::sm100::{shape, stage_products};
use crate::mma::tile::{Operand, PANEL};
use crate::mxfp8::{
    MAX_WIDTH, SCALE_COLUMNS, SLOT, SLOTS, STAGE_SCALES, TILE, TILE_BYTES, WIDE_TILES, wide_tiles,
};
use crate::ptx::reg;
use crate::ptx::shared::{ClusterAddr, SmemAddr};
use crate::ptx::tcgen05::{copy_scales_pair, mma_pair_scaled};
use crate::ptx::tma::{self, TensorMapRef};
use crate::role::product::Product;
use crate::schedule::grouped::{ByPair, ByPairMxfp8, Tile, Tiling};

/// A stage that has arrived in both blocks.
#[derive(Clone, Copy)]
pub struct Stage {
    /// Its fixed side.
    pub fixed: SmemAddr,
    /// Its wide side.
    pub wide: SmemAddr,
    /// Which one of its tile.
    pub step: u32,
    /// Steps of 16 of the schedule's K in it.
    pub steps: u32,
}

/// The elements of both operands.
pub trait Elements {
    /// How tiles are cut.
    type Tiling: Tiling;
    /// Elements in two bytes: what the schedule, and tensor maps, count as one of K.
    const IN_TWO_BYTES: u32;
    /// Tensor maps of what comes beside the operands.
    type Beside: Copy;

    /// Fetches those maps.
    ///
    /// # Safety
    /// They are valid.
    unsafe fn prefetch(maps: Self::Beside);

    /// Bytes that come beside a block's operands, in each stage of a tile.
    fn bytes(tile: &Tile) -> u32;

    /// Loads them, for a block whose part of the fixed side starts at `fixed`.
    ///
    /// # Safety
    /// As [`Product::load`], for the stage whose wide side is at `wide`.
    unsafe fn load(
        maps: Self::Beside,
        tile: &Tile,
        fixed: u32,
        step: u32,
        wide: SmemAddr,
        to: ClusterAddr,
    );

    /// Instruction descriptor of products of this width.
    fn shape<P: Product>(width: u32) -> u32;

    /// Issues the products of one stage of a tile, whose sums stand at column `sums` of tensor memory; the first
    /// stage's drop what was there.
    ///
    /// # Safety
    /// One thread of the leader calls it; the buffer of tensor memory that begins at `sums` is its own.
    unsafe fn multiply<P: Product>(sums: u32, tile: &Tile, shape: u32, stage: Stage);
}

/// bf16, and nothing beside.
pub struct Bf16;

impl Elements for Bf16 {
    type Tiling = ByPair;
    const IN_TWO_BYTES: u32 = 1;
    type Beside = ();

    #[inline(always)]
    unsafe fn prefetch((): ()) {}

    #[inline(always)]
    fn bytes(_: &Tile) -> u32 {
        0
    }

    #[inline(always)]
    unsafe fn load((): (), _: &Tile, _: u32, _: u32, _: SmemAddr, _: ClusterAddr) {}

    #[inline(always)]
    fn shape<P: Product>(width: u32) -> u32 {
        shape::<P::Fixed, P::Wide>(width)
    }

    #[inline(always)]
    unsafe fn multiply<P: Product>(sums: u32, _: &Tile, shape: u32, stage: Stage) {
        let operands = (stage.fixed, stage.wide);
        let keep = (stage.step > 0) as u32;
        // SAFETY: the caller's contract.
        unsafe { stage_products::<P::Fixed, P::Wide>(sums, operands, shape, stage.steps, keep) };
    }
}

/// Maps of the scales of the wide side's matrix, and of the fixed side's.
#[derive(Clone, Copy)]
pub struct Scales {
    /// Of rows: `(words, tiles along K, bands of rows, 1)`.
    pub wide: TensorMapRef,
    /// Of weights: `(words, tiles along K, bands of rows, groups)`.
    pub fixed: TensorMapRef,
}

/// e4m3, and scales of blocks of 32.
///
/// A block multiplies its own rows of the fixed side, so it has the scales of those; but all columns of the
/// tile, so it has the scales of all of them, also of those that the other block loads.
pub struct Mxfp8;

/// Where a stage has the scales of the wide side, from the fixed side's on.
const WIDE: u32 = TILE_BYTES;

impl Elements for Mxfp8 {
    type Tiling = ByPairMxfp8;
    const IN_TWO_BYTES: u32 = 2;
    type Beside = Scales;

    #[inline(always)]
    unsafe fn prefetch(maps: Scales) {
        // SAFETY: the caller's contract.
        unsafe {
            tma::prefetch(maps.wide);
            tma::prefetch(maps.fixed);
        }
    }

    #[inline(always)]
    fn bytes(tile: &Tile) -> u32 {
        (1 + wide_tiles(tile.wide, tile.count)) * TILE_BYTES
    }

    #[inline(always)]
    unsafe fn load(
        maps: Scales,
        tile: &Tile,
        fixed: u32,
        step: u32,
        wide: SmemAddr,
        to: ClusterAddr,
    ) {
        let scales = wide.add(STAGE_SCALES);
        let step = step as i32;
        // SAFETY: the caller's contract. Past the weights, zeros are loaded.
        unsafe {
            let at = [0, step, (fixed / TILE) as i32, tile.group as i32];
            tma::load_pair_4d(scales, maps.fixed, at, to);
            let first = (tile.row_start + tile.wide) / TILE;
            let mut band = 0;
            while band < wide_tiles(tile.wide, tile.count) {
                let at = [0, step, (first + band) as i32, 0];
                tma::load_pair_4d(scales.add(WIDE + band * TILE_BYTES), maps.wide, at, to);
                band = reg::opaque(band + 1);
            }
        }
    }

    #[inline(always)]
    fn shape<P: Product>(width: u32) -> u32 {
        instruction_mxfp8(BLOCKS * SIDE, width)
    }

    #[inline(always)]
    unsafe fn multiply<P: Product>(sums: u32, tile: &Tile, shape: u32, stage: Stage) {
        const {
            // Transposed bytes have steps and descriptors of their own.
            assert!(matches!(
                P::Fixed::MAJOR,
                crate::layout::descriptor::Major::K
            ));
            assert!(matches!(
                P::Wide::MAJOR,
                crate::layout::descriptor::Major::K
            ));
        }
        let slot = sums + MAX_WIDTH + stage.step % SLOTS * SLOT;
        let of_fixed = slot + WIDE_TILES * SCALE_COLUMNS;
        let of_wide = slot + tile.wide % TILE / 32;
        let from = stage.wide.add(STAGE_SCALES);
        let a = operand(P::Fixed::MAJOR, stage.fixed.0, PANEL);
        let b = operand(P::Wide::MAJOR, stage.wide.0, PANEL);
        let keep = (stage.step > 0) as u32;
        macro_rules! steps {
            ($($i:literal)*) => {$(
                let operands = (advance(a, 32 * $i), advance(b, 32 * $i));
                let keep = if $i == 0 { keep } else { 1 };
                let scales = (of_fixed, of_wide);
                // SAFETY: the caller's contract; the scales were copied before.
                unsafe { mma_pair_scaled(sums, operands, of_step(shape, $i), scales, keep) };
            )*};
        }
        // SAFETY: the caller's contract; the slot is behind the sums, in their buffer. Products that read what
        // it held were issued before.
        unsafe {
            copy_scales_pair(of_fixed, scales(from.0));
            copy_scales_pair(slot, scales(from.0 + WIDE));
            if wide_tiles(tile.wide, tile.count) > 1 {
                copy_scales_pair(slot + SCALE_COLUMNS, scales(from.0 + WIDE + TILE_BYTES));
            }
        }
        steps!(0 1 2 3);
        const _: () = assert!(TILE_K * 2 == 4 * 32 && WIDE_TILES == 2);
    }
}
