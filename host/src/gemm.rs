//! The grouped GEMM: one launch for all experts, in the three forms of a layer.
//!
//! A [`GemmCall`] says what is multiplied; it's plain data, and its checks,
//! tensor maps and grid need no device. A [`GroupedGemm`] enqueues it.
//!
//! | form | D | A | B |
//! |---|---|---|---|
//! | [`GemmCall::forward`] | `D[r, n] = sum_k A[r, k] B[g, n, k]` | `[capacity, K]` | `[G, N, K]` |
//! | [`GemmCall::dgrad`] | `D[r, n] = sum_k A[r, k] B[g, k, n]` | `[capacity, K]` | `[G, K, N]` |
//! | [`GemmCall::wgrad`] | `D[g, m, n] = sum_r A[r, m] B[r, n]` | `[capacity, M]` | `[capacity, N]` |
//!
//! A [`GateUpCall`] is two forward products of the same rows with SwiGLU behind them, an [`Mxfp8Call`] a forward
//! product in MXFP8, to which a [`QuantizeCall`] brings bf16.

use std::sync::Arc;

use bytemuck::Pod;
use mok_kernel::arch::Arch;
pub use mok_kernel::gemm::{Form, MAX_GROUPS, Sink};
use mok_kernel::gemm::{GemmArgs, MAX_WIDTH, ROW_ALIGN, SIDE, boxes, shared_bytes};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::launch::Launch;
use crate::memory::{Buffer, DevicePtr, Slice};
use crate::module::{Kernel, Module};
use crate::stream::Stream;
use crate::tensor_map::{DataType, Swizzle, TensorMapSpec};

mod check;
mod gate_up;
mod mxfp8;
mod quantize;
mod tickets;

pub use check::GemmError;
pub use gate_up::GateUpCall;
pub use mxfp8::{Mxfp8Call, Mxfp8Matrix};
pub use quantize::{QuantizeCall, QuantizeError, Quantizer};
pub use tickets::Tickets;

/// Where a matrix stands, or one matrix for each group.
///
/// Strides that aren't set are packed.
///
/// ```
/// use mok::{DevicePtr, gemm::Matrix};
///
/// // The gate half of a fused [experts, 2 * 128, 64] tensor.
/// let gate = Matrix::new(DevicePtr::from_raw(0x1000)).with_group_stride(2 * 128 * 64);
/// # let _ = gate;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    ptr: DevicePtr,
    row_stride: Option<u64>,
    group_stride: Option<u64>,
    /// Bytes behind the pointer, where known.
    bytes: Option<u64>,
}

impl Matrix {
    /// A matrix at an address; how much memory is there is the caller's word.
    pub fn new(ptr: DevicePtr) -> Matrix {
        Matrix {
            ptr,
            row_stride: None,
            group_stride: None,
            bytes: None,
        }
    }

    /// A matrix in a buffer, whose length is checked.
    pub fn of<T: Pod>(buffer: &Buffer<T>) -> Matrix {
        Matrix::in_slice(&buffer.view())
    }

    /// A matrix in a part of a buffer, whose length is checked.
    pub fn in_slice<T: Pod>(slice: &Slice<'_, T>) -> Matrix {
        let bytes = (slice.len() * size_of::<T>()) as u64;
        Matrix {
            bytes: Some(bytes),
            ..Matrix::new(slice.ptr())
        }
    }

    /// Elements from one row to the next.
    pub fn with_row_stride(mut self, elements: u64) -> Self {
        self.row_stride = Some(elements);
        self
    }

    /// Elements from one group's matrix to the next.
    pub fn with_group_stride(mut self, elements: u64) -> Self {
        self.group_stride = Some(elements);
        self
    }

    /// With its strides worked out for an extent.
    fn place(self, rows: u64, cols: u64, groups: u64) -> Placed {
        let row_stride = self.row_stride.unwrap_or(cols);
        let group_stride = match groups {
            // Never stepped over, but a tensor map wants a stride within its limits.
            1 => row_stride,
            _ => self.group_stride.unwrap_or(rows.saturating_mul(row_stride)),
        };
        Placed {
            matrix: self,
            rows,
            cols,
            groups,
            row_stride,
            group_stride,
        }
    }
}

