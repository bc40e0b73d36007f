//! `pack`: a folder for a machine that has a GPU and no Rust.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use mok_build::compile::Built;
use mok_build::workspace::cargo;
use mok_build::{Arch, Report, Workspace, files, process};
use serde::Serialize;
use serde_json::Value;

use crate::bars::Bars;
use crate::kernels;
use crate::place::{MANIFEST, Place};

/// What a pack may weigh, in bytes.
const LIMIT: u64 = 64 << 20;

/// Folders in which packs are filled.
const SCRATCH: &str = ".pack-new-";

/// What is in a pack, for people and for [`Place`].
#[derive(Serialize)]
struct Manifest {
    schema: u32,
    version: &'static str,
    commit: Option<String>,
    rustc: String,
    ptxas: Option<String>,
    /// Path in the pack -> SHA-256.
    files: BTreeMap<String, String>,
    bytes: u64,
}

/// `xtask pack`.
pub fn run() -> Result<ExitCode> {
    let workspace = Place::checkout("pack")?;
    let (tools, built) = kernels::built(&workspace, &Arch::ALL)?;
    let folder = workspace.target().join("pack");
    // Filled anew beside it, so that a failure leaves no half-old pack; one at a time, so
    // that what a killed one left is nobody's.
    let _lock = files::lock(&workspace.target().join(".pack-lock"))?;
    files::sweep(workspace.target(), SCRATCH)?;
    let fresh = tempfile::Builder::new()
        .prefix(SCRATCH)
        .tempdir_in(workspace.target())
        .context("creating a folder for the pack")?;
    fill(&workspace, &built, fresh.path())?;
    let files = contents(fresh.path())?;
    forget_this_machine(&workspace, fresh.path(), &files)?;

    let mut manifest = Manifest {
        schema: 1,
        version: env!("CARGO_PKG_VERSION"),
        commit: commit(&workspace),
        rustc: tools.toolchain.release,
        ptxas: tools.cuda.ptxas.map(|ptxas| ptxas.version),
        files: BTreeMap::new(),
        bytes: 0,
    };
    for file in &files {
        let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let name = file
            .strip_prefix(fresh.path())?
            .to_string_lossy()
            .into_owned();
        manifest.bytes += bytes.len() as u64;
        manifest.files.insert(name, files::sha256(&bytes));
    }
    let mib = manifest.bytes as f64 / f64::from(1u32 << 20);
    ensure!(
        manifest.bytes <= LIMIT,
        "the pack would weigh {mib:.1} MiB, the limit is {} MiB: the largest files are\n{}",
        LIMIT >> 20,
        largest(&files)
    );
    fs::write(
        fresh.path().join(MANIFEST),
        serde_json::to_vec_pretty(&manifest)?,
    )?;

    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    let fresh = fresh.keep();
    fs::rename(&fresh, &folder).with_context(|| format!("renaming to {}", folder.display()))?;
    // tempfile makes folders private to the user.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    }
    println!("{}", folder.display());
    eprintln!(
        "{} files, {mib:.1} MiB; there: ./xtask doctor, run, emu, fuzz, test, bench",
        files.len()
    );
    Ok(ExitCode::SUCCESS)
}

fn fill(workspace: &Workspace, built: &[Built], pack: &Path) -> Result<()> {
    let copy = |from: &Path, folder: &str| -> Result<()> {
        let to = pack.join(folder);
        fs::create_dir_all(&to)?;
        let name = from.file_name().context("a file without a name")?;
        fs::copy(from, to.join(name)).with_context(|| format!("copying {}", from.display()))?;
        Ok(())
    };
    for built in built {
        copy(&built.ptx, "ptx")?;
        if let Some(cubin) = &built.cubin {
            copy(cubin, "ptx")?;
        }
    }
    if workspace.budgets().is_file() {
        copy(&workspace.budgets(), "")?;
    }
    let mut bars = Bars::new();
    let builds: [(&str, &[&str]); 4] = [
        ("", &["build", "-p", "xtask", "-p", "xtask-runner"]),
        (
            "tests",
            &[
                "test",
                "-p",
                "mok-tests",
                "--no-run",
                "--test",
                "gpu",
                "--test",
                "ranks",
            ],
        ),
        (
            "tests",
            &["test", "-p", "mok-comm", "--no-run", "--test", "peers"],
        ),
        ("benches", &["bench", "-p", "mok-benches", "--no-run"]),
    ];
    for (kind, args) in builds {
        for (name, executable) in executables(workspace, args, kind, &mut bars)? {
            let to = pack.join(kind);
            fs::create_dir_all(&to)?;
            fs::copy(&executable, to.join(&name))
                .with_context(|| format!("copying {}", executable.display()))?;
        }
    }
    let golden = workspace.root().join("tests/golden");
    if golden.is_dir() {
        for file in contents(&golden)? {
            let inner = file
                .strip_prefix(&golden)?
                .parent()
                .unwrap_or(Path::new(""));
            copy(&file, &Path::new("golden").join(inner).to_string_lossy())?;
        }
    }
    Ok(())
}

