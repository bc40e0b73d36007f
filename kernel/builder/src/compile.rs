//! From a `no_std` crate to PTX and cubins.
//!
//! One cargo call an architecture, each in a target folder of its own, so that a
//! build script can make it while the outer cargo holds the ordinary one. Cargo
//! decides what is stale; the assembler is skipped while the PTX stays the same.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::directives;
use crate::files::{self, FileError};
use crate::process::{self, RunError};
use crate::report::Report;
use crate::setup::{CudaTool, Tools};
use crate::workspace::{Workspace, cargo};
use crate::{Arch, LaunchSpec};

/// The target triple.
pub const TRIPLE: &str = "nvptx64-nvidia-cuda";
/// Stem of the shipped files.
pub const STEM: &str = "mok";

const PTXAS_LIMIT: Duration = Duration::from_secs(900);

/// Why there is no PTX.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// rustc or cargo refused.
    #[error("{package} does not compile for {}: {source}", arch.name())]
    Cargo {
        /// The crate.
        package: String,
        /// The architecture.
        arch: Arch,
        /// What cargo said.
        source: RunError,
    },
    /// cargo was content but wrote no assembly.
    #[error("cargo wrote no {} for {package}: delete {} and build again", file.display(), folder.display())]
    NoOutput {
        /// The crate.
        package: String,
        /// The file that should be there.
        file: PathBuf,
        /// The folder that is in an odd state.
        folder: PathBuf,
    },
    /// PTX and launch specs disagree.
    #[error("the PTX of {package} for {} (kept in {}): {source}", arch.name(), file.display())]
    Directives {
        /// The crate.
        package: String,
        /// The architecture.
        arch: Arch,
        /// The PTX as rustc wrote it.
        file: PathBuf,
        /// What disagrees.
        source: directives::Error,
    },
    /// ptxas refused what rustc wrote.
    #[error("ptxas rejects {}: {source}", ptx.display())]
    Ptxas {
        /// The PTX.
        ptx: PathBuf,
        /// What ptxas said.
        source: RunError,
    },
    /// A path could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What to compile.
#[derive(Clone, Copy, Debug)]
pub struct Package<'a> {
    /// The crate, a member of the workspace.
    pub name: &'a str,
    /// Its features.
    pub features: &'a [&'a str],
    /// The launch spec of every entry it has for an architecture.
    pub entries: fn(Arch) -> &'static [&'static LaunchSpec],
    /// The files are called `<stem>_<arch>.ptx` and `.cubin`.
    pub stem: &'a str,
}

/// The kernels that the product ships.
pub const SHIPPED: Package<'static> = Package {
    name: "mok-kernel",
    features: &["entries"],
    entries: mok_kernel::entries,
    stem: STEM,
};

/// What was built for one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The architecture.
    pub arch: Arch,
    /// The PTX, launch directives included.
    pub ptx: PathBuf,
    /// The cubin, where ptxas was there.
    pub cubin: Option<PathBuf>,
    /// SHA-256 of the PTX, in hexadecimal.
    pub sha256: String,
}

/// Builds the shipped kernels.
pub fn shipped(
    workspace: &Workspace,
    tools: &Tools,
    archs: &[Arch],
    report: &mut dyn Report,
) -> Result<Vec<Built>, Error> {
    package(workspace, tools, &SHIPPED, archs, report)
}

/// What a worker tells the thread that owns the report.
enum Event {
    Begin(String),
    Detail(String, String),
    End(String, String),
    Warn(String),
}

