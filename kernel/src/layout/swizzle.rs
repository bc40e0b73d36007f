//! The 128-byte swizzle of TMA and the tensor cores (PTX ISA, "Swizzling modes").
//!
//! A tile row of 128 bytes is eight 16-byte chunks. Within each atom of eight rows
//! the chunk index is XORed with the row index, so that the same chunk of eight
//! neighbouring rows lies in eight different bank groups. Addresses below count from
//! a base aligned to the atom, 1,024 bytes.

/// Bytes of one swizzled row.
pub const ROW: u32 = 128;
/// Bytes of one atom: eight rows.
pub const ATOM: u32 = 1024;

/// The swizzled offset of a byte: bits 4 to 6 are XORed with bits 7 to 9.
///
/// Its own inverse, since bits 7 to 9 pass through unchanged.
pub const fn swizzle128(offset: u32) -> u32 {
    offset ^ ((offset >> 3) & 0x70)
}

/// Offset of a byte of row `row` (128 bytes a row) in a swizzled tile.
pub const fn in_tile(row: u32, byte: u32) -> u32 {
    swizzle128(row * ROW + byte)
}

/// Offset of a byte of row `row` in rows of 64 bytes: the 16-byte chunk index is XORed with half the
/// row's, so that one chunk of eight neighbouring rows lies in eight bank groups here too.
pub const fn in_half_rows(row: u32, byte: u32) -> u32 {
    let offset = row * 64 + byte;
    offset ^ ((offset >> 3) & 0x30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_bijection_and_its_own_inverse() {
        let mut seen = [false; 4096];
        for offset in 0..4096 {
            let to = swizzle128(offset);
            assert_eq!(swizzle128(to), offset);
            assert!(!core::mem::replace(&mut seen[to as usize], true));
        }
    }

    /// The table that the PTX ISA draws: row r holds its chunks in the order c ^ r.
    #[test]
    fn eight_rows_use_eight_bank_groups() {
        for chunk in 0..8 {
            let mut groups = 0u32;
            for row in 0..8 {
                let offset = in_tile(row, 16 * chunk);
                assert_eq!(offset / ROW, row, "a row stays in its 128 bytes");
                assert_eq!(offset % ROW / 16, chunk ^ row);
                groups |= 1 << (offset % ROW / 16);
            }
            assert_eq!(groups, 0xff);
        }
    }

    #[test]
    fn half_rows_do_so_too() {
        let mut seen = [false; 4096];
        for row in 0..64 {
            let mut groups = 0u32;
            for byte in 0..64 {
                let offset = in_half_rows(row, byte);
                assert_eq!((offset / 64, offset % 16), (row, byte % 16));
                assert!(!core::mem::replace(&mut seen[offset as usize], true));
            }
            for other in row / 8 * 8..row / 8 * 8 + 8 {
                groups |= 1 << (in_half_rows(other, 16 * (row % 4)) % ROW / 16);
            }
            assert_eq!(groups, 0xff);
        }
    }
}
