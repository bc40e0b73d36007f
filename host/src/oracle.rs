//! CPU references for the grouped GEMM, and the comparison with them.
//!
//! Sums are taken in f64 once ([`Problem::sums`]); from them come reference (a),
//! with no rounding, and reference (b), with the rounding points of a sink. At
//! sizes where all rows take too long, [`Problem::sample_rows`] picks some.
//!
//! ```
//! use half::bf16;
//! use mok::{Groups, fill, oracle::{self, Operand, Problem}, gemm::Sink};
//!
//! let groups = Groups::new(&[3, 0, 40])?;
//! let (n, k) = (16, 24);
//! let a = fill::normal::<bf16>(1, groups.capacity() as usize * k, 1.0);
//! let b = fill::normal::<bf16>(2, groups.len() * n * k, 1.0);
//! let problem = Problem::forward(&groups, n, k, Operand::new(&a), Operand::new(&b))?;
//!
//! let sums = problem.sums(&problem.all_rows())?;
//! let rounded = sums.rounded(Sink::Bf16, None)?;
//! // A result that is right: the reference's own values, row by row where D has them.
//! let mut d = vec![bf16::NAN; groups.capacity() as usize * n];
//! for (row, values) in rounded.iter() {
//!     for (to, &value) in d[row * n..][..n].iter_mut().zip(values) {
//!         *to = bf16::from_f64(value);
//!     }
//! }
//! assert!(rounded.compare(&d)?.passes(oracle::ROUNDED));
//! assert!(sums.exact(None)?.compare(&d)?.passes(oracle::EXACT));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use half::bf16;

use crate::fill;
use crate::gemm::{Form, Sink};
use crate::groups::Groups;

mod compare;
mod layer;
mod mxfp8;
mod product;

pub use compare::{Comparison, EXACT, EXACT_MXFP8, Limits, ROUNDED};
pub use layer::{Expert, Layer, Tokens};
pub use mxfp8::Mxfp8;

/// What the oracle can't compute or compare.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OracleError {
    /// A slice is too short.
    #[error("oracle: {what} has {len} elements and needs {needed}")]
    Length {
        /// Which.
        what: &'static str,
        /// Elements it has.
        len: usize,
        /// Elements it needs.
        needed: usize,
    },
    /// Sizes whose product overflows.
    #[error("oracle: the extent of {what} overflows")]
    Extent {
        /// Which.
        what: &'static str,
    },
    /// A row of D that isn't there, or is padding.
    #[error("oracle: row {row} is no row of a group")]
    Row {
        /// The row.
        row: usize,
    },
}

/// Elements of an input.
#[derive(Clone, Copy, Debug)]
enum Values<'a> {
    Bf16(&'a [bf16]),
    F32(&'a [f32]),
}

impl Values<'_> {
    fn len(&self) -> usize {
        match self {
            Values::Bf16(values) => values.len(),
            Values::F32(values) => values.len(),
        }
    }

    #[inline(always)]
    fn get(&self, at: usize) -> f64 {
        match self {
            Values::Bf16(values) => {
                f64::from(f32::from_bits(u32::from(values[at].to_bits()) << 16))
            }
            Values::F32(values) => f64::from(values[at]),
        }
    }
}

/// An input on the host; strides that aren't set are packed.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    values: Values<'a>,
    row_stride: Option<usize>,
    group_stride: Option<usize>,
}

