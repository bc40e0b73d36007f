//! Blocked f64 products: operands are widened into panels, a 4 by 8 block of
//! sums stays in registers.

use rayon::prelude::*;

use super::{OracleError, Placed, Problem, Values};
use crate::gemm::Form;

/// Rows and columns of the block in registers.
const ROWS: usize = 4;
const COLS: usize = 8;
/// Rows, columns and depth of a packed block: 128 and 64 KiB, half of a core's L2.
const BLOCK_ROWS: usize = 64;
const BLOCK_COLS: usize = 32;
const DEPTH: usize = 256;

/// Sums of these rows, `problem.n` each.
pub(super) fn sums(problem: &Problem<'_>, rows: &[usize]) -> Result<Vec<f64>, OracleError> {
    let cols = problem.n;
    let len = rows
        .len()
        .checked_mul(cols)
        // What a slice can hold at most; without a contraction no operand bounds it.
        .filter(|&len| len <= isize::MAX as usize / size_of::<f64>())
        .ok_or(OracleError::Extent { what: "D" })?;
    let mut sums = vec![0.0; len];
    // Chunks of rows that share a group, so that they share B.
    let mut tasks = Vec::new();
    let mut rest = sums.as_mut_slice();
    let mut start = 0;
    while start < rows.len() {
        let group = problem.group_of(rows[start])?;
        let mut end = start + 1;
        while end < rows.len() && end - start < BLOCK_ROWS && problem.group_of(rows[end])? == group
        {
            end += 1;
        }
        let (chunk, after) = rest.split_at_mut((end - start) * cols);
        tasks.push((group, &rows[start..end], chunk));
        (rest, start) = (after, end);
    }
    tasks
        .into_par_iter()
        .for_each(|(group, rows, out)| chunk(problem, group, rows, out));
    Ok(sums)
}

/// Sums of some rows of one group.
fn chunk(problem: &Problem<'_>, group: usize, rows: &[usize], out: &mut [f64]) {
    let depth = match problem.form {
        Form::Wgrad => problem.groups.rows_of(group).len(),
        _ => problem.k,
    };
    let mut a = vec![0.0; BLOCK_ROWS * DEPTH];
    let mut b = vec![0.0; BLOCK_COLS * DEPTH];
    let cols = problem.n;
    for k0 in (0..depth).step_by(DEPTH) {
        let k1 = depth.min(k0 + DEPTH);
        let source = Source::of_a(problem, group);
        pack::<ROWS>(&mut a, k0..k1, rows.len(), |k, i| source.get(rows[i], k));
        for c0 in (0..cols).step_by(BLOCK_COLS) {
            let width = BLOCK_COLS.min(cols - c0);
            let source = Source::of_b(problem, group);
            pack::<COLS>(&mut b, k0..k1, width, |k, j| source.get(c0 + j, k));
            for i0 in (0..rows.len()).step_by(ROWS) {
                for j0 in (0..width).step_by(COLS) {
                    let block = block(&a[i0 * DEPTH..], &b[j0 * DEPTH..], k1 - k0);
                    for (i, sums) in block.iter().enumerate().take(rows.len() - i0) {
                        let out = &mut out[(i0 + i) * cols + c0 + j0..];
                        for (to, sum) in out.iter_mut().zip(&sums[..COLS.min(width - j0)]) {
                            *to += sum;
                        }
                    }
                }
            }
        }
    }
}

/// One operand of one group: element (outer, k) by two strides.
struct Source<'a> {
    values: Values<'a>,
    base: usize,
    outer: usize,
    depth: usize,
}

