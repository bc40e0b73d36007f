//! A consumer warpgroup: multiplies what the ring brings and writes D.

use super::order::Order;
use super::product::Product;
use super::store::{Place, WayOut};
use crate::gemm::{CHUNK, Form, PANEL_BYTES, PANELS, STAGING, SharedPlan, TILE_K};
use crate::mma::accumulators::Accumulators;
use crate::mma::tile::PANEL;
use crate::mma::{Chunk, Engine};
use crate::ptx::reg;
use crate::ptx::shared::SmemAddr;
use crate::sync::ring::{Consumer, Ring};
use crate::warp_sync;

/// Computes half of every tile of this block: consumer `part` takes 64 of its fixed side.
///
/// Waits for: a stage's bytes (`ring.full`), and with a tile's first stage its order.
/// Signals: each warp lets go of a stage (`ring.empty`) once its products are done.
///
/// # Safety
/// The 128 threads of a warpgroup run it, one warpgroup a part; the ring is
/// initialised, `base` and `plan` are the block's, `way` leads to the product's D.
#[inline(always)]
pub unsafe fn multiply<P: Product, E: Engine, W: WayOut>(
    mut way: W,
    part: u32,
    ring: Ring,
    base: SmemAddr,
    plan: &SharedPlan,
) {
    let mut stages = Consumer::new(ring);
    let place = |part| Place {
        part,
        thread: reg::thread_idx() % 128,
        staging: base.add(plan.staging + part * STAGING),
        panels: base.add(plan.panels + part * PANELS * PANEL_BYTES),
        old: base.add(plan.old + 8 * part),
    };
    loop {
        // SAFETY: a tile or the end of the work starts in the next stage.
        let order = unsafe { Order::get(base, plan, stages.peek()) };
        // All lanes have read it before one of them lets go of its stage.
        // SAFETY: all lanes are here.
        unsafe { warp_sync!() };
        if order.depth == 0 {
            break;
        }
        // SAFETY: this warpgroup's part of the staging memory and of D.
        unsafe { way.begin(&order, place(part)) };
        let mut total = Accumulators::zero();
        // A chunk starts afresh, but what a narrow product leaves alone is added like the rest.
        let mut sums = Accumulators::zero();
        if P::RELAYED && order.last == 0 {
            // SAFETY: the stage that came with the order, and nothing in it.
            unsafe { stages.skip() };
        } else {
            let tail = match P::FORM {
                Form::Wgrad if order.last < TILE_K => order.last.div_ceil(16),
                _ => 0,
            };
            // One consumer's first chunk is half as long: where one drains its products to add them
            // up, the other keeps the tensor cores busy.
            let mut length = if order.depth > CHUNK {
                CHUNK - CHUNK / 2 * part
            } else {
                CHUNK
            };
            let mut left = order.depth;
            while left > 0 {
                let stages_now = if left < length { left } else { length };
                left -= stages_now;
                length = CHUNK;
                let tail = if left == 0 { tail } else { 0 };
                // SAFETY: the producer fills `depth` stages a tile.
                unsafe {
                    E::multiply::<P::Fixed, P::Wide>(
                        &mut sums,
                        Chunk {
                            a: base.add(plan.fixed + part * PANEL),
                            b: base.add(plan.wide),
                            width: order.width(),
                            stages: stages_now - (tail > 0) as u32,
                            tail,
                        },
                        &mut stages,
                    );
                }
                total.add(&sums);
            }
        }
        // Worked out anew, not kept in registers meanwhile.
        let place = place(reg::opaque(part));
        // SAFETY: as above.
        unsafe { way.store(&total, &order, place) };
    }
    way.finish();
}
