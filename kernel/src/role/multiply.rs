//! A consumer warpgroup: multiplies what the ring brings and writes D.

use super::product::Product;
use crate::gemm::{CONSUMERS, Form, GemmArgs, STAGE_A, STAGE_B, SharedPlan, Sink, TILE_K};
use crate::mma::Engine;
use crate::mma::accumulators::{Accumulators, Target};
use crate::mma::tile::{PANEL, Tile as SmemTile};
use crate::named_sync;
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::{fence, reg};
use crate::schedule::grouped::{GroupTable, Problem, Tile, Tiles};
use crate::sync::ring::{Consumer, Ring};

/// Threads of all consumers, and the named barrier that they share.
const THREADS: u32 = 128 * CONSUMERS;
const BARRIER: u32 = 1;

/// Computes 64 of the 128 rows of every tile of this block: consumer `part` takes rows `64 part` on.
///
/// Waits for: a stage's bytes (`ring.full`).
/// Signals: each warp lets go of a stage (`ring.empty`) once its products are done.
///
/// # Safety
/// The 128 threads of a warpgroup run it, one warpgroup a part; the ring is
/// initialised, `base` and `plan` are the block's, `args` describes valid memory.
#[inline(always)]
pub unsafe fn multiply<P: Product, E: Engine, T: GroupTable>(
    tiles: Tiles<T>,
    problem: &Problem,
    args: &GemmArgs,
    part: u32,
    ring: Ring,
    base: SmemAddr,
    plan: &SharedPlan,
) {
    let thread = reg::thread_idx() % 128;
    let elected = thread.is_multiple_of(32);
    let mut stages = Consumer::new(ring);
    for tile in tiles {
        let depth = problem.depth(tile.rows);
        let mut sums = Accumulators::zero();
        let mut step = 0;
        while step < depth {
            // SAFETY: the producer fills `depth` stages a tile. The products of the stage
            // before are settled when this one's have started; then that one is let go.
            unsafe {
                let stage = stages.acquire();
                let a = base.add(plan.a + stage * STAGE_A);
                let b = base.add(plan.b + stage * STAGE_B);
                if matches!(P::FORM, Form::Wgrad) {
                    let rows = tile.rows - step * TILE_K;
                    if rows < TILE_K {
                        clear_tail(a, b, rows, part * 128 + thread);
                    }
                }
                E::multiply::<P::A, P::B>(
                    &mut sums,
                    SmemTile::at(a.add(part * PANEL)),
                    SmemTile::at(b),
                );
                E::settle_previous();
                if step > 0 {
                    stages.release(elected);
                }
            }
            step += 1;
        }
        // SAFETY: as above, for the last stage; the target lies inside D.
        unsafe {
            E::settle(&mut sums);
            if depth > 0 {
                stages.release(elected);
            }
            let sink = if matches!(P::FORM, Form::Wgrad) {
                args.sink
            } else {
                Sink::Bf16 as u32
            };
            sums.store(thread, target::<P>(args, problem, &tile, part, sink), sink);
        }
    }
}

/// Clears the rows of a stage from `rows` on: they belong to padding or to another
/// group, hold any bits, and would be summed.
///
/// # Safety
/// All consumer threads call it with their number among them, on a stage whose bytes
/// have arrived and that none of them has read yet.
#[inline(always)]
unsafe fn clear_tail(a: SmemAddr, b: SmemAddr, rows: u32, thread: u32) {
    // A row of a panel is 128 bytes wherever the swizzle puts its chunks.
    let chunk = thread % 8 * 16;
    let mut row = rows + thread / 8;
    while row < TILE_K {
        let offset = row * 128 + chunk;
        let mut panel = 0;
        while panel < STAGE_A {
            // SAFETY: inside the stage; this thread alone clears this chunk.
            unsafe { shared::store_v4(a.add(panel + offset), 0) };
            panel += PANEL;
        }
        panel = 0;
        while panel < STAGE_B {
            // SAFETY: as above.
            unsafe { shared::store_v4(b.add(panel + offset), 0) };
            panel += PANEL;
        }
        row += THREADS / 8;
    }
    // The tensor cores read in the asynchronous proxy, all of the stage.
    fence::proxy_async_shared();
    // SAFETY: every consumer thread is here.
    unsafe { named_sync!(BARRIER, THREADS) };
}

/// Where this part's 64 rows of a tile go.
#[inline(always)]
fn target<P: Product>(
    args: &GemmArgs,
    problem: &Problem,
    tile: &Tile,
    part: u32,
    sink: u32,
) -> Target {
    let first = tile.m + 64 * part;
    let (row, rows, group) = match P::FORM {
        Form::Forward | Form::Dgrad => (tile.row_start as u64 + first as u64, tile.rows, 0),
        Form::Wgrad => (
            first as u64,
            problem.m,
            tile.group as u64 * args.d_group_stride,
        ),
    };
    let size = if sink == Sink::F32 as u32 || sink == Sink::AddF32 as u32 {
        4
    } else {
        2
    };
    Target {
        address: args.d + (group + row * args.d_row_stride + tile.n as u64) * size,
        row_stride: args.d_row_stride,
        rows: rows.saturating_sub(first),
        columns: problem.n - tile.n,
    }
}
