//! `emu` as its callers see it: standard output, files, exit status.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

fn ptx(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/ptx")
        .join(name)
}

/// Runs in a folder; `line` is split at spaces.
fn emu(folder: &TempDir, file: &str, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask-runner"));
    command
        .current_dir(folder)
        .arg("emu")
        .env_remove("MOK_PACK");
    if !file.is_empty() {
        command.arg(ptx(file));
    }
    command.args(line.split_whitespace()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Standard output, which must be one object and nothing else.
fn object(output: &Output) -> Value {
    let text = text(&output.stdout);
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(text).unwrap()
}

fn bytes<const N: usize>(values: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
    values.into_iter().flatten().collect()
}

fn floats(count: u32, of: impl Fn(u32) -> f32) -> Vec<u8> {
    bytes((0..count).map(|i| of(i).to_le_bytes()))
}

/// A folder with the operands of `add`.
fn operands() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a"), floats(100, |i| i as f32)).unwrap();
    fs::write(folder.path().join("b"), floats(100, |i| 0.5 * i as f32)).unwrap();
    folder
}

const ADD: &str = "--grid 2 --block 64 --arg in=a --arg in=b --arg out=400:c --arg i32=100";

#[test]
fn vectors_are_added() {
    let folder = operands();
    let output = emu(&folder, "add.ptx", ADD);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let sums = fs::read(folder.path().join("c")).unwrap();
    assert_eq!(sums, floats(100, |i| 1.5 * i as f32));
    assert!(text(&output.stdout).contains("1 seeds passed, 0 failed"));

    let output = emu(&folder, "add.ptx", &format!("{ADD} --json --entry add"));
    let report = object(&output);
    assert_eq!(report["schema"], "mok-emu/1");
    assert_eq!(report["passed"], true);
    assert_eq!(report["findings"].as_array().unwrap().len(), 0);
    // 10 instructions and a return of each thread, 8 more of those that have an element.
    assert_eq!(report["instructions"], 128 * 11 + 100 * 8);
    assert!(report["time_ns"].as_u64().unwrap() > 0);
    assert_eq!(report["runs"][0]["notes"].as_array().unwrap().len(), 0);
    assert_eq!(report["launch"]["entry"], "add");
    assert_eq!(report["outputs"][0]["bytes"], 400);
}

#[test]
fn boxes_go_through_tensor_maps_both_ways() {
    let folder = TempDir::new().unwrap();
    let tensor = bytes((0..96u32 * 128).map(|i| (i as u16).to_le_bytes()));
    fs::write(folder.path().join("a"), &tensor).unwrap();
    for (swizzle, strides) in [("128", "256"), ("none", "")] {
        let map = format!("bf16:128,96:{strides}:64,32:{swizzle}");
        let line = format!(
            "--grid 2,3 --block 32 --shared 5120 --arg map=a:{map} --arg mapout=24576,d:{map} --seeds 4"
        );
        let output = emu(&folder, "copy.ptx", &line);
        assert!(output.status.success(), "{}", text(&output.stdout));
        assert!(fs::read(folder.path().join("d")).unwrap() == tensor);
        fs::remove_file(folder.path().join("d")).unwrap();
    }
    // A map that reaches behind its buffer would be a fault of the command line.
    let line =
        "--grid 1 --block 32 --arg map=a:bf16:128,97::64,32:128 --arg mapout=64,d:u8:64::64:none";
    let output = emu(&folder, "copy.ptx", line);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("takes 24832 bytes, the buffer has 24576"));
}

#[test]
fn a_store_past_the_end_is_named() {
    let folder = TempDir::new().unwrap();
    let line = "--entry past_the_end --grid 1,2 --block 1 --arg out=64:c --json";
    let output = emu(&folder, "faults.ptx", line);
    assert_eq!(output.status.code(), Some(1));
    let report = object(&output);
    assert_eq!(report["passed"], false);
    let finding = &report["findings"][0];
    assert_eq!(finding["kind"], "out-of-bounds");
    assert_eq!(finding["entry"], "past_the_end");
    assert_eq!(finding["line"], 11);
    assert_eq!(finding["thread"], 0);
    let message = finding["message"].as_str().unwrap();
    assert!(
        message.contains("byte 64 of an allocation of 64 bytes"),
        "{message}"
    );
    // The output is written all the same.
    assert_eq!(fs::read(folder.path().join("c")).unwrap(), [0; 64]);
}

