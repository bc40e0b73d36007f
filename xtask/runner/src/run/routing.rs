//! Choices of experts: made up here, or by a router.

use std::ops::Range;

use clap::ValueEnum;
use mok::fill;
use rayon::prelude::*;

use super::shape::LayerShape;

/// Who chooses the experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Routing {
    /// Different experts for each token, all alike
    Uniform,
    /// Different experts for each token, the n-th with weight 1 / n
    Zipf,
    /// One expert for every route
    OneExpert,
    /// The input's topk_experts and router_weights, or its router
    File,
}

/// The experts of some tokens, `[tokens][top_k]` each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routes {
    /// An expert, or -1.
    pub experts: Vec<i32>,
    /// As many weights.
    pub weights: Vec<f32>,
}

impl Routes {
    /// From one list for each token.
    pub fn of_tokens(tokens: Vec<Vec<(i32, f32)>>) -> Routes {
        let (experts, weights) = tokens.into_iter().flatten().unzip();
        Routes { experts, weights }
    }
}

/// A number above 0 and at most 1.
pub fn uniform(seed: u64, index: u64) -> f64 {
    ((fill::hash(seed, index) >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// Routes that depend on the token's number in the job alone, so that they are the same for every
/// number of ranks. The weights of a token add up to about 1: were it 1, one expert twice beside a
/// shared one would give sums of two bf16 numbers, halfway between two others as often as not.
pub fn made_up(routing: Routing, seed: u64, shape: &LayerShape, tokens: Range<usize>) -> Routes {
    let (experts, top_k) = (shape.experts as usize, shape.top_k as usize);
    let of_token = |token: usize| -> Vec<(i32, f32)> {
        let seed = fill::hash(seed, token as u64);
        let weight = |k: usize| 2.0 * uniform(seed, k as u64) / top_k as f64;
        let chosen: Vec<usize> = match routing {
            Routing::OneExpert => vec![experts / 2; top_k],
            _ => {
                // The first arrivals of a race in which each expert runs as fast as its weight.
                let mut race: Vec<(f64, usize)> = (0..experts)
                    .map(|expert| {
                        let arrival = -uniform(seed, (top_k + expert) as u64).ln();
                        let speed = match routing {
                            Routing::Zipf => 1.0 / (expert + 1) as f64,
                            _ => 1.0,
                        };
                        (arrival / speed, expert)
                    })
                    .collect();
                race.sort_by(|a, b| a.0.total_cmp(&b.0));
                // More choices than experts: they are taken again.
                race.iter()
                    .cycle()
                    .take(top_k)
                    .map(|&(_, expert)| expert)
                    .collect()
            }
        };
        let weighed = chosen.into_iter().enumerate();
        weighed
            .map(|(k, expert)| (expert as i32, weight(k) as f32))
            .collect()
    };
    Routes::of_tokens(
        tokens
            .into_par_iter()
            .with_min_len(64)
            .map(of_token)
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(experts: u32, top_k: u32) -> LayerShape {
        LayerShape {
            experts,
            top_k,
            ..LayerShape::tiny()
        }
    }

    #[test]
    fn a_token_has_the_same_routes_wherever_it_is() {
        for routing in [Routing::Uniform, Routing::Zipf, Routing::OneExpert] {
            let all = made_up(routing, 3, &shape(7, 3), 0..20);
            let some = made_up(routing, 3, &shape(7, 3), 5..9);
            assert_eq!(all.experts[15..27], some.experts);
            assert_eq!(all.weights[15..27], some.weights);
            assert_ne!(
                all.weights,
                made_up(routing, 4, &shape(7, 3), 0..20).weights
            );
        }
    }

    #[test]
    fn experts_are_chosen_as_their_name_says() {
        let count = |routing| {
            let mut counts = [0usize; 8];
            let routes = made_up(routing, 1, &shape(8, 2), 0..2000);
            for token in routes.experts.chunks(2) {
                assert!(routing == Routing::OneExpert || token[0] != token[1]);
                token
                    .iter()
                    .for_each(|&expert| counts[expert as usize] += 1);
            }
            let sum: f32 = routes.weights.iter().sum();
            assert!((1900.0..2100.0).contains(&sum), "{sum}");
            counts
        };
        assert!(
            count(Routing::Uniform)
                .iter()
                .all(|&count| (400..600).contains(&count))
        );
        let zipf = count(Routing::Zipf);
        assert!(
            zipf.is_sorted_by(|a, b| a > b) && zipf[0] > 5 * zipf[7],
            "{zipf:?}"
        );
        assert_eq!(count(Routing::OneExpert)[4], 4000);
        // As many as there are, and more.
        for top_k in [3, 5, 32] {
            let routes = made_up(Routing::Uniform, 1, &shape(3, top_k), 0..4);
            assert!(routes.experts.iter().all(|expert| (0..3).contains(expert)));
            assert_eq!(routes.experts.len(), 4 * top_k as usize);
        }
    }
}
