//! A consumer warpgroup: multiplies what the ring brings and writes D.

use super::product::Product;
use super::store::store;
use crate::gemm::{CHUNK, CONSUMERS, Form, GemmArgs, STAGE_FIXED, STAGE_WIDE, SharedPlan, TILE_K};
use crate::mma::accumulators::Accumulators;
use crate::mma::tile::{PANEL, Tile as SmemTile};
use crate::mma::{Engine, Step};
use crate::named_sync;
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::{fence, reg};
use crate::schedule::grouped::{GroupTable, Problem, Tile, Tiles};
use crate::sync::ring::{Consumer, Ring};

/// Threads of all consumers, and the named barrier that they share.
const THREADS: u32 = 128 * CONSUMERS;
const BARRIER: u32 = 1;

/// Computes half of every tile of this block: consumer `part` takes 64 of its fixed side.
///
/// Waits for: a stage's bytes (`ring.full`).
/// Signals: each warp lets go of a stage (`ring.empty`) once its products are done.
///
/// # Safety
/// The 128 threads of a warpgroup run it, one warpgroup a part; the ring is
/// initialised, `base` and `plan` are the block's, `args` describes valid memory.
#[inline(always)]
pub unsafe fn multiply<P: Product, E: Engine, T: GroupTable>(
    tiles: Tiles<T>,
    problem: &Problem,
    args: &GemmArgs,
    part: u32,
    ring: Ring,
    base: SmemAddr,
    plan: &SharedPlan,
) {
    let thread = reg::thread_idx() % 128;
    let elected = thread.is_multiple_of(32);
    let mut stages = Consumer::new(ring);
    for tile in tiles {
        let depth = problem.depth(tile.rows);
        let mut total = Accumulators::zero();
        // A chunk starts afresh, but what a narrow product leaves alone is added like the rest.
        let mut sums = Accumulators::zero();
        let mut step = 0;
        while step < depth {
            let end = if depth - step < CHUNK {
                depth
            } else {
                step + CHUNK
            };
            let mut fresh = true;
            while step < end {
                // SAFETY: the producer fills `depth` stages a tile. The products of the stage
                // before are settled when this one's have started; then that one is let go.
                unsafe {
                    let stage = stages.acquire();
                    let fixed = base.add(plan.fixed + stage * STAGE_FIXED);
                    let wide = base.add(plan.wide + stage * STAGE_WIDE);
                    let mut k_steps = TILE_K / 16;
                    if matches!(P::FORM, Form::Wgrad) {
                        let rows = tile.rows - step * TILE_K;
                        if rows < TILE_K {
                            clear_tail(fixed, wide, &tile, rows, part * 128 + thread);
                            k_steps = rows.div_ceil(16);
                        }
                    }
                    E::multiply::<P::Fixed, P::Wide>(
                        &mut sums,
                        SmemTile::at(fixed.add(part * PANEL)),
                        SmemTile::at(wide),
                        Step {
                            width: tile.width(),
                            depth: k_steps,
                            fresh,
                        },
                    );
                    E::settle_previous();
                    if !fresh {
                        stages.release(elected);
                    }
                }
                fresh = false;
                step += 1;
            }
            // SAFETY: as above, for the chunk's last stage.
            unsafe {
                E::settle(&mut sums);
                stages.release(elected);
            }
            total.add(&sums);
        }
        let staging = base.add(plan.staging + part * crate::gemm::STAGING);
        // SAFETY: this warpgroup's part of the staging memory and of D.
        unsafe { store::<P>(&total, args, problem, &tile, part, thread, staging) };
    }
}

/// Clears the rows of a stage from `rows` to the tensor cores' next step of 16: they belong to
/// padding or to another group, hold any bits, and would be summed.
///
/// # Safety
/// All consumer threads call it with their number among them, on a stage whose bytes
/// have arrived and that none of them has read yet.
#[inline(always)]
unsafe fn clear_tail(fixed: SmemAddr, wide: SmemAddr, tile: &Tile, rows: u32, thread: u32) {
    // A row of a panel is 128 bytes wherever the swizzle puts its chunks.
    let chunk = thread % 8 * 16;
    let end = rows.next_multiple_of(16);
    let mut row = rows + thread / 8;
    while row < end {
        let offset = row * 128 + chunk;
        let mut panel = 0;
        while panel < STAGE_FIXED {
            // SAFETY: inside the stage; this thread alone clears this chunk.
            unsafe { shared::store_v4(fixed.add(panel + offset), [0; 4]) };
            panel += PANEL;
        }
        panel = 0;
        while panel < tile.width() * 128 {
            // SAFETY: as above.
            unsafe { shared::store_v4(wide.add(panel + offset), [0; 4]) };
            panel += PANEL;
        }
        row += THREADS / 8;
    }
    // The tensor cores read in the asynchronous proxy, all of the stage.
    fence::proxy_async_shared();
    // SAFETY: every consumer thread is here.
    unsafe { named_sync!(BARRIER, THREADS) };
}
