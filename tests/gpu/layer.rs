//! The layer on one GPU and on two: both references, the same bits for EP1 and EP2 and for every
//! run, replayed graphs, and what goes wrong.

use std::time::Duration;

use half::bf16;
use libtest_mimic::Trial;
use mok::Device;
use mok::layer::{MoeConfig, Path};
use mok_tests::layer::{Problem, Routing};
use mok_tests::rank::{Rank, on_ranks};

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

/// In one launch with these minibatches and macrobatches: the bits of separate launches, each time.
fn in_one_launch(case: &Case, batches: &[[u32; 2]], runs: usize) -> Outcome {
    let mut problem = Problem::new(case.config, case.tokens, case.routing, 17);
    let expected = problem.split(&[case.tokens.iter().sum()]).alone();
    let expected = expected.outputs(&gpus(1)?, 1);
    for &[rows, held] in batches {
        problem.config = case
            .config
            .with_path(Path::Fused)
            .with_minibatch_rows(rows)
            .with_macrobatch_rows(held);
        let alone = problem.split(&[case.tokens.iter().sum()]).alone();
        if alone.outputs(&gpus(1)?, runs) != expected {
            return Err(format!("{rows} rows of {held}: other bits at EP1").into());
        }
        if has(2) && problem.outputs(&gpus(2)?, runs) != expected {
            return Err(format!("{rows} rows of {held}: other bits at EP2").into());
        }
    }
    Ok(())
}

/// A pass that is captured once and replayed with other inputs each time.
fn graph(path: Path) -> Outcome {
    let ranks = if has(2) { 2 } else { 1 };
    let config = MoeConfig::new(6, 512, 512, 3, 200)
        .with_shared(256)
        .with_path(path);
    let problem =
        |round| Problem::round(config, &vec![TOKENS; ranks], Routing::Loose, round as u64);
    let outputs = on_ranks(gpus(ranks)?, |device, group| {
        let mut rank = Rank::new(&problem(0), &device, &group)?;
        let outputs = rank.replay((0..REPLAYS).map(problem))?;
        group.barrier()?;
        Ok(outputs)
    });
    let outputs = outputs.into_iter().collect::<mok::Result<Vec<_>>>()?;
    for round in 0..REPLAYS {
        let all: Vec<bf16> = outputs
            .iter()
            .flat_map(|rank| rank[round].clone())
            .collect();
        problem(round).check(&all);
    }
    Ok(())
}

const REPLAYS: usize = 100;
/// Few: among many rows there is one where a single rounding of a large activation, this way or
/// that, moves the whole row by the limit.
const TOKENS: usize = 24;

/// Errors of the device: told, and over after `recover`.
fn errors() -> Outcome {
    let ranks = if has(2) { 2 } else { 1 };
    let config = MoeConfig::new(4, 64, 64, 1, 4)
        .with_schedule_capacity(128 * 2)
        .with_deadlines(Duration::from_secs(5), Duration::from_secs(5));
    let problem = Problem::new(config, &vec![4; ranks], Routing::Uniform, 1);
    let failed = on_ranks(gpus(ranks)?, |device, group| {
        failing(&mut Rank::new(&problem, &device, &group)?)
    });
    Ok(failed.into_iter().collect::<mok::Result<()>>()?)
}

fn failing(rank: &mut Rank) -> mok::Result<()> {
    let good = [0, 0, 0, 0];
    let cases: [(&str, [i32; 4]); 3] = [
        ("token 2, k 0: expert 4", [0, 1, 4, 3]),
        ("token 0, k 0: expert -2", [-2, 1, 0, 3]),
        ("schedule_capacity is 256", [0, 1, 2, 3]),
    ];
    for (text, bad) in cases {
        // One rank owns all experts at EP1: three of them need more rows than there are; at EP2
        // each owns two, which fit.
        let expected = rank.group.world_size() == 1 || !text.contains("capacity");
        for (topk, fails) in [(bad, expected), (good, false)] {
            rank.topk_experts.copy_from(&topk)?;
            rank.out.fill(0)?;
            // Whichever call it is that tells.
            let result = rank.pass();
            rank.device.synchronize()?;
            assert_eq!(rank.outputs_are_nan(), fails, "{text}");
            match result {
                Err(error) => {
                    assert!(fails && error.to_string().contains(text), "{error}");
                    rank.workspace.recover()?;
                }
                Ok(()) => assert!(!fails, "{text}"),
            }
        }
    }
    Ok(rank.group.barrier()?)
}

pub fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = cases()
        .into_iter()
        .map(|case| trial(format!("layer::{}", case.name), move || numbers(&case)))
        .collect();
    trials.extend(cases().into_iter().map(|case| {
        let name = format!("layer::in_one_launch::{}", case.name);
        trial(name, move || {
            in_one_launch(
                &case,
                &[[256, 1024], [2048, 32_768], [1 << 20, 1 << 20]],
                RUNS,
            )
        })
    }));
    // For the tools that look on.
    trials.push(trial("layer::looked_at", || {
        in_one_launch(&cases()[0], &[[256, 1024]], 2)
    }));
    trials.push(trial("layer::graph", || graph(Path::Unfused)));
    trials.push(trial("layer::graph_of_one_launch", || graph(Path::Fused)));
    trials.push(trial("layer::errors", errors));
    trials
}
