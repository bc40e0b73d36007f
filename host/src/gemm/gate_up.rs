//! Gate-and-up: a layer's first two products and its activation in one launch.

use mok_kernel::gate_up::{ALTERNATION, GateUpArgs, WEIGHTS};

use super::{GemmCall, GemmError, GroupRows, GroupedGemm, Matrix, Placed};
use crate::error::Result;
use crate::memory::DevicePtr;
use crate::stream::Stream;
use crate::tensor_map::{DataType, Swizzle, TensorMapSpec};

/// `H[r, i] = silu(G[r, i]) * U[r, i]` with `G = X gate^T` and `U = X up^T`, for the rows of every
/// group: G and U are rounded to bf16, so H has the bits that two products and the activation on
/// their own give.
///
/// ```no_run
/// use half::bf16;
/// use mok::{Device, Groups, gemm::{GateUpCall, GroupedGemm, Matrix}};
///
/// let device = Device::cuda(0)?;
/// let stream = device.stream()?;
/// let groups = Groups::new(&[300, 0, 77])?;
/// let (intermediate, hidden) = (256, 128);
///
/// let sizes = device.buffer_from(groups.sizes())?;
/// let x = device.buffer_zeroed::<bf16>(groups.capacity() as usize * hidden)?;
/// // A fused [groups, 2 * intermediate, hidden] tensor: gate's rows, then up's.
/// let half = intermediate * hidden;
/// let weights = device.buffer_zeroed::<bf16>(groups.len() * 2 * half)?;
/// let gate = Matrix::of(&weights).with_group_stride(2 * half as u64);
/// let up = Matrix::in_slice(&weights.slice(half..)?).with_group_stride(2 * half as u64);
/// let h = device.buffer_uninit::<bf16>(groups.capacity() as usize * intermediate)?;
///
/// let (n, k) = (intermediate as u32, hidden as u32);
/// let rows = groups.at(sizes.ptr());
/// let call = GateUpCall::new(rows, n, k, Matrix::of(&x), [gate, up], Matrix::of(&h));
/// // SAFETY: the buffers live until the synchronisation, and only this call uses them.
/// unsafe { GroupedGemm::new(&device)?.enqueue_gate_up(&call, &stream) }?;
/// stream.synchronize()?;
/// # Ok::<(), mok::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateUpCall {
    /// With gate as B, and H as D.
    product: GemmCall,
    up: Matrix,
    limit: f32,
    kept: Option<[Matrix; 2]>,
}

/// Where both weights stand in memory.
#[derive(Clone, Copy, Debug)]
struct Pair {
    /// What comes first, with its strides.
    first: Placed,
    /// Bytes from it to the other.
    apart: u64,
    up_first: bool,
}

impl GateUpCall {
    /// X `[capacity, k]`, gate and up `[groups, n, k]`, H `[capacity, n]`.
    pub fn new(
        rows: GroupRows,
        n: u32,
        k: u32,
        x: Matrix,
        [gate, up]: [Matrix; 2],
        h: Matrix,
    ) -> GateUpCall {
        GateUpCall {
            product: GemmCall::forward(rows, n, k, x, gate, h),
            up,
            limit: f32::INFINITY,
            kept: None,
        }
    }

    /// With G clamped to at most `limit` and U to plus and minus it, before the activation.
    pub fn with_limit(mut self, limit: f32) -> Self {
        self.limit = limit;
        self
    }

    /// Also writes G and U (before the clamps), `[capacity, n]` each, as a backward pass wants them.
    pub fn keeping(mut self, gate: Matrix, up: Matrix) -> Self {
        self.kept = Some([gate, up]);
        self
    }

    /// Whether the weights lie so that one launch can take them: the same strides for both, and a
    /// distance that a tensor map can state (a multiple of 16 bytes, under 2^40). Halves of one
    /// tensor do, and mostly any two tensors of one shape. [`GateUpCall::check`] says what doesn't.
    pub fn fits(&self) -> bool {
        self.pair().is_ok()
    }

    fn placed_up(&self) -> Placed {
        GemmCall {
            b: self.up,
            ..self.product
        }
        .placed_b()
    }

    fn placed_kept(&self) -> Option<[Placed; 2]> {
        let product = &self.product;
        let place = |kept: Matrix| {
            GemmCall {
                d: kept,
                ..*product
            }
            .placed_d()
        };
        self.kept.map(|kept| kept.map(place))
    }

