//! What the driver says of the GPUs, without needing a driver.

use cudarc::driver::result::device;
use cudarc::driver::{result, sys};
use serde::Serialize;
use sys::CUdevice_attribute as Attribute;

/// A CUDA driver and its devices.
#[derive(Debug, Serialize)]
pub struct Driver {
    /// The newest CUDA it supports, such as `13.0`.
    pub cuda: String,
    /// Its devices, in order.
    pub gpus: Vec<Gpu>,
    /// `peers[a][b]`: whether a can read b's memory.
    pub peers: Vec<Vec<bool>>,
}

/// One device.
#[derive(Debug, Serialize)]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Memory in bytes.
    pub memory: u64,
    /// Multiprocessors.
    pub sms: u32,
}

/// What there is; the error says in words why there is none.
pub fn driver() -> Result<Driver, String> {
    // SAFETY: only tries to open the library; every later call is guarded by it.
    if !unsafe { sys::is_culib_present() } {
        return Err("no CUDA driver (libcuda) on this machine".to_owned());
    }
    let failed = |error: result::DriverError| format!("the CUDA driver answers {error:?}");
    result::init().map_err(failed)?;
    let mut version = 0;
    // SAFETY: writes one int to a live local.
    unsafe { sys::cuDriverGetVersion(&mut version) }
        .result()
        .map_err(failed)?;
    let count = device::get_count().map_err(failed)?;
    let mut handles = Vec::new();
    let mut gpus = Vec::new();
    for ordinal in 0..count {
        let handle = device::get(ordinal).map_err(failed)?;
        gpus.push(gpu(handle).map_err(failed)?);
        handles.push(handle);
    }
    let peers = handles
        .iter()
        .map(|&from| {
            handles
                .iter()
                .map(|&to| from == to || can_access(from, to))
                .collect()
        })
        .collect();
    let cuda = format!("{}.{}", version / 1000, version % 1000 / 10);
    Ok(Driver { cuda, gpus, peers })
}

fn gpu(handle: sys::CUdevice) -> Result<Gpu, result::DriverError> {
    let attribute = |attribute| {
        // SAFETY: the handle came from `device::get`.
        unsafe { device::get_attribute(handle, attribute) }.map(|value| value.max(0) as u32)
    };
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(Gpu {
        name: device::get_name(handle)?,
        capability: (major, minor),
        // SAFETY: as above.
        memory: unsafe { device::total_mem(handle) }? as u64,
        sms: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
    })
}

fn can_access(from: sys::CUdevice, to: sys::CUdevice) -> bool {
    let mut answer = 0;
    // SAFETY: both handles came from `device::get`; writes one int to a live local.
    let status = unsafe { sys::cuDeviceCanAccessPeer(&mut answer, from, to) };
    status.result().is_ok() && answer != 0
}

/// NCCL's version, such as `2.27.3`.
pub fn nccl() -> Option<String> {
    // SAFETY: only tries to open the library; the call below is guarded by it.
    if !unsafe { cudarc::nccl::sys::is_culib_present() } {
        return None;
    }
    let version = cudarc::nccl::result::get_nccl_version().ok()?;
    Some(format!(
        "{}.{}.{}",
        version / 10000,
        version % 10000 / 100,
        version % 100
    ))
}
