//! The GEMM under every order of things that the emulator can be asked for.

use libtest_mimic::Trial;
use mok::gemm::{Form, Sink};
use mok::{Arch, Completion, EmulatorConfig};

use crate::gemm::{Engine, check_small};
use crate::{Outcome, gate_up, mxfp8, trial};

/// Adversaries, by name.
fn modes(arch: Arch) -> Vec<(&'static str, EmulatorConfig)> {
    let config = || EmulatorConfig {
        arch,
        ..EmulatorConfig::default()
    };
    vec![
        ("random", config()),
        (
            "early",
            EmulatorConfig {
                completion: Completion::Early,
                ..config()
            },
        ),
        (
            "late",
            EmulatorConfig {
                completion: Completion::Late,
                ..config()
            },
        ),
        (
            "reverse",
            EmulatorConfig {
                reverse: true,
                ..config()
            },
        ),
        (
            "producer_starved",
            EmulatorConfig {
                starved_warp: Some(0),
                ..config()
            },
        ),
        (
            "consumer_starved",
            EmulatorConfig {
                starved_warp: Some(5),
                ..config()
            },
        ),
        (
            "sms_held",
            EmulatorConfig {
                // One pair of blocks fits, or one block.
                held_sms: if arch.pairs() { 2 } else { 3 },
                ..config()
            },
        ),
    ]
}

fn all_forms(config: &EmulatorConfig, seeds: u64) -> Outcome {
    for seed in 0..seeds {
        let config = EmulatorConfig {
            seed,
            ..config.clone()
        };
        let engines = [Engine::Shipped, Engine::Warp];
        // The probes are built for Hopper.
        for &engine in &engines[..if config.arch.pairs() { 1 } else { 2 }] {
            for form in Form::ALL {
                let sink = if form == Form::Wgrad {
                    Sink::AddF32
                } else {
                    Sink::Bf16
                };
                mok_tests::emulated(config.clone(), || check_small(engine, form, sink))
                    .map_err(|error| format!("seed {seed}, {}: {error}", form.name()))?;
            }
        }
        mok_tests::emulated(config.clone(), || gate_up::check_small(Engine::Shipped))
            .map_err(|error| format!("seed {seed}, gate-and-up: {error}"))?;
        mok_tests::emulated(config, mxfp8::check_small)
            .map_err(|error| format!("seed {seed}, MXFP8: {error}"))?;
    }
    Ok(())
}

pub fn trials(seeds: u64) -> Vec<Trial> {
    let trial_of = |(name, config): (&str, EmulatorConfig)| {
        let name = format!("schedules::{}::{name}", config.arch.name());
        trial(name, move || all_forms(&config, seeds))
    };
    Arch::ALL
        .into_iter()
        .flat_map(modes)
        .map(trial_of)
        .collect()
}
