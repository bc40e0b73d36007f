//! Tensor maps: how the tensor memory accelerator sees a tensor in memory.
//!
//! [`TensorMapSpec`] is the plain description, checked against every limit of
//! `cuTensorMapEncodeTiled` (CUDA driver API, "Tensor Map Object Management");
//! [`Device::tensor_map`](crate::Device::tensor_map) encodes it.
//!
//! Dimensions, boxes and strides are innermost first; the innermost dimension
//! is contiguous and has no stride.

use bytemuck::{Pod, Zeroable};

use crate::memory::DevicePtr;

mod error;

pub use error::TensorMapError;

/// Element types that tensor maps know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    /// Unsigned bytes; also what fp8 is copied as.
    U8,
    /// Unsigned 16 bits.
    U16,
    /// Unsigned 32 bits.
    U32,
    /// Signed 32 bits.
    I32,
    /// Unsigned 64 bits.
    U64,
    /// Signed 64 bits.
    I64,
    /// IEEE half.
    F16,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
    /// bfloat16.
    Bf16,
    /// Single precision, denormals flushed.
    F32Ftz,
    /// TF32 in 32 bits.
    Tf32,
    /// TF32 in 32 bits, denormals flushed.
    Tf32Ftz,
    /// 16 packed 4-bit values in 8 bytes of shared memory (Blackwell).
    U4x16Align8,
    /// 16 packed 4-bit values, 16 bytes apart in shared memory (Blackwell).
    U4x16Align16,
    /// 16 packed 6-bit values, 16 bytes apart in shared memory (Blackwell).
    U6x16Align16,
}

impl DataType {
    /// All of them, in the driver's order.
    pub const ALL: [DataType; 16] = [
        DataType::U8,
        DataType::U16,
        DataType::U32,
        DataType::I32,
        DataType::U64,
        DataType::I64,
        DataType::F16,
        DataType::F32,
        DataType::F64,
        DataType::Bf16,
        DataType::F32Ftz,
        DataType::Tf32,
        DataType::Tf32Ftz,
        DataType::U4x16Align8,
        DataType::U4x16Align16,
        DataType::U6x16Align16,
    ];

    /// Bits of one element in global memory.
    pub const fn bits(self) -> u32 {
        match self {
            DataType::U4x16Align8 | DataType::U4x16Align16 => 4,
            DataType::U6x16Align16 => 6,
            DataType::U8 => 8,
            DataType::U16 | DataType::F16 | DataType::Bf16 => 16,
            DataType::U32
            | DataType::I32
            | DataType::F32
            | DataType::F32Ftz
            | DataType::Tf32
            | DataType::Tf32Ftz => 32,
            DataType::U64 | DataType::I64 | DataType::F64 => 64,
        }
    }

    /// Bytes that one row of a box of this many elements takes in shared memory.
    const fn shared_bytes(self, elements: u64) -> u64 {
        match self {
            // Each 16 elements are padded to 16 bytes.
            DataType::U4x16Align16 | DataType::U6x16Align16 => elements,
            _ => elements * self.bits() as u64 / 8,
        }
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DataType::F16
                | DataType::F32
                | DataType::F64
                | DataType::Bf16
                | DataType::F32Ftz
                | DataType::Tf32
                | DataType::Tf32Ftz
        )
    }

    /// Whether elements are padded to 16 bytes in shared memory.
    const fn is_padded(self) -> bool {
        matches!(self, DataType::U4x16Align16 | DataType::U6x16Align16)
    }

    pub(crate) const fn code(self) -> i32 {
        self as i32
    }
}

/// How 16-byte chunks of a box are permuted in shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// Not at all.
    #[default]
    None,
    /// Within 32 bytes.
    B32,
    /// Within 64 bytes.
    B64,
    /// Within 128 bytes.
    B128,
}

impl Swizzle {
    /// The most bytes that a box's inner dimension may have; `None` means no such limit.
    pub const fn span(self) -> Option<u64> {
        match self {
            Swizzle::None => None,
            Swizzle::B32 => Some(32),
            Swizzle::B64 => Some(64),
            Swizzle::B128 => Some(128),
        }
    }

    pub(crate) const fn code(self) -> i32 {
        self as i32
    }
}

/// Interleaved layouts (NC/8HWC8 and NC/16HWC16).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Interleave {
    /// Not interleaved.
    #[default]
    None,
    /// Slices of 16 bytes.
    B16,
    /// Slices of 32 bytes; needs [`Swizzle::B32`].
    B32,
}

impl Interleave {
    pub(crate) const fn code(self) -> i32 {
        self as i32
    }
}

/// What elements outside the tensor read as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OutOfBounds {
    /// Zero.
    #[default]
    Zero,
    /// A special NaN; floating-point types only.
    Nan,
}

impl OutOfBounds {
    pub(crate) const fn code(self) -> i32 {
        self as i32
    }
}

