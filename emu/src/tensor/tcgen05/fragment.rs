//! `tcgen05.ld` and `tcgen05.st`: which thread of a warp holds which word (PTX ISA 9.0,
//! 9.7.16.2.3.1), with l the lane of the warp.
//!
//! | shape | lane | columns of a repetition, by register |
//! |---|---|---|
//! | 32x32b | l | 0 |
//! | 16x64b | l / 4 + 8 (l % 2) | l / 2 % 2 |
//! | 16x128b | l / 4 + 8 r | l % 4 |
//! | 16x256b | l / 4 + 8 (r / 2) | 2 (l % 4) + r % 2 |
//! | 16x32bx2 | l % 16 | 0, for l >= 16 in the second half |
//!
//! Each repetition is as many columns further as the shape has; the second half of 16x32bx2
//! begins at the immediate's distance. With `.pack::16b` and `.unpack::16b` a register holds the
//! low halves of two columns, the first in its low half, so there are twice as many columns.

use super::memory::{Address, Area};

/// Shapes of `tcgen05.ld` and `tcgen05.st`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Shape {
    B32x32,
    B16x64,
    B16x128,
    B16x256,
    B16x32x2,
}

/// Names, registers of one repetition, and the most repetitions.
const SHAPES: [(&str, Shape, u32, u32); 5] = [
    ("32x32b", Shape::B32x32, 1, 128),
    ("16x64b", Shape::B16x64, 1, 128),
    ("16x128b", Shape::B16x128, 2, 64),
    ("16x256b", Shape::B16x256, 4, 32),
    ("16x32bx2", Shape::B16x32x2, 1, 128),
];

/// What a `tcgen05.ld` or `tcgen05.st` moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    shape: Shape,
    repetitions: u32,
    /// Two 16-bit elements in a register.
    packed: bool,
    /// Columns from the first half of 16x32bx2 to the second.
    split: u32,
}

impl Fragment {
    /// Decodes the parts behind `.sync.aligned`, without the type: shape, number and packing.
    pub fn decode(parts: &[&str], load: bool) -> Result<Fragment, String> {
        let packing = if load { "pack::16b" } else { "unpack::16b" };
        let (shape, number, packed) = match parts {
            [shape, number] => (shape, number, false),
            [shape, number, last] if *last == packing => (shape, number, true),
            _ => return Err(format!("expected a shape, a number and perhaps .{packing}")),
        };
        let known = SHAPES.iter().find(|(name, ..)| name == shape);
        let Some(&(name, shape, _, most)) = known else {
            let names: Vec<&str> = SHAPES.iter().map(|(name, ..)| *name).collect();
            return Err(format!("shape `{shape}` is none of {}", names.join(", ")));
        };
        let repetitions = number
            .strip_prefix('x')
            .and_then(|count| count.parse::<u32>().ok())
            .filter(|count| count.is_power_of_two() && *count <= most)
            .ok_or_else(|| format!("`.{number}`: {name} takes x1, x2, ... x{most}"))?;
        Ok(Fragment {
            shape,
            repetitions,
            packed,
            split: 0,
        })
    }

    /// Whether an immediate follows the address.
    #[must_use]
    pub fn takes_split(&self) -> bool {
        self.shape == Shape::B16x32x2
    }

    /// With the immediate.
    #[must_use]
    pub fn with_split(self, split: u32) -> Fragment {
        Fragment { split, ..self }
    }

    /// Registers of a thread.
    #[must_use]
    pub fn registers(&self) -> u32 {
        self.repetitions * self.of_shape().0
    }

    /// Registers and columns of a repetition, before packing.
    fn of_shape(&self) -> (u32, u32) {
        match self.shape {
            Shape::B32x32 | Shape::B16x32x2 => (1, 1),
            Shape::B16x64 => (1, 2),
            Shape::B16x128 => (2, 4),
            Shape::B16x256 => (4, 8),
        }
    }

    /// Tensor memory's lanes that it reaches.
    #[must_use]
    pub fn lanes(&self) -> u32 {
        if self.shape == Shape::B32x32 { 32 } else { 16 }
    }

    /// Columns that hold one register's bits.
    #[must_use]
    pub fn width(&self) -> u32 {
        1 + u32::from(self.packed)
    }

    /// Lane and first column of a thread's register, from the base address; a packed register goes
    /// on in the next column.
    #[must_use]
    pub fn place(&self, thread: u32, register: u32) -> (u32, u32) {
        let (registers, columns) = self.of_shape();
        let (repetition, r) = (register / registers, register % registers);
        let (lane, column) = match self.shape {
            Shape::B32x32 => (thread, 0),
            Shape::B16x64 => (thread / 4 + 8 * (thread % 2), thread / 2 % 2),
            Shape::B16x128 => (thread / 4 + 8 * r, thread % 4),
            Shape::B16x256 => (thread / 4 + 8 * (r / 2), 2 * (thread % 4) + r % 2),
            Shape::B16x32x2 => (thread % 16, 0),
        };
        let half = if self.takes_split() && thread >= 16 {
            self.split
        } else {
            0
        };
        (lane, self.width() * (repetition * columns + column) + half)
    }

    /// What it touches from an address on: one area, or two halves.
    #[must_use]
    pub fn areas(&self, at: Address) -> Vec<Area> {
        let columns = self.width() * self.repetitions * self.of_shape().1;
        let area = |column: u32| Area {
            lane: at.lane,
            lanes: self.lanes(),
            column,
            columns,
        };
        match self.takes_split() {
            true => vec![area(at.column), area(at.column.saturating_add(self.split))],
            false => vec![area(at.column)],
        }
    }

    /// Checks an address: it must be in the quarter of tensor memory that the warp may reach
    /// (9.7.16.8.1), and inside.
    pub fn check(&self, at: Address, warp: u32) -> Result<(), String> {
        let first = 32 * (warp % 4);
        let lanes = self.lanes();
        if at.lane < first || at.lane.saturating_add(lanes) > first + 32 {
            return Err(format!(
                "lanes {} to {} of tensor memory, and warp {warp} of the block reaches only lanes \
                 {first} to {}",
                at.lane,
                at.lane.saturating_add(lanes - 1),
                first + 31
            ));
        }
        if !at.lane.is_multiple_of(16) {
            return Err(format!(
                "lane {} of tensor memory, which is no multiple of 16",
                at.lane
            ));
        }
        self.areas(at)
            .iter()
            .try_for_each(|area| area.check("the access"))
    }
}

/// Rows of the table of what is executed.
pub(super) fn isa() -> Vec<(String, String)> {
    let mut rows = vec![
        (
            "tcgen05.ld.red.sync.aligned.32x32b.num.op{.abs}{.NaN}.f32".to_owned(),
            "num = x2 to x128, op = min max".to_owned(),
        ),
        (
            "tcgen05.ld.red.sync.aligned.32x32b.num.op.type".to_owned(),
            "num = x2 to x128, op = min max, type = u32 s32".to_owned(),
        ),
    ];
    for (name, _, _, most) in SHAPES {
        let counts: Vec<String> = (0..8)
            .map(|power| 1 << power)
            .filter(|count| *count <= most)
            .map(|count| format!("x{count}"))
            .collect();
        let counts = counts.join(" ");
        rows.push((
            format!("tcgen05.ld.sync.aligned.{name}.num{{.pack::16b}}.b32"),
            format!("num = {counts}"),
        ));
        rows.push((
            format!("tcgen05.st.sync.aligned.{name}.num{{.unpack::16b}}.b32"),
            format!("num = {counts}"),
        ));
    }
    rows
}
