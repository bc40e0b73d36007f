//! `tcgen05` on integers against the plain product, for every kind; and its fragments.

use std::collections::HashSet;

use super::layouts::table;
use super::wgmma::SHARED;
use super::{Random, accumulator, encode, integer};
use crate::tensor::descriptor::Major;
use crate::tensor::number::{Accumulator, Element};
use crate::tensor::swizzle::Swizzle;
use crate::tensor::tcgen05::fragment::Fragment;
use crate::tensor::tcgen05::instruction::{KINDS, Kind};
use crate::tensor::tcgen05::memory::{Address, Cells, LANES};
use crate::tensor::tcgen05::product::{Mma, OperandA, Operands};

/// Address bits and swizzle of a descriptor, as the ISA's table has them.
pub fn descriptor(start: usize, lbo: usize, sbo: usize, mode: u64) -> u64 {
    let field = |value: usize, at: u32| (value as u64 >> 4 & 0x3fff) << at;
    field(start, 0) | field(lbo, 16) | field(sbo, 32) | 1 << 46 | mode << 61
}

fn mode(swizzle: Swizzle) -> u64 {
    match swizzle {
        Swizzle::None => 0,
        Swizzle::B128 => 2,
        Swizzle::B64 => 4,
        Swizzle::B32 => 6,
    }
}

/// How an operand lies in shared memory; `None` for tf32's transposed layout.
type Lay = (Major, Option<Swizzle>);

/// The operand's bytes in shared memory, and its descriptor.
fn put(
    shared: &mut [u8],
    start: usize,
    values: &[Vec<i64>],
    (kind, element): (Kind, Element),
    (major, swizzle): Lay,
) -> u64 {
    let (mn, k) = (values.len(), values[0].len());
    let bytes = (32 / k).max(1);
    let Some(swizzle) = swizzle else {
        // 128 bytes of MN, 4 k; then 4 k more, then 128 bytes more; bits 5-6 ^= bits 7-8.
        for (i, row) in values.iter().enumerate() {
            for (j, value) in row.iter().enumerate() {
                let at = start + i % 32 * 4 + i / 32 * 1024 + j % 4 * 128 + j / 4 * 512;
                let at = at ^ (at >> 7 & 3) << 5;
                shared[at..at + 4].copy_from_slice(&encode(element, *value).to_le_bytes());
            }
        }
        return descriptor(start, 1024, 512, 1);
    };
    let span = swizzle.span() as usize;
    let (lbo, sbo) = match (major, swizzle) {
        (_, Swizzle::None) => (mn * 16, 128),
        (Major::K, _) => (16, span * 8),
        (Major::Mn, _) => (span * k, span * 8),
    };
    let small = match element {
        Element::E2m1 => 4,
        Element::E2m3 | Element::E3m2 => 6,
        _ => 8 * bytes,
    };
    let per = if kind.is_packed() { 32 } else { 16 / bytes };
    for (i, row) in values.iter().enumerate() {
        for (j, value) in row.iter().enumerate() {
            let code = encode(element, *value);
            if small == 8 * bytes {
                let at = table(major, swizzle, bytes, (start, lbo, sbo), (i, j));
                shared[at..at + bytes].copy_from_slice(&code.to_le_bytes()[..bytes]);
                continue;
            }
            // Small elements: bits of the 16-byte chunk, from its start.
            let at = table(major, swizzle, 1, (start, lbo, sbo), (i, j / per * 16));
            for bit in 0..small {
                let place = j % per * small + bit;
                let byte = &mut shared[at + place / 8];
                *byte = *byte & !(1 << (place % 8)) | ((code >> bit & 1) as u8) << (place % 8);
            }
        }
    }
    descriptor(start, lbo, sbo, mode(swizzle))
}

/// The lane of a row of D, by the figures of 9.7.16.10.5, and the column of a column.
fn lane_of(
    m: usize,
    group: usize,
    n: usize,
    base: usize,
    (row, column): (usize, usize),
) -> (u32, u32) {
    let row = row % (m / group);
    let (lane, column) = match (m, group) {
        (64, 1) => (base + row / 16 * 32 + row % 16, column),
        (128, 2) => (row + 64 * (column / (n / 2)), column % (n / 2)),
        _ => (row, column),
    };
    (lane as u32, column as u32)
}

