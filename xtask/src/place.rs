//! Where we run: in a checkout, or in a pack on a machine without Rust.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use mok_build::setup::CudaTools;
use mok_build::{Report, Workspace};

/// The file that makes a folder a pack.
pub const MANIFEST: &str = "mok-pack.json";

/// The two.
pub enum Place {
    /// A checkout of the sources.
    Checkout(Workspace),
    /// A pack: this folder.
    Pack(PathBuf),
}

impl Place {
    /// A pack if the manifest lies beside the executable, else the checkout around
    /// the current folder, or around the sources that this executable was built from.
    pub fn find() -> Result<Place> {
        if let Some(folder) = pack_of(&env::current_exe().unwrap_or_default()) {
            return Ok(Place::Pack(folder));
        }
        // Cargo sets it for `cargo xtask`, from whichever folder that is called.
        let start = env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| ".".into(), PathBuf::from);
        Ok(Place::Checkout(Workspace::find(&start)?))
    }

    /// The checkout; an error that says so in a pack.
    pub fn checkout(command: &str) -> Result<Workspace> {
        match Place::find()? {
            Place::Checkout(workspace) => Ok(workspace),
            Place::Pack(_) => anyhow::bail!(
                "`{command}` needs the sources: in a pack there are doctor, validate, run, emu, test, bench and golden"
            ),
        }
    }

    /// Where register budgets are.
    pub fn budgets(&self) -> PathBuf {
        match self {
            Place::Checkout(workspace) => workspace.budgets(),
            Place::Pack(folder) => folder.join("budgets.toml"),
        }
    }

    /// Where PTX and cubins are.
    pub fn ptx(&self) -> PathBuf {
        match self {
            Place::Checkout(workspace) => workspace.ptx(),
            Place::Pack(folder) => folder.join("ptx"),
        }
    }

    /// Where fetched tools are kept.
    pub fn tools(&self) -> PathBuf {
        match self {
            Place::Checkout(workspace) => workspace.tools(),
            Place::Pack(folder) => folder.join("tools"),
        }
    }

    /// NVIDIA's tools, fetched if missing.
    pub fn cuda_tools(&self, report: &mut dyn Report) -> Result<CudaTools> {
        CudaTools::ensure(&self.tools(), report).context("looking for ptxas and nvdisasm")
    }
}

fn pack_of(executable: &Path) -> Option<PathBuf> {
    let folder = executable.parent()?;
    folder.join(MANIFEST).is_file().then(|| folder.to_owned())
}