/// Builds any crate of the workspace, two architectures at a time.
pub fn package(
    workspace: &Workspace,
    tools: &Tools,
    package: &Package,
    archs: &[Arch],
    report: &mut dyn Report,
) -> Result<Vec<Built>, Error> {
    let _lock = files::lock(&workspace.ptx().join(format!(".{}.lock", package.stem)))?;
    let mut results: Vec<Option<Result<Built, Error>>> = archs.iter().map(|_| None).collect();
    for (archs, results) in archs.chunks(2).zip(results.chunks_mut(2)) {
        let (sender, events) = mpsc::channel();
        thread::scope(|scope| {
            for (&arch, result) in archs.iter().zip(results) {
                let sender = sender.clone();
                scope.spawn(move || {
                    *result = Some(one(workspace, tools, package, arch, &sender));
                });
            }
            drop(sender);
            for event in events {
                match event {
                    Event::Begin(step) => report.begin(&step),
                    Event::Detail(step, now) => report.detail(&step, &now),
                    Event::End(step, outcome) => report.end(&step, &outcome),
                    Event::Warn(line) => report.warn(&line),
                }
            }
        });
    }
    results.into_iter().flatten().collect()
}

fn one(
    workspace: &Workspace,
    tools: &Tools,
    package: &Package,
    arch: Arch,
    events: &mpsc::Sender<Event>,
) -> Result<Built, Error> {
    let step = format!("{} {}", package.name, arch.name());
    // The receiver outlives the workers; were it gone, nobody would want to hear.
    let tell = |event| drop(events.send(event));
    tell(Event::Begin(step.clone()));
    let built = compile(workspace, tools, package, arch, &|now| {
        tell(Event::Detail(step.clone(), now.to_owned()));
    })
    .map(|(built, warnings)| {
        if !warnings.is_empty() {
            tell(Event::Warn(warnings));
        }
        built
    });
    let outcome = match &built {
        Ok(built) if built.cubin.is_some() => "PTX and cubin",
        Ok(_) => "PTX, no cubin (no ptxas)",
        Err(_) => "failed",
    };
    tell(Event::End(step, outcome.to_owned()));
    built
}

fn compile(
    workspace: &Workspace,
    tools: &Tools,
    package: &Package,
    arch: Arch,
    say: &dyn Fn(&str),
) -> Result<(Built, String), Error> {
    let (raw, warnings) = rustc(workspace, tools, package, arch, say)?;
    let text = fs::read_to_string(&raw).map_err(files::on("read", &raw))?;
    let text =
        directives::apply(&text, (package.entries)(arch)).map_err(|source| Error::Directives {
            package: package.name.to_owned(),
            arch,
            file: raw,
            source,
        })?;
    let ptx = workspace
        .ptx()
        .join(format!("{}_{}.ptx", package.stem, arch.name()));
    files::write_atomic(&ptx, text.as_bytes())?;
    let sha256 = files::sha256(text.as_bytes());
    let cubin = match &tools.cuda.ptxas {
        Some(ptxas) => Some(assemble(ptxas, &ptx, arch, &sha256, say)?),
        None => {
            // A cubin of other PTX must not stay behind looking like this one's.
            let stale = ptx.with_extension("cubin");
            if stale.exists() {
                fs::remove_file(&stale).map_err(files::on("remove", &stale))?;
            }
            None
        }
    };
    Ok((
        Built {
            arch,
            ptx,
            cubin,
            sha256,
        },
        warnings,
    ))
}

