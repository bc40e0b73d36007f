//! bf16 to MXFP8, bit by bit, against the oracle.

use half::bf16;
use libtest_mimic::Trial;
use mok::gemm::{Matrix, Mxfp8Matrix, QuantizeCall, Quantizer};
use mok::oracle::Mxfp8;
use mok::{Buffer, Device, Error, fill};
use mok_tests::Probes;

use crate::{Outcome, expect_equal, trial};

/// What a byte is that nobody writes.
const MARK: u8 = 0xa5;

/// A bf16 matrix, or several, and how its results lie.
#[derive(Clone, Debug)]
pub struct Quantization {
    pub groups: usize,
    pub rows: usize,
    pub columns: usize,
    /// Units of 16 bytes after each row and group, of each matrix.
    pub gaps: usize,
    pub along_columns: bool,
    pub along_rows: bool,
    /// Bits of the elements.
    pub bits: Vec<u16>,
}

/// Bytes of a result with gaps: where rows of values and bands of scales start.
struct Result8 {
    row: usize,
    group: usize,
    band: usize,
    scale_group: usize,
    values: Buffer<u8>,
    scales: Buffer<u8>,
}

impl Result8 {
    fn new(device: &Device, case: &Quantization, rows: usize, k: usize) -> Result<Result8, Error> {
        let gap = 16 * case.gaps;
        let (row, bands) = (k + gap, rows.div_ceil(128));
        let (band, group) = (k / 128 * 512 + gap, rows * row + gap);
        let scale_group = bands * band + gap;
        Ok(Result8 {
            row,
            group,
            band,
            scale_group,
            values: device.buffer_filled((case.groups * group).max(1), MARK)?,
            scales: device.buffer_filled((case.groups * scale_group).max(1), MARK)?,
        })
    }

    fn matrix(&self) -> Mxfp8Matrix {
        let place = |buffer, row: usize, group: usize| {
            Matrix::of(buffer)
                .with_row_stride(row as u64)
                .with_group_stride(group as u64)
        };
        Mxfp8Matrix::new(
            place(&self.values, self.row, self.group),
            place(&self.scales, self.band, self.scale_group),
        )
    }

    /// All bytes, against what each group should be.
    fn check(&self, what: &str, wanted: bool, groups: &[Mxfp8], k: usize) -> Outcome {
        let mut values = vec![MARK; self.values.len()];
        let mut scales = vec![MARK; self.scales.len()];
        for (group, want) in groups.iter().enumerate().filter(|_| wanted) {
            for (row, line) in want.values.chunks(k).enumerate() {
                values[group * self.group + row * self.row..][..k].copy_from_slice(line);
            }
            for (band, line) in want.scales.chunks(k / 128 * 512).enumerate() {
                let at = group * self.scale_group + band * self.band;
                scales[at..][..line.len()].copy_from_slice(line);
            }
        }
        expect_equal(&format!("scales {what}"), &self.scales.to_vec()?, &scales)?;
        expect_equal(&format!("values {what}"), &self.values.to_vec()?, &values)
    }
}

/// Every byte of what is asked for, and no other.
pub fn quantize(device: &Device, case: &Quantization) -> Outcome {
    let Quantization {
        groups,
        rows,
        columns,
        ..
    } = *case;
    let row = columns + 8 * case.gaps;
    let group = rows * row + 8 * case.gaps;
    let mut values = vec![bf16::NAN; (groups * group).max(1)];
    let (mut along_columns, mut along_rows) = (Vec::new(), Vec::new());
    for (number, bits) in case.bits.chunks((rows * columns).max(1)).enumerate() {
        let packed: Vec<bf16> = bits.iter().map(|&bits| bf16::from_bits(bits)).collect();
        for (at, line) in packed.chunks(columns).enumerate() {
            values[number * group + at * row..][..columns].copy_from_slice(line);
        }
        along_columns.push(Mxfp8::quantize(&packed, rows, columns)?);
        if case.along_rows {
            let turned = Mxfp8::transposed(&packed, columns);
            along_rows.push(Mxfp8::quantize(&turned, columns, rows)?);
        }
    }
    let from = device.buffer_from(&values)?;
    let from = Matrix::of(&from)
        .with_row_stride(row as u64)
        .with_group_stride(group as u64);
    let to_columns = Result8::new(device, case, rows, columns)?;
    let to_rows = Result8::new(device, case, columns, rows)?;
    let mut call = QuantizeCall::new(groups as u32, rows as u32, columns as u32, from);
    if case.along_columns {
        call = call.along_columns(to_columns.matrix());
    }
    if case.along_rows {
        call = call.along_rows(to_rows.matrix());
    }
    let (quantizer, stream) = (Quantizer::new(device)?, device.stream()?);
    // SAFETY: the buffers live until the synchronisation, and only this call uses them.
    unsafe { quantizer.enqueue(&call, &stream)? };
    stream.synchronize()?;
    to_columns.check("along columns", case.along_columns, &along_columns, columns)?;
    to_rows.check("along rows", case.along_rows, &along_rows, rows)
}

