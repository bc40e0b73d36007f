//! The process in which PyTorch, cuBLAS and DeepGEMM compute the same products.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use half::bf16;
use serde::Deserialize;
use serde_json::{Value, json};

use super::cases::{Case, Product, Products};
use crate::bench::child::{self, Child};

/// The program, carried along: it needs PyTorch, and DeepGEMM unless that is left out.
const PROGRAM: &str = include_str!("../../../../../benches/baselines/gemm.py");

/// Who else computes a product; the names are the program's.
pub const DEEP_GEMM: &str = "deep-gemm";
/// The activation that follows gate and up; no product.
pub const SWIGLU: &str = "swiglu";

/// What the roofline is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yardstick {
    /// One large product by cuBLAS.
    Matmul,
    /// A copy on the device.
    Copy,
}

impl Yardstick {
    /// Form and side, as the program names them.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Yardstick::Matmul => ("matmul", "cublas"),
            Yardstick::Copy => ("copy", "torch"),
        }
    }
}

/// The sides of each form of the case that is loaded.
#[derive(Debug, Default, Deserialize)]
pub struct Loaded {
    sides: BTreeMap<String, Vec<String>>,
    /// What could not be measured, and why.
    pub notes: Vec<String>,
}

impl Loaded {
    /// Who else computes this product.
    pub fn sides(&self, product: Product) -> &[String] {
        self.sides.get(product.name()).map_or(&[], Vec::as_slice)
    }
}

/// The process. It ends when this is dropped.
pub struct Baseline {
    child: Child,
    /// Versions of PyTorch, CUDA and DeepGEMM.
    pub versions: Value,
    /// Bytes that one copy moves, read and written.
    pub copy_bytes: f64,
    /// Operations of the large product.
    pub matmul_operations: f64,
}

impl Baseline {
    /// Starts it on a GPU. `folder` gets the program and the block; without DeepGEMM that must be
    /// there, this fails.
    pub fn start(
        python: &str,
        ordinal: usize,
        without: &[String],
        deep_gemm_required: bool,
        folder: &Path,
        block: &[bf16],
    ) -> Result<Baseline> {
        let program = folder.join("gemm.py");
        std::fs::write(&program, PROGRAM)?;
        let mut command = Command::new(python);
        command.arg(&program).arg(ordinal.to_string());
        if !without.is_empty() {
            command.args(["--without", &without.join(",")]);
        }
        let mut child = Child::start(&mut command)?;
        let versions = child.answer().context(
            "the baseline did not start: it needs PyTorch (--python names another Python, \
             --ours-only does without)",
        )?;
        if deep_gemm_required {
            check_deep_gemm(&versions)?;
        }
        let file = folder.join("block.bin");
        std::fs::write(&file, bytemuck::cast_slice(block))?;
        let told = child
            .call(&json!({ "block": { "file": file, "elements": block.len() } }))
            .context("the baseline's yardsticks")?;
        let number = |name: &str| {
            let number = told[name].as_f64();
            number.with_context(|| format!("the baseline's {name} is missing in {told}"))
        };
        Ok(Baseline {
            copy_bytes: number("copy_bytes")?,
            matmul_operations: 2.0 * number("dense")?.powi(3),
            child,
            versions,
        })
    }

    /// Compiles all that is compiled as it runs.
    pub fn prepare(&mut self, loads: &[Value]) -> Result<()> {
        self.child.call(&json!({ "prepare": loads })).map(drop)
    }

    /// Loads a case, in place of the one before; every side has run once.
    pub fn load(&mut self, case: &Case, products: &Products) -> Result<Loaded> {
        let answer = self.child.call(&json!({ "load": case.load(products) }));
        let answer = answer.context(
            "the baseline could not run this case (--without deep-gemm leaves DeepGEMM out, \
             --ours-only all of it)",
        )?;
        serde_json::from_value(answer).context("the baseline's sides")
    }

