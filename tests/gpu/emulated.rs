//! The probes and the grouped GEMM on the emulator: what runs on a GPU in `main.rs`, on any machine.
//!
//! Shapes that take the emulator long are left to `MOK_TEST_ALL=1`.

mod copies;
mod facts;
mod gate_up;
mod gemm;
mod instructions;
mod mxfp8;
mod outcome;
mod quantize;
mod random;
mod schedules;
mod tcgen05;
mod wgmma;

use libtest_mimic::Arguments;
use mok::{Arch, EmulatorConfig};
use mok_tests::Place;

use outcome::{Outcome, expect_equal, trial};

/// A fault that a GPU refuses is a finding that says so.
fn found(fault: fn() -> Outcome) -> Outcome {
    match fault() {
        Err(error) if error.to_string().contains("illegal instruction") => Ok(()),
        Err(error) => Err(format!("another error: {error}").into()),
        Ok(()) => Err("the emulator let it pass".into()),
    }
}

fn main() {
    mok_tests::run_on(Place::Emulator(EmulatorConfig::default()));
    let arguments = Arguments::from_args();
    let all = std::env::var_os("MOK_TEST_ALL").is_some();
    let mut trials = Vec::new();
    trials.extend(copies::trials());
    trials.extend(facts::trials());
    trials.extend(instructions::trials());
    trials.extend(wgmma::trials());
    trials.extend(tcgen05::trials());
    let mut builds = gemm::hoppers();
    for arch in [Arch::Sm100a, Arch::Sm103a] {
        let config = EmulatorConfig {
            arch,
            ..EmulatorConfig::default()
        };
        builds.push(gemm::Build {
            engine: gemm::Engine::Shipped,
            label: arch.name(),
            on: Some(config),
        });
    }
    trials.extend(gemm::trials(&builds, |work| all || work < 20_000_000));
    trials.extend(gate_up::trials(&builds));
    trials.extend(quantize::trials());
    trials.extend(mxfp8::products(&builds, |work| all || work < 60_000_000));
    trials.extend(random::trials(all));
    trials.extend(schedules::trials(if all { 64 } else { 4 }));
    for (name, fault) in copies::FAULTS {
        trials.push(trial(format!("faults::{name}"), move || found(fault)));
    }
    libtest_mimic::run(&arguments, trials).exit();
}
