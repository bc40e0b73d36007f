//! Finding a device, and what is fixed about it.

use std::ffi::{CStr, c_int};
use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, DriverError};

use super::{Cuda, Driver};
use crate::backend::{DeviceInfo, DeviceLimits};
use crate::error::{Error, Result};

/// How many devices the driver shows.
pub(crate) fn device_count() -> Result<usize> {
    let driver = Driver::get()?;
    let mut count = 0;
    // SAFETY: the driver writes one int.
    let code = unsafe { (driver.device_count)(&mut count) };
    driver.check(code, "cuDeviceGetCount")?;
    Ok(usize::try_from(count).unwrap_or(0))
}

impl Cuda {
    /// Retains the primary context of a device.
    pub(crate) fn open(ordinal: usize) -> Result<Cuda> {
        let driver = Driver::get()?;
        let count = device_count()?;
        if ordinal >= count {
            return Err(Error::NoSuchDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).map_err(|DriverError(code)| {
            // The table makes the error, so that it names the number as every other error does.
            driver
                .check_with(code as u32, "cuDevicePrimaryCtxRetain", || {
                    format!("device {ordinal}")
                })
                .err()
                .unwrap_or(Error::NoSuchDevice { ordinal, count })
        })?;
        Cuda::share(context)
    }

    /// Shares a context that cudarc holds.
    pub(crate) fn share(context: Arc<CudaContext>) -> Result<Cuda> {
        let driver = Driver::get()?;
        let device = context.cu_device();
        let mut name = [0u8; 256];
        // SAFETY: the driver writes at most the given length, with a NUL.
        let code =
            unsafe { (driver.device_name)(name.as_mut_ptr().cast(), name.len() as c_int, device) };
        driver.check(code, "cuDeviceGetName")?;
        let name = CStr::from_bytes_until_nul(&name)
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let attribute = |attribute: Attribute| -> Result<u32> {
            let mut value = 0;
            // SAFETY: the driver writes one int.
            let code = unsafe { (driver.device_attribute)(&mut value, attribute as c_int, device) };
            driver.check_with(code, "cuDeviceGetAttribute", || format!("{attribute:?}"))?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        let capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let limits = DeviceLimits {
            sm_count: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            max_threads: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            max_block: [
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
            ],
            max_shared: attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            )?,
            max_grid: [
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
            ],
            clusters: capability.0 >= 9,
        };
        let mut version = 0;
        // SAFETY: the driver writes one int.
        let code = unsafe { (driver.driver_version)(&mut version) };
        driver.check(code, "cuDriverGetVersion")?;
        let info = DeviceInfo {
            name,
            ordinal: context.ordinal(),
            capability,
            limits,
            driver_version: u32::try_from(version).unwrap_or(0),
        };
        Ok(Cuda {
            driver,
            context,
            info,
        })
    }
}
