//! The forward product of operands in MXFP8.

use mok_kernel::arch::Arch;
use mok_kernel::gemm::{GemmArgs, boxes};
use mok_kernel::mxfp8::{
    DequantizeArgs, QUANTIZE_THREADS, SCALES_BOX, TILE, TILE_BYTES, band_bytes,
};

use super::quantize::quantized;
use super::{GemmCall, GemmError, GroupRows, GroupedGemm, Matrix, Placed};
use crate::error::Result;
use crate::memory::DevicePtr;
use crate::stream::Stream;
use crate::tensor_map::{DataType, TensorMapSpec};

/// Where a matrix in MXFP8 stands, or one matrix for each group: e4m3 values, contiguous along the contraction,
/// and the e8m0 scales of each 32 of them.
///
/// Strides are in bytes. Scales lie in tiles of 512 bytes for 128 rows by 128 elements: the one of row `r` and
/// element `k` is byte `r % 32 * 16 + r % 128 / 32 * 4 + k % 128 / 32` of tile `k / 128` of band `r / 128`. The
/// scales' row stride is from a band to the next one (512 for each 128 elements of a row if packed); a last band
/// that isn't full has room for 128 rows all the same. That is the layout that cuBLAS takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mxfp8Matrix {
    values: Matrix,
    scales: Matrix,
}

impl Mxfp8Matrix {
    /// Values and their scales.
    pub fn new(values: Matrix, scales: Matrix) -> Mxfp8Matrix {
        Mxfp8Matrix { values, scales }
    }

    /// Bytes of the scales of a packed matrix with so many rows, of so many elements each.
    ///
    /// ```
    /// use mok::gemm::Mxfp8Matrix;
    ///
    /// assert_eq!(Mxfp8Matrix::scale_bytes(300, 256), 3 * 2 * 512);
    /// ```
    pub const fn scale_bytes(rows: u64, k: u64) -> u64 {
        rows.div_ceil(TILE as u64)
            .saturating_mul(band_bytes(k.saturating_add(TILE as u64 - 1)))
    }

    /// The values and the scales with their strides worked out.
    pub(super) fn place(self, rows: u64, cols: u64, groups: u64) -> [Placed; 2] {
        let bands = rows.div_ceil(TILE.into());
        [
            self.values.place(rows, cols, groups),
            self.scales.place(bands, band_bytes(cols), groups),
        ]
    }
}

/// `D[r, n] = sum_k A[r, k] B[g, n, k]` of operands in MXFP8, D in bf16.
///
/// On sm_100a and sm_103a by tensor cores that scale blocks. Elsewhere the operands are brought back to bf16 in a
/// [workspace](Mxfp8Call::with_workspace) and multiplied as bf16 are: the same operands, not the same sums. That is
/// exact, but for blocks with a scale under 2^-124, whose values may be rounded to the least bf16, 2^-133, and for
/// elements over the largest, which no [`QuantizeCall`](super::QuantizeCall) makes. A scale that is NaN reaches the row of D, or the
/// column of the group's rows, that it is a scale of; values and scales of rows that are no group's reach nothing.
///
/// ```no_run
/// use half::bf16;
/// use mok::{Device, Groups, gemm::{GroupedGemm, Matrix, Mxfp8Call, Mxfp8Matrix, QuantizeCall, Quantizer}};
///
/// let device = Device::cuda(0)?;
/// let stream = device.stream()?;
/// let groups = Groups::new(&[300, 0, 77])?;
/// let (rows, count) = (groups.capacity(), groups.len() as u32);
/// let (n, k) = (256, 128);
/// let sizes = device.buffer_from(groups.sizes())?;
/// let a = device.buffer_zeroed::<bf16>((rows * k) as usize)?;
/// let b = device.buffer_zeroed::<bf16>((count * n * k) as usize)?;
/// let d = device.buffer_uninit::<bf16>((rows * n) as usize)?;
///
/// let room = |rows: u32| device.buffer_uninit::<u8>((rows * k) as usize);
/// let room_for_scales =
///     |rows: u32| device.buffer_uninit::<u8>(Mxfp8Matrix::scale_bytes(rows.into(), k.into()) as usize);
/// let (values, scales) = (room(rows)?, room_for_scales(rows)?);
/// let quantized_a = Mxfp8Matrix::new(Matrix::of(&values), Matrix::of(&scales));
/// let (values, scales) = (room(count * n)?, room_for_scales(count * n)?);
/// let quantized_b = Mxfp8Matrix::new(Matrix::of(&values), Matrix::of(&scales));
///
/// let (quantizer, gemm) = (Quantizer::new(&device)?, GroupedGemm::new(&device)?);
/// let call = Mxfp8Call::forward(groups.at(sizes.ptr()), n, k, quantized_a, quantized_b, Matrix::of(&d));
/// let workspace = device.buffer_uninit::<u8>(call.workspace_bytes(device.arch()?) as usize)?;
/// let call = call.with_workspace(Matrix::of(&workspace));
/// // SAFETY: the buffers live until the synchronisation, and only these calls use them.
/// unsafe {
///     let from = QuantizeCall::new(1, rows, k, Matrix::of(&a)).along_columns(quantized_a);
///     quantizer.enqueue(&from, &stream)?;
///     let from = QuantizeCall::new(count, n, k, Matrix::of(&b)).along_columns(quantized_b);
///     quantizer.enqueue(&from, &stream)?;
///     gemm.enqueue_mxfp8(&call, &stream)?;
/// }
/// stream.synchronize()?;
/// # Ok::<(), mok::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mxfp8Call {
    /// With the values as A and B.
    product: GemmCall,
    scales_a: Matrix,
    scales_b: Matrix,
    workspace: Option<Matrix>,
}

