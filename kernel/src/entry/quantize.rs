//! bf16 to MXFP8.

use crate::mxfp8::QuantizeArgs;
use crate::role::quantize::quantize;

/// A bf16 matrix in MXFP8, in blocks along its columns, its rows, or both.
///
/// # Safety
/// Launched as its spec says; `args` describes live memory.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn mok_quantize(args: QuantizeArgs) {
    // SAFETY: the caller's contract.
    unsafe { quantize(&args) };
}
