//! The grouped GEMM's contract: tiles, shared memory, arguments, launch specs.
//!
//! Rows of all groups stand in one matrix of `capacity` rows. Group `g` has
//! `group_rows[g]` rows (read from device memory) and starts where the rows of
//! the groups before it end, each rounded up to [`ROW_ALIGN`]. Rows between a
//! group's end and the next start are padding: never written, never summed.
//!
//! | form | D | A | B |
//! |---|---|---|---|
//! | forward | `D[r, n] = sum_k A[r, k] B[g, n, k]` | `[capacity, K]` | `[G, N, K]` |
//! | dgrad | `D[r, n] = sum_k A[r, k] B[g, k, n]` | `[capacity, K]` | `[G, K, N]` |
//! | wgrad | `D[g, m, n] = sum_r A[r, m] B[r, n]` over the group's rows | `[capacity, M]` | `[capacity, N]` |
//!
//! One tile of D, on Hopper, is a tensor-core product of [`SIDE`] by up to [`MAX_WIDTH`]. Its fixed side
//! (the instruction's M) holds what comes in round numbers, its wide side (N, in steps of 8)
//! what is ragged:
//!
//! | form | fixed side | wide side |
//! |---|---|---|
//! | forward, dgrad | columns of D, from the weights | rows of a group |
//! | wgrad | rows of D | columns of D |
//!
//! Sums are f32, in the tensor cores' own order, over [`CHUNK`] of the contraction; the chunks'
//! sums are added in order by ordinary f32 additions. Hopper's tensor cores truncate each partial
//! sum, so that one long sum drifts: unchunked, 7,168 terms put a layer's output 1.24e-3 off the
//! rounded float64 sums, and 262,000 rows of one group a weight gradient 1.2e-3.
//!
//! On Blackwell pairs of blocks compute larger tiles: [`pair`].

use bytemuck::{Pod, Zeroable};

use crate::arch::Arch;
use crate::launch::{LaunchSpec, MAX_SHARED, Param};

pub mod model;
pub mod pair;

/// Every group starts at a multiple of this many rows.
pub const ROW_ALIGN: u32 = 128;
/// A tile's fixed side: 64 for each of the two consumer warpgroups.
pub const SIDE: u32 = 128;
/// The most of a tile's wide side: each thread of a consumer holds half as many f32 twice.
pub const MAX_WIDTH: u32 = 192;
/// Contraction depth that the tensor cores sum on their own, in stages.
pub const CHUNK: u32 = 8;
/// Contraction depth of one pipeline stage: 128 bytes of bf16, one swizzle row.
pub const TILE_K: u32 = 64;
/// Stages of the ring between the TMA producer and the tensor cores.
pub const STAGES: u32 = 4;
/// Warpgroups that multiply.
pub const CONSUMERS: u32 = 2;
/// One producer warpgroup and the consumers.
pub const THREADS: u32 = 128 * (1 + CONSUMERS);
/// The most groups one launch takes (the group table lives in shared memory).
pub const MAX_GROUPS: u32 = 1024;
/// The most rows and columns of a matrix: tensor copies take signed 32-bit coordinates, and fill
/// what lies at negative ones with zeros.
pub const MAX_EXTENT: u32 = 1 << 31;

/// Bytes of the fixed side in one stage.
pub const STAGE_FIXED: u32 = SIDE * TILE_K * 2;
/// Most bytes of the wide side in one stage.
pub const STAGE_WIDE: u32 = MAX_WIDTH * TILE_K * 2;
/// Bytes from one stage to the next.
pub const STAGE: u32 = STAGE_FIXED + STAGE_WIDE;
/// Bytes in which one consumer warpgroup stages its half of a tile on its way out.
pub const STAGING: u32 = 64 * MAX_WIDTH * 2;
/// Bytes of a panel of D: 64 rows of 128 bytes.
pub const PANEL_BYTES: u32 = 64 * 128;
/// Panels that a consumer has room for.
pub const PANELS: u32 = STAGING / PANEL_BYTES;
const _: () = assert!(PANELS * PANEL_BYTES == STAGING);

/// Warps that fill a panel.
pub const PANEL_WARPS: u32 = 4;

/// Tiles of wgrad on their way between a block's warps: one that is carried to D, one that is multiplied
/// and whose old panels are fetched, one that is loaded, and one that the dealer works out meanwhile.
pub const DEALS: u32 = 4;

/// Bytes that describe one tile to the warps of a block.
pub const ORDER: u32 = 32;

/// Words of [`GemmArgs::tickets`]: tiles drawn of each class, and blocks that have ended.
pub const TICKETS: u32 = 3;

