//! A pass that is captured once and replayed with other inputs.

use half::bf16;
use mok::layer::{MoeConfig, Path};
use mok_tests::layer::{Problem, Routing};
use mok_tests::rank::{Rank, on_ranks};

use super::numbers::ranks;

const TOKENS: usize = 6;
const ROUNDS: u64 = 5;

fn problem(path: Path, round: u64) -> Problem {
    let config = MoeConfig::new(4, 64, 64, 2, TOKENS as u32).with_path(path);
    Problem::round(config, &[TOKENS, TOKENS], Routing::Loose, round)
}

#[test]
fn a_captured_pass_takes_new_inputs() {
    takes_new_inputs(Path::Unfused);
}

#[test]
fn captured_in_one_launch_too() {
    takes_new_inputs(Path::Fused);
}

fn takes_new_inputs(path: Path) {
    let outputs: Vec<Vec<Vec<bf16>>> = on_ranks(ranks(2, 9), |device, group| {
        let mut rank = Rank::new(&problem(path, 0), &device, &group).unwrap();
        let outputs = rank
            .replay((0..ROUNDS).map(|round| problem(path, round)))
            .unwrap();
        group.barrier().unwrap();
        outputs
    });
    for round in 0..ROUNDS {
        let both = [&outputs[0][round as usize][..], &outputs[1][round as usize]].concat();
        problem(path, round).check(&both);
    }
}
