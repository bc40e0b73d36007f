//! A forward pass in one launch: persistent blocks of a producer, two consumer warpgroups and warps that move
//! rows. Where pairs of blocks multiply: [`pair`].
//!
//! ```text
//! all      group sizes -> table of strips (shared memory)             barrier
//! producer each tile drawn: wait for its rows or for H; each stage: wait empty -> TMA -> full
//! consumer each tile, each stage: wait full -> products -> empty;  sums -> H or Y;  told of when the next is stored
//! movers   each move drawn: stage tokens | meet the ranks | fetch rows | bring rows back
//! all      with no other task left, each token drawn: weighted sum;  barrier; the last block's: the words are zero again
//! ```
//!
//! Registers move from the first warpgroup to the consumers, whose sums alone are 192 a thread.

pub mod pair;

use crate::forward::{ForwardArgs, MAPS, STEPS, word};
use crate::gemm::{CONSUMERS, THREADS, shared_plan};
use crate::mma::Engine;
use crate::ptx::tma::TensorMapRef;
use crate::ptx::{atom, fence, global, reg, shared};
use crate::role::forward::consume::consume;
use crate::role::forward::feed::feed;
use crate::role::forward::settle::Settle;
use crate::role::forward::source::shared_strips;
use crate::role::forward::travel::{travel, weigh_all};
use crate::role::store::BARRIER;
use crate::role::table::{self, SharedTable};
use crate::schedule::forward::{ByStrip, STRIPS, Strips};
use crate::schedule::grouped::{ByBlock, Tiling};
use crate::set_max_registers;
use crate::sync::ring::Ring;
use crate::sync::words::Words;
use crate::{named_sync, shuffle, warp_sync};

/// The named barrier where all threads come when tiles and moves are done, from two places: the warpgroups have different
/// registers, and ptxas doesn't see through it if they go the same way again.
const DONE: u32 = BARRIER + CONSUMERS;
/// And the one where those come that weigh.
const WEIGHED: u32 = DONE + 1;

/// Composes the roles. `maps` gives the first of the tensor maps.
///
/// # Safety
/// All threads run it, launched as [`FORWARD`](crate::forward::FORWARD) says, with the shared memory of its plan
/// for the groups; `args` and the maps describe valid memory.
#[inline(always)]
pub unsafe fn forward<E: Engine>(maps: impl Fn() -> TensorMapRef, args: &ForwardArgs) {
    let gemm = &args.routed.gate_up.gemm;
    let plan = shared_plan(gemm.groups);
    let base = shared::dynamic_base();
    let ring = Ring::new(
        base.add(plan.full),
        base.add(plan.empty),
        base.add(plan.clear),
    );
    let table = SharedTable::new(gemm.groups, base.add(plan.table));
    let words = Words::new(args.words, args.moves.rank.state);
    let thread = reg::thread_idx();
    if thread == 0 {
        // SAFETY: one thread, before the barriers inside `build`.
        unsafe {
            ring.init(false);
        }
        fence::mbarrier_init();
    }
    // SAFETY: every thread is here.
    unsafe { table::build::<ByStrip<ByBlock>>(table, &STRIPS, gemm) };

    let warpgroup = thread / 128;
    if warpgroup == 0 {
        // SAFETY: the whole warpgroup; its first thread is the producer, its other warps movers.
        unsafe {
            set_max_registers!(dec 88);
            if thread == 0 {
                feed(args, table, words, maps(), ring, base, &plan);
            } else if thread >= 32 {
                travel::<ByBlock>(args, base.add(plan.table), words);
            }
            warp_sync!("together");
            // Consumers have taken their registers and given them back by then; with these there are more loads
            // in flight.
            named_sync!(DONE, THREADS, 0, "helpers");
            set_max_registers!(inc 208);
            weigh_all::<true>(args, words);
            named_sync!(WEIGHED, 128);
            if thread < 32 {
                end::<ByBlock>(args, words, table);
            }
        }
    } else {
        // SAFETY: the whole warpgroup, one part each.
        unsafe {
            set_max_registers!(inc 208);
            let way = Settle::new(args, maps, words);
            consume::<E>(way, warpgroup - 1, ring, base, &plan);
            set_max_registers!(dec 24);
            named_sync!(DONE, THREADS, 0, "consumers");
        }
    }
}

/// The block has ended; the last one makes the words zero again.
///
/// # Safety
/// One warp of the block runs it, after all others are done.
#[inline(always)]
unsafe fn end<S: Tiling>(args: &ForwardArgs, words: Words, table: SharedTable) {
    let mut ended = 0;
    // SAFETY: all lanes are here; the words are the launch's.
    unsafe {
        if reg::lane() == 0 {
            ended = atom::add_acq_rel_gpu_u64(words.at(word::ENDED) as *mut u64, 1) as u32;
        }
        ended = shuffle!(ended, 0u32);
        warp_sync!("ended");
        if ended + 1 == reg::grid_dim() {
            clear::<S>(args, words, table);
        }
    }
}

/// Makes the words zero again.
///
/// # Safety
/// The lanes of a warp of the last block run it; all others have ended.
#[inline(always)]
unsafe fn clear<S: Tiling>(args: &ForwardArgs, words: Words, table: SharedTable) {
    let zero = |first: u32, count: u32| {
        let mut at = reg::lane();
        while at < count {
            // SAFETY: this thread's word.
            unsafe { global::store_u64(words.at(first + at), 0) };
            at += 32;
        }
    };
    zero(0, word::STRIPS);
    let strips = Strips::<_, S>::new(table, 1).total();
    let mut step = 0;
    while step < STEPS {
        zero(word::STRIPS + step * args.strips, strips);
        step += 1;
    }
    zero(word::STRIPS + STEPS * args.strips, shared_strips::<S>(args));
}

/// The tensor maps, as [`TensorMapParam`](super::gemm::TensorMapParam).
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub struct TensorMapParams(pub [[u64; 16]; 2 * MAPS]);

#[cfg(all(
    feature = "entries",
    any(mok_arch = "sm_90a", mok_arch = "sm_100a", mok_arch = "sm_103a")
))]
mod entries {
    use super::TensorMapParams;
    use crate::forward::ForwardArgs;
    use crate::tensor_map_param;

    /// A forward pass: this rank's `out`, and the other ranks' slots filled.
    ///
    /// # Safety
    /// As its launch spec says; the maps have the products' boxes, `args` describes valid memory.
    #[unsafe(no_mangle)]
    pub unsafe extern "ptx-kernel" fn mok_forward(_maps: TensorMapParams, args: ForwardArgs) {
        // SAFETY: the caller's contract.
        unsafe {
            let maps = || tensor_map_param!("mok_forward", 0);
            #[cfg(mok_arch = "sm_90a")]
            super::forward::<crate::mma::Native>(maps, &args);
            #[cfg(not(mok_arch = "sm_90a"))]
            super::pair::forward(maps, &args);
        }
    }
}