pub fn opcode(kind: Kind, group: u32) -> Vec<String> {
    let mut parts = vec![
        format!("cta_group::{group}"),
        format!("kind::{}", kind.name()),
    ];
    if kind.is_scaled() {
        parts.push("block_scale".into());
        parts.push(match kind {
            Kind::Mxf4nvf4 => "block16".into(),
            _ => "block32".into(),
        });
    }
    parts
}

pub fn decode(kind: Kind, group: u32) -> Mma {
    let parts = opcode(kind, group);
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    Mma::decode(&parts).unwrap()
}

/// One product with random operands.
struct Trial {
    kind: Kind,
    group: usize,
    m: usize,
    n: usize,
    types: ((u32, Element), (u32, Element), (u32, Accumulator)),
    lays: (Lay, Lay),
    a_in_tensor: bool,
}

impl Trial {
    fn instruction(&self, negate_a: bool, negate_b: bool) -> u32 {
        let (a, b, d) = self.types;
        let transposed = |lay: Lay| u32::from(lay.0 == Major::Mn);
        let common = a.0 << 7
            | b.0 << 10
            | u32::from(negate_a) << 13
            | u32::from(negate_b) << 14
            | transposed(self.lays.0) << 15
            | transposed(self.lays.1) << 16
            | (self.n as u32 / 8) << 17;
        match self.kind.is_scaled() {
            false => common | d.0 << 4 | (self.m as u32 / 16) << 24,
            true => {
                let ue8m0 = u32::from(self.kind != Kind::Mxf4nvf4) << 23;
                let id = if self.kind == Kind::Mxf4nvf4 { 0 } else { 2 };
                common | ue8m0 | id << 4 | id << 29 | (self.m as u32 / 128) << 27
            }
        }
    }

