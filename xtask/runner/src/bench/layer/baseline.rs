//! The PyTorch processes that a layer is compared with.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::bench::child::{self, Child, PATIENCE};

/// The program, carried along: it needs nothing but PyTorch.
const PROGRAM: &str = include_str!("../../../../../benches/baselines/layer.py");

/// A process for each rank. They end when this is dropped.
pub struct Baseline {
    ranks: Vec<Child>,
    /// Versions of PyTorch and NCCL.
    pub versions: Value,
}

impl Baseline {
    /// Starts the processes; `folder` gets the program.
    pub fn start(python: &str, ranks: usize, folder: &Path) -> Result<Baseline> {
        let program = folder.join("layer.py");
        std::fs::write(&program, PROGRAM)?;
        // A port that is free now; NCCL's rendezvous takes it at once.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let started: Result<Vec<Child>> = (0..ranks)
            .map(|rank| {
                Child::start(
                    Command::new(python)
                        .arg(&program)
                        .env("RANK", rank.to_string())
                        .env("LOCAL_RANK", rank.to_string())
                        .env("WORLD_SIZE", ranks.to_string())
                        .env("MASTER_ADDR", "127.0.0.1")
                        .env("MASTER_PORT", port.to_string()),
                )
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
        let ranks: Vec<Vec<f32>> = answers.iter().map(child::times).collect::<Result<_>>()?;
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

impl Drop for Baseline {
    fn drop(&mut self) {
        self.ranks.iter_mut().for_each(Child::end_input);
        // One whose peer has died may wait for ever.
        let deadline = Instant::now() + PATIENCE;
        for rank in &mut self.ranks {
            rank.end_by(deadline);
        }
    }
}
