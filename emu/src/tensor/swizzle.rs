//! The shared-memory swizzles of TMA and of matrix descriptors.
//!
//! Within a pattern of 256, 512 or 1,024 bytes the 16-byte chunk index (address bits 4-6) is
//! XORed with the number of the 128-byte line (bits 7-9), with one, two or three bits of it:
//! `Swizzle<1|2|3, 4, 3>` in the ISA's table of canonical layouts (9.7.15.5.1.2.1.3). The
//! hardware takes the bits of the absolute shared-memory address, not of an offset into a tile
//! (CUDA programming guide, "Swizzle pattern pointer offset computation").

/// A swizzle mode with 16-byte atoms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Swizzle {
    /// Addresses as they are ("no swizzle", "interleaved").
    #[default]
    None,
    /// 32-byte rows: bit 4 ^= bit 7.
    B32,
    /// 64-byte rows: bits 4-5 ^= bits 7-8.
    B64,
    /// 128-byte rows: bits 4-6 ^= bits 7-9.
    B128,
}

impl Swizzle {
    /// All four modes.
    pub const ALL: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

    /// How many address bits take part.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            Swizzle::None => 0,
            Swizzle::B32 => 1,
            Swizzle::B64 => 2,
            Swizzle::B128 => 3,
        }
    }

    /// Bytes of a row of the swizzle atom: 16 without a swizzle, else 32, 64 or 128.
    #[must_use]
    pub fn span(self) -> u32 {
        16 << self.bits()
    }

    /// Bytes after which the pattern repeats, and the alignment at which it begins: 256, 512 or
    /// 1,024; 16 without a swizzle.
    #[must_use]
    pub fn period(self) -> u32 {
        match self {
            Swizzle::None => 16,
            swizzled => 128 << swizzled.bits(),
        }
    }

    /// Where the byte that lies at `address` before the swizzle is in shared memory. Its own
    /// inverse.
    #[must_use]
    pub fn apply(self, address: u32) -> u32 {
        self.apply_from(address, 0)
    }

    /// [`Self::apply`] for a pattern that doesn't begin at a multiple of the period but
    /// `base_offset` 128-byte lines after one (the descriptor's "matrix base offset").
    #[must_use]
    pub fn apply_from(self, address: u32, base_offset: u32) -> u32 {
        let line = (address >> 7).wrapping_sub(base_offset);
        let mask = (1 << self.bits()) - 1;
        address ^ ((line & mask) << 4)
    }

    /// The mode in bits 62-63 of a wgmma matrix descriptor.
    #[must_use]
    pub fn from_descriptor(field: u64) -> Swizzle {
        match field & 3 {
            0 => Swizzle::None,
            1 => Swizzle::B128,
            2 => Swizzle::B64,
            _ => Swizzle::B32,
        }
    }

    /// The number of bytes by which people call the mode, 0 without a swizzle.
    #[must_use]
    pub fn from_bytes(bytes: u32) -> Option<Swizzle> {
        match bytes {
            0 => Some(Swizzle::None),
            32 => Some(Swizzle::B32),
            64 => Some(Swizzle::B64),
            128 => Some(Swizzle::B128),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The programming guide's table, read as it stands: `smem[y][x] <-> smem[y][...]` with y
    /// the 128-byte line, x the 16-byte chunk.
    fn guide(swizzle: Swizzle, address: u32) -> u32 {
        let (y, x, byte) = (address / 128, address / 16 % 8, address % 16);
        let column = match swizzle {
            Swizzle::None => x,
            Swizzle::B32 => (y % 2) ^ x,
            Swizzle::B64 => (y % 4) ^ x,
            Swizzle::B128 => (y % 8) ^ x,
        };
        y * 128 + column * 16 + byte
    }

    #[test]
    fn agrees_with_the_programming_guide_and_is_its_own_inverse() {
        for swizzle in Swizzle::ALL {
            for address in 0..4096 {
                let moved = swizzle.apply(address);
                assert_eq!(moved, guide(swizzle, address), "{swizzle:?} {address}");
                assert_eq!(swizzle.apply(moved), address);
            }
        }
    }

    #[test]
    fn repeats_after_the_period_and_not_before() {
        for swizzle in [Swizzle::B32, Swizzle::B64, Swizzle::B128] {
            let same = |shift: u32| {
                (0..2048).all(|a| swizzle.apply(a + shift) == swizzle.apply(a) + shift)
            };
            assert!(same(swizzle.period()));
            assert!(!same(swizzle.period() / 2));
        }
    }

    #[test]
    fn a_base_offset_moves_the_start_of_the_pattern() {
        for swizzle in Swizzle::ALL {
            for lines in 0..8 {
                for offset in 0..1024 {
                    let start = lines * 128;
                    let moved = swizzle.apply_from(start + offset, lines);
                    assert_eq!(moved, start + swizzle.apply(offset));
                }
            }
        }
    }
}
