//! bf16 to MXFP8.

use mok_kernel::gemm::MAX_EXTENT;
use mok_kernel::mxfp8::{QUANTIZE_SHARED, QuantizeArgs, QuantizedArgs, TILE};

use super::{GemmError, Matrix, Mxfp8Matrix, Placed};
use crate::device::Device;
use crate::error::Result;
use crate::module::Kernel;
use crate::stream::Stream;

/// A quantization that breaks a limit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// A size that isn't whole tiles of scales.
    #[error("quantize: {what} are {value}, and here they are multiples of {TILE}{why}")]
    Size {
        /// `"rows"` or `"columns"`.
        what: &'static str,
        /// The size.
        value: u32,
        /// What asks for that; empty, or starting with a comma.
        why: &'static str,
    },
    /// A size that nothing else takes.
    #[error("quantize: {what} are {value}, over {MAX_EXTENT}")]
    Extent {
        /// `"rows"` or `"columns"`.
        what: &'static str,
        /// The size.
        value: u32,
    },
    /// More tiles than the kernel counts.
    #[error("quantize: {tiles} tiles of {TILE} by {TILE} are over 2^32 - 1")]
    Tiles {
        /// Tiles.
        tiles: u128,
    },
    /// Nothing is asked for.
    #[error("quantize: no result is asked for: call along_columns or along_rows")]
    NoResult,
    /// A matrix whose address, strides or buffer are not fit.
    #[error("{}", GemmError::to_string(.0).replace("grouped GEMM", "quantize"))]
    Matrix(GemmError),
}

/// A bf16 matrix, or one for each group, to be brought to MXFP8 along its columns, its rows, or both from one
/// read.
///
/// The scale of 32 elements is `2^ceil(log2(amax / 448))`, or the smallest, 2^-127, where that is less; values are
/// rounded to nearest, ties to even, and none is saturated. A block with a NaN or an infinity has a scale and
/// values that are NaN. [`Mxfp8Matrix`] says how scales lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizeCall {
    groups: u32,
    rows: u32,
    columns: u32,
    from: Matrix,
    along_columns: Option<Mxfp8Matrix>,
    along_rows: Option<Mxfp8Matrix>,
}

impl QuantizeCall {
    /// From bf16 `[groups, rows, columns]`; columns are a multiple of 128.
    pub fn new(groups: u32, rows: u32, columns: u32, from: Matrix) -> QuantizeCall {
        QuantizeCall {
            groups,
            rows,
            columns,
            from,
            along_columns: None,
            along_rows: None,
        }
    }

    /// In blocks of 32 columns: values `[groups, rows, columns]`, for products that contract columns.
    ///
    /// The last band of scales is written whole; rows that aren't there count as zeros.
    pub fn along_columns(mut self, to: Mxfp8Matrix) -> Self {
        self.along_columns = Some(to);
        self
    }

    /// In blocks of 32 rows: values `[groups, columns, rows]`, transposed, for products that contract rows. Rows
    /// are then a multiple of 128.
    pub fn along_rows(mut self, to: Mxfp8Matrix) -> Self {
        self.along_rows = Some(to);
        self
    }

    fn placed_from(&self) -> Placed {
        let [rows, columns, groups] = [self.rows, self.columns, self.groups].map(u64::from);
        self.from.place(rows, columns, groups)
    }

    /// Values and scales of the results, those of columns first.
    fn placed_results(&self) -> [Option<[Placed; 2]>; 2] {
        let [rows, columns, groups] = [self.rows, self.columns, self.groups].map(u64::from);
        [
            self.along_columns.map(|to| to.place(rows, columns, groups)),
            self.along_rows.map(|to| to.place(columns, rows, groups)),
        ]
    }

    fn tiles(&self) -> u128 {
        [
            self.groups,
            self.rows.div_ceil(TILE),
            self.columns.div_ceil(TILE),
        ]
        .into_iter()
        .map(u128::from)
        .product()
    }

