//! Decoded programs: what the machine executes.
//!
//! Everything that can be decided from the text is decided here, once, at load: registers become
//! slots, immediates and special registers become registers that never change, labels become
//! instruction numbers. An instruction that the machine doesn't know is an error that names it.

mod asynchronous;
mod cancel;
mod decode;
mod instruction;
mod isa;
mod maps;
mod memory;
mod modifiers;
mod operations;
mod registers;
mod special;
mod tcgen05;
#[cfg(test)]
mod tests;
mod warp;

pub use decode::{LoadError, decode, function_address};
pub use isa::{IsaRow, isa, later_arch};
pub use operations::*;
pub use special::special_registers;
pub(crate) use tcgen05::missing;
pub use tcgen05::{MmaCall, Tcgen05};

use crate::ptx::ast::Directives;

/// The place of a register in a warp's register file.
pub type Slot = u32;

/// One kernel.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<ParamSlot>,
    /// Bytes of all parameters.
    pub param_bytes: u32,
    /// Slots of a warp's register file.
    pub slots: u32,
    /// Slots that hold a constant.
    pub constants: Vec<(Slot, u64)>,
    /// Slots that hold a special register.
    pub specials: Vec<(Slot, Special)>,
    /// The instructions. The last one is always an exit.
    pub code: Vec<Instruction>,
    /// Bytes of static shared memory, from [`SHARED_START`] on.
    pub static_shared: u32,
    /// Where dynamic shared memory starts.
    pub dynamic_shared: u32,
    /// Bytes of a thread's local memory.
    pub local_bytes: u32,
    /// What its launches must look like.
    pub directives: Directives,
    /// Registers a thread that each warp owns at launch, in kernels with `setmaxnreg`; `None` where
    /// that has no effect.
    pub launch_registers: Option<u32>,
    /// Whether its `tcgen05` instructions work on pairs of blocks.
    pub pairs: bool,
    /// Names of the slots that are declared registers, for reports.
    pub names: Vec<(Slot, String)>,
}

/// The first shared address that a kernel may use: the first KiB is the system's, as on sm_90.
pub const SHARED_START: u32 = 1024;

/// One kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamSlot {
    /// Its name.
    pub name: String,
    /// Offset in the parameter bytes.
    pub offset: u32,
    /// Its size in bytes.
    pub bytes: u32,
}

/// One decoded instruction.
#[derive(Debug)]
pub struct Instruction {
    /// What it does.
    pub op: Op,
    /// The predicate that lets it, and whether it is negated.
    pub guard: Option<(Slot, bool)>,
    /// Its line in the PTX.
    pub line: u32,
}

/// Registers that hold the same value for a thread's whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    ClusterId(u8),
    NClusterId(u8),
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterCtarank,
    ClusterNctarank,
    LaneMask(LaneMask),
    DynamicSharedSize,
    TotalSharedSize,
    SharedStart,
    /// A variable's offset in shared memory, behind the block's rank.
    SharedAddress(u32),
    /// Where compilers' own headers may use the first KiB.
    Reserved,
    IsExplicitCluster,
    Zero,
    WarpSize,
}

/// Which lanes a lane mask register names, relative to the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum LaneMask {
    Eq,
    Lt,
    Le,
    Gt,
    Ge,
}
