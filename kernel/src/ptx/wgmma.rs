//! Tensor-core products of one warpgroup, sm_90a only ("wgmma").
//!
//! `D += A B` with D of 64 rows and N columns in the registers of 128 threads: lane
//! `l` of warp `w` holds rows `16 w + l / 4` and 8 below, columns `8 j + 2 (l % 4)`
//! and the next, as `d[4 j]`, `d[4 j + 1]` (upper row), `d[4 j + 2]`, `d[4 j + 3]`.
//! Operands in shared memory are given by [descriptors](crate::layout::descriptor).

/// Orders accesses to the sums' and A's registers before the warpgroup's next products. Shared
/// memory that ordinary stores wrote needs a [proxy fence](crate::ptx::fence) besides.
///
/// # Safety
/// All four warps of the warpgroup reach the same call.
#[macro_export]
macro_rules! wgmma_fence {
    ($($index:literal)*) => {{
        $crate::pin!();
        ::core::arch::asm!(
            concat!("wgmma.fence.sync.aligned;", $crate::collective_tag!($($index)*)),
            options(nostack)
        )
    }};
}

/// Closes the group of products issued since the last one.
///
/// # Safety
/// As [`wgmma_fence!`](crate::wgmma_fence).
#[macro_export]
macro_rules! wgmma_commit {
    ($($index:literal)*) => {
        ::core::arch::asm!(
            concat!(
                "wgmma.commit_group.sync.aligned;",
                $crate::collective_tag!($($index)*)
            ),
            options(nostack)
        )
    };
}

/// Waits until at most `$pending` groups are in flight: `wgmma_wait!(1)`.
///
/// The accumulators may be read only after a wait that covers every group that writes them.
///
/// # Safety
/// As [`wgmma_fence!`](crate::wgmma_fence).
#[macro_export]
macro_rules! wgmma_wait {
    ($pending:literal $(, $($index:literal)*)?) => {
        ::core::arch::asm!(
            concat!(
                "wgmma.wait_group.sync.aligned ",
                $pending,
                ";",
                $crate::collective_tag!($($($index)*)?)
            ),
            options(nostack)
        )
    };
}

/// Makes the accumulators depend on the wait before it: `wgmma_settled!(256, d)`.
///
/// The wait names no registers, so to the compiler the sums are there once the products are
/// issued, and it could read them before the wait. Emits nothing.
///
/// # Safety
/// Follows a wait that covers every product into `d`, a place of type `[f32; N / 2]`.
#[macro_export]
macro_rules! wgmma_settled {
    ($n:tt, $d:ident) => {
        $crate::wgmma_indices!($n [$n $d settled] [])
    };
}

/// One bf16 product, m64 n`N` k16, N any multiple of 8 up to 256.
///
/// * `wgmma!(256, d, smem desc_a, desc_b, scale_d, major_a, major_b, index)`: both from shared memory;
/// * `wgmma!(256, d, regs a, desc_b, scale_d, major_b, index)`: A, `[u32; 4]`, from registers.
///
/// `d` is a place of type `[f32; N / 2]`; with `scale_d` 0 the old sums are dropped;
/// the majors are constants, 0 for K-major, 1 for MN-major; `index` numbers literal copies.
///
/// # Safety
/// All four warps of the warpgroup reach the same call, after a fence; the operands
/// stay as they are and `d` (and `a`) untouched until a wait covers the product.
#[macro_export]
macro_rules! wgmma {
    (@with [$n:literal $d:ident smem $a:expr, $b:expr, $scale:expr, $ta:expr, $tb:expr, $index:literal] $($i:literal)*) => {
        ::core::arch::asm!(
            concat!("{{ .reg .pred p; setp.ne.b32 p, {scale}, 0; wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.bf16.bf16 {{",
                $crate::wgmma!(@list $($i)*), "}}, {a}, {b}, p, 1, 1, {ta}, {tb};", $crate::collective_tag!($index $n), "\n}}"),
            $(inout(reg32) $d[$i],)*
            a = in(reg64) $a, b = in(reg64) $b, scale = in(reg32) $scale, ta = const $ta, tb = const $tb, options(nostack))
    };
    (@with [$n:literal $d:ident regs $a:expr, $b:expr, $scale:expr, $tb:expr, $index:literal] $($i:literal)*) => {
        ::core::arch::asm!(
            concat!("{{ .reg .pred p; setp.ne.b32 p, {scale}, 0; wgmma.mma_async.sync.aligned.m64n", $n, "k16.f32.bf16.bf16 {{",
                $crate::wgmma!(@list $($i)*), "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, p, 1, 1, {tb};", $crate::collective_tag!($index $n), "\n}}"),
            $(inout(reg32) $d[$i],)*
            a0 = in(reg32) $a[0], a1 = in(reg32) $a[1], a2 = in(reg32) $a[2], a3 = in(reg32) $a[3],
            b = in(reg64) $b, scale = in(reg32) $scale, tb = const $tb, options(nostack))
    };
    (@with [$n:literal $d:ident settled] $($i:literal)*) => {
        ::core::arch::asm!(concat!("// ", $crate::wgmma!(@list $($i)*)), $(inout(reg32) $d[$i],)* options(nomem, nostack))
    };
    (@list $first:literal $($i:literal)*) => {
        concat!("{", $first, "}" $(, ",{", $i, "}")*)
    };
    ($n:tt, $d:ident, $($rest:tt)*) => {
        $crate::wgmma_indices!($n [$n $d $($rest)*] [])
    };
}

