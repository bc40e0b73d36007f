//! A consumer warpgroup: multiplies what the ring brings and writes D.

use super::order::Order;
use super::product::Product;
use super::store::{Place, WayOut};
use crate::gemm::{CHUNK, Form, SharedPlan};
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
    let place = |part| Place::of_consumer(part, base, plan);
    let mut total = Accumulators::zero();
    // A chunk starts afresh, but what a narrow product leaves alone is added like the rest.
    let mut sums = Accumulators::zero();
    // The tile whose sums `total` is for. Its way out begins when the first products of the next one
    // are under way.
    let mut order = Order::END;
    // Stages left of the tile.
    let mut left = 0;
    loop {
        let fresh = left == 0;
        // Only to start with: what has to outlast the way out is read again, not kept in registers.
        let next = if fresh {
            // SAFETY: a tile or the end of the work starts in the next stage.
            unsafe { Order::get(base, plan, stages.peek()) }
        } else {
            Order {
                depth: left,
                ..order
            }
        };
        let chunk = Chunk {
            a: base.add(plan.fixed + part * PANEL),
            b: base.add(plan.wide),
            width: next.width(),
            stages: 0,
            tail: 0,
        };
        if next.work::<P>() {
            let tail = if next.depth == 1 { next.tail::<P>() } else { 0 };
            // SAFETY: the producer fills `depth` stages a tile.
            unsafe { E::start::<P::Fixed, P::Wide>(&mut sums, chunk, tail, &mut stages) };
        }
        if fresh {
            if order.depth > 0 {
                // SAFETY: this warpgroup's part of the staging memory and of D.
                unsafe { way.store(&total, &order, place(reg::anew(part))) };
            }
            // There is no second look at the end: it isn't let go of, so nothing would order it.
            order = if reg::opaque(next.depth) == 0 {
                Order::END
            } else {
                // SAFETY: the stage is still this warp's; all lanes have read it before one of them lets go
                // of it.
                unsafe {
                    let stage = stages.oldest();
                    let order = Order::get_for_warp::<P>(base, plan, stage);
                    warp_sync!();
                    order
                }
            };
            if !order.work::<P>() {
                // SAFETY: nothing is under way, which the compiler doesn't know.
                unsafe { E::settle(&mut sums) };
                if order.depth == 0 {
                    break;
                }
                total = Accumulators::zero();
                // SAFETY: the stage that came with the order, and nothing in it.
                unsafe { stages.skip() };
                continue;
            }
            left = order.depth;
        }
        // One consumer's first chunk is half as long: where one drains its products to add them
        // up, the other keeps the tensor cores busy.
        let length = if fresh && left > CHUNK {
            CHUNK - CHUNK / 2 * part
        } else {
            CHUNK
        };
        let now = if left < length { left } else { length };
        left -= now;
        let tail = if left == 0 { order.tail::<P>() } else { 0 };
        let mut chunk = Chunk {
            stages: now - (tail > 0) as u32,
            tail,
            width: order.width(),
            ..chunk
        };
        if E::STARTS {
            match P::FORM {
                Form::Wgrad if chunk.stages == 0 => chunk.tail = 0,
                _ => chunk.stages -= 1,
            }
        }
        // SAFETY: as above, and the chunk has been started.
        unsafe { E::multiply::<P::Fixed, P::Wide>(&mut sums, chunk, &mut stages) };
        if fresh {
            total.take(&sums);
        } else {
            total.add(&sums);
        }
    }
    way.finish();
}
