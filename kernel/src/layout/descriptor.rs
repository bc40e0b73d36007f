//! Shared-memory descriptors of wgmma (PTX ISA, "Matrix Descriptor Format").
//!
//! bf16 operands in 128-byte swizzle. A **K-major** tile is rows of 64 elements
//! along K, eight rows an atom. An **MN-major** tile is panels of 64 columns: a panel
//! is K rows of 128 bytes, and panels follow each other.

use super::swizzle::ATOM;

/// Which dimension of an operand is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Major {
    /// The contraction dimension.
    K,
    /// The other one (M of A, N of B).
    Mn,
}

impl Major {
    /// The transpose immediate of wgmma.
    pub const fn transpose(self) -> i32 {
        match self {
            Major::K => 0,
            Major::Mn => 1,
        }
    }

    /// Bytes from one K step of 16 to the next, in a tile of 64 K.
    pub const fn k_step(self) -> u32 {
        match self {
            Major::K => 32,
            Major::Mn => 2 * ATOM,
        }
    }
}

const SWIZZLE_128B: u64 = 1 << 62;

/// Descriptor of a K-major bf16 tile at shared address `addr`.
///
/// Stride offset: from eight rows to the next eight. The leading offset is unused in
/// this mode and 1 by convention.
pub const fn k_major(addr: u32) -> u64 {
    encode(addr, 16, ATOM)
}

/// Descriptor of an MN-major bf16 tile at `addr` whose panels are `panel` bytes apart.
///
/// Leading offset: from a panel of 64 columns to the next. Stride offset: from eight K
/// rows to the next eight.
pub const fn mn_major(addr: u32, panel: u32) -> u64 {
    encode(addr, panel, ATOM)
}

/// The descriptor `bytes` (a multiple of 16) further on, inside shared memory.
///
/// The address can't carry out of the lower half, so that the upper one stays a constant.
pub const fn advance(descriptor: u64, bytes: u32) -> u64 {
    descriptor >> 32 << 32 | (descriptor as u32).wrapping_add(bytes >> 4) as u64
}

const fn encode(addr: u32, leading: u32, stride: u32) -> u64 {
    field(addr) | field(leading) << 16 | field(stride) << 32 | SWIZZLE_128B
}

/// Addresses and offsets are given in 16-byte units, 14 bits.
const fn field(bytes: u32) -> u64 {
    ((bytes & 0x3_ffff) >> 4) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_isa_says() {
        let d = mn_major(0x1_2400, 8192);
        assert_eq!(d & 0x3fff, 0x1_2400 >> 4);
        assert_eq!(d >> 16 & 0x3fff, 8192 >> 4);
        assert_eq!(d >> 32 & 0x3fff, 64);
        assert_eq!(d >> 62, 1);
        assert_eq!(k_major(1024) >> 16 & 0x3fff, 1);
    }

    #[test]
    fn a_k_step_stays_inside_the_address_field() {
        let last = 227 * 1024 - 8192;
        for step in 0..4 {
            let d = advance(mn_major(last, 8192), step * Major::Mn.k_step());
            assert_eq!((d & 0x3fff) << 4, (last + step * 2048) as u64);
            assert_eq!(d >> 16, mn_major(0, 8192) >> 16);
        }
    }
}