    /// Milliseconds of each timed launch.
    pub fn time(
        &mut self,
        product: Product,
        side: &str,
        warmup: usize,
        timed: usize,
    ) -> Result<Vec<f32>> {
        self.run(product.name(), side, warmup, timed)
    }

    /// Milliseconds of each timed run of a yardstick.
    pub fn measure(
        &mut self,
        yardstick: Yardstick,
        warmup: usize,
        timed: usize,
    ) -> Result<Vec<f32>> {
        let (form, side) = yardstick.names();
        self.run(form, side, warmup, timed)
    }

    fn run(&mut self, form: &str, side: &str, warmup: usize, timed: usize) -> Result<Vec<f32>> {
        let run = json!({ "side": side, "form": form, "warmup": warmup, "timed": timed });
        let answer = self.child.call(&json!({ "run": run }));
        let answer = answer.with_context(|| format!("{side}, {form}"))?;
        let times = child::times(&answer)?;
        ensure!(
            times.len() == timed,
            "{side}, {form}: {} times, not {timed}",
            times.len()
        );
        Ok(times)
    }

    /// Rows of one product, counted as [`Case::sample`] does.
    pub fn rows(
        &mut self,
        product: Product,
        side: &str,
        wanted: &[usize],
        columns: usize,
        folder: &Path,
    ) -> Result<Vec<f32>> {
        let file = folder.join("rows.bin");
        let save = json!({ "side": side, "form": product.name(), "rows": wanted, "file": file });
        let answer = self.child.call(&json!({ "save": save }));
        answer.with_context(|| format!("{side}, {}", product.name()))?;
        let bytes = std::fs::read(&file)?;
        let values: Vec<f32> = bytes
            .chunks_exact(4)
            .map(bytemuck::pod_read_unaligned)
            .collect();
        ensure!(
            values.len() == wanted.len() * columns,
            "{side}'s {} has another size",
            product.name()
        );
        Ok(values)
    }
}

/// An error where DeepGEMM should be and isn't: a comparison that lacks the strongest opponent must
/// not look like one that has it.
fn check_deep_gemm(versions: &Value) -> Result<()> {
    if versions["deep_gemm"].is_string() {
        return Ok(());
    }
    let reason = versions["no_deep_gemm"]
        .as_str()
        .unwrap_or("no reason given");
    bail!(
        "DeepGEMM is part of this comparison and is not there: {reason}\nIt comes as the wheels \
         sgl-deep-gemm 0.1.4 and apache-tvm-ffi 0.1.11, and needs nvcc (CUDA_HOME). Install both \
         with `python3 -m pip install --no-deps --target DIR` and set PYTHONPATH to DIR, or leave \
         it out with --without deep-gemm"
    )
}

#[cfg(test)]
mod tests {
    use mok::gemm::Form;

    use super::*;

    #[test]
    fn a_missing_opponent_is_an_error_that_says_what_to_do() {
        let there = json!({ "torch": "2.11", "deep_gemm": "0.1.4", "no_deep_gemm": null });
        check_deep_gemm(&there).expect("it is there");
        let missing = json!({ "deep_gemm": null, "no_deep_gemm": "AssertionError: no nvcc" });
        let told = check_deep_gemm(&missing).expect_err("missing").to_string();
        for part in ["no nvcc", "--without deep-gemm", "PYTHONPATH"] {
            assert!(told.contains(part), "{told}");
        }
        assert!(check_deep_gemm(&json!({})).is_err());
    }

    #[test]
    fn sides_are_those_of_the_form() {
        let answer = json!({ "sides": { "forward": ["torch", "swiglu"] }, "notes": ["a"] });
        let loaded: Loaded = serde_json::from_value(answer).expect("an answer");
        assert_eq!(
            loaded.sides(Product::Form(Form::Forward)),
            ["torch", "swiglu"]
        );
        assert!(loaded.sides(Product::Form(Form::Wgrad)).is_empty());
        assert_eq!(loaded.notes, ["a"]);
        assert!(serde_json::from_value::<Loaded>(json!({ "loaded": true })).is_err());
    }
}
