//! Arithmetic on f32 that the language has no operator for ("Floating-Point Instructions").

use core::arch::asm;

/// `a * b + c`, rounded once to nearest even.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    let value: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("fma.rn.f32 {0}, {1}, {2}, {3};", out(reg32) value, in(reg32) a, in(reg32) b, in(reg32) c,
             options(pure, nomem, nostack));
    }
    value
}
