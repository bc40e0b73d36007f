//! The producer: one thread that keeps the ring full.

use super::order::Order;
use super::product::{Maps, Product, Whole};
use crate::gemm::{STAGE, SharedPlan};
use crate::ptx::shared::SmemAddr;
use crate::ptx::tma;
use crate::schedule::grouped::{Problem, Tile};
use crate::sync::ring::{Producer, Ring};

/// Where the producer's tiles come from.
pub trait Source {
    /// The next one.
    ///
    /// # Safety
    /// One thread of the block calls it, until there is none.
    unsafe fn next(&mut self) -> Option<Tile>;
}

/// Orders each tile and loads its stages.
///
/// Waits for: a free stage (`ring.empty`).
/// Signals: the stage's bytes (`ring.full`), through TMA's own completion.
///
/// # Safety
/// One thread of the block runs it; the ring is initialised, `base` and `plan` are the
/// block's, `maps` have the boxes that `P` needs.
#[inline(always)]
pub unsafe fn load<P: Product>(
    mut source: impl Source,
    problem: &Problem,
    maps: Maps,
    ring: Ring,
    base: SmemAddr,
    plan: &SharedPlan,
) {
    // SAFETY: the maps are valid.
    unsafe {
        tma::prefetch(maps.a[0]);
        tma::prefetch(maps.a[1]);
        tma::prefetch(maps.a[2]);
        tma::prefetch(maps.b);
    }
    let mut stages = Producer::new(ring);
    // SAFETY: the caller's contract.
    while let Some(tile) = unsafe { source.next() } {
        let order = Order::new(problem, &tile);
        // A group without rows is written all the same, from a stage that nothing is loaded to.
        let bytes = if order.last == 0 {
            0
        } else {
            P::bytes::<Whole>(&tile)
        };
        let mut step = 0;
        while step < order.depth {
            // SAFETY: the loads go to the acquired stage, and together bring what it announces.
            unsafe {
                let slot = stages.acquire();
                if step == 0 {
                    order.put(base, plan, slot.stage);
                }
                stages.announce(slot, bytes);
                if bytes > 0 {
                    let fixed = base.add(plan.fixed + slot.stage * STAGE);
                    let wide = base.add(plan.wide + slot.stage * STAGE);
                    P::load(maps, &tile, step, fixed, wide, Whole(slot.bar));
                }
            }
            step += 1;
        }
    }
    // SAFETY: as above; nothing is loaded.
    unsafe {
        let slot = stages.acquire();
        Order::END.put(base, plan, slot.stage);
        stages.end(slot);
    }
}
