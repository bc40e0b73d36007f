//! Tensor maps in tile mode, and where each byte of a box lies (PTX ISA 9.0, 5.5 and
//! 9.7.9.27; the limits are those of `cuTensorMapEncodeTiled`).
//!
//! A box is copied to shared memory in the order of its elements, dimension 0 fastest, with no
//! gaps; the swizzle then acts on the absolute shared address of each 16-byte chunk. Elements
//! outside the tensor, on any side, are filled on a load and skipped on a store. A store or a
//! reduction with a negative start coordinate raised an illegal instruction on an H200
//! (measured), so it is an error here.
//!
//! Its 128 bytes are those of [`super::map`].

use super::swizzle::Swizzle;

/// Bytes of a tensor map, and what its address must be a multiple of.
pub const BYTES: usize = 128;
/// Alignment of a tensor map in memory.
pub const MAP_ALIGNMENT: u64 = 64;
/// What the shared-memory address of a box must be a multiple of.
pub const SHARED_ALIGNMENT: u32 = 128;

/// Bytes of the largest box: the shared memory of an SM.
const LARGEST_BOX: u32 = 228 * 1024;

/// Element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 32 bits.
    S32,
    /// Unsigned, 64 bits.
    U64,
    /// Signed, 64 bits.
    S64,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
    /// The upper half of an `f32`.
    Bf16,
}

/// Types, names, bytes, and the bits that fill when NaN is asked for (0 for integers): an H200 fills
/// with a 16-bit NaN, again and again, whatever the type.
pub(super) const DTYPES: [(Dtype, &str, usize, u64); 10] = [
    (Dtype::U8, "u8", 1, 0),
    (Dtype::U16, "u16", 2, 0),
    (Dtype::U32, "u32", 4, 0),
    (Dtype::S32, "s32", 4, 0),
    (Dtype::U64, "u64", 8, 0),
    (Dtype::S64, "s64", 8, 0),
    (Dtype::F16, "f16", 2, 0x7ff7),
    (Dtype::F32, "f32", 4, 0x7ff7_7ff7),
    (Dtype::F64, "f64", 8, 0x7ff7_7ff7_7ff7_7ff7),
    (Dtype::Bf16, "bf16", 2, 0x7ff7),
];

impl Dtype {
    fn row(self) -> (Dtype, &'static str, usize, u64) {
        DTYPES[self as usize]
    }

    /// Its name in PTX.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The type of that name; `b32` and `b64` are the unsigned ones.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Dtype> {
        let name = match name {
            "b8" => "u8",
            "b16" => "u16",
            "b32" => "u32",
            "b64" => "u64",
            other => other,
        };
        DTYPES
            .into_iter()
            .find(|row| row.1 == name)
            .map(|row| row.0)
    }

    /// Bytes of an element.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.row().2
    }

    /// Whether it is a floating type.
    #[must_use]
    pub fn is_float(self) -> bool {
        self.row().3 != 0
    }
}

/// What out-of-bounds elements read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Fill {
    /// Zeros.
    #[default]
    Zero,
    /// NaN (floating types only).
    Nan,
}

/// Which way a box moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Global to shared memory.
    Load,
    /// Shared to global memory.
    Store,
    /// Shared to global memory with an operator.
    Reduce,
}

/// A tiled tensor map. Dimension 0 is the contiguous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorMap {
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, 1 to 5.
    pub rank: usize,
    /// Global address of the first element.
    pub base: u64,
    /// Elements in each dimension; 1 beyond the rank.
    pub dims: [u64; 5],
    /// Bytes from one index of a dimension to the next; `strides[0]` is the element size.
    pub strides: [u64; 5],
    /// Elements of the box in each dimension; 1 beyond the rank.
    pub tile: [u32; 5],
    /// Step in each dimension (ignored in dimension 0); 1 beyond the rank.
    pub element_strides: [u32; 5],
    /// Swizzle of the box in shared memory.
    pub swizzle: Swizzle,
    /// Fill of what lies outside.
    pub fill: Fill,
}

/// A run of bytes of a box, contiguous in shared memory before the swizzle and in global memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Offset in the box.
    pub shared_offset: u32,
    /// Bytes.
    pub len: u32,
    /// Global address, or `None` for elements outside the tensor.
    pub global: Option<u64>,
}

