//! In which lanes of tensor memory the rows of A and D lie (PTX ISA 9.0, 9.7.16.10.5).
//!
//! | M | cta_group | layout | each CTA | lane of its row r |
//! |---|---|---|---|---|
//! | 256 | 2 | A | 128 rows, N columns | r |
//! | 128 | 2 | B | 64 rows, N columns | r for the first N / 2 columns, 64 + r for the others |
//! | 128 | 1 | D | 128 rows, N columns | r |
//! | 64 | 1 | F | 64 rows, N columns | base + 32 (r / 16) + r % 16, base 0 or 16 |
//!
//! The first CTA of a pair has the first half of the rows. A lies in the lanes of the rows of D
//! that it makes; in layout B, where each row of D has two lanes, A is there twice.

use super::memory::{Address, Area};

/// A data path layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datapath {
    /// Rows of one CTA.
    pub rows: usize,
    /// Columns of D that lie side by side in a lane.
    pub columns: usize,
    /// Times that each row has a lane: 2 in layout B.
    pub folds: usize,
}

impl Datapath {
    /// The layout of a legal shape.
    #[must_use]
    pub fn of(m: usize, n: usize, group: u32) -> Datapath {
        let rows = m / group as usize;
        let folds = if group == 2 && m == 128 { 2 } else { 1 };
        Datapath {
            rows,
            columns: n / folds,
            folds,
        }
    }

    /// The lane of a row, from the address's lane on.
    #[must_use]
    pub fn lane(&self, base: u32, row: usize, fold: usize) -> u32 {
        let within = match (self.rows, self.folds) {
            (64, 1) => 32 * (row / 16) + row % 16,
            _ => 64 * fold + row,
        };
        base + within as u32
    }

    /// Lanes that it uses, each time so many from one on.
    #[must_use]
    pub fn lanes(&self, base: u32) -> Vec<(u32, u32)> {
        match (self.rows, self.folds) {
            (64, 1) => (0..4).map(|part| (base + 32 * part, 16)).collect(),
            _ => vec![(base, 128)],
        }
    }

    /// Checks the address of an operand: its lane, and that it is inside.
    pub fn check(&self, which: &str, at: Address, columns: u32) -> Result<(), String> {
        let half = self.rows == 64 && self.folds == 1;
        if at.lane != 0 && !(half && at.lane == 16) {
            return Err(format!(
                "{which} begins in lane {} of tensor memory, and must in lane {}",
                at.lane,
                if half { "0 or 16" } else { "0" }
            ));
        }
        Area {
            lane: 0,
            lanes: 128,
            column: at.column,
            columns,
        }
        .check(which)
    }

    /// The areas that columns from an address on cover.
    #[must_use]
    pub fn areas(&self, at: Address, columns: u32) -> Vec<Area> {
        self.lanes(at.lane)
            .into_iter()
            .map(|(lane, lanes)| Area {
                lane,
                lanes,
                column: at.column,
                columns,
            })
            .collect()
    }
}