/// The accumulator indices of an N: each step adds the four of its last eight columns.
#[doc(hidden)]
#[macro_export]
macro_rules! wgmma_indices {
    (8 $args:tt [$($tail:tt)*]) => { $crate::wgmma!(@with $args 0 1 2 3 $($tail)*) };
    (16 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(8 $args [4 5 6 7 $($tail)*]) };
    (24 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(16 $args [8 9 10 11 $($tail)*]) };
    (32 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(24 $args [12 13 14 15 $($tail)*]) };
    (40 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(32 $args [16 17 18 19 $($tail)*]) };
    (48 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(40 $args [20 21 22 23 $($tail)*]) };
    (56 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(48 $args [24 25 26 27 $($tail)*]) };
    (64 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(56 $args [28 29 30 31 $($tail)*]) };
    (72 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(64 $args [32 33 34 35 $($tail)*]) };
    (80 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(72 $args [36 37 38 39 $($tail)*]) };
    (88 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(80 $args [40 41 42 43 $($tail)*]) };
    (96 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(88 $args [44 45 46 47 $($tail)*]) };
    (104 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(96 $args [48 49 50 51 $($tail)*]) };
    (112 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(104 $args [52 53 54 55 $($tail)*]) };
    (120 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(112 $args [56 57 58 59 $($tail)*]) };
    (128 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(120 $args [60 61 62 63 $($tail)*]) };
    (136 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(128 $args [64 65 66 67 $($tail)*]) };
    (144 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(136 $args [68 69 70 71 $($tail)*]) };
    (152 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(144 $args [72 73 74 75 $($tail)*]) };
    (160 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(152 $args [76 77 78 79 $($tail)*]) };
    (168 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(160 $args [80 81 82 83 $($tail)*]) };
    (176 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(168 $args [84 85 86 87 $($tail)*]) };
    (184 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(176 $args [88 89 90 91 $($tail)*]) };
    (192 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(184 $args [92 93 94 95 $($tail)*]) };
    (200 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(192 $args [96 97 98 99 $($tail)*]) };
    (208 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(200 $args [100 101 102 103 $($tail)*]) };
    (216 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(208 $args [104 105 106 107 $($tail)*]) };
    (224 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(216 $args [108 109 110 111 $($tail)*]) };
    (232 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(224 $args [112 113 114 115 $($tail)*]) };
    (240 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(232 $args [116 117 118 119 $($tail)*]) };
    (248 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(240 $args [120 121 122 123 $($tail)*]) };
    (256 $args:tt [$($tail:tt)*]) => { $crate::wgmma_indices!(248 $args [124 125 126 127 $($tail)*]) };
    ($n:tt $args:tt $tail:tt) => { compile_error!("N of a wgmma is a multiple of 8 from 8 to 256") };
}
