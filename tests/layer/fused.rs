//! The pass in one launch: the bits of the separate launches, whatever is set and whoever runs first.

use half::bf16;
use mok::gemm::{GemmError, Matrix};
use mok::layer::{LayerError, MoeConfig, MoeLayer, Path, Transport, Weights};
use mok::{Arch, Device, EmulatorConfig, Error};
use mok_tests::layer::{Problem, Routing};
use mok_tests::rank::{Rank, on_ranks};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::numbers::{all, every_mode, problems, ranks};

/// So many emulated GPUs with so many SMs each.
pub fn ranks_with(sms: u32, count: usize, seed: u64) -> Vec<Device> {
    ranks_of(Arch::Sm90a, sms, count, seed)
}

fn ranks_of(arch: Arch, sms: u32, count: usize, seed: u64) -> Vec<Device> {
    let config = EmulatorConfig {
        arch,
        sms,
        seed,
        ..EmulatorConfig::default()
    };
    Device::emulated_peers(config, count).unwrap()
}

fn fused(problem: &Problem, minibatch_rows: u32) -> Problem {
    let config = problem.config.with_path(Path::Fused);
    Problem {
        config: config.with_minibatch_rows(minibatch_rows),
        ..problem.clone()
    }
}

/// In macrobatches of five strips.
fn in_few_places(problem: &Problem) -> Problem {
    let mut problem = fused(problem, 256);
    problem.config = problem.config.with_macrobatch_rows(1024);
    problem
}

#[test]
fn any_number_of_ranks_gives_the_bits_of_separate_launches() {
    let config = MoeConfig::new(8, 64, 128, 2, 24).with_shared(64);
    let problem = Problem::new(config, &[24], Routing::Uniform, 1);
    let expected = problem.outputs(&ranks(1, 0), 1);
    for (seed, tokens) in [&[24][..], &[12, 12], &[1, 20, 0, 3], &[3; 8]]
        .into_iter()
        .enumerate()
    {
        let split = problem.split(tokens);
        let outputs = fused(&split, 256).outputs(&ranks(tokens.len(), seed as u64), 2);
        assert!(outputs == expected, "{tokens:?}");
    }
}

/// Several minibatches of several strips, on few blocks and more, in minibatches of any size. The contraction is
/// longer than a chunk; the last columns are less than a tile.
#[test]
fn no_grid_and_no_minibatch_changes_a_bit() {
    let config = MoeConfig::new(4, 576, 192, 2, 200).with_shared(64);
    let config = config.with_swiglu_limit(0.75);
    let problem = Problem::new(config, &[200, 130], Routing::Zipf, 4);
    let expected = problem.outputs(&ranks(2, 0), 1);
    let cases = [(2, 256), (3, 512), (5, 2048)];
    for (seed, (sms, minibatch_rows)) in cases.into_iter().enumerate() {
        let devices = ranks_with(sms, 2, seed as u64);
        let outputs = fused(&problem, minibatch_rows).outputs(&devices, 1);
        assert!(
            outputs == expected,
            "{sms} SMs, minibatches of {minibatch_rows} rows"
        );
    }
}

/// More strips than places, of one rank or of several, few rows in each and many.
#[test]
fn macrobatches_change_no_bit() {
    for (experts, tokens) in [(23, &[40][..]), (34, &[17, 9, 0]), (3, &[700])] {
        let config = MoeConfig::new(experts, 64, 64, 3, 700).with_shared(64);
        let problem = Problem::new(config, tokens, Routing::Loose, 6);
        let expected = problem.outputs(&ranks(tokens.len(), 0), 1);
        let few = in_few_places(&problem);
        let memory = |problem: &Problem| problem.config.memory(tokens.len()).unwrap().workspace;
        assert!(memory(&few) < memory(&problem));
        for sms in [1, 4] {
            let devices = ranks_with(sms, tokens.len(), u64::from(sms));
            assert!(few.outputs(&devices, 2) == expected, "{experts}, {sms} SMs");
        }
    }
}

