//! The issuer: one thread of the leader that multiplies, for both blocks.

use crate::gemm::TILE_K;
use crate::gemm::pair::{BLOCKS, BUFFER, PairPlan, STAGE};
use crate::ptx::shared::SmemAddr;
use crate::role::order::Order;
use crate::role::pair::elements::{Elements, Stage};
use crate::role::product::Product;
use crate::schedule::grouped::Problem;
use crate::sync::pair::{Dealt, Issuer, Pair};

/// Issues the products of every tile of the pair, into one buffer of tensor memory and the other in turn.
///
/// Waits for: a tile (`dealt`), a free buffer (`drained`), each stage's bytes in both blocks (`full`, or
/// `clear`). Signals, when products are done, in both blocks: the stage (`empty`), the sums (`accumulated`).
///
/// # Safety
/// One thread of the leader runs it; the barriers are initialised in both blocks, `base` and `plan` are
/// the block's, `tensor` is the address of all of tensor memory.
#[inline(always)]
pub unsafe fn issue<P: Product, E: Elements>(
    problem: &Problem,
    pair: Pair,
    tensor: u32,
    base: SmemAddr,
    plan: &PairPlan,
) {
    let mut tiles = Dealt::new(pair);
    let mut issuer = Issuer::new(pair);
    // SAFETY: the caller's contract.
    while let Some(tile) = unsafe { tiles.next() } {
        let order = Order::new(problem, &tile);
        if !order.work::<P>() {
            continue;
        }
        let shape = E::shape::<P>(BLOCKS * problem.share::<E::Tiling>(tile.count));
        // SAFETY: as above.
        let buffer = unsafe { issuer.buffer() };
        let sums = tensor + buffer * BUFFER;
        let mut step = 0;
        while step < order.depth {
            let last = step + 1 == order.depth;
            let tail = if last { order.tail::<P>() } else { 0 };
            let steps = if tail > 0 { tail } else { TILE_K / 16 };
            // SAFETY: the producers fill `depth` stages a tile, and the buffer is the issuer's.
            unsafe {
                let stage = issuer.acquire(P::RELAYED && last && order.dirty());
                let arrived = Stage {
                    fixed: base.add(plan.fixed + stage * STAGE),
                    wide: base.add(plan.wide + stage * STAGE),
                    step,
                    steps,
                };
                E::multiply::<P>(sums, &tile, shape, arrived);
                issuer.release(stage);
            }
            step += 1;
        }
        // SAFETY: all products have been issued.
        unsafe { issuer.accumulated(buffer) };
    }
}
