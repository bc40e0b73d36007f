//! In which order rows travel: by destination, and for each in the order of the destination's rows.
//!
//! Rows of an expert are ordered by (token, rank, k), and experts by their ranks. So what one rank
//! sends is its routes ordered by (expert, token, k), and what one receives from another is the rows
//! of that rank in the order in which they stand.

use mok_kernel::route::{Route, first_expert};

/// One rank's routes and rows as they travel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::layer) struct Lists {
    /// The routes of this rank's tokens, `token * top_k + k`, as they are sent.
    pub send: Vec<u32>,
    /// Where each route stands in `send`; 0 for those of no expert.
    pub places: Vec<u32>,
    /// How many go to each rank.
    pub sent: Vec<u64>,
    /// This rank's rows, as they are received.
    pub receive: Vec<u32>,
    /// How many come from each rank.
    pub received: Vec<u64>,
}

impl Lists {
    /// From a rank's own choice of experts, each -1 or an expert's number, and its rows, each a
    /// route or padding.
    pub fn new(topk_experts: &[i32], rows: &[u32], experts: u32, ranks: u32) -> Lists {
        let expert_of = |&chosen: &i32| usize::try_from(chosen).ok();
        let (send, places, by_expert) = sorted(topk_experts.iter().map(expert_of), experts);
        let first = |rank: u32| first_expert(rank, experts, ranks) as usize;
        let sent = (0..ranks).map(|rank| {
            let own = by_expert.get(first(rank)..first(rank + 1));
            own.unwrap_or_default().iter().sum()
        });
        let rank_of = |&word: &u32| {
            let route = Route(word);
            (!route.is_padding()).then(|| route.rank() as usize)
        };
        let (receive, _, received) = sorted(rows.iter().map(rank_of), ranks);
        Lists {
            send,
            places,
            sent: sent.collect(),
            receive,
            received,
        }
    }
}

/// Items by their key, those of one key in order: which they are, where each went, how many there
/// are of each key. Items with no key, or with one too large, are left out.
fn sorted(
    keys: impl Iterator<Item = Option<usize>> + Clone,
    count: u32,
) -> (Vec<u32>, Vec<u32>, Vec<u64>) {
    let mut counts = vec![0u64; count as usize];
    let mut items = 0;
    for key in keys.clone() {
        items += 1;
        if let Some(count) = key.and_then(|key| counts.get_mut(key)) {
            *count += 1;
        }
    }
    let mut next: Vec<u64> = counts
        .iter()
        .scan(0, |sum, count| {
            *sum += count;
            Some(*sum - count)
        })
        .collect();
    let mut order = vec![0; counts.iter().sum::<u64>() as usize];
    let mut places = vec![0; items];
    for (item, key) in keys.enumerate() {
        if let Some(next) = key.and_then(|key| next.get_mut(key)) {
            order[*next as usize] = item as u32;
            places[item] = *next as u32;
            *next += 1;
        }
    }
    (order, places, counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A rank's rows by the contract: by expert, then (token, rank, k), padded to 128.
    fn rows(all: &[Vec<i32>], top_k: usize, experts: u32, rank: u32) -> Vec<u32> {
        let ranks = all.len() as u32;
        let mut rows = Vec::new();
        for expert in first_expert(rank, experts, ranks)..first_expert(rank + 1, experts, ranks) {
            let mut own = Vec::new();
            for (source, chosen) in all.iter().enumerate() {
                for (route, _) in chosen.iter().enumerate().filter(|c| *c.1 == expert as i32) {
                    own.push((
                        (route / top_k) as u32,
                        source as u32,
                        (route % top_k) as u32,
                    ));
                }
            }
            own.sort_unstable();
            rows.extend(own.iter().map(|&(t, s, k)| Route::new(s, t, k).0));
            rows.resize(rows.len().next_multiple_of(128), Route::PADDING.0);
        }
        rows
    }

    proptest! {
        #[test]
        fn what_one_sends_the_other_expects(
            experts in 1u32..9,
            top_k in 1usize..4,
            tokens in proptest::collection::vec(0usize..6, 1..6),
            seed in any::<u64>(),
        ) {
            let ranks = tokens.len() as u32;
            let all: Vec<Vec<i32>> = tokens
                .iter()
                .enumerate()
                .map(|(rank, tokens)| {
                    let any = |i| crate::fill::hash(seed, (rank * 100 + i) as u64);
                    let one = |i| (any(i) % u64::from(experts + 1)) as i32 - 1;
                    (0..tokens * top_k).map(one).collect()
                })
                .collect();
            let rows: Vec<Vec<u32>> = (0..ranks).map(|rank| rows(&all, top_k, experts, rank)).collect();
            let lists: Vec<Lists> = all
                .iter()
                .zip(&rows)
                .map(|(chosen, rows)| Lists::new(chosen, rows, experts, ranks))
                .collect();
            for (source, own) in lists.iter().enumerate() {
                let mut from = 0;
                for (target, theirs) in lists.iter().enumerate() {
                    let count = own.sent[target] as usize;
                    prop_assert_eq!(own.sent[target], theirs.received[source]);
                    let sent: Vec<Route> = own.send[from..from + count]
                        .iter()
                        .map(|&route| {
                            let (token, k) = (route / top_k as u32, route % top_k as u32);
                            Route::new(source as u32, token, k)
                        })
                        .collect();
                    from += count;
                    let start: u64 = theirs.received[..source].iter().sum();
                    let received: Vec<Route> = theirs.receive[start as usize..][..count]
                        .iter()
                        .map(|&row| Route(rows[target][row as usize]))
                        .collect();
                    prop_assert_eq!(sent, received);
                }
                prop_assert_eq!(from, own.send.len());
                for (place, &route) in own.send.iter().enumerate() {
                    prop_assert_eq!(own.places[route as usize] as usize, place);
                }
            }
        }
    }
}
