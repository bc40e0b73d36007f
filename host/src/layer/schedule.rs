//! Who computes which route, and in which row: made on the device from all ranks' choices.

use std::sync::Arc;

use mok_kernel::failure::{Code, Wait};
use mok_kernel::route::{Route, SEGMENT, local_experts};
use mok_kernel::unfused::{AbortArgs, MOVE_THREADS, PublishArgs, ScheduleArgs, SignalArgs};

use super::workspace::Workspace;
use super::{check_pointer, grid_of};
use crate::error::Result;
use crate::gemm::GroupRows;
use crate::layer::LayerError;
use crate::memory::{Buffer, DevicePtr};
use crate::stream::Stream;

/// The rows of a rank's experts. Filled by [`MoeLayer::schedule`](super::MoeLayer::schedule), and
/// kept for as many passes as use the same choice of experts.
#[derive(Debug)]
pub struct Schedule {
    pub(super) workspace: Arc<Workspace>,
    /// What it was last filled for.
    pub(super) made: Option<Made>,
    /// The first bad route, then the route of each row; all ones to begin with.
    routes: Buffer<u32>,
    /// Rows of each local expert.
    sizes: Buffer<u32>,
    /// Rows with padding, then tokens of this rank.
    totals: Buffer<u32>,
    /// The choice of experts, kept for the weighted sum.
    topk_experts: Buffer<i32>,
}

/// What a schedule was filled for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    /// Tokens of this rank.
    pub tokens: u32,
    /// How often the workspace had been recovered: errors take schedules with them.
    pub recoveries: u64,
}

/// Words in front of the routes.
const BAD: usize = 2;

impl Schedule {
    /// Room for a schedule; not collective.
    pub fn new(workspace: &Arc<Workspace>) -> Result<Schedule> {
        let device = &workspace.device;
        let parts = &workspace.parts;
        let topk = workspace.config.max_tokens as usize * workspace.config.top_k as usize;
        Ok(Schedule {
            made: None,
            routes: device.buffer_uninit(BAD + parts.capacity as usize)?,
            sizes: device.buffer_zeroed(parts.most_local as usize)?,
            totals: device.buffer_zeroed(2)?,
            topk_experts: device.buffer_uninit(topk)?,
            workspace: workspace.clone(),
        })
    }

    /// The rows as they are now: for each the rank, token and k of its route, or none where a
    /// segment is padded. Waits for the device.
    pub fn to_rows(&self) -> Result<Vec<Option<(u32, u32, u32)>>> {
        let rows = self.totals.to_vec()?.first().copied().unwrap_or(0) as usize;
        let routes = self.routes.slice(BAD..BAD + rows)?.to_vec()?;
        let route = |word| Some(Route(word)).filter(|route| !route.is_padding());
        let parts = |route: Route| (route.rank(), route.token(), route.k());
        Ok(routes
            .into_iter()
            .map(|word| route(word).map(parts))
            .collect())
    }

    /// Address of the route of each row.
    pub(super) fn routes(&self) -> u64 {
        self.routes.ptr().as_raw() + 4 * BAD as u64
    }

    /// Address of the rows of each local expert.
    pub(super) fn sizes(&self) -> u64 {
        self.sizes.ptr().as_raw()
    }

    /// Address of the number of rows.
    pub(super) fn row_total(&self) -> u64 {
        self.totals.ptr().as_raw()
    }

    /// Address of the number of tokens.
    pub(super) fn token_count(&self) -> u64 {
        self.totals.ptr().as_raw() + 4
    }

    pub(super) fn topk_experts(&self) -> u64 {
        self.topk_experts.ptr().as_raw()
    }

    /// The groups of the routed experts' GEMMs.
    pub(super) fn groups(&self) -> GroupRows {
        GroupRows {
            sizes: self.workspace.buffers().sizes.ptr(),
            groups: self.workspace.local_experts(),
            capacity: self.workspace.parts.capacity,
            overflow: None,
        }
    }

    /// The one group of the shared expert's GEMMs.
    pub(super) fn shared_group(&self) -> GroupRows {
        GroupRows {
            sizes: DevicePtr::from_raw(self.token_count()),
            groups: 1,
            capacity: self.workspace.parts.shared_rows,
            overflow: None,
        }
    }

    fn check(&self, topk_experts: DevicePtr, tokens: u32) -> Result<()> {
        let most = self.workspace.config.max_tokens;
        if tokens > most {
            return Err(LayerError::Range {
                what: "tokens",
                value: tokens.into(),
                least: 0,
                most: most.into(),
            }
            .into());
        }
        check_pointer("topk_experts", topk_experts, tokens.into())
    }

