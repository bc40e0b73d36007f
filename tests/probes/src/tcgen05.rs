//! Tensor memory: clusters of two blocks of 128 threads, sm_100a.

use mok_kernel::layout::descriptor::{Major, advance};
use mok_kernel::layout::tcgen05 as layout;
use mok_kernel::mma::accumulators::Accumulators;
use mok_kernel::ptx::shared::{SmemAddr, dynamic_base};
use mok_kernel::ptx::tcgen05::{
    commit_pair, copy_scales_pair, fence_after, fence_before, mma_pair, mma_pair_scaled,
};
use mok_kernel::ptx::{bulk, fence, global, mbarrier, reg, shared};
use mok_kernel::{
    block_sync, cluster_arrive, cluster_wait, tensor_alloc, tensor_dealloc, tensor_load,
    tensor_loaded, tensor_relinquish, warp_sync,
};

use crate::spec::ProbeArgs;

/// Where the barriers are, and the address of tensor memory: behind what is loaded.
const BARRIERS: u32 = 60 * 1024;
const LOADED: u32 = BARRIERS;
const DONE: u32 = BARRIERS + 8;
const TOLD: u32 = BARRIERS + 16;
const TENSOR: u32 = BARRIERS + 24;

/// A fence that `mode` may leave out.
const NO_FENCE: u32 = 1 << 16;

/// Makes barriers, loads `bytes` of the block's own input into shared memory, and allocates `columns`, which are
/// returned, of tensor memory.
///
/// # Safety
/// All threads of both blocks call it, once; the input has `bytes` for each block.
#[inline(always)]
unsafe fn begin(args: &ProbeArgs, columns: u32) -> u32 {
    let base = dynamic_base();
    let (thread, rank) = (reg::thread_idx(), reg::cluster_rank());
    // SAFETY: the caller's contract.
    unsafe {
        if thread == 0 {
            mbarrier::init(base.add(LOADED), 1);
            mbarrier::init(base.add(DONE), 1);
            mbarrier::init(base.add(TOLD), 128);
            fence::mbarrier_init();
            mbarrier::arrive_expect(base.add(LOADED), args.bytes);
            let from = args.input + (rank * args.bytes) as u64;
            bulk::load(base, from as *const u8, args.bytes, base.add(LOADED));
        }
        if thread / 32 == 1 {
            tensor_alloc!(base.add(TENSOR), columns);
        }
        cluster_arrive!("begun");
        cluster_wait!("begun");
        mbarrier::wait(base.add(LOADED), 0);
        // Both blocks have what the leader's products read.
        cluster_arrive!("loaded");
        cluster_wait!("loaded");
        shared::load_u32(base.add(TENSOR))
    }
}

/// Frees tensor memory when both blocks are done with it.
///
/// # Safety
/// All threads of both blocks call it, for what [`begin`] gave.
#[inline(always)]
unsafe fn end(tensor: u32, columns: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        fence_before();
        cluster_arrive!("end");
        cluster_wait!("end");
        fence_after();
        if reg::thread_idx() / 32 == 1 {
            tensor_relinquish!();
            tensor_dealloc!(tensor, columns);
        }
    }
}

/// Waits for the leader's commit, and writes `columns` of tensor memory from `address` on: for each whole 32 columns,
/// and each half of a warp's lanes, sixteen words a thread: `output[block][step][half][thread][16]`.
///
/// # Safety
/// All threads of the block call it; the commit comes to [`DONE`], and there is as much output.
#[inline(always)]
unsafe fn dump(args: &ProbeArgs, address: u32, columns: u32) {
    let thread = reg::thread_idx();
    let lane = thread / 32 * 32;
    let steps = columns / 32;
    // SAFETY: the caller's contract; each warp loads its own lanes.
    unsafe {
        mbarrier::wait(dynamic_base().add(DONE), 0);
        if args.mode & NO_FENCE == 0 {
            fence_after();
        }
        let mut step = 0;
        while step < 2 * steps {
            let at = address + 32 * (step / 2) + ((lane + 16 * (step % 2)) << 16);
            let mut sums = Accumulators::zero();
            let d = &mut sums.0;
            tensor_load!(d, at, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15], 0);
            tensor_loaded!(d);
            let place = (reg::cluster_rank() * 2 * steps + step) * 128 + thread;
            let out = args.output + 64 * place as u64;
            macro_rules! put {
                ($($i:literal)*) => {$(
                    global::store_u32(out + 4 * $i, d[$i].to_bits());
                )*};
            }
            put!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            step = reg::opaque(step + 1);
        }
    }
}

/// Eight copies of 512 bytes to 32 columns, dumped. All of tensor memory is allocated, freed and allocated again
/// before: who didn't free it would wait for ever.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn probe_tensor_copy(args: ProbeArgs) {
    let base = dynamic_base();
    // SAFETY: two blocks of 128 threads; 4 KiB of input and 16 KiB of output for each.
    unsafe {
        if reg::thread_idx() / 32 == 2 {
            tensor_alloc!(base.add(TENSOR), 512u32);
            let all = shared::load_u32(base.add(TENSOR));
            warp_sync!();
            tensor_dealloc!(all, 512u32);
        }
        block_sync!();
        let tensor = begin(&args, 64);
        if reg::cluster_rank() == 0 && reg::thread_idx() == 0 {
            let mut copy = 0;
            while copy < 8 {
                let from = base.add(512 * copy);
                copy_scales_pair(tensor + args.extra + 4 * copy, layout::scales(from.0));
                copy = reg::opaque(copy + 1);
            }
            commit_pair(base.add(DONE).in_block(0), 0b11);
        }
        dump(&args, tensor + args.extra, 32);
        end(tensor, 64);
    }
}

