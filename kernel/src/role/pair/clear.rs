//! Between wgrad's producers and the issuer: one warp of each block that clears rows which are no one's.

use crate::gemm::pair::{PairPlan, STAGE};
use crate::ptx::reg;
use crate::ptx::shared::SmemAddr;
use crate::role::clear::clear_rows;
use crate::role::order::Order;
use crate::role::pair::elements::Elements;
use crate::role::product::Product;
use crate::schedule::grouped::Problem;
use crate::sync::pair::{Dealt, Pair, Relay};
use crate::warp_sync;

/// Clears the block's half of each tile's last stage, where rows past the group's end would be summed.
///
/// It doesn't touch other stages, and isn't asked for them: an arrival from one block at another's
/// barrier takes long to make sure of what came before it.
///
/// Waits for: a tile (`dealt`), the stage's bytes (`soiled`). Signals: the stage (`clear`, in the leader).
///
/// # Safety
/// One warp of each block runs it; the barriers are initialised in both, `base` and `plan` are the
/// block's.
#[inline(always)]
pub unsafe fn clear<P: Product, E: Elements>(
    problem: &Problem,
    pair: Pair,
    base: SmemAddr,
    plan: &PairPlan,
) {
    let lane = reg::lane();
    let mut tiles = Dealt::new(pair);
    let mut stages = Relay::new(pair);
    // SAFETY: the caller's contract.
    while let Some(tile) = unsafe { tiles.next_of_warp() } {
        let order = Order::new(problem, &tile);
        if !order.work::<P>() {
            continue;
        }
        let stage = stages.last_of(order.depth);
        if !order.dirty() {
            continue;
        }
        // SAFETY: all lanes wait for the stage, and nobody else touches it until it is passed on.
        unsafe {
            stages.acquire(stage);
            let fixed = base.add(plan.fixed + stage * STAGE);
            let wide = base.add(plan.wide + stage * STAGE);
            let width = problem.share::<E::Tiling>(tile.count);
            clear_rows(fixed, wide, width, order.last, lane);
            // One lane speaks for all: their waits and stores come before.
            warp_sync!();
            if lane == 0 {
                stages.pass(stage);
            }
        }
    }
}
