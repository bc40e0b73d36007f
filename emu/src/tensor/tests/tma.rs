//! Boxes against a walk over their elements, the encoding against every flipped bit, and a
//! tile from a tensor map through a descriptor into a product.

use super::layouts::describe;
use super::{Random, encode};
use crate::tensor::number::Element;
use crate::tensor::product::Numerics;
use crate::tensor::swizzle::Swizzle;
use crate::tensor::tma::{Direction, Dtype, Fill, TensorMap};
use crate::tensor::wgmma::{Modifiers, OperandA, Wgmma};

const DTYPES: [Dtype; 10] = [
    Dtype::U8,
    Dtype::U16,
    Dtype::U32,
    Dtype::S32,
    Dtype::U64,
    Dtype::S64,
    Dtype::F16,
    Dtype::F32,
    Dtype::F64,
    Dtype::Bf16,
];

/// A legal map of random shape, padded strides, base anywhere.
fn random_map(random: &mut Random) -> TensorMap {
    let dtype = DTYPES[random.below(10) as usize];
    let rank = 1 + random.below(5) as usize;
    let mut map = TensorMap::new(dtype, 0, &[16; 5][..rank], &[], &[1; 5][..rank]).unwrap();
    map.base = 16 * random.below(1 << 30);
    let step = (16 / dtype.bytes()) as u64;
    for d in 0..rank {
        map.dims[d] = 1 + random.below(40);
        map.tile[d] = 1 + random.below(5) as u32;
        let most = if random.below(3) == 0 { 8 } else { 1 };
        map.element_strides[d] = 1 + random.below(most) as u32;
    }
    map.tile[0] = (step * (1 + random.below(256 / step.max(32)))) as u32;
    for d in 1..rank {
        let packed = map.strides[d - 1] * map.dims[d - 1];
        map.strides[d] = packed.next_multiple_of(16) + 16 * random.below(3);
    }
    map.swizzle = Swizzle::ALL[random.below(4) as usize];
    let inner = map.tile[0] * dtype.bytes() as u32;
    if map.swizzle != Swizzle::None && inner > map.swizzle.span() {
        map.swizzle = Swizzle::None;
    }
    if dtype.is_float() && random.below(2) == 0 {
        map.fill = Fill::Nan;
    }
    map.validate().unwrap();
    map
}

/// Global address of each byte of the box in shared-memory order, by a walk over coordinates.
fn walk(map: &TensorMap, coords: &[i32]) -> Vec<Option<u64>> {
    let mut bytes = Vec::new();
    let tile = |d: usize| if d < map.rank { map.tile[d] } else { 1 };
    let step = |d: usize| {
        if d == 0 || d >= map.rank {
            1
        } else {
            map.element_strides[d]
        }
    };
    let at = |d: usize, i: u32| i64::from(*coords.get(d).unwrap_or(&0)) + i64::from(i);
    for e in (0..tile(4)).step_by(step(4) as usize) {
        for d in (0..tile(3)).step_by(step(3) as usize) {
            for c in (0..tile(2)).step_by(step(2) as usize) {
                for b in (0..tile(1)).step_by(step(1) as usize) {
                    for a in 0..tile(0) {
                        let place = [at(0, a), at(1, b), at(2, c), at(3, d), at(4, e)];
                        let inside =
                            (0..map.rank).all(|d| place[d] >= 0 && place[d] < map.dims[d] as i64);
                        let mut address = map.base;
                        for d in 0..map.rank {
                            address =
                                address.wrapping_add((place[d] * map.strides[d] as i64) as u64);
                        }
                        for byte in 0..map.dtype.bytes() as u64 {
                            bytes.push(inside.then_some(address.wrapping_add(byte)));
                        }
                    }
                }
            }
        }
    }
    bytes
}

