//! The driver's functions, looked up once.
//!
//! cudarc finds and opens the library; its own wrappers panic on a missing
//! symbol and read every result into a Rust enum, which a newer driver's error
//! number would not fit. So the functions called here are resolved by name,
//! with a plain number as their result.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUlaunchConfig};

use crate::error::{Error, Result};

/// Success, and the errors that are told apart.
pub(super) const SUCCESS: u32 = 0;
pub(super) const NOT_FOUND: u32 = 500;
pub(super) const NOT_READY: u32 = 600;

type Ptr = *mut c_void;

macro_rules! driver {
    (
        required { $($name:ident ( $($arg:ty),* ) as $symbol:literal;)* }
        optional { $($opt:ident ( $($oarg:ty),* ) as $osymbol:literal;)* }
        shared_with_cudarc { $($other:literal),* }
    ) => {
        /// The table of driver functions.
        pub(super) struct Driver {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> u32,)*
            $(pub(super) $opt: Option<unsafe extern "C" fn($($oarg),*) -> u32>,)*
        }

        impl Driver {
            fn load() -> Result<Driver> {
                // SAFETY: opening the driver library runs its initialisers, which it is made for.
                if !unsafe { sys::is_culib_present() } {
                    return Err(Error::NoDriver);
                }
                // SAFETY: as above; it is present, so this does not panic.
                let library = unsafe { sys::culib() };
                // cudarc's context calls these by itself, and panics where one is missing.
                for symbol in [$($other),*] {
                    // SAFETY: looked up, never called through this type.
                    if unsafe { library.get::<unsafe extern "C" fn()>(symbol.as_bytes()) }.is_err() {
                        return Err(Error::DriverTooOld { symbol });
                    }
                }
                Ok(Driver {
                    $($name: {
                        // SAFETY: the type is the function's declaration in cuda.h.
                        *unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> u32>($symbol.as_bytes()) }
                            .map_err(|_| Error::DriverTooOld { symbol: $symbol })?
                    },)*
                    $($opt: {
                        // SAFETY: as above.
                        unsafe { library.get::<unsafe extern "C" fn($($oarg),*) -> u32>($osymbol.as_bytes()) }
                            .ok().map(|found| *found)
                    },)*
                })
            }
        }
    };
}

