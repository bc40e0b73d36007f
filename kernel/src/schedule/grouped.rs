//! Tiles of a grouped GEMM, dealt to persistent blocks.
//!
//! Tiles are numbered group by group; block `b` of `n` takes tiles `b`, `b + n`, ... .
//! The order is a function of the group sizes alone, so every block computes the same one without
//! talking to the others.
//!
//! A group's wide side is split evenly: 299 rows are tiles of 152 and 147, not of 192 and 107,
//! since a narrow product is bound by reading its fixed side.

use core::num::NonZeroU32;

use crate::gate_up;
use crate::gemm::{Form, MAX_WIDTH, ROW_ALIGN, SIDE, Sink, TILE_K};

/// Wide tiles that share a part of the fixed side before it moves on.
///
/// Neighbouring blocks then read the same weights, and the rows stay in L2.
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
    /// Whether gate's and up's rows share a tile's fixed side (forward).
    pub paired: bool,
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
            paired: false,
        }
    }

    /// Gate-and-up: the forward product of twice `n` columns, of which D has half.
    pub const fn gate_up(n: u32, k: u32) -> Problem {
        Problem {
            paired: true,
            ..Problem::new(Form::Forward, 0, n, k, Sink::Bf16 as u32)
        }
    }

    /// Tiles along the fixed side.
    pub const fn fixed_tiles(&self) -> u32 {
        let extent = self.fixed_extent();
        if self.paired {
            let last = extent % SIDE;
            extent / SIDE * 2 + (last > 0) as u32 + (last > gate_up::HALF) as u32
        } else {
            extent.div_ceil(SIDE)
        }
    }

    /// Where tile `index` of the fixed side starts in it.
    const fn fixed_start(&self, index: u32) -> u32 {
        if self.paired {
            index / 2 * SIDE + index % 2 * gate_up::HALF
        } else {
            index * SIDE
        }
    }

    /// Tiles along the wide side, for a group with this many rows.
    pub const fn wide_tiles(&self, rows: u32) -> u32 {
        self.wide_extent(rows).div_ceil(MAX_WIDTH)
    }

    /// Tiles of a group with this many rows.
    pub const fn tiles(&self, rows: u32) -> u32 {
        self.wide_tiles(rows) * self.fixed_tiles()
    }

    /// Length of D along the fixed side.
    pub const fn fixed_extent(&self) -> u32 {
        match self.form {
            Form::Forward | Form::Dgrad => self.n,
            Form::Wgrad => self.m,
        }
    }

    /// Length of D along the wide side, for a group with this many rows.
    pub const fn wide_extent(&self, rows: u32) -> u32 {
        match self.form {
            Form::Forward | Form::Dgrad => rows,
            Form::Wgrad if self.adds && rows == 0 => 0,
            Form::Wgrad => self.n,
        }
    }

    /// What the wide side is cut in multiples of: rows in the tensor cores' own step, columns in
    /// whole lines of 128 bytes.
    const fn unit(&self) -> u32 {
        match self.form {
            Form::Forward | Form::Dgrad => 8,
            Form::Wgrad => 64,
        }
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
    /// Where it starts on the fixed side: in D's columns (forward, dgrad) or in D's M (wgrad).
    pub fixed: u32,
    /// Where it starts on the wide side: in the group's rows (forward, dgrad) or in D's columns.
    pub wide: u32,
    /// How much of the wide side it is, at most [`MAX_WIDTH`].
    pub count: u32,
}

impl Tile {
    /// Width of the product that covers it: the tensor cores' steps of 8, of 16 up to 64.
    pub const fn width(&self) -> u32 {
        width(self.count)
    }
}

/// Width of the product that covers `count` of the wide side.
pub const fn width(count: u32) -> u32 {
    count.next_multiple_of(if count <= 64 { 16 } else { 8 })
}

/// Start and length of part `index` of `parts`, cut at multiples of `unit` as evenly as they allow.
fn part(extent: u32, unit: NonZeroU32, parts: NonZeroU32, index: u32) -> (u32, u32) {
    let units = extent.div_ceil(unit.get());
    let (each, more) = (units / parts, units % parts);
    let first = index * each + if index < more { index } else { more };
    let last = first + each + (index < more) as u32;
    let start = first * unit.get();
    let end = last * unit.get();
    (
        start,
        if end < extent {
            end - start
        } else {
            extent - start
        },
    )
}

