//! Who did which task of a [forward pass in one launch](crate::forward), and when.
//!
//! Each block has [`STREAMS`] streams of records, each written by one thread: no record is contended for, and none is
//! atomic. A traced launch runs the entry that is measured without a trace, which costs a comparison a task then.
//!
//! The memory is `u64 [blocks][STREAMS]`, how many tasks each stream has had, all zero before; then
//! [`Record`] `[blocks][STREAMS][records]`, all zero before. Tasks past the room are counted, not recorded.

use bytemuck::{Pod, Zeroable};

use crate::schedule::forward::Move;

/// A task. Times are of the GPU's `%globaltimer`, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Record {
    /// When it was drawn; of products, when their first operands were there. 0 if there was no task: a consumer ends one
    /// whenever it comes for the next.
    pub start: u64,
    /// When what it waits for was there; 0 if it waits for nothing, or of products.
    pub ready: u64,
    /// When it was done: of loads, when the last one was under way; of products, when they were on their way out.
    pub end: u64,
    /// A [`Task`], and from bit [`COLUMN`] on the column of a tile.
    pub what: u32,
    /// A strip, or a piece's number, or a token; nothing of products, which come in the order of their block's loads.
    /// Pieces of strips are numbered by [`PIECE`] bits below their strip.
    pub index: u32,
}

/// Bits of a piece's number below its strip, in [`Record::index`].
pub const PIECE: u32 = 8;

/// The bit of a tile's column in [`Record::what`].
pub const COLUMN: u32 = 8;

/// The streams of a block: the producer's, of warps that move rows, and of the consumers. In the end warps that sum take
/// the first four.
pub const STREAMS: u32 = 6;
/// The first consumer's.
pub const CONSUMER: u32 = 4;

/// What is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Task {
    /// As [`Move::Stage`]: some of the rank's tokens.
    Stage = Move::Stage as u32,
    /// As [`Move::Tokens`].
    Tokens = Move::Tokens as u32,
    /// As [`Move::Dispatch`].
    Dispatch = Move::Dispatch as u32,
    /// As [`Move::Combine`].
    Combine = Move::Combine as u32,
    /// As [`Move::Results`].
    Results = Move::Results as u32,
    /// Loads of a tile of gate-and-up.
    LoadGateUp = 16,
    /// Of down.
    LoadDown = 17,
    /// Of the shared expert's gate-and-up.
    LoadSharedGateUp = 18,
    /// Of the shared expert's down.
    LoadSharedDown = 19,
    /// Half of a tile: products, and the way out.
    Products = 20,
    /// The weighted sum of a token.
    Sum = 21,
}

impl Task {
    /// All of them.
    pub const ALL: [Task; 11] = [
        Task::Stage,
        Task::Tokens,
        Task::Dispatch,
        Task::Combine,
        Task::Results,
        Task::LoadGateUp,
        Task::LoadDown,
        Task::LoadSharedGateUp,
        Task::LoadSharedDown,
        Task::Products,
        Task::Sum,
    ];
}

/// Bytes of the memory for so many blocks, and so many records of each stream.
pub const fn bytes(blocks: u32, records: u32) -> u64 {
    let streams = blocks as u64 * STREAMS as u64;
    streams * (8 + size_of::<Record>() as u64 * records as u64)
}
