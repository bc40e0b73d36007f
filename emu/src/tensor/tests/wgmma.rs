//! wgmma on integers against the plain product, for every form.

use super::layouts::{describe, table};
use super::{Random, accumulator, encode, integer};
use crate::tensor::descriptor::{Descriptor, Major};
use crate::tensor::number::{Accumulator, Element};
use crate::tensor::product::Numerics;
use crate::tensor::swizzle::Swizzle;
use crate::tensor::wgmma::{Modifiers, OperandA, Reads, Wgmma};

pub const FORMS: [(&str, Element, Element, Accumulator); 14] = [
    ("f32.f16.f16", Element::F16, Element::F16, Accumulator::F32),
    ("f16.f16.f16", Element::F16, Element::F16, Accumulator::F16),
    (
        "f32.bf16.bf16",
        Element::Bf16,
        Element::Bf16,
        Accumulator::F32,
    ),
    (
        "f32.tf32.tf32",
        Element::Tf32,
        Element::Tf32,
        Accumulator::F32,
    ),
    (
        "f32.e4m3.e4m3",
        Element::E4m3,
        Element::E4m3,
        Accumulator::F32,
    ),
    (
        "f32.e4m3.e5m2",
        Element::E4m3,
        Element::E5m2,
        Accumulator::F32,
    ),
    (
        "f32.e5m2.e4m3",
        Element::E5m2,
        Element::E4m3,
        Accumulator::F32,
    ),
    (
        "f32.e5m2.e5m2",
        Element::E5m2,
        Element::E5m2,
        Accumulator::F32,
    ),
    (
        "f16.e4m3.e4m3",
        Element::E4m3,
        Element::E4m3,
        Accumulator::F16,
    ),
    (
        "f16.e5m2.e4m3",
        Element::E5m2,
        Element::E4m3,
        Accumulator::F16,
    ),
    ("s32.s8.s8", Element::S8, Element::S8, Accumulator::S32),
    ("s32.s8.u8", Element::S8, Element::U8, Accumulator::S32),
    ("s32.u8.s8", Element::U8, Element::S8, Accumulator::S32),
    ("s32.u8.u8", Element::U8, Element::U8, Accumulator::S32),
];

pub fn decode(n: usize, k: usize, types: &str) -> Wgmma {
    let opcode = format!("wgmma.mma_async.sync.aligned.m64n{n}k{k}.{types}");
    let parts: Vec<&str> = opcode.split('.').collect();
    Wgmma::decode(&parts).unwrap().unwrap()
}

/// A matrix of small integers, written into shared memory by the ISA's table.
pub struct Operand {
    pub values: Vec<Vec<i64>>,
    pub descriptor: Descriptor,
}

/// Rows of the operand's offsets: packed, or with gaps.
pub fn offsets(major: Major, swizzle: Swizzle, mn: usize, gap: usize) -> (usize, usize) {
    let span = swizzle.span() as usize;
    match (major, swizzle) {
        (Major::K, Swizzle::None) => (mn * 16 + gap, 128),
        (Major::K, _) => (16 * 7, span * 8 + gap.next_multiple_of(1024)),
        (Major::Mn, Swizzle::None) => (mn * 16 + gap, 128),
        // Panel to panel; 16 k rows of the panel lie together.
        (Major::Mn, _) => (span * 16 + gap.next_multiple_of(1024), span * 8),
    }
}

pub fn operand(
    random: &mut Random,
    shared: &mut [u8],
    start: usize,
    (mn, k): (usize, usize),
    element: Element,
    (major, swizzle, gap): (Major, Swizzle, usize),
) -> Operand {
    let (lbo, sbo) = offsets(major, swizzle, mn, gap);
    let values: Vec<Vec<i64>> = (0..mn)
        .map(|_| (0..k).map(|_| random.small(element)).collect())
        .collect();
    let bytes = element.bytes();
    for (i, row) in values.iter().enumerate() {
        for (j, value) in row.iter().enumerate() {
            let at = table(major, swizzle, bytes, (start, lbo, sbo), (i, j));
            let code = encode(element, *value).to_le_bytes();
            shared[at..at + bytes].copy_from_slice(&code[..bytes]);
        }
    }
    Operand {
        values,
        descriptor: describe(start, lbo, sbo, swizzle),
    }
}