impl<'a> Source<'a> {
    fn of_a(problem: &Problem<'a>, group: usize) -> Source<'a> {
        let Placed {
            values, row_stride, ..
        } = problem.a;
        match problem.form {
            // The row number counts the groups before it: take them off.
            Form::Wgrad => {
                let first = problem.groups.rows_of(group).start * row_stride;
                let rows_before = group * problem.m;
                Source {
                    values,
                    base: first.wrapping_sub(rows_before),
                    outer: 1,
                    depth: row_stride,
                }
            }
            _ => Source {
                values,
                base: 0,
                outer: row_stride,
                depth: 1,
            },
        }
    }

    fn of_b(problem: &Problem<'a>, group: usize) -> Source<'a> {
        let Placed {
            values,
            row_stride,
            group_stride,
        } = problem.b;
        let base = group * group_stride;
        match problem.form {
            Form::Forward => Source {
                values,
                base,
                outer: row_stride,
                depth: 1,
            },
            Form::Dgrad => Source {
                values,
                base,
                outer: 1,
                depth: row_stride,
            },
            Form::Wgrad => {
                let base = problem.groups.rows_of(group).start * row_stride;
                Source {
                    values,
                    base,
                    outer: 1,
                    depth: row_stride,
                }
            }
        }
    }

    #[inline(always)]
    fn get(&self, outer: usize, k: usize) -> f64 {
        let at = self.base.wrapping_add(outer * self.outer + k * self.depth);
        self.values.get(at)
    }
}

/// Panels of `WIDTH` outer indices, k by k, with zeros past `count`.
#[inline(always)]
fn pack<const WIDTH: usize>(
    to: &mut [f64],
    depth: std::ops::Range<usize>,
    count: usize,
    value: impl Fn(usize, usize) -> f64,
) {
    for (panel, first) in to
        .chunks_exact_mut(WIDTH * DEPTH)
        .zip((0..count).step_by(WIDTH))
    {
        for (values, k) in panel.chunks_exact_mut(WIDTH).zip(depth.clone()) {
            for (i, to) in values.iter_mut().enumerate() {
                *to = if first + i < count {
                    value(k, first + i)
                } else {
                    0.0
                };
            }
        }
    }
}

/// The products of one panel of A with one of B.
fn block(a: &[f64], b: &[f64], depth: usize) -> [[f64; COLS]; ROWS] {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the processor has both.
        return unsafe { block_fma(a, b, depth) };
    }
    block_scalar(a, b, depth)
}

fn block_scalar(a: &[f64], b: &[f64], depth: usize) -> [[f64; COLS]; ROWS] {
    let mut sums = [[0.0; COLS]; ROWS];
    for (a, b) in panels(a, b, depth) {
        for (sums, a) in sums.iter_mut().zip(a) {
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
    sums
}

/// As vectors by hand: LLVM keeps the loop above scalar, and spills it.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn block_fma(a: &[f64], b: &[f64], depth: usize) -> [[f64; COLS]; ROWS] {
    use std::arch::x86_64::{__m256d, _mm256_fmadd_pd, _mm256_set1_pd, _mm256_setzero_pd};

    let mut sums = [[_mm256_setzero_pd(); COLS / 4]; ROWS];
    for (a, b) in panels(a, b, depth) {
        let b: [__m256d; COLS / 4] = bytemuck::cast(*b);
        for (sums, &a) in sums.iter_mut().zip(a) {
            let a = _mm256_set1_pd(a);
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = _mm256_fmadd_pd(a, b, *sum);
            }
        }
    }
    bytemuck::cast(sums)
}

/// The two panels, k by k.
#[inline(always)]
fn panels<'a>(
    a: &'a [f64],
    b: &'a [f64],
    depth: usize,
) -> impl Iterator<Item = (&'a [f64; ROWS], &'a [f64; COLS])> {
    let (a, _) = a[..depth * ROWS].as_chunks::<ROWS>();
    let (b, _) = b[..depth * COLS].as_chunks::<COLS>();
    a.iter().zip(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small integers are exact in either, so the two must agree to the bit.
    #[test]
    fn both_blocks_sum_the_same() {
        for depth in [0, 1, 7, DEPTH] {
            let widen = |seed, len: usize| -> Vec<f64> {
                let values: Vec<f32> = crate::fill::integers(seed, len, 9);
                values.into_iter().map(f64::from).collect()
            };
            let (a, b) = (widen(1, depth * ROWS), widen(2, depth * COLS));
            assert_eq!(block(&a, &b, depth), block_scalar(&a, &b, depth));
        }
    }
}
