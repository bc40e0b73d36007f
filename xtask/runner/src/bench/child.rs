//! A Python process that answers each JSON line with one: the other side of a comparison.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// How long a process has to end by itself.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The process. It ends when this is dropped.
pub struct Child {
    process: Process,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Child {
    /// Starts it; what it says on standard error goes to ours.
    pub fn start(command: &mut Command) -> Result<Child> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| {
                format!(
                    "starting `{program}`: the baseline needs Python with PyTorch; --python names \
                     another"
                )
            })?;
        let to = process.stdin.take();
        let from = process.stdout.take().context("no standard output")?;
        Ok(Child {
            process,
            to,
            from: BufReader::new(from),
        })
    }

    /// Sends one object.
    pub fn send(&mut self, command: &Value) -> Result<()> {
        let to = self.to.as_mut().context("the process is gone")?;
        let sent = writeln!(to, "{command}").and_then(|()| to.flush());
        sent.context("the process takes no more commands; what it said is above")
    }

    /// The next line that is an object; others are what libraries print.
    pub fn answer(&mut self) -> Result<Value> {
        let mut line = Vec::new();
        loop {
            line.clear();
            if self.from.read_until(b'\n', &mut line)? == 0 {
                let status = self.process.wait()?;
                bail!("it ended ({status}); what it said is above");
            }
            if let Ok(value @ Value::Object(_)) = serde_json::from_slice(&line) {
                return Ok(value);
            }
        }
    }

    /// Sends one object, and waits for the answer.
    pub fn call(&mut self, command: &Value) -> Result<Value> {
        self.send(command)?;
        self.answer()
    }

    /// The end of its input is the end of its work.
    pub fn end_input(&mut self) {
        drop(self.to.take());
    }

    /// Waits until it has ended, and ends it at the deadline.
    pub fn end_by(&mut self, deadline: Instant) {
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end_input();
        self.end_by(Instant::now() + PATIENCE);
    }
}

/// The milliseconds in an answer.
pub fn times(answer: &Value) -> Result<Vec<f32>> {
    serde_json::from_value(answer["times"].clone())
        .with_context(|| format!("the baseline's times are missing in {answer}"))
}

#[cfg(all(test, unix))]
mod tests {
    use serde_json::json;

    use super::*;

    fn shell(script: &str) -> Child {
        Child::start(Command::new("sh").args(["-c", script])).expect("a shell")
    }

    #[test]
    fn what_libraries_print_is_passed_over() {
        let noise = r#"echo hello; echo '[1]'; printf '\377\n'; echo '{"times": [1.5, 2]}'"#;
        let answer = shell(noise).answer().expect("an answer");
        assert_eq!(times(&answer).expect("times"), [1.5, 2.0]);
        assert!(times(&json!({ "times": [1, null] })).is_err());
        assert!(times(&json!({})).is_err());
    }

    #[test]
    fn commands_are_lines() {
        let mut child = shell(r#"read -r line; echo "{\"got\": $line}""#);
        let answer = child.call(&json!({ "run": 3 })).expect("an answer");
        assert_eq!(answer, json!({ "got": { "run": 3 } }));
    }

    #[test]
    fn a_process_that_ends_is_an_error() {
        let told = shell("exit 3").answer().expect_err("no answer").to_string();
        assert!(told.contains('3'), "{told}");
        let missing = Child::start(&mut Command::new("/no/python"));
        let told = missing.err().expect("no such program").to_string();
        assert!(told.contains("--python"), "{told}");
    }
}
