//! The 128 bytes of a tensor map, and `tensormap.replace` on them (PTX ISA, "tensormap.replace").
//!
//! The encoding is this crate's own; NVIDIA's is opaque. It carries a magic and a checksum, so that
//! anything else is recognised.

use super::swizzle::Swizzle;
use super::tma::{BYTES, DTYPES, Dtype, Fill, TensorMap};

impl TensorMap {
    /// The map in 128 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.base.to_le_bytes());
        for d in 0..5 {
            bytes[16 + 8 * d..24 + 8 * d].copy_from_slice(&self.dims[d].to_le_bytes());
            bytes[96 + 2 * d..98 + 2 * d].copy_from_slice(&(self.tile[d] as u16).to_le_bytes());
            bytes[106 + d] = self.element_strides[d] as u8;
        }
        for d in 1..5 {
            bytes[48 + 8 * d..56 + 8 * d].copy_from_slice(&self.strides[d].to_le_bytes());
        }
        bytes[111] = self.dtype as u8;
        bytes[112] = self.rank as u8;
        bytes[113] = self.swizzle.bits() as u8;
        bytes[114] = (self.fill == Fill::Nan) as u8;
        let sum = checksum(&bytes);
        bytes[120..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The map of 128 bytes, or why they aren't one (or not a legal one).
    pub fn from_bytes(bytes: &[u8; BYTES]) -> Result<TensorMap, String> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        if &bytes[..8] != MAGIC {
            return Err("these 128 bytes are no tensor map".into());
        }
        if word(120) != checksum(bytes) {
            return Err("a tensor map whose bytes were changed (checksum)".into());
        }
        let dtype = DTYPES
            .get(usize::from(bytes[111]))
            .ok_or("tensor map: no such type")?
            .0;
        let swizzle = Swizzle::ALL.get(usize::from(bytes[113]));
        let swizzle = *swizzle.ok_or("tensor map: no such swizzle")?;
        let mut map = TensorMap {
            dtype,
            rank: usize::from(bytes[112]),
            base: word(8),
            dims: std::array::from_fn(|d| word(16 + 8 * d)),
            strides: std::array::from_fn(|d| if d == 0 { 0 } else { word(48 + 8 * d) }),
            tile: std::array::from_fn(|d| {
                u32::from(u16::from_le_bytes([bytes[96 + 2 * d], bytes[97 + 2 * d]]))
            }),
            element_strides: std::array::from_fn(|d| u32::from(bytes[106 + d])),
            swizzle,
            fill: if bytes[114] == 0 {
                Fill::Zero
            } else {
                Fill::Nan
            },
        };
        map.normalise();
        map.validate()?;
        Ok(map)
    }
}

/// What `tensormap.replace` sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    /// Address of the first element.
    GlobalAddress,
    /// Dimensions, less one.
    Rank,
    /// Elements of the box in a dimension.
    BoxDim,
    /// Elements of the tensor in a dimension.
    GlobalDim,
    /// Bytes from one index to the next, from dimension 1 on.
    GlobalStride,
    /// Step in a dimension.
    ElementStride,
    /// Element type, by its number in the ISA's table.
    ElementType,
    /// Interleaving: only none (0).
    Interleave,
    /// Swizzle: none, 32, 64, 128 bytes.
    Swizzle,
    /// Zeros or NaN outside.
    Fill,
    /// Swizzle atom: only 16 bytes (0).
    SwizzleAtomicity,
}

impl Field {
    /// All of them, by their names in PTX.
    pub const ALL: [(&str, Field); 11] = [
        ("global_address", Field::GlobalAddress),
        ("rank", Field::Rank),
        ("box_dim", Field::BoxDim),
        ("global_dim", Field::GlobalDim),
        ("global_stride", Field::GlobalStride),
        ("element_stride", Field::ElementStride),
        ("elemtype", Field::ElementType),
        ("interleave_layout", Field::Interleave),
        ("swizzle_mode", Field::Swizzle),
        ("fill_mode", Field::Fill),
        ("swizzle_atomicity", Field::SwizzleAtomicity),
    ];

    /// Whether it takes the number of a dimension.
    #[must_use]
    pub fn has_ordinal(self) -> bool {
        matches!(
            self,
            Field::BoxDim | Field::GlobalDim | Field::GlobalStride | Field::ElementStride
        )
    }

    /// Bytes of its value.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            Field::GlobalAddress | Field::GlobalStride => 8,
            _ => 4,
        }
    }
}