/// A part of a run that is contiguous in shared memory after the swizzle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Shared-memory address, swizzled.
    pub shared: u32,
    /// Bytes; at most to the next multiple of 16 if there is a swizzle.
    pub len: u32,
    /// Global address, or `None` for elements outside the tensor.
    pub global: Option<u64>,
}

impl TensorMap {
    /// A map of a dense tensor: strides, element strides, swizzle and fill by default.
    /// `strides` are those of dimensions 1 and up, in bytes; empty for a packed tensor.
    pub fn new(
        dtype: Dtype,
        base: u64,
        dims: &[u64],
        strides: &[u64],
        tile: &[u32],
    ) -> Result<TensorMap, String> {
        let rank = dims.len();
        if rank == 0 || rank > 5 || tile.len() != rank {
            return Err(format!(
                "{rank} dimensions and a box of {}: 1 to 5 of each",
                tile.len()
            ));
        }
        if !strides.is_empty() && strides.len() != rank - 1 {
            return Err(format!(
                "{} strides for {rank} dimensions: one fewer",
                strides.len()
            ));
        }
        let mut map = TensorMap {
            dtype,
            rank,
            base,
            dims: [1; 5],
            strides: [dtype.bytes() as u64; 5],
            tile: [1; 5],
            element_strides: [1; 5],
            swizzle: Swizzle::None,
            fill: Fill::Zero,
        };
        map.dims[..rank].copy_from_slice(dims);
        map.tile[..rank].copy_from_slice(tile);
        for d in 1..rank {
            map.strides[d] = match strides.get(d - 1) {
                Some(stride) => *stride,
                None => map.strides[d - 1]
                    .checked_mul(dims[d - 1])
                    .ok_or("strides overflow")?,
            };
        }
        map.normalise();
        Ok(map)
    }

    /// Dimensions beyond the rank don't count: gives them the values of the encoding.
    pub(super) fn normalise(&mut self) {
        self.strides[0] = self.dtype.bytes() as u64;
        for d in self.rank.clamp(1, 5)..5 {
            self.dims[d] = 1;
            self.strides[d] = 0;
            self.tile[d] = 1;
            self.element_strides[d] = 1;
        }
    }

    /// Everything that `cuTensorMapEncodeTiled` asks of a map.
    pub fn validate(&self) -> Result<(), String> {
        let wrong = |what: String| Err(format!("tensor map: {what}"));
        if self.rank == 0 || self.rank > 5 {
            return wrong(format!("rank {}, not 1 to 5", self.rank));
        }
        if !self.base.is_multiple_of(16) {
            return wrong(format!(
                "base address {:#x} is not a multiple of 16",
                self.base
            ));
        }
        if self.fill == Fill::Nan && !self.dtype.is_float() {
            return wrong(format!("NaN fill of {}", self.dtype.name()));
        }
        if self.strides[0] != self.dtype.bytes() as u64 {
            return wrong(format!("stride {} in dimension 0", self.strides[0]));
        }
        let mut last = u128::from(self.base);
        for d in 0..self.rank {
            let (dim, stride, tile) = (self.dims[d], self.strides[d], self.tile[d]);
            if dim == 0 || dim > 1 << 32 {
                return wrong(format!("{dim} elements in dimension {d}, not 1 to 2^32"));
            }
            if tile == 0 || tile > 256 {
                return wrong(format!("box of {tile} in dimension {d}, not 1 to 256"));
            }
            let step = self.element_strides[d];
            if step == 0 || step > 8 {
                return wrong(format!(
                    "element stride {step} in dimension {d}, not 1 to 8"
                ));
            }
            if d > 0 && (!stride.is_multiple_of(16) || stride >= 1 << 40) {
                return wrong(format!(
                    "stride of {stride} bytes in dimension {d}, not a multiple of 16 below 2^40"
                ));
            }
            last += u128::from(dim - 1) * u128::from(stride);
        }
        if last + self.strides[0] as u128 > 1 << 64 {
            return wrong("the tensor reaches beyond the address space".into());
        }
        let inner = self.row_bytes();
        if !inner.is_multiple_of(16) {
            return wrong(format!(
                "{inner} bytes in a row of the box, not a multiple of 16"
            ));
        }
        if self.swizzle != Swizzle::None && inner > self.swizzle.span() {
            return wrong(format!(
                "{inner} bytes in a row of the box, more than the {} of the swizzle",
                self.swizzle.span()
            ));
        }
        if self.box_bytes() > LARGEST_BOX {
            return wrong(format!(
                "a box of {} bytes, more than shared memory",
                self.box_bytes()
            ));
        }
        Ok(())
    }

