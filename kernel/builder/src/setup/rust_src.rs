//! The source of `core`, of exactly the compiler's version.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Error, Toolchain, apt};
use crate::files;
use crate::process;
use crate::report::Report;
use crate::workspace::Workspace;

/// Long enough for a slow line; a server that never answers must not hold a build.
const RUSTUP_LIMIT: Duration = Duration::from_secs(120);

/// Folders in which downloads are unpacked.
pub(super) const SCRATCH: &str = ".rust-src-";

/// Where the source came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RustSrcOrigin {
    /// The toolchain already had it.
    Toolchain,
    /// rustup brought it into the toolchain just now.
    Rustup,
    /// Debian's package, in the target folder.
    Debian,
}

impl RustSrcOrigin {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            RustSrcOrigin::Toolchain => "the toolchain's rust-src component",
            RustSrcOrigin::Rustup => "rustup component add rust-src",
            RustSrcOrigin::Debian => "Debian's rust-src package, in the target folder",
        }
    }
}

/// The source of `core`.
#[derive(Clone, Debug)]
pub struct RustSrc {
    /// The `library` folder.
    pub library: PathBuf,
    /// Where it came from.
    pub origin: RustSrcOrigin,
}

impl RustSrc {
    /// Tells cargo to use a source that is not in the toolchain.
    pub fn apply(&self, cargo: &mut Command) {
        match self.origin {
            RustSrcOrigin::Toolchain | RustSrcOrigin::Rustup => {
                cargo.env_remove("__CARGO_TESTS_ONLY_SRC_ROOT");
            }
            RustSrcOrigin::Debian => {
                cargo.env("__CARGO_TESTS_ONLY_SRC_ROOT", &self.library);
            }
        }
    }
}

/// The source that is here already.
pub(super) fn find(workspace: &Workspace, toolchain: &Toolchain) -> Option<RustSrc> {
    let ours = kept(workspace, toolchain).join("library");
    [
        (in_toolchain(toolchain), RustSrcOrigin::Toolchain),
        (ours, RustSrcOrigin::Debian),
    ]
    .into_iter()
    .find(|(library, _)| is_library(library))
    .map(|(library, origin)| RustSrc { library, origin })
}

pub(super) fn ensure(
    workspace: &Workspace,
    toolchain: &Toolchain,
    report: &mut dyn Report,
) -> Result<RustSrc, Error> {
    if let Some(found) = find(workspace, toolchain) {
        return Ok(found);
    }
    let step = "rust-src";
    report.begin(step);
    let mut tried = Vec::new();

    report.detail(step, "rustup component add rust-src");
    match with_rustup(workspace, toolchain) {
        Ok(library) => {
            let origin = RustSrcOrigin::Rustup;
            report.end(step, origin.words());
            return Ok(RustSrc { library, origin });
        }
        Err(answer) => tried.push(format!("rustup: {answer}")),
    }

    let folder = workspace.tools();
    fs::create_dir_all(&folder).map_err(files::on("create", &folder))?;
    match with_apt(workspace, toolchain, report, step) {
        Ok(library) => {
            let origin = RustSrcOrigin::Debian;
            report.end(step, origin.words());
            Ok(RustSrc { library, origin })
        }
        Err(answer) => {
            tried.push(format!("Debian's package: {answer}"));
            report.end(step, "not to be had");
            Err(Error::NoRustSrc { tried })
        }
    }
}

fn with_rustup(workspace: &Workspace, toolchain: &Toolchain) -> Result<PathBuf, String> {
    let mut rustup = Command::new("rustup");
    rustup
        .current_dir(workspace.root())
        .args(["component", "add", "rust-src"])
        // Default is three tries with pauses; another way is waiting.
        .env("RUSTUP_MAX_RETRIES", "0");
    process::run(&mut rustup, RUSTUP_LIMIT).map_err(|error| last_line(&error.to_string()))?;
    let library = in_toolchain(toolchain);
    if is_library(&library) {
        return Ok(library);
    }
    Err(format!(
        "it reported success, but {} has no core",
        library.display()
    ))
}

fn with_apt(
    workspace: &Workspace,
    toolchain: &Toolchain,
    report: &mut dyn Report,
    step: &str,
) -> Result<PathBuf, String> {
    let scratch = tempfile::Builder::new()
        .prefix(SCRATCH)
        .tempdir_in(workspace.tools())
        .map_err(|error| error.to_string())?;
    let unpacked = apt::source_package(scratch.path(), &toolchain.release, &mut |now| {
        report.detail(step, now);
    })
    .map_err(|error| error.to_string())?;
    if !is_library(&unpacked.join("library")) {
        return Err(format!("{} holds no library/core", unpacked.display()));
    }
    let kept = kept(workspace, toolchain);
    // Left half-made by an older version or by hand: `find` did not take it.
    if kept.exists() {
        fs::remove_dir_all(&kept).map_err(|error| error.to_string())?;
    }
    fs::rename(&unpacked, &kept).map_err(|error| error.to_string())?;
    Ok(kept.join("library"))
}

fn in_toolchain(toolchain: &Toolchain) -> PathBuf {
    toolchain.sysroot.join("lib/rustlib/src/rust/library")
}

fn kept(workspace: &Workspace, toolchain: &Toolchain) -> PathBuf {
    workspace
        .tools()
        .join(format!("rust-src-{}", toolchain.release))
}

fn is_library(folder: &Path) -> bool {
    folder.join("core/src/lib.rs").is_file() && folder.join("Cargo.lock").is_file()
}

fn last_line(text: &str) -> String {
    text.lines()
        .rfind(|line| !line.trim().is_empty())
        .unwrap_or("no answer")
        .trim()
        .to_owned()
}
