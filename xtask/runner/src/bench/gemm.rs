//! `bench gemm`: the products against the clock.

use anyhow::{Result, bail, ensure};
use clap::Parser;
use comfy_table::{Table, presets};
use half::bf16;
use mok::gemm::{Form, GemmCall, GroupedGemm, MAX_GROUPS, Matrix};
use mok::{Buffer, Device, Groups, fill};
use serde::Serialize;

use super::{BLOCK, median, tiled};
use crate::backend;
use crate::machine::Machine;
use crate::progress::Progress;

/// Time the grouped GEMM in its three forms
///
/// Random data, events around every launch, the median of all samples; TFLOP/s count real rows
/// only. Rows are spread over the groups at random, as a router does.
#[derive(Parser, Debug)]
#[command(after_help = "\
Examples:
  ./xtask bench gemm
  ./xtask bench gemm --shape dsv3 --samples 50
  ./xtask bench gemm --groups 64 --rows 32768 --n 4096 --k 7168 --json

The named shapes are gate and up in one product (n = 2 I, k = H) at two ranks.")]
pub struct Args {
    /// A named shape; all of them if neither this nor --groups is given
    #[arg(long, value_parser = ["kimi-k2.7", "qwen3.5", "dsv3"])]
    shape: Option<String>,
    /// Number of groups
    #[arg(long, requires_all = ["rows", "n", "k"], conflicts_with = "shape")]
    groups: Option<u32>,
    /// Rows of all groups together
    #[arg(long, requires = "groups")]
    rows: Option<u32>,
    /// Columns of the forward product
    #[arg(long, requires = "groups")]
    n: Option<u32>,
    /// Depth of the forward product
    #[arg(long, requires = "groups")]
    k: Option<u32>,
    /// Timed launches of each form
    #[arg(long, default_value_t = 30)]
    samples: usize,
    /// Launches before the first timed one
    #[arg(long, default_value_t = 5)]
    warmup: usize,
    /// Most SMs to use; all if not said
    #[arg(long)]
    sms: Option<u32>,
    /// Which GPU
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Seed of the routing and the data
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object with every sample on standard output
    #[arg(long)]
    json: bool,
}

struct Shape {
    name: String,
    groups: u32,
    rows: u32,
    n: u32,
    k: u32,
}

const MAX_SAMPLES: usize = 100_000;

/// (name, groups, rows, n, k)
const NAMED: [(&str, u32, u32, u32, u32); 3] = [
    ("kimi-k2.7", 192, 57_344, 4096, 7168),
    ("qwen3.5", 256, 71_680, 2048, 4096),
    ("dsv3", 128, 65_536, 4096, 7168),
];

impl Args {
    fn shapes(&self) -> Result<Vec<Shape>> {
        if let (Some(groups), Some(rows), Some(n), Some(k)) =
            (self.groups, self.rows, self.n, self.k)
        {
            ensure!(
                (1..=MAX_GROUPS).contains(&groups),
                "--groups must be 1 to {MAX_GROUPS}"
            );
            let name = format!("{groups}x{n}x{k}");
            return Ok(vec![Shape {
                name,
                groups,
                rows,
                n,
                k,
            }]);
        }
        Ok(NAMED
            .into_iter()
            .filter(|(name, ..)| self.shape.as_deref().is_none_or(|wanted| wanted == *name))
            .map(|(name, groups, rows, n, k)| Shape {
                name: name.to_owned(),
                groups,
                rows,
                n,
                k,
            })
            .collect())
    }
}

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    #[serde(flatten)]
    machine: Machine,
    sms: u32,
    results: Vec<Timing>,
}

#[derive(Serialize)]
struct Timing {
    shape: String,
    form: &'static str,
    groups: u32,
    rows: u64,
    n: u32,
    k: u32,
    median_ms: f32,
    tflops: f64,
    samples_ms: Vec<f32>,
}

