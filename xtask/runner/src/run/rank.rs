//! One rank of a run, on its device.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use half::bf16;
use mok::gemm::Matrix;
use mok::layer::{
    Group, LayerMemory, MoeConfig, MoeLayer, Schedule, Timeline, Transport, Weights, Workspace,
};
use mok::{Buffer, Device, Event, Stream};
use mok_kernel::route::segment;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::problem::{Problem, RankData};
use super::verify::{self, Verdict};
use crate::pass::Batches;
use crate::progress::Progress;

/// What is to be done, beside the problem itself.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Passes that are timed, and as many that are compared bit by bit.
    pub runs: usize,
    /// Tokens to compare; `None` where that is to be found out.
    pub sample: Option<usize>,
    /// Rows that each rank has room for.
    pub capacity: Option<u32>,
    /// How tokens travel.
    pub transport: Transport,
    /// How the pass is launched.
    pub path: mok::layer::Path,
    /// Rows of its batches.
    pub batches: Batches,
    /// Whether one more pass is traced.
    pub traced: bool,
}

/// What one rank found, in JSON for the others.
#[derive(Debug, Serialize, Deserialize)]
pub struct RankReport {
    pub rank: usize,
    pub host: String,
    pub device: Option<String>,
    pub tokens: usize,
    /// The first of its experts, and the first that is another's.
    pub experts: [usize; 2],
    /// Routes that its experts compute.
    pub rows: u64,
    /// The same with each expert's padded to a multiple of 128.
    pub padded_rows: u64,
    /// Rows that there is room for.
    pub capacity: u32,
    pub memory: Memory,
    pub link_bytes: LinkBytes,
    pub time: Option<Times>,
    /// Elements that were not the same in every pass.
    pub differing_elements: usize,
    pub verdict: Option<Verdict>,
}

/// Device memory, in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    pub symmetric: u64,
    pub workspace: u64,
    pub schedule: u64,
    pub weights: u64,
    pub inputs: u64,
}

/// Bytes that come over a link into a rank in one pass.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct LinkBytes {
    /// The other ranks' choices of experts.
    pub routes: u64,
    /// Tokens that other ranks send to this one's experts.
    pub dispatch: u64,
    /// Results of other ranks' experts.
    pub combine: u64,
}

/// Milliseconds of each timed pass.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    pub schedule_ms: Vec<f32>,
    pub forward_ms: Vec<f32>,
}

impl Times {
    fn push(&mut self, [schedule, forward]: [f32; 2]) {
        self.schedule_ms.push(schedule);
        self.forward_ms.push(forward);
    }
}

/// What a rank has at the end.
#[derive(Debug)]
pub struct Finished {
    /// Of all ranks.
    pub reports: Vec<RankReport>,
    /// SHA-256 of each token's output, of all ranks' tokens.
    pub digests: Vec<u8>,
    pub data: RankData,
    /// This rank's; empty where no device computed any.
    pub out: Vec<bf16>,
    /// Of all ranks, where a pass was traced.
    pub timelines: Vec<Timeline>,
}

/// Makes one rank's failure every rank's, and keeps its own words where it happened.
pub fn together<T>(group: &Group, result: Result<T>) -> Result<T> {
    match result {
        Ok(value) => {
            group.agree(Ok::<(), String>(()))?;
            Ok(value)
        }
        Err(error) => {
            let _ = group.agree(Err::<(), _>(format!("{error:#}")));
            Err(error)
        }
    }
}

/// Runs a rank: collective. With no device, only what the host can check of it.
pub fn run(
    problem: &Problem,
    work: Work,
    device: Option<&Device>,
    group: &Arc<Group>,
    progress: &Progress,
) -> Result<Finished> {
    let rank = group.rank();
    progress.at("data");
    let data = together(group, problem.rank_data(rank))?;
    let counts = Counts::gather(problem, &data, group)?;
    let config = config(problem, work, &counts);
    let needed = together(group, config.memory(group.world_size()).map_err(Into::into))?;
    let mut report = RankReport {
        rank,
        host: group.host_name(rank).to_owned(),
        device: device.map(|device| device.name().to_owned()),
        tokens: problem.range(rank).len(),
        experts: [
            problem.local_experts(rank).start,
            problem.local_experts(rank).end,
        ],
        rows: counts.rows(problem, rank).map(u64::from).sum(),
        padded_rows: counts.rows(problem, rank).map(segment).sum(),
        capacity: config.capacity(group.world_size()),
        memory: memory(problem, rank, needed),
        link_bytes: counts.link_bytes(problem, rank),
        time: None,
        differing_elements: 0,
        verdict: None,
    };
    progress.step();
    let (mut out, mut timeline) = (Vec::new(), None);
    if let Some(device) = device {
        let passes = on_device(problem, work, &config, &data, device, group, progress)?;
        (report.time, report.differing_elements) = (Some(passes.times), passes.differing);
        (out, timeline) = (passes.out, passes.timeline);
        progress.at("references");
        let rows = verify::sample(problem, rank, work.sample);
        let verdict = verify::verify(problem, rank, &data, &out, &rows);
        report.verdict = Some(together(group, verdict)?);
    }
    progress.step();
    let hidden = problem.shape.hidden as usize;
    let own: Vec<u8> = out.chunks(hidden).flat_map(digest).collect();
    let reports = gather(group, &serde_json::to_vec(&report)?)?;
    let reports = reports.iter().map(|bytes| serde_json::from_slice(bytes));
    Ok(Finished {
        reports: reports
            .collect::<Result<_, _>>()
            .context("a rank's report")?,
        digests: gather(group, &own)?.concat(),
        timelines: match timeline {
            None => Vec::new(),
            Some(timeline) => {
                let all = gather(group, &serde_json::to_vec(&timeline)?)?;
                let all = all.iter().map(|bytes| serde_json::from_slice(bytes));
                all.collect::<Result<_, _>>().context("a rank's timeline")?
            }
        },
        data,
        out,
    })
}

