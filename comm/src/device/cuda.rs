//! A CUDA device by the driver API.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{
    self, CUdevice_P2PAttribute as PeerAttribute, CUdevice_attribute as Attribute, CUmemAccessDesc,
    CUmemAllocationHandleType as HandleType, CUmemAllocationProp, CUmemLocation,
};

use super::driver::{Driver, SUCCESS};
use super::{Descriptor, Device, DeviceReport, FabricHandle, HandleKind, PeerLink};
use crate::error::Result;

/// A device of this process.
pub(crate) struct Cuda {
    driver: &'static Driver,
    context: Arc<CudaContext>,
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cuda({})", self.context.ordinal())
    }
}

fn none() -> String {
    String::new()
}

fn handle_type(kind: HandleKind) -> HandleType {
    match kind {
        HandleKind::InProcess => HandleType::CU_MEM_HANDLE_TYPE_NONE,
        HandleKind::Descriptor => HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        HandleKind::Fabric => HandleType::CU_MEM_HANDLE_TYPE_FABRIC,
    }
}

/// Text that the driver wrote into a buffer.
fn text(bytes: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(bytes).unwrap_or_default();
    text.to_string_lossy().into_owned()
}

/// A UUID as nvidia-smi prints it.
fn uuid_text(uuid: &sys::CUuuid) -> String {
    let mut text = String::from("GPU-");
    for (at, byte) in uuid.bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{:02x}", *byte as u8));
    }
    text
}

impl Cuda {
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Cuda> {
        Ok(Cuda {
            driver: Driver::get()?,
            context: context.clone(),
        })
    }

    fn id(&self) -> c_int {
        self.context.cu_device()
    }

    /// Runs calls with the context current, and leaves the thread's own current again.
    fn within<T>(&self, calls: impl FnOnce(&Driver) -> Result<T>) -> Result<T> {
        let driver = self.driver;
        // SAFETY: the context is alive as long as `self.context`.
        let code = unsafe { (driver.push)(self.context.cu_ctx().cast()) };
        driver.check(code, "cuCtxPushCurrent", none)?;
        let result = calls(driver);
        let mut popped = ptr::null_mut();
        // SAFETY: the driver writes one pointer; what is popped was pushed above.
        let code = unsafe { (driver.pop)(&mut popped) };
        result.and_then(|value| {
            driver.check(code, "cuCtxPopCurrent", none)?;
            Ok(value)
        })
    }

    fn prop(&self, kind: HandleKind) -> CUmemAllocationProp {
        // SAFETY: a plain C struct of integers and a pointer, for which zero is "nothing special".
        let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
        prop.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.requestedHandleTypes = handle_type(kind);
        prop.location = self.location();
        prop
    }

    fn location(&self) -> CUmemLocation {
        CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: self.id(),
        }
    }

    /// An attribute as a switch; one that the driver does not know is off.
    fn has(&self, attribute: Attribute) -> bool {
        let mut value = 0;
        // SAFETY: the driver writes one int.
        let code =
            unsafe { (self.driver.device_attribute)(&mut value, attribute as c_int, self.id()) };
        code == SUCCESS && value != 0
    }

    fn uuid(&self, device: c_int) -> Result<String> {
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: the driver writes one UUID.
        let code = unsafe { (self.driver.device_uuid)(&mut uuid, device) };
        self.driver.check(code, "cuDeviceGetUuid", none)?;
        Ok(uuid_text(&uuid))
    }

    fn peer_attribute(&self, peer: c_int, attribute: PeerAttribute) -> i32 {
        let mut value = 0;
        // SAFETY: the driver writes one int.
        let code = unsafe {
            (self.driver.peer_attribute)(&mut value, attribute as c_int, self.id(), peer)
        };
        if code == SUCCESS { value } else { 0 }
    }

    fn links(&self) -> Result<Vec<PeerLink>> {
        let driver = self.driver;
        let mut count = 0;
        // SAFETY: the driver writes one int.
        let code = unsafe { (driver.device_count)(&mut count) };
        driver.check(code, "cuDeviceGetCount", none)?;
        let mut links = Vec::new();
        for ordinal in 0..count {
            let mut peer = 0;
            // SAFETY: the driver writes one int.
            let code = unsafe { (driver.device_get)(&mut peer, ordinal) };
            driver.check(code, "cuDeviceGet", || format!("device {ordinal}"))?;
            if peer == self.id() {
                continue;
            }
            let mut access = 0;
            // SAFETY: the driver writes one int.
            let code = unsafe { (driver.can_access)(&mut access, self.id(), peer) };
            let values = || format!("device {} to {ordinal}", self.context.ordinal());
            driver.check(code, "cuDeviceCanAccessPeer", values)?;
            links.push(PeerLink {
                uuid: self.uuid(peer)?,
                access: access != 0,
                native_atomics: self.peer_attribute(
                    peer,
                    PeerAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                ) != 0,
                performance_rank: self.peer_attribute(
                    peer,
                    PeerAttribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK,
                ),
            });
        }
        Ok(links)
    }

    /// # Safety
    /// `handle` is alive, and `to` is where the driver writes a shareable handle of this kind.
    unsafe fn export(&self, handle: u64, kind: HandleKind, to: *mut c_void) -> Result<()> {
        self.within(|driver| {
            let wanted = handle_type(kind).0 as c_uint;
            // SAFETY: by contract.
            let code = unsafe { (driver.export)(to, handle, wanted, 0) };
            driver.check(code, "cuMemExportToShareableHandle", || kind.to_string())
        })
    }

    /// # Safety
    /// `from` is what the driver takes as a shareable handle of this kind.
    unsafe fn import(&self, kind: HandleKind, from: *mut c_void) -> Result<u64> {
        self.within(|driver| {
            let mut handle = 0;
            let given = handle_type(kind).0 as c_uint;
            // SAFETY: by contract; the driver writes one handle.
            let code = unsafe { (driver.import)(&mut handle, from, given) };
            driver.check(code, "cuMemImportFromShareableHandle", || kind.to_string())?;
            Ok(handle)
        })
    }
}

