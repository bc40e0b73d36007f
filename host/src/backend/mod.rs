//! What a device must be able to do: the only seam between this library and
//! the place where kernels run.
//!
//! Everything above this trait is checked and typed; everything below takes raw
//! addresses and handles. A backend is `Send + Sync` and binds whatever
//! per-thread state it has (CUDA's current context) in every call.

pub(crate) mod cuda;
mod driver;
pub(crate) mod emulated;
#[cfg(test)]
pub(crate) mod fake;
mod fleet;

use std::any::Any;
use std::ffi::CStr;
use std::fmt::Debug;

use crate::error::Result;
use crate::tensor_map::TensorMapSpec;

/// A stream, event, module or function of a backend; 0 as a stream is the default stream.
pub(crate) type Handle = usize;

/// What is fixed about a device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceInfo {
    pub name: String,
    pub ordinal: usize,
    pub capability: (u32, u32),
    pub limits: DeviceLimits,
    /// The driver's version, as 1000 major + 10 minor; 0 where there is none.
    pub driver_version: u32,
}

/// Limits that launches are checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Threads in a block.
    pub max_threads: u32,
    /// Threads in a block along x, y and z.
    pub max_block: [u32; 3],
    /// Shared memory that one block may use when its kernel opts in, in bytes.
    pub max_shared: u32,
    /// Blocks along x, y and z.
    pub max_grid: [u32; 3],
    /// Whether blocks can form clusters.
    pub clusters: bool,
}

/// A module's code.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Code<'a> {
    Cubin(&'a [u8]),
    Ptx(&'a CStr),
}

/// A loaded entry.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub handle: Handle,
    pub max_threads: u32,
    pub static_shared: u32,
    pub registers: u32,
    /// Sizes of the parameters, where the backend can tell.
    pub params: Option<Vec<u32>>,
}

/// A launch, ready for the driver.
#[derive(Debug)]
pub(crate) struct RawLaunch<'a> {
    pub function: Handle,
    pub grid: [u32; 3],
    pub threads: [u32; 3],
    pub cluster: u32,
    pub shared: u32,
    pub stream: Handle,
    /// The bytes of each argument, in order.
    pub args: &'a [&'a [u8]],
}

/// A place where kernels run.
///
/// The unsafe methods share one contract: handles come from this backend and
/// are alive, device ranges lie in live memory that the device reaches, and
/// host ranges stay valid until the stream has passed the call.
pub(crate) trait Backend: Send + Sync + Debug + Any {
    fn info(&self) -> &DeviceInfo;
    /// The same number for backends whose handles and addresses can be mixed.
    fn identity(&self) -> usize;
    /// Free and total bytes.
    fn memory(&self) -> Result<(usize, usize)>;
    fn synchronize(&self) -> Result<()>;

    /// `bytes` is at least 1.
    fn alloc(&self, bytes: usize) -> Result<u64>;
    unsafe fn free(&self, address: u64) -> Result<()>;
    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, stream: Handle) -> Result<()>;
    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, stream: Handle) -> Result<()>;
    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, stream: Handle) -> Result<()>;
    unsafe fn fill(&self, to: u64, byte: u8, bytes: usize, stream: Handle) -> Result<()>;

    fn stream_create(&self) -> Result<Handle>;
    unsafe fn stream_destroy(&self, stream: Handle) -> Result<()>;
    unsafe fn stream_synchronize(&self, stream: Handle) -> Result<()>;
    unsafe fn stream_wait(&self, stream: Handle, event: Handle) -> Result<()>;

    fn event_create(&self) -> Result<Handle>;
    unsafe fn event_destroy(&self, event: Handle) -> Result<()>;
    unsafe fn event_record(&self, event: Handle, stream: Handle) -> Result<()>;
    unsafe fn event_synchronize(&self, event: Handle) -> Result<()>;
    unsafe fn event_done(&self, event: Handle) -> Result<bool>;
    unsafe fn event_elapsed(&self, start: Handle, end: Handle) -> Result<f32>;

    /// Sends what is enqueued on the stream into a graph, until [`Backend::capture_end`].
    unsafe fn capture_begin(&self, stream: Handle) -> Result<()>;
    /// The graph of what was enqueued since, ready to launch.
    unsafe fn capture_end(&self, stream: Handle) -> Result<Handle>;
    unsafe fn graph_launch(&self, graph: Handle, stream: Handle) -> Result<()>;
    unsafe fn graph_destroy(&self, graph: Handle) -> Result<()>;

    /// Whether the stream's work goes into a graph now.
    unsafe fn captured(&self, stream: Handle) -> Result<bool>;

    /// Writes a word that kernels may be polling, at once: `beside` is a stream where nothing waits.
    unsafe fn write_beside(&self, address: u64, word: u64, beside: Handle) -> Result<()>;

    /// Words of zeros that kernels write and the host reads while kernels run.
    fn mailbox_alloc(&self, words: usize) -> Result<u64>;
    unsafe fn mailbox_free(&self, address: u64) -> Result<()>;
    unsafe fn mailbox_read(&self, address: u64, to: &mut [u64]) -> Result<()>;
    unsafe fn mailbox_clear(&self, address: u64, words: usize) -> Result<()>;

    fn module_load(&self, code: Code<'_>) -> Result<Handle>;
    unsafe fn module_unload(&self, module: Handle) -> Result<()>;
    /// Finds an entry and loads its code now; `None` if there is no such entry. Its parameters are
    /// told where wanted and known.
    unsafe fn function(
        &self,
        module: Handle,
        entry: &CStr,
        tell_params: bool,
    ) -> Result<Option<Function>>;
    /// Lets launches of the function use this much dynamic shared memory and this cluster.
    unsafe fn function_limits(&self, function: Handle, shared: u32, cluster: u32) -> Result<()>;
    unsafe fn launch(&self, launch: &RawLaunch<'_>) -> Result<()>;

    /// The spec has been checked.
    fn encode(&self, spec: &TensorMapSpec) -> Result<[u64; 16]>;
}