    fn run(&self, random: &mut Random) {
        let (a, b, d) = (self.types.0.1, self.types.1.1, self.types.2.1);
        let (k, group) = (self.kind.k(), self.group);
        let matrix = |random: &mut Random, rows: usize, element: Element| -> Vec<Vec<i64>> {
            (0..rows)
                .map(|_| (0..k).map(|_| random.small(element)).collect())
                .collect()
        };
        let (left, right) = (matrix(random, self.m, a), matrix(random, self.n, b));
        let base = if self.m == 64 {
            16 * random.below(2) as usize
        } else {
            0
        };
        let at = Address {
            lane: base as u32,
            column: 32,
        };
        let place = Address {
            lane: base as u32,
            column: 8,
        };
        let mut memories = vec![Cells::default(); group];
        let mut shareds = vec![vec![0u8; SHARED]; group];
        for shared in &mut shareds {
            for byte in shared.iter_mut().step_by(7) {
                *byte = random.next() as u8;
            }
        }
        let mut descriptors = (0, 0);
        for rank in 0..group {
            let rows = &left[rank * self.m / group..(rank + 1) * self.m / group];
            let columns = &right[rank * self.n / group..(rank + 1) * self.n / group];
            let shared = &mut shareds[rank];
            descriptors.0 = put(shared, 0x400, rows, (self.kind, a), self.lays.0);
            descriptors.1 = put(shared, 0x8000, columns, (self.kind, b), self.lays.1);
            if self.a_in_tensor {
                for (row, values) in rows.iter().enumerate() {
                    for fold in 0..if (self.m, group) == (128, 2) { 2 } else { 1 } {
                        let column = fold * self.n / 2;
                        let (lane, _) = lane_of(self.m, group, self.n, base, (row, column));
                        let per = k / 8;
                        for (at, values) in values.chunks(per).enumerate() {
                            let padded = a == Element::E2m1 && per == 4;
                            let word = values.iter().rev().fold(0u64, |word, value| {
                                word << (32 / per)
                                    | u64::from(encode(a, *value)) << (2 * u32::from(padded))
                            });
                            memories[rank].set(lane, place.column + at as u32, word as u32, true);
                        }
                    }
                }
            }
            if self.kind.is_scaled() {
                self.put_scales(&mut memories[rank]);
            }
        }
        let input_d = random.below(3) > 0;
        // Only of f32, whose codes the tests have for large integers too.
        let scales_d = matches!(self.kind, Kind::F16 | Kind::Tf32) && d == Accumulator::F32;
        let scale_d = if scales_d { random.below(16) as u32 } else { 0 };
        let mut old = vec![vec![0; self.n]; self.m];
        for (row, line) in old.iter_mut().enumerate() {
            for (column, value) in line.iter_mut().enumerate() {
                *value = random.below(9) as i64 - 4;
                let (lane, offset) = lane_of(self.m, group, self.n, base, (row, column));
                let rank = row / (self.m / group);
                memories[rank].set(
                    lane,
                    at.column + offset,
                    accumulator(d, *value << scale_d),
                    true,
                );
            }
        }
        let negates = self.kind != Kind::I8;
        let negate_a = negates && random.below(2) == 0;
        let negate_b = negates && random.below(2) == 0;
        let operands = Operands {
            d: at,
            a: match self.a_in_tensor {
                true => OperandA::Tensor(place),
                false => OperandA::Shared(descriptors.0),
            },
            b: descriptors.1,
            instruction: self.instruction(negate_a, negate_b),
            scales: self.kind.is_scaled().then_some((
                Address {
                    lane: 0,
                    column: 400,
                },
                Address {
                    lane: 0,
                    column: 416,
                },
            )),
            input_d,
            scale_d,
            disabled: [[0; 4], [0, 0, 1, 0]],
        };
        let plan = decode(self.kind, group as u32).plan(operands).unwrap();
        let read = |rank: usize| {
            let shared = &shareds[rank];
            move |address: u32, _: usize| {
                let at = address as usize;
                Ok((*shared[at..].first_chunk::<16>().unwrap(), true))
            }
        };
        let columns: Vec<_> = (0..group)
            .map(|rank| plan.gather_b(&read(rank)).unwrap())
            .collect();
        let sign = if negate_a == negate_b { 1 } else { -1 };
        for rank in 0..group {
            let rows = plan.gather_a(&read(rank), &memories[rank]).unwrap();
            plan.accumulate(&mut memories[rank], rank, &rows, &columns)
                .unwrap();
        }
        for row in 0..self.m {
            let rank = row / (self.m / group);
            for column in 0..self.n {
                let sum: i64 = left[row]
                    .iter()
                    .zip(&right[column])
                    .map(|(a, b)| a * b)
                    .sum();
                let mut want = sign * sum * self.scale(row, column);
                want += if input_d { old[row][column] } else { 0 };
                let (lane, offset) = lane_of(self.m, group, self.n, base, (row, column));
                // One lane is not written.
                if rank == 1 && lane == 64 {
                    want = old[row][column] << scale_d;
                }
                let word = memories[rank].get(lane, at.column + offset);
                assert_eq!(
                    integer(d, word),
                    want,
                    "{:?} {}x{} group {group} {a:?} {b:?} {:?}: {row}, {column}",
                    self.kind,
                    self.m,
                    self.n,
                    self.lays
                );
            }
        }
    }

    /// Scales of rows and columns: powers of two, the same for all of K.
    fn scale(&self, row: usize, column: usize) -> i64 {
        match self.kind.is_scaled() {
            false => 1,
            true => 1 << (row % 128 % 3 + column % 4),
        }
    }

    fn put_scales(&self, cells: &mut Cells) {
        let bytes = |power: usize| match self.kind {
            // ue4m3: 2^power, in all four bytes.
            Kind::Mxf4nvf4 => (((power + 7) << 3) * 0x0101_0101) as u32,
            // ue8m0, in the byte or the half that the id names.
            Kind::Mxf4 => ((power + 127) as u32 * 0x0101) << 16,
            _ => ((power + 127) as u32) << 16,
        };
        for lane in 0..LANES {
            for block in 0..4 {
                let row = lane as usize % 32 + 32 * block;
                cells.set(lane, 400 + block as u32, bytes(row % 3), true);
            }
            for block in 0..8 {
                let column = lane as usize % 32 + 32 * block;
                cells.set(lane, 416 + block as u32, bytes(column % 4), true);
            }
        }
    }
}

fn lays(kind: Kind, element: Element) -> Vec<Lay> {
    let mut all: Vec<Lay> = Swizzle::ALL
        .into_iter()
        .map(|swizzle| (Major::K, Some(swizzle)))
        .collect();
    match (kind, element) {
        (Kind::Tf32, _) => all.push((Major::Mn, None)),
        (_, Element::E2m3 | Element::E3m2 | Element::E2m1) => {}
        _ => all.extend(Swizzle::ALL.map(|swizzle| (Major::Mn, Some(swizzle)))),
    }
    all
}

