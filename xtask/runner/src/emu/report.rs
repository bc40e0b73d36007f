//! What `emu` says: one JSON object, or lines for people.

use std::path::PathBuf;

use anyhow::Result;
use mok_emu::report::Finding;
use serde::Serialize;

/// Findings of one seed that people are shown; `--json` has all.
const SHOWN: usize = 10;

/// How one seed ran.
#[derive(Debug, Serialize)]
pub struct Run {
    pub seed: u64,
    pub passed: bool,
    /// Findings, those that were only counted among them.
    pub findings: u64,
    pub timed_out: bool,
    /// Whether an output is not what the first seed wrote.
    pub outputs_differ: bool,
    /// Thread-instructions.
    pub instructions: u64,
    /// Simulated nanoseconds.
    pub time_ns: u64,
    /// What was not checked, and why.
    pub notes: Vec<String>,
    /// The command that repeats it.
    pub replay: String,
}

/// A finding of a seed.
#[derive(Debug, Serialize)]
pub struct Found {
    seed: u64,
    kind: &'static str,
    entry: String,
    line: u32,
    gpu: usize,
    block: [u32; 3],
    thread: Option<u32>,
    message: String,
    #[serde(skip)]
    text: String,
}

impl Found {
    pub fn new(seed: u64, finding: &Finding) -> Found {
        Found {
            seed,
            kind: finding.kind.name(),
            entry: finding.entry.clone(),
            line: finding.line,
            gpu: finding.gpu,
            block: finding.block,
            thread: finding.thread,
            message: finding.message.clone(),
            text: finding.to_string(),
        }
    }
}

/// A written file.
#[derive(Debug, Serialize)]
pub struct Output {
    pub path: PathBuf,
    pub bytes: u64,
}

/// What was launched.
#[derive(Debug, Serialize)]
pub struct Launched {
    pub file: PathBuf,
    pub entry: String,
    pub target: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub cluster: [u32; 3],
    pub shared: u32,
    pub sms: u32,
    pub mode: String,
    /// Whether the checker ran.
    pub checked: bool,
}

/// Everything.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    passed: bool,
    /// Why it could not run to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Thread-instructions of all seeds.
    instructions: u64,
    /// Simulated nanoseconds of all seeds.
    time_ns: u64,
    findings: Vec<Found>,
    runs: Vec<Run>,
    /// Seeds for which no time was left.
    seeds_not_run: u64,
    /// Files as the last seed left them.
    outputs: Vec<Output>,
    launch: Option<Launched>,
}

impl Report {
    pub fn new(
        launch: Launched,
        runs: Vec<Run>,
        findings: Vec<Found>,
        seeds_not_run: u64,
        outputs: Vec<Output>,
    ) -> Report {
        Report {
            schema: "mok-emu/1",
            passed: !runs.is_empty() && seeds_not_run == 0 && runs.iter().all(|run| run.passed),
            error: None,
            instructions: runs.iter().map(|run| run.instructions).sum(),
            time_ns: runs.iter().map(|run| run.time_ns).sum(),
            findings,
            runs,
            seeds_not_run,
            outputs,
            launch: Some(launch),
        }
    }

    /// The report of a run that could not begin, or not end.
    pub fn failed(error: &anyhow::Error) -> Report {
        Report {
            schema: "mok-emu/1",
            passed: false,
            error: Some(format!("{error:#}")),
            instructions: 0,
            time_ns: 0,
            findings: Vec::new(),
            runs: Vec::new(),
            seeds_not_run: 0,
            outputs: Vec::new(),
            launch: None,
        }
    }

    pub fn passed(&self) -> bool {
        self.passed
    }

    /// Prints it on standard output.
    pub fn print(&self, json: bool) -> Result<()> {
        if json {
            println!("{}", serde_json::to_string(self)?);
            return Ok(());
        }
        if let Some(launch) = &self.launch {
            let dims = |[x, y, z]: [u32; 3]| format!("{x},{y},{z}");
            println!(
                "{} ({}): grid {}, block {}, cluster {}, {} bytes of dynamic shared memory, {} SMs, mode {}{}",
                launch.entry,
                launch.target,
                dims(launch.grid),
                dims(launch.block),
                dims(launch.cluster),
                launch.shared,
                launch.sms,
                launch.mode,
                if launch.checked { "" } else { ", not checked" }
            );
        }
        for run in &self.runs {
            self.print_run(run);
        }
        for output in &self.outputs {
            println!("wrote {} ({} bytes)", output.path.display(), output.bytes);
        }
        let failed = self.runs.iter().filter(|run| !run.passed).count();
        println!("{} seeds passed, {failed} failed", self.runs.len() - failed);
        if self.seeds_not_run > 0 {
            println!(
                "{} seeds not run: the time was up (--timeout)",
                self.seeds_not_run
            );
        }
        Ok(())
    }

    fn print_run(&self, run: &Run) {
        let verdict = match run.findings {
            0 => "no finding".to_owned(),
            1 => "1 finding".to_owned(),
            many => format!("{many} findings"),
        };
        println!(
            "seed {}: {verdict}, {} instructions, {} ns simulated",
            run.seed, run.instructions, run.time_ns
        );
        for note in &run.notes {
            println!("  note: {note}");
        }
        let own: Vec<&Found> = self
            .findings
            .iter()
            .filter(|found| found.seed == run.seed)
            .collect();
        for found in own.iter().take(SHOWN) {
            println!("  {}", found.text);
        }
        let left_out = run.findings.saturating_sub(own.len().min(SHOWN) as u64);
        if left_out > 0 {
            println!("  and {left_out} more");
        }
        if run.outputs_differ {
            println!("  its outputs are not those of seed {}", self.runs[0].seed);
        }
        if !run.passed {
            println!("  replay: {}", run.replay);
        }
    }
}