fn digest(row: &[bf16]) -> [u8; 32] {
    Sha256::digest(bytemuck::cast_slice(row)).into()
}

/// The bytes of every rank, in parts that one call of the group takes.
pub fn gather(group: &Group, own: &[u8]) -> Result<Vec<Vec<u8>>> {
    const PART: usize = 1 << 20;
    let lengths = group.all_gather(&(own.len() as u64).to_le_bytes())?;
    let length = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes);
    let most = lengths.iter().map(length).max().unwrap_or(0) as usize;
    let mut all = vec![Vec::new(); lengths.len()];
    for start in (0..most).step_by(PART) {
        let part = own.get(start..).unwrap_or(&[]);
        let parts = group.all_gather(&part[..part.len().min(PART)])?;
        for (all, part) in all.iter_mut().zip(parts) {
            all.extend(part);
        }
    }
    Ok(all)
}

/// Routes of each rank's tokens to each expert.
struct Counts(Vec<Vec<u32>>);

impl Counts {
    fn gather(problem: &Problem, data: &RankData, group: &Group) -> Result<Counts> {
        let mut own = vec![0u32; problem.shape.experts as usize];
        for &expert in &data.routes.experts {
            let expert = usize::try_from(expert).ok();
            if let Some(count) = expert.and_then(|expert| own.get_mut(expert)) {
                *count += 1;
            }
        }
        let all = group.all_gather(bytemuck::cast_slice(&own))?;
        let words = |bytes: Vec<u8>| -> Vec<u32> {
            let (words, _) = bytes.as_chunks::<4>();
            words.iter().map(|word| u32::from_le_bytes(*word)).collect()
        };
        let all: Vec<_> = all.into_iter().map(words).collect();
        ensure!(
            all.iter().all(|counts| counts.len() == own.len()),
            "ranks have layers of different sizes: give all of them the same arguments and files"
        );
        Ok(Counts(all))
    }

    /// Rows of each of a rank's experts.
    fn rows<'a>(&'a self, problem: &Problem, rank: usize) -> impl Iterator<Item = u32> + 'a {
        let of_expert = |expert| {
            self.0
                .iter()
                .map(move |counts: &Vec<u32>| counts[expert])
                .sum()
        };
        problem.local_experts(rank).map(of_expert)
    }

    fn link_bytes(&self, problem: &Problem, rank: usize) -> LinkBytes {
        let row = 2 * u64::from(problem.shape.hidden);
        let routes = |from: usize, to: usize| -> u64 {
            let experts = problem.local_experts(to);
            self.0[from][experts]
                .iter()
                .map(|&count| u64::from(count))
                .sum()
        };
        let others = || (0..self.0.len()).filter(|&other| other != rank);
        let list = 4 * u64::from(problem.shape.top_k);
        LinkBytes {
            routes: others()
                .map(|other| list * problem.range(other).len() as u64)
                .sum(),
            dispatch: others().map(|other| row * routes(other, rank)).sum(),
            combine: others().map(|other| row * routes(rank, other)).sum(),
        }
    }
}

/// The layer's configuration: with its own capacity, or with what these routes need where that is
/// more and none was asked for.
fn config(problem: &Problem, work: Work, counts: &Counts) -> MoeConfig {
    let ranks = problem.tokens.len();
    let most = problem.tokens.iter().copied().max().unwrap_or(0);
    let mut config = problem.shape.config(most);
    config.swiglu_limit = problem.swiglu_limit;
    config.transport = work.transport;
    config.path = work.path;
    config = work.batches.of(config);
    config.schedule_capacity = work.capacity;
    let padded = |rank| counts.rows(problem, rank).map(segment).sum::<u64>();
    let needed = (0..ranks).map(padded).max().unwrap_or(0);
    if work.capacity.is_none() && needed > config.capacity(ranks).into() {
        config.schedule_capacity = u32::try_from(needed).ok();
    }
    config
}