/// Runs cargo; returns the assembly it wrote and the compiler's warnings.
fn rustc(
    workspace: &Workspace,
    tools: &Tools,
    package: &Package,
    arch: Arch,
    say: &dyn Fn(&str),
) -> Result<(PathBuf, String), Error> {
    let target = kernel_target(workspace, arch);
    let _lock = files::lock(&target.join(".mok-lock"))?;
    let deps = target.join(TRIPLE).join("kernel/deps");
    let file = deps.join(format!("{}.s", package.name.replace('-', "_")));
    for last_try in [false, true] {
        let mut command = device_cargo(workspace, tools, arch);
        command.args([
            "rustc",
            "--lib",
            "--crate-type",
            "cdylib",
            "--profile",
            "kernel",
        ]);
        command.args(["-p", package.name, "-Zbuild-std=core", "--target", TRIPLE]);
        command.arg("--target-dir").arg(&target);
        if !package.features.is_empty() {
            command.arg("--features").arg(package.features.join(","));
        }
        // The registered linker may be absent, and there is nothing to link.
        command.args(["--", "--emit=asm", "-Clinker=/bin/true"]);
        let printed =
            process::follow(&mut command, &mut |line| say(line.trim())).map_err(|source| {
                Error::Cargo {
                    package: package.name.to_owned(),
                    arch,
                    source,
                }
            })?;
        if file.is_file() {
            return Ok((file, warnings(&printed.stderr)));
        }
        // Cargo thinks it fresh, but its output is gone: make it forget, once.
        if !last_try && deps.exists() {
            let profile = target.join(TRIPLE).join("kernel");
            fs::remove_dir_all(&profile).map_err(files::on("remove", &profile))?;
        }
    }
    Err(Error::NoOutput {
        package: package.name.to_owned(),
        file,
        folder: target,
    })
}

/// The target folder of one architecture's builds.
pub fn kernel_target(workspace: &Workspace, arch: Arch) -> PathBuf {
    workspace.target().join("kernel").join(arch.name())
}

/// A cargo command for device code: the flags of the build, nothing inherited.
///
/// The caller adds the subcommand, `--target`, `--target-dir` and
/// `-Zbuild-std=core`; `clippy` for the device goes through here too, so that it
/// sees what the build sees.
pub fn device_cargo(workspace: &Workspace, tools: &Tools, arch: Arch) -> Command {
    let mut command = cargo();
    command.current_dir(workspace.root());
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_inherited) {
            command.env_remove(name);
        }
    }
    tools.rust_src.apply(&mut command);
    command.env("RUSTC_BOOTSTRAP", "1");
    // Configuration files are inherited too. A build-dir of theirs would take the assembly
    // elsewhere, all architectures' to one place; incremental builds, which a profile cannot
    // refuse them, make other PTX; colours would hide the warnings from us.
    command.env("CARGO_BUILD_BUILD_DIR", kernel_target(workspace, arch));
    command.env("CARGO_INCREMENTAL", "0");
    command.env("CARGO_TERM_COLOR", "never");
    command.env(
        "CARGO_ENCODED_RUSTFLAGS",
        rustflags(workspace, tools, arch).join("\x1f"),
    );
    command
}

/// What an outer cargo, clippy or build script leaves in the environment that
/// would change a nested build.
fn is_inherited(name: &str) -> bool {
    const NAMES: &[&str] = &[
        "RUSTFLAGS",
        "RUSTDOCFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_LINKER",
        "CLIPPY_ARGS",
        "CLIPPY_CONF_DIR",
        "MAKEFLAGS",
        "MFLAGS",
        "NUM_JOBS",
        "OUT_DIR",
        "TARGET",
        "HOST",
        "PROFILE",
        "OPT_LEVEL",
        "DEBUG",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_ENCODED_RUSTDOCFLAGS",
        "CARGO_MAKEFLAGS",
        "CARGO_INCREMENTAL",
        "CARGO_TARGET_DIR",
        "CARGO_PRIMARY_PACKAGE",
        "CARGO_CRATE_NAME",
        "CARGO_BIN_NAME",
    ];
    const FAMILIES: &[&str] = &[
        "CARGO_BUILD_",
        "CARGO_PROFILE_",
        "CARGO_TARGET_",
        "CARGO_PKG_",
        "CARGO_MANIFEST_",
        "CARGO_CFG_",
        "CARGO_FEATURE_",
        "CARGO_BIN_EXE_",
        "DEP_",
    ];
    NAMES.contains(&name) || FAMILIES.iter().any(|family| name.starts_with(family))
}