/// Builds, and returns the executables of the kind that a pack wants.
fn executables(
    workspace: &Workspace,
    args: &[&str],
    kind: &str,
    bars: &mut Bars,
) -> Result<Vec<(String, PathBuf)>> {
    let mut command = cargo();
    command.current_dir(workspace.root()).args(args);
    if args[0] != "bench" {
        command.arg("--release");
    }
    // Of its own, since the flags differ from those of everyday builds.
    command
        .arg("--target-dir")
        .arg(workspace.target().join("pack-build"));
    command.args(["--message-format", "json-render-diagnostics"]);
    command
        .env_remove("RUSTFLAGS")
        .env("CARGO_ENCODED_RUSTFLAGS", remap(workspace).join("\x1f"));
    for profile in ["RELEASE", "BENCH"] {
        command.env(format!("CARGO_PROFILE_{profile}_STRIP"), "symbols");
    }
    let step = format!("pack: cargo {}", args.join(" "));
    bars.begin(&step);
    let printed = process::follow(&mut command, &mut |line| bars.detail(&step, line.trim()));
    bars.end(&step, if printed.is_ok() { "built" } else { "failed" });
    let mut found = Vec::new();
    for line in printed?.stdout.lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let Some(executable) = message["executable"].as_str() else {
            continue;
        };
        let target = &message["target"];
        let is = |wanted: &str| {
            target["kind"]
                .as_array()
                .is_some_and(|kinds| kinds.iter().any(|kind| kind == wanted))
        };
        let wanted = match kind {
            "tests" => is("test"),
            "benches" => is("bench"),
            _ => is("bin"),
        };
        if let (true, Some(name)) = (wanted, target["name"].as_str()) {
            found.push((name.to_owned(), PathBuf::from(executable)));
        }
    }
    Ok(found)
}

/// Folders of this machine that could be remembered, the most general first.
fn machine_paths(workspace: &Workspace) -> Vec<(PathBuf, &'static str)> {
    let home = env::home_dir();
    let below_home = |variable: &str, name: &str| {
        env::var_os(variable)
            .map(PathBuf::from)
            .or_else(|| home.as_ref().map(|home| home.join(name)))
    };
    let mut paths = Vec::new();
    paths.extend(home.clone().map(|path| (path, "/home")));
    paths.extend(below_home("RUSTUP_HOME", ".rustup").map(|path| (path, "/rustup")));
    paths.extend(below_home("CARGO_HOME", ".cargo").map(|path| (path, "/cargo")));
    paths.push((workspace.root().to_owned(), "."));
    paths.push((workspace.target().to_owned(), "/target"));
    // The root folder is everybody's.
    paths.retain(|(path, _)| path.components().count() > 1);
    paths
}

fn remap(workspace: &Workspace) -> Vec<String> {
    machine_paths(workspace)
        .iter()
        .map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display()))
        .collect()
}

/// Fails if any file holds a path of this machine.
fn forget_this_machine(workspace: &Workspace, pack: &Path, files: &[PathBuf]) -> Result<()> {
    let mut remembered = Vec::new();
    for file in files {
        let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        for (path, _) in machine_paths(workspace) {
            // With the separator: `/root` alone is in many a word.
            let needle = format!("{}/", path.display());
            if let Some(at) = find(&bytes, needle.as_bytes()) {
                let end = bytes.len().min(at + 120);
                let text: String = String::from_utf8_lossy(&bytes[at..end])
                    .chars()
                    .take_while(|c| !c.is_control())
                    .collect();
                let name = file.strip_prefix(pack).unwrap_or(file).display();
                remembered.push(format!("  {name}: {text}"));
            }
        }
    }
    if !remembered.is_empty() {
        bail!(
            "the pack remembers paths of this machine (an env!(\"CARGO_MANIFEST_DIR\") or OUT_DIR in a program?):\n{}",
            remembered.join("\n")
        );
    }
    Ok(())
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|&byte| byte == first) {
        if bytes[from + at..].starts_with(needle) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

/// All files below a folder, in order.
fn contents(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(contents(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn largest(files: &[PathBuf]) -> String {
    let mut sizes: Vec<(u64, &PathBuf)> = files
        .iter()
        .map(|file| {
            (
                fs::metadata(file).map_or(0, |metadata| metadata.len()),
                file,
            )
        })
        .collect();
    sizes.sort_by(|a, b| b.cmp(a));
    let lines = sizes
        .iter()
        .take(5)
        .map(|(size, file)| format!("  {size} {}", file.display()));
    lines.collect::<Vec<_>>().join("\n")
}

fn commit(workspace: &Workspace) -> Option<String> {
    let mut git = Command::new("git");
    git.current_dir(workspace.root())
        .args(["describe", "--always", "--dirty", "--abbrev=40"]);
    let printed = process::run(&mut git, std::time::Duration::from_secs(20)).ok()?;
    Some(printed.stdout.trim().to_owned())
}