impl Device for Cuda {
    fn report(&self) -> Result<DeviceReport> {
        self.within(|driver| {
            let (mut name, mut bus) = ([0u8; 256], [0u8; 64]);
            let to = name.as_mut_ptr().cast::<c_char>();
            // SAFETY: the driver writes at most the given length, with a NUL.
            let code = unsafe { (driver.device_name)(to, name.len() as c_int, self.id()) };
            driver.check(code, "cuDeviceGetName", none)?;
            let to = bus.as_mut_ptr().cast::<c_char>();
            // SAFETY: as above.
            let code = unsafe { (driver.device_bus)(to, bus.len() as c_int, self.id()) };
            driver.check(code, "cuDeviceGetPCIBusId", none)?;
            Ok(DeviceReport {
                name: text(&name),
                uuid: self.uuid(self.id())?,
                bus: text(&bus),
                virtual_memory: self
                    .has(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED),
                descriptors: cfg!(target_os = "linux")
                    && self.has(
                        Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                    ),
                fabric: self.has(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED),
                links: self.links()?,
            })
        })
    }

    fn granularity(&self, kind: HandleKind) -> Result<usize> {
        let prop = self.prop(kind);
        let mut bytes = 0;
        let recommended =
            sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED as c_int;
        // SAFETY: the driver reads one struct and writes one size.
        let code = unsafe { (self.driver.granularity)(&mut bytes, &prop, recommended) };
        let call = "cuMemGetAllocationGranularity";
        self.driver.check(code, call, || kind.to_string())?;
        Ok(bytes)
    }

    fn create(&self, bytes: usize, kind: HandleKind) -> Result<u64> {
        self.within(|driver| {
            let prop = self.prop(kind);
            let mut handle = 0;
            // SAFETY: the driver reads one struct and writes one handle.
            let code = unsafe { (driver.create)(&mut handle, bytes, &prop, 0) };
            driver.check(code, "cuMemCreate", || format!("{bytes} bytes, {kind}"))?;
            Ok(handle)
        })
    }

    unsafe fn release(&self, handle: u64) -> Result<()> {
        self.within(|driver| {
            // SAFETY: by the trait's contract.
            let code = unsafe { (driver.release)(handle) };
            driver.check(code, "cuMemRelease", none)
        })
    }

