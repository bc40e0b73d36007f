//! `bench gemm`: the grouped GEMM against cuBLAS, PyTorch and DeepGEMM, in one run, on the same
//! inputs.

mod baseline;
mod cases;
mod ours;
mod report;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use half::bf16;
use mok::gemm::{Form, GroupedGemm, Sink};
use mok::{Arch, Buffer, Device, fill};
use serde_json::Value;

use super::{BLOCK, Difference, SAME};
use crate::backend;
use crate::machine::Machine;
use crate::progress::Progress;
use baseline::{Baseline, DEEP_GEMM, Loaded, SWIGLU, Yardstick};
use cases::{Case, Filter, Gemm, Product, Products, Spread};
use ours::Ours;
use report::{Contest, Own, Report, Rival, Timing, Yardsticks};

/// Time the grouped GEMM against cuBLAS, PyTorch and DeepGEMM, round by round, on the same inputs
///
/// Each round runs every side a few times, so that heat and clocks meet all alike; only one side
/// is busy at a time. The others are in a process of their own, with the program that this one
/// carries: cuBLAS (torch.matmul) for the dense case, torch._grouped_mm and DeepGEMM for grouped
/// ones. Random data, events around every launch, ratios of medians over all rounds; TFLOP/s count
/// real rows only. Outputs are compared, and the command fails if they differ.
///
/// The roofline of a product is the larger of its arithmetic at the rate of cuBLAS (8192^3) and its
/// bytes, each once, at the rate of a device copy; both are measured in the same rounds.
#[derive(Parser, Debug)]
#[command(after_help = "\
Examples:
  ./xtask bench gemm --results gemm.json
  ./xtask bench gemm --case dsv3 --gemm down --routing zipf --form forward,dgrad
  ./xtask bench gemm --case dense,qwen3.5 --form wgrad --sink bf16,add-f32
  ./xtask bench gemm --groups 64 --rows 32768 --n 4096 --k 7168 --without deep-gemm
  ./xtask bench gemm --case kimi-k2.7 --ours-only --json
  ./xtask bench gemm --gemm gate-up --form forward,swiglu

Cases are one expert-parallel rank of two: \"gate-up\" is gate and up in one product (n = 2 I,
k = H), \"down\" the other (n = H, k = I). \"dense\" is one product of 8192^3. The form \"swiglu\" is
gate and up with the activation behind them; with \"forward\" beside it, it is compared with that
and PyTorch's compiled SwiGLU too.

All of it took 64 s on an H200 with --rounds 10 --samples 1; the first run on a
machine compiles DeepGEMM's kernels, which needs nvcc. DeepGEMM comes as the wheels sgl-deep-gemm
0.1.4 and apache-tvm-ffi 0.1.11; without it grouped forward and dgrad fail, unless it is left out.

Exit status: 0 if all outputs agree, 1 if any differ, 2 for errors.")]
pub struct Args {
    /// Only these cases; all if not given
    #[arg(
        long = "case",
        visible_alias = "shape",
        value_delimiter = ',',
        value_parser = ["dense", "kimi-k2.7", "qwen3.5", "dsv3"]
    )]
    cases: Vec<String>,
    /// Only these products of the layers
    #[arg(long = "gemm", value_enum, value_delimiter = ',')]
    gemms: Vec<Gemm>,
    /// Only these routings
    #[arg(long = "routing", value_enum, value_delimiter = ',')]
    routings: Vec<Spread>,
    /// Only these forms
    #[arg(long = "form", value_delimiter = ',', value_parser = ["forward", "dgrad", "wgrad", "swiglu"])]
    forms: Vec<String>,
    /// Only these places for weight gradients
    #[arg(
        long = "sink",
        value_delimiter = ',',
        value_parser = ["bf16", "f32", "add-f32", "add-bf16"]
    )]
    sinks: Vec<String>,
    /// Number of groups, for a shape of one's own
    #[arg(long, requires_all = ["rows", "n", "k"], conflicts_with_all = ["cases", "gemms"])]
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
    /// Rounds, in each of which every side runs
    #[arg(long, default_value_t = 12)]
    rounds: usize,
    /// Timed launches of a side in a round
    #[arg(long, default_value_t = 3)]
    samples: usize,
    /// Launches before the first timed one of a round
    #[arg(long, default_value_t = 1)]
    warmup: usize,
    /// Leave these out of the comparison
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = ["deep-gemm", "deep-gemm-wgrad"],
        conflicts_with = "ours_only"
    )]
    without: Vec<String>,
    /// Compare with nobody: no Python is needed, and outputs are not checked
    #[arg(long)]
    ours_only: bool,
    /// Python with PyTorch
    #[arg(long, default_value = "python3")]
    python: String,
    /// Most SMs for this library's products; all if not said
    #[arg(long)]
    sms: Option<u32>,
    /// Which GPU
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Seed of the routing and the data
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write every sample to this file
    #[arg(long, visible_alias = "out")]
    results: Option<PathBuf>,
    /// Print the report with every sample on standard output
    #[arg(long)]
    json: bool,
}

