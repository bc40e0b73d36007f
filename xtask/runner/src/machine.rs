//! On what something was measured or recorded, and of what: the head of every such file.

use std::fmt;

use mok::{Device, Image, kernels};
use serde::Serialize;

use crate::golden::sha256;
use crate::{backend, place};

/// A GPU, its driver, and the kernels that ran on it.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub device: String,
    pub driver: String,
    pub arch: &'static str,
    /// Whether cubins or PTX were loaded.
    pub image: &'static str,
    pub ptx_sha256: String,
    pub commit: Option<String>,
}

impl Machine {
    pub fn of(device: &Device) -> mok::Result<Machine> {
        let arch = device.arch()?;
        let ptx = kernels::embedded(arch).map_or("", |code| code.ptx);
        Ok(Machine {
            device: device.name().to_owned(),
            driver: backend::driver(device),
            arch: arch.name(),
            image: match device.kernels()?.image() {
                Image::Cubin => "cubin",
                Image::Ptx => "ptx",
            },
            ptx_sha256: sha256(ptx.as_bytes()),
            commit: place::commit(),
        })
    }
}

/// As it stands below a table.
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {}, {}", self.device, self.driver, self.image)?;
        writeln!(f, "PTX {}", self.ptx_sha256)?;
        write!(f, "commit {}", self.commit.as_deref().unwrap_or("unknown"))
    }
}
