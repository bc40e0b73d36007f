//! `test`: everything that can be tested where we are.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result};
use mok_build::workspace::cargo;
use mok_build::{Arch, Workspace, report};

use crate::place::Place;
use crate::{kernels, lint, validate};

/// Tells tests with a harness of their own that the long ones are wanted too.
const ALL: &str = "MOK_TEST_ALL";

/// Outcomes, in order.
#[derive(Default)]
struct Summary(Vec<(String, bool, f64)>);

impl Summary {
    fn step(&mut self, name: &str, work: impl FnOnce() -> Result<bool>) {
        eprintln!("== {name}");
        let started = Instant::now();
        let passed = work().unwrap_or_else(|error| {
            eprintln!("error: {}", report::in_full(error.as_ref()));
            false
        });
        self.0
            .push((name.to_owned(), passed, started.elapsed().as_secs_f64()));
    }

    fn finish(self) -> ExitCode {
        println!("\nsummary");
        for (name, passed, seconds) in &self.0 {
            println!(
                "  {} {name} ({seconds:.0} s)",
                if *passed { "passed" } else { "FAILED" }
            );
        }
        let failed = self.0.iter().filter(|(_, passed, _)| !passed).count();
        println!("{} steps passed, {failed} failed", self.0.len() - failed);
        if failed == 0 && !self.0.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

/// `xtask test`.
pub fn run(all: bool, args: &[OsString]) -> Result<ExitCode> {
    match Place::find()? {
        Place::Checkout(workspace) => checkout(&workspace, all, args),
        Place::Pack(folder) => pack(&folder, all, args),
    }
}

fn checkout(workspace: &Workspace, all: bool, args: &[OsString]) -> Result<ExitCode> {
    let mut summary = Summary::default();
    summary.step("set up and build", || {
        kernels::built(workspace, &Arch::ALL)?;
        Ok(true)
    });
    // Without kernels the rest would only repeat the same error.
    if summary.0.iter().any(|(_, passed, _)| !passed) {
        return Ok(summary.finish());
    }
    summary.step("validate", || {
        validate::shipped(&Place::Checkout(workspace.clone()))
    });
    summary.step("lint", || lint::all(workspace));
    let cargo_test = |options: &[&str], harness: &[&str]| {
        let mut command = cargo();
        command.current_dir(workspace.root());
        command
            .args(["test", "--workspace", "--no-fail-fast"])
            .args(options);
        if all {
            command.env(ALL, "1");
        }
        if !harness.is_empty() || !args.is_empty() {
            command.arg("--").args(harness).args(args);
        }
        Ok(command.status().context("starting cargo test")?.success())
    };
    summary.step("tests", || cargo_test(&[], &[]));
    summary.step("examples", || examples(workspace));
    if all {
        // Not the GPU tests: there "ignored" says that the machine cannot run them.
        let long = ["--lib", "--bins", "--tests", "--exclude", "mok-tests"];
        summary.step("long tests", || cargo_test(&long, &["--ignored"]));
    }
    Ok(summary.finish())
}

/// Runs every example of every package, which the tests have built: each fails by its exit status.
fn examples(workspace: &Workspace) -> Result<bool> {
    let mut passed = true;
    let mut count = 0;
    for package in fs::read_dir(workspace.root()).context("listing the packages")? {
        let package = package.context("listing the packages")?.path();
        let folder = package.join("examples");
        if !folder.is_dir() {
            continue;
        }
        for example in files_in(&folder)? {
            let name = example.file_stem().unwrap_or_default();
            eprintln!("-- {}", name.to_string_lossy());
            let mut command = cargo();
            command.current_dir(workspace.root());
            command.args(["run", "--quiet", "--manifest-path"]);
            command
                .arg(package.join("Cargo.toml"))
                .arg("--example")
                .arg(name);
            passed &= command.status().context("starting cargo run")?.success();
            count += 1;
        }
    }
    anyhow::ensure!(count > 0, "no package has an example");
    Ok(passed)
}

fn pack(folder: &Path, all: bool, args: &[OsString]) -> Result<ExitCode> {
    let tests = files_in(&folder.join("tests"))?;
    anyhow::ensure!(!tests.is_empty(), "this pack holds no tests");
    let mut summary = Summary::default();
    for test in tests {
        let name = test
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        summary.step(&name, || {
            let mut command = Command::new(&test);
            command.current_dir(folder).env("MOK_PACK", folder);
            if all {
                command.env(ALL, "1");
            }
            let status = command.args(args).status();
            Ok(status
                .with_context(|| format!("starting {}", test.display()))?
                .success())
        });
    }
    Ok(summary.finish())
}

/// The files of a folder, in order.
fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .collect();
    found.sort();
    Ok(found)
}
