//! Bulk copies of contiguous bytes ("cp.async.bulk").
//!
//! Addresses and sizes are multiples of 16 bytes. They run in the asynchronous
//! proxy: ordinary writes they read need a [proxy fence](super::fence) first.

use core::arch::asm;

use super::shared::{ClusterAddr, SmemAddr};

/// Global memory to this block's shared memory; delivers `bytes` to `bar`.
///
/// # Safety
/// Both ranges are valid and 16-byte aligned, `bytes` is a multiple of 16 that `bar`
/// expects; no one else touches the destination until `bar`'s phase completes.
#[inline(always)]
pub unsafe fn load(dst: SmemAddr, src: *const u8, bytes: u32, bar: SmemAddr) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{0}], [{1}], {2}, [{3}];",
             in(reg32) dst.0, in(reg64) src, in(reg32) bytes, in(reg32) bar.0, options(nostack));
    }
}

/// [`load`] to the same offset of every block of the cluster in `mask`; each block's own
/// mbarrier at `bar`'s offset gets the bytes.
///
/// # Safety
/// As [`load`], in every block of the mask.
#[inline(always)]
pub unsafe fn load_multicast(dst: SmemAddr, src: *const u8, bytes: u32, bar: SmemAddr, mask: u16) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [{0}], [{1}], {2}, [{3}], {4};",
             in(reg32) dst.0, in(reg64) src, in(reg32) bytes, in(reg32) bar.0, in(reg16) mask, options(nostack));
    }
}

/// This block's shared memory to global memory, in the current bulk group.
///
/// # Safety
/// Both ranges are valid and 16-byte aligned, `bytes` a multiple of 16; the source stays
/// as it is until the group's reads are done.
#[inline(always)]
pub unsafe fn store(dst: *mut u8, src: SmemAddr, bytes: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("cp.async.bulk.global.shared::cta.bulk_group [{0}], [{1}], {2};",
             in(reg64) dst, in(reg32) src.0, in(reg32) bytes, options(nostack));
    }
}

/// This block's shared memory to that of a block of the cluster; delivers `bytes` to the mbarrier `bar` there.
///
/// # Safety
/// As [`load`], the other block having started and not ending before the copy is done.
#[inline(always)]
pub unsafe fn copy_cluster(dst: ClusterAddr, src: SmemAddr, bytes: u32, bar: ClusterAddr) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [{0}], [{1}], {2}, [{3}];",
             in(reg32) dst.0, in(reg32) src.0, in(reg32) bytes, in(reg32) bar.0, options(nostack));
    }
}

/// Closes the thread's current bulk group.
#[inline(always)]
pub fn commit() {
    // SAFETY: touches no memory.
    unsafe { asm!("cp.async.bulk.commit_group;", options(nostack)) };
}

/// Waits until at most `PENDING` of the thread's bulk groups are unfinished, their writes made visible to it.
#[inline(always)]
pub fn wait<const PENDING: u32>() {
    // SAFETY: touches no memory.
    unsafe { asm!("cp.async.bulk.wait_group {0};", const PENDING, options(nostack)) };
}

/// Waits until at most `PENDING` groups still read their source. Says nothing of the writes.
#[inline(always)]
pub fn wait_read<const PENDING: u32>() {
    // SAFETY: touches no memory.
    unsafe { asm!("cp.async.bulk.wait_group.read {0};", const PENDING, options(nostack)) };
}
