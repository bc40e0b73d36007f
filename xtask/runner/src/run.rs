//! `run`: one forward pass of a mixture-of-experts layer, on one rank or many.

mod estimate;
pub mod gemm;
mod host;
mod input;
mod launch;
mod output;
mod problem;
mod rank;
mod report;
pub mod routing;
pub mod shape;
mod trace;
mod verify;

use std::fmt;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use mok::layer::{Group, Transport};
use mok::{Arch, Device, EmulatorConfig, Image};

use crate::backend::{self, Backend};
use crate::pass::{Batches, PathArg};
use crate::progress::Progress;
use launch::Launch;
use output::Outputs;
use problem::Problem;
use rank::{Finished, Work};
use report::{Place, Report};
use routing::Routing;
use shape::LayerShape;

/// Run one MoE layer forward on one rank or many, and compare it with the CPU reference
///
/// Tokens, routes and weights come from safetensors files (--input), or are random. Every rank holds
/// its own tokens and its own experts. Outputs are compared with f64 sums, with and without the
/// layer's rounding points, and with themselves over repeated passes.
///
/// Ranks are processes, one a GPU, that this command starts, or that torchrun or srun has started
/// (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT); in the emulator they are threads, but may
/// be processes with --transport nccl.
///
/// `cargo xtask run gemm` runs the grouped GEMM alone, in its three forms.
#[derive(Parser, Debug)]
#[command(args_conflicts_with_subcommands = true, after_help = AFTER)]
pub struct Args {
    #[command(subcommand)]
    command: Option<RunCommand>,
    /// How many ranks; by default 2, or 1 where there is one GPU
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=72))]
    ranks: Option<u32>,
    /// Where to run
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    backend: Backend,
    /// What ranks are: by default processes on GPUs, threads elsewhere
    #[arg(long, value_enum)]
    launch: Option<Launch>,
    /// Fail unless this architecture's kernels run; what the emulator is, where it runs them
    #[arg(long, value_parser = arch)]
    arch: Option<Arch>,
    /// The layer, by name or as E,H,I,K,T (see below)
    #[arg(long, value_name = "NAME|E,H,I,K,T", value_parser = LayerShape::parse)]
    shape: Option<LayerShape>,
    /// Intermediate size of the shared expert; 0 for none
    #[arg(long, value_name = "I_s")]
    shared: Option<u32>,
    /// Tokens of each rank, such as 7,0,12
    #[arg(long, value_delimiter = ',', value_name = "T,T,...")]
    tokens: Option<Vec<u32>>,
    /// Who chooses the experts; by default the input, or uniform without one
    #[arg(long, value_enum)]
    routing: Option<Routing>,
    /// What weights are kept in
    #[arg(long, value_enum, default_value_t = Dtype::Bf16)]
    dtype: Dtype,
    /// Seed of what is random, and of the emulator's interleaving
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How tokens get to other ranks
    #[arg(long, value_enum, default_value_t = TransportArg::Peer)]
    transport: TransportArg,
    /// How the forward pass is launched
    #[arg(long, value_enum, default_value_t = PathArg::Unfused)]
    path: PathArg,
    #[command(flatten)]
    batches: Batches,
    /// Write who did which task when to this file, in a pass of its own: .json is for Perfetto, .svg is a picture; may be
    /// repeated. With --path fused
    #[arg(long, value_name = "FILE.json|FILE.svg")]
    trace: Vec<PathBuf>,
    /// Rows that each rank has room for (a multiple of 128); by default twice an even share, or what
    /// the routes need
    #[arg(long, value_name = "ROWS")]
    capacity: Option<u32>,
    /// Clamp gate to at most this, and up to within it
    #[arg(long, value_name = "LIMIT", allow_negative_numbers = true)]
    swiglu_limit: Option<f32>,
    /// A safetensors file, a model.safetensors.index.json, or a folder of either; may be repeated
    #[arg(long, value_name = "FILE")]
    input: Vec<PathBuf>,
    /// Which layer of a checkpoint; by default the first that has experts
    #[arg(long, value_name = "N", requires = "input")]
    layer: Option<u32>,
    /// Write `out`, `topk_experts` and `router_weights` of all tokens to this file
    #[arg(long, value_name = "FILE.safetensors")]
    output: Option<PathBuf>,
    /// Passes against the clock, and as many that are compared bit by bit; by default 10 on GPUs
    /// and 1 in the emulator
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Compare about this many tokens, of all ranks together; 0 compares all. By default all, or 256
    /// where that takes long
    #[arg(long)]
    sample: Option<usize>,
    /// Run also what the emulator needs hours for
    #[arg(long)]
    force: bool,
    /// Print one JSON object on standard output, everything else on standard error
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand, Debug)]
enum RunCommand {
    Gemm(gemm::Args),
}

