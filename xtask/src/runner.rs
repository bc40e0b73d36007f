//! `run`, `golden`, `bench`: they need the library, so another executable has them.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use mok_build::setup;
use mok_build::workspace::cargo;

use crate::bars::Bars;
use crate::place::Place;
use crate::validate;

/// Tells `run` whether the kernels passed validation: 1 or 0; unset where that was not tried.
const VALIDATED: &str = "MOK_VALIDATED";

/// Hands a command on, with its standard streams and its exit status.
pub fn forward(command: &str, args: &[OsString]) -> Result<ExitCode> {
    let place = Place::find()?;
    let mut fit = true;
    let mut child = match &place {
        Place::Checkout(workspace) => {
            // Its build script would do the same, but could not show a bar.
            setup::ensure(workspace, &mut Bars::new())?;
            let mut child = cargo();
            // What runs is what was proven; asking for help proves nothing.
            if command == "run" && !args.iter().any(|arg| arg == "--help" || arg == "-h") {
                fit = validate::shipped(&place)?;
                child.env(VALIDATED, if fit { "1" } else { "0" });
            }
            child.args(["run", "--quiet", "--manifest-path"]);
            child.arg(workspace.root().join("Cargo.toml"));
            child.args(["--package", "xtask-runner", "--"]);
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
    Ok(if fit {
        code(status.code())
    } else {
        ExitCode::FAILURE
    })
}

/// An exit status of a child as ours; killed by a signal is a failure.
pub fn code(status: Option<i32>) -> ExitCode {
    status
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from)
}