#[test]
fn any_routing_gives_the_bits_of_separate_launches() {
    let config = Config {
        cases: if all() { 300 } else { 8 },
        max_shrink_iters: 20,
        failure_persistence: None,
        ..Config::default()
    };
    let mut runner = match all() {
        true => TestRunner::new(config),
        false => {
            let seeds = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
            TestRunner::new_with_rng(config, seeds)
        }
    };
    let run = runner.run(&problems(), |(problem, seed)| {
        let count = problem.tokens.len();
        let expected = problem.outputs(&ranks(count, seed), 1);
        let minibatch_rows = [256, 384, 1024][seed as usize % 3];
        let devices = ranks_with(2 + seed as u32 % 3, count, seed + 1);
        let mut one_launch = fused(&problem, minibatch_rows);
        one_launch.config = one_launch
            .config
            .with_macrobatch_rows([1024, 32_768][seed as usize % 2]);
        let outputs = one_launch.outputs(&devices, 2);
        proptest::prop_assert!(outputs == expected, "other bits");
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}

/// Where pairs of blocks multiply: more strips than places, few rows and many, on one pair and on several.
#[test]
fn pairs_give_the_bits_of_separate_launches() {
    for (experts, tokens) in [(8, &[24][..]), (23, &[20, 9]), (2, &[300, 1])] {
        let config = MoeConfig::new(experts, 64, 192, 2, 300).with_shared(64);
        let problem = Problem::new(config, tokens, Routing::Loose, 6);
        let count = tokens.len();
        let expected = problem.outputs(&ranks_of(Arch::Sm100a, 2, count, 0), 1);
        let few = in_few_places(&problem);
        for sms in [2, 5] {
            let devices = ranks_of(Arch::Sm100a, sms, count, u64::from(sms));
            assert!(few.outputs(&devices, 2) == expected, "{experts}, {sms} SMs");
        }
    }
}

/// Ranks need not agree on how they launch.
#[test]
fn ranks_of_both_kinds_meet() {
    let config = MoeConfig::new(6, 64, 64, 3, 7).with_shared(128);
    let problem = Problem::new(config, &[7, 5, 2], Routing::Loose, 8);
    let expected = problem.outputs(&ranks(3, 0), 1);
    let one_launch = fused(&problem, 256);
    let outputs = on_ranks(ranks(3, 1), |device, group| {
        let problem = match group.rank() {
            1 => &problem,
            _ => &one_launch,
        };
        problem.run(&device, &group, 2).unwrap().swap_remove(1)
    });
    assert!(outputs.concat() == expected);
}

#[test]
fn every_adversary_gets_the_same_bits() {
    let config = MoeConfig::new(20, 64, 128, 3, 9).with_shared(64);
    let problem = Problem::new(config, &[9, 5, 0], Routing::Loose, 3);
    let expected = problem.outputs(&ranks(3, 0), 1);
    // Of three blocks one is resident at a time where two SMs are held. Starved: the producer, a warp that moves
    // rows, a consumer's.
    every_mode(
        &in_few_places(&problem),
        &expected,
        (Arch::Sm90a, 3),
        &[0, 2, 5],
    );
}

/// Two pairs, of which one is resident at a time where two SMs are held. Starved: the producers, the dealer and a
/// warp that moves rows, the issuer and another such.
#[test]
fn every_adversary_of_pairs_does() {
    let config = MoeConfig::new(20, 64, 128, 3, 9).with_shared(64);
    let problem = Problem::new(config, &[9, 5, 0], Routing::Loose, 3);
    let expected = problem.outputs(&ranks_of(Arch::Sm100a, 4, 3, 0), 1);
    every_mode(
        &in_few_places(&problem),
        &expected,
        (Arch::Sm100a, 4),
        &[0, 2, 3],
    );
}

/// Gate and up that one launch doesn't take: an error that says so, and the rank's next call works.
#[test]
fn weights_that_lie_differently_are_an_error() {
    let config = MoeConfig::new(3, 64, 64, 2, 8);
    let problem = fused(&Problem::new(config, &[8], Routing::Loose, 11), 256);
    on_ranks(ranks(1, 3), |device, group| {
        let mut rank = Rank::new(&problem, &device, &group).unwrap();
        let [gate, up, down, ..] = rank.weights.each_ref().map(Matrix::of);
        let wide = device.buffer_zeroed::<bf16>(3 * 64 * 72).unwrap();
        let other = Matrix::of(&wide).with_row_stride(72);
        rank.layer = MoeLayer::new(&rank.workspace, Weights::new(other, up, down)).unwrap();
        let error = rank.pass().unwrap_err();
        assert!(matches!(error, Error::Layer(LayerError::Fused)), "{error}");
        rank.workspace.recover().unwrap();
        rank.layer = MoeLayer::new(&rank.workspace, Weights::new(gate, up, down)).unwrap();
        rank.pass().unwrap();
    });
}

/// One launch counts the tiles of all rows, though few are held: more than 32 bits count are an error, not a wrong order.
#[test]
fn tiles_of_all_rows_must_be_countable() {
    let config = MoeConfig::new(1, 64, 1 << 18, 1, 1).with_path(Path::Fused);
    let config = config.with_schedule_capacity((1 << 20) * 192 + 128);
    let problem = Problem::new(config, &[1], Routing::Uniform, 2);
    on_ranks(ranks(1, 1), |device, group| {
        let mut rank = Rank::new(&problem, &device, &group).unwrap();
        let error = rank.pass().unwrap_err();
        assert!(
            matches!(error, Error::Gemm(GemmError::Tiles { .. })),
            "{error}"
        );
    });
}

#[test]
fn what_there_is_no_launch_for_is_an_error() {
    let config = MoeConfig::new(4, 64, 64, 1, 4).with_path(Path::Fused);
    for (config, text) in [
        (
            config.with_minibatch_rows(0),
            "minibatch_rows is 0, not 256 to",
        ),
        (
            config.with_minibatch_rows(128),
            "minibatch_rows is 128, not 256 to",
        ),
        (
            config.with_minibatch_rows(300),
            "minibatch_rows is 300, not a multiple of 128",
        ),
        (
            config.with_macrobatch_rows(0),
            "macrobatch_rows is 0, not 1024 to",
        ),
        (
            config.with_macrobatch_rows(896),
            "macrobatch_rows is 896, not 1024 to",
        ),
        (
            config.with_macrobatch_rows(1100),
            "macrobatch_rows is 1100, not a multiple of 128",
        ),
    ] {
        let error = config.check(1).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    let error = config.with_transport(Transport::Nccl).check(1).unwrap_err();
    assert_eq!(error, LayerError::FusedExchange);
}
