//! A machine of devices without a driver: it counts what is held, checks every call against it, and
//! fails where it is told to.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Descriptor, Device, DeviceReport, FabricHandle, HandleKind, PeerLink};
use crate::error::{Error, Result};

/// Sizes and addresses are multiples of this.
pub(crate) const GRANULARITY: usize = 64;

#[derive(Debug)]
struct Mapped {
    bytes: usize,
    memory: u64,
    /// The device that may use it.
    allowed: Option<usize>,
}

/// What the machine holds.
#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Physical memory, by number.
    memory: BTreeMap<u64, Vec<u8>>,
    /// Handle to memory.
    handles: BTreeMap<u64, u64>,
    reserved: BTreeMap<u64, usize>,
    mapped: BTreeMap<u64, Mapped>,
    fabric: HashMap<FabricHandle, u64>,
    calls: HashMap<usize, Vec<&'static str>>,
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Memory that nothing holds any more goes.
    fn collect(&mut self) {
        let (handles, mapped) = (&self.handles, &self.mapped);
        self.memory.retain(|memory, _| {
            handles.values().any(|held| held == memory)
                || mapped.values().any(|mapped| mapped.memory == *memory)
        });
    }
}

/// What a machine is like.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub fabric: bool,
    pub descriptors: bool,
    pub virtual_memory: bool,
    /// Pairs of devices without peer access.
    pub apart: Vec<(usize, usize)>,
    /// The device, and which of its calls fails.
    pub failing: Option<(usize, usize)>,
    /// Whether the driver refuses to make memory for fabric handles, as without an IMEX channel.
    pub no_imex: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            fabric: true,
            descriptors: true,
            virtual_memory: true,
            apart: Vec::new(),
            failing: None,
            no_imex: false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Machine {
    setup: Setup,
    devices: usize,
    state: Mutex<State>,
}

impl Machine {
    pub(crate) fn new(devices: usize, setup: Setup) -> Arc<Machine> {
        Arc::new(Machine {
            setup,
            devices,
            state: Mutex::default(),
        })
    }

