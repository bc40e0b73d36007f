//! The layer on ranks that are processes, and on GPUs as threads too: the same bits as one rank,
//! and what the others get when a rank is killed, is late or fails.
//!
//! On emulated GPUs everywhere, by the exchange. On real ones by both transports, where there are
//! two; else those are listed as ignored, with the reason.

mod bodies;
mod deaths;
#[path = "../../comm/tests/support/launch.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod launch;

use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use mok::Device;
use mok::layer::Transport;

use bodies::{Body, Kind, What};
use launch::{Job, run_threads};

/// How this program is told to be a rank: by its environment alone.
const CHILD_ARGS: &[&str] = &[];

/// How long all ranks of a trial may take.
const LONG: Duration = Duration::from_secs(120);

/// Each rank's result; an error unless all say that it went well.
fn check(results: Vec<String>) -> Result<(), Failed> {
    for (rank, result) in results.iter().enumerate() {
        if !result.starts_with("ok") {
            return Err(format!("rank {rank}: {result}").into());
        }
    }
    Ok(())
}

fn processes(ranks: usize, body: Body) -> Trial {
    Trial::test(format!("{body}, {ranks} processes"), move || {
        let started = Job::of(ranks).start_all(&body.to_string());
        check(started.into_iter().map(|rank| rank.result(LONG)).collect())
    })
}

fn threads(body: Body) -> Trial {
    Trial::test(format!("{body}, 2 threads"), move || {
        check(run_threads(2, &body.to_string()))
    })
}

fn body(what: What, kind: Kind, transport: Transport) -> Body {
    Body {
        what,
        kind,
        transport,
    }
}

fn emulated() -> Vec<Trial> {
    let by = |what| body(what, Kind::Emulated, Transport::Nccl);
    vec![
        processes(2, by(What::Bits)),
        processes(3, by(What::Bits)),
        processes(2, by(What::Late)),
        processes(2, by(What::Errors)),
        processes(2, body(What::Unreachable, Kind::Emulated, Transport::Peer)),
        deaths::trial(3, 1, by(What::Survive)),
        deaths::trial(2, 0, by(What::Survive)),
    ]
}

fn on_gpus(transport: Transport) -> Vec<Trial> {
    let by = |what| body(what, Kind::Gpu, transport);
    let mut trials = vec![
        processes(2, by(What::Bits)),
        threads(by(What::Bits)),
        processes(2, by(What::Late)),
        processes(2, by(What::Errors)),
        processes(2, by(What::Graph)),
        deaths::trial(2, 0, by(What::Survive)),
        deaths::trial(2, 1, by(What::Survive)),
    ];
    // What is left of a killed rank disturbs nobody.
    trials.push(processes(2, by(What::Afterwards)));
    trials
}

/// Why this machine can't run trials on GPUs by this transport; `None` if it can.
fn lack(transport: Transport) -> Option<String> {
    match Device::cuda_count() {
        Err(error) => return Some(error.to_string()),
        Ok(count) if count < 2 => return Some(format!("two GPUs are needed, {count} is there")),
        Ok(_) => {}
    }
    transport
        .check_library()
        .err()
        .map(|error| error.to_string())
}

fn main() {
    launch::run_as_rank();
    let mut arguments = Arguments::from_args();
    // Each trial has processes of its own.
    arguments.test_threads = Some(1);
    // Elsewhere "ignored" means "long"; whoever asks for those means no trials that can't run.
    let asked = arguments.ignored || arguments.include_ignored;
    let mut trials = emulated();
    for transport in [Transport::Peer, Transport::Nccl] {
        let on_gpus = on_gpus(transport);
        match lack(transport) {
            None => trials.extend(on_gpus),
            Some(reason) => {
                eprintln!("{transport:?} on GPUs is ignored: {reason}");
                let ignored = on_gpus
                    .into_iter()
                    .map(|trial| trial.with_ignored_flag(true));
                trials.extend(ignored.filter(|_| !asked));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
