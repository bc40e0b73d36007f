//! A device, and everything that is made on it.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, OnceLock};

use bytemuck::Pod;
use cudarc::driver::CudaContext;
use mok_kernel::arch::Arch;

use crate::backend::Backend;
pub use crate::backend::DeviceLimits;
use crate::backend::cuda::{self, Cuda};
use crate::backend::emulated::Emulated;
use crate::emulator::EmulatorConfig;
use crate::error::{Error, Result};
use crate::kernels::Kernels;
use crate::memory::Buffer;
use crate::stream::{Event, Stream};
use crate::tensor_map::{TensorMap, TensorMapSpec};

/// A place to run kernels. Cheap to clone: clones are the same device.
///
/// ```no_run
/// let device = mok::Device::cuda(0)?;
/// println!("{}: {} SMs", device.name(), device.sm_count());
/// # Ok::<(), mok::Error>(())
/// ```
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    backend: Arc<dyn Backend>,
    kernels: OnceLock<Kernels>,
}

/// The most GPUs of one emulated machine.
const MAX_EMULATED: usize = 72;

/// Device memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Not allocated by anyone.
    pub free: usize,
    /// All of it.
    pub total: usize,
}

impl Device {
    /// A GPU by its number, from 0. Retains the device's primary context, the one that candle,
    /// burn and the CUDA runtime use.
    pub fn cuda(ordinal: usize) -> Result<Device> {
        Ok(Device::with(Arc::new(Cuda::open(ordinal)?)))
    }

    /// An emulated GPU: kernels are executed from their PTX on the CPU. Same modules, launches,
    /// buffers and tensor maps; what the emulator finds wrong in a kernel is an error of whatever
    /// waits for it.
    pub fn emulated(config: EmulatorConfig) -> Result<Device> {
        let mut devices = Device::emulated_peers(config, 1)?;
        devices.pop().ok_or(Error::NoDriver)
    }

    /// The emulated GPUs of one machine, which reach each other's shared memory: one for each rank,
    /// to be used by a thread each. Kernels may wait for those of other ranks; a call that waits
    /// runs the kernels of all. From 1 to 72.
    ///
    /// ```
    /// let ranks = mok::Device::emulated_peers(mok::EmulatorConfig::default(), 4)?;
    /// assert_eq!(ranks[3].ordinal(), 3);
    /// # Ok::<(), mok::Error>(())
    /// ```
    pub fn emulated_peers(config: EmulatorConfig, gpus: usize) -> Result<Vec<Device>> {
        if gpus == 0 || gpus > MAX_EMULATED {
            return Err(Error::EmulatedGpus {
                gpus,
                limit: MAX_EMULATED,
            });
        }
        let machine = Emulated::machine(&config, gpus).into_iter();
        Ok(machine.map(|gpu| Device::with(Arc::new(gpu))).collect())
    }

    /// Whether this is an emulated GPU.
    pub fn is_emulated(&self) -> bool {
        let any: &dyn Any = &*self.inner.backend;
        any.is::<Emulated>()
    }

    /// How many GPUs the driver shows; [`Error::NoDriver`] where there is none.
    pub fn cuda_count() -> Result<usize> {
        cuda::device_count()
    }

