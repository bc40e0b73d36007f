//! Ordinary loads and stores in global memory ("ld", "st").
//!
//! Through Rust references the compiler would use generic addresses.

use core::arch::asm;

/// Loads a word.
///
/// # Safety
/// `at` is a 4-byte aligned global address of initialised memory that no one writes meanwhile.
#[inline(always)]
pub unsafe fn load_u32(at: u64) -> u32 {
    let value: u32;
    // SAFETY: the caller's contract.
    unsafe { asm!("ld.global.u32 {0}, [{1}];", out(reg32) value, in(reg64) at, options(nostack)) };
    value
}

/// Loads a byte.
///
/// # Safety
/// As [`load_u32`], at any address.
#[inline(always)]
pub unsafe fn load_u8(at: u64) -> u32 {
    let value: u32;
    // SAFETY: the caller's contract.
    unsafe { asm!("ld.global.u8 {0}, [{1}];", out(reg32) value, in(reg64) at, options(nostack)) };
    value
}

/// Stores a word.
///
/// # Safety
/// `at` is a 4-byte aligned global address that no one else accesses meanwhile.
#[inline(always)]
pub unsafe fn store_u32(at: u64, value: u32) {
    // SAFETY: the caller's contract.
    unsafe { asm!("st.global.u32 [{0}], {1};", in(reg64) at, in(reg32) value, options(nostack)) };
}

/// Loads two neighbouring f32.
///
/// # Safety
/// As [`load_u32`], 8-byte aligned.
#[inline(always)]
pub unsafe fn load_2f32(at: u64) -> (f32, f32) {
    let (low, high): (f32, f32);
    // SAFETY: the caller's contract.
    unsafe {
        asm!("ld.global.v2.f32 {{{0}, {1}}}, [{2}];", out(reg32) low, out(reg32) high, in(reg64) at, options(nostack))
    };
    (low, high)
}

/// Stores two neighbouring f32.
///
/// # Safety
/// As [`store_u32`], 8-byte aligned.
#[inline(always)]
pub unsafe fn store_2f32(at: u64, low: f32, high: f32) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("st.global.v2.f32 [{0}], {{{1}, {2}}};", in(reg64) at, in(reg32) low, in(reg32) high, options(nostack))
    };
}

/// Loads a double word.
///
/// # Safety
/// As [`load_u32`], 8-byte aligned.
#[inline(always)]
pub unsafe fn load_u64(at: u64) -> u64 {
    let value: u64;
    // SAFETY: the caller's contract.
    unsafe { asm!("ld.global.u64 {0}, [{1}];", out(reg64) value, in(reg64) at, options(nostack)) };
    value
}

/// Stores a double word.
///
/// # Safety
/// As [`store_u32`], 8-byte aligned.
#[inline(always)]
pub unsafe fn store_u64(at: u64, value: u64) {
    // SAFETY: the caller's contract.
    unsafe { asm!("st.global.u64 [{0}], {1};", in(reg64) at, in(reg64) value, options(nostack)) };
}

/// Loads 16 bytes.
///
/// # Safety
/// As [`load_u32`], 16-byte aligned.
#[inline(always)]
pub unsafe fn load_v4(at: u64) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: the caller's contract.
    unsafe {
        asm!("ld.global.v4.u32 {{{0}, {1}, {2}, {3}}}, [{4}];", out(reg32) a, out(reg32) b, out(reg32) c,
             out(reg32) d, in(reg64) at, options(nostack))
    };
    [a, b, c, d]
}

/// Stores 16 bytes.
///
/// # Safety
/// As [`store_u32`], 16-byte aligned.
#[inline(always)]
pub unsafe fn store_v4(at: u64, words: [u32; 4]) {
    let [a, b, c, d] = words;
    // SAFETY: the caller's contract.
    unsafe {
        asm!("st.global.v4.u32 [{0}], {{{1}, {2}, {3}, {4}}};", in(reg64) at, in(reg32) a, in(reg32) b,
             in(reg32) c, in(reg32) d, options(nostack))
    };
}
