//! The command line as a person or a script meets it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn xtask() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.env_remove("RUST_BACKTRACE");
    command
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../kernel/builder/tests/ptx")
        .join(name)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Standard output, which must be one JSON object and nothing else.
fn object(output: &Output) -> Value {
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(value.is_object());
    value
}

#[test]
fn doctor_where_nothing_is_installed() {
    let bare = || {
        let mut command = xtask();
        command
            .env_clear()
            .env("PATH", "/nonexistent")
            .env("HOME", "/nonexistent");
        command.args(["doctor", "--json"]);
        command
    };
    for folder in [env!("CARGO_MANIFEST_DIR"), "/"] {
        let output = bare().current_dir(folder).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let report = object(&output);
        assert_eq!(report["passed"], false);
        for item in report["items"].as_array().unwrap() {
            assert_eq!(item["state"] == "ok", item.get("fix").is_none(), "{item}");
        }
        let strict = bare().arg("--strict").current_dir(folder).output().unwrap();
        assert!(!strict.status.success());
    }
}

#[test]
fn validate_says_it_in_one_object() {
    let good = xtask()
        .args(["validate", "--json"])
        .arg(fixture("clean.ptx"))
        .output()
        .unwrap();
    assert!(good.status.success(), "{}", stderr(&good));
    let report = object(&good);
    assert_eq!(
        (&report["passed"], &report["files"][0]["target"]),
        (&true.into(), &"sm_90a".into())
    );

    let files = [
        fixture("clean.ptx"),
        fixture("stack.ptx"),
        fixture("missing.ptx"),
    ];
    let bad = xtask()
        .args(["validate", "--json"])
        .args(files)
        .output()
        .unwrap();
    assert!(!bad.status.success());
    let report = object(&bad);
    assert_eq!(report["passed"], false);
    assert_eq!(report["files"].as_array().unwrap().len(), 2);
    assert!(
        report["errors"][0]
            .as_str()
            .unwrap()
            .contains("missing.ptx")
    );
    assert_eq!(report["files"][1]["failures"][0]["check"], "stack");
    assert!(stderr(&bad).contains("stack.ptx:6: stack"));
}

/// The pipe of a shell, a name like an option, a name that is no text.
#[cfg(unix)]
#[test]
fn validate_takes_whatever_can_be_read() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let folder = tempfile::tempdir().unwrap();
    let named = |name: &[u8]| {
        let name = OsStr::from_bytes(name);
        std::fs::copy(fixture("clean.ptx"), folder.path().join(name)).unwrap();
        name.to_owned()
    };
    let names = [
        "/dev/stdin".into(),
        named(b"-dash.ptx"),
        named(b"a\xff.ptx"),
    ];
    let output = xtask()
        .args(["validate", "--json", "--"])
        .args(names)
        .current_dir(folder.path())
        .stdin(pipe_of(&fixture("clean.ptx")))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let report = object(&output);
    assert_eq!(report["files"].as_array().unwrap().len(), 3);
    assert_eq!(report["files"][2]["file"], "a\u{fffd}.ptx");
}

/// The reading end of a pipe that holds a file.
#[cfg(unix)]
fn pipe_of(path: &Path) -> std::io::PipeReader {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let bytes = std::fs::read(path).unwrap();
    // Smaller than a pipe is anywhere.
    assert!(bytes.len() < 4096);
    std::io::Write::write_all(&mut writer, &bytes).unwrap();
    reader
}

#[test]
fn one_object_also_where_nothing_works() {
    for command in ["validate", "run"] {
        let mut lost = xtask();
        lost.env_remove("CARGO_MANIFEST_DIR").current_dir("/");
        let output = lost.args([command, "--json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let report = object(&output);
        assert_eq!(report["passed"], false);
        let why = if command == "run" {
            &report["error"]
        } else {
            &report["errors"][0]
        };
        assert!(
            why.as_str().unwrap().contains("no Cargo workspace"),
            "{why}"
        );
        assert_eq!(stderr(&output).matches("no Cargo workspace").count(), 1);
    }
}

#[test]
fn a_tool_named_by_mistake_is_not_replaced_in_silence() {
    let nonsense = |args: &[&str]| {
        let mut command = xtask();
        command.env("MOK_PTXAS", "/bin/true").args(args);
        command.output().unwrap()
    };
    let doctor = object(&nonsense(&["doctor", "--json"]));
    let items = doctor["items"].as_array().unwrap();
    let ptxas = items.iter().find(|item| item["name"] == "ptxas").unwrap();
    assert_eq!(ptxas["state"], "missing");
    assert_eq!(ptxas["fix"], "unset MOK_PTXAS");
    let clean = fixture("clean.ptx");
    let output = nonsense(&["validate", clean.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("MOK_PTXAS = /bin/true is no ptxas"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_reader_that_has_seen_enough() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = xtask().arg("doctor").stdout(writer).output().unwrap();
    assert!(!output.status.success());
    assert_eq!(stderr(&output), "");
}

#[test]
fn mistakes_are_explained() {
    let output = xtask().args(["build", "--arch", "sm_80"]).output().unwrap();
    assert!(!output.status.success());
    assert!(
        stderr(&output).contains("sm_90a, sm_100a, sm_103a"),
        "{}",
        stderr(&output)
    );

    // `setup` has no use without sources.
    let mut lost = xtask();
    lost.env_remove("CARGO_MANIFEST_DIR")
        .current_dir("/")
        .arg("setup");
    let output = lost.output().unwrap();
    assert!(!output.status.success());
    assert!(
        stderr(&output).contains("no Cargo workspace"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_run_that_cannot_start_is_one_object_too() {
    for (command, schema) in [("run", "mok-run/1"), ("emu", "mok-emu/1")] {
        let mut lost = xtask();
        lost.env_remove("CARGO_MANIFEST_DIR")
            .current_dir("/")
            .args([command, "--json"]);
        let output = lost.output().unwrap();
        assert!(!output.status.success());
        let report = object(&output);
        assert_eq!(report["schema"], schema);
        assert_eq!(report["passed"], false);
        assert!(
            report["error"]
                .as_str()
                .unwrap()
                .contains("no Cargo workspace"),
            "{report}"
        );
    }
}
