//! `fuzz`: random programs of scalar instructions, the emulator against a GPU.

mod report;
mod workers;

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use mok::{Device, EmulatorConfig};
use mok_fuzz::compare::{Pair, Part, emulate};
use mok_fuzz::record::Record;
use mok_fuzz::{Generator, PROGRAMS, Runner, USES, module, recorded_programs};

use crate::{backend, place};

/// Compare random programs of scalar instructions: the emulator with a GPU, or with its records
///
/// 10,000 programs use every scalar name of `emu --isa` that Hopper has at least 100 times each,
/// among branches, loops, calls and early ends. Each result is stored; of all of a program's
/// results a hash is recorded. Without a GPU the emulator's hashes are compared with those that a
/// GPU gave; with one, every result is compared, and programs that differ are shortened.
/// Approximate instructions are compared with f64 within the ISA's bounds, on both sides.
#[derive(Parser, Debug)]
#[command(after_help = "\
Examples:
  cargo xtask fuzz                                the emulator against the recorded GPU
  cargo xtask fuzz --programs 0..500              some of the programs
  cargo xtask fuzz --program 17 --emit            the PTX of one
  cargo xtask fuzz --counts                       how often each single name is used
  ./xtask fuzz --backend cuda                     in a pack: a GPU against the emulator
  ./xtask fuzz --backend cuda --record            and write golden/scalar.json, scalar.bin

Exit status: 0 if all agree, 1 if some don't, 2 if it could not run.")]
pub struct Args {
    /// What is compared with: the recorded GPU, or one of this machine
    #[arg(long, value_enum, default_value_t = With::Record)]
    backend: With,
    /// Which GPU
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Only these programs
    #[arg(long, value_name = "FIRST..END", value_parser = range, conflicts_with = "record")]
    programs: Option<Range<u32>>,
    /// Only this program
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..i64::from(PROGRAMS)),
          conflicts_with_all = ["programs", "record"])]
    program: Option<u32>,
    /// Print the programs' PTX instead of running them
    #[arg(long)]
    emit: bool,
    /// Write the GPU's hashes for tests that have none
    #[arg(long)]
    record: bool,
    /// The folder of the record; tests/golden in a checkout, golden in a pack, if not said
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Print the uses of every name, not only of every row of the table
    #[arg(long)]
    counts: bool,
    /// Processes that compile and run programs on the GPU; as many as processors if not said
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    jobs: Option<u32>,
    /// Seconds after which programs that differ are listed without being shortened
    #[arg(long, value_name = "SECONDS", default_value_t = 90)]
    reduce: u64,
    /// One of those processes: its result is JSON on standard output
    #[arg(long, hide = true)]
    worker: bool,
}

/// What the emulator is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum With {
    /// What a GPU gave when it was recorded
    Record,
    /// A GPU
    Cuda,
    /// Another emulator, as if it were a GPU: to try the command without one
    Emulator,
}

impl With {
    fn name(self) -> &'static str {
        match self {
            With::Record => "record",
            With::Cuda => "cuda",
            With::Emulator => "emulator",
        }
    }
}

fn range(text: &str) -> Result<Range<u32>, String> {
    let numbers = text
        .split_once("..")
        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match numbers {
        Some((first, end)) if first < end && end <= PROGRAMS => Ok(first..end),
        _ => Err(format!("it is FIRST..END, within 0..{PROGRAMS}")),
    }
}

impl Args {
    fn range(&self) -> Range<u32> {
        match (self.program, &self.programs) {
            (Some(number), _) => number..number + 1,
            (None, Some(programs)) => programs.clone(),
            (None, None) => 0..PROGRAMS,
        }
    }

    fn folder(&self) -> Result<PathBuf> {
        self.out.clone().map_or_else(place::golden, Ok)
    }
}

/// `xtask fuzz`; whether all agree.
pub fn run(args: &Args) -> Result<bool> {
    let generator = recorded_programs();
    if args.emit {
        let programs: Vec<_> = args
            .range()
            .map(|number| generator.program(number))
            .collect();
        print!("{}", module(&programs.iter().collect::<Vec<_>>()));
        return Ok(true);
    }
    match args.backend {
        With::Record => {
            ensure!(!args.record, "--record needs a GPU: --backend cuda");
            replay(args, &generator)
        }
        _ if args.worker => work(args, &generator),
        _ => on_gpu(args, &generator),
    }
}

