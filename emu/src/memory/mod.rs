//! Device memory of all GPUs, in one address space, as peers see it.
//!
//! Regions never touch each other, so an access past an end is found. Addresses below
//! [`FIRST`] are never given out, nor are those of the windows.

use std::collections::BTreeMap;

use crate::check::Written;

/// The lowest address of device memory.
pub const FIRST: u64 = 0x1000_0000;
/// Room between regions.
const GAP: u64 = 1 << 16;
/// Alignment of every region.
const ALIGN: u64 = 512;

/// The generic window of shared memory; its low 32 bits are a `.shared::cluster` address.
pub const SHARED_WINDOW: u64 = 0x7f01_0000_0000_0000;
/// The generic window of local memory.
pub const LOCAL_WINDOW: u64 = 0x7f02_0000_0000_0000;
/// The generic window of kernel parameters.
pub const PARAM_WINDOW: u64 = 0x7f03_0000_0000_0000;

/// Which window a generic address lies in, or 0 for device memory.
pub fn window(address: u64) -> u64 {
    match address & 0xffff_0000_0000_0000 {
        window @ (SHARED_WINDOW | LOCAL_WINDOW | PARAM_WINDOW) => window,
        _ => 0,
    }
}

/// One allocation.
#[derive(Debug)]
struct Region {
    data: Vec<u8>,
    gpu: usize,
    read_only: bool,
    /// Whether kernels of other GPUs may not touch it.
    private: bool,
    /// Which bytes were ever written, if somebody asks.
    written: Option<Written>,
}

/// An access that no allocation covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The address.
    pub address: u64,
    /// Bytes of the access.
    pub bytes: u64,
    /// What is there.
    pub reason: String,
}

/// Device memory of all GPUs.
#[derive(Debug, Default)]
pub struct Memory {
    regions: BTreeMap<u64, Region>,
    next: u64,
    /// Whether it is noted which bytes were written.
    notes_writes: bool,
    /// The GPU whose threads run now; nobody's for the host and for copies under way.
    pub(crate) viewer: Option<usize>,
}

impl Memory {
    /// Empty memory that may note which bytes were written.
    pub(crate) fn noting(writes: bool) -> Memory {
        Memory {
            notes_writes: writes,
            ..Memory::default()
        }
    }

    /// Reserves `bytes` bytes, zeroed, on a GPU; the address is 512-byte aligned.
    pub fn alloc(&mut self, gpu: usize, bytes: u64) -> Result<u64, Fault> {
        let address = self.next.max(FIRST);
        let fault = |reason: &str| Fault {
            address,
            bytes,
            reason: reason.into(),
        };
        let end = address
            .checked_add(bytes.max(1))
            .and_then(|end| end.checked_add(GAP))
            .and_then(|end| end.checked_next_multiple_of(ALIGN))
            .filter(|&end| end < SHARED_WINDOW)
            .ok_or_else(|| fault("more than the address space holds"))?;
        let len =
            usize::try_from(bytes).map_err(|_| fault("more than this machine can address"))?;
        // Asked for twice: `try_reserve` can refuse, `vec!` leaves pages untouched until used.
        Vec::<u8>::new()
            .try_reserve_exact(len)
            .map_err(|_| fault("more than this machine has memory for"))?;
        let data = vec![0; len];
        self.regions.insert(
            address,
            Region {
                data,
                gpu,
                read_only: false,
                private: false,
                written: self.notes_writes.then(|| Written::new(len)),
            },
        );
        self.next = end;
        Ok(address)
    }

    /// Gives an allocation back.
    pub fn free(&mut self, address: u64) -> Result<(), Fault> {
        match self.regions.remove(&address) {
            Some(_) => Ok(()),
            None => Err(Fault {
                address,
                bytes: 0,
                reason: "no allocation starts here".into(),
            }),
        }
    }