const AFTER: &str = "\
Shapes (E experts, H hidden size, I intermediate size, K experts of a token, T tokens of a rank; the
named ones have a shared expert of size I, numbers have none unless --shared says so):
  tiny         8, 128, 128, 2, 24        the default in the emulator: seconds
  qwen3-235b   128, 4096, 1536, 8, 8192  the default on GPUs
  qwen3.5      512, 4096, 1024, 10, 7168
  dsv3         256, 7168, 2048, 8, 8192
  kimi-k2.7    384, 7168, 2048, 8, 7168

Input tensors, all ranks' tokens after each other, split evenly or by --tokens:
  x               [T, H]  BF16 (or F32, F16: rounded)
  topk_experts    [T, K]  I32 or I64, -1 for no expert
  router_weights  [T, K]  F32 (or BF16, F16)
and a checkpoint's, of the first layer that has them or of --layer N:
  [model.]layers.N.mlp.experts.E.{gate_proj,up_proj,down_proj}.weight            Qwen3-MoE, DeepSeek
  [model.]layers.N.mlp.shared_experts.{gate_proj,up_proj,down_proj}.weight       DeepSeek
  [model.]layers.N.block_sparse_moe.experts.E.{w1,w3,w2}.weight                  Mixtral
Without topk_experts the checkpoint's router (gate.weight, and e_score_correction_bias) chooses, in
float32 as Hugging Face's code of that family does; its config.json has to be beside it. What the
files lack is random if the command line gives its size.

Examples:
  cargo xtask run
  cargo xtask run --json --ranks 4 --tokens 9,0,30,1 --routing zipf
  cargo xtask run --ranks 8 --shape dsv3                            eight GPUs of this machine
  cargo xtask run --input layer.safetensors --output out.safetensors
  cargo xtask run --input x.safetensors --input ~/Mixtral-8x7B --layer 3
  torchrun --nproc-per-node 8 --no-python ./xtask run --shape dsv3  started by a launcher
  cargo xtask run --path fused --trace pass.json --trace pass.svg   who did what when, in one launch
  cargo xtask run --backend none                                    only what the host can check
  cargo xtask run gemm --help

Exit status: 0 if every check passed, 1 if one failed, 2 if it could not run.";

/// What weights are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Dtype {
    /// bfloat16
    Bf16,
    /// Blocks of 32 e4m3 with one scale: not yet
    Mxfp8,
}

/// How tokens get to other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TransportArg {
    /// Kernels read and write memory that all ranks' devices reach
    Peer,
    /// NCCL's all-to-all, for GPUs without peer access; in the emulator over the host
    Nccl,
}

impl TransportArg {
    fn transport(self) -> Transport {
        match self {
            TransportArg::Peer => Transport::Peer,
            TransportArg::Nccl => Transport::Nccl,
        }
    }

    fn name(self) -> &'static str {
        match self {
            TransportArg::Peer => "peer",
            TransportArg::Nccl => "nccl",
        }
    }
}

