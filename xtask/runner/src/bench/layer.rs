//! `bench layer`: the whole layer against PyTorch, in one run, on the same inputs.

mod baseline;
mod ours;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use comfy_table::{Table, presets};
use half::bf16;
use mok::fill;
use mok::layer::{MoeConfig, Path, Transport};
use serde::Serialize;
use serde_json::{Value, json};

use super::{BLOCK, Difference, SAME, median};
use crate::backend;
use crate::machine::Machine;
use crate::pass::Batches;
use crate::progress::Progress;
use crate::run::routing::{self, Routes, Routing};
use crate::run::shape::LayerShape;
use baseline::Baseline;
use ours::Ours;

/// Time the layer against PyTorch, round by round, on the same inputs
///
/// Each round runs every side a few times, so that heat and clocks meet all alike: schedule and
/// forward on each of our sides, and the PyTorch layer that this program carries (NCCL all-to-all,
/// grouped GEMM, compiled activation and weighted sum), in processes of its own. A pass is timed by
/// events on the GPU, from a barrier of all ranks on; its time is the slowest rank's. Ratios are of
/// medians over all rounds.
#[derive(Parser, Debug)]
#[command(after_help = "\
Examples:
  ./xtask bench layer --ranks 1,2 --out results.json
  ./xtask bench layer --shape dsv3 --ranks 2 --rounds 20
  ./xtask bench layer --shape 64,2048,1024,4,4096 --routing zipf --ranks 1
  ./xtask bench forward --ranks 1 --sides fused,peer --minibatch-rows 8192")]
pub struct Args {
    /// A named layer or E,H,I,K,T; the four large named ones if not given
    #[arg(long)]
    shape: Vec<String>,
    /// Numbers of ranks, one GPU each
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    ranks: Vec<usize>,
    /// Our sides; `layer` takes peer,nccl if none are given, and `forward` all
    #[arg(long, value_enum, value_delimiter = ',')]
    sides: Vec<OurSide>,
    #[command(flatten)]
    batches: Batches,
    /// Who chooses experts
    #[arg(long, value_enum, default_value_t = Routing::Uniform)]
    routing: Routing,
    /// Rounds, in each of which every side runs
    #[arg(long, default_value_t = 12)]
    rounds: usize,
    /// Timed passes of a side in a round
    #[arg(long, default_value_t = 3)]
    timed: usize,
    /// Passes before the first timed one of a round
    #[arg(long, default_value_t = 1)]
    warmup: usize,
    /// Seed of routing and data
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Python with PyTorch
    #[arg(long, default_value = "python3")]
    python: String,
    /// Write every sample to this file
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print the report with every sample on standard output
    #[arg(long)]
    json: bool,
}

/// What we run against PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OurSide {
    /// One launch, over peers' memory
    Fused,
    /// Separate launches, over peers' memory
    Peer,
    /// Separate launches, over NCCL
    Nccl,
}

/// All of them.
pub const ALL: [OurSide; 3] = [OurSide::Fused, OurSide::Peer, OurSide::Nccl];
/// Those in separate launches.
pub const SEPARATE: [OurSide; 2] = [OurSide::Peer, OurSide::Nccl];

impl OurSide {
    fn name(self) -> &'static str {
        match self {
            OurSide::Fused => "fused",
            OurSide::Peer => "peer",
            OurSide::Nccl => "nccl",
        }
    }

    /// A layer that is run like this.
    fn of(self, config: MoeConfig) -> MoeConfig {
        match self {
            OurSide::Fused => config.with_path(Path::Fused),
            OurSide::Peer => config,
            OurSide::Nccl => config.with_transport(Transport::Nccl),
        }
    }
}

/// The four that speed is claimed on.
const SHAPES: [&str; 4] = ["kimi-k2.7", "qwen3.5", "dsv3", "qwen3-235b"];
/// What every side computes on.
pub struct Inputs {
    shape: LayerShape,
    /// Tokens of each rank.
    tokens: Vec<usize>,
    block: Vec<bf16>,
    up_scale: f32,
    down_scale: f32,
    x: Vec<bf16>,
    routes: Routes,
    batches: Batches,
}

impl Inputs {
    fn new(shape: LayerShape, ranks: usize, routing: Routing, seed: u64) -> Inputs {
        let tokens = vec![shape.tokens as usize; ranks];
        let count: usize = tokens.iter().sum();
        // Powers of two, so that scaling is exact on both sides.
        let scale = |columns: u32| 0.5f32.powi((f64::from(columns).log2() / 2.0).round() as i32);
        Inputs {
            shape,
            block: fill::normal(seed, BLOCK, 1.0),
            up_scale: scale(shape.hidden),
            down_scale: scale(shape.intermediate),
            x: fill::normal(seed + 1, count * shape.hidden as usize, 1.0),
            routes: routing::made_up(routing, seed + 2, &shape, 0..count),
            tokens,
            batches: Batches::default(),
        }
    }

