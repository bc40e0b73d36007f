//! `tcgen05.cp`: where each row goes, and what it becomes.

use super::tcgen05::descriptor;
use crate::tensor::tcgen05::copy::Copy;
use crate::tensor::tcgen05::memory::Address;

/// (lane, column) and the row and word of the source, of every word written.
fn moved(parts: &[&str]) -> Vec<((u32, u32), (u32, u32))> {
    let copy = Copy::decode(parts).unwrap();
    let layout = copy.layout(descriptor(0x1000, 256, 128, 0)).unwrap();
    let mut all = Vec::new();
    for (row, chunk, address) in copy.chunks(layout) {
        // Rows of 16 bytes, 8 to a core matrix; the second 16 bytes the leading offset away.
        assert_eq!(address, 0x1000 + row % 8 * 16 + row / 8 * 128 + chunk * 256);
        for word in 0..4 {
            for lane in copy.lanes(row) {
                all.push(((lane, 4 * chunk + word), (row, 4 * chunk + word)));
            }
        }
    }
    all.sort_unstable();
    all
}

#[test]
fn every_row_goes_to_its_lanes() {
    // By the lane, the row that it gets.
    type Case = (&'static [&'static str], u32, fn(u32) -> u32);
    let cases: [Case; 5] = [
        (&["128x256b"], 8, |lane| lane),
        (&["128x128b"], 4, |lane| lane),
        (&["64x128b", "warpx2::02_13"], 4, |lane| lane % 64),
        (&["64x128b", "warpx2::01_23"], 4, |lane| {
            lane / 64 * 32 + lane % 32
        }),
        (&["32x128b", "warpx4"], 4, |lane| lane % 32),
    ];
    for (parts, columns, row_of) in cases {
        let want: Vec<_> = (0..128)
            .flat_map(|lane| {
                (0..columns).map(move |column| ((lane, column), (row_of(lane), column)))
            })
            .collect();
        assert_eq!(moved(parts), want, "{parts:?}");
        let mut turned = parts.to_vec();
        turned.reverse();
        let copy = Copy::decode(parts).unwrap();
        assert_eq!(Copy::decode(&turned), Ok(copy));
        let area = |lane: u32, column: u32| copy.area(Address { lane, column });
        assert_eq!(area(0, 512 - columns).unwrap().columns, columns);
        assert!(area(0, 513 - columns).unwrap_err().contains("columns"));
        assert!(area(32, 0).unwrap_err().contains("lane 32"));
    }
}

#[test]
fn small_elements_are_widened() {
    let widened = |format: &str, chunk: [u8; 16]| {
        let copy = Copy::decode(&["128x128b", "b8x16", format]).unwrap();
        let words = copy.words(&chunk);
        words.map(u32::to_le_bytes).concat()
    };
    let chunk: [u8; 16] = std::array::from_fn(|at| (37 * at + 11) as u8);
    let bit = |at: usize| chunk[at / 8] >> (at % 8) & 1;
    for (format, bits, shift) in [("b4x16_p64", 4, 2), ("b6x16_p32", 6, 0)] {
        let want: Vec<u8> = (0..16)
            .map(|element| {
                let code = (0..bits).map(|at| bit(bits * element + at) << at);
                code.sum::<u8>() << shift
            })
            .collect();
        assert_eq!(widened(format, chunk), want);
    }
}