/// A matrix with its extent: `groups` times `rows` by `cols`.
#[derive(Clone, Copy, Debug)]
struct Placed {
    matrix: Matrix,
    rows: u64,
    cols: u64,
    groups: u64,
    row_stride: u64,
    group_stride: u64,
}

/// Sizes of the groups, in device memory, and the rows that there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRows {
    /// Device address of `u32 [groups]`.
    pub sizes: DevicePtr,
    /// Number of groups.
    pub groups: u32,
    /// Rows of A (and of D, or of B in wgrad); a multiple of 128, at most 2^31.
    pub capacity: u32,
    /// Device address of a `u64` for the rows needed when `capacity` is too small.
    pub overflow: Option<DevicePtr>,
}

impl GroupRows {
    /// With a word that tells of an overflow; see [`OverflowWord`].
    pub fn with_overflow(mut self, word: DevicePtr) -> Self {
        self.overflow = Some(word);
        self
    }

    /// With room for this many rows.
    pub fn with_capacity(mut self, rows: u32) -> Self {
        self.capacity = rows;
        self
    }
}

/// One grouped GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmCall {
    form: Form,
    rows: GroupRows,
    /// Rows of D in a group (wgrad).
    m: u32,
    n: u32,
    /// Contraction length (forward, dgrad).
    k: u32,
    a: Matrix,
    b: Matrix,
    d: Matrix,
    sink: Sink,
}

impl GemmCall {
    /// `D[r, n] = sum_k A[r, k] B[g, n, k]`: A `[capacity, k]`, B `[groups, n, k]`, D `[capacity, n]`.
    pub fn forward(rows: GroupRows, n: u32, k: u32, a: Matrix, b: Matrix, d: Matrix) -> GemmCall {
        GemmCall {
            form: Form::Forward,
            rows,
            m: 0,
            n,
            k,
            a,
            b,
            d,
            sink: Sink::Bf16,
        }
    }

    /// `D[r, n] = sum_k A[r, k] B[g, k, n]`: A `[capacity, k]`, B `[groups, k, n]`, D `[capacity, n]`.
    pub fn dgrad(rows: GroupRows, n: u32, k: u32, a: Matrix, b: Matrix, d: Matrix) -> GemmCall {
        GemmCall {
            form: Form::Dgrad,
            ..GemmCall::forward(rows, n, k, a, b, d)
        }
    }

    /// `D[g, m, n] = sum_r A[r, m] B[r, n]`: A `[capacity, m]`, B `[capacity, n]`, D `[groups, m, n]`.
    pub fn wgrad(rows: GroupRows, m: u32, n: u32, a: Matrix, b: Matrix, d: Matrix) -> GemmCall {
        GemmCall {
            form: Form::Wgrad,
            rows,
            m,
            n,
            k: 0,
            a,
            b,
            d,
            sink: Sink::Bf16,
        }
    }

    /// Where the product goes; fresh bf16 if never called. Others are for wgrad only.
    pub fn with_sink(mut self, sink: Sink) -> Self {
        self.sink = sink;
        self
    }

    /// Which form.
    pub fn form(&self) -> Form {
        self.form
    }

    fn placed_a(&self) -> Placed {
        let cols = if self.form == Form::Wgrad {
            self.m
        } else {
            self.k
        };
        self.a.place(self.rows.capacity.into(), cols.into(), 1)
    }

    fn placed_b(&self) -> Placed {
        let (groups, n, k) = (self.rows.groups.into(), self.n.into(), self.k.into());
        match self.form {
            Form::Forward => self.b.place(n, k, groups),
            Form::Dgrad => self.b.place(k, n, groups),
            Form::Wgrad => self.b.place(self.rows.capacity.into(), n, 1),
        }
    }

    fn placed_d(&self) -> Placed {
        match self.form {
            Form::Wgrad => self
                .d
                .place(self.m.into(), self.n.into(), self.rows.groups.into()),
            _ => self.d.place(self.rows.capacity.into(), self.n.into(), 1),
        }
    }

