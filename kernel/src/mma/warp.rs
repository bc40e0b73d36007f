//! Any architecture since Ampere: `mma.sync` of single warps, operands by `ldmatrix`. No architecture ships
//! it; probes run it beside what does.
//!
//! Warp `w` of the warpgroup takes rows `16 w` to `16 w + 15`, so that the four warps
//! together hold the sums exactly as wgmma leaves them.

use super::accumulators::Accumulators;
use super::tile::{Operand, PANEL, Tile};
use super::{Chunk, Engine};
use crate::gemm::{STAGE, TILE_K};
use crate::layout::descriptor::Major;
use crate::layout::fragment::ldmatrix;
use crate::ptx::reg;
use crate::sync::ring::Consumer;
use crate::{for_each_16_columns, load_matrix, mma_bf16, pin, warp_sync};

/// mma.sync m16n8k16.
pub struct WarpMma;

/// One x4 load of 8x8 blocks, transposed where the tile is MN-major.
macro_rules! load_blocks {
    ($operand:ty, $addr:expr, $index:literal, $side:literal) => {
        match <$operand>::MAJOR {
            Major::K => load_matrix!(x4, $addr, $index, $side),
            Major::Mn => load_matrix!(x4 trans, $addr, $index, $side),
        }
    };
}

impl Engine for WarpMma {
    #[inline(always)]
    unsafe fn multiply<A: Operand, B: Operand>(
        sums: &mut Accumulators,
        chunk: Chunk,
        ring: &mut Consumer,
    ) {
        *sums = Accumulators::zero();
        let mut left = chunk.stages + (chunk.tail > 0) as u32;
        while left > 0 {
            left -= 1;
            let last = left == 0 && chunk.tail > 0;
            // SAFETY: the trait's contract; the stage has arrived. The products are done when they
            // return. But the operands were read by all lanes, and a few let go of the stage for the
            // warp: their release orders the others' reads only if they come before a barrier.
            unsafe {
                let stage = if last {
                    ring.acquire_clear()
                } else {
                    ring.acquire()
                };
                stage_products::<A, B>(
                    sums,
                    Tile::at(chunk.a.add(stage * STAGE)),
                    Tile::at(chunk.b.add(stage * STAGE)),
                    chunk.width,
                    if last { chunk.tail } else { TILE_K / 16 },
                );
                warp_sync!();
                ring.release();
            }
        }
    }
}

/// `sums += A B` over `steps` steps of 16 K of one stage.
///
/// # Safety
/// As [`Engine::multiply`], for a stage that has arrived.
#[inline(always)]
unsafe fn stage_products<A: Operand, B: Operand>(
    sums: &mut Accumulators,
    a: Tile<A>,
    b: Tile<B>,
    width: u32,
    steps: u32,
) {
    let lane = reg::lane();
    let row = reg::thread_idx() % 128 / 32 * 16;
    let d = &mut sums.0;
    let mut k = 0;
    while k < 16 * steps {
        let at = a.base.add(ldmatrix::a(A::MAJOR, lane, row, k, PANEL));
        // SAFETY: the caller's contract; the offsets stay inside the tiles.
        unsafe {
            pin!();
            let fragment = load_blocks!(A, at, 0, "a");
            let first = ldmatrix::b(B::MAJOR, lane, 0, k, PANEL);
            macro_rules! columns {
                ($($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal])*) => {$(
                    // A width that is an odd multiple of 8 multiplies 8 columns more than it has to.
                    if 16 * $j < width {
                        pin!();
                        let [b0, b1, b2, b3] = load_blocks!(B, b.base.add(ldmatrix::b_further(B::MAJOR, first, $j, PANEL)), $j, "b");
                        mma_bf16!([d[$d0], d[$d1], d[$d2], d[$d3]], fragment, [b0, b1], $j, "left");
                        mma_bf16!([d[$d4], d[$d5], d[$d6], d[$d7]], fragment, [b2, b3], $j, "right");
                    }
                )*};
            }
            for_each_16_columns!(columns);
        }
        k += 16;
    }
}
