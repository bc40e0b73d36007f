//! Running other programs: captured, with a deadline, and with errors that quote them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Why a program gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It could not be started.
    #[error("`{command}` could not be started: {source}")]
    Start {
        /// The command line.
        command: String,
        /// The system's answer.
        source: io::Error,
    },
    /// It ran and failed.
    #[error("`{command}` failed ({status}):\n{output}")]
    Failed {
        /// The command line.
        command: String,
        /// Its exit status.
        status: ExitStatus,
        /// The end of what it printed.
        output: String,
    },
    /// It was still running when its time was up.
    #[error("`{command}` was stopped: no answer in {seconds} s")]
    Late {
        /// The command line.
        command: String,
        /// The limit.
        seconds: u64,
    },
    /// What it printed could not be read.
    #[error("cannot read what `{command}` printed: {source}")]
    Read {
        /// The command line.
        command: String,
        /// The system's answer.
        source: io::Error,
    },
}

/// What a program printed before it ended well.
#[derive(Clone, Debug, Default)]
pub struct Printed {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// The command as a person would type it, shortened where it is very long.
pub fn command_line(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

/// Runs to the end, at most `limit` long.
pub fn run(command: &mut Command, limit: Duration) -> Result<Printed, RunError> {
    let line = command_line(command);
    let read = |source| RunError::Read {
        command: line.clone(),
        source,
    };
    // Files, not pipes: a full pipe would stop a program that nobody reads.
    let mut stdout = tempfile::tempfile().map_err(read)?;
    let mut stderr = tempfile::tempfile().map_err(read)?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().map_err(read)?)
        .stderr(stderr.try_clone().map_err(read)?)
        .spawn()
        .map_err(|source| RunError::Start {
            command: line.clone(),
            source,
        })?;
    let started = Instant::now();
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Some(status) = child.try_wait().map_err(read)? {
            break status;
        }
        if started.elapsed() > limit {
            // Already ended is fine: either way it is gone after the wait.
            let _ = child.kill();
            let _ = child.wait();
            return Err(RunError::Late {
                command: line,
                seconds: limit.as_secs(),
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    let printed = Printed {
        stdout: contents(&mut stdout).map_err(read)?,
        stderr: contents(&mut stderr).map_err(read)?,
    };
    if status.success() {
        return Ok(printed);
    }
    let output = tail(&format!("{}{}", printed.stdout, printed.stderr), 60);
    Err(RunError::Failed {
        command: line,
        status,
        output,
    })
}

/// Runs to the end, telling `each` every line of standard error as it comes.
pub fn follow(command: &mut Command, each: &mut dyn FnMut(&str)) -> Result<Printed, RunError> {
    let line = command_line(command);
    let read = |source| RunError::Read {
        command: line.clone(),
        source,
    };
    let mut stdout = tempfile::tempfile().map_err(read)?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().map_err(read)?)
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| RunError::Start {
            command: line.clone(),
            source,
        })?;
    let mut stderr = String::new();
    if let Some(pipe) = child.stderr.take() {
        for text in BufReader::new(pipe).split(b'\n') {
            let text = String::from_utf8_lossy(&text.map_err(read)?).into_owned();
            each(&text);
            stderr.push_str(&text);
            stderr.push('\n');
        }
    }
    let status = child.wait().map_err(read)?;
    let stdout = contents(&mut stdout).map_err(read)?;
    if status.success() {
        return Ok(Printed { stdout, stderr });
    }
    let output = tail(&format!("{stdout}{stderr}"), 200);
    Err(RunError::Failed {
        command: line,
        status,
        output,
    })
}

fn contents(file: &mut File) -> io::Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
