//! `mma.sync`, `ldmatrix`, `stmatrix` and `movmatrix` against the ISA's figures, read from the
//! element to its place.

use super::{Random, accumulator, encode, integer};
use crate::tensor::matrix::{Matrix, transpose};
use crate::tensor::mma::Mma;
use crate::tensor::number::{Accumulator, Element};
use crate::tensor::product::Numerics;

type Form = (&'static str, usize, Element, Element, Accumulator);

/// Every form, written out.
fn forms() -> Vec<Form> {
    use Accumulator::{F16 as H, F32 as S, S32 as I};
    use Element::{Bf16, E4m3, E5m2, F16, S8, Tf32, U8};
    let mut forms = vec![
        ("f32.f16.f16.f32", 8, F16, F16, S),
        ("f32.f16.f16.f32", 16, F16, F16, S),
        ("f16.f16.f16.f16", 8, F16, F16, H),
        ("f16.f16.f16.f16", 16, F16, F16, H),
        ("f32.bf16.bf16.f32", 8, Bf16, Bf16, S),
        ("f32.bf16.bf16.f32", 16, Bf16, Bf16, S),
        ("f32.tf32.tf32.f32", 4, Tf32, Tf32, S),
        ("f32.tf32.tf32.f32", 8, Tf32, Tf32, S),
    ];
    for k in [16, 32] {
        forms.extend([
            ("f32.e4m3.e4m3.f32", k, E4m3, E4m3, S),
            ("f32.e4m3.e5m2.f32", k, E4m3, E5m2, S),
            ("f32.e5m2.e4m3.f32", k, E5m2, E4m3, S),
            ("f32.e5m2.e5m2.f32", k, E5m2, E5m2, S),
            ("f16.e4m3.e4m3.f16", k, E4m3, E4m3, H),
            ("f16.e5m2.e4m3.f16", k, E5m2, E4m3, H),
            ("s32.s8.s8.s32", k, S8, S8, I),
            ("s32.s8.u8.s32", k, S8, U8, I),
            ("s32.u8.s8.s32", k, U8, S8, I),
            ("s32.u8.u8.s32", k, U8, U8, I),
        ]);
    }
    forms
}

fn decode(types: &str, k: usize) -> Mma {
    let opcode = format!("mma.sync.aligned.m16n8k{k}.row.col.{types}");
    let parts: Vec<&str> = opcode.split('.').collect();
    Mma::decode(&parts).unwrap().unwrap()
}

/// (lane, register, element in the register) of A's element, by the formulas below the ISA's
/// figures for each size of element, solved for the place.
fn place_a(element: Element, row: usize, column: usize) -> (usize, usize, usize) {
    let lower = row / 8;
    match element.bytes() {
        // .f16: col = t * 2 + (i & 1), + 8 for i >= 4; row + 8 for i = 2, 3, 6, 7.
        2 => {
            let i = column % 2 + 2 * lower + if column >= 8 { 4 } else { 0 };
            (row % 8 * 4 + column % 8 / 2, i / 2, i % 2)
        }
        // .tf32: col = t, + 4 for i >= 2; row + 8 for i = 1, 3.
        4 => (
            row % 8 * 4 + column % 4,
            lower + if column >= 4 { 2 } else { 0 },
            0,
        ),
        // 8 bits: col = t * 4 + (i & 3), + 16 for i >= 8; row + 8 for i in 4..8, 12..16.
        _ => {
            let i = column % 4 + 4 * lower + if column >= 16 { 8 } else { 0 };
            (row % 8 * 4 + column % 16 / 4, i / 4, i % 4)
        }
    }
}

fn place_b(element: Element, row: usize, column: usize) -> (usize, usize, usize) {
    match element.bytes() {
        2 => (column * 4 + row % 8 / 2, row / 8, row % 2),
        4 => (column * 4 + row % 4, row / 4, 0),
        _ => (column * 4 + row % 16 / 4, row / 16, row % 4),
    }
}

fn place_d(d: Accumulator, row: usize, column: usize) -> (usize, usize, u32) {
    let lane = row % 8 * 4 + column / 2;
    if d == Accumulator::F16 {
        (lane, row / 8, 16 * (column as u32 % 2))
    } else {
        (lane, row / 8 * 2 + column % 2, 0)
    }
}

#[test]
fn every_mma_is_the_plain_product() {
    let mut random = Random(3);
    for (types, k, ta, tb, td) in forms() {
        let mma = decode(types, k);
        for _ in 0..20 {
            let mut a = vec![[0; 32]; mma.registers_a()];
            let mut b = vec![[0; 32]; mma.registers_b()];
            let mut c = vec![[0; 32]; mma.registers_d()];
            let mut left = [[0; 32]; 16];
            let mut right = [[0; 32]; 8];
            let mut old = [[0; 8]; 16];
            for row in 0..16 {
                for column in 0..k {
                    left[row][column] = random.small(ta);
                    let (lane, register, i) = place_a(ta, row, column);
                    a[register][lane] |= encode(ta, left[row][column]) << (8 * ta.bytes() * i);
                }
                for column in 0..8 {
                    old[row][column] = random.below(9) as i64 - 4;
                    let (lane, register, shift) = place_d(td, row, column);
                    c[register][lane] |= accumulator(td, old[row][column]) << shift;
                }
            }
            for row in 0..k {
                for column in 0..8 {
                    right[column][row] = random.small(tb);
                    let (lane, register, i) = place_b(tb, row, column);
                    b[register][lane] |= encode(tb, right[column][row]) << (8 * tb.bytes() * i);
                }
            }
            let d = mma.execute(Numerics::Exact, &a, &b, &c).unwrap();
            // The same with a lane's registers of A exchanged must differ (random A).
            let mut swapped = a.clone();
            swapped.swap(0, 1);
            assert_ne!(mma.execute(Numerics::Exact, &swapped, &b, &c).unwrap(), d);
            for row in 0..16 {
                for column in 0..8 {
                    let sum: i64 = (0..k).map(|i| left[row][i] * right[column][i]).sum();
                    let (lane, register, shift) = place_d(td, row, column);
                    let bits = d[register][lane] >> shift;
                    let bits = if td == Accumulator::F16 {
                        bits & 0xffff
                    } else {
                        bits
                    };
                    let expected = sum + old[row][column];
                    assert_eq!(
                        integer(td, bits),
                        expected,
                        "{types} k{k} ({row}, {column})"
                    );
                }
            }
            // One marked element marks its row, its column or itself.
            let (row, column) = (random.below(16) as usize, random.below(k as u64) as usize);
            let (lane, register, _) = place_a(ta, row, column);
            let mut mask = vec![[0; 32]; a.len()];
            mask[register][lane] = 1;
            let marks = mma.marks(&mask, &[], &[]);
            for r in 0..16 {
                for n in 0..8 {
                    let (lane, register, shift) = place_d(td, r, n);
                    assert_eq!(marks[register][lane] >> shift & 1 != 0, r == row);
                }
            }
            let (lane, register, _) = place_b(tb, column, row % 8);
            let mut mask = vec![[0; 32]; b.len()];
            mask[register][lane] = 0x8000_0000;
            let marks = mma.marks(&[], &mask, &[]);
            let (lane, register, shift) = place_d(td, row, row % 8);
            assert!(marks[register][lane] >> shift & 1 != 0);
            let (lane, register, shift) = place_d(td, row, (row + 1) % 8);
            assert!(marks[register][lane] >> shift & 1 == 0);
        }
    }
}

#[test]
fn the_number_of_registers_is_checked() {
    let mma = decode("f32.bf16.bf16.f32", 16);
    let error = mma.execute(Numerics::Exact, &[[0; 32]; 4], &[[0; 32]; 1], &[[0; 32]; 4]);
    assert!(error.unwrap_err().contains("(4, 2, 4)"));
}

fn matrix(opcode: &str) -> Matrix {
    Matrix::decode(&opcode.split('.').collect::<Vec<_>>())
        .unwrap()
        .unwrap()
}

/// The ISA's figure, element by element: element (r, c) of matrix j is in lane 4 r + c / 2, in
/// half c % 2 of register j; transposed, element (c, r).
#[test]
fn matrices_move_as_drawn() {
    let mut random = Random(5);
    for (word, count) in [("x1", 1), ("x2", 2), ("x4", 4)] {
        for (word_trans, trans) in [("", false), (".trans", true)] {
            let load = matrix(&format!(
                "ldmatrix.sync.aligned.m8n8.{word}{word_trans}.shared.b16"
            ));
            let store = matrix(&format!(
                "stmatrix.sync.aligned.m8n8.{word}{word_trans}.shared::cta.b16"
            ));
            let rows: Vec<[u8; 16]> = (0..8 * count)
                .map(|_| std::array::from_fn(|_| random.next() as u8))
                .collect();
            let registers = load.load(&rows);
            assert_eq!(registers.len(), count);
            for (j, lanes) in registers.iter().enumerate() {
                for r in 0..8 {
                    for c in 0..8 {
                        let row = &rows[8 * j + r];
                        let element = u32::from(row[2 * c]) | u32::from(row[2 * c + 1]) << 8;
                        let (r, c) = if trans { (c, r) } else { (r, c) };
                        let held = lanes[4 * r + c / 2] >> (16 * (c % 2)) & 0xffff;
                        assert_eq!(held, element);
                    }
                }
            }
            assert_eq!(store.store(&registers), rows);
            let other = Matrix::Store {
                count,
                trans: !trans,
            };
            assert_ne!(other.store(&registers), rows);

            // Only the first 8 * count addresses count.
            let mut addresses: [u64; 32] = std::array::from_fn(|lane| 16 * lane as u64 + 64);
            if count < 4 {
                addresses[8 * count] = 3;
            }
            let found = load.rows(&addresses).unwrap();
            assert_eq!(found.len(), 8 * count);
            assert!(found.iter().all(|(lane, at)| *at == 16 * *lane as u64 + 64));
            addresses[7] = 8;
            let error = load.rows(&addresses).unwrap_err();
            assert!(error.contains("row 7") && error.contains("16"), "{error}");
        }
    }
}

#[test]
fn movmatrix_transposes() {
    let mut random = Random(6);
    let source: [u32; 32] = std::array::from_fn(|_| random.next() as u32);
    let element =
        |lanes: &[u32; 32], r: usize, c: usize| lanes[4 * r + c / 2] >> (16 * (c % 2)) & 0xffff;
    let moved = transpose(&source);
    for r in 0..8 {
        for c in 0..8 {
            assert_eq!(element(&moved, r, c), element(&source, c, r));
        }
    }
    assert_ne!(moved, source);
    assert_eq!(transpose(&moved), source);
}
