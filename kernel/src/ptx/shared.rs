//! Addresses in shared memory, and ordinary loads and stores there ("State Spaces").

use core::arch::asm;

/// An address in the shared window of this block (`.shared::cta`), in bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct SmemAddr(pub u32);

/// An address in the shared window of some block of the cluster (`.shared::cluster`).
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct ClusterAddr(pub u32);

#[cfg(target_arch = "nvptx64")]
core::arch::global_asm!(".extern .shared .align 1024 .b8 mok_dynamic_shared[];");

/// Base of the block's dynamic shared memory, 1,024-byte aligned.
#[inline(always)]
pub fn dynamic_base() -> SmemAddr {
    let base: u32;
    // SAFETY: reads the symbol's address.
    unsafe {
        asm!("mov.u32 {0}, mok_dynamic_shared;", out(reg32) base, options(pure, nomem, nostack))
    };
    SmemAddr(base)
}

impl SmemAddr {
    /// The address `bytes` further on.
    #[inline(always)]
    pub const fn add(self, bytes: u32) -> SmemAddr {
        SmemAddr(self.0.wrapping_add(bytes))
    }

    /// The same offset in the block of rank `rank` of this cluster ("mapa").
    #[inline(always)]
    pub fn in_block(self, rank: u32) -> ClusterAddr {
        let remote: u32;
        // SAFETY: computes an address.
        unsafe {
            asm!("mapa.shared::cluster.u32 {0}, {1}, {2};", out(reg32) remote, in(reg32) self.0, in(reg32) rank,
                 options(pure, nomem, nostack));
        }
        ClusterAddr(remote)
    }
}

/// Loads a word from this block's shared memory.
///
/// # Safety
/// `addr` is 4-byte aligned, inside the block's shared memory, and no other thread writes it unordered.
#[inline(always)]
pub unsafe fn load_u32(addr: SmemAddr) -> u32 {
    let value: u32;
    // SAFETY: the caller's contract.
    unsafe {
        asm!("ld.shared.u32 {0}, [{1}];", out(reg32) value, in(reg32) addr.0, options(nostack))
    };
    value
}

/// Stores a word to this block's shared memory.
///
/// # Safety
/// `addr` is 4-byte aligned, inside the block's shared memory, and no other thread accesses it unordered.
#[inline(always)]
pub unsafe fn store_u32(addr: SmemAddr, value: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("st.shared.u32 [{0}], {1};", in(reg32) addr.0, in(reg32) value, options(nostack))
    };
}

/// Stores a byte.
///
/// # Safety
/// As [`store_u32`], at any address.
#[inline(always)]
pub unsafe fn store_u8(addr: SmemAddr, value: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("st.shared.u8 [{0}], {1};", in(reg32) addr.0, in(reg32) value, options(nostack))
    };
}

/// Loads 16 bytes.
///
/// # Safety
/// As [`load_u32`], for 16 aligned bytes.
#[inline(always)]
pub unsafe fn load_v4(addr: SmemAddr) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller's contract.
    unsafe {
        asm!("ld.shared.v4.u32 {{{0}, {1}, {2}, {3}}}, [{4}];", out(reg32) a, out(reg32) b, out(reg32) c,
             out(reg32) d, in(reg32) addr.0, options(nostack))
    };
    [a, b, c, d]
}

/// Stores 16 bytes.
///
/// # Safety
/// As [`store_u32`], for 16 aligned bytes.
#[inline(always)]
pub unsafe fn store_v4(addr: SmemAddr, words: [u32; 4]) {
    let [a, b, c, d] = words;
    // SAFETY: the caller's contract.
    unsafe {
        asm!("st.shared.v4.u32 [{0}], {{{1}, {2}, {3}, {4}}};", in(reg32) addr.0, in(reg32) a, in(reg32) b,
             in(reg32) c, in(reg32) d, options(nostack))
    };
}

/// Stores two neighbouring f32.
///
/// # Safety
/// As [`store_u32`], for 8 aligned bytes.
#[inline(always)]
pub unsafe fn store_2f32(addr: SmemAddr, low: f32, high: f32) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("st.shared.v2.f32 [{0}], {{{1}, {2}}};", in(reg32) addr.0, in(reg32) low, in(reg32) high, options(nostack))
    };
}

/// Loads two f32.
///
/// # Safety
/// `addr` is 8 valid bytes, 8-byte aligned.
#[inline(always)]
pub unsafe fn load_2f32(addr: SmemAddr) -> [f32; 2] {
    let (low, high): (f32, f32);
    // SAFETY: the caller's contract.
    unsafe {
        asm!("ld.shared.v2.f32 {{{0}, {1}}}, [{2}];", out(reg32) low, out(reg32) high, in(reg32) addr.0, options(nostack))
    };
    [low, high]
}

/// Loads a word from the shared memory of another block of the cluster (distributed shared memory).
///
/// # Safety
/// As [`load_u32`]; the other block has started and doesn't end before the load is done.
#[inline(always)]
pub unsafe fn load_cluster_u32(addr: ClusterAddr) -> u32 {
    let value: u32;
    // SAFETY: the caller's contract.
    unsafe {
        asm!("ld.shared::cluster.u32 {0}, [{1}];", out(reg32) value, in(reg32) addr.0, options(nostack))
    };
    value
}

/// Stores a word to the shared memory of another block of the cluster.
///
/// # Safety
/// As [`store_u32`]; the other block has started and doesn't end before the store is done.
#[inline(always)]
pub unsafe fn store_cluster_u32(addr: ClusterAddr, value: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("st.shared::cluster.u32 [{0}], {1};", in(reg32) addr.0, in(reg32) value, options(nostack))
    };
}

/// Stores 16 bytes to a block of the cluster; delivers them to the mbarrier `bar` there ("st.async").
///
/// # Safety
/// As [`store_cluster_u32`], for 16 aligned bytes that `bar` expects; no one else touches them until its
/// phase completes.
#[inline(always)]
pub unsafe fn store_async_v4(addr: ClusterAddr, words: [u32; 4], bar: ClusterAddr) {
    let [a, b, c, d] = words;
    // SAFETY: the caller's contract.
    unsafe {
        asm!("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [{0}], {{{1}, {2}, {3}, {4}}}, [{5}];",
             in(reg32) addr.0, in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d, in(reg32) bar.0, options(nostack))
    };
}

/// Adds to a word of this block's shared memory, without order ("red").
///
/// # Safety
/// `addr` is 4-byte aligned, inside the block's shared memory, and accessed by others only atomically.
#[inline(always)]
pub unsafe fn add_u32(addr: SmemAddr, value: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("red.relaxed.cta.shared.add.u32 [{0}], {1};", in(reg32) addr.0, in(reg32) value, options(nostack))
    };
}
