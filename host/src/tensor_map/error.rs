//! The limits, as errors.

use super::{DataType, Swizzle};

/// A limit of tensor maps that a spec breaks.
///
/// `dim` counts from 0, innermost first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorMapError {
    /// Rank outside 1 to 5.
    #[error("tensor map: rank {rank} is not 1 to 5")]
    Rank {
        /// The rank.
        rank: usize,
    },
    /// An interleaved map of rank under 3.
    #[error("tensor map: interleaved maps need rank 3 or more, not {rank}")]
    InterleaveRank {
        /// The rank.
        rank: usize,
    },
    /// A list's length does not match the rank.
    #[error("tensor map: {len} {what} for rank {rank}, which needs {needed}")]
    Count {
        /// Which list.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The rank.
        rank: usize,
        /// The length it needs.
        needed: usize,
    },
    /// The base address is null.
    #[error("tensor map: the base address is null")]
    NullBase,
    /// The base address is not aligned.
    #[error("tensor map: base address {address:#x} is not a multiple of {align} bytes")]
    BaseAlign {
        /// The address.
        address: u64,
        /// The alignment it needs.
        align: u64,
    },
    /// A dimension outside 1 to 2^32.
    #[error("tensor map: dimension {dim} is {value}, not 1 to 2^32")]
    Dim {
        /// Which dimension.
        dim: usize,
        /// Its extent.
        value: u64,
    },
    /// The inner dimension of a packed type is not a multiple.
    #[error(
        "tensor map: dimension 0 is {value}, which {data_type:?} needs to be a multiple of {multiple}"
    )]
    PackedDim {
        /// Its extent.
        value: u64,
        /// The element type.
        data_type: DataType,
        /// What it must be a multiple of.
        multiple: u64,
    },
    /// A stride that is not a multiple of 16 (or 32) bytes.
    #[error("tensor map: stride of dimension {dim} is {value} bytes, not a multiple of {multiple}")]
    StrideAlign {
        /// Which dimension.
        dim: usize,
        /// Its stride in bytes.
        value: u64,
        /// What it must be a multiple of.
        multiple: u64,
    },
    /// A stride of 2^40 bytes or more.
    #[error("tensor map: stride of dimension {dim} is {value} bytes, not under 2^40")]
    StrideSize {
        /// Which dimension.
        dim: usize,
        /// Its stride in bytes.
        value: u64,
    },
    /// The last element's address overflows 64 bits.
    #[error("tensor map: the tensor's end is past the end of the address space")]
    AddressOverflow,
    /// A box extent outside 1 to 256.
    #[error("tensor map: box dimension {dim} is {value}, not 1 to 256")]
    Box {
        /// Which dimension.
        dim: usize,
        /// Its extent.
        value: u32,
    },
    /// A box row that is not a multiple of 16 bytes.
    #[error("tensor map: a box row is {bytes} bytes, not a multiple of 16")]
    BoxRow {
        /// Bytes of the inner box dimension.
        bytes: u64,
    },
    /// The box of a padded packed type is not 128 wide.
    #[error("tensor map: box dimension 0 is {value}, which {data_type:?} needs to be 128")]
    PackedBox {
        /// Its extent.
        value: u32,
        /// The element type.
        data_type: DataType,
    },
    /// A box row wider than the swizzle.
    #[error("tensor map: a box row is {bytes} bytes, over the {span} of swizzle {swizzle:?}")]
    SwizzleSpan {
        /// Bytes of the inner box dimension.
        bytes: u64,
        /// The swizzle.
        swizzle: Swizzle,
        /// The most bytes.
        span: u64,
    },
    /// A swizzle that the interleave or the type does not allow.
    #[error("tensor map: {with} does not go with swizzle {swizzle:?}")]
    SwizzleWith {
        /// The swizzle.
        swizzle: Swizzle,
        /// What it does not go with.
        with: &'static str,
    },
    /// An element stride outside 1 to 8.
    #[error("tensor map: element stride of dimension {dim} is {value}, not 1 to 8")]
    ElementStride {
        /// Which dimension.
        dim: usize,
        /// The stride.
        value: u32,
    },
    /// NaN fill of a type that has no NaN.
    #[error("tensor map: NaN fill needs a floating-point type, not {data_type:?}")]
    NanFill {
        /// The element type.
        data_type: DataType,
    },
}
