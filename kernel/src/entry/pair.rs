//! The grouped GEMMs of pairs of blocks: persistent clusters of two, of which the even block leads.
//!
//! ```text
//! all      barriers, tensor memory; the leader's: group sizes -> table       cluster barrier
//! dealer   leader, each tile: tickets -> dealt, in both blocks
//! producer each tile, each stage: wait empty -> TMA -> full, in the leader
//! relay    wgrad, stages with rows past a group: wait soiled -> cleared -> clear, in the leader
//! issuer   leader, each tile: wait drained; each stage: wait full -> products -> empty;  accumulated
//! consumer each tile: wait accumulated -> sums -> drained, D;  or in wgrad, each panel: wait open -> sums -> ready
//! carrier  wgrad, each panel: open, with what D holds;  wait ready -> D
//! all                                                                        cluster barrier
//! ```
//!
//! The consumers' sums are 96 a thread for as long as they are brought out, so that all warps have the
//! registers that 384 threads leave each, and none have to move.

use super::gemm::Body;
use crate::gemm::GemmArgs;
use crate::gemm::pair::{TENSOR_COLUMNS, shared_plan};
use crate::mma::sm100::Tcgen05;
use crate::ptx::{fence, reg, shared};
use crate::role::carry::Rings;
use crate::role::pair::bring::bring;
use crate::role::pair::clear::clear;
use crate::role::pair::deal::deal;
use crate::role::pair::elements::Elements;
use crate::role::pair::issue::issue;
use crate::role::pair::load::load;
use crate::role::product::{Maps, Product};
use crate::role::store::WayOut;
use crate::role::table::{self, SharedTable};
use crate::role::tickets::Drawn;
use crate::schedule::grouped::{Problem, Tiles};
use crate::sync::pair::{Dealt, LEADER, Pair};
use crate::{tensor_alloc, tensor_dealloc, tensor_relinquish, warp_sync};

/// The warp that allocates and frees tensor memory; its first thread is the issuer.
pub(super) const ISSUER: u32 = 3;

/// The carrier: of the dealer's warp, since that mostly waits.
const CARRIER: u32 = 65;

/// All threads of both blocks meet. Tensor memory is allocated and freed in the order of the threads that
/// do so; products and loads are known to be done when they come here: so no tcgen05 fences.
///
/// # Safety
/// All of them call it, the lanes of each warp together.
macro_rules! meet {
    () => {{
        $crate::cluster_arrive!("arrive");
        $crate::cluster_wait!("wait");
    }};
}
pub(super) use meet;

impl<E: Elements> Body for Tcgen05<E> {
    const IN_TWO_BYTES: u32 = E::IN_TWO_BYTES;
    type Tiles = Dealt;
    type Beside = E::Beside;

    #[inline(always)]
    unsafe fn gemm<P: Product, W: WayOut>(
        maps: impl FnOnce() -> Maps<E::Beside>,
        problem: Problem,
        args: &GemmArgs,
        way: impl FnOnce() -> W,
        carrier: impl FnOnce(Dealt, u32, Rings),
    ) {
        let plan = shared_plan(args.groups);
        let base = shared::dynamic_base();
        let pair = Pair::new(reg::cluster_rank(), base, &plan);
        let table = SharedTable::new(args.groups, base.add(plan.table));
        let (thread, warp) = (reg::thread_idx(), reg::thread_idx() / 32);
        let leads = pair.rank == LEADER;

        if thread == 0 {
            // SAFETY: one thread of each block, before they meet.
            unsafe { pair.init(P::RELAYED) };
            fence::mbarrier_init();
        }
        if warp == ISSUER {
            // SAFETY: one warp of each block, all of it; the word is the block's.
            unsafe {
                tensor_alloc!(base.add(plan.tensor), TENSOR_COLUMNS);
                tensor_relinquish!();
            }
        }
        if leads {
            // SAFETY: every thread of the leader is here.
            unsafe { table::build::<E::Tiling>(table, &problem, args) };
        }
        // SAFETY: every thread is here.
        let tensor = unsafe {
            meet!();
            shared::load_u32(base.add(plan.tensor))
        };

        // SAFETY: a consumer is a warpgroup, the relay a warp, the others a thread each.
        unsafe {
            if warp >= 4 {
                bring::<P, W>(&problem, way(), warp / 4 - 1, pair, tensor, base, &plan);
            } else if thread == 0 {
                load::<P, E>(&problem, maps(), pair, base, &plan);
            } else if P::RELAYED && warp == 1 {
                clear::<P, E>(&problem, pair, base, &plan);
            } else if leads && thread == 64 {
                let tiles = Tiles::<_, E::Tiling>::new(table, problem);
                deal(Drawn::new(tiles, args.tickets, reg::cluster_idx()), pair);
            } else if P::RELAYED && thread == CARRIER {
                let staging = base.add(plan.staging);
                let rings = Rings::new(staging, pair.open(0), pair.ready(0));
                carrier(Dealt::new(pair), pair.rank * problem.apart(), rings);
            } else if leads && thread == 32 * ISSUER {
                issue::<P, E>(&problem, pair, tensor, base, &plan);
            }
            // Each block's barriers and memory are the other's to use until both are done.
            warp_sync!();
            meet!();
            if warp == ISSUER {
                tensor_dealloc!(tensor, TENSOR_COLUMNS);
            }
        }
    }
}
