//! The PyTorch processes that a layer is compared with.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// The program, carried along: it needs nothing but PyTorch.
const PROGRAM: &str = include_str!("../../../../../benches/baselines/layer.py");

/// How long the processes have to end by themselves.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process for each rank. They end when this is dropped.
pub struct Baseline {
    ranks: Vec<Rank>,
    /// Versions of PyTorch and NCCL.
    pub versions: Value,
}

struct Rank {
    process: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Baseline {
    /// Starts the processes; `folder` gets the program.
    pub fn start(python: &str, ranks: usize, folder: &Path) -> Result<Baseline> {
        let program = folder.join("layer.py");
        std::fs::write(&program, PROGRAM)?;
        // A port that is free now; NCCL's rendezvous takes it at once.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let started: Result<Vec<Rank>> = (0..ranks)
            .map(|rank| {
                let mut process = Command::new(python)
                    .arg(&program)
                    .env("RANK", rank.to_string())
                    .env("LOCAL_RANK", rank.to_string())
                    .env("WORLD_SIZE", ranks.to_string())
                    .env("MASTER_ADDR", "127.0.0.1")
                    .env("MASTER_PORT", port.to_string())
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .with_context(|| format!("starting `{python}`: the baseline needs Python with PyTorch; --python names another"))?;
                let to = process.stdin.take();
                let from = process.stdout.take().context("no standard output")?;
                Ok(Rank {
                    process,
                    to,
                    from: BufReader::new(from),
                })
            })
            .collect();
        let mut baseline = Baseline {
            ranks: started?,
            versions: Value::Null,
        };
        let answers = baseline.answers()?;
        baseline.versions = answers.into_iter().next().unwrap_or_default();
        Ok(baseline)
    }

    /// Loads a shape on every rank.
    pub fn load(&mut self, load: &Value) -> Result<()> {
        self.call(&json!({ "load": load })).map(drop)
    }

    /// Milliseconds of each timed pass: the slowest rank's.
    pub fn run(&mut self, warmup: usize, timed: usize) -> Result<Vec<f32>> {
        let answers = self.call(&json!({ "run": { "warmup": warmup, "timed": timed } }))?;
        let of_rank = |answer: &Value| -> Result<Vec<f32>> {
            serde_json::from_value(answer["times"].clone()).context("the baseline's times")
        };
        let ranks: Vec<Vec<f32>> = answers.iter().map(of_rank).collect::<Result<_>>()?;
        Ok(super::slowest(&ranks))
    }

    /// Writes each rank's last output to a file of its own.
    pub fn save(&mut self, file: impl Fn(usize) -> String) -> Result<()> {
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            rank.send(&json!({ "save": file(number) }))?;
        }
        self.answers().map(drop)
    }

    fn call(&mut self, command: &Value) -> Result<Vec<Value>> {
        for rank in &mut self.ranks {
            rank.send(command)?;
        }
        self.answers()
    }

    fn answers(&mut self) -> Result<Vec<Value>> {
        self.ranks
            .iter_mut()
            .enumerate()
            .map(|(number, rank)| {
                rank.answer()
                    .with_context(|| format!("baseline, rank {number}"))
            })
            .collect()
    }
}

impl Rank {
    fn send(&mut self, command: &Value) -> Result<()> {
        let to = self.to.as_mut().context("the process is gone")?;
        writeln!(to, "{command}")?;
        Ok(to.flush()?)
    }

    /// The next line that is an object; others are what libraries print.
    fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.from.read_line(&mut line)? == 0 {
                let status = self.process.wait()?;
                bail!("it ended ({status}); what it said is above");
            }
            if let Ok(value @ Value::Object(_)) = serde_json::from_str(&line) {
                return Ok(value);
            }
        }
    }
}

impl Drop for Baseline {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            // The end of its input is the end of its work.
            drop(rank.to.take());
        }
        let deadline = Instant::now() + PATIENCE;
        for rank in &mut self.ranks {
            // One whose peer has died may wait for ever.
            while matches!(rank.process.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = rank.process.kill();
            let _ = rank.process.wait();
        }
    }
}
