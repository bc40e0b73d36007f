//! Tiles of a grouped GEMM, dealt to persistent blocks.
//!
//! Tiles are numbered group by group; block `b` of `n` takes tiles `b`, `b + n`, ... .
//! The order is a function of the group sizes alone, so every role of a block (and
//! every block) computes the same one without talking to the others.

use core::num::NonZeroU32;

use crate::gemm::{Form, ROW_ALIGN, Sink, TILE_K, TILE_M, TILE_N};

/// Row tiles that share their columns' operand before the columns move on.
///
/// Neighbouring blocks then read the same part of B, and A's rows stay in L2.
const BAND: u32 = 16;

/// One group's place, derived from the sizes of the groups before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Number of the group's first tile.
    pub first_tile: u32,
    /// First row of the group.
    pub row_start: u32,
    /// Rows of the group.
    pub rows: u32,
}

/// The table that a block derives from the group sizes before it starts.
pub trait GroupTable {
    /// Number of groups.
    fn groups(&self) -> u32;
    /// Number of the first tile of group `group`; for `group == groups()`, of tiles in all.
    fn first_tile(&self, group: u32) -> u32;
    /// First row and number of rows of a group.
    fn rows(&self, group: u32) -> (u32, u32);
}

/// What a launch computes, as far as the schedule needs it.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    /// Which product.
    pub form: Form,
    /// Rows of D in a group, for wgrad.
    pub m: u32,
    /// Columns of D.
    pub n: u32,
    /// Contraction length, for forward and dgrad.
    pub k: u32,
    /// Whether D's old contents count, so that an empty group has nothing to do (wgrad).
    pub adds: bool,
}

impl Problem {
    /// The problem of these arguments.
    pub const fn new(form: Form, m: u32, n: u32, k: u32, sink: u32) -> Problem {
        let adds = sink == Sink::AddF32 as u32 || sink == Sink::AddBf16 as u32;
        Problem {
            form,
            m,
            n,
            k,
            adds,
        }
    }

    /// Tiles along the rows of D of a group with this many rows.
    pub const fn row_tiles(&self, rows: u32) -> u32 {
        match self.form {
            Form::Forward | Form::Dgrad => rows.div_ceil(TILE_M),
            Form::Wgrad if self.adds && rows == 0 => 0,
            Form::Wgrad => self.m.div_ceil(TILE_M),
        }
    }

    /// Tiles along the columns of D.
    pub const fn column_tiles(&self) -> u32 {
        self.n.div_ceil(TILE_N)
    }

    /// Tiles of a group with this many rows.
    pub const fn tiles(&self, rows: u32) -> u32 {
        self.row_tiles(rows) * self.column_tiles()
    }

    /// Pipeline stages that each tile of a group with this many rows takes.
    pub const fn depth(&self, rows: u32) -> u32 {
        match self.form {
            Form::Forward | Form::Dgrad => self.k.div_ceil(TILE_K),
            Form::Wgrad => rows.div_ceil(TILE_K),
        }
    }
}

/// Rows that a group of `rows` rows starting at `start` has inside the capacity.
pub const fn clamp_rows(start: u64, rows: u32, capacity: u32) -> u32 {
    let left = (capacity as u64).saturating_sub(start);
    if (rows as u64) < left {
        rows
    } else {
        left as u32
    }
}

/// Rows that a group takes with its padding.
pub const fn padded(rows: u32) -> u64 {
    (rows as u64).next_multiple_of(ROW_ALIGN as u64)
}

/// One tile of D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Its group.
    pub group: u32,
    /// First row of the group in the row dimension.
    pub row_start: u32,
    /// Rows of the group.
    pub rows: u32,
    /// First row of the tile: in the group's rows (forward, dgrad) or in D's M (wgrad).
    pub m: u32,
    /// First column of the tile.
    pub n: u32,
}

/// The tiles of one block, in order.
#[derive(Clone, Copy)]
pub struct Tiles<T> {
    table: T,
    problem: Problem,
    next: u32,
    step: u32,
    total: u32,
}

impl<T: GroupTable> Tiles<T> {
    /// The tiles of block `block` of `blocks`.
    pub fn new(table: T, problem: Problem, block: u32, blocks: u32) -> Tiles<T> {
        let total = table.first_tile(table.groups());
        Tiles {
            table,
            problem,
            next: block,
            step: blocks,
            total,
        }
    }

    /// The group of tile `tile`: the last one whose first tile isn't beyond it (empty
    /// groups share their first tile with the next group, which comes later).
    fn group_of(&self, tile: u32) -> u32 {
        let (mut low, mut high) = (0, self.table.groups());
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.table.first_tile(middle) <= tile {
                low = middle
            } else {
                high = middle
            }
        }
        low
    }
}

impl<T: GroupTable> Iterator for Tiles<T> {
    type Item = Tile;

