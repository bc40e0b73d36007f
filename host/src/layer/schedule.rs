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
    pub(super) topk_experts: Buffer<i32>,
    /// How rows travel, where the transport needs to know.
    pub(super) travel: Travel,
}

/// The lists of rows as they travel, and how many go where.
#[derive(Debug)]
pub(super) struct Travel {
    /// The routes of this rank's tokens, as they are sent.
    pub send: Buffer<u32>,
    /// This rank's rows, as they are received.
    pub receive: Buffer<u32>,
    /// Where each route stands in `send`.
    pub places: Buffer<u32>,
    /// Rows to each rank, and from each.
    pub counts: [Vec<u64>; 2],
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
        let topk = parts.routes() as usize;
        let [send, receive, places] = parts.lists();
        Ok(Schedule {
            made: None,
            routes: device.buffer_uninit(BAD + parts.capacity as usize)?,
            sizes: device.buffer_zeroed(parts.most_local as usize)?,
            totals: device.buffer_zeroed(2)?,
            topk_experts: device.buffer_uninit(topk)?,
            travel: Travel {
                send: device.buffer_uninit(send as usize)?,
                receive: device.buffer_uninit(receive as usize)?,
                places: device.buffer_uninit(places as usize)?,
                counts: [const { Vec::new() }; 2],
            },
            workspace: workspace.clone(),
        })
    }

    /// The rows as they are now: for each the rank, token and k of its route, or none where a
    /// segment is padded. Waits for the device.
    pub fn to_rows(&self) -> Result<Vec<Option<(u32, u32, u32)>>> {
        let routes = self.words()?;
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
            capacity: self.workspace.parts.held(),
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

    pub(super) fn check(&self, topk_experts: DevicePtr, tokens: u32) -> Result<()> {
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
        self.made = None;
        workspace.or_abort(self.check(topk_experts, tokens), stream)?;
        let config = &workspace.config;
        let publish = PublishArgs {
            rank: workspace.rank_args(),
            topk_experts: topk_experts.as_raw(),
            token_count: self.token_count(),
            tokens,
            top_k: config.top_k,
        };
        let routes = tokens * config.top_k;
        let blocks = routes.div_ceil(4 * MOVE_THREADS).clamp(1, 64);
        let grid = [blocks, publish.rank.ranks, 1];
        // SAFETY: buffers of this workspace and schedule, which outlive what is enqueued by this
        // function's contract, as do the caller's tensors.
        let enqueued = unsafe {
            self.begin(topk_experts, routes, stream).and_then(|()| {
                let launch = workspace.kernels.publish.launch().grid(grid);
                launch.arg(&publish).enqueue(stream)?;
                workspace.signal(Wait::Routes, stream)?;
                self.order(stream)?;
                workspace.signal(Wait::Schedule, stream)
            })
        };
        workspace.or_abort(enqueued, stream)?;
        let recoveries = workspace.recoveries();
        self.made = Some(Made { tokens, recoveries });
        Ok(())
    }

    /// Keeps the choice of experts, and clears what is counted.
    ///
    /// # Safety
    /// As [`MoeLayer::schedule`](super::MoeLayer::schedule).
    pub(super) unsafe fn begin(
        &self,
        topk_experts: DevicePtr,
        routes: u32,
        stream: &Stream,
    ) -> Result<()> {
        let workspace = &self.workspace;
        let copy = (self.topk_experts.ptr(), topk_experts, 4 * u64::from(routes));
        let words = BAD as u64 + u64::from(workspace.parts.capacity);
        let totals = workspace.buffers().totals.ptr().as_raw();
        let experts = 4 * u64::from(workspace.config.experts);
        // SAFETY: buffers of this workspace and schedule, and the caller's tensor.
        unsafe {
            workspace.copy(copy, stream)?;
            workspace.fill((self.routes.ptr().as_raw(), 4 * words), 0xff, stream)?;
            workspace.fill((totals, experts), 0, stream)
        }
    }

    /// From all ranks' choices, which are there, to this rank's rows.
    ///
    /// # Safety
    /// As [`MoeLayer::schedule`](super::MoeLayer::schedule).
    pub(super) unsafe fn order(&self, stream: &Stream) -> Result<()> {
        let workspace = &self.workspace;
        let (kernels, config) = (&workspace.kernels, &workspace.config);
        let (parts, buffers) = (&workspace.parts, workspace.buffers());
        let args = ScheduleArgs {
            rank: workspace.rank_args(),
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
        let local = workspace.local_experts();
        // SAFETY: buffers of this workspace and schedule.
        unsafe {
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
        }
        Ok(())
    }

    /// The words of the rows, as they are now. Waits for the device.
    pub(super) fn words(&self) -> Result<Vec<u32>> {
        let rows = self.totals.to_vec()?.first().copied().unwrap_or(0) as usize;
        self.routes.slice(BAD..BAD + rows)?.to_vec()
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
        let deadline = self.config.deadline(wait);
        let args = SignalArgs {
            rank: self.rank_args(),
            deadline: u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX),
            wait: wait as u64,
        };
        let launch = self.kernels.signal.launch().grid([1, 1, 1]);
        // SAFETY: the workspace's own memory, and the peers' regions.
        unsafe { launch.arg(&args).enqueue(stream) }
    }

    /// A failure on this host is the other ranks' failure too: none waits for this one.
    pub(super) fn or_abort<T>(&self, checked: Result<T>, stream: &Stream) -> Result<T> {
        if checked.is_err() {
            let args = AbortArgs {
                rank: self.rank_args(),
                code: Code::HostCheck as u64,
            };
            let launch = self.kernels.abort.launch().grid([1, 1, 1]);
            let launch = launch.arg(&args);
            // Should it fail, the others' deadlines end their wait.
            let _ = if stream.check(self.device.backend(), "MoeLayer").is_ok() {
                // SAFETY: the workspace's own memory, and the peers' regions.
                unsafe { launch.enqueue(stream) }
            } else {
                // A stream of another device is no place for it, and nothing else may run beside it.
                let _ = self.drain();
                // SAFETY: as above.
                unsafe { launch.enqueue(&self.device.default_stream()) }
            };
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