driver! {
    required {
        init(c_uint) as "cuInit";
        driver_version(*mut c_int) as "cuDriverGetVersion";
        error_name(u32, *mut *const c_char) as "cuGetErrorName";
        error_string(u32, *mut *const c_char) as "cuGetErrorString";
        device_count(*mut c_int) as "cuDeviceGetCount";
        device_name(*mut c_char, c_int, c_int) as "cuDeviceGetName";
        device_attribute(*mut c_int, c_int, c_int) as "cuDeviceGetAttribute";
        ctx_set_current(Ptr) as "cuCtxSetCurrent";
        ctx_synchronize() as "cuCtxSynchronize";
        mem_info(*mut usize, *mut usize) as "cuMemGetInfo_v2";
        mem_alloc(*mut u64, usize) as "cuMemAlloc_v2";
        mem_free(u64) as "cuMemFree_v2";
        copy_in(u64, *const c_void, usize, Ptr) as "cuMemcpyHtoDAsync_v2";
        copy_out(Ptr, u64, usize, Ptr) as "cuMemcpyDtoHAsync_v2";
        copy_within(u64, u64, usize, Ptr) as "cuMemcpyDtoDAsync_v2";
        memset(u64, u8, usize, Ptr) as "cuMemsetD8Async";
        stream_create(*mut Ptr, c_uint) as "cuStreamCreate";
        stream_destroy(Ptr) as "cuStreamDestroy_v2";
        stream_synchronize(Ptr) as "cuStreamSynchronize";
        stream_wait(Ptr, Ptr, c_uint) as "cuStreamWaitEvent";
        event_create(*mut Ptr, c_uint) as "cuEventCreate";
        event_destroy(Ptr) as "cuEventDestroy_v2";
        event_record(Ptr, Ptr) as "cuEventRecord";
        event_synchronize(Ptr) as "cuEventSynchronize";
        event_query(Ptr) as "cuEventQuery";
        event_elapsed(*mut f32, Ptr, Ptr) as "cuEventElapsedTime";
        capture_begin(Ptr, c_uint) as "cuStreamBeginCapture_v2";
        capture_end(Ptr, *mut Ptr) as "cuStreamEndCapture";
        capturing(Ptr, *mut c_int) as "cuStreamIsCapturing";
        graph_instantiate(*mut Ptr, Ptr, u64) as "cuGraphInstantiateWithFlags";
        graph_destroy(Ptr) as "cuGraphDestroy";
        graph_launch(Ptr, Ptr) as "cuGraphLaunch";
        graph_exec_destroy(Ptr) as "cuGraphExecDestroy";
        host_alloc(*mut Ptr, usize, c_uint) as "cuMemHostAlloc";
        host_free(Ptr) as "cuMemFreeHost";
        module_load(*mut Ptr, *const c_void, c_uint, *mut c_int, *mut Ptr) as "cuModuleLoadDataEx";
        module_unload(Ptr) as "cuModuleUnload";
        module_function(*mut Ptr, Ptr, *const c_char) as "cuModuleGetFunction";
        function_attribute(*mut c_int, c_int, Ptr) as "cuFuncGetAttribute";
        function_set_attribute(Ptr, c_int, c_int) as "cuFuncSetAttribute";
        launch(*const CUlaunchConfig, Ptr, *mut Ptr, *mut Ptr) as "cuLaunchKernelEx";
        encode_tiled(Ptr, c_int, u32, Ptr, *const u64, *const u64, *const u32, *const u32, c_int, c_int, c_int, c_int)
            as "cuTensorMapEncodeTiled";
    }
    optional {
        function_load(Ptr) as "cuFuncLoad";
        function_param(Ptr, usize, *mut usize, *mut usize) as "cuFuncGetParamInfo";
    }
    shared_with_cudarc {
        "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxGetCurrent"
    }
}

impl Driver {
    /// The driver, initialised.
    pub(super) fn get() -> Result<&'static Driver> {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        let driver = match DRIVER.get() {
            Some(driver) => driver,
            // A failure isn't remembered: a driver may be loaded later.
            None => {
                let loaded = Driver::load()?;
                DRIVER.get_or_init(|| loaded)
            }
        };
        // SAFETY: no preconditions; repeated calls are free.
        driver.check(unsafe { (driver.init)(0) }, "cuInit")?;
        Ok(driver)
    }

    /// An error for any result but success.
    pub(super) fn check(&self, code: u32, call: &'static str) -> Result<()> {
        self.check_with(code, call, String::new)
    }

    /// As [`Driver::check`], with the call's values in the error.
    pub(super) fn check_with(
        &self,
        code: u32,
        call: &'static str,
        context: impl FnOnce() -> String,
    ) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let mut context = context();
        if !context.is_empty() {
            context.insert_str(0, "; ");
        }
        Err(Error::Driver {
            call,
            code,
            name: self.name_of(code),
            text: self
                .text(self.error_string, code)
                .unwrap_or_else(|| "no description".into()),
            context,
        })
    }

    /// The driver's name of an error number.
    pub(super) fn name_of(&self, code: u32) -> String {
        self.text(self.error_name, code)
            .unwrap_or_else(|| "unknown error".into())
    }

    fn text(
        &self,
        lookup: unsafe extern "C" fn(u32, *mut *const c_char) -> u32,
        code: u32,
    ) -> Option<String> {
        let mut text = ptr::null();
        // SAFETY: the driver writes one pointer.
        if unsafe { lookup(code, &mut text) } != SUCCESS || text.is_null() {
            return None;
        }
        // SAFETY: on success it is a static NUL-terminated string of the driver's.
        Some(
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned(),
        )
    }
}
