//! One launch of `cases.json`.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use half::{bf16, f16};
use mok_emu::machine::{Completion, Config, Launch, Machine};
use mok_emu::program::Program;
use mok_emu::tensor::swizzle::Swizzle;
use mok_emu::tensor::tma::{Dtype, TensorMap};
use serde::Deserialize;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The file that `make.py` writes.
#[derive(Deserialize)]
pub struct List {
    pub cases: Vec<Case>,
    /// Kernels that could not be compiled, with the reason.
    pub ignored: BTreeMap<String, String>,
}

#[derive(Deserialize)]
pub struct Case {
    pub name: String,
    ptx: String,
    entry: String,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    buffers: Vec<Buffer>,
    arguments: Vec<Argument>,
    /// What findings say that are the compiler's own faults.
    allowed: Vec<String>,
}

#[derive(Deserialize)]
struct Buffer {
    bytes: u64,
    /// What it holds before the launch.
    given: Option<String>,
    /// Pairs of f64: what each element is afterwards, and how far it may be off.
    want: Option<String>,
    dtype: Option<String>,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Argument {
    Buffer {
        buffer: usize,
    },
    Map {
        buffer: usize,
        dtype: String,
        dims: Vec<u64>,
        #[serde(rename = "box")]
        tile: Vec<u32>,
        swizzle: u32,
    },
    I32 {
        value: i32,
    },
    I64 {
        value: i64,
    },
    F32 {
        bits: u32,
    },
    Null,
}

impl Argument {
    fn bytes(&self, addresses: &[u64]) -> Result<Vec<u8>> {
        Ok(match self {
            Argument::Buffer { buffer } => addresses[*buffer].to_le_bytes().to_vec(),
            Argument::Map {
                buffer,
                dtype,
                dims,
                tile,
                swizzle,
            } => {
                let dtype = Dtype::from_name(dtype).ok_or("no such type of a map")?;
                let mut map = TensorMap::new(dtype, addresses[*buffer], dims, &[], tile)?;
                map.swizzle = match swizzle {
                    32 => Swizzle::B32,
                    64 => Swizzle::B64,
                    128 => Swizzle::B128,
                    _ => Swizzle::None,
                };
                map.validate()?;
                map.to_bytes().to_vec()
            }
            Argument::I32 { value } => value.to_le_bytes().to_vec(),
            Argument::I64 { value } => value.to_le_bytes().to_vec(),
            Argument::F32 { bits } => bits.to_le_bytes().to_vec(),
            Argument::Null => vec![0; 8],
        })
    }
}

impl List {
    pub fn read(folder: &Path) -> Result<List> {
        let text = fs::read_to_string(folder.join("cases.json"))?;
        Ok(serde_json::from_str(&text)?)
    }
}

impl Case {
    /// Runs the kernel; an error is a finding or a wrong result. With `all`, under several seeds
    /// and with asynchronous work as early and as late as it may be.
    pub fn run(&self, folder: &Path, all: bool) -> Result<()> {
        // A kernel that doesn't end is a finding too, not a hang.
        let plain = Config {
            instruction_limit: 4_000_000_000,
            ..Config::default()
        };
        self.run_on(folder, plain.clone())?;
        if !all {
            return Ok(());
        }
        for seed in 1..4 {
            for completion in [Completion::Random, Completion::Early, Completion::Late] {
                let config = Config {
                    seed,
                    completion,
                    reverse: seed == 2,
                    starved_warp: (seed == 3).then_some(1),
                    ..plain.clone()
                };
                self.run_on(folder, config)
                    .map_err(|error| format!("seed {seed}, completion {completion:?}: {error}"))?;
            }
        }
        Ok(())
    }

    fn run_on(&self, folder: &Path, config: Config) -> Result<()> {
        let data = folder.join("data");
        let mut machine = Machine::new(config);
        let text = fs::read_to_string(folder.join(&self.ptx))?;
        let program = Program::load(&mut machine, 0, &text)?;
        let entry = program.entry(&self.entry).ok_or("no such entry")?.clone();
        let mut addresses = Vec::new();
        for buffer in &self.buffers {
            let address = machine
                .memory
                .alloc(0, buffer.bytes)
                .map_err(|fault| fault.reason)?;
            if let Some(path) = &buffer.given {
                machine
                    .memory
                    .host_write(address, &fs::read(data.join(path))?)
                    .map_err(|fault| fault.reason)?;
            }
            addresses.push(address);
        }
        if entry.params.len() != self.arguments.len() {
            let (takes, given) = (entry.params.len(), self.arguments.len());
            return Err(format!("it takes {takes} parameters, not {given}").into());
        }
        let mut params = vec![0; entry.param_bytes as usize];
        for (argument, slot) in self.arguments.iter().zip(&entry.params) {
            let bytes = argument.bytes(&addresses)?;
            if bytes.len() != slot.bytes as usize {
                return Err(format!("{} is {} bytes", slot.name, slot.bytes).into());
            }
            params[slot.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        let cluster = entry.directives.cluster.unwrap_or([1; 3]);
        machine.launch(Launch {
            entry,
            gpu: 0,
            grid: self.grid,
            block: self.block,
            cluster,
            dynamic_shared: self.shared,
            params,
        })?;
        // A run that can't end has a finding that says why.
        machine.run();
        let findings: Vec<_> = machine
            .take_findings()
            .iter()
            .map(ToString::to_string)
            .filter(|finding| !self.allowed.iter().any(|said| finding.contains(said)))
            .collect();
        if !findings.is_empty() {
            return Err(findings.join("\n").into());
        }
        for (buffer, &address) in self.buffers.iter().zip(&addresses) {
            let Some(want) = &buffer.want else { continue };
            let got = machine
                .memory
                .read(address, buffer.bytes)
                .map_err(|fault| fault.reason)?;
            let got = numbers(got, buffer.dtype.as_deref().unwrap_or_default())?;
            compare(&got, &numbers(&fs::read(data.join(want))?, "f64")?)?;
        }
        Ok(())
    }
}

/// The elements of a buffer.
fn numbers(bytes: &[u8], dtype: &str) -> Result<Vec<f64>> {
    fn each<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes
            .as_chunks::<N>()
            .0
            .iter()
            .map(|bytes| number(*bytes))
            .collect()
    }
    Ok(match dtype {
        "bf16" => each(bytes, |bytes| bf16::from_le_bytes(bytes).to_f64()),
        "f16" => each(bytes, |bytes| f16::from_le_bytes(bytes).to_f64()),
        "f32" => each(bytes, |bytes| f32::from_le_bytes(bytes).into()),
        "f64" => each(bytes, f64::from_le_bytes),
        "i32" => each(bytes, |bytes| i32::from_le_bytes(bytes).into()),
        other => return Err(format!("no type {other}").into()),
    })
}

/// `want` holds pairs of a value and how far it may be off.
fn compare(got: &[f64], want: &[f64]) -> Result<()> {
    let (pairs, _) = want.as_chunks::<2>();
    if got.len() != pairs.len() {
        return Err(format!("{} elements, not {}", pairs.len(), got.len()).into());
    }
    let wrong: Vec<_> = got
        .iter()
        .zip(pairs)
        .enumerate()
        .filter(|(_, (got, [want, bound]))| got.is_nan() || (*got - want).abs() > *bound)
        .collect();
    match wrong.first() {
        None => Ok(()),
        Some((at, (got, [want, bound]))) => Err(format!(
            "[{at}] is {got}, NumPy's is {want}, at most {bound} away ({} of {} differ)",
            wrong.len(),
            pairs.len()
        )
        .into()),
    }
}
