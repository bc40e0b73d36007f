//! `tcgen05.mma` (PTX ISA 9.0, 9.7.16.10.9.1), dense forms.
//!
//! Sums are those of [`Numerics::Exact`]: `d = d + a[k] * b[k]` in `f32`, k ascending, the old D
//! first, which `scale-input-d` has multiplied by a power of two. With block scaling a product is
//! `a * scale_a * b * scale_b`, rounded to `f32` once (it has too few bits to need that, unless it
//! over- or underflows). An `f16` D is widened, summed so and rounded at the end; it lies in the
//! low half of a word.

use super::super::descriptor::Major;
use super::super::number::{Accumulator, Element, canonical, f16_from_f64, f16_to_f32};
use super::super::product::{Numerics, Shape};
use super::datapath::Datapath;
use super::descriptor::{Descriptor, Layout};
use super::instruction::{Fields, KINDS, Kind};
use super::memory::{Address, Area, Cells};
use super::scales;

/// A dense `tcgen05.mma`, its opcode decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mma {
    /// The kind of its types.
    pub kind: Kind,
    /// CTAs that it works on.
    pub group: u32,
    /// Scale factors of a row; 0 without block scaling.
    pub vector: u32,
}

/// Where A comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperandA<T> {
    /// Shared memory.
    Shared(T),
    /// Tensor memory.
    Tensor(Address),
}

/// The operands of one product.
#[derive(Debug, Clone, Copy)]
pub struct Operands {
    /// The accumulators.
    pub d: Address,
    /// A, or its shared-memory descriptor.
    pub a: OperandA<u64>,
    /// B's descriptor.
    pub b: u64,
    /// The instruction descriptor.
    pub instruction: u32,
    /// Scale factors of A and B.
    pub scales: Option<(Address, Address)>,
    /// False: the old D is not read.
    pub input_d: bool,
    /// The old D is divided by 2 to this.
    pub scale_d: u32,
    /// Lanes that are not written, by CTA.
    pub disabled: [[u32; 4]; 2],
}

/// A product whose operands are legal.
#[derive(Debug, Clone, Copy)]
pub struct Planned {
    mma: Mma,
    /// What the instruction descriptor says.
    pub fields: Fields,
    /// The operands.
    pub operands: Operands,
    datapath: Datapath,
    a: OperandA<Layout>,
    b: Layout,
}

/// Columns of A in tensor memory: 32 bytes.
const COLUMNS_OF_A: u32 = 8;

impl Mma {
    /// Decodes the parts behind `tcgen05.mma`.
    pub fn decode(parts: &[&str]) -> Result<Mma, String> {
        let [group, kind, rest @ ..] = parts else {
            return Err("expected .cta_group and .kind".into());
        };
        let group = match *group {
            "cta_group::1" => 1,
            "cta_group::2" => 2,
            "ws" | "sp" => return Err(format!("`.{group}` is not implemented")),
            _ => return Err(format!("`.{group}` is no .cta_group::1 or .cta_group::2")),
        };
        let name = kind.strip_prefix("kind::");
        let known = KINDS.iter().find(|(known, _)| Some(*known) == name);
        let kind = known
            .map(|&(_, kind)| kind)
            .ok_or_else(|| format!("unknown `.{kind}`"))?;
        // Whether A may come from a collector buffer changes no result.
        let rest = match rest {
            [rest @ .., last] if last.starts_with("collector::a::") => {
                if !matches!(&last[14..], "fill" | "use" | "lastuse" | "discard") {
                    return Err(format!("unknown `.{last}`"));
                }
                rest
            }
            rest => rest,
        };
        let vector = match rest {
            [] if !kind.is_scaled() => 0,
            ["block_scale"] if kind.is_scaled() => scales::vector(kind, None)?,
            ["block_scale", vector] if kind.is_scaled() => scales::vector(kind, Some(vector))?,
            [] => return Err(format!("kind::{} takes .block_scale", kind.name())),
            [part, ..] => return Err(format!("`.{part}` is not implemented here")),
        };
        Ok(Mma {
            kind,
            group,
            vector,
        })
    }

