//! Launches that are checked before the driver sees them.
//!
//! A [`KernelSpec`] says what a launch must look like; [`Launch`] collects what
//! it is to be, and [`Launch::enqueue`] compares the two. What the compiler
//! can't know is left to the caller: that the arguments mean what the kernel
//! takes them for.

use std::fmt;

use bytemuck::{Pod, Zeroable};
pub use mok_kernel::launch::{LaunchSpec, Param};

use crate::backend::{DeviceLimits, RawLaunch};
use crate::error::Result;
use crate::module::Kernel;
use crate::stream::Stream;
use crate::tensor_map::TensorMap;

/// The largest cluster that every device with clusters takes.
pub const PORTABLE_CLUSTER: u32 = 8;
/// The largest cluster that any device takes.
pub const MAX_CLUSTER: u32 = 16;
/// The most bytes of parameters (CUDA 12.1 and later).
pub const MAX_PARAM_BYTES: usize = 32764;

/// Names of the dimensions, in errors.
const DIMS: [char; 3] = ['x', 'y', 'z'];

/// What a launch of an entry must look like: a [`LaunchSpec`] that may be made at run time.
///
/// ```
/// use mok::launch::{KernelSpec, Param};
///
/// let spec = KernelSpec::new("scale", 256).with_params(&[Param::Bytes(8), Param::Bytes(4)]);
/// assert_eq!(spec.threads, [256, 1, 1]);
/// assert_eq!(KernelSpec::from(mok_kernel::gemm::Form::Wgrad.spec(mok::Arch::Sm90a)).params.len(), 4);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSpec {
    /// Name of the entry.
    pub entry: String,
    /// Threads in a block along x, y and z; exact.
    pub threads: [u32; 3],
    /// Blocks in a cluster, along x; 1 launches without clusters.
    pub cluster: u32,
    /// Parameters in order.
    pub params: Vec<Param>,
    /// The most dynamic shared memory any launch uses, in bytes.
    pub max_shared: u32,
}

impl KernelSpec {
    /// An entry with this many threads along x, no parameters, no cluster, no shared memory.
    pub fn new(entry: impl Into<String>, threads: u32) -> KernelSpec {
        KernelSpec {
            entry: entry.into(),
            threads: [threads, 1, 1],
            cluster: 1,
            params: Vec::new(),
            max_shared: 0,
        }
    }

    /// Threads along x, y and z.
    pub fn with_threads(mut self, threads: [u32; 3]) -> Self {
        self.threads = threads;
        self
    }

    /// Parameters in order.
    pub fn with_params(mut self, params: &[Param]) -> Self {
        self.params = params.to_vec();
        self
    }

    /// Blocks in a cluster.
    pub fn with_cluster(mut self, cluster: u32) -> Self {
        self.cluster = cluster;
        self
    }

    /// So many blocks along x as whole clusters make, at most `blocks`, and one cluster at least.
    ///
    /// ```
    /// let spec = mok::launch::KernelSpec::new("scale", 256).with_cluster(2);
    /// assert_eq!([1, 7, 8].map(|blocks| spec.whole_clusters(blocks)), [2, 6, 8]);
    /// ```
    pub fn whole_clusters(&self, blocks: u32) -> u32 {
        // No launch with clusters of none passes its check.
        let cluster = self.cluster.max(1);
        (blocks / cluster * cluster).max(cluster)
    }

    /// The most dynamic shared memory any launch uses, in bytes.
    pub fn with_max_shared(mut self, bytes: u32) -> Self {
        self.max_shared = bytes;
        self
    }