#[test]
fn boxes_are_the_walk_over_their_elements() {
    let mut random = Random(47);
    let (mut inside, mut outside, mut mixed) = (0, 0, 0);
    for _ in 0..3000 {
        let map = random_map(&mut random);
        let coords: Vec<i32> = (0..map.rank)
            .map(|d| {
                let (low, high) = (map.tile[d] as i64 + 2, map.dims[d] as i64 + 2);
                match random.below(3) {
                    0 => (random.below((low + high) as u64) as i64 - low) as i32,
                    _ => random.below((high - 2) as u64) as i32,
                }
            })
            .collect();
        let expected = walk(&map, &coords);
        assert_eq!(map.box_bytes() as usize, expected.len());
        let mut found = Vec::new();
        let row = map.tile[0] as usize * map.dtype.bytes();
        // A swizzle's rows are as far apart as its atom's, however narrow the box.
        let pitch = match map.swizzle {
            Swizzle::None => row,
            swizzled => swizzled.span() as usize,
        };
        for run in map.boxes(&coords, Direction::Load).unwrap() {
            let (line, column) = (found.len() / row, found.len() % row);
            assert_eq!(run.shared_offset as usize, line * pitch + column);
            assert!(run.len > 0);
            found.extend((0..u64::from(run.len)).map(|i| run.global.map(|global| global + i)));
            // Pieces cover the run, each where the swizzle puts its bytes.
            let mut offset = run.shared_offset;
            for piece in map.pieces(0x1000, run) {
                assert_eq!(piece.shared, map.shared_address(0x1000, offset));
                assert_eq!(
                    piece.shared + piece.len - 1,
                    map.shared_address(0x1000, offset + piece.len - 1)
                );
                let done = u64::from(offset - run.shared_offset);
                assert_eq!(piece.global, run.global.map(|global| global + done));
                offset += piece.len;
            }
            assert_eq!(offset, run.shared_offset + run.len);
        }
        assert_eq!(found, expected, "{map:?} {coords:?}");
        let missing = expected.iter().filter(|byte| byte.is_none()).count();
        match missing {
            0 => inside += 1,
            m if m == expected.len() => outside += 1,
            _ => mixed += 1,
        }
        let store = map.boxes(&coords, Direction::Store);
        let reduce = map.boxes(&coords, Direction::Reduce);
        if let Some(d) = coords.iter().position(|c| *c < 0) {
            let error = store.unwrap_err();
            assert!(error.contains(&format!("dimension {d}")), "{error}");
            assert!(reduce.unwrap_err().contains("reduction"));
        } else {
            assert_eq!(store.unwrap().count(), reduce.unwrap().count());
        }
    }
    assert!(
        inside > 100 && outside > 100 && mixed > 100,
        "{inside} {outside} {mixed}"
    );
}

#[test]
fn extreme_coordinates_do_not_panic() {
    let mut map = TensorMap::new(Dtype::U8, 0, &[1 << 32, 1 << 20], &[], &[256, 256]).unwrap();
    map.element_strides[1] = 8;
    for c in [i32::MIN, -1, 0, i32::MAX] {
        for d in [i32::MIN, -1, 0, i32::MAX] {
            let total: u32 = map
                .boxes(&[c, d], Direction::Load)
                .unwrap()
                .map(|run| run.len)
                .sum();
            assert_eq!(total, map.box_bytes());
        }
    }
}

