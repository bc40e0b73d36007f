//! One tile, and how it is handed on.

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
    /// How much of the wide side it is, at most [`Tiling::WIDEST`](super::grouped::Tiling::WIDEST).
    pub count: u32,
}

impl Tile {
    /// A tile as eight words, to be handed on in shared memory, or that there is none any more: no tile is
    /// that narrow.
    pub const fn to_words(tile: Option<Tile>) -> ([u32; 4], [u32; 4]) {
        match tile {
            Some(tile) => (
                [tile.group, tile.row_start, tile.rows, tile.fixed],
                [tile.wide, tile.count, 0, 0],
            ),
            None => ([0; 4], [0; 4]),
        }
    }

    /// What [`to_words`](Tile::to_words) wrote.
    pub const fn from_words(
        ([group, row_start, rows, fixed], [wide, count, _, _]): ([u32; 4], [u32; 4]),
    ) -> Option<Tile> {
        if count == 0 {
            return None;
        }
        Some(Tile {
            group,
            row_start,
            rows,
            fixed,
            wide,
            count,
        })
    }

    /// Width of the product that covers it: the tensor cores' steps of 8, of 16 up to 64.
    pub const fn width(&self) -> u32 {
        width(self.count)
    }

    /// What block `rank` of a pair loads of it and, but for its half of the wide side, computes:
    /// [`SIDE`](crate::gemm::SIDE) of the fixed side, and `share` of the wide one.
    pub const fn half(&self, rank: u32, apart: u32, share: u32) -> Tile {
        Tile {
            fixed: self.fixed + rank * apart,
            wide: self.wide + rank * share,
            count: share,
            ..*self
        }
    }
}

/// Width of the product that covers `count` of the wide side.
pub const fn width(count: u32) -> u32 {
    count.next_multiple_of(if count <= 64 { 16 } else { 8 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_tile_that_was_written() {
        let tile = Tile {
            group: 1,
            row_start: 2,
            rows: 3,
            fixed: 4,
            wide: 5,
            count: 6,
        };
        for tile in [Some(tile), None] {
            assert_eq!(Tile::from_words(Tile::to_words(tile)), tile);
        }
    }
}