/// Bits of an element of a block that is to be of some kind.
///
/// Kinds are spread so that blocks of 32 along columns, and those along rows, are of every kind.
pub fn bits_of(kind: u8, seed: u64, at: u64) -> u16 {
    let random = fill::hash(seed, at);
    let sign = (random as u16) << 15;
    let small = (random >> 16) as u16;
    let magnitude = match kind % 10 {
        0 => 0,
        // Subnormal, or the first numbers that aren't.
        1 => small % 0x180,
        // 448 * 2^k and its neighbours: mantissas around 1.75.
        2 => (small % 254 + 1) << 7 | (95 + (small >> 8) % 4),
        // Powers of two.
        3 => (small % 255) << 7,
        // Near each other, so that many round in the middle of two: five bits of mantissa.
        4 => (120 + small % 8) << 7 | (small >> 8 & 0x7f & !3),
        // The largest.
        5 => 0x7f7f - small % 3,
        // A NaN, an infinity, once in a while.
        6 if small.is_multiple_of(29) => 0x7f80 + (small >> 8) % 0x80,
        6 => 0x3f80 + small % 0x80,
        // Anything finite.
        7 => small % 0x7f80,
        // One that isn't zero.
        8 if small.is_multiple_of(32) => 0x4000 + (small >> 5) % 0x100,
        8 => 0,
        _ => 0x3e00 + small % 0x200,
    };
    sign | magnitude
}

/// A matrix whose blocks, both ways, are of every kind.
fn every_kind() -> Quantization {
    let (groups, rows, columns) = (2, 256, 384);
    let bits = (0..groups * rows * columns).map(|at| {
        let (row, column) = (at / columns, at % columns);
        // By column block in half of the row bands, by row block in the others.
        let kind = match row / 128 % 2 {
            0 => (column / 32 + row) as u8,
            _ => (row / 32 + column) as u8,
        };
        bits_of(kind, 1, at as u64)
    });
    Quantization {
        groups,
        rows,
        columns,
        gaps: 1,
        along_columns: true,
        along_rows: true,
        bits: bits.collect(),
    }
}

/// Every bf16 there is as the largest of a block, with what rounds to the nearest in the others.
fn every_largest(first: u16) -> Quantization {
    let (rows, columns) = (128, 4096);
    let bits = (0..rows * columns).map(|at| {
        let (block, inside) = (at / 32, at % 32);
        let largest = first.wrapping_add(block as u16);
        match inside {
            0 => largest,
            // Its neighbours down to a sixteenth of it, and zeros of both signs.
            1..30 => {
                let lower = (largest & 0x7fff).saturating_sub((inside * 19) as u16);
                lower | (inside as u16 % 2) << 15
            }
            _ => (inside as u16) << 15,
        }
    });
    Quantization {
        groups: 1,
        rows,
        columns,
        gaps: 0,
        along_columns: true,
        along_rows: false,
        bits: bits.collect(),
    }
}

/// Where the other tests run.
pub fn trials() -> Vec<Trial> {
    let on_this = |case: Quantization| move || quantize(&Probes::load()?.device, &case);
    let mut trials = vec![trial("quantize::every_kind", on_this(every_kind()))];
    for part in 0..4u16 {
        let case = every_largest(part << 14);
        let name = format!("quantize::every_largest_{part}");
        trials.push(trial(name, on_this(case)));
    }
    trials
}
