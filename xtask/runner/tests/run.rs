//! `run gemm` and `bench` as their callers see them: standard output, exit status.

use std::process::{Command, Output};

use serde_json::Value;

fn runner(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask-runner"));
    command.args(args).env_remove("MOK_VALIDATED");
    command
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

const HOST: [&str; 5] = ["run", "gemm", "--backend", "none", "--json"];

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
    let wrong = [
        ["--n", "0"],
        ["--groups", "4294967295"],
        // Terabytes of weights.
        ["--k", "4294967288"],
        // What the command line itself refuses.
        ["--groups", ""],
        ["--n", "-1"],
        ["--k", "4294967296"],
        ["--bogus", "1"],
    ];
    for wrong in wrong {
        let output = runner(&[&HOST[..], &wrong].concat());
        let report = report(&output);
        assert_eq!(output.status.code(), Some(2), "{report}");
        assert_eq!(report["passed"], false);
        assert!(report["error"].is_string(), "{report}");
    }
}

#[test]
fn benchmarks_refuse_sizes_before_they_look_for_a_gpu() {
    let shape = ["--rows", "1", "--n", "8", "--k", "8", "--groups"];
    let groups = |number| [&["bench", "gemm"], &shape[..], &[number]].concat();
    let samples = |number| vec!["bench", "gemm", "--samples", number];
    let own = |n| {
        vec![
            "bench", "gemm", "--groups", "1", "--rows", "1", "--k", "8", "--n", n,
        ]
    };
    for (args, limit) in [
        (groups("0"), "1 to 1024"),
        (groups("4294967295"), "1 to 1024"),
        (samples("0"), "1 to 100000"),
        (samples("18446744073709551615"), "1 to 100000"),
        (vec!["bench", "gemm", "--rounds", "0"], "1 to 1000"),
        (own("0"), "multiple of 8"),
        (own("4294967295"), "multiple of 8"),
        // What an own shape leaves without meaning.
        ([own("8"), vec!["--case", "dense"]].concat(), "--case"),
        (
            vec!["bench", "gemm", "--ours-only", "--without", "deep-gemm"],
            "--ours-only",
        ),
    ] {
        let output = runner(&args);
        assert_eq!(output.status.code(), Some(2));
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains(limit), "{told}");
    }
}

#[test]
fn help_is_help_also_with_json() {
    let output = runner(&["run", "gemm", "--json", "--help"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Exit status"), "{text}");
}

/// Unset where nobody validated the kernels; then the report says nothing of it.
#[test]
fn the_verdict_on_the_kernels_is_a_check() {
    for (verdict, passed) in [
        (None, None),
        (Some("1"), Some(true)),
        (Some("0"), Some(false)),
    ] {
        let mut command = command(&HOST);
        if let Some(verdict) = verdict {
            command.env("MOK_VALIDATED", verdict);
        }
        let output = command.output().unwrap();
        let report = report(&output);
        let checks = report["checks"].as_array().unwrap();
        let check = checks
            .iter()
            .find(|check| check["name"] == "kernels.validated");
        assert_eq!(
            check.map(|check| check["passed"] == true),
            passed,
            "{report}"
        );
        assert_eq!(report["passed"], passed != Some(false));
        assert_eq!(output.status.code(), Some(i32::from(passed == Some(false))));
        if let Some(check) = check {
            let value = f64::from(u8::from(verdict == Some("0")));
            assert_eq!(
                (&check["value"], &check["limit"]),
                (&value.into(), &0.0.into())
            );
        }
    }
}

/// A machine of which no driver can be seen has the emulator, and says so.
#[test]
fn with_no_gpu_the_kernels_run_in_the_emulator() {
    let groups = ["--groups", "3,0,2", "--n", "16", "--k", "16"];
    for backend in ["auto", "emulator"] {
        let mut command = command(
            &[
                &["run", "gemm", "--json", "--backend", backend],
                &groups[..],
            ]
            .concat(),
        );
        // A driver that is there shows no device then.
        command.env("CUDA_VISIBLE_DEVICES", "");
        let output = command.output().unwrap();
        let report = report(&output);
        assert!(output.status.success(), "{report}");
        assert_eq!(report["backend"], "emulator");
        assert_eq!(report["arch"], "sm_90a");
        let checks = report["checks"].as_array().unwrap();
        let named = |name| checks.iter().any(|check| check["name"] == name);
        assert!(named("forward.exact.whole") && named("wgrad.add_f32.rounded.row"));
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(told.contains("no GPU is used"), backend == "auto", "{told}");
        assert!(told.contains("PTX"), "{told}");
    }
}

#[test]
fn the_table_says_which_backend() {
    let output = runner(&["run", "gemm", "--backend", "none"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("backend: none"), "{text}");
}
