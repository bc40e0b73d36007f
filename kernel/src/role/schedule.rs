//! From all ranks' choices of experts to the rows of this rank's experts.

use crate::failure::Code;
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::{atom, global, reg};
use crate::role::peers::{Failure, fail, failed, region};
use crate::route::{Route, SEGMENT, first_expert, segment};
use crate::unfused::{PublishArgs, STATE_FAILED, ScheduleArgs};
use crate::{block_sync, match_any, shuffle, shuffle_up, shuffle_xor, warp_sync};

/// Any grid `(blocks, ranks)`: the rank's choices go to rank `y`.
///
/// # Safety
/// `args` describes live memory; the peers have read what was there before.
#[inline(always)]
pub unsafe fn publish(args: &PublishArgs) {
    let rank = &args.rank;
    // SAFETY: this rank's part of the peer's region, which nobody reads before the next signal.
    unsafe {
        if failed(rank.state) {
            return;
        }
        let peer = region(rank, reg::block_idx_y());
        let to = peer + rank.plan.routes + rank.rank as u64 * rank.plan.routes_stride;
        let routes = args.tokens * args.top_k;
        let mut route = reg::block_idx() * reg::block_dim() + reg::thread_idx();
        if route == 0 {
            let tokens = peer + rank.plan.tokens + 4 * rank.rank as u64;
            global::store_u32(tokens, args.tokens);
            if reg::block_idx_y() == 0 {
                global::store_u32(args.token_count, args.tokens);
            }
        }
        while route < routes {
            let expert = global::load_u32(args.topk_experts + 4 * route as u64);
            global::store_u32(to + 4 * route as u64, expert);
            route += reg::grid_dim() * reg::block_dim();
        }
    }
}

/// What a chunk's routes are: `tokens x ranks x top_k`, in the order of rows.
#[derive(Clone, Copy)]
struct Chunk {
    own: u64,
    first_token: u32,
    /// Places in the chunk, with and without a route.
    places: u32,
}

/// A place in a chunk.
struct Choice {
    route: Route,
    /// The expert as it was chosen; -1 if there is none.
    expert: i32,
}

impl Chunk {
    /// # Safety
    /// `args` describes live memory.
    #[inline(always)]
    unsafe fn of_block(args: &ScheduleArgs) -> Chunk {
        Chunk {
            // SAFETY: the caller's contract.
            own: unsafe { region(&args.rank, args.rank.rank) },
            first_token: reg::block_idx() * args.chunk_tokens,
            places: args.chunk_tokens * args.rank.ranks * args.top_k,
        }
    }

    /// # Safety
    /// As [`Chunk::of_block`]; `place` is in the chunk.
    #[inline(always)]
    unsafe fn at(&self, args: &ScheduleArgs, place: u32) -> Choice {
        // Never 0; said so that no division can panic.
        let top_k = args.top_k.max(1);
        let per_token = (args.rank.ranks * top_k).max(1);
        let (token, rest) = (self.first_token + place / per_token, place % per_token);
        let (rank, k) = (rest / top_k, rest % top_k);
        let plan = &args.rank.plan;
        let mut expert = -1;
        // SAFETY: inside the rank's own region, which nobody writes before the next signal.
        unsafe {
            if token < global::load_u32(self.own + plan.tokens + 4 * rank as u64) {
                let routes = self.own + plan.routes + rank as u64 * plan.routes_stride;
                let route = token as u64 * args.top_k as u64 + k as u64;
                expert = global::load_u32(routes + 4 * route) as i32;
            }
        }
        Choice {
            route: Route::new(rank, token, k),
            expert,
        }
    }
}

/// A block for each chunk: counts its routes by expert, and looks for bad ones.
///
/// # Safety
/// All threads of the block run it, with a word of shared memory for each expert; `args`
/// describes live memory, and every rank's choices are there.
#[inline(always)]
pub unsafe fn count(args: &ScheduleArgs) {
    let counters = shared::dynamic_base();
    let thread = reg::thread_idx();
    let at = |expert: u32| counters.add(4 * expert);
    // SAFETY: no kernel of this rank runs beside this one.
    if unsafe { failed(args.rank.state) } {
        return;
    }
    let mut expert = thread;
    while expert < args.experts {
        // SAFETY: one thread a word.
        unsafe { shared::store_u32(at(expert), 0) };
        expert += reg::block_dim();
    }
    // SAFETY: every thread is here.
    unsafe { block_sync!() };
    // SAFETY: the caller's contract; counters and the bad route are changed atomically.
    unsafe {
        let chunk = Chunk::of_block(args);
        let mut place = thread;
        while place < chunk.places {
            let choice = chunk.at(args, place);
            if choice.expert >= 0 && choice.expert < args.experts as i32 {
                shared::add_u32(at(choice.expert as u32), 1);
            } else if choice.expert != -1 {
                atom::min_relaxed_gpu_u64(args.bad as *mut u64, choice.route.0 as u64);
            }
            place += reg::block_dim();
        }
    }
    // SAFETY: every thread is here.
    unsafe { block_sync!() };
    let (first, last) = local(args);
    let mut expert = thread;
    while expert < args.experts {
        // SAFETY: the counters are complete; the block's own row of counts; totals are added to.
        unsafe {
            let routes = shared::load_u32(at(expert));
            if expert >= first && expert < last {
                let row = reg::block_idx() as u64 * (last - first) as u64;
                global::store_u32(args.counts + 4 * (row + (expert - first) as u64), routes);
            }
            if routes > 0 {
                let total = (args.totals + 4 * expert as u64) as *mut u32;
                atom::add_relaxed_gpu_u32(total, routes);
            }
        }
        expert += reg::block_dim();
    }
}