/// How much the L2 cache fetches at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum L2Promotion {
    /// What is asked for.
    None,
    /// 64 bytes.
    B64,
    /// 128 bytes.
    #[default]
    B128,
    /// 256 bytes.
    B256,
}

impl L2Promotion {
    pub(crate) const fn code(self) -> i32 {
        self as i32
    }
}

/// Description of a tiled tensor map.
///
/// ```
/// use mok::tensor_map::{DataType, Swizzle, TensorMapSpec};
/// use mok::DevicePtr;
///
/// // 4,096 rows of 1,024 bf16, loaded 128 rows by 64 columns at a time.
/// let spec = TensorMapSpec::new(DataType::Bf16, DevicePtr::from_raw(0x1000))
///     .with_dims(&[1024, 4096])
///     .with_tile(&[64, 128])
///     .with_swizzle(Swizzle::B128);
/// spec.check()?;
///
/// // A box row of 256 bytes is too wide for the swizzle.
/// assert!(spec.with_tile(&[128, 64]).check().is_err());
/// # Ok::<(), mok::tensor_map::TensorMapError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMapSpec {
    data_type: DataType,
    base: DevicePtr,
    dims: Vec<u64>,
    strides: Option<Vec<u64>>,
    tile: Vec<u32>,
    element_strides: Option<Vec<u32>>,
    swizzle: Swizzle,
    interleave: Interleave,
    fill: OutOfBounds,
    l2_promotion: L2Promotion,
}

impl TensorMapSpec {
    /// A spec that still needs dimensions and a box.
    pub fn new(data_type: DataType, base: DevicePtr) -> TensorMapSpec {
        TensorMapSpec {
            data_type,
            base,
            dims: Vec::new(),
            strides: None,
            tile: Vec::new(),
            element_strides: None,
            swizzle: Swizzle::default(),
            interleave: Interleave::default(),
            fill: OutOfBounds::default(),
            l2_promotion: L2Promotion::default(),
        }
    }

    /// Extents in elements, innermost first.
    pub fn with_dims(mut self, dims: &[u64]) -> Self {
        self.dims = dims.to_vec();
        self
    }

    /// Strides in bytes, from the second dimension on; packed if never called.
    pub fn with_strides(mut self, strides: &[u64]) -> Self {
        self.strides = Some(strides.to_vec());
        self
    }

    /// The box that one copy moves, in elements, innermost first.
    pub fn with_tile(mut self, tile: &[u32]) -> Self {
        self.tile = tile.to_vec();
        self
    }

    /// Steps between the elements that are loaded; all 1 if never called.
    pub fn with_element_strides(mut self, strides: &[u32]) -> Self {
        self.element_strides = Some(strides.to_vec());
        self
    }

    /// The swizzle in shared memory.
    pub fn with_swizzle(mut self, swizzle: Swizzle) -> Self {
        self.swizzle = swizzle;
        self
    }

    /// The interleaved layout.
    pub fn with_interleave(mut self, interleave: Interleave) -> Self {
        self.interleave = interleave;
        self
    }

    /// What elements outside the tensor read as.
    pub fn with_fill(mut self, fill: OutOfBounds) -> Self {
        self.fill = fill;
        self
    }

    /// How much the L2 cache fetches at once.
    pub fn with_l2_promotion(mut self, promotion: L2Promotion) -> Self {
        self.l2_promotion = promotion;
        self
    }

    /// Element type.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// Base address.
    pub fn base(&self) -> DevicePtr {
        self.base
    }

    /// Extents in elements, innermost first.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// The box, in elements, innermost first.
    pub fn tile(&self) -> &[u32] {
        &self.tile
    }

    /// Swizzle in shared memory.
    pub fn swizzle(&self) -> Swizzle {
        self.swizzle
    }

    /// Interleaved layout.
    pub fn interleave(&self) -> Interleave {
        self.interleave
    }

    /// What elements outside the tensor read as.
    pub fn fill(&self) -> OutOfBounds {
        self.fill
    }

    /// How much the L2 cache fetches at once.
    pub fn l2_promotion(&self) -> L2Promotion {
        self.l2_promotion
    }

    /// Strides in bytes, from the second dimension on. Saturated where they overflow, which
    /// [`TensorMapSpec::check`] rejects.
    pub fn strides(&self) -> Vec<u64> {
        self.strides.clone().unwrap_or_else(|| {
            let mut bytes = self.dims.first().map_or(0, |&inner| {
                inner.saturating_mul(self.data_type.bits().into()) / 8
            });
            let mut strides = Vec::with_capacity(self.dims.len().saturating_sub(1));
            for &dim in self.dims.iter().skip(1) {
                strides.push(bytes);
                bytes = bytes.saturating_mul(dim);
            }
            strides
        })
    }

    /// Steps between the elements that are loaded.
    pub fn element_strides(&self) -> Vec<u32> {
        self.element_strides
            .clone()
            .unwrap_or_else(|| vec![1; self.dims.len()])
    }