    /// Makes an allocation constant for kernels.
    pub fn protect(&mut self, address: u64) {
        if let Some(region) = self.regions.get_mut(&address) {
            region.read_only = true;
        }
    }

    /// Keeps an allocation from the kernels of other GPUs, as memory that is not mapped for peers.
    pub fn make_private(&mut self, address: u64) {
        if let Some(region) = self.regions.get_mut(&address) {
            region.private = true;
        }
    }

    /// Whether an address lies in constant memory.
    pub(crate) fn is_constant(&self, address: u64) -> bool {
        self.region(address)
            .is_some_and(|(_, region)| region.read_only)
    }

    /// Bytes allocated on a GPU.
    pub fn used(&self, gpu: usize) -> u64 {
        self.regions
            .values()
            .filter(|region| region.gpu == gpu)
            .map(|region| region.data.len() as u64)
            .sum()
    }

    /// The GPU whose memory an address is in.
    pub fn gpu_of(&self, address: u64) -> Option<usize> {
        self.region(address).map(|(_, region)| region.gpu)
    }

    fn region(&self, address: u64) -> Option<(u64, &Region)> {
        let (&base, region) = self.regions.range(..=address).next_back()?;
        let seen = !region.private || self.viewer.is_none_or(|gpu| gpu == region.gpu);
        (seen && address - base < region.data.len() as u64).then_some((base, region))
    }

    fn fault(&self, address: u64, bytes: u64) -> Fault {
        let reason = match self.regions.range(..=address).next_back() {
            Some((base, region)) if address - base < region.data.len() as u64 && region.private => {
                format!("memory of GPU {} that is not mapped for peers", region.gpu)
            }
            Some((base, region)) if address - base < region.data.len() as u64 + GAP => {
                let past = address - base;
                format!(
                    "byte {past} of an allocation of {} bytes",
                    region.data.len()
                )
            }
            _ if window(address) != 0 => "an address of shared, local or parameter memory".into(),
            _ => "no allocation".into(),
        };
        Fault {
            address,
            bytes,
            reason,
        }
    }

    /// Bytes at an address.
    pub fn read(&self, address: u64, bytes: u64) -> Result<&[u8], Fault> {
        self.region(address)
            .and_then(|(base, region)| {
                let start = (address - base) as usize;
                region
                    .data
                    .get(start..start.checked_add(usize::try_from(bytes).ok()?)?)
            })
            .ok_or_else(|| self.fault(address, bytes))
    }

    /// Bytes at an address, to write them.
    pub fn write(&mut self, address: u64, bytes: u64) -> Result<&mut [u8], Fault> {
        let Some((base, region)) = self.region(address) else {
            return Err(self.fault(address, bytes));
        };
        if region.read_only {
            return Err(Fault {
                address,
                bytes,
                reason: "constant memory".into(),
            });
        }
        let start = (address - base) as usize;
        match usize::try_from(bytes)
            .ok()
            .and_then(|bytes| start.checked_add(bytes))
        {
            Some(end) if end <= region.data.len() => {
                let region = self
                    .regions
                    .get_mut(&base)
                    .expect("the region was just found");
                if let Some(written) = &mut region.written {
                    written.mark(start, end - start, true);
                }
                Ok(&mut region.data[start..end])
            }
            _ => Err(self.fault(address, bytes)),
        }
    }

    /// Bytes at an address, for the host, constant or not.
    pub fn host_write(&mut self, address: u64, values: &[u8]) -> Result<(), Fault> {
        let bytes = values.len() as u64;
        self.read(address, bytes)?;
        let (&base, region) = self
            .regions
            .range_mut(..=address)
            .next_back()
            .expect("the region was just read");
        let start = (address - base) as usize;
        region.data[start..][..values.len()].copy_from_slice(values);
        if let Some(written) = &mut region.written {
            written.mark(start, values.len(), true);
        }
        Ok(())
    }

