//! Tensor memory, and products whose sums stand there, sm_100a and sm_103a only ("tcgen05").
//!
//! 128 lanes by 512 columns of 32 bits, by addresses `lane << 16 | column`; warp `w` of a block reaches
//! lanes `32 (w % 4)` to `+ 31`. All here is for pairs of blocks (`.cta_group::2`), since all of a kernel
//! names the same: the even block of a pair issues products that read shared memory of both and
//! accumulate in tensor memory of both.
//!
//! What is asynchronous (products, copies and loads) is ordered by waits of its own ([`commit_pair`],
//! [`tensor_loaded!`](crate::tensor_loaded)); towards other threads' it needs [`fence_before`] whatever
//! tells them and [`fence_after`] what they learn it by.

use core::arch::asm;

use super::shared::ClusterAddr;

/// Columns of tensor memory for both blocks of a pair; their address goes to a word of shared memory:
/// `tensor_alloc!(addr, columns)`. Waits until there are so many.
///
/// # Safety
/// One warp of each block of the pair calls it, all lanes, with the same power of two from 32 to 512;
/// the word is this block's own, 4-byte aligned.
#[macro_export]
macro_rules! tensor_alloc {
    ($addr:expr, $columns:expr) => {{
        $crate::pin!();
        ::core::arch::asm!(
            concat!("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [{0}], {1};", $crate::collective_tag!()),
            in(reg32) $addr.0, in(reg32) $columns, options(nostack))
    }};
}

/// Lets other blocks of the SM allocate: this one won't again.
///
/// # Safety
/// All lanes of a warp of each block of the pair call it.
#[macro_export]
macro_rules! tensor_relinquish {
    () => {{
        $crate::pin!();
        ::core::arch::asm!(
            concat!(
                "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;",
                $crate::collective_tag!()
            ),
            options(nostack)
        )
    }};
}

/// Frees columns: `tensor_dealloc!(address, columns)`.
///
/// # Safety
/// As [`tensor_alloc!`](crate::tensor_alloc), for what it gave, after all use of them by both blocks.
#[macro_export]
macro_rules! tensor_dealloc {
    ($address:expr, $columns:expr) => {{
        $crate::pin!();
        ::core::arch::asm!(
            concat!("tcgen05.dealloc.cta_group::2.sync.aligned.b32 {0}, {1};", $crate::collective_tag!()),
            in(reg32) $address, in(reg32) $columns, options(nostack))
    }};
}

/// Loads 32 columns of 16 lanes from `address` on: `tensor_load!(d, address, [sixteen indices], index)`.
///
/// Lane `l` gets lanes `l / 4` and 8 below, columns `8 j + 2 (l % 4)` and the next, in the order of
/// [wgmma](super::wgmma)'s sums.
///
/// # Safety
/// All lanes of the warp reach the same call; the address is in the warp's lanes, at the first or the
/// seventeenth of them; nothing touches the registers until [`tensor_loaded!`](crate::tensor_loaded).
#[macro_export]
macro_rules! tensor_load {
    ($d:ident, $address:expr, [$i0:literal $i1:literal $i2:literal $i3:literal $i4:literal $i5:literal $i6:literal $i7:literal $i8:literal $i9:literal $i10:literal $i11:literal $i12:literal $i13:literal $i14:literal $i15:literal], $index:literal) => {{
        $crate::pin!();
        ::core::arch::asm!(
            concat!("tcgen05.ld.sync.aligned.16x256b.x4.b32 {{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}}}, [{16}];", $crate::collective_tag!($index)),
            out(reg32) $d[$i0], out(reg32) $d[$i1], out(reg32) $d[$i2], out(reg32) $d[$i3],
            out(reg32) $d[$i4], out(reg32) $d[$i5], out(reg32) $d[$i6], out(reg32) $d[$i7],
            out(reg32) $d[$i8], out(reg32) $d[$i9], out(reg32) $d[$i10], out(reg32) $d[$i11],
            out(reg32) $d[$i12], out(reg32) $d[$i13], out(reg32) $d[$i14], out(reg32) $d[$i15],
            in(reg32) $address, options(nostack))
    }};
}

