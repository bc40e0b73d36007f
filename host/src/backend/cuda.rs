//! The driver API as a [`Backend`].

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUfunction_attribute as FunctionAttribute, CUjit_option as Jit, CUlaunchAttribute,
    CUlaunchAttributeID, CUlaunchConfig,
};
use cudarc::driver::{CudaContext, CudaStream};

use super::driver::{Driver, NOT_FOUND, NOT_READY, SUCCESS};
use super::{Backend, Code, DeviceInfo, Function, Handle, RawLaunch};
use crate::error::{Error, Result};
use crate::tensor_map::TensorMapSpec;

mod open;

pub(crate) use open::device_count;

/// Characters of the driver's compiler log that are kept.
const JIT_LOG: usize = 16 * 1024;

/// One device's context.
pub(crate) struct Cuda {
    driver: &'static Driver,
    /// Retains the primary context (or the one that was handed in).
    context: Arc<CudaContext>,
    info: DeviceInfo,
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cuda")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl Cuda {
    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Whether a stream of cudarc's works in this context.
    pub(crate) fn owns(&self, stream: &CudaStream) -> bool {
        stream.context().cu_ctx() == self.context.cu_ctx()
    }

    /// The driver, with this context current on the calling thread.
    fn bind(&self) -> Result<&'static Driver> {
        // SAFETY: the context lives as long as `self.context`.
        let code = unsafe { (self.driver.ctx_set_current)(self.context.cu_ctx().cast()) };
        self.driver.check(code, "cuCtxSetCurrent")?;
        Ok(self.driver)
    }

    /// An attribute of a function of this backend.
    ///
    /// # Safety
    /// `function` is a live function of this context.
    unsafe fn function_attribute(
        &self,
        function: Handle,
        attribute: FunctionAttribute,
    ) -> Result<u32> {
        let mut value = 0;
        // SAFETY: the driver writes one int; the function is live by contract.
        let code = unsafe {
            (self.driver.function_attribute)(&mut value, attribute as c_int, raw(function))
        };
        self.driver
            .check_with(code, "cuFuncGetAttribute", || format!("{attribute:?}"))?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Sizes of a function's parameters, where the driver can tell (CUDA 12.4). It gives no count:
    /// the last call fails, which compute-sanitizer reports as an API error.
    ///
    /// # Safety
    /// `function` is a live function of this context.
    unsafe fn function_params(&self, function: Handle) -> Option<Vec<u32>> {
        let param = self.driver.function_param?;
        let mut sizes = Vec::new();
        loop {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: the driver writes two sizes; past the last parameter it returns an error.
            let code = unsafe { param(raw(function), sizes.len(), &mut offset, &mut size) };
            if code != SUCCESS {
                return Some(sizes);
            }
            sizes.push(u32::try_from(size).ok()?);
        }
    }
}

fn raw(handle: Handle) -> *mut c_void {
    ptr::without_provenance_mut(handle)
}

impl Backend for Cuda {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn identity(&self) -> usize {
        self.context.cu_ctx().addr()
    }

    fn memory(&self) -> Result<(usize, usize)> {
        let driver = self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes two sizes.
        let code = unsafe { (driver.mem_info)(&mut free, &mut total) };
        driver.check(code, "cuMemGetInfo")?;
        Ok((free, total))
    }

