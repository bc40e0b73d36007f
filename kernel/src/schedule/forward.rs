//! A forward pass as one order of tasks, which is topological for all that they wait for.
//!
//! Rows of experts come in strips: what a tile has of a group's rows, all of its columns. A strip is
//! dispatched in pieces of [`PIECE`] rows, then multiplied by gate and up, then by down, then combined.
//! Each step waits for the one before, strip by strip, and counters in device memory tell how far a
//! strip is ([`forward`](crate::forward)).
//!
//! ```text
//! tiles   gate-and-up 0, gate-and-up 1, down 0, gate-and-up 2, down 1, ... down last       (minibatches)
//! moves   stage the tokens, meet the other ranks, dispatch four minibatches, combine 0, dispatch the next, combine 1,
//!         ... combine last, meet the other ranks                                           (strips)
//! sums    token 0, token 1, ... by whoever has no other task left
//! ```
//!
//! Activations take the memory of a macrobatch, however many rows there are: strips lie in a ring of [`Places`],
//! each as large as the widest tile, and one is dispatched after that which had its place has been combined. At most
//! as many strips as there are places are dispatched and not combined at any point of the order, so that it stays
//! topological.
//!
//! Tiles are drawn by blocks and moves by warps, each in its own order: whoever has drawn a task does it
//! before it draws another. Sums wait for the last move alone. There is an order of all tasks that has both as
//! parts and in which no task comes before what it waits for. So the first task of that order which isn't done
//! is one that somebody works at, or is the next to be drawn, whatever else waits; one block that runs is enough.

use core::marker::PhantomData;
use core::num::NonZeroU32;

use super::grouped::{
    BAND, ByBlock, ByPair, Class, GroupTable, Problem, Tile, Tiling, in_band, part,
};

/// Rows that a warp moves for one ticket.
pub const PIECE: u32 = 8;
const _: () = assert!(ByBlock::ROWS.is_multiple_of(PIECE) && ByPair::ROWS.is_multiple_of(PIECE));
/// Rows of a strip's place: of the widest tile on any architecture, so that the memory is the same on all.
pub const PLACE: u32 = ByPair::WIDEST;
const _: () = assert!(PLACE.is_multiple_of(PIECE) && ByBlock::WIDEST <= PLACE);

/// Tickets for the pieces of a strip: as many as it may have.
pub const fn pieces_of_strip<S: Tiling>() -> u32 {
    S::WIDEST / PIECE
}

/// How many strips are held, and how many of them make a minibatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// At least [`LEAST_PLACES`].
    pub count: u32,
    /// Strips of a minibatch, at least 1; no more than [`MINIBATCHES`] of them have places.
    pub minibatch: u32,
}

/// Minibatches that are dispatched before the first is combined. A strip that is combined waits for tiles of its
/// minibatch, of the next one where a band reaches into it, and of the two behind that, whose gate-and-up
/// comes first.
pub const MINIBATCHES: u32 = 4;
/// The fewest places: minibatches of a strip.
pub const LEAST_PLACES: u32 = MINIBATCHES;

impl Places {
    /// For macrobatches and minibatches of so many rows, of strips of up to `widest`: no more strips than surely have no
    /// more rows, but at least what is needed.
    pub const fn new(macrobatch_rows: u32, minibatch_rows: u32, widest: u32) -> Places {
        let count = at_least(macrobatch_rows / PLACE, LEAST_PLACES);
        let minibatch = at_least(minibatch_rows / widest, 1);
        let most = count / MINIBATCHES;
        Places {
            count,
            minibatch: if minibatch < most { minibatch } else { most },
        }
    }

    /// The row where a strip lies.
    #[inline(always)]
    pub fn row(&self, strip: u32) -> u32 {
        // Never 0; said so that the division can't panic.
        strip % self.count.max(1) * PLACE
    }
}

const fn at_least(value: u32, least: u32) -> u32 {
    if value < least { least } else { value }
}

/// Tiles are counted by strips, and few rows or many make no difference.
#[derive(Clone, Copy)]
pub struct ByStrip<S = ByBlock>(PhantomData<S>);

impl<S: Tiling> Tiling for ByStrip<S> {
    const BLOCKS: u32 = S::BLOCKS;
    const WIDEST: u32 = S::WIDEST;
    const ROWS: u32 = S::ROWS;
    const STEP: u32 = S::STEP;
    const COLUMNS: u32 = S::COLUMNS;

    const ONE_CLASS: bool = true;
}

/// What a strip is cut by: products of one tile on the fixed side have as many tiles as strips.
pub const STRIPS: Problem = Problem::new(crate::gemm::Form::Forward, 0, 1, 1, 0);

/// A table of one group.
#[derive(Clone, Copy)]
pub struct OneGroup<S = ByBlock> {
    /// Its rows.
    rows: u32,
    tiling: PhantomData<S>,
}

