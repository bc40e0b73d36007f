//! GEMMs that the shipped ones are compared with.

use mok_kernel::gemm_entry;
use mok_kernel::mma::warp::WarpMma;
use mok_kernel::ptx::cvt::unpack_bf16;
use mok_kernel::ptx::{global, reg};
use mok_kernel::role::product::{Dgrad, Forward, Wgrad};

use crate::spec::NaiveArgs;

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
    probe_gemm_wgrad = "probe_gemm_wgrad", Wgrad, WarpMma
}

/// The bf16 with this index as f32.
///
/// # Safety
/// `base` addresses bf16 global memory, 4-byte aligned, of which `index` is one.
unsafe fn bf16(base: u64, index: u64) -> f32 {
    // SAFETY: the word around the element is part of the array: its length is even.
    let (low, high) = unpack_bf16(unsafe { global::load_u32(base + (index / 2) * 4) });
    if index % 2 == 0 { low } else { high }
}

/// One thread an element: block (x, y) takes 256 columns of one row of D. For forward and
/// dgrad y counts (group, row in group) by `extra` rows a group, see the host side: the
/// grid's y is the row number among all rows of groups.
#[unsafe(no_mangle)]
unsafe extern "ptx-kernel" fn probe_naive_gemm(args: NaiveArgs) {
    let column = (reg::block_idx_y() * 256 + reg::thread_idx()) as u64;
    let (m, n, k) = (args.m as u64, args.n as u64, args.k as u64);
    if column >= n {
        return;
    }
    // The row's group: the last that starts at or before it (grid x counts rows of A's whole
    // matrix for forward and dgrad; rows of all groups' D for wgrad).
    let line = reg::block_idx() as u64;
    let mut sum = 0f32;
    // SAFETY: the arrays have the sizes that the form says.
    unsafe {
        if args.form == 2 {
            // m is never 0 in a launch; the mask of NonZero keeps a panic out.
            let Some(rows_of_d) = core::num::NonZeroU64::new(m) else { return };
            let (group, row) = (line / rows_of_d, line % rows_of_d);
            let start = global::load_u32(args.starts + 4 * group) as u64;
            let rows = global::load_u32(args.rows + 4 * group) as u64;
            let mut r = start;
            while r < start + rows {
                sum += bf16(args.a, r * m + row) * bf16(args.b, r * n + column);
                r += 1;
            }
        } else {
            // `m` groups; binary search would do, a scan is plain.
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
                let b = if args.form == 0 { (found * n + column) * k + i } else { (found * k + i) * n + column };
                sum += bf16(args.a, line * k + i) * bf16(args.b, b);
                i += 1;
            }
        }
        global::store_u32(args.d + 4 * (line * n + column), sum.to_bits());
    }
}
