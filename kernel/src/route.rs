//! Who owns which expert, and how a route is written in one word.

/// The most ranks of one group.
pub const MAX_RANKS: u32 = 72;
/// The most tokens of one rank.
pub const MAX_TOKENS: u32 = 1 << 20;
/// The most experts of one token.
pub const MAX_TOP_K: u32 = 32;
/// The most experts of a layer.
pub const MAX_EXPERTS: u32 = 1024;
/// Each expert's rows start on a multiple of this.
pub const SEGMENT: u32 = 128;

/// One (token, k) pair of a rank, packed: what a row of the schedule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Route(pub u32);

impl Route {
    /// A row that belongs to no route.
    pub const PADDING: Route = Route(u32::MAX);

    /// Rank up to 72, token up to 2^20, slot k up to 32.
    pub const fn new(rank: u32, token: u32, k: u32) -> Route {
        Route(rank << 25 | k << 20 | token)
    }

    /// The rank whose token it is.
    pub const fn rank(self) -> u32 {
        self.0 >> 25
    }

    /// The token on its rank.
    pub const fn token(self) -> u32 {
        self.0 & (MAX_TOKENS - 1)
    }

    /// Which of the token's experts.
    pub const fn k(self) -> u32 {
        self.0 >> 20 & (MAX_TOP_K - 1)
    }

    /// Whether no route is here.
    pub const fn is_padding(self) -> bool {
        self.0 == Route::PADDING.0
    }
}

/// The first expert of a rank; that of rank `ranks` is `experts`.
pub const fn first_expert(rank: u32, experts: u32, ranks: u32) -> u32 {
    match ranks {
        0 => 0,
        // At most 72 * 1,024.
        _ => rank * experts / ranks,
    }
}

/// Experts of a rank.
pub const fn local_experts(rank: u32, experts: u32, ranks: u32) -> u32 {
    first_expert(rank + 1, experts, ranks) - first_expert(rank, experts, ranks)
}

/// Rows of an expert's segment.
pub const fn segment(rows: u32) -> u64 {
    (rows as u64).div_ceil(SEGMENT as u64) * SEGMENT as u64
}

/// Tokens of each rank that one block ranks, and how many such chunks there are: about 1,024
/// routes each, and at most 4,096 chunks.
pub const fn chunks(max_tokens: u32, ranks: u32, top_k: u32) -> (u32, u32) {
    let by_routes = 1024 / (ranks * top_k);
    let by_count = max_tokens.div_ceil(4096);
    let mut tokens = if by_routes > by_count {
        by_routes
    } else {
        by_count
    };
    if tokens == 0 {
        tokens = 1;
    }
    (tokens, max_tokens.div_ceil(tokens))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_route_is_padding() {
        let last = Route::new(MAX_RANKS - 1, MAX_TOKENS - 1, MAX_TOP_K - 1);
        assert!(!last.is_padding());
        assert_eq!(last.rank(), MAX_RANKS - 1);
    }

    proptest! {
        #[test]
        fn routes_round_trip(rank in 0..MAX_RANKS, token in 0..MAX_TOKENS, k in 0..MAX_TOP_K) {
            let route = Route::new(rank, token, k);
            prop_assert_eq!((route.rank(), route.token(), route.k()), (rank, token, k));
        }

        #[test]
        fn every_expert_has_one_owner(experts in 1..=MAX_EXPERTS, ranks in 1..=MAX_RANKS) {
            prop_assert_eq!(first_expert(0, experts, ranks), 0);
            prop_assert_eq!(first_expert(ranks, experts, ranks), experts);
            for rank in 0..ranks {
                let local = local_experts(rank, experts, ranks);
                prop_assert!(local == experts / ranks || local == experts.div_ceil(ranks));
            }
        }

        #[test]
        fn chunks_hold_every_token(tokens in 1..=MAX_TOKENS, ranks in 1..=MAX_RANKS, k in 1..=MAX_TOP_K) {
            let (each, count) = chunks(tokens, ranks, k);
            prop_assert!(each as u64 * count as u64 >= tokens as u64 && count <= 4096);
            prop_assert!(each as u64 * ranks as u64 * k as u64 <= u32::MAX as u64);
        }
    }
}
