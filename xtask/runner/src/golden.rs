//! `golden`: outputs of a GPU, for tests that have none.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use mok::gemm::{Form, Sink};
use mok::oracle::{EXACT, ROUNDED};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::backend;
use crate::machine::Machine;
use crate::place;
use crate::products::{Product, Products};
use crate::progress::Progress;
use crate::run::gemm::{forms_and_sinks, sink_name};
use crate::shape::{Data, Numbers, Shape};

/// Write a GPU's outputs for tests that have none to compare with
///
/// Small shapes with fixed seeds: every form and sink, on small integers (one right bit pattern)
/// and on random numbers. Nothing is written unless all of it matches the oracle. Beside the raw
/// little-endian files, gemm.json records how each came about: sizes, seed, the PTX's hash, the
/// device and its driver.
#[derive(Parser, Debug)]
#[command(after_help = "\
Examples:
  ./xtask golden                      in a pack, on a machine with a GPU: into golden/
  cargo xtask golden --out /tmp/g     in a checkout; tests/golden if not said")]
pub struct Args {
    /// The folder to write to
    #[arg(long)]
    out: Option<PathBuf>,
    /// Which GPU
    #[arg(long, default_value_t = 0)]
    device: usize,
}

/// For readers of gemm.json; `Data` in shape.rs is what it describes.
const INPUTS: &str = "mok::fill: normal(seed, len, deviation) or integers(seed, len, 3). \
    x [capacity, k] from seed, deviation 1; dy [capacity, n] from seed + 1, deviation 1; \
    w [groups, n, k] from seed + 2, deviation 1 / sqrt(k); old D from seed + 3, deviation 1, \
    in f32, rounded to bf16 for add_bf16, and bytes of 0xFF for the other sinks. Rows of x and dy \
    outside the groups are NaN. forward: x w^T, dgrad: dy w, wgrad: dy^T x.";

#[derive(Serialize)]
struct Record {
    schema: &'static str,
    #[serde(flatten)]
    machine: Machine,
    /// How the inputs are made again.
    inputs: &'static str,
    outputs: Vec<Output>,
}

#[derive(Serialize)]
struct Output {
    file: String,
    sha256: String,
    form: &'static str,
    sink: &'static str,
    numbers: &'static str,
    dtype: &'static str,
    seed: u64,
    groups: Vec<u32>,
    n: u32,
    k: u32,
    rows: usize,
    cols: usize,
}

/// Lower-case hexadecimal SHA-256.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// `xtask golden`.
pub fn run(args: &Args) -> Result<bool> {
    let device = backend::require("golden", args.device)?;
    let folder = match &args.out {
        Some(folder) => folder.clone(),
        None => place::golden()?,
    };
    let shape = Shape {
        groups: vec![33, 0, 1, 130],
        n: 136,
        k: 72,
        seed: 20_260_101,
    };
    let progress = Progress::new(2 * forms_and_sinks().count());
    let mut files = Vec::new();
    let mut outputs = Vec::new();
    for numbers in [Numbers::Integers, Numbers::Normal] {
        let data = Data::new(&shape, numbers)?;
        let products = Products::new(&device, &data)?;
        for (form, sink) in forms_and_sinks() {
            let name = format!("{}_{}_{}", form.name(), sink_name(sink), numbers.name());
            progress.at(name.clone());
            let bytes = products.bytes(form, sink, device.sm_count())?;
            check(&data, form, sink, numbers, &bytes).with_context(|| name.clone())?;
            let (rows, cols) = data.d_extent(form);
            outputs.push(Output {
                file: format!("gemm_{name}.bin"),
                sha256: sha256(&bytes),
                form: form.name(),
                sink: sink_name(sink),
                numbers: numbers.name(),
                dtype: if sink.element_size() == 2 {
                    "bf16"
                } else {
                    "f32"
                },
                seed: shape.seed,
                groups: shape.groups.clone(),
                n: shape.n,
                k: shape.k,
                rows,
                cols,
            });
            files.push((format!("gemm_{name}.bin"), bytes));
            progress.step();
        }
    }
    let record = Record {
        schema: "mok-golden/1",
        machine: Machine::of(&device)?,
        inputs: INPUTS,
        outputs,
    };
    let record = serde_json::to_vec_pretty(&record)?;
    files.push(("gemm.json".to_owned(), record));
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    for (name, bytes) in &files {
        let path = folder.join(name);
        fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
    }
    drop(progress);
    println!("{} files in {}", files.len(), folder.display());
    Ok(true)
}