/// Each sample keeps two events.
const MAX_SAMPLES: usize = 100_000;
const MAX_ROUNDS: usize = 1000;

impl Args {
    fn filter(&self) -> Filter<'_> {
        Filter {
            cases: &self.cases,
            gemms: &self.gemms,
            routings: &self.routings,
            forms: &self.forms,
            sinks: &self.sinks,
        }
    }

    fn chosen(&self) -> Result<Vec<Case>> {
        ensure!(
            (1..=MAX_SAMPLES).contains(&self.samples),
            "--samples must be 1 to {MAX_SAMPLES}"
        );
        ensure!(
            (1..=MAX_ROUNDS).contains(&self.rounds),
            "--rounds must be 1 to {MAX_ROUNDS}"
        );
        ensure!(
            self.warmup <= MAX_SAMPLES,
            "--warmup must be at most {MAX_SAMPLES}"
        );
        let filter = self.filter();
        let mut cases = match (self.groups, self.rows, self.n, self.k) {
            (Some(groups), Some(rows), Some(n), Some(k)) => {
                filter.custom(self.seed, groups, rows, n, k)
            }
            _ => filter.cases(self.seed),
        }?;
        // A case with nothing to compare would be measured for nothing, and count as one that agrees.
        let products = filter.products();
        cases.retain(|case| !case.has(&products).is_empty());
        ensure!(
            !cases.is_empty(),
            "nothing to measure: the form \"swiglu\" is of gate-up, which none of the cases is"
        );
        Ok(cases)
    }

    fn write(&self, report: &Report) -> Result<()> {
        let Some(results) = &self.results else {
            return Ok(());
        };
        let text = serde_json::to_string_pretty(report)?;
        std::fs::write(results, text).with_context(|| format!("writing {}", results.display()))
    }
}

/// `xtask bench gemm`.
pub fn run(args: &Args) -> Result<bool> {
    let cases = args.chosen()?;
    let device = backend::require("bench gemm", args.device)?;
    let sms = args.sms.unwrap_or(device.sm_count());
    let bench = Bench {
        args,
        products: args.filter().products(),
        gemm: GroupedGemm::new(&device)?.with_sms(sms)?,
        folder: tempfile::tempdir()?,
        progress: Progress::new(args.rounds * cases.len()),
        device,
    };
    let mut report = Report {
        schema: "mok-bench-gemm/1",
        machine: Machine::of(&bench.device)?,
        sms,
        baseline: Value::Null,
        without: args.without.clone(),
        arguments: std::env::args().skip(1).collect(),
        results: Vec::new(),
    };
    // Before anything is measured: a file that can't be written should cost no time.
    args.write(&report)?;
    bench.all(&cases, &mut report)?;
    drop(bench);
    match args.json {
        true => println!("{}", serde_json::to_string(&report)?),
        false => report.show(),
    }
    let differing: Vec<&Timing> = report
        .results
        .iter()
        .filter(|timing| timing.difference() > SAME)
        .collect();
    for timing in &differing {
        eprintln!(
            "{}: outputs differ from the baseline's by {:.1e} (at most {SAME:.0e} is right)",
            timing.title(),
            timing.difference()
        );
    }
    Ok(differing.is_empty())
}

/// What all cases share.
struct Bench<'a> {
    args: &'a Args,
    products: Products,
    device: Device,
    gemm: GroupedGemm,
    folder: tempfile::TempDir,
    progress: Progress,
}

/// A baseline with a case loaded.
struct Rivals<'a> {
    baseline: &'a mut Baseline,
    loaded: Loaded,
}

/// Samples of one side, round by round.
type Samples = Vec<Vec<f32>>;