    /// Checks the operands; an error says which value is wrong and what is allowed.
    pub fn plan(self, operands: Operands) -> Result<Planned, String> {
        let fields = Fields::decode(operands.instruction, self.kind, self.group)?;
        let datapath = Datapath::of(fields.m, fields.n, self.group);
        let bits = match self.kind {
            Kind::Mxf4 | Kind::Mxf4nvf4 => 4,
            Kind::Tf32 => 32,
            Kind::F16 => 16,
            _ => 8,
        };
        let layout = |which: &str, descriptor: u64, transpose: bool, element: Element| {
            let major = if transpose { Major::Mn } else { Major::K };
            let small = match element {
                Element::E2m1 => 4,
                Element::E2m3 | Element::E3m2 => 6,
                _ => bits,
            };
            Descriptor::decode(descriptor)
                .and_then(|descriptor| descriptor.layout(major, small))
                .map_err(|error| format!("operand {which}: {error}"))
        };
        let a = match operands.a {
            OperandA::Shared(descriptor) => {
                OperandA::Shared(layout("A", descriptor, fields.transpose_a, fields.a)?)
            }
            OperandA::Tensor(at) => {
                if fields.transpose_a {
                    return Err("A in tensor memory is not transposed".into());
                }
                datapath.check("A", at, COLUMNS_OF_A)?;
                if at.lane != operands.d.lane {
                    return Err(format!(
                        "A begins in lane {} of tensor memory and D in lane {}: they must agree",
                        at.lane, operands.d.lane
                    ));
                }
                OperandA::Tensor(at)
            }
        };
        let b = layout("B", operands.b, fields.transpose_b, fields.b)?;
        datapath.check("D", operands.d, datapath.columns as u32)?;
        if let (Some((a, b)), Some(scale)) = (operands.scales, fields.scales) {
            if datapath.folds == 2 {
                return Err("block scaling with M = 128 and cta_group::2 is not emulated".into());
            }
            scales::check("A", scale.ty, scale.a, self.vector)?;
            scales::check("B", scale.ty, scale.b, self.vector)?;
            for (which, at, rows) in [("A", a, datapath.rows), ("B", b, fields.n)] {
                if at.lane != 0 {
                    return Err(format!(
                        "{which}'s scales begin in lane {} of tensor memory, and must in lane 0",
                        at.lane
                    ));
                }
                scales::area(at, rows).check(&format!("{which}'s scales"))?;
            }
        }
        Ok(Planned {
            mma: self,
            fields,
            operands,
            datapath,
            a,
            b,
        })
    }
}

/// 16 bytes of shared memory at an address, and whether so many of them were written: those behind
/// are padding.
pub type Read<'a> = &'a dyn Fn(u32, usize) -> Result<([u8; 16], bool), String>;

/// Rows of an operand, `[row][k]`, and which of them hold what nobody wrote.
#[derive(Debug, Clone)]
pub struct Tile {
    values: Vec<f32>,
    unwritten: Vec<bool>,
}

impl Planned {
    /// Shared-memory addresses of the 16-byte chunks that it reads of one CTA.
    #[must_use]
    pub fn chunks(&self) -> Vec<u32> {
        let mut all = Vec::new();
        let (rows, columns) = self.shares();
        let mut add = |layout: &Layout, mn: usize, transpose: bool| {
            each_chunk(mn, self.fields.k, self.per(), transpose, |row, chunk| {
                all.push(layout.chunk(row, chunk));
            });
        };
        if let OperandA::Shared(layout) = &self.a {
            add(layout, rows, self.fields.transpose_a);
        }
        add(&self.b, columns, self.fields.transpose_b);
        all
    }

