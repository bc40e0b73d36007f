//! The four layers that speed is claimed on, at full size: 256 tokens in float64 on the CPU; every
//! element the same for one rank and two, both transports, and a hundred runs.

use std::sync::Arc;

use half::bf16;
use libtest_mimic::Trial;
use mok::gemm::Matrix;
use mok::layer::{Group, MoeConfig, MoeLayer, Schedule, Transport, Weights, Workspace};
use mok::oracle::{EXACT, Expert, Layer, ROUNDED, Tokens};
use mok::{Buffer, Device, fill};
use mok_kernel::route::first_expert;
use mok_tests::rank::on_ranks;

use crate::{Outcome, trial};

/// Elements of the block that weights repeat: odd, so that no two experts are the same.
const BLOCK: usize = (32 << 20) - 57;
/// Runs that must all give the same bits.
const RUNS: usize = 100;
/// Tokens that are compared with the references.
const SAMPLE: usize = 256;

struct Shape {
    name: &'static str,
    experts: u32,
    hidden: u32,
    inner: u32,
    top_k: u32,
    /// Tokens of each of two ranks.
    tokens: usize,
}

const SHAPES: [Shape; 4] = [
    shape("kimi_k2_7", [384, 7168, 2048, 8], 7168),
    shape("qwen3_5", [512, 4096, 1024, 10], 7168),
    shape("dsv3", [256, 7168, 2048, 8], 8192),
    shape("qwen3_235b", [128, 4096, 1536, 8], 8192),
];

const fn shape(name: &'static str, sizes: [u32; 4], tokens: usize) -> Shape {
    let [experts, hidden, inner, top_k] = sizes;
    Shape {
        name,
        experts,
        hidden,
        inner,
        top_k,
        tokens,
    }
}

/// What all ranks compute together.
struct Data {
    /// The block twice over, so that a window may start anywhere in the first.
    up: Vec<bf16>,
    down: Vec<bf16>,
    x: Vec<bf16>,
    topk_experts: Vec<i32>,
    router_weights: Vec<f32>,
}

impl Data {
    fn of(shape: &Shape) -> Data {
        let count = 2 * shape.tokens;
        let (experts, top_k) = (u64::from(shape.experts), shape.top_k as usize);
        let twice = |seed, columns: u32| {
            let deviation = 1.0 / (columns as f32).sqrt();
            fill::normal::<bf16>(seed, BLOCK, deviation).repeat(2)
        };
        // Different experts for each token: a walk whose step and number have no common factor.
        let route = |index: usize| {
            let bits = fill::hash(5, (index / top_k) as u64);
            let step = [1, 5, 7, 11, 13, 17][(bits >> 40) as usize % 6];
            ((bits % experts + step * (index % top_k) as u64) % experts) as i32
        };
        let weights = fill::normal::<f32>(6, count * top_k, 0.05);
        Data {
            up: twice(1, shape.hidden),
            down: twice(2, shape.inner),
            x: fill::normal(3, count * shape.hidden as usize, 1.0),
            topk_experts: (0..count * top_k).map(route).collect(),
            router_weights: weights.iter().map(|weight| weight.abs() + 0.05).collect(),
        }
    }

    fn check(&self, shape: &Shape, outputs: &[bf16]) -> Outcome {
        let matrix = (shape.hidden * shape.inner) as usize;
        let window = |block: &'static str, at: usize| {
            let of = if block == "up" { &self.up } else { &self.down };
            &of[at % BLOCK..][..matrix]
        };
        let expert = |number: usize| Expert {
            gate: window("up", 2 * number * matrix),
            up: window("up", (2 * number + 1) * matrix),
            down: window("down", number * matrix),
        };
        let experts = (0..shape.experts as usize).map(expert).collect();
        let shared = expert(shape.experts as usize);
        let layer = Layer::new(shape.hidden as usize, experts, Some(shared))?;
        let tokens = Tokens {
            x: &self.x,
            topk_experts: &self.topk_experts,
            router_weights: &self.router_weights,
        };
        let count = 2 * shape.tokens;
        let rows: Vec<usize> = (0..SAMPLE).map(|at| at * count / SAMPLE + at % 7).collect();
        let exact = layer.exact(&tokens, &rows)?.compare(outputs)?;
        let rounded = layer.rounded(&tokens, &rows)?.compare(outputs)?;
        eprintln!(
            "  {}: no rounding {:.2e}, row {:.2e}; rounded {:.2e}, row {:.2e}",
            shape.name,
            exact.whole,
            exact.row_error(),
            rounded.whole,
            rounded.row_error()
        );
        if !exact.passes(EXACT) || !rounded.passes(ROUNDED) {
            return Err(format!("{exact:?}, {rounded:?}").into());
        }
        Ok(())
    }
}

