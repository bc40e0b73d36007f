//! Tiles of a grouped GEMM, drawn by persistent blocks.
//!
//! Groups are of two [classes](Class), and the tiles of each class are numbered group by group. The
//! numbers are a function of the group sizes alone, so every block computes the same ones without
//! talking to the others; which block gets which number, the tickets decide
//! ([`role::tickets`](crate::role::tickets)). No bit of a tile depends on who computes it.
//!
//! A group's wide side is split evenly: 299 rows are tiles of 152 and 147, not of 192 and 107,
//! since a narrow product is bound by reading its fixed side.

use core::marker::PhantomData;
use core::num::NonZeroU32;

pub use super::tile::{Tile, width};
use crate::gate_up;
use crate::gemm::{Form, MAX_WIDTH, ROW_ALIGN, SIDE, Sink, TILE_K, pair};
use crate::mxfp8;

/// Wide tiles that share a part of the fixed side before it moves on.
///
/// Neighbouring blocks then read the same weights, and the rows stay in L2.
pub(super) const BAND: u32 = 16;

/// Most rows of a group that is bound by memory: at 155 operations a byte an H200's tensor cores are
/// no longer faster than its memory.
pub const FEW_ROWS: u32 = 160;

/// What bounds a group's tiles. While some blocks wait for memory, others should multiply: so both
/// kinds are worked on at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Class {
    /// The tensor cores.
    Many = 0,
    /// Memory.
    Few = 1,
}

impl Class {
    /// Both.
    pub const ALL: [Class; 2] = [Class::Many, Class::Few];

    /// Of a group with this many rows.
    pub const fn of(rows: u32) -> Class {
        if rows > FEW_ROWS {
            Class::Many
        } else {
            Class::Few
        }
    }

    /// The other one.
    pub const fn other(self) -> Class {
        match self {
            Class::Many => Class::Few,
            Class::Few => Class::Many,
        }
    }
}

/// The table that a block derives from the group sizes before it starts.
pub trait GroupTable {
    /// Number of groups.
    fn groups(&self) -> u32;
    /// Number of tiles of a class in the groups before `group`.
    fn first_tile(&self, class: Class, group: u32) -> u32;
    /// First row and number of rows of a group.
    fn rows(&self, group: u32) -> (u32, u32);
}

/// How large tiles are, and where they are cut. A type, so that it is a constant for the compiler
/// wherever the schedule is.
pub trait Tiling {
    /// Blocks that compute a tile together, each of them [`SIDE`] of its fixed side.
    const BLOCKS: u32;
    /// The most of its wide side.
    const WIDEST: u32;
    /// What the wide side is cut in multiples of where it is rows.
    const ROWS: u32;
    /// What the width of a product with rows is a multiple of: the tensor cores' own step.
    const STEP: u32;
    /// Where it is columns: whole lines of 128 bytes, for each block.
    const COLUMNS: u32;

    /// Whether all groups are of one class, whatever bounds them.
    const ONE_CLASS: bool = false;
}

/// Each block computes its own tiles.
#[derive(Clone, Copy)]
pub struct ByBlock;

/// Pairs of blocks compute tiles together.
#[derive(Clone, Copy)]
pub struct ByPair;

/// They do, of operands in MXFP8, where the wide side is rows.
#[derive(Clone, Copy)]
pub struct ByPairMxfp8;

impl Tiling for ByBlock {
    const BLOCKS: u32 = 1;
    const WIDEST: u32 = MAX_WIDTH;
    const ROWS: u32 = 8;
    const STEP: u32 = 8;
    const COLUMNS: u32 = 64;
}

impl Tiling for ByPair {
    const BLOCKS: u32 = pair::BLOCKS;
    const WIDEST: u32 = pair::MAX_WIDTH;
    const ROWS: u32 = pair::ROWS;
    const STEP: u32 = pair::ROWS;
    const COLUMNS: u32 = pair::COLUMNS;
}

impl Tiling for ByPairMxfp8 {
    const WIDEST: u32 = mxfp8::MAX_WIDTH;
    const ROWS: u32 = mxfp8::CUT;
    const BLOCKS: u32 = ByPair::BLOCKS;
    const STEP: u32 = ByPair::STEP;
    const COLUMNS: u32 = ByPair::COLUMNS;
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
    pub const fn fixed_tiles<S: Tiling>(&self) -> u32 {
        self.fixed_parts().div_ceil(S::BLOCKS)
    }

