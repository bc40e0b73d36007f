//! The forward pass, in separate launches.

use std::sync::Arc;

use mok_kernel::failure::Wait;
use mok_kernel::unfused::{MoveArgs, SwigluArgs, WeighArgs};

use super::check_pointer;
use super::error::LayerError;
use super::schedule::Schedule;
use super::workspace::Workspace;
use crate::error::Result;
use crate::gemm::{GateUpCall, GemmCall, GroupRows, Matrix};
use crate::memory::DevicePtr;
use crate::module::Kernel;
use crate::stream::Stream;

/// Where a rank's expert weights stand, in bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// `[local experts][intermediate][hidden]`.
    pub gate: Matrix,
    /// `[local experts][intermediate][hidden]`.
    pub up: Matrix,
    /// `[local experts][hidden][intermediate]`.
    pub down: Matrix,
    /// The shared expert's.
    pub shared: Option<SharedWeights>,
}

/// Where the shared expert's weights stand: the whole of them, on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedWeights {
    /// `[shared intermediate][hidden]`.
    pub gate: Matrix,
    /// `[shared intermediate][hidden]`.
    pub up: Matrix,
    /// `[hidden][shared intermediate]`.
    pub down: Matrix,
}

impl Weights {
    /// Of the routed experts alone. With strides, gate and up can be halves of one tensor.
    pub fn new(gate: Matrix, up: Matrix, down: Matrix) -> Weights {
        Weights {
            gate,
            up,
            down,
            shared: None,
        }
    }

    /// With a shared expert.
    pub fn with_shared(mut self, gate: Matrix, up: Matrix, down: Matrix) -> Weights {
        self.shared = Some(SharedWeights { gate, up, down });
        self
    }
}

/// A mixture-of-experts layer on one rank.
///
/// Calls are collective: every rank makes the same ones in the same order. They enqueue and return,
/// but with [`Transport::Nccl`](super::Transport::Nccl), where they return when rows have travelled,
/// and tell what went wrong themselves.
#[derive(Clone, Debug)]
pub struct MoeLayer {
    workspace: Arc<Workspace>,
    weights: Weights,
}

impl MoeLayer {
    /// A layer with these weights, which are checked when they are first used. Not collective.
    pub fn new(workspace: &Arc<Workspace>, weights: Weights) -> Result<MoeLayer> {
        let configured = workspace.config.shared_intermediate != 0;
        if configured != weights.shared.is_some() {
            return Err(LayerError::SharedExpert { configured }.into());
        }
        Ok(MoeLayer {
            workspace: workspace.clone(),
            weights,
        })
    }

    /// What it shares with other layers.
    pub fn workspace(&self) -> &Arc<Workspace> {
        &self.workspace
    }

    /// Collective: enqueues the making of a schedule from every rank's choice of experts,
    /// `topk_experts` i32 `[tokens][top_k]`, each -1 (none) or the number of an expert.
    ///
    /// # Errors
    /// Of an earlier call that failed on the device; of a check on this host, of which the other
    /// ranks are told. What the device finds (a bad expert, too many rows, a rank that does not
    /// come) is told by [`Workspace::status`] and [`Workspace::synchronize`].
    ///
    /// # Safety
    /// `topk_experts` is device memory of that extent; it, the schedule and the workspace live,
    /// and nothing else writes them, until the stream has passed the call.
    pub unsafe fn schedule(
        &self,
        schedule: &mut Schedule,
        topk_experts: DevicePtr,
        tokens: u32,
        stream: &Stream,
    ) -> Result<()> {
        let workspace = &*self.workspace;
        workspace.status()?;
        let checked = self.check_schedule(schedule, stream);
        if let Some(exchange) = workspace.exchange() {
            let chosen = (topk_experts, tokens);
            // SAFETY: the same contract.
            return unsafe { schedule.exchanged(&exchange, checked, chosen, stream) };
        }
        workspace.or_abort(checked, stream)?;
        // SAFETY: the same contract.
        unsafe { schedule.enqueue(topk_experts, tokens, stream) }
    }

