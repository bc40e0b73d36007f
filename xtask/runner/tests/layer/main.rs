//! `run` as its callers see it: one layer on ranks that are threads or processes.

mod files;
mod job;
mod processes;

use std::process::{Command, Output};

use serde_json::Value;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask-runner"));
    command.arg("run").args(args).env_remove("MOK_VALIDATED");
    // A driver that is there shows no device then.
    command.env("CUDA_VISIBLE_DEVICES", "");
    for name in [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    ] {
        command.env_remove(name);
    }
    command
}

/// The one object on standard output, and the exit status.
fn json(args: &[&str]) -> (Value, Option<i32>) {
    object(&command(args).arg("--json").output().unwrap())
}

fn object(output: &Output) -> (Value, Option<i32>) {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    assert_eq!(
        text.lines().count(),
        1,
        "one object and nothing else: {text}"
    );
    (serde_json::from_str(text).unwrap(), output.status.code())
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {report}"))
}

/// Fast, and with everything: uneven tokens, none at all, a shared expert.
const SMALL: [&str; 6] = [
    "--shape",
    "6,64,64,2,5",
    "--shared",
    "64",
    "--backend",
    "emulator",
];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SMALL[..], more].concat()
}
