//! Hopper: asynchronous products of a warpgroup, both operands in shared memory.

use super::accumulators::Accumulators;
use super::tile::{Operand, Tile};
use super::{Chunk, Engine};
use crate::gemm::STAGE;
use crate::layout::descriptor::{Major, advance};
use crate::ptx::reg;
use crate::sync::ring::Consumer;
use crate::{wgmma, wgmma_commit, wgmma_fence, wgmma_settled, wgmma_wait};

/// wgmma m64n`N`k16, one a step of K.
pub struct Wgmma;

/// Runs `$run!(N)` for the N that is `$width`: the instruction takes it as an immediate. An MN-major
/// side comes in whole panels, and is multiplied so.
macro_rules! with_width {
    ($side:ty, $width:expr, $run:ident) => {
        match $width {
            width if matches!(<$side>::MAJOR, Major::Mn) => match width.div_ceil(64) {
                1 => $run!(64),
                2 => $run!(128),
                _ => $run!(192),
            },
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
    const STARTS: bool = true;

    #[inline(always)]
    unsafe fn start<A: Operand, B: Operand>(
        sums: &mut Accumulators,
        chunk: Chunk,
        tail: u32,
        ring: &mut Consumer,
    ) {
        let d = &mut sums.0;
        // SAFETY: the trait's contract.
        unsafe {
            let stage = if tail == 0 {
                ring.acquire()
            } else {
                ring.acquire_clear()
            } * STAGE;
            let a = advance(Tile::<A>::at(chunk.a).descriptor(), stage);
            let b = advance(Tile::<B>::at(chunk.b).descriptor(), stage);
            macro_rules! k_step {
                ($n:tt, $i:literal, $keep:expr, $index:literal) => {
                    wgmma!(
                        $n, d, smem advance(a, $i * A::MAJOR.k_step()), advance(b, $i * B::MAJOR.k_step()), $keep,
                        A::MAJOR.transpose(), B::MAJOR.transpose(), $index
                    )
                };
            }
            macro_rules! whole {
                ($n:tt) => {{
                    wgmma_fence!($n "start_fence");
                    k_step!($n, 0, 0u32, 5);
                    k_step!($n, 1, 1u32, 6);
                    k_step!($n, 2, 1u32, 7);
                    k_step!($n, 3, 1u32, 8);
                    wgmma_commit!($n "start_commit");
                }};
            }
            macro_rules! part {
                ($n:tt) => {{
                    let (mut a, mut b, mut keep, mut left) = (a, b, reg::opaque(0), tail);
                    while left > 0 {
                        wgmma_fence!($n "part_fence");
                        wgmma!($n, d, smem a, b, keep, A::MAJOR.transpose(), B::MAJOR.transpose(), 9);
                        wgmma_commit!($n "part_commit");
                        a = advance(a, A::MAJOR.k_step());
                        b = advance(b, B::MAJOR.k_step());
                        keep = reg::opaque(1);
                        left -= 1;
                    }
                }};
            }
            if tail == 0 {
                with_width!(B, chunk.width, whole);
            } else {
                with_width!(B, chunk.width, part);
            }
        }
    }

    #[inline(always)]
    unsafe fn settle(sums: &mut Accumulators) {
        let d = &mut sums.0;
        // SAFETY: the trait's contract.
        unsafe {
            wgmma_wait!(0, "settle");
            wgmma_settled!(192, d);
        }
    }

    /// A fence in each stage, though nothing has touched the sums since the first: without it ptxas
    /// puts one in and tells so. The products of a stage are settled when the next one's have started; then it is let go.
    ///
    /// The width is decided outside of the loop: a stage's instructions must be issued while the
    /// stage before is multiplied, in some 300 clocks.
    #[inline(always)]
    unsafe fn multiply<A: Operand, B: Operand>(
        sums: &mut Accumulators,
        chunk: Chunk,
        ring: &mut Consumer,
    ) {
        let (a, b) = (
            Tile::<A>::at(chunk.a).descriptor(),
            Tile::<B>::at(chunk.b).descriptor(),
        );
        let d = &mut sums.0;
        macro_rules! k_step {
            ($n:tt, $a:ident, $b:ident, $i:literal) => {
                wgmma!(
                    $n, d, smem advance($a, $i * A::MAJOR.k_step()), advance($b, $i * B::MAJOR.k_step()), 1u32,
                    A::MAJOR.transpose(), B::MAJOR.transpose(), $i
                )
            };
        }
        macro_rules! run {
            ($n:tt) => {{
                let mut left = chunk.stages;
                while left > 0 {
                    let stage = ring.acquire();
                    let a = advance(a, stage * STAGE);
                    let b = advance(b, stage * STAGE);
                    wgmma_fence!($n "fence");
                    k_step!($n, a, b, 0);
                    k_step!($n, a, b, 1);
                    k_step!($n, a, b, 2);
                    k_step!($n, a, b, 3);
                    wgmma_commit!($n "commit");
                    wgmma_wait!(1, $n);
                    ring.release();
                    left -= 1;
                }
                let mut left = chunk.tail;
                if left > 0 {
                    let stage = ring.acquire_clear();
                    let mut a = advance(a, stage * STAGE);
                    let mut b = advance(b, stage * STAGE);
                    while left > 0 {
                        wgmma_fence!($n "tail_fence");
                        wgmma!($n, d, smem a, b, 1u32, A::MAJOR.transpose(), B::MAJOR.transpose(), 4);
                        wgmma_commit!($n "tail_commit");
                        a = advance(a, A::MAJOR.k_step());
                        b = advance(b, B::MAJOR.k_step());
                        left -= 1;
                    }
                }
            }};
        }
        // SAFETY: the trait's contract.
        unsafe {
            with_width!(B, chunk.width, run);
            wgmma_wait!(0);
            wgmma_settled!(192, d);
            if chunk.tail > 0 {
                ring.release();
            }
            ring.release();
        }
    }
}
