//! The mixture-of-experts layer under expert parallelism.
//!
//! A [`Group`] of ranks; on each a [`Workspace`], shared by the layers of one shape; a
//! [`MoeLayer`] with its weights; a [`Schedule`] for each choice of experts. `schedule` and
//! `forward` enqueue on a stream and return; what goes wrong on a device is told by
//! [`Workspace::status`], by [`Workspace::synchronize`], or by the next call. Where ranks don't reach
//! each other's memory, [`Transport::Nccl`] moves the same rows, and its calls wait for the host.
//!
//! ```
//! use std::sync::Arc;
//! use half::bf16;
//! use mok::layer::{Group, MoeConfig, MoeLayer, Schedule, Weights, Workspace};
//! use mok::{Device, EmulatorConfig, fill, gemm::Matrix};
//!
//! // Two ranks, each a thread with an emulated GPU; 4 experts of 64 over hidden size 64.
//! let config = MoeConfig::new(4, 64, 64, 2, 8);
//! let devices = Device::emulated_peers(EmulatorConfig::default(), 2)?;
//! let ranks = devices.into_iter().zip(Group::threads(2)?);
//! std::thread::scope(|scope| {
//!     let run = |(device, group): (Device, Group)| -> mok::Result<Vec<bf16>> {
//!         let stream = device.stream()?;
//!         let workspace = Workspace::new(&device, &Arc::new(group), &config)?;
//!         let data = |seed, len| device.buffer_from(&fill::normal::<bf16>(seed, len, 0.5));
//!         let [gate, up, down] = [data(1, 2 * 64 * 64)?, data(2, 2 * 64 * 64)?, data(3, 2 * 64 * 64)?];
//!         let weights = Weights::new(Matrix::of(&gate), Matrix::of(&up), Matrix::of(&down));
//!         let layer = MoeLayer::new(&workspace, weights)?;
//!
//!         let topk_experts = device.buffer_from(&[0i32, 1, 2, 3, 3, -1])?; // 3 tokens, 2 each
//!         let router_weights = device.buffer_from(&[0.5f32; 6])?;
//!         let x = data(4, 3 * 64)?;
//!         let out = device.buffer_uninit::<bf16>(3 * 64)?;
//!         let mut schedule = Schedule::new(&workspace)?;
//!         // SAFETY: everything lives until the synchronisation.
//!         unsafe {
//!             layer.schedule(&mut schedule, topk_experts.ptr(), 3, &stream)?;
//!             layer.forward(&schedule, x.ptr(), router_weights.ptr(), out.ptr(), &stream)?;
//!         }
//!         workspace.synchronize(&stream)?;
//!         out.to_vec()
//!     };
//!     let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || run(rank))).collect();
//!     for thread in threads {
//!         assert!(thread.join().unwrap()?.iter().all(|value| value.is_finite()));
//!     }
//!     Ok::<(), mok::Error>(())
//! })?;
//! # Ok::<(), mok::Error>(())
//! ```

use std::fmt::Display;

pub use mok_comm::Group;

mod config;
mod error;
mod exchange;
mod exchanged;
mod forward;
mod fused;
mod region;
mod schedule;
mod symmetric;
mod timeline;
mod watch;
mod workspace;

pub use config::{LayerMemory, MoeConfig, Path, Transport};
pub use error::{LayerError, WaitName};
pub use forward::{MoeLayer, SharedWeights, Weights};
pub use schedule::Schedule;
pub use timeline::{Tile, Timed, Timeline, Work, Worker};
pub use workspace::Workspace;

use crate::error::{Error, Result};
use crate::memory::DevicePtr;

/// Makes one rank's failure every rank's, and keeps its own error where it happened.
fn together<T>(group: &Group, result: Result<T>) -> Result<T> {
    match result {
        Ok(value) => {
            group.agree(Ok::<(), Error>(()))?;
            Ok(value)
        }
        Err(error) => {
            // The others learn of it; this rank's own error says more than what comes back.
            let told: &dyn Display = &error;
            let _ = group.agree(Err::<(), _>(told));
            Err(error)
        }
    }
}

/// Refuses null and misaligned tensors, if anything of them is read.
fn check_pointer(what: &'static str, ptr: DevicePtr, elements: u64) -> Result<()> {
    let address = ptr.as_raw();
    if elements > 0 && (address == 0 || !address.is_multiple_of(16)) {
        return Err(LayerError::Pointer { what, address }.into());
    }
    Ok(())
}

/// Blocks that give each of so many rows a warp, a few times the device's SMs at most.
fn grid_of(rows: u64, sms: u32) -> [u32; 3] {
    let warps = u64::from(mok_kernel::unfused::MOVE_THREADS / 32);
    let most = u64::from(sms) * 8;
    [rows.div_ceil(warps).clamp(1, most.max(1)) as u32, 1, 1]
}
