//! MXFP8: quantization bit by bit, and the products of it, against the oracle.

use half::bf16;
use libtest_mimic::Trial;
use mok::gemm::{
    GroupRows, GroupedGemm, Matrix, Mxfp8Call, Mxfp8Matrix, OverflowWord, QuantizeCall, Quantizer,
    Sink,
};
use mok::oracle::{self, Mxfp8, Operand, Problem};
use mok::{Arch, Buffer, Device, EmulatorConfig, Error, Groups, fill};
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

/// A product: whose operands, and where they stand.
#[derive(Clone, Debug)]
pub struct Case {
    pub sizes: Vec<u32>,
    pub n: usize,
    pub k: usize,
    /// Bytes in 16s after rows, bands and groups.
    pub gaps: usize,
    /// Bands of 128 rows that the capacity has beyond what is needed.
    pub spare: i64,
    /// Scales that are NaN: of a row of A or of B, by numbers of which remainders are taken; and the element.
    pub odd: Vec<(bool, u64, u64)>,
}

impl Case {
    pub fn new(sizes: &[u32], n: usize, k: usize) -> Case {
        Case {
            sizes: sizes.to_vec(),
            n,
            k,
            gaps: 0,
            spare: 0,
            odd: Vec::new(),
        }
    }

    fn work(&self) -> usize {
        let rows: usize = self.sizes.iter().map(|&size| size as usize).sum();
        (rows + 32 * self.sizes.len()) * self.n * self.k
    }
}

/// One row, empty groups, every remainder of tiles; n at its least and at odd multiples of it, K = 128, as many
/// stages as the ring has and more; tiles that start in the middle of a tile of scales.
fn cases() -> Vec<Case> {
    let many: Vec<u32> = (0..40).map(|group| group % 3).collect();
    vec![
        Case::new(&[1], 128, 128),
        Case::new(&[0], 128, 128),
        Case::new(&[128], 256, 128),
        Case::new(&[129, 0, 127], 128, 256),
        Case::new(&[0, 0, 5], 384, 640),
        Case::new(&[64, 65, 1, 0, 63], 128, 768),
        Case::new(&[193, 0, 192, 191], 128, 128),
        Case::new(&[385, 17], 128, 128),
        Case::new(&[300, 0, 77, 1, 0, 0, 512], 128, 128),
        Case::new(&[1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 31, 32, 33], 640, 128),
        Case::new(&many, 128, 128),
        Case::new(&[40, 9], 256, 1664),
        Case {
            gaps: 3,
            ..Case::new(&[150, 0, 333, 1], 256, 256)
        },
        Case {
            odd: vec![
                (true, 200, 130),
                (true, 3, 0),
                (false, 40, 255),
                (false, 300, 64),
            ],
            ..Case::new(&[150, 0, 70, 1], 256, 256)
        },
        Case {
            spare: 2,
            ..Case::new(&[200, 1], 128, 384)
        },
        Case {
            spare: -1,
            ..Case::new(&[200, 1], 128, 384)
        },
        Case {
            spare: -2,
            ..Case::new(&[0, 400, 100], 128, 128)
        },
    ]
}

/// A shape with empty and ragged groups, several tiles, more stages than the ring has, and a NaN.
#[allow(
    dead_code,
    reason = "only the emulator multiplies MXFP8 where these tests run"
)]
pub fn check_small() -> Outcome {
    check(&Case {
        gaps: 1,
        odd: vec![(true, 170, 300)],
        ..Case::new(&[150, 0, 233, 1], 384, 768)
    })
}

/// An operand as it stands on the device: with gaps, and garbage wherever it isn't.
struct Held {
    values: Buffer<u8>,
    scales: Buffer<u8>,
    strides: [u64; 4],
}

impl Held {
    fn new(device: &Device, groups: &[Mxfp8], k: usize, gaps: usize) -> Result<Held, Error> {
        let (row, band) = (k + 16 * gaps, k / 128 * 512 + 16 * gaps);
        let rows = groups.first().map_or(0, |group| group.values.len() / k);
        let (group, scale_group) = (
            rows * row + 16 * gaps,
            rows.div_ceil(128) * band + 16 * gaps,
        );
        // NaN in either.
        let mut values = vec![0x7f; (groups.len() * group).max(1)];
        let mut scales = vec![0xff; (groups.len() * scale_group).max(1)];
        for (number, held) in groups.iter().enumerate() {
            for (at, line) in held.values.chunks(k).enumerate() {
                values[number * group + at * row..][..k].copy_from_slice(line);
            }
            for (at, line) in held.scales.chunks(k / 128 * 512).enumerate() {
                let start = number * scale_group + at * band;
                scales[start..][..line.len()].copy_from_slice(line);
            }
        }
        Ok(Held {
            values: device.buffer_from(&values)?,
            scales: device.buffer_from(&scales)?,
            strides: [row, group, band, scale_group].map(|stride| stride as u64),
        })
    }

