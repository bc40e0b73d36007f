//! Calls where rows travel by an exchange: the same kernels compute them, between meetings.

use mok_kernel::failure::Wait;
use mok_kernel::unfused::{Direction, PermuteArgs};

use super::error::LayerError;
use super::exchange::{Exchange, Lists, Part};
use super::forward::Pass;
use super::schedule::{Made, Schedule};
use super::workspace::Workspace;
use crate::error::Result;
use crate::memory::{Buffer, DevicePtr};
use crate::stream::Stream;

impl Workspace {
    /// Refuses a stream that is being captured.
    fn check_captured(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the stream lives, and belongs to this device.
        match unsafe { self.device.backend().captured(stream.handle()) }? {
            true => Err(LayerError::Captured.into()),
            false => Ok(()),
        }
    }

    /// Collective: whether the call can be made on every rank, with each one's bytes.
    pub(super) fn opened(
        &self,
        exchange: &Exchange,
        checked: Result<Vec<u8>>,
        wait: Wait,
        stream: &Stream,
    ) -> Result<Vec<Vec<u8>>> {
        let checked = checked.and_then(|own| self.check_captured(stream).map(|()| own));
        let opened = exchange.open(checked, wait);
        opened.map_err(|failure| self.failed(*failure))
    }

    /// Collective: whether the call went well on every rank.
    fn closed(&self, exchange: &Exchange, result: Result<()>, wait: Wait) -> Result<()> {
        let closed = exchange.close(result, wait);
        closed.map_err(|failure| self.failed(*failure))
    }

    /// Copies a few words to the device, and waits for them.
    fn put(&self, to: u64, words: &[u32], stream: &Stream) -> Result<()> {
        let backend = self.device.backend();
        let bytes: &[u8] = bytemuck::cast_slice(words);
        // SAFETY: memory of this workspace or its schedule, by the callers; the words outlive the
        // synchronisation.
        unsafe { backend.copy_in(to, bytes.as_ptr(), bytes.len(), stream.handle()) }?;
        stream.synchronize()
    }
}

impl Schedule {
    /// [`Schedule::enqueue`] by an exchange: done when it returns.
    ///
    /// # Safety
    /// As [`MoeLayer::schedule`](super::MoeLayer::schedule).
    pub(super) unsafe fn exchanged(
        &mut self,
        exchange: &Exchange,
        checked: Result<()>,
        (topk_experts, tokens): (DevicePtr, u32),
        stream: &Stream,
    ) -> Result<()> {
        let workspace = self.workspace.clone();
        self.made = None;
        let checked = checked.and_then(|()| self.check(topk_experts, tokens));
        let own = checked.map(|()| tokens.to_le_bytes().to_vec());
        let all = workspace.opened(exchange, own, Wait::Routes, stream)?;
        let count = |own: &Vec<u8>| own.as_slice().try_into().map_or(0, u32::from_le_bytes);
        let all: Vec<u32> = all.iter().map(count).collect();
        // SAFETY: the same contract.
        let ordered = unsafe { self.gather(exchange, topk_experts, tokens, &all, stream) };
        workspace.closed(exchange, ordered, Wait::Schedule)?;
        let recoveries = workspace.recoveries();
        self.made = Some(Made { tokens, recoveries });
        Ok(())
    }

    /// All ranks' choices to this rank, from them its rows, from those the lists.
    ///
    /// # Safety
    /// As [`MoeLayer::schedule`](super::MoeLayer::schedule).
    unsafe fn gather(
        &mut self,
        exchange: &Exchange,
        topk_experts: DevicePtr,
        tokens: u32,
        all: &[u32],
        stream: &Stream,
    ) -> Result<()> {
        let workspace = self.workspace.clone();
        let (region, plan) = workspace.region();
        let config = &workspace.config;
        let routes = tokens * config.top_k;
        let bytes = |tokens: u32| 4 * u64::from(tokens) * u64::from(config.top_k);
        let own = Part {
            at: self.topk_experts(),
            bytes: bytes(tokens),
        };
        let from = |(rank, &tokens): (usize, &u32)| Part {
            at: region + plan.routes + rank as u64 * plan.routes_stride,
            bytes: bytes(tokens),
        };
        let receives = all.iter().enumerate().map(from).collect();
        // SAFETY: this workspace's and schedule's buffers, and the caller's tensor.
        unsafe {
            self.begin(topk_experts, routes, stream)?;
            workspace.put(region + plan.tokens, all, stream)?;
            workspace.put(self.token_count(), &[tokens], stream)?;
            exchange.exchange(vec![own; all.len()], receives, stream)?;
            self.order(stream)?;
        }
        exchange.settle()?;
        stream.synchronize()?;
        // What the kernels found is the same on every rank.
        workspace.status()?;
        let chosen = self.topk_experts.slice(..routes as usize)?.to_vec()?;
        let lists = Lists::new(&chosen, &self.words()?, config.experts, all.len() as u32);
        let fill = |buffer: &mut Buffer<u32>, words: &[u32]| {
            buffer.slice_mut(..words.len())?.copy_from(words)
        };
        fill(&mut self.travel.send, &lists.send)?;
        fill(&mut self.travel.receive, &lists.receive)?;
        fill(&mut self.travel.places, &lists.places)?;
        self.travel.counts = [lists.sent, lists.received];
        Ok(())
    }
}

