//! One launch, run with one seed or many.

use std::collections::HashSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use mok_emu::code::Entry;
use mok_emu::machine::{Config, Launch, Machine, Outcome};
use mok_emu::program::Program;
use mok_emu::tensor::tma::TensorMap;
use sha2::{Digest, Sha256};

use super::argument::{Argument, Content, Value, reach};
use super::report::{Found, Launched, Output, Report, Run};
use super::{Args, Check, Dims};

/// The memory of the emulated GPU.
const MEMORY: u64 = 16 << 30;
/// Turns between two looks at the clock: some milliseconds, whatever the instructions are.
const SLICE: u64 = 16;

/// Everything that a seed needs.
pub struct Job<'a> {
    args: &'a Args,
    file: &'a Path,
    text: String,
    entry: String,
    target: String,
    grid: [u32; 3],
    block: [u32; 3],
    cluster: [u32; 3],
    /// The bytes of each argument's buffer; empty for those of zeros.
    contents: Vec<Vec<u8>>,
}

/// What one seed left.
struct Ended {
    run: Run,
    findings: Vec<Found>,
    outputs: Vec<(PathBuf, Vec<u8>)>,
}

impl<'a> Job<'a> {
    /// Reads and checks everything, so that what is wrong is said before anything runs.
    pub fn new(args: &'a Args) -> Result<Job<'a>> {
        let file = args.file.as_deref().context("name a PTX file")?;
        let (Some(Dims(grid)), Some(Dims(block))) = (args.grid, args.block) else {
            bail!("say --grid and --block");
        };
        if let Some(held) = args.mode.held() {
            ensure!(
                held < args.sms,
                "--mode held={held} holds all of --sms {}: hold fewer",
                args.sms
            );
        }
        let text = String::from_utf8(read(file, MEMORY)?).map_err(|_| {
            anyhow!(
                "{} is no text: the emulator executes PTX, not cubins",
                file.display()
            )
        })?;
        let program = load(&mut Machine::new(Config::default()), file, &text)?;
        let entry = choose(&program, args.entry.as_deref(), file)?;
        fit(entry, &args.args)?;
        let cluster = match args.cluster {
            Some(count) => [count, 1, 1],
            None => entry.directives.cluster.unwrap_or([1; 3]),
        };
        Ok(Job {
            args,
            file,
            entry: entry.name.clone(),
            target: program.target.clone(),
            text,
            grid,
            block,
            cluster,
            contents: contents(&args.args)?,
        })
    }

    /// Runs every seed, as long as there is time, and writes the last one's outputs.
    pub fn run(&self, timeout: Duration) -> Result<Report> {
        let started = Instant::now();
        let (seeds, total) = match self.args.seeds {
            Some(count) => (0..=count.saturating_sub(1), count),
            None => (self.args.seed..=self.args.seed, 1),
        };
        let (mut runs, mut findings) = (Vec::new(), Vec::new());
        let mut outputs = Vec::new();
        let mut first = None;
        for seed in seeds {
            let time_left = || started.elapsed() < timeout;
            if !runs.is_empty() && !time_left() {
                break;
            }
            // A fault of the emulator's own is an error like others: callers get their object.
            let ended = catch_unwind(AssertUnwindSafe(|| self.seed(seed, &time_left)));
            let mut ended = ended.map_err(|_| {
                anyhow!(
                    "the emulator itself failed (its message is on standard error): please report \
                     it with this command: {}",
                    self.replay(seed)
                )
            })??;
            let digests: Vec<_> = ended
                .outputs
                .iter()
                .map(|(_, bytes)| Sha256::digest(bytes))
                .collect();
            ended.run.outputs_differ = *first.get_or_insert_with(|| digests.clone()) != digests;
            runs.push(ended.run);
            findings.extend(ended.findings);
            outputs = ended.outputs;
        }
        let mut written = Vec::new();
        for (path, bytes) in outputs {
            fs::write(&path, &bytes).with_context(|| format!("writing {}", path.display()))?;
            let bytes = bytes.len() as u64;
            written.push(Output { path, bytes });
        }
        let not_run = total - runs.len() as u64;
        Ok(Report::new(
            self.launched(),
            runs,
            findings,
            not_run,
            written,
        ))
    }

    fn launched(&self) -> Launched {
        Launched {
            file: self.file.to_owned(),
            entry: self.entry.clone(),
            target: self.target.clone(),
            grid: self.grid,
            block: self.block,
            cluster: self.cluster,
            shared: self.args.shared,
            sms: self.args.sms,
            mode: self.args.mode.to_string(),
            checked: self.args.check == Check::On,
        }
    }

    /// One seed, on a machine of its own.
    fn seed(&self, seed: u64, time_left: &dyn Fn() -> bool) -> Result<Ended> {
        let mut config = Config {
            sms: self.args.sms,
            seed,
            check: self.args.check == Check::On,
            ..Config::default()
        };
        self.args.mode.configure(&mut config);
        let mut machine = Machine::new(config);
        let program = load(&mut machine, self.file, &self.text)?;
        let entry = choose(&program, Some(&self.entry), self.file)?;
        let (params, buffers) = self.params(&mut machine, entry)?;
        machine
            .launch(Launch {
                entry: Arc::clone(entry),
                gpu: 0,
                grid: self.grid,
                block: self.block,
                cluster: self.cluster,
                dynamic_shared: self.args.shared,
                params,
            })
            .context("launching")?;
        let mut timed_out = false;
        while machine.run_turns(SLICE) == Outcome::More {
            if !time_left() {
                timed_out = true;
                let seconds = self.args.timeout;
                machine.interrupt(&format!("stopped after {seconds} seconds (--timeout)"));
            }
        }
        let mut outputs = Vec::new();
        for (path, address, bytes) in buffers {
            // Nothing lies at the address of an empty buffer.
            let values = match bytes {
                0 => Vec::new(),
                _ => machine
                    .memory
                    .read(address, bytes)
                    .map_err(|fault| anyhow!("reading an output: {}", fault.reason))?
                    .to_vec(),
            };
            outputs.push((path, values));
        }
        let (found, more) = machine.findings();
        let findings: Vec<Found> = found.iter().map(|found| Found::new(seed, found)).collect();
        Ok(Ended {
            run: Run {
                seed,
                passed: findings.is_empty() && more == 0 && !timed_out,
                findings: findings.len() as u64 + more,
                timed_out,
                outputs_differ: false,
                instructions: machine.instructions(),
                time_ns: machine.time(),
                notes: machine.notes(),
                replay: self.replay(seed),
            },
            findings,
            outputs,
        })
    }

    /// The parameters' bytes, and the buffers to be written out: where to, where, how long.
    #[expect(clippy::type_complexity, reason = "read once, right above")]
    fn params(
        &self,
        machine: &mut Machine,
        entry: &Entry,
    ) -> Result<(Vec<u8>, Vec<(PathBuf, u64, u64)>)> {
        let mut params = vec![0; entry.param_bytes as usize];
        let mut outputs = Vec::new();
        let arguments = self.args.args.iter().zip(&self.contents);
        for (slot, (argument, content)) in entry.params.iter().zip(arguments) {
            let mut address = 0;
            if let Some(buffer) = argument.buffer() {
                let bytes = match &buffer.content {
                    Content::File(_) => content.len() as u64,
                    Content::Zeros(bytes) => *bytes,
                };
                let allocated = machine.memory.alloc(0, bytes);
                address =
                    allocated.map_err(|fault| anyhow!("{}: {}", argument.text, fault.reason))?;
                if !content.is_empty() {
                    let copied = machine.memory.host_write(address, content);
                    copied.map_err(|fault| anyhow!("{}: {}", argument.text, fault.reason))?;
                }
                if let Some(path) = &buffer.output {
                    outputs.push((path.clone(), address, bytes));
                }
            }
            let bytes = match &argument.value {
                Value::Bytes(bytes) => bytes.clone(),
                Value::Pointer(_) => address.to_le_bytes().to_vec(),
                Value::Map(_, map) => based(map, address),
                Value::MapPointer(_, map) => {
                    let map = based(map, address);
                    let there = machine.memory.alloc(0, map.len() as u64);
                    let there =
                        there.map_err(|fault| anyhow!("{}: {}", argument.text, fault.reason))?;
                    let copied = machine.memory.host_write(there, &map);
                    copied.map_err(|fault| anyhow!("{}: {}", argument.text, fault.reason))?;
                    there.to_le_bytes().to_vec()
                }
            };
            let start = slot.offset as usize;
            params
                .get_mut(start..start + bytes.len())
                .with_context(|| format!("parameter {}", slot.name))?
                .copy_from_slice(&bytes);
        }
        Ok((params, outputs))
    }

    /// The command that repeats a seed.
    fn replay(&self, seed: u64) -> String {
        let args = self.args;
        let list = |dims: [u32; 3]| dims.map(|extent| extent.to_string()).join(",");
        let program = if std::env::var_os("MOK_PACK").is_some() {
            "./xtask"
        } else {
            "cargo xtask"
        };
        let mut command = format!(
            "{program} emu {} --entry {} --grid {} --block {}",
            quoted(&self.file.to_string_lossy()),
            quoted(&self.entry),
            list(self.grid),
            list(self.block),
        );
        if let Some(cluster) = args.cluster {
            command += &format!(" --cluster {cluster}");
        }
        if args.shared > 0 {
            command += &format!(" --shared {}", args.shared);
        }
        for argument in &args.args {
            command += &format!(" --arg {}", quoted(&argument.text));
        }
        if args.check == Check::Off {
            command += " --check off";
        }
        command
            + &format!(
                " --mode {} --sms {} --timeout {} --seed {seed}",
                args.mode, args.sms, args.timeout
            )
    }
}

/// A map's bytes, over a buffer at this address.
fn based(map: &TensorMap, address: u64) -> Vec<u8> {
    let mut map = *map;
    map.base = address;
    map.to_bytes().to_vec()
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

fn load(machine: &mut Machine, file: &Path, text: &str) -> Result<Program> {
    Program::load(machine, 0, text).with_context(|| file.display().to_string())
}

/// A whole file. Others than regular ones may never end.
fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let about = || format!("reading {}", path.display());
    let found = fs::metadata(path).with_context(about)?;
    ensure!(
        found.is_file(),
        "{} is no regular file: write its bytes to one",
        path.display()
    );
    ensure!(
        found.len() <= most,
        "{} has {} bytes, more than the {} GiB of the emulated GPU",
        path.display(),
        found.len(),
        MEMORY >> 30
    );
    fs::read(path).with_context(about)
}

/// The kernel of this name, or the only one.
fn choose<'p>(program: &'p Program, name: Option<&str>, file: &Path) -> Result<&'p Arc<Entry>> {
    let names = || {
        let names: Vec<&str> = program.entries.iter().map(|entry| &*entry.name).collect();
        names.join(", ")
    };
    match (program.entries.as_slice(), name) {
        ([], _) => bail!("{} has no kernel (`.entry`)", file.display()),
        ([only], None) => Ok(only),
        (_, None) => bail!("choose a kernel with --entry: {}", names()),
        (_, Some(name)) => program
            .entry(name)
            .ok_or_else(|| anyhow!("there is no kernel `{name}`; there are: {}", names())),
    }
}

