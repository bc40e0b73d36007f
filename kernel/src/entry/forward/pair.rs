//! A forward pass in one launch where pairs of blocks multiply, of which the even block leads.
//!
//! ```text
//! all      group sizes -> table of strips; barriers, tensor memory          cluster barrier
//! dealer   leader, each tile drawn: wait for its rows or for H -> dealt, in both blocks
//! producer each tile, each stage: wait empty -> TMA -> full, in the leader
//! issuer   leader, each tile: wait drained; each stage: wait full -> products -> empty;  accumulated
//! consumer each tile: wait accumulated -> sums -> drained, H or Y;  told of at once
//! movers   the other warps: as in blocks
//! all                                                                       cluster barrier
//! all      each token drawn: weighted sum;  barrier; the last block's: the words are zero again
//! ```

use super::end;
use crate::entry::pair::{ISSUER, meet};
use crate::forward::ForwardArgs;
use crate::gemm::pair::{TENSOR_COLUMNS, shared_plan};
use crate::ptx::tma::TensorMapRef;
use crate::ptx::{fence, reg, shared};
use crate::role::forward::pair::{bring, deal, issue, load};
use crate::role::forward::settle::Settle;
use crate::role::forward::travel::{travel, weigh_all};
use crate::role::table::{self, SharedTable};
use crate::schedule::forward::{ByStrip, STRIPS};
use crate::schedule::grouped::ByPair;
use crate::sync::pair::{LEADER, Pair};
use crate::sync::words::Words;
use crate::{block_sync, tensor_alloc, tensor_dealloc, tensor_relinquish, warp_sync};

/// Composes the roles. `maps` gives the first of the tensor maps.
///
/// # Safety
/// As [`forward`](super::forward), with [`FORWARD_OF_PAIRS`](crate::forward::FORWARD_OF_PAIRS).
#[inline(always)]
pub unsafe fn forward(maps: impl Fn() -> TensorMapRef, args: &ForwardArgs) {
    let gemm = &args.routed.gate_up.gemm;
    let plan = shared_plan(gemm.groups);
    let base = shared::dynamic_base();
    let pair = Pair::new(reg::cluster_rank(), base, &plan);
    let table = SharedTable::new(gemm.groups, base.add(plan.table));
    let words = Words::new(args.words, args.moves.rank.state);
    let (thread, warp) = (reg::thread_idx(), reg::thread_idx() / 32);
    let leads = pair.rank == LEADER;
    if thread == 0 {
        // SAFETY: one thread of each block, before they meet.
        unsafe { pair.init(false) };
        fence::mbarrier_init();
    }
    // SAFETY: one warp of each block, all of it; then every thread is here.
    let tensor = unsafe {
        if warp == ISSUER {
            tensor_alloc!(base.add(plan.tensor), TENSOR_COLUMNS);
            tensor_relinquish!();
        }
        table::build::<ByStrip<ByPair>>(table, &STRIPS, gemm);
        meet!();
        shared::load_u32(base.add(plan.tensor))
    };
    // SAFETY: a consumer is a warpgroup, a mover a warp, the others a thread each.
    unsafe {
        if warp >= 4 {
            let way = Settle::new(args, maps, words);
            bring(args, way, warp / 4 - 1, pair, tensor, base, &plan);
        } else if thread == 0 {
            load(args, words, maps(), pair, base, &plan);
        } else if leads && thread == 64 {
            deal(args, table, words, pair);
        } else if leads && thread == 32 * ISSUER {
            issue(args, pair, tensor, base, &plan);
        } else if warp == 1 || !leads && warp > 1 {
            travel::<ByPair>(args, base.add(plan.table), words);
        }
        // Each block's barriers and memory are the other's to use until both are done.
        warp_sync!();
        meet!();
        if warp == ISSUER {
            tensor_dealloc!(tensor, TENSOR_COLUMNS);
        }
        weigh_all::<false>(args, words);
        block_sync!();
        if warp == 0 {
            end::<ByPair>(args, words, table);
        }
    }
}