    pub(crate) fn device(self: &Arc<Machine>, ordinal: usize) -> Arc<dyn Device> {
        Arc::new(Fake {
            machine: self.clone(),
            ordinal,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory, handles, reservations and mappings that are held.
    pub(crate) fn held(&self) -> [usize; 4] {
        let state = self.state();
        [
            state.memory.len(),
            state.handles.len(),
            state.reserved.len(),
            state.mapped.len(),
        ]
    }

    /// The calls of a device, in order.
    pub(crate) fn calls(&self, device: usize) -> Vec<&'static str> {
        self.state().calls.get(&device).cloned().unwrap_or_default()
    }

    /// What a kernel of a device would do: reads or writes at an address that it was given.
    pub(crate) fn access(&self, device: usize, address: u64, write: Option<&[u8]>, to: &mut [u8]) {
        let mut state = self.state();
        let (start, mapped) = state
            .mapped
            .range(..=address)
            .next_back()
            .expect("a mapping");
        assert_eq!(
            mapped.allowed,
            Some(device),
            "device {device} has no access"
        );
        let (memory, offset) = (mapped.memory, (address - start) as usize);
        assert!(offset + to.len() <= mapped.bytes, "past the end");
        let memory = state.memory.get_mut(&memory).expect("memory that is held");
        if let Some(write) = write {
            memory[offset..offset + write.len()].copy_from_slice(write);
        }
        to.copy_from_slice(&memory[offset..offset + to.len()]);
    }
}

#[derive(Debug)]
struct Fake {
    machine: Arc<Machine>,
    ordinal: usize,
}

pub(crate) fn uuid(ordinal: usize) -> String {
    format!("GPU-{ordinal}")
}

fn fail(call: &'static str, code: u32, name: &str) -> Error {
    Error::Driver {
        call,
        code,
        name: name.into(),
        values: String::new(),
    }
}

impl Fake {
    /// Counts a call, and fails it if it is the one that is to fail.
    fn call(&self, call: &'static str) -> Result<MutexGuard<'_, State>> {
        let mut state = self.machine.state();
        let calls = state.calls.entry(self.ordinal).or_default();
        calls.push(call);
        if self.machine.setup.failing == Some((self.ordinal, calls.len() - 1)) {
            return Err(fail(call, 999, "CUDA_ERROR_UNKNOWN"));
        }
        Ok(state)
    }

    fn imported(&self, mut state: MutexGuard<'_, State>, memory: Option<u64>) -> Result<u64> {
        // An exporter that gave up has taken its memory along.
        let memory = memory.filter(|memory| state.memory.contains_key(memory));
        let invalid = || {
            fail(
                "cuMemImportFromShareableHandle",
                1,
                "CUDA_ERROR_INVALID_VALUE",
            )
        };
        let memory = memory.ok_or_else(invalid)?;
        let handle = state.number();
        state.handles.insert(handle, memory);
        Ok(handle)
    }
}

// Giving back never fails here: what it would leave is no leak of this crate's.
impl Device for Fake {
    fn report(&self) -> Result<DeviceReport> {
        drop(self.call("report")?);
        let setup = &self.machine.setup;
        let apart = |peer| {
            setup.apart.contains(&(self.ordinal, peer))
                || setup.apart.contains(&(peer, self.ordinal))
        };
        let others = (0..self.machine.devices).filter(|&peer| peer != self.ordinal);
        Ok(DeviceReport {
            name: "fake".into(),
            uuid: uuid(self.ordinal),
            bus: format!("0000:{:02x}:00.0", self.ordinal),
            virtual_memory: setup.virtual_memory,
            descriptors: setup.descriptors,
            fabric: setup.fabric,
            links: others
                .map(|peer| PeerLink {
                    uuid: uuid(peer),
                    access: !apart(peer),
                    native_atomics: !apart(peer),
                    performance_rank: 0,
                })
                .collect(),
        })
    }

    fn granularity(&self, kind: HandleKind) -> Result<usize> {
        drop(self.call("cuMemGetAllocationGranularity")?);
        // The kinds differ, so that taking the wrong one shows.
        Ok(match kind {
            HandleKind::InProcess => GRANULARITY / 4,
            HandleKind::Descriptor => GRANULARITY / 2,
            HandleKind::Fabric => GRANULARITY,
        })
    }

    fn create(&self, bytes: usize, kind: HandleKind) -> Result<u64> {
        let mut state = self.call("cuMemCreate")?;
        if kind == HandleKind::Fabric && self.machine.setup.no_imex {
            return Err(fail("cuMemCreate", 800, "CUDA_ERROR_NOT_PERMITTED"));
        }
        let (memory, handle) = (state.number(), state.number());
        // Not zero: whoever needs zeros has to write them.
        state.memory.insert(memory, vec![0xaa; bytes]);
        state.handles.insert(handle, memory);
        Ok(handle)
    }

    unsafe fn release(&self, handle: u64) -> Result<()> {
        let mut state = self.machine.state();
        assert!(state.handles.remove(&handle).is_some(), "released twice");
        state.collect();
        Ok(())
    }

    #[cfg(unix)]
    unsafe fn export_descriptor(&self, handle: u64) -> Result<Descriptor> {
        use std::os::unix::fs::FileExt;
        let state = self.call("cuMemExportToShareableHandle")?;
        let memory = state.handles[&handle];
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&memory.to_le_bytes(), 0)
            .expect("written");
        Ok(file.into())
    }

    #[cfg(unix)]
    fn import_descriptor(&self, descriptor: &Descriptor) -> Result<u64> {
        use std::os::unix::fs::FileExt;
        let state = self.call("cuMemImportFromShareableHandle")?;
        let file = std::fs::File::from(descriptor.try_clone().expect("a copy"));
        let mut memory = [0; 8];
        file.read_exact_at(&mut memory, 0).expect("read");
        self.imported(state, Some(u64::from_le_bytes(memory)))
    }

    #[cfg(not(unix))]
    unsafe fn export_descriptor(&self, _: u64) -> Result<Descriptor> {
        Err(fail(
            "cuMemExportToShareableHandle",
            801,
            "CUDA_ERROR_NOT_SUPPORTED",
        ))
    }

    #[cfg(not(unix))]
    fn import_descriptor(&self, descriptor: &Descriptor) -> Result<u64> {
        match *descriptor {}
    }

    unsafe fn export_fabric(&self, handle: u64) -> Result<FabricHandle> {
        let mut state = self.call("cuMemExportToShareableHandle")?;
        let memory = state.handles[&handle];
        let mut fabric = [0x5a; 64];
        fabric[..8].copy_from_slice(&memory.to_le_bytes());
        state.fabric.insert(fabric, memory);
        Ok(fabric)
    }

    fn import_fabric(&self, handle: &FabricHandle) -> Result<u64> {
        let state = self.call("cuMemImportFromShareableHandle")?;
        let memory = state.fabric.get(handle).copied();
        self.imported(state, memory)
    }

    fn reserve(&self, bytes: usize, alignment: usize) -> Result<u64> {
        let mut state = self.call("cuMemAddressReserve")?;
        assert!(bytes.is_multiple_of(GRANULARITY) && alignment == GRANULARITY);
        let address = 0x10_0000 * state.number();
        state.reserved.insert(address, bytes);
        Ok(address)
    }

    unsafe fn unreserve(&self, address: u64, bytes: usize) -> Result<()> {
        let mut state = self.machine.state();
        assert!(!state.mapped.contains_key(&address), "still mapped");
        assert_eq!(state.reserved.remove(&address), Some(bytes));
        Ok(())
    }

    unsafe fn map(&self, address: u64, bytes: usize, handle: u64) -> Result<()> {
        let mut state = self.call("cuMemMap")?;
        let memory = *state.handles.get(&handle).expect("a handle that is alive");
        assert_eq!(state.reserved.get(&address), Some(&bytes));
        assert_eq!(state.memory[&memory].len(), bytes);
        let mapped = Mapped {
            bytes,
            memory,
            allowed: None,
        };
        assert!(state.mapped.insert(address, mapped).is_none());
        Ok(())
    }

    unsafe fn unmap(&self, address: u64, bytes: usize) -> Result<()> {
        let mut state = self.machine.state();
        let mapped = state.mapped.remove(&address).expect("mapped");
        assert_eq!(mapped.bytes, bytes);
        state.collect();
        Ok(())
    }

    unsafe fn allow(&self, address: u64, _: usize) -> Result<()> {
        let mut state = self.call("cuMemSetAccess")?;
        let mapped = state.mapped.get_mut(&address).expect("mapped");
        mapped.allowed = Some(self.ordinal);
        Ok(())
    }

    unsafe fn zero(&self, address: u64, bytes: usize) -> Result<()> {
        drop(self.call("cuMemsetD8Async")?);
        self.machine.access(
            self.ordinal,
            address,
            Some(&vec![0; bytes]),
            &mut vec![0; bytes],
        );
        Ok(())
    }
}