#[test]
fn illegal_maps_are_refused() {
    let good =
        TensorMap::new(Dtype::Bf16, 4096, &[100, 50, 7], &[208, 10400], &[64, 8, 2]).unwrap();
    assert_eq!(good.validate(), Ok(()));
    let mut nan = good;
    nan.dtype = Dtype::U16;
    nan.fill = Fill::Nan;
    let change = |f: &dyn Fn(&mut TensorMap)| {
        let mut map = good;
        f(&mut map);
        map.validate().unwrap_err()
    };
    let cases: [(&str, String); 16] = [
        ("NaN fill", nan.validate().unwrap_err()),
        ("rank 0", change(&|m| m.rank = 0)),
        ("rank 6", change(&|m| m.rank = 6)),
        ("base address", change(&|m| m.base = 4104)),
        ("0 elements", change(&|m| m.dims[1] = 0)),
        ("2^32", change(&|m| m.dims[1] = (1 << 32) + 1)),
        ("multiple of 16", change(&|m| m.strides[1] = 200)),
        ("2^40", change(&|m| m.strides[2] = 1 << 40)),
        ("stride 4 in dimension 0", change(&|m| m.strides[0] = 4)),
        ("box of 0", change(&|m| m.tile[2] = 0)),
        ("box of 257", change(&|m| m.tile[2] = 257)),
        ("element stride 0", change(&|m| m.element_strides[1] = 0)),
        ("element stride 9", change(&|m| m.element_strides[1] = 9)),
        ("row of the box, not", change(&|m| m.tile[0] = 60)),
        ("of the swizzle", change(&|m| m.swizzle = Swizzle::B64)),
        ("shared memory", change(&|m| m.tile = [64, 256, 8, 1, 1])),
    ];
    for (what, error) in cases {
        assert!(error.contains(what), "{what}: {error}");
    }
    let mut far = good;
    far.base = u64::MAX - 15;
    assert!(far.validate().unwrap_err().contains("address space"));
    let mut exact = good;
    exact.swizzle = Swizzle::B128;
    assert_eq!(exact.validate(), Ok(()));
    assert!(
        good.boxes(&[0, 0], Direction::Load)
            .unwrap_err()
            .contains("2 coordinates")
    );
    assert!(TensorMap::new(Dtype::U8, 0, &[], &[], &[]).is_err());
    assert!(TensorMap::new(Dtype::U8, 0, &[1; 6], &[], &[1; 6]).is_err());
    assert!(TensorMap::new(Dtype::U8, 0, &[16, 2], &[16, 16], &[16, 1]).is_err());
    assert!(exact.check_shared(0x480).is_ok() && !exact.pattern_aligned(0x480));
    assert!(exact.check_shared(0x440).unwrap_err().contains("128"));
    assert!(exact.pattern_aligned(0x400));
}

#[test]
fn the_encoding_comes_back_and_notices_every_flipped_bit() {
    let mut random = Random(53);
    for round in 0..300 {
        let map = random_map(&mut random);
        let bytes = map.to_bytes();
        assert_eq!(TensorMap::from_bytes(&bytes), Ok(map));
        if round % 30 == 0 {
            for bit in 0..1024 {
                let mut bad = bytes;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(TensorMap::from_bytes(&bad).is_err(), "bit {bit}");
            }
        }
    }
    let mut bytes = [0; 128];
    assert!(
        TensorMap::from_bytes(&bytes)
            .unwrap_err()
            .contains("no tensor map")
    );
    for _ in 0..10_000 {
        bytes
            .iter_mut()
            .for_each(|byte| *byte = random.next() as u8);
        assert!(TensorMap::from_bytes(&bytes).is_err());
    }
}

#[test]
fn fills() {
    for (dtype, nan) in [
        (Dtype::F16, vec![0xf7, 0x7f]),
        (Dtype::Bf16, vec![0xf7, 0x7f]),
        (Dtype::F32, vec![0xf7, 0x7f, 0xf7, 0x7f]),
    ] {
        let mut map = TensorMap::new(dtype, 0, &[64], &[], &[16]).unwrap();
        let mut bytes = [9; 16];
        map.fill_into(&mut bytes);
        assert_eq!(bytes, [0; 16]);
        map.fill = Fill::Nan;
        map.fill_into(&mut bytes);
        assert!(bytes.chunks(nan.len()).all(|element| element == nan));
    }
    for (index, dtype) in DTYPES.into_iter().enumerate() {
        assert_eq!(dtype as usize, index);
        assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
    }
}