/// The first expert of this rank, and the one after its last.
#[inline(always)]
fn local(args: &ScheduleArgs) -> (u32, u32) {
    let (rank, ranks) = (args.rank.rank, args.rank.ranks);
    (
        first_expert(rank, args.experts, ranks),
        first_expert(rank + 1, args.experts, ranks),
    )
}

/// The sum over the lanes of a warp, in every lane.
macro_rules! warp_sum {
    ($value:expr) => {{
        let mut sum: u32 = $value;
        sum += shuffle_xor!(sum, 1u32, 1);
        sum += shuffle_xor!(sum, 2u32, 2);
        sum += shuffle_xor!(sum, 4u32, 4);
        sum += shuffle_xor!(sum, 8u32, 8);
        sum += shuffle_xor!(sum, 16u32, 16);
        sum
    }};
}

/// The sum over the lanes up to this one.
macro_rules! warp_scan {
    ($value:expr, $lane:expr) => {{
        let mut sum: u32 = $value;
        warp_scan!(@step sum, $lane, 1);
        warp_scan!(@step sum, $lane, 2);
        warp_scan!(@step sum, $lane, 4);
        warp_scan!(@step sum, $lane, 8);
        warp_scan!(@step sum, $lane, 16);
        sum
    }};
    (@step $sum:ident, $lane:expr, $delta:literal) => {
        let before = shuffle_up!($sum, $delta, $delta);
        if $lane >= $delta {
            $sum += before;
        }
    };
}

/// Segments that this lane's share of some experts needs.
///
/// # Safety
/// `args` describes live memory, and the totals are complete.
#[inline(always)]
unsafe fn segments(args: &ScheduleArgs, first: u32, last: u32, lane: u32) -> u32 {
    let mut sum = 0;
    let mut expert = first + lane;
    while expert < last {
        // SAFETY: the caller's contract.
        let rows = unsafe { global::load_u32(args.totals + 4 * expert as u64) };
        sum += (segment(rows) / SEGMENT as u64) as u32;
        expert += 32;
    }
    sum
}