#[test]
fn every_kind_shape_and_layout_is_the_plain_product() {
    let mut random = Random(5);
    for (_, kind) in KINDS {
        let sums: &[(u32, Accumulator)] = match kind.is_scaled() {
            true => &[(1, Accumulator::F32)],
            false => kind.sums(),
        };
        for group in [1, 2] {
            for &m in kind.rows(group) {
                if kind.is_scaled() && (group, m) == (2, 128) {
                    continue;
                }
                let (step, others) = kind.columns(group);
                let sizes = [step, 3 * step, 64, 96, 256];
                for (at, &n) in others.iter().chain(&sizes).enumerate() {
                    let pick = |list: &[(u32, Element)], by: usize| list[(at + by) % list.len()];
                    let (a, b) = (pick(kind.elements(), 0), pick(kind.elements(), n / 8));
                    let d = sums[at % sums.len()];
                    // f16 sums take f16 operands; and they are small.
                    let (a, b) = match (kind, d.1) {
                        (Kind::F16, Accumulator::F16) => (kind.elements()[0], kind.elements()[0]),
                        _ => (a, b),
                    };
                    let (of_a, of_b) = (lays(kind, a.1), lays(kind, b.1));
                    let bytes = kind != Kind::F16 && kind != Kind::Tf32;
                    let lay_a = of_a[random.below(of_a.len() as u64) as usize];
                    let mut lay_b = of_b[random.below(of_b.len() as u64) as usize];
                    if bytes && n % (16 * group as usize) != 0 {
                        lay_b.0 = Major::K;
                    }
                    let trial = Trial {
                        kind,
                        group: group as usize,
                        m,
                        n,
                        types: (a, b, d),
                        lays: (lay_a, lay_b),
                        a_in_tensor: lay_a.0 == Major::K && random.below(2) == 0,
                    };
                    trial.run(&mut random);
                }
            }
        }
    }
}

#[test]
fn fragments_cover_their_area_once() {
    for load in [true, false] {
        for shape in ["32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"] {
            for number in ["x1", "x2", "x8"] {
                for packed in [false, true] {
                    let mut parts = vec![shape, number];
                    if packed {
                        parts.push(if load { "pack::16b" } else { "unpack::16b" });
                    }
                    let mut fragment = Fragment::decode(&parts, load).unwrap();
                    if fragment.takes_split() {
                        fragment = fragment.with_split(100);
                    }
                    let mut seen = HashSet::new();
                    for thread in 0..32 {
                        for register in 0..fragment.registers() {
                            let (lane, column) = fragment.place(thread, register);
                            for column in column..column + fragment.width() {
                                assert!(seen.insert((lane, column)), "{shape} {lane} {column}");
                            }
                        }
                    }
                    let at = Address { lane: 0, column: 0 };
                    let mut area = HashSet::new();
                    for part in fragment.areas(at) {
                        for lane in part.lane..part.lane + part.lanes {
                            area.extend(
                                (part.column..part.column + part.columns).map(|c| (lane, c)),
                            );
                        }
                    }
                    assert_eq!(seen, area, "{shape} {number} {packed}");
                }
            }
        }
    }
}

/// Places that the ISA's figures show.
#[test]
fn fragments_are_the_figures() {
    for (shape, number, thread, register, place) in [
        ("32x32b", "x4", 17, 3, (17, 3)),
        ("16x64b", "x1", 0, 0, (0, 0)),
        ("16x64b", "x1", 1, 0, (8, 0)),
        ("16x64b", "x1", 2, 0, (0, 1)),
        ("16x64b", "x2", 7, 1, (9, 3)),
        ("16x128b", "x1", 5, 0, (1, 1)),
        ("16x128b", "x2", 5, 3, (9, 5)),
        ("16x256b", "x1", 6, 1, (1, 5)),
        ("16x256b", "x2", 6, 6, (9, 12)),
        ("16x32bx2", "x2", 3, 1, (3, 1)),
        ("16x32bx2", "x2", 19, 1, (3, 33)),
    ] {
        let mut fragment = Fragment::decode(&[shape, number], true).unwrap();
        if fragment.takes_split() {
            fragment = fragment.with_split(32);
        }
        assert_eq!(
            fragment.place(thread, register),
            place,
            "{shape} {thread} {register}"
        );
    }
}
