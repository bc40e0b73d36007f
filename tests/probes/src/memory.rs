//! Scoped atomics and message passing.

use mok_kernel::ptx::{atom, fence, global, reg};

use crate::spec::ProbeArgs;

/// `output`: eight u64 words of counters and flags, then one word a block.
///
/// Every thread adds to the counters in every way; then the last block to arrive (by ticket)
/// reads what all others wrote before they arrived.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn probe_atomics(args: ProbeArgs) {
    let at = |word: u64| args.output + 8 * word;
    let blocks = reg::grid_dim();
    // SAFETY: the output has eight u64 and then `2 * blocks` u32 words, zeroed before.
    unsafe {
        atom::add_relaxed_gpu_u32(at(0) as *mut u32, 1);
        atom::red_release_gpu_u32(at(0) as *mut u32, 2);
        atom::add_acq_rel_sys_u32(at(0) as *mut u32, 3);
        atom::add_relaxed_sys_u32(at(0) as *mut u32, 4);
        atom::red_release_sys_u32(at(0) as *mut u32, 5);
        atom::add_acq_rel_gpu_u32(at(0) as *mut u32, 6);
        atom::add_relaxed_gpu_u64(at(1) as *mut u64, 1 << 33);
        atom::red_release_gpu_u64(at(1) as *mut u64, 2);
        atom::add_acq_rel_sys_u64(at(1) as *mut u64, 3);
        atom::add_relaxed_sys_u64(at(1) as *mut u64, 4);
        atom::red_release_sys_u64(at(1) as *mut u64, 5);
        atom::max_relaxed_gpu_u64(
            at(2) as *mut u64,
            (reg::block_idx() * 1000 + reg::thread_idx()) as u64,
        );
        // A lock-free increment by compare and swap.
        let mut seen = atom::load_relaxed_gpu_u64(at(3) as *const u64);
        loop {
            let old = atom::cas_acq_rel_gpu_u64(at(3) as *mut u64, seen, seen + 1);
            if old == seen {
                break;
            }
            seen = old;
        }
        if reg::thread_idx() == 0 {
            let message = args.output + 64 + 4 * reg::block_idx() as u64;
            global::store_u32(message, reg::block_idx() + 7);
            let ticket = atom::add_acq_rel_gpu_u64(at(4) as *mut u64, 1);
            if ticket == blocks as u64 - 1 {
                let mut sum = 0;
                let mut block = 0;
                while block < blocks {
                    sum += global::load_u32(args.output + 64 + 4 * block as u64);
                    block += 1;
                }
                atom::store_release_sys_u64(at(5) as *mut u64, sum as u64);
                fence::acq_rel_sys();
                atom::store_release_gpu_u32(at(6) as *mut u32, 1);
            }
            // Blocks are resident together: everyone waits for the sum.
            while atom::load_acquire_gpu_u32(at(6) as *const u32) == 0 {
                reg::nanosleep(100);
            }
            let sum = atom::load_acquire_sys_u64(at(5) as *const u64) as u32;
            global::store_u32(
                args.output + 64 + 4 * (blocks + reg::block_idx()) as u64,
                sum,
            );
        }
    }
}
