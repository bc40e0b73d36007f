//! The forward pass in one launch.

use mok_kernel::failure::Wait;
use mok_kernel::forward::{ExpertArgs, ForwardArgs, MAPS, shared_bytes, spec, widest};
use mok_kernel::gemm::ROW_ALIGN;
use mok_kernel::schedule::forward::{PLACE, Places};

use super::config::MoeConfig;
use super::error::LayerError;
use super::forward::{Expert, GateUp, Pass};
use super::workspace::Workspace;
use crate::error::Result;
use crate::memory::DevicePtr;
use crate::module::Kernel;
use crate::tensor_map::{DataType, Swizzle, TensorMapSpec};

/// What its words are counted for: strips of the routed experts, and of the shared one. Each takes at
/// least a segment.
pub(super) fn strips(capacity: u32, shared_rows: u32) -> [u32; 2] {
    [capacity, shared_rows].map(|rows| rows / ROW_ALIGN)
}

/// Where strips of up to `widest` rows lie, and how many make a minibatch.
fn places(config: &MoeConfig, widest: u32) -> Places {
    Places::new(config.macrobatch_rows, config.minibatch_rows, widest)
}

/// Rows of the places that strips of so many rows come to.
pub(super) fn held(config: &MoeConfig, capacity: u32) -> u32 {
    let [strips, _] = strips(capacity, 0);
    let rows = u64::from(places(config, PLACE).count.min(strips)) * u64::from(PLACE);
    // As products take them. Settings that nobody has checked may give more than that.
    u32::try_from(rows.next_multiple_of(ROW_ALIGN.into())).unwrap_or(u32::MAX)
}

/// An expert's part of the launch; without one, what is never looked at.
fn part(
    expert: Option<&Expert>,
    stand_in: &TensorMapSpec,
) -> Result<(ExpertArgs, Vec<TensorMapSpec>)> {
    let Some(Expert { gate_up, down }) = expert else {
        let none = bytemuck::Zeroable::zeroed();
        return Ok((none, vec![stand_in.clone(); MAPS]));
    };
    let GateUp::Together(both) = gate_up else {
        // The call has been checked for it.
        return Err(LayerError::Fused.into());
    };
    let nothing = DevicePtr::NULL;
    let args = ExpertArgs {
        gate_up: both.args(nothing)?,
        down: down.args(nothing),
    };
    let maps = [&both.tensor_maps()?[..], &down.tensor_maps()].concat();
    Ok((args, maps))
}

impl Workspace {
    /// The kernel of a pass in one launch, if that is what is configured.
    pub(super) fn fused(&self) -> Option<&Kernel> {
        self.words.as_ref().map(|_| &self.kernels.forward)
    }
}

impl Pass<'_> {
    /// [`Pass::enqueue`] with one launch.
    ///
    /// # Safety
    /// As [`MoeLayer::forward`](super::MoeLayer::forward), which has checked the call.
    pub(super) unsafe fn enqueue_fused(
        &self,
        kernel: &Kernel,
        x: DevicePtr,
        router_weights: DevicePtr,
        out: DevicePtr,
    ) -> Result<()> {
        let workspace = self.workspace();
        let config = &workspace.config;
        let (region, plan) = workspace.region();
        let deadline = |wait| u64::try_from(config.deadline(wait).as_nanos()).unwrap_or(u64::MAX);
        let stand_in = TensorMapSpec::new(DataType::Bf16, DevicePtr::from_raw(region + plan.x))
            .with_dims(&[64, 1])
            .with_strides(&[128])
            .with_tile(&[64, 1])
            .with_swizzle(Swizzle::B128);
        let [routed, shared] = self.calls();
        let (mut routed, routed_maps) = part(routed.as_ref(), &stand_in)?;
        // As the schedule says: a rank that has failed draws no tiles. All rows count, though not all are held.
        routed.gate_up.gemm.group_rows = self.schedule.sizes();
        routed.gate_up.gemm.capacity = workspace.parts.capacity;
        let (shared, shared_maps) = part(shared.as_ref(), &stand_in)?;
        let (parts, arch) = (&workspace.parts, workspace.device.arch()?);
        let places = places(config, widest(arch));
        let trace = workspace.trace();
        let args = ForwardArgs {
            moves: self.move_args(),
            weigh: self.weigh_args(router_weights, out, 0),
            routed,
            shared,
            words: workspace
                .words
                .as_ref()
                .map_or(0, |words| words.ptr().as_raw()),
            x: x.as_raw(),
            tokens_deadline: deadline(Wait::Tokens),
            results_deadline: deadline(Wait::Results),
            strips: strips(parts.capacity, parts.shared_rows)[0],
            places: places.count,
            minibatch: places.minibatch,
            trace_records: trace.as_ref().map_or(0, |trace| trace.records),
            trace: trace.as_ref().map_or(0, |trace| trace.words.ptr().as_raw()),
        };
        // Whole clusters, at least one.
        let cluster = spec(arch).cluster;
        let blocks = (workspace.device.sm_count() / cluster).max(1) * cluster;
        let groups = args.routed.gate_up.gemm.groups;
        let maps: Vec<_> = [routed_maps, shared_maps]
            .concat()
            .iter()
            .map(|map| workspace.device.tensor_map(map))
            .collect::<Result<_>>()?;
        let launch = kernel.launch().grid([blocks, 1, 1]);
        let launch = launch.shared(shared_bytes(arch, groups)).maps(&maps);
        // SAFETY: this function's contract, and the workspace's and the schedule's buffers.
        unsafe { launch.arg(&args).enqueue(self.stream) }
    }
}