impl<S> OneGroup<S> {
    /// Of so many rows.
    pub const fn new(rows: u32) -> OneGroup<S> {
        OneGroup {
            rows,
            tiling: PhantomData,
        }
    }
}

impl<S: Tiling> GroupTable for OneGroup<S> {
    fn groups(&self) -> u32 {
        1
    }

    fn first_tile(&self, _: Class, group: u32) -> u32 {
        match group {
            0 => 0,
            _ => STRIPS.wide_tiles::<ByStrip<S>>(self.rows),
        }
    }

    fn rows(&self, _: u32) -> (u32, u32) {
        (0, self.rows)
    }
}

/// Which product of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    /// Gate and up, and the activation.
    GateUp = 0,
    /// Down.
    Down = 1,
}

/// The order of an expert's tiles, or of all routed experts': both products, minibatch by minibatch.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    gates: u32,
    downs: u32,
    /// Tiles of a whole minibatch.
    gate_batch: u32,
    down_batch: u32,
}

impl Line {
    /// Of `strips` strips, `minibatch` to a minibatch; each has so many tiles in the two products. None of
    /// the products of these overflows.
    #[inline(always)]
    pub const fn new(strips: u32, minibatch: u32, gate_tiles: u32, down_tiles: u32) -> Line {
        // Capped, so that nothing overflows.
        let batch = if minibatch < strips {
            minibatch
        } else {
            strips
        };
        Line {
            gates: strips * gate_tiles,
            downs: strips * down_tiles,
            gate_batch: batch * gate_tiles,
            down_batch: batch * down_tiles,
        }
    }

    /// All tiles.
    #[inline(always)]
    pub const fn total(&self) -> u64 {
        self.gates as u64 + self.downs as u64
    }

    /// The product of a ticket under [`total`](Line::total), and the tile's number in it.
    #[inline(always)]
    pub fn get(&self, ticket: u64) -> (Stage, u32) {
        let (gate, down) = (self.gate_batch, self.down_batch);
        if ticket < gate as u64 {
            return (Stage::GateUp, ticket as u32);
        }
        // Rounds of a minibatch's gate-and-up and the one before's down, while there are whole ones.
        let rest = ticket - gate as u64;
        let round = (gate as u64 + down as u64).max(1);
        let whole = (self.gates / gate.max(1)).saturating_sub(1) as u64;
        let index = rest / round;
        if index < whole {
            let inside = rest - index * round;
            let (index, inside) = (index as u32, inside as u32);
            return if inside < gate {
                (Stage::GateUp, (index + 1) * gate + inside)
            } else {
                (Stage::Down, index * down + (inside - gate))
            };
        }
        let (whole, rest) = (whole as u32, (rest - whole * round) as u32);
        let left = self.gates - (whole + 1) * gate;
        if rest < left {
            (Stage::GateUp, (whole + 1) * gate + rest)
        } else {
            (Stage::Down, whole * down + (rest - left))
        }
    }
}

/// Strips of a product's groups, and its tiles by their numbers.
#[derive(Clone, Copy)]
pub struct Strips<T, S = ByBlock> {
    table: T,
    band: u32,
    /// The last group asked for.
    group: u32,
    tiling: PhantomData<S>,
}

/// Some rows of one strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its first row.
    pub row: u32,
    /// Rows, at least 1.
    pub rows: u32,
}

impl Piece {
    /// Piece `index` of `rows` rows that start at `first`; `None` if there are fewer.
    #[inline(always)]
    pub const fn of(first: u32, rows: u32, index: u32) -> Option<Piece> {
        let before = PIECE * index;
        if before >= rows {
            return None;
        }
        let left = rows - before;
        Some(Piece {
            row: first + before,
            rows: if left < PIECE { left } else { PIECE },
        })
    }
}

impl<T: GroupTable, S: Tiling> Strips<T, S> {
    /// The strips of a table made for [`STRIPS`]. Tiles of up to a minibatch's strips share a part of the
    /// weights before it moves on: more would wait for tiles of later minibatches.
    pub fn new(table: T, minibatch: u32) -> Strips<T, S> {
        Strips {
            table,
            band: if minibatch < BAND { minibatch } else { BAND },
            group: 0,
            tiling: PhantomData,
        }
    }

    /// All of them.
    #[inline(always)]
    pub fn total(&self) -> u32 {
        self.table.first_tile(Class::Many, self.table.groups())
    }

