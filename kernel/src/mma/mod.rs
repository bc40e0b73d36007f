//! The tensor-core engines behind one trait, and the accumulators they share.

pub mod accumulators;
pub mod tile;
pub mod warp;
pub mod wgmma;

use accumulators::Accumulators;
use tile::{Operand, Tile};

/// Multiplies what a pipeline stage holds: 64 rows of A, 256 columns of B, 64 K.
///
/// One warpgroup runs an engine; its threads hold the sums as [`Accumulators`] says.
pub trait Engine {
    /// Starts `sums += A B` over one stage.
    ///
    /// # Safety
    /// All four warps of the warpgroup reach the same call. The operands lie in shared
    /// memory, visible to this thread's engine, and stay as they are until a settle covers
    /// them; `sums` isn't touched until then.
    unsafe fn multiply<A: Operand, B: Operand>(sums: &mut Accumulators, a: Tile<A>, b: Tile<B>);

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
