//! Any architecture since Ampere: `mma.sync` of single warps, operands by `ldmatrix`.
//!
//! Warp `w` of the warpgroup takes rows `16 w` to `16 w + 15`, so that the four warps
//! together hold the sums exactly as wgmma leaves them.

use super::Engine;
use super::accumulators::Accumulators;
use super::tile::{Operand, PANEL, Tile};
use crate::layout::descriptor::Major;
use crate::layout::fragment::ldmatrix;
use crate::ptx::reg;
use crate::{load_matrix, mma_bf16, pin, warp_sync};

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
    unsafe fn multiply<A: Operand, B: Operand>(sums: &mut Accumulators, a: Tile<A>, b: Tile<B>) {
        let lane = reg::lane();
        let row = reg::thread_idx() % 128 / 32 * 16;
        let d = &mut sums.0;
        let mut k = 0;
        while k < 64 {
            let at = a.base.add(ldmatrix::a(A::MAJOR, lane, row, k, PANEL));
            macro_rules! columns {
                ($fragment:ident: $($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal])*) => {$(
                    let [b0, b1, b2, b3] = load_blocks!(B, b.base.add(ldmatrix::b(B::MAJOR, lane, 16 * $j, k, PANEL)), $j, "b");
                    mma_bf16!([d[$d0], d[$d1], d[$d2], d[$d3]], $fragment, [b0, b1], $j, "left");
                    mma_bf16!([d[$d4], d[$d5], d[$d6], d[$d7]], $fragment, [b2, b3], $j, "right");
                )*};
            }
            // SAFETY: the trait's contract; the offsets stay inside the tiles.
            unsafe {
                pin!();
                let fragment = load_blocks!(A, at, 0, "a");
                columns! { fragment:
                    0 [0 1 2 3 4 5 6 7]
                    1 [8 9 10 11 12 13 14 15]
                    2 [16 17 18 19 20 21 22 23]
                    3 [24 25 26 27 28 29 30 31]
                    4 [32 33 34 35 36 37 38 39]
                    5 [40 41 42 43 44 45 46 47]
                    6 [48 49 50 51 52 53 54 55]
                    7 [56 57 58 59 60 61 62 63]
                    8 [64 65 66 67 68 69 70 71]
                    9 [72 73 74 75 76 77 78 79]
                    10 [80 81 82 83 84 85 86 87]
                    11 [88 89 90 91 92 93 94 95]
                    12 [96 97 98 99 100 101 102 103]
                    13 [104 105 106 107 108 109 110 111]
                    14 [112 113 114 115 116 117 118 119]
                    15 [120 121 122 123 124 125 126 127]
                }
            }
            k += 16;
        }
    }

    /// The products are done when they return. But the operands were read by all lanes, and one
    /// lane lets go of the stage for the warp: its release orders the others' reads only if they
    /// come before a barrier.
    #[inline(always)]
    unsafe fn settle_previous() {
        // SAFETY: the trait's contract.
        unsafe { warp_sync!() };
    }

    /// As [`Engine::settle_previous`].
    #[inline(always)]
    unsafe fn settle(_: &mut Accumulators) {
        // SAFETY: the trait's contract.
        unsafe { warp_sync!() };
    }
}