    /// Tile `number` of a product of the strips, and its strip. `None` for a number that there isn't.
    #[inline(always)]
    pub fn tile(&mut self, problem: &Problem, number: u32) -> Option<(Tile, u32)> {
        let fixed_tiles = NonZeroU32::new(problem.fixed_tiles::<ByStrip<S>>())?;
        let near = number / fixed_tiles;
        if near >= self.total() {
            return None;
        }
        let first = |group| self.table.first_tile(Class::Many, group);
        let group = last_from(first, self.table.groups(), self.group, near);
        self.group = group;
        let (row_start, rows) = self.table.rows(group);
        let before = first(group);
        let wide_tiles = STRIPS.wide_tiles::<ByStrip<S>>(rows);
        let index = number - before * fixed_tiles.get();
        let (fixed, place) = in_band(index, wide_tiles, fixed_tiles.get(), self.band)?;
        let unit = NonZeroU32::new(S::ROWS)?;
        let (wide, count) = part(rows, unit, NonZeroU32::new(wide_tiles)?, place);
        let tile = Tile {
            group,
            row_start,
            rows,
            fixed: problem.fixed_start(fixed * S::BLOCKS),
            wide,
            count,
        };
        Some((tile, before + place))
    }

    /// Piece `index` of a strip that there is; `None` if the strip has fewer.
    #[inline(always)]
    pub fn piece(&mut self, strip: u32, index: u32) -> Option<Piece> {
        let groups = self.table.groups();
        if groups == 0 {
            return None;
        }
        let first = |group| self.table.first_tile(Class::Many, group);
        let group = last_from(first, groups, self.group, strip);
        self.group = group;
        let (row_start, rows) = self.table.rows(group);
        let parts = NonZeroU32::new(STRIPS.wide_tiles::<ByStrip<S>>(rows))?;
        let unit = NonZeroU32::new(S::ROWS)?;
        let (start, count) = part(rows, unit, parts, strip - first(group));
        Piece::of(row_start + start, count, index)
    }
}

/// The last of so many groups, at least one, that starts at `number` or before it; they start in order, where
/// `first` says. `near` is where it was the last time: numbers mostly grow from one call to the next.
#[inline(always)]
fn last_from(first: impl Fn(u32) -> u32, groups: u32, near: u32, number: u32) -> u32 {
    let (mut low, mut high) = if first(near) <= number {
        (near, groups)
    } else {
        (0, near)
    };
    // Mostly it is the same group.
    if low + 1 < high && first(low + 1) > number {
        return low;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if first(middle) <= number {
            low = middle
        } else {
            high = middle
        }
    }
    low
}

/// Pieces that so many rows are moved in.
pub const fn pieces(rows: u32) -> u32 {
    rows.div_ceil(PIECE)
}

/// What a warp that moves rows does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Move {
    /// Copies some of the rank's tokens to where other ranks read them: a piece.
    Stage,
    /// Meets the other ranks, whose tokens are then there.
    Tokens,
    /// Fetches a piece, which its strip may not have: number [`pieces_of_strip`] times the strip, and its own.
    Dispatch,
    /// Brings a piece back, likewise.
    Combine,
    /// Meets the other ranks, whose results are then here.
    Results,
    /// Nothing more.
    End,
}

/// The order of the moves.
#[derive(Clone, Copy, Debug)]
pub struct Moves<S = ByBlock> {
    /// Pieces of the rank's tokens.
    staged: u32,
    strips: u32,
    /// Strips that are dispatched before the first is combined.
    ahead: u32,
    tiling: PhantomData<S>,
}

impl<S: Tiling> Moves<S> {
    const PIECES: u32 = pieces_of_strip::<S>();

    /// For so many tokens of the rank, and so many strips.
    #[inline(always)]
    pub const fn new(tokens: u32, strips: u32, minibatch: u32) -> Moves<S> {
        let ahead = MINIBATCHES as u64 * minibatch as u64;
        Moves {
            staged: pieces(tokens),
            strips,
            ahead: if ahead < strips as u64 {
                ahead as u32
            } else {
                strips
            },
            tiling: PhantomData,
        }
    }

    /// Pieces of strips that are brought back, those among them that the strips don't have.
    #[inline(always)]
    pub const fn combined(&self) -> u32 {
        Self::PIECES * self.strips
    }

    /// The move of a ticket, and which piece.
    #[inline(always)]
    pub const fn get(&self, ticket: u32) -> (Move, u32) {
        if ticket < self.staged {
            return (Move::Stage, ticket);
        }
        let mut left = ticket - self.staged;
        if left == 0 {
            return (Move::Tokens, 0);
        }
        left -= 1;
        let ahead = Self::PIECES * self.ahead;
        if left < ahead {
            return (Move::Dispatch, left);
        }
        left -= ahead;
        // A whole strip, then a whole other one: it may have the place of the first.
        let both = Self::PIECES * (self.strips - self.ahead);
        if left < 2 * both {
            let (pair, inside) = (left / (2 * Self::PIECES), left % (2 * Self::PIECES));
            return if inside < Self::PIECES {
                (Move::Combine, Self::PIECES * pair + inside)
            } else {
                (
                    Move::Dispatch,
                    ahead + Self::PIECES * pair + (inside - Self::PIECES),
                )
            };
        }
        left -= 2 * both;
        if left < ahead {
            (Move::Combine, both + left)
        } else if left == ahead {
            (Move::Results, 0)
        } else {
            (Move::End, 0)
        }
    }
}

#[cfg(test)]
mod tests;
