//! What a launch of each entry must look like, stated once.
//!
//! The builder writes a spec into the PTX as directives (`.reqntid`,
//! `.minnctapersm`, `.reqnctapercluster`; without them ptxas assumes 1,024
//! threads and caps registers at 64), the host checks every launch against it,
//! and device code takes its shared-memory plan from the same constants.

/// One kernel parameter, in order of declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Param {
    /// A 128-byte tensor map passed by value; the builder raises its alignment
    /// to the 64 bytes that TMA needs (PTX ISA, "Tensor-map").
    TensorMap,
    /// So many tensor maps side by side, likewise.
    TensorMaps(u32),
    /// A `#[repr(C)]` value of this many bytes.
    Bytes(u32),
}

impl Param {
    /// Size of the parameter in bytes.
    pub const fn size(self) -> u32 {
        match self {
            Param::TensorMap => 128,
            Param::TensorMaps(n) => 128 * n,
            Param::Bytes(n) => n,
        }
    }
}

/// The launch contract of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchSpec {
    /// Name of the entry in the PTX.
    pub entry: &'static str,
    /// Threads in a block, along x; exact.
    pub threads: u32,
    /// Blocks that must fit on one SM at once (bounds the registers).
    pub min_blocks: u32,
    /// Blocks in a cluster, along x; 1 launches without clusters.
    pub cluster: u32,
    /// Parameters in order.
    pub params: &'static [Param],
    /// The most dynamic shared memory any configuration needs, in bytes.
    pub max_shared: u32,
}

/// The 227 KiB that one block may use on sm_90 and sm_100.
pub const MAX_SHARED: u32 = 227 * 1024;