/// rustc's flags for one architecture.
pub fn rustflags(workspace: &Workspace, tools: &Tools, arch: Arch) -> Vec<String> {
    let mut flags = vec![
        format!("-Ctarget-cpu={}", arch.name()),
        format!("-Ctarget-feature=+{}", arch.ptx_feature()),
        // Duplicates blocks, and with them barriers, into divergent arms.
        "-Zmir-enable-passes=-JumpThreading".to_owned(),
        // No brx.idx: a driver's compiler refused what ptxas took.
        "-Cllvm-args=-min-jump-table-entries=1000".to_owned(),
        format!("--cfg=mok_arch=\"{}\"", arch.name()),
        check_cfg(),
    ];
    // PTX that ships must not remember this machine, and must be the same on all.
    let mut remap = |from: &Path, to: &str| {
        flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    };
    // The last that matches wins, so the folder that holds the others comes first.
    remap(workspace.root(), ".");
    if let Some(cargo_home) = cargo_home() {
        remap(&cargo_home, "/cargo");
    }
    remap(workspace.target(), "/target");
    if let Some(source) = tools.rust_src.library.parent() {
        remap(source, "/rust");
    }
    flags
}

fn check_cfg() -> String {
    let values: Vec<String> = Arch::ALL
        .iter()
        .map(|arch| format!("\"{}\"", arch.name()))
        .collect();
    format!("--check-cfg=cfg(mok_arch,values({}))", values.join(","))
}

/// Where cargo keeps downloaded crates.
pub fn cargo_home() -> Option<PathBuf> {
    env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cargo")))
}

/// The compiler's warnings, less the one about the PTX version that it gives on every call.
fn warnings(stderr: &str) -> String {
    let blocks = stderr.split("\n\n").filter_map(|block| {
        let block = &block[block
            .find("warning:")
            .filter(|&at| at == 0 || block.as_bytes()[at - 1] == b'\n')?..];
        let noise = block.contains("specified for `-Ctarget-feature`")
            || block
                .lines()
                .next()
                .is_some_and(|line| line.contains(" generated "));
        (!noise).then_some(block)
    });
    blocks.collect::<Vec<_>>().join("\n")
}

/// What a cubin was made from.
#[derive(Deserialize, PartialEq, Serialize)]
struct Made {
    ptx_sha256: String,
    ptxas: String,
    cubin_sha256: String,
}

/// Assembles beside the PTX, unless the cubin there was made from the same.
fn assemble(
    ptxas: &CudaTool,
    ptx: &Path,
    arch: Arch,
    sha256: &str,
    say: &dyn Fn(&str),
) -> Result<PathBuf, Error> {
    let cubin = ptx.with_extension("cubin");
    let record = ptx.with_extension("cubin.json");
    let made: Option<Made> = fs::read(&record)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if let (Some(made), Ok(bytes)) = (made, fs::read(&cubin))
        && made.ptx_sha256 == sha256
        && made.ptxas == ptxas.version
        && made.cubin_sha256 == files::sha256(&bytes)
    {
        return Ok(cubin);
    }
    say(&format!("ptxas {}", ptxas.version));
    let folder = ptx.parent().unwrap_or(Path::new("."));
    let scratch = tempfile::Builder::new()
        .prefix(".cubin-")
        .tempdir_in(folder)
        .map_err(files::on("create a folder in", folder))?;
    let fresh = scratch.path().join("out.cubin");
    let mut command = Command::new(&ptxas.path);
    command
        .args(["-O3", "--gpu-name", arch.name()])
        .arg(ptx)
        .arg("-o")
        .arg(&fresh);
    process::run(&mut command, PTXAS_LIMIT).map_err(|source| Error::Ptxas {
        ptx: ptx.to_owned(),
        source,
    })?;
    let bytes = fs::read(&fresh).map_err(files::on("read", &fresh))?;
    files::write_atomic(&cubin, &bytes)?;
    let made = Made {
        ptx_sha256: sha256.to_owned(),
        ptxas: ptxas.version.clone(),
        cubin_sha256: files::sha256(&bytes),
    };
    // Plain strings always serialise; an empty record would only mean assembling again.
    let made = serde_json::to_vec_pretty(&made).unwrap_or_default();
    files::write_atomic(&record, &made)?;
    Ok(cubin)
}

