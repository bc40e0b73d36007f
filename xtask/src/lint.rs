//! Formatting, clippy on host and device, rustdoc.

use std::process::{Command, ExitCode};

use anyhow::Result;
use mok_build::process;
use mok_build::workspace::cargo;
use mok_build::{Arch, Report, Tools, Workspace, compile, setup};

use crate::bars::Bars;
use crate::place::Place;

/// Crates with device code.
const DEVICE_CRATES: &[&str] = &["mok-kernel", "mok-probes"];

/// `xtask lint`.
pub fn run() -> Result<ExitCode> {
    let workspace = Place::checkout("lint")?;
    Ok(if all(&workspace)? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// All of them, also after one has failed; whether every one passed.
pub fn all(workspace: &Workspace) -> Result<bool> {
    let mut bars = Bars::new();
    let tools = setup::ensure(workspace, &mut bars)?;
    let mut passed = true;
    for (name, mut command) in lints(workspace, &tools) {
        bars.begin(&name);
        let result = process::follow(&mut command, &mut |line| bars.detail(&name, line.trim()));
        bars.end(&name, if result.is_ok() { "clean" } else { "not clean" });
        if let Err(error) = result {
            passed = false;
            eprintln!("{}", findings(&error.to_string()));
        }
    }
    Ok(passed)
}

fn lints(workspace: &Workspace, tools: &Tools) -> Vec<(String, Command)> {
    let host = |args: &[&str]| {
        let mut command = cargo();
        command.current_dir(workspace.root()).args(args);
        command
    };
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-Dwarnings"];
    let mut doc = host(&["doc", "--no-deps", "--workspace"]);
    doc.env("RUSTDOCFLAGS", "-Dwarnings");
    let mut lints = vec![
        ("rustfmt".to_owned(), host(&["fmt", "--all", "--check"])),
        ("clippy, host".to_owned(), host(&clippy)),
    ];
    for arch in Arch::ALL {
        let mut command = compile::device_cargo(workspace, tools, arch);
        command.args([
            "clippy",
            "--lib",
            "--profile",
            "kernel",
            "--features",
            "entries",
        ]);
        for name in DEVICE_CRATES {
            command.args(["-p", name]);
        }
        command.args([
            "-Zbuild-std=core",
            "--target",
            compile::TRIPLE,
            "--target-dir",
        ]);
        command
            .arg(compile::kernel_target(workspace, arch))
            .args(["--", "-Dwarnings"]);
        lints.push((format!("clippy, {}", arch.name()), command));
    }
    lints.push(("rustdoc".to_owned(), doc));
    lints
}

/// The output without cargo's account of what it compiled.
fn findings(output: &str) -> String {
    const CHATTER: &[&str] = &[
        "Checking ",
        "Compiling ",
        "Documenting ",
        "Finished ",
        "Fresh ",
    ];
    let kept = output.lines().filter(|line| {
        let line = line.trim_start();
        !CHATTER.iter().any(|word| line.starts_with(word))
    });
    kept.collect::<Vec<_>>().join("\n")
}
