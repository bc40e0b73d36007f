//! Tests on a real GPU. Without one they are listed as ignored, with the reason.

mod copies;
mod faults;
mod gemm;
mod instructions;
mod large;
mod library;
mod wgmma;

use std::error::Error;

use libtest_mimic::{Arguments, Failed, Trial};

/// What a test returns: an error is a failure.
type Outcome = Result<(), Box<dyn Error>>;

/// A named test on the GPU.
fn trial(name: impl Into<String>, run: impl FnOnce() -> Outcome + Send + 'static) -> Trial {
    Trial::test(name, move || {
        run().map_err(|error| Failed::from(error.to_string()))
    })
}

/// An error unless the two are equal, with the first place where they differ.
fn expect_equal<T: PartialEq + std::fmt::Debug>(what: &str, got: &[T], want: &[T]) -> Outcome {
    if got.len() != want.len() {
        return Err(format!("{what}: {} values, expected {}", got.len(), want.len()).into());
    }
    match got.iter().zip(want).position(|(got, want)| got != want) {
        None => Ok(()),
        Some(at) => Err(format!(
            "{what}: [{at}] is {:?}, expected {:?} ({} of {} differ)",
            got[at],
            want[at],
            got.iter()
                .zip(want)
                .filter(|(got, want)| got != want)
                .count(),
            got.len()
        )
        .into()),
    }
}

fn main() {
    let mut arguments = Arguments::from_args();
    // One context, large buffers: side by side the tests would only get in each other's way.
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    trials.extend(copies::trials());
    trials.extend(instructions::trials());
    trials.extend(wgmma::trials());
    trials.extend(gemm::trials());
    trials.extend(library::trials());
    trials.extend(large::trials());
    trials.extend(faults::trials());
    if let Some(reason) = mok_tests::no_gpu() {
        eprintln!("GPU tests are ignored: {reason}");
        trials = trials
            .into_iter()
            .map(|trial| trial.with_ignored_flag(true))
            .collect();
    }
    libtest_mimic::run(&arguments, trials).exit();
}