    /// Blocks' parts along it.
    const fn fixed_parts(&self) -> u32 {
        let extent = self.fixed_extent();
        if self.paired {
            let last = extent % SIDE;
            extent / SIDE * 2 + (last > 0) as u32 + (last > gate_up::HALF) as u32
        } else {
            extent.div_ceil(SIDE)
        }
    }

    /// From where one block's part of a tile starts on the fixed side to where the next one's does.
    pub const fn apart(&self) -> u32 {
        self.fixed_start(1)
    }

    /// Where part `index` of the fixed side starts in it.
    pub(super) const fn fixed_start(&self, index: u32) -> u32 {
        if self.paired {
            index / 2 * SIDE + index % 2 * gate_up::HALF
        } else {
            index * SIDE
        }
    }

    /// Tiles along the wide side, for a group with this many rows.
    pub const fn wide_tiles<S: Tiling>(&self, rows: u32) -> u32 {
        self.wide_extent(rows).div_ceil(S::WIDEST)
    }

    /// Tiles of a group with this many rows.
    pub const fn tiles<S: Tiling>(&self, rows: u32) -> u32 {
        self.wide_tiles::<S>(rows) * self.fixed_tiles::<S>()
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

    /// What the wide side is cut in multiples of.
    pub(super) const fn unit<S: Tiling>(&self) -> u32 {
        match self.form {
            Form::Forward | Form::Dgrad => S::ROWS,
            Form::Wgrad => S::COLUMNS,
        }
    }

    /// Each block's share of the wide side of a pair's product that covers `count` of it.
    pub const fn share<S: Tiling>(&self, count: u32) -> u32 {
        let step = match self.form {
            Form::Forward | Form::Dgrad => S::STEP,
            Form::Wgrad => S::COLUMNS,
        };
        count.next_multiple_of(step) / S::BLOCKS
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

/// Start and length of part `index` of `parts`, cut at multiples of `unit` as evenly as they allow.
pub(super) fn part(extent: u32, unit: NonZeroU32, parts: NonZeroU32, index: u32) -> (u32, u32) {
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

/// Tiles by their numbers.
#[derive(Clone, Copy)]
pub struct Tiles<T, S = ByBlock> {
    table: T,
    problem: Problem,
    tiling: PhantomData<S>,
    /// The class of the last tile asked for, and its group.
    class: Class,
    group: u32,
}

impl<T: GroupTable, S: Tiling> Tiles<T, S> {
    /// The tiles of a problem.
    pub fn new(table: T, problem: Problem) -> Tiles<T, S> {
        Tiles {
            table,
            problem,
            tiling: PhantomData,
            class: Class::Many,
            group: 0,
        }
    }

    /// How many there are of a class.
    #[inline(always)]
    pub fn total(&self, class: Class) -> u32 {
        self.table.first_tile(class, self.table.groups())
    }

    /// The class that block or pair `block` draws from first: as large a share of them begins with few rows as
    /// there are such tiles, so that both classes last about as long; in wgrad, where tiles of few rows are a few
    /// stages long, every other one.
    #[inline(always)]
    pub fn first_class(&self, block: u32) -> Class {
        let few = self.total(Class::Few) as f32;
        let share = match self.problem.form {
            Form::Forward => few / (few + self.total(Class::Many) as f32),
            Form::Dgrad | Form::Wgrad => 0.5,
        };
        let until = |block: u32| (block as f32 * share) as u32;
        // Without tiles there is no share, and the conversion makes zeros of it.
        if until(block + 1) > until(block) {
            Class::Few
        } else {
            Class::Many
        }
    }

    /// The group of a tile: the last one whose first tile isn't beyond it (groups without tiles of the
    /// class share their first tile with the next group, which comes later).
    ///
    /// Numbers mostly grow from one call to the next, and mostly it is the same group or one of the
    /// next; many small groups are searched by halves.
    #[inline(always)]
    fn group_of(&self, class: Class, number: u32) -> u32 {
        const NEAR: u32 = 4;
        let groups = self.table.groups();
        let known =
            class as u32 == self.class as u32 && self.table.first_tile(class, self.group) <= number;
        let start = if known { self.group } else { 0 };
        let (mut low, mut high) = (start, start + 1);
        while high < groups && self.table.first_tile(class, high) <= number {
            low = high;
            high += 1;
            if high - start > NEAR {
                high = groups;
                break;
            }
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.table.first_tile(class, middle) <= number {
                low = middle
            } else {
                high = middle
            }
        }
        low
    }

    /// Tile `number` of a class; `None` for a number that it doesn't have.
    #[inline(always)]
    pub fn get(&mut self, class: Class, number: u32) -> Option<Tile> {
        if number >= self.total(class) {
            return None;
        }
        let group = self.group_of(class, number);
        (self.class, self.group) = (class, group);
        let (row_start, rows) = self.table.rows(group);
        let index = number - self.table.first_tile(class, group);
        let wide_tiles = self.problem.wide_tiles::<S>(rows);
        let (fixed, wide) = in_band(index, wide_tiles, self.problem.fixed_tiles::<S>(), BAND)?;
        let (wide, count) = part(
            self.problem.wide_extent(rows),
            NonZeroU32::new(self.problem.unit::<S>())?,
            NonZeroU32::new(wide_tiles)?,
            wide,
        );
        Some(Tile {
            group,
            row_start,
            rows,
            fixed: self.problem.fixed_start(fixed * S::BLOCKS),
            wide,
            count,
        })
    }
}

/// Place on the fixed and on the wide side of tile `index` of a group: bands of `band` wide
/// tiles, the wide side first inside a band. `None` only for a group without tiles.
pub(super) fn in_band(
    index: u32,
    wide_tiles: u32,
    fixed_tiles: u32,
    band: u32,
) -> Option<(u32, u32)> {
    // NonZero: a plain division would bring a panic into the kernel.
    let first = if wide_tiles <= band {
        0
    } else {
        index / NonZeroU32::new(band * fixed_tiles)? * band
    };
    let height = NonZeroU32::new(if wide_tiles - first < band {
        wide_tiles - first
    } else {
        band
    })?;
    let inside = index - first * fixed_tiles;
    Some((inside / height, first + inside % height))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    /// As large a share of the blocks begins with few rows as there are such tiles; none where there are none.
    #[test]
    fn blocks_begin_with_few_rows_by_their_share() {
        const BLOCKS: u32 = 132;
        let begin = |problem: Problem, rows: &[u32]| {
            let table = Table::new::<ByBlock>(&problem, rows, u32::MAX);
            let tiles: Tiles<_, ByBlock> = Tiles::new(&table, problem);
            let few = |block: &u32| tiles.first_class(*block) == Class::Few;
            (0..BLOCKS).filter(few).count()
        };
        let forward = Problem::new(Form::Forward, 0, 256, 64, 0);
        let wgrad = Problem::new(Form::Wgrad, 256, 256, 0, 0);
        assert_eq!(begin(forward, &[]), 0);
        assert_eq!(begin(forward, &[1000, 200]), 0);
        assert_eq!(begin(forward, &[7, 160]), 132);
        // Three tiles of 192 at most for 576 rows, one for 100.
        assert_eq!(begin(forward, &[576, 100]), 33);
        assert_eq!(begin(wgrad, &[576, 100]), 66);
    }

    struct Group {
        first_tile: [u32; 2],
        row_start: u32,
        rows: u32,
    }

    struct Table(Vec<Group>, [u32; 2]);

    impl Table {
        fn new<S: Tiling>(problem: &Problem, rows: &[u32], capacity: u32) -> Table {
            let (mut groups, mut tiles, mut start) = (Vec::new(), [0; 2], 0u64);
            for &rows in rows {
                let inside = clamp_rows(start, rows, capacity);
                groups.push(Group {
                    first_tile: tiles,
                    row_start: start.min(capacity as u64) as u32,
                    rows: inside,
                });
                tiles[Class::of(inside) as usize] += problem.tiles::<S>(inside);
                start += padded(rows);
            }
            Table(groups, tiles)
        }
    }

    impl GroupTable for &Table {
        fn groups(&self) -> u32 {
            self.0.len() as u32
        }
        fn first_tile(&self, class: Class, group: u32) -> u32 {
            let at = self.0.get(group as usize);
            at.map_or(self.1, |group| group.first_tile)[class as usize]
        }
        fn rows(&self, group: u32) -> (u32, u32) {
            let group = &self.0[group as usize];
            (group.row_start, group.rows)
        }
    }

    /// Every element of D once, on both sides, and by as few tiles as the widest would take.
    fn check_cover<S: Tiling>(problem: Problem, rows: &[u32], step: u32) {
        let table = Table::new::<S>(&problem, rows, u32::MAX);
        // Numbers grow from one call to the next where a block draws them, but by any step.
        let mut seen: Vec<Tile> = Vec::new();
        for class in Class::ALL {
            for first in 0..step {
                let mut tiles: Tiles<_, S> = Tiles::new(&table, problem);
                let total = tiles.total(class);
                seen.extend(
                    (first..total)
                        .step_by(step as usize)
                        .map(|n| tiles.get(class, n).unwrap()),
                );
                assert_eq!(tiles.get(class, total), None);
                assert_eq!(tiles.get(class, u32::MAX), None);
            }
        }
        assert!(
            seen.iter()
                .all(|tile| tile.rows == rows[tile.group as usize])
        );
        seen.sort_by_key(|tile| (tile.group, tile.fixed, tile.wide));
        let mut seen = seen.into_iter();
        for (group, &rows) in rows.iter().enumerate() {
            let (fixed, wide) = match problem.form {
                Form::Wgrad if problem.adds && rows == 0 => (0, 0),
                Form::Wgrad => (problem.m, problem.n),
                _ => (problem.n, rows),
            };
            let widest = S::WIDEST;
            let starts = (0..fixed).step_by(SIDE as usize);
            let second = |start: u32| {
                let start = start + gate_up::HALF;
                (problem.paired && start < fixed).then_some(start)
            };
            // Each block's start, of which a tile has the first.
            let starts: Vec<u32> = starts
                .flat_map(|start| [Some(start), second(start)])
                .flatten()
                .collect();
            for of_blocks in starts.chunks(S::BLOCKS as usize) {
                let fixed = of_blocks[0];
                if let [first, second] = of_blocks {
                    assert_eq!(first + problem.apart(), *second);
                }
                let mut covered = 0;
                for _ in 0..wide.div_ceil(widest) {
                    let tile = seen.next().unwrap();
                    assert_eq!(
                        (tile.group, tile.rows, tile.fixed, tile.wide),
                        (group as u32, rows, fixed, covered)
                    );
                    assert!((1..=widest).contains(&tile.count), "{tile:?}");
                    assert!(tile.width() <= widest && tile.width() >= tile.count);
                    let covers = problem.share::<S>(tile.count) * S::BLOCKS;
                    assert!(
                        (tile.count..=widest).contains(&covers) && covers.is_multiple_of(S::STEP)
                    );
                    assert!(tile.wide.is_multiple_of(problem.unit::<S>()));
                    covered += tile.count;
                }
                assert_eq!(covered, wide);
            }
        }
        assert_eq!(seen.next(), None);
    }

    #[test]
    fn every_tile_once_in_any_steps() {
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
                        for step in [1, 2, 7, 132] {
                            for problem in [
                                Problem::new(form, m, n, 192, sink as u32),
                                Problem::gate_up(n, 192),
                            ] {
                                check_cover::<ByBlock>(problem, rows, step);
                                check_cover::<ByPair>(problem, rows, step);
                                if problem.form == Form::Forward {
                                    check_cover::<ByPairMxfp8>(problem, rows, step);
                                }
                            }
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
            step in 1u32..200,
            form in proptest::sample::select(&Form::ALL[..]),
            sink in proptest::sample::select(&Sink::ALL[..]),
        ) {
            let problem = Problem::new(form, m, n, 64, sink as u32);
            check_cover::<ByBlock>(problem, &rows, step);
            check_cover::<ByPair>(problem, &rows, step);
            if form == Form::Forward {
                check_cover::<ByPairMxfp8>(problem, &rows, step);
            }
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
