//! The producer: one thread that keeps the ring full.

use super::product::{Maps, Product};
use crate::gemm::{STAGE_FIXED, STAGE_WIDE, SharedPlan};
use crate::ptx::shared::SmemAddr;
use crate::ptx::tma;
use crate::schedule::grouped::{GroupTable, Problem, Tiles};
use crate::sync::ring::{Producer, Ring};

/// Loads every stage of every tile of this block, in order.
///
/// Waits for: a free stage (`ring.empty`).
/// Signals: the stage's bytes (`ring.full`, or `ring.landed`), through TMA's own completion.
///
/// # Safety
/// One thread of the block runs it; the ring is initialised, `base` and `plan` are the
/// block's, `maps` have the boxes that `P` needs.
#[inline(always)]
pub unsafe fn load<P: Product, T: GroupTable>(
    tiles: Tiles<T>,
    problem: &Problem,
    maps: Maps,
    ring: Ring,
    base: SmemAddr,
    plan: &SharedPlan,
) {
    // SAFETY: the maps are valid.
    unsafe {
        tma::prefetch(maps.a);
        tma::prefetch(maps.b);
    }
    let mut stages = Producer::new(ring, P::RELAYED);
    for tile in tiles {
        let (depth, bytes) = (problem.depth(tile.rows), P::bytes(&tile));
        let mut step = 0;
        while step < depth {
            // SAFETY: the loads go to the acquired stage, and together bring what it announces.
            unsafe {
                let slot = stages.acquire(bytes);
                let fixed = base.add(plan.fixed + slot.stage * STAGE_FIXED);
                let wide = base.add(plan.wide + slot.stage * STAGE_WIDE);
                P::load(maps, &tile, step, fixed, wide, slot.bar);
            }
            step += 1;
        }
    }
}
