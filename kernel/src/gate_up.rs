//! The contract of gate-and-up: a layer's first two products and SwiGLU in one launch.
//!
//! | | |
//! |---|---|
//! | `G[r, i] = bf16(sum_k X[r, k] gate[g, i, k])` | kept if the caller wants it |
//! | `U[r, i] = bf16(sum_k X[r, k] up[g, i, k])` | kept if the caller wants it |
//! | `H[r, i] = bf16(silu(G[r, i]) * U[r, i])` | after the clamps of `limit` |
//!
//! Groups, rows and padding are as in [`gemm`](crate::gemm), and so are shared memory, threads and
//! sums: it is the forward product of a matrix whose rows alternate, eight of gate, then the eight
//! of up that belong to the same columns of H. A thread of a consumer holds rows 8 apart of the
//! product, so G and U of one element meet in it, and neither has to travel through memory.
//!
//! A tile has 64 columns of H: for each consumer 32, in the half of 128 columns that it has in the
//! forward product too. Consumers add up their chunks at different depths, so G and U get the bits
//! that two products on their own would give them.
//!
//! One tensor map shows both weights as that matrix. It needs them to lie alike: the same strides,
//! and one distance from gate to up for all groups.

use bytemuck::{Pod, Zeroable};

use crate::arch::Arch;
use crate::gemm::{CONSUMERS, GemmArgs, MAX_GROUPS, SIDE, THREADS, TILE_K, pair, shared_plan};
use crate::launch::{LaunchSpec, Param};

/// Rows of one weight that stand together.
pub const ALTERNATION: u32 = 8;
/// Columns of H that a consumer has of a tile: gate's and up's rows share its 64.
pub const HALF: u32 = SIDE / CONSUMERS / 2;
/// Columns between those of one consumer and the next's.
pub const APART: u32 = SIDE / CONSUMERS;

/// Arguments of `mok_gate_up`, after the tensor maps of X, one for each of its
/// [boxes](crate::gemm::boxes::ROWS), and of the weights.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct GateUpArgs {
    /// The product's: `d` is H, `n` its columns, `k` X's.
    pub gemm: GemmArgs,
    /// Device address of G, 16-byte aligned, or 0.
    pub gate: u64,
    /// Device address of U, if G has one.
    pub up: u64,
    /// Elements from one row of G to the next.
    pub gate_row_stride: u64,
    /// Elements from one row of U to the next.
    pub up_row_stride: u64,
    /// G is at most this, U within plus and minus it; an f32's bits.
    pub limit: u32,
    /// 1 where up lies before gate, so that the matrix has its rows first.
    pub up_first: u32,
}

/// The weights' box for one consumer, innermost dimension first: K, the rows that stand together,
/// gate and up, the steps of [`ALTERNATION`] rows, groups. 128-byte swizzle.
pub const WEIGHTS: [u32; 5] = [TILE_K, ALTERNATION, 2, HALF / ALTERNATION, 1];

/// `mok_gate_up`.
pub static GATE_UP: LaunchSpec = LaunchSpec {
    entry: "mok_gate_up",
    threads: THREADS,
    min_blocks: 1,
    cluster: 1,
    params: &[
        Param::TensorMap,
        Param::TensorMap,
        Param::TensorMap,
        Param::TensorMap,
        Param::Bytes(size_of::<GateUpArgs>() as u32),
    ],
    max_shared: shared_plan(MAX_GROUPS).bytes,
};

/// `mok_gate_up` where pairs of blocks multiply together.
pub static GATE_UP_PAIR: LaunchSpec = pair::of(&GATE_UP);

/// Launch spec of the entry.
pub const fn spec(arch: Arch) -> &'static LaunchSpec {
    if arch.pairs() {
        &GATE_UP_PAIR
    } else {
        &GATE_UP
    }
}
