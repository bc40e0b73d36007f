//! The wrappers of tensor memory, one by one, on an emulated sm_100a: what each leaves in tensor memory, against what
//! the ISA says, worked out here from bytes. No GPU that has them is at hand.

use half::bf16;
use libtest_mimic::Trial;
use mok::{Arch, Device, EmulatorConfig, Module, fill};
use mok_kernel::launch::LaunchSpec;
use mok_probes::spec::{self, ProbeArgs};

use crate::{Outcome, expect_equal, trial};

/// In the probes' mode: a fence is left out.
const NO_FENCE: u32 = 1 << 16;

/// Runs a probe on a pair of blocks, each with its own input; returns its output.
fn run(
    spec: &'static LaunchSpec,
    inputs: [&[u8]; 2],
    (mode, extra): (u32, u32),
    words: usize,
) -> Result<Vec<u32>, mok::Error> {
    let device = Device::emulated(EmulatorConfig {
        arch: Arch::Sm100a,
        ..EmulatorConfig::default()
    })?;
    let stream = device.stream()?;
    let kernel = Module::from_ptx(&device, mok_tests::TCGEN05)?.kernel(spec)?;
    let input = device.buffer_from(&inputs.concat())?;
    let output = device.buffer_filled::<u32>(words, 0xff)?;
    let args = ProbeArgs {
        input: input.ptr().as_raw(),
        output: output.ptr().as_raw(),
        bytes: inputs[0].len() as u32,
        mode,
        extra,
        ..ProbeArgs::default()
    };
    let launch = kernel.launch().grid([2, 1, 1]).shared(spec.max_shared);
    // SAFETY: the probes read their input and write their output.
    unsafe { launch.arg(&args).enqueue(&stream)? };
    stream.synchronize()?;
    output.to_vec()
}

/// Words of a dump of so many columns, by `[block][lane][column]`.
///
/// 16 lanes by 256 bits ("tcgen05.ld", `.16x256b`): thread `l` has columns `2 (l % 4)` and the next of each eight, of
/// lane `l / 4`, then of the lane eight below.
fn dumped(output: &[u32], columns: usize) -> Vec<u32> {
    let steps = columns / 32;
    let mut words = vec![0; 2 * 128 * columns];
    for (at, &word) in output.iter().enumerate() {
        let (register, thread) = (at % 16, at / 16 % 128);
        let (step, block) = (at / 2048 % (2 * steps), at / 2048 / (2 * steps));
        let below = register / 2 % 2 * 8;
        let lane = thread / 32 * 32 + step % 2 * 16 + thread % 32 / 4 + below;
        let column = step / 2 * 32 + register / 4 * 8 + thread % 4 * 2 + register % 2;
        words[(block * 128 + lane) * columns + column] = word;
    }
    words
}

/// Words that a dump of so many columns takes.
const fn dump(columns: usize) -> usize {
    2 * columns / 32 * 2 * 128 * 16
}

/// 32 rows of 16 bytes go to all four quarters of the lanes, four columns a copy.
fn copies(first: u32) -> Outcome {
    let inputs =
        [1, 2].map(|seed| -> Vec<u8> { (0..4096).map(|at| fill::hash(seed, at) as u8).collect() });
    let given = [&inputs[0][..], &inputs[1]];
    let output = run(&spec::TENSOR_COPY, given, (0, first), dump(32))?;
    let mut want = Vec::new();
    for input in &inputs {
        for lane in 0..128 {
            for column in 0..32 {
                let at = column / 4 * 512 + lane % 32 * 16 + column % 4 * 4;
                want.push(u32::from_le_bytes(std::array::from_fn(|b| input[at + b])));
            }
        }
    }
    expect_equal("tensor memory", &dumped(&output, 32), &want)
}

/// Where element (mn, k) of a tile of bf16 with rows of 128 bytes lies: the 16-byte chunk's index is XORed with that of
/// its row of 128 bytes, modulo 8.
fn swizzled(line: usize, byte: usize) -> usize {
    line * 128 + ((byte / 16) ^ (line % 8)) * 16 + byte % 16
}