fn arch(name: &str) -> Result<Arch, String> {
    let known = || Arch::ALL.map(Arch::name).join(", ");
    Arch::from_name(name).ok_or_else(|| format!("unknown architecture; known are {}", known()))
}

/// An error that has been told already: only the exit status is left to say.
#[derive(Debug)]
pub struct Told;

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("told before")
    }
}

impl std::error::Error for Told {}

/// The object of a run whose arguments are wrong, so that its shape isn't known.
pub fn print_usage_error(error: &clap::Error, gemm: bool) {
    let error = anyhow::anyhow!("{}", error.to_string().trim());
    if gemm {
        return gemm::print_usage_error(&error);
    }
    let place = Place {
        backend: "none",
        ..Place::default()
    };
    // Standard output is gone if this fails; the exit status still tells.
    let _ = Report::failed(place, 0, 0, &error).print(true);
}

/// `xtask run`; whether everything passed.
pub fn run(args: &Args) -> Result<bool> {
    if let Some(RunCommand::Gemm(args)) = &args.command {
        return gemm::run(args);
    }
    let mut job = Job {
        args,
        place: Place {
            backend: "none",
            launch: "threads",
            transport: args.transport.name(),
            path: args.path.name(),
            arch: None,
        },
        ranks: args.ranks.unwrap_or(0) as usize,
        speaks: true,
    };
    match job.run() {
        Ok(passed) => Ok(passed),
        Err(error) => {
            if !job.speaks {
                eprintln!(
                    "rank {}: {error:#}",
                    std::env::var("RANK").unwrap_or_default()
                );
                return Err(Told.into());
            }
            if args.json && !error.is::<Told>() {
                Report::failed(job.place, job.ranks, args.seed, &error).print(true)?;
            }
            Err(error)
        }
    }
}

/// A run, and what is known of it so far.
struct Job<'a> {
    args: &'a Args,
    place: Place,
    ranks: usize,
    /// Whether this process is the one that reports.
    speaks: bool,
}

/// What was found to run on.
enum Found {
    Host,
    Emulator,
    /// So many GPUs.
    Gpus(usize),
}

