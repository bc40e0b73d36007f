//! Matrix fragments of one warp ("ldmatrix", "stmatrix", "mma").

/// Loads 8x8 blocks of 16-bit elements: `load_matrix!(x4, addr)` or `load_matrix!(x4 trans, addr)`
/// gives `[u32; 4]`; `x2`, `x1` likewise. Further literals number copies of one place.
///
/// Lane `l` gives the address of row `l % 8` of block `l / 8`. Without `trans`, lane `l` gets
/// columns `2 (l % 4)` and the next of row `l / 4`; with it, of the transposed block.
///
/// # Safety
/// All lanes reach the same call; each address is 16-byte aligned, 16 readable bytes of shared memory.
#[macro_export]
macro_rules! load_matrix {
    (x4 $($trans:ident)?, $addr:expr $(, $index:literal)*) => {{
        let (a, b, c, d): (u32, u32, u32, u32);
        ::core::arch::asm!(
            concat!("ldmatrix.sync.aligned.m8n8.x4", $(".", stringify!($trans),)? ".shared::cta.b16 {{{0}, {1}, {2}, {3}}}, [{4}];", $crate::collective_tag!($($index)*)),
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) $addr.0, options(nostack));
        [a, b, c, d]
    }};
    (x2 $($trans:ident)?, $addr:expr $(, $index:literal)*) => {{
        let (a, b): (u32, u32);
        ::core::arch::asm!(
            concat!("ldmatrix.sync.aligned.m8n8.x2", $(".", stringify!($trans),)? ".shared::cta.b16 {{{0}, {1}}}, [{2}];", $crate::collective_tag!($($index)*)),
            out(reg32) a, out(reg32) b, in(reg32) $addr.0, options(nostack));
        [a, b]
    }};
    (x1 $($trans:ident)?, $addr:expr $(, $index:literal)*) => {{
        let a: u32;
        ::core::arch::asm!(
            concat!("ldmatrix.sync.aligned.m8n8.x1", $(".", stringify!($trans),)? ".shared::cta.b16 {{{0}}}, [{1}];", $crate::collective_tag!($($index)*)),
            out(reg32) a, in(reg32) $addr.0, options(nostack));
        [a]
    }};
}

/// Stores 8x8 blocks of 16-bit elements, the inverse of [`load_matrix!`](crate::load_matrix):
/// `store_matrix!(x4, addr, values)` or `store_matrix!(x4 trans, addr, values)`.
///
/// # Safety
/// As [`load_matrix!`](crate::load_matrix), for writing.
#[macro_export]
macro_rules! store_matrix {
    (x4 $($trans:ident)?, $addr:expr, $values:expr $(, $index:literal)*) => {{
        let [a, b, c, d]: [u32; 4] = $values;
        ::core::arch::asm!(
            concat!("stmatrix.sync.aligned.m8n8.x4", $(".", stringify!($trans),)? ".shared::cta.b16 [{4}], {{{0}, {1}, {2}, {3}}};", $crate::collective_tag!($($index)*)),
            in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d, in(reg32) $addr.0, options(nostack))
    }};
    (x2 $($trans:ident)?, $addr:expr, $values:expr $(, $index:literal)*) => {{
        let [a, b]: [u32; 2] = $values;
        ::core::arch::asm!(
            concat!("stmatrix.sync.aligned.m8n8.x2", $(".", stringify!($trans),)? ".shared::cta.b16 [{2}], {{{0}, {1}}};", $crate::collective_tag!($($index)*)),
            in(reg32) a, in(reg32) b, in(reg32) $addr.0, options(nostack))
    }};
    (x1 $($trans:ident)?, $addr:expr, $values:expr $(, $index:literal)*) => {{
        let [a]: [u32; 1] = $values;
        ::core::arch::asm!(
            concat!("stmatrix.sync.aligned.m8n8.x1", $(".", stringify!($trans),)? ".shared::cta.b16 [{1}], {{{0}}};", $crate::collective_tag!($($index)*)),
            in(reg32) a, in(reg32) $addr.0, options(nostack))
    }};
}

/// `D += A B` of one warp, m16n8k16, bf16 operands, f32 sums:
/// `mma_bf16!([d0, d1, d2, d3], a, b)` with places `d`, `a: [u32; 4]`, `b: [u32; 2]`.
///
/// Touches no memory, but isn't `pure` for the compiler: that could move it to where its sums are
/// used, which is often after the lanes have parted.
///
/// # Safety
/// All lanes reach the same call.
#[macro_export]
macro_rules! mma_bf16 {
    ([$d0:expr, $d1:expr, $d2:expr, $d3:expr], $a:expr, $b:expr $(, $index:literal)*) => {
        ::core::arch::asm!(
            concat!("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, {{{8}, {9}}}, {{{0}, {1}, {2}, {3}}};", $crate::collective_tag!($($index)*)),
            inout(reg32) $d0, inout(reg32) $d1, inout(reg32) $d2, inout(reg32) $d3,
            in(reg32) $a[0], in(reg32) $a[1], in(reg32) $a[2], in(reg32) $a[3],
            in(reg32) $b[0], in(reg32) $b[1], options(nomem, nostack))
    };
}
