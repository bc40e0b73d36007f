//! Mixture-of-experts training on NVIDIA GPUs, with kernels written in Rust.
//!
//! From the bottom up: a [`Device`], its [`Buffer`]s, [`Stream`]s and
//! [`Event`]s; [`Module`]s and [`Kernel`]s, of your own or the shipped
//! [`kernels`]; [`launch`]es and [`tensor_map`]s that are checked before the
//! driver sees them; the grouped GEMM in the three forms of a layer
//! ([`gemm`]); and the CPU references that it is proven against ([`oracle`]).
//!
//! Nothing here panics on what a caller passes in: every limit is an error
//! that names the value and the limit. On a machine with no driver everything
//! compiles, and [`Device::cuda`] returns [`Error::NoDriver`].
//!
//! ```
//! use mok::{Groups, gemm::{GemmCall, Matrix}, DevicePtr};
//!
//! // Three experts with 5, 0 and 200 rows; a product of [rows, 64] with [3, 128, 64].
//! let groups = Groups::new(&[5, 0, 200])?;
//! assert_eq!(groups.capacity(), 128 + 256);
//! let rows = groups.at(DevicePtr::from_raw(0x100)); // where the sizes are on the device
//! let [a, b, d] = [0x1000, 0x2000, 0x3000].map(|address| Matrix::new(DevicePtr::from_raw(address)));
//! let call = GemmCall::forward(rows, 128, 64, a, b, d);
//! call.check()?; // what `GroupedGemm::enqueue` checks, without a device
//! # Ok::<(), mok::Error>(())
//! ```
#![deny(missing_docs)]

mod backend;
mod device;
mod emulator;
mod error;
pub mod fill;
pub mod gemm;
mod groups;
pub mod kernels;
pub mod launch;
pub mod layer;
mod mailbox;
mod memory;
mod module;
pub mod oracle;
mod stream;
pub mod tensor_map;

/// The cudarc whose objects [`Device::from_cudarc`] and [`Stream::from_cudarc`] take. Those of another
/// version share by raw handles: [`Stream::from_raw`], [`DevicePtr::from_raw`].
pub use cudarc;
pub use device::{Device, DeviceLimits, Memory};
pub use emulator::{Completion, EmulatorConfig};
pub use error::{Error, Result};
pub use groups::{Groups, GroupsError};
pub use memory::{Buffer, DevicePtr, Slice, SliceMut};
pub use module::{Image, Kernel, Module};
pub use mok_kernel::arch::Arch;
pub use stream::{Event, Graph, Stream};
