//! Launch specs and arguments of the probes.

use bytemuck::{Pod, Zeroable};
use mok_kernel::arch::Arch;
use mok_kernel::launch::{LaunchSpec, Param};
use mok_kernel::{gate_up, gemm};

/// Arguments of most probes.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct ProbeArgs {
    /// Device address of the input.
    pub input: u64,
    /// Device address of the output.
    pub output: u64,
    /// Tensor coordinates, innermost first.
    pub at: [i32; 5],
    /// Bytes of the box or copy.
    pub bytes: u32,
    /// Which variant.
    pub mode: u32,
    /// Free.
    pub extra: u32,
}

/// Arguments of the naive GEMM: one thread an element of D, f32 sums in order of k.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct NaiveArgs {
    /// Device address of bf16 A.
    pub a: u64,
    /// Device address of bf16 B.
    pub b: u64,
    /// Device address of f32 D, dense; only rows of groups are written.
    pub d: u64,
    /// Device address of `u32 [groups]`: first row of each group.
    pub starts: u64,
    /// Device address of `u32 [groups]`: rows of each group.
    pub rows: u64,
    /// Rows of D in a group for wgrad, the number of groups otherwise.
    pub m: u32,
    /// Columns of D.
    pub n: u32,
    /// Contraction length of forward and dgrad.
    pub k: u32,
    /// 0 forward, 1 dgrad, 2 wgrad.
    pub form: u32,
}

/// Arguments of the comparison of a result with f32 sums.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct CompareArgs {
    /// Device address of D, dense.
    pub d: u64,
    /// Device address of f32 sums, dense.
    pub reference: u64,
    /// Device address of three words a row.
    pub output: u64,
    /// Columns.
    pub n: u32,
    /// 0 if D is bf16, 1 if f32.
    pub wide: u32,
}

const ARGS: &[Param] = &[Param::Bytes(size_of::<ProbeArgs>() as u32)];
const MAPS: &[Param] = &[
    Param::TensorMap,
    Param::TensorMap,
    Param::TensorMap,
    Param::Bytes(size_of::<ProbeArgs>() as u32),
];
const TWO_MAPS: &[Param] = &[
    Param::TensorMap,
    Param::TensorMap,
    Param::Bytes(size_of::<ProbeArgs>() as u32),
];

const fn spec(
    entry: &'static str,
    threads: u32,
    cluster: u32,
    params: &'static [Param],
) -> LaunchSpec {
    LaunchSpec {
        entry,
        threads,
        min_blocks: 1,
        cluster,
        params,
        max_shared: 64 * 1024,
    }
}

