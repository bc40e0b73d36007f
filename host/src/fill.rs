//! Deterministic data: the same seed gives the same numbers on every machine.
//!
//! Each number is a hash of the seed and its index, so any part can be made on
//! its own, in parallel.

use half::bf16;
use rayon::prelude::*;

/// Numbers that can be filled in.
pub trait Element: Copy + Send + Sync {
    /// Rounds to the nearest, ties to even.
    fn from_f32(value: f32) -> Self;
}

impl Element for bf16 {
    fn from_f32(value: f32) -> bf16 {
        bf16::from_f32(value)
    }
}

impl Element for f32 {
    fn from_f32(value: f32) -> f32 {
        value
    }
}

/// 64 random bits for an index of a seed (SplitMix64).
pub fn hash(seed: u64, index: u64) -> u64 {
    let mut bits = seed
        .wrapping_mul(0xD1B5_4A32_D192_ED03)
        .wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// Near-normal numbers of mean 0 and this standard deviation, at most 3.5 of them from 0.
///
/// ```
/// let values: Vec<half::bf16> = mok::fill::normal(1, 1000, 0.5);
/// assert_eq!(values, mok::fill::normal(1, 1000, 0.5));
/// assert_ne!(values, mok::fill::normal::<half::bf16>(2, 1000, 0.5));
/// ```
pub fn normal<T: Element>(seed: u64, len: usize, deviation: f32) -> Vec<T> {
    // A sum of four uniform 16-bit numbers: variance 4 * (2^32 - 1) / 12.
    let scale = deviation / (((1u64 << 32) - 1) as f32 / 3.0).sqrt();
    generate(len, |index| {
        let bits = hash(seed, index);
        let sum: u32 = (0..4)
            .map(|part| (bits >> (16 * part)) as u32 & 0xFFFF)
            .sum();
        T::from_f32((sum as f32 - 2.0 * 65535.0) * scale)
    })
}

/// Integers from `-most` to `most`, whose sums of products are exact in f32, so that results
/// have one right bit pattern.
///
/// ```
/// let values: Vec<f32> = mok::fill::integers(7, 1000, 3);
/// assert!(values.iter().all(|value| value.abs() <= 3.0 && value.fract() == 0.0));
/// ```
pub fn integers<T: Element>(seed: u64, len: usize, most: u8) -> Vec<T> {
    let span = 2 * u64::from(most) + 1;
    generate(len, |index| {
        let value = ((hash(seed, index) >> 32) * span) >> 32;
        T::from_f32(value as f32 - f32::from(most))
    })
}

fn generate<T: Element>(len: usize, value: impl Fn(u64) -> T + Sync) -> Vec<T> {
    (0..len)
        .into_par_iter()
        .with_min_len(1 << 12)
        .map(|index| value(index as u64))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_their_moments() {
        let values: Vec<f32> = normal(3, 100_000, 2.0);
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / 1e5;
        let square = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.03, "mean {mean}");
        assert!((square - 4.0).abs() < 0.1, "variance {square}");
        assert!(values.iter().all(|value| value.abs() < 7.0));
    }

    #[test]
    fn integers_reach_both_ends_evenly() {
        let values: Vec<f32> = integers(5, 70_000, 3);
        for expected in -3..=3 {
            let count = values
                .iter()
                .filter(|&&value| value == expected as f32)
                .count();
            assert!(
                (9_000..11_000).contains(&count),
                "{expected}: {count} times"
            );
        }
        assert!(integers::<f32>(5, 100, 0).iter().all(|&value| value == 0.0));
    }

    #[test]
    fn the_numbers_never_change() {
        assert_eq!(hash(0, 0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(integers::<f32>(1, 4, 4), integers::<f32>(1, 9, 4)[..4]);
    }
}
