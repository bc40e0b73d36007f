//! Faults that must be found: by compute-sanitizer over this very executable, or by the hardware.

use std::path::PathBuf;
use std::process::Command;

use libtest_mimic::Trial;
use mok_kernel::launch::LaunchSpec;
use mok_probes::spec::{self, ProbeArgs};
use mok_tests::Probes;

use crate::{Outcome, copies, trial};

/// Set by the tests below for the process in which the planted faults exist.
const PLANTED: &str = "MOK_PLANTED";

fn sanitizer() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/local/cuda/bin")])
        .map(|folder| folder.join("compute-sanitizer"))
        .find(|program| program.is_file())
}

/// What a tool counted, in its own last line.
struct Verdict {
    errors: u32,
    report: String,
}

/// Runs the tests of this executable whose names contain `filter` under a tool.
fn under(tool: &str, filter: &str, planted: bool) -> Result<Verdict, Box<dyn std::error::Error>> {
    let program = sanitizer().ok_or("compute-sanitizer was not found")?;
    let mut command = Command::new(program);
    command
        .args(["--tool", tool, "--print-limit", "5"])
        // The driver tells how many parameters an entry has by an error, which is no finding.
        .args(["--report-api-errors", "no"])
        .arg(std::env::current_exe()?)
        .arg(filter);
    if planted {
        command.env(PLANTED, "1");
    }
    let output = command.output()?;
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    // "ERROR SUMMARY: 2 errors", or "RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)".
    let summary = report
        .lines()
        .find(|line| line.contains("SUMMARY"))
        .ok_or(format!("no summary in\n{report}"))?;
    let counted = summary
        .split("SUMMARY:")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next());
    let errors = counted
        .and_then(|word| word.parse().ok())
        .ok_or(format!("no count in {summary}"))?;
    let ran = report
        .lines()
        .any(|line| line.starts_with("test result: ") && !line.contains(" 0 passed; 0 failed"));
    if !ran {
        return Err(format!("nothing ran under {tool} with the filter {filter}\n{report}").into());
    }
    Ok(Verdict { errors, report })
}

fn finds(tool: &'static str, fault: &'static str) -> Outcome {
    let verdict = under(tool, fault, true)?;
    match verdict.errors {
        0 => Err(format!("{tool} did not find {fault}\n{}", verdict.report).into()),
        _ => Ok(()),
    }
}

fn clean(tool: &'static str, filter: &'static str) -> Outcome {
    let verdict = under(tool, filter, false)?;
    match verdict.errors {
        0 if verdict.report.contains("test result: ok") => Ok(()),
        _ => Err(format!("{tool} over {filter}\n{}", verdict.report).into()),
    }
}

/// A fault that the hardware itself refuses. It takes the context with it, hence the process.
fn illegal(fault: &str) -> Outcome {
    let output = Command::new(std::env::current_exe()?)
        .args(["--exact", &format!("planted::{fault}")])
        .env(PLANTED, "1")
        .output()?;
    let report = String::from_utf8_lossy(&output.stdout);
    match report.contains("CUDA_ERROR_ILLEGAL_INSTRUCTION") {
        true => Ok(()),
        false => Err(format!("{fault} was not refused\n{report}").into()),
    }
}

/// Runs a faulty launch; what it computes is not looked at.
fn plant(spec: &'static LaunchSpec, mode: u32, words: usize) -> Outcome {
    let probes = Probes::load()?;
    let (device, stream) = (&probes.device, probes.device.stream()?);
    let input = device.buffer_zeroed::<u32>(64)?;
    let output = device.buffer_zeroed::<u32>(words)?;
    let args = ProbeArgs {
        input: input.ptr().as_raw(),
        output: output.ptr().as_raw(),
        mode,
        ..ProbeArgs::default()
    };
    // SAFETY: the fault is the point; the process exists for nothing else.
    unsafe {
        probes
            .kernel(spec)?
            .launch()
            .grid([1, 1, 1])
            .shared(2048)
            .arg(&args)
            .enqueue(&stream)?
    };
    // A tool that stops the kernel makes this fail, as it should.
    let _ = stream.synchronize();
    Ok(())
}

pub fn trials() -> Vec<Trial> {
    if std::env::var_os(PLANTED).is_some() {
        let refused = copies::FAULTS.iter();
        let mut trials: Vec<Trial> = refused
            .map(|(name, run)| trial(format!("planted::{name}"), run))
            .collect();
        trials.extend([
            trial("planted::race_plain", || plant(&spec::RACE_PLAIN, 0, 64)),
            trial("planted::race_async", || plant(&spec::RACE_ASYNC, 0, 64)),
            trial("planted::out_of_bounds", || plant(&spec::RACE_PLAIN, 1, 32)),
        ]);
        return trials;
    }
    let mut trials = vec![trial("faults::stores_before_the_start_are_illegal", || {
        for (fault, _) in copies::FAULTS {
            illegal(fault)?;
        }
        Ok(())
    })];
    let missing = sanitizer().is_none();
    let sanitized = [
        trial("faults::memcheck_finds_an_access_out_of_bounds", || {
            finds("memcheck", "planted::out_of_bounds")
        }),
        trial("faults::racecheck_finds_a_race", || {
            finds("racecheck", "planted::race_plain")
        }),
        // It sees bulk copies too: their bytes are written by the block, at the instruction.
        trial(
            "faults::racecheck_finds_a_read_before_a_bulk_copy_has_arrived",
            || finds("racecheck", "planted::race_async"),
        ),
        trial("faults::racecheck_waits", || {
            clean("racecheck", "instructions::races_with_their_waits")
        }),
        trial("faults::memcheck_gemm", || {
            clean("memcheck", "gemm::shipped")
        }),
        trial("faults::memcheck_wrappers", || {
            clean("memcheck", "copies::")
        }),
        trial("faults::memcheck_layer", || {
            clean("memcheck", "layer::looked_at")
        }),
        trial("faults::racecheck_layer", || {
            clean("racecheck", "layer::looked_at")
        }),
        trial("faults::racecheck_gemm_forward", || {
            clean("racecheck", "gemm::shipped::forward::bf16::2")
        }),
        trial("faults::racecheck_gemm_dgrad", || {
            clean("racecheck", "gemm::shipped::dgrad::bf16::2")
        }),
        trial("faults::racecheck_gemm_wgrad", || {
            clean("racecheck", "gemm::shipped::wgrad::addbf16::2")
        }),
    ];
    trials.extend(
        sanitized
            .into_iter()
            .map(|trial| trial.with_ignored_flag(missing)),
    );
    trials
}
