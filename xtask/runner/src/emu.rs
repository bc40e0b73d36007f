//! `emu`: any PTX file, on the CPU.

mod argument;
mod isa;
mod job;
mod report;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use mok_emu::machine::{Completion, Config};

use argument::Argument;
use job::Job;
use report::Report;

/// Run a kernel of any PTX file in the emulator, with no GPU
///
/// Each --arg is one kernel parameter, in order:
///
///   in=PATH               the address of a buffer with that file's bytes
///   inout=PATH:OUTPATH    the same; afterwards its bytes go to OUTPATH
///   out=BYTES:OUTPATH     the address of so many zeros; afterwards to OUTPATH
///   i32= u32= i64= u64= f32= f64=   a number (integers also as 0x...)
///   null                  a null pointer
///   hex=00ff...           any other parameter, byte by byte
///   map=PATH:DTYPE:DIMS:STRIDES:BOX:SWIZZLE   a tensor map over a file's bytes
///   mapout=BYTES,OUTPATH:DTYPE:DIMS:STRIDES:BOX:SWIZZLE   over zeros, afterwards to OUTPATH
///   pmap= pmapout=        the same two, where the parameter is the address of a map in device memory
///
/// DTYPE is bf16, f16, f32, u8, ...; DIMS and BOX are elements, innermost first, with commas;
/// STRIDES are bytes from the second dimension on (none: packed); SWIZZLE is none, 32, 64 or 128.
#[derive(Parser, Debug)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  A kernel add(a, b, c, n), files of f32:
    cargo xtask emu add.ptx --grid 4 --block 256 \\
      --arg in=a.bin --arg in=b.bin --arg out=4096:c.bin --arg i32=1024
  Through tensor maps: 64 rows of 256 bf16, copied in boxes of 64 x 64 that are swizzled:
    cargo xtask emu copy.ptx --grid 4 --block 128 --shared 16384 \\
      --arg map=a.bin:bf16:256,64:512:64,64:128 --arg mapout=32768,d.bin:bf16:256,64:512:64,64:128
  Other interleavings; a failing seed prints the command that replays it:
    cargo xtask emu add.ptx --grid 4 --block 256 ... --seeds 64 --mode late
  What can be run at all:
    cargo xtask emu --isa

Exit status: 0 if nothing was found, 1 if something was (a time that ran out too), 2 if it could
not run."
)]
pub struct Args {
    /// The PTX
    #[arg(required_unless_present = "isa")]
    file: Option<PathBuf>,
    /// The kernel; may be left out if the file has one
    #[arg(long, value_name = "NAME")]
    entry: Option<String>,
    /// Blocks
    #[arg(long, value_name = "X[,Y[,Z]]", required_unless_present = "isa",
          value_parser = |text: &str| dims(text, [i32::MAX as u32, 65535, 65535]))]
    grid: Option<Dims>,
    /// Threads of a block
    #[arg(long, value_name = "N[,N[,N]]", required_unless_present = "isa",
          value_parser = |text: &str| dims(text, [1024, 1024, 64]))]
    block: Option<Dims>,
    /// Blocks of a cluster, along x; without it, what the kernel requires
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    cluster: Option<u32>,
    /// Dynamic shared memory
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    shared: u32,
    /// A kernel parameter, in order: see above
    #[arg(long = "arg", value_name = "FORM", value_parser = Argument::parse)]
    args: Vec<Argument>,
    /// Run with this seed: one seed, one interleaving
    #[arg(long, value_name = "K", default_value_t = 0, conflicts_with = "seeds")]
    seed: u64,
    /// Run with each of the seeds 0 to N - 1, each on a fresh machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// How unkindly it is scheduled, one or several with commas: random; asynchronous work early
    /// or late; blocks in reverse; starved=N, warp N of each block last; held=N, so many SMs busy
    /// with something else
    #[arg(long, value_name = "MODE[,MODE...]", default_value = "random", value_parser = Modes::parse)]
    mode: Modes,
    /// Whether races, proxies, values that nobody wrote and registers of products in flight are
    /// checked; off is faster, and still finds what cannot be executed
    #[arg(long, value_enum, default_value_t = Check::On)]
    check: Check,
    /// Streaming multiprocessors
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    sms: u32,
    /// Stop after this time, all seeds together; that is a finding
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Print one JSON object on standard output, everything else on standard error
    #[arg(long)]
    json: bool,
    /// Print the supported instructions
    #[arg(long)]
    isa: bool,
}

/// What a run has to report after its time.
const GRACE: Duration = Duration::from_secs(5);

/// Extents along x, y and z.
#[derive(Clone, Copy, Debug)]
struct Dims([u32; 3]);

fn dims(text: &str, most: [u32; 3]) -> Result<Dims, String> {
    let mut dims = [1; 3];
    let parts: Vec<&str> = text.split(',').collect();
    if parts.len() > 3 {
        return Err("at most three numbers: X,Y,Z".into());
    }
    for ((to, part), (most, axis)) in dims
        .iter_mut()
        .zip(&parts)
        .zip(most.iter().zip("xyz".chars()))
    {
        *to = part
            .parse()
            .ok()
            .filter(|value| (1..=*most).contains(value))
            .ok_or_else(|| format!("`{part}` along {axis} is not 1 to {most}"))?;
    }
    Ok(Dims(dims))
}

/// Whether the checker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Check {
    On,
    Off,
}

/// Adversaries together.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Modes(Vec<Mode>);