    /// Whether there is anything to do: a result to write, or an overflow to tell of.
    fn launches(&self) -> bool {
        let fresh = self.form == Form::Wgrad && !self.sink.adds();
        self.rows.groups > 0 && (self.rows.capacity > 0 || fresh || self.rows.overflow.is_some())
    }

    /// The most tiles that any group sizes within the capacity make, so many times over; saturated,
    /// since `grid` may be asked before `check`.
    fn tiles(&self, times: u64) -> u64 {
        let tiles = |extent: u32, of: u32| u64::from(extent.div_ceil(of));
        match self.form {
            // Each group may have begun a tile and not filled it.
            Form::Forward | Form::Dgrad => {
                let begun = u64::from(self.rows.groups.min(self.rows.capacity.div_ceil(ROW_ALIGN)));
                (tiles(self.rows.capacity, MAX_WIDTH) + begun) * tiles(self.n, SIDE) * times
            }
            Form::Wgrad => u64::from(self.rows.groups)
                .saturating_mul(tiles(self.m, SIDE))
                .saturating_mul(tiles(self.n, MAX_WIDTH)),
        }
    }

    /// Blocks of the launch on this many SMs, before they make
    /// [whole clusters](crate::launch::KernelSpec::whole_clusters); 0 if there is nothing to launch.
    pub fn grid(&self, sms: u32) -> u32 {
        self.grid_of(sms, 1)
    }

    fn grid_of(&self, sms: u32, times: u64) -> u32 {
        match self.launches() {
            true => u64::from(sms).min(self.tiles(times)).max(1) as u32,
            false => 0,
        }
    }

    /// Tensor maps of A, one for each box that it's loaded in, of B and D.
    pub fn tensor_maps(&self) -> Vec<TensorMapSpec> {
        let (a, b, d) = (self.placed_a(), self.placed_b(), self.placed_d());
        // A tensor map can't have a dimension of 0. Without rows nothing is loaded or stored, so one
        // row at an address that is there anyway will do.
        let stand_in = match self.form {
            Form::Wgrad => self.d.ptr,
            Form::Forward | Form::Dgrad => self.b.ptr,
        };
        let rows = || a.boxes_of_rows(DataType::Bf16, stand_in);
        let b_and_d = |tile: &[u32; 3]| {
            [
                b.groups_map(tile, DataType::Bf16),
                d.rows_map(&boxes::ROWS_D, DataType::Bf16, stand_in),
            ]
        };
        match self.form {
            Form::Forward => [&rows()[..], &b_and_d(&boxes::FORWARD_B)].concat(),
            Form::Dgrad => [&rows()[..], &b_and_d(&boxes::DGRAD_B)].concat(),
            Form::Wgrad => vec![
                a.rows_map(&boxes::WGRAD, DataType::Bf16, stand_in),
                b.rows_map(&boxes::WGRAD, DataType::Bf16, stand_in),
                match self.sink {
                    Sink::Bf16 | Sink::AddBf16 => d.groups_map(&boxes::WGRAD_D, DataType::Bf16),
                    Sink::F32 | Sink::AddF32 => d.groups_map(&boxes::WGRAD_D_F32, DataType::F32),
                },
            ],
        }
    }

    /// What the entry takes after the tensor maps; [`Tickets::with`] gives the tickets.
    pub fn args(&self, tickets: DevicePtr) -> GemmArgs {
        let d = self.placed_d();
        GemmArgs {
            d: self.d.ptr.as_raw(),
            d_row_stride: d.row_stride,
            d_group_stride: d.group_stride,
            group_rows: self.rows.sizes.as_raw(),
            overflow: self.rows.overflow.unwrap_or(DevicePtr::NULL).as_raw(),
            tickets: tickets.as_raw(),
            groups: self.rows.groups,
            capacity: self.rows.capacity,
            m: self.m,
            n: self.n,
            k: self.k,
            sink: self.sink as u32,
        }
    }
}