/// Rows of each rank, one after the other, as parts of an exchange.
fn parts(base: u64, counts: &[u64], row_bytes: u64) -> Vec<Part> {
    let part = |at: &mut u64, count: &u64| {
        let bytes = count * row_bytes;
        *at += bytes;
        Some(Part {
            at: *at - bytes,
            bytes,
        })
    };
    counts.iter().scan(base, part).collect()
}

impl Pass<'_> {
    /// [`Pass::enqueue`] by exchanges, which are over when it returns; a failed pass fills `out`
    /// with NaN.
    ///
    /// # Safety
    /// As [`MoeLayer::forward`](super::MoeLayer::forward), which has opened the call.
    pub(super) unsafe fn exchanged(
        &self,
        exchange: &Exchange,
        x: DevicePtr,
        router_weights: DevicePtr,
        out: DevicePtr,
    ) -> Result<()> {
        // SAFETY: the same contract.
        let passed = unsafe { self.travel(exchange, x, router_weights, out) };
        self.workspace().closed(exchange, passed, Wait::Results)
    }

    /// # Safety
    /// As [`Pass::exchanged`].
    unsafe fn travel(
        &self,
        exchange: &Exchange,
        x: DevicePtr,
        router_weights: DevicePtr,
        out: DevicePtr,
    ) -> Result<()> {
        let (workspace, schedule, stream) = (self.workspace(), self.schedule, self.stream);
        let (config, buffers) = (&workspace.config, workspace.buffers());
        let (region, plan) = workspace.region();
        let travel = &schedule.travel;
        let [sent, received] = &travel.counts;
        let row_bytes = 2 * u64::from(config.hidden);
        let (slots, staged) = (region + plan.slots, buffers.staged.ptr().as_raw());
        let rows = buffers.rows.ptr().as_raw();
        let parts = |base, counts: &[u64]| parts(base, counts, row_bytes);
        let permute = |from, to, list: &Buffer<u32>, counts: &[u64], direction, share| {
            let args = PermuteArgs {
                from,
                to,
                list: list.ptr().as_raw(),
                // At most as many as there are routes, or rows.
                count: counts.iter().sum::<u64>() as u32,
                hidden: config.hidden,
                direction: direction as u32,
                share,
            };
            if args.count == 0 {
                return Ok(());
            }
            let grid = workspace.row_grid(args.count.into());
            let launch = workspace.kernels.permute.launch().grid(grid);
            // SAFETY: buffers of this workspace and schedule, whose lists name what is in them.
            unsafe { launch.arg(&args).enqueue(stream) }
        };
        let (gather, scatter) = (Direction::Gather, Direction::Scatter);
        let (send, receive) = (&travel.send, &travel.receive);
        let sizes = 4 * u64::from(workspace.local_experts());
        let pass_sizes = buffers.sizes.ptr();
        // SAFETY: this function's contract, and the workspace's and the schedule's buffers.
        unsafe {
            self.stage(x)?;
            let copy = (pass_sizes, DevicePtr::from_raw(schedule.sizes()), sizes);
            workspace.copy(copy, stream)?;
            permute(region + plan.x, slots, send, sent, gather, config.top_k)?;
            exchange.exchange(parts(slots, sent), parts(staged, received), stream)?;
            permute(staged, rows, receive, received, scatter, 1)?;
            self.routed()?;
            permute(rows, staged, receive, received, gather, 1)?;
            // One exchange at a time is under way; the device goes on computing meanwhile.
            exchange.settle()?;
            exchange.exchange(parts(staged, received), parts(slots, sent), stream)?;
            self.weigh(router_weights, out, travel.places.ptr().as_raw())?;
        }
        exchange.settle()
    }
}
