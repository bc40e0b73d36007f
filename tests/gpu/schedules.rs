//! The GEMM under every order of things that the emulator can be asked for.

use libtest_mimic::Trial;
use mok::gemm::{Form, Sink};
use mok::{Completion, EmulatorConfig};

use crate::gemm::{Engine, check_small};
use crate::{Outcome, gate_up, trial};

/// Adversaries, by name.
fn modes() -> Vec<(&'static str, EmulatorConfig)> {
    let config = EmulatorConfig::default;
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
                held_sms: 3,
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
        for engine in [Engine::Shipped, Engine::Warp] {
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
        mok_tests::emulated(config, || gate_up::check_small(Engine::Shipped))
            .map_err(|error| format!("seed {seed}, gate-and-up: {error}"))?;
    }
    Ok(())
}

pub fn trials(seeds: u64) -> Vec<Trial> {
    let trial_of = |(name, config): (&str, EmulatorConfig)| {
        trial(format!("schedules::{name}"), move || {
            all_forms(&config, seeds)
        })
    };
    modes().into_iter().map(trial_of).collect()
}
