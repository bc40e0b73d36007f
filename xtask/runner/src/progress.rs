//! Progress on standard error: a bar on a terminal, nothing elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// One bar for a known number of steps.
pub struct Progress(ProgressBar);

impl Progress {
    /// None of the steps done yet.
    pub fn new(steps: usize) -> Progress {
        let bar = ProgressBar::new(steps as u64);
        let template = "{spinner} [{elapsed}] {bar:24} {pos}/{len} {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Progress(bar)
    }

    /// One that is never seen: of ranks other than the first.
    pub fn hidden() -> Progress {
        Progress(ProgressBar::hidden())
    }

    /// What is being done now.
    pub fn at(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
    }

    /// One step is done.
    pub fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
