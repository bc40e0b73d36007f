//! Exchange among the lanes of a warp ("shfl.sync", "vote.sync", "elect.sync").

/// The value of lane `lane ^ mask`: `shuffle_xor!(value, mask)`, both u32. Further literals number
/// copies of one place.
///
/// # Safety
/// All 32 lanes reach the same call.
#[macro_export]
macro_rules! shuffle_xor {
    ($value:expr, $mask:expr $(, $index:literal)*) => {{
        let result: u32;
        $crate::pin!();
        ::core::arch::asm!(concat!("shfl.sync.bfly.b32 {0}, {1}, {2}, 31, 0xffffffff;", $crate::collective_tag!($($index)*)),
            out(reg32) result, in(reg32) $value, in(reg32) $mask, options(nostack));
        result
    }};
}

/// The value of lane `lane - delta`, or the lane's own where there is none:
/// `shuffle_up!(value, delta)`. Further literals number copies of one place.
///
/// # Safety
/// All 32 lanes reach the same call.
#[macro_export]
macro_rules! shuffle_up {
    ($value:expr, $delta:literal $(, $index:literal)*) => {{
        let result: u32;
        $crate::pin!();
        ::core::arch::asm!(
            concat!("shfl.sync.up.b32 {0}, {1}, ", $delta, ", 0, 0xffffffff;", $crate::collective_tag!($($index)*)),
            out(reg32) result, in(reg32) $value, options(nostack));
        result
    }};
}

/// The value of lane `source`: `shuffle!(value, source)`. Further literals number copies of one place.
///
/// # Safety
/// All 32 lanes reach the same call.
#[macro_export]
macro_rules! shuffle {
    ($value:expr, $source:expr $(, $index:literal)*) => {{
        let result: u32;
        $crate::pin!();
        ::core::arch::asm!(concat!("shfl.sync.idx.b32 {0}, {1}, {2}, 31, 0xffffffff;", $crate::collective_tag!($($index)*)),
            out(reg32) result, in(reg32) $value, in(reg32) $source, options(nostack));
        result
    }};
}

/// One bit a lane whose `predicate` (u32) is not 0: `ballot!(predicate)`.
///
/// # Safety
/// All 32 lanes reach the same call.
#[macro_export]
macro_rules! ballot {
    ($predicate:expr) => {{
        let result: u32;
        $crate::pin!();
        ::core::arch::asm!(
            concat!("{{ .reg .pred p; setp.ne.u32 p, {1}, 0; vote.sync.ballot.b32 {0}, p, 0xffffffff;",
                $crate::collective_tag!(), "\n}}"),
            out(reg32) result, in(reg32) $predicate, options(nostack));
        result
    }};
}

/// One bit a lane whose `value` (u32) is this lane's: `match_any!(value)` ("match.sync").
///
/// # Safety
/// All 32 lanes reach the same call.
#[macro_export]
macro_rules! match_any {
    ($value:expr) => {{
        let result: u32;
        $crate::pin!();
        ::core::arch::asm!(
            concat!("match.any.sync.b32 {0}, {1}, 0xffffffff;", $crate::collective_tag!()),
            out(reg32) result, in(reg32) $value, options(nostack));
        result
    }};
}
