//! Whether PTX is fit to ship.
//!
//! Three looks at one file: the text ([`text`], `pool`), what ptxas says of it
//! ([`assembled`]) and the machine code that came out ([`sass`]). Knows nothing
//! of any kernel but its register [`budgets`].

pub mod assembled;
pub mod budgets;
mod pool;
pub mod sass;
pub mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use crate::files::{self, FileError};
use crate::process::RunError;
use crate::ptx::{self, Module};
use crate::setup::{CudaTool, CudaTools};
use budgets::Budgets;

/// Why a file could not be judged at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is not PTX.
    #[error("{}: {source}", path.display())]
    NotPtx {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ptx::Error,
    },
    /// It is not even text.
    #[error("{}: this is not PTX: it is not text (a cubin? give the .ptx it was made from)", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// It has nothing to launch.
    #[error("{}: the PTX has no .entry with a body: nothing to validate", path.display())]
    NoEntries {
        /// The file.
        path: PathBuf,
    },
    /// ptxas does not know the architecture.
    #[error("{}: ptxas {version} does not know .target {target}", path.display())]
    Target {
        /// The file.
        path: PathBuf,
        /// Its `.target`.
        target: String,
        /// The version of ptxas.
        version: String,
    },
    /// ptxas refused it.
    #[error("{}: ptxas rejects it: {source}", path.display())]
    Ptxas {
        /// The file.
        path: PathBuf,
        /// What ptxas said.
        source: RunError,
    },
    /// What ptxas compiled and what the text holds are not the same entries.
    #[error(
        "{}: ptxas says nothing that we understand of {}: is MOK_PTXAS, or the ptxas on the path, of a CUDA release later than this program?", path.display(), entries.join(", ")
    )]
    Unaccounted {
        /// The file.
        path: PathBuf,
        /// Entries that only one of the two knows.
        entries: Vec<String>,
    },
    /// nvdisasm failed on the cubin.
    #[error("{}: its cubin cannot be disassembled: {source}", path.display())]
    Nvdisasm {
        /// The file.
        path: PathBuf,
        /// What nvdisasm said.
        source: RunError,
    },
    /// A tool that validation cannot do without.
    #[error("validation needs {tool}, which is missing: run `cargo xtask setup`")]
    NoTool {
        /// Its name.
        tool: &'static str,
    },
    /// The budgets are not usable.
    #[error(transparent)]
    Budgets(#[from] budgets::Error),
}

/// One thing that a shipped entry must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// Registers were spilled to local memory.
    Spill,
    /// A stack frame, or `alloca`, whose size ptxas cannot tell.
    Stack,
    /// A C75xx from ptxas: wgmma serialised, `setmaxnreg` ignored.
    Performance,
    /// Local memory named in the PTX.
    Local,
    /// `brx.idx`, an indirect branch.
    IndirectBranch,
    /// A call, direct or indirect.
    Call,
    /// A symbol of Rust's panic machinery.
    Panic,
    /// More registers than the committed budget.
    Budget,
    /// A shipped entry without a budget.
    NoBudget,
    /// A collective emitted more often than its source declares.
    Collective,
    /// The machine code has none of the tensor-core instruction that the entry is written for.
    TensorCore,
    /// `setmaxnreg` asks for more registers than a block has: it waits for ever.
    RegisterPool,
}