/// Copies PTX and cubins to where `cargo package` takes them along, and removes
/// what an earlier build left there.
pub fn stage(workspace: &Workspace, built: &[Built]) -> Result<PathBuf, Error> {
    let folder = workspace.staged();
    fs::create_dir_all(&folder).map_err(files::on("create", &folder))?;
    let mut kept = Vec::new();
    for source in built
        .iter()
        .flat_map(|built| [Some(&built.ptx), built.cubin.as_ref()])
        .flatten()
    {
        let Some(name) = source.file_name() else {
            continue;
        };
        let bytes = fs::read(source).map_err(files::on("read", source))?;
        files::write_atomic(&folder.join(name), &bytes)?;
        kept.push(name.to_owned());
    }
    for entry in fs::read_dir(&folder)
        .map_err(files::on("list", &folder))?
        .flatten()
    {
        if !kept.contains(&entry.file_name()) && entry.path().is_file() {
            fs::remove_file(entry.path()).map_err(files::on("remove", &entry.path()))?;
        }
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::{CudaTools, RustSrc, RustSrcOrigin, Toolchain};

    #[test]
    fn the_compilers_warnings_less_its_noise() {
        let stderr = "   Compiling k v0.1.0\nwarning: unstable feature specified for `-Ctarget-feature`: `ptx84`\n  |\n  = note: x\n\n\
            warning: unused variable: `x`\n --> a.rs:1:2\n\nwarning: `k` (lib) generated 2 warnings\n    Finished\n";
        assert_eq!(
            warnings(stderr),
            "warning: unused variable: `x`\n --> a.rs:1:2"
        );
        assert_eq!(warnings("    Finished `kernel` profile\n"), "");
    }

    /// What somebody's ~/.cargo/config.toml could say, said before it is asked.
    #[test]
    fn configuration_files_change_nothing() {
        let workspace = Workspace::find(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
        let tools = Tools {
            toolchain: Toolchain {
                release: String::new(),
                llvm: String::new(),
                sysroot: PathBuf::new(),
            },
            rust_src: RustSrc {
                library: PathBuf::new(),
                origin: RustSrcOrigin::Toolchain,
            },
            cuda: CudaTools {
                ptxas: None,
                nvdisasm: None,
            },
        };
        let command = device_cargo(&workspace, &tools, Arch::Sm90a);
        let set = |name: &str| {
            let (_, value) = command.get_envs().find(|(key, _)| *key == name).unwrap();
            value.unwrap().to_owned()
        };
        let target = kernel_target(&workspace, Arch::Sm90a);
        assert_eq!(set("CARGO_BUILD_BUILD_DIR"), target);
        assert_eq!(set("CARGO_INCREMENTAL"), "0");
        assert_eq!(set("CARGO_TERM_COLOR"), "never");
        let manifest = fs::read_to_string(workspace.root().join("Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let kernel = manifest["profile"]["kernel"].as_table().unwrap();
        for key in [
            "opt-level",
            "debug",
            "debug-assertions",
            "overflow-checks",
            "strip",
            "lto",
            "codegen-units",
            "panic",
        ] {
            assert!(kernel.contains_key(key), "[profile.kernel] lacks {key}");
        }
    }

    #[test]
    fn an_outer_cargo_leaves_no_trace() {
        for name in [
            "RUSTC_WORKSPACE_WRAPPER",
            "CARGO_PKG_NAME",
            "CARGO_PROFILE_RELEASE_STRIP",
        ] {
            assert!(is_inherited(name), "{name}");
        }
        for name in [
            "CARGO",
            "CARGO_HOME",
            "CARGO_NET_OFFLINE",
            "RUSTUP_HOME",
            "PATH",
            "HOME",
        ] {
            assert!(!is_inherited(name), "{name}");
        }
    }
}
