//! The shared-memory descriptor of `tcgen05.mma` and `tcgen05.cp` (PTX ISA 9.0, 9.7.16.4.1).
//!
//! | bits | field |
//! |---|---|
//! | 0-13 | address >> 4 |
//! | 16-29 | leading dimension byte offset >> 4 |
//! | 32-45 | stride dimension byte offset >> 4 |
//! | 46-48 | 0b001 |
//! | 49-51 | matrix base offset |
//! | 52 | leading dimension is an absolute address |
//! | 61-63 | swizzle: 0 none, 1 128 bytes in atoms of 32, 2 128, 4 64, 6 32 bytes |
//!
//! The layouts that the fields name are those of wgmma, [`super::super::descriptor`], for elements
//! of every size, and one more: 128 bytes in atoms of 32 bytes, MN-major only, where 4 k lie 128
//! bytes apart, the next 4 k SBO further, the next 128 bytes of MN LBO further, and address bits
//! 5-6 are XORed with bits 7-8.

use super::super::descriptor::{self, Major};
use super::super::swizzle::Swizzle;

/// Where the 16-byte chunks of an operand lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One of wgmma's.
    Canonical(descriptor::Layout),
    /// 128-byte rows in atoms of 32 bytes, MN-major.
    Wide {
        /// Address of the tile.
        start: u32,
        /// From 128 bytes of MN to the next.
        leading: u32,
        /// From 4 k to the next.
        stride: u32,
    },
}

/// Bits without a meaning.
const RESERVED: u64 = 3 << 14 | 3 << 30 | 0xff << 53;

/// A descriptor, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    fields: descriptor::Descriptor,
    wide: bool,
}

impl Descriptor {
    /// Takes a descriptor apart, or says which bits are wrong.
    pub fn decode(bits: u64) -> Result<Descriptor, String> {
        let wrong = |what: String| Err(format!("matrix descriptor {bits:#018x}: {what}"));
        if bits & RESERVED != 0 {
            return wrong(format!("reserved bits {:#018x} are set", bits & RESERVED));
        }
        let version = bits >> 46 & 7;
        if version != 1 {
            return wrong(format!(
                "bits 46-48 are {version:#05b} and must be 0b001{}",
                if version == 0 {
                    " (a wgmma descriptor?)"
                } else {
                    ""
                }
            ));
        }
        if bits >> 52 & 1 != 0 {
            return wrong("bit 52, an absolute leading address, is not emulated".into());
        }
        let (swizzle, wide) = match bits >> 61 {
            0 => (Swizzle::None, false),
            1 => (Swizzle::B128, true),
            2 => (Swizzle::B128, false),
            4 => (Swizzle::B64, false),
            6 => (Swizzle::B32, false),
            mode => {
                return wrong(format!(
                    "the swizzle in bits 61-63 is {mode}, and there are 0, 1, 2, 4 and 6"
                ));
            }
        };
        let field = |shift: u32| (((bits >> shift) & 0x3fff) as u32) << 4;
        let fields = descriptor::Descriptor {
            start: field(0),
            leading: field(16),
            stride: field(32),
            base_offset: ((bits >> 49) & 7) as u32,
            swizzle,
        };
        if fields.base_offset != 0 && (swizzle == Swizzle::None || wide) {
            return wrong(format!(
                "a base offset of {} is not emulated with this swizzle",
                fields.base_offset
            ));
        }
        Ok(Descriptor { fields, wide })
    }

    /// The layout of an operand with elements of so many bits, or why there is none (9.7.16.10.3).
    pub fn layout(&self, major: Major, bits: u32) -> Result<Layout, String> {
        let mode = "128-byte swizzle in atoms of 32 bytes";
        match (major, self.wide, bits) {
            (Major::Mn, false, 32) => Err(format!(
                "a transposed operand with elements of 32 bits takes the {mode} only"
            )),
            (Major::Mn, true, 32) => Ok(Layout::Wide {
                start: self.fields.start,
                leading: self.fields.leading,
                stride: self.fields.stride,
            }),
            (Major::Mn, _, 4 | 6) => Err(format!(
                "a transposed operand with elements of {bits} bits: only those of 8, 16 and 32 \
                 bits can be transposed"
            )),
            (Major::Mn, true, _) => Err(format!(
                "a transposed operand with elements of {bits} bits takes no {mode}"
            )),
            (Major::K, true, _) => Err(format!("the {mode} is for transposed operands only")),
            _ => Ok(Layout::Canonical(self.fields.canonical(major, 1))),
        }
    }
}

impl Layout {
    /// Address of 16 bytes: `row` counts the dimension that is not contiguous, `chunk` counts 16
    /// bytes along the one that is.
    #[must_use]
    pub fn chunk(&self, row: u32, chunk: u32) -> u32 {
        match *self {
            Layout::Canonical(layout) => layout.chunk(row, chunk),
            Layout::Wide {
                start,
                leading,
                stride,
            } => {
                let offset =
                    chunk % 8 * 16 + chunk / 8 * leading + row % 4 * 128 + row / 4 * stride;
                let address = start.wrapping_add(offset);
                address ^ (address >> 7 & 3) << 5
            }
        }
    }
}
