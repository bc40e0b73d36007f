//! The programs on a GPU, shared out among processes: a driver compiles one module at a time in
//! each, and what one does to its context stays there.

use std::io::Read;
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result};
use mok_fuzz::compare::{BATCH, Part};

use super::Args;
use crate::progress::Progress;

/// A range for each of so many processes: whole batches.
fn shares(programs: &Range<u32>, jobs: u32) -> Vec<Range<u32>> {
    let batches = programs.len().div_ceil(BATCH as usize) as u32;
    let each = batches.div_ceil(jobs.max(1)).max(1) * BATCH;
    let starts = programs.clone().step_by(each as usize);
    starts
        .map(|start| start..(start + each).min(programs.end))
        .collect()
}

fn start(args: &Args, share: &Range<u32>) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args([
            "fuzz",
            "--worker",
            "--backend",
            args.backend.name(),
            "--programs",
        ])
        .arg(format!("{}..{}", share.start, share.end))
        .args([
            "--device",
            &args.device.to_string(),
            "--reduce",
            &args.reduce.to_string(),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
        .spawn()
        .context("starting a process for a share of the programs")
}

/// What a process said, or that it failed.
fn finish(mut child: Child, share: &Range<u32>) -> Part {
    let mut errors = child.stderr.take();
    let reader = thread::spawn(move || {
        let mut text = String::new();
        if let Some(errors) = &mut errors {
            // What can't be read is not shown.
            let _ = errors.read_to_string(&mut text);
        }
        text
    });
    let mut text = String::new();
    let read = child
        .stdout
        .take()
        .map(|mut out| out.read_to_string(&mut text));
    let status = child.wait();
    let errors = reader.join().unwrap_or_default();
    match (read, serde_json::from_str::<Part>(&text)) {
        (Some(Ok(_)), Ok(part)) => part,
        (_, result) => {
            let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            let parsed = result
                .err()
                .map_or(String::new(), |error| format!("; {error}"));
            let reason = format!("programs {share:?}: {status}{parsed}: {}", errors.trim());
            Part {
                first: share.start,
                failures: vec![(share.start, reason)],
                ..Part::default()
            }
        }
    }
}

/// All programs, compared.
///
/// # Errors
/// A process can't be started.
pub fn run(args: &Args, programs: Range<u32>) -> Result<Part> {
    let processors = thread::available_parallelism().map_or(1, usize::from) as u32;
    let shares = shares(&programs, args.jobs.unwrap_or(processors));
    let progress = Progress::new(shares.len());
    progress.at(format!("{} processes", shares.len()));
    let mut children = Vec::new();
    for share in shares {
        let child = start(args, &share)?;
        children.push((share, child));
    }
    let mut all = Part {
        first: programs.start,
        ..Part::default()
    };
    thread::scope(|scope| {
        let waiting: Vec<_> = children
            .into_iter()
            .map(|(share, child)| {
                let progress = &progress;
                scope.spawn(move || {
                    let part = finish(child, &share);
                    progress.step();
                    part
                })
            })
            .collect();
        for part in waiting {
            // `finish` has no way to panic.
            if let Ok(part) = part.join() {
                all.join(part);
            }
        }
    });
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_the_programs_once() {
        for (programs, jobs) in [
            (0..10_000, 16),
            (0..10_000, 7),
            (17..18, 16),
            (40..190, 2),
            (0..100, 1),
        ] {
            let shares = shares(&programs, jobs);
            assert!(shares.len() <= jobs as usize && !shares.is_empty());
            let all: Vec<u32> = shares.into_iter().flatten().collect();
            assert_eq!(all, programs.collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_process_that_dies_is_a_failure() {
        let dying = Command::new("sh")
            .args(["-c", "echo broken >&2; echo '{'; exit 3"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let part = finish(dying, &(50..100));
        let [(50, reason)] = &part.failures[..] else {
            panic!("{part:?}")
        };
        assert!(
            reason.contains("broken") && reason.contains('3') && reason.contains("50..100"),
            "{reason}"
        );
    }
}
