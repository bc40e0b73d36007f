//! bf16 to MXFP8, and back.

use crate::mxfp8::{DequantizeArgs, QuantizeArgs};
use crate::role::{dequantize, quantize};

/// A bf16 matrix in MXFP8, in blocks along its columns, its rows, or both.
///
/// # Safety
/// Launched as its spec says; `args` describes live memory.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn mok_quantize(args: QuantizeArgs) {
    // SAFETY: the caller's contract.
    unsafe { quantize::quantize(&args) };
}

/// A matrix in MXFP8 in bf16.
///
/// # Safety
/// Launched as its spec says; `args` describes live memory.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn mok_dequantize(args: DequantizeArgs) {
    // SAFETY: the caller's contract.
    unsafe { dequantize::dequantize(&args) };
}
