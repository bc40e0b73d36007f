//! Tests of the repository itself: which crate may use which, and what a published crate needs.

mod dependencies;
mod files;
mod package;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A cargo that knows nothing of the cargo that runs this test.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    for (name, _) in std::env::vars_os() {
        let inherited = [
            "CARGO_ENCODED_RUSTFLAGS",
            "RUSTFLAGS",
            "RUSTC_BOOTSTRAP",
            "MAKEFLAGS",
            "CARGO_MAKEFLAGS",
        ];
        let text = name.to_string_lossy();
        if inherited.contains(&&*text)
            || text.starts_with("CARGO_PKG_")
            || text.starts_with("CARGO_MANIFEST")
        {
            command.env_remove(&name);
        }
    }
    command
}

/// What a command prints; fails the test with its errors if it fails.
fn output(command: &mut Command) -> String {
    let output = command.output().expect("the command starts");
    assert!(
        output.status.success(),
        "{command:?} failed:\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}
