//! Fragments, shuffles, registers.

use mok_kernel::ptx::cvt::{pack_bf16, unpack_bf16};
use mok_kernel::ptx::shared::dynamic_base;
use mok_kernel::ptx::{global, reg, shared};
use mok_kernel::{
    ballot, block_sync, load_matrix, named_sync, shuffle, shuffle_up, shuffle_xor, store_matrix,
    warp_sync,
};

use crate::spec::ProbeArgs;

/// Stores a fragment with stmatrix and dumps shared memory, then loads one with ldmatrix and
/// dumps the registers: four 8x8 blocks, a row of 16 bytes each, one block after another.
///
/// `mode`: 0 x4, 1 x4 trans, 2 x2, 3 x2 trans, 4 x1, 5 x1 trans. Output: 128 words of shared
/// memory after the store, then 4 words a lane.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn probe_matrix(args: ProbeArgs) {
    let base = dynamic_base();
    let lane = reg::lane();
    // SAFETY: one warp; 512 bytes of shared memory; 256 words of output, 256 of input.
    unsafe {
        let mut word = 0;
        while word < 4 {
            shared::store_u32(base.add(4 * (32 * word + lane)), 0xdead_beef);
            word += 1;
        }
        warp_sync!();
        let from = |i: u32| global::load_u32(args.input + 4 * (4 * lane + i) as u64);
        let v = [from(0), from(1), from(2), from(3)];
        let row = base.add(16 * lane);
        if args.mode == 0 {
            store_matrix!(x4, row, v);
        } else if args.mode == 1 {
            store_matrix!(x4 trans, row, v);
        } else if args.mode == 2 {
            store_matrix!(x2, row, [v[0], v[1]]);
        } else if args.mode == 3 {
            store_matrix!(x2 trans, row, [v[0], v[1]]);
        } else if args.mode == 4 {
            store_matrix!(x1, row, [v[0]]);
        } else {
            store_matrix!(x1 trans, row, [v[0]]);
        }
        warp_sync!();
        word = 0;
        while word < 4 {
            let at = 32 * word + lane;
            global::store_u32(
                args.output + 4 * at as u64,
                shared::load_u32(base.add(4 * at)),
            );
            word += 1;
        }
        warp_sync!();
        word = 0;
        while word < 4 {
            let at = 32 * word + lane;
            shared::store_u32(
                base.add(4 * at),
                global::load_u32(args.input + 4 * (128 + at) as u64),
            );
            word += 1;
        }
        warp_sync!();
        let r = if args.mode == 0 {
            load_matrix!(x4, row)
        } else if args.mode == 1 {
            load_matrix!(x4 trans, row)
        } else if args.mode == 2 {
            let [a, b] = load_matrix!(x2, row);
            [a, b, 0, 0]
        } else if args.mode == 3 {
            let [a, b] = load_matrix!(x2 trans, row);
            [a, b, 0, 0]
        } else if args.mode == 4 {
            let [a] = load_matrix!(x1, row);
            [a, 0, 0, 0]
        } else {
            let [a] = load_matrix!(x1 trans, row);
            [a, 0, 0, 0]
        };
        let out = args.output + 4 * (128 + 4 * lane) as u64;
        global::store_u32(out, r[0]);
        global::store_u32(out + 4, r[1]);
        global::store_u32(out + 8, r[2]);
        global::store_u32(out + 12, r[3]);
    }
}

/// 16 words a thread: shuffles, votes, registers, timers, conversions, a named barrier.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn probe_warp(args: ProbeArgs) {
    let base = dynamic_base();
    let (thread, lane) = (reg::thread_idx(), reg::lane());
    // SAFETY: whole warps; 512 bytes of shared memory; 16 words of output a thread, 128 f32 of input.
    unsafe {
        let out = args.output + 64 * (reg::block_idx() * reg::block_dim() + thread) as u64;
        let put = |i: u64, value: u32| global::store_u32(out + 4 * i, value);
        put(0, shuffle_xor!(thread, 5u32));
        put(1, shuffle_up!(thread, 3));
        put(2, shuffle!(thread, (lane * 7 + 1) % 32));
        put(3, ballot!((thread % 3 == 0) as u32));
        put(4, reg::block_idx() << 16 | reg::grid_dim());
        put(5, reg::block_dim());
        put(6, lane);
        let (clock, timer) = (reg::clock(), reg::globaltimer());
        reg::nanosleep(20_000);
        put(7, (reg::clock() - clock) as u32);
        put(8, (reg::globaltimer() - timer) as u32);
        let value = f32::from_bits(global::load_u32(args.input + 4 * thread as u64));
        let packed = pack_bf16(value, -value);
        put(9, packed);
        let (low, high) = unpack_bf16(packed);
        put(10, low.to_bits());
        put(11, high.to_bits());
        // Warps 0 and 1 exchange through barrier 3, the others through barrier 4.
        shared::store_u32(base.add(4 * thread), 77 * thread);
        if thread < 64 {
            named_sync!(3u32, 64u32);
        } else {
            named_sync!(4u32, 64u32);
        }
        put(12, shared::load_u32(base.add(4 * (thread ^ 32))));
        block_sync!();
        put(13, shared::load_u32(base.add(4 * (127 - thread))));
        put(14, reg::sm_id());
        put(15, reg::block_idx_y());
    }
}