impl Mxfp8Call {
    /// A `[capacity, k]`, B `[groups, n, k]`, D `[capacity, n]`; n and k are multiples of 128.
    pub fn forward(
        rows: GroupRows,
        n: u32,
        k: u32,
        a: Mxfp8Matrix,
        b: Mxfp8Matrix,
        d: Matrix,
    ) -> Mxfp8Call {
        Mxfp8Call {
            product: GemmCall::forward(rows, n, k, a.values, b.values, d),
            scales_a: a.scales,
            scales_b: b.scales,
            workspace: None,
        }
    }

    /// With [`workspace_bytes`](Mxfp8Call::workspace_bytes) of device memory, 16-byte aligned.
    pub fn with_workspace(mut self, workspace: Matrix) -> Self {
        self.workspace = Some(workspace);
        self
    }

    /// Bytes of device memory that the call needs besides its operands and D: room for both operands in bf16 where
    /// tensor cores don't scale blocks, nothing where they do.
    pub fn workspace_bytes(&self, arch: Arch) -> u128 {
        let GemmCall { rows, n, k, .. } = self.product;
        let wide = |value: u32| u128::from(value);
        match mok_kernel::mxfp8::forward(arch) {
            Some(_) => 0,
            None => 2 * wide(k) * (wide(rows.capacity) + wide(rows.groups) * wide(n)),
        }
    }

    /// The product of the operands in bf16 that stand in the workspace.
    fn in_bf16(&self, arch: Arch) -> Result<GemmCall, GemmError> {
        let bytes = self.workspace_bytes(arch);
        let missing = GemmError::Mxfp8Workspace { arch, bytes };
        let workspace = self.workspace.ok_or(missing)?;
        let GemmCall { rows, n, k, d, .. } = self.product;
        let all = u64::from(rows.groups) * u64::from(n);
        if all > u32::MAX.into() {
            return Err(GemmError::Mxfp8Rows { rows: all });
        }
        let room = u64::try_from(bytes).unwrap_or(u64::MAX);
        workspace.place(1, room, 1).check("the workspace", 1)?;
        let of_a = 2 * u64::from(k) * u64::from(rows.capacity);
        let a = workspace.ptr.as_raw();
        let [a, b] = [a, a + of_a].map(|at| Matrix::new(DevicePtr::from_raw(at)));
        Ok(GemmCall::forward(rows, n, k, a, b, d))
    }

    /// Values and scales of A.
    fn placed_a(&self) -> [Placed; 2] {
        let GemmCall { rows, k, a, .. } = self.product;
        Mxfp8Matrix::new(a, self.scales_a).place(rows.capacity.into(), k.into(), 1)
    }

    /// Values and scales of B.
    fn placed_b(&self) -> [Placed; 2] {
        let GemmCall { rows, n, k, b, .. } = self.product;
        Mxfp8Matrix::new(b, self.scales_b).place(n.into(), k.into(), rows.groups.into())
    }

    /// Checks every limit, without a device.
    ///
    /// # Errors
    /// As [`GemmCall::check`]; n or k that isn't a multiple of 128.
    pub fn check(&self) -> Result<()> {
        let product = &self.product;
        product.check_sizes(1)?;
        for (what, value) in [("n", product.n), ("k", product.k)] {
            if !value.is_multiple_of(TILE) {
                return Err(GemmError::Mxfp8Size { what, value }.into());
            }
        }
        if product.rows.groups == 0 {
            return Ok(());
        }
        product.check_group_rows()?;
        let ([a, scales_a], [b, scales_b]) = (self.placed_a(), self.placed_b());
        a.check("A", 1)?;
        scales_a.check("A's scales", 1)?;
        b.check("B", 1)?;
        scales_b.check("B's scales", 1)?;
        product.placed_d().check("D", 2)?;
        if product.launches() {
            for map in self.tensor_maps() {
                map.check()?;
            }
        }
        Ok(())
    }

    /// Blocks of the launch on this many SMs, as [`GemmCall::grid`]; 0 if there is nothing to launch.
    pub fn grid(&self, sms: u32) -> u32 {
        self.product.grid(sms)
    }