fn memory(problem: &Problem, rank: usize, layer: LayerMemory) -> Memory {
    let shape = &problem.shape;
    let matrix = |inner: u32| 6 * u64::from(shape.hidden) * u64::from(inner);
    let (experts, tokens) = (problem.local_experts(rank).len(), problem.range(rank).len());
    let token = 4 * u64::from(shape.hidden) + 8 * u64::from(shape.top_k);
    Memory {
        symmetric: layer.symmetric,
        workspace: layer.workspace,
        schedule: layer.schedule,
        weights: experts as u64 * matrix(shape.intermediate) + matrix(shape.shared),
        inputs: tokens as u64 * token,
    }
}

impl Memory {
    fn total(&self) -> u64 {
        self.symmetric + self.workspace + self.schedule + self.weights + self.inputs
    }
}

/// What the passes gave.
struct Passes {
    out: Vec<bf16>,
    times: Times,
    differing: usize,
    timeline: Option<Timeline>,
}

/// Gate, up and down of the routed experts, then of the shared one.
struct DeviceWeights([Buffer<bf16>; 6]);

impl DeviceWeights {
    fn load(problem: &Problem, rank: usize, device: &Device) -> Result<DeviceWeights> {
        let local = problem.local_experts(rank);
        let shape = &problem.shape;
        let matrix = |inner: u32| shape.hidden as usize * inner as usize;
        let (routed, shared) = (matrix(shape.intermediate), matrix(shape.shared));
        let sizes = [routed * local.len(), shared];
        let buffer = |at: usize| device.buffer_uninit(sizes[at / 3]);
        let mut all = [
            buffer(0)?,
            buffer(1)?,
            buffer(2)?,
            buffer(3)?,
            buffer(4)?,
            buffer(5)?,
        ];
        for (at, expert) in local.enumerate() {
            let place = at * routed..(at + 1) * routed;
            for (buffer, values) in all.iter_mut().zip(problem.routed(expert)?) {
                buffer.slice_mut(place.clone())?.copy_from(&values)?;
            }
        }
        for (buffer, values) in all[3..]
            .iter_mut()
            .zip(problem.shared()?.into_iter().flatten())
        {
            buffer.copy_from(&values)?;
        }
        Ok(DeviceWeights(all))
    }

    fn weights(&self, shared: bool) -> Weights {
        let [gate, up, down, shared_gate, shared_up, shared_down] =
            self.0.each_ref().map(Matrix::of);
        let weights = Weights::new(gate, up, down);
        match shared {
            true => weights.with_shared(shared_gate, shared_up, shared_down),
            false => weights,
        }
    }
}

fn fits(memory: &Memory, device: &Device) -> Result<()> {
    let free = device.memory()?.free as u64;
    let gib = |bytes: u64| bytes as f64 / f64::from(1u32 << 30);
    ensure!(
        memory.total() <= free,
        "the layer needs {:.1} GiB of device memory ({:.1} for weights), and {} has {:.1} free: take \
         more ranks, fewer tokens or a smaller shape",
        gib(memory.total()),
        gib(memory.weights),
        device.name(),
        gib(free)
    );
    Ok(())
}

/// Tasks of a worker that there is room for in a trace: of the largest named layers' they are some hundreds.
const RECORDS: u32 = 4096;