    /// Collective: enqueues the forward pass of the schedule's tokens.
    ///
    /// `x` and `out` are bf16 `[tokens][hidden]`, `router_weights` f32 `[tokens][top_k]`. `out` is
    /// filled with NaN if the call fails on the device, on another rank, or after an earlier failure.
    ///
    /// # Errors
    /// As [`MoeLayer::schedule`].
    ///
    /// # Safety
    /// The tensors and weights are device memory of their extents; `out` overlaps none of them;
    /// they, the schedule and the workspace live, and nothing else writes them or reads `out`,
    /// until the stream has passed the call.
    pub unsafe fn forward(
        &self,
        schedule: &Schedule,
        x: DevicePtr,
        router_weights: DevicePtr,
        out: DevicePtr,
        stream: &Stream,
    ) -> Result<()> {
        let workspace = &*self.workspace;
        let checked = self
            .check_schedule(schedule, stream)
            .and_then(|()| self.check(schedule, x, router_weights, out));
        let tokens = checked.as_ref().ok().copied();
        let usable = workspace.status();
        let passed = match (workspace.exchange(), &usable) {
            // Every rank has failed, or is told otherwise.
            (_, Err(_)) => usable,
            (None, Ok(())) => {
                let pass = self.pass(schedule, workspace.or_abort(checked, stream)?, stream);
                // SAFETY: the same contract.
                let enqueued = unsafe {
                    match workspace.fused() {
                        Some(kernel) => pass.enqueue_fused(kernel, x, router_weights, out),
                        None => pass.enqueue(x, router_weights, out),
                    }
                };
                workspace.or_abort(enqueued, stream)
            }
            (Some(exchange), Ok(())) => {
                let own = checked.map(|_| Vec::new());
                let opened = workspace.opened(&exchange, own, Wait::Tokens, stream);
                let pass = self.pass(schedule, tokens.unwrap_or(0), stream);
                // SAFETY: the same contract; if the check failed, so did the opening.
                opened.and_then(|_| unsafe { pass.exchanged(&exchange, x, router_weights, out) })
            }
        };
        if let (Err(_), Some(tokens)) = (&passed, tokens) {
            let bytes = 2 * u64::from(tokens) * u64::from(workspace.config.hidden);
            // SAFETY: the same contract. What went wrong before is what is told.
            let _ = unsafe { workspace.fill((out.as_raw(), bytes), 0xff, stream) };
        }
        passed
    }

    fn pass<'a>(&'a self, schedule: &'a Schedule, tokens: u32, stream: &'a Stream) -> Pass<'a> {
        Pass {
            layer: self,
            schedule,
            tokens,
            stream,
        }
    }

    fn check_schedule(&self, schedule: &Schedule, stream: &Stream) -> Result<()> {
        stream.check(self.workspace.device.backend(), "MoeLayer")?;
        if !Arc::ptr_eq(&schedule.workspace, &self.workspace) {
            return Err(LayerError::OtherSchedule.into());
        }
        Ok(())
    }

    /// The tokens of the call, if it can be made.
    fn check(
        &self,
        schedule: &Schedule,
        x: DevicePtr,
        router_weights: DevicePtr,
        out: DevicePtr,
    ) -> Result<u32> {
        let made = schedule
            .made
            .filter(|made| made.recoveries == self.workspace.recoveries());
        let tokens = made.ok_or(LayerError::NoSchedule)?.tokens;
        for (what, ptr) in [("x", x), ("router_weights", router_weights), ("out", out)] {
            check_pointer(what, ptr, tokens.into())?;
        }
        let fused = self.workspace.fused().is_some();
        let [routed, shared] = self.calls(schedule);
        for expert in [&routed, &shared].into_iter().flatten() {
            // Before the rest: there is no memory for it.
            if fused && matches!(expert.gate_up, GateUp::Apart(_)) {
                return Err(LayerError::Fused.into());
            }
            expert.check()?;
        }
        // One launch counts the tiles of all rows, also of those that aren't held.
        if let Some(expert) = routed.filter(|_| fused) {
            expert.check_rows(self.workspace.parts.capacity)?;
        }
        Ok(tokens)
    }

    /// The products of a pass: of the routed experts, and of the shared one.
    fn calls(&self, schedule: &Schedule) -> [Option<Expert>; 2] {
        let workspace = &*self.workspace;
        let (config, buffers) = (&workspace.config, workspace.buffers());
        let limit = config.swiglu_limit.unwrap_or(f32::INFINITY);
        let expert =
            |groups: GroupRows, inner: u32, x: Matrix, weights: [Matrix; 3], to: [Matrix; 3]| {
                let ([gate, up, down], [gated, upped, out]) = (weights, to);
                let hidden = config.hidden;
                let both = GateUpCall::new(groups, inner, hidden, x, [gate, up], gated);
                let both = both.with_limit(limit);
                Expert {
                    gate_up: match both.fits() {
                        true => GateUp::Together(both),
                        false => {
                            GateUp::Apart([(gate, gated), (up, upped)].map(|(weights, to)| {
                                GemmCall::forward(groups, inner, hidden, x, weights, to)
                            }))
                        }
                    },
                    down: GemmCall::forward(groups, hidden, inner, gated, down, out),
                }
            };
        let Weights {
            gate,
            up,
            down,
            shared,
        } = self.weights;
        let routed = (workspace.local_experts() > 0).then(|| {
            let rows = Matrix::of(&buffers.rows);
            let to = [Matrix::of(&buffers.gate), Matrix::of(&buffers.up), rows];
            let inner = config.intermediate;
            expert(schedule.groups(), inner, rows, [gate, up, down], to)
        });
        let shared = shared.map(|SharedWeights { gate, up, down }| {
            let (region, plan) = workspace.region();
            let x = Matrix::new(DevicePtr::from_raw(region + plan.x));
            let to = [
                &buffers.shared_gate,
                &buffers.shared_up,
                &buffers.shared_out,
            ]
            .map(Matrix::of);
            let inner = config.shared_intermediate;
            expert(schedule.shared_group(), inner, x, [gate, up, down], to)
        });
        [routed, shared]
    }
}