    /// Checks the spec itself against a device and, where it's known, the loaded code.
    pub(crate) fn check(
        &self,
        limits: &DeviceLimits,
        max_threads: u32,
        static_shared: u32,
        params: Option<&[u32]>,
    ) -> Result<(), LaunchError> {
        let entry = || self.entry.clone();
        let threads: u128 = self.threads.iter().map(|&n| u128::from(n)).product();
        let max_threads = max_threads.min(limits.max_threads);
        if self.threads.contains(&0) || threads > max_threads.into() {
            return Err(LaunchError::SpecThreads {
                entry: entry(),
                threads: self.threads,
                limit: max_threads,
            });
        }
        for ((dim, value), limit) in DIMS.into_iter().zip(self.threads).zip(limits.max_block) {
            if value > limit {
                return Err(LaunchError::SpecBlock {
                    entry: entry(),
                    dim,
                    value,
                    limit,
                });
            }
        }
        let clusters = if limits.clusters { MAX_CLUSTER } else { 1 };
        if self.cluster == 0 || self.cluster > clusters {
            return Err(LaunchError::SpecCluster {
                entry: entry(),
                cluster: self.cluster,
                limit: clusters,
            });
        }
        let limit = limits.max_shared.saturating_sub(static_shared);
        if self.max_shared > limit {
            return Err(LaunchError::Shared {
                entry: entry(),
                bytes: self.max_shared,
                limit,
                of: "device",
            });
        }
        let bytes: usize = self.params.iter().map(|param| param.size() as usize).sum();
        if bytes > MAX_PARAM_BYTES {
            return Err(LaunchError::ParamBytes {
                entry: entry(),
                bytes,
                limit: MAX_PARAM_BYTES,
            });
        }
        let Some(params) = params else { return Ok(()) };
        if params.len() != self.params.len() {
            return Err(LaunchError::CodeArity {
                entry: entry(),
                spec: self.params.len(),
                code: params.len(),
            });
        }
        for (index, (spec, &code)) in self.params.iter().zip(params).enumerate() {
            if spec.size() != code {
                return Err(LaunchError::CodeParam {
                    entry: entry(),
                    index,
                    spec: spec.size(),
                    code,
                });
            }
        }
        Ok(())
    }
}

impl From<&LaunchSpec> for KernelSpec {
    fn from(spec: &LaunchSpec) -> KernelSpec {
        KernelSpec {
            entry: spec.entry.to_owned(),
            threads: [spec.threads, 1, 1],
            cluster: spec.cluster,
            params: spec.params.to_vec(),
            max_shared: spec.max_shared,
        }
    }
}

/// A launch that does not fit its spec, its code, or the device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The spec's threads do not fit the device or the code.
    #[error("{entry}: a block of {threads:?} threads is not 1 to {limit}")]
    SpecThreads {
        /// The entry.
        entry: String,
        /// Threads along x, y and z.
        threads: [u32; 3],
        /// The most in a block.
        limit: u32,
    },
    /// A dimension of the spec's block is over the device's limit.
    #[error("{entry}: block dimension {dim} is {value} threads, over {limit}")]
    SpecBlock {
        /// The entry.
        entry: String,
        /// `'x'`, `'y'` or `'z'`.
        dim: char,
        /// Threads.
        value: u32,
        /// The most.
        limit: u32,
    },
    /// The spec's cluster does not fit the device.
    #[error("{entry}: a cluster of {cluster} blocks is not 1 to {limit}")]
    SpecCluster {
        /// The entry.
        entry: String,
        /// Blocks in a cluster.
        cluster: u32,
        /// The most.
        limit: u32,
    },
    /// The parameters are too large.
    #[error("{entry}: {bytes} bytes of parameters are over {limit}")]
    ParamBytes {
        /// The entry.
        entry: String,
        /// All parameters.
        bytes: usize,
        /// The most.
        limit: usize,
    },
    /// The loaded code has another number of parameters than the spec.
    #[error("{entry}: the spec has {spec} parameters, the loaded code {code}")]
    CodeArity {
        /// The entry.
        entry: String,
        /// Parameters in the spec.
        spec: usize,
        /// Parameters in the code.
        code: usize,
    },
    /// A parameter of the loaded code has another size than in the spec.
    #[error("{entry}: parameter {index} is {spec} bytes in the spec and {code} in the loaded code")]
    CodeParam {
        /// The entry.
        entry: String,
        /// Which parameter.
        index: usize,
        /// Bytes in the spec.
        spec: u32,
        /// Bytes in the code.
        code: u32,
    },
    /// No grid was given.
    #[error("{entry}: no grid was given")]
    NoGrid {
        /// The entry.
        entry: String,
    },
    /// A grid dimension is 0 or over the device's limit.
    #[error("{entry}: grid dimension {dim} is {value}, not 1 to {limit}")]
    Grid {
        /// The entry.
        entry: String,
        /// `'x'`, `'y'` or `'z'`.
        dim: char,
        /// Blocks.
        value: u32,
        /// The most.
        limit: u32,
    },
    /// The grid is not whole clusters.
    #[error("{entry}: {value} blocks along x are not a multiple of the cluster of {cluster}")]
    GridCluster {
        /// The entry.
        entry: String,
        /// Blocks along x.
        value: u32,
        /// Blocks in a cluster.
        cluster: u32,
    },
    /// The block is not what the spec says.
    #[error("{entry}: {threads:?} threads, but the kernel is compiled for {spec:?}")]
    Threads {
        /// The entry.
        entry: String,
        /// Threads of the launch.
        threads: [u32; 3],
        /// Threads of the spec.
        spec: [u32; 3],
    },
    /// Too much dynamic shared memory.
    #[error("{entry}: {bytes} bytes of dynamic shared memory are over the {of}'s limit of {limit}")]
    Shared {
        /// The entry.
        entry: String,
        /// Bytes of the launch.
        bytes: u32,
        /// The most.
        limit: u32,
        /// Whose limit: `"spec"` or `"device"`.
        of: &'static str,
    },
    /// Wrong number of arguments.
    #[error("{entry}: {given} arguments, but it takes {spec}")]
    Arity {
        /// The entry.
        entry: String,
        /// Arguments given.
        given: usize,
        /// Parameters of the spec.
        spec: usize,
    },
    /// An argument is not of its parameter's kind and size.
    #[error("{entry}: argument {index} is {given:?}, but the parameter is {spec:?}")]
    Argument {
        /// The entry.
        entry: String,
        /// Which argument.
        index: usize,
        /// What was given.
        given: Param,
        /// What the spec says.
        spec: Param,
    },
}

