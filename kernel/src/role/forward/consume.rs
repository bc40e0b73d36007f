//! A consumer warpgroup of a forward pass: multiplies what the ring brings, and sees it out.

use super::feed::NOTES;
use super::settle::Settle;
use super::source::Note;
use crate::gemm::{CHUNK, MAX_WIDTH, SharedPlan};
use crate::mma::accumulators::Accumulators;
use crate::mma::tile::{KMajor, PANEL};
use crate::mma::{Chunk, Engine};
use crate::ptx::reg;
use crate::ptx::shared::SmemAddr;
use crate::ptx::tma::TensorMapRef;
use crate::role::order::Order;
use crate::role::store::Place;
use crate::shuffle;
use crate::sync::ring::{Consumer, Ring};
use crate::trace::Task;

/// What a consumer looks at of an order, in a word.
#[inline(always)]
const fn pack(order: &Order) -> u32 {
    order.depth << 12 | order.group << 8 | order.count
}

/// The order in such a word.
#[inline(always)]
const fn unpack(word: u32) -> Order {
    Order {
        depth: word >> 12,
        group: word >> 8 & 15,
        count: word & 255,
        ..Order::END
    }
}

const _: () = assert!(MAX_WIDTH < 256 && NOTES <= 16);

/// Computes half of every tile of this block: consumer `part` takes 64 of its fixed side.
///
/// Each element has the sums that the separate launches give it
/// ([`multiply`](crate::role::multiply::multiply)). But a tile is seen out before the next one begins: with both
/// ways out behind the products of the next tile, ptxas finds no registers for these (C7511). The other
/// consumer multiplies meanwhile.
///
/// Waits for: a stage's bytes (`ring.full`), and with a tile's first stage its order.
/// Signals: each warp lets go of a stage (`ring.empty`) once its products are done; tiles that are in memory.
///
/// # Safety
/// The 128 threads of a warpgroup run it, one warpgroup a part; the ring is initialised, `base` and `plan` are the
/// block's, `way` leads to the launch's H and Y.
#[inline(always)]
pub unsafe fn consume<E: Engine>(
    mut way: Settle<'_, impl Fn() -> TensorMapRef>,
    part: u32,
    ring: Ring,
    base: SmemAddr,
    plan: &SharedPlan,
) {
    let mut stages = Consumer::new(ring);
    let place = |part| Place::of_consumer(part, base, plan);
    let mut packed;
    loop {
        // Of the tile before, if there was one: ptxas finds no registers for it behind the way out.
        // SAFETY: this warpgroup's stream.
        unsafe { way.stamp(reg::anew(part), |stamp| stamp.end()) };
        // By the first lane, as `Order::get_for_warp` says, but only what is looked at here.
        // SAFETY: a tile, a rest or the end of the work starts in the next stage; all lanes are here.
        let order = unsafe {
            let stage = stages.peek();
            let mut order = Order::END;
            if reg::lane() == 0 {
                order = Order::get(base, plan, stage);
            }
            // One register: fewer are kept while products are in flight.
            packed = shuffle!(pack(&order), 0u32);
            unpack(reg::anew(packed))
        };
        if order.depth == 0 {
            break;
        }
        if order.count == 0 {
            // SAFETY: the stage that came with the order, and nothing in it.
            unsafe {
                stages.skip();
                way.rest(place(reg::anew(part)));
            }
            continue;
        }
        // SAFETY: this warpgroup's stream.
        unsafe {
            way.stamp(reg::anew(part), |stamp| {
                stamp.begin(Task::Products as u32, 0)
            })
        };
        let mut total = Accumulators::zero();
        // A chunk starts afresh, but what a narrow product leaves alone is added like the rest. Zeros for each tile,
        // so that nothing of them is kept over the way out.
        let mut sums = Accumulators::zero();
        let mut left = order.depth;
        let mut fresh = true;
        while left > 0 {
            // One consumer's first chunk is half as long: where one drains its products to add them
            // up, the other keeps the tensor cores busy.
            let length = if fresh && left > CHUNK {
                CHUNK - CHUNK / 2 * part
            } else {
                CHUNK
            };
            let now = if left < length { left } else { length };
            left -= now;
            let mut chunk = Chunk {
                a: base.add(plan.fixed + part * PANEL),
                b: base.add(plan.wide),
                width: unpack(reg::anew(packed)).width(),
                stages: now,
                tail: 0,
            };
            // SAFETY: the producer fills `depth` stages a tile.
            unsafe {
                E::start::<KMajor, KMajor>(&mut sums, chunk, 0, &mut stages);
                if E::STARTS {
                    chunk.stages -= 1;
                }
                E::multiply::<KMajor, KMajor>(&mut sums, chunk, &mut stages);
            }
            if fresh {
                total.take(&sums);
            } else {
                total.add(&sums);
            }
            // As elsewhere in such kernels: ptxas finds registers with it (`reg::anew`).
            fresh = reg::anew(0) != 0;
        }
        // SAFETY: this warpgroup's part of the staging memory and of the results.
        unsafe {
            let order = unpack(reg::anew(packed));
            let note = Note::get(base, plan, order.group);
            way.store(&total, &order, note, place(reg::anew(part)));
        }
    }
    // SAFETY: as above.
    unsafe { way.end(place(reg::anew(part))) };
}