    /// # Safety
    /// As [`MoeLayer::schedule`](super::MoeLayer::schedule).
    pub(super) unsafe fn enqueue(
        &mut self,
        topk_experts: DevicePtr,
        tokens: u32,
        stream: &Stream,
    ) -> Result<()> {
        let workspace = self.workspace.clone();
        workspace.or_abort(self.check(topk_experts, tokens), stream)?;
        let (kernels, config) = (&workspace.kernels, &workspace.config);
        let (parts, buffers) = (&workspace.parts, workspace.buffers());
        let rank = workspace.rank_args();
        let args = ScheduleArgs {
            rank,
            totals: buffers.totals.ptr().as_raw(),
            counts: buffers.counts.ptr().as_raw(),
            bad: self.routes.ptr().as_raw(),
            sizes: self.sizes.ptr().as_raw(),
            rows: self.routes(),
            row_total: self.row_total(),
            experts: config.experts,
            top_k: config.top_k,
            chunk_tokens: parts.chunk_tokens,
            chunks: parts.chunks,
            capacity: parts.capacity,
            padding: 0,
        };
        let publish = PublishArgs {
            rank,
            topk_experts: topk_experts.as_raw(),
            token_count: self.token_count(),
            tokens,
            top_k: config.top_k,
        };
        let routes = tokens * config.top_k;
        let blocks = routes.div_ceil(4 * MOVE_THREADS).clamp(1, 64);
        let local = workspace.local_experts();
        // SAFETY: buffers of this workspace and schedule, which outlive what is enqueued by this
        // function's contract, as do the caller's tensors.
        unsafe {
            let copy = (self.topk_experts.ptr(), topk_experts, 4 * u64::from(routes));
            workspace.copy(copy, stream)?;
            workspace.fill(
                (args.bad, 4 * (BAD as u64 + u64::from(parts.capacity))),
                0xff,
                stream,
            )?;
            workspace.fill((args.totals, 4 * u64::from(config.experts)), 0, stream)?;
            let launch = kernels.publish.launch().grid([blocks, rank.ranks, 1]);
            launch.arg(&publish).enqueue(stream)?;
            workspace.signal(Wait::Routes, stream)?;
            if parts.chunks > 0 {
                let launch = kernels.count.launch().grid([parts.chunks, 1, 1]);
                launch
                    .shared(4 * config.experts)
                    .arg(&args)
                    .enqueue(stream)?;
            }
            let launch = kernels.place.launch().grid([local.max(1), 1, 1]);
            launch.arg(&args).enqueue(stream)?;
            if parts.chunks > 0 && local > 0 {
                let launch = kernels.scatter.launch().grid([parts.chunks, 1, 1]);
                launch.shared(4 * local).arg(&args).enqueue(stream)?;
            }
            workspace.signal(Wait::Schedule, stream)?;
        }
        let recoveries = workspace.recoveries();
        self.made = Some(Made { tokens, recoveries });
        Ok(())
    }
}

impl Workspace {
    /// Experts of this rank.
    pub(super) fn local_experts(&self) -> u32 {
        let (rank, ranks) = self.rank();
        local_experts(rank as u32, self.config.experts, ranks as u32)
    }

    /// Waits on the device for all ranks.
    ///
    /// # Safety
    /// The workspace outlives what is enqueued.
    pub(super) unsafe fn signal(&self, wait: Wait, stream: &Stream) -> Result<()> {
        let deadline = match wait {
            Wait::Routes | Wait::Tokens => self.config.start_deadline,
            Wait::Schedule | Wait::Results => self.config.progress_deadline,
        };
        let args = SignalArgs {
            rank: self.rank_args(),
            deadline: u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX),
            wait: wait as u64,
        };
        let launch = self.kernels.signal.launch().grid([1, 1, 1]);
        // SAFETY: the workspace's own memory, and the peers' regions.
        unsafe { launch.arg(&args).enqueue(stream) }
    }

    /// A failed check on this host is the other ranks' failure too: none waits for this one.
    pub(super) fn or_abort<T>(&self, checked: Result<T>, stream: &Stream) -> Result<T> {
        if checked.is_err() {
            let args = AbortArgs {
                rank: self.rank_args(),
                code: Code::HostCheck as u64,
            };
            let launch = self.kernels.abort.launch().grid([1, 1, 1]);
            // SAFETY: the workspace's own memory, and the peers' regions. Should it fail, the
            // others' deadlines end their wait.
            let _ = unsafe { launch.arg(&args).enqueue(stream) };
        }
        checked
    }

    /// # Safety
    /// Both ranges are device memory that outlives what is enqueued.
    pub(super) unsafe fn copy(
        &self,
        (to, from, bytes): (DevicePtr, DevicePtr, u64),
        stream: &Stream,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let backend = self.device.backend();
        // SAFETY: the caller's contract.
        unsafe { backend.copy_within(to.as_raw(), from.as_raw(), bytes as usize, stream.handle()) }
    }

    /// # Safety
    /// The range is device memory that outlives what is enqueued.
    pub(super) unsafe fn fill(
        &self,
        (to, bytes): (u64, u64),
        byte: u8,
        stream: &Stream,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let backend = self.device.backend();
        // SAFETY: the caller's contract.
        unsafe { backend.fill(to, byte, bytes as usize, stream.handle()) }
    }

    /// Blocks of a kernel that gives each of so many rows a warp.
    pub(super) fn row_grid(&self, rows: u64) -> [u32; 3] {
        grid_of(rows, self.device.sm_count())
    }
}

const _: () = assert!(SEGMENT == mok_kernel::gemm::ROW_ALIGN);
