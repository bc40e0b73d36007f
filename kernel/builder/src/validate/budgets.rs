//! Committed budgets: entry, then architecture, then registers a thread, and, of an entry that is there
//! to multiply, the tensor-core instruction that it is written for.
//!
//! ```toml
//! [mok_gemm_forward]
//! sm_90a = { registers = 168, tensor_core = "HGMMA" }
//!
//! [mok_combine]
//! sm_90a = 48
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::files::{self, FileError};

/// Why the budgets are not usable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file does not hold budgets.
    #[error("{}: {source}\nwrite it as [entry], then lines such as sm_90a = 168 or sm_90a = {{ registers = 168, tensor_core = \"HGMMA\" }}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: toml::de::Error,
    },
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budgets(BTreeMap<String, BTreeMap<String, Budget>>);

/// One entry's on one architecture.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
enum Budget {
    Registers(u32),
    Multiplies(Multiplies),
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Multiplies {
    registers: u32,
    tensor_core: String,
}

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
        match self.0.get(entry)?.get(arch)? {
            Budget::Registers(registers) => Some(*registers),
            Budget::Multiplies(budget) => Some(budget.registers),
        }
    }

    /// The tensor-core instruction that its machine code must have there.
    pub fn tensor_core(&self, entry: &str, arch: &str) -> Option<&str> {
        match self.0.get(entry)?.get(arch)? {
            Budget::Registers(_) => None,
            Budget::Multiplies(budget) => Some(&budget.tensor_core),
        }
    }
}