/// A block of one warp for each local expert, and at least one: sizes, and first rows.
///
/// # Safety
/// All lanes run it; `args` describes live memory, and `count` is complete.
#[inline(always)]
pub unsafe fn place(args: &ScheduleArgs) {
    let (lane, block) = (reg::lane(), reg::block_idx());
    let (first, last) = local(args);
    // Another block of this launch may set it meanwhile: then all of them write zeros.
    // SAFETY: an atomic read of the rank's own word.
    let gone =
        unsafe { atom::load_relaxed_gpu_u64((args.rank.state + 8 * STATE_FAILED) as *const u64) }
            != 0;
    if gone {
        // What `count` would have left isn't there. If it was this launch that failed, the same
        // is written below.
        // SAFETY: a word of this block, and one of block 0.
        unsafe {
            if lane == 0 && block < last - first {
                global::store_u32(args.sizes + 4 * block as u64, 0);
            }
            if lane == 0 && block == 0 {
                global::store_u32(args.row_total, 0);
            }
        }
        return;
    }
    // The rank that needs most, and what this one needs.
    let (mut most, mut most_rank, mut own) = (0, 0, 0);
    let mut rank = 0;
    while rank < args.rank.ranks {
        let from = first_expert(rank, args.experts, args.rank.ranks);
        let to = first_expert(rank + 1, args.experts, args.rank.ranks);
        // SAFETY: all lanes are here.
        let needs = unsafe { warp_sum!(segments(args, from, to, lane)) };
        if needs > most {
            (most, most_rank) = (needs, rank);
        }
        if rank == args.rank.rank {
            own = needs;
        }
        rank += 1;
    }
    // SAFETY: `count` is complete.
    let bad = unsafe { global::load_u64(args.bad) };
    let overflows = most > args.capacity / SEGMENT;
    if block == 0 && lane == 0 {
        if bad != u64::MAX {
            let route = Route(bad as u32);
            let plan = &args.rank.plan;
            // SAFETY: inside the rank's own region.
            unsafe {
                let routes = region(&args.rank, args.rank.rank)
                    + plan.routes
                    + route.rank() as u64 * plan.routes_stride;
                let at = route.token() as u64 * args.top_k as u64 + route.k() as u64;
                fail(
                    &args.rank,
                    Failure {
                        code: Code::BadExpert,
                        rank: route.rank(),
                        place: route.token() as u64,
                        k: route.k(),
                        expected: args.experts as u64,
                        seen: global::load_u32(routes + 4 * at) as u64,
                    },
                );
            }
        } else if overflows {
            // SAFETY: the caller's contract.
            unsafe {
                fail(
                    &args.rank,
                    Failure {
                        code: Code::Overflow,
                        rank: most_rank,
                        place: 0,
                        k: 0,
                        expected: args.capacity as u64,
                        seen: most as u64 * SEGMENT as u64,
                    },
                );
            }
        }
    }
    let nothing = overflows || bad != u64::MAX;
    if block == 0 && lane == 0 {
        let rows = if nothing { 0 } else { own * SEGMENT };
        // SAFETY: one thread of the launch writes it.
        unsafe { global::store_u32(args.row_total, rows) };
    }
    if block >= last - first {
        return;
    }
    // SAFETY: all lanes are here; each block has a column of counts and a size of its own.
    unsafe {
        let mut row = SEGMENT * warp_sum!(segments(args, first, first + block, lane));
        if lane == 0 {
            let rows = global::load_u32(args.totals + 4 * (first + block) as u64);
            let size = args.sizes + 4 * block as u64;
            global::store_u32(size, if nothing { 0 } else { rows });
        }
        let mut from = 0;
        while from < args.chunks {
            let chunk = from + lane;
            let at = chunk as u64 * (last - first) as u64 + block as u64;
            let at = args.counts + 4 * at;
            let routes = if chunk < args.chunks {
                global::load_u32(at)
            } else {
                0
            };
            let up_to = warp_scan!(routes, lane);
            if chunk < args.chunks {
                global::store_u32(at, row + up_to - routes);
            }
            row += shuffle!(up_to, 31u32);
            from += 32;
        }
    }
}

/// A block of one warp for each chunk: puts its routes into their rows.
///
/// # Safety
/// All lanes run it, with a word of shared memory for each local expert; `args` describes live
/// memory, and `place` is complete.
#[inline(always)]
pub unsafe fn scatter(args: &ScheduleArgs) {
    let next = shared::dynamic_base();
    let lane = reg::lane();
    let (first, last) = local(args);
    let at = |expert: u32| -> SmemAddr { next.add(4 * (expert - first)) };
    // SAFETY: no kernel of this rank runs beside this one.
    if unsafe { failed(args.rank.state) } {
        return;
    }
    let mut expert = first + lane;
    while expert < last {
        let row = reg::block_idx() as u64 * (last - first) as u64 + (expert - first) as u64;
        // SAFETY: the block's row of first rows, one lane a word.
        unsafe { shared::store_u32(at(expert), global::load_u32(args.counts + 4 * row)) };
        expert += 32;
    }
    // SAFETY: all lanes are here.
    unsafe { warp_sync!() };
    // SAFETY: the caller's contract.
    let chunk = unsafe { Chunk::of_block(args) };
    let mut from = 0;
    while from < chunk.places {
        let place = from + lane;
        let mut expert = u32::MAX;
        let mut route = Route::PADDING;
        if place < chunk.places {
            // SAFETY: inside the chunk.
            let choice = unsafe { chunk.at(args, place) };
            if choice.expert >= first as i32 && choice.expert < last as i32 {
                (expert, route) = (choice.expert as u32, choice.route);
            }
        }
        // SAFETY: all lanes are here. Lanes of one expert take rows in order; the lowest moves on.
        unsafe {
            let same = match_any!(expert);
            let before = same & ((1 << lane) - 1);
            let mut row = 0;
            if expert != u32::MAX {
                row = shared::load_u32(at(expert));
                let own = row + before.count_ones();
                global::store_u32(args.rows + 4 * own as u64, route.0);
            }
            warp_sync!();
            if expert != u32::MAX && before == 0 {
                shared::store_u32(at(expert), row + same.count_ones());
            }
            warp_sync!();
        }
        from += 32;
    }
}