/// Which of the three products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// `D[r, n] = sum_k A[r, k] B[g, n, k]`.
    Forward,
    /// `D[r, n] = sum_k A[r, k] B[g, k, n]`.
    Dgrad,
    /// `D[g, m, n] = sum_r A[r, m] B[r, n]`.
    Wgrad,
}

impl Form {
    /// All of them.
    pub const ALL: [Form; 3] = [Form::Forward, Form::Dgrad, Form::Wgrad];

    /// Launch spec of the form's entry.
    pub const fn spec(self, arch: Arch) -> &'static LaunchSpec {
        match (self, arch.pairs()) {
            (Form::Forward, false) => &FORWARD,
            (Form::Dgrad, false) => &DGRAD,
            (Form::Wgrad, false) => &WGRAD,
            (Form::Forward, true) => &pair::FORWARD,
            (Form::Dgrad, true) => &pair::DGRAD,
            (Form::Wgrad, true) => &pair::WGRAD,
        }
    }

    /// The field's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Forward => "forward",
            Form::Dgrad => "dgrad",
            Form::Wgrad => "wgrad",
        }
    }
}

/// Where a product goes. Forward and dgrad take [`Sink::Bf16`] only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Sink {
    /// Fresh bf16, rounded once. A group without rows gets zeros.
    Bf16 = 0,
    /// Fresh f32. A group without rows gets zeros.
    F32 = 1,
    /// Added to f32. A group without rows is left untouched.
    AddF32 = 2,
    /// Added to bf16: the sum in f32, rounded once. A group without rows is left untouched.
    AddBf16 = 3,
}

impl Sink {
    /// All of them.
    pub const ALL: [Sink; 4] = [Sink::Bf16, Sink::F32, Sink::AddF32, Sink::AddBf16];

    /// Bytes of one element of D.
    pub const fn element_size(self) -> u32 {
        match self {
            Sink::Bf16 | Sink::AddBf16 => 2,
            Sink::F32 | Sink::AddF32 => 4,
        }
    }

    /// Whether the old contents of D count.
    pub const fn adds(self) -> bool {
        matches!(self, Sink::AddF32 | Sink::AddBf16)
    }
}

/// Arguments of the three entries, after the tensor maps of A, one for each box of it, B and D.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct GemmArgs {
    /// Device address of D, 16-byte aligned.
    pub d: u64,
    /// Elements from one row of D to the next.
    pub d_row_stride: u64,
    /// Elements from one group of D to the next (wgrad).
    pub d_group_stride: u64,
    /// Device address of `u32 [groups]`: rows of each group.
    pub group_rows: u64,
    /// Device address of one `u64`, or 0. When the groups need more rows than
    /// `capacity`, it is raised to the number needed, and rows past the capacity
    /// are not computed. Otherwise untouched.
    pub overflow: u64,
    /// Device address of [`TICKETS`] `u64`s, all zero; they are zero again when the launch has ended,
    /// and no other launch in flight uses them.
    pub tickets: u64,
    /// Number of groups, at most [`MAX_GROUPS`].
    pub groups: u32,
    /// Rows of A (and of D, or of B in wgrad), at most [`MAX_EXTENT`] like `m`, `n` and `k`.
    pub capacity: u32,
    /// Rows of D in a group (wgrad); unused otherwise.
    pub m: u32,
    /// Columns of D.
    pub n: u32,
    /// Contraction length (forward, dgrad); unused in wgrad.
    pub k: u32,
    /// A [`Sink`], by its number.
    pub sink: u32,
}

/// Offsets of a block's dynamic shared memory.
///
/// The dynamic base is 1,024-byte aligned, as the 128-byte swizzle needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedPlan {
    /// The fixed side of the first stage; the others' follow [`STAGE`] bytes apart.
    pub fixed: u32,
    /// The wide side likewise.
    pub wide: u32,
    /// The consumers' ways out, [`STAGING`] bytes each: for wgrad, their panels.
    pub staging: u32,
    /// `STAGES` mbarriers: the stage's bytes have arrived.
    pub full: u32,
    /// `STAGES` mbarriers: the stage has been consumed.
    pub empty: u32,
    /// `STAGES` mbarriers, for wgrad: rows of the stage that are no one's have been cleared.
    pub clear: u32,
    /// [`PANELS`] mbarriers for each consumer, for wgrad: the panel may be filled.
    pub open: u32,
    /// As many: it has been.
    pub ready: u32,
    /// For wgrad, [`DEALS`] tiles ([`ORDER`] bytes each).
    pub deals: u32,
    /// As many mbarriers: there is a tile.
    pub dealt: u32,
    /// Likewise: the producer and the carrier have it.
    pub taken: u32,
    /// An mbarrier: the producer has the tile dealt last.
    pub wanted: u32,
    /// `STAGES` times what the producer tells the others of a tile ([`ORDER`] bytes).
    pub orders: u32,
    /// Group table: `first_tile [2][groups + 1]`, `row_start [groups]`, `rows [groups]`, all u32.
    pub table: u32,
    /// All of it: the launch's dynamic shared memory.
    pub bytes: u32,
}