    /// Writes what the baseline reads, and says where it is.
    fn write(&self, folder: &std::path::Path) -> Result<Value> {
        let block = folder.join("block.bin");
        std::fs::write(&block, bytemuck::cast_slice(&self.block))?;
        let mut start = 0;
        for (rank, &tokens) in self.tokens.iter().enumerate() {
            let part = |width: u32| start * width as usize..(start + tokens) * width as usize;
            let file = |name: &str| folder.join(format!("{name}{rank}.bin"));
            let (hidden, top_k) = (self.shape.hidden, self.shape.top_k);
            std::fs::write(file("x"), bytemuck::cast_slice(&self.x[part(hidden)]))?;
            let experts = &self.routes.experts[part(top_k)];
            std::fs::write(file("topk"), bytemuck::cast_slice(experts))?;
            let weights = &self.routes.weights[part(top_k)];
            std::fs::write(file("weights"), bytemuck::cast_slice(weights))?;
            start += tokens;
        }
        let shape = &self.shape;
        Ok(json!({
            "folder": folder, "block": block, "block_elements": self.block.len(),
            "up_scale": self.up_scale, "down_scale": self.down_scale,
            "experts": shape.experts, "hidden": shape.hidden, "top_k": shape.top_k,
            "intermediate": shape.intermediate, "shared": shape.shared, "tokens": self.tokens,
        }))
    }
}

/// Each pass's time: that of its slowest rank.
fn slowest(ranks: &[Vec<f32>]) -> Vec<f32> {
    let passes = ranks.first().map_or(0, Vec::len);
    let of_pass = |pass: usize| {
        let times = ranks.iter().filter_map(|rank| rank.get(pass));
        times.copied().fold(0.0, f32::max)
    };
    (0..passes).map(of_pass).collect()
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    #[serde(flatten)]
    machine: Machine,
    baseline: Value,
    arguments: Vec<String>,
    results: Vec<Timing>,
}

#[derive(Serialize)]
struct Timing {
    shape: String,
    sizes: LayerShape,
    ranks: usize,
    sides: Vec<Side>,
}

#[derive(Serialize)]
struct Side {
    name: &'static str,
    median_ms: f32,
    /// Of all ranks together, real rows only.
    tflops: f64,
    /// How many times as fast as the baseline.
    ratio: f64,
    /// Of its output from the baseline's, by norm.
    difference: f64,
    /// Milliseconds, round by round.
    samples_ms: Vec<Vec<f32>>,
}

/// `xtask bench layer` and `forward`, with these sides if none are asked for.
pub fn run(args: &Args, usual: &[OurSide]) -> Result<bool> {
    ensure!(
        (1..=1000).contains(&args.rounds),
        "--rounds must be 1 to 1000"
    );
    ensure!(
        (1..=1000).contains(&args.timed),
        "--timed must be 1 to 1000"
    );
    let there = backend::gpus()?;
    for &ranks in &args.ranks {
        ensure!(
            (1..=there).contains(&ranks),
            "--ranks {ranks}: this machine shows {there} GPUs, one for each rank"
        );
    }
    let names: Vec<&str> = match args.shape.is_empty() {
        true => SHAPES.to_vec(),
        false => args.shape.iter().map(String::as_str).collect(),
    };
    let wanted = |side| match args.sides.is_empty() {
        true => usual.contains(&side),
        false => args.sides.contains(&side),
    };
    let sides: Vec<OurSide> = ALL.into_iter().filter(|&one| wanted(one)).collect();
    let device = backend::require("bench layer", 0)?;
    let mut report = Report {
        schema: "mok-bench-layer/2",
        machine: Machine::of(&device)?,
        baseline: Value::Null,
        arguments: std::env::args().skip(1).collect(),
        results: Vec::new(),
    };
    let progress = Progress::new(args.ranks.len() * names.len() * args.rounds);
    for &ranks in &args.ranks {
        let folder = tempfile::tempdir()?;
        progress.at(format!("{ranks} ranks: starting PyTorch"));
        let mut baseline = Baseline::start(&args.python, ranks, folder.path())?;
        report.baseline = baseline.versions.clone();
        for name in &names {
            let shape = LayerShape::parse(name).map_err(anyhow::Error::msg)?;
            progress.at(format!("{name}, {ranks} ranks: data"));
            let inputs = Arc::new(Inputs {
                batches: args.batches,
                ..Inputs::new(shape, ranks, args.routing, args.seed)
            });
            let load = inputs.write(folder.path())?;
            baseline.load(&load).with_context(|| name.to_string())?;
            let ours = Ours::start(&inputs, &sides)?;
            let timing = rounds(args, name, &inputs, ours, &sides, &mut baseline, &progress);
            report
                .results
                .push(timing.with_context(|| format!("{name}, {ranks} ranks"))?);
            if let Some(out) = &args.out {
                // After each shape: what was measured is kept whatever comes.
                std::fs::write(out, serde_json::to_string_pretty(&report)?)?;
            }
        }
    }
    drop(progress);
    show(&report, args.json)?;
    Ok(report
        .results
        .iter()
        .flat_map(|timing| &timing.sides)
        .all(|side| side.difference <= SAME))
}

