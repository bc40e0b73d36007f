//! How slow work tells a person where it is.

/// Hears what is going on. The command line draws bars, a build script prints lines.
///
/// Steps may overlap (architectures build side by side), so every call names its step.
pub trait Report {
    /// A step that may take seconds begins.
    fn begin(&mut self, step: &str);
    /// The step is at this now.
    fn detail(&mut self, step: &str, now: &str);
    /// The step is over, with this outcome.
    fn end(&mut self, step: &str, outcome: &str);
    /// Something a person should read although the work goes on.
    fn warn(&mut self, line: &str);
}

/// Says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Report for Silent {
    fn begin(&mut self, _: &str) {}
    fn detail(&mut self, _: &str, _: &str) {}
    fn end(&mut self, _: &str, _: &str) {}
    fn warn(&mut self, _: &str) {}
}
