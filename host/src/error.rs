//! What can go wrong, with the call, the value and the limit.

use mok_kernel::arch::Arch;

use crate::gemm::{GemmError, QuantizeError};
use crate::groups::GroupsError;
use crate::launch::LaunchError;
use crate::layer::LayerError;
use crate::tensor_map::TensorMapError;

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that a call of this crate can fail with.
///
/// ```
/// match mok::Device::cuda(0) {
///     Ok(device) => println!("{}", device.name()),
///     Err(mok::Error::NoDriver) => println!("no NVIDIA driver here"),
///     Err(other) => println!("{other}"),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine has no CUDA driver library.
    #[error(
        "no CUDA driver on this machine: libcuda.so was not found (install the NVIDIA driver, or add its folder to LD_LIBRARY_PATH)"
    )]
    NoDriver,
    /// The driver library lacks a function that this crate calls.
    #[error("the CUDA driver is too old: it has no {symbol} (CUDA 12.0 or later is needed)")]
    DriverTooOld {
        /// The missing function.
        symbol: &'static str,
    },
    /// A driver call failed.
    #[error("{call} failed: {name} ({code}): {text}{context}")]
    Driver {
        /// The driver function.
        call: &'static str,
        /// The driver's error number.
        code: u32,
        /// The driver's name for it, such as `CUDA_ERROR_OUT_OF_MEMORY`.
        name: String,
        /// The driver's description.
        text: String,
        /// The values of this call; empty, or starting with `; `.
        context: String,
    },
    /// There is no device with this ordinal.
    #[error("no CUDA device {ordinal}: this machine shows {count} (numbered from 0)")]
    NoSuchDevice {
        /// The ordinal that was asked for.
        ordinal: usize,
        /// How many devices the driver shows.
        count: usize,
    },
    /// No kernels are built for the device's architecture.
    #[error(
        "no kernels for {device} (compute capability {major}.{minor}): built for {}",
        arch_names()
    )]
    NoKernels {
        /// The device's name.
        device: String,
        /// Compute capability, major.
        major: u32,
        /// Compute capability, minor.
        minor: u32,
    },
    /// The crate was built without the kernels of an architecture.
    #[error(
        "this build of mok carries no kernels for {arch}: build in a clone of the repository, or from a packaged crate whose kernels/ folder has mok_{arch}.ptx"
    )]
    NotEmbedded {
        /// The architecture's name.
        arch: &'static str,
    },
    /// A size in bytes does not fit.
    #[error("{what}: {len} elements of {size} bytes are more than {limit} bytes")]
    TooLarge {
        /// What was to be made.
        what: &'static str,
        /// Elements asked for.
        len: usize,
        /// Bytes of one element.
        size: usize,
        /// The most bytes.
        limit: usize,
    },
    /// The host has no memory for a copy.
    #[error("no host memory for {len} elements of {size} bytes")]
    HostMemory {
        /// Elements of the copy.
        len: usize,
        /// Bytes of one element.
        size: usize,
    },
    /// Two lengths that must agree do not.
    #[error("{call}: the host slice has {host} elements, the device memory {device}")]
    Length {
        /// The method.
        call: &'static str,
        /// Elements on the host.
        host: usize,
        /// Elements on the device.
        device: usize,
    },
    /// A range reaches past the end.
    #[error("range {start}..{end} is not inside 0..{len}")]
    Range {
        /// Start of the range.
        start: usize,
        /// End of the range.
        end: usize,
        /// Length of the memory.
        len: usize,
    },
    /// Two objects of one call live on different devices.
    #[error("{call}: the {what} belongs to another device or context")]
    OtherDevice {
        /// The method.
        call: &'static str,
        /// Which object.
        what: &'static str,
    },
    /// The bytes given as a cubin are not one.
    #[error("not a cubin: {reason}")]
    BadCubin {
        /// What is wrong with them.
        reason: String,
    },
    /// An emulated machine has no GPU, or more than it can.
    #[error("an emulated machine has 1 to {limit} GPUs, not {gpus}")]
    EmulatedGpus {
        /// GPUs asked for.
        gpus: usize,
        /// The most.
        limit: usize,
    },
    /// The emulator refused a call, or found faults in the kernels that ran.
    #[error("emulator: {}", findings.join("\n"))]
    Emulator {
        /// Each with kernel, PTX line, block and thread.
        findings: Vec<String>,
    },
    /// The text given as PTX cannot be one.
    #[error("not PTX: {reason}")]
    BadPtx {
        /// What is wrong with it.
        reason: String,
    },
    /// The driver could not compile a module's PTX.
    #[error("the driver could not compile the PTX: {name} ({code}){}{log}", if log.is_empty() { "" } else { "\n" })]
    Jit {
        /// The driver's error number.
        code: u32,
        /// The driver's name for it.
        name: String,
        /// The compiler's log.
        log: String,
    },
    /// A module was asked for with neither cubin nor PTX.
    #[error("a module needs a cubin or PTX, and got neither")]
    EmptyModule,
    /// The module has no such entry.
    #[error("the module has no entry {entry:?}")]
    NoEntry {
        /// The entry's name.
        entry: String,
    },
    /// The object is not backed by CUDA.
    #[error("{call}: this device is not a CUDA device")]
    NotCuda {
        /// The method.
        call: &'static str,
    },
    /// A launch does not fit its spec or the device.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A tensor map breaks a limit.
    #[error(transparent)]
    TensorMap(#[from] TensorMapError),
    /// A grouped GEMM breaks a limit.
    #[error(transparent)]
    Gemm(#[from] GemmError),
    /// A quantization breaks a limit.
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    /// A layer cannot be, or a call of it failed.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// Ranks could not talk to each other.
    #[error(transparent)]
    Comm(#[from] mok_comm::Error),
    /// Ranks whose emulated GPUs cannot reach each other.
    #[error(
        "ranks {rank} and {other} have GPUs of different emulated machines: make them with one `Device::emulated_peers`, for threads of one process, or use Transport::Nccl"
    )]
    OtherMachine {
        /// This rank.
        rank: usize,
        /// The other.
        other: usize,
    },
    /// Group sizes break a limit.
    #[error(transparent)]
    Groups(#[from] GroupsError),
}

fn arch_names() -> String {
    Arch::ALL.map(Arch::name).join(", ")
}
