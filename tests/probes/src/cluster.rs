//! Clusters of four blocks of 64 threads.

use mok_kernel::ptx::shared::dynamic_base;
use mok_kernel::ptx::{bulk, fence, global, mbarrier, reg, shared};
use mok_kernel::{block_sync, cluster_arrive, cluster_wait};

use crate::spec::ProbeArgs;

/// Each block writes to the next block's shared memory in three ways and reports what it
/// got itself: `output[block][0..64]` by distributed stores, `[64..128]` by reading the next
/// block's, `[128..192]` by bulk copies between blocks, `[192..256]` from a multicast, and
/// `[256..259]` its rank, cluster size and cluster index.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn probe_cluster(args: ProbeArgs) {
    const WORDS: u32 = 64;
    const OUT: u64 = 260 * 4;
    let base = dynamic_base();
    let (own, sent, received, cast) = (base, base.add(256), base.add(512), base.add(768));
    let (stores, copies, casts) = (base.add(1024), base.add(1032), base.add(1040));
    let (thread, rank) = (reg::thread_idx(), reg::cluster_rank());
    let next = (rank + 1) % 4;
    // SAFETY: every address is inside the dynamic shared memory of a block that lives until
    // the last cluster barrier; the output has 260 words a block, the input 64 words.
    unsafe {
        if thread == 0 {
            mbarrier::init(stores, WORDS);
            mbarrier::init(copies, 1);
            mbarrier::init(casts, 1);
            fence::mbarrier_init();
            mbarrier::arrive_expect(copies, 256);
            mbarrier::arrive_expect(casts, 256);
        }
        shared::store_u32(sent.add(4 * thread), 1000 * reg::block_idx() + thread);
        fence::proxy_async_shared();
        block_sync!();
        cluster_arrive!();
        cluster_wait!();

        shared::store_cluster_u32(
            own.add(4 * thread).in_block(next),
            100 * reg::block_idx() + thread,
        );
        mbarrier::arrive_cluster(stores.in_block(next));
        if thread == 0 {
            bulk::copy_cluster(received.in_block(next), sent, 256, copies.in_block(next));
            if rank == 0 {
                bulk::load_multicast(cast, args.input as *const u8, 256, casts, 0b1111);
            }
        }
        while !mbarrier::try_wait_cluster(stores, 0) {}
        while !mbarrier::try_wait_cluster(copies, 0) {}
        while !mbarrier::try_wait_cluster(casts, 0) {}
        cluster_arrive!();
        cluster_wait!();

        let out = args.output + reg::block_idx() as u64 * OUT;
        let at = |word: u32| out + 4 * word as u64;
        global::store_u32(at(thread), shared::load_u32(own.add(4 * thread)));
        global::store_u32(
            at(64 + thread),
            shared::load_cluster_u32(own.add(4 * thread).in_block(next)),
        );
        global::store_u32(at(128 + thread), shared::load_u32(received.add(4 * thread)));
        global::store_u32(at(192 + thread), shared::load_u32(cast.add(4 * thread)));
        if thread == 0 {
            global::store_u32(at(256), rank);
            global::store_u32(at(257), reg::cluster_size());
            global::store_u32(at(258), reg::cluster_idx());
        }
        cluster_arrive!();
        cluster_wait!();
    }
}
