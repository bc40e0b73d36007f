//! What ptxas says: registers, spills, stack, shared memory, remarks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Error;
use crate::process::{self, RunError};
use crate::setup::CudaTool;

const LIMIT: Duration = Duration::from_secs(900);

/// What one function uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Registers a thread.
    pub registers: u32,
    /// Bytes of spill stores.
    pub spill_stores: u32,
    /// Bytes of spill loads.
    pub spill_loads: u32,
    /// Bytes of stack frame.
    pub stack: u32,
    /// Bytes of static shared memory.
    pub shared: u32,
}

/// A C75xx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The function it names, or nothing.
    pub entry: String,
    /// The line of the PTX, where one is named.
    pub line: Option<usize>,
    /// All of it.
    pub text: String,
}

/// All that ptxas said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assembled {
    /// Entries that it says it compiled, with a count of their registers.
    pub entries: BTreeSet<String>,
    /// By function.
    pub usage: BTreeMap<String, Usage>,
    /// Remarks C7500 to C7599, which nobody may ship with.
    pub performance: Vec<Remark>,
    /// Other warnings.
    pub remarks: Vec<String>,
}

/// Assembles `copy`, which was read from `path`, for its own target.
pub(super) fn assemble(
    ptxas: &CudaTool,
    path: &Path,
    copy: &Path,
    target: &str,
    cubin: &Path,
) -> Result<Assembled, Error> {
    let unknown = || Error::Target {
        path: path.to_owned(),
        target: target.to_owned(),
        version: ptxas.version.clone(),
    };
    // For a virtual architecture (compute_90) ptxas succeeds and writes nothing.
    if !target.starts_with("sm_") {
        return Err(unknown());
    }
    let mut command = Command::new(&ptxas.path);
    command
        .args(["-v", "-O3", "--gpu-name", target])
        .arg(copy)
        .arg("-o")
        .arg(cubin);
    match process::run(&mut command, LIMIT) {
        Ok(printed) => Ok(parse(&format!("{}\n{}", printed.stdout, printed.stderr))),
        Err(RunError::Failed { output, .. }) if output.contains("option 'gpu-name'") => {
            Err(unknown())
        }
        Err(source) => Err(Error::Ptxas {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Reads the output of `ptxas -v`.
pub fn parse(output: &str) -> Assembled {
    let mut assembled = Assembled::default();
    let mut compiling = String::new();
    let mut function = String::new();
    for line in output.lines() {
        if let Some(name) = line.split("Compiling entry function '").nth(1) {
            compiling = name.split('\'').next().unwrap_or_default().to_owned();
        } else if let Some(name) = line.split("Function properties for ").nth(1) {
            function = name.trim().to_owned();
        } else if line.contains("bytes stack frame") {
            let usage = assembled.usage.entry(function.clone()).or_default();
            usage.stack = number_before(line, " bytes stack frame");
            usage.spill_stores = number_before(line, " bytes spill stores");
            usage.spill_loads = number_before(line, " bytes spill loads");
        } else if line.contains(": Used ") && line.contains(" registers") {
            let usage = assembled.usage.entry(compiling.clone()).or_default();
            usage.registers = number_before(line, " registers");
            assembled.entries.insert(compiling.clone());
            usage.shared = number_before(line, " bytes smem");
        } else if line.contains("(C75") {
            let entry = line
                .split("function '")
                .nth(1)
                .and_then(|name| name.split('\'').next());
            let entry = entry.unwrap_or(&compiling).to_owned();
            let place = line
                .split(" line ")
                .nth(1)
                .and_then(|rest| rest.split(' ').next());
            let place = place.and_then(|number| number.parse().ok());
            assembled.performance.push(Remark {
                entry,
                line: place,
                text: message(line),
            });
        } else if line.contains("warning") {
            assembled.remarks.push(message(line));
        }
    }
    assembled
}

/// The number that ends right before `unit`, or 0.
fn number_before(line: &str, unit: &str) -> u32 {
    let Some(at) = line.find(unit) else { return 0 };
    let digits = line[..at]
        .rsplit(|digit: char| !digit.is_ascii_digit())
        .next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// The line without `ptxas info    :`.
fn message(line: &str) -> String {
    line.strip_prefix("ptxas ")
        .map_or(line, |rest| rest.split_once(": ").map_or(rest, |(_, m)| m))
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_ptxas() {
        let output = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are \
            serialized at line 12 due to x in the function 'second'\n\
            ptxas info    : Compiling entry function 'first' for 'sm_90a'\n\
            ptxas info    : Function properties for first\n\
            \x20   16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
            ptxas info    : Used 168 registers, used 1 barriers, 16 bytes cumulative stack size, 49152 bytes smem\n\
            ptxas warning : something else\n";
        let assembled = parse(output);
        let usage = Usage {
            registers: 168,
            spill_stores: 8,
            spill_loads: 12,
            stack: 16,
            shared: 49152,
        };
        assert_eq!(assembled.usage["first"], usage);
        assert_eq!(assembled.entries, BTreeSet::from(["first".to_owned()]));
        assert_eq!(assembled.performance[0].entry, "second");
        assert_eq!(assembled.performance[0].line, Some(12));
        assert!(assembled.performance[0].text.starts_with("(C7510)"));
        assert_eq!(assembled.remarks, ["something else"]);
    }
}