/// Part of an endless repetition of the block.
fn tiled(device: &Device, twice: &[bf16], start: usize, len: usize) -> mok::Result<Buffer<bf16>> {
    let block = device.buffer_from(&twice[start % BLOCK..][..BLOCK.min(len)])?;
    let mut all = device.buffer_uninit(len)?;
    let stream = device.stream()?;
    for at in (0..len).step_by(BLOCK) {
        let end = len.min(at + BLOCK);
        let part = block.slice(..end - at)?;
        all.slice_mut(at..end)?.copy_from_device(part, &stream)?;
    }
    stream.synchronize()?;
    Ok(all)
}

/// One rank: its output after each way of running is the first one's, bit for bit.
fn rank(
    shape: &Shape,
    data: &Data,
    device: &Device,
    group: &Arc<Group>,
    transports: &[Transport],
) -> mok::Result<Vec<bf16>> {
    let (rank, ranks, stream) = (group.rank(), group.world_size(), device.stream()?);
    let tokens = 2 * shape.tokens / ranks;
    let matrix = (shape.hidden * shape.inner) as usize;
    let first = |rank: usize| first_expert(rank as u32, shape.experts, ranks as u32) as usize;
    let local = first(rank + 1) - first(rank);
    let gate_up = tiled(
        device,
        &data.up,
        2 * first(rank) * matrix,
        2 * local * matrix,
    )?;
    let down = tiled(device, &data.down, first(rank) * matrix, local * matrix)?;
    let last = shape.experts as usize;
    let shared_up = tiled(device, &data.up, 2 * last * matrix, 2 * matrix)?;
    let shared_down = tiled(device, &data.down, last * matrix, matrix)?;
    let stride = 2 * matrix as u64;
    let half = |of: &Buffer<bf16>, which: usize| {
        let part = of.slice(which * matrix..)?;
        Ok::<_, mok::Error>(Matrix::in_slice(&part).with_group_stride(stride))
    };
    let weights = Weights::new(half(&gate_up, 0)?, half(&gate_up, 1)?, Matrix::of(&down));
    let shared = [
        half(&shared_up, 0)?,
        half(&shared_up, 1)?,
        Matrix::of(&shared_down),
    ];
    let [gate, up, low] = shared;
    let weights = weights.with_shared(gate, up, low);
    let part = |width: u32| rank * tokens * width as usize..(rank + 1) * tokens * width as usize;
    let x = device.buffer_from(&data.x[part(shape.hidden)])?;
    let topk_experts = device.buffer_from(&data.topk_experts[part(shape.top_k)])?;
    let router_weights = device.buffer_from(&data.router_weights[part(shape.top_k)])?;
    let elements = tokens * shape.hidden as usize;
    let mut out = device.buffer_uninit::<bf16>(elements)?;
    let mut expected = Vec::new();
    let mut values = vec![bf16::ZERO; elements];
    for &transport in transports {
        let sizes = [shape.experts, shape.hidden, shape.inner, shape.top_k];
        let [experts, hidden, inner, top_k] = sizes;
        let config = MoeConfig::new(experts, hidden, inner, top_k, tokens as u32)
            .with_shared(inner)
            .with_transport(transport);
        let workspace = Workspace::new(device, group, &config)?;
        let layer = MoeLayer::new(&workspace, weights)?;
        let mut schedule = Schedule::new(&workspace)?;
        for run in 0..RUNS {
            out.fill(0xff)?;
            // SAFETY: everything lives until the synchronisation.
            unsafe {
                layer.schedule(&mut schedule, topk_experts.ptr(), tokens as u32, &stream)?;
                layer.forward(&schedule, x.ptr(), router_weights.ptr(), out.ptr(), &stream)?;
            }
            workspace.synchronize(&stream)?;
            out.copy_to(&mut values)?;
            if expected.is_empty() {
                expected.clone_from(&values);
            }
            let bits = bytemuck::cast_slice::<bf16, u16>;
            assert!(bits(&values) == bits(&expected), "{transport:?}, run {run}");
        }
        group.barrier()?;
    }
    Ok(expected)
}

fn run(shape: &Shape) -> Outcome {
    let data = Data::of(shape);
    let both = [Transport::Peer, Transport::Nccl];
    let mut outputs: Vec<Vec<bf16>> = Vec::new();
    for ranks in 1..=Device::cuda_count()?.min(2) {
        let devices = (0..ranks).map(Device::cuda);
        let devices = devices.collect::<mok::Result<Vec<_>>>()?;
        let parts = on_ranks(devices, |device, group| {
            rank(shape, &data, &device, &group, &both)
        });
        let parts = parts.into_iter().collect::<mok::Result<Vec<_>>>()?;
        outputs.push(parts.concat());
    }
    if outputs.iter().any(|other| other != &outputs[0]) {
        return Err("one rank and two give different bits".into());
    }
    data.check(shape, &outputs[0])
}

pub fn trials() -> Vec<Trial> {
    let trials = SHAPES.into_iter();
    trials
        .map(|shape| trial(format!("shapes::{}", shape.name), move || run(&shape)))
        .collect()
}