#[test]
fn what_never_ends_is_ended() {
    let folder = TempDir::new().unwrap();
    for (entry, kind, line) in [("deadlock", "deadlock", 24), ("forever", "limit", 33)] {
        let started = Instant::now();
        let line_of = format!("--entry {entry} --grid 1 --block 1 --timeout 1 --seeds 1000 --json");
        let output = emu(&folder, "faults.ptx", &line_of);
        assert!(started.elapsed() < Duration::from_secs(60));
        assert_eq!(output.status.code(), Some(1));
        let report = object(&output);
        assert_eq!(report["findings"][0]["kind"], kind, "{report}");
        let at = report["findings"][0]["line"].as_u64().unwrap();
        assert!(at == line || at == line + 1, "{report}");
        let runs = report["runs"].as_array().unwrap();
        assert_eq!(runs[0]["timed_out"], entry == "forever");
        let not_run = report["seeds_not_run"].as_u64().unwrap();
        assert_eq!(runs.len() as u64 + not_run, 1000);
        assert!(entry != "forever" || runs.len() == 1);
    }
}

#[test]
fn each_form_reaches_its_parameter() {
    let folder = TempDir::new().unwrap();
    let line = "--entry show --grid 1 --block 1 --arg out=48:shown --arg i32=-2 --arg u32=0xfffffffe \
                --arg i64=-3 --arg u64=18446744073709551615 --arg f32=-1.5 --arg null --arg hex=3412";
    let output = emu(&folder, "faults.ptx", line);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut wanted = Vec::new();
    wanted.extend((-2i32).to_le_bytes());
    wanted.extend((-2i32).to_le_bytes());
    wanted.extend((-3i64).to_le_bytes());
    wanted.extend(u64::MAX.to_le_bytes());
    wanted.extend((-1.5f32).to_le_bytes());
    wanted.extend([0; 12]);
    wanted.extend(0x1234u64.to_le_bytes());
    assert_eq!(fs::read(folder.path().join("shown")).unwrap(), wanted);
}

#[test]
fn seeds_are_reported_one_by_one_and_replayed() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("it's"), [9; 4]).unwrap();
    let line = "--entry first_come --grid 16 --block 1 --arg inout=it's:last";
    let output = emu(&folder, "faults.ptx", &format!("{line} --seeds 8 --json"));
    assert!(output.status.success());
    let report = object(&output);
    let runs = report["runs"].as_array().unwrap();
    let seeds: Vec<u64> = runs
        .iter()
        .map(|run| run["seed"].as_u64().unwrap())
        .collect();
    assert_eq!(seeds, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(
        runs.iter().any(|run| run["outputs_differ"] == true),
        "{report}"
    );
    let last = fs::read(folder.path().join("last")).unwrap();

    // The command of a seed, through a shell, gives what the seed gave.
    let replay = runs[7]["replay"].as_str().unwrap();
    let own = replay.strip_prefix("cargo xtask ").unwrap();
    fs::remove_file(folder.path().join("last")).unwrap();
    let output = Command::new("sh")
        .current_dir(&folder)
        .arg("-c")
        .arg(format!("{} {own}", env!("CARGO_BIN_EXE_xtask-runner")))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{replay}: {}",
        text(&output.stderr)
    );
    assert_eq!(fs::read(folder.path().join("last")).unwrap(), last);

    // People are shown it where a seed fails.
    let line = "--entry past_the_end --grid 1 --block 1 --arg out=64:c --seeds 2 --mode starved=1";
    let output = emu(&folder, "faults.ptx", line);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stdout);
    assert!(
        told.contains("--mode starved=1 --sms 4 --timeout 300 --seed 1\n"),
        "{told}"
    );
    assert!(told.contains("0 seeds passed, 2 failed"), "{told}");
}

#[test]
fn the_checker_can_be_off() {
    let folder = TempDir::new().unwrap();
    let line = "--entry last_come --grid 2 --block 1 --arg out=4:last --json";
    let report = object(&emu(&folder, "faults.ptx", line));
    assert_eq!(report["findings"][0]["kind"], "race", "{report}");
    assert_eq!(report["launch"]["checked"], true);
    let output = emu(&folder, "faults.ptx", &format!("{line} --check off"));
    let report = object(&output);
    assert!(output.status.success(), "{report}");
    assert_eq!(report["launch"]["checked"], false);
    let replay = report["runs"][0]["replay"].as_str().unwrap();
    assert!(replay.contains(" --check off "), "{replay}");
}

#[test]
fn a_tensor_map_can_lie_in_device_memory() {
    let folder = TempDir::new().unwrap();
    let tensor = bytes((0..64u32 * 32).map(|i| (i as u16).to_le_bytes()));
    fs::write(folder.path().join("a"), &tensor).unwrap();
    let map = "bf16:64,32::64,32:128";
    let line = format!(
        "--entry through_pointers --grid 1 --block 32 --shared 5120 --arg pmap=a:{map} --arg pmapout=4096,d:{map}"
    );
    let output = emu(&folder, "pointers.ptx", &line);
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    assert!(fs::read(folder.path().join("d")).unwrap() == tensor);
}

#[test]
fn every_mode_runs() {
    let folder = operands();
    for mode in [
        "random",
        "early",
        "late",
        "reverse",
        "starved=0",
        "held=3",
        "reverse,late,starved=1,held=2",
    ] {
        let output = emu(&folder, "add.ptx", &format!("{ADD} --mode {mode} --seed 7"));
        assert!(output.status.success(), "{mode}: {}", text(&output.stderr));
    }
}