    /// Shares a context that cudarc holds, as candle's and burn's CUDA backends do: their memory
    /// (by [`DevicePtr::from_raw`](crate::DevicePtr::from_raw)) and their streams (by
    /// [`Stream::from_cudarc`]) can be used with this device.
    ///
    /// ```no_run
    /// use cudarc::driver::CudaContext;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let context = CudaContext::new(0)?;
    /// let device = mok::Device::from_cudarc(context.clone())?;
    /// let stream = mok::Stream::from_cudarc(&device, context.default_stream())?;
    /// stream.synchronize()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_cudarc(context: Arc<CudaContext>) -> Result<Device> {
        Ok(Device::with(Arc::new(Cuda::share(context)?)))
    }

    fn with(backend: Arc<dyn Backend>) -> Device {
        Device {
            inner: Arc::new(Inner {
                backend,
                kernels: OnceLock::new(),
            }),
        }
    }

    /// The context as cudarc's object.
    pub fn cudarc_context(&self) -> Result<Arc<CudaContext>> {
        Ok(self
            .cuda_backend("Device::cudarc_context")?
            .context()
            .clone())
    }

    /// The `CUcontext`, for other code.
    pub fn raw_context(&self) -> Result<*mut c_void> {
        Ok(self
            .cuda_backend("Device::raw_context")?
            .context()
            .cu_ctx()
            .cast())
    }

    /// The driver's name for it.
    pub fn name(&self) -> &str {
        &self.inner.backend.info().name
    }

    /// Its number.
    pub fn ordinal(&self) -> usize {
        self.inner.backend.info().ordinal
    }

    /// Compute capability, such as (9, 0).
    pub fn capability(&self) -> (u32, u32) {
        self.inner.backend.info().capability
    }

    /// The architecture whose kernels run here.
    pub fn arch(&self) -> Result<Arch> {
        let (major, minor) = self.capability();
        Arch::from_capability(major, minor).ok_or_else(|| Error::NoKernels {
            device: self.name().to_owned(),
            major,
            minor,
        })
    }

    /// What launches are checked against.
    pub fn limits(&self) -> DeviceLimits {
        self.inner.backend.info().limits
    }

    /// Streaming multiprocessors.
    pub fn sm_count(&self) -> u32 {
        self.limits().sm_count
    }

    /// Shared memory that one block may use, in bytes.
    pub fn max_shared(&self) -> u32 {
        self.limits().max_shared
    }

    /// The driver's CUDA version, such as (13, 0).
    pub fn driver_version(&self) -> (u32, u32) {
        let version = self.inner.backend.info().driver_version;
        (version / 1000, version % 1000 / 10)
    }

    /// Free and total memory.
    pub fn memory(&self) -> Result<Memory> {
        let (free, total) = self.inner.backend.memory()?;
        Ok(Memory { free, total })
    }

    /// Waits until all work is done, and reports what went wrong in it.
    pub fn synchronize(&self) -> Result<()> {
        self.inner.backend.synchronize()
    }

    /// A new stream; it is not ordered with the default stream.
    pub fn stream(&self) -> Result<Stream> {
        Stream::create(&self.inner.backend)
    }

    /// The default stream (the driver's legacy one).
    pub fn default_stream(&self) -> Stream {
        Stream::default_of(&self.inner.backend)
    }

    /// A new event that takes the time.
    pub fn event(&self) -> Result<Event> {
        Event::create(&self.inner.backend)
    }

    /// Memory with whatever bits it holds.
    pub fn buffer_uninit<T: Pod>(&self, len: usize) -> Result<Buffer<T>> {
        Buffer::uninit(&self.inner.backend, len)
    }

    /// Memory of zero bytes.
    pub fn buffer_zeroed<T: Pod>(&self, len: usize) -> Result<Buffer<T>> {
        self.buffer_filled(len, 0)
    }

    /// Memory with every byte set; 0xFF is a NaN in every floating-point type.
    pub fn buffer_filled<T: Pod>(&self, len: usize, byte: u8) -> Result<Buffer<T>> {
        let mut buffer = self.buffer_uninit(len)?;
        buffer.fill(byte)?;
        Ok(buffer)
    }

    /// Memory with a copy of these values.
    pub fn buffer_from<T: Pod>(&self, values: &[T]) -> Result<Buffer<T>> {
        let mut buffer = self.buffer_uninit(values.len())?;
        buffer.copy_from(values)?;
        Ok(buffer)
    }

    /// Checks and encodes a tensor map.
    pub fn tensor_map(&self, spec: &TensorMapSpec) -> Result<TensorMap> {
        spec.check()?;
        self.inner.backend.encode(spec).map(TensorMap::from_raw)
    }

    /// The kernels that ship with this crate, loaded on first use and kept.
    pub fn kernels(&self) -> Result<&Kernels> {
        if let Some(kernels) = self.inner.kernels.get() {
            return Ok(kernels);
        }
        let loaded = Kernels::load(self)?;
        Ok(self.inner.kernels.get_or_init(|| loaded))
    }

    /// Whether objects of the two devices can be mixed (the same context).
    pub fn is_same(&self, other: &Device) -> bool {
        self.inner.backend.identity() == other.inner.backend.identity()
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    pub(crate) fn cuda_backend(&self, call: &'static str) -> Result<&Cuda> {
        let any: &dyn Any = &*self.inner.backend;
        any.downcast_ref().ok_or(Error::NotCuda { call })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}: {})", self.ordinal(), self.name())
    }
}

#[cfg(test)]
mod tests;
