//! Canonical layouts: the ISA's table of CuTe layouts evaluated as it stands, its worked
//! examples, and the layouts that people draw.

use super::Random;
use crate::tensor::descriptor::{Descriptor, Major};
use crate::tensor::swizzle::Swizzle;

/// One mode of a CuTe layout: coordinate `x` over nested shapes, first fastest.
fn mode(mut x: usize, shape: &[usize], stride: &[usize]) -> usize {
    let mut offset = 0;
    for (i, (size, step)) in shape.iter().zip(stride).enumerate() {
        let digit = if i + 1 == shape.len() { x } else { x % size };
        offset += digit * step;
        x /= size;
    }
    offset
}

/// `Swizzle<bits, 4, 3>` of CuTe: the bits above are XORed onto those `shift` below.
pub fn cute_swizzle(bits: u32, address: usize) -> usize {
    let mask = ((1 << bits) - 1) << (4 + 3);
    address ^ ((address & mask) >> 3)
}

/// Byte address of an element by the ISA's table; `sbo` and `lbo` in bytes.
pub fn table(
    major: Major,
    swizzle: Swizzle,
    bytes: usize,
    (start, lbo, sbo): (usize, usize, usize),
    (mn, k): (usize, usize),
) -> usize {
    let t = 16 / bytes;
    let (lbo, sbo) = (lbo / bytes, sbo / bytes);
    let bits = swizzle.bits();
    let w = 1 << bits;
    let last = usize::MAX; // "m", "k": however many there are
    let offset = match (major, swizzle) {
        (Major::Mn, Swizzle::None) => {
            mode(mn, &[t, 1, last], &[1, t, sbo]) + mode(k, &[8, last], &[t, lbo])
        }
        (Major::Mn, _) => {
            mode(mn, &[t, w, last], &[1, t, lbo]) + mode(k, &[8, last], &[w * t, sbo])
        }
        (Major::K, Swizzle::None) => {
            mode(mn, &[8, last], &[t, sbo]) + mode(k, &[t, last], &[1, lbo])
        }
        (Major::K, _) => mode(mn, &[8, last], &[w * t, sbo]) + mode(k, &[t, last], &[1, t]),
    };
    cute_swizzle(bits, start + offset * bytes)
}

pub fn describe(start: usize, lbo: usize, sbo: usize, swizzle: Swizzle) -> Descriptor {
    Descriptor {
        start: start as u32,
        leading: lbo as u32,
        stride: sbo as u32,
        base_offset: 0,
        swizzle,
    }
}

#[test]
fn every_address_is_the_tables() {
    let mut random = Random(1);
    for swizzle in Swizzle::ALL {
        for (major, bytes) in [(Major::K, 1), (Major::K, 2), (Major::K, 4), (Major::Mn, 2)] {
            for _ in 0..50 {
                let mut field = || 16 * random.below(256) as usize;
                let (start, lbo, sbo) = (field(), field(), field());
                let descriptor = describe(start, lbo, sbo, swizzle);
                assert_eq!(Descriptor::decode(descriptor.encode()), Ok(descriptor));
                let layout = descriptor.layout(major, bytes).unwrap();
                for mn in 0..256 {
                    for k in 0..32 / bytes {
                        assert_eq!(
                            layout.address(mn as u32, k as u32) as usize,
                            table(major, swizzle, bytes, (start, lbo, sbo), (mn, k)),
                            "{major:?} {descriptor:?} {mn} {k}"
                        );
                    }
                }
            }
        }
    }
}

