//! Words that kernels write and the host reads without waiting for them.

use std::sync::Arc;

use crate::backend::Backend;
use crate::device::Device;
use crate::error::Result;
use crate::memory::DevicePtr;

/// Words in memory that both the device and the host reach; zeros at first.
#[derive(Debug)]
pub(crate) struct Mailbox {
    backend: Arc<dyn Backend>,
    address: u64,
    words: usize,
}

impl Mailbox {
    pub fn new(device: &Device, words: usize) -> Result<Mailbox> {
        let backend = device.backend().clone();
        let address = backend.mailbox_alloc(words)?;
        Ok(Mailbox {
            backend,
            address,
            words,
        })
    }

    /// The address for kernels.
    pub fn ptr(&self) -> DevicePtr {
        DevicePtr::from_raw(self.address)
    }

    /// The words as they are now.
    pub fn read(&self) -> Result<Vec<u64>> {
        let mut words = vec![0; self.words];
        // SAFETY: all of the mailbox, which lives.
        unsafe { self.backend.mailbox_read(self.address, &mut words) }?;
        Ok(words)
    }

    /// Zeros again.
    pub fn clear(&self) -> Result<()> {
        // SAFETY: all of the mailbox, which lives.
        unsafe { self.backend.mailbox_clear(self.address, self.words) }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        // SAFETY: made by this backend, and owned. A failure has nowhere to go.
        let _ = unsafe { self.backend.mailbox_free(self.address) };
    }
}