    /// Copies bytes for the host, and with them whether they were ever written.
    pub fn host_copy(&mut self, to: u64, from: u64, bytes: u64) -> Result<(), Fault> {
        let values = self.read(from, bytes)?.to_vec();
        let unwritten: Vec<u64> = match self.all_written(from, bytes) {
            true => Vec::new(),
            false => (0..bytes)
                .filter(|byte| !self.all_written(from + byte, 1))
                .collect(),
        };
        self.host_write(to, &values)?;
        for byte in unwritten {
            self.mark_written(to + byte, 1, false);
        }
        Ok(())
    }

    /// Sets every byte, for the host.
    pub fn host_fill(&mut self, to: u64, byte: u8, bytes: u64) -> Result<(), Fault> {
        self.read(to, bytes)?;
        self.host_write(to, &vec![byte; bytes as usize])
    }

    /// Whether all of these bytes were ever written, as far as that is noted.
    pub(crate) fn all_written(&self, address: u64, bytes: u64) -> bool {
        self.region(address).is_none_or(|(base, region)| {
            let all = |written: &Written| written.all((address - base) as usize, bytes as usize);
            region.written.as_ref().is_none_or(all)
        })
    }

    /// Notes that bytes were written, or that they hold what nobody wrote.
    pub(crate) fn mark_written(&mut self, address: u64, bytes: u64, is: bool) {
        if let Some((&base, region)) = self.regions.range_mut(..=address).next_back()
            && let Some(written) = &mut region.written
        {
            written.mark((address - base) as usize, bytes as usize, is);
        }
    }
}

/// The little-endian value of up to eight bytes.
pub fn value_of(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    for (to, from) in all.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_le_bytes(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_past_an_end_are_found() {
        let mut memory = Memory::default();
        let a = memory.alloc(0, 100).unwrap();
        let b = memory.alloc(1, 10).unwrap();
        assert!(memory.write(a, 100).is_ok() && memory.read(a + 99, 1).is_ok());
        assert_eq!(
            memory.read(a + 96, 8).unwrap_err().reason,
            "byte 96 of an allocation of 100 bytes"
        );
        assert!(memory.read(a + 100, 1).is_err() && memory.write(b + 10, 1).is_err());
        assert!(memory.read(0, 1).is_err() && memory.read(u64::MAX, 8).is_err());
        assert_eq!(
            (memory.gpu_of(a), memory.gpu_of(b), memory.gpu_of(7)),
            (Some(0), Some(1), None)
        );
        memory.free(a).unwrap();
        assert!(memory.read(a, 1).is_err() && memory.free(a).is_err());
        assert!(memory.alloc(0, u64::MAX).is_err());
    }

    #[test]
    fn private_memory_is_for_its_own_gpu() {
        let mut memory = Memory::default();
        let (a, b) = (memory.alloc(0, 64).unwrap(), memory.alloc(0, 64).unwrap());
        memory.make_private(a);
        for (viewer, sees) in [(None, true), (Some(0), true), (Some(1), false)] {
            memory.viewer = viewer;
            assert_eq!(memory.read(a, 8).is_ok(), sees, "{viewer:?}");
            assert_eq!(memory.write(a, 8).is_ok(), sees, "{viewer:?}");
            assert!(memory.read(b, 8).is_ok());
        }
        let reason = memory.read(a, 8).unwrap_err().reason;
        assert_eq!(reason, "memory of GPU 0 that is not mapped for peers");
        let reason = memory.read(a + 64, 8).unwrap_err().reason;
        assert_eq!(reason, "byte 64 of an allocation of 64 bytes");
    }

    #[test]
    fn constants_are_written_by_the_host_only() {
        let mut memory = Memory::default();
        let a = memory.alloc(0, 8).unwrap();
        memory.protect(a);
        assert!(memory.write(a, 4).is_err());
        memory.host_write(a, &[1, 2]).unwrap();
        assert_eq!(memory.read(a, 2).unwrap(), [1, 2]);
    }
}
