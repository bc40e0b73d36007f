//! The layer on one GPU and on two: both references, the same bits for EP1 and EP2 and for every
//! run, replayed graphs, and what goes wrong.

use std::sync::Arc;
use std::time::Duration;

use half::bf16;
use libtest_mimic::Trial;
use mok::gemm::Matrix;
use mok::layer::{Group, MoeConfig, MoeLayer, Schedule, Weights, Workspace};
use mok::{Device, fill};
use mok_tests::layer::{Problem, Routing};

use crate::{Outcome, trial};

/// Runs of one problem that must all give the same bits.
const RUNS: usize = 100;

fn gpus(count: usize) -> Result<Vec<Device>, mok::Error> {
    (0..count).map(Device::cuda).collect()
}

/// Whether there are so many GPUs; says so where there are not.
fn has(count: usize) -> bool {
    let there = Device::cuda_count().unwrap_or(0);
    if there < count {
        eprintln!("skipped: {count} GPUs are needed, this machine shows {there}");
    }
    there >= count
}

struct Case {
    name: &'static str,
    config: MoeConfig,
    tokens: &'static [usize],
    routing: Routing,
}

fn cases() -> Vec<Case> {
    let small = MoeConfig::new(8, 256, 128, 2, 300).with_shared(192);
    let odd = MoeConfig::new(37, 448, 320, 5, 700);
    vec![
        Case {
            name: "uniform",
            config: small,
            tokens: &[300, 177],
            routing: Routing::Uniform,
        },
        Case {
            name: "nobody_on_one_rank",
            config: small,
            tokens: &[0, 300],
            routing: Routing::Loose,
        },
        Case {
            name: "one_expert",
            config: MoeConfig {
                schedule_capacity: Some(2048),
                ..small
            },
            tokens: &[300, 300],
            routing: Routing::OneExpert,
        },
        Case {
            name: "no_routes",
            config: small,
            tokens: &[3, 1],
            routing: Routing::Nobody,
        },
        Case {
            name: "odd_sizes",
            config: odd,
            tokens: &[513, 700],
            routing: Routing::Zipf,
        },
        Case {
            name: "odd_sizes_repeats",
            config: odd,
            tokens: &[700, 1],
            routing: Routing::Loose,
        },
        Case {
            name: "many_experts_of_a_token",
            config: MoeConfig::new(100, 128, 64, 32, 200).with_swiglu_limit(0.5),
            tokens: &[200, 130],
            routing: Routing::Uniform,
        },
        Case {
            name: "few_experts",
            config: MoeConfig::new(1, 64, 64, 1, 1000),
            tokens: &[1000, 999],
            routing: Routing::Uniform,
        },
        Case {
            name: "most_experts",
            config: MoeConfig::new(1024, 64, 64, 8, 2000),
            tokens: &[2000, 1500],
            routing: Routing::Uniform,
        },
    ]
}

/// EP1 and EP2, many runs each, against both references.
fn numbers(case: &Case) -> Outcome {
    let problem = Problem::new(case.config, case.tokens, case.routing, 17);
    let alone = problem.split(&[case.tokens.iter().sum()]).alone();
    let outputs = alone.outputs(&gpus(1)?, RUNS);
    alone.check(&outputs);
    if has(2) {
        let both = problem.outputs(&gpus(2)?, RUNS);
        if both != outputs {
            return Err("EP1 and EP2 give different bits".into());
        }
    }
    Ok(())
}

/// A pass that is captured once and replayed with other inputs each time.
fn graph() -> Outcome {
    let ranks = if has(2) { 2 } else { 1 };
    let config = MoeConfig::new(6, 512, 512, 3, 200).with_shared(256);
    let groups = Group::threads(ranks)?;
    let outputs = std::thread::scope(|scope| {
        let threads: Vec<_> = gpus(ranks)?
            .into_iter()
            .zip(groups)
            .map(|(device, group)| scope.spawn(move || replays(&config, &device, &Arc::new(group))))
            .collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        joined.collect::<Result<Vec<_>, mok::Error>>()
    })?;
    for round in 0..REPLAYS {
        let all: Vec<bf16> = outputs
            .iter()
            .flat_map(|rank| rank[round].clone())
            .collect();
        replayed(&config, ranks, round).check(&all);
    }
    Ok(())
}

const REPLAYS: usize = 100;
/// Few: among many rows there is one where a single rounding of a large activation, this way or
/// that, moves the whole row by the limit.
const TOKENS: usize = 24;

/// The weights stay, everything else is the round's own.
fn replayed(config: &MoeConfig, ranks: usize, round: usize) -> Problem {
    let fixed = Problem::new(*config, &[], Routing::Nobody, 0);
    Problem {
        routed: fixed.routed,
        shared: fixed.shared,
        ..Problem::new(*config, &vec![TOKENS; ranks], Routing::Loose, round as u64)
    }
}