/// The exact layouts that stand beside figures 166 to 170.
#[test]
fn the_isas_examples() {
    type Example = (Major, Swizzle, usize, (usize, usize), [Vec<usize>; 4]);
    let examples: [Example; 5] = [
        (
            Major::K,
            Swizzle::None,
            4,
            (16, 8),
            [vec![8, 2], vec![4, 32], vec![4, 4], vec![1, 64]],
        ),
        (
            Major::K,
            Swizzle::B32,
            4,
            (1, 16),
            [vec![8, 2], vec![8, 64], vec![4, 4], vec![1, 4]],
        ),
        (
            Major::Mn,
            Swizzle::None,
            2,
            (16, 8),
            [vec![8, 1, 2], vec![1, 8, 64], vec![8, 2], vec![8, 128]],
        ),
        (
            Major::Mn,
            Swizzle::B32,
            2,
            (16, 32),
            [vec![8, 2, 2], vec![1, 8, 128], vec![8, 2], vec![16, 256]],
        ),
        (
            Major::Mn,
            Swizzle::B64,
            2,
            (32, 64),
            [vec![8, 4, 2], vec![1, 8, 256], vec![8, 2], vec![32, 512]],
        ),
    ];
    for (major, swizzle, bytes, (lbo, sbo), [rows, row_strides, columns, strides]) in examples {
        let mode_bits: u64 = match swizzle {
            Swizzle::None => 0,
            Swizzle::B128 => 1,
            Swizzle::B64 => 2,
            Swizzle::B32 => 3,
        };
        let bits = (lbo as u64) << 16 | (sbo as u64) << 32 | mode_bits << 62;
        let layout = Descriptor::decode(bits)
            .unwrap()
            .layout(major, bytes)
            .unwrap();
        for mn in 0..rows.iter().product() {
            // One instruction reads 32 bytes of K.
            for k in 0..(32 / bytes).min(columns.iter().product()) {
                let element = mode(mn, &rows, &row_strides) + mode(k, &columns, &strides);
                let expected = cute_swizzle(swizzle.bits(), element * bytes);
                assert_eq!(layout.address(mn as u32, k as u32) as usize, expected);
            }
        }
    }
}

/// What everyone draws: 128-byte rows, chunk c of row r in column c ^ (r % 8); the second K
/// step is the address + 32.
#[test]
fn the_128_byte_atom_as_drawn() {
    for step in 0..4 {
        let descriptor = describe(2048 + 32 * step, 16, 1024, Swizzle::B128);
        let layout = descriptor.layout(Major::K, 2).unwrap();
        for row in 0..64_usize {
            for k in 0..16 {
                let chunk = (16 * step + k) / 8;
                let drawn = 2048 + row * 128 + (chunk ^ (row % 8)) * 16 + k % 8 * 2;
                assert_eq!(layout.address(row as u32, k as u32) as usize, drawn);
            }
        }
    }
}

/// A pattern that begins off the period is named by the base offset.
#[test]
fn the_base_offset_moves_the_pattern() {
    for swizzle in [Swizzle::B32, Swizzle::B64, Swizzle::B128] {
        for lines in 0..8_u32 {
            let at_zero = describe(0, 16, 1024, swizzle).layout(Major::K, 2).unwrap();
            let mut moved = describe(128 * lines as usize, 16, 1024, swizzle);
            moved.base_offset = lines;
            let moved = moved.layout(Major::K, 2).unwrap();
            for row in 0..64 {
                for k in 0..16 {
                    assert_eq!(moved.address(row, k), at_zero.address(row, k) + 128 * lines);
                }
            }
        }
    }
}

#[test]
fn illegal_descriptors() {
    for bit in [14, 15, 30, 31, 46, 47, 48, 52, 60, 61] {
        let error = Descriptor::decode(1 << bit | 1 << 62).unwrap_err();
        assert!(error.contains("reserved"), "{error}");
        assert_eq!(error.contains("tcgen05"), bit == 46);
    }
    assert!(
        Descriptor::decode(1 << 49)
            .unwrap_err()
            .contains("base offset")
    );
    assert!(Descriptor::decode(1 << 49 | 1 << 62).is_ok());
    let descriptor = Descriptor::decode(0).unwrap();
    for bytes in [1, 4] {
        let error = descriptor.layout(Major::Mn, bytes).unwrap_err();
        assert!(error.contains("16-bit"), "{error}");
    }
    assert!(descriptor.layout(Major::K, 8).is_err());
}