impl Check {
    /// What to do about it.
    pub const fn fix(self) -> &'static str {
        match self {
            Check::Spill => {
                "keep fewer values alive at once: a smaller tile, fewer accumulators, or more registers a thread (launch spec)"
            }
            Check::Stack | Check::Local => {
                "index arrays with literals (a macro) so that they stay in registers; take no address of a local"
            }
            Check::Performance => {
                "touch no accumulator between wgmma and its wait, and let no call or loop index come between them"
            }
            Check::IndirectBranch => {
                "build with -Cllvm-args=-min-jump-table-entries=1000, or turn the match into comparisons"
            }
            Check::Call => "mark the callee #[inline(always)], or remove what it is for",
            Check::Panic => {
                "remove the slice index, division or unwrap that can panic: get_unchecked with its reason, or a checked branch"
            }
            Check::Budget => {
                "bring the registers down, or raise the entry's number in kernel/budgets.toml with a reason in the commit"
            }
            Check::NoBudget => "add the entry and architecture to kernel/budgets.toml",
            Check::Collective => {
                "keep the compiler from copying it: pin it with a convergent intrinsic, or declare the unrolling (x N) in its tag"
            }
            Check::TensorCore => {
                "see which engine the architecture's entries compose (kernel/src/mma), or correct tensor_core in kernel/budgets.toml"
            }
            Check::RegisterPool => {
                "lower the dec or the inc of setmaxnreg: dec + (warpgroups - 1) x inc must fit into warpgroups x the registers a thread"
            }
        }
    }
}

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The entry; empty where ptxas names none of several.
    pub entry: String,
    /// The check that failed.
    pub check: Check,
    /// Line of the PTX, counted from 1, where one is known.
    pub line: Option<usize>,
    /// What was found.
    pub found: String,
    /// What to do.
    pub fix: &'static str,
}

impl Failure {
    fn new(entry: &str, check: Check, line: Option<usize>, found: String) -> Failure {
        Failure {
            entry: entry.to_owned(),
            check,
            line,
            found,
            fix: check.fix(),
        }
    }
}

/// What one entry costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EntryReport {
    /// Its name.
    pub entry: String,
    /// Registers a thread.
    pub registers: u32,
    /// Registers it may use, where a budget is committed.
    pub budget: Option<u32>,
    /// Bytes of spill stores.
    pub spill_stores: u32,
    /// Bytes of spill loads.
    pub spill_loads: u32,
    /// Bytes of stack frame.
    pub stack: u32,
    /// Bytes of static shared memory.
    pub shared: u32,
    /// Collectives in the PTX that carry their source.
    pub collectives: usize,
    /// Tensor-core instructions in the SASS, by opcode.
    pub tensor_core: BTreeMap<String, u32>,
}

/// What one file is like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileReport {
    /// The file.
    #[serde(serialize_with = "in_words")]
    pub file: PathBuf,
    /// Its `.target`.
    pub target: String,
    /// Its `.version`.
    pub ptx_version: String,
    /// SHA-256 of the file.
    pub sha256: String,
    /// Its entries, in order.
    pub entries: Vec<EntryReport>,
    /// Violations. Empty: fit to ship.
    pub failures: Vec<Failure>,
    /// What else ptxas remarked.
    pub remarks: Vec<String>,
}

/// A path that is not UTF-8 is still a file that was judged.
fn in_words<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

impl FileReport {
    /// Whether every check passed.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}

/// The tools and expectations that files are judged with.
#[derive(Clone, Debug)]
pub struct Validator<'a> {
    ptxas: &'a CudaTool,
    nvdisasm: &'a CudaTool,
    budgets: &'a Budgets,
    must_have_budget: &'a [&'a str],
}