    fn matrix(&self) -> Mxfp8Matrix {
        let [row, group, band, scale_group] = self.strides;
        let place = |buffer, row, group| {
            Matrix::of(buffer)
                .with_row_stride(row)
                .with_group_stride(group)
        };
        Mxfp8Matrix::new(
            place(&self.values, row, group),
            place(&self.scales, band, scale_group),
        )
    }
}

/// The byte of a scale in a packed matrix.
fn scale_byte(k: usize, row: usize, at: usize) -> usize {
    let tile = row / 128 * (k / 128) + at / 128;
    tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + at % 128 / 32
}

/// One product and everything around it.
pub fn check(case: &Case) -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let groups = Groups::new(&case.sizes)?;
    let (count, n, k) = (groups.len(), case.n, case.k);
    let capacity = (i64::from(groups.capacity()) + 128 * case.spare).max(0) as usize;
    // All rows that groups ask for, of which some may be past the capacity.
    let all = capacity.max(groups.capacity() as usize);

    let a: Vec<bf16> = fill::normal(1, all * k, 1.0);
    let b: Vec<bf16> = fill::normal(2, count * n * k, 0.1);
    let mut of_a = Mxfp8::quantize(&a[..capacity * k], capacity, k)?;
    let of_all = Mxfp8::quantize(&a, all, k)?;
    let mut of_b = b
        .chunks(n * k)
        .map(|b| Mxfp8::quantize(b, n, k))
        .collect::<Result<Vec<_>, _>>()?;
    for row in (0..capacity).filter(|&row| groups.group_of(row).is_none()) {
        // Any bits at all in rows that are no group's.
        for at in 0..k {
            of_a.values[row * k + at] = fill::hash(9, (row * k + at) as u64) as u8;
            of_a.scales[scale_byte(k, row, at)] = 0xff;
        }
    }
    let (mut odd_rows, mut odd_columns) = (vec![false; all], vec![false; count * n]);
    let rows: Vec<usize> = (0..capacity)
        .filter(|&row| groups.group_of(row).is_some())
        .collect();
    for &(in_a, number, at) in &case.odd {
        let at = at as usize % k;
        if !in_a {
            let line = number as usize % (count * n);
            of_b[line / n].scales[scale_byte(k, line % n, at)] = 0xff;
            odd_columns[line] = true;
        } else if let Some(&row) = rows.get(number as usize % rows.len().max(1)) {
            of_a.scales[scale_byte(k, row, at)] = 0xff;
            odd_rows[row] = true;
        }
    }

    let sizes = device.buffer_from(groups.sizes())?;
    let on_a = Held::new(device, std::slice::from_ref(&of_a), k, case.gaps)?;
    let on_b = Held::new(device, &of_b, k, case.gaps)?;
    let wide = n + 8 * case.gaps;
    let on_d = device.buffer_filled::<bf16>((capacity * wide).max(1), 0xff)?;
    let word = OverflowWord::new(device)?;
    let at = GroupRows {
        capacity: capacity as u32,
        ..groups.at(sizes.ptr())
    };
    let at = at.with_overflow(word.ptr());
    let to = Matrix::of(&on_d).with_row_stride(wide as u64);
    let call = Mxfp8Call::forward(at, n as u32, k as u32, on_a.matrix(), on_b.matrix(), to);
    let gemm = GroupedGemm::new(device)?;
    // SAFETY: the buffers live until the synchronisation, and only this call uses them.
    unsafe { gemm.enqueue_mxfp8(&call, &stream)? };
    stream.synchronize()?;
    let needed = (0..count)
        .filter(|&group| case.sizes[group] > 0)
        .map(|group| groups.rows_of(group).end)
        .filter(|&end| end > capacity)
        .max();
    expect_equal(
        "the rows needed",
        &[word.needed()?],
        &[needed.map(|rows| rows as u64)],
    )?;

    // Without what isn't a number, to be compared where it doesn't reach.
    let widened: Vec<f32> = b
        .chunks(n * k)
        .map(|b| Mxfp8::quantize(b, n, k).map(|b| b.widened()))
        .collect::<Result<Vec<_>, _>>()?
        .concat();
    let of_all = of_all.widened();
    let (wide_a, wide_b) = (Operand::wide(&of_all), Operand::wide(&widened));
    let problem = Problem::forward(&groups, n, k, wide_a, wide_b)?;
    let sums = problem.sums(&rows)?;
    let mut d = on_d.to_vec()?;
    for (at, value) in d.iter_mut().enumerate() {
        let (row, column) = (at / wide, at % wide);
        let group = groups.group_of(row).filter(|_| column < n);
        let Some(group) = group else {
            if value.to_bits() != 0xffff && capacity > 0 {
                return Err(format!("D[{row}, {column}] is no one's and was written").into());
            }
            continue;
        };
        if odd_rows[row] || odd_columns[group * n + column] {
            if !value.is_nan() {
                return Err(format!("D[{row}, {column}] is {value} and not NaN").into());
            }
            // What it would be, so that the rest can be compared.
            let position = rows.binary_search(&row).map_err(|_| "no row")?;
            *value = bf16::from_f64(sums.value(position, column));
        }
    }
    let rounded = sums.rounded(Sink::Bf16, None)?;
    let compared = rounded.compare_at(&d, |row| row * wide)?;
    if !compared.passes(oracle::ROUNDED) {
        return Err(format!("against what was quantized: {compared:?}").into());
    }
    let problem = Problem::forward(&groups, n, k, Operand::new(&a), Operand::new(&b))?;
    let exact = problem.sums(&rows)?.exact(None)?;
    let compared = exact.compare_at(&d, |row| row * wide)?;
    if !compared.passes(oracle::EXACT_MXFP8) {
        return Err(format!("against what was to be quantized: {compared:?}").into());
    }
    Ok(())
}

