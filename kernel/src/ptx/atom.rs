//! Atomic accesses with an explicit scope and order ("ld", "st", "atom", "red").
//!
//! LLVM drops the scope and the order of its own atomics on this target, so
//! `core::sync::atomic` must not be used in device code.

use core::arch::asm;

macro_rules! atomics {
    ($ty:ty, $reg:ident, $bits:literal: $($scope:literal $load:ident $load_relaxed:ident $store:ident $add:ident $add_acq_rel:ident $red:ident;)*) => {$(
        #[doc = concat!("Loads with acquire order at ", $scope, " scope.")]
        ///
        /// # Safety
        /// `at` is naturally aligned global memory, accessed by others only atomically.
        #[inline(always)]
        pub unsafe fn $load(at: *const $ty) -> $ty {
            let value: $ty;
            // SAFETY: the caller's contract.
            unsafe { asm!(concat!("ld.acquire.", $scope, ".global.b", $bits, " {0}, [{1}];"), out($reg) value, in(reg64) at, options(nostack)) };
            value
        }

        #[doc = concat!("Loads without order at ", $scope, " scope. Never enough before a TMA read.")]
        ///
        /// # Safety
        /// `at` is naturally aligned global memory, accessed by others only atomically.
        #[inline(always)]
        pub unsafe fn $load_relaxed(at: *const $ty) -> $ty {
            let value: $ty;
            // SAFETY: the caller's contract.
            unsafe { asm!(concat!("ld.relaxed.", $scope, ".global.b", $bits, " {0}, [{1}];"), out($reg) value, in(reg64) at, options(nostack)) };
            value
        }

        #[doc = concat!("Stores with release order at ", $scope, " scope.")]
        ///
        /// # Safety
        /// `at` is naturally aligned global memory, accessed by others only atomically.
        #[inline(always)]
        pub unsafe fn $store(at: *mut $ty, value: $ty) {
            // SAFETY: the caller's contract.
            unsafe { asm!(concat!("st.release.", $scope, ".global.b", $bits, " [{0}], {1};"), in(reg64) at, in($reg) value, options(nostack)) };
        }

        #[doc = concat!("Adds without order at ", $scope, " scope; returns the value before.")]
        ///
        /// # Safety
        /// `at` is naturally aligned global memory, accessed by others only atomically.
        #[inline(always)]
        pub unsafe fn $add(at: *mut $ty, value: $ty) -> $ty {
            let old: $ty;
            // SAFETY: the caller's contract.
            unsafe { asm!(concat!("atom.relaxed.", $scope, ".global.add.u", $bits, " {0}, [{1}], {2};"), out($reg) old, in(reg64) at, in($reg) value, options(nostack)) };
            old
        }

        #[doc = concat!("Adds with acquire and release order at ", $scope, " scope; returns the value before.")]
        ///
        /// # Safety
        /// `at` is naturally aligned global memory, accessed by others only atomically.
        #[inline(always)]
        pub unsafe fn $add_acq_rel(at: *mut $ty, value: $ty) -> $ty {
            let old: $ty;
            // SAFETY: the caller's contract.
            unsafe { asm!(concat!("atom.acq_rel.", $scope, ".global.add.u", $bits, " {0}, [{1}], {2};"), out($reg) old, in(reg64) at, in($reg) value, options(nostack)) };
            old
        }

        #[doc = concat!("Adds with release order at ", $scope, " scope; returns nothing.")]
        ///
        /// # Safety
        /// `at` is naturally aligned global memory, accessed by others only atomically.
        #[inline(always)]
        pub unsafe fn $red(at: *mut $ty, value: $ty) {
            // SAFETY: the caller's contract.
            unsafe { asm!(concat!("red.release.", $scope, ".global.add.u", $bits, " [{0}], {1};"), in(reg64) at, in($reg) value, options(nostack)) };
        }
    )*};
}

atomics! { u32, reg32, "32":
    "gpu" load_acquire_gpu_u32 load_relaxed_gpu_u32 store_release_gpu_u32 add_relaxed_gpu_u32 add_acq_rel_gpu_u32 red_release_gpu_u32;
    "sys" load_acquire_sys_u32 load_relaxed_sys_u32 store_release_sys_u32 add_relaxed_sys_u32 add_acq_rel_sys_u32 red_release_sys_u32;
}
atomics! { u64, reg64, "64":
    "gpu" load_acquire_gpu_u64 load_relaxed_gpu_u64 store_release_gpu_u64 add_relaxed_gpu_u64 add_acq_rel_gpu_u64 red_release_gpu_u64;
    "sys" load_acquire_sys_u64 load_relaxed_sys_u64 store_release_sys_u64 add_relaxed_sys_u64 add_acq_rel_sys_u64 red_release_sys_u64;
}

/// Compare and swap with acquire and release order at gpu scope; returns the value before.
///
/// # Safety
/// `at` is naturally aligned global memory, accessed by others only atomically.
#[inline(always)]
pub unsafe fn cas_acq_rel_gpu_u64(at: *mut u64, expected: u64, value: u64) -> u64 {
    let old: u64;
    // SAFETY: the caller's contract.
    unsafe {
        asm!("atom.acq_rel.gpu.global.cas.b64 {0}, [{1}], {2}, {3};", out(reg64) old, in(reg64) at, in(reg64) expected,
             in(reg64) value, options(nostack));
    }
    old
}

/// Raises a word to at least `value`, without order at gpu scope.
///
/// # Safety
/// `at` is naturally aligned global memory, accessed by others only atomically.
#[inline(always)]
pub unsafe fn max_relaxed_gpu_u64(at: *mut u64, value: u64) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("red.relaxed.gpu.global.max.u64 [{0}], {1};", in(reg64) at, in(reg64) value, options(nostack))
    };
}

/// Lowers a word to at most `value`, without order at gpu scope.
///
/// # Safety
/// `at` is naturally aligned global memory, accessed by others only atomically.
#[inline(always)]
pub unsafe fn min_relaxed_gpu_u64(at: *mut u64, value: u64) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("red.relaxed.gpu.global.min.u64 [{0}], {1};", in(reg64) at, in(reg64) value, options(nostack))
    };
}
