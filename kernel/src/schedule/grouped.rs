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
mod tests;
