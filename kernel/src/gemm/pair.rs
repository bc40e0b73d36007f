//! The contract where pairs of blocks multiply together (`tcgen05`, sm_100a and sm_103a).
//!
//! Arguments, tensor maps and results are those of [`gemm`](super). A cluster of two blocks computes
//! one tile of D: each block has [`SIDE`] of its fixed side, and loads half of its wide side, which
//! the tensor cores of both read. A tile is twice as high and a third wider than Hopper's: its sums
//! stand in tensor memory, of which two tiles' fit, and not in the consumers' registers.

use super::{
    CONSUMERS, DGRAD as DGRAD_OF_BLOCKS, FORWARD as FORWARD_OF_BLOCKS, MAX_GROUPS, ORDER, PANELS,
    SIDE, STAGE_FIXED, STAGING, TILE_K, WGRAD as WGRAD_OF_BLOCKS,
};
use crate::launch::{LaunchSpec, MAX_SHARED};

/// Blocks that multiply together.
pub const BLOCKS: u32 = 2;
/// The most of a tile's wide side: the instruction's most, and half of tensor memory's columns.
pub const MAX_WIDTH: u32 = 256;
/// What the wide side is cut in multiples of where it is rows: the instruction's step.
pub const ROWS: u32 = 16;
/// Where it is columns: a whole panel for each block.
pub const COLUMNS: u32 = 128;
/// Stages of a block's ring. They take the memory that Hopper's take.
pub const STAGES: u32 = 5;
/// Bytes from one stage to the next: the fixed side, and half of the wide one.
pub const STAGE: u32 = STAGE_FIXED + MAX_WIDTH / BLOCKS * TILE_K * 2;
/// Tiles whose sums tensor memory holds.
pub const BUFFERS: u32 = 2;
/// Columns of tensor memory, all of them.
pub const TENSOR_COLUMNS: u32 = 512;
/// Columns from one tile's to the next's.
pub const BUFFER: u32 = TENSOR_COLUMNS / BUFFERS;
const _: () = assert!(MAX_WIDTH <= BUFFER);
/// Tiles on their way between a pair's warps: one that is loaded, one that is multiplied, one that
/// is brought out, and one that the dealer works out meanwhile.
pub const DEALS: u32 = 4;

/// Offsets of a block's dynamic shared memory, alike in both blocks of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairPlan {
    /// The fixed side of the first stage; the others' follow [`STAGE`] bytes apart.
    pub fixed: u32,
    /// The block's half of the wide side likewise.
    pub wide: u32,
    /// The consumers' ways out, [`STAGING`] bytes each: for wgrad, their panels.
    pub staging: u32,
    /// [`DEALS`] tiles ([`ORDER`] bytes each).
    pub deals: u32,
    /// The first of the mbarriers: [`sync::pair`](crate::sync::pair) says which there are.
    pub barriers: u32,
    /// Where the address of tensor memory is.
    pub tensor: u32,
    /// Group table, as in [`SharedPlan`](super::SharedPlan); the leader's only.
    pub table: u32,
    /// All of it: the launch's dynamic shared memory.
    pub bytes: u32,
}

/// Barriers of the ring: four a stage.
pub const RING_BARRIERS: u32 = 4 * STAGES;
/// All barriers: the ring's, two a deal, two a buffer, and two a panel.
pub const BARRIERS: u32 = RING_BARRIERS + 2 * DEALS + 2 * BUFFERS + 2 * CONSUMERS * PANELS;

/// The shared-memory plan for this many groups.
pub const fn shared_plan(groups: u32) -> PairPlan {
    let fixed = 0;
    let staging = fixed + STAGES * STAGE;
    let deals = staging + CONSUMERS * STAGING;
    let barriers = deals + DEALS * ORDER;
    let tensor = barriers + 8 * BARRIERS;
    let table = tensor + 8;
    PairPlan {
        fixed,
        wide: fixed + STAGE_FIXED,
        staging,
        deals,
        barriers,
        tensor,
        table,
        bytes: table + 4 * (4 * groups + 2),
    }
}

/// The spec for pairs of an entry for single blocks.
pub const fn of(spec: &LaunchSpec) -> LaunchSpec {
    let max_shared = shared_plan(MAX_GROUPS).bytes;
    assert!(max_shared <= MAX_SHARED && SIDE.is_multiple_of(64));
    LaunchSpec {
        cluster: BLOCKS,
        max_shared,
        ..*spec
    }
}

/// `mok_gemm_forward`.
pub static FORWARD: LaunchSpec = of(&FORWARD_OF_BLOCKS);
/// `mok_gemm_dgrad`.
pub static DGRAD: LaunchSpec = of(&DGRAD_OF_BLOCKS);
/// `mok_gemm_wgrad`.
pub static WGRAD: LaunchSpec = of(&WGRAD_OF_BLOCKS);