/// Arguments are stored at the alignment of the strictest parameter.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(128))]
struct Chunk([u8; 128]);

/// A launch being put together; made by [`Kernel::launch`].
///
/// ```no_run
/// use mok::launch::{KernelSpec, Param};
///
/// let device = mok::Device::cuda(0)?;
/// let stream = device.stream()?;
/// let module = mok::Module::from_ptx(&device, &std::fs::read_to_string("scale.ptx").unwrap())?;
/// let spec = KernelSpec::new("scale", 256).with_params(&[Param::Bytes(8), Param::Bytes(4)]);
/// let kernel = module.kernel(spec)?;
/// let data = device.buffer_from(&[1.0f32; 1024])?;
/// // SAFETY: `scale` takes a pointer to 1,024 floats and a factor.
/// unsafe { kernel.launch().grid([4, 1, 1]).arg(&data.ptr()).arg(&2.0f32).enqueue(&stream) }?;
/// # Ok::<(), mok::Error>(())
/// ```
#[must_use = "a launch does nothing until it is enqueued"]
pub struct Launch<'k> {
    kernel: &'k Kernel,
    request: Request,
    chunks: Vec<Chunk>,
}

/// What a launch asks for.
#[derive(Clone, Debug, Default)]
struct Request {
    grid: Option<[u32; 3]>,
    threads: Option<[u32; 3]>,
    shared: u32,
    args: Vec<Param>,
}

