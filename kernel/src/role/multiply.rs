//! A consumer warpgroup: multiplies what the ring brings and writes D.

use super::product::Product;
use super::store::store;
use crate::gemm::{CHUNK, Form, GemmArgs, STAGE_FIXED, STAGE_WIDE, STAGING, SharedPlan, TILE_K};
use crate::mma::accumulators::Accumulators;
use crate::mma::tile::{PANEL, Tile as SmemTile};
use crate::mma::{Engine, Step};
use crate::ptx::reg;
use crate::ptx::shared::SmemAddr;
use crate::schedule::grouped::{GroupTable, Problem, Tiles};
use crate::sync::ring::{Consumer, Ring};

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
        // One consumer's first chunk is half as long: where one drains its products to add them up,
        // the other keeps the tensor cores busy.
        let mut chunk = CHUNK - CHUNK / 2 * part;
        let mut step = 0;
        while step < depth {
            let end = if depth - step < chunk {
                depth
            } else {
                step + chunk
            };
            chunk = CHUNK;
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
        let staging = base.add(plan.staging + part * STAGING);
        // SAFETY: this warpgroup's part of the staging memory and of D.
        unsafe { store::<P>(&total, args, problem, &tile, part, thread, staging) };
    }
}