/// Waits for the warp's loads, and makes the sums in `d`, a place of type `[f32; 96]`, depend on that.
///
/// # Safety
/// All lanes of the warp reach the same call.
#[macro_export]
macro_rules! tensor_loaded {
    ($d:ident) => {{
        $crate::pin!();
        ::core::arch::asm!(
            concat!("tcgen05.wait::ld.sync.aligned;", $crate::collective_tag!()),
            options(nostack)
        );
        $crate::wgmma_settled!(192, $d)
    }};
}

/// `D += A B` in bf16 with f32 sums, 16 K deep; with `keep` 0 the old sums are dropped. The operands are
/// given by [descriptors](crate::layout::tcgen05), the same for both blocks.
///
/// # Safety
/// One thread of the even block of a pair calls it; the accumulators are allocated in both, and no one
/// touches them or the operands until a [commit](commit_pair) of this thread has arrived.
#[inline(always)]
pub unsafe fn mma_pair(d: u32, a: u64, b: u64, instruction: u32, keep: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("{{ .reg .pred p; setp.ne.b32 p, {keep}, 0; tcgen05.mma.cta_group::2.kind::f16 [{d}], {a}, {b}, {instruction}, p; }}",
             d = in(reg32) d, a = in(reg64) a, b = in(reg64) b, instruction = in(reg32) instruction,
             keep = in(reg32) keep, options(nostack))
    };
}

/// [`mma_pair`] in e4m3, 32 K deep, each row of A and column of B times a power of two (`.block_scale`): the
/// scales stand in tensor memory of both blocks from `scales` (A's, B's) on, a byte of each word, which the
/// instruction descriptor picks.
///
/// # Safety
/// As [`mma_pair`]; the scales were [copied](copy_scales_pair) there by this thread before.
#[inline(always)]
pub unsafe fn mma_pair_scaled(
    d: u32,
    (a, b): (u64, u64),
    instruction: u32,
    scales: (u32, u32),
    keep: u32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("{{ .reg .pred p; setp.ne.b32 p, {keep}, 0; tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale.scale_vec::1X [{d}], {a}, {b}, {instruction}, [{sa}], [{sb}], p; }}",
             d = in(reg32) d, a = in(reg64) a, b = in(reg64) b, instruction = in(reg32) instruction,
             sa = in(reg32) scales.0, sb = in(reg32) scales.1, keep = in(reg32) keep, options(nostack))
    };
}

/// Copies 32 rows of 16 bytes, which a [descriptor](crate::layout::tcgen05::scales) shows, from shared memory
/// of each block of a pair to four columns of its tensor memory, into all four quarters of the lanes. This
/// thread's products come after its copies before them, and the other way round (PTX ISA, "tcgen05 memory
/// consistency model": cp and mma are pipelined).
///
/// # Safety
/// One thread of the even block calls it; the columns are allocated in both, no one else touches them, and
/// nobody writes what is copied until a [commit](commit_pair) of this thread has arrived.
#[inline(always)]
pub unsafe fn copy_scales_pair(to: u32, from: u64) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("tcgen05.cp.cta_group::2.32x128b.warpx4 [{0}], {1};", in(reg32) to, in(reg64) from, options(nostack))
    };
}

/// Has the mbarrier at the same offset in every block of the cluster in `mask` arrived at once when
/// all products that this thread has issued are done. Fences [before](fence_before) by itself.
///
/// # Safety
/// `bar` is initialised in each block of the mask, with an arrival pending; those blocks don't end
/// before it.
#[inline(always)]
pub unsafe fn commit_pair(bar: ClusterAddr, mask: u16) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [{0}], {1};",
             in(reg32) bar.0, in(reg16) mask, options(nostack))
    };
}

/// What this thread's tcgen05 instructions did comes before what it tells others of from now on.
#[inline(always)]
pub fn fence_before() {
    // SAFETY: a fence orders accesses; it makes none.
    unsafe { asm!("tcgen05.fence::before_thread_sync;", options(nostack)) };
}

/// This thread's tcgen05 instructions from now on come after what others have told it of.
#[inline(always)]
pub fn fence_after() {
    // SAFETY: as above.
    unsafe { asm!("tcgen05.fence::after_thread_sync;", options(nostack)) };
}
