//! The wgmma matrix descriptor and the layouts that it names (PTX ISA 9.0, 9.7.15.5.1.2).
//!
//! An operand tile is rows (M or N, here `mn`) by K, made of core matrices of 8 by 16 bytes.
//! With T elements in 16 bytes and W = 1, 2, 4, 8 chunks in a row of the swizzle atom (none,
//! 32, 64, 128 bytes), in units of elements before the swizzle:
//!
//! | major | mode | canonical layout (mn),(k) |
//! |---|---|---|
//! | K | none | `((8,m),(T,2k)):((1T,SBO),(1,LBO))` |
//! | K | swizzled | `((8,m),(T,2k)):((WT,SBO),(1,T))` |
//! | MN | none | `((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))` |
//! | MN | swizzled | `((T,W,m),(8,k)):((1,T,LBO),(WT,SBO))` |
//!
//! In words. K-major: 8 rows lie W chunks apart, the next 8 rows SBO further; the second 16
//! bytes of K lie LBO away with no swizzle, and simply next with one (LBO is not used).
//! MN-major: 8 k lie W chunks apart; with no swizzle the next T rows are SBO and the next 8 k
//! LBO away, with a swizzle the next W T rows are LBO and the next 8 k SBO away. The swizzle
//! is then applied to the absolute address.

use super::swizzle::Swizzle;

/// Which dimension of an operand is contiguous in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Major {
    /// K contiguous: the immediate `imm-trans` is 0.
    K,
    /// M of A or N of B contiguous: `imm-trans` is 1; 16-bit elements only.
    Mn,
}

/// The 64 bits of a wgmma matrix descriptor, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Shared-memory address of the tile, a multiple of 16 (bits 0-13).
    pub start: u32,
    /// Leading dimension byte offset, a multiple of 16 (bits 16-29).
    pub leading: u32,
    /// Stride dimension byte offset, a multiple of 16 (bits 32-45).
    pub stride: u32,
    /// Matrix base offset: `(pattern start >> 7) & 7` (bits 49-51).
    pub base_offset: u32,
    /// Swizzle mode (bits 62-63).
    pub swizzle: Swizzle,
}

/// Bits of a descriptor that have no meaning in a wgmma and must be 0.
const RESERVED: u64 = !(0x3fff | 0x3fff << 16 | 0x3fff << 32 | 7 << 49 | 3 << 62);

impl Descriptor {
    /// Takes a descriptor apart; reserved bits that are set are an error (the likeliest reason
    /// is a carry out of the address field, or a descriptor made for tcgen05).
    pub fn decode(bits: u64) -> Result<Descriptor, String> {
        let reserved = bits & RESERVED;
        if reserved != 0 {
            let why = if reserved == 1 << 46 {
                " (a tcgen05 descriptor?)"
            } else {
                ""
            };
            return Err(format!(
                "matrix descriptor {bits:#018x}: reserved bits {reserved:#018x} are set{why}"
            ));
        }
        let field = |shift: u32| (((bits >> shift) & 0x3fff) as u32) << 4;
        let descriptor = Descriptor {
            start: field(0),
            leading: field(16),
            stride: field(32),
            base_offset: ((bits >> 49) & 7) as u32,
            swizzle: Swizzle::from_descriptor(bits >> 62),
        };
        if descriptor.swizzle == Swizzle::None && descriptor.base_offset != 0 {
            return Err(format!(
                "matrix descriptor {bits:#018x}: a base offset of {} without a swizzle",
                descriptor.base_offset
            ));
        }
        Ok(descriptor)
    }

    /// The bits of a descriptor; fields that don't fit are cut.
    #[must_use]
    pub fn encode(&self) -> u64 {
        let field = |value: u32, shift: u32| u64::from((value >> 4) & 0x3fff) << shift;
        let swizzle = match self.swizzle {
            Swizzle::None => 0,
            Swizzle::B128 => 1,
            Swizzle::B64 => 2,
            Swizzle::B32 => 3,
        };
        field(self.start, 0)
            | field(self.leading, 16)
            | field(self.stride, 32)
            | u64::from(self.base_offset & 7) << 49
            | swizzle << 62
    }

    /// The layout of elements of that size, or why the hardware has none.
    pub fn layout(&self, major: Major, element_bytes: usize) -> Result<Layout, String> {
        if !matches!(element_bytes, 1 | 2 | 4) {
            return Err(format!(
                "elements of {element_bytes} bytes in an operand of a wgmma"
            ));
        }
        if major == Major::Mn && element_bytes != 2 {
            return Err(format!(
                "an MN-major (transposed) operand with elements of {element_bytes} byte(s): wgmma \
                 transposes 16-bit elements only"
            ));
        }
        Ok(self.canonical(major, element_bytes as u32))
    }

    /// The canonical layout, whatever the instruction allows.
    pub(super) fn canonical(&self, major: Major, element_bytes: u32) -> Layout {
        Layout {
            descriptor: *self,
            major,
            element_bytes,
        }
    }
}

/// Where each element of an operand tile lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    descriptor: Descriptor,
    major: Major,
    element_bytes: u32,
}

impl Layout {
    /// Shared-memory address of element (`mn`, `k`). It can lie outside shared memory.
    #[must_use]
    pub fn address(&self, mn: u32, k: u32) -> u32 {
        let per_chunk = 16 / self.element_bytes;
        let (row, within) = match self.major {
            Major::K => (mn, k % per_chunk),
            Major::Mn => (k, mn % per_chunk),
        };
        let chunk = match self.major {
            Major::K => k / per_chunk,
            Major::Mn => mn / per_chunk,
        };
        // A chunk is 16-byte aligned before the swizzle and after it.
        self.chunk(row, chunk) + within * self.element_bytes
    }

    /// Address of 16 bytes that are contiguous in the major dimension: `row` counts the other
    /// dimension (mn of a K-major tile, k of an MN-major one), `chunk` counts 16 bytes along
    /// the major one.
    #[must_use]
    pub fn chunk(&self, row: u32, chunk: u32) -> u32 {
        let Descriptor {
            start,
            leading,
            stride,
            base_offset,
            swizzle,
        } = self.descriptor;
        let width = swizzle.span() / 16;
        let offset = match (self.major, swizzle) {
            (Major::K, Swizzle::None) => (row % 8) * 16 + (row / 8) * stride + chunk * leading,
            (Major::K, _) => (row % 8) * width * 16 + (row / 8) * stride + chunk * 16,
            (Major::Mn, Swizzle::None) => (row % 8) * 16 + chunk * stride + (row / 8) * leading,
            (Major::Mn, _) => {
                (chunk % width) * 16
                    + (chunk / width) * leading
                    + (row % 8) * width * 16
                    + (row / 8) * stride
            }
        };
        swizzle.apply_from(start.wrapping_add(offset), base_offset)
    }

    /// Which dimension is contiguous.
    #[must_use]
    pub fn major(&self) -> Major {
        self.major
    }

    /// The descriptor that the layout came from.
    #[must_use]
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Elements in 16 bytes.
    #[must_use]
    pub fn per_chunk(&self) -> u32 {
        16 / self.element_bytes
    }
}