impl Bench<'_> {
    fn all(&self, cases: &[Case], report: &mut Report) -> Result<()> {
        let args = self.args;
        self.progress.at("data");
        let numbers = fill::normal::<bf16>(args.seed, BLOCK, 1.0);
        let block = self.device.buffer_from(&numbers)?;
        let mut baseline = match args.ours_only {
            true => None,
            false => {
                self.progress.at("starting PyTorch");
                let mut required = false;
                for case in cases {
                    for (product, _) in case.has(&self.products) {
                        required |= self.deep_gemm_required(case, product)?;
                    }
                }
                let mut baseline = Baseline::start(
                    &args.python,
                    args.device,
                    &args.without,
                    required,
                    self.folder.path(),
                    &numbers,
                )?;
                report.baseline = baseline.versions.clone();
                self.progress.at("compiling DeepGEMM's kernels");
                let grouped = cases.iter().filter(|case| !case.is_plain());
                let loads: Vec<Value> = grouped.map(|case| case.load(&self.products)).collect();
                baseline.prepare(&loads)?;
                Some(baseline)
            }
        };
        drop(numbers);
        for case in cases {
            let timing = self.case(case, baseline.as_mut(), &block);
            report.results.push(timing.with_context(|| case.title())?);
            // After each case: what was measured is kept whatever comes.
            args.write(report)?;
        }
        Ok(())
    }

    /// Whether DeepGEMM has something to say, and nobody left it out. Its weight gradient goes where
    /// ours need not, and is extra.
    fn deep_gemm_required(&self, case: &Case, product: Product) -> Result<bool> {
        let left_out = self.args.without.iter().any(|left| left == DEEP_GEMM);
        let takes_part = product != Product::Form(Form::Wgrad) && !case.is_plain();
        Ok(takes_part && !left_out && self.device.arch()? == Arch::Sm90a)
    }

    fn case(
        &self,
        case: &Case,
        baseline: Option<&mut Baseline>,
        block: &Buffer<bf16>,
    ) -> Result<Timing> {
        self.progress.at(format!("{}: data", case.title()));
        let mut rivals = match baseline {
            None => None,
            Some(baseline) => {
                let loaded = baseline.load(case, &self.products)?;
                for (product, _) in case.has(&self.products) {
                    let there = loaded.sides(product).iter().any(|side| side == DEEP_GEMM);
                    ensure!(
                        there || !self.deep_gemm_required(case, product)?,
                        "DeepGEMM did not take part in {}, though nobody left it out",
                        product.name()
                    );
                }
                Some(Rivals { baseline, loaded })
            }
        };
        let mut ours = Ours::new(&self.device, &self.gemm, case, &self.products, block)?;
        let (matmul, copy, samples) = self.rounds(case, &mut ours, rivals.as_mut())?;
        let yardsticks = rivals.as_ref().map(|rivals| {
            let baseline = &rivals.baseline;
            let (operations, bytes) = (baseline.matmul_operations, baseline.copy_bytes);
            Yardsticks::new(operations, matmul, bytes, copy)
        });
        let products = case.has(&self.products);
        let mut contests: Vec<Contest> = Vec::with_capacity(products.len());
        for ((product, sinks), sides) in products.iter().zip(samples) {
            let names = rivals
                .as_ref()
                .map_or(&[][..], |rivals| rivals.loaded.sides(*product));
            let (own, others) = sides.split_at(sinks.len());
            let others = names.iter().zip(others);
            let theirs: Vec<Rival> = others
                .map(|(name, samples)| Rival::new(name, case.operations(), samples.clone()))
                .collect();
            let own = sinks.iter().zip(own).map(|(&sink, samples)| {
                let samples = samples.clone();
                Own::new(case, *product, sink, samples, &theirs, yardsticks.as_ref())
            });
            let mut own: Vec<Own> = own.collect();
            if let Some(rivals) = &mut rivals {
                let differences = self.compare(case, *product, sinks, &mut ours, rivals)?;
                for (own, differences) in own.iter_mut().zip(differences) {
                    own.differences = differences;
                }
            }
            contests.push(Contest {
                form: product.name(),
                ours: own,
                theirs,
            });
        }
        report::set_apart(&mut contests);
        Ok(Timing {
            case: case.name.clone(),
            gemm: case.gemm,
            routing: case.routing,
            groups: case.groups.len(),
            rows: case.groups.real_rows(),
            largest_group: case.groups.sizes().iter().copied().max().unwrap_or(0),
            n: case.n,
            k: case.k,
            yardsticks,
            forms: contests,
            notes: rivals.map_or_else(Vec::new, |rivals| rivals.loaded.notes),
        })
    }

    /// Samples of both yardsticks, and for each form of each sink and then of each rival.
    fn rounds(
        &self,
        case: &Case,
        ours: &mut Ours<'_>,
        mut rivals: Option<&mut Rivals<'_>>,
    ) -> Result<(Samples, Samples, Vec<Vec<Samples>>)> {
        let (warmup, timed) = (self.args.warmup, self.args.samples);
        let (mut matmul, mut copy) = (Vec::new(), Vec::new());
        let products = case.has(&self.products);
        let names: Vec<Vec<String>> = products
            .iter()
            .map(|(product, _)| match &rivals {
                Some(rivals) => rivals.loaded.sides(*product).to_vec(),
                None => Vec::new(),
            })
            .collect();
        let mut samples: Vec<Vec<Samples>> = products
            .iter()
            .zip(&names)
            .map(|((_, sinks), names)| vec![Vec::new(); sinks.len() + names.len()])
            .collect();
        for round in 0..self.args.rounds {
            let number = round + 1;
            self.progress.at(format!(
                "{}: round {number} of {}",
                case.title(),
                self.args.rounds
            ));
            if let Some(rivals) = &mut rivals {
                matmul.push(rivals.baseline.measure(Yardstick::Matmul, warmup, timed)?);
                copy.push(rivals.baseline.measure(Yardstick::Copy, warmup, timed)?);
            }
            for (((product, sinks), names), sides) in products.iter().zip(&names).zip(&mut samples)
            {
                let count = sides.len();
                // Each side is first in turn: none always meets the chip that another has warmed.
                for side in (0..count).map(|side| (side + round) % count) {
                    let times = match (sinks.get(side), &mut rivals) {
                        (Some(&sink), _) => ours.time(*product, sink, warmup, timed),
                        (None, Some(rivals)) => {
                            let name = &names[side - sinks.len()];
                            rivals.baseline.time(*product, name, warmup, timed)
                        }
                        (None, None) => continue,
                    };
                    sides[side].push(times?);
                }
            }
            self.progress.step();
        }
        Ok((matmul, copy, samples))
    }

    /// How far our output is from each rival's, for each sink.
    fn compare(
        &self,
        case: &Case,
        product: Product,
        sinks: &[Sink],
        ours: &mut Ours<'_>,
        rivals: &mut Rivals<'_>,
    ) -> Result<Vec<BTreeMap<String, f64>>> {
        let wanted = case.sample(product, self.args.seed);
        let folder: &Path = self.folder.path();
        let mut theirs = Vec::new();
        for name in rivals
            .loaded
            .sides(product)
            .iter()
            .filter(|&name| name != SWIGLU)
        {
            let columns = case.columns(product);
            let rows = rivals
                .baseline
                .rows(product, name, &wanted, columns, folder)?;
            theirs.push((name.clone(), rows));
        }
        let mut differences = Vec::new();
        for &sink in sinks {
            let own = ours.rows(product, sink, &wanted)?;
            let from = |rows: &[f32]| {
                let mut difference = Difference::default();
                for (&own, &other) in own.iter().zip(rows) {
                    difference.add(own.into(), other.into());
                }
                difference.norm()
            };
            let all = theirs.iter().map(|(name, rows)| (name.clone(), from(rows)));
            differences.push(all.collect());
        }
        Ok(differences)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(options: &[&str]) -> Result<Vec<Case>> {
        let line = ["gemm"].into_iter().chain(options.iter().copied());
        Args::try_parse_from(line)?.chosen()
    }

    #[test]
    fn a_case_without_a_product_is_not_measured() {
        let cases = chosen(&["--form", "swiglu"]).expect("cases");
        assert_eq!(cases.len(), 3 * 2);
        assert!(cases.iter().all(|case| case.gemm == Some(Gemm::GateUp)));
        let own = ["--groups", "4", "--rows", "64", "--n", "16", "--k", "8"];
        for others in [&["--gemm", "down"][..], &["--case", "dense"], &own] {
            let options = [&["--form", "swiglu"], others].concat();
            let error = chosen(&options).expect_err("no case").to_string();
            assert!(error.contains("swiglu"), "{options:?}: {error}");
            let options = [&["--form", "swiglu,forward"], others].concat();
            assert!(chosen(&options).is_ok(), "{options:?}");
        }
    }
}
