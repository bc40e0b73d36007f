//! MXFP8 to bf16: a warp a row, a thread 16 elements at a time.
//!
//! What [`quantize`](super::quantize) makes is exact in bf16, but for blocks whose scale is under 2^-124: their smallest
//! values have bits under 2^-133, the least bf16, and are rounded. Scales that it never makes can be too large for
//! bf16, and give infinities.

use crate::mxfp8::{DequantizeArgs, power, scale_offset};
use crate::ptx::cvt::{pack_bf16, widen_e4m3, widen_f16};
use crate::ptx::{global, reg};

/// Values that a thread loads at once.
const CHUNK: u32 = 16;

/// Any grid.
///
/// # Safety
/// Whole warps run it; `args` describes live memory, whose result nobody else touches.
#[inline(always)]
pub unsafe fn dequantize(args: &DequantizeArgs) {
    // NonZero: a plain division would bring a panic into the kernel.
    let Some(rows_of) = core::num::NonZeroU32::new(args.rows) else {
        return;
    };
    let (rows, from) = (args.groups * args.rows, &args.from);
    let warps = reg::grid_dim() * (reg::block_dim() / 32);
    let mut number = (reg::block_idx() * reg::block_dim() + reg::thread_idx()) / 32;
    while number < rows {
        let (group, row) = ((number / rows_of) as u64, (number % rows_of) as u64);
        let values = from.values + group * from.group_stride + row * from.row_stride;
        let scales = from.scales + group * from.scale_group_stride;
        let to = args.to + 2 * number as u64 * args.columns as u64;
        let mut column = CHUNK * reg::lane();
        while column < args.columns {
            let scale = scales + scale_offset(row, column as u64, from.scale_band_stride);
            // SAFETY: 16 values of the row, their scale, and the row's place in the result.
            unsafe {
                let power = f32::from_bits(power(global::load_u8(scale)));
                let [a, b, c, d] = global::load_v4(values + column as u64)
                    .map(|four| [two(four as u16, power), two((four >> 16) as u16, power)]);
                let to = to + 2 * column as u64;
                global::store_v4(to, [a[0], a[1], b[0], b[1]]);
                global::store_v4(to + 16, [c[0], c[1], d[0], d[1]]);
            }
            column = reg::opaque(column + 32 * CHUNK);
        }
        let next = number.wrapping_add(warps);
        number = if next < number { rows } else { next };
    }
}

/// Two e4m3 times a power of two as bf16.
#[inline(always)]
fn two(packed: u16, power: f32) -> u32 {
    let halves = widen_e4m3(packed);
    let [low, high] = [halves as u16, (halves >> 16) as u16].map(|half| widen_f16(half) * power);
    pack_bf16(low, high)
}
