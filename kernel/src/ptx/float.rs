//! Arithmetic on f32 that the language has no operator for ("Floating-Point Instructions").

use core::arch::asm;

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident = $op:literal;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(a: f32, b: f32) -> f32 {
            let value: f32;
            // SAFETY: arithmetic on registers.
            unsafe {
                asm!(concat!($op, " {0}, {1}, {2};"), out(reg32) value, in(reg32) a, in(reg32) b,
                     options(pure, nomem, nostack));
            }
            value
        }
    )*};
}

binary! {
    /// The smaller one; of a number and a NaN the number.
    min = "min.f32";
    /// The larger one; of a number and a NaN the number.
    max = "max.f32";
    /// The smaller one; NaN if either is.
    min_nan = "min.NaN.f32";
    /// The larger one; NaN if either is.
    max_nan = "max.NaN.f32";
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident = $op:literal;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(a: f32) -> f32 {
            let value: f32;
            // SAFETY: arithmetic on registers.
            unsafe {
                asm!(concat!($op, " {0}, {1};"), out(reg32) value, in(reg32) a, options(pure, nomem, nostack));
            }
            value
        }
    )*};
}

unary! {
    /// `2^a` within two units in the last place; subnormal numbers are zeros.
    exp2_approx = "ex2.approx.ftz.f32";
    /// `1 / a` within one unit in the last place; subnormal numbers are zeros.
    reciprocal_approx = "rcp.approx.ftz.f32";
}

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