    /// Bytes of a row of the box.
    fn row_bytes(&self) -> u32 {
        self.tile[0].saturating_mul(self.dtype.bytes() as u32)
    }

    /// Bytes from one row of the box to the next in shared memory. A swizzle's rows are as long as
    /// its atom's, also where the box is narrower (so an H200 does it); the rest is left alone.
    fn row_pitch(&self) -> u32 {
        match self.swizzle {
            Swizzle::None => self.row_bytes(),
            swizzled => self.row_bytes().max(swizzled.span()),
        }
    }

    /// Elements of the box that are copied in dimension `d`: with an element stride, one
    /// of so many (rounded up).
    fn extent(&self, d: usize) -> u32 {
        if d == 0 {
            self.tile[0]
        } else {
            self.tile[d].div_ceil(self.element_strides[d].max(1))
        }
    }

    /// Bytes of the box, filled ones included: what `complete_tx` counts. Rows that are narrower
    /// than the swizzle's occupy more in shared memory.
    #[must_use]
    pub fn box_bytes(&self) -> u32 {
        (1..5).fold(self.row_bytes(), |bytes, d| {
            bytes.saturating_mul(self.extent(d))
        })
    }

    /// Whether a box may lie at this shared-memory address (128 bytes; the swizzle's period is
    /// not demanded, since the pattern follows absolute addresses, see
    /// [`Self::pattern_aligned`]).
    pub fn check_shared(&self, address: u32) -> Result<(), String> {
        if address.is_multiple_of(SHARED_ALIGNMENT) {
            return Ok(());
        }
        Err(format!(
            "box at shared address {address:#x}, not a multiple of {SHARED_ALIGNMENT}"
        ))
    }

    /// Whether the swizzle pattern begins at this address, as kernels that compute their own
    /// swizzled offsets, and descriptors with base offset 0, assume.
    #[must_use]
    pub fn pattern_aligned(&self, address: u32) -> bool {
        address.is_multiple_of(self.swizzle.period().max(SHARED_ALIGNMENT))
    }

    /// The runs of the box at these coordinates in shared-memory order; together they are
    /// [`Self::box_bytes`] long.
    pub fn boxes(&self, coords: &[i32], direction: Direction) -> Result<Runs<'_>, String> {
        self.validate()?;
        if coords.len() != self.rank {
            return Err(format!(
                "{} coordinates for a tensor of {} dimensions",
                coords.len(),
                self.rank
            ));
        }
        if direction != Direction::Load
            && let Some(d) = coords.iter().position(|c| *c < 0)
        {
            return Err(format!(
                "a {} that starts at {} in dimension {d}: an illegal instruction on Hopper \
                 (loads may start before the tensor)",
                if direction == Direction::Store {
                    "tensor store"
                } else {
                    "tensor reduction"
                },
                coords[d]
            ));
        }
        let mut start = [0; 5];
        for (start, coord) in start.iter_mut().zip(coords) {
            *start = i64::from(*coord);
        }
        let rows = self.box_bytes() / self.row_bytes();
        Ok(Runs {
            map: self,
            start,
            index: [0; 5],
            row: 0,
            rows,
            at: 0,
        })
    }

    /// The runs of four rows of a tensor of two dimensions, side by side in shared memory: the first
    /// coordinate is that along the rows, the others say which rows (`.tile::gather4` and
    /// `.tile::scatter4`).
    pub fn four_rows(&self, coords: &[i32], direction: Direction) -> Result<Vec<Run>, String> {
        let &[along, ref rows @ ..] = coords else {
            return Err("no coordinates".into());
        };
        if self.rank != 2 || self.extent(1) != 1 {
            return Err(format!(
                "four rows of a tensor of {} dimensions, with a box of {} rows: there must be two \
                 dimensions, and one row",
                self.rank,
                self.extent(1)
            ));
        }
        let mut all = Vec::new();
        for (number, &row) in (0..).zip(rows) {
            for run in self.boxes(&[along, row], direction)? {
                all.push(Run {
                    shared_offset: run.shared_offset + number * self.row_bytes(),
                    ..run
                });
            }
        }
        Ok(all)
    }

    /// Where an offset of a box that begins at `address` lies, swizzled.
    #[must_use]
    pub fn shared_address(&self, address: u32, offset: u32) -> u32 {
        self.swizzle.apply(address.wrapping_add(offset))
    }

    /// A run of a box at shared address `address`, cut where the swizzle breaks it.
    pub fn pieces(&self, address: u32, run: Run) -> impl Iterator<Item = Piece> + use<> {
        let swizzle = self.swizzle;
        let mut done = 0;
        std::iter::from_fn(move || {
            if done >= run.len {
                return None;
            }
            let linear = address.wrapping_add(run.shared_offset).wrapping_add(done);
            let rest = run.len - done;
            let len = if swizzle == Swizzle::None {
                rest
            } else {
                rest.min(16 - linear % 16)
            };
            let global = run
                .global
                .map(|global| global.wrapping_add(u64::from(done)));
            done += len;
            Some(Piece {
                shared: swizzle.apply(linear),
                len,
                global,
            })
        })
    }

    /// Writes the fill over `bytes`, which begin at an element.
    pub fn fill_into(&self, bytes: &mut [u8]) {
        let (_, _, size, nan) = self.dtype.row();
        let pattern = if self.fill == Fill::Nan { nan } else { 0 }.to_le_bytes();
        for (byte, value) in bytes.iter_mut().zip(pattern[..size].iter().cycle()) {
            *byte = *value;
        }
    }
}

