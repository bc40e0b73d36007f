//! `bench`: the kernels against the clock, and against what people would use instead.

mod child;
mod gemm;
mod layer;

use anyhow::Result;
use clap::Subcommand;
use half::bf16;
use mok::{Buffer, Device};

/// Time kernels on a GPU
#[derive(Subcommand, Debug)]
pub enum Bench {
    Gemm(Box<gemm::Args>),
    Layer(Box<layer::Args>),
    #[command(
        about = "Time a forward pass in one launch against separate launches and PyTorch, as `layer` does"
    )]
    Forward(Box<layer::Args>),
}

/// `xtask bench`.
pub fn run(bench: &Bench) -> Result<bool> {
    match bench {
        Bench::Gemm(args) => gemm::run(args),
        Bench::Layer(args) => layer::run(args, &layer::SEPARATE),
        Bench::Forward(args) => layer::run(args, &layer::ALL),
    }
}

/// Elements of the block of random numbers that large tensors repeat: odd, so that no two rows or
/// matrices are the same.
const BLOCK: usize = (32 << 20) - 57;

/// The most that outputs of two right implementations may differ, by norm.
const SAME: f64 = 1e-2;

/// The middle of some samples; of an even number, the slower of the two.
fn median(samples: &[f32]) -> f32 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f32::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f32::NAN)
}

/// How far outputs are from others, by norm.
#[derive(Clone, Copy, Debug, Default)]
struct Difference {
    error: f64,
    norm: f64,
}

impl Difference {
    /// One more element of both.
    fn add(&mut self, own: f64, other: f64) {
        self.error += (own - other).powi(2);
        self.norm += other.powi(2);
    }

    /// Relative to the others. A NaN anywhere is no small difference.
    fn norm(self) -> f64 {
        let difference = (self.error / self.norm).sqrt();
        match difference.is_nan() {
            true => f64::MAX,
            false => difference,
        }
    }
}

/// A block again and again, from one of its elements on: tens of gigabytes made on the host would
/// take minutes. The baselines do the same.
fn tiled(
    device: &Device,
    block: &Buffer<bf16>,
    start: usize,
    len: usize,
) -> mok::Result<Buffer<bf16>> {
    let mut all = device.buffer_uninit(len)?;
    let stream = device.stream()?;
    let mut done = 0;
    while done < len && !block.is_empty() {
        let at = (start % block.len() + done) % block.len();
        let count = (block.len() - at).min(len - done);
        let part = block.slice(at..at + count)?;
        all.slice_mut(done..done + count)?
            .copy_from_device(part, &stream)?;
        done += count;
    }
    stream.synchronize()?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use mok::EmulatorConfig;

    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 3.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_nan_is_no_small_difference() {
        let of = |pairs: &[(f64, f64)]| {
            let mut difference = Difference::default();
            pairs
                .iter()
                .for_each(|&(own, other)| difference.add(own, other));
            difference.norm()
        };
        assert_eq!(of(&[(3.0, 3.0), (8.0, 4.0)]), 0.8);
        assert_eq!(of(&[(1.0, 1.0), (f64::NAN, 1.0)]), f64::MAX);
        // Nothing to compare with is no agreement.
        assert_eq!(of(&[]), f64::MAX);
        assert_eq!(of(&[(0.0, 0.0)]), f64::MAX);
    }

    #[test]
    fn tiles_repeat_their_block_from_any_element() {
        let device = Device::emulated(EmulatorConfig::default()).expect("an emulator");
        let values: Vec<bf16> = (0..5u8).map(|value| bf16::from_f32(value.into())).collect();
        let block = device.buffer_from(&values).expect("memory");
        for (start, len) in [(0, 3), (0, 12), (4, 1), (3, 11), (13, 7), (0, 0)] {
            let all = tiled(&device, &block, start, len).expect("a tensor");
            let expected: Vec<bf16> = (0..len).map(|at| values[(start + at) % 5]).collect();
            assert_eq!(all.to_vec().expect("values"), expected, "{start}, {len}");
        }
    }
}