impl Job<'_> {
    fn run(&mut self) -> Result<bool> {
        let args = self.args;
        ensure!(
            args.dtype == Dtype::Bf16,
            "--dtype mxfp8 is not there yet: the layer computes in bf16"
        );
        ensure!(
            args.output.is_none() || args.backend != Backend::None,
            "--output needs a device that computes it, and --backend none has none"
        );
        let launched = launch::launched();
        if launched && std::env::var("RANK").is_ok_and(|rank| rank.trim() != "0") {
            self.speaks = false;
        }
        if let Some(output) = args.output.as_deref().filter(|_| self.speaks) {
            output::check(output)?;
        }
        ensure!(
            args.trace.is_empty() || args.backend != Backend::None,
            "--trace needs a device that makes the pass, and --backend none has none"
        );
        ensure!(
            args.trace.is_empty() || args.path == PathArg::Fused,
            "--trace is of a pass in one launch: take --path fused"
        );
        for file in args.trace.iter().filter(|_| self.speaks) {
            trace::check(file)?;
        }
        let found = self.find()?;
        // Emulated GPUs reach each other within one process; over the host they may be in several.
        let apart = !matches!(found, Found::Emulator) || args.transport == TransportArg::Nccl;
        if launched {
            ensure!(
                apart || launch::alone(),
                "this process is one rank of several (RANK and WORLD_SIZE are set), and emulated \
                 ranks are threads of one process: start it once, without a launcher, with --ranks \
                 N, or take --transport nccl"
            );
            ensure!(
                args.launch != Some(Launch::Threads),
                "--launch threads contradicts RANK and WORLD_SIZE, which are set: a launcher has \
                 started this process as one rank"
            );
            return self.as_member(&found);
        }
        let asked = args.ranks.map(|ranks| ranks as usize);
        let mut usual = Launch::Threads;
        self.ranks = asked.unwrap_or(2);
        if let Found::Gpus(count) = found {
            self.ranks = asked.unwrap_or(count.min(2));
            ensure!(
                self.ranks <= count,
                "{} ranks need as many GPUs, and this machine shows {count}: take --ranks {count}, \
                 --backend emulator, or start one process a GPU on several machines with torchrun or \
                 srun",
                self.ranks
            );
            if self.ranks > 1 {
                usual = Launch::Processes;
            }
        }
        match args.launch.unwrap_or(usual) {
            Launch::Threads => self.as_threads(&found),
            Launch::Processes => {
                ensure!(
                    apart,
                    "emulated ranks are threads of one process: leave out --launch processes, or \
                     take --transport nccl"
                );
                self.as_parent()
            }
        }
    }

    /// Where to run.
    fn find(&mut self) -> Result<Found> {
        let found = match self.args.backend {
            Backend::None => Found::Host,
            Backend::Emulator => Found::Emulator,
            Backend::Cuda | Backend::Auto => match backend::gpus() {
                Ok(count) => Found::Gpus(count),
                Err(error) if self.args.backend == Backend::Auto && backend::is_absence(&error) => {
                    eprintln!("{}", backend::instead(&error));
                    Found::Emulator
                }
                Err(error) => return Err(error.into()),
            },
        };
        self.place.backend = match found {
            Found::Host => "none",
            Found::Emulator => "emulator",
            Found::Gpus(_) => "cuda",
        };
        Ok(found)
    }

    /// This process starts the ranks, and prints what the first of them reports.
    fn as_parent(&mut self) -> Result<bool> {
        self.place.launch = "processes";
        let ended = launch::processes(self.ranks)?;
        let lost = ended.lost();
        let told = !ended.printed.is_empty();
        let refused = ended
            .statuses
            .first()
            .and_then(std::process::ExitStatus::code)
            == Some(2);
        if lost.is_empty() || refused && (told || !self.args.json) {
            print!("{}", ended.printed);
        }
        if lost.is_empty() {
            return Ok(ended.statuses.iter().all(std::process::ExitStatus::success));
        }
        if refused && (told || !self.args.json) {
            return Err(Told.into());
        }
        bail!("not all ranks came to their end: {}", lost.join("; "))
    }

    /// This process is one rank.
    fn as_member(&mut self, found: &Found) -> Result<bool> {
        self.place.launch = "processes";
        let group = Group::from_env()?;
        self.ranks = group.world_size();
        let asked = self.args.ranks.map(|ranks| ranks as usize);
        ensure!(
            asked.is_none_or(|asked| asked == self.ranks),
            "--ranks is {}, and WORLD_SIZE is {}: leave out --ranks, or make them equal",
            asked.unwrap_or(0),
            self.ranks
        );
        let mut prepared = || -> Result<_> {
            let device = match found {
                Found::Gpus(_) => Some(self.gpu(group.local_rank())?),
                Found::Emulator => Some(self.emulated(1)?.remove(0)),
                Found::Host => None,
            };
            Ok((self.problem(found)?, device))
        };
        let prepared = prepared();
        let (problem, device) = rank::together(&group, prepared)?;
        let progress = match self.speaks {
            true => self.progress(),
            false => Progress::hidden(),
        };
        let outputs = self.args.output.is_some();
        let work = self.work(found);
        let (finished, outputs) =
            launch::member(&problem, work, device.as_ref(), group, &progress, outputs)?;
        drop(progress);
        self.report(&problem, finished, &outputs)
    }

    /// All ranks are threads of this process.
    fn as_threads(&mut self, found: &Found) -> Result<bool> {
        let problem = self.problem(found)?;
        let devices: Vec<Option<Device>> = match found {
            Found::Host => vec![None; self.ranks],
            Found::Emulator => {
                let devices = self.emulated(self.ranks)?;
                devices.into_iter().map(Some).collect()
            }
            Found::Gpus(_) => {
                let devices = (0..self.ranks).map(|rank| self.gpu(rank).map(Some));
                devices.collect::<Result<_>>()?
            }
        };
        let progress = self.progress();
        let (finished, outputs) = launch::threads(&problem, self.work(found), &devices, &progress)?;
        drop(progress);
        self.report(&problem, finished, &outputs)
    }

    fn emulated(&mut self, gpus: usize) -> Result<Vec<Device>> {
        let config = EmulatorConfig {
            arch: self.args.arch.unwrap_or(Arch::Sm90a),
            sms: 2,
            seed: self.args.seed,
            ..EmulatorConfig::default()
        };
        let devices = Device::emulated_peers(config, gpus)?;
        self.introduce(&devices[0])?;
        Ok(devices)
    }

    fn gpu(&mut self, ordinal: usize) -> Result<Device> {
        let device = Device::cuda(ordinal)?;
        if let Some(arch) = self.args.arch {
            let there = device.arch()?;
            ensure!(
                there == arch,
                "--arch {}: {} is {}",
                arch.name(),
                device.name(),
                there.name()
            );
        }
        self.introduce(&device)?;
        Ok(device)
    }

    /// Says which device and which code run.
    fn introduce(&mut self, device: &Device) -> Result<()> {
        self.place.arch = Some(device.arch()?.name());
        let module = device.kernels()?.module();
        let image = match module.image() {
            Image::Cubin => "cubins",
            Image::Ptx if device.is_emulated() => "PTX",
            Image::Ptx => "PTX, compiled by the driver",
        };
        if self.speaks {
            eprintln!("{}, {image}", device.name());
            let passed_over = module.cubin_error().filter(|_| !device.is_emulated());
            if let Some(error) = passed_over {
                eprintln!("the cubin was not taken: {error}");
            }
        }
        Ok(())
    }

    fn problem(&self, found: &Found) -> Result<Problem> {
        let default = match found {
            Found::Gpus(_) => LayerShape::on_gpus(),
            _ => LayerShape::tiny(),
        };
        let problem = Problem::new(self.args, self.ranks, default)?;
        if self.speaks {
            problem
                .notes
                .iter()
                .for_each(|note| eprintln!("note: {note}"));
        }
        if matches!(found, Found::Emulator) {
            estimate::admit(&problem, self.work(found), self.args.force)?;
        }
        Ok(problem)
    }

    fn work(&self, found: &Found) -> Work {
        let runs = match found {
            Found::Gpus(_) => 10,
            _ => 1,
        };
        Work {
            runs: self.args.runs.unwrap_or(runs) as usize,
            sample: self.args.sample,
            capacity: self.args.capacity,
            transport: self.args.transport.transport(),
            path: self.args.path.path(),
            batches: self.args.batches,
            traced: !self.args.trace.is_empty(),
        }
    }

    fn progress(&self) -> Progress {
        let runs = self.args.runs.unwrap_or(1) as usize;
        Progress::new(6 + runs)
    }

    fn report(&self, problem: &Problem, mut finished: Finished, outputs: &Outputs) -> Result<bool> {
        let mut more = Vec::new();
        if self.place.backend == "none" {
            let archs = match &self.args.arch {
                Some(arch) => std::slice::from_ref(arch),
                None => &Arch::ALL[..],
            };
            more = host::checks(problem, &finished.data, archs)?;
        }
        let timelines = std::mem::take(&mut finished.timelines);
        let report = Report::new(self.place, self.args.seed, problem, finished, more);
        if self.speaks {
            if let Some(path) = self.args.output.as_deref() {
                output::write(path, problem, outputs, report.out_sha256())?;
            }
            for file in &self.args.trace {
                trace::write(file, &timelines)?;
            }
            report.print(self.args.json)?;
        }
        Ok(report.passed())
    }
}
