//! The way out of gate-and-up: SwiGLU between the sums and H.
//!
//! A thread's sums of one column of the product are of gate and of up, eight rows apart. Rounded to
//! bf16 they change rows for columns in shared memory, from where every thread takes eight
//! neighbouring columns of both.

use super::activation::swiglu;
use super::order::Order;
use super::store::{BARRIER, Place, WayOut};
use crate::gate_up::{APART, GateUpArgs, HALF};
use crate::gemm::{MAX_WIDTH, STAGING};
use crate::layout::fragment::stmatrix;
use crate::layout::swizzle::in_half_rows;
use crate::mma::accumulators::Accumulators;
use crate::ptx::cvt::pack_bf16;
use crate::ptx::{global, reg, shared};
use crate::{for_each_16_columns, named_sync, store_matrix};

/// Bytes of all rows of one matrix in a consumer's staging memory.
const MATRIX: u32 = MAX_WIDTH * HALF * 2;
const _: () = assert!(2 * MATRIX <= STAGING && HALF * 2 == 64);

/// To H, and to G and U where they are kept.
pub struct Activate<'a> {
    /// Describes them.
    pub args: &'a GateUpArgs,
}

/// Writes 16 bytes of row `row` and column `column` of a matrix.
///
/// # Safety
/// They are the matrix's, aligned, and this thread's alone.
#[inline(always)]
unsafe fn put(matrix: u64, row_stride: u64, (row, column): (u32, u32), words: [u32; 4]) {
    let offset = row as u64 * row_stride + column as u64;
    // SAFETY: the caller's contract.
    unsafe { global::store_v4(matrix + 2 * offset, words) };
}

impl WayOut for Activate<'_> {
    #[inline(always)]
    unsafe fn store(&mut self, sums: &Accumulators, order: &Order, place: Place) {
        let args = self.args;
        let (d, width) = (&sums.0, order.width());
        let Place {
            part,
            thread,
            staging,
            sums: spot,
            team,
            threads,
            ..
        } = place;
        let line = spot.staging.add(stmatrix::alternating(spot.thread, MATRIX));
        macro_rules! stage {
            ($($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal $d4:literal $d5:literal $d6:literal $d7:literal])*) => {$(
                if 16 * $j < width {
                    store_matrix!(x4 trans, line.add(1024 * $j), [
                        pack_bf16(d[$d0], d[$d1]), pack_bf16(d[$d2], d[$d3]),
                        pack_bf16(d[$d4], d[$d5]), pack_bf16(d[$d6], d[$d7]),
                    ], $j);
                }
            )*};
        }
        // SAFETY: every thread that stages is here; what it reads of the last tile it has read.
        unsafe {
            named_sync!(BARRIER + team, threads, 0, "free");
            for_each_16_columns!(stage);
            named_sync!(BARRIER + team, threads, 0, "staged");
        }
        // Four threads a row, eight columns each.
        let thread = reg::anew(thread);
        let chunk = thread % 4;
        let column = order.column + APART * part + 8 * chunk;
        if column >= args.gemm.n {
            return;
        }
        let limit = f32::from_bits(args.limit);
        let (gate_at, up_at) = if reg::anew(args.up_first) == 0 {
            (staging, staging.add(MATRIX))
        } else {
            (staging.add(MATRIX), staging)
        };
        let mut row = thread / 4;
        while row < order.count {
            let inside = in_half_rows(row, 16 * chunk);
            let at = (order.row + row, column);
            // SAFETY: staged lines, and elements of the tile's rows that are this thread's.
            unsafe {
                let gate = shared::load_v4(gate_at.add(inside));
                let up = shared::load_v4(up_at.add(inside));
                let pair = |at: usize| swiglu(gate[at], up[at], limit);
                let h = [pair(0), pair(1), pair(2), pair(3)];
                put(args.gemm.d, args.gemm.d_row_stride, at, h);
                if args.gate != 0 {
                    put(args.gate, args.gate_row_stride, at, gate);
                    put(args.up, args.up_row_stride, at, up);
                }
            }
            row = reg::opaque(row + 32);
        }
    }
}
