//! What `run` says: checks, and for `run gemm` one JSON object, or a table for people.

use std::env;

use comfy_table::{Table, presets};
use mok::oracle::{Comparison, Limits};
use serde::Serialize;

/// One thing that was checked.
#[derive(Debug, Serialize)]
pub struct Check {
    name: String,
    passed: bool,
    /// What was found; null where it is not a finite number.
    value: Option<f64>,
    /// The most that it may be.
    limit: Option<f64>,
}

impl Check {
    /// A value that may be at most this.
    pub fn at_most(name: impl Into<String>, value: f64, limit: f64) -> Check {
        let finite = |value: f64| value.is_finite().then_some(value);
        Check {
            name: name.into(),
            passed: value <= limit,
            value: finite(value),
            limit: finite(limit),
        }
    }

    /// A count of things that must not be.
    pub fn none(name: impl Into<String>, count: usize) -> Check {
        Check::at_most(name, count as f64, 0.0)
    }

    /// What `xtask` found when it validated the kernels for this run; nothing where it did not try.
    pub fn validated() -> Option<Check> {
        let verdict = env::var_os("MOK_VALIDATED")?;
        Some(Check::none(
            "kernels.validated",
            usize::from(verdict != "1"),
        ))
    }

    /// Whether it passed.
    pub fn passed(&self) -> bool {
        self.passed
    }

    /// Name, value, limit and verdict, for a table.
    pub fn row(&self) -> [String; 4] {
        let number = |value: Option<f64>| match value {
            None => "not finite".to_owned(),
            Some(value) if value == value.trunc() && value.abs() < 1e9 => format!("{value}"),
            Some(value) => format!("{value:.2e}"),
        };
        let verdict = if self.passed { "ok" } else { "FAILED" };
        [
            self.name.clone(),
            number(self.value),
            number(self.limit),
            verdict.to_owned(),
        ]
    }

    /// What a comparison found.
    pub fn compared(name: &str, comparison: &Comparison, limits: Limits) -> [Check; 3] {
        [
            Check::none(format!("{name}.non_finite"), comparison.non_finite),
            Check::at_most(format!("{name}.whole"), comparison.whole, limits.whole),
            Check::at_most(format!("{name}.row"), comparison.row_error(), limits.row),
        ]
    }
}

/// Sizes, as the report names them.
#[derive(Debug, Default, Serialize)]
pub struct ShapeReport {
    /// Rows of each group.
    pub groups: Vec<u32>,
    /// Columns of the forward product.
    pub n: usize,
    /// Depth of the forward product.
    pub k: usize,
}

/// Everything that `run` found.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    passed: bool,
    backend: &'static str,
    arch: Option<&'static str>,
    dtype: &'static str,
    pass: &'static str,
    ranks: u32,
    shape: ShapeReport,
    checks: Vec<Check>,
    /// Why it could not run to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Report {
    /// Passed if every check did, and there was one.
    pub fn new(
        backend: &'static str,
        arch: Option<&'static str>,
        shape: ShapeReport,
        checks: Vec<Check>,
    ) -> Report {
        Report {
            schema: "mok-run/1",
            passed: !checks.is_empty() && checks.iter().all(|check| check.passed),
            backend,
            arch,
            dtype: "bf16",
            pass: "gemm",
            ranks: 1,
            shape,
            checks,
            error: None,
        }
    }

    /// The report of a run that could not run to its end.
    pub fn failed(backend: &'static str, shape: ShapeReport, error: &anyhow::Error) -> Report {
        Report {
            error: Some(format!("{error:#}")),
            ..Report::new(backend, None, shape, Vec::new())
        }
    }

    /// Whether everything passed.
    pub fn passed(&self) -> bool {
        self.passed
    }

    /// Prints it on standard output.
    pub fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            println!("{}", serde_json::to_string(self)?);
            return Ok(());
        }
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(["check", "value", "limit", ""]);
        for check in &self.checks {
            table.add_row(check.row());
        }
        println!("{table}\n");
        println!("backend: {}", self.backend);
        if let Some(arch) = self.arch {
            println!("arch: {arch}");
        }
        let failed = self.checks.iter().filter(|check| !check.passed).count();
        println!("{} passed, {failed} failed", self.checks.len() - failed);
        Ok(())
    }
}
