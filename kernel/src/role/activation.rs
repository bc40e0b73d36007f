//! SwiGLU.

use crate::ptx::cvt::{pack_bf16, unpack_bf16};
use crate::ptx::float::{exp2_approx, fma, max, max_nan, min, min_nan, reciprocal_approx};

/// `silu(g) * u` of two pairs of bf16, after the clamps; rounded to bf16.
#[inline(always)]
pub fn swiglu(gate: u32, up: u32, limit: f32) -> u32 {
    let ((g0, g1), (u0, u1)) = (unpack_bf16(gate), unpack_bf16(up));
    pack_bf16(swiglu_of(g0, u0, limit), swiglu_of(g1, u1, limit))
}

/// A NaN passes through, also the clamps.
#[inline(always)]
fn swiglu_of(gate: f32, up: f32, limit: f32) -> f32 {
    let gate = min_nan(gate, limit);
    let up = max_nan(min_nan(up, limit), -limit);
    gate * reciprocal_approx(1.0 + exp_of_negative(gate)) * up
}

/// `e^-x` within three units in the last place, for x between -88 and 88; beyond, what it is there.
///
/// `-x log2(e)` is split into what the approximate power gets and what that was rounded by: left
/// out, the latter would be the largest error by far. e^88 is finite, so that no product with it is a
/// NaN, and large enough for its reciprocal to be 0.
#[inline(always)]
fn exp_of_negative(x: f32) -> f32 {
    const LOG2_E: f32 = core::f32::consts::LOG2_E;
    /// log2(e) without its first 24 bits.
    const LOG2_E_LOW: f32 = 1.925_963e-8;
    let x = min(max(x, -88.0), 88.0);
    let power = x * -LOG2_E;
    let rest = fma(x, -LOG2_E_LOW, fma(x, -LOG2_E, -power));
    let value = exp2_approx(power);
    fma(value, rest * core::f32::consts::LN_2, value)
}
