//! The last part of the way out: one warp behind each consumer carries staged sums to D, 16 bytes a thread, while
//! the consumer multiplies its next tile.
//!
//! What is added to: D's old elements, which the consumer has had brought to L2, come a few lines ahead;
//! bf16 is rounded once, after the addition. (Tensor copies could add f32 in L2 themselves, which an H200
//! was measured to do at 1.2 TB/s, less than a third of what it copies.)

use super::order::Order;
use super::store::{Exit, F32_COLUMNS, HALF};
use crate::gemm::{Form, GemmArgs, Sink, boxes};
use crate::layout::swizzle::in_tile;
use crate::mma::tile::PANEL;
use crate::ptx::cvt::{pack_bf16, unpack_bf16};
use crate::ptx::shared::{self, SmemAddr};
use crate::ptx::{global, mbarrier, reg};
use crate::warp_sync;

/// What the staging memory holds: a consumer's half tile, or half of its columns.
#[derive(Clone, Copy)]
pub struct Leaving {
    /// Rows of D; 0 ends the work.
    rows: u32,
    /// Columns of D.
    columns: u32,
    /// First row, in its group for wgrad.
    row: u32,
    /// First column.
    column: u32,
    /// Group of D, for wgrad.
    group: u32,
}

impl Leaving {
    /// Nothing more.
    pub const END: Leaving = Leaving {
        rows: 0,
        columns: 0,
        row: 0,
        column: 0,
        group: 0,
    };

    /// The half of a tile that is consumer `part`'s.
    #[inline(always)]
    pub fn new(order: &Order, part: u32, form: Form) -> Leaving {
        match form {
            Form::Forward | Form::Dgrad => Leaving {
                rows: order.count,
                columns: 64,
                row: order.row,
                column: order.column + 64 * part,
                group: 0,
            },
            Form::Wgrad => Leaving {
                rows: 64,
                columns: order.count,
                row: order.row + 64 * part,
                column: order.column,
                group: order.group,
            },
        }
    }

    /// The first [`HALF`] of its columns.
    #[inline(always)]
    pub fn lower(self) -> Leaving {
        Leaving {
            columns: HALF,
            ..self
        }
    }

    /// The columns past the first [`HALF`].
    #[inline(always)]
    pub fn upper(self) -> Leaving {
        Leaving {
            columns: self.columns - HALF,
            column: self.column + HALF,
            ..self
        }
    }

    /// Writes it.
    ///
    /// # Safety
    /// Nobody reads it meanwhile; 32 bytes aligned to 16.
    #[inline(always)]
    pub unsafe fn put(&self, to: SmemAddr) {
        // SAFETY: the caller's contract.
        unsafe {
            shared::store_v4(to, [self.rows, self.columns, self.row, self.column]);
            shared::store_u32(to.add(16), self.group);
        }
    }

    /// Reads it.
    ///
    /// # Safety
    /// Nobody writes it meanwhile.
    #[inline(always)]
    unsafe fn get(from: SmemAddr) -> Leaving {
        // SAFETY: the caller's contract.
        let ([rows, columns, row, column], group) =
            unsafe { (shared::load_v4(from), shared::load_u32(from.add(16))) };
        Leaving {
            rows,
            columns,
            row,
            column,
            group,
        }
    }
}

/// Carries what a consumer stages to D, until it says that there is no more.
///
/// Waits for: `exit.staged`. Signals: `exit.drained`.
///
/// # Safety
/// One warp runs it for each consumer; the barriers are initialised, and `staging` is the consumer's.
#[inline(always)]
pub unsafe fn leave(form: Form, args: &GemmArgs, staging: SmemAddr, exit: Exit) {
    let lane = reg::lane();
    let wide = matches!(form, Form::Wgrad) && args.sink != Sink::Bf16 as u32;
    let mut parity = 0;
    loop {
        // SAFETY: the caller's contract; the staging memory is this warp's until it says so.
        unsafe {
            mbarrier::wait(exit.staged, parity);
            parity ^= 1;
            let leaving = Leaving::get(exit.leaving);
            if leaving.rows == 0 {
                return;
            }
            if !wide {
                fresh::<2>(form, args, &leaving, staging, lane);
            } else if args.sink == Sink::F32 as u32 {
                fresh::<4>(form, args, &leaving, staging, lane);
            } else if args.sink == Sink::AddF32 as u32 {
                add::<4>(args, &leaving, staging, lane);
            } else {
                add::<2>(args, &leaving, staging, lane);
            }
            // One lane speaks for all.
            warp_sync!();
            if lane == 0 {
                mbarrier::arrive(exit.drained);
            }
        }
    }
}

