//! Tensor copies: boxes of 1D to 5D tensors ("cp.async.bulk.tensor").
//!
//! The map states shape, strides, box, swizzle and fill; coordinates are in
//! elements, innermost first, and may lie outside the tensor: loads fill those
//! elements, stores leave them out. A load may start before the tensor (negative
//! coordinates); a store or a reduction that does is an illegal instruction on an H200
//! (measured, driver 580), though it may reach past the end.

use core::arch::asm;

use super::shared::{ClusterAddr, SmemAddr};

/// The generic address of a 128-byte tensor map: a by-value parameter, or global memory.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct TensorMapRef(pub u64);

/// The generic address of parameter `$index` of the entry named `$entry` (a literal).
///
/// Used by its address alone, a by-value tensor map stays in the parameter's own
/// memory; through a Rust reference it would be copied to local memory first.
#[macro_export]
macro_rules! tensor_map_param {
    ($entry:literal, $index:literal) => {{
        let map: u64;
        ::core::arch::asm!(
            concat!("mov.b64 {0}, ", $entry, "_param_", $index, "; cvta.param.u64 {0}, {0};"),
            out(reg64) map, options(nomem, nostack));
        $crate::ptx::tma::TensorMapRef(map)
    }};
}

/// Brings the map into the descriptor cache.
///
/// # Safety
/// `map` is a valid tensor map.
#[inline(always)]
pub unsafe fn prefetch(map: TensorMapRef) {
    // SAFETY: the caller's contract.
    unsafe { asm!("prefetch.tensormap [{0}];", in(reg64) map.0, options(nostack)) };
}

macro_rules! tensor_copies {
    ($($rank:literal [$($i:literal)*] $coords:literal $load:ident $pair:ident $multicast:ident $store:ident $reduce:ident;)*) => {$(
        #[doc = concat!("Loads the box at `at` of a ", $rank, "D tensor; delivers its bytes to `bar`.")]
        ///
        /// # Safety
        /// `map` is a tensor map of this rank whose box fits at `dst` (128-byte aligned; with a
        /// swizzle, to its own period); `bar` expects the whole box's bytes, filled ones
        /// included; no one else touches the destination until `bar`'s phase completes.
        #[inline(always)]
        pub unsafe fn $load(dst: SmemAddr, map: TensorMapRef, at: [i32; $rank], bar: SmemAddr) {
            // SAFETY: the caller's contract.
            unsafe {
                asm!(concat!("cp.async.bulk.tensor.", $rank, "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{dst}], [{map}, ", $coords, "], [{bar}];"),
                    $(in(reg32) at[$i],)*
                    dst = in(reg32) dst.0, map = in(reg64) map.0, bar = in(reg32) bar.0, options(nostack));
            }
        }

        #[doc = concat!("[`", stringify!($load), "`] whose bytes an mbarrier of either block of a pair counts, sm_100a and later.")]
        ///
        /// # Safety
        #[doc = concat!("As [`", stringify!($load), "`], the other block having started and not ending before the load is done.")]
        #[inline(always)]
        pub unsafe fn $pair(dst: SmemAddr, map: TensorMapRef, at: [i32; $rank], bar: ClusterAddr) {
            // SAFETY: the caller's contract.
            unsafe {
                asm!(concat!("cp.async.bulk.tensor.", $rank, "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 [{dst}], [{map}, ", $coords, "], [{bar}];"),
                    $(in(reg32) at[$i],)*
                    dst = in(reg32) dst.0, map = in(reg64) map.0, bar = in(reg32) bar.0, options(nostack));
            }
        }

        #[doc = concat!("[`", stringify!($load), "`] to the same offset of every block of the cluster in `mask`; each block's own mbarrier at `bar`'s offset gets the bytes.")]
        ///
        /// # Safety
        #[doc = concat!("As [`", stringify!($load), "`], in every block of the mask.")]
        #[inline(always)]
        pub unsafe fn $multicast(dst: SmemAddr, map: TensorMapRef, at: [i32; $rank], bar: SmemAddr, mask: u16) {
            // SAFETY: the caller's contract.
            unsafe {
                asm!(concat!("cp.async.bulk.tensor.", $rank, "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [{dst}], [{map}, ", $coords, "], [{bar}], {mask};"),
                    $(in(reg32) at[$i],)*
                    dst = in(reg32) dst.0, map = in(reg64) map.0, bar = in(reg32) bar.0, mask = in(reg16) mask, options(nostack));
            }
        }

        #[doc = concat!("Stores the box at `at` of a ", $rank, "D tensor from shared memory, in the current bulk group.")]
        ///
        /// # Safety
        /// `map` is a tensor map of this rank, `src` holds its box; the source stays as it is
        /// until the group's reads are done, and ordinary writes to it came before a proxy fence.
        #[inline(always)]
        pub unsafe fn $store(map: TensorMapRef, at: [i32; $rank], src: SmemAddr) {
            // SAFETY: the caller's contract.
            unsafe {
                asm!(concat!("cp.async.bulk.tensor.", $rank, "d.global.shared::cta.tile.bulk_group [{map}, ", $coords, "], [{src}];"),
                    $(in(reg32) at[$i],)*
                    src = in(reg32) src.0, map = in(reg64) map.0, options(nostack));
            }
        }

        #[doc = concat!("[`", stringify!($store), "`] that adds to what is there (order of arrival: never on results that must be deterministic, but for integers).")]
        ///
        /// # Safety
        #[doc = concat!("As [`", stringify!($store), "`].")]
        #[inline(always)]
        pub unsafe fn $reduce(map: TensorMapRef, at: [i32; $rank], src: SmemAddr) {
            // SAFETY: the caller's contract.
            unsafe {
                asm!(concat!("cp.reduce.async.bulk.tensor.", $rank, "d.global.shared::cta.add.tile.bulk_group [{map}, ", $coords, "], [{src}];"),
                    $(in(reg32) at[$i],)*
                    src = in(reg32) src.0, map = in(reg64) map.0, options(nostack));
            }
        }
    )*};
}

tensor_copies! {
    1 [0] "{{{0}}}" load_1d load_pair_1d load_multicast_1d store_1d reduce_add_1d;
    2 [0 1] "{{{0}, {1}}}" load_2d load_pair_2d load_multicast_2d store_2d reduce_add_2d;
    3 [0 1 2] "{{{0}, {1}, {2}}}" load_3d load_pair_3d load_multicast_3d store_3d reduce_add_3d;
    4 [0 1 2 3] "{{{0}, {1}, {2}, {3}}}" load_4d load_pair_4d load_multicast_4d store_4d reduce_add_4d;
    5 [0 1 2 3 4] "{{{0}, {1}, {2}, {3}, {4}}}" load_5d load_pair_5d load_multicast_5d store_5d reduce_add_5d;
}
