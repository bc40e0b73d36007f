//! Brings what building needs, into the target folder, and says where each came from.
//!
//! Nothing outside the target folder changes, with one exception that is
//! rustup's to make: `rustup component add rust-src`, tried first because it is
//! what a developer would do by hand.

mod apt;
mod cuda;
mod rust_src;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::files::{self, FileError};
use crate::process::{self, RunError};
use crate::report::Report;
use crate::workspace::Workspace;

pub use cuda::{CudaTool, MIN_CUDA, NVCC_WHEEL, NVDISASM_WHEEL};
pub use rust_src::{RustSrc, RustSrcOrigin};

/// The one compiler whose unstable features the kernels use.
pub const RUSTC: &str = "1.95.0";

/// Why building is not possible here.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No usable compiler.
    #[error("no rustc answers: {source}\ninstall it: rustup toolchain install {RUSTC}")]
    NoCompiler {
        /// What went wrong.
        source: RunError,
    },
    /// Another compiler than the pinned one.
    #[error(
        "rustc is {found}, the kernels need exactly {RUSTC}\ninstall it: rustup toolchain install {RUSTC}"
    )]
    OtherCompiler {
        /// Its version.
        found: String,
    },
    /// Every way to rust-src failed.
    #[error(
        "rust-src {RUSTC} could not be had:\n{}\nbring it by hand: rustup component add rust-src",
        list(tried)
    )]
    NoRustSrc {
        /// What each way answered.
        tried: Vec<String>,
    },
    /// A path could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

fn list(lines: &[String]) -> String {
    lines
        .iter()
        .map(|line| format!("  - {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The compiler on hand.
#[derive(Clone, Debug)]
pub struct Toolchain {
    /// Release, such as `1.95.0`.
    pub release: String,
    /// LLVM's version.
    pub llvm: String,
    /// Its root folder.
    pub sysroot: PathBuf,
}

/// Everything that building and proving uses.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The compiler.
    pub toolchain: Toolchain,
    /// The source of `core`.
    pub rust_src: RustSrc,
    /// What assembles and proves its output.
    pub cuda: CudaTools,
}

/// NVIDIA's tools.
#[derive(Clone, Debug)]
pub struct CudaTools {
    /// The assembler: without it there are no cubins and no validation.
    pub ptxas: Option<CudaTool>,
    /// The disassembler: without it validation cannot see the SASS.
    pub nvdisasm: Option<CudaTool>,
}

impl CudaTools {
    /// Those that are here already: named by the environment, kept in `folder`
    /// by an earlier setup, on the path, or CUDA's.
    pub fn look(folder: &Path) -> CudaTools {
        CudaTools {
            ptxas: cuda::find("ptxas", folder),
            nvdisasm: cuda::find("nvdisasm", folder),
        }
    }

    /// Brings the missing ones into `folder`; warns where that fails.
    pub fn ensure(folder: &Path, report: &mut dyn Report) -> Result<CudaTools, Error> {
        let found = CudaTools::look(folder);
        if found.complete() {
            return Ok(found);
        }
        let _lock = files::lock(&folder.join(".cuda-lock"))?;
        files::sweep(folder, cuda::SCRATCH)?;
        // Someone else may have brought them while we waited: each looks again.
        let ptxas = optional(cuda::ensure("ptxas", folder, report), report);
        let nvdisasm = optional(cuda::ensure("nvdisasm", folder, report), report);
        Ok(CudaTools { ptxas, nvdisasm })
    }

    /// Why a missing one is missing, where the environment names something else in its place.
    pub fn misnamed(tool: &'static str) -> Option<String> {
        cuda::misnamed(tool).map(|error| error.to_string())
    }

    /// Whether none is missing.
    pub const fn complete(&self) -> bool {
        self.ptxas.is_some() && self.nvdisasm.is_some()
    }
}

/// What is here already; nothing is fetched.
#[derive(Debug)]
pub struct Found {
    /// The compiler, or why there is none.
    pub toolchain: Result<Toolchain, Error>,
    /// The source of `core`, if any.
    pub rust_src: Option<RustSrc>,
    /// NVIDIA's tools, as far as they are here.
    pub cuda: CudaTools,
}

/// Looks around without changing anything.
pub fn look(workspace: &Workspace) -> Found {
    let toolchain = toolchain(workspace.root());
    let rust_src = toolchain
        .as_ref()
        .ok()
        .and_then(|found| rust_src::find(workspace, found));
    Found {
        toolchain,
        rust_src,
        cuda: CudaTools::look(&workspace.tools()),
    }
}

/// Finds every tool and fetches those that are missing. A second call finds all
/// of them and fetches nothing. Without ptxas or nvdisasm it still succeeds,
/// with a warning: PTX can be built, and a driver can compile it.
pub fn ensure(workspace: &Workspace, report: &mut dyn Report) -> Result<Tools, Error> {
    let toolchain = toolchain(workspace.root())?;
    let rust_src = match rust_src::find(workspace, &toolchain) {
        Some(rust_src) => rust_src,
        None => {
            let _lock = files::lock(&workspace.tools().join(".lock"))?;
            files::sweep(&workspace.tools(), rust_src::SCRATCH)?;
            rust_src::ensure(workspace, &toolchain, report)?
        }
    };
    let cuda = CudaTools::ensure(&workspace.tools(), report)?;
    Ok(Tools {
        toolchain,
        rust_src,
        cuda,
    })
}

fn optional(tool: Result<CudaTool, cuda::Error>, report: &mut dyn Report) -> Option<CudaTool> {
    tool.map_err(|error| report.warn(&error.to_string())).ok()
}

fn toolchain(root: &Path) -> Result<Toolchain, Error> {
    let version = rustc(root, &["-vV"])?;
    let field = |name: &str| {
        version
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
            .unwrap_or("unknown")
            .to_owned()
    };
    let release = field("release");
    if release != RUSTC {
        return Err(Error::OtherCompiler { found: release });
    }
    let sysroot = PathBuf::from(rustc(root, &["--print", "sysroot"])?.trim());
    Ok(Toolchain {
        release,
        llvm: field("LLVM version"),
        sysroot,
    })
}

fn rustc(root: &Path, arguments: &[&str]) -> Result<String, Error> {
    // RUSTC is set where cargo runs us: the very compiler that cargo would use.
    let mut command = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.current_dir(root).args(arguments);
    process::run(&mut command, Duration::from_secs(300))
        .map(|printed| printed.stdout)
        .map_err(|source| Error::NoCompiler { source })
}
