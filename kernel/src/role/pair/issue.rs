//! The issuer: one thread of the leader that multiplies, for both blocks.

use crate::gemm::TILE_K;
use crate::gemm::pair::{BLOCKS, MAX_WIDTH, PairPlan, STAGE};
use crate::mma::sm100::{shape, stage_products};
use crate::ptx::shared::SmemAddr;
use crate::role::order::Order;
use crate::role::product::Product;
use crate::schedule::grouped::{ByPair, Problem};
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
pub unsafe fn issue<P: Product>(
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
        let shape = shape::<P::Fixed, P::Wide>(BLOCKS * problem.share::<ByPair>(tile.count));
        // SAFETY: as above.
        let buffer = unsafe { issuer.buffer() };
        let sums = tensor + buffer * MAX_WIDTH;
        let mut step = 0;
        while step < order.depth {
            let last = step + 1 == order.depth;
            let tail = if last { order.tail::<P>() } else { 0 };
            let steps = if tail > 0 { tail } else { TILE_K / 16 };
            // SAFETY: the producers fill `depth` stages a tile, and the buffer is the issuer's.
            unsafe {
                let stage = issuer.acquire(P::RELAYED && last && order.dirty());
                let operands = (
                    base.add(plan.fixed + stage * STAGE),
                    base.add(plan.wide + stage * STAGE),
                );
                let keep = (step > 0) as u32;
                stage_products::<P::Fixed, P::Wide>(sums, operands, shape, steps, keep);
                issuer.release(stage);
            }
            step += 1;
        }
        // SAFETY: all products have been issued.
        unsafe { issuer.accumulated(buffer) };
    }
}