/// `D = A B`, and once more with the old sums kept if bit 2 of `mode` says so, 256 by `extra` by 64 in bf16; bits 0
/// and 1 are the majors of A and B. In each block A's 128 rows are at 0 and half of B's columns at 16 KiB.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn probe_mma_pair(args: ProbeArgs) {
    const PANEL: u32 = 64 * 128;
    let base = dynamic_base();
    let major = |bit: u32| {
        if args.mode >> bit & 1 == 0 {
            Major::K
        } else {
            Major::Mn
        }
    };
    // SAFETY: two blocks of 128 threads; the input has whole operands, the output whole steps of columns.
    unsafe {
        let tensor = begin(&args, 256);
        if reg::cluster_rank() == 0 && reg::thread_idx() == 0 {
            let (a, b) = (major(0), major(1));
            let shape = layout::instruction(256, args.extra, a, b);
            let times = 1 + (args.mode >> 2 & 1);
            let mut step = 0;
            while step < 4 * times {
                let k = step % 4;
                let at = |major: Major, from: SmemAddr| {
                    advance(layout::operand(major, from.0, PANEL), k * major.k_step())
                };
                let keep = (step > 0) as u32;
                mma_pair(tensor, at(a, base), at(b, base.add(2 * PANEL)), shape, keep);
                step = reg::opaque(step + 1);
            }
            commit_pair(base.add(DONE).in_block(0), 0b11);
        }
        dump(&args, tensor, args.extra);
        end(tensor, 256);
    }
}

/// `D = A B` of 256 by `extra` by 128 in MXFP8. In each block A's rows are at 0, half of B's columns at 16 KiB, A's
/// tile of scales at 32 KiB, and two tiles of B's behind it, of which column `mode % 16` on is used.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn probe_mma_scaled(args: ProbeArgs) {
    let base = dynamic_base();
    // SAFETY: as above.
    unsafe {
        let tensor = begin(&args, 512);
        if reg::cluster_rank() == 0 && reg::thread_idx() == 0 {
            let (scales, from) = (tensor + 256, base.add(32 * 1024));
            let mut tile = 0;
            while tile < 3 {
                copy_scales_pair(scales + 4 * tile, layout::scales(from.add(512 * tile).0));
                tile = reg::opaque(tile + 1);
            }
            let shape = layout::instruction_mxfp8(256, args.extra);
            let mut k = 0;
            while k < 4 {
                let at = |from: SmemAddr| advance(layout::operand(Major::K, from.0, 0), 32 * k);
                mma_pair_scaled(
                    tensor,
                    (at(base), at(base.add(16 * 1024))),
                    layout::of_step(shape, k),
                    (scales, scales + 4 + args.mode % 16),
                    (k > 0) as u32,
                );
                k = reg::opaque(k + 1);
            }
            commit_pair(base.add(DONE).in_block(0), 0b11);
        }
        dump(&args, tensor, args.extra);
        end(tensor, 512);
    }
}

/// A commit to the blocks in `extra`, then one to the others: what each block's mbarrier says between them, and
/// after both. `output[block][2]`.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn probe_commit(args: ProbeArgs) {
    let base = dynamic_base();
    let rank = reg::cluster_rank();
    let issues = rank == 0 && reg::thread_idx() == 0;
    let done = base.add(DONE);
    // SAFETY: two blocks of 128 threads; two words of output for each.
    unsafe {
        let tensor = begin(&args, 32);
        if issues {
            copy_scales_pair(tensor, layout::scales(base.0));
            commit_pair(done.in_block(0), args.extra as u16);
        }
        if args.extra >> rank & 1 != 0 {
            mbarrier::wait(done, 0);
        }
        cluster_arrive!("first");
        cluster_wait!("first");
        let first = mbarrier::test_wait(done, 0);
        cluster_arrive!("seen");
        cluster_wait!("seen");
        if issues && args.extra != 0b11 {
            commit_pair(done.in_block(0), !args.extra as u16 & 0b11);
        }
        mbarrier::wait(done, 0);
        if reg::thread_idx() == 0 {
            let out = args.output + 8 * rank as u64;
            global::store_u32(out, first as u32);
            global::store_u32(out + 4, mbarrier::test_wait(done, 0) as u32);
        }
        end(tensor, 32);
    }
}

/// Sums of one product are loaded, handed back by all threads, and dropped by the next product: as a tile's are
/// from consumers to the issuer. With [`NO_FENCE`], they are handed back with no fence before.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn probe_tensor_handback(args: ProbeArgs) {
    const PANEL: u32 = 64 * 128;
    let base = dynamic_base();
    let issues = reg::cluster_rank() == 0 && reg::thread_idx() == 0;
    // SAFETY: as of `probe_mma_pair`, of which the first 32 columns are dumped.
    unsafe {
        let tensor = begin(&args, 32);
        let shape = layout::instruction(256, 32, Major::K, Major::K);
        let product = || {
            let at = |from: SmemAddr| layout::operand(Major::K, from.0, PANEL);
            mma_pair(tensor, at(base), at(base.add(2 * PANEL)), shape, 0);
        };
        if issues {
            product();
            commit_pair(base.add(DONE).in_block(0), 0b11);
        }
        // The fence after the commit is always there.
        let shown = ProbeArgs { mode: 0, ..args };
        dump(&shown, tensor, 32);
        if args.mode & NO_FENCE == 0 {
            fence_before();
        }
        mbarrier::arrive(base.add(TOLD));
        mbarrier::wait(base.add(TOLD), 0);
        cluster_arrive!("told");
        cluster_wait!("told");
        if issues {
            fence_after();
            product();
            commit_pair(base.add(DONE).in_block(0), 0b11);
        }
        mbarrier::wait(base.add(DONE), 1);
        end(tensor, 32);
    }
}