fn replays(
    config: &MoeConfig,
    device: &Device,
    group: &Arc<Group>,
) -> Result<Vec<Vec<bf16>>, mok::Error> {
    let (rank, ranks, stream) = (group.rank(), group.world_size(), device.stream()?);
    let fixed = replayed(config, ranks, 0);
    let workspace = Workspace::new(device, group, config)?;
    let matrix = (config.hidden * config.intermediate) as usize;
    let each = config.experts as usize / ranks;
    let local = rank * each * matrix..(rank + 1) * each * matrix;
    let part = |which: usize| device.buffer_from(&fixed.routed[which][local.clone()]);
    let (gate, up, down) = (part(0)?, part(1)?, part(2)?);
    let mut weights = Weights::new(Matrix::of(&gate), Matrix::of(&up), Matrix::of(&down));
    let part = |which: usize| device.buffer_from(&fixed.shared[which]);
    let (gate, up, down) = (part(0)?, part(1)?, part(2)?);
    weights = weights.with_shared(Matrix::of(&gate), Matrix::of(&up), Matrix::of(&down));
    let layer = MoeLayer::new(&workspace, weights)?;
    let (hidden, top_k) = (config.hidden as usize, config.top_k as usize);
    let mut x = device.buffer_zeroed::<bf16>(TOKENS * hidden)?;
    let mut topk_experts = device.buffer_zeroed::<i32>(TOKENS * top_k)?;
    let mut router_weights = device.buffer_zeroed::<f32>(TOKENS * top_k)?;
    let mut out = device.buffer_filled::<bf16>(TOKENS * hidden, 0xff)?;
    let mut schedule = Schedule::new(&workspace)?;
    device.synchronize()?;
    stream.begin_capture()?;
    // SAFETY: everything lives until the last replay is over.
    unsafe {
        layer.schedule(&mut schedule, topk_experts.ptr(), TOKENS as u32, &stream)?;
        layer.forward(&schedule, x.ptr(), router_weights.ptr(), out.ptr(), &stream)?;
    }
    let graph = stream.end_capture()?;
    let mut outputs = Vec::new();
    for round in 0..REPLAYS {
        let data = replayed(config, ranks, round);
        let part = |width: usize| rank * TOKENS * width..(rank + 1) * TOKENS * width;
        x.copy_from(&data.x[part(hidden)])?;
        topk_experts.copy_from(&data.topk_experts[part(top_k)])?;
        router_weights.copy_from(&data.router_weights[part(top_k)])?;
        out.fill(0xff)?;
        graph.launch(&stream)?;
        workspace.synchronize(&stream)?;
        outputs.push(out.to_vec()?);
    }
    group.barrier()?;
    Ok(outputs)
}

/// Errors of the device: told, and over after `recover`.
fn errors() -> Outcome {
    let ranks = if has(2) { 2 } else { 1 };
    let config = MoeConfig::new(4, 64, 64, 1, 4)
        .with_schedule_capacity(128 * 2)
        .with_deadlines(Duration::from_secs(5), Duration::from_secs(5));
    let groups = Group::threads(ranks)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = gpus(ranks)?
            .into_iter()
            .zip(groups)
            .map(|(device, group)| scope.spawn(move || failing(&config, &device, &Arc::new(group))))
            .collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        joined.collect::<Result<(), mok::Error>>()
    })?;
    Ok(())
}

fn failing(config: &MoeConfig, device: &Device, group: &Arc<Group>) -> Result<(), mok::Error> {
    let (ranks, stream) = (group.world_size(), device.stream()?);
    let workspace = Workspace::new(device, group, config)?;
    let local = 4usize.div_ceil(ranks) * 64 * 64;
    let data = |seed| device.buffer_from(&fill::normal::<bf16>(seed, local, 0.5));
    let (gate, up, down) = (data(1)?, data(2)?, data(3)?);
    let weights = Weights::new(Matrix::of(&gate), Matrix::of(&up), Matrix::of(&down));
    let layer = MoeLayer::new(&workspace, weights)?;
    let mut schedule = Schedule::new(&workspace)?;
    let x = device.buffer_from(&fill::normal::<bf16>(4, 4 * 64, 1.0))?;
    let router_weights = device.buffer_from(&[1f32; 4])?;
    let mut out = device.buffer_zeroed::<bf16>(4 * 64)?;
    let good = [0, 0, 0, 0];
    let cases: [(&str, [i32; 4]); 3] = [
        ("token 2, k 0: expert 4", [0, 1, 4, 3]),
        ("token 0, k 0: expert -2", [-2, 1, 0, 3]),
        ("schedule_capacity is 256", [0, 1, 2, 3]),
    ];
    for (text, bad) in cases {
        // One rank owns all experts at EP1: three of them need more rows than there are; at EP2
        // each owns two, which fit.
        let expected = ranks == 1 || !text.contains("capacity");
        for (topk, fails) in [(bad, expected), (good, false)] {
            let topk_experts = device.buffer_from(&topk)?;
            out.fill(0)?;
            // SAFETY: everything lives until the synchronisation.
            let scheduled =
                unsafe { layer.schedule(&mut schedule, topk_experts.ptr(), 4, &stream) };
            // The device may have failed by now, and then this is the call that tells.
            let [x, weights, to] = [x.ptr(), router_weights.ptr(), out.ptr()];
            // SAFETY: as above.
            let passed = unsafe { layer.forward(&schedule, x, weights, to, &stream) };
            let result = scheduled.and(passed).and(workspace.synchronize(&stream));
            let nan = out.to_vec()?.iter().all(|value| value.is_nan());
            assert_eq!(nan, fails, "{text}");
            match result {
                Err(error) => {
                    assert!(fails && error.to_string().contains(text), "{error}");
                    workspace.recover()?;
                }
                Ok(()) => assert!(!fails, "{text}"),
            }
        }
    }
    group.barrier()?;
    Ok(())
}

pub fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = cases()
        .into_iter()
        .map(|case| trial(format!("layer::{}", case.name), move || numbers(&case)))
        .collect();
    trials.push(trial("layer::graph", graph));
    trials.push(trial("layer::errors", errors));
    trials
}
