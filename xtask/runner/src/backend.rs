//! Where kernels run.

use anyhow::{Result, bail};
use clap::ValueEnum;
use mok::{Device, EmulatorConfig, Error};

/// What the caller asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The GPU if there is one that kernels are built for, else the emulator.
    Auto,
    /// The GPU; an error if there is none.
    Cuda,
    /// An emulated GPU, on this machine's CPU.
    Emulator,
    /// Nowhere: only what the host can check.
    None,
}

impl Backend {
    /// The device, or `None` for host checks only.
    pub fn open(self, ordinal: usize) -> Result<Option<Device>> {
        match self {
            Backend::None => Ok(None),
            Backend::Emulator => Ok(Some(emulated()?)),
            Backend::Cuda => Ok(Some(device(ordinal)?)),
            Backend::Auto => match device(ordinal) {
                Ok(device) => Ok(Some(device)),
                Err(error) if is_absence(&error) => {
                    eprintln!("{}", instead(&error));
                    Ok(Some(emulated()?))
                }
                Err(error) => Err(error.into()),
            },
        }
    }
}

/// The GPU, for commands that are nothing without one.
pub fn require(command: &str, ordinal: usize) -> Result<Device> {
    match device(ordinal) {
        Ok(device) => Ok(device),
        Err(error) if is_absence(&error) => bail!(
            "`{command}` needs a GPU: {error}\nMake a pack with `cargo xtask pack`, copy it to a \
             machine with one, and run `./xtask {command}` there"
        ),
        Err(error) => Err(error.into()),
    }
}

/// The driver, as records name it: what it speaks, and its own version where the kernel tells it.
pub fn driver(device: &Device) -> String {
    let (major, minor) = device.driver_version();
    let version = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ..."
    let own = version
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().find(|word| is_version(word)));
    match own {
        Some(own) => format!("CUDA {major}.{minor}, {own}"),
        None => format!("CUDA {major}.{minor}"),
    }
}

fn is_version(word: &str) -> bool {
    word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok())
}

fn emulated() -> mok::Result<Device> {
    Device::emulated(EmulatorConfig::default())
}

fn device(ordinal: usize) -> mok::Result<Device> {
    let device = Device::cuda(ordinal)?;
    device.arch()?;
    Ok(device)
}

/// How many GPUs there are, the first of which has kernels.
pub fn gpus() -> mok::Result<usize> {
    device(0)?;
    Device::cuda_count()
}

/// What people are told where the emulator steps in for a GPU.
pub fn instead(error: &Error) -> String {
    format!(
        "no GPU is used: {error}\nthe emulator executes the kernels on this CPU instead: keep shapes \
         small"
    )
}

/// Whether there is simply no GPU to use, as opposed to one that fails.
pub fn is_absence(error: &Error) -> bool {
    /// `CUDA_ERROR_NO_DEVICE`, what cuInit says where there is a driver library only.
    const NO_DEVICE: u32 = 100;
    matches!(
        error,
        Error::NoDriver
            | Error::NoSuchDevice { count: 0, .. }
            | Error::NoKernels { .. }
            | Error::Driver {
                code: NO_DEVICE,
                ..
            }
    )
}
