//! The contract of a forward pass in one launch: staging, the wait for the other ranks' tokens, dispatch, the products
//! and the activation, combine, the wait for their results, the weighted sum.
//!
//! It computes what the [separate launches](crate::unfused) do, with the same bits, from the same schedule
//! and over the same symmetric memory; ranks that launch it and ranks that don't can meet. The shared
//! expert's rows are the rank's own tokens. [`schedule::forward`](crate::schedule::forward) has the order
//! of its tasks.
//!
//! A launch leaves its [words](word) as it found them, all zero: the last block to end clears them, after
//! all others have ended. So a captured graph can be replayed, and what a failed pass left can't be taken for
//! the next one's.

use bytemuck::{Pod, Zeroable};

use crate::arch::Arch;
use crate::gate_up::GateUpArgs;
use crate::gemm::{CONSUMERS, GemmArgs, MAX_GROUPS, THREADS, pair, shared_plan};
use crate::launch::{LaunchSpec, Param};
use crate::schedule::grouped::{ByBlock, ByPair, Tiling};
use crate::unfused::{MoveArgs, WeighArgs};

/// The products of the routed experts, or of the shared one.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ExpertArgs {
    /// Gate and up; nothing is kept. Tickets and overflow are unused.
    pub gate_up: GateUpArgs,
    /// Down, likewise.
    pub down: GemmArgs,
}

/// Arguments of `mok_forward`, after the tensor maps: for the routed experts and for the shared one, X in its
/// [boxes](crate::gemm::boxes::ROWS), gate and up, H in its boxes, down, and where its product goes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ForwardArgs {
    /// Dispatch and combine: `pass_sizes` and `row_total` are unused, the matrix is a ring.
    pub moves: MoveArgs,
    /// The weighted sum; its tokens and its rank are the pass's.
    pub weigh: WeighArgs,
    /// On the ring's rows; `capacity` is the schedule's.
    pub routed: ExpertArgs,
    /// On the rank's tokens; no groups if there is none.
    pub shared: ExpertArgs,
    /// Device address of [`words`] `u64`, all zero before and after.
    pub words: u64,
    /// Device address of `bf16 [tokens][hidden]`.
    pub x: u64,
    /// Nanoseconds that the others' tokens are waited for.
    pub tokens_deadline: u64,
    /// Nanoseconds that the others' results are waited for.
    pub results_deadline: u64,
    /// Strips that there are words for: of the routed experts.
    pub strips: u32,
    /// Places of the ring that [`moves`](Self::moves)' matrix and H are, at least
    /// [`LEAST_PLACES`](crate::schedule::forward::LEAST_PLACES).
    pub places: u32,
    /// Strips of a minibatch, at least 1; at least [`MINIBATCHES`](crate::schedule::forward::MINIBATCHES) of them
    /// have places.
    pub minibatch: u32,
    /// Records of each stream of the [trace](crate::trace).
    pub trace_records: u32,
    /// Device address of the trace, or 0.
    pub trace: u64,
}

/// Indices of the words. For each strip there are then as many words as [`STEPS`], strips first; and one
/// for each of the shared expert's.
pub mod word {
    /// Tiles drawn.
    pub const TILES: u32 = 0;
    /// Moves drawn.
    pub const MOVES: u32 = 1;
    /// Blocks that have ended.
    pub const ENDED: u32 = 2;
    /// Pieces of the rank's tokens that have been staged.
    pub const STAGED: u32 = 3;
    /// 1 once the other ranks' tokens are there.
    pub const TOKENS: u32 = 4;
    /// Pieces that have been brought back, those among them that strips don't have.
    pub const COMBINED: u32 = 5;
    /// Halves of the shared expert's tiles of down that have been stored.
    pub const SHARED: u32 = 6;
    /// 1 once the other ranks' results are here.
    pub const RESULTS: u32 = 7;
    /// Sums drawn.
    pub const SUMS: u32 = 8;
    /// The first strip's.
    pub const STRIPS: u32 = 9;
}

/// What is counted of each strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Step {
    /// Pieces that have been dispatched.
    Arrived = 0,
    /// Consumers' halves of tiles of gate and up that have been activated.
    Activated = 1,
    /// Consumers' halves of tiles of down that have been stored.
    Computed = 2,
    /// Pieces that have been brought back, those among them that the strip doesn't have.
    Combined = 3,
}

/// How many [steps](Step) there are.
pub const STEPS: u32 = 4;

/// The word that counts a strip's step.
pub const fn step_word(step: Step, strips: u32, strip: u32) -> u32 {
    word::STRIPS + step as u32 * strips + strip
}

/// The word that counts what has been activated of one of the shared expert's strips.
pub const fn shared_word(strips: u32, strip: u32) -> u32 {
    word::STRIPS + STEPS * strips + strip
}

/// Words of a rank with so many strips of the routed experts and of the shared one.
pub const fn words(strips: u32, shared_strips: u32) -> u64 {
    word::STRIPS as u64 + STEPS as u64 * strips as u64 + shared_strips as u64
}

/// Halves of a tile: each consumer tells of its own, or each block of a pair.
pub const HALVES: u32 = CONSUMERS;
const _: () = assert!(HALVES == pair::BLOCKS);

/// Tensor maps of an expert.
pub const MAPS: usize = 9;

/// Places of an expert's tensor maps.
pub mod map {
    /// X, or H, in the first of its boxes; the weights follow the last one.
    pub const GATE_UP: u32 = 0;
    /// Likewise.
    pub const DOWN: u32 = 4;
    /// Where the product of down goes.
    pub const Y: u32 = 8;
}

const PARAMS: &[Param] = &[
    Param::TensorMaps(2 * MAPS as u32),
    Param::Bytes(size_of::<ForwardArgs>() as u32),
];

/// Launch spec of the entry.
pub const fn spec(arch: Arch) -> &'static LaunchSpec {
    if arch.pairs() {
        &FORWARD_OF_PAIRS
    } else {
        &FORWARD
    }
}

/// Dynamic shared memory of the launch for so many groups.
pub const fn shared_bytes(arch: Arch, groups: u32) -> u32 {
    if arch.pairs() {
        pair::shared_plan(groups).bytes
    } else {
        shared_plan(groups).bytes
    }
}

/// The most rows of a strip.
pub const fn widest(arch: Arch) -> u32 {
    if arch.pairs() {
        ByPair::WIDEST
    } else {
        ByBlock::WIDEST
    }
}

/// `mok_forward`, on any grid.
pub static FORWARD: LaunchSpec = LaunchSpec {
    entry: "mok_forward",
    threads: THREADS,
    min_blocks: 1,
    cluster: 1,
    params: PARAMS,
    max_shared: shared_plan(MAX_GROUPS).bytes,
};

/// Where pairs of blocks multiply: on any even grid.
pub static FORWARD_OF_PAIRS: LaunchSpec = pair::of(&FORWARD);