/// Iterator over the runs of a box.
#[derive(Debug, Clone)]
pub struct Runs<'a> {
    map: &'a TensorMap,
    start: [i64; 5],
    /// Index of the current row in dimensions 1 to 4.
    index: [u32; 5],
    row: u32,
    rows: u32,
    /// Elements of the current row that were yielded.
    at: i64,
}

impl Runs<'_> {
    /// Global address of coordinate 0 of the current row; `None` if the row is outside.
    fn row_base(&self) -> Option<u64> {
        let map = self.map;
        let mut address = map.base;
        for d in 1..map.rank {
            let step = i64::from(map.element_strides[d]);
            let coordinate = self.start[d] + i64::from(self.index[d]) * step;
            if coordinate < 0 || coordinate as u64 >= map.dims[d] {
                return None;
            }
            // In bounds, so it fits (validate).
            address = address.wrapping_add((coordinate as u64).wrapping_mul(map.strides[d]));
        }
        Some(address)
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        if self.row >= self.rows {
            return None;
        }
        let map = self.map;
        let size = map.dtype.bytes() as i64;
        let width = i64::from(map.tile[0]);
        let coordinate = self.start[0] + self.at;
        let dim = map.dims[0] as i64;
        let (end, global) = match self.row_base() {
            Some(_) if coordinate < 0 => ((-self.start[0]).min(width), None),
            Some(base) if coordinate < dim => {
                let global = base.wrapping_add((coordinate * size) as u64);
                ((dim - self.start[0]).min(width), Some(global))
            }
            _ => (width, None),
        };
        let run = Run {
            shared_offset: self.row * map.row_pitch() + (self.at * size) as u32,
            len: ((end - self.at) * size) as u32,
            global,
        };
        self.at = end;
        if end == width {
            self.at = 0;
            self.row += 1;
            for d in 1..5 {
                self.index[d] += 1;
                if self.index[d] < map.extent(d) {
                    break;
                }
                self.index[d] = 0;
            }
        }
        Some(run)
    }
}

/// Rows of the table of what is executed.
#[must_use]
pub fn isa() -> Vec<(String, String)> {
    let types = DTYPES.map(|row| row.1).join(" ");
    let what = format!("tile, all swizzles of 16-byte atoms, {types}");
    [
        "cp.async.bulk.tensor.1d-5d.shared::cluster.global",
        "cp.async.bulk.tensor.1d-5d.shared::cta.global",
        "cp.async.bulk.tensor.1d-5d.global.shared::cta",
        "cp.async.bulk.tensor.1d-5d.shared::cluster.global.cta_group::N",
        "cp.async.bulk.tensor.1d-5d.shared::cta.global.cta_group::N",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4{.cta_group::N}",
        "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4{.cta_group::N}",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4",
    ]
    .map(|opcode| (opcode.to_string(), what.clone()))
    .into()
}
