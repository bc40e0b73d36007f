//! Fragments, shuffles, registers, atomics.

use half::bf16;
use libtest_mimic::Trial;
use mok_probes::spec::{self, ProbeArgs};
use mok_tests::Probes;

use crate::{Outcome, expect_equal, trial};

/// stmatrix and ldmatrix of 1, 2 or 4 blocks, plain and transposed.
fn matrix(mode: u32) -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let blocks = [4, 2, 1][mode as usize / 2];
    let transposed = mode % 2 == 1;
    let input: Vec<u32> = (0..256u32)
        .map(|word| ((2 * word + 1) << 16) | (2 * word))
        .collect();
    let (from, to) = (
        device.buffer_from(&input)?,
        device.buffer_zeroed::<u32>(256)?,
    );
    let args = ProbeArgs {
        input: from.ptr().as_raw(),
        output: to.ptr().as_raw(),
        mode,
        ..ProbeArgs::default()
    };
    let kernel = probes.kernel(&spec::MATRIX)?;
    // SAFETY: 256 words each.
    unsafe {
        kernel
            .launch()
            .grid([1, 1, 1])
            .shared(1024)
            .arg(&args)
            .enqueue(&stream)?
    };
    stream.synchronize()?;

    // Element (row, column) of a block is held by lane 4 row + column / 2, half column % 2.
    let half_of = |words: &[u32], lane: usize, block: usize, half: usize| {
        (words[4 * lane + block] >> (16 * half)) as u16
    };
    let mut want = vec![0xdead_beef_u32; 128];
    for block in 0..blocks {
        for row in 0..8 {
            for column in (0..8).step_by(2) {
                let element = |column: usize| {
                    let (r, c) = if transposed {
                        (column, row)
                    } else {
                        (row, column)
                    };
                    u32::from(half_of(&input[..128], 4 * r + c / 2, block, c % 2))
                };
                want[32 * block + 4 * row + column / 2] =
                    element(column + 1) << 16 | element(column);
            }
        }
    }
    let mut loaded = vec![0u32; 128];
    for lane in 0..32 {
        for block in 0..blocks {
            let element = |half: usize| {
                let (row, column) = (lane / 4, lane % 4 * 2 + half);
                let (row, column) = if transposed {
                    (column, row)
                } else {
                    (row, column)
                };
                input[128 + 32 * block + 4 * row + column / 2] >> (16 * (column % 2)) & 0xffff
            };
            loaded[4 * lane + block] = element(1) << 16 | element(0);
        }
    }
    want.extend(loaded);
    expect_equal("words", &to.to_vec()?, &want)
}

fn warp() -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let mut values: Vec<f32> = mok::fill::normal(11, 128, 3.0);
    values[..6].copy_from_slice(&[
        0.0,
        f32::INFINITY,
        1e-40,
        1.0 + 1.0 / 256.0,
        1.0 + 3.0 / 256.0,
        f32::MAX,
    ]);
    let (from, to) = (
        device.buffer_from(&values)?,
        device.buffer_zeroed::<u32>(2 * 128 * 16)?,
    );
    let args = ProbeArgs {
        input: from.ptr().as_raw(),
        output: to.ptr().as_raw(),
        ..ProbeArgs::default()
    };
    let kernel = probes.kernel(&spec::WARP)?;
    // SAFETY: 16 words a thread, 128 f32.
    unsafe {
        kernel
            .launch()
            .grid([2, 1, 1])
            .shared(1024)
            .arg(&args)
            .enqueue(&stream)?
    };
    stream.synchronize()?;
    let got = to.to_vec()?;
    for block in 0..2u32 {
        for thread in 0..128u32 {
            let words = &got[16 * (128 * block + thread) as usize..][..16];
            let (warp, lane) = (thread / 32 * 32, thread % 32);
            let (plus, minus) = (
                bf16::from_f32(values[thread as usize]),
                bf16::from_f32(-values[thread as usize]),
            );
            let ballot = (0..32).fold(0u32, |mask, lane| {
                mask | u32::from((warp + lane) % 3 == 0) << lane
            });
            let want = [
                warp + (lane ^ 5),
                if lane < 3 { thread } else { thread - 3 },
                warp + (lane * 7 + 1) % 32,
                ballot,
                block << 16 | 2,
                128,
                lane,
            ];
            expect_equal("exchange", &words[..7], &want)?;
            // 20 us asked, between 0 and twice that promised; clocks are near 1 to 2 GHz.
            if words[7] == 0 || words[7] > 10_000_000 || words[8] > 10_000_000 {
                return Err(format!(
                    "clock {} and timer {} after a sleep of 20 us",
                    words[7], words[8]
                )
                .into());
            }
            let packed = u32::from(minus.to_bits()) << 16 | u32::from(plus.to_bits());
            let want = [
                packed,
                plus.to_f32().to_bits(),
                minus.to_f32().to_bits(),
                77 * (thread ^ 32),
                77 * (127 - thread),
            ];
            expect_equal("conversion and barriers", &words[9..14], &want)?;
            if words[14] >= device.sm_count() || words[15] != 0 {
                return Err(format!("SM {} and block y {}", words[14], words[15]).into());
            }
        }
    }
    Ok(())
}

