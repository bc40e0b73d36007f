//! Planted races: what a race detector must find, or is known not to see.

use mok_kernel::block_sync;
use mok_kernel::ptx::shared::dynamic_base;
use mok_kernel::ptx::{bulk, fence, global, mbarrier, reg, shared};

use crate::spec::ProbeArgs;

/// Reads shared memory without waiting for the bulk copy that fills it. With `mode` 1 it waits.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn probe_race_async(args: ProbeArgs) {
    let base = dynamic_base();
    let bar = base.add(1024);
    let thread = reg::thread_idx();
    // SAFETY: memory-safe; the race is the point.
    unsafe {
        if thread == 0 {
            mbarrier::init(bar, 1);
            fence::mbarrier_init();
        }
        block_sync!();
        if thread == 0 {
            mbarrier::arrive_expect(bar, 256);
            bulk::load(base, args.input as *const u8, 256, bar);
        }
        if args.mode == 1 {
            mbarrier::wait(bar, 0);
        }
        global::store_u32(
            args.output + 4 * thread as u64,
            shared::load_u32(base.add(4 * thread)),
        );
        mbarrier::wait(bar, 0);
    }
}

/// Reads a word that another warp writes, with no barrier between. With `mode` 1 there is one.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn probe_race_plain(args: ProbeArgs) {
    let base = dynamic_base();
    let thread = reg::thread_idx();
    // SAFETY: memory-safe; the race is the point.
    unsafe {
        shared::store_u32(base.add(4 * thread), thread);
        if args.mode == 1 {
            block_sync!();
        }
        global::store_u32(
            args.output + 4 * thread as u64,
            shared::load_u32(base.add(4 * (thread ^ 32))),
        );
    }
}
