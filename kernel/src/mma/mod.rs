//! The tensor-core engines behind one trait, and the accumulators they share.

pub mod accumulators;
pub mod tile;
pub mod warp;
pub mod wgmma;

use accumulators::Accumulators;
use tile::{Operand, Tile};

/// What to do with a stage.
#[derive(Clone, Copy)]
pub struct Step {
    /// Columns of the product: one that [`width`](crate::schedule::grouped::width) gives.
    pub width: u32,
    /// Steps of 16 along K, 1 to 4.
    pub depth: u32,
    /// Whether the old sums are dropped.
    pub fresh: bool,
}

/// Multiplies what a pipeline stage holds: 64 rows of A, up to 192 columns of B, up to 64 K.
///
/// One warpgroup runs an engine; its threads hold the sums as [`Accumulators`] says.
pub trait Engine {
    /// Starts `sums += A B` over one stage.
    ///
    /// # Safety
    /// All four warps of the warpgroup reach the same call. The operands lie in shared
    /// memory, visible to this thread's engine, and stay as they are until a settle covers
    /// them; `sums` isn't touched until then.
    unsafe fn multiply<A: Operand, B: Operand>(
        sums: &mut Accumulators,
        a: Tile<A>,
        b: Tile<B>,
        step: Step,
    );

    /// Waits until all started products but those of the latest call are done, the operands'
    /// reads by every lane of the warp with them.
    ///
    /// # Safety
    /// All four warps of the warpgroup reach the same call.
    unsafe fn settle_previous();

    /// Waits until all started products are done, the operands' reads with them.
    ///
    /// # Safety
    /// All four warps of the warpgroup reach the same call.
    unsafe fn settle(sums: &mut Accumulators);
}

/// The engine of the architecture that this crate is compiled for.
#[cfg(mok_arch = "sm_90a")]
pub type Native = wgmma::Wgmma;

/// The engine of the architecture that this crate is compiled for.
#[cfg(not(mok_arch = "sm_90a"))]
pub type Native = warp::WarpMma;