    fn pair(&self) -> Result<Pair, GemmError> {
        let (gate, up) = (self.product.placed_b(), self.placed_up());
        for (what, gate, up) in [
            ("row", gate.row_stride, up.row_stride),
            ("group", gate.group_stride, up.group_stride),
        ] {
            if gate != up {
                return Err(GemmError::Unlike { what, gate, up });
            }
        }
        let (gate_at, up_at) = (gate.matrix.ptr.as_raw(), up.matrix.ptr.as_raw());
        let apart = gate_at.abs_diff(up_at);
        if apart == 0 || !apart.is_multiple_of(16) || apart >= 1 << 40 {
            return Err(GemmError::Apart { bytes: apart });
        }
        let up_first = up_at < gate_at;
        Ok(Pair {
            first: if up_first { up } else { gate },
            apart,
            up_first,
        })
    }

    /// Checks every limit, without a device.
    ///
    /// # Errors
    /// As [`GemmCall::check`]; weights that one launch can't take; a limit that isn't positive.
    pub fn check(&self) -> Result<()> {
        let product = &self.product;
        product.check_sizes(2)?;
        if self.limit.is_nan() || self.limit <= 0.0 {
            return Err(GemmError::Limit { limit: self.limit }.into());
        }
        if product.rows.groups == 0 {
            return Ok(());
        }
        product.check_group_rows()?;
        product.placed_a().check("X", 2)?;
        product.placed_b().check("gate", 2)?;
        self.placed_up().check("up", 2)?;
        product.placed_d().check("H", 2)?;
        if let Some([gate, up]) = self.placed_kept() {
            gate.check("the kept gate", 2)?;
            up.check("the kept up", 2)?;
        }
        let maps = self.tensor_maps()?;
        if product.launches() {
            for map in maps {
                map.check()?;
            }
        }
        Ok(())
    }

    /// As [`GemmCall::check_rows`].
    pub(crate) fn check_rows(&self, capacity: u32) -> Result<(), GemmError> {
        self.product.with_capacity(capacity).check_sizes(2)
    }

    /// Blocks of the launch on this many SMs, as [`GemmCall::grid`]; 0 if there is nothing to launch.
    pub fn grid(&self, sms: u32) -> u32 {
        self.product.grid_of(sms, 2)
    }

    /// Tensor maps of X, one for each box that it's loaded in, and of the weights.
    pub fn tensor_maps(&self) -> Result<[TensorMapSpec; 4], GemmError> {
        let Pair { first, apart, .. } = self.pair()?;
        let x = self.product.placed_a();
        let bytes = |elements: u64| elements.saturating_mul(2);
        let step = u64::from(ALTERNATION);
        let dims = [first.cols, step, 2, first.rows / step, first.groups];
        let strides = [
            bytes(first.row_stride),
            apart,
            bytes(first.row_stride.saturating_mul(step)),
            bytes(first.group_stride),
        ];
        let weights = TensorMapSpec::new(DataType::Bf16, first.matrix.ptr)
            .with_dims(&dims)
            .with_strides(&strides)
            .with_tile(&WEIGHTS)
            .with_swizzle(Swizzle::B128);
        let [most, more, few] = x.boxes_of_rows(DataType::Bf16, first.matrix.ptr);
        Ok([most, more, few, weights])
    }

    /// What the entry takes after the tensor maps; [`Tickets::with`](super::Tickets::with) gives the tickets.
    pub fn args(&self, tickets: DevicePtr) -> Result<GateUpArgs, GemmError> {
        let up_first = self.pair()?.up_first;
        let kept = self.placed_kept();
        let of = |which: usize| {
            kept.map_or((0, 0), |kept| {
                (kept[which].matrix.ptr.as_raw(), kept[which].row_stride)
            })
        };
        let ((gate, gate_row_stride), (up, up_row_stride)) = (of(0), of(1));
        Ok(GateUpArgs {
            gemm: self.product.args(tickets),
            gate,
            up,
            gate_row_stride,
            up_row_stride,
            limit: self.limit.to_bits(),
            up_first: up_first.into(),
        })
    }
}

impl GroupedGemm {
    /// Checks a call and enqueues it. Launches nothing if there is nothing to do.
    ///
    /// # Safety
    /// As [`GroupedGemm::enqueue`], for all matrices that the call names; H and what is kept overlap
    /// nothing else.
    pub unsafe fn enqueue_gate_up(&self, call: &GateUpCall, stream: &Stream) -> Result<()> {
        call.check()?;
        let grid = call.grid(self.sms);
        if grid == 0 {
            return Ok(());
        }
        let mut launch = self.launch(&self.gate_up, grid, &call.product.rows);
        for map in call.tensor_maps()? {
            launch = launch.map(&self.device.tensor_map(&map)?);
        }
        self.tickets.with(stream, |tickets| {
            // SAFETY: the arguments are the entry's, and their memory is by this function's contract.
            unsafe { launch.arg(&call.args(tickets)?).enqueue(stream) }
        })
    }
}

#[cfg(test)]
mod tests;