    /// Checks every limit, without a device.
    ///
    /// # Errors
    /// [`QuantizeError`] says which.
    pub fn check(&self) -> Result<(), QuantizeError> {
        let size = |what, value: u32, why| match value.is_multiple_of(TILE) {
            true => Ok(()),
            false => Err(QuantizeError::Size { what, value, why }),
        };
        size("columns", self.columns, "")?;
        if self.along_rows.is_some() {
            size("rows", self.rows, ", where blocks are along rows")?;
        }
        for (what, value) in [("rows", self.rows), ("columns", self.columns)] {
            if value > MAX_EXTENT {
                return Err(QuantizeError::Extent { what, value });
            }
        }
        if self.along_columns.is_none() && self.along_rows.is_none() {
            return Err(QuantizeError::NoResult);
        }
        match self.tiles() {
            0 => return Ok(()),
            tiles if tiles > u32::MAX.into() => return Err(QuantizeError::Tiles { tiles }),
            _ => {}
        }
        let fit = QuantizeError::Matrix;
        self.placed_from().check("the matrix", 2).map_err(fit)?;
        let [columns, rows] = self.placed_results();
        for (result, [values, scales]) in [
            (columns, ["the values", "the scales"]),
            (rows, ["the values along rows", "the scales along rows"]),
        ] {
            let Some([to, to_scales]) = result else {
                continue;
            };
            to.check(values, 1).map_err(fit)?;
            to_scales.check(scales, 1).map_err(fit)?;
        }
        Ok(())
    }

    /// Blocks of the launch on this many SMs; 0 if there is nothing to launch.
    pub fn grid(&self, sms: u32) -> u32 {
        /// As many as are resident: 63 registers for each of 256 threads.
        const OF_AN_SM: u32 = 4;
        let most = u128::from(sms.saturating_mul(OF_AN_SM));
        self.tiles().min(most) as u32
    }

    /// What the entry takes.
    pub fn args(&self) -> QuantizeArgs {
        let from = self.placed_from();
        let result = |placed: Option<[Placed; 2]>| match placed {
            None => bytemuck::Zeroable::zeroed(),
            Some([values, scales]) => quantized(values, scales),
        };
        let [columns, rows] = self.placed_results();
        QuantizeArgs {
            from: from.matrix.ptr.as_raw(),
            row_stride: from.row_stride,
            group_stride: from.group_stride,
            along_columns: result(columns),
            along_rows: result(rows),
            groups: self.groups,
            rows: self.rows,
            columns: self.columns,
            padding: 0,
        }
    }
}

/// Where a matrix stands, as the entries take it.
pub(super) fn quantized(values: Placed, scales: Placed) -> QuantizedArgs {
    QuantizedArgs {
        values: values.matrix.ptr.as_raw(),
        row_stride: values.row_stride,
        group_stride: values.group_stride,
        scales: scales.matrix.ptr.as_raw(),
        scale_band_stride: scales.row_stride,
        scale_group_stride: scales.group_stride,
    }
}

/// The entry that quantizes, ready to launch on one device. [`Mxfp8Call`](super::Mxfp8Call) has an example.
#[derive(Clone, Debug)]
pub struct Quantizer {
    kernel: Kernel,
    sms: u32,
}

impl Quantizer {
    /// The shipped kernel, on all SMs.
    pub fn new(device: &Device) -> Result<Quantizer> {
        Ok(Quantizer {
            kernel: device.kernels()?.quantize().clone(),
            sms: device.sm_count(),
        })
    }

    /// Checks a call and enqueues it. Launches nothing if there is nothing to do.
    ///
    /// # Safety
    /// The addresses in the call point to live device memory of the extents it states; results overlap neither
    /// each other nor what is read; and until the stream has passed the call nothing else writes to what is
    /// read, or touches the results.
    pub unsafe fn enqueue(&self, call: &QuantizeCall, stream: &Stream) -> Result<()> {
        call.check()?;
        let grid = call.grid(self.sms);
        if grid == 0 {
            return Ok(());
        }
        let shared = match call.along_rows {
            Some(_) => QUANTIZE_SHARED,
            None => 0,
        };
        let launch = self.kernel.launch().grid([grid, 1, 1]).shared(shared);
        // SAFETY: the argument is the entry's, and its memory is by this function's contract.
        unsafe { launch.arg(&call.args()).enqueue(stream) }
    }
}

#[cfg(test)]
mod tests;
