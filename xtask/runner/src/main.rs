//! `run`, `emu`, `golden`, `fuzz` and `bench`: the commands of `cargo xtask` that need the library or
//! the emulator.

mod backend;
mod bench;
mod emu;
mod fuzz;
mod golden;
mod host_checks;
mod machine;
mod pass;
#[path = "../../src/pipes.rs"]
mod pipes;
mod place;
mod products;
mod progress;
mod report;
mod run;
mod shape;

use std::env;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs the kernels of mok-rs: against their oracles, for golden files, against the clock.
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Emu(Box<emu::Args>),
    Golden(golden::Args),
    Fuzz(fuzz::Args),
    #[command(subcommand)]
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    pipes::end_quietly();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help is no error, and goes to standard output.
            if error.use_stderr() && env::args_os().any(|arg| arg == "--json") {
                match env::args_os().nth(1) {
                    Some(command) if command == "run" => {
                        let gemm = env::args_os().nth(2).is_some_and(|form| form == "gemm");
                        run::print_usage_error(&error, gemm);
                    }
                    Some(command) if command == "emu" => emu::print_usage_error(&error),
                    _ => {}
                }
            }
            error.exit()
        }
    };
    let result = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Emu(args) => emu::run(&args),
        Command::Golden(args) => golden::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Bench(bench) => bench::run(&bench),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            if !error.is::<run::Told>() {
                eprintln!("error: {error:#}");
            }
            ExitCode::from(2)
        }
    }
}
