//! GEMMs that the shipped ones are compared with.

use mok_kernel::mma::warp::WarpMma;
use mok_kernel::ptx::cvt::unpack_bf16;
use mok_kernel::ptx::shared::dynamic_base;
use mok_kernel::ptx::{global, reg, shared};
use mok_kernel::role::product::{Dgrad, Forward, Wgrad};
use mok_kernel::{block_sync, gate_up_entry, gemm_entry};

use crate::spec::{CompareArgs, NaiveArgs};

gemm_entry! {
    /// Forward on `mma.sync`.
    probe_gemm_forward = "probe_gemm_forward", Forward, WarpMma
}
gemm_entry! {
    /// Dgrad on `mma.sync`.
    probe_gemm_dgrad = "probe_gemm_dgrad", Dgrad, WarpMma
}
gemm_entry! {
    /// Wgrad on `mma.sync`.
    wgrad probe_gemm_wgrad = "probe_gemm_wgrad", Wgrad, WarpMma
}

gate_up_entry! {
    /// Gate-and-up on `mma.sync`.
    probe_gate_up = "probe_gate_up", WarpMma
}

/// The bf16 with this index as f32.
///
/// # Safety
/// `base` addresses bf16 global memory, 4-byte aligned, of which `index` is one.
unsafe fn bf16(base: u64, index: u64) -> f32 {
    // SAFETY: the word around the element is part of the array: its length is even.
    let (low, high) = unpack_bf16(unsafe { global::load_u32(base + (index / 2) * 4) });
    if index.is_multiple_of(2) { low } else { high }
}

/// One thread an element of D, f32 sums in order: the grid's x counts rows of D (of all groups,
/// for wgrad), y steps of 256 columns. Rows outside every group are left alone.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn probe_naive_gemm(args: NaiveArgs) {
    let column = (reg::block_idx_y() * 256 + reg::thread_idx()) as u64;
    let (m, n, k) = (args.m as u64, args.n as u64, args.k as u64);
    if column >= n {
        return;
    }
    let line = reg::block_idx() as u64;
    let mut sum = 0f32;
    // SAFETY: the arrays have the sizes that the form says.
    unsafe {
        if args.form == 2 {
            // NonZero: a plain division would bring a panic into the kernel.
            let Some(rows_of_d) = core::num::NonZeroU64::new(m) else {
                return;
            };
            let (group, row) = (line / rows_of_d, line % rows_of_d);
            let start = global::load_u32(args.starts + 4 * group) as u64;
            let rows = global::load_u32(args.rows + 4 * group) as u64;
            let mut r = start;
            while r < start + rows {
                sum += bf16(args.a, r * m + row) * bf16(args.b, r * n + column);
                r += 1;
            }
        } else {
            let (mut group, mut found) = (0u64, m);
            while group < m {
                let start = global::load_u32(args.starts + 4 * group) as u64;
                let rows = global::load_u32(args.rows + 4 * group) as u64;
                if line >= start && line < start + rows {
                    found = group;
                    break;
                }
                group += 1;
            }
            if found == m {
                return;
            }
            let mut i = 0;
            while i < k {
                let b = if args.form == 0 {
                    (found * n + column) * k + i
                } else {
                    (found * k + i) * n + column
                };
                sum += bf16(args.a, line * k + i) * bf16(args.b, b);
                i += 1;
            }
        }
        global::store_u32(args.d + 4 * (line * n + column), sum.to_bits());
    }
}

/// Compares one row of D a block with f32 sums. A reference of all ones marks an element that
/// nothing may write, in which case D must be all ones as well.
///
/// Output, a row: f32 squared error, f32 squared norm of the reference, u32 count of elements
/// that are not finite or were written against the mark.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn probe_compare_rows(args: CompareArgs) {
    let base = dynamic_base();
    let (row, thread) = (reg::block_idx() as u64, reg::thread_idx());
    let n = args.n as u64;
    let (mut error, mut norm, mut bad) = (0f32, 0f32, 0u32);
    let mut column = thread as u64;
    // SAFETY: D and the reference have a row for each block, the output three words.
    unsafe {
        while column < n {
            let at = row * n + column;
            let want = global::load_u32(args.reference + 4 * at);
            let got = if args.wide != 0 {
                global::load_u32(args.d + 4 * at)
            } else {
                // bf16, widened; all ones stays a mark.
                let word = global::load_u32(args.d + at / 2 * 4);
                let half = if at.is_multiple_of(2) {
                    word & 0xffff
                } else {
                    word >> 16
                };
                if half == 0xffff { u32::MAX } else { half << 16 }
            };
            if want == u32::MAX || got == u32::MAX {
                bad += (want != got) as u32;
            } else {
                let (got, want) = (f32::from_bits(got), f32::from_bits(want));
                let difference = got - want;
                bad += !difference.is_finite() as u32;
                error += difference * difference;
                norm += want * want;
            }
            column += 256;
        }
        shared::store_u32(base.add(12 * thread), error.to_bits());
        shared::store_u32(base.add(12 * thread + 4), norm.to_bits());
        shared::store_u32(base.add(12 * thread + 8), bad);
        block_sync!();
        if thread == 0 {
            let mut other = 1;
            while other < 256 {
                error += f32::from_bits(shared::load_u32(base.add(12 * other)));
                norm += f32::from_bits(shared::load_u32(base.add(12 * other + 4)));
                bad += shared::load_u32(base.add(12 * other + 8));
                other += 1;
            }
            let out = args.output + 12 * row;
            global::store_u32(out, error.to_bits());
            global::store_u32(out + 4, norm.to_bits());
            global::store_u32(out + 8, bad);
        }
    }
}
