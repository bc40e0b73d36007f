//! A consumer warpgroup: brings sums out of tensor memory and writes D.

use crate::gemm::pair::PairPlan;
use crate::gemm::{CONSUMERS, Form, STAGING};
use crate::layout::fragment::tensor as lanes;
use crate::mma::accumulators::Accumulators;
use crate::mma::sm100::{COLUMNS, load_sums};
use crate::ptx::reg;
use crate::ptx::shared::SmemAddr;
use crate::role::order::Order;
use crate::role::product::Product;
use crate::role::store::{Place, Spot, WayOut};
use crate::schedule::grouped::Problem;
use crate::sync::pair::{Buffers, Dealt, Pair};
use crate::warp_sync;

/// The place of consumer `part`, worked out anew for each use, or it is kept in registers for all of them.
#[inline(always)]
pub fn place_of(part: u32, pair: Pair, base: SmemAddr, plan: &PairPlan) -> Place {
    let thread = reg::anew(reg::thread_idx()) % 128;
    let staging = |part| base.add(plan.staging + part * STAGING);
    let (warp, lane) = (thread / 32, thread % 32);
    let other = lanes::part(part, warp);
    Place {
        part,
        thread,
        staging: staging(part),
        sums: Spot {
            part: other,
            thread: 32 * lanes::warp(part, warp) + lane,
            staging: staging(other),
            open: pair.open(other),
            ready: pair.ready(other),
        },
        team: 0,
        threads: CONSUMERS * 128,
        most: COLUMNS,
    }
}

/// Writes the block's half of every tile, up to [`COLUMNS`] of its wide side at a time: consumer `part` sees 64
/// of the fixed side out. Its warps load half of those sums and half of the other consumer's, since each
/// reaches 32 rows of tensor memory; both consumers stage together.
///
/// Waits for: a tile (`dealt`), its sums (`accumulated`).
/// Signals, for each warp: the tile is read (`taken`), and so are the sums (`drained`), in the leader.
///
/// # Safety
/// The 128 threads of a warpgroup run it, one warpgroup a part; the barriers are initialised in both
/// blocks, `base` and `plan` are the block's, `tensor` is the address of all of tensor memory, `way`
/// leads to the product's D.
#[inline(always)]
pub unsafe fn bring<P: Product, W: WayOut>(
    problem: &Problem,
    mut way: W,
    part: u32,
    pair: Pair,
    tensor: u32,
    base: SmemAddr,
    plan: &PairPlan,
) {
    let warp = reg::thread_idx() / 32 % 4;
    let place = |part| place_of(part, pair, base, plan);
    let mut tiles = Dealt::new(pair);
    let mut buffers = Buffers::new(pair);
    // SAFETY: the caller's contract.
    while let Some(mut tile) = unsafe { tiles.read() } {
        tile.fixed += pair.rank * problem.apart();
        let order = Order::new(problem, &tile);
        let work = order.work::<P>();
        let mut first = 0;
        let mut column = 0;
        while first < order.count {
            let rest = order.count - first;
            let now = Order {
                count: if rest < COLUMNS { rest } else { COLUMNS },
                row: match P::FORM {
                    Form::Wgrad => order.row,
                    _ => order.row + first,
                },
                column: match P::FORM {
                    Form::Wgrad => order.column + first,
                    _ => order.column,
                },
                ..order
            };
            if first == 0 {
                // SAFETY: all lanes have read the tile before one of them says so.
                unsafe {
                    if work {
                        column = buffers.acquire();
                    }
                    warp_sync!();
                    tiles.done(reg::lane() == 0);
                }
            }
            let mut sums = Accumulators::zero();
            // SAFETY: this block's part of D, and the consumers' memory.
            unsafe {
                if work {
                    load_sums(&mut sums, tensor + column + first, (part, warp), now.count);
                    if rest <= COLUMNS {
                        buffers.release();
                    }
                }
                way.store(&sums, &now, place(reg::anew(part)));
            }
            first += COLUMNS;
        }
    }
    way.finish();
}
