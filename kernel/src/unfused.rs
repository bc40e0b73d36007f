//! The layer in separate launches: what each kernel takes.
//!
//! ```text
//! schedule  publish -> signal -> count -> place -> scatter -> signal
//! forward   (copy x) -> signal -> dispatch -> gate-and-up -> down -> combine -> signal -> weigh
//! ```
//!
//! Where ranks do not reach each other's memory, the rows travel by a library's all-to-all, and
//! `permute` brings them into the order in which they travel and back:
//!
//! ```text
//! schedule  (all-to-all of routes) -> count -> place -> scatter
//! forward   (copy x) -> permute -> (all-to-all) -> permute -> gate-and-up -> down -> permute
//!           -> (all-to-all) -> weigh
//! ```
//!
//! Where gate and up don't lie alike, gate-and-up is two products and `swiglu`.
//!
//! Every kernel first looks whether its rank has failed, and then does nothing; `weigh` fills
//! the output with NaN.

use bytemuck::{Pod, Zeroable};

use crate::launch::{LaunchSpec, Param};
use crate::route::{MAX_EXPERTS, MAX_RANKS};
use crate::symmetric::SymmetricPlan;

/// A rank, and how it reaches the others.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RankArgs {
    /// Device address of `u64 [ranks]`: where each rank's symmetric region is mapped here.
    pub peers: u64,
    /// Device address of [`STATE_WORDS`] words of this rank.
    pub state: u64,
    /// Device address of the [record](crate::failure) for the host.
    pub mailbox: u64,
    /// This rank.
    pub rank: u32,
    /// All of them.
    pub ranks: u32,
    /// The symmetric region's layout.
    pub plan: SymmetricPlan,
}

/// Words of a rank's state.
pub const STATE_WORDS: usize = 2;
/// The word that counts the waits for peers.
pub const STATE_EPOCH: u64 = 0;
/// The word that is not 0 once the rank has failed.
pub const STATE_FAILED: u64 = 1;

/// Arguments of `mok_publish`: this rank's choice of experts, to every rank.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct PublishArgs {
    /// The rank.
    pub rank: RankArgs,
    /// Device address of `i32 [tokens][top_k]`.
    pub topk_experts: u64,
    /// Device address of a `u32` for the tokens of this rank: rows of the shared expert.
    pub token_count: u64,
    /// Tokens of this rank.
    pub tokens: u32,
    /// Experts of a token.
    pub top_k: u32,
}

/// Arguments of `mok_signal`: what was done before on the stream is visible to every rank, and
/// what every rank did before is visible here, or the rank fails.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct SignalArgs {
    /// The rank.
    pub rank: RankArgs,
    /// Nanoseconds after which a peer counts as lost.
    pub deadline: u64,
    /// A [`Wait`](crate::failure::Wait), by its number.
    pub wait: u64,
}

/// Arguments of `mok_abort`: this rank gives up, and tells the others.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct AbortArgs {
    /// The rank.
    pub rank: RankArgs,
    /// A [`Code`](crate::failure::Code), by its number.
    pub code: u64,
}

/// Arguments of `mok_count`, `mok_place` and `mok_scatter`: from all ranks' choices to the rows of
/// this rank's experts, ordered by (token, rank, k).
///
/// A chunk is some tokens of every rank. `count` counts each chunk's routes by expert, and checks
/// them; `place` turns the counts into first rows; `scatter` puts each route into its row.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ScheduleArgs {
    /// The rank.
    pub rank: RankArgs,
    /// Device address of `u32 [experts]`, zeros before: routes of each expert.
    pub totals: u64,
    /// Device address of `u32 [chunks][local experts]`: routes, then first rows.
    pub counts: u64,
    /// Device address of a `u64`, all ones before: the first bad route, by its word.
    pub bad: u64,
    /// Device address of `u32 [local experts]`: rows of each.
    pub sizes: u64,
    /// Device address of `u32 [capacity]`, all ones before: the route of each row.
    pub rows: u64,
    /// Device address of a `u32`: rows with padding.
    pub row_total: u64,
    /// Experts of the layer.
    pub experts: u32,
    /// Experts of a token.
    pub top_k: u32,
    /// Tokens of each rank that one chunk holds.
    pub chunk_tokens: u32,
    /// Chunks.
    pub chunks: u32,
    /// Rows that there is room for.
    pub capacity: u32,
    /// Unused.
    pub padding: u32,
}

/// Arguments of `mok_dispatch` (tokens of all ranks into rows) and of `mok_combine` (rows into the
/// slots of their routes).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct MoveArgs {
    /// The rank.
    pub rank: RankArgs,
    /// Device address of the route of each row.
    pub rows: u64,
    /// Device address of a `u32`: how many rows.
    pub row_total: u64,
    /// Device address of `bf16 [capacity][hidden]`.
    pub matrix: u64,
    /// Device address of `u32 [local experts]`: rows of each.
    pub sizes: u64,
    /// Device address of as many words: dispatch leaves there the rows that this pass computes,
    /// none if the rank has failed.
    pub pass_sizes: u64,
    /// Elements of a row, a multiple of 8.
    pub hidden: u32,
    /// Experts of a token.
    pub top_k: u32,
    /// Experts of this rank.
    pub local_experts: u32,
    /// Unused.
    pub padding: u32,
}

