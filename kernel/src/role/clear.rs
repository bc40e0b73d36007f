//! Between wgrad's producer and its consumers: one warp that clears rows which are no one's.

use super::order::Order;
use crate::gemm::{STAGE, STAGE_FIXED, SharedPlan};
use crate::mma::tile::PANEL;
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::{fence, reg};
use crate::sync::ring::{Relay, Ring};
use crate::warp_sync;

/// Passes every stage on, the rows past a group's end cleared: they belong to padding or to
/// another group, hold any bits, and would be summed.
///
/// A warp of its own: consumers that cleared would have to wait for each other, and none could
/// write its sums while the other multiplies.
///
/// Waits for: a stage's bytes (`ring.full`).
/// Signals: the stage (`ring.clear`), and that it is done with it (`ring.empty`).
///
/// # Safety
/// One warp runs it; the ring is initialised for a relay, `base` and `plan` are the
/// block's.
#[inline(always)]
pub unsafe fn clear(ring: Ring, base: SmemAddr, plan: &SharedPlan) {
    let lane = reg::lane();
    let mut stages = Relay::new(ring);
    let mut order = Order::END;
    let mut left = 0;
    loop {
        // SAFETY: the producer fills as many stages as its orders say, and one to end the work;
        // all lanes have waited for this one, and nobody else touches it until it is passed on.
        unsafe {
            let stage = stages.acquire();
            if left == 0 {
                order = Order::get(base, plan, stage);
                left = order.depth;
                if left == 0 {
                    return;
                }
            }
            if left == 1 && order.dirty() {
                let fixed = base.add(plan.fixed + stage * STAGE);
                let wide = base.add(plan.wide + stage * STAGE);
                clear_rows(fixed, wide, order.width(), order.last, lane);
            }
            // One lane speaks for all: their waits and stores come before.
            warp_sync!();
            if lane == 0 {
                stages.pass(stage);
            }
        }
        left -= 1;
    }
}

/// Clears the rows from `rows` to the tensor cores' next step of 16.
///
/// # Safety
/// The lanes of a warp call it on a stage whose bytes have arrived and that nobody reads yet.
#[inline(always)]
pub(super) unsafe fn clear_rows(fixed: SmemAddr, wide: SmemAddr, width: u32, rows: u32, lane: u32) {
    // A row of a panel is 128 bytes wherever the swizzle puts its chunks.
    let chunk = lane % 8 * 16;
    let end = rows.next_multiple_of(16);
    let mut row = rows + lane / 8;
    while row < end {
        let offset = row * 128 + chunk;
        let mut panel = 0;
        while panel < STAGE_FIXED {
            // SAFETY: inside the stage; this lane alone clears this chunk.
            unsafe { shared::store_v4(fixed.add(panel + offset), [0; 4]) };
            panel += PANEL;
        }
        panel = 0;
        while panel < width * 128 {
            // SAFETY: as above.
            unsafe { shared::store_v4(wide.add(panel + offset), [0; 4]) };
            panel += PANEL;
        }
        row += 4;
    }
    // The tensor cores read in the asynchronous proxy.
    fence::proxy_async_shared();
}
