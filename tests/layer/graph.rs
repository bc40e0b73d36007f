//! A pass that is captured once and replayed with other inputs.

use half::bf16;
use mok::layer::MoeConfig;
use mok_tests::layer::{Problem, Routing};
use mok_tests::rank::{Rank, on_ranks};

use super::numbers::ranks;

const TOKENS: usize = 6;
const ROUNDS: u64 = 5;

fn problem(round: u64) -> Problem {
    let config = MoeConfig::new(4, 64, 64, 2, TOKENS as u32);
    Problem::round(config, &[TOKENS, TOKENS], Routing::Loose, round)
}

#[test]
fn a_captured_pass_takes_new_inputs() {
    let outputs: Vec<Vec<Vec<bf16>>> = on_ranks(ranks(2, 9), |device, group| {
        let mut rank = Rank::new(&problem(0), &device, &group).unwrap();
        let outputs = rank.replay((0..ROUNDS).map(problem)).unwrap();
        group.barrier().unwrap();
        outputs
    });
    for round in 0..ROUNDS {
        let both = [&outputs[0][round as usize][..], &outputs[1][round as usize]].concat();
        problem(round).check(&both);
    }
}
