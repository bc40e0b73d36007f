//! Owners of what the driver gives: each gives it back when dropped, on every path.

use std::sync::Arc;

use crate::device::{Device, HandleKind};
use crate::error::Result;

/// A failure to give something back: nothing can be done about it, but it shall be known.
fn note(result: Result<()>) {
    if let Err(error) = result {
        tracing::warn!("symmetric memory could not be given back: {error}");
    }
}

/// A hold on physical memory. The memory lives until the last hold and mapping of any process ends.
#[derive(Debug)]
pub(super) struct Handle {
    device: Arc<dyn Device>,
    raw: u64,
}

impl Handle {
    pub(super) fn create(
        device: &Arc<dyn Device>,
        bytes: usize,
        kind: HandleKind,
    ) -> Result<Handle> {
        Ok(Handle::own(device, device.create(bytes, kind)?))
    }

    /// Takes what an import gave.
    pub(super) fn own(device: &Arc<dyn Device>, raw: u64) -> Handle {
        Handle {
            device: device.clone(),
            raw,
        }
    }

    pub(super) fn raw(&self) -> u64 {
        self.raw
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: owned by this guard, and not yet released.
        note(unsafe { self.device.release(self.raw) });
    }
}

/// Memory at an address of this process.
#[derive(Debug)]
pub(super) struct Mapping {
    device: Arc<dyn Device>,
    address: u64,
    bytes: usize,
    mapped: bool,
}

impl Mapping {
    /// Maps the whole of a handle's memory, readable and writable by `device`. The mapping holds the
    /// memory by itself.
    pub(super) fn new(
        device: &Arc<dyn Device>,
        handle: &Handle,
        bytes: usize,
        alignment: usize,
    ) -> Result<Mapping> {
        let mut mapping = Mapping {
            device: device.clone(),
            address: device.reserve(bytes, alignment)?,
            bytes,
            mapped: false,
        };
        // SAFETY: a range just reserved, of the size of the memory that the handle holds.
        unsafe { device.map(mapping.address, bytes, handle.raw())? };
        mapping.mapped = true;
        // SAFETY: mapped above.
        unsafe { device.allow(mapping.address, bytes)? };
        Ok(mapping)
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn zero(&self) -> Result<()> {
        // SAFETY: mapped and accessible as long as this guard lives.
        unsafe { self.device.zero(self.address, self.bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.mapped {
            // SAFETY: mapped by `new`. That no kernel uses it is the contract of SymmetricMemory.
            note(unsafe { self.device.unmap(self.address, self.bytes) });
        }
        // SAFETY: reserved by `new`, and nothing is mapped in it now.
        note(unsafe { self.device.unreserve(self.address, self.bytes) });
    }
}
