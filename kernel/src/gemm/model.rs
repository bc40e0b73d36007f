//! What the products of pairs of blocks should take: a prediction for full tiles, to be compared with once there is a
//! Blackwell GPU to measure on. docs/gemm.md, "What it should take", says what is left out.

use super::pair::{self, BLOCKS, TENSOR_COLUMNS};
use super::{PANEL_BYTES, SIDE, STAGE_FIXED, TILE_K};
use crate::launch::LaunchSpec;
use crate::{gate_up, mxfp8};

/// Multiplications and additions of bf16 that an SM's tensor cores do in a clock: what the data sheet says of a B200,
/// 2.25 PFLOP/s dense, for 148 SMs at 1.85 GHz.
pub const BF16_A_CLOCK: u32 = 4096;
/// The same of fp8: twice as many.
pub const FP8_A_CLOCK: u32 = 2 * BF16_A_CLOCK;
/// Bytes that an SM loads from L2 in a clock: measured on an H200 (docs/gemm.md, "What a tile of f32 gradients is made
/// of"). Of Blackwell's L2 nothing is known here.
pub const LOADED_A_CLOCK: u32 = 44;
/// Bytes that it stores there, measured likewise. Loads and stores were found to add up.
pub const STORED_A_CLOCK: u32 = 26;

/// Contraction of the tiles that are predicted, where it isn't rows: a hidden size.
pub const CONTRACTION: u32 = 7168;
/// Rows of a group, where it is.
pub const ROWS: u32 = 512;
/// Groups of the launch whose shared memory is stated.
pub const GROUPS: u32 = 128;

/// An entry's full tile, for one block of the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// The entry's launch spec.
    pub spec: &'static LaunchSpec,
    /// Both blocks' fixed side, and the wide side.
    pub tile: [u32; 2],
    /// Stages of the tile.
    pub stages: u32,
    /// Tensor-core instructions of a stage: in the machine code, those of the loop over stages.
    pub products_a_stage: u32,
    /// Clocks of a stage's products.
    pub product_clocks: u32,
    /// Bytes that the block loads for a stage.
    pub loaded: u32,
    /// Bytes of D that it stores in the end.
    pub stored: u32,
}

impl Model {
    /// Tensor-core instructions of a tile.
    pub const fn products(&self) -> u32 {
        self.stages * self.products_a_stage
    }

    /// Bytes of dynamic shared memory of a block, with [`GROUPS`] groups.
    pub const fn shared(&self) -> u32 {
        pair::shared_plan(GROUPS).bytes
    }

    /// Columns of tensor memory that a block allocates.
    pub const fn tensor_columns(&self) -> u32 {
        TENSOR_COLUMNS
    }

    /// Bytes of it: 128 lanes of four bytes a column.
    pub const fn tensor_bytes(&self) -> u32 {
        128 * 4 * self.tensor_columns()
    }

    /// Clocks in which the tensor cores do a tile.
    pub const fn busy(&self) -> u32 {
        self.stages * self.product_clocks
    }

    /// Clocks in which a tile's bytes come and go.
    pub const fn moving(&self) -> u32 {
        (self.stages * self.loaded).div_ceil(LOADED_A_CLOCK) + self.stored.div_ceil(STORED_A_CLOCK)
    }

    /// Thousandths of the time in which the tensor cores are busy, if bytes move all the time, products run
    /// whenever they can, and nothing else is waited for.
    pub const fn utilisation(&self) -> u32 {
        let (busy, moving) = (self.busy(), self.moving());
        let longer = if busy > moving { busy } else { moving };
        (busy as u64 * 1000 / longer as u64) as u32
    }
}

/// In bf16: `stored` bytes of D.
const fn bf16(spec: &'static LaunchSpec, contraction: u32, stored: u32) -> Model {
    let wide = pair::MAX_WIDTH;
    Model {
        spec,
        tile: [BLOCKS * SIDE, wide],
        stages: contraction / TILE_K,
        products_a_stage: TILE_K / 16,
        product_clocks: SIDE * wide * TILE_K / BF16_A_CLOCK,
        loaded: STAGE_FIXED + wide / BLOCKS * TILE_K * 2,
        stored,
    }
}

const fn mxfp8() -> Model {
    let (wide, k) = (mxfp8::MAX_WIDTH, 2 * TILE_K);
    let scales = (1 + wide.div_ceil(mxfp8::TILE)) * mxfp8::TILE_BYTES;
    Model {
        spec: &mxfp8::FORWARD,
        tile: [BLOCKS * SIDE, wide],
        stages: CONTRACTION / k,
        products_a_stage: k / 32,
        product_clocks: SIDE * wide * k / FP8_A_CLOCK,
        loaded: STAGE_FIXED + wide / BLOCKS * k + scales,
        stored: SIDE * wide * 2,
    }
}

/// Of every entry whose products pairs of blocks compute.
pub const fn all() -> [Model; 5] {
    let d = SIDE * pair::MAX_WIDTH * 2;
    // Whole panels of 64 rows by 64 columns.
    let panels = SIDE / 64 * (pair::MAX_WIDTH / 64) * PANEL_BYTES;
    [
        bf16(&pair::FORWARD, CONTRACTION, d),
        bf16(&pair::DGRAD, CONTRACTION, d),
        bf16(&pair::WGRAD, ROWS, panels),
        // H has half of the columns; G and U aren't kept.
        bf16(&gate_up::GATE_UP_PAIR, CONTRACTION, d / 2),
        mxfp8(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_what_the_plan_has_room_for() {
        for model in all() {
            assert!(model.loaded <= pair::STAGE, "{model:?}");
            // M by N by K of every instruction of a tile, and the tile's contraction.
            let k = if model.spec.entry.ends_with("mxfp8") {
                32
            } else {
                16
            };
            let contraction = model.products() * k;
            let wgrad = model.spec.entry == pair::WGRAD.entry;
            assert_eq!(contraction, if wgrad { ROWS } else { CONTRACTION });
            assert!((1..=1000).contains(&model.utilisation()));
        }
    }

    /// By hand: docs/gemm.md has these.
    #[test]
    fn figures_of_the_documentation() {
        let [forward, _, wgrad, _, mxfp8] = all();
        assert_eq!((forward.product_clocks, forward.loaded), (512, 32768));
        assert_eq!((mxfp8.product_clocks, mxfp8.loaded), (384, 30208));
        assert_eq!(forward.products(), 448);
        assert_eq!(mxfp8.products(), 224);
        assert_eq!(
            [forward, wgrad, mxfp8].map(|model| model.utilisation() / 10),
            [66, 48, 53]
        );
    }
}
