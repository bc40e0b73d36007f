//! The sums of a 64 by 192 tile across the 128 threads of a warpgroup.

/// This thread's sums, placed as [`accumulator`](crate::layout::fragment::accumulator) says. A
/// narrower product uses the first ones.
pub struct Accumulators(pub [f32; 96]);

/// Runs `$run!` for each 16 columns of the tile, with their number and the indices of this
/// thread's eight sums there: an array indexed by a variable would live in local memory.
/// `lower` and `upper` do half of the tile, after what else `$run!` takes.
#[macro_export]
macro_rules! for_each_16_columns {
    ($run:ident) => {
        $crate::for_each_16_columns!(lower $run);
        $crate::for_each_16_columns!(upper $run);
    };
    (lower $run:ident $($first:tt)*) => {
        $run! {
            $($first)*
            0 [0 1 2 3 4 5 6 7]
            1 [8 9 10 11 12 13 14 15]
            2 [16 17 18 19 20 21 22 23]
            3 [24 25 26 27 28 29 30 31]
            4 [32 33 34 35 36 37 38 39]
            5 [40 41 42 43 44 45 46 47]
        }
    };
    (upper $run:ident $($first:tt)*) => {
        $run! {
            $($first)*
            6 [48 49 50 51 52 53 54 55]
            7 [56 57 58 59 60 61 62 63]
            8 [64 65 66 67 68 69 70 71]
            9 [72 73 74 75 76 77 78 79]
            10 [80 81 82 83 84 85 86 87]
            11 [88 89 90 91 92 93 94 95]
        }
    };
}

/// The same for each 32 columns, with the indices of sixteen sums.
#[macro_export]
macro_rules! for_each_32_columns {
    ($run:ident $($first:tt)*) => {
        $run! {
            $($first)*
            0 [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]
            1 [16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]
            2 [32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47]
            3 [48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63]
            4 [64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79]
            5 [80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95]
        }
    };
}

/// The same for each 64 columns, as four times 16.
#[macro_export]
macro_rules! for_each_64_columns {
    ($run:ident $($first:tt)*) => {
        $run! {
            $($first)*
            0 [0 [0 1 2 3 4 5 6 7] 1 [8 9 10 11 12 13 14 15] 2 [16 17 18 19 20 21 22 23] 3 [24 25 26 27 28 29 30 31]]
            1 [4 [32 33 34 35 36 37 38 39] 5 [40 41 42 43 44 45 46 47] 6 [48 49 50 51 52 53 54 55] 7 [56 57 58 59 60 61 62 63]]
            2 [8 [64 65 66 67 68 69 70 71] 9 [72 73 74 75 76 77 78 79] 10 [80 81 82 83 84 85 86 87] 11 [88 89 90 91 92 93 94 95]]
        }
    };
}

impl Accumulators {
    /// All zero.
    #[inline(always)]
    pub const fn zero() -> Accumulators {
        Accumulators([0.0; 96])
    }

    /// Adds the sums of one more chunk, which are settled.
    #[inline(always)]
    pub fn add(&mut self, chunk: &Accumulators) {
        macro_rules! columns {
            ($($j:literal [$($i:literal)*])*) => {
                $($(self.0[$i] += chunk.0[$i];)*)*
            };
        }
        for_each_16_columns!(columns);
    }

    /// Takes the sums of a first chunk, which are settled. By additions: copies would let the compiler
    /// have both in the same registers, and the next chunk spills.
    #[inline(always)]
    pub fn take(&mut self, chunk: &Accumulators) {
        let zero = crate::ptx::reg::anew(0);
        macro_rules! columns {
            ($($j:literal [$($i:literal)*])*) => {
                $($(
                    // SAFETY: adds registers.
                    unsafe { core::arch::asm!("add.rn.f32 {0}, {1}, {2};", lateout(reg32) self.0[$i], in(reg32) chunk.0[$i], in(reg32) zero, options(pure, nomem, nostack)) };
                )*)*
            };
        }
        for_each_16_columns!(columns);
    }
}