impl<'k> Launch<'k> {
    pub(crate) fn new(kernel: &'k Kernel) -> Launch<'k> {
        Launch {
            kernel,
            request: Request::default(),
            chunks: Vec::new(),
        }
    }

    /// Blocks along x, y and z.
    pub fn grid(mut self, grid: [u32; 3]) -> Self {
        self.request.grid = Some(grid);
        self
    }

    /// Threads of a block; the spec's if never called, and no others pass the check.
    pub fn threads(mut self, threads: [u32; 3]) -> Self {
        self.request.threads = Some(threads);
        self
    }

    /// Dynamic shared memory in bytes; 0 if never called.
    pub fn shared(mut self, bytes: u32) -> Self {
        self.request.shared = bytes;
        self
    }

    /// The next argument, by value.
    pub fn arg<T: Pod>(mut self, value: &T) -> Self {
        // A size over u32 can't match any parameter, so saturating keeps the check right.
        let size = u32::try_from(size_of::<T>()).unwrap_or(u32::MAX);
        self.push(Param::Bytes(size), bytemuck::bytes_of(value));
        self
    }

    /// The next argument, a tensor map.
    pub fn map(mut self, map: &TensorMap) -> Self {
        self.push(Param::TensorMap, map.as_bytes());
        self
    }

    /// The next argument, tensor maps side by side.
    pub fn maps(mut self, maps: &[TensorMap]) -> Self {
        let bytes: Vec<u8> = maps
            .iter()
            .flat_map(|map| map.as_bytes().to_vec())
            .collect();
        let count = u32::try_from(maps.len()).unwrap_or(u32::MAX);
        self.push(Param::TensorMaps(count), &bytes);
        self
    }

    fn push(&mut self, param: Param, bytes: &[u8]) {
        self.request.args.push(param);
        for part in bytes.chunks(size_of::<Chunk>()) {
            let mut chunk = Chunk::zeroed();
            chunk.0[..part.len()].copy_from_slice(part);
            self.chunks.push(chunk);
        }
    }

    /// Checks the launch without making it.
    pub fn check(&self) -> Result<(), LaunchError> {
        let limits = self.kernel.backend().info().limits;
        self.request.check(self.kernel.spec(), &limits)
    }

    /// Checks the launch and enqueues it.
    ///
    /// # Safety
    /// The arguments are what the kernel takes them for: every address in them points to live
    /// memory of the size and contents that the kernel expects, which nothing else writes (or,
    /// where the kernel writes, touches) until the stream has passed the launch.
    pub unsafe fn enqueue(self, stream: &Stream) -> Result<()> {
        self.check()?;
        stream.check(self.kernel.backend(), "Launch::enqueue")?;
        let mut rest = bytemuck::cast_slice::<Chunk, u8>(&self.chunks);
        let mut args = Vec::with_capacity(self.request.args.len());
        for param in &self.request.args {
            let size = param.size() as usize;
            let (arg, after) = rest.split_at(size.next_multiple_of(size_of::<Chunk>()));
            args.push(&arg[..size]);
            rest = after;
        }
        let spec = self.kernel.spec();
        let raw = RawLaunch {
            function: self.kernel.function(),
            // `check` refuses a launch without a grid.
            grid: self.request.grid.unwrap_or_default(),
            threads: spec.threads,
            cluster: spec.cluster,
            shared: self.request.shared,
            stream: stream.handle(),
            args: &args,
        };
        // SAFETY: the kernel and stream live; number, kind and size of the arguments were checked
        // against the spec; the rest is this function's contract.
        unsafe { self.kernel.backend().launch(&raw) }
    }
}

impl fmt::Debug for Launch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("entry", &self.kernel.spec().entry)
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

impl Request {
    fn check(&self, spec: &KernelSpec, limits: &DeviceLimits) -> Result<(), LaunchError> {
        let entry = || spec.entry.clone();
        let threads = self.threads.unwrap_or(spec.threads);
        if threads != spec.threads {
            return Err(LaunchError::Threads {
                entry: entry(),
                threads,
                spec: spec.threads,
            });
        }
        let grid = self
            .grid
            .ok_or_else(|| LaunchError::NoGrid { entry: entry() })?;
        for ((dim, value), limit) in DIMS.into_iter().zip(grid).zip(limits.max_grid) {
            if value == 0 || value > limit {
                return Err(LaunchError::Grid {
                    entry: entry(),
                    dim,
                    value,
                    limit,
                });
            }
        }
        if !grid[0].is_multiple_of(spec.cluster.max(1)) {
            return Err(LaunchError::GridCluster {
                entry: entry(),
                value: grid[0],
                cluster: spec.cluster,
            });
        }
        let bytes = self.shared;
        if bytes > spec.max_shared {
            return Err(LaunchError::Shared {
                entry: entry(),
                bytes,
                limit: spec.max_shared,
                of: "spec",
            });
        }
        if bytes > limits.max_shared {
            return Err(LaunchError::Shared {
                entry: entry(),
                bytes,
                limit: limits.max_shared,
                of: "device",
            });
        }
        if self.args.len() != spec.params.len() {
            return Err(LaunchError::Arity {
                entry: entry(),
                given: self.args.len(),
                spec: spec.params.len(),
            });
        }
        for (index, (&given, &spec)) in self.args.iter().zip(&spec.params).enumerate() {
            if given != spec {
                return Err(LaunchError::Argument {
                    entry: entry(),
                    index,
                    given,
                    spec,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
