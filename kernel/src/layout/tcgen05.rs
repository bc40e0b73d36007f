//! Descriptors of `tcgen05.mma` (PTX ISA, "Matrix Descriptor" and "Instruction descriptor").
//!
//! Operands lie in shared memory as wgmma's do, [`descriptor`]; the descriptors say
//! so in other bits.

use super::descriptor::{self, Major};

/// Bits 46 to 48, which are 1 here.
const VERSION: u64 = 1 << 46;
/// 128 bytes, in bits 61 to 63.
const SWIZZLE_128B: u64 = 2 << 61;
/// The fields that wgmma's descriptor has in the same places: address and offsets.
const SHARED: u64 = 0x0000_3fff_3fff_3fff;

/// Descriptor of a bf16 tile at shared address `addr`; the panels of an MN-major one are `panel` bytes
/// apart.
///
/// An address of another block of the cluster has its rank above the field: each block of a pair reads
/// its own memory at the same offset.
pub const fn operand(major: Major, addr: u32, panel: u32) -> u64 {
    let like = match major {
        Major::K => descriptor::k_major(addr),
        Major::Mn => descriptor::mn_major(addr, panel),
    };
    like & SHARED | VERSION | SWIZZLE_128B
}

/// Descriptor of 32 rows of 16 bytes, one after the other, at shared address `addr`, for `tcgen05.cp`.
///
/// No swizzle: rows come in core matrices of eight, 128 bytes, and those follow each other (the stride
/// offset); there is one along K, so that the leading offset is unused.
pub const fn scales(addr: u32) -> u64 {
    const CORE_MATRIX: u64 = 128;
    (addr as u64 & 0x3_ffff) >> 4 | 1 << 16 | (CORE_MATRIX >> 4) << 32 | VERSION
}

/// Instruction descriptor of a bf16 product with f32 sums, `m` by `n`.
pub const fn instruction(m: u32, n: u32, a: Major, b: Major) -> u32 {
    const F32_SUMS: u32 = 1 << 4;
    const BF16_A: u32 = 1 << 7;
    const BF16_B: u32 = 1 << 10;
    F32_SUMS
        | BF16_A
        | BF16_B
        | (a.transpose() as u32) << 15
        | (b.transpose() as u32) << 16
        | (n >> 3) << 17
        | (m >> 4) << 24
}

/// Instruction descriptor of a product of K-major e4m3 with e8m0 scales, `m` by `n` (PTX ISA, "Instruction
/// descriptor", `.kind::mxf8f6f4`): types of A and B 0.
pub const fn instruction_mxfp8(m: u32, n: u32) -> u32 {
    const E8M0_SCALES: u32 = 1 << 23;
    E8M0_SCALES | (n >> 3) << 17 | (m >> 7) << 27
}

/// The same for step `k` of 32 K: the byte of each word of scales, A's and B's.
pub const fn of_step(instruction: u32, k: u32) -> u32 {
    instruction | k << 4 | k << 29
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_rows_of_16_bytes() {
        let d = scales(0x0102_2600);
        assert_eq!((d & 0x3fff) << 4, 0x2_2600);
        assert_eq!(d >> 32 & 0x3fff, 8, "128 bytes from eight rows to the next");
        assert_eq!((d >> 46 & 7, d >> 61), (1, 0));
    }

    #[test]
    fn scaled_products() {
        let bits = of_step(instruction_mxfp8(256, 208), 3);
        assert_eq!(bits >> 27 & 3, 2);
        assert_eq!(bits >> 17 & 0x3f, 208 / 8);
        assert_eq!((bits >> 4 & 3, bits >> 29 & 3), (3, 3));
        assert_eq!(bits >> 23 & 1, 1);
        assert_eq!(bits >> 7 & 0x3f, 0, "e4m3 and e4m3");
        assert_eq!((bits >> 15 & 3, bits & 0xf, bits >> 31), (0, 0, 0));
    }

    #[test]
    fn fields_lie_where_the_isa_says() {
        let d = operand(Major::Mn, 0x0102_2400, 8192);
        assert_eq!((d & 0x3fff) << 4, 0x2_2400, "18 bits of the address");
        assert_eq!(d >> 16 & 0x3fff, 8192 >> 4);
        assert_eq!(d >> 32 & 0x3fff, 1024 >> 4);
        assert_eq!(d >> 46 & 7, 1);
        assert_eq!(d >> 61, 2);
        assert_eq!(d >> 49 & 0xfff, 0, "no base offset, nothing reserved");
        let advanced = descriptor::advance(d, Major::Mn.k_step());
        assert_eq!((advanced & 0x3fff) << 4, 0x2_2400 + 2048);
        assert_eq!(advanced >> 16, d >> 16);
    }

    #[test]
    fn shapes_and_majors() {
        let bits = instruction(256, 240, Major::K, Major::Mn);
        assert_eq!(bits >> 24 & 0x1f, 256 / 16);
        assert_eq!(bits >> 17 & 0x3f, 240 / 8);
        assert_eq!(bits >> 15 & 3, 2);
        assert_eq!(bits & 0x7fff, 1 << 4 | 1 << 7 | 1 << 10);
        assert_eq!(instruction(256, 256, Major::Mn, Major::K) >> 15 & 3, 1);
        assert_eq!(bits >> 29, 0);
    }
}
