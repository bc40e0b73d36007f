//! A consumer warpgroup: multiplies what the ring brings and writes D.

use super::order::Order;
use super::product::Product;
use super::store::store;
use crate::gemm::{CHUNK, Form, GemmArgs, STAGE_FIXED, STAGE_WIDE, STAGING, SharedPlan, TILE_K};
use crate::mma::accumulators::Accumulators;
use crate::mma::tile::{PANEL, Tile as SmemTile};
use crate::mma::{Engine, Step};
use crate::ptx::reg;
use crate::ptx::shared::SmemAddr;
use crate::sync::ring::{Consumer, Ring};

/// Computes half of every tile of this block: consumer `part` takes 64 of its fixed side.
///
/// Waits for: a stage's bytes (`ring.full`), and with a tile's first stage its order.
/// Signals: each warp lets go of a stage (`ring.empty`) once its products are done.
///
/// # Safety
/// The 128 threads of a warpgroup run it, one warpgroup a part; the ring is
/// initialised, `base` and `plan` are the block's, `args` describes valid memory.
#[inline(always)]
pub unsafe fn multiply<P: Product, E: Engine>(
    args: &GemmArgs,
    part: u32,
    ring: Ring,
    base: SmemAddr,
    plan: &SharedPlan,
) {
    let thread = reg::thread_idx() % 128;
    let mut stages = Consumer::new(ring);
    loop {
        // SAFETY: a tile or the end of the work starts in the next stage.
        let order = unsafe { Order::get(base, plan, stages.peek()) };
        if order.depth == 0 {
            return;
        }
        let mut total = Accumulators::zero();
        // A chunk starts afresh, but what a narrow product leaves alone is added like the rest.
        let mut sums = Accumulators::zero();
        // One consumer's first chunk is half as long: where one drains its products to add them up,
        // the other keeps the tensor cores busy.
        let mut chunk = CHUNK - CHUNK / 2 * part;
        let mut step = 0;
        while step < order.depth {
            let end = if order.depth - step < chunk {
                order.depth
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
                    let k_steps = match P::FORM {
                        Form::Forward | Form::Dgrad => TILE_K / 16,
                        Form::Wgrad if step + 1 < order.depth => TILE_K / 16,
                        // 0 leaves the sums as they are: zero.
                        Form::Wgrad => order.last.div_ceil(16),
                    };
                    E::multiply::<P::Fixed, P::Wide>(
                        &mut sums,
                        SmemTile::at(fixed.add(part * PANEL)),
                        SmemTile::at(wide),
                        Step {
                            width: order.width,
                            depth: k_steps,
                            fresh,
                        },
                    );
                    E::settle_previous();
                    if !fresh {
                        stages.release();
                    }
                }
                fresh = false;
                step += 1;
            }
            // SAFETY: as above, for the chunk's last stage.
            unsafe {
                E::settle(&mut sums);
                stages.release();
            }
            total.add(&sums);
        }
        let staging = base.add(plan.staging + part * STAGING);
        // SAFETY: this warpgroup's part of the staging memory and of D.
        unsafe { store::<P>(&total, args, &order, part, thread, staging) };
    }
}
