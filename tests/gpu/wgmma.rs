//! wgmma for every N, both majors of both operands, and A from registers.

use half::bf16;
use libtest_mimic::Trial;
use mok::tensor_map::{DataType, Swizzle, TensorMapSpec};
use mok_kernel::launch::LaunchSpec;
use mok_probes::spec::{self, ProbeArgs};
use mok_tests::Probes;

use crate::{Outcome, expect_equal, trial};

/// Small integers, so that the sums are exact whatever their order.
fn product(n: u32, spec: &'static LaunchSpec) -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let kernel = probes.kernel(spec)?;
    let columns = n as usize;
    let a: Vec<bf16> = mok::fill::integers(u64::from(n), 64 * 64, 7);
    let b: Vec<bf16> = mok::fill::integers(u64::from(n) + 1000, columns * 64, 7);
    let mut want = Vec::new();
    for row in 0..64 {
        for column in 0..columns {
            want.push(
                (0..64)
                    .map(|k| a[64 * row + k].to_f32() * b[64 * column + k].to_f32())
                    .sum::<f32>(),
            );
        }
    }
    // `[mn, k]` as it is, or `[k, mn]`.
    let transposed = |values: &[bf16], lines: usize| -> Vec<bf16> {
        (0..64 * lines)
            .map(|index| values[index % lines * 64 + index / lines])
            .collect()
    };
    let map = |ptr, major: u32, lines: u32| {
        let spec = TensorMapSpec::new(DataType::Bf16, ptr).with_swizzle(Swizzle::B128);
        match major {
            0 => spec
                .with_dims(&[64, lines.into()])
                .with_strides(&[128])
                .with_tile(&[64, lines]),
            _ => spec
                .with_dims(&[lines.into(), 64])
                .with_strides(&[2 * u64::from(lines)])
                .with_tile(&[64, 64]),
        }
    };
    for mode in [0, 1, 2, 3, 4, 6] {
        let (major_a, major_b) = (mode & 1, mode >> 1 & 1);
        let from_a = device.buffer_from(&if major_a == 0 {
            a.clone()
        } else {
            transposed(&a, 64)
        })?;
        let from_b = device.buffer_from(&if major_b == 0 {
            b.clone()
        } else {
            transposed(&b, columns)
        })?;
        let output = device.buffer_filled::<f32>(64 * columns, 0xff)?;
        let args = ProbeArgs {
            output: output.ptr().as_raw(),
            mode,
            ..ProbeArgs::default()
        };
        let launch = kernel
            .launch()
            .grid([1, 1, 1])
            .shared(spec.max_shared)
            .map(&device.tensor_map(&map(from_a.ptr(), major_a, 64))?)
            .map(&device.tensor_map(&map(from_b.ptr(), major_b, n))?)
            .arg(&args);
        // SAFETY: the maps are of live buffers, the output has 64 rows of N.
        unsafe { launch.enqueue(&stream)? };
        stream.synchronize()?;
        expect_equal(&format!("mode {mode}"), &output.to_vec()?, &want)?;
    }
    Ok(())
}

pub fn trials() -> Vec<Trial> {
    let trial_of = |&(n, spec): &(u32, &'static LaunchSpec)| {
        trial(format!("wgmma::n{n}"), move || product(n, spec))
    };
    spec::WGMMA.iter().map(trial_of).collect()
}