fn rounds(
    args: &Args,
    name: &str,
    inputs: &Inputs,
    mut ours: Ours,
    sides: &[OurSide],
    baseline: &mut Baseline,
    progress: &Progress,
) -> Result<Timing> {
    let ranks = inputs.tokens.len();
    let mut samples: Vec<Vec<Vec<f32>>> = vec![Vec::new(); sides.len() + 1];
    let last = sides.len();
    for round in 0..args.rounds {
        progress.at(format!(
            "{name}, {ranks} ranks: round {} of {}",
            round + 1,
            args.rounds
        ));
        // Each side is first in turn: none always meets the chip that another has warmed.
        for side in (0..=last).map(|side| (side + round) % (last + 1)) {
            let times = match sides.get(side) {
                Some(&side) => ours.run(side, args.warmup, args.timed),
                None => baseline.run(args.warmup, args.timed),
            };
            samples[side].push(times?);
        }
        progress.step();
    }
    let differences = compare(inputs, &mut ours, sides, baseline)?;
    let count: usize = inputs.tokens.iter().sum();
    let routes = inputs
        .routes
        .experts
        .iter()
        .filter(|&&expert| expert >= 0)
        .count();
    let work = inputs.shape.operations(routes as u64, count as u64);
    let medians: Vec<f32> = samples
        .iter()
        .map(|rounds| median(&rounds.concat()))
        .collect();
    let names = sides.iter().map(|side| side.name()).chain(["pytorch"]);
    let sides = names
        .zip(samples)
        .zip(&medians)
        .zip(differences.into_iter().chain([0.0]))
        .map(|(((name, samples_ms), &median_ms), difference)| Side {
            name,
            median_ms,
            tflops: work / f64::from(median_ms) / 1e9,
            ratio: f64::from(medians[last]) / f64::from(median_ms),
            difference,
            samples_ms,
        });
    Ok(Timing {
        shape: name.to_owned(),
        sizes: inputs.shape,
        ranks,
        sides: sides.collect(),
    })
}

/// How far the output of each of our sides is from the baseline's.
fn compare(
    inputs: &Inputs,
    ours: &mut Ours,
    sides: &[OurSide],
    baseline: &mut Baseline,
) -> Result<Vec<f64>> {
    let folder = tempfile::tempdir()?;
    let file = |rank: usize| folder.path().join(format!("out{rank}.bin"));
    baseline.save(|rank| file(rank).display().to_string())?;
    let theirs = (0..inputs.tokens.len()).map(|rank| Ok(std::fs::read(file(rank))?));
    let theirs: Vec<Vec<u8>> = theirs.collect::<Result<_>>()?;
    let of_side = |&side: &OurSide| -> Result<f64> {
        let mut difference = Difference::default();
        for (rank, (output, bytes)) in ours.outputs(side)?.iter().zip(&theirs).enumerate() {
            let theirs: &[bf16] = bytemuck::try_cast_slice(bytes).map_err(anyhow::Error::msg)?;
            let expected = inputs.tokens[rank] * inputs.shape.hidden as usize;
            ensure!(
                theirs.len() == expected,
                "the baseline's output has another size"
            );
            for (own, other) in output.iter().zip(theirs) {
                difference.add(own.to_f64(), other.to_f64());
            }
        }
        Ok(difference.norm())
    };
    sides.iter().map(of_side).collect()
}

fn show(report: &Report, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(report)?);
        return Ok(());
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "shape",
        "ranks",
        "side",
        "median ms",
        "TFLOP/s a GPU",
        "times PyTorch",
        "outputs differ",
    ]);
    for timing in &report.results {
        for side in &timing.sides {
            table.add_row([
                timing.shape.clone(),
                timing.ranks.to_string(),
                side.name.to_owned(),
                format!("{:.3}", side.median_ms),
                format!("{:.0}", side.tflops / timing.ranks as f64),
                format!("{:.3}", side.ratio),
                format!("{:.1e}", side.difference),
            ]);
        }
    }
    println!("{table}\n");
    println!("{}\nbaseline {}", report.machine, report.baseline);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_takes_as_long_as_its_slowest_rank() {
        assert_eq!(slowest(&[vec![1.0, 5.0], vec![2.0, 4.0]]), [2.0, 5.0]);
        assert!(slowest(&[]).is_empty());
    }

    #[test]
    fn scales_are_exact() {
        let shape = LayerShape::parse("qwen3-235b").expect("a name");
        let inputs = Inputs::new(LayerShape { tokens: 1, ..shape }, 1, Routing::Uniform, 0);
        assert_eq!(
            (inputs.up_scale, inputs.down_scale),
            (1.0 / 64.0, 1.0 / 32.0)
        );
    }
}