/// Address of an element of D of `SIZE` bytes.
#[inline(always)]
fn address(args: &GemmArgs, leaving: &Leaving, row: u32, column: u32, size: u32) -> u64 {
    let offset = leaving.group as u64 * args.d_group_stride
        + (leaving.row + row) as u64 * args.d_row_stride
        + (leaving.column + column) as u64;
    args.d + size as u64 * offset
}

/// Rows of `leaving` that D has: wgrad's tiles can reach beyond it.
#[inline(always)]
fn rows(form: Form, args: &GemmArgs, leaving: &Leaving) -> u32 {
    if matches!(form, Form::Wgrad) && leaving.row + leaving.rows > args.m {
        args.m.saturating_sub(leaving.row)
    } else {
        leaving.rows
    }
}

/// Stores panels of 128-byte lines, whose elements of `SIZE` bytes are D's.
///
/// # Safety
/// The lanes of a warp call it, with what is staged.
#[inline(always)]
unsafe fn fresh<const SIZE: u32>(
    form: Form,
    args: &GemmArgs,
    leaving: &Leaving,
    staging: SmemAddr,
    lane: u32,
) {
    // Eight lanes a line.
    const LINES: u32 = 4;
    let (chunk, first) = (lane % 8, lane / 8);
    let rows = rows(form, args, leaving);
    let mut column = chunk * (16 / SIZE);
    let mut panel = staging;
    let step = (LINES * SIZE) as u64 * args.d_row_stride;
    while column < leaving.columns && leaving.column + column < args.n {
        let mut to = address(args, leaving, first, column, SIZE);
        let mut line = first;
        while line < rows {
            // SAFETY: staged lines, and elements of D that are this consumer's.
            unsafe {
                let words = shared::load_v4(panel.add(in_tile(line, 16 * chunk)));
                global::store_v4(to, words);
            }
            line = reg::opaque(line + LINES);
            to += step;
        }
        column += 128 / SIZE;
        panel = panel.add(PANEL);
    }
}

/// Adds panels of f32 to D, whose elements are f32 or, rounded once, bf16.
///
/// # Safety
/// As [`fresh`].
#[inline(always)]
unsafe fn add<const SIZE: u32>(args: &GemmArgs, leaving: &Leaving, staging: SmemAddr, lane: u32) {
    // 16 bytes of D a lane: eight lanes a line of f32, four for bf16.
    let lanes = 2 * SIZE;
    let lines = 32 / lanes;
    let (chunk, first) = (lane % lanes, lane / lanes);
    let rows = rows(Form::Wgrad, args, leaving);
    let mut column = chunk * (16 / SIZE);
    let mut panel = staging;
    let step = (lines * SIZE) as u64 * args.d_row_stride;
    while column < leaving.columns {
        let mut to = address(args, leaving, first, column, SIZE);
        let mut line = first;
        while line < rows {
            // D has rows in multiples of eight; two loads on their way, where there are as many.
            // SAFETY: staged lines, and elements of D that are this consumer's.
            unsafe {
                let old = [
                    global::load_v4(to),
                    load_if(line + lines < rows, to + step),
                ];
                let mut at = 0;
                while at < 2 {
                    if line < rows {
                        let from = |byte: u32| {
                            shared::load_v4(panel.add(in_tile(line, byte))).map(f32::from_bits)
                        };
                        let words = if SIZE == 4 {
                            added_f32(old[at], from(16 * chunk))
                        } else {
                            added_bf16(old[at], from(32 * chunk), from(32 * chunk + 16))
                        };
                        global::store_v4(to, words);
                    }
                    line += lines;
                    to += step;
                    at += 1;
                }
            }
            line = reg::opaque(line);
        }
        column += F32_COLUMNS;
        panel = panel.add(PANEL);
    }
}

/// # Safety
/// As [`global::load_v4`], if it is to load at all.
#[inline(always)]
unsafe fn load_if(there: bool, at: u64) -> [u32; 4] {
    if there {
        // SAFETY: the caller's contract.
        unsafe { global::load_v4(at) }
    } else {
        [0; 4]
    }
}

#[inline(always)]
fn added_f32(old: [u32; 4], sums: [f32; 4]) -> [u32; 4] {
    let sum = |at: usize| (f32::from_bits(old[at]) + sums[at]).to_bits();
    [sum(0), sum(1), sum(2), sum(3)]
}

#[inline(always)]
fn added_bf16(old: [u32; 4], low: [f32; 4], high: [f32; 4]) -> [u32; 4] {
    let old = old.map(unpack_bf16);
    let sum = |pair: usize, low: f32, high: f32| pack_bf16(old[pair].0 + low, old[pair].1 + high);
    [
        sum(0, low[0], low[1]),
        sum(1, low[2], low[3]),
        sum(2, high[0], high[1]),
        sum(3, high[2], high[3]),
    ]
}

const _: () = assert!(boxes::PANEL * 2 == 128 && F32_COLUMNS * 4 == 128);