/// The products of an expert, or of all routed ones.
pub(super) struct Expert {
    pub gate_up: GateUp,
    pub down: GemmCall,
}

/// One launch where the weights lie alike; else two, with the activation behind them. The bits are
/// the same.
pub(super) enum GateUp {
    Together(GateUpCall),
    Apart([GemmCall; 2]),
}

impl Expert {
    /// The limits on sizes, were there room for so many rows.
    fn check_rows(&self, capacity: u32) -> Result<()> {
        if let GateUp::Together(both) = &self.gate_up {
            both.check_rows(capacity)?;
        }
        Ok(self.down.check_rows(capacity)?)
    }

    fn check(&self) -> Result<()> {
        match &self.gate_up {
            GateUp::Together(both) => both.check()?,
            GateUp::Apart([gate, up]) => gate.check().and_then(|()| up.check())?,
        }
        self.down.check()
    }
}

/// A forward pass that is being enqueued.
pub(super) struct Pass<'a> {
    layer: &'a MoeLayer,
    pub(super) schedule: &'a Schedule,
    pub(super) tokens: u32,
    pub(super) stream: &'a Stream,
}

impl Pass<'_> {
    pub(super) fn workspace(&self) -> &Workspace {
        &self.layer.workspace
    }

    /// The products of the routed experts, and of the shared one.
    pub(super) fn calls(&self) -> [Option<Expert>; 2] {
        self.layer.calls(self.schedule)
    }

    /// What dispatch and combine take.
    pub(super) fn move_args(&self) -> MoveArgs {
        let workspace = self.workspace();
        MoveArgs {
            rank: workspace.rank_args(),
            rows: self.schedule.routes(),
            row_total: self.schedule.row_total(),
            matrix: workspace.buffers().rows.ptr().as_raw(),
            sizes: self.schedule.sizes(),
            pass_sizes: workspace.buffers().sizes.ptr().as_raw(),
            hidden: workspace.config.hidden,
            top_k: workspace.config.top_k,
            local_experts: workspace.local_experts(),
            padding: 0,
        }
    }

    /// What the weighted sum takes.
    pub(super) fn weigh_args(
        &self,
        router_weights: DevicePtr,
        out: DevicePtr,
        places: u64,
    ) -> WeighArgs {
        let workspace = &*self.layer.workspace;
        let shared = self
            .layer
            .weights
            .shared
            .map(|_| &workspace.buffers().shared_out);
        WeighArgs {
            rank: workspace.rank_args(),
            topk_experts: self.schedule.topk_experts(),
            router_weights: router_weights.as_raw(),
            shared: shared.map_or(0, |shared| shared.ptr().as_raw()),
            places,
            out: out.as_raw(),
            tokens: self.tokens,
            hidden: workspace.config.hidden,
            top_k: workspace.config.top_k,
            padding: 0,
        }
    }

    /// # Safety
    /// As [`MoeLayer::forward`], which has checked the call.
    unsafe fn enqueue(
        &self,
        x: DevicePtr,
        router_weights: DevicePtr,
        out: DevicePtr,
    ) -> Result<()> {
        let (workspace, stream) = (self.workspace(), self.stream);
        let kernels = &workspace.kernels;
        let rows = self.move_args();
        let row_grid = workspace.row_grid(workspace.parts.capacity.into());
        let moves = |kernel: &Kernel| {
            if rows.local_experts == 0 {
                return Ok(());
            }
            // SAFETY: the workspace's and the schedule's buffers, which live by the contract.
            unsafe { kernel.launch().grid(row_grid).arg(&rows).enqueue(stream) }
        };
        // SAFETY: this function's contract.
        unsafe {
            self.stage(x)?;
            workspace.signal(Wait::Tokens, stream)?;
            moves(&kernels.dispatch)?;
            self.routed()?;
            moves(&kernels.combine)?;
            workspace.signal(Wait::Results, stream)?;
            self.weigh(router_weights, out, 0)
        }
    }

    /// Tokens to where they are read from. The shared expert needs nobody, and fills the wait for
    /// the others.
    ///
    /// # Safety
    /// As [`Pass::enqueue`].
    pub(super) unsafe fn stage(&self, x: DevicePtr) -> Result<()> {
        let [_, shared] = self.calls();
        // SAFETY: this function's contract.
        unsafe {
            self.copy_x(x)?;
            self.expert(shared, None)
        }
    }

    /// Tokens to where they are read from.
    ///
    /// # Safety
    /// As [`Pass::enqueue`].
    pub(super) unsafe fn copy_x(&self, x: DevicePtr) -> Result<()> {
        let workspace = self.workspace();
        let (region, plan) = workspace.region();
        let bytes = 2 * u64::from(self.tokens) * u64::from(workspace.config.hidden);
        let to = DevicePtr::from_raw(region + plan.x);
        // SAFETY: this function's contract.
        unsafe { workspace.copy((to, x, bytes), self.stream) }
    }

    /// The routed experts, on the rows as they are.
    ///
    /// # Safety
    /// As [`Pass::enqueue`].
    pub(super) unsafe fn routed(&self) -> Result<()> {
        let [routed, _] = self.calls();
        // SAFETY: this function's contract.
        unsafe { self.expert(routed, Some(self.schedule.routes())) }
    }

    /// Gate and up, the activation, down; of the rows that have a route, or of every token.
    ///
    /// # Safety
    /// As [`Pass::enqueue`].
    unsafe fn expert(&self, expert: Option<Expert>, routes: Option<u64>) -> Result<()> {
        let Some(Expert { gate_up, down }) = expert else {
            return Ok(());
        };
        let (gemm, stream) = (&self.workspace().gemm, self.stream);
        // SAFETY: this function's contract.
        unsafe {
            match gate_up {
                GateUp::Together(both) => gemm.enqueue_gate_up(&both, stream)?,
                GateUp::Apart([gate, up]) => {
                    gemm.enqueue(&gate, stream)?;
                    gemm.enqueue(&up, stream)?;
                    self.activate(routes)?;
                }
            }
            gemm.enqueue(&down, stream)
        }
    }

    /// The activation of gate and up as they stand in the workspace.
    ///
    /// # Safety
    /// As [`Pass::enqueue`].
    unsafe fn activate(&self, routes: Option<u64>) -> Result<()> {
        let workspace = &*self.layer.workspace;
        let (config, buffers, stream) = (&workspace.config, workspace.buffers(), self.stream);
        let (gated, upped, columns, row_total, rows) = match routes {
            Some(_) => (
                &buffers.gate,
                &buffers.up,
                config.intermediate,
                self.schedule.row_total(),
                workspace.parts.capacity,
            ),
            None => (
                &buffers.shared_gate,
                &buffers.shared_up,
                config.shared_intermediate,
                self.schedule.token_count(),
                self.tokens,
            ),
        };
        let args = SwigluArgs {
            state: workspace.state(),
            gate: gated.ptr().as_raw(),
            up: upped.ptr().as_raw(),
            out: gated.ptr().as_raw(),
            rows: routes.unwrap_or(0),
            row_total,
            columns,
            limit: config.swiglu_limit.unwrap_or(f32::INFINITY).to_bits(),
        };
        let grid = workspace.row_grid(rows.into());
        // SAFETY: this function's contract.
        unsafe {
            workspace
                .kernels
                .swiglu
                .launch()
                .grid(grid)
                .arg(&args)
                .enqueue(stream)
        }
    }

    /// # Safety
    /// As [`Pass::enqueue`].
    pub(super) unsafe fn weigh(
        &self,
        router_weights: DevicePtr,
        out: DevicePtr,
        places: u64,
    ) -> Result<()> {
        if self.tokens == 0 {
            return Ok(());
        }
        let workspace = &*self.layer.workspace;
        let args = self.weigh_args(router_weights, out, places);
        let grid = workspace.row_grid(self.tokens.into());
        let launch = workspace.kernels.weigh.launch().grid(grid);
        // SAFETY: this function's contract.
        unsafe { launch.arg(&args).enqueue(self.stream) }
    }
}
