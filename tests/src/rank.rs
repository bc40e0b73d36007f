//! One rank of a problem: everything that its calls need.

use std::sync::Arc;
use std::thread;

use half::bf16;
use mok::gemm::Matrix;
use mok::layer::{Group, MoeLayer, Schedule, Weights, Workspace};
use mok::{Buffer, Device, Result, Stream};
use mok_kernel::route::first_expert;

use crate::layer::Problem;

/// Runs something on every rank of a group, each on a thread with its device; a panic there is one
/// here.
pub fn on_ranks<T: Send>(
    devices: impl IntoIterator<Item = Device>,
    run: impl Fn(Device, Arc<Group>) -> T + Sync,
) -> Vec<T> {
    let all = try_on_ranks(devices, run).into_iter();
    all.map(|result| result.expect("no panic on any rank"))
        .collect()
}

/// As [`on_ranks`], where ranks may panic.
pub fn try_on_ranks<T: Send>(
    devices: impl IntoIterator<Item = Device>,
    run: impl Fn(Device, Arc<Group>) -> T + Sync,
) -> Vec<thread::Result<T>> {
    let devices: Vec<Device> = devices.into_iter().collect();
    let groups = Group::threads(devices.len()).expect("a group of threads");
    thread::scope(|scope| {
        let run = &run;
        let ranks = devices.into_iter().zip(groups);
        let threads: Vec<_> = ranks
            .map(|(device, group)| scope.spawn(move || run(device, Arc::new(group))))
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    })
}

/// A rank that is ready for passes.
pub struct Rank {
    /// Its device.
    pub device: Device,
    /// The ranks.
    pub group: Arc<Group>,
    /// Where its calls are enqueued.
    pub stream: Stream,
    /// Of its layer.
    pub workspace: Arc<Workspace>,
    /// The layer.
    pub layer: MoeLayer,
    /// What `schedule` fills.
    pub schedule: Schedule,
    /// Its tokens.
    pub x: Buffer<bf16>,
    /// Their choice of experts.
    pub topk_experts: Buffer<i32>,
    /// And its weights.
    pub router_weights: Buffer<f32>,
    /// What `forward` fills; zeros at first.
    pub out: Buffer<bf16>,
    /// Of this rank's experts: gate, up, down; then of the shared one.
    pub weights: [Buffer<bf16>; 6],
    tokens: u32,
}

impl Rank {
    /// Collective: this rank's part of a problem.
    pub fn new(problem: &Problem, device: &Device, group: &Arc<Group>) -> Result<Rank> {
        let workspace = Workspace::new(device, group, &problem.config)?;
        Rank::with(problem, device, workspace, group)
    }

    /// In a workspace that was made for it.
    pub fn with(
        problem: &Problem,
        device: &Device,
        workspace: Arc<Workspace>,
        group: &Arc<Group>,
    ) -> Result<Rank> {
        let (rank, ranks) = (group.rank(), group.world_size());
        let config = &problem.config;
        let matrix = config.hidden as usize * config.intermediate as usize;
        let first = |rank: usize| first_expert(rank as u32, config.experts, ranks as u32) as usize;
        let local = first(rank) * matrix..first(rank + 1) * matrix;
        let routed = |which: usize| device.buffer_from(&problem.routed[which][local.clone()]);
        let shared = |which: usize| device.buffer_from(&problem.shared[which]);
        let own = [routed(0)?, routed(1)?, routed(2)?];
        let all = [shared(0)?, shared(1)?, shared(2)?];
        let [gate, up, down] = own.each_ref().map(Matrix::of);
        let mut weights = Weights::new(gate, up, down);
        if config.shared_intermediate != 0 {
            let [gate, up, down] = all.each_ref().map(Matrix::of);
            weights = weights.with_shared(gate, up, down);
        }
        let [x, routes] = problem.parts(rank);
        let [gate, up, down] = own;
        let [shared_gate, shared_up, shared_down] = all;
        Ok(Rank {
            layer: MoeLayer::new(&workspace, weights)?,
            schedule: Schedule::new(&workspace)?,
            x: device.buffer_from(&problem.x[x.clone()])?,
            topk_experts: device.buffer_from(&problem.topk_experts[routes.clone()])?,
            router_weights: device.buffer_from(&problem.router_weights[routes])?,
            out: device.buffer_zeroed(x.len())?,
            stream: device.stream()?,
            device: device.clone(),
            group: group.clone(),
            workspace,
            weights: [gate, up, down, shared_gate, shared_up, shared_down],
            tokens: problem.tokens[rank] as u32,
        })
    }

    /// Enqueues the schedule of so many tokens.
    pub fn schedule(&mut self, tokens: u32) -> Result<()> {
        let topk_experts = self.topk_experts.ptr();
        // SAFETY: everything lives until the rank is dropped, which waits for the device.
        unsafe {
            self.layer
                .schedule(&mut self.schedule, topk_experts, tokens, &self.stream)
        }
    }

    /// Enqueues the pass.
    pub fn forward(&self) -> Result<()> {
        let [x, weights, out] = [self.x.ptr(), self.router_weights.ptr(), self.out.ptr()];
        // SAFETY: as in `schedule`.
        unsafe {
            self.layer
                .forward(&self.schedule, x, weights, out, &self.stream)
        }
    }

    /// Both, and what the device says of them.
    pub fn pass(&mut self) -> Result<()> {
        self.schedule(self.tokens)?;
        self.forward()?;
        self.workspace.synchronize(&self.stream)
    }

    /// What a pass gives.
    pub fn output(&mut self) -> Result<Vec<bf16>> {
        self.out.fill(0xff)?;
        self.pass()?;
        self.out.to_vec()
    }

    /// Captures a pass once, and replays it with the tokens of each problem; the experts stay.
    pub fn replay(&mut self, problems: impl Iterator<Item = Problem>) -> Result<Vec<Vec<bf16>>> {
        self.out.fill(0xff)?;
        self.stream.begin_capture()?;
        let captured = self.schedule(self.tokens).and_then(|()| self.forward());
        let graph = self.stream.end_capture();
        captured?;
        let graph = graph?;
        assert!(self.outputs_are_nan(), "nothing ran yet");
        let mut outputs = Vec::new();
        for problem in problems {
            let [x, routes] = problem.parts(self.group.rank());
            self.x.copy_from(&problem.x[x])?;
            self.topk_experts
                .copy_from(&problem.topk_experts[routes.clone()])?;
            self.router_weights
                .copy_from(&problem.router_weights[routes])?;
            self.out.fill(0xff)?;
            graph.launch(&self.stream)?;
            self.workspace.synchronize(&self.stream)?;
            outputs.push(self.out.to_vec()?);
        }
        Ok(outputs)
    }

    /// Whether the outputs are what a failed pass leaves.
    pub fn outputs_are_nan(&self) -> bool {
        let out = self.out.to_vec();
        out.is_ok_and(|out| out.iter().all(|value| value.is_nan()))
    }
}
