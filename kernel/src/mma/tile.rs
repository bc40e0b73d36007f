//! Operand tiles in shared memory: 64 K deep, bf16, 128-byte swizzle.

use core::marker::PhantomData;

use crate::layout::descriptor::{self, Major};
use crate::ptx::shared::SmemAddr;

/// Bytes of one MN-major panel: 64 K rows of 128 bytes. Also of 64 K-major rows.
pub const PANEL: u32 = 64 * 128;

/// Which dimension of a tile is contiguous, as a type: a K-major tile is not an MN-major one.
pub trait Operand {
    /// The same as a value.
    const MAJOR: Major;
}

/// Contiguous along K.
pub struct KMajor;
/// Contiguous along M or N.
pub struct MnMajor;

impl Operand for KMajor {
    const MAJOR: Major = Major::K;
}
impl Operand for MnMajor {
    const MAJOR: Major = Major::Mn;
}

/// A tile that starts at a 1,024-byte aligned address.
pub struct Tile<O> {
    /// Where it starts.
    pub base: SmemAddr,
    major: PhantomData<O>,
}

impl<O> Clone for Tile<O> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<O> Copy for Tile<O> {}

impl<O: Operand> Tile<O> {
    /// The tile at `base`.
    pub const fn at(base: SmemAddr) -> Tile<O> {
        Tile {
            base,
            major: PhantomData,
        }
    }

    /// Its descriptor for wgmma.
    pub const fn descriptor(self) -> u64 {
        match O::MAJOR {
            Major::K => descriptor::k_major(self.base.0),
            Major::Mn => descriptor::mn_major(self.base.0, PANEL),
        }
    }
}