    #[cfg(unix)]
    unsafe fn export_descriptor(&self, handle: u64) -> Result<Descriptor> {
        use std::os::fd::{FromRawFd, OwnedFd};
        let mut descriptor: c_int = -1;
        let to = ptr::from_mut(&mut descriptor).cast();
        // SAFETY: the handle by the trait's contract; for this kind the driver writes one int.
        unsafe { self.export(handle, HandleKind::Descriptor, to)? };
        // SAFETY: the driver opened it for the caller, who owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    #[cfg(not(unix))]
    unsafe fn export_descriptor(&self, _: u64) -> Result<Descriptor> {
        Err(crate::error::Error::NoSharing {
            why: "this system has no file descriptors".into(),
        })
    }

    #[cfg(unix)]
    fn import_descriptor(&self, descriptor: &Descriptor) -> Result<u64> {
        use std::os::fd::AsRawFd;
        // The driver takes the number itself as the pointer.
        let from = ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
        // SAFETY: an open descriptor; the driver refuses one that isn't memory.
        unsafe { self.import(HandleKind::Descriptor, from) }
    }

    #[cfg(not(unix))]
    fn import_descriptor(&self, descriptor: &Descriptor) -> Result<u64> {
        match *descriptor {}
    }

    unsafe fn export_fabric(&self, handle: u64) -> Result<FabricHandle> {
        let mut bytes: FabricHandle = [0; 64];
        // SAFETY: the handle by the trait's contract; for this kind the driver writes 64 bytes.
        unsafe { self.export(handle, HandleKind::Fabric, bytes.as_mut_ptr().cast())? };
        Ok(bytes)
    }

    fn import_fabric(&self, handle: &FabricHandle) -> Result<u64> {
        let mut bytes = *handle;
        // SAFETY: for this kind the driver reads 64 bytes, and refuses what isn't a handle.
        unsafe { self.import(HandleKind::Fabric, bytes.as_mut_ptr().cast()) }
    }

    fn reserve(&self, bytes: usize, alignment: usize) -> Result<u64> {
        self.within(|driver| {
            let mut address = 0;
            // SAFETY: the driver writes one address.
            let code = unsafe { (driver.reserve)(&mut address, bytes, alignment, 0, 0) };
            driver.check(code, "cuMemAddressReserve", || format!("{bytes} bytes"))?;
            Ok(address)
        })
    }

    unsafe fn unreserve(&self, address: u64, bytes: usize) -> Result<()> {
        self.within(|driver| {
            // SAFETY: by the trait's contract.
            let code = unsafe { (driver.unreserve)(address, bytes) };
            driver.check(code, "cuMemAddressFree", || format!("{address:#x}"))
        })
    }

    unsafe fn map(&self, address: u64, bytes: usize, handle: u64) -> Result<()> {
        self.within(|driver| {
            // SAFETY: by the trait's contract.
            let code = unsafe { (driver.map)(address, bytes, 0, handle, 0) };
            driver.check(code, "cuMemMap", || {
                format!("{bytes} bytes at {address:#x}")
            })
        })
    }

    unsafe fn unmap(&self, address: u64, bytes: usize) -> Result<()> {
        self.within(|driver| {
            // SAFETY: by the trait's contract.
            let code = unsafe { (driver.unmap)(address, bytes) };
            driver.check(code, "cuMemUnmap", || format!("{address:#x}"))
        })
    }

    unsafe fn allow(&self, address: u64, bytes: usize) -> Result<()> {
        self.within(|driver| {
            let access = CUmemAccessDesc {
                location: self.location(),
                flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
            // SAFETY: the range by the trait's contract; the driver reads one struct.
            let code = unsafe { (driver.set_access)(address, bytes, &access, 1) };
            let values = || {
                let device = self.context.ordinal();
                format!("{bytes} bytes at {address:#x} for device {device}")
            };
            driver.check(code, "cuMemSetAccess", values)
        })
    }

    unsafe fn zero(&self, address: u64, bytes: usize) -> Result<()> {
        self.within(|driver| {
            // A stream of its own: other work of the context may wait for what comes after this.
            const NON_BLOCKING: c_uint = 1;
            let mut stream = ptr::null_mut();
            // SAFETY: the driver writes one handle.
            let code = unsafe { (driver.stream_create)(&mut stream, NON_BLOCKING) };
            driver.check(code, "cuStreamCreate", none)?;
            let values = || format!("{bytes} bytes at {address:#x}");
            // SAFETY: the range by the trait's contract; the stream was made above.
            let code = unsafe { (driver.memset)(address, 0, bytes, stream) };
            let filled = driver.check(code, "cuMemsetD8Async", values);
            // SAFETY: as above.
            let code = unsafe { (driver.stream_synchronize)(stream) };
            let waited = driver.check(code, "cuStreamSynchronize", none);
            // SAFETY: as above; nothing uses it any more.
            let code = unsafe { (driver.stream_destroy)(stream) };
            filled.and(waited)?;
            driver.check(code, "cuStreamDestroy", none)
        })
    }
}