macro_rules! specs {
    ($($(#[$doc:meta])* $name:ident = $spec:expr;)*) => {
        $($(#[$doc])* pub static $name: LaunchSpec = $spec;)*
        /// Every probe for Hopper.
        pub static ALL: &[&LaunchSpec] = &[$(&$name),*];
    };
}

const fn warp_gemm(entry: &'static str, like: &LaunchSpec) -> LaunchSpec {
    LaunchSpec { entry, ..*like }
}

specs! {
    /// Bulk copies in and out, mbarriers in every way of waiting.
    BULK = spec("probe_bulk", 64, 1, ARGS);
    /// 1D tensor load, store and reduction.
    TMA_1D = spec("probe_tma_1d", 32, 1, MAPS);
    /// 2D.
    TMA_2D = spec("probe_tma_2d", 32, 1, MAPS);
    /// 3D.
    TMA_3D = spec("probe_tma_3d", 32, 1, MAPS);
    /// 4D.
    TMA_4D = spec("probe_tma_4d", 32, 1, MAPS);
    /// 5D.
    TMA_5D = spec("probe_tma_5d", 32, 1, MAPS);
    /// 1D tensor load to both blocks of a cluster.
    MULTICAST_1D = spec("probe_multicast_1d", 32, 2, MAPS);
    /// 2D.
    MULTICAST_2D = spec("probe_multicast_2d", 32, 2, MAPS);
    /// 3D.
    MULTICAST_3D = spec("probe_multicast_3d", 32, 2, MAPS);
    /// 4D.
    MULTICAST_4D = spec("probe_multicast_4d", 32, 2, MAPS);
    /// 5D.
    MULTICAST_5D = spec("probe_multicast_5d", 32, 2, MAPS);
    /// Distributed shared memory, remote arrivals, bulk copies between blocks and to all of them.
    CLUSTER = spec("probe_cluster", 64, 4, ARGS);
    /// ldmatrix and stmatrix.
    MATRIX = spec("probe_matrix", 32, 1, ARGS);
    /// Shuffles, votes, registers, timers, conversions, named barriers.
    WARP = spec("probe_warp", 128, 1, ARGS);
    /// Scoped atomics, message passing between blocks.
    ATOMICS = spec("probe_atomics", 128, 1, ARGS);
    /// A tensor map in device memory.
    MAP_IN_MEMORY = spec("probe_map_in_memory", 32, 1, ARGS);
    /// A planted race: shared memory read before its bulk copy has arrived.
    RACE_ASYNC = spec("probe_race_async", 64, 1, ARGS);
    /// A planted race between ordinary accesses.
    RACE_PLAIN = spec("probe_race_plain", 64, 1, ARGS);
    /// An independent GEMM in f32.
    NAIVE_GEMM = spec("probe_naive_gemm", 256, 1, &[Param::Bytes(size_of::<NaiveArgs>() as u32)]);
    /// Compares a result with sums.
    COMPARE_ROWS = spec("probe_compare_rows", 256, 1, &[Param::Bytes(size_of::<CompareArgs>() as u32)]);
    /// The grouped GEMM on `mma.sync`, as on any architecture.
    WARP_FORWARD = warp_gemm("probe_gemm_forward", &gemm::FORWARD);
    /// Likewise.
    WARP_DGRAD = warp_gemm("probe_gemm_dgrad", &gemm::DGRAD);
    /// Likewise.
    WARP_WGRAD = warp_gemm("probe_gemm_wgrad", &gemm::WGRAD);
    /// Likewise.
    WARP_GATE_UP = warp_gemm("probe_gate_up", &gate_up::GATE_UP);
    /// wgmma with N = 8.
    WGMMA_8 = spec("probe_wgmma_8", 128, 1, TWO_MAPS);
    /// N = 16.
    WGMMA_16 = spec("probe_wgmma_16", 128, 1, TWO_MAPS);
    /// N = 24.
    WGMMA_24 = spec("probe_wgmma_24", 128, 1, TWO_MAPS);
    /// N = 32.
    WGMMA_32 = spec("probe_wgmma_32", 128, 1, TWO_MAPS);
    /// N = 40.
    WGMMA_40 = spec("probe_wgmma_40", 128, 1, TWO_MAPS);
    /// N = 48.
    WGMMA_48 = spec("probe_wgmma_48", 128, 1, TWO_MAPS);
    /// N = 56.
    WGMMA_56 = spec("probe_wgmma_56", 128, 1, TWO_MAPS);
    /// N = 64.
    WGMMA_64 = spec("probe_wgmma_64", 128, 1, TWO_MAPS);
    /// N = 72.
    WGMMA_72 = spec("probe_wgmma_72", 128, 1, TWO_MAPS);
    /// N = 80.
    WGMMA_80 = spec("probe_wgmma_80", 128, 1, TWO_MAPS);
    /// N = 88.
    WGMMA_88 = spec("probe_wgmma_88", 128, 1, TWO_MAPS);
    /// N = 96.
    WGMMA_96 = spec("probe_wgmma_96", 128, 1, TWO_MAPS);
    /// N = 104.
    WGMMA_104 = spec("probe_wgmma_104", 128, 1, TWO_MAPS);
    /// N = 112.
    WGMMA_112 = spec("probe_wgmma_112", 128, 1, TWO_MAPS);
    /// N = 120.
    WGMMA_120 = spec("probe_wgmma_120", 128, 1, TWO_MAPS);
    /// N = 128.
    WGMMA_128 = spec("probe_wgmma_128", 128, 1, TWO_MAPS);
    /// N = 136.
    WGMMA_136 = spec("probe_wgmma_136", 128, 1, TWO_MAPS);
    /// N = 144.
    WGMMA_144 = spec("probe_wgmma_144", 128, 1, TWO_MAPS);
    /// N = 152.
    WGMMA_152 = spec("probe_wgmma_152", 128, 1, TWO_MAPS);
    /// N = 160.
    WGMMA_160 = spec("probe_wgmma_160", 128, 1, TWO_MAPS);
    /// N = 168.
    WGMMA_168 = spec("probe_wgmma_168", 128, 1, TWO_MAPS);
    /// N = 176.
    WGMMA_176 = spec("probe_wgmma_176", 128, 1, TWO_MAPS);
    /// N = 184.
    WGMMA_184 = spec("probe_wgmma_184", 128, 1, TWO_MAPS);
    /// N = 192.
    WGMMA_192 = spec("probe_wgmma_192", 128, 1, TWO_MAPS);
    /// N = 200.
    WGMMA_200 = spec("probe_wgmma_200", 128, 1, TWO_MAPS);
    /// N = 208.
    WGMMA_208 = spec("probe_wgmma_208", 128, 1, TWO_MAPS);
    /// N = 216.
    WGMMA_216 = spec("probe_wgmma_216", 128, 1, TWO_MAPS);
    /// N = 224.
    WGMMA_224 = spec("probe_wgmma_224", 128, 1, TWO_MAPS);
    /// N = 232.
    WGMMA_232 = spec("probe_wgmma_232", 128, 1, TWO_MAPS);
    /// N = 240.
    WGMMA_240 = spec("probe_wgmma_240", 128, 1, TWO_MAPS);
    /// N = 248.
    WGMMA_248 = spec("probe_wgmma_248", 128, 1, TWO_MAPS);
    /// N = 256.
    WGMMA_256 = spec("probe_wgmma_256", 128, 1, TWO_MAPS);
}

/// Copies to tensor memory.
pub static TENSOR_COPY: LaunchSpec = spec("probe_tensor_copy", 128, 2, ARGS);
/// Products of pairs of blocks.
pub static MMA_PAIR: LaunchSpec = spec("probe_mma_pair", 128, 2, ARGS);
/// Likewise in MXFP8.
pub static MMA_SCALED: LaunchSpec = spec("probe_mma_scaled", 128, 2, ARGS);
/// Commits to either block, or both.
pub static COMMIT: LaunchSpec = spec("probe_commit", 128, 2, ARGS);
/// Tensor memory handed from readers back to products.
pub static TENSOR_HANDBACK: LaunchSpec = spec("probe_tensor_handback", 128, 2, ARGS);

/// The probes of tensor memory.
pub static TCGEN05: &[&LaunchSpec] = &[
    &TENSOR_COPY,
    &MMA_PAIR,
    &MMA_SCALED,
    &COMMIT,
    &TENSOR_HANDBACK,
];

/// The probes that are built for an architecture.
pub fn of(arch: Arch) -> &'static [&'static LaunchSpec] {
    match arch {
        Arch::Sm90a => ALL,
        Arch::Sm100a => TCGEN05,
        Arch::Sm103a => &[],
    }
}

/// The probe of wgmma for each N.
pub static WGMMA: [(u32, &LaunchSpec); 32] = [
    (8, &WGMMA_8),
    (16, &WGMMA_16),
    (24, &WGMMA_24),
    (32, &WGMMA_32),
    (40, &WGMMA_40),
    (48, &WGMMA_48),
    (56, &WGMMA_56),
    (64, &WGMMA_64),
    (72, &WGMMA_72),
    (80, &WGMMA_80),
    (88, &WGMMA_88),
    (96, &WGMMA_96),
    (104, &WGMMA_104),
    (112, &WGMMA_112),
    (120, &WGMMA_120),
    (128, &WGMMA_128),
    (136, &WGMMA_136),
    (144, &WGMMA_144),
    (152, &WGMMA_152),
    (160, &WGMMA_160),
    (168, &WGMMA_168),
    (176, &WGMMA_176),
    (184, &WGMMA_184),
    (192, &WGMMA_192),
    (200, &WGMMA_200),
    (208, &WGMMA_208),
    (216, &WGMMA_216),
    (224, &WGMMA_224),
    (232, &WGMMA_232),
    (240, &WGMMA_240),
    (248, &WGMMA_248),
    (256, &WGMMA_256),
];
