//! The driver's functions, looked up once by name, with plain numbers as results: a newer driver's
//! error number would not fit cudarc's enum, and a missing symbol would panic in its wrappers.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUmemAccessDesc, CUmemAllocationProp, CUuuid};

use crate::error::{Error, Result};

pub(super) const SUCCESS: u32 = 0;

type Ptr = *mut c_void;

macro_rules! driver {
    ($($name:ident ( $($arg:ty),* ) as $symbol:literal;)*) => {
        /// The table of driver functions.
        pub(super) struct Driver {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> u32,)*
        }

        impl Driver {
            fn load() -> Result<Driver> {
                // SAFETY: opening the driver library runs its initialisers, which it is made for.
                if !unsafe { sys::is_culib_present() } {
                    return Err(Error::NoDriver);
                }
                // SAFETY: as above; it is present, so this does not panic.
                let library = unsafe { sys::culib() };
                Ok(Driver {
                    $($name: {
                        // SAFETY: the type is the function's declaration in cuda.h.
                        *unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> u32>($symbol.as_bytes()) }
                            .map_err(|_| Error::DriverTooOld { symbol: $symbol })?
                    },)*
                })
            }
        }
    };
}

driver! {
    error_name(u32, *mut *const c_char) as "cuGetErrorName";
    push(Ptr) as "cuCtxPushCurrent_v2";
    pop(*mut Ptr) as "cuCtxPopCurrent_v2";
    device_count(*mut c_int) as "cuDeviceGetCount";
    device_get(*mut c_int, c_int) as "cuDeviceGet";
    device_name(*mut c_char, c_int, c_int) as "cuDeviceGetName";
    device_uuid(*mut CUuuid, c_int) as "cuDeviceGetUuid_v2";
    device_bus(*mut c_char, c_int, c_int) as "cuDeviceGetPCIBusId";
    device_attribute(*mut c_int, c_int, c_int) as "cuDeviceGetAttribute";
    can_access(*mut c_int, c_int, c_int) as "cuDeviceCanAccessPeer";
    peer_attribute(*mut c_int, c_int, c_int, c_int) as "cuDeviceGetP2PAttribute";
    granularity(*mut usize, *const CUmemAllocationProp, c_int) as "cuMemGetAllocationGranularity";
    create(*mut u64, usize, *const CUmemAllocationProp, c_ulonglong) as "cuMemCreate";
    release(u64) as "cuMemRelease";
    export(Ptr, u64, c_uint, c_ulonglong) as "cuMemExportToShareableHandle";
    import(*mut u64, Ptr, c_uint) as "cuMemImportFromShareableHandle";
    reserve(*mut u64, usize, usize, u64, c_ulonglong) as "cuMemAddressReserve";
    unreserve(u64, usize) as "cuMemAddressFree";
    map(u64, usize, usize, u64, c_ulonglong) as "cuMemMap";
    unmap(u64, usize) as "cuMemUnmap";
    set_access(u64, usize, *const CUmemAccessDesc, usize) as "cuMemSetAccess";
    memset(u64, u8, usize, Ptr) as "cuMemsetD8Async";
    stream_create(*mut Ptr, c_uint) as "cuStreamCreate";
    stream_synchronize(Ptr) as "cuStreamSynchronize";
    stream_destroy(Ptr) as "cuStreamDestroy_v2";
}

impl Driver {
    /// The driver; whoever holds a context has initialised it.
    pub(super) fn get() -> Result<&'static Driver> {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        if let Some(driver) = DRIVER.get() {
            return Ok(driver);
        }
        // A failure isn't remembered: a driver may be loaded later.
        let loaded = Driver::load()?;
        Ok(DRIVER.get_or_init(|| loaded))
    }

    /// An error for any result but success, with the call's values.
    pub(super) fn check(
        &self,
        code: u32,
        call: &'static str,
        values: impl FnOnce() -> String,
    ) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        Err(Error::Driver {
            call,
            code,
            name: self.name_of(code),
            values: values(),
        })
    }

    fn name_of(&self, code: u32) -> String {
        let mut text = ptr::null();
        // SAFETY: the driver writes one pointer.
        let found = unsafe { (self.error_name)(code, &mut text) };
        if found != SUCCESS || text.is_null() {
            return "unknown error".into();
        }
        // SAFETY: on success it is a static NUL-terminated string of the driver's.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().into_owned()
    }
}
