//! The sums of a 64 by 256 tile across the 128 threads of a warpgroup, and their way out.

use crate::gemm::Sink;
use crate::layout::fragment::accumulator;
use crate::ptx::cvt::{pack_bf16, unpack_bf16};
use crate::ptx::global;

/// This thread's sums, placed as [`accumulator`] says.
pub struct Accumulators(pub [f32; 128]);

/// Where a warpgroup's 64 by 256 tile goes.
#[derive(Clone, Copy)]
pub struct Target {
    /// Device address of D's element in the tile's first row and column.
    pub address: u64,
    /// Elements from one row of D to the next.
    pub row_stride: u64,
    /// Rows of the tile that exist; may be 0.
    pub rows: u32,
    /// Columns of the tile that exist, a multiple of 8; may be more than 256.
    pub columns: u32,
}

/// One pair of neighbouring sums on its way to D.
trait Pair {
    const SIZE: u64;
    /// # Safety
    /// `at` addresses two elements of D, aligned to both, that only this thread accesses.
    unsafe fn put(at: u64, low: f32, high: f32);
}

struct FreshBf16;
struct FreshF32;
struct AddF32;
struct AddBf16;

impl Pair for FreshBf16 {
    const SIZE: u64 = 2;
    #[inline(always)]
    unsafe fn put(at: u64, low: f32, high: f32) {
        // SAFETY: the trait's contract.
        unsafe { global::store_u32(at, pack_bf16(low, high)) };
    }
}

impl Pair for FreshF32 {
    const SIZE: u64 = 4;
    #[inline(always)]
    unsafe fn put(at: u64, low: f32, high: f32) {
        // SAFETY: the trait's contract.
        unsafe { global::store_2f32(at, low, high) };
    }
}

impl Pair for AddF32 {
    const SIZE: u64 = 4;
    #[inline(always)]
    unsafe fn put(at: u64, low: f32, high: f32) {
        // SAFETY: the trait's contract.
        unsafe {
            let (old_low, old_high) = global::load_2f32(at);
            global::store_2f32(at, old_low + low, old_high + high);
        }
    }
}

impl Pair for AddBf16 {
    const SIZE: u64 = 2;
    #[inline(always)]
    unsafe fn put(at: u64, low: f32, high: f32) {
        // SAFETY: the trait's contract.
        unsafe {
            let (old_low, old_high) = unpack_bf16(global::load_u32(at));
            global::store_u32(at, pack_bf16(old_low + low, old_high + high));
        }
    }
}

impl Accumulators {
    /// All zero.
    #[inline(always)]
    pub const fn zero() -> Accumulators {
        Accumulators([0.0; 128])
    }

    /// Writes the tile out as `sink` (a [`Sink`] by number; unknown numbers write fresh bf16).
    ///
    /// # Safety
    /// The target's existing rows and columns are D's, aligned to 16 bytes, accessed by
    /// this warpgroup only; the sums are settled.
    #[inline(always)]
    pub unsafe fn store(&self, thread: u32, target: Target, sink: u32) {
        // SAFETY: the caller's contract.
        unsafe {
            if sink == Sink::F32 as u32 {
                self.store_as::<FreshF32>(thread, target);
            } else if sink == Sink::AddF32 as u32 {
                self.store_as::<AddF32>(thread, target);
            } else if sink == Sink::AddBf16 as u32 {
                self.store_as::<AddBf16>(thread, target);
            } else {
                self.store_as::<FreshBf16>(thread, target);
            }
        }
    }

    /// # Safety
    /// As [`Accumulators::store`].
    #[inline(always)]
    unsafe fn store_as<P: Pair>(&self, thread: u32, target: Target) {
        let row = accumulator::row(thread, 0);
        let column = accumulator::column(thread, 0);
        let upper = target.address + (row as u64 * target.row_stride + column as u64) * P::SIZE;
        let lower = upper + 8 * target.row_stride * P::SIZE;
        let (has_upper, has_lower) = (row < target.rows, row + 8 < target.rows);
        // Literal indices: an array indexed by a variable would live in local memory.
        macro_rules! columns {
            ($($j:literal [$d0:literal $d1:literal $d2:literal $d3:literal])*) => {$(
                if 8 * $j < target.columns {
                    if has_upper {
                        // SAFETY: the row and these columns exist.
                        unsafe { P::put(upper + 8 * $j * P::SIZE, self.0[$d0], self.0[$d1]) };
                    }
                    if has_lower {
                        // SAFETY: as above.
                        unsafe { P::put(lower + 8 * $j * P::SIZE, self.0[$d2], self.0[$d3]) };
                    }
                }
            )*};
        }
        columns! {
            0 [0 1 2 3] 1 [4 5 6 7] 2 [8 9 10 11] 3 [12 13 14 15]
            4 [16 17 18 19] 5 [20 21 22 23] 6 [24 25 26 27] 7 [28 29 30 31]
            8 [32 33 34 35] 9 [36 37 38 39] 10 [40 41 42 43] 11 [44 45 46 47]
            12 [48 49 50 51] 13 [52 53 54 55] 14 [56 57 58 59] 15 [60 61 62 63]
            16 [64 65 66 67] 17 [68 69 70 71] 18 [72 73 74 75] 19 [76 77 78 79]
            20 [80 81 82 83] 21 [84 85 86 87] 22 [88 89 90 91] 23 [92 93 94 95]
            24 [96 97 98 99] 25 [100 101 102 103] 26 [104 105 106 107] 27 [108 109 110 111]
            28 [112 113 114 115] 29 [116 117 118 119] 30 [120 121 122 123] 31 [124 125 126 127]
        }
    }
}
