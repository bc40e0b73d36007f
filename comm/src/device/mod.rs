//! What sharing memory asks of a device: the seam between this crate's logic and the driver.

pub(crate) mod cuda;
mod driver;
#[cfg(test)]
pub(crate) mod fake;

use std::fmt::{self, Debug};

use serde::{Deserialize, Serialize};

use crate::error::Result;

/// A file descriptor of the system, where sharing by descriptors exists.
#[cfg(unix)]
pub(crate) type Descriptor = std::os::fd::OwnedFd;
/// There are none here.
#[cfg(not(unix))]
pub(crate) type Descriptor = std::convert::Infallible;

/// A fabric handle, as the driver writes it.
pub(crate) type FabricHandle = [u8; 64];

/// How ranks hand each other their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum HandleKind {
    /// The driver's own handles: ranks are threads of one process.
    InProcess,
    /// Fabric handles: also across the hosts of one NVLink domain. Needs an IMEX channel.
    Fabric,
    /// POSIX file descriptors over a local socket: processes of one host.
    Descriptor,
}

impl fmt::Display for HandleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HandleKind::InProcess => "handles of one process",
            HandleKind::Fabric => "fabric handles",
            HandleKind::Descriptor => "file descriptors",
        })
    }
}

/// What a rank's process knows of the way from its device to another that it sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PeerLink {
    /// The other device.
    pub uuid: String,
    /// Whether its memory can be mapped here.
    pub access: bool,
    /// Whether atomics work over the link as on the own memory: NVLink has them, PCIe has not.
    pub native_atomics: bool,
    /// The driver's rank of the link; 0 is the fastest of this machine.
    pub performance_rank: i32,
}

/// A device as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// What tells it from every other, as `nvidia-smi -L` prints it.
    pub uuid: String,
    /// Its PCI address.
    pub bus: String,
    /// Whether its memory can be shared by the virtual memory calls at all.
    pub virtual_memory: bool,
    /// Whether by file descriptors.
    pub descriptors: bool,
    /// Whether by fabric handles; without an IMEX channel the driver still refuses to make one.
    pub fabric: bool,
    /// The other devices that its process sees.
    pub links: Vec<PeerLink>,
}

/// One device and its driver. Every call makes the device's context current for its own time only.
///
/// The unsafe methods share one contract: handles are alive and of this driver, ranges were
/// reserved (and where it matters mapped) by this driver and are no longer used by the device when
/// they are taken away.
pub(crate) trait Device: Send + Sync + Debug {
    fn report(&self) -> Result<DeviceReport>;
    /// What sizes and addresses must be multiples of.
    fn granularity(&self, kind: HandleKind) -> Result<usize>;
    /// Physical memory that can be handed on in this way.
    fn create(&self, bytes: usize, kind: HandleKind) -> Result<u64>;
    unsafe fn release(&self, handle: u64) -> Result<()>;
    unsafe fn export_descriptor(&self, handle: u64) -> Result<Descriptor>;
    fn import_descriptor(&self, descriptor: &Descriptor) -> Result<u64>;
    unsafe fn export_fabric(&self, handle: u64) -> Result<FabricHandle>;
    fn import_fabric(&self, handle: &FabricHandle) -> Result<u64>;
    /// A range of addresses with nothing behind it.
    fn reserve(&self, bytes: usize, alignment: usize) -> Result<u64>;
    unsafe fn unreserve(&self, address: u64, bytes: usize) -> Result<()>;
    unsafe fn map(&self, address: u64, bytes: usize, handle: u64) -> Result<()>;
    unsafe fn unmap(&self, address: u64, bytes: usize) -> Result<()>;
    /// Lets this device read and write a mapped range.
    unsafe fn allow(&self, address: u64, bytes: usize) -> Result<()>;
    /// Fills a range with zeros, and waits for that alone.
    unsafe fn zero(&self, address: u64, bytes: usize) -> Result<()>;
}
