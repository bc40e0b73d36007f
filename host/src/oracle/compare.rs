//! How far a result is from its reference.

use rayon::prelude::*;

use super::{OracleError, Reference};

/// The most that a result may be off, as `||d - reference|| / ||reference||`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Over all compared rows together.
    pub whole: f64,
    /// Over each row: one lost row is invisible in the whole.
    pub row: f64,
}

/// Limits against sums that are never rounded.
pub const EXACT: Limits = Limits {
    whole: 6e-3,
    row: 2e-2,
};
/// Limits of products in MXFP8 against sums of what was quantized, with no rounding. Each factor is off by 2^-4
/// at most; rows are allowed twice what the whole is.
pub const EXACT_MXFP8: Limits = Limits {
    whole: 9e-2,
    row: 1.8e-1,
};
/// Limits against sums with the sink's rounding points.
pub const ROUNDED: Limits = Limits {
    whole: 1e-3,
    row: 4e-3,
};

/// How far a result is from its reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Rows compared.
    pub rows: usize,
    /// Relative norm over everything, beyond what is [undecided](Reference::undecided); infinite with
    /// any NaN or infinity.
    pub whole: f64,
    /// The row that is furthest off, and how far, likewise; infinite for a row that is not finite, or
    /// that is not zero where its reference is.
    pub worst_row: Option<(usize, f64)>,
    /// NaNs and infinities, in the result or in the reference.
    pub non_finite: usize,
    /// Elements that differ at all.
    pub different: usize,
    /// Sums of squares over the finite elements: of what is off, and of the reference.
    pub squares: [f64; 2],
}

impl Comparison {
    /// Whether it is within the limits; nothing that isn't finite ever is.
    pub fn passes(&self, limits: Limits) -> bool {
        self.non_finite == 0
            && self.whole <= limits.whole
            && self.worst_row.is_none_or(|(_, error)| error <= limits.row)
    }

    /// Whether every element is equal (-0 equals 0).
    pub fn is_equal(&self) -> bool {
        self.non_finite == 0 && self.different == 0
    }

    /// How far the worst row is off; 0 if there are no rows.
    pub fn row_error(&self) -> f64 {
        self.worst_row.map_or(0.0, |(_, error)| error)
    }
}

/// Sums over one row, or over all of them.
struct Row {
    number: usize,
    error: f64,
    norm: f64,
    non_finite: usize,
    different: usize,
}

impl Row {
    fn relative(&self) -> f64 {
        if self.non_finite > 0 {
            f64::INFINITY
        } else if self.different == 0 {
            0.0
        } else {
            // A reference of zeros has norm 0: anything else is infinitely far from it.
            (self.error / self.norm).sqrt().max(f64::MIN_POSITIVE)
        }
    }
}

pub(super) fn compare<T: Copy + Into<f64> + Sync>(
    reference: &Reference,
    d: &[T],
    start: impl Fn(usize) -> Option<usize> + Sync,
) -> Result<Comparison, OracleError> {
    let cols = reference.cols;
    let rows: Vec<Row> = reference
        .rows
        .par_iter()
        .enumerate()
        .map(|(index, &number)| {
            let expected = &reference.values[index * cols..][..cols];
            let range = start(number).and_then(|start| Some(start..start.checked_add(cols)?));
            let needed = range.as_ref().map_or(usize::MAX, |range| range.end);
            let row = range
                .and_then(|range| d.get(range))
                .ok_or(OracleError::Length {
                    what: "D",
                    len: d.len(),
                    needed,
                })?;
            let undecided = reference.undecided.get(index).copied();
            Ok(compare_row(number, row, expected, undecided.unwrap_or(0.0)))
        })
        .collect::<Result<_, _>>()?;
    let mut whole = Row {
        number: 0,
        error: 0.0,
        norm: 0.0,
        non_finite: 0,
        different: 0,
    };
    let mut worst_row: Option<(usize, f64)> = None;
    for row in &rows {
        whole.error += row.error;
        whole.norm += row.norm;
        whole.non_finite += row.non_finite;
        whole.different += row.different;
        let relative = row.relative();
        if worst_row.is_none_or(|(_, worst)| relative > worst) {
            worst_row = Some((row.number, relative));
        }
    }
    Ok(Comparison {
        rows: rows.len(),
        whole: whole.relative(),
        worst_row,
        non_finite: whole.non_finite,
        different: whole.different,
        squares: [whole.error, whole.norm],
    })
}

fn compare_row<T: Copy + Into<f64>>(
    number: usize,
    row: &[T],
    expected: &[f64],
    undecided: f64,
) -> Row {
    let mut sums = Row {
        number,
        error: 0.0,
        norm: 0.0,
        non_finite: 0,
        different: 0,
    };
    for (&value, &expected) in row.iter().zip(expected) {
        let value: f64 = value.into();
        if !value.is_finite() || !expected.is_finite() {
            sums.non_finite += 1;
            continue;
        }
        sums.error += (value - expected).powi(2);
        sums.norm += expected.powi(2);
        sums.different += usize::from(value != expected);
    }
    sums.error = (sums.error - undecided).max(0.0);
    sums
}
