//! Modules and kernels.

use std::ffi::CString;
use std::fmt;
use std::sync::Arc;

use crate::backend::{Backend, Code, Function, Handle};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::launch::{KernelSpec, Launch, LaunchSpec};

/// What a module was loaded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// Machine code that was assembled (and validated) when the crate was built.
    Cubin,
    /// PTX that the driver compiled.
    Ptx,
}

/// Loaded code. Cheap to clone; unloaded with its last clone and last kernel.
///
/// ```no_run
/// let device = mok::Device::cuda(0)?;
/// let ptx = std::fs::read_to_string("kernels.ptx").unwrap();
/// let module = mok::Module::from_ptx(&device, &ptx)?;
/// assert_eq!(module.image(), mok::Image::Ptx);
/// # Ok::<(), mok::Error>(())
/// ```
#[derive(Clone)]
pub struct Module {
    inner: Arc<ModuleInner>,
}

struct ModuleInner {
    backend: Arc<dyn Backend>,
    handle: Handle,
    image: Image,
    /// Why the cubin was passed over.
    cubin_error: Option<Error>,
}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        // Code that still runs must stay. Failures have nowhere to go.
        let _ = self.backend.synchronize();
        // SAFETY: loaded by this backend, and this was the last use.
        let _ = unsafe { self.backend.module_unload(self.handle) };
    }
}

impl Module {
    /// Loads the cubin if there is one and the device takes it, else the PTX.
    pub fn load(device: &Device, cubin: Option<&[u8]>, ptx: Option<&str>) -> Result<Module> {
        let cubin_error = match cubin.map(|cubin| Module::from_cubin(device, cubin)) {
            Some(Ok(module)) => return Ok(module),
            Some(Err(error)) if ptx.is_none() => return Err(error),
            Some(Err(error)) => Some(error),
            None => None,
        };
        let ptx = ptx.ok_or(Error::EmptyModule)?;
        let mut text = Vec::with_capacity(ptx.len() + 1);
        text.extend_from_slice(ptx.as_bytes());
        let text = CString::new(text).map_err(|error| Error::BadPtx {
            reason: format!("a NUL character at byte {}", error.nul_position()),
        })?;
        let bad = |reason: &str| Error::BadPtx {
            reason: reason.into(),
        };
        // The driver tells formats apart by their first bytes, and would read an ELF file as far as
        // its headers say.
        if ptx.starts_with("\x7fELF") {
            return Err(bad("it starts as an ELF file"));
        }
        if !ptx.contains(".version") {
            return Err(bad("it has no .version directive"));
        }
        let backend = device.backend();
        let handle = backend.module_load(Code::Ptx(&text))?;
        Ok(Module::with(backend, handle, Image::Ptx, cubin_error))
    }

    /// Loads a cubin.
    pub fn from_cubin(device: &Device, cubin: &[u8]) -> Result<Module> {
        check_cubin(cubin)?;
        let backend = device.backend();
        let handle = backend.module_load(Code::Cubin(cubin))?;
        Ok(Module::with(backend, handle, Image::Cubin, None))
    }

    /// Has the driver compile PTX; its log is in the error.
    pub fn from_ptx(device: &Device, ptx: &str) -> Result<Module> {
        Module::load(device, None, Some(ptx))
    }

