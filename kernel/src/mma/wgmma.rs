//! Hopper: asynchronous products of a warpgroup, both operands in shared memory.

use super::accumulators::Accumulators;
use super::tile::{Operand, Tile};
use super::{Engine, Step};
use crate::layout::descriptor::advance;
use crate::ptx::reg;
use crate::{wgmma, wgmma_commit, wgmma_fence, wgmma_settled, wgmma_wait};

/// wgmma m64n`N`k16, one a step of K.
pub struct Wgmma;

/// Runs `$run!(N)` for the N that is `$width`: the instruction takes it as an immediate.
macro_rules! with_width {
    ($width:expr, $run:ident) => {
        match $width {
            16 => $run!(16),
            32 => $run!(32),
            48 => $run!(48),
            64 => $run!(64),
            72 => $run!(72),
            80 => $run!(80),
            88 => $run!(88),
            96 => $run!(96),
            104 => $run!(104),
            112 => $run!(112),
            120 => $run!(120),
            128 => $run!(128),
            136 => $run!(136),
            144 => $run!(144),
            152 => $run!(152),
            160 => $run!(160),
            168 => $run!(168),
            176 => $run!(176),
            184 => $run!(184),
            _ => $run!(192),
        }
    };
}

impl Engine for Wgmma {
    #[inline(always)]
    unsafe fn multiply<A: Operand, B: Operand>(
        sums: &mut Accumulators,
        a: Tile<A>,
        b: Tile<B>,
        step: Step,
    ) {
        let (a, b) = (a.descriptor(), b.descriptor());
        let d = &mut sums.0;
        let keep = !step.fresh as u32;
        macro_rules! k_step {
            ($n:tt, $i:literal, $keep:expr) => {
                wgmma!(
                    $n, d, smem advance(a, $i * A::MAJOR.k_step()), advance(b, $i * B::MAJOR.k_step()), $keep,
                    A::MAJOR.transpose(), B::MAJOR.transpose(), $i
                )
            };
        }
        macro_rules! all {
            ($n:tt) => {{
                wgmma_fence!($n "fence");
                k_step!($n, 0, keep);
                k_step!($n, 1, 1u32);
                k_step!($n, 2, 1u32);
                k_step!($n, 3, 1u32);
                wgmma_commit!($n "commit");
            }};
        }
        // SAFETY: the trait's contract.
        unsafe {
            if step.depth == 4 {
                with_width!(step.width, all);
            } else {
                let (mut a, mut b, mut keep) = (a, b, keep);
                macro_rules! one {
                    ($n:tt) => {{
                        wgmma_fence!($n "fence");
                        wgmma!($n, d, smem a, b, keep, A::MAJOR.transpose(), B::MAJOR.transpose(), 4);
                        wgmma_commit!($n "commit");
                    }};
                }
                let mut left = step.depth;
                while left > 0 {
                    with_width!(step.width, one);
                    a = advance(a, A::MAJOR.k_step());
                    b = advance(b, B::MAJOR.k_step());
                    // Known to be 1, it would have the compiler peel the first round off.
                    keep = reg::opaque(1);
                    left -= 1;
                }
            }
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
            wgmma_settled!(192, d);
        }
    }
}
