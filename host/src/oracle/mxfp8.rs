//! MXFP8 on the host, by its definition: no arithmetic on exponents, no bit of layout shared with the kernels.

use half::bf16;
use rayon::prelude::*;

use super::OracleError;

/// A matrix in MXFP8, packed: e4m3 values and the scales of each 32 of them along a row.
///
/// ```
/// use half::bf16;
/// use mok::oracle::Mxfp8;
///
/// // 448 times a quarter fits with a scale of 2^-2; a little more takes the next power of two.
/// let mut row = vec![bf16::ZERO; 128];
/// (row[0], row[32]) = (bf16::from_f32(112.0), bf16::from_f32(112.5));
/// let quantized = Mxfp8::quantize(&row, 1, 128)?;
/// assert_eq!([0, 32, 64].map(|k| quantized.scale(0, k)), [125, 126, 0]);
/// assert_eq!(quantized.widened()[0], 112.0);
/// # Ok::<(), mok::oracle::OracleError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mxfp8 {
    rows: usize,
    columns: usize,
    /// `[rows][columns]`.
    pub values: Vec<u8>,
    /// `[rows / 128][columns / 128][32][4][4]`: bands of 128 rows, padded; 128 columns; the row's number modulo 32;
    /// its quarter of the band; 32 columns.
    pub scales: Vec<u8>,
}

/// Elements of a block.
const BLOCK: usize = 32;
/// Rows of a band, and columns of a tile of scales.
const TILE: usize = 128;

impl Mxfp8 {
    /// Quantizes packed rows; columns are a multiple of 128. Rows that fill up the last band count as zeros.
    ///
    /// # Errors
    /// A slice that is too short, or columns that aren't a multiple of 128.
    pub fn quantize(values: &[bf16], rows: usize, columns: usize) -> Result<Mxfp8, OracleError> {
        let what = "the matrix to quantize";
        let extent = OracleError::Extent { what };
        let needed = rows.checked_mul(columns).ok_or(extent.clone())?;
        if !columns.is_multiple_of(TILE) {
            return Err(extent);
        }
        let values = values.get(..needed).ok_or(OracleError::Length {
            what,
            len: values.len(),
            needed,
        })?;
        let blocks: Vec<(u8, [u8; BLOCK])> = values.par_chunks(BLOCK).map(block).collect();
        let mut quantized = Mxfp8 {
            rows,
            columns,
            values: blocks.iter().flat_map(|(_, values)| *values).collect(),
            // Those of rows that are zeros are the smallest.
            scales: vec![0; rows.div_ceil(TILE) * TILE * (columns / BLOCK)],
        };
        for (at, (scale, _)) in blocks.iter().enumerate() {
            let (row, column) = (at * BLOCK / columns, at * BLOCK % columns);
            let place = quantized.place(row, column);
            quantized.scales[place] = *scale;
        }
        Ok(quantized)
    }

    /// The rows of a packed matrix as columns: quantized, they are in blocks of what was rows.
    pub fn transposed(values: &[bf16], columns: usize) -> Vec<bf16> {
        let rows = values.len() / columns.max(1);
        let column = |column: usize| (0..rows).map(move |row| values[row * columns + column]);
        (0..columns).flat_map(column).collect()
    }

    fn place(&self, row: usize, column: usize) -> usize {
        let tile = row / TILE * (self.columns / TILE) + column / TILE;
        let within = [row % 32, row % TILE / 32, column % TILE / BLOCK];
        ((tile * 32 + within[0]) * 4 + within[1]) * 4 + within[2]
    }

    /// The scale of an element.
    pub fn scale(&self, row: usize, column: usize) -> u8 {
        self.scales[self.place(row, column)]
    }

    /// The elements, exact but for those that an f32 has no room for: `value * 2^(scale - 127)`.
    pub fn widened(&self) -> Vec<f32> {
        let element = |at: usize| {
            let scale = self.scale(at / self.columns, at % self.columns);
            match scale {
                255 => f32::NAN,
                scale => (e4m3(self.values[at]) * power_of_two(scale)) as f32,
            }
        };
        (0..self.rows * self.columns)
            .into_par_iter()
            .map(element)
            .collect()
    }
}

/// 2^(scale - 127).
fn power_of_two(scale: u8) -> f64 {
    2f64.powi(i32::from(scale) - 127)
}