/// `xtask bench gemm`.
pub fn run(args: &Args) -> Result<bool> {
    // Each keeps two events.
    ensure!(
        (1..=MAX_SAMPLES).contains(&args.samples),
        "--samples must be 1 to {MAX_SAMPLES}"
    );
    let shapes = args.shapes()?;
    let device = backend::require("bench gemm", args.device)?;
    let sms = args.sms.unwrap_or(device.sm_count());
    let gemm = GroupedGemm::new(&device)?.with_sms(sms)?;
    let progress = Progress::new(3 * shapes.len());
    let mut results = Vec::new();
    for shape in &shapes {
        results.extend(time(args, &device, &gemm, shape, &progress)?);
    }
    drop(progress);
    let report = Report {
        schema: "mok-bench/1",
        machine: Machine::of(&device)?,
        sms,
        results,
    };
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
        return Ok(true);
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["shape", "form", "median ms", "TFLOP/s"]);
    for timing in &report.results {
        table.add_row([
            timing.shape.clone(),
            timing.form.to_owned(),
            format!("{:.3}", timing.median_ms),
            format!("{:.0}", timing.tflops),
        ]);
    }
    println!("{table}\n");
    println!("{}, {} SMs", report.machine, report.sms);
    Ok(true)
}

fn time(
    args: &Args,
    device: &Device,
    gemm: &GroupedGemm,
    shape: &Shape,
    progress: &Progress,
) -> Result<Vec<Timing>> {
    progress.at(format!("{}: data", shape.name));
    let mut sizes = vec![0u32; shape.groups as usize];
    for row in 0..shape.rows {
        sizes[(fill::hash(args.seed, row.into()) % u64::from(shape.groups)) as usize] += 1;
    }
    let groups = Groups::new(&sizes)?;
    let (rows, n, k) = (
        groups.capacity() as usize,
        shape.n as usize,
        shape.k as usize,
    );
    let elements =
        |factors: [usize; 3]| match factors.into_iter().try_fold(1usize, usize::checked_mul) {
            Some(elements) => Ok(elements),
            None => bail!("{factors:?} elements overflow"),
        };
    let weights = elements([groups.len(), n, k])?;
    let stream = device.stream()?;
    let sizes = device.buffer_from(&sizes)?;
    let x = random(device, args.seed, elements([rows, k, 1])?)?;
    let dy = random(device, args.seed.wrapping_add(1), elements([rows, n, 1])?)?;
    let w = random(device, args.seed.wrapping_add(2), weights)?;
    // The largest of the three products; the others use a part.
    let most = weights.max(rows * n).max(rows * k);
    let d = device.buffer_uninit::<bf16>(most)?;
    let at = groups.at(sizes.ptr());
    let [x, dy, w, d] = [&x, &dy, &w, &d].map(Matrix::of);
    let calls = [
        GemmCall::forward(at, shape.n, shape.k, x, w, d),
        GemmCall::dgrad(at, shape.k, shape.n, dy, w, d),
        GemmCall::wgrad(at, shape.n, shape.k, dy, x, d),
    ];
    let mut timings = Vec::new();
    for (form, call) in Form::ALL.into_iter().zip(&calls) {
        progress.at(format!("{}: {}", shape.name, form.name()));
        let mut samples = Vec::with_capacity(args.samples);
        let events = (0..args.samples)
            .map(|_| Ok((device.event()?, device.event()?)))
            .collect::<Result<Vec<_>>>()?;
        for _ in 0..args.warmup {
            // SAFETY: the buffers outlive the synchronisation below; only this stream uses them.
            unsafe { gemm.enqueue(call, &stream) }?;
        }
        for (start, end) in &events {
            start.record(&stream)?;
            // SAFETY: as above.
            unsafe { gemm.enqueue(call, &stream) }?;
            end.record(&stream)?;
        }
        stream.synchronize()?;
        for (start, end) in &events {
            samples.push(start.elapsed_ms(end)?);
        }
        let median_ms = median(&samples);
        let work = 2.0 * groups.real_rows() as f64 * n as f64 * k as f64;
        timings.push(Timing {
            shape: shape.name.clone(),
            form: form.name(),
            groups: shape.groups,
            rows: groups.real_rows(),
            n: shape.n,
            k: shape.k,
            median_ms,
            tflops: work / f64::from(median_ms) / 1e9,
            samples_ms: samples,
        });
        progress.step();
    }
    Ok(timings)
}

/// Random numbers on the device; large tensors repeat a block.
fn random(device: &Device, seed: u64, len: usize) -> Result<Buffer<bf16>> {
    let block = device.buffer_from(&fill::normal::<bf16>(seed, len.min(BLOCK), 1.0))?;
    Ok(tiled(device, &block, 0, len)?)
}