/// Refuses to record what is wrong.
fn check(data: &Data, form: Form, sink: Sink, numbers: Numbers, bytes: &[u8]) -> Result<()> {
    let problem = data.problem(form)?;
    let sums = problem.sums(&problem.all_rows())?;
    let old = data.old(form, sink);
    let product = Product::new(sink, bytes);
    let rounded = product.compare(&sums.rounded(sink, old.as_deref())?)?;
    let exact = product.compare(&sums.exact(old.as_deref())?)?;
    let right = match numbers {
        Numbers::Integers => rounded.is_equal(),
        Numbers::Normal => rounded.passes(ROUNDED) && exact.passes(EXACT),
    };
    ensure!(right, "the GPU's output is not the oracle's: {rounded:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The committed outputs of a GPU, with what made them.
    fn recorded() -> (serde_json::Value, impl Fn(&str) -> Vec<u8>) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
        let read = move |name: &str| fs::read(folder.join(name)).expect("a committed file");
        let record = serde_json::from_slice(&read("gemm.json")).expect("JSON");
        (record, read)
    }

    fn data_of(output: &serde_json::Value) -> (Data, Form, Sink, Numbers) {
        let number = |name: &str| output[name].as_u64().expect("a number");
        let groups = output["groups"].as_array().expect("groups");
        let shape = Shape {
            groups: groups
                .iter()
                .map(|size| size.as_u64().expect("a size") as u32)
                .collect(),
            n: number("n") as u32,
            k: number("k") as u32,
            seed: number("seed"),
        };
        let numbers = [Numbers::Integers, Numbers::Normal]
            .into_iter()
            .find(|numbers| output["numbers"] == numbers.name())
            .expect("a kind of numbers");
        let (form, sink) = forms_and_sinks()
            .find(|(form, sink)| {
                output["form"] == form.name() && output["sink"] == sink_name(*sink)
            })
            .expect("a form and a sink");
        let data = Data::new(&shape, numbers).expect("the data");
        (data, form, sink, numbers)
    }

    #[test]
    fn the_recorded_outputs_are_the_oracles() {
        let (record, read) = recorded();
        assert_eq!(record["ptx_sha256"].as_str().map(str::len), Some(64));
        assert!(record["driver"].is_string() && record["device"].is_string());
        let outputs = record["outputs"].as_array().expect("outputs");
        assert_eq!(outputs.len(), 2 * forms_and_sinks().count());
        for output in outputs {
            let bytes = read(output["file"].as_str().expect("a name"));
            assert_eq!(output["sha256"], sha256(&bytes));
            let (data, form, sink, numbers) = data_of(output);
            check(&data, form, sink, numbers, &bytes).expect("the oracle's result");
        }
    }

    /// Bits equal on integers; on random numbers f32 within 1e-5 of the sum of the products'
    /// sizes, and bf16 but for single units in the last place in under 1 % of the elements.
    #[test]
    fn the_emulator_gives_the_recorded_outputs() {
        let (record, read) = recorded();
        for output in record["outputs"].as_array().expect("outputs") {
            let want = read(output["file"].as_str().expect("a name"));
            let (data, form, sink, numbers) = data_of(output);
            let device = mok::Device::emulated(mok::EmulatorConfig::default()).expect("a device");
            let products = Products::new(&device, &data).expect("the data on it");
            let got = products.bytes(form, sink, 4).expect("a result");
            match (numbers, Product::new(sink, &got), Product::new(sink, &want)) {
                (Numbers::Integers, ..) => assert!(got == want, "{output}"),
                (_, Product::Bf16(got), Product::Bf16(want)) => {
                    let apart =
                        |(a, b): (&half::bf16, &half::bf16)| a.to_bits().abs_diff(b.to_bits());
                    let steps: Vec<u16> = got.iter().zip(&want).map(apart).collect();
                    let different = steps.iter().filter(|&&step| step > 0).count();
                    assert!(steps.iter().all(|&step| step <= 1), "{output}");
                    assert!(
                        100 * different < steps.len(),
                        "{different} differ: {output}"
                    );
                }
                (_, Product::F32(got), Product::F32(want)) => {
                    let sizes = data.absolute(form).expect("the sums of sizes");
                    let old = data.old(form, sink).unwrap_or(vec![0.0; sizes.len()]);
                    for (((got, want), size), old) in got.iter().zip(&want).zip(sizes).zip(old) {
                        let size = size + f64::from(old.abs());
                        assert!(f64::from((got - want).abs()) <= 1e-5 * size, "{output}");
                    }
                }
                _ => unreachable!("one sink has one type"),
            }
        }
    }

    #[test]
    fn a_planted_fault_is_refused() {
        let (record, read) = recorded();
        for output in record["outputs"].as_array().expect("outputs") {
            let mut bytes = read(output["file"].as_str().expect("a name"));
            // The top bit of the first element's exponent: no rounding is that large.
            let last = if output["dtype"] == "bf16" { 1 } else { 3 };
            bytes[last] ^= 0x40;
            let (data, form, sink, numbers) = data_of(output);
            assert!(
                check(&data, form, sink, numbers, &bytes).is_err(),
                "{output}"
            );
        }
    }
}