    /// Rows of A and columns of B of one CTA.
    fn shares(&self) -> (usize, usize) {
        let group = self.mma.group as usize;
        (self.datapath.rows, self.fields.n / group)
    }

    /// Elements of a 16-byte chunk.
    fn per(&self) -> usize {
        // K is 32 bytes, counting the padding of small elements.
        self.fields.k / 2
    }

    /// Tensor memory that it accumulates in, in each CTA.
    #[must_use]
    pub fn sums(&self) -> Vec<Area> {
        self.datapath
            .areas(self.operands.d, self.datapath.columns as u32)
    }

    /// Tensor memory that it reads, in each CTA: A and the scales.
    #[must_use]
    pub fn reads(&self) -> Vec<Area> {
        let mut areas = Vec::new();
        if let OperandA::Tensor(at) = self.a {
            areas.extend(self.datapath.areas(at, COLUMNS_OF_A));
        }
        if let Some((a, b)) = self.operands.scales {
            areas.push(scales::area(a, self.datapath.rows));
            areas.push(scales::area(b, self.fields.n));
        }
        areas
    }

    /// What must be alike for two products to be in order on the same accumulators.
    #[must_use]
    pub fn form(&self) -> u32 {
        let kind = KINDS.iter().position(|(_, kind)| *kind == self.mma.kind);
        let [kind, m, n] = [kind.unwrap_or(0), self.fields.m / 64, self.fields.n / 8];
        (kind << 16 | m << 8 | n) as u32
    }

    /// B of one CTA, as columns.
    pub fn gather_b(&self, read: Read) -> Result<Tile, String> {
        let (transpose, negate) = (self.fields.transpose_b, self.fields.negate_b);
        let count = self.shares().1;
        self.gather(
            "B",
            &self.b,
            count,
            self.fields.b,
            (transpose, negate),
            read,
        )
    }

    /// A of one CTA, from shared or from tensor memory; twice in layout B.
    pub fn gather_a(&self, read: Read, cells: &Cells) -> Result<Vec<Tile>, String> {
        let (transpose, negate) = (self.fields.transpose_a, self.fields.negate_a);
        let rows = self.datapath.rows;
        let at = match &self.a {
            OperandA::Shared(layout) => {
                let tile =
                    self.gather("A", layout, rows, self.fields.a, (transpose, negate), read)?;
                return Ok(vec![tile; self.datapath.folds]);
            }
            OperandA::Tensor(at) => *at,
        };
        let sign = if negate { -1.0 } else { 1.0 };
        let of_fold = |fold: usize| {
            let mut tile = Tile {
                values: Vec::with_capacity(rows * self.fields.k),
                unwritten: vec![false; rows],
            };
            for row in 0..rows {
                let lane = self.datapath.lane(at.lane, row, fold);
                for column in at.column..at.column + COLUMNS_OF_A {
                    tile.unwritten[row] |= !cells.is_written(lane, column);
                    let word = cells.get(lane, column);
                    let per = self.fields.k / COLUMNS_OF_A as usize;
                    for element in 0..per {
                        let bits = word >> (32 / per * element);
                        // A container of 8 bits holds 4 in its middle.
                        let small = self.fields.a == Element::E2m1 && per == 4;
                        let bits = if small { bits >> 2 } else { bits };
                        tile.values.push(sign * self.fields.a.decode(bits));
                    }
                }
            }
            tile
        };
        Ok((0..self.datapath.folds).map(of_fold).collect())
    }

