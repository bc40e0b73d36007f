//! Where things are: the workspace's root and its target folder.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::files::{self, FileError};
use crate::process;

/// Why no workspace was found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No ancestor has a workspace manifest.
    #[error("no Cargo workspace at or above {}: run this inside a checkout of mok-rs", start.display())]
    NoWorkspace {
        /// Where the search began.
        start: PathBuf,
    },
    /// A path could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A manifest on the way up is not TOML.
    #[error("{} is not a manifest: {source}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// The parser's answer.
        source: toml::de::Error,
    },
}

/// A Cargo workspace and the target folder that its builds use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    /// The workspace that `start` lies in. The target folder is the one cargo
    /// would use there: `CARGO_TARGET_DIR`, else cargo's own configuration.
    pub fn find(start: &Path) -> Result<Workspace, Error> {
        let start = start.canonicalize().map_err(files::on("find", start))?;
        for folder in start.ancestors() {
            let path = folder.join("Cargo.toml");
            if !path.is_file() {
                continue;
            }
            let text = fs::read_to_string(&path).map_err(files::on("read", &path))?;
            let manifest: toml::Table = text.parse().map_err(|source| Error::Manifest {
                path: path.clone(),
                source,
            })?;
            if manifest.contains_key("workspace") {
                return Ok(Workspace {
                    target: target_of(folder),
                    root: folder.to_owned(),
                });
            }
        }
        Err(Error::NoWorkspace { start })
    }

    /// The folder of the workspace's manifest.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Cargo's target folder.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Tools that setup brought.
    pub fn tools(&self) -> PathBuf {
        self.target.join("tools")
    }

    /// Finished PTX and cubins.
    pub fn ptx(&self) -> PathBuf {
        self.target.join("ptx")
    }

    /// Where kernels are staged so that `cargo package` takes them along.
    pub fn staged(&self) -> PathBuf {
        self.root.join("host/kernels")
    }

    /// Register budgets of the shipped entries.
    pub fn budgets(&self) -> PathBuf {
        self.root.join("kernel/budgets.toml")
    }
}

/// The cargo that runs us, or the one on the path.
pub fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn target_of(root: &Path) -> PathBuf {
    if let Some(folder) = env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty()) {
        return root.join(folder);
    }
    let mut metadata = cargo();
    metadata
        .current_dir(root)
        .args(["metadata", "--no-deps", "--format-version", "1"]);
    process::run(&mut metadata, Duration::from_secs(60))
        .ok()
        .and_then(|printed| serde_json::from_str::<serde_json::Value>(&printed.stdout).ok())
        .and_then(|metadata| metadata["target_directory"].as_str().map(PathBuf::from))
        .unwrap_or_else(|| root.join("target"))
}
