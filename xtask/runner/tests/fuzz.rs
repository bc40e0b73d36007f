//! `fuzz` as its callers see it, with an emulator in the GPU's place.

use std::process::{Command, Output};

use tempfile::TempDir;

fn fuzz(folder: &TempDir, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask-runner"));
    command
        .current_dir(folder)
        .arg("fuzz")
        .env_remove("MOK_PACK");
    command.args(line.split_whitespace()).output().unwrap()
}

fn said(output: &Output) -> String {
    let [out, error] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{out}{error}")
}

#[test]
fn processes_share_the_programs() {
    let folder = TempDir::new().unwrap();
    let output = fuzz(&folder, "--backend emulator --programs 100..320 --jobs 3");
    let text = said(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("220 programs on emulated sm_90a"), "{text}");
    assert!(
        text.contains("0 differ from the emulator, 0 did not run"),
        "{text}"
    );
    assert!(
        text.contains("add{.(rn|rz|rm|rp)}{.ftz}{.sat}.f32"),
        "{text}"
    );
    assert!(text.contains("tanh.approx.bf16x2"), "{text}");
}

#[test]
fn a_program_is_printed() {
    let folder = TempDir::new().unwrap();
    let output = fuzz(&folder, "--program 17 --emit");
    assert_eq!(output.status.code(), Some(0));
    let text = said(&output);
    assert!(
        text.starts_with(".version") && text.contains(".visible .entry fuzz17("),
        "{text}"
    );
}

#[test]
fn what_can_not_be_is_told() {
    let folder = TempDir::new().unwrap();
    for (line, reason) in [
        ("--record", "--backend cuda"),
        ("--program 10000", "0..10000"),
        ("--programs 7..3", "FIRST..END"),
        ("--out nowhere --programs 0..1", "--record"),
        ("--record --program 3", "cannot be used with"),
    ] {
        let output = fuzz(&folder, line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(said(&output).contains(reason), "{line}: {}", said(&output));
    }
}
