//! A GPU's outputs as files: hashes, and what made them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::compare::Part;
use crate::generate::{Generator, VERSION};

/// The file that says how the hashes came about.
pub const ABOUT: &str = "scalar.json";
/// The hashes: eight bytes a program, the first of them the highest.
pub const HASHES: &str = "scalar.bin";

/// What is recorded beside the hashes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// `mok-fuzz/1`.
    pub schema: String,
    /// [`VERSION`] of the generator.
    pub generator: u32,
    /// Its seed.
    pub seed: u64,
    /// Programs 0 to this number less one.
    pub programs: u32,
    /// SHA-256 of all programs' [text hashes](crate::compare::text_hash): other programs would
    /// have other outputs.
    pub programs_sha256: String,
    /// The GPU.
    pub device: String,
    /// Its driver, whose compiler made the machine code.
    pub driver: String,
    /// What this was recorded with.
    pub commit: Option<String>,
    /// SHA-256 of the file of hashes.
    pub sha256: String,
    /// How each hash is made.
    pub hashes: String,
    /// Of each approximate name, results that were compared with f64 and the largest distance, in
    /// units of what the ISA allows.
    pub approximate: BTreeMap<String, (u64, f64)>,
}

/// Why a record can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file can't be read or written.
    #[error("{path} can't be read or written")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// It is no record.
    #[error("{path}: {reason}; record it again: `xtask fuzz --backend cuda --record` in a pack")]
    Bad {
        /// Which.
        path: String,
        /// Why.
        reason: String,
    },
}

/// Lower-case hexadecimal SHA-256.
fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Rounded up, so that nothing beyond a bound looks as if it were within.
fn thousandths(value: f64) -> f64 {
    (value * 1000.0).ceil() / 1000.0
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

impl Record {
    /// Of all programs, from a GPU.
    pub fn new(
        generator: &Generator,
        part: &Part,
        device: String,
        driver: String,
        commit: Option<String>,
    ) -> Record {
        let near = part.near.iter();
        Record {
            schema: "mok-fuzz/1".into(),
            generator: VERSION,
            seed: generator.seed(),
            programs: part.hashes.len() as u32,
            programs_sha256: sha256(&bytes(&part.texts)),
            device,
            driver,
            commit,
            sha256: sha256(&bytes(&part.hashes)),
            hashes:
                "the first 8 bytes of the SHA-256 of a program's exact output, thread by thread"
                    .into(),
            approximate: near
                .map(|(name, near)| (name.clone(), (near.checked, thousandths(near.worst))))
                .collect(),
        }
    }

    /// Writes it and the hashes into a folder.
    ///
    /// # Errors
    /// A file can't be written.
    pub fn write(&self, folder: &Path, hashes: &[u64]) -> Result<(), Error> {
        let about = serde_json::to_vec_pretty(self).map_err(|error| Error::Bad {
            path: ABOUT.into(),
            reason: error.to_string(),
        })?;
        let file = |path: &Path, bytes: &[u8]| {
            std::fs::write(path, bytes).map_err(|source| Error::File {
                path: path.display().to_string(),
                source,
            })
        };
        std::fs::create_dir_all(folder).map_err(|source| Error::File {
            path: folder.display().to_string(),
            source,
        })?;
        file(&folder.join(ABOUT), &about)?;
        file(&folder.join(HASHES), &bytes(hashes))
    }

    /// Reads both files.
    ///
    /// # Errors
    /// They are not there, or do not belong together.
    pub fn read(folder: &Path) -> Result<(Record, Vec<u64>), Error> {
        let file = |name: &str| {
            let path = folder.join(name);
            std::fs::read(&path).map_err(|source| Error::File {
                path: path.display().to_string(),
                source,
            })
        };
        let bad = |name: &str, reason: String| Error::Bad {
            path: folder.join(name).display().to_string(),
            reason,
        };
        let about = file(ABOUT)?;
        let record: Record =
            serde_json::from_slice(&about).map_err(|error| bad(ABOUT, error.to_string()))?;
        let hashes = file(HASHES)?;
        if sha256(&hashes) != record.sha256 || hashes.len() != 8 * record.programs as usize {
            return Err(bad(
                HASHES,
                format!("it is not the file that {ABOUT} was written with"),
            ));
        }
        let words = hashes.chunks_exact(8);
        let hashes = words
            .map(|word| word.iter().fold(0, |all, &byte| all << 8 | u64::from(byte)))
            .collect();
        Ok((record, hashes))
    }

    /// Whether these are the programs that were recorded.
    ///
    /// # Errors
    /// They are others; what is to be done.
    pub fn check(&self, texts: &[u64]) -> Result<(), Error> {
        if self.generator != VERSION || self.programs_sha256 != sha256(&bytes(texts)) {
            let reason = format!(
                "it holds the outputs of other programs (generator version {}, this is {VERSION})",
                self.generator
            );
            return Err(Error::Bad {
                path: ABOUT.into(),
                reason,
            });
        }
        Ok(())
    }

    /// Names whose recorded results lay beyond the ISA's bound.
    pub fn beyond(&self) -> Vec<(&str, f64)> {
        let names = self
            .approximate
            .iter()
            .filter(|(_, (_, worst))| *worst > 1.0);
        names
            .map(|(name, (_, worst))| (name.as_str(), *worst))
            .collect()
    }
}