/// The tiles of one block, in order.
#[derive(Clone, Copy)]
pub struct Tiles<T> {
    table: T,
    problem: Problem,
    next: u32,
    step: u32,
    total: u32,
    /// A group at or before the next tile's.
    group: u32,
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
            group: 0,
        }
    }

    /// The group of tile `tile`, which isn't before `self.group`: the last one whose first tile
    /// isn't beyond it (empty groups share their first tile with the next group, which comes later).
    ///
    /// Mostly that is the same group or one of the next; many small groups are searched by halves.
    #[inline(always)]
    fn group_of(&self, tile: u32) -> u32 {
        const NEAR: u32 = 4;
        let groups = self.table.groups();
        let (mut low, mut high) = (self.group, self.group + 1);
        while high < groups && self.table.first_tile(high) <= tile {
            low = high;
            high += 1;
            if high - self.group > NEAR {
                high = groups;
                break;
            }
        }
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
        self.group = group;
        let (row_start, rows) = self.table.rows(group);
        let index = number - self.table.first_tile(group);
        let wide_tiles = self.problem.wide_tiles(rows);
        let (fixed, wide) = in_band(index, wide_tiles, self.problem.fixed_tiles())?;
        let (wide, count) = part(
            self.problem.wide_extent(rows),
            NonZeroU32::new(self.problem.unit())?,
            NonZeroU32::new(wide_tiles)?,
            wide,
        );
        Some(Tile {
            group,
            row_start,
            rows,
            fixed: self.problem.fixed_start(fixed),
            wide,
            count,
        })
    }
}

/// Place on the fixed and on the wide side of tile `index` of a group: bands of [`BAND`] wide
/// tiles, the wide side first inside a band. `None` only for a group without tiles.
fn in_band(index: u32, wide_tiles: u32, fixed_tiles: u32) -> Option<(u32, u32)> {
    // NonZero: a plain division would bring a panic into the kernel.
    let first = if wide_tiles <= BAND {
        0
    } else {
        index / NonZeroU32::new(BAND * fixed_tiles)? * BAND
    };
    let height = NonZeroU32::new(if wide_tiles - first < BAND {
        wide_tiles - first
    } else {
        BAND
    })?;
    let inside = index - first * fixed_tiles;
    Some((inside / height, first + inside % height))
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

    /// Every element of D once, on both sides, and by as few tiles as the widest would take.
    fn check_cover(problem: Problem, rows: &[u32], blocks: u32) {
        let table = Table::new(&problem, rows, u32::MAX);
        let mut seen: Vec<Tile> = (0..blocks)
            .flat_map(|block| Tiles::new(&table, problem, block, blocks))
            .collect();
        seen.sort_by_key(|tile| (tile.group, tile.fixed, tile.wide));
        let mut seen = seen.into_iter();
        for (group, &rows) in rows.iter().enumerate() {
            let (fixed, wide) = match problem.form {
                Form::Wgrad if problem.adds && rows == 0 => (0, 0),
                Form::Wgrad => (problem.m, problem.n),
                _ => (problem.n, rows),
            };
            let starts = (0..fixed).step_by(SIDE as usize);
            let second = |start: u32| {
                let start = start + gate_up::HALF;
                (problem.paired && start < fixed).then_some(start)
            };
            for fixed in starts
                .flat_map(|start| [Some(start), second(start)])
                .flatten()
            {
                let mut covered = 0;
                for _ in 0..wide.div_ceil(MAX_WIDTH) {
                    let tile = seen.next().unwrap();
                    assert_eq!(
                        (tile.group, tile.rows, tile.fixed, tile.wide),
                        (group as u32, rows, fixed, covered)
                    );
                    assert!((1..=MAX_WIDTH).contains(&tile.count), "{tile:?}");
                    assert!(tile.width() <= MAX_WIDTH && tile.width() >= tile.count);
                    covered += tile.count;
                }
                assert_eq!(covered, wide);
            }
        }
        assert_eq!(seen.next(), None);
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
                            check_cover(Problem::gate_up(n, 192), rows, blocks);
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

    /// The largest part is at most one unit larger than the smallest.
    #[test]
    fn parts_are_even() {
        let unit = NonZeroU32::new(8).unwrap();
        let parts = |extent: u32, parts: u32| -> Vec<(u32, u32)> {
            (0..parts)
                .map(|index| part(extent, unit, NonZeroU32::new(parts).unwrap(), index))
                .collect()
        };
        assert_eq!(parts(299, 2), [(0, 152), (152, 147)]);
        assert_eq!(parts(193, 2), [(0, 104), (104, 89)]);
        assert_eq!(parts(512, 3), [(0, 176), (176, 168), (344, 168)]);
        assert_eq!(parts(1, 1), [(0, 1)]);
    }

    #[test]
    fn widths_are_the_products_that_exist() {
        assert_eq!(
            [1, 16, 17, 64, 65, 72, 185, 192].map(width),
            [16, 16, 32, 64, 72, 72, 192, 192]
        );
    }

    #[test]
    fn rows_past_the_capacity_are_left_out() {
        assert_eq!(clamp_rows(0, 300, 256), 256);
        assert_eq!(clamp_rows(256, 300, 256), 0);
        assert_eq!(clamp_rows(u64::MAX, 1, 256), 0);
        assert_eq!(padded(u32::MAX), 1 << 32);
    }
}
