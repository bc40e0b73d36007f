//! How source files are kept: short, and each kind of code in its place.

use std::path::{Path, PathBuf};

/// Rust files of the repository, relative to its root, with their text.
fn sources() -> Vec<(PathBuf, String)> {
    let root = super::root();
    let listed = super::output(std::process::Command::new("git").current_dir(&root).args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "*.rs",
    ]));
    let sources: Vec<_> = listed
        .lines()
        .filter_map(|path| {
            Some((
                PathBuf::from(path),
                std::fs::read_to_string(root.join(path)).ok()?,
            ))
        })
        .collect();
    assert!(sources.len() > 50, "only {} files listed", sources.len());
    sources
}

fn too_long(text: &str) -> bool {
    text.lines().count() > 600
}

/// Instructions belong into `ptx/` and `mma/`; everything above is composed of them.
fn asm_out_of_place(path: &Path, text: &str) -> bool {
    let may = path.starts_with("kernel/src/ptx") || path.starts_with("kernel/src/mma");
    let device = path.starts_with("kernel/src") || path.starts_with("tests/probes");
    // Assembled in two parts, so that this file isn't found itself.
    device
        && !may
        && text
            .lines()
            .any(|line| !line.trim_start().starts_with("//") && line.contains(concat!("asm", "!(")))
}

#[test]
fn no_file_is_over_600_lines() {
    let long: Vec<_> = sources()
        .into_iter()
        .filter(|(_, text)| too_long(text))
        .map(|(path, _)| path)
        .collect();
    assert!(long.is_empty(), "split by idea: {long:?}");
    assert!(too_long(&"\n".repeat(601)) && !too_long(&"\n".repeat(600)));
}

#[test]
fn inline_assembly_has_its_place() {
    let misplaced: Vec<_> = sources()
        .into_iter()
        .filter(|(path, text)| asm_out_of_place(path, text))
        .map(|(path, _)| path)
        .collect();
    assert!(
        misplaced.is_empty(),
        "move the instruction to kernel/src/ptx: {misplaced:?}"
    );
    let planted = concat!("unsafe { asm", "!(\"bar.sync 0;\") }");
    assert!(asm_out_of_place(
        Path::new("kernel/src/role/load.rs"),
        planted
    ));
    assert!(!asm_out_of_place(
        Path::new("kernel/src/ptx/barrier.rs"),
        planted
    ));
}