    /// Checks every limit.
    pub fn check(&self) -> Result<(), TensorMapError> {
        use TensorMapError as E;
        let rank = self.dims.len();
        if !(1..=5).contains(&rank) {
            return Err(E::Rank { rank });
        }
        if self.interleave != Interleave::None && rank < 3 {
            return Err(E::InterleaveRank { rank });
        }
        let strides = self.strides();
        let element_strides = self.element_strides();
        for (what, len, needed) in [
            ("strides", strides.len(), rank - 1),
            ("box extents", self.tile.len(), rank),
            ("element strides", element_strides.len(), rank),
        ] {
            if len != needed {
                return Err(E::Count {
                    what,
                    len,
                    rank,
                    needed,
                });
            }
        }
        self.check_memory(&strides)?;
        self.check_box()?;
        for (dim, &value) in element_strides.iter().enumerate() {
            if !(1..=8).contains(&value) {
                return Err(E::ElementStride { dim, value });
            }
        }
        if self.fill == OutOfBounds::Nan && !self.data_type.is_float() {
            return Err(E::NanFill {
                data_type: self.data_type,
            });
        }
        Ok(())
    }

    /// Base, extents and strides.
    fn check_memory(&self, strides: &[u64]) -> Result<(), TensorMapError> {
        use TensorMapError as E;
        let wide = self.interleave == Interleave::B32 || self.data_type.is_padded();
        let align = if wide { 32 } else { 16 };
        let address = self.base.as_raw();
        if address == 0 {
            return Err(E::NullBase);
        }
        if !address.is_multiple_of(align) {
            return Err(E::BaseAlign { address, align });
        }
        for (dim, &value) in self.dims.iter().enumerate() {
            if !(1..=1 << 32).contains(&value) {
                return Err(E::Dim { dim, value });
            }
        }
        let multiple = match self.data_type {
            DataType::U4x16Align8 => 2,
            DataType::U4x16Align16 | DataType::U6x16Align16 => 128,
            _ => 1,
        };
        let value = self.dims[0];
        if !value.is_multiple_of(multiple) {
            return Err(E::PackedDim {
                value,
                data_type: self.data_type,
                multiple,
            });
        }
        let mut extent = value
            .saturating_mul(self.data_type.bits().into())
            .div_ceil(8);
        for (index, &value) in strides.iter().enumerate() {
            let dim = index + 1;
            if !value.is_multiple_of(align) {
                return Err(E::StrideAlign {
                    dim,
                    value,
                    multiple: align,
                });
            }
            if value >= 1 << 40 {
                return Err(E::StrideSize { dim, value });
            }
            extent = (self.dims[dim] - 1)
                .checked_mul(value)
                .and_then(|bytes| bytes.checked_add(extent))
                .ok_or(E::AddressOverflow)?;
        }
        address
            .checked_add(extent)
            .map(drop)
            .ok_or(E::AddressOverflow)
    }

    /// Box, swizzle and interleave.
    fn check_box(&self) -> Result<(), TensorMapError> {
        use TensorMapError as E;
        let (data_type, swizzle) = (self.data_type, self.swizzle);
        for (dim, &value) in self.tile.iter().enumerate() {
            if !(1..=256).contains(&value) {
                return Err(E::Box { dim, value });
            }
        }
        if data_type.is_padded() {
            if self.tile[0] != 128 {
                return Err(E::PackedBox {
                    value: self.tile[0],
                    data_type,
                });
            }
            if !matches!(swizzle, Swizzle::None | Swizzle::B128) {
                return Err(E::SwizzleWith {
                    swizzle,
                    with: "a type padded to 16 bytes",
                });
            }
        }
        match self.interleave {
            Interleave::None => {
                let bytes = data_type.shared_bytes(self.tile[0].into());
                let bits = u64::from(self.tile[0]) * u64::from(data_type.bits());
                if !data_type.is_padded() && !bits.is_multiple_of(16 * 8) {
                    return Err(E::BoxRow { bytes });
                }
                match swizzle.span() {
                    Some(span) if bytes > span => Err(E::SwizzleSpan {
                        bytes,
                        swizzle,
                        span,
                    }),
                    _ => Ok(()),
                }
            }
            Interleave::B16 => Ok(()),
            Interleave::B32 if swizzle == Swizzle::B32 => Ok(()),
            Interleave::B32 => Err(E::SwizzleWith {
                swizzle,
                with: "interleave B32",
            }),
        }
    }
}

/// An encoded tensor map: 128 opaque bytes, passed to kernels by value.
///
/// It holds an address, so it is good for as long as the memory behind it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(128))]
pub struct TensorMap {
    opaque: [u64; 16],
}

impl TensorMap {
    pub(crate) fn from_raw(opaque: [u64; 16]) -> TensorMap {
        TensorMap { opaque }
    }

    /// The bytes, for a table of maps in device memory.
    pub fn as_bytes(&self) -> &[u8] {
        bytemuck::bytes_of(self)
    }
}

#[cfg(test)]
mod tests;