/// Whether the arguments are those that the kernel takes.
fn fit(entry: &Entry, arguments: &[Argument]) -> Result<()> {
    let counts = entry.params.len() == arguments.len();
    let wrong = entry
        .params
        .iter()
        .zip(arguments)
        .find(|(param, argument)| param.bytes as usize != argument.bytes());
    let complaint = match wrong {
        _ if !counts => format!(
            "`{}` takes {} parameters, but {} --arg were given",
            entry.name,
            entry.params.len(),
            arguments.len()
        ),
        Some((param, argument)) => format!(
            "`{}` has {} bytes, but --arg {} has {}",
            param.name,
            param.bytes,
            argument.text,
            argument.bytes()
        ),
        None => return Ok(()),
    };
    let forms = |bytes: u32| match bytes {
        4 => "i32=, u32= or f32=",
        8 => {
            "in=, inout=, out= or null for a pointer; pmap= for a tensor map's; i64=, u64= or f64="
        }
        128 => "map= or mapout= for a tensor map; hex=",
        _ => "hex=",
    };
    let params: Vec<String> = entry
        .params
        .iter()
        .enumerate()
        .map(|(number, param)| {
            let hint = forms(param.bytes);
            format!(
                "  {:2}  {}  {} bytes: {hint}",
                number + 1,
                param.name,
                param.bytes
            )
        })
        .collect();
    bail!(
        "{complaint}. One --arg each, in this order:\n{}",
        params.join("\n")
    )
}

