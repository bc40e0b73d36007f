//! Memory and proxy fences ("membar/fence").

use core::arch::asm;

macro_rules! fences {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() {
            // SAFETY: a fence orders accesses; it makes none.
            unsafe { asm!($text, options(nostack)) };
        }
    )*};
}

fences! {
    /// Ordinary accesses to shared memory before it are visible to bulk copies, TMA
    /// and tensor cores after it (the asynchronous proxy).
    proxy_async_shared = "fence.proxy.async.shared::cta;";
    /// Ordinary accesses to global memory before it are visible to bulk copies and TMA after it.
    proxy_async_global = "fence.proxy.async.global;";
    /// Both of the above, in every state space.
    proxy_async = "fence.proxy.async;";
    /// Initialised mbarriers are visible to the cluster and to the asynchronous proxy.
    mbarrier_init = "fence.mbarrier_init.release.cluster;";
    /// Orders with acquire-release semantics among the threads of the block.
    acq_rel_block = "fence.acq_rel.cta;";
    /// Among the threads of the cluster.
    acq_rel_cluster = "fence.acq_rel.cluster;";
    /// Among the threads of this GPU.
    acq_rel_gpu = "fence.acq_rel.gpu;";
    /// Among the threads of all GPUs and the host.
    acq_rel_sys = "fence.acq_rel.sys;";
}

/// A tensor map in global memory, written by the host or another kernel, may be used by this block
/// ("fence.proxy.tensormap").
///
/// # Safety
/// `map` points to a 128-byte tensor map, 64-byte aligned.
#[inline(always)]
pub unsafe fn tensormap_acquire_sys(map: *const u8) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("fence.proxy.tensormap::generic.acquire.sys [{0}], 128;", in(reg64) map, options(nostack))
    };
}
