//! Conversions between f32 and packed bf16 and fp8 ("cvt").

use core::arch::asm;

/// Rounds two f32 to nearest-even bf16; `low` in the lower half.
///
/// `cvt.rn.bf16x2.f32` puts its first source in the upper half.
#[inline(always)]
pub fn pack_bf16(low: f32, high: f32) -> u32 {
    let packed: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.bf16x2.f32 {0}, {1}, {2};", out(reg32) packed, in(reg32) high, in(reg32) low,
             options(pure, nomem, nostack));
    }
    packed
}

/// Rounds two f32 to nearest-even e4m3; `low` in the lower byte. What is over 448 becomes 448, a NaN
/// 0x7f.
///
/// `cvt.rn.satfinite.e4m3x2.f32` puts its first source in the upper byte.
#[inline(always)]
pub fn pack_e4m3(low: f32, high: f32) -> u16 {
    let packed: u16;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.satfinite.e4m3x2.f32 {0}, {1}, {2};", out(reg16) packed, in(reg32) high, in(reg32) low,
             options(pure, nomem, nostack));
    }
    packed
}

/// Two e4m3 as f16, which have room for them; the lower byte in the lower half.
#[inline(always)]
pub fn widen_e4m3(packed: u16) -> u32 {
    let wide: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.f16x2.e4m3x2 {0}, {1};", out(reg32) wide, in(reg16) packed,
             options(pure, nomem, nostack));
    }
    wide
}

/// An f16 as f32.
#[inline(always)]
pub fn widen_f16(half: u16) -> f32 {
    let wide: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.f32.f16 {0}, {1};", out(reg32) wide, in(reg16) half, options(pure, nomem, nostack));
    }
    wide
}

/// The two bf16 of a word as f32, lower half first.
#[inline(always)]
pub const fn unpack_bf16(packed: u32) -> (f32, f32) {
    (
        f32::from_bits(packed << 16),
        f32::from_bits(packed & 0xffff_0000),
    )
}
