//! Committed register budgets: entry, then architecture, then registers a thread.
//!
//! ```toml
//! [mok_gemm_forward]
//! sm_90a = 168
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::files::{self, FileError};

/// Why the budgets are not usable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file does not hold budgets.
    #[error("{}: {source}\nwrite it as [entry], then lines such as sm_90a = 168", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: toml::de::Error,
    },
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budgets(BTreeMap<String, BTreeMap<String, u32>>);

impl Budgets {
    /// Reads a file; no file, no budgets.
    pub fn read(path: &Path) -> Result<Budgets, Error> {
        if !path.exists() {
            return Ok(Budgets::default());
        }
        let text = fs::read_to_string(path).map_err(files::on("read", path))?;
        let budgets = toml::from_str(&text).map_err(|source| Error::Format {
            path: path.to_owned(),
            source,
        })?;
        Ok(Budgets(budgets))
    }

    /// Registers that an entry may use on an architecture.
    pub fn of(&self, entry: &str, arch: &str) -> Option<u32> {
        self.0.get(entry)?.get(arch).copied()
    }
}