    fn with(
        backend: &Arc<dyn Backend>,
        handle: Handle,
        image: Image,
        cubin_error: Option<Error>,
    ) -> Module {
        Module {
            inner: Arc::new(ModuleInner {
                backend: backend.clone(),
                handle,
                image,
                cubin_error,
            }),
        }
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// What it was loaded from.
    pub fn image(&self) -> Image {
        self.inner.image
    }

    /// Why the PTX was loaded although there was a cubin.
    pub fn cubin_error(&self) -> Option<&Error> {
        self.inner.cubin_error.as_ref()
    }

    /// An entry with what its launches must look like (a [`KernelSpec`], or a reference to a
    /// [`LaunchSpec`](crate::launch::LaunchSpec)). Its code is loaded now, and its parameters are
    /// compared with the spec where the driver can tell them.
    pub fn kernel(&self, spec: impl Into<KernelSpec>) -> Result<Kernel> {
        self.find(spec.into(), true)
    }

    /// An entry of the shipped code, whose parameters the builder compared with this very spec.
    pub(crate) fn shipped_kernel(&self, spec: &'static LaunchSpec) -> Result<Kernel> {
        self.find(spec.into(), false)
    }

    fn find(&self, spec: KernelSpec, compare_params: bool) -> Result<Kernel> {
        let missing = || Error::NoEntry {
            entry: spec.entry.clone(),
        };
        // A name with a NUL in it is no entry's.
        let name = CString::new(spec.entry.as_str()).map_err(|_| missing())?;
        let backend = self.backend();
        // SAFETY: the module lives.
        let function = unsafe { backend.function(self.inner.handle, &name, compare_params) }?
            .ok_or_else(missing)?;
        spec.check(
            &backend.info().limits,
            function.max_threads,
            function.static_shared,
            function.params.as_deref(),
        )?;
        // SAFETY: the function was just found.
        unsafe { backend.function_limits(function.handle, spec.max_shared, spec.cluster) }?;
        Ok(Kernel {
            module: self.clone(),
            function,
            spec: Arc::new(spec),
        })
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module")
            .field("image", &self.inner.image)
            .finish_non_exhaustive()
    }
}

/// An entry of a module, with what its launches must look like. Keeps the module loaded.
#[derive(Clone)]
pub struct Kernel {
    module: Module,
    function: Function,
    spec: Arc<KernelSpec>,
}

impl Kernel {
    /// Starts a launch.
    pub fn launch(&self) -> Launch<'_> {
        Launch::new(self)
    }

    /// What its launches must look like.
    pub fn spec(&self) -> &KernelSpec {
        &self.spec
    }

    /// The module that it is from.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// Registers of one thread.
    pub fn registers(&self) -> u32 {
        self.function.registers
    }

    /// The `CUfunction`, for other code.
    pub fn as_raw(&self) -> *mut std::ffi::c_void {
        std::ptr::without_provenance_mut(self.function.handle)
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        self.module.backend()
    }

    pub(crate) fn function(&self) -> Handle {
        self.function.handle
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

/// Refuses bytes whose ELF headers reach past their end: the driver takes no length, so it would
/// read on.
fn check_cubin(bytes: &[u8]) -> Result<()> {
    let bad = |reason: String| Err(Error::BadCubin { reason });
    let field = |at: usize, size: usize| -> Option<u64> {
        let bytes = bytes.get(at..at.checked_add(size)?)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0, |value, &byte| value << 8 | u64::from(byte)),
        )
    };
    if bytes.len() < 64 {
        return bad(format!(
            "{} bytes are less than an ELF header's 64",
            bytes.len()
        ));
    }
    if bytes[..6] != *b"\x7fELF\x02\x01" {
        return bad("it does not start as a 64-bit little-endian ELF file".into());
    }
    const MACHINE_CUDA: u64 = 190;
    if field(18, 2) != Some(MACHINE_CUDA) {
        return bad("it is an ELF file for another machine than CUDA".into());
    }
    // (offset of the table, size and count of its entries, where an entry keeps offset and size)
    for (table, size, count, at) in [(32, 54, 56, [8, 32]), (40, 58, 60, [24, 32])] {
        let start = field(table, 8).unwrap_or(u64::MAX);
        let size = field(size, 2).unwrap_or(u64::MAX);
        let count = field(count, 2).unwrap_or(u64::MAX);
        for entry in 0..count {
            let header = entry
                .checked_mul(size)
                .and_then(|bytes| bytes.checked_add(start))
                .and_then(|at| usize::try_from(at).ok())
                .filter(|&at| {
                    at.checked_add(size as usize)
                        .is_some_and(|end| end <= bytes.len())
                });
            let Some(header) = header else {
                return bad(format!(
                    "its header table at byte {start} reaches past its {} bytes",
                    bytes.len()
                ));
            };
            // Sections without bits in the file (SHT_NOBITS) only reserve memory.
            const NO_BITS: u64 = 8;
            if table == 40 && field(header + 4, 4) == Some(NO_BITS) {
                continue;
            }
            let end = at.map(|at| field(header + at, 8));
            let end = end[0]
                .zip(end[1])
                .and_then(|(offset, size)| offset.checked_add(size));
            if end.is_none_or(|end| end > bytes.len() as u64) {
                return bad(format!(
                    "part {entry} reaches past its {} bytes",
                    bytes.len()
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
