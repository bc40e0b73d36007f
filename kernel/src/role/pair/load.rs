//! The producer: one thread of each block that keeps the block's stages full.

use crate::gemm::pair::{PairPlan, STAGE};
use crate::ptx::shared::SmemAddr;
use crate::ptx::tma;
use crate::role::order::Order;
use crate::role::pair::elements::Elements;
use crate::role::product::{Half, Maps, Product};
use crate::schedule::grouped::{Problem, Tile};
use crate::sync::pair::{Dealt, Pair, Producer};

/// Loads the block's half of each tile's stages.
///
/// Waits for: a tile (`dealt`), a free stage (`empty`).
/// Signals: the stage's bytes (`full`, in the leader), or to the relay (`soiled`), through TMA's own
/// completion.
///
/// # Safety
/// One thread of each block runs it; the barriers are initialised in both, `base` and `plan` are the
/// block's, `maps` have the boxes that `P` needs.
#[inline(always)]
pub unsafe fn load<P: Product, E: Elements>(
    problem: &Problem,
    maps: Maps<E::Beside>,
    pair: Pair,
    base: SmemAddr,
    plan: &PairPlan,
) {
    // SAFETY: the maps are valid.
    unsafe {
        tma::prefetch(maps.a[0]);
        tma::prefetch(maps.a[1]);
        tma::prefetch(maps.a[2]);
        tma::prefetch(maps.b);
        E::prefetch(maps.beside);
    }
    let mut tiles = Dealt::new(pair);
    let mut stages = Producer::new(pair);
    // SAFETY: the caller's contract.
    while let Some(tile) = unsafe { tiles.next_to_load() } {
        let order = Order::new(problem, &tile);
        if !order.work::<P>() {
            continue;
        }
        // SAFETY: the caller's contract.
        unsafe {
            fill::<P, E>(
                &mut stages,
                problem,
                maps,
                &tile,
                &order,
                (base, plan),
                pair,
            )
        };
    }
    // SAFETY: nothing more is loaded.
    unsafe { stages.drain() };
}

/// Loads the block's half of one tile's stages.
///
/// # Safety
/// As [`load`]; the order is the tile's.
#[inline(always)]
pub unsafe fn fill<P: Product, E: Elements>(
    stages: &mut Producer,
    problem: &Problem,
    maps: Maps<E::Beside>,
    tile: &Tile,
    order: &Order,
    (base, plan): (SmemAddr, &PairPlan),
    pair: Pair,
) {
    let half = tile.half(
        pair.rank,
        problem.apart(),
        problem.share::<E::Tiling>(tile.count),
    );
    let bytes = P::bytes::<Half>(&half) + E::bytes(tile);
    let mut step = 0;
    while step < order.depth {
        let soiled = P::RELAYED && step + 1 == order.depth && order.dirty();
        // SAFETY: the loads go to the acquired stage, and together bring what it announces.
        unsafe {
            let stage = stages.acquire();
            let bar = stages.announce(stage, bytes, soiled);
            let fixed = base.add(plan.fixed + stage * STAGE);
            let wide = base.add(plan.wide + stage * STAGE);
            P::load(maps.operands(), &half, step, fixed, wide, Half(bar));
            E::load(maps.beside, tile, half.fixed, step, wide, bar);
        }
        step += 1;
    }
}