#[test]
fn mistakes_are_explained_and_still_one_object() {
    let folder = operands();
    fs::write(folder.path().join("cubin"), [0x7f, b'E', 0xff]).unwrap();
    let few = "--grid 2 --block 64 --arg in=a --arg in=b --arg out=400:c";
    let launch = "--grid 1 --block 1";
    for (file, line, hints) in [
        // The parameters are listed, with their sizes.
        (
            "add.ptx",
            few,
            &["4 parameters, but 3", "add_n  4 bytes: i32="][..],
        ),
        (
            "add.ptx",
            &format!("{few} --arg i64=1"),
            &["`add_n` has 4 bytes", "i64=1 has 8"],
        ),
        ("add.ptx", &format!("{few} --arg 1"), &["u64="]),
        (
            "add.ptx",
            &ADD.replace("in=a", "in=gone"),
            &["--arg in=gone", "gone"],
        ),
        (
            "add.ptx",
            &ADD.replace("in=a", "in=/dev/zero"),
            &["no regular file"],
        ),
        (
            "add.ptx",
            &ADD.replace(":c", ":no/c"),
            &["there is no folder no"],
        ),
        (
            "add.ptx",
            &ADD.replace("400:c", "17179869185:c"),
            &["16 GiB"],
        ),
        (
            "add.ptx",
            &ADD.replace("in=b", "out=4:c"),
            &["the output of two"],
        ),
        (
            "add.ptx",
            &format!("{ADD} --entry sub"),
            &["no kernel `sub`; there are: add"],
        ),
        ("add.ptx", &format!("{ADD} --mode held=4"), &["hold fewer"]),
        ("add.ptx", &format!("{ADD} --mode odd"), &["starved=N"]),
        (
            "add.ptx",
            &format!("{ADD} --mode late,early"),
            &["late or early, not both"],
        ),
        ("add.ptx", &format!("{ADD} --check maybe"), &["on, off"]),
        (
            "add.ptx",
            &format!("{ADD} --cluster 4"),
            &["no multiple of clusters of 4"],
        ),
        (
            "add.ptx",
            &format!("{ADD} --shared 300000"),
            &["bytes of shared memory"],
        ),
        (
            "add.ptx",
            &ADD.replace("--block 64", "--block 1024,2"),
            &["2048 threads"],
        ),
        ("add.ptx", &ADD.replace("--block 64", ""), &["--block"]),
        (
            "add.ptx",
            &format!("{ADD} --seed 1 --seeds 2"),
            &["cannot be used with"],
        ),
        ("add.ptx", &format!("{ADD} --timeout 0"), &["--timeout"]),
        (
            "faults.ptx",
            launch,
            &["--entry: past_the_end, deadlock, forever"],
        ),
        ("gone.ptx", launch, &["gone.ptx"]),
        ("", &format!("cubin {launch}"), &["not cubins"]),
        ("", &format!("a {launch}"), &["a"]),
        ("", "", &["--grid"]),
    ] {
        let output = emu(&folder, file, &format!("{line} --json"));
        assert_eq!(output.status.code(), Some(2), "{line}");
        let report = object(&output);
        assert_eq!(report["passed"], false);
        let error = report["error"].as_str().unwrap();
        let told = text(&output.stderr);
        for hint in hints {
            assert!(
                error.contains(hint) && told.contains(hint),
                "{line}: {error}"
            );
        }
    }
    assert!(!folder.path().join("c").exists());
}

#[test]
fn the_table_of_instructions() {
    let folder = TempDir::new().unwrap();
    let output = emu(&folder, "", "--isa");
    assert!(output.status.success());
    let table = text(&output.stdout);
    for name in [
        "\n* .shared{::(cta|cluster)} ",
        "\n* %cluster_ctarank\n",
        "\n* %tid.(x|y|z)\n",
        "\n  add ",
        "\n  ld{",
        "\n  mbarrier.",
        "\n  wgmma.mma_async",
        "\n  cp.async.bulk.tensor",
    ] {
        assert!(table.contains(name), "{name}");
    }
    let output = emu(&folder, "", "--isa --json");
    let rows = object(&output)["instructions"].as_array().unwrap().len();
    assert_eq!(
        rows,
        table.lines().filter(|line| line.starts_with("  ")).count()
    );
}

#[test]
fn help_teaches() {
    let folder = TempDir::new().unwrap();
    let output = emu(&folder, "", "--help --json");
    assert!(output.status.success());
    let help = text(&output.stdout);
    for word in [
        "inout=PATH:OUTPATH",
        "Examples:",
        "--arg in=a.bin",
        "Exit status",
        "held=N",
    ] {
        assert!(help.contains(word), "{word}: {help}");
    }
}
