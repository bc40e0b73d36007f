//! The region that peers reach, whatever the ranks run on.

use std::any::Any;

use mok_comm::{Group, SymmetricMemory};

use super::together;
use crate::backend::emulated::Emulated;
use crate::device::Device;
use crate::error::{Error, Result};

/// One region of the same size on every rank, each mapped here.
#[derive(Debug)]
pub(super) struct Symmetric {
    device: Device,
    rank: usize,
    bases: Vec<u64>,
    memory: Memory,
}

/// What keeps the region alive.
#[derive(Debug)]
enum Memory {
    Emulated,
    Cuda { _mapped: SymmetricMemory },
}

impl Symmetric {
    /// Collective: `bytes` on every rank, the first `zeros` of them zero.
    pub fn new(device: &Device, group: &Group, bytes: u64, zeros: u64) -> Result<Symmetric> {
        let any: &dyn Any = &**device.backend();
        let (memory, bases) = match any.downcast_ref::<Emulated>() {
            Some(gpu) => (Memory::Emulated, emulated(gpu, group, bytes)?),
            None => {
                let context = together(group, device.cudarc_context())?;
                let mapped = SymmetricMemory::allocate(group, &context, bytes as usize)?;
                let bases = mapped.addresses().bases.clone();
                (Memory::Cuda { _mapped: mapped }, bases)
            }
        };
        let symmetric = Symmetric {
            device: device.clone(),
            rank: group.rank(),
            bases,
            memory,
        };
        together(group, symmetric.clear(zeros))?;
        Ok(symmetric)
    }

    /// Where each rank's region is mapped here.
    pub fn bases(&self) -> &[u64] {
        &self.bases
    }

    /// This rank's own.
    pub fn own(&self) -> u64 {
        self.bases.get(self.rank).copied().unwrap_or(0)
    }

    /// Zeros in the first bytes of this rank's region, once the device is done.
    pub fn clear(&self, bytes: u64) -> Result<()> {
        // SAFETY: inside this rank's region; the default stream is waited for.
        unsafe { self.device.backend().fill(self.own(), 0, bytes as usize, 0) }?;
        self.device.synchronize()
    }
}

/// GPUs of one emulated machine reach each other by the addresses they have.
fn emulated(gpu: &Emulated, group: &Group, bytes: u64) -> Result<Vec<u64>> {
    let address = together(group, gpu.alloc_shared(bytes as usize))?;
    let [machine, own] = [gpu.machine_id(), address].map(u64::to_le_bytes);
    let all = group.all_gather(&[machine, own].concat())?;
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
    Ok(all.iter().map(|theirs| word(theirs, 8)).collect())
}

impl Drop for Symmetric {
    fn drop(&mut self) {
        match self.memory {
            // A failure has nowhere to go.
            // SAFETY: allocated by this device; kernels of peers that still use it are the
            // workspace's matter, which all ranks drop after their last call.
            Memory::Emulated => drop(unsafe { self.device.backend().free(self.own()) }),
            // Its kernels must be over before the mappings go.
            Memory::Cuda { .. } => drop(self.device.synchronize()),
        }
    }
}
