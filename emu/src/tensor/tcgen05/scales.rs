//! Scale factors of block-scaled products (PTX ISA 9.0, 9.7.16.10.7).
//!
//! The factors of row r of A, or column r of B, lie in the word at lane r % 32, column r / 32 from
//! the address on, and again in the other three quarters of the lanes. With one factor for each
//! row the id says which byte of the word, with two which half (0 or 2); four take all of it.

use super::super::number::Element;
use super::instruction::{Kind, ScaleType};
use super::memory::{Address, Area, Cells, LANES};

/// How many factors a row has: `.scale_vec`, or `.block32` and `.block16`.
pub fn vector(kind: Kind, part: Option<&str>) -> Result<u32, String> {
    match (kind, part) {
        (Kind::Mxf8f6f4, None | Some("scale_vec::1X" | "block32")) => Ok(1),
        (Kind::Mxf4, None | Some("scale_vec::2X" | "block32")) => Ok(2),
        (Kind::Mxf4nvf4, Some("scale_vec::2X" | "block32")) => Ok(2),
        (Kind::Mxf4nvf4, Some("scale_vec::4X" | "block16")) => Ok(4),
        (kind, part) => Err(format!(
            "kind::{} does not go with {}",
            kind.name(),
            part.unwrap_or("no .scale_vec")
        )),
    }
}

/// Names of the vectors of a kind, for the table of what is executed.
pub(super) fn vectors(kind: Kind) -> &'static str {
    match kind {
        Kind::Mxf8f6f4 => "{.scale_vec::1X, .block32}",
        Kind::Mxf4 => "{.scale_vec::2X, .block32}",
        _ => ".scale_vec::2X, .block32, .scale_vec::4X, .block16",
    }
}

/// Checks a type and an id against the number of factors.
pub fn check(which: &str, ty: ScaleType, id: u32, vector: u32) -> Result<(), String> {
    if ty == ScaleType::Ue4m3 && vector != 4 {
        return Err(format!(
            "scales in ue4m3 come with .scale_vec::4X, not .scale_vec::{vector}X"
        ));
    }
    let allowed: &[u32] = match vector {
        1 => &[0, 1, 2, 3],
        2 => &[0, 2],
        _ => &[0],
    };
    if !allowed.contains(&id) {
        return Err(format!(
            "{which}'s scale id is {id}, and with .scale_vec::{vector}X it is {}",
            allowed
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        ));
    }
    Ok(())
}

/// Where the factors of so many rows lie.
#[must_use]
pub fn area(at: Address, rows: usize) -> Area {
    Area {
        lane: at.lane,
        lanes: LANES,
        column: at.column,
        columns: rows.div_ceil(32) as u32,
    }
}

/// The factors of each row, and whether they were written.
///
/// The four quarters of the lanes must hold the same: which of them is read is the hardware's
/// matter.
pub fn read(
    cells: &Cells,
    which: &str,
    at: Address,
    rows: usize,
    (ty, id, vector): (ScaleType, u32, u32),
) -> Result<Vec<(Vec<f32>, bool)>, String> {
    let mut factors = Vec::with_capacity(rows);
    for row in 0..rows as u32 {
        let (lane, column) = (row % 32, at.column + row / 32);
        let word = cells.get(lane, column);
        let mask = match vector {
            1 => 0xff << (8 * id),
            2 => 0xffff << (8 * id),
            _ => u32::MAX,
        };
        for quarter in 1..4 {
            let other = cells.get(lane + 32 * quarter, column);
            if (other ^ word) & mask != 0 {
                return Err(format!(
                    "{which}'s scales of row {row} are {word:#010x} in lane {lane} and {other:#010x} \
                     in lane {}, column {column}: all four quarters of the lanes hold the same",
                    lane + 32 * quarter
                ));
            }
        }
        let values = (0..vector)
            .map(|at| value(ty, word >> (8 * (id + at)) & 0xff))
            .collect();
        factors.push((values, cells.is_written(lane, column)));
    }
    Ok(factors)
}

fn value(ty: ScaleType, bits: u32) -> f32 {
    match (ty, bits) {
        (ScaleType::Ue8m0, 255) => f32::NAN,
        (ScaleType::Ue8m0, 0) => f32::from_bits(1 << 22),
        (ScaleType::Ue8m0, bits) => f32::from_bits(bits << 23),
        (ScaleType::Ue4m3, bits) => Element::E4m3.decode(bits & 0x7f),
    }
}
