//! The issuer: one thread of the leader that multiplies, for both blocks.

use crate::gemm::TILE_K;
use crate::gemm::pair::{BLOCKS, BUFFER, PairPlan, STAGE};
use crate::ptx::shared::SmemAddr;
use crate::role::order::Order;
use crate::role::pair::elements::{Elements, Stage};
use crate::role::product::Product;
use crate::schedule::grouped::{Problem, Tile};
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
        let share = problem.share::<E::Tiling>(tile.count);
        // SAFETY: the producers fill `depth` stages a tile.
        unsafe { multiply::<P, E>(&mut issuer, &tile, share, &order, tensor, base, plan) };
    }
}

/// Issues the products of one tile, of which each block has so much of the wide side.
///
/// # Safety
/// As [`issue`]; the producers fill the order's stages.
#[inline(always)]
pub unsafe fn multiply<P: Product, E: Elements>(
    issuer: &mut Issuer,
    tile: &Tile,
    share: u32,
    order: &Order,
    tensor: u32,
    base: SmemAddr,
    plan: &PairPlan,
) {
    let shape = E::shape::<P>(BLOCKS * share);
    // SAFETY: the caller's contract.
    let buffer = unsafe { issuer.buffer() };
    let sums = tensor + buffer * BUFFER;
    let mut step = 0;
    while step < order.depth {
        let last = step + 1 == order.depth;
        let tail = if last { order.tail::<P>() } else { 0 };
        let steps = if tail > 0 { tail } else { TILE_K / 16 };
        // SAFETY: the caller's contract, and the buffer is the issuer's.
        unsafe {
            let stage = issuer.acquire(P::RELAYED && last && order.dirty());
            let arrived = Stage {
                fixed: base.add(plan.fixed + stage * STAGE),
                wide: base.add(plan.wide + stage * STAGE),
                step,
                steps,
            };
            E::multiply::<P>(sums, tile, shape, arrived);
            issuer.release(stage);
        }
        step += 1;
    }
    // SAFETY: all products have been issued.
    unsafe { issuer.accumulated(buffer) };
}