impl Placed {
    fn map(
        &self,
        data_type: DataType,
        dims: &[u64],
        strides: &[u64],
        tile: &[u32],
        base: DevicePtr,
    ) -> TensorMapSpec {
        let bytes = |&stride: &u64| stride.saturating_mul((data_type.bits() / 8).into());
        TensorMapSpec::new(data_type, base)
            .with_dims(dims)
            .with_strides(&strides.iter().map(bytes).collect::<Vec<u64>>())
            .with_tile(tile)
            .with_swizzle(Swizzle::B128)
    }

    /// The rows that a tile loads, in each of their boxes.
    fn boxes_of_rows(&self, data_type: DataType, stand_in: DevicePtr) -> [TensorMapSpec; 3] {
        boxes::ROWS.map(|rows| self.rows_map(&boxes::rows_a(rows), data_type, stand_in))
    }

    /// `(cols, rows)`, or one row at `stand_in` where there are none.
    fn rows_map(&self, tile: &[u32; 2], data_type: DataType, stand_in: DevicePtr) -> TensorMapSpec {
        let (base, rows) = match self.rows {
            0 => (stand_in, 1),
            rows => (self.matrix.ptr, rows),
        };
        let dims = [self.cols, rows];
        self.map(data_type, &dims, &[self.row_stride], tile, base)
    }

    /// `(cols, rows, groups)`.
    fn groups_map(&self, tile: &[u32; 3], data_type: DataType) -> TensorMapSpec {
        let dims = [self.cols, self.rows, self.groups];
        let strides = [self.row_stride, self.group_stride];
        self.map(data_type, &dims, &strides, tile, self.matrix.ptr)
    }
}

/// A word on the device that tells of groups that need more rows than there is room for.
///
/// ```no_run
/// # let device = mok::Device::cuda(0)?;
/// # let groups = mok::Groups::new(&[100])?;
/// # let sizes = device.buffer_from(groups.sizes())?;
/// let word = mok::gemm::OverflowWord::new(&device)?;
/// let rows = groups.at(sizes.ptr()).with_overflow(word.ptr());
/// // ... enqueue, then:
/// word.check(&rows)?; // an error with the rows needed
/// # Ok::<(), mok::Error>(())
/// ```
#[derive(Debug)]
pub struct OverflowWord {
    word: Buffer<u64>,
}

impl OverflowWord {
    /// A word that tells of nothing yet.
    pub fn new(device: &Device) -> Result<OverflowWord> {
        Ok(OverflowWord {
            word: device.buffer_zeroed(1)?,
        })
    }

    /// Its address.
    pub fn ptr(&self) -> DevicePtr {
        self.word.ptr()
    }

    /// Waits for the device, and returns the rows needed if they were too many.
    pub fn needed(&self) -> Result<Option<u64>> {
        let needed = self.word.to_vec()?;
        Ok(needed.first().copied().filter(|&rows| rows != 0))
    }

    /// Waits for the device; an error if the groups needed more rows than there was room for.
    pub fn check(&self, rows: &GroupRows) -> Result<()> {
        match self.needed()? {
            None => Ok(()),
            Some(needed) => Err(GemmError::Overflow {
                needed,
                capacity: rows.capacity,
            }
            .into()),
        }
    }

    /// Makes it tell of nothing again.
    pub fn reset(&mut self) -> Result<()> {
        self.word.fill(0)
    }
}

/// The entries, ready to launch on one device.
///
/// ```no_run
/// use half::bf16;
/// use mok::{Device, Groups, gemm::{GemmCall, GroupedGemm, Matrix}};
///
/// let device = Device::cuda(0)?;
/// let stream = device.stream()?;
/// let groups = Groups::new(&[300, 0, 77])?;
/// let (n, k) = (256, 128);
///
/// let sizes = device.buffer_from(groups.sizes())?;
/// let a = device.buffer_zeroed::<bf16>(groups.capacity() as usize * k)?;
/// let b = device.buffer_zeroed::<bf16>(groups.len() * n * k)?;
/// let d = device.buffer_uninit::<bf16>(groups.capacity() as usize * n)?;
///
/// let [a, b, d] = [&a, &b, &d].map(Matrix::of);
/// let call = GemmCall::forward(groups.at(sizes.ptr()), n as u32, k as u32, a, b, d);
/// // SAFETY: the buffers live until the synchronisation, and only this call uses them.
/// unsafe { GroupedGemm::new(&device)?.enqueue(&call, &stream) }?;
/// stream.synchronize()?;
/// # Ok::<(), mok::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GroupedGemm {
    device: Device,
    kernels: [Kernel; 3],
    gate_up: Kernel,
    /// Where the architecture multiplies it.
    mxfp8: Option<Kernel>,
    /// Where it doesn't.
    dequantize: Kernel,
    /// What the kernels are for.
    arch: Arch,
    sms: u32,
    tickets: Arc<Tickets>,
}