impl Modes {
    fn parse(text: &str) -> Result<Modes, String> {
        let modes: Vec<Mode> = text.split(',').map(Mode::parse).collect::<Result<_, _>>()?;
        for (at, mode) in modes.iter().enumerate() {
            if let Some(other) = modes[..at].iter().find(|other| other.excludes(*mode)) {
                return Err(format!("it is {other} or {mode}, not both"));
            }
        }
        Ok(Modes(modes))
    }

    fn configure(&self, config: &mut Config) {
        self.0.iter().for_each(|mode| mode.configure(config));
    }

    /// SMs that something else has.
    fn held(&self) -> Option<u32> {
        self.0.iter().find_map(|mode| match mode {
            Mode::Held(sms) => Some(*sms),
            _ => None,
        })
    }
}

impl std::fmt::Display for Modes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self.0.iter().map(Mode::to_string).collect();
        f.write_str(&names.join(","))
    }
}

/// An adversary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Random,
    Early,
    Late,
    Reverse,
    Starved(u32),
    Held(u32),
}

impl Mode {
    fn parse(text: &str) -> Result<Mode, String> {
        let known = "it is random, early, late, reverse, starved=N or held=N";
        let (name, number) = match text.split_once('=') {
            Some((name, number)) => (name, Some(number)),
            None => (text, None),
        };
        let count = |most: u32| {
            number
                .and_then(|number| number.parse().ok())
                .filter(|count| *count <= most)
                .ok_or_else(|| format!("{name}=N takes a number up to {most}"))
        };
        match (name, number) {
            ("random", None) => Ok(Mode::Random),
            ("early", None) => Ok(Mode::Early),
            ("late", None) => Ok(Mode::Late),
            ("reverse", None) => Ok(Mode::Reverse),
            ("starved", _) => count(31).map(Mode::Starved),
            ("held", _) => count(1023).map(Mode::Held),
            _ => Err(known.into()),
        }
    }

    /// Whether both say the same thing, differently.
    fn excludes(self, other: Mode) -> bool {
        let completes = |mode| matches!(mode, Mode::Random | Mode::Early | Mode::Late);
        completes(self) && completes(other)
            || std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    fn configure(self, config: &mut Config) {
        match self {
            Mode::Random => config.completion = Completion::Random,
            Mode::Early => config.completion = Completion::Early,
            Mode::Late => config.completion = Completion::Late,
            Mode::Reverse => config.reverse = true,
            Mode::Starved(warp) => config.starved_warp = Some(warp),
            Mode::Held(sms) => config.held_sms = sms,
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mode::Random => f.write_str("random"),
            Mode::Early => f.write_str("early"),
            Mode::Late => f.write_str("late"),
            Mode::Reverse => f.write_str("reverse"),
            Mode::Starved(warp) => write!(f, "starved={warp}"),
            Mode::Held(sms) => write!(f, "held={sms}"),
        }
    }
}

/// The object of a command line that is wrong.
pub fn print_usage_error(error: &clap::Error) {
    let error = anyhow::anyhow!("{}", error.to_string().trim());
    // Standard output is gone if this fails; the exit status still tells.
    let _ = Report::failed(&error).print(true);
}

/// `xtask emu`; whether nothing was found.
pub fn run(args: &Args) -> Result<bool> {
    if args.isa {
        return isa::print(args.json).map(|()| true);
    }
    let timeout = Duration::from_secs(args.timeout);
    let reporting = Arc::new(Mutex::new(()));
    end_late(timeout, args.json, reporting.clone());
    let result = Job::new(args).and_then(|job| job.run(timeout));
    // Never given back: whoever has it reports.
    std::mem::forget(reporting.lock());
    match result {
        Ok(report) => {
            report.print(args.json)?;
            Ok(report.passed())
        }
        Err(error) => {
            if args.json {
                Report::failed(&error).print(true)?;
            }
            Err(error)
        }
    }
}

/// Ends the process when the time has long been over: runs look at the clock themselves, what
/// comes before and after them does not.
fn end_late(timeout: Duration, json: bool, reporting: Arc<Mutex<()>>) {
    std::thread::spawn(move || {
        std::thread::sleep(timeout.saturating_add(GRACE));
        let _reporting = reporting.lock();
        let seconds = timeout.as_secs();
        let error = anyhow::anyhow!(
            "stopped after {seconds} seconds (--timeout), before or after the kernel ran"
        );
        if json {
            // Standard output is gone if this fails; the exit status still tells.
            let _ = Report::failed(&error).print(true);
        }
        eprintln!("error: {error}");
        std::process::exit(1);
    });
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn modes_and_extents_are_read() {
        for mode in [
            "random",
            "early",
            "late",
            "reverse",
            "starved=3",
            "held=1",
            "late,reverse,starved=0,held=2",
        ] {
            assert_eq!(Modes::parse(mode).unwrap().to_string(), mode);
        }
        let mut config = Config::default();
        Modes::parse("reverse,late,held=2,starved=1")
            .unwrap()
            .configure(&mut config);
        assert!(config.reverse && config.completion == Completion::Late);
        assert_eq!((config.held_sms, config.starved_warp), (2, Some(1)));
        for mode in [
            "",
            "slow",
            "late=1",
            "starved",
            "starved=x",
            "held=-1",
            "starved=32",
            "late,",
            "late,early",
            "reverse,reverse",
            "held=1,held=2",
        ] {
            assert!(Modes::parse(mode).is_err(), "{mode}");
        }
        assert_eq!(dims("5,2", [8; 3]).unwrap().0, [5, 2, 1]);
        for text in ["", "0", "9", "1,2,3,4", "1,,2", "-1", "4294967296"] {
            assert!(dims(text, [8; 3]).is_err(), "{text}");
        }
    }
}
