//! Blackwell: products of pairs of blocks, sums in tensor memory.
//!
//! No [`Engine`](super::Engine): one thread of two blocks multiplies, where on other architectures each
//! consumer warpgroup does. What is around it is in [`role::pair`](crate::role::pair) and
//! [`entry::pair`](crate::entry::pair).
//!
//! Products of a tile are summed by the tensor cores alone, 7,168 terms or 262,000. On Hopper that
//! drifts, since its tensor cores truncate partial sums; whether Blackwell's do can't be measured here,
//! where there is none. Sums of 512 terms each could be had by a buffer for each and additions in the
//! consumers, at the price of bringing out 14 times as many.

use core::marker::PhantomData;

use super::accumulators::Accumulators;
use super::tile::{Operand, PANEL};
use crate::gemm::pair::BLOCKS;
use crate::gemm::{SIDE, TILE_K};
use crate::layout::descriptor::advance;
use crate::layout::fragment::tensor;
use crate::layout::tcgen05::{instruction, operand};
use crate::ptx::shared::SmemAddr;
use crate::ptx::tcgen05::mma_pair;
use crate::role::pair::elements::Bf16;
use crate::{for_each_32_columns, tensor_load, tensor_loaded};

/// tcgen05 m256n`N`, one a step of K of 32 bytes, of operands of these [`Elements`](crate::role::pair::elements::Elements).
pub struct Tcgen05<E = Bf16>(PhantomData<E>);

/// The product of two operands, `width` wide.
#[inline(always)]
pub const fn shape<A: Operand, B: Operand>(width: u32) -> u32 {
    instruction(BLOCKS * SIDE, width, A::MAJOR, B::MAJOR)
}

/// Issues the products of `steps` steps of 16 K of one stage, whose operands are at `a` and `b` in both
/// blocks; with `keep` 0 the first of them drops the old sums.
///
/// # Safety
/// As [`mma_pair`], for a stage that has arrived in both blocks.
#[inline(always)]
pub unsafe fn stage_products<A: Operand, B: Operand>(
    sums: u32,
    (a, b): (SmemAddr, SmemAddr),
    shape: u32,
    steps: u32,
    keep: u32,
) {
    let a = operand(A::MAJOR, a.0, PANEL);
    let b = operand(B::MAJOR, b.0, PANEL);
    macro_rules! steps {
        ($($i:literal)*) => {$(
            if $i < steps {
                let a = advance(a, $i * A::MAJOR.k_step());
                let b = advance(b, $i * B::MAJOR.k_step());
                // SAFETY: the caller's contract.
                unsafe { mma_pair(sums, a, b, shape, if $i == 0 { keep } else { 1 }) };
            }
        )*};
    }
    steps!(0 1 2 3);
    const _: () = assert!(TILE_K == 64);
}

/// Columns of a tile that a consumer has in its registers at a time.
pub const COLUMNS: u32 = 128;

/// Loads `count` columns of a tile's sums, up to [`COLUMNS`], from `address` in tensor memory on, in whole
/// steps of 32. Sums past them stay as they are.
///
/// # Safety
/// All lanes of warp `warp` (0 to 3) of consumer `consumer` call it, for allocated columns whose products
/// are done; `count` is no more than that.
#[inline(always)]
pub unsafe fn load_sums(
    sums: &mut Accumulators,
    address: u32,
    (consumer, warp): (u32, u32),
    count: u32,
) {
    // SAFETY: the caller's contract. The ways out need not be compiled for more.
    unsafe { core::hint::assert_unchecked(count <= COLUMNS) };
    let d = &mut sums.0;
    let address = address + (tensor::lane(consumer, warp) << 16);
    macro_rules! columns {
        ($($j:literal [$($i:literal)*])*) => {$(
            if 32 * $j < count {
                tensor_load!(d, address + 32 * $j, [$($i)*], $j);
            }
        )*};
    }
    // SAFETY: the caller's contract.
    unsafe {
        for_each_32_columns!(columns);
        tensor_loaded!(d);
    }
}
