//! `tcgen05.cp`: shared memory to tensor memory (PTX ISA 9.0, 9.7.16.9.2).
//!
//! The source is K-major: rows of 16 or 32 bytes, by the descriptor. Its row r goes to lane
//!
//! | shape | lanes |
//! |---|---|
//! | 128x256b, 128x128b | r |
//! | 64x128b.warpx2::02_13 | r and 64 + r |
//! | 64x128b.warpx2::01_23 | 64 (r / 32) + r % 32 and the 32 lanes after them |
//! | 32x128b.warpx4 | r, 32 + r, 64 + r, 96 + r |
//!
//! `.b8x16.b4x16_p64` widens 16 elements of 4 bits, which 8 bytes of padding follow, to bytes that
//! hold them in bits 2-5; `.b8x16.b6x16_p32` 16 of 6 bits, which 4 bytes follow, to bits 0-5
//! (9.7.16.9.1).

use super::super::descriptor::Major;
use super::descriptor::{Descriptor, Layout};
use super::memory::{Address, Area};

/// Shapes with their multicast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Whole,
    Interleaved,
    Paired,
    Fourfold,
}

/// Parts of the opcode, rows, 16-byte chunks of a row, and the shape.
const SHAPES: [(&[&str], u32, u32, Shape); 5] = [
    (&["128x256b"], 128, 2, Shape::Whole),
    (&["128x128b"], 128, 1, Shape::Whole),
    (&["64x128b", "warpx2::02_13"], 64, 1, Shape::Interleaved),
    (&["64x128b", "warpx2::01_23"], 64, 1, Shape::Paired),
    (&["32x128b", "warpx4"], 32, 1, Shape::Fourfold),
];

/// Decompressions: the parts, and the bits of a small element.
const FORMATS: [(&str, u32); 2] = [("b4x16_p64", 4), ("b6x16_p32", 6)];

/// A decoded `tcgen05.cp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    rows: u32,
    chunks: u32,
    shape: Shape,
    /// Bits of elements that become bytes.
    widens: Option<u32>,
}

impl Copy {
    /// Decodes the parts behind `.cta_group`.
    pub fn decode(parts: &[&str]) -> Result<Copy, String> {
        let (parts, widens) = match parts {
            [rest @ .., "b8x16", source] => {
                let known = FORMATS.iter().find(|(name, _)| name == source);
                let (_, bits) = known.ok_or_else(|| format!("unknown format `.{source}`"))?;
                (rest, Some(*bits))
            }
            parts => (parts, None),
        };
        // Compilers write the multicast before the shape, too.
        let alike = |names: &[&str]| names == parts || names.iter().rev().eq(parts);
        let known = SHAPES.iter().find(|(names, ..)| alike(names));
        let Some(&(_, rows, chunks, shape)) = known else {
            let list: Vec<String> = SHAPES.iter().map(|(names, ..)| names.join(".")).collect();
            return Err(format!(
                "`.{}` is none of {}",
                parts.join("."),
                list.join(", ")
            ));
        };
        Ok(Copy {
            rows,
            chunks,
            shape,
            widens,
        })
    }

    /// The source's layout.
    pub fn layout(&self, descriptor: u64) -> Result<Layout, String> {
        Descriptor::decode(descriptor)?.layout(Major::K, 8)
    }

    /// Shared-memory addresses of its 16-byte chunks.
    pub fn chunks(&self, layout: Layout) -> impl Iterator<Item = (u32, u32, u32)> + use<> {
        let (rows, chunks) = (self.rows, self.chunks);
        (0..rows).flat_map(move |row| {
            (0..chunks).map(move |chunk| (row, chunk, layout.chunk(row, chunk)))
        })
    }

    /// Bytes of a chunk that are read; those behind are padding.
    #[must_use]
    pub fn used(&self) -> usize {
        self.widens.map_or(16, |bits| 2 * bits as usize)
    }

    /// The words of a chunk.
    #[must_use]
    pub fn words(&self, chunk: &[u8; 16]) -> [u32; 4] {
        let bytes = match self.widens {
            None => *chunk,
            Some(bits) => {
                let all = u128::from_le_bytes(*chunk);
                std::array::from_fn(|at| {
                    let small = (all >> (bits as usize * at)) as u8 & ((1 << bits) - 1);
                    if bits == 4 { small << 2 } else { small }
                })
            }
        };
        std::array::from_fn(|at| u32::from_le_bytes(std::array::from_fn(|b| bytes[4 * at + b])))
    }

    /// The lanes that a row goes to.
    #[must_use]
    pub fn lanes(&self, row: u32) -> Vec<u32> {
        match self.shape {
            Shape::Whole => vec![row],
            Shape::Interleaved => vec![row, 64 + row],
            Shape::Paired => {
                let first = 64 * (row / 32) + row % 32;
                vec![first, first + 32]
            }
            Shape::Fourfold => (0..4).map(|quarter| 32 * quarter + row).collect(),
        }
    }

    /// What it writes.
    pub fn area(&self, at: Address) -> Result<Area, String> {
        if at.lane != 0 {
            return Err(format!(
                "the destination begins in lane {} of tensor memory, and must in lane 0",
                at.lane
            ));
        }
        let area = Area {
            lane: 0,
            lanes: 128,
            column: at.column,
            columns: 4 * self.chunks,
        };
        area.check("the destination").map(|()| area)
    }
}

/// Rows of the table of what is executed.
pub(super) fn isa() -> Vec<(String, String)> {
    let formats: Vec<String> = FORMATS
        .iter()
        .map(|(name, _)| format!(".b8x16.{name}"))
        .collect();
    SHAPES
        .iter()
        .map(|(names, ..)| {
            (
                format!("tcgen05.cp.cta_group::N.{}", names.join(".")),
                format!("N = 1 2; as it is, {}", formats.join(", ")),
            )
        })
        .collect()
}
