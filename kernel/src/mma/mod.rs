//! The tensor-core engines, and the accumulators they share. Where consumers multiply they stand behind
//! one trait; where one thread multiplies for two blocks, [`sm100`], roles of their own drive it.

pub mod accumulators;
pub mod sm100;
pub mod tile;
pub mod warp;
pub mod wgmma;

use crate::ptx::shared::SmemAddr;
use crate::sync::ring::Consumer;

use accumulators::Accumulators;
use tile::Operand;

/// A run of stages that is multiplied without a stop.
#[derive(Clone, Copy)]
pub struct Chunk {
    /// This warpgroup's 64 rows of A in the first stage of the ring.
    pub a: SmemAddr,
    /// B in the first stage of the ring.
    pub b: SmemAddr,
    /// Columns of the product: one that [`width`](crate::schedule::grouped::width) gives.
    pub width: u32,
    /// Stages that count in full, 64 K each.
    pub stages: u32,
    /// Steps of 16 K that count in one more stage, which passes the ring's relay first, 1 to 4; 0 if
    /// there is none.
    pub tail: u32,
}

/// Multiplies what the ring holds: 64 rows of A and up to 192 columns of B, 64 K a stage.
///
/// One warpgroup runs an engine; its threads hold the sums as [`Accumulators`] says.
pub trait Engine {
    /// Whether [`start`](Engine::start) takes a stage.
    const STARTS: bool = false;

    /// Begins a chunk with the ring's next stage, of which `tail` steps count, like a chunk's
    /// [`tail`](Chunk::tail), or all if it is 0. Until
    /// [`multiply`](Engine::multiply) goes on with the stages behind it, the sums are the tensor
    /// cores', and the warpgroup is free for other things.
    ///
    /// # Safety
    /// All four warps of the warpgroup reach the same call; the producer fills the stage. Nothing
    /// touches the sums until `multiply`, which follows for the same chunk.
    #[inline(always)]
    unsafe fn start<A: Operand, B: Operand>(
        sums: &mut Accumulators,
        chunk: Chunk,
        tail: u32,
        ring: &mut Consumer,
    ) {
        let _ = (sums, chunk, tail, ring);
    }

    /// `sums = A B` over what has been started and `chunk`'s stages, which are let go of as their
    /// products are done. Sums past the chunk's width stay as they are.
    ///
    /// # Safety
    /// As [`start`](Engine::start), which comes before.
    unsafe fn multiply<A: Operand, B: Operand>(
        sums: &mut Accumulators,
        chunk: Chunk,
        ring: &mut Consumer,
    );

    /// Waits for what may be under way.
    ///
    /// # Safety
    /// All four warps of the warpgroup reach the same call.
    #[inline(always)]
    unsafe fn settle(sums: &mut Accumulators) {
        let _ = sums;
    }
}

/// The engine of the architecture that this crate is compiled for.
#[cfg(mok_arch = "sm_90a")]
pub type Native = wgmma::Wgmma;

/// The engine of the architecture that this crate is compiled for.
#[cfg(any(mok_arch = "sm_100a", mok_arch = "sm_103a"))]
pub type Native = sm100::Tcgen05;

/// The engine of the architecture that this crate is compiled for.
#[cfg(not(any(mok_arch = "sm_90a", mok_arch = "sm_100a", mok_arch = "sm_103a")))]
pub type Native = warp::WarpMma;
