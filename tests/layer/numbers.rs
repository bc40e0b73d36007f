//! Outputs against the references, and the same bits for any number of ranks and any seed.

use half::bf16;
use mok::gemm::{GateUpCall, Matrix};
use mok::layer::{MoeConfig, MoeLayer, Transport, Weights};
use mok::{Arch, Completion, Device, EmulatorConfig, Groups};
use mok_tests::layer::{Problem, Routing};
use mok_tests::rank::{Rank, on_ranks};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

pub fn ranks(count: usize, seed: u64) -> Vec<Device> {
    ranks_of(Arch::Sm90a, count, seed)
}

fn ranks_of(arch: Arch, count: usize, seed: u64) -> Vec<Device> {
    let config = EmulatorConfig {
        arch,
        sms: 2,
        seed,
        ..EmulatorConfig::default()
    };
    Device::emulated_peers(config, count).unwrap()
}

/// Long tests were asked for.
pub fn all() -> bool {
    std::env::var_os("MOK_TEST_ALL").is_some()
}

#[test]
fn outputs_are_right_and_the_same_for_any_number_of_ranks() {
    right_for_any_number_of_ranks(Arch::Sm90a);
}

#[test]
fn and_where_pairs_of_blocks_multiply() {
    right_for_any_number_of_ranks(Arch::Sm100a);
    right_for_any_number_of_ranks(Arch::Sm103a);
}

fn right_for_any_number_of_ranks(arch: Arch) {
    let ranks = |count, seed| ranks_of(arch, count, seed);
    let config = MoeConfig::new(8, 64, 128, 2, 24).with_shared(64);
    let problem = Problem::new(config, &[24], Routing::Uniform, 1);
    let outputs = problem.outputs(&ranks(1, 0), 2);
    problem.check(&outputs);
    for tokens in [&[12, 12][..], &[1, 20, 0, 3], &[3, 3, 3, 3, 3, 3, 3, 3]] {
        let split = problem.split(tokens);
        let others = split.outputs(&ranks(tokens.len(), 7), 2);
        assert!(others == outputs, "{tokens:?}");
        let exchanged = split.by(Transport::Nccl);
        let others = exchanged.outputs(&ranks(tokens.len(), 8), 2);
        assert!(others == outputs, "{tokens:?} by exchange");
    }
}

/// One launch takes gate and up where they lie alike, two products and the activation else.
#[test]
fn weights_that_lie_differently_give_the_same_bits() {
    let config = MoeConfig::new(3, 192, 192, 2, 40).with_shared(64);
    let problem = Problem::new(config.with_swiglu_limit(0.5), &[40], Routing::Loose, 11);
    let outputs = on_ranks(ranks(1, 3), |device, group| {
        let mut rank = Rank::new(&problem, &device, &group).unwrap();
        let together = rank.output().unwrap();
        let [gate, up, down, shared @ ..] = rank.weights.each_ref().map(Matrix::of);
        let (rows, hidden) = (rank.weights[0].len() / 192, 192);
        let mut wide = vec![bf16::NAN; rows * (hidden + 8)];
        let values = rank.weights[0].to_vec().unwrap();
        for (to, row) in wide.chunks_mut(hidden + 8).zip(values.chunks(hidden)) {
            to[..hidden].copy_from_slice(row);
        }
        let wide = device.buffer_from(&wide).unwrap();
        let other = Matrix::of(&wide).with_row_stride(hidden as u64 + 8);
        let groups = Groups::new(&[1; 3]).unwrap().at(wide.ptr());
        let call = |gate| GateUpCall::new(groups, 192, 192, down, [gate, up], down);
        assert!(call(gate).fits() && !call(other).fits());
        let [shared_gate, shared_up, shared_down] = shared;
        let weights = Weights::new(other, up, down);
        let weights = weights.with_shared(shared_gate, shared_up, shared_down);
        rank.layer = MoeLayer::new(&rank.workspace, weights).unwrap();
        (together, rank.output().unwrap())
    });
    assert!(outputs[0].0 == outputs[0].1);
}

/// Layers, tokens of each rank, routing and seeds, as small as shows anything.
pub fn problems() -> impl Strategy<Value = (Problem, u64)> {
    let sizes = prop_oneof![Just(64u32), Just(128), Just(192)];
    let shared = prop_oneof![Just(0u32), Just(64), Just(192)];
    let routing = prop_oneof![
        4 => Just(Routing::Uniform),
        2 => Just(Routing::Zipf),
        2 => Just(Routing::OneExpert),
        3 => Just(Routing::Loose),
        1 => Just(Routing::Nobody),
    ];
    let top_k = prop_oneof![4 => 1u32..=4, 1 => 5u32..=32];
    let limit = prop_oneof![3 => Just(None), 1 => Just(Some(0.75f32))];
    let ranks = prop_oneof![Just(1usize), Just(2), Just(4), Just(8)];
    let tokens = ranks.prop_flat_map(|ranks| {
        let count = prop_oneof![1 => Just(0usize), 1 => Just(1), 3 => 0usize..10];
        proptest::collection::vec(count, ranks)
    });
    let layer = (
        1u32..=20,
        sizes.clone(),
        sizes,
        top_k,
        shared,
        limit,
        0u32..4,
    );
    (layer, tokens, routing, any::<u32>()).prop_map(|(layer, tokens, routing, seed)| {
        let (experts, hidden, inner, top_k, shared, limit, spare) = layer;
        let most = tokens.iter().copied().max().unwrap_or(0) as u32 + spare;
        let mut config = MoeConfig::new(experts, hidden, inner, top_k, most).with_shared(shared);
        config.swiglu_limit = limit;
        // Everything may go to one expert.
        let routes = tokens.iter().sum::<usize>() as u32 * top_k + 127 * experts;
        config.schedule_capacity = Some(routes.next_multiple_of(128));
        (
            Problem::new(config, &tokens, routing, u64::from(seed)),
            u64::from(seed),
        )
    })
}

