//! `run`, `golden`, `bench`: they need the library, so another executable has them.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use mok_build::setup;
use mok_build::workspace::cargo;

use crate::bars::Bars;
use crate::place::Place;

/// Hands a command on, with its standard streams and its exit status.
pub fn forward(command: &str, args: &[OsString]) -> Result<ExitCode> {
    let mut child = match Place::find()? {
        Place::Checkout(workspace) => {
            // Its build script would do the same, but could not show a bar.
            setup::ensure(&workspace, &mut Bars::new())?;
            let mut child = cargo();
            child.args(["run", "--quiet", "--manifest-path"]);
            child.arg(workspace.root().join("Cargo.toml"));
            child.args(["--package", "xtask-runner", "--"]);
            child
        }
        Place::Pack(folder) => {
            let mut child = Command::new(folder.join("xtask-runner"));
            child.env("MOK_PACK", &folder);
            child
        }
    };
    let status = child
        .arg(command)
        .args(args)
        .status()
        .context("starting xtask-runner")?;
    Ok(code(status.code()))
}

/// An exit status of a child as ours; killed by a signal is a failure.
pub fn code(status: Option<i32>) -> ExitCode {
    status
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from)
}
