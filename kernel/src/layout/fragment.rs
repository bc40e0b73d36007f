//! Which element of a tile a thread holds (PTX ISA, "Register Fragments").

/// The D fragment of wgmma m64nN, which four warps of m16n8 products also make.
///
/// Mixed radix: (warp, half, lane / 4) counts rows, (j, lane % 4, low bit) counts
/// columns, so that thread and index together are a bijection onto the tile.
pub mod accumulator {
    /// Row of `d[index]` in the 64-row tile of thread `thread` (0 to 127).
    pub const fn row(thread: u32, index: u32) -> u32 {
        thread / 32 * 16 + thread % 32 / 4 + index % 4 / 2 * 8
    }

    /// Column of `d[index]`.
    pub const fn column(thread: u32, index: u32) -> u32 {
        index / 4 * 8 + thread % 4 * 2 + index % 2
    }
}

/// Which of a tile's 128 rows in tensor memory (its lanes) a consumer's warp loads, 16 at a time: each
/// warp of a warpgroup reaches 32 lanes, of which consumer 0 takes the first 16, and consumer 1 the others.
///
/// 16 lanes by 256 bits are loaded as [`accumulator`] places 16 rows, so that a warp has the rows that some
/// warp of some consumer has where each consumer multiplies its own 64.
pub mod tensor {
    /// The first lane of warp `warp` (0 to 3) of consumer `consumer` (0 or 1).
    pub const fn lane(consumer: u32, warp: u32) -> u32 {
        32 * warp + 16 * consumer
    }

    /// The consumer whose 64 rows have those lanes.
    pub const fn part(consumer: u32, warp: u32) -> u32 {
        lane(consumer, warp) / 64
    }

    /// And its warp that has them there.
    pub const fn warp(consumer: u32, warp: u32) -> u32 {
        lane(consumer, warp) % 64 / 16
    }
}

/// Byte offsets, in a 128-byte-swizzled tile of 64 K, that the lanes of a warp give to
/// an x4 `ldmatrix`, which loads four 8x8 blocks.
pub mod ldmatrix {
    use crate::layout::descriptor::Major;
    use crate::layout::swizzle::in_tile;

    /// A fragment of m16n8k16: rows `row` to `row + 15`, K `k` to `k + 15`.
    ///
    /// Blocks in fragment order: rows 0-7, rows 8-15, then the same with K 8-15.
    /// Panels of an MN-major tile hold 64 rows each, `panel` bytes apart.
    pub const fn a(major: Major, lane: u32, row: u32, k: u32, panel: u32) -> u32 {
        let (block, line) = (lane / 8, lane % 8);
        let (row, k) = (row + block % 2 * 8, k + block / 2 * 8);
        tile_offset(major, row, k, line, panel)
    }

    /// Two B fragments of m16n8k16: columns `column` to `column + 15`, K `k` to `k + 15`.
    ///
    /// Blocks: columns 0-7 with K 0-7 and K 8-15, then columns 8-15 likewise.
    pub const fn b(major: Major, lane: u32, column: u32, k: u32, panel: u32) -> u32 {
        let (block, line) = (lane / 8, lane % 8);
        let (column, k) = (column + block / 2 * 8, k + block % 2 * 8);
        tile_offset(major, column, k, line, panel)
    }

    /// The offset of 16 `steps` columns further on than [`b`] with column 0, without another swizzle.
    pub const fn b_further(major: Major, first: u32, steps: u32, panel: u32) -> u32 {
        match major {
            Major::K => first + steps * 16 * 128,
            Major::Mn => steps / 4 * panel + (first ^ (steps % 4 * 32)),
        }
    }

    /// A K-major block's lines are rows along MN; an MN-major one's are rows along K (and
    /// the load transposes).
    const fn tile_offset(major: Major, mn: u32, k: u32, line: u32, panel: u32) -> u32 {
        match major {
            Major::K => in_tile(mn + line, 2 * k),
            Major::Mn => mn / 64 * panel + in_tile(k + line, 2 * (mn % 64)),
        }
    }
}

/// Byte offsets, in lines of 64 swizzled bf16, that the lanes of a warpgroup give to an x4
/// `stmatrix` of 16 columns of its sums: four 8x8 blocks, in the order of [`accumulator`]: rows
/// 0-7 and 8-15 of the warp, then the same with the next eight columns.
pub mod stmatrix {
    use crate::layout::swizzle::{in_half_rows, in_tile};