/// An e4m3 as a number (OCP 8-bit floating point): no infinities, all ones is NaN.
fn e4m3(bits: u8) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 3 & 15), f64::from(bits & 7) / 8.0);
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f64::NAN,
        (0, _) => fraction * 2f64.powi(-6),
        _ => (1.0 + fraction) * 2f64.powi(exponent - 7),
    };
    if bits & 0x80 != 0 {
        -magnitude
    } else {
        magnitude
    }
}

/// The nearest e4m3, of two equally near ones the even one.
fn nearest(value: f64) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = value.abs();
    // Magnitudes grow with their bits; 0x7e is 448.
    let (mut low, mut high) = (0u8, 0x7e);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if e4m3(middle) <= magnitude {
            low = middle;
        } else {
            high = middle;
        }
    }
    let (below, above) = (magnitude - e4m3(low), e4m3(high) - magnitude);
    let even = if low.is_multiple_of(2) { low } else { high };
    sign | match below.total_cmp(&above) {
        std::cmp::Ordering::Less => low,
        std::cmp::Ordering::Greater => high,
        std::cmp::Ordering::Equal => even,
    }
}

/// The scale and the values of a block.
fn block(values: &[bf16]) -> (u8, [u8; BLOCK]) {
    let all: [f64; BLOCK] = std::array::from_fn(|at| values[at].to_f64());
    if all.iter().any(|value| !value.is_finite()) {
        return (255, [0x7f; BLOCK]);
    }
    let amax = all
        .iter()
        .fold(0.0, |amax: f64, value| amax.max(value.abs()));
    // The least power of two for which the largest e4m3 is large enough.
    let scale = (0..255).find(|&scale| amax <= 448.0 * power_of_two(scale));
    let scale = scale.unwrap_or(254);
    (scale, all.map(|value| nearest(value / power_of_two(scale))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_e4m3_is_nearest_to_itself_and_ties_go_to_even() {
        for bits in (0..0x7f).chain(0x80..0xff) {
            assert_eq!(nearest(e4m3(bits)), bits);
        }
        for low in 0..0x7eu8 {
            let middle = (e4m3(low) + e4m3(low + 1)) / 2.0;
            assert_eq!(nearest(middle), low + low % 2, "{low:#x}");
            assert_eq!(nearest(-middle), 0x80 | (low + low % 2));
            assert_eq!(nearest(middle * (1.0 - 1e-9)), low);
            assert_eq!(nearest(middle * (1.0 + 1e-9)), low + 1);
        }
        assert_eq!((e4m3(0x7e), e4m3(1)), (448.0, 2f64.powi(-9)));
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    }

    #[test]
    fn blocks_of_every_kind() {
        let of = |first: f32, others: f32| {
            let mut values = [bf16::from_f32(others); BLOCK];
            values[0] = bf16::from_f32(first);
            let (scale, values) = block(&values);
            (scale, values[0], values[31])
        };
        assert_eq!(of(448.0, 1.0), (127, 0x7e, 0x38));
        assert_eq!(of(450.0, 0.0), (128, 0x76, 0));
        assert_eq!(of(-448.0, -0.0), (127, 0xfe, 0x80));
        assert_eq!(of(0.0, 0.0), (0, 0, 0));
        assert_eq!(of(f32::NAN, 1.0), (255, 0x7f, 0x7f));
        assert_eq!(of(1.0, f32::NEG_INFINITY), (255, 0x7f, 0x7f));
        // The least bf16 is 2^-133, and so the least e4m3 that isn't subnormal, 2^-6.
        assert_eq!(of(f32::from_bits(1 << 16), 0.0), (0, 0x08, 0));
        let most = bf16::MAX.to_f32();
        assert_eq!(of(most, 0.0).0, 247);
    }

    #[test]
    fn extents_are_checked() {
        let values = [bf16::ONE; 128];
        assert!(Mxfp8::quantize(&values, 1, 128).is_ok());
        assert!(matches!(
            Mxfp8::quantize(&values, 2, 128),
            Err(OracleError::Length { needed: 256, .. })
        ));
        assert!(Mxfp8::quantize(&values, 1, 64).is_err());
        assert!(Mxfp8::quantize(&values, usize::MAX, 128).is_err());
        assert!(Mxfp8::quantize(&[], 0, 128).unwrap().scales.is_empty());
    }
}