/// Where (row, column) of D is, from the figure: thread, register, shift.
pub fn place(d: Accumulator, row: usize, column: usize) -> (usize, usize, u32) {
    let thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
    let lower = row % 16 / 8;
    if d == Accumulator::F16 {
        (thread, column / 8 * 2 + lower, 16 * (column as u32 % 2))
    } else {
        (thread, column / 8 * 4 + lower * 2 + column % 2, 0)
    }
}

fn element_of(d: Accumulator, registers: &[Vec<u32>], row: usize, column: usize) -> i64 {
    let (thread, register, shift) = place(d, row, column);
    let bits = registers[thread][register] >> shift;
    integer(
        d,
        if d == Accumulator::F16 {
            bits & 0xffff
        } else {
            bits
        },
    )
}

/// Accumulators that hold small integers, and those.
fn accumulators(random: &mut Random, w: &Wgmma) -> (Vec<Vec<u32>>, Vec<Vec<i64>>) {
    let mut registers = vec![vec![0; w.registers()]; 128];
    let mut values = vec![vec![0; w.n()]; 64];
    for (row, line) in values.iter_mut().enumerate() {
        for (column, value) in line.iter_mut().enumerate() {
            *value = random.below(9) as i64 - 4;
            let (thread, register, shift) = place(w.d(), row, column);
            registers[thread][register] |= accumulator(w.d(), *value) << shift;
        }
    }
    (registers, values)
}

fn product(a: &[Vec<i64>], b: &[Vec<i64>], row: usize, column: usize) -> i64 {
    a[row].iter().zip(&b[column]).map(|(a, b)| a * b).sum()
}

pub fn all_columns(element: Element) -> Vec<usize> {
    let integer = element.is_integer();
    (1..=32)
        .map(|i| 8 * i)
        .filter(|n| !integer || *n <= 24 || n % 16 == 0)
        .collect()
}

pub const SHARED: usize = 228 * 1024;

#[test]
fn every_form_shape_major_and_swizzle_is_the_plain_product() {
    let mut random = Random(7);
    let mut shared = vec![0; SHARED];
    let mut runs = 0;
    for (form, (types, a, b, d)) in FORMS.into_iter().enumerate() {
        let k = 32 / a.bytes();
        let majors: &[Major] = if a.bytes() == 2 {
            &[Major::K, Major::Mn]
        } else {
            &[Major::K]
        };
        for n in all_columns(a) {
            let w = decode(n, k, types);
            for (pick, swizzle_b) in Swizzle::ALL.into_iter().enumerate() {
                let swizzle_a = Swizzle::ALL[(pick + n / 8 + form) % 4];
                for major_a in majors {
                    for major_b in majors {
                        let gap = 16 * random.below(3) as usize;
                        random_bytes(&mut random, &mut shared);
                        let left = (*major_a, swizzle_a, gap);
                        let a = operand(&mut random, &mut shared, 0x400, (64, k), a, left);
                        let right = (*major_b, swizzle_b, gap);
                        let b = operand(&mut random, &mut shared, 0x8000, (n, k), b, right);
                        let (mut registers, old) = accumulators(&mut random, &w);
                        let modifiers = Modifiers {
                            trans_a: *major_a == Major::Mn,
                            trans_b: *major_b == Major::Mn,
                            scale_d: random.below(4) != 0,
                            neg_a: !a_is_integer(&w) && random.below(3) == 0,
                            neg_b: !a_is_integer(&w) && random.below(3) == 0,
                        };
                        let desc_a = OperandA::Desc(a.descriptor.encode());
                        w.execute(
                            Numerics::Exact,
                            &shared,
                            desc_a,
                            b.descriptor.encode(),
                            modifiers,
                            &mut registers,
                        )
                        .unwrap();
                        let sign = if modifiers.neg_a == modifiers.neg_b {
                            1
                        } else {
                            -1
                        };
                        for (row, line) in old.iter().enumerate() {
                            for (column, old) in line.iter().enumerate() {
                                let expected = sign * product(&a.values, &b.values, row, column)
                                    + if modifiers.scale_d { *old } else { 0 };
                                assert_eq!(
                                    element_of(d, &registers, row, column),
                                    expected,
                                    "{types} n{n} A {major_a:?} {swizzle_a:?} B {major_b:?} \
                                     {swizzle_b:?} ({row}, {column}) {modifiers:?}"
                                );
                            }
                        }
                        runs += 1;
                    }
                }
            }
        }
    }
    assert!(runs > 2000, "{runs}");
}

