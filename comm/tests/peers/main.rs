//! Symmetric memory on real devices, as threads and as processes. With one GPU both ranks share it;
//! with none the tests are listed as ignored, with the reason.

mod bodies;
mod deaths;
#[path = "../support/launch.rs"]
mod launch;

use libtest_mimic::{Arguments, Failed, Trial};

use launch::{Job, run_threads};

/// How this program is told to be a rank: by its environment alone.
const CHILD_ARGS: &[&str] = &[];

/// Each rank's result; an error unless all say that it went well. What a machine can't do is said.
fn check(form: &str, results: Vec<String>) -> Result<(), Failed> {
    for (rank, result) in results.iter().enumerate() {
        if let Some(said) = result.strip_prefix("ok ") {
            eprintln!("  {form}, rank {rank}: {said}");
        } else {
            return Err(format!("{form}, rank {rank}: {result}").into());
        }
    }
    Ok(())
}

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for body in bodies::NAMES {
        trials.push(Trial::test(format!("{body}, threads"), move || {
            check("threads", run_threads(2, body))
        }));
        trials.push(Trial::test(format!("{body}, processes"), move || {
            check("processes", Job::of(2).run(body))
        }));
    }
    trials.extend(deaths::trials());
    trials
}

fn main() {
    launch::run_as_rank();
    let mut arguments = Arguments::from_args();
    // They measure free memory.
    arguments.test_threads = Some(1);
    let mut trials = trials();
    match bodies::devices() {
        Ok(1) => eprintln!("one GPU: both ranks share it, so peer access is not tested"),
        Ok(_) => {}
        Err(reason) => {
            eprintln!("tests of symmetric memory are ignored: {reason}");
            // Elsewhere "ignored" means "long"; whoever asks for those means no tests that can't run.
            if arguments.ignored || arguments.include_ignored {
                trials.clear();
            }
            trials = trials
                .into_iter()
                .map(|trial| trial.with_ignored_flag(true))
                .collect();
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