/// The shared-memory plan for this many groups.
pub const fn shared_plan(groups: u32) -> SharedPlan {
    let fixed = 0;
    let wide = fixed + STAGE_FIXED;
    let staging = fixed + STAGES * STAGE;
    let orders = staging + CONSUMERS * STAGING;
    let deals = orders + STAGES * ORDER;
    let full = deals + DEALS * ORDER;
    let empty = full + STAGES * 8;
    let clear = empty + STAGES * 8;
    let open = clear + STAGES * 8;
    let ready = open + CONSUMERS * PANELS * 8;
    let dealt = ready + CONSUMERS * PANELS * 8;
    let taken = dealt + DEALS * 8;
    let wanted = taken + DEALS * 8;
    let table = wanted + 8;
    SharedPlan {
        fixed,
        wide,
        staging,
        full,
        empty,
        clear,
        open,
        ready,
        deals,
        dealt,
        taken,
        wanted,
        orders,
        table,
        bytes: table + 4 * (4 * groups + 2),
    }
}

/// Bytes of dynamic shared memory that a launch for this many groups takes.
pub const fn shared_bytes(arch: Arch, groups: u32) -> u32 {
    if arch.pairs() {
        pair::shared_plan(groups).bytes
    } else {
        shared_plan(groups).bytes
    }
}

const ARGS: Param = Param::Bytes(size_of::<GemmArgs>() as u32);
/// A in all of its boxes, B, D.
const OF_ROWS: &[Param] = &[
    Param::TensorMap,
    Param::TensorMap,
    Param::TensorMap,
    Param::TensorMap,
    Param::TensorMap,
    ARGS,
];
/// A, B, D.
const OF_WGRAD: &[Param] = &[Param::TensorMap, Param::TensorMap, Param::TensorMap, ARGS];
const _: () = assert!(OF_ROWS.len() == boxes::ROWS.len() + 3 && boxes::ROWS.len() == 3);

const fn spec(entry: &'static str, params: &'static [Param]) -> LaunchSpec {
    let max_shared = shared_plan(MAX_GROUPS).bytes;
    assert!(max_shared <= MAX_SHARED);
    LaunchSpec {
        entry,
        threads: THREADS,
        min_blocks: 1,
        cluster: 1,
        params,
        max_shared,
    }
}

/// `mok_gemm_forward`.
pub static FORWARD: LaunchSpec = spec("mok_gemm_forward", OF_ROWS);
/// `mok_gemm_dgrad`.
pub static DGRAD: LaunchSpec = spec("mok_gemm_dgrad", OF_ROWS);
/// `mok_gemm_wgrad`.
pub static WGRAD: LaunchSpec = spec("mok_gemm_wgrad", OF_WGRAD);

/// The boxes that the entries' tensor maps must have, innermost dimension first
/// (128-byte swizzle, bf16). Maps of A are 2D `(inner, rows)`; maps of B are 3D
/// `(inner, outer, group)`, wgrad's B 2D like its A.
///
/// K-major operands load one box a stage; MN-major operands load one box for
/// each panel of 64 columns.
pub mod boxes {
    use super::{SIDE, TILE_K};

    /// Columns of one MN-major panel: 128 bytes of bf16.
    pub const PANEL: u32 = 64;
    /// Rows of A in one box, forward and dgrad: a tile loads the boxes that its width is the sum of.
    pub const ROWS: [u32; 3] = [128, 32, 8];
    /// Forward and dgrad, A, with this many rows.
    pub const fn rows_a(rows: u32) -> [u32; 2] {
        [TILE_K, rows]
    }
    /// Forward, B `(k, n, group)`.
    pub const FORWARD_B: [u32; 3] = [TILE_K, SIDE, 1];
    /// Dgrad, B `(n, k, group)`.
    pub const DGRAD_B: [u32; 3] = [PANEL, TILE_K, 1];
    /// Wgrad, A and B `(columns, rows)`.
    pub const WGRAD: [u32; 2] = [PANEL, TILE_K];
    /// Forward and dgrad, D `(columns, rows)`: what a group's rows come in.
    pub const ROWS_D: [u32; 2] = [PANEL, 8];
    /// Wgrad, D `(columns, rows, group)` in bf16.
    pub const WGRAD_D: [u32; 3] = [PANEL, 64, 1];
    /// Wgrad, D in f32: 128 bytes a row as well.
    pub const WGRAD_D_F32: [u32; 3] = [PANEL / 2, 64, 1];
}
