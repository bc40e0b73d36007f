//! `run`, `emu`, `golden`, `fuzz`, `bench`: they need the library, so another executable has them.

use std::ffi::OsString;
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result};
use mok_build::workspace::cargo;
use mok_build::{Report, process, report, setup};
use serde_json::json;

use crate::bars::Bars;
use crate::place::Place;
use crate::validate;

/// Tells `run` whether the kernels passed validation: 1 or 0; unset where that was not tried.
const VALIDATED: &str = "MOK_VALIDATED";

/// Hands a command on, with its standard streams and its exit status.
///
/// `run --json` and `emu --json` owe their caller one object whatever happens: where
/// `xtask-runner` could not be started, or ended before it had one, it comes from here.
pub fn forward(command: &str, args: &[OsString]) -> Result<ExitCode> {
    let outcome = hand_on(command, args);
    if args.iter().any(|arg| arg == "--json") && matches!(command, "run" | "emu") {
        match &outcome {
            Ok((_, status)) if status.code().is_some_and(|code| REPORTED.contains(&code)) => {}
            Ok((_, status)) => {
                println!(
                    "{}",
                    not_run(command, args, &format!("xtask-runner: {status}"))
                );
            }
            Err(error) => println!(
                "{}",
                not_run(command, args, &report::in_full(error.as_ref()))
            ),
        }
    }
    let (fit, status) = outcome?;
    Ok(if fit {
        code(status.code())
    } else {
        ExitCode::FAILURE
    })
}

/// The exit statuses with which the runner has printed its report.
const REPORTED: [i32; 3] = [0, 1, 2];

/// The report of a run that did not come to reporting.
fn not_run(command: &str, args: &[OsString], error: &str) -> serde_json::Value {
    if command == "emu" {
        return json!({
            "schema": "mok-emu/1", "passed": false, "error": error, "instructions": 0,
            "time_ns": 0, "findings": [], "runs": [], "seeds_not_run": 0, "outputs": [],
            "launch": null,
        });
    }
    let gemm = args.first().is_some_and(|arg| arg == "gemm");
    json!({
        "schema": "mok-run/1", "passed": false, "backend": "none", "arch": null, "dtype": "bf16",
        "pass": if gemm { "gemm" } else { "forward" }, "ranks": u8::from(gemm), "shape": null,
        "checks": [], "error": error,
    })
}

/// Whether the kernels were not found unfit, and how the command ended.
fn hand_on(command: &str, args: &[OsString]) -> Result<(bool, ExitStatus)> {
    let place = Place::find()?;
    let mut fit = true;
    let mut child = match &place {
        Place::Checkout(workspace) => {
            let mut bars = Bars::new();
            // Its build script would do the same, but could not show a bar.
            setup::ensure(workspace, &mut bars)?;
            let mut child = cargo();
            // What runs is what was proven; asking for help proves nothing.
            if command == "run" && !args.iter().any(|arg| arg == "--help" || arg == "-h") {
                fit = validate::shipped(&place)?;
                child.env(VALIDATED, if fit { "1" } else { "0" });
            }
            let manifest = workspace.root().join("Cargo.toml");
            let package = ["--package", "xtask-runner"];
            // By itself, since a quiet `cargo run` gives no sign of life for a minute.
            let mut build = cargo();
            build.args(["build", "--manifest-path"]).arg(&manifest);
            build.args(package);
            let step = "xtask-runner";
            bars.begin(step);
            let built = process::follow(&mut build, &mut |line| bars.detail(step, line.trim()));
            bars.end(step, if built.is_ok() { "built" } else { "failed" });
            built.context("building xtask-runner")?;
            child.args(["run", "--quiet", "--manifest-path"]);
            child.arg(manifest).args(package).arg("--");
            child
        }
        Place::Pack(folder) => {
            let mut child = Command::new(folder.join("xtask-runner"));
            child.env("MOK_PACK", folder);
            child
        }
    };
    let status = child
        .arg(command)
        .args(args)
        .status()
        .context("starting xtask-runner")?;
    Ok((fit, status))
}

/// An exit status of a child as ours; killed by a signal is a failure.
pub fn code(status: Option<i32>) -> ExitCode {
    status
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from)
}