#[test]
fn any_routing_on_any_ranks_is_right() {
    let config = Config {
        cases: if all() { 400 } else { 20 },
        max_shrink_iters: 20,
        failure_persistence: None,
        ..Config::default()
    };
    // The same few cases each time, or many others.
    let mut runner = match all() {
        true => TestRunner::new(config),
        false => {
            let seeds = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
            TestRunner::new_with_rng(config, seeds)
        }
    };
    let run = runner.run(&problems(), |(problem, seed)| {
        let outputs = problem.outputs(&ranks(problem.tokens.len(), seed), 1);
        match all() {
            true => problem.check_but_for_ties(&outputs),
            false => problem.check(&outputs),
        }
        let alone = problem.split(&[problem.tokens.iter().sum()]).alone();
        let others = alone.outputs(&ranks(1, seed + 1), 1);
        prop_assert!(others == outputs, "one rank gives other bits");
        let count = problem.tokens.len();
        let exchanged = problem
            .by(Transport::Nccl)
            .outputs(&ranks(count, seed + 2), 2);
        prop_assert!(exchanged == outputs, "an exchange gives other bits");
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

/// Narrow as the layer is, a lost route and a wrong element are seen.
#[test]
fn the_check_finds_what_is_wrong() {
    let config = MoeConfig::new(4, 64, 64, 4, 12).with_shared(64);
    let problem = Problem::new(config, &[12], Routing::Uniform, 2);
    let right = problem.outputs(&ranks(1, 0), 1);
    problem.check(&right);
    problem.check_but_for_ties(&right);
    let refuses = |outputs: &[bf16]| {
        let checks: [&dyn Fn(); 2] = [&|| problem.check(outputs), &|| {
            problem.check_but_for_ties(outputs)
        }];
        checks
            .into_iter()
            .all(|check| std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_err())
    };
    let mut lost = problem.clone();
    // The least of the weights of the first token.
    let weights = &problem.router_weights[..4];
    let least = (0..4).min_by(|&a, &b| weights[a].total_cmp(&weights[b]));
    lost.topk_experts[least.unwrap()] = -1;
    assert!(refuses(&lost.outputs(&ranks(1, 0), 1)));
    let mut wrong = right.clone();
    let largest =
        (0..64).max_by(|&a, &b| right[a].to_f32().abs().total_cmp(&right[b].to_f32().abs()));
    let at = largest.unwrap();
    // Four units in the last place.
    wrong[at] = bf16::from_bits(right[at].to_bits() + 4);
    assert!(refuses(&wrong));
}

#[test]
fn every_adversary_gets_the_same_bits() {
    adversaries(Arch::Sm90a);
}

#[test]
fn every_adversary_of_pairs_does() {
    adversaries(Arch::Sm100a);
}

fn adversaries(arch: Arch) {
    let config = MoeConfig::new(5, 64, 64, 3, 9).with_shared(64);
    let problem = Problem::new(config, &[9, 2, 0], Routing::Loose, 3);
    let expected = problem.outputs(&ranks_of(arch, 3, 0), 1);
    problem.check(&expected);
    // Two SMs more than held hold a pair of blocks.
    let sms = if arch.pairs() { 4 } else { 3 };
    every_mode(&problem, &expected, (arch, sms), &[0, 4]);
}

/// Runs a problem of three ranks in every adversarial mode, two of their SMs held in one and each of these warps
/// starved in another: the expected bits, with any seed.
pub fn every_mode(problem: &Problem, expected: &[bf16], (arch, sms): (Arch, u32), warps: &[u32]) {
    let seeds = if all() { 64 } else { 2 };
    let base = EmulatorConfig {
        arch,
        sms,
        ..EmulatorConfig::default()
    };
    let late = EmulatorConfig {
        completion: Completion::Late,
        ..base.clone()
    };
    let early = EmulatorConfig {
        completion: Completion::Early,
        ..base.clone()
    };
    let reverse = EmulatorConfig {
        reverse: true,
        ..base.clone()
    };
    let held = EmulatorConfig {
        held_sms: 2,
        ..base.clone()
    };
    let starved = warps.iter().map(|&warp| EmulatorConfig {
        starved_warp: Some(warp),
        ..base.clone()
    });
    let modes = [late, early, reverse, held].into_iter().chain(starved);
    for (mode, config) in modes.enumerate() {
        for seed in 0..seeds {
            let config = EmulatorConfig {
                seed,
                ..config.clone()
            };
            let devices = Device::emulated_peers(config, 3).unwrap();
            let outputs = problem.outputs(&devices, 2);
            assert!(outputs == expected, "mode {mode}, seed {seed}");
        }
    }
}

#[test]
fn seventy_two_ranks() {
    if !all() {
        return;
    }
    let config = MoeConfig::new(100, 64, 64, 4, 3);
    let tokens: Vec<usize> = (0..72).map(|rank| rank % 4).collect();
    let problem = Problem::new(config, &tokens, Routing::Uniform, 5);
    let outputs = problem.outputs(&ranks(72, 1), 1);
    problem.check(&outputs);
    let alone = problem.split(&[tokens.iter().sum()]).alone();
    assert!(alone.outputs(&ranks(1, 2), 1) == outputs);
    let exchanged = problem.by(Transport::Nccl);
    assert!(exchanged.outputs(&ranks(72, 3), 1) == outputs);
}