impl<'a> Validator<'a> {
    /// Judges with these tools and budgets.
    pub fn new(tools: &'a CudaTools, budgets: &'a Budgets) -> Result<Validator<'a>, Error> {
        let ptxas = tools
            .ptxas
            .as_ref()
            .ok_or(Error::NoTool { tool: "ptxas" })?;
        let nvdisasm = tools
            .nvdisasm
            .as_ref()
            .ok_or(Error::NoTool { tool: "nvdisasm" })?;
        Ok(Validator {
            ptxas,
            nvdisasm,
            budgets,
            must_have_budget: &[],
        })
    }

    /// These entries ship: for them a missing budget is a failure too.
    pub fn shipping(self, entries: &'a [&'a str]) -> Validator<'a> {
        Validator {
            must_have_budget: entries,
            ..self
        }
    }

    /// Judges one file.
    pub fn file(&self, path: &Path) -> Result<FileReport, Error> {
        let bytes = fs::read(path).map_err(files::on("read", path))?;
        let sha256 = files::sha256(&bytes);
        let source = String::from_utf8(bytes).map_err(|_| Error::NotText {
            path: path.to_owned(),
        })?;
        let module = Module::scan(&source).map_err(|source| Error::NotPtx {
            path: path.to_owned(),
            source,
        })?;
        if module.entries.is_empty() {
            return Err(Error::NoEntries {
                path: path.to_owned(),
            });
        }
        let scratch = tempfile::tempdir().map_err(files::on("create a folder for", path))?;
        let cubin = scratch.path().join("out.cubin");
        // What is assembled is what was read: the path may be a pipe, or look like an option.
        let copy = scratch.path().join("given.ptx");
        fs::write(&copy, &source).map_err(files::on("write", &copy))?;
        let assembled = assembled::assemble(self.ptxas, path, &copy, &module.target, &cubin)?;
        // An entry that one of the two overlooks would pass every check.
        let known: BTreeSet<&str> = module.entries.iter().map(|e| e.name.as_str()).collect();
        let compiled: BTreeSet<&str> = assembled.entries.iter().map(String::as_str).collect();
        if known != compiled {
            let entries = known.symmetric_difference(&compiled);
            return Err(Error::Unaccounted {
                path: path.to_owned(),
                entries: entries.map(|&name| name.to_owned()).collect(),
            });
        }
        let mut tensor_core = sass::tensor_core(self.nvdisasm, path, &cubin)?;

        // Then `Used` is no count that `setmaxnreg` starts from; the remark is a failure itself.
        let ignored = assembled
            .performance
            .iter()
            .any(|remark| remark.text.starts_with("(C7508)"));
        let mut failures = Vec::new();
        let mut entries = Vec::new();
        for entry in &module.entries {
            let usage = assembled
                .usage
                .get(&entry.name)
                .cloned()
                .unwrap_or_default();
            let budget = self.budgets.of(&entry.name, &module.target);
            let line = Some(module.line(entry.at));
            let mut fail = |check, found| {
                failures.push(Failure::new(&entry.name, check, line, found));
            };
            let (stores, loads) = (usage.spill_stores, usage.spill_loads);
            if stores > 0 || loads > 0 {
                fail(
                    Check::Spill,
                    format!("{stores} bytes stored, {loads} bytes loaded"),
                );
            }
            if usage.stack > 0 {
                fail(Check::Stack, format!("{} bytes", usage.stack));
            }
            match budget {
                Some(budget) if usage.registers > budget => {
                    let found = format!("{} registers, budget {budget}", usage.registers);
                    fail(Check::Budget, found);
                }
                None if self.must_have_budget.contains(&entry.name.as_str()) => {
                    let registers = usage.registers;
                    fail(
                        Check::NoBudget,
                        format!("{registers} registers on {}", module.target),
                    );
                }
                _ => {}
            }
            let tensor_core = tensor_core.remove(&entry.name).unwrap_or_default();
            let wanted = self.budgets.tensor_core(&entry.name, &module.target);
            if let Some(wanted) = wanted.filter(|&opcode| !tensor_core.contains_key(opcode)) {
                let found: Vec<&str> = tensor_core.keys().map(String::as_str).collect();
                let found = match found.as_slice() {
                    [] => "no tensor-core instruction".to_owned(),
                    _ => found.join(", "),
                };
                fail(Check::TensorCore, format!("{found}, and no {wanted}"));
            }
            failures.extend(text::failures(&module, entry));
            if !ignored {
                failures.extend(pool::failure(&module, entry, usage.registers));
            }
            entries.push(EntryReport {
                entry: entry.name.clone(),
                registers: usage.registers,
                budget,
                spill_stores: usage.spill_stores,
                spill_loads: usage.spill_loads,
                stack: usage.stack,
                shared: usage.shared,
                collectives: text::collectives(&module, entry),
                tensor_core,
            });
        }
        for remark in &assembled.performance {
            // Some name no function: in a file of one entry it is that one's.
            let entry = match &module.entries[..] {
                [only] if remark.entry.is_empty() => Some(only),
                all => all.iter().find(|entry| remark.entry == entry.name),
            };
            let line = remark.line.or(entry.map(|entry| module.line(entry.at)));
            let name = entry.map_or(&remark.entry, |entry| &entry.name);
            let found = remark.text.clone();
            failures.push(Failure::new(name, Check::Performance, line, found));
        }
        Ok(FileReport {
            file: path.to_owned(),
            target: module.target.clone(),
            ptx_version: module.version.clone(),
            sha256,
            entries,
            failures,
            remarks: assembled.remarks,
        })
    }
}