impl<'a> Operand<'a> {
    /// A packed matrix, or one for each group.
    pub fn new(values: &'a [bf16]) -> Operand<'a> {
        Operand::of(Values::Bf16(values))
    }

    /// The same of f32, which have room for what is [widened](Mxfp8::widened).
    pub fn wide(values: &'a [f32]) -> Operand<'a> {
        Operand::of(Values::F32(values))
    }

    fn of(values: Values<'a>) -> Operand<'a> {
        Operand {
            values,
            row_stride: None,
            group_stride: None,
        }
    }

    /// Elements from one row to the next.
    pub fn with_row_stride(mut self, elements: usize) -> Self {
        self.row_stride = Some(elements);
        self
    }

    /// Elements from one group's matrix to the next.
    pub fn with_group_stride(mut self, elements: usize) -> Self {
        self.group_stride = Some(elements);
        self
    }

    /// Checks that the extent is there, so that indexing can't fail later.
    fn place(
        self,
        what: &'static str,
        rows: usize,
        cols: usize,
        groups: usize,
    ) -> Result<Placed<'a>, OracleError> {
        let overflow = OracleError::Extent { what };
        let row_stride = self.row_stride.unwrap_or(cols);
        let packed = rows.checked_mul(row_stride).ok_or(overflow.clone())?;
        let group_stride = self.group_stride.unwrap_or(packed);
        if rows > 0 && cols > 0 && groups > 0 {
            let last = |count: usize, stride: usize| (count - 1).checked_mul(stride);
            let needed = last(rows, row_stride)
                .zip(last(groups, group_stride))
                .and_then(|(row, group)| row.checked_add(group)?.checked_add(cols))
                .ok_or(overflow)?;
            if needed > self.values.len() {
                return Err(OracleError::Length {
                    what,
                    len: self.values.len(),
                    needed,
                });
            }
        }
        Ok(Placed {
            values: self.values,
            row_stride,
            group_stride,
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Placed<'a> {
    values: Values<'a>,
    row_stride: usize,
    group_stride: usize,
}

/// One grouped GEMM on the host.
///
/// Rows of D are numbered as they stand in it: by row of the capacity for
/// forward and dgrad, by `group * m + row` for wgrad.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    form: Form,
    groups: &'a Groups,
    /// Rows of D in a group (wgrad).
    m: usize,
    n: usize,
    /// Contraction length (forward, dgrad).
    k: usize,
    a: Placed<'a>,
    b: Placed<'a>,
}

impl<'a> Problem<'a> {
    /// `D[r, n] = sum_k A[r, k] B[g, n, k]`.
    pub fn forward(
        groups: &'a Groups,
        n: usize,
        k: usize,
        a: Operand<'a>,
        b: Operand<'a>,
    ) -> Result<Problem<'a>, OracleError> {
        let a = a.place("A", groups.capacity() as usize, k, 1)?;
        let b = b.place("B", n, k, groups.len())?;
        Ok(Problem {
            form: Form::Forward,
            groups,
            m: 0,
            n,
            k,
            a,
            b,
        })
    }

    /// `D[r, n] = sum_k A[r, k] B[g, k, n]`.
    pub fn dgrad(
        groups: &'a Groups,
        n: usize,
        k: usize,
        a: Operand<'a>,
        b: Operand<'a>,
    ) -> Result<Problem<'a>, OracleError> {
        let a = a.place("A", groups.capacity() as usize, k, 1)?;
        let b = b.place("B", k, n, groups.len())?;
        Ok(Problem {
            form: Form::Dgrad,
            groups,
            m: 0,
            n,
            k,
            a,
            b,
        })
    }

    /// `D[g, m, n] = sum_r A[r, m] B[r, n]` over the group's rows.
    pub fn wgrad(
        groups: &'a Groups,
        m: usize,
        n: usize,
        a: Operand<'a>,
        b: Operand<'a>,
    ) -> Result<Problem<'a>, OracleError> {
        let rows = groups.capacity() as usize;
        let a = a.place("A", rows, m, 1)?;
        let b = b.place("B", rows, n, 1)?;
        groups
            .len()
            .checked_mul(m)
            .ok_or(OracleError::Extent { what: "D" })?;
        Ok(Problem {
            form: Form::Wgrad,
            groups,
            m,
            n,
            k: 0,
            a,
            b,
        })
    }

    /// Every row of D that a product goes to; not the padding.
    pub fn all_rows(&self) -> Vec<usize> {
        match self.form {
            Form::Wgrad => (0..self.groups.len() * self.m).collect(),
            _ => (0..self.groups.len())
                .flat_map(|group| self.groups.rows_of(group))
                .collect(),
        }
    }

    /// About this many rows of D, spread evenly with a random offset in each step, always the
    /// first and the last; all of them if there are fewer.
    pub fn sample_rows(&self, count: usize, seed: u64) -> Vec<usize> {
        let all = self.all_rows();
        if count == 0 || all.len() <= count {
            return all;
        }
        let step = all.len() as f64 / count as f64;
        let mut rows: Vec<usize> = (0..count)
            .map(|index| {
                let offset = fill::hash(seed, index as u64) as f64 / u64::MAX as f64;
                all[(((index as f64 + offset) * step) as usize).min(all.len() - 1)]
            })
            .chain([all[0], all[all.len() - 1]])
            .collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// The sums of these rows, in f64. Rows out of order, or given twice, stay as they are.
    pub fn sums(&self, rows: &[usize]) -> Result<Sums, OracleError> {
        let values = product::sums(self, rows)?;
        Ok(Sums {
            rows: rows.to_vec(),
            cols: self.n,
            values,
        })
    }

    fn group_of(&self, row: usize) -> Result<usize, OracleError> {
        let missing = OracleError::Row { row };
        match self.form {
            Form::Wgrad => row
                .checked_div(self.m)
                .filter(|&group| group < self.groups.len())
                .ok_or(missing),
            _ => self.groups.group_of(row).ok_or(missing),
        }
    }
}

/// Some rows of a product, summed in f64.
#[derive(Clone, Debug)]
pub struct Sums {
    rows: Vec<usize>,
    cols: usize,
    values: Vec<f64>,
}

impl Sums {
    /// The sum of a column, of the row that was asked for at `index`.
    ///
    /// # Panics
    /// If there is none.
    pub fn value(&self, index: usize, column: usize) -> f64 {
        assert!(column < self.cols, "column {column} of {}", self.cols);
        self.values[index * self.cols + column]
    }

    /// Reference (a): no rounding. `old` is what D held before, packed like D and widened to f32,
    /// for a sink that adds.
    pub fn exact(&self, old: Option<&[f32]>) -> Result<Reference, OracleError> {
        self.map(old, |sum, old| sum + f64::from(old))
    }

    /// Reference (b): the rounding points of a sink.
    pub fn rounded(&self, sink: Sink, old: Option<&[f32]>) -> Result<Reference, OracleError> {
        self.map(old, |sum, old| match sink {
            Sink::Bf16 => bf16::from_f64(sum).to_f64(),
            Sink::F32 => f64::from(sum as f32),
            Sink::AddF32 => f64::from(old + sum as f32),
            Sink::AddBf16 => bf16::from_f32(old + sum as f32).to_f64(),
        })
    }

    fn map(
        &self,
        old: Option<&[f32]>,
        value: impl Fn(f64, f32) -> f64,
    ) -> Result<Reference, OracleError> {
        let cols = self.cols;
        let mut values = Vec::with_capacity(self.values.len());
        for (index, &row) in self.rows.iter().enumerate() {
            let sums = &self.values[index * cols..][..cols];
            let Some(old) = old else {
                values.extend(sums.iter().map(|&sum| value(sum, 0.0)));
                continue;
            };
            let start = row * cols;
            let needed = start + cols;
            let old = old.get(start..needed).ok_or(OracleError::Length {
                what: "old D",
                len: old.len(),
                needed,
            })?;
            values.extend(sums.iter().zip(old).map(|(&sum, &old)| value(sum, old)));
        }
        Ok(Reference {
            rows: self.rows.clone(),
            cols,
            values,
            undecided: Vec::new(),
        })
    }
}

/// What rows of D should be.
#[derive(Clone, Debug)]
pub struct Reference {
    rows: Vec<usize>,
    cols: usize,
    values: Vec<f64>,
    /// Of each row, or of none: the squared norm of what roundings that f32 sums can't decide could
    /// change.
    undecided: Vec<f64>,
}

impl Reference {
    /// Packed rows with their numbers, and what is [undecided](Reference::undecided) of each.
    fn of_rows(cols: usize, rows: Vec<usize>, values: Vec<f64>, undecided: Vec<f64>) -> Reference {
        Reference {
            rows,
            cols,
            values,
            undecided,
        }
    }

    /// Of each row, by number, the squared norm that is not held against a result: of what changes
    /// where an intermediate value lies so near to the middle of two bf16 that f32 sums of it may be
    /// rounded to either. Only [`Layer::rounded_to_either_side`] has such values.
    pub fn undecided(&self) -> impl Iterator<Item = (usize, f64)> {
        let none = std::iter::repeat(0.0);
        let all = self.undecided.iter().copied().chain(none);
        self.rows.iter().copied().zip(all)
    }

    /// The rows and their values.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[f64])> {
        // Rows without columns have no chunks; they have nothing to say either.
        self.rows
            .iter()
            .copied()
            .zip(self.values.chunks_exact(self.cols.max(1)))
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Compares with a packed D.
    pub fn compare<T: Copy + Into<f64> + Sync>(&self, d: &[T]) -> Result<Comparison, OracleError> {
        compare::compare(self, d, |row| row.checked_mul(self.cols))
    }

    /// Compares with a D of any strides: `start` says where a row starts in it.
    pub fn compare_at<T: Copy + Into<f64> + Sync>(
        &self,
        d: &[T],
        start: impl Fn(usize) -> usize + Sync,
    ) -> Result<Comparison, OracleError> {
        compare::compare(self, d, |row| Some(start(row)))
    }
}

#[cfg(test)]
mod tests;
