//! Progress on standard error: bars on a terminal, lines elsewhere.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use mok_build::Report;

/// One bar for each step that is under way.
pub struct Bars {
    all: MultiProgress,
    steps: HashMap<String, (ProgressBar, Instant)>,
    terminal: bool,
}

impl Bars {
    /// Nothing under way yet.
    pub fn new() -> Bars {
        Bars {
            all: MultiProgress::new(),
            steps: HashMap::new(),
            terminal: std::io::stderr().is_terminal(),
        }
    }

    fn line(&self, text: &str) {
        if !self.terminal {
            eprintln!("{text}");
        } else if self.all.println(text).is_err() {
            // The terminal went away; the work goes on.
        }
    }
}

impl Report for Bars {
    fn begin(&mut self, step: &str) {
        let bar = self.all.add(ProgressBar::new_spinner());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} [{elapsed}] {wide_msg}")
        {
            bar.set_style(style);
        }
        bar.set_prefix(step.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        self.steps.insert(step.to_owned(), (bar, Instant::now()));
    }

    fn detail(&mut self, step: &str, now: &str) {
        if let Some((bar, _)) = self.steps.get(step) {
            bar.set_message(now.to_owned());
        }
    }

    fn end(&mut self, step: &str, outcome: &str) {
        let Some((bar, since)) = self.steps.remove(step) else {
            return;
        };
        bar.finish_and_clear();
        let seconds = since.elapsed().as_secs_f64();
        self.line(&format!("{step}: {outcome} ({seconds:.1} s)"));
    }

    fn warn(&mut self, line: &str) {
        self.line(&format!("warning: {line}"));
    }
}