fn on_device(
    problem: &Problem,
    work: Work,
    config: &MoeConfig,
    data: &RankData,
    device: &Device,
    group: &Arc<Group>,
    progress: &Progress,
) -> Result<Passes> {
    let rank = group.rank();
    let needed = config.memory(group.world_size())?;
    together(group, fits(&memory(problem, rank, needed), device))?;
    progress.at("weights");
    let weights = together(group, DeviceWeights::load(problem, rank, device))?;
    progress.step();
    progress.at("workspace");
    let workspace = Workspace::new(device, group, config)?;
    let tensors = || -> Result<Tensors> {
        let layer = MoeLayer::new(&workspace, weights.weights(problem.shape.shared != 0))?;
        Ok(Tensors {
            x: device.buffer_from(&data.x)?,
            topk_experts: device.buffer_from(&data.routes.experts)?,
            router_weights: device.buffer_from(&data.routes.weights)?,
            out: device.buffer_uninit(data.x.len())?,
            tokens: problem.range(rank).len() as u32,
            schedule: Schedule::new(&workspace)?,
            stream: device.stream()?,
            layer,
        })
    };
    let mut tensors = together(group, tensors())?;
    progress.step();
    let mut passes = || -> Result<Passes> {
        progress.at("the first pass");
        let (out, first) = tensors.pass(device)?;
        progress.step();
        let mut times = Times::default();
        times.push(first);
        let mut differing = 0;
        for run in 1..=work.runs {
            progress.at(format!("pass {run} of {}, bit by bit", work.runs));
            let (again, time) = tensors.pass(device)?;
            times.push(time);
            differing += differing_elements(&out, &again);
            progress.step();
        }
        // Simulated time is the same whether or not the host looks between passes.
        if !device.is_emulated() {
            progress.at("passes against the clock");
            times = tensors.timed(device, work.runs)?;
        }
        progress.step();
        let mut timeline = None;
        if work.traced {
            progress.at("a traced pass");
            together(group, workspace.start_trace(RECORDS).map_err(Into::into))?;
            let (again, _) = tensors.pass(device)?;
            differing += differing_elements(&out, &again);
            timeline = workspace.take_trace()?;
        }
        Ok(Passes {
            out,
            times,
            differing,
            timeline,
        })
    };
    let passed = passes();
    let passed = together(group, passed);
    // Nobody's region goes while a peer may still use it.
    let left = group.barrier();
    let passed = passed?;
    left?;
    Ok(passed)
}

/// Elements whose bits are not the same.
fn differing_elements(first: &[bf16], again: &[bf16]) -> usize {
    let pairs = first.iter().zip(again);
    pairs
        .filter(|(first, again)| first.to_bits() != again.to_bits())
        .count()
}

/// What the layer reads and writes on a device.
struct Tensors {
    x: Buffer<bf16>,
    topk_experts: Buffer<i32>,
    router_weights: Buffer<f32>,
    out: Buffer<bf16>,
    tokens: u32,
    layer: MoeLayer,
    schedule: Schedule,
    stream: Stream,
}

impl Tensors {
    fn enqueue_schedule(&mut self) -> mok::Result<()> {
        let topk_experts = self.topk_experts.ptr();
        // SAFETY: all of it lives in `self`, which waits for the stream before it goes.
        unsafe {
            self.layer
                .schedule(&mut self.schedule, topk_experts, self.tokens, &self.stream)
        }
    }

    fn enqueue_forward(&mut self) -> mok::Result<()> {
        let [x, out] = [self.x.ptr(), self.out.ptr()];
        let weights = self.router_weights.ptr();
        // SAFETY: as above; `out` overlaps nothing.
        unsafe {
            self.layer
                .forward(&self.schedule, x, weights, out, &self.stream)
        }
    }

    /// Enqueues a pass, with marks around its two halves.
    fn enqueue(&mut self, device: &Device) -> mok::Result<[Event; 3]> {
        let marks = [device.event()?, device.event()?, device.event()?];
        marks[0].record(&self.stream)?;
        self.enqueue_schedule()?;
        marks[1].record(&self.stream)?;
        self.enqueue_forward()?;
        marks[2].record(&self.stream)?;
        Ok(marks)
    }

    /// One pass: its output, where NaN was before, and its time.
    fn pass(&mut self, device: &Device) -> Result<(Vec<bf16>, [f32; 2])> {
        self.out.fill(0xff)?;
        let marks = self.enqueue(device)?;
        self.layer.workspace().synchronize(&self.stream)?;
        Ok((self.out.to_vec()?, elapsed(&marks)?))
    }

    /// Passes one after the other, with nothing between them, so that ranks wait for each other
    /// on the device only.
    fn timed(&mut self, device: &Device, runs: usize) -> Result<Times> {
        let marks: Vec<_> = (0..runs)
            .map(|_| self.enqueue(device))
            .collect::<mok::Result<_>>()?;
        self.layer.workspace().synchronize(&self.stream)?;
        let mut times = Times::default();
        for marks in &marks {
            times.push(elapsed(marks)?);
        }
        Ok(times)
    }
}

/// Milliseconds of the schedule and of the forward pass.
fn elapsed([start, between, end]: &[Event; 3]) -> mok::Result<[f32; 2]> {
    Ok([start.elapsed_ms(between)?, between.elapsed_ms(end)?])
}

impl Drop for Tensors {
    fn drop(&mut self) {
        // What failed was told; nothing may still run when the buffers go.
        let _ = self.stream.synchronize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_compared_and_not_numbers() {
        let [zero, minus] = [bf16::ZERO, bf16::NEG_ZERO];
        assert_eq!(differing_elements(&[zero, minus], &[minus, minus]), 1);
        assert_eq!(differing_elements(&[bf16::NAN; 3], &[bf16::NAN; 3]), 0);
    }
}
