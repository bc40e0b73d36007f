//! What a test returns, and how tests are named.

use std::error::Error;

use libtest_mimic::{Failed, Trial};

/// What a test returns: an error is a failure.
pub type Outcome = Result<(), Box<dyn Error>>;

/// A named test.
pub fn trial(name: impl Into<String>, run: impl FnOnce() -> Outcome + Send + 'static) -> Trial {
    Trial::test(name, move || {
        run().map_err(|error| Failed::from(error.to_string()))
    })
}

/// An error unless the two are equal, with the first place where they differ.
pub fn expect_equal<T: PartialEq + std::fmt::Debug>(what: &str, got: &[T], want: &[T]) -> Outcome {
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