fn atomics() -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    // Each block's spinning threads are ordered with all others': on the emulator's checker that
    // grows with the square of their number.
    let blocks = if device.is_emulated() { 6u32 } else { 64 };
    let threads = u64::from(128 * blocks);
    let output = device.buffer_zeroed::<u32>(16 + 2 * blocks as usize)?;
    let args = ProbeArgs {
        output: output.ptr().as_raw(),
        ..ProbeArgs::default()
    };
    let kernel = probes.kernel(&spec::ATOMICS)?;
    // SAFETY: eight u64 and two words a block, zeroed; 64 blocks are resident together.
    unsafe {
        kernel
            .launch()
            .grid([blocks, 1, 1])
            .arg(&args)
            .enqueue(&stream)?
    };
    stream.synchronize()?;
    let got = output.to_vec()?;
    let word = |at: usize| u64::from(got[2 * at + 1]) << 32 | u64::from(got[2 * at]);
    let sum: u32 = (0..blocks).map(|block| block + 7).sum();
    expect_equal(
        "counters",
        &[
            word(0),
            word(1),
            word(2),
            word(3),
            word(4),
            word(5),
            word(6),
        ],
        &[
            21 * threads,
            threads * ((1 << 33) + 14),
            u64::from(1000 * (blocks - 1) + 127),
            threads,
            blocks.into(),
            sum.into(),
            1,
        ],
    )?;
    expect_equal(
        "sums read by every block",
        &got[16 + blocks as usize..],
        &vec![sum; blocks as usize],
    )
}

/// The planted races are real programs: with their wait they give the right result.
fn races_with_their_waits() -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let values: Vec<u32> = (0..64).collect();
    let input = device.buffer_from(&values)?;
    for (spec, want) in [
        (&spec::RACE_ASYNC, values.clone()),
        (
            &spec::RACE_PLAIN,
            values.iter().map(|value| value ^ 32).collect(),
        ),
    ] {
        let output = device.buffer_filled::<u32>(64, 0xff)?;
        let args = ProbeArgs {
            input: input.ptr().as_raw(),
            output: output.ptr().as_raw(),
            mode: 1,
            ..ProbeArgs::default()
        };
        // SAFETY: 64 words each.
        unsafe {
            probes
                .kernel(spec)?
                .launch()
                .grid([1, 1, 1])
                .shared(2048)
                .arg(&args)
                .enqueue(&stream)?
        };
        stream.synchronize()?;
        expect_equal(spec.entry, &output.to_vec()?, &want)?;
    }
    Ok(())
}

pub fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = (0..6)
        .map(|mode| trial(format!("instructions::matrix_{mode}"), move || matrix(mode)))
        .collect();
    trials.push(trial("instructions::warp", warp));
    trials.push(trial("instructions::atomics", atomics));
    trials.push(trial(
        "instructions::races_with_their_waits",
        races_with_their_waits,
    ));
    trials
}
