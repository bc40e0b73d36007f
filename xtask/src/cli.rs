//! Commands and their help.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use mok_build::Arch;

use crate::{doctor, kernels, lint, pack, runner, test, validate};

const AFTER: &str = "\
A first hour:
  cargo xtask doctor     what this machine has, and the command that mends each lack
  cargo xtask run        build the kernels and run a layer against the CPU oracle
  cargo xtask test       everything that can be tested here
  cargo xtask emu        any PTX file in the emulator, with no GPU
  cargo xtask pack       a folder to copy to a machine with a GPU and no Rust

Every command brings what it needs (rust-src, ptxas) into the target folder by
itself. Progress goes to standard error, results to standard output.";

/// MoE training kernels in Rust: build them, prove them, run them.
#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", version, after_help = AFTER)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say what this machine has and lacks, and the one command that mends each lack.
    #[command(
        after_help = "Examples:\n  cargo xtask doctor\n  cargo xtask doctor --json | jq '.items[] | select(.state == \"missing\")'"
    )]
    Doctor {
        /// One JSON object on standard output.
        #[arg(long)]
        json: bool,
        /// Fail if something that building or validating needs is missing.
        #[arg(long)]
        strict: bool,
    },
    /// Bring rust-src, ptxas and nvdisasm into the target folder.
    ///
    /// rust-src comes from rustup, or, where rustup cannot download, from Debian's
    /// package through a private apt configuration. ptxas and nvdisasm are the
    /// machine's own if new enough, else NVIDIA's Python wheels. Set MOK_PTXAS or
    /// MOK_NVDISASM to name one yourself. A second run changes nothing.
    Setup,
    /// Compile the kernels: target/ptx/mok_ARCH.ptx, and a cubin beside each.
    #[command(after_help = "Examples:\n  cargo xtask build\n  cargo xtask build --arch sm_90a")]
    Build {
        /// Architectures, separated by commas.
        #[arg(long, value_delimiter = ',', value_parser = arch, default_values = Arch::ALL.map(Arch::name))]
        arch: Vec<Arch>,
        /// Also copy the files to host/kernels, where `cargo package` takes them along.
        #[arg(long)]
        stage: bool,
    },
    /// Assemble PTX with ptxas and say whether it is fit to ship.
    ///
    /// Prints registers, spills, stack, shared memory and the tensor-core
    /// instructions of each entry. Fails on a spill, a stack frame, a C75xx of
    /// ptxas, .local, brx.idx, a call, a panic symbol, a register count over the
    /// budget in kernel/budgets.toml, or a collective that was emitted more often
    /// than its source declares. Takes any PTX, also that of other compilers.
    #[command(
        after_help = "Examples:\n  cargo xtask validate                    the three shipped files\n  cargo xtask validate mine.ptx\n  cargo xtask validate --json | jq .passed"
    )]
    Validate {
        /// PTX files; none: the shipped ones, built first if needed.
        files: Vec<PathBuf>,
        /// One JSON object on standard output.
        #[arg(long)]
        json: bool,
    },
    /// rustfmt, clippy (host and device) and rustdoc; a warning is a failure.
    Lint,
    /// Set up, build, validate, lint, and run all tests.
    #[command(after_help = "In a pack it runs the packaged GPU tests instead.")]
    Test {
        /// Also the long tests (those marked `#[ignore]`).
        #[arg(long)]
        all: bool,
        /// Arguments for the test executables, after `--`.
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// Fill target/pack with what a machine with a GPU but no Rust needs.
    ///
    /// Copy the folder there and call `./xtask doctor`, `./xtask run`,
    /// `./xtask test` or `./xtask bench` in it.
    Pack,
    /// Build and stage the kernels, then run `cargo package` on what is published.
    Package {
        /// Arguments for `cargo package`, after `--`.
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// Run one MoE layer forward on one rank or many, on GPUs or in the emulator, and compare with the
    /// CPU oracle; `run gemm`: the grouped GEMM alone.
    #[command(disable_help_flag = true)]
    Run(Rest),
    /// Run any PTX file in the emulator, with no GPU.
    #[command(disable_help_flag = true)]
    Emu(Rest),
    /// Write GPU outputs that tests without a GPU compare with.
    #[command(disable_help_flag = true)]
    Golden(Rest),
    /// Compare random programs in the emulator with what a GPU gives.
    #[command(disable_help_flag = true)]
    Fuzz(Rest),
    /// Measure.
    #[command(disable_help_flag = true)]
    Bench(Rest),
}

/// Arguments that go on to `xtask-runner` as they are.
#[derive(Debug, clap::Args)]
pub struct Rest {
    /// Options of the command: see its own --help.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

fn arch(name: &str) -> Result<Arch, String> {
    let known = || Arch::ALL.map(Arch::name).join(", ");
    Arch::from_name(name).ok_or_else(|| format!("unknown architecture; known are {}", known()))
}

impl Command {
    /// Does it.
    pub fn run(self) -> Result<ExitCode> {
        match self {
            Command::Doctor { json, strict } => doctor::run(json, strict),
            Command::Setup => kernels::setup(),
            Command::Build { arch, stage } => kernels::build(&arch, stage),
            Command::Validate { files, json } => validate::run(&files, json),
            Command::Lint => lint::run(),
            Command::Test { all, args } => test::run(all, &args),
            Command::Pack => pack::run(),
            Command::Package { args } => kernels::package(&args),
            Command::Run(rest) => runner::forward("run", &rest.args),
            Command::Emu(rest) => runner::forward("emu", &rest.args),
            Command::Golden(rest) => runner::forward("golden", &rest.args),
            Command::Fuzz(rest) => runner::forward("fuzz", &rest.args),
            Command::Bench(rest) => runner::forward("bench", &rest.args),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn forwarded_commands_keep_every_argument() {
        let cli = Cli::parse_from(["xtask", "run", "--help", "--json", "-x", "--", "y"]);
        let Command::Run(rest) = cli.command else {
            panic!("not run")
        };
        assert_eq!(rest.args, ["--help", "--json", "-x", "--", "y"]);
    }
}
