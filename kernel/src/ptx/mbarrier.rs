//! Barriers in shared memory that count arrivals and bytes ("mbarrier").

use core::arch::asm;

use super::shared::{ClusterAddr, SmemAddr};

/// Makes an mbarrier whose phases complete after `arrivals` arrivals and all expected bytes.
///
/// # Safety
/// `bar` is 8 bytes of shared memory, 8-byte aligned, that no one uses as an
/// mbarrier; a [fence](super::fence::mbarrier_init) and a barrier follow before others use it.
#[inline(always)]
pub unsafe fn init(bar: SmemAddr, arrivals: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("mbarrier.init.shared::cta.b64 [{0}], {1};", in(reg32) bar.0, in(reg32) arrivals, options(nostack))
    };
}

/// Ends the barrier's life, so that its memory can serve another purpose.
///
/// # Safety
/// `bar` is an initialised mbarrier that no one will use again.
#[inline(always)]
pub unsafe fn invalidate(bar: SmemAddr) {
    // SAFETY: the caller's contract.
    unsafe { asm!("mbarrier.inval.shared::cta.b64 [{0}];", in(reg32) bar.0, options(nostack)) };
}

/// Arrives once, with release order in the block.
///
/// # Safety
/// `bar` is an initialised mbarrier with an arrival pending in its current phase.
#[inline(always)]
pub unsafe fn arrive(bar: SmemAddr) {
    // SAFETY: the caller's contract.
    unsafe { asm!("mbarrier.arrive.shared::cta.b64 _, [{0}];", in(reg32) bar.0, options(nostack)) };
}

/// Arrives once and expects `bytes` more to be delivered in this phase.
///
/// # Safety
/// As [`arrive`]; copies that deliver those bytes to `bar` are issued in this phase.
#[inline(always)]
pub unsafe fn arrive_expect(bar: SmemAddr, bytes: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{0}], {1};", in(reg32) bar.0, in(reg32) bytes, options(nostack));
    }
}

/// Expects `bytes` more in this phase, without arriving.
///
/// # Safety
/// As [`arrive_expect`], an arrival still being pending.
#[inline(always)]
pub unsafe fn expect(bar: SmemAddr, bytes: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{0}], {1};", in(reg32) bar.0, in(reg32) bytes, options(nostack));
    }
}

/// Arrives once at an mbarrier of any block of the cluster, with release order in the cluster.
///
/// # Safety
/// As [`arrive`]; the other block has started and doesn't end before the arrival.
#[inline(always)]
pub unsafe fn arrive_cluster(bar: ClusterAddr) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [{0}];", in(reg32) bar.0, options(nostack))
    };
}

/// [`arrive_cluster`] that orders nothing by itself: for what has fences of its own, as tensor memory
/// does ([`tcgen05`](super::tcgen05)).
///
/// # Safety
/// As [`arrive_cluster`].
#[inline(always)]
pub unsafe fn arrive_cluster_relaxed(bar: ClusterAddr) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [{0}];", in(reg32) bar.0, options(nostack))
    };
}

/// Whether the phase of this parity has completed; may suspend the thread for a while. Acquires in the block.
///
/// # Safety
/// `bar` is an initialised mbarrier; `parity` is that of its current or its last phase.
#[inline(always)]
pub unsafe fn try_wait(bar: SmemAddr, parity: u32) -> bool {
    let done: u32;
    // SAFETY: the caller's contract.
    unsafe {
        asm!("{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [{1}], {2}; selp.b32 {0}, 1, 0, p; }}",
             out(reg32) done, in(reg32) bar.0, in(reg32) parity, options(nostack));
    }
    done != 0
}

/// [`try_wait`] that acquires in the cluster: for phases that other blocks arrive at.
///
/// # Safety
/// As [`try_wait`].
#[inline(always)]
pub unsafe fn try_wait_cluster(bar: SmemAddr, parity: u32) -> bool {
    let done: u32;
    // SAFETY: the caller's contract.
    unsafe {
        asm!("{{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [{1}], {2}; selp.b32 {0}, 1, 0, p; }}",
             out(reg32) done, in(reg32) bar.0, in(reg32) parity, options(nostack));
    }
    done != 0
}

/// [`try_wait`] that never suspends the thread.
///
/// # Safety
/// As [`try_wait`].
#[inline(always)]
pub unsafe fn test_wait(bar: SmemAddr, parity: u32) -> bool {
    let done: u32;
    // SAFETY: the caller's contract.
    unsafe {
        asm!("{{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [{1}], {2}; selp.b32 {0}, 1, 0, p; }}",
             out(reg32) done, in(reg32) bar.0, in(reg32) parity, options(nostack));
    }
    done != 0
}

/// Waits until the phase of this parity has completed.
///
/// Endless if it never does: between the warps of one block only, where the other
/// side's arrival doesn't depend on anything outside the block but memory.
///
/// # Safety
/// As [`try_wait`].
#[inline(always)]
pub unsafe fn wait(bar: SmemAddr, parity: u32) {
    // SAFETY: the caller's contract.
    while !unsafe { try_wait(bar, parity) } {}
}

/// [`wait`] that acquires in the cluster: between blocks of one cluster, which start and end together.
///
/// # Safety
/// As [`try_wait`].
#[inline(always)]
pub unsafe fn wait_cluster(bar: SmemAddr, parity: u32) {
    // SAFETY: the caller's contract.
    while !unsafe { try_wait_cluster(bar, parity) } {}
}