/// From bf16 to D on the device; the same bits for every grid.
fn end_to_end() -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let groups = Groups::new(&[70, 0, 260])?;
    let (rows, count, n, k) = (groups.capacity(), groups.len() as u32, 256, 384);
    let a: Vec<bf16> = fill::normal(1, (rows * k) as usize, 3.0);
    let b: Vec<bf16> = fill::normal(2, (count * n * k) as usize, 0.02);
    let (on_a, on_b) = (device.buffer_from(&a)?, device.buffer_from(&b)?);
    let room = |rows: u32| -> Result<[Buffer<u8>; 2], Error> {
        let scales = Mxfp8Matrix::scale_bytes(rows.into(), k.into()) as usize;
        Ok([
            device.buffer_uninit((rows * k) as usize)?,
            device.buffer_uninit(scales)?,
        ])
    };
    let (of_a, of_b) = (room(rows)?, room(count * n)?);
    let matrix = |of: &[Buffer<u8>; 2]| Mxfp8Matrix::new(Matrix::of(&of[0]), Matrix::of(&of[1]));
    let sizes = device.buffer_from(groups.sizes())?;
    let quantizer = Quantizer::new(device)?;
    let from_a = QuantizeCall::new(1, rows, k, Matrix::of(&on_a)).along_columns(matrix(&of_a));
    let from_b = QuantizeCall::new(count, n, k, Matrix::of(&on_b)).along_columns(matrix(&of_b));
    let mut results: Vec<Vec<bf16>> = Vec::new();
    for sms in [2, 6, device.sm_count()] {
        let gemm = GroupedGemm::new(device)?.with_sms(sms)?;
        let d = device.buffer_filled::<bf16>((rows * n) as usize, 0xff)?;
        let (at, to) = (groups.at(sizes.ptr()), Matrix::of(&d));
        let call = Mxfp8Call::forward(at, n, k, matrix(&of_a), matrix(&of_b), to);
        // SAFETY: the buffers live until the synchronisation, and only these calls use them.
        unsafe {
            quantizer.enqueue(&from_a, &stream)?;
            quantizer.enqueue(&from_b, &stream)?;
            gemm.enqueue_mxfp8(&call, &stream)?;
        }
        stream.synchronize()?;
        results.push(d.to_vec()?);
    }
    let problem = Problem::forward(
        &groups,
        n as usize,
        k as usize,
        Operand::new(&a),
        Operand::new(&b),
    )?;
    let exact = problem.sums(&problem.all_rows())?.exact(None)?;
    let compared = exact.compare(&results[0])?;
    if !compared.passes(oracle::EXACT_MXFP8) {
        return Err(format!("{compared:?}").into());
    }
    let bits = |d: &[bf16]| -> Vec<u16> { d.iter().map(|value| value.to_bits()).collect() };
    for other in &results[1..] {
        expect_equal("D on another grid", &bits(other), &bits(&results[0]))?;
    }
    Ok(())
}

/// What an architecture is that doesn't multiply MXFP8 is asserted in the library's own tests; here, what runs
/// everywhere.
pub fn trials() -> Vec<Trial> {
    let on_this = |case: Quantization| move || quantize(&Probes::load()?.device, &case);
    let mut trials = vec![trial("mxfp8::quantize::every_kind", on_this(every_kind()))];
    for part in 0..4u16 {
        let case = every_largest(part << 14);
        let name = format!("mxfp8::quantize::every_largest_{part}");
        trials.push(trial(name, on_this(case)));
    }
    trials
}

/// Products, on emulated GPUs that have them.
#[allow(
    dead_code,
    reason = "only the emulator multiplies MXFP8 where these tests run"
)]
pub fn products(wanted: impl Fn(usize) -> bool) -> Vec<Trial> {
    let mut trials = Vec::new();
    for arch in Arch::ALL.into_iter().filter(|arch| arch.pairs()) {
        let config = EmulatorConfig {
            arch,
            ..EmulatorConfig::default()
        };
        let name = arch.name();
        for (index, case) in cases().into_iter().enumerate() {
            if !wanted(case.work()) {
                continue;
            }
            let config = config.clone();
            trials.push(trial(format!("mxfp8::{name}::{index:02}"), move || {
                mok_tests::emulated(config, || check(&case))
            }));
        }
        let on = config.clone();
        trials.push(trial(format!("mxfp8::{name}::end_to_end"), move || {
            mok_tests::emulated(on, end_to_end)
        }));
        trials.push(trial(format!("mxfp8::{name}::small"), move || {
            mok_tests::emulated(config, check_small)
        }));
    }
    trials
}