/// The bytes of each argument's buffer, within the GPU's memory; checks where outputs go.
fn contents(arguments: &[Argument]) -> Result<Vec<Vec<u8>>> {
    let mut left = MEMORY;
    let mut targets = HashSet::new();
    let mut all = Vec::new();
    for argument in arguments {
        let about = || format!("--arg {}", argument.text);
        let mut content = Vec::new();
        if let Some(buffer) = argument.buffer() {
            let bytes = match &buffer.content {
                Content::Zeros(bytes) => *bytes,
                Content::File(path) => {
                    content = read(path, left).with_context(about)?;
                    content.len() as u64
                }
            };
            left = left.checked_sub(bytes).with_context(|| {
                format!(
                    "--arg {}: more than the {} GiB of the emulated GPU",
                    argument.text,
                    MEMORY >> 30
                )
            })?;
            if let Some(map) = argument.map() {
                let reach = reach(map);
                ensure!(
                    reach <= bytes.into(),
                    "--arg {}: the tensor takes {reach} bytes, the buffer has {bytes}",
                    argument.text
                );
            }
            if let Some(path) = &buffer.output {
                writable(path).with_context(about)?;
                ensure!(
                    targets.insert(path),
                    "{} is the output of two arguments",
                    path.display()
                );
            }
        }
        all.push(content);
    }
    Ok(all)
}

/// Whether a file can be written there, as far as that can be told now.
fn writable(path: &Path) -> Result<()> {
    ensure!(!path.is_dir(), "{} is a folder", path.display());
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    if let Some(folder) = folder {
        ensure!(
            folder.is_dir(),
            "there is no folder {}: make it first",
            folder.display()
        );
    }
    Ok(())
}
