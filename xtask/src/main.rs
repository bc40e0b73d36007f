//! The command line of mok-rs: brings what is missing, builds, proves, tests, packs.
//!
//! It depends on the builder only, never on the library `mok`, whose own build
//! script builds kernels: `doctor` and `setup` work where nothing is installed.
//! `run`, `emu`, `golden` and `bench` need the library and live in `xtask-runner`.

mod bars;
mod cli;
mod doctor;
mod gpus;
mod kernels;
mod lint;
mod pack;
mod pipes;
mod place;
mod predict;
mod runner;
mod test;
mod validate;

use std::process::ExitCode;

use clap::Parser;
use mok_build::report;

fn main() -> ExitCode {
    pipes::end_quietly();
    let cli = cli::Cli::parse();
    match cli.command.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", report::in_full(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}
