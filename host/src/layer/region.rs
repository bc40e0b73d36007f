//! Where a rank keeps what the layout of [`SymmetricPlan`] describes, by transport.

use std::sync::{Arc, Mutex, PoisonError};

use mok_comm::Group;
use mok_kernel::symmetric::SymmetricPlan;

use super::config::{MoeConfig, Transport};
use super::exchange::Exchange;
use super::symmetric::Symmetric;
use super::together;
use crate::device::Device;
use crate::error::Result;
use crate::memory::Buffer;

/// A rank's region, and how it reaches the others.
#[derive(Debug)]
pub(super) enum Region {
    /// Every rank's region is mapped here.
    Peer(Symmetric),
    /// Memory of this rank alone; the exchange is remade when the workspace recovers.
    Nccl {
        memory: Buffer<u8>,
        exchange: Mutex<Arc<Exchange>>,
        rank: usize,
    },
}

impl Region {
    /// Collective. Signals, abort word and routes are zeros; the rest is as it comes.
    pub fn new(
        device: &Device,
        group: &Group,
        config: &MoeConfig,
        plan: &SymmetricPlan,
    ) -> Result<Region> {
        let region = match config.transport {
            Transport::Peer => Region::Peer(Symmetric::new(device, group, plan.bytes)?),
            Transport::Nccl => {
                let memory = together(group, device.buffer_uninit(plan.bytes as usize))?;
                Region::Nccl {
                    memory,
                    exchange: Mutex::new(Arc::new(Exchange::new(device, group, config)?)),
                    rank: group.rank(),
                }
            }
        };
        together(group, region.clear(device, plan.x))?;
        Ok(region)
    }

    /// Where each rank's region is mapped here; 0 where it isn't.
    pub fn bases(&self, ranks: usize) -> Vec<u64> {
        match self {
            Region::Peer(symmetric) => symmetric.bases().to_vec(),
            Region::Nccl { memory, rank, .. } => {
                let own = memory.ptr().as_raw();
                let base = |other| if other == *rank { own } else { 0 };
                (0..ranks).map(base).collect()
            }
        }
    }

    /// This rank's own.
    pub fn own(&self) -> u64 {
        match self {
            Region::Peer(symmetric) => symmetric.own(),
            Region::Nccl { memory, .. } => memory.ptr().as_raw(),
        }
    }

    /// Zeros in the first bytes of this rank's region, once the device is done.
    pub fn clear(&self, device: &Device, bytes: u64) -> Result<()> {
        // SAFETY: inside this rank's region; the default stream is waited for.
        unsafe { device.backend().fill(self.own(), 0, bytes as usize, 0) }?;
        device.synchronize()
    }

    /// What carries rows, where peers aren't reached.
    pub fn exchange(&self) -> Option<Arc<Exchange>> {
        match self {
            Region::Peer(_) => None,
            Region::Nccl { exchange, .. } => {
                let exchange = exchange.lock().unwrap_or_else(PoisonError::into_inner);
                Some(exchange.clone())
            }
        }
    }

    /// Collective: what carries rows is made anew.
    pub fn reconnect(&self, device: &Device, group: &Group, config: &MoeConfig) -> Result<()> {
        if let Region::Nccl { exchange, .. } = self {
            let fresh = Arc::new(Exchange::new(device, group, config)?);
            *exchange.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
        }
        Ok(())
    }
}