impl GroupedGemm {
    /// The shipped kernels, on all SMs.
    pub fn new(device: &Device) -> Result<GroupedGemm> {
        let kernels = device.kernels()?;
        Ok(GroupedGemm {
            device: device.clone(),
            kernels: Form::ALL.map(|form| kernels.gemm(form).clone()),
            gate_up: kernels.gate_up().clone(),
            mxfp8: kernels.mxfp8().cloned(),
            dequantize: kernels.dequantize().clone(),
            arch: device.arch()?,
            sms: device.sm_count(),
            tickets: Arc::new(Tickets::new(device)?),
        })
    }

    /// The entries of another build of the kernels, loaded on this device.
    pub fn from_module(device: &Device, module: &Module) -> Result<GroupedGemm> {
        if module.backend().identity() != device.backend().identity() {
            return Err(Error::OtherDevice {
                call: "GroupedGemm::from_module",
                what: "module",
            });
        }
        let arch = device.arch()?;
        let [forward, dgrad, wgrad] = Form::ALL.map(|form| module.kernel(form.spec(arch)));
        let kernels = [forward?, dgrad?, wgrad?];
        Ok(GroupedGemm {
            device: device.clone(),
            kernels,
            gate_up: module.kernel(mok_kernel::gate_up::spec(arch))?,
            mxfp8: mok_kernel::mxfp8::forward(arch)
                .map(|spec| module.kernel(spec))
                .transpose()?,
            dequantize: module.kernel(&mok_kernel::mxfp8::DEQUANTIZE)?,
            arch,
            sms: device.sm_count(),
            tickets: Arc::new(Tickets::new(device)?),
        })
    }

    /// At most this many blocks, but for one cluster; results don't depend on it.
    pub fn with_sms(mut self, sms: u32) -> Result<GroupedGemm> {
        let limit = self.device.limits().max_grid[0];
        if sms == 0 || sms > limit {
            return Err(GemmError::Sms { sms, limit }.into());
        }
        self.sms = sms;
        Ok(self)
    }

    /// A launch of so many blocks, in whole clusters.
    fn launch<'k>(&self, kernel: &'k Kernel, blocks: u32, rows: &GroupRows) -> Launch<'k> {
        kernel
            .launch()
            .grid([kernel.spec().whole_clusters(blocks), 1, 1])
            .shared(shared_bytes(self.arch, rows.groups))
    }

    /// Checks a call and enqueues it. Launches nothing if there is nothing to do.
    ///
    /// # Safety
    /// The addresses in the call point to live device memory of the extents it states, `sizes`
    /// to the sizes of its groups; D overlaps neither A nor B; and until the stream has passed
    /// the call nothing else writes to them, or touches D. Graphs that hold calls captured on one stream,
    /// through this or its clones, are not run at the same time.
    pub unsafe fn enqueue(&self, call: &GemmCall, stream: &Stream) -> Result<()> {
        call.check()?;
        let grid = call.grid(self.sms);
        if grid == 0 {
            return Ok(());
        }
        let mut launch = self.launch(&self.kernels[call.form as usize], grid, &call.rows);
        for map in call.tensor_maps() {
            launch = launch.map(&self.device.tensor_map(&map)?);
        }
        self.tickets.with(stream, |tickets| {
            // SAFETY: the arguments are the entry's, and their memory is by this function's contract.
            unsafe { launch.arg(&call.args(tickets)).enqueue(stream) }
        })
    }
}

#[cfg(test)]
mod tests;