/// A block's rows of an operand, 64 deep, K-major or in panels of 64 rows.
fn operand(rows: &[Vec<f32>], transposed: bool) -> Vec<u8> {
    let mut bytes = vec![0; 16384];
    for (row, values) in rows.iter().enumerate() {
        for (k, &value) in values.iter().enumerate() {
            let at = match transposed {
                false => swizzled(row, 2 * k),
                true => row / 64 * 8192 + swizzled(k, row % 64 * 2),
            };
            bytes[at..at + 2].copy_from_slice(&bf16::from_f32(value).to_le_bytes());
        }
    }
    bytes
}

fn integers(seed: u64, rows: usize, k: usize, most: u8) -> Vec<Vec<f32>> {
    let all: Vec<f32> = fill::integers(seed, rows * k, most);
    all.chunks(k).map(<[f32]>::to_vec).collect()
}

/// Sums of 256 rows of A and `columns` columns of B, as the pair's blocks have them.
fn sums(a: &[Vec<f32>], b: &[Vec<f32>], columns: usize) -> Vec<u32> {
    let dot = |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let row = |a: &Vec<f32>| b[..columns].iter().map(|b| dot(a, b).to_bits()).collect();
    a.iter().flat_map(|a| -> Vec<u32> { row(a) }).collect()
}

/// What both blocks have in shared memory for a product of 256 by N.
fn operands(a: &[Vec<f32>], b: &[Vec<f32>], mode: u32) -> [Vec<u8>; 2] {
    [0, 1].map(|block| {
        let half = b.len() / 2;
        let mut bytes = operand(&a[128 * block..][..128], mode & 1 != 0);
        bytes.extend(operand(&b[half * block..][..half], mode & 2 != 0));
        bytes
    })
}

/// Every major of A and B; with bit 2, two products in one accumulator.
fn products(n: usize, mode: u32) -> Outcome {
    let (a, b) = (integers(n as u64, 256, 64, 7), integers(1000, n, 64, 7));
    let [even, odd] = operands(&a, &b, mode);
    let columns = n / 32 * 32;
    let given = (mode, n as u32);
    let output = run(&spec::MMA_PAIR, [&even, &odd], given, dump(columns))?;
    let twice: Vec<Vec<f32>> = match mode & 4 {
        0 => b,
        _ => b
            .iter()
            .map(|b| b.iter().map(|b| 2.0 * b).collect())
            .collect(),
    };
    expect_equal(
        "sums",
        &dumped(&output, columns),
        &sums(&a, &twice, columns),
    )
}

/// Small e4m3 and their bits.
const SMALL: [(f32, u8); 7] = [
    (0.0, 0x00),
    (0.5, 0x30),
    (-0.5, 0xb0),
    (1.0, 0x38),
    (-1.0, 0xb8),
    (1.125, 0x39),
    (-2.0, 0xc0),
];