    fn gather(
        &self,
        which: &str,
        layout: &Layout,
        mn: usize,
        element: Element,
        (transpose, negate): (bool, bool),
        read: Read,
    ) -> Result<Tile, String> {
        let k = self.fields.k;
        let mut tile = Tile {
            values: vec![0.0; mn * k],
            unwritten: vec![false; mn],
        };
        let sign = if negate { -1.0 } else { 1.0 };
        let per = self.per();
        let small = match element {
            Element::E2m1 => Some(4),
            Element::E2m3 | Element::E3m2 => Some(6),
            _ => None,
        };
        let used = small.map_or(16, |bits| (bits * per).div_ceil(8));
        let mut failed = None;
        each_chunk(mn, k, per, transpose, |row, chunk| {
            let address = layout.chunk(row, chunk);
            let (bytes, written) = match read(address, used) {
                Ok(found) => found,
                Err(error) => {
                    failed.get_or_insert(format!("operand {which}: {error}"));
                    return;
                }
            };
            let (row, first) = (row as usize, chunk as usize * per);
            let mut put = |index: usize, value: f32| {
                let (mn, k_at) = match transpose {
                    false => (row, first + index),
                    true => (first + index, row),
                };
                tile.values[mn * k + k_at] = sign * value;
                tile.unwritten[mn] |= !written;
            };
            let Some(bits) = small else {
                return element.each(&bytes, put);
            };
            // 16 small elements have 16 bytes, the last of them unused; packed ones fill them.
            let all = u128::from_le_bytes(bytes);
            for index in 0..per {
                put(index, element.decode((all >> (bits * index)) as u32));
            }
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(tile),
        }
    }

    /// Adds the products to the accumulators of CTA `rank` of the group; `b` are the columns of all
    /// its CTAs.
    pub fn accumulate(
        &self,
        cells: &mut Cells,
        rank: usize,
        a: &[Tile],
        b: &[Tile],
    ) -> Result<(), String> {
        let Fields { k, n, d, .. } = self.fields;
        let (rows, columns) = (self.datapath.rows, self.datapath.columns);
        let all: Vec<(&[f32], bool)> = b
            .iter()
            .flat_map(|tile| tile.values.chunks(k).zip(tile.unwritten.iter().copied()))
            .collect();
        let factors = match (self.operands.scales, self.fields.scales) {
            (Some((at_a, at_b)), Some(scale)) => {
                let (ty, vector) = (scale.ty, self.mma.vector);
                Some((
                    scales::read(cells, "A", at_a, rows, (ty, scale.a, vector))?,
                    scales::read(cells, "B", at_b, n, (ty, scale.b, vector))?,
                ))
            }
            _ => None,
        };
        for (fold, a) in a.iter().enumerate() {
            let first = fold * columns;
            let mut right = vec![0.0; k * columns];
            for column in 0..columns {
                for (at, value) in all[first + column].0.iter().enumerate() {
                    right[at * columns + column] = *value;
                }
            }
            let mut sums = vec![0; rows * columns];
            if self.operands.input_d {
                for (row, sums) in sums.chunks_mut(columns).enumerate() {
                    let lane = self.datapath.lane(self.operands.d.lane, row, fold);
                    for (column, sum) in (self.operands.d.column..).zip(sums) {
                        *sum = scaled_down(cells.get(lane, column), d, self.operands.scale_d);
                    }
                }
            }
            match &factors {
                None => Shape {
                    m: rows,
                    n: columns,
                    k,
                    a: self.fields.a,
                    b: self.fields.b,
                    d,
                    saturate: self.fields.saturate,
                }
                .multiply(Numerics::Exact, &a.values, &right, &mut sums),
                Some((of_a, of_b)) => {
                    let group = k / self.mma.vector as usize;
                    let of_a = |row: usize, k: usize| of_a[row].0[k / group];
                    let of_b = |column: usize, k: usize| of_b[first + column].0[k / group];
                    multiply_scaled(
                        (rows, columns, k),
                        (&a.values, of_a),
                        (&right, of_b),
                        &mut sums,
                    );
                }
            }
            for (row, sums) in sums.chunks(columns).enumerate() {
                let lane = self.datapath.lane(self.operands.d.lane, row, fold);
                let off = self.operands.disabled[rank][lane as usize / 32] >> (lane % 32) & 1;
                if off != 0 {
                    continue;
                }
                let scale_a = factors.as_ref().is_none_or(|(of_a, _)| of_a[row].1);
                for (column, sum) in sums.iter().enumerate() {
                    let at = self.operands.d.column + column as u32;
                    let old = !self.operands.input_d || cells.is_written(lane, at);
                    let scale_b = factors
                        .as_ref()
                        .is_none_or(|(_, of_b)| of_b[first + column].1);
                    let operands = !a.unwritten[row] && !all[first + column].1;
                    cells.set(lane, at, *sum, old && operands && scale_a && scale_b);
                }
            }
        }
        Ok(())
    }
}

/// An accumulator divided by a power of two.
fn scaled_down(word: u32, d: Accumulator, by: u32) -> u32 {
    let factor = f32::from_bits((127 - by.min(15)) << 23);
    match d {
        _ if by == 0 => match d {
            Accumulator::F16 => word & 0xffff,
            _ => word,
        },
        Accumulator::F32 => canonical(f32::from_bits(word) * factor),
        Accumulator::F16 => u32::from(f16_from_f64(f64::from(f16_to_f32(word as u16) * factor))),
        Accumulator::S32 => word,
    }
}

/// Calls (row, chunk) for each 16 bytes of a tile of `mn` by `k`.
fn each_chunk(mn: usize, k: usize, per: usize, transpose: bool, mut visit: impl FnMut(u32, u32)) {
    let (rows, along) = if transpose { (k, mn) } else { (mn, k) };
    for row in 0..rows {
        for chunk in 0..along.div_ceil(per) {
            visit(row as u32, chunk as u32);
        }
    }
}

/// The sums of products whose operands are scaled.
fn multiply_scaled(
    (rows, columns, k): (usize, usize, usize),
    (a, of_a): (&[f32], impl Fn(usize, usize) -> f32),
    (b, of_b): (&[f32], impl Fn(usize, usize) -> f32),
    sums: &mut [u32],
) {
    let left: Vec<f64> = (0..rows * k)
        .map(|at| f64::from(a[at]) * f64::from(of_a(at / k, at % k)))
        .collect();
    let right: Vec<f64> = (0..k * columns)
        .map(|at| f64::from(b[at]) * f64::from(of_b(at % columns, at / columns)))
        .collect();
    for (row, sums) in left.chunks(k).zip(sums.chunks_mut(columns)) {
        let mut line: Vec<f32> = sums.iter().map(|bits| f32::from_bits(*bits)).collect();
        for (a, b) in row.iter().zip(right.chunks(columns)) {
            for (sum, b) in line.iter_mut().zip(b) {
                *sum += (a * b) as f32;
            }
        }
        for (bits, sum) in sums.iter_mut().zip(line) {
            *bits = canonical(sum);
        }
    }
}

/// Rows of the table of what is executed.
pub(super) fn isa() -> Vec<(String, String)> {
    KINDS
        .iter()
        .map(|&(name, kind)| {
            let types = |list: &[(u32, Element)]| {
                let names: Vec<&str> = list.iter().map(|(_, element)| element.name()).collect();
                names.join(" ")
            };
            let shapes: Vec<String> = [1, 2]
                .into_iter()
                .flat_map(|group| {
                    kind.rows(group).iter().map(move |&m| {
                        let (step, others) = kind.columns(group);
                        let also: String = others.iter().map(|n| format!("{n}, ")).collect();
                        format!("cta_group::{group} M {m}, N {also}{step} to 256 by {step}")
                    })
                })
                .collect();
            let scaled = match kind.is_scaled() {
                true => format!(".block_scale{}", scales::vectors(kind)),
                false => String::new(),
            };
            (
                format!("tcgen05.mma.cta_group::N.kind::{name}{scaled}{{.collector::a::op}}"),
                format!(
                    "{}, K = {}; {}",
                    types(kind.elements()),
                    kind.k(),
                    shapes.join("; ")
                ),
            )
        })
        .collect()
}
