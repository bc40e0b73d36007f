//! Hopper: asynchronous products of a warpgroup, both operands in shared memory.

use super::Engine;
use super::accumulators::Accumulators;
use super::tile::{Operand, Tile};
use crate::layout::descriptor::advance;
use crate::{wgmma, wgmma_commit, wgmma_fence, wgmma_settled, wgmma_wait};

/// wgmma m64n256k16, four a stage.
pub struct Wgmma;

impl Engine for Wgmma {
    #[inline(always)]
    unsafe fn multiply<A: Operand, B: Operand>(sums: &mut Accumulators, a: Tile<A>, b: Tile<B>) {
        let (a, b) = (a.descriptor(), b.descriptor());
        let d = &mut sums.0;
        macro_rules! k_step {
            ($i:literal) => {
                wgmma!(
                    256, d, smem advance(a, $i * A::MAJOR.k_step()), advance(b, $i * B::MAJOR.k_step()), 1u32,
                    A::MAJOR.transpose(), B::MAJOR.transpose(), $i
                )
            };
        }
        // SAFETY: the trait's contract.
        unsafe {
            wgmma_fence!();
            k_step!(0);
            k_step!(1);
            k_step!(2);
            k_step!(3);
            wgmma_commit!();
        }
    }

    #[inline(always)]
    unsafe fn settle_previous() {
        // SAFETY: the trait's contract.
        unsafe { wgmma_wait!(1) };
    }

    #[inline(always)]
    unsafe fn settle(sums: &mut Accumulators) {
        let d = &mut sums.0;
        // SAFETY: the trait's contract.
        unsafe {
            wgmma_wait!(0);
            wgmma_settled!(256, d);
        }
    }
}