    /// Transposed, where the sums' rows alternate, eight and eight, between two matrices: the line
    /// of 32 elements in the one's lines or, `apart` bytes on, in the other's.
    ///
    /// 16 columns further on are 16 lines, swizzled alike.
    pub const fn alternating(thread: u32, apart: u32) -> u32 {
        let (warp, block, line) = (thread / 32, thread % 32 / 8, thread % 8);
        block % 2 * apart + in_half_rows(8 * (block / 2) + line, 16 * warp)
    }

    /// Transposed: the sums' columns are lines, and their 64 rows a line's elements.
    ///
    /// 16 columns further on are 16 lines, swizzled alike.
    pub const fn across(thread: u32) -> u32 {
        let (warp, block, line) = (thread / 32, thread % 32 / 8, thread % 8);
        in_tile(8 * (block / 2) + line, 2 * (16 * warp + 8 * (block % 2)))
    }

    /// As they are: the sums' rows are lines, their columns from `column` on (a multiple of 16)
    /// elements.
    pub const fn along(thread: u32, column: u32) -> u32 {
        let (warp, block, line) = (thread / 32, thread % 32 / 8, thread % 8);
        in_tile(
            16 * warp + 8 * (block % 2) + line,
            2 * (column + 8 * (block / 2)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::descriptor::Major;

    #[test]
    fn accumulators_cover_the_tile_once() {
        let mut seen = [[false; 192]; 64];
        for thread in 0..128 {
            for index in 0..96 {
                let (row, column) = (
                    accumulator::row(thread, index),
                    accumulator::column(thread, index),
                );
                assert!(!core::mem::replace(
                    &mut seen[row as usize][column as usize],
                    true
                ));
            }
        }
        assert!(seen.iter().flatten().all(|&covered| covered));
    }

    #[test]
    fn two_consumers_share_the_lanes_of_tensor_memory() {
        let mut seen = [false; 128];
        for (consumer, warp) in [0, 1]
            .into_iter()
            .flat_map(|c| [0, 1, 2, 3].map(|w| (c, w)))
        {
            let first = tensor::lane(consumer, warp);
            assert!(
                (32 * warp..32 * warp + 32).contains(&first),
                "the warp's own lanes"
            );
            let (part, other) = (tensor::part(consumer, warp), tensor::warp(consumer, warp));
            for lane in 0..32 {
                // 16x256b: lane l / 4, and 8 below (PTX ISA, "tcgen05 data movement").
                let rows = [0, 8].map(|below| first + lane / 4 + below);
                let thread = 32 * other + lane;
                let want = [0, 2].map(|index| 64 * part + accumulator::row(thread, index));
                assert_eq!(rows, want);
                if lane % 4 == 0 {
                    for row in rows {
                        assert!(!core::mem::replace(&mut seen[row as usize], true));
                    }
                }
            }
        }
        assert!(seen.iter().all(|&covered| covered));
    }

    /// A tile element's offset, written independently: rows of 128 bytes, chunk XOR row.
    fn element(major: Major, mn: u32, k: u32, panel: u32) -> u32 {
        let (base, line, byte) = match major {
            Major::K => (0, mn, 2 * k),
            Major::Mn => (mn / 64 * panel, k, 2 * (mn % 64)),
        };
        base + line * 128 + ((byte / 16) ^ (line % 8)) * 16 + byte % 16
    }

    #[test]
    fn ldmatrix_lines_are_sixteen_byte_rows_of_the_wanted_blocks() {
        for major in [Major::K, Major::Mn] {
            for (row, k) in [(0, 0), (16, 16), (48, 48), (80, 32)] {
                for lane in 0..32 {
                    let (block, line) = (lane / 8, lane % 8);
                    let (mn, kk) = (row + block % 2 * 8, k + block / 2 * 8);
                    let expect = match major {
                        Major::K => element(major, mn + line, kk, 8192),
                        Major::Mn => element(major, mn, kk + line, 8192),
                    };
                    assert_eq!(ldmatrix::a(major, lane, row, k, 8192), expect);
                    let (mn, kk) = (row + block / 2 * 8, k + block % 2 * 8);
                    let expect = match major {
                        Major::K => element(major, mn + line, kk, 8192),
                        Major::Mn => element(major, mn, kk + line, 8192),
                    };
                    assert_eq!(ldmatrix::b(major, lane, row, k, 8192), expect);
                    let first = ldmatrix::b(major, lane, 0, k, 8192);
                    assert_eq!(ldmatrix::b_further(major, first, row / 16, 8192), expect);
                }
            }
        }
    }
}
