use mok::{Arch, EmulatorConfig};

use super::{CASES, COMPLETIONS, cases, product, shipped};

/// Seeds in each mode; all of them with `cargo xtask test --all`.
fn seeds() -> u64 {
    match std::env::var_os("MOK_TEST_ALL") {
        Some(_) => 64,
        None => 3,
    }
}

fn clean(arch: Arch) {
    for case in cases(arch) {
        let mut results = Vec::new();
        for completion in COMPLETIONS {
            for seed in 0..seeds() {
                let config = EmulatorConfig {
                    arch,
                    seed,
                    completion,
                    reverse: seed % 2 == 1,
                    starved_warp: (seed % 4 == 2).then_some(seed as u32 / 4 % 12),
                    ..EmulatorConfig::default()
                };
                let d = product(shipped(arch), case, config.clone());
                results.push(d.unwrap_or_else(|error| panic!("{case:?}, {config:?}: {error}")));
            }
        }
        assert!(results.iter().all(|d| *d == results[0]), "{case:?}");
    }
}

#[test]
fn the_shipped_kernels_are_clean() {
    clean(Arch::Sm90a);
}

#[test]
fn those_of_pairs_are_clean() {
    // sm_103a's PTX is the same but for its target.
    clean(Arch::Sm100a);
}

#[test]
fn pairs_ship_one_kernel_for_two_architectures() {
    let instructions = |arch| {
        let lines = shipped(arch).lines().filter(|line| !line.starts_with('.'));
        lines.collect::<Vec<_>>()
    };
    assert_eq!(instructions(Arch::Sm100a), instructions(Arch::Sm103a));
}

#[test]
fn without_the_checker_results_are_the_same() {
    let with = |check| {
        let config = EmulatorConfig {
            check,
            ..EmulatorConfig::default()
        };
        product(shipped(Arch::Sm90a), CASES[2], config).unwrap()
    };
    assert_eq!(with(true), with(false));
}