/// B comes through a tensor map with the 128-byte swizzle, K-major and MN-major; A is the unit
/// matrix; the product is B as it lies in global memory.
#[test]
fn a_loaded_tile_feeds_wgmma() {
    let mut random = Random(59);
    // 200 rows of 72: the box of 64 by 64 begins at column 16 and row 150 and reaches outside.
    let (width, height) = (72_usize, 200_usize);
    let global: Vec<u8> = (0..width * height)
        .flat_map(|_| (encode(Element::Bf16, random.small(Element::Bf16)) as u16).to_le_bytes())
        .collect();
    let mut map = TensorMap::new(
        Dtype::Bf16,
        0,
        &[width as u64, height as u64],
        &[],
        &[64, 64],
    )
    .unwrap();
    map.swizzle = Swizzle::B128;
    let mut shared = vec![0xa5; 32768];
    for run in map.boxes(&[16, 150], Direction::Load).unwrap() {
        for piece in map.pieces(0x2000, run) {
            let at = piece.shared as usize..(piece.shared + piece.len) as usize;
            match piece.global {
                Some(from) => {
                    let from = from as usize;
                    shared[at].copy_from_slice(&global[from..from + piece.len as usize]);
                }
                None => map.fill_into(&mut shared[at]),
            }
        }
    }
    let value = |row: usize, column: usize| {
        if row >= height || column >= width {
            return 0.0;
        }
        let at = 2 * (row * width + column);
        Element::Bf16.decode(u32::from(u16::from_le_bytes([global[at], global[at + 1]])))
    };
    // Rows 0 to 15 of A are the unit matrix; thread t holds row t / 4, columns 2 (t % 4) ...
    let mut a = [[0; 4]; 128];
    for row in 0..16_usize {
        let thread = row % 8 * 4 + row % 8 / 2;
        a[thread][if row < 8 { 0 } else { 3 }] |= 0x3f80 << (16 * (row % 2));
    }
    let opcode: Vec<&str> = "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"
        .split('.')
        .collect();
    let w = Wgmma::decode(&opcode).unwrap().unwrap();
    for (trans_b, step, start) in [
        (false, 1, 0x2020),
        (false, 3, 0x2060),
        (true, 1, 0x2800),
        (true, 3, 0x3800),
    ] {
        let desc = describe(start, 8192, 1024, Swizzle::B128).encode();
        let modifiers = Modifiers {
            scale_d: false,
            trans_b,
            ..Modifiers::default()
        };
        let mut d = vec![vec![0; 32]; 128];
        w.execute(
            Numerics::Exact,
            &shared,
            OperandA::Regs(&a),
            desc,
            modifiers,
            &mut d,
        )
        .unwrap();
        for k in 0..16 {
            for n in 0..64 {
                let (row, column) = if trans_b {
                    (150 + 16 * step + k, 16 + n)
                } else {
                    (150 + n, 16 + 16 * step + k)
                };
                let (thread, register) = (k % 8 * 4 + n % 8 / 2, n / 8 * 4 + k / 8 * 2 + n % 2);
                let found = f32::from_bits(d[thread][register]);
                assert_eq!(
                    found,
                    value(row, column),
                    "trans {trans_b} step {step} ({k}, {n})"
                );
            }
        }
    }
}

/// `.tile::gather4`: each row where it is named, side by side in shared memory.
#[test]
fn four_rows_are_four_boxes() {
    let mut map = TensorMap::new(Dtype::Bf16, 0x1000, &[64, 10], &[], &[32, 1]).unwrap();
    let runs = map.four_rows(&[16, 3, 9, 10, 0], Direction::Load).unwrap();
    let row = |number: u32, row: u64| (64 * number, 64, Some(0x1000 + 128 * row + 32));
    let found: Vec<_> = runs
        .iter()
        .map(|run| (run.shared_offset, run.len, run.global))
        .collect();
    // Row 10 is outside.
    assert_eq!(found, [row(0, 3), row(1, 9), (128, 64, None), row(3, 0)]);
    map.tile[1] = 2;
    let error = map.four_rows(&[0; 5], Direction::Load).unwrap_err();
    assert!(error.contains("a box of 2 rows"), "{error}");
    let flat = TensorMap::new(Dtype::Bf16, 0x1000, &[64], &[], &[32]).unwrap();
    assert!(flat.four_rows(&[0; 5], Direction::Load).is_err());
}