fn a_is_integer(w: &Wgmma) -> bool {
    w.a().is_integer()
}

/// Garbage around the operands, so that a wrong address can't read a zero.
fn random_bytes(random: &mut Random, shared: &mut [u8]) {
    for word in shared.chunks_exact_mut(8).step_by(97) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
}

#[test]
fn a_from_registers() {
    let mut random = Random(11);
    let mut shared = vec![0; SHARED];
    for (types, a, b, d) in FORMS {
        let k = 32 / a.bytes();
        let per = a.per_register();
        for n in [8, 24, 256] {
            let w = decode(n, k, types);
            let mut registers = [[0_u32; 4]; 128];
            let mut left = vec![vec![0; k]; 64];
            for (row, line) in left.iter_mut().enumerate() {
                for (column, value) in line.iter_mut().enumerate() {
                    *value = random.small(a);
                    let thread = row / 16 * 32 + row % 8 * 4 + column / per % 4;
                    let register = row % 16 / 8 + 2 * (column / (4 * per));
                    let shift = 8 * a.bytes() * (column % per);
                    registers[thread][register] |= encode(a, *value) << shift;
                }
            }
            let how = (Major::K, Swizzle::B64, 0);
            let right = operand(&mut random, &mut shared, 0x1000, (n, k), b, how);
            let (mut sums, old) = accumulators(&mut random, &w);
            let modifiers = Modifiers {
                neg_a: !a.is_integer(),
                ..Modifiers::default()
            };
            let operand = OperandA::Regs(&registers);
            let desc_b = right.descriptor.encode();
            let exact = Numerics::Exact;
            let reads = w
                .execute(exact, &shared, operand, desc_b, modifiers, &mut sums)
                .unwrap();
            assert_eq!(bytes_of(&reads), (n * 32) as u32);
            let sign = if a.is_integer() { 1 } else { -1 };
            for (row, line) in old.iter().enumerate() {
                for (column, old) in line.iter().enumerate() {
                    let expected = old + sign * product(&left, &right.values, row, column);
                    assert_eq!(element_of(d, &sums, row, column), expected, "{types} n{n}");
                }
            }
        }
    }
}

fn bytes_of(reads: &Reads) -> u32 {
    reads
        .ranges
        .iter()
        .map(|range| range.end - range.start)
        .sum()
}

/// Speed: `cargo test --release -- --ignored speed --nocapture`.
#[test]
#[ignore = "measures time"]
fn speed() {
    for (types, k) in [
        ("f32.e4m3.e4m3", 32),
        ("f32.bf16.bf16", 16),
        ("f32.f16.f16", 16),
    ] {
        for numerics in [Numerics::Exact, Numerics::HopperTruncate] {
            let w = decode(256, k, types);
            let shared = vec![0x38; SHARED];
            let a = OperandA::Desc(describe(0, 0, 1024, Swizzle::B128).encode());
            let b = describe(0x8000, 0, 1024, Swizzle::B128).encode();
            let mut d = vec![vec![0; 128]; 128];
            let count = if numerics == Numerics::Exact {
                2000
            } else {
                20
            };
            let start = std::time::Instant::now();
            for _ in 0..count {
                w.execute(numerics, &shared, a, b, Modifiers::default(), &mut d)
                    .unwrap();
            }
            let rate = (count * w.operations()) as f64 / start.elapsed().as_secs_f64() / 1e9;
            println!("m64n256k{k} {types} {numerics:?}: {rate:.2} GFLOP/s");
            assert!(numerics != Numerics::Exact || rate > 1.0);
        }
    }
}