    /// Tensor maps of A's values, one for each box that they're loaded in, of B's values, D, and the scales of A
    /// and of B.
    pub fn tensor_maps(&self) -> [TensorMapSpec; 7] {
        let ([a, scales_a], [b, scales_b]) = (self.placed_a(), self.placed_b());
        let (stand_in, d) = (self.product.b.ptr, self.product.placed_d());
        let [most, more, few] = a.two_in_one().boxes_of_rows(DataType::U16, stand_in);
        [
            most,
            more,
            few,
            b.two_in_one().groups_map(&boxes::FORWARD_B, DataType::U16),
            d.rows_map(&boxes::ROWS_D, DataType::Bf16, stand_in),
            scales_a.scales_map(stand_in),
            scales_b.scales_map(stand_in),
        ]
    }

    /// What the entry takes after the tensor maps; [`Tickets::with`](super::Tickets::with) gives the tickets.
    pub fn args(&self, tickets: DevicePtr) -> GemmArgs {
        self.product.args(tickets)
    }
}

impl Placed {
    /// Of a matrix of bytes, one of half as many elements of two bytes.
    fn two_in_one(self) -> Placed {
        Placed {
            cols: self.cols / 2,
            row_stride: self.row_stride / 2,
            group_stride: self.group_stride / 2,
            ..self
        }
    }

    /// Scales in whole tiles: `(words of a tile, tiles along K, bands, groups)`, or one tile at `stand_in` where
    /// there are none.
    fn scales_map(&self, stand_in: DevicePtr) -> TensorMapSpec {
        let (base, bands) = match self.rows {
            0 => (stand_in, 1),
            bands => (self.matrix.ptr, bands),
        };
        let tile = u64::from(TILE_BYTES);
        let dims = [tile / 4, self.cols / tile, bands, self.groups];
        TensorMapSpec::new(DataType::U32, base)
            .with_dims(&dims)
            .with_strides(&[tile, self.row_stride, self.group_stride])
            .with_tile(&SCALES_BOX)
    }
}

impl GroupedGemm {
    /// Checks a call and enqueues it. Launches nothing if there is nothing to do.
    ///
    /// # Errors
    /// As [`Mxfp8Call::check`]; no workspace where one is needed ([`GemmError::Mxfp8Workspace`]).
    ///
    /// # Safety
    /// As [`GroupedGemm::enqueue`], for all matrices that the call names; the workspace overlaps none of them, and
    /// nothing else touches it.
    pub unsafe fn enqueue_mxfp8(&self, call: &Mxfp8Call, stream: &Stream) -> Result<()> {
        call.check()?;
        let grid = call.grid(self.sms);
        if grid == 0 {
            return Ok(());
        }
        let Some(kernel) = &self.mxfp8 else {
            let product = call.in_bf16(self.arch)?;
            // SAFETY: this function's contract; both operands stand in the workspace when they are multiplied.
            return unsafe {
                let ([values, scales], to) = (call.placed_a(), product.a.ptr);
                self.dequantize(values, scales, to, stream)?;
                let ([values, scales], to) = (call.placed_b(), product.b.ptr);
                self.dequantize(values, scales, to, stream)?;
                self.enqueue(&product, stream)
            };
        };
        let mut launch = self.launch(kernel, grid, &call.product.rows);
        for map in call.tensor_maps() {
            launch = launch.map(&self.device.tensor_map(&map)?);
        }
        self.tickets.with(stream, |tickets| {
            // SAFETY: the arguments are the entry's, and their memory is by this function's contract.
            unsafe { launch.arg(&call.args(tickets)).enqueue(stream) }
        })
    }

    /// Brings an operand to bf16, packed.
    ///
    /// # Safety
    /// Values and scales are live memory, and so is `to`, which nothing else touches until the stream has passed.
    unsafe fn dequantize(
        &self,
        values: Placed,
        scales: Placed,
        to: DevicePtr,
        stream: &Stream,
    ) -> Result<()> {
        if values.rows == 0 {
            return Ok(());
        }
        let args = DequantizeArgs {
            from: quantized(values, scales),
            to: to.as_raw(),
            // The call's check bounds each.
            groups: values.groups as u32,
            rows: values.rows as u32,
            columns: values.cols as u32,
            padding: 0,
        };
        /// A warp a row; as many blocks as are resident.
        const OF_AN_SM: u64 = 4;
        let blocks = (values.groups * values.rows).div_ceil((QUANTIZE_THREADS / 32).into());
        let grid = blocks.min(u64::from(self.sms) * OF_AN_SM) as u32;
        let launch = self.dequantize.launch().grid([grid, 1, 1]);
        // SAFETY: this function's contract.
        unsafe { launch.arg(&args).enqueue(stream) }
    }
}

#[cfg(test)]
mod tests;