    fn synchronize(&self) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: the context is current.
        let code = unsafe { (driver.ctx_synchronize)() };
        driver.check(code, "cuCtxSynchronize")
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        let driver = self.bind()?;
        let mut address = 0;
        // SAFETY: the driver writes one address.
        let code = unsafe { (driver.mem_alloc)(&mut address, bytes) };
        driver.check_with(code, "cuMemAlloc", || format!("asked for {bytes} bytes"))?;
        Ok(address)
    }

    unsafe fn free(&self, address: u64) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: allocated by `alloc`, by the trait's contract.
        let code = unsafe { (driver.mem_free)(address) };
        driver.check(code, "cuMemFree")
    }

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, stream: Handle) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: both ranges are valid, by the trait's contract.
        let code = unsafe { (driver.copy_in)(to, from.cast(), bytes, raw(stream)) };
        driver.check_with(code, "cuMemcpyHtoDAsync", || {
            format!("{bytes} bytes to {to:#x}")
        })
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, stream: Handle) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: as in `copy_in`.
        let code = unsafe { (driver.copy_out)(to.cast(), from, bytes, raw(stream)) };
        driver.check_with(code, "cuMemcpyDtoHAsync", || {
            format!("{bytes} bytes from {from:#x}")
        })
    }

    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, stream: Handle) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: as in `copy_in`.
        let code = unsafe { (driver.copy_within)(to, from, bytes, raw(stream)) };
        driver.check_with(code, "cuMemcpyDtoDAsync", || {
            format!("{bytes} bytes from {from:#x} to {to:#x}")
        })
    }

    unsafe fn fill(&self, to: u64, byte: u8, bytes: usize, stream: Handle) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: as in `copy_in`.
        let code = unsafe { (driver.memset)(to, byte, bytes, raw(stream)) };
        driver.check_with(code, "cuMemsetD8Async", || {
            format!("{bytes} bytes at {to:#x}")
        })
    }

    fn stream_create(&self) -> Result<Handle> {
        let driver = self.bind()?;
        let mut stream = ptr::null_mut();
        // Non-blocking: work on the default stream must not order it.
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the driver writes one handle.
        let code = unsafe { (driver.stream_create)(&mut stream, flags) };
        driver.check(code, "cuStreamCreate")?;
        Ok(stream.addr())
    }

    unsafe fn stream_destroy(&self, stream: Handle) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: a live stream, by the trait's contract.
        let code = unsafe { (driver.stream_destroy)(raw(stream)) };
        driver.check(code, "cuStreamDestroy")
    }

    unsafe fn stream_synchronize(&self, stream: Handle) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: a live stream, by the trait's contract.
        let code = unsafe { (driver.stream_synchronize)(raw(stream)) };
        driver.check(code, "cuStreamSynchronize")
    }

    unsafe fn stream_wait(&self, stream: Handle, event: Handle) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: live handles, by the trait's contract.
        let code = unsafe { (driver.stream_wait)(raw(stream), raw(event), 0) };
        driver.check(code, "cuStreamWaitEvent")
    }

    fn event_create(&self) -> Result<Handle> {
        let driver = self.bind()?;
        let mut event = ptr::null_mut();
        // SAFETY: the driver writes one handle; flags 0 keep the timing on.
        let code = unsafe { (driver.event_create)(&mut event, 0) };
        driver.check(code, "cuEventCreate")?;
        Ok(event.addr())
    }

    unsafe fn event_destroy(&self, event: Handle) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: a live event, by the trait's contract.
        let code = unsafe { (driver.event_destroy)(raw(event)) };
        driver.check(code, "cuEventDestroy")
    }

    unsafe fn event_record(&self, event: Handle, stream: Handle) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: live handles, by the trait's contract.
        let code = unsafe { (driver.event_record)(raw(event), raw(stream)) };
        driver.check(code, "cuEventRecord")
    }

    unsafe fn event_synchronize(&self, event: Handle) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: a live event, by the trait's contract.
        let code = unsafe { (driver.event_synchronize)(raw(event)) };
        driver.check(code, "cuEventSynchronize")
    }

    unsafe fn event_done(&self, event: Handle) -> Result<bool> {
        let driver = self.bind()?;
        // SAFETY: a live event, by the trait's contract.
        let code = unsafe { (driver.event_query)(raw(event)) };
        if code == NOT_READY {
            return Ok(false);
        }
        driver.check(code, "cuEventQuery").map(|()| true)
    }

    unsafe fn event_elapsed(&self, start: Handle, end: Handle) -> Result<f32> {
        let driver = self.bind()?;
        let mut milliseconds = 0.0;
        // SAFETY: live events, by the trait's contract; the driver writes one float.
        let code = unsafe { (driver.event_elapsed)(&mut milliseconds, raw(start), raw(end)) };
        driver.check(code, "cuEventElapsedTime")?;
        Ok(milliseconds)
    }

    unsafe fn capture_begin(&self, stream: Handle) -> Result<()> {
        let driver = self.bind()?;
        // This thread's calls only: other ranks' threads go on allocating and loading.
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as u32;
        // SAFETY: a live stream, by the trait's contract.
        let code = unsafe { (driver.capture_begin)(raw(stream), mode) };
        driver.check(code, "cuStreamBeginCapture")
    }

    unsafe fn capture_end(&self, stream: Handle) -> Result<Handle> {
        let driver = self.bind()?;
        let (mut graph, mut ready) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a live stream, by the trait's contract; the driver writes one handle.
        let code = unsafe { (driver.capture_end)(raw(stream), &mut graph) };
        driver.check(code, "cuStreamEndCapture")?;
        // SAFETY: the graph was just made; the driver writes one handle.
        let code = unsafe { (driver.graph_instantiate)(&mut ready, graph, 0) };
        // SAFETY: made above and not used again; what was instantiated is a copy.
        unsafe { (driver.graph_destroy)(graph) };
        driver.check(code, "cuGraphInstantiateWithFlags")?;
        Ok(ready.addr())
    }

    unsafe fn graph_launch(&self, graph: Handle, stream: Handle) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: live handles, by the trait's contract.
        let code = unsafe { (driver.graph_launch)(raw(graph), raw(stream)) };
        driver.check(code, "cuGraphLaunch")
    }

    unsafe fn graph_destroy(&self, graph: Handle) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: a live graph, by the trait's contract.
        let code = unsafe { (driver.graph_exec_destroy)(raw(graph)) };
        driver.check(code, "cuGraphExecDestroy")
    }

    unsafe fn captured(&self, stream: Handle) -> Result<bool> {
        let driver = self.bind()?;
        let mut status = 0;
        // SAFETY: a live stream, by the trait's contract; the driver writes one number.
        let code = unsafe { (driver.capturing)(raw(stream), &mut status) };
        driver.check(code, "cuStreamIsCapturing")?;
        Ok(status != sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE as c_int)
    }

    unsafe fn write_beside(&self, address: u64, word: u64, beside: Handle) -> Result<()> {
        // SAFETY: the word outlives the synchronisation; the rest is the trait's contract.
        unsafe {
            self.copy_in(address, (&raw const word).cast(), size_of::<u64>(), beside)?;
            self.stream_synchronize(beside)
        }
    }

    fn mailbox_alloc(&self, words: usize) -> Result<u64> {
        let driver = self.bind()?;
        let mut address = ptr::null_mut();
        // With unified addressing the device's address is the host's.
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the driver writes one address.
        let code = unsafe { (driver.host_alloc)(&mut address, words * 8, flags) };
        driver.check(code, "cuMemHostAlloc")?;
        // SAFETY: just allocated, `words` words, and nobody knows of it yet.
        unsafe { address.cast::<u64>().write_bytes(0, words) };
        Ok(address.expose_provenance() as u64)
    }

    unsafe fn mailbox_free(&self, address: u64) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: allocated by `mailbox_alloc`, by the trait's contract.
        let code =
            unsafe { (driver.host_free)(ptr::with_exposed_provenance_mut(address as usize)) };
        driver.check(code, "cuMemFreeHost")
    }

    unsafe fn mailbox_read(&self, address: u64, to: &mut [u64]) -> Result<()> {
        let from = ptr::with_exposed_provenance::<u64>(address as usize);
        for (at, word) in to.iter_mut().enumerate() {
            // SAFETY: inside the mailbox, by the trait's contract; the device writes whole words.
            *word = unsafe { from.add(at).read_volatile() };
        }
        Ok(())
    }

    unsafe fn mailbox_clear(&self, address: u64, words: usize) -> Result<()> {
        let to = ptr::with_exposed_provenance_mut::<u64>(address as usize);
        for at in 0..words {
            // SAFETY: as in `mailbox_read`.
            unsafe { to.add(at).write_volatile(0) };
        }
        Ok(())
    }

    fn module_load(&self, code: Code<'_>) -> Result<Handle> {
        let driver = self.bind()?;
        let image: *const c_void = match code {
            Code::Cubin(bytes) => bytes.as_ptr().cast(),
            Code::Ptx(text) => text.as_ptr().cast(),
        };
        let mut log = vec![0u8; JIT_LOG];
        let mut options = [
            Jit::CU_JIT_ERROR_LOG_BUFFER as c_int,
            Jit::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as c_int,
        ];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), raw(log.len())];
        let mut module = ptr::null_mut();
        // SAFETY: the image is NUL-terminated text, or a cubin whose headers were checked to lie
        // inside the slice; the options are two, and the log is as long as they say.
        let result = unsafe {
            (driver.module_load)(
                &mut module,
                image,
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        match code {
            Code::Ptx(_) if result != SUCCESS => {
                let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
                let log = String::from_utf8_lossy(&log[..end]).trim().to_owned();
                Err(Error::Jit {
                    code: result,
                    name: driver.name_of(result),
                    log,
                })
            }
            _ => driver
                .check_with(result, "cuModuleLoadDataEx", || "loading a cubin".into())
                .map(|()| module.addr()),
        }
    }

    unsafe fn module_unload(&self, module: Handle) -> Result<()> {
        let driver = self.bind()?;
        // SAFETY: a live module, by the trait's contract.
        let code = unsafe { (driver.module_unload)(raw(module)) };
        driver.check(code, "cuModuleUnload")
    }

    unsafe fn function(
        &self,
        module: Handle,
        entry: &CStr,
        tell_params: bool,
    ) -> Result<Option<Function>> {
        let driver = self.bind()?;
        let mut function = ptr::null_mut();
        let name: *const c_char = entry.as_ptr();
        // SAFETY: a live module, by the trait's contract; the driver writes one handle.
        let code = unsafe { (driver.module_function)(&mut function, raw(module), name) };
        if code == NOT_FOUND {
            return Ok(None);
        }
        driver.check_with(code, "cuModuleGetFunction", || format!("entry {entry:?}"))?;
        if let Some(load) = driver.function_load {
            // Lazy loading would load the code at the first launch, and can block there.
            // SAFETY: the function was just found.
            let code = unsafe { load(function) };
            driver.check(code, "cuFuncLoad")?;
        }
        let handle = function.addr();
        // SAFETY: the function was just found, in this context.
        unsafe {
            use FunctionAttribute as F;
            Ok(Some(Function {
                handle,
                max_threads: self
                    .function_attribute(handle, F::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
                static_shared: self
                    .function_attribute(handle, F::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
                registers: self.function_attribute(handle, F::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
                params: tell_params.then(|| self.function_params(handle)).flatten(),
            }))
        }
    }

    unsafe fn function_limits(&self, function: Handle, shared: u32, cluster: u32) -> Result<()> {
        use FunctionAttribute as F;
        let driver = self.bind()?;
        let set = |attribute: FunctionAttribute, value: u32| {
            // SAFETY: a live function, by the trait's contract.
            let code = unsafe {
                (driver.function_set_attribute)(raw(function), attribute as c_int, value as c_int)
            };
            driver.check_with(code, "cuFuncSetAttribute", || {
                format!("{attribute:?} = {value}")
            })
        };
        let dynamic = F::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // Only ever raised: another spec of the same entry may need more.
        // SAFETY: a live function, by the trait's contract.
        if shared > unsafe { self.function_attribute(function, dynamic) }? {
            set(dynamic, shared)?;
        }
        if cluster > crate::launch::PORTABLE_CLUSTER {
            set(F::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)?;
        }
        Ok(())
    }

    unsafe fn launch(&self, launch: &RawLaunch<'_>) -> Result<()> {
        let driver = self.bind()?;
        let mut params: Vec<*mut c_void> = launch
            .args
            .iter()
            .map(|bytes| bytes.as_ptr().cast_mut().cast())
            .collect();
        let mut attributes = Vec::with_capacity(1);
        if launch.cluster > 1 {
            // SAFETY: all-zero bytes are a valid value of this plain C struct.
            let mut attribute: CUlaunchAttribute = unsafe { std::mem::zeroed() };
            attribute.id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attribute.value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 {
                x: launch.cluster,
                y: 1,
                z: 1,
            };
            attributes.push(attribute);
        }
        let config = CUlaunchConfig {
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.threads[0],
            blockDimY: launch.threads[1],
            blockDimZ: launch.threads[2],
            sharedMemBytes: launch.shared,
            hStream: raw(launch.stream).cast(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: the function and stream are live and the arguments are those that the entry
        // declares, by the trait's contract; the driver copies the arguments before it returns.
        let code = unsafe {
            (driver.launch)(
                &config,
                raw(launch.function),
                params.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        driver.check_with(code, "cuLaunchKernelEx", || {
            format!(
                "grid {:?}, threads {:?}, cluster {}, {} bytes of dynamic shared memory",
                launch.grid, launch.threads, launch.cluster, launch.shared
            )
        })
    }

    fn encode(&self, spec: &TensorMapSpec) -> Result<[u64; 16]> {
        /// The alignment that the driver demands of the map it writes.
        #[repr(C, align(128))]
        struct Opaque([u64; 16]);

        let driver = self.bind()?;
        let mut map = Opaque([0; 16]);
        let strides = spec.strides();
        // SAFETY: the arrays have `rank` (strides: `rank - 1`) entries, as the checked spec says.
        let code = unsafe {
            (driver.encode_tiled)(
                map.0.as_mut_ptr().cast(),
                spec.data_type().code(),
                spec.dims().len() as u32,
                ptr::without_provenance_mut(spec.base().as_raw() as usize),
                spec.dims().as_ptr(),
                strides.as_ptr(),
                spec.tile().as_ptr(),
                spec.element_strides().as_ptr(),
                spec.interleave().code(),
                spec.swizzle().code(),
                spec.l2_promotion().code(),
                spec.fill().code(),
            )
        };
        driver.check_with(code, "cuTensorMapEncodeTiled", || format!("{spec:?}"))?;
        Ok(map.0)
    }
}