/// Arguments of `mok_permute`: rows into another order.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct PermuteArgs {
    /// Device address of `bf16 [..][hidden]`.
    pub from: u64,
    /// Device address of `bf16 [..][hidden]`.
    pub to: u64,
    /// Device address of `u32 [count]`.
    pub list: u64,
    /// Rows to move.
    pub count: u32,
    /// Elements of a row, a multiple of 8.
    pub hidden: u32,
    /// A [`Direction`], by its number.
    pub direction: u32,
    /// Entries of the list that stand for one row of `from`: when gathering, row i is row
    /// `list[i] / share`.
    pub share: u32,
}

/// What the list of a permutation names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Direction {
    /// Where each row comes from.
    Gather = 0,
    /// Where each row goes.
    Scatter = 1,
}

/// Arguments of `mok_swiglu`: `out = silu(gate) * up`, in f32, rounded once to bf16.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct SwigluArgs {
    /// Device address of the rank's state.
    pub state: u64,
    /// Device address of `bf16 [rows][columns]`.
    pub gate: u64,
    /// Device address of `bf16 [rows][columns]`.
    pub up: u64,
    /// Device address of `bf16 [rows][columns]`.
    pub out: u64,
    /// Device address of the route of each row, or 0 if every row counts.
    pub rows: u64,
    /// Device address of a `u32`: how many rows.
    pub row_total: u64,
    /// Elements of a row, a multiple of 8.
    pub columns: u32,
    /// Bits of the f32 that gate is clamped to at most, and up to within; infinity for none.
    pub limit: u32,
}

/// Arguments of `mok_weigh`: `out = shared + sum over k of weight * slot`, in f32 and in that
/// order, rounded once to bf16.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct WeighArgs {
    /// The rank.
    pub rank: RankArgs,
    /// Device address of `i32 [tokens][top_k]`.
    pub topk_experts: u64,
    /// Device address of `f32 [tokens][top_k]`.
    pub router_weights: u64,
    /// Device address of `bf16 [tokens][hidden]`, or 0.
    pub shared: u64,
    /// Device address of `u32 [tokens][top_k]`: the slot of each route; 0 where slots are in the
    /// order of routes.
    pub places: u64,
    /// Device address of `bf16 [tokens][hidden]`.
    pub out: u64,
    /// Tokens of this rank.
    pub tokens: u32,
    /// Elements of a row, a multiple of 8.
    pub hidden: u32,
    /// Experts of a token.
    pub top_k: u32,
    /// Unused.
    pub padding: u32,
}

/// Threads of a block that moves rows, a warp a row.
pub const MOVE_THREADS: u32 = 256;
/// Threads of a block that counts a chunk.
pub const COUNT_THREADS: u32 = 256;
/// Threads of `mok_signal`'s one block: one for each peer.
pub const SIGNAL_THREADS: u32 = 96;

const fn spec<A>(entry: &'static str, threads: u32, max_shared: u32) -> LaunchSpec {
    LaunchSpec {
        entry,
        threads,
        min_blocks: 1,
        cluster: 1,
        params: const { &[Param::Bytes(size_of::<A>() as u32)] },
        max_shared,
    }
}

const _: () = assert!(SIGNAL_THREADS >= MAX_RANKS);

/// `mok_publish`, on any grid.
pub static PUBLISH: LaunchSpec = spec::<PublishArgs>("mok_publish", MOVE_THREADS, 0);
/// `mok_signal`, on one block.
pub static SIGNAL: LaunchSpec = spec::<SignalArgs>("mok_signal", SIGNAL_THREADS, 0);
/// `mok_abort`, on one block.
pub static ABORT: LaunchSpec = spec::<AbortArgs>("mok_abort", SIGNAL_THREADS, 0);
/// `mok_count`, a block for each chunk, a word of shared memory for each expert.
pub static COUNT: LaunchSpec = spec::<ScheduleArgs>("mok_count", COUNT_THREADS, 4 * MAX_EXPERTS);
/// `mok_place`, a block for each local expert, at least one.
pub static PLACE: LaunchSpec = spec::<ScheduleArgs>("mok_place", 32, 0);
/// `mok_scatter`, a block for each chunk, a word of shared memory for each local expert.
pub static SCATTER: LaunchSpec = spec::<ScheduleArgs>("mok_scatter", 32, 4 * MAX_EXPERTS);
/// `mok_dispatch`, on any grid.
pub static DISPATCH: LaunchSpec = spec::<MoveArgs>("mok_dispatch", MOVE_THREADS, 0);
/// `mok_combine`, on any grid.
pub static COMBINE: LaunchSpec = spec::<MoveArgs>("mok_combine", MOVE_THREADS, 0);
/// `mok_permute`, on any grid.
pub static PERMUTE: LaunchSpec = spec::<PermuteArgs>("mok_permute", MOVE_THREADS, 0);
/// `mok_swiglu`, on any grid.
pub static SWIGLU: LaunchSpec = spec::<SwigluArgs>("mok_swiglu", MOVE_THREADS, 0);
/// `mok_weigh`, on any grid.
pub static WEIGH: LaunchSpec = spec::<WeighArgs>("mok_weigh", MOVE_THREADS, 0);