/// Sets a field of a map, or of zeros, which are a map in the making. Whether the map is legal is
/// asked when it is used.
pub fn replace(
    bytes: &mut [u8; BYTES],
    field: Field,
    ordinal: usize,
    value: u64,
) -> Result<(), String> {
    let sum = |bytes: &[u8; BYTES]| checksum(bytes).to_le_bytes();
    if bytes.iter().all(|byte| *byte == 0) {
        bytes[..8].copy_from_slice(MAGIC);
    } else if &bytes[..8] != MAGIC || bytes[120..] != sum(bytes) {
        return Err("these 128 bytes are neither a tensor map nor zeros".into());
    }
    let most_ordinal = if field == Field::GlobalStride { 3 } else { 4 };
    if field.has_ordinal() && ordinal > most_ordinal {
        return Err(format!("ordinal {ordinal} is not 0 to {most_ordinal}"));
    }
    let within = |most: u64| match value <= most {
        true => Ok(value as u8),
        false => Err(format!("the value {value} is not 0 to {most}")),
    };
    match field {
        Field::GlobalAddress => bytes[8..16].copy_from_slice(&value.to_le_bytes()),
        Field::Rank => bytes[112] = within(4)? + 1,
        Field::BoxDim => {
            let elements =
                u16::try_from(value).map_err(|_| format!("a box of {value} elements"))?;
            bytes[96 + 2 * ordinal..98 + 2 * ordinal].copy_from_slice(&elements.to_le_bytes());
        }
        Field::GlobalDim => {
            bytes[16 + 8 * ordinal..24 + 8 * ordinal].copy_from_slice(&value.to_le_bytes());
        }
        Field::GlobalStride => {
            bytes[56 + 8 * ordinal..64 + 8 * ordinal].copy_from_slice(&value.to_le_bytes());
        }
        Field::ElementStride => bytes[106 + ordinal] = within(255)?,
        Field::ElementType => {
            let dtype = match value {
                0 => Dtype::U8,
                1 => Dtype::U16,
                2 => Dtype::U32,
                3 => Dtype::S32,
                4 => Dtype::U64,
                5 => Dtype::S64,
                6 => Dtype::F16,
                7 => Dtype::F32,
                9 => Dtype::F64,
                10 => Dtype::Bf16,
                other => return Err(format!("element type {other} is not emulated")),
            };
            bytes[111] = dtype as u8;
        }
        Field::Interleave | Field::SwizzleAtomicity if value != 0 => {
            return Err(format!("{value} is not emulated, only 0"));
        }
        Field::Interleave | Field::SwizzleAtomicity => {}
        Field::Swizzle => bytes[113] = within(3)?,
        Field::Fill => bytes[114] = within(1)?,
    }
    let sum = sum(bytes);
    bytes[120..].copy_from_slice(&sum);
    Ok(())
}

const MAGIC: &[u8; 8] = b"mok-tmap";

/// FNV-1a of everything before the checksum.
fn checksum(bytes: &[u8; BYTES]) -> u64 {
    bytes[..120]
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_become_a_map_field_by_field() {
        let mut map = TensorMap::new(Dtype::F16, 4096, &[100, 7], &[256], &[64, 8]).unwrap();
        (map.swizzle, map.fill) = (Swizzle::B128, Fill::Nan);
        let mut bytes = [0; BYTES];
        for (field, ordinal, value) in [
            (Field::GlobalAddress, 0, 4096),
            (Field::Rank, 0, 1),
            (Field::BoxDim, 0, 64),
            (Field::BoxDim, 1, 8),
            (Field::GlobalDim, 0, 100),
            (Field::GlobalDim, 1, 7),
            (Field::GlobalStride, 0, 256),
            (Field::ElementStride, 0, 1),
            (Field::ElementStride, 1, 1),
            (Field::ElementType, 0, 6),
            (Field::Interleave, 0, 0),
            (Field::Swizzle, 0, 3),
        ] {
            replace(&mut bytes, field, ordinal, value).unwrap();
        }
        assert_ne!(TensorMap::from_bytes(&bytes), Ok(map));
        replace(&mut bytes, Field::Fill, 0, 1).unwrap();
        assert_eq!(TensorMap::from_bytes(&bytes), Ok(map));
        // A map that is there keeps its other fields.
        replace(&mut bytes, Field::GlobalDim, 1, 9).unwrap();
        map.dims[1] = 9;
        assert_eq!(TensorMap::from_bytes(&bytes), Ok(map));
    }

    #[test]
    fn what_is_no_field_is_said() {
        let mut bytes = TensorMap::new(Dtype::U8, 0, &[64], &[], &[64])
            .unwrap()
            .to_bytes();
        for (field, ordinal, value) in [
            (Field::Rank, 0, 5),
            (Field::BoxDim, 5, 1),
            (Field::BoxDim, 0, 1 << 16),
            (Field::GlobalStride, 4, 16),
            (Field::ElementType, 0, 8),
            (Field::ElementType, 0, 99),
            (Field::Interleave, 0, 1),
            (Field::Swizzle, 0, 4),
            (Field::Fill, 0, 2),
        ] {
            assert!(
                replace(&mut bytes, field, ordinal, value).is_err(),
                "{field:?}"
            );
        }
        bytes[20] ^= 1;
        assert!(replace(&mut bytes, Field::Rank, 0, 0).is_err());
        assert!(replace(&mut [1; BYTES], Field::Rank, 0, 0).is_err());
    }
}
