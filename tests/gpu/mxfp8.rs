//! Products in MXFP8 against the oracle.

use half::bf16;
use libtest_mimic::Trial;
use mok::gemm::{
    GroupRows, GroupedGemm, Matrix, Mxfp8Call, Mxfp8Matrix, OverflowWord, QuantizeCall, Quantizer,
    Sink,
};
use mok::oracle::{self, Mxfp8, Operand, Problem};
use mok::{Buffer, Device, Error, Groups, fill};
use mok_tests::Probes;

use crate::gemm::{Build, Engine};
use crate::{Outcome, expect_equal, trial};

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

/// Where an architecture needs one; all bits set, which are NaN.
fn workspace(device: &Device, call: &Mxfp8Call) -> Result<Buffer<u8>, Error> {
    device.buffer_filled((call.workspace_bytes(device.arch()?) as usize).max(1), 0xff)
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
    let room = workspace(device, &call)?;
    let call = call.with_workspace(Matrix::of(&room));
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
        let room = workspace(device, &call)?;
        let call = call.with_workspace(Matrix::of(&room));
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

/// Every e4m3 with every scale that bf16 has room for, times one: each is in D as it is, rounded to bf16.
fn every_value() -> Outcome {
    const SIDE: usize = 128;
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    // Two rows have all values of a scale, but for NaN. The last scale is the largest that takes 448 to a bf16.
    let rows = 2 * 247;
    let value = |row: usize, k: usize| match (128 * (row % 2) + k) as u8 {
        0x7f | 0xff => 0,
        bits => bits,
    };
    let mut of_a = Mxfp8::quantize(&vec![bf16::ZERO; rows * SIDE], rows, SIDE)?;
    let mut of_b = Mxfp8::quantize(&vec![bf16::ZERO; SIDE * SIDE], SIDE, SIDE)?;
    for (row, k) in (0..rows).flat_map(|row| (0..SIDE).map(move |k| (row, k))) {
        of_a.values[row * SIDE + k] = value(row, k);
        of_a.scales[scale_byte(SIDE, row, k)] = (row / 2) as u8;
    }
    for (row, k) in (0..SIDE).flat_map(|row| (0..SIDE).map(move |k| (row, k))) {
        // One, as a half times two.
        of_b.values[row * SIDE + k] = if row == k { 0x30 } else { 0 };
        of_b.scales[scale_byte(SIDE, row, k)] = 128;
    }
    let groups = Groups::new(&[rows as u32])?;
    let capacity = groups.capacity() as usize;
    let want = of_a.widened();
    of_a.values.resize(capacity * SIDE, 0x7f);
    let sizes = device.buffer_from(groups.sizes())?;
    let on_a = Held::new(device, &[of_a], SIDE, 0)?;
    let on_b = Held::new(device, &[of_b], SIDE, 0)?;
    let d = device.buffer_filled::<bf16>(capacity * SIDE, 0xff)?;
    let (at, to) = (groups.at(sizes.ptr()), Matrix::of(&d));
    let call = Mxfp8Call::forward(at, 128, 128, on_a.matrix(), on_b.matrix(), to);
    let room = workspace(device, &call)?;
    let call = call.with_workspace(Matrix::of(&room));
    // SAFETY: the buffers live until the synchronisation, and only this call uses them.
    unsafe { GroupedGemm::new(device)?.enqueue_mxfp8(&call, &stream)? };
    stream.synchronize()?;
    // Zeros of either sign: the sums' other terms are zeros of both.
    let bits = |value: f32| bf16::from_f32(value + 0.0).to_bits();
    let got: Vec<u16> = d.to_vec()?[..rows * SIDE]
        .iter()
        .map(|value| {
            if *value == bf16::ZERO {
                0
            } else {
                value.to_bits()
            }
        })
        .collect();
    let want: Vec<u16> = want
        .into_iter()
        .map(|value| {
            if bits(value) == 0x8000 {
                0
            } else {
                bits(value)
            }
        })
        .collect();
    expect_equal("values", &got, &want)
}

/// Products, of what ships for each architecture.
pub fn products(builds: &[Build], wanted: impl Fn(usize) -> bool) -> Vec<Trial> {
    let mut trials = Vec::new();
    let shipped = |build: &&Build| build.engine == Engine::Shipped;
    for Build { label, on, .. } in builds.iter().filter(shipped) {
        let mut add = |name: &str, run: Box<dyn FnOnce() -> Outcome + Send>| {
            let on = on.clone();
            trials.push(trial(format!("mxfp8::{label}::{name}"), move || match on {
                Some(config) => mok_tests::emulated(config, run),
                None => run(),
            }));
        };
        for (index, case) in cases().into_iter().enumerate() {
            if wanted(case.work()) {
                add(&format!("{index:02}"), Box::new(move || check(&case)));
            }
        }
        add("end_to_end", Box::new(end_to_end));
        add("every_value", Box::new(every_value));
        add("small", Box::new(check_small));
    }
    trials
}