/// In MXFP8, B's scales read from a column of tensor memory on.
fn scaled(n: usize, first: usize) -> Outcome {
    let pick = |seed, at: usize| SMALL[(fill::hash(seed, at as u64) % 7) as usize];
    // Of each row and each 32 of its 128 elements.
    let scale = |seed, at: usize| 125 + (fill::hash(seed, at as u64) % 5) as u8;
    let rows = |values, scales, count: usize| -> Vec<Vec<f32>> {
        let element = |row: usize, k: usize| {
            let factor = 2f32.powi(i32::from(scale(scales, 4 * row + k / 32)) - 127);
            pick(values, 128 * row + k).0 * factor
        };
        let row = |row| (0..128).map(|k| element(row, k)).collect();
        (0..count).map(row).collect()
    };
    let (a, b) = (rows(1, 2, 256), rows(3, 4, n));
    let input = |block: usize| {
        let mut bytes = vec![0; 34 * 1024];
        for row in 0..128 {
            for k in 0..128 {
                bytes[swizzled(row, k)] = pick(1, 128 * (128 * block + row) + k).1;
                if row < n / 2 {
                    let of_b = block * n / 2 + row;
                    bytes[16384 + swizzled(row, k)] = pick(3, 128 * of_b + k).1;
                }
            }
        }
        let place =
            |row: usize, part: usize| row / 128 * 512 + row % 32 * 16 + row % 128 / 32 * 4 + part;
        for part in 0..4 {
            for row in 0..128 {
                bytes[32768 + place(row, part)] = scale(2, 4 * (128 * block + row) + part);
            }
            // Both blocks have those of all of B's columns.
            for row in 0..n {
                let at = place(row + 32 * first, part);
                bytes[32768 + 512 + at] = scale(4, 4 * row + part);
            }
        }
        bytes
    };
    let (even, odd) = (input(0), input(1));
    let columns = n / 32 * 32;
    let given = (first as u32, n as u32);
    let output = run(&spec::MMA_SCALED, [&even, &odd], given, dump(columns))?;
    expect_equal("sums", &dumped(&output, columns), &sums(&a, &b, columns))
}

/// A commit arrives in the blocks that it names, and in no other.
fn commits(mask: u32) -> Outcome {
    let input = [0; 512];
    let output = run(&spec::COMMIT, [&input, &input], (0, mask), 4)?;
    expect_equal(
        "arrivals, the first and all",
        &output,
        &[mask & 1, 1, mask >> 1, 1],
    )
}

/// Tensor memory handed from its readers to the next product: the sums that were there are read.
fn handback(mode: u32) -> Outcome {
    let (a, b) = (integers(5, 256, 64, 7), integers(6, 32, 64, 7));
    // One step of 16 K.
    let short = |rows: &[Vec<f32>]| {
        rows.iter()
            .map(|row| row[..16].to_vec())
            .collect::<Vec<_>>()
    };
    let [even, odd] = operands(&a, &b, 0);
    let output = run(&spec::TENSOR_HANDBACK, [&even, &odd], (mode, 0), dump(32))?;
    expect_equal(
        "sums",
        &dumped(&output, 32),
        &sums(&short(&a), &short(&b), 32),
    )
}

/// Without a fence there is a race, and the message names it.
fn missed(without: fn() -> Outcome, fence: &str) -> Outcome {
    match without() {
        Err(error) if error.to_string().contains(fence) => Ok(()),
        Err(error) => Err(format!("another finding: {error}").into()),
        Ok(()) => Err("nobody misses the fence".into()),
    }
}

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for first in [0, 1, 28] {
        let name = format!("tcgen05::copies_{first}");
        trials.push(trial(name, move || copies(first)));
    }
    for (n, modes) in [
        (32, 0..1),
        (48, 0..1),
        (160, 4..5),
        (128, 0..8),
        (256, 0..8),
    ] {
        for mode in modes {
            let name = format!("tcgen05::mma_pair_{n}_{mode}");
            trials.push(trial(name, move || products(n, mode)));
        }
    }
    for (n, first) in [
        (32, 0),
        (48, 1),
        (128, 4),
        (192, 0),
        (192, 2),
        (208, 1),
        (256, 0),
    ] {
        let name = format!("tcgen05::mma_scaled_{n}_{first}");
        trials.push(trial(name, move || scaled(n, first)));
    }
    for mask in 1..4 {
        let name = format!("tcgen05::commit_{mask}");
        trials.push(trial(name, move || commits(mask)));
    }
    trials.push(trial("tcgen05::handback", || handback(0)));
    trials.push(trial("tcgen05::no_fence_after", || {
        missed(|| products(32, NO_FENCE), "after_thread_sync")
    }));
    trials.push(trial("tcgen05::no_fence_before", || {
        missed(|| handback(NO_FENCE), "before_thread_sync")
    }));
    trials
}
