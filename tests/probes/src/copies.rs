//! Bulk and tensor copies through shared memory.

use mok_kernel::entry::gemm::TensorMapParam;
use mok_kernel::ptx::shared::{SmemAddr, dynamic_base};
use mok_kernel::ptx::tma::{self, TensorMapRef};
use mok_kernel::ptx::{bulk, fence, mbarrier, reg, shared};
use mok_kernel::{block_sync, cluster_arrive, cluster_wait, tensor_map_param};

use crate::spec::ProbeArgs;

/// The mbarrier behind the data.
const BAR: u32 = 48 * 1024;

/// An mbarrier for one arrival, ready for the asynchronous proxy.
///
/// # Safety
/// All threads of the block call it, once.
unsafe fn one_barrier(base: SmemAddr) -> SmemAddr {
    let bar = base.add(BAR);
    // SAFETY: one thread initialises, then all wait.
    unsafe {
        if reg::thread_idx() == 0 {
            mbarrier::init(bar, 1);
            fence::mbarrier_init();
        }
        block_sync!();
    }
    bar
}

/// Copies `bytes` in, adds one to each word with ordinary accesses, copies out; twice, so
/// that both parities are seen.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn probe_bulk(args: ProbeArgs) {
    let base = dynamic_base();
    // SAFETY: one block with 64 KiB; `bytes` of input and twice as many of output are valid.
    unsafe {
        let bar = one_barrier(base);
        let mut round = 0;
        while round < 2 {
            if reg::thread_idx() == 0 {
                if round == 0 {
                    mbarrier::arrive_expect(bar, args.bytes);
                } else {
                    mbarrier::expect(bar, args.bytes);
                    mbarrier::arrive(bar);
                }
                bulk::load(base, args.input as *const u8, args.bytes, bar);
            }
            if reg::thread_idx() < 32 {
                mbarrier::wait(bar, round);
            } else {
                while !mbarrier::test_wait(bar, round) {}
            }
            let mut word = reg::thread_idx();
            while word < args.bytes / 4 {
                let at = base.add(4 * word);
                shared::store_u32(at, shared::load_u32(at) + 1 + round);
                word += 64;
            }
            fence::proxy_async_shared();
            block_sync!();
            if reg::thread_idx() == 0 {
                bulk::store(
                    (args.output + (round * args.bytes) as u64) as *mut u8,
                    base,
                    args.bytes,
                );
                bulk::commit();
                // Only the source must be free for the next round; the last one waits in full.
                if round == 0 {
                    bulk::wait_read::<0>()
                } else {
                    bulk::wait::<0>()
                }
            }
            block_sync!();
            round += 1;
        }
        if reg::thread_idx() == 0 {
            mbarrier::invalidate(bar);
        }
    }
}

macro_rules! tensor_probes {
    ($($rank:literal $name:ident $text:literal $load:ident $store:ident $reduce:ident, $mc_name:ident $mc_text:literal $multicast:ident;)*) => {$(
        /// Loads the box at `at`; stores it through the second map, adds it (f32) through the
        /// third. `mode`: 1 only stores, 2 only adds.
        #[unsafe(no_mangle)]
        unsafe extern "ptx-kernel" fn $name(_a: TensorMapParam, _b: TensorMapParam, _c: TensorMapParam, args: ProbeArgs) {
            let base = dynamic_base();
            // SAFETY: the maps are valid and of this rank, `bytes` is their box's size.
            unsafe {
                let (input, output, sum): (TensorMapRef, TensorMapRef, TensorMapRef) =
                    (tensor_map_param!($text, 0), tensor_map_param!($text, 1), tensor_map_param!($text, 2));
                let bar = one_barrier(base);
                let mut at = [0; $rank];
                let mut i = 0;
                while i < $rank {
                    at[i] = args.at[i];
                    i += 1;
                }
                if reg::thread_idx() == 0 {
                    tma::prefetch(input);
                    mbarrier::arrive_expect(bar, args.bytes);
                    tma::$load(base, input, at, bar);
                    mbarrier::wait(bar, 0);
                    if args.mode != 2 {
                        tma::$store(output, at, base);
                    }
                    if args.mode != 1 {
                        tma::$reduce(sum, at, base);
                    }
                    bulk::commit();
                    bulk::wait::<0>();
                }
            }
        }

        /// The first block of a cluster loads the box for both; each copies it out linearly.
        #[unsafe(no_mangle)]
        unsafe extern "ptx-kernel" fn $mc_name(_a: TensorMapParam, _b: TensorMapParam, _c: TensorMapParam, args: ProbeArgs) {
            let base = dynamic_base();
            // SAFETY: as above; both blocks have initialised their mbarriers before the load.
            unsafe {
                let input: TensorMapRef = tensor_map_param!($mc_text, 0);
                let bar = one_barrier(base);
                if reg::thread_idx() == 0 {
                    mbarrier::arrive_expect(bar, args.bytes);
                }
                cluster_arrive!();
                cluster_wait!();
                let mut at = [0; $rank];
                let mut i = 0;
                while i < $rank {
                    at[i] = args.at[i];
                    i += 1;
                }
                if reg::thread_idx() == 0 {
                    if reg::cluster_rank() == 0 {
                        tma::$multicast(base, input, at, bar, 0b11);
                    }
                    while !mbarrier::try_wait_cluster(bar, 0) {}
                    bulk::store((args.output + (reg::cluster_rank() * args.bytes) as u64) as *mut u8, base, args.bytes);
                    bulk::commit();
                    bulk::wait::<0>();
                }
                cluster_arrive!();
                cluster_wait!();
            }
        }
    )*};
}

tensor_probes! {
    1 probe_tma_1d "probe_tma_1d" load_1d store_1d reduce_add_1d, probe_multicast_1d "probe_multicast_1d" load_multicast_1d;
    2 probe_tma_2d "probe_tma_2d" load_2d store_2d reduce_add_2d, probe_multicast_2d "probe_multicast_2d" load_multicast_2d;
    3 probe_tma_3d "probe_tma_3d" load_3d store_3d reduce_add_3d, probe_multicast_3d "probe_multicast_3d" load_multicast_3d;
    4 probe_tma_4d "probe_tma_4d" load_4d store_4d reduce_add_4d, probe_multicast_4d "probe_multicast_4d" load_multicast_4d;
    5 probe_tma_5d "probe_tma_5d" load_5d store_5d reduce_add_5d, probe_multicast_5d "probe_multicast_5d" load_multicast_5d;
}

/// Loads a 2D box through a map that lies in device memory at `input`, copies it out linearly.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn probe_map_in_memory(args: ProbeArgs) {
    let base = dynamic_base();
    // SAFETY: `input` is a valid 2D map, 64-byte aligned, whose box has `bytes` bytes.
    unsafe {
        let bar = one_barrier(base);
        if reg::thread_idx() == 0 {
            fence::tensormap_acquire_sys(args.input as *const u8);
            mbarrier::arrive_expect(bar, args.bytes);
            tma::load_2d(
                base,
                TensorMapRef(args.input),
                [args.at[0], args.at[1]],
                bar,
            );
            mbarrier::wait(bar, 0);
            bulk::store(args.output as *mut u8, base, args.bytes);
            bulk::commit();
            bulk::wait::<0>();
        }
    }
}