    #[inline(always)]
    fn next(&mut self) -> Option<Tile> {
        let number = self.next;
        if number >= self.total {
            return None;
        }
        // Near the end of the number range the step could wrap round to a tile already done.
        self.next = number.saturating_add(self.step);
        let group = self.group_of(number);
        let (row_start, rows) = self.table.rows(group);
        let index = number - self.table.first_tile(group);
        let (row, column) = in_band(
            index,
            self.problem.row_tiles(rows),
            self.problem.column_tiles(),
        )?;
        Some(Tile {
            group,
            row_start,
            rows,
            m: row * TILE_M,
            n: column * TILE_N,
        })
    }
}

/// Row and column tile of tile `index` of a group: bands of [`BAND`] row tiles, row by row
/// inside a band's column. `None` only for a group without tiles.
fn in_band(index: u32, row_tiles: u32, column_tiles: u32) -> Option<(u32, u32)> {
    // NonZero: a plain division would bring a panic into the kernel.
    let band = index / NonZeroU32::new(BAND * column_tiles)?;
    let first = band * BAND;
    let height = NonZeroU32::new(if row_tiles - first < BAND {
        row_tiles - first
    } else {
        BAND
    })?;
    let inside = index - first * column_tiles;
    Some((first + inside % height, inside / height))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    struct Table(Vec<Group>, u32);

    impl Table {
        fn new(problem: &Problem, rows: &[u32], capacity: u32) -> Table {
            let (mut groups, mut tiles, mut start) = (Vec::new(), 0, 0u64);
            for &rows in rows {
                let inside = clamp_rows(start, rows, capacity);
                groups.push(Group {
                    first_tile: tiles,
                    row_start: start.min(capacity as u64) as u32,
                    rows: inside,
                });
                tiles += problem.tiles(inside);
                start += padded(rows);
            }
            Table(groups, tiles)
        }
    }

    impl GroupTable for &Table {
        fn groups(&self) -> u32 {
            self.0.len() as u32
        }
        fn first_tile(&self, group: u32) -> u32 {
            self.0
                .get(group as usize)
                .map_or(self.1, |group| group.first_tile)
        }
        fn rows(&self, group: u32) -> (u32, u32) {
            let group = self.0[group as usize];
            (group.row_start, group.rows)
        }
    }

    fn check_cover(problem: Problem, rows: &[u32], blocks: u32) {
        let table = Table::new(&problem, rows, u32::MAX);
        let mut seen = std::collections::HashSet::new();
        for block in 0..blocks {
            for tile in Tiles::new(&table, problem, block, blocks) {
                assert!(tile.n < problem.n);
                assert_eq!(tile.rows, rows[tile.group as usize]);
                assert!(seen.insert((tile.group, tile.m, tile.n)), "{tile:?} twice");
            }
        }
        let mut expect = 0;
        for (group, &rows) in rows.iter().enumerate() {
            let m = if problem.form != Form::Wgrad {
                rows
            } else if problem.adds && rows == 0 {
                0
            } else {
                problem.m
            };
            for row in (0..m).step_by(TILE_M as usize) {
                for column in (0..problem.n).step_by(TILE_N as usize) {
                    assert!(seen.contains(&(group as u32, row, column)));
                    expect += 1;
                }
            }
        }
        assert_eq!(seen.len(), expect);
    }

    #[test]
    fn every_tile_once_for_any_grid() {
        let sizes: [&[u32]; 6] = [
            &[],
            &[0],
            &[1, 0, 0, 300, 0],
            &[0, 0, 128],
            &[5000, 1],
            &[0; 9],
        ];
        for form in Form::ALL {
            for sink in Sink::ALL {
                for rows in sizes {
                    for (m, n) in [(64, 64), (448, 1000), (2304, 8)] {
                        for blocks in [1, 2, 7, 132] {
                            check_cover(Problem::new(form, m, n, 192, sink as u32), rows, blocks);
                        }
                    }
                }
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn every_tile_once_for_any_sizes(
            rows in proptest::collection::vec(proptest::prop_oneof![proptest::strategy::Just(0), 0u32..3000], 0..40),
            (m, n) in (1u32..2000, 1u32..4000),
            blocks in 1u32..200,
            form in proptest::sample::select(&Form::ALL[..]),
            sink in proptest::sample::select(&Sink::ALL[..]),
        ) {
            check_cover(Problem::new(form, m, n, 64, sink as u32), &rows, blocks);
        }
    }

    #[test]
    fn rows_past_the_capacity_are_left_out() {
        assert_eq!(clamp_rows(0, 300, 256), 256);
        assert_eq!(clamp_rows(256, 300, 256), 0);
        assert_eq!(clamp_rows(u64::MAX, 1, 256), 0);
        assert_eq!(padded(u32::MAX), 1 << 32);
    }
}