/// The emulator against the record.
fn replay(args: &Args, generator: &Generator) -> Result<bool> {
    let (record, hashes) = Record::read(&args.folder()?).context(
        "the record of a GPU, which `./xtask fuzz --backend cuda --record` in a pack makes",
    )?;
    let programs = args.range();
    let started = Instant::now();
    let part = emulate(generator, programs.clone()).map_err(anyhow::Error::msg)?;
    let whole = programs.len() == PROGRAMS as usize;
    if whole {
        record.check(&part.texts)?;
    }
    let recorded = hashes.get(programs.start as usize..programs.end as usize);
    let recorded = recorded.unwrap_or_default();
    ensure!(
        recorded.len() == part.hashes.len(),
        "the record has fewer programs"
    );
    let wrong: Vec<u32> = programs
        .clone()
        .zip(part.hashes.iter().zip(recorded))
        .filter(|(_, (got, want))| got != want)
        .map(|(number, _)| number)
        .collect();
    let enough = report::uses(generator, &part, args.counts, if whole { USES } else { 0 });
    let near = report::approximate(&part.near, "emulator");
    let beyond = record.beyond();
    for (name, worst) in &beyond {
        println!("{name}: the recorded results were {worst:.2} times the ISA's bound off");
    }
    println!(
        "{} of {} programs give what {} gave ({:.0} s)",
        part.hashes.len() - wrong.len(),
        part.hashes.len(),
        record.device,
        started.elapsed().as_secs_f64()
    );
    for number in wrong.iter().take(20) {
        println!(
            "  program {number} differs: `cargo xtask fuzz --program {number} --emit` prints it; with a GPU \
             `./xtask fuzz --backend cuda --program {number}` in a pack says where"
        );
    }
    Ok(wrong.is_empty() && enough && near && beyond.is_empty())
}

/// What the emulator is compared with.
fn device(args: &Args) -> Result<Device> {
    match args.backend {
        With::Emulator => Ok(Device::emulated(EmulatorConfig {
            check: false,
            ..EmulatorConfig::default()
        })?),
        _ => backend::require("fuzz", args.device),
    }
}

/// One process's part, on standard output.
fn work(args: &Args, generator: &Generator) -> Result<bool> {
    let deadline = Instant::now() + Duration::from_secs(args.reduce);
    let device = Runner::new(device(args)?, generator.seed())?;
    let pair = Pair {
        generator,
        device: &|programs| device.run(programs),
        // A fresh one each time: what one run leaves behind must not reach another.
        emulator: &|programs| Runner::emulated(generator.seed(), false)?.run(programs),
    };
    let part = pair.compare(args.range(), deadline);
    println!("{}", serde_json::to_string(&part)?);
    Ok(true)
}

/// A GPU against the emulator.
fn on_gpu(args: &Args, generator: &Generator) -> Result<bool> {
    let (name, driver) = {
        let device = device(args)?;
        (device.name().to_owned(), backend::driver(&device))
    };
    let programs = args.range();
    let started = Instant::now();
    let part: Part = workers::run(args, programs.clone())?;
    let seconds = started.elapsed().as_secs_f64();
    let whole = programs.len() == PROGRAMS as usize;
    let enough = report::uses(generator, &part, args.counts, if whole { USES } else { 0 });
    let near = [
        report::approximate(&part.near, &name),
        report::approximate(&part.near_emulated, "emulator"),
    ];
    report::differences(&part);
    println!(
        "{} programs on {name} ({driver}): {} differ from the emulator, {} did not run ({seconds:.0} s)",
        programs.len(),
        part.differences.len(),
        part.failures.len()
    );
    if args.record {
        ensure!(
            part.failures.is_empty() && part.hashes.len() == PROGRAMS as usize,
            "nothing was recorded, since some programs did not run"
        );
        ensure!(
            args.backend == With::Cuda || args.out.is_some(),
            "what the emulator gives is no record for the emulator's tests: name another folder with --out"
        );
        let folder = args.folder()?;
        let record = Record::new(generator, &part, name, driver, place::commit());
        record.write(&folder, &part.hashes)?;
        println!("recorded in {}", folder.display());
    }
    let agree = part.differences.is_empty() && part.failures.is_empty();
    Ok(agree && enough && near == [true; 2])
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
        assert_eq!(range("3..7").unwrap(), 3..7);
        for text in ["", "3", "7..3", "3..3", "0..10001", "-1..2", "a..b"] {
            assert!(range(text).is_err(), "{text}");
        }
    }
}
