//! How slow work tells a person where it is, and why it failed.

use std::error::Error;

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

/// An error and its causes, each said once: ours quote their cause already, so that
/// one line is enough where nobody asks for causes; those of other crates may not.
pub fn in_full(error: &dyn Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
        cause = error.source();
    }
    said
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use super::*;
    use crate::files;

    #[derive(Debug, thiserror::Error)]
    #[error("the pack is not complete")]
    struct Silent(#[source] files::FileError);

    #[test]
    fn every_cause_is_said_once() {
        let file = files::on("read", Path::new("a.ptx"))(io::Error::other("no luck"));
        assert_eq!(in_full(&file), "cannot read a.ptx: no luck");
        let silent = "the pack is not complete: cannot read a.ptx: no luck";
        assert_eq!(in_full(&Silent(file)), silent);
    }
}
