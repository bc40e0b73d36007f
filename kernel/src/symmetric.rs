//! What each rank shows its peers: one region of the same layout on every rank.

use bytemuck::{Pod, Zeroable};

use crate::route::SEGMENT;

/// Offsets into the region, in bytes. Everything starts on a multiple of 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SymmetricPlan {
    /// `u64 [ranks]`: the wait that each peer has come to (see [`crate::failure::signal_word`]).
    pub signals: u64,
    /// A `u64`: who gave up, and why (see [`crate::failure`]); 0 if nobody.
    pub abort: u64,
    /// A `u64` as `abort`, written by the rank's own host when it knows that others won't come.
    pub lost: u64,
    /// `u32 [ranks]`: tokens of each rank.
    pub tokens: u64,
    /// `i32 [ranks][max_tokens][top_k]`: experts that each rank chose.
    pub routes: u64,
    /// Bytes of `routes` from one rank to the next.
    pub routes_stride: u64,
    /// `bf16 [max_tokens up to a multiple of 128][hidden]`: the rank's tokens.
    pub x: u64,
    /// `bf16 [max_tokens][top_k][hidden]`: what the experts gave, for each route.
    pub slots: u64,
    /// All of it.
    pub bytes: u64,
}

impl SymmetricPlan {
    /// The layout for these sizes, all within the limits of a layer.
    pub const fn new(ranks: u32, max_tokens: u32, top_k: u32, hidden: u32) -> SymmetricPlan {
        const fn up(bytes: u64) -> u64 {
            bytes.next_multiple_of(256)
        }
        let (ranks, tokens) = (ranks as u64, max_tokens as u64);
        let (top_k, hidden) = (top_k as u64, hidden as u64);
        let signals = 0;
        let abort = up(signals + 8 * ranks);
        let lost = abort + 8;
        let tokens_at = up(lost + 8);
        let routes = up(tokens_at + 4 * ranks);
        let routes_stride = up(4 * tokens * top_k);
        let x = up(routes + ranks * routes_stride);
        let slots = up(x + 2 * tokens.next_multiple_of(SEGMENT as u64) * hidden);
        SymmetricPlan {
            signals,
            abort,
            lost,
            tokens: tokens_at,
            routes,
            routes_stride,
            x,
            slots,
            bytes: up(slots + 2 * tokens * top_k * hidden),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{MAX_RANKS, MAX_TOKENS, MAX_TOP_K};

    #[test]
    fn parts_follow_each_other() {
        for (ranks, tokens, top_k, hidden) in [
            (1, 0, 1, 64),
            (1, 1, 1, 64),
            (7, 129, 3, 192),
            (MAX_RANKS, MAX_TOKENS, MAX_TOP_K, 8192),
        ] {
            let plan = SymmetricPlan::new(ranks, tokens, top_k, hidden);
            let (r, t) = (u64::from(ranks), u64::from(tokens));
            let (k, h) = (u64::from(top_k), u64::from(hidden));
            assert!(plan.abort >= plan.signals + 8 * r);
            assert!(plan.lost >= plan.abort + 8);
            assert!(plan.tokens >= plan.lost + 8);
            assert!(plan.routes >= plan.tokens + 4 * r);
            assert!(plan.routes_stride >= 4 * t * k);
            assert!(plan.x >= plan.routes + r * plan.routes_stride);
            assert!(plan.slots >= plan.x + 2 * t.next_multiple_of(128) * h);
            assert!(plan.bytes >= plan.slots + 2 * t * k * h);
        }
    }
}
