//! The region that peers reach, whatever the ranks run on.

use std::any::Any;

use mok_comm::{Group, SymmetricMemory};

use super::together;
use crate::backend::emulated::{Emulated, Mapped};
use crate::device::Device;
use crate::error::{Error, Result};

/// One region of the same size on every rank, each mapped here.
#[derive(Debug)]
pub(super) struct Symmetric {
    device: Device,
    rank: usize,
    bases: Vec<u64>,
    _memory: Memory,
}

/// What keeps the region alive.
#[derive(Debug)]
enum Memory {
    Emulated { _mapped: Vec<Mapped> },
    Cuda { _mapped: SymmetricMemory },
}

impl Symmetric {
    /// Collective: `bytes` on every rank.
    pub fn new(device: &Device, group: &Group, bytes: u64) -> Result<Symmetric> {
        let any: &dyn Any = &**device.backend();
        let (memory, bases) = match any.downcast_ref::<Emulated>() {
            Some(gpu) => {
                let mapped = emulated(gpu, group, bytes)?;
                let bases = mapped.iter().map(|mapped| mapped.address()).collect();
                (Memory::Emulated { _mapped: mapped }, bases)
            }
            None => {
                let context = together(group, device.cudarc_context())?;
                let mapped = SymmetricMemory::allocate(group, &context, bytes as usize)?;
                let bases = mapped.addresses().bases.clone();
                (Memory::Cuda { _mapped: mapped }, bases)
            }
        };
        Ok(Symmetric {
            device: device.clone(),
            rank: group.rank(),
            bases,
            _memory: memory,
        })
    }

    /// Where each rank's region is mapped here.
    pub fn bases(&self) -> &[u64] {
        &self.bases
    }

    /// This rank's own.
    pub fn own(&self) -> u64 {
        self.bases.get(self.rank).copied().unwrap_or(0)
    }
}

/// GPUs of one emulated machine reach each other by the addresses they have. Like the driver's
/// memory, a region lives as long as any rank maps it.
fn emulated(gpu: &Emulated, group: &Group, bytes: u64) -> Result<Vec<Mapped>> {
    let own = together(group, gpu.alloc_shared(bytes as usize))?;
    let [machine, address] = [gpu.machine_id(), own.address()].map(u64::to_le_bytes);
    let all = group.all_gather(&[machine, address].concat())?;
    let word = |from: &[u8], at: usize| {
        let bytes = from.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    let foreign = all.iter().enumerate().find(|(rank, theirs)| {
        !group.share_process(group.rank(), *rank) || word(theirs, 0) != gpu.machine_id()
    });
    if let Some((rank, _)) = foreign {
        return Err(Error::OtherMachine {
            rank: group.rank(),
            other: rank,
        });
    }
    let mapped = all.iter().map(|theirs| gpu.map_shared(word(theirs, 8)));
    // Everybody has mapped what its owner might drop.
    together(group, mapped.collect())
}

impl Drop for Symmetric {
    fn drop(&mut self) {
        // Its kernels must be over before the mappings go. A failure has nowhere to go.
        let _ = self.device.synchronize();
    }
}
