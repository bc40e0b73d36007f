//! The command as its callers see it: standard output, exit status.

use std::process::{Command, Output};

use serde_json::Value;

fn runner(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask-runner"))
        .args(args)
        .output()
        .unwrap()
}

fn report(output: &Output) -> Value {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    assert_eq!(
        text.lines().count(),
        1,
        "one object and nothing else: {text}"
    );
    serde_json::from_str(text).unwrap()
}

const HOST: [&str; 4] = ["run", "--backend", "none", "--json"];

#[test]
fn host_checks_pass_without_a_gpu() {
    let output = runner(&HOST);
    let report = report(&output);
    assert!(output.status.success(), "{report}");
    assert_eq!(report["schema"], "mok-run/1");
    assert_eq!(report["passed"], true);
    assert_eq!(report["backend"], "none");
    for check in report["checks"].as_array().unwrap() {
        assert_eq!(check["passed"], true, "{check}");
        assert!(
            check["name"].is_string() && check["value"].is_number(),
            "{check}"
        );
    }
}

#[test]
fn shapes_with_nothing_in_them_pass_too() {
    for groups in ["0", "0,0,0", "1", "0,128,0"] {
        let output = runner(&[&HOST[..], &["--groups", groups]].concat());
        assert!(output.status.success(), "{groups}: {}", report(&output));
    }
}

#[test]
fn a_failed_check_is_in_the_report_and_in_the_exit_status() {
    let output = runner(&[&HOST[..], &["--n", "12"]].concat());
    let report = report(&output);
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert_eq!(report["passed"], false);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("12, not a positive multiple of 8"), "{told}");
}

#[test]
fn what_cannot_run_is_still_one_object() {
    for wrong in [["--n", "0"], ["--groups", "4294967295"]] {
        let output = runner(&[&HOST[..], &wrong].concat());
        let report = report(&output);
        assert_eq!(output.status.code(), Some(2), "{report}");
        assert_eq!(report["passed"], false);
        assert!(report["error"].is_string(), "{report}");
    }
}

#[test]
fn the_table_says_which_backend() {
    let output = runner(&["run", "--backend", "none"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("backend: none"), "{text}");
}
