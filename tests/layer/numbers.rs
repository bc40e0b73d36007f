//! Outputs against the references, and the same bits for any number of ranks and any seed.

use mok::layer::MoeConfig;
use mok::{Device, EmulatorConfig};
use mok_tests::layer::{Problem, Routing};

fn ranks(count: usize, seed: u64) -> Vec<Device> {
    let config = EmulatorConfig {
        sms: 2,
        seed,
        ..EmulatorConfig::default()
    };
    Device::emulated_peers(config, count).unwrap()
}

#[test]
fn outputs_are_right_and_the_same_for_any_number_of_ranks() {
    let config = MoeConfig::new(8, 64, 128, 2, 24).with_shared(64);
    let problem = Problem::new(config, &[24], Routing::Uniform, 1);
    let outputs = problem.outputs(&ranks(1, 0), 2);
    problem.check(&outputs);
    for tokens in [&[12, 12][..], &[1, 20, 0, 3], &[3, 3, 3, 3, 3, 3, 3, 3]] {
        let split = problem.split(tokens);
        let others = split.outputs(&ranks(tokens.len(), 7), 2);
        assert!(others == outputs, "{tokens:?}");
    }
}
