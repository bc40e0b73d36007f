//! A PTX file, loaded on a GPU of a machine.

use std::collections::HashMap;
use std::sync::Arc;

use crate::code::{Entry, LoadError, decode, function_address, missing};
use crate::machine::Machine;
use crate::memory::Fault;
use crate::ptx::ast::{Init, Module, Space, Variable};
use crate::ptx::{self, ParseError};

/// Why a file can't be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramError {
    /// It is not PTX that the parser takes.
    Parse(ParseError),
    /// An instruction or a declaration that the machine does not know.
    Load(LoadError),
    /// Its variables find no memory.
    Memory(Fault),
    /// A variable's initial value names one that is not there.
    Symbol(String),
}

impl std::fmt::Display for ProgramError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProgramError::Parse(error) => error.fmt(f),
            ProgramError::Load(error) => error.fmt(f),
            ProgramError::Memory(fault) => {
                write!(f, "no memory for the module's variables: {}", fault.reason)
            }
            ProgramError::Symbol(name) => {
                write!(f, "an initial value names `{name}`, which is not there")
            }
        }
    }
}

impl std::error::Error for ProgramError {}

/// A loaded file.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its kernels, in order.
    pub entries: Vec<Arc<Entry>>,
    /// What it was compiled for, such as `sm_90a`.
    pub target: String,
    /// Addresses of its variables in device memory.
    pub variables: HashMap<String, u64>,
}

impl Program {
    /// Parses and decodes a file, and puts its variables into a GPU's memory.
    pub fn load(machine: &mut Machine, gpu: usize, text: &str) -> Result<Program, ProgramError> {
        let module = ptx::parse(text).map_err(ProgramError::Parse)?;
        let variables = place_variables(machine, gpu, &module)?;
        let shared: Vec<Variable> = module
            .variables
            .iter()
            .filter(|variable| variable.space == Space::Shared)
            .cloned()
            .collect();
        let entries: Vec<Arc<Entry>> = module
            .functions
            .iter()
            .filter(|function| function.entry)
            .map(|function| decode(function, &module.functions, &variables, &shared).map(Arc::new))
            .collect::<Result<_, _>>()
            .map_err(ProgramError::Load)?;
        for entry in &entries {
            for instruction in &entry.code {
                if let Some(reason) = missing(&module.target, &instruction.op) {
                    return Err(ProgramError::Load(LoadError {
                        function: entry.name.clone(),
                        line: instruction.line,
                        reason,
                    }));
                }
            }
        }
        Ok(Program {
            entries,
            target: module.target,
            variables,
        })
    }

    /// The kernel of this name.
    pub fn entry(&self, name: &str) -> Option<&Arc<Entry>> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Gives its variables' memory back.
    pub fn unload(&self, machine: &mut Machine) {
        for &address in self.variables.values() {
            // Each was allocated by `load`, once.
            let _ = machine.memory.free(address);
        }
    }
}

fn place_variables(
    machine: &mut Machine,
    gpu: usize,
    module: &Module,
) -> Result<HashMap<String, u64>, ProgramError> {
    let in_memory = |variable: &&Variable| matches!(variable.space, Space::Global | Space::Const);
    let mut places = HashMap::new();
    for variable in module.variables.iter().filter(in_memory) {
        let bytes = u64::from(variable.element).saturating_mul(variable.len);
        let address = machine
            .memory
            .alloc(gpu, bytes)
            .map_err(ProgramError::Memory)?;
        // Variables without an initial value are zero.
        machine.memory.mark_written(address, bytes, true);
        places.insert(variable.name.clone(), address);
    }
    for variable in module.variables.iter().filter(in_memory) {
        let base = places[&variable.name];
        for (index, init) in variable.init.iter().enumerate() {
            let value = match init {
                Init::Bits(bits) => *bits,
                Init::Address(name, offset) => {
                    let address = places.get(name).copied();
                    match address.or_else(|| function_address(&module.functions, name)) {
                        Some(address) => address.wrapping_add_signed(*offset),
                        None => return Err(ProgramError::Symbol(name.clone())),
                    }
                }
            };
            let size = variable.element.min(8) as usize;
            let at = base + index as u64 * u64::from(variable.element);
            machine
                .memory
                .host_write(at, &value.to_le_bytes()[..size])
                .map_err(ProgramError::Memory)?;
        }
        if variable.space == Space::Const {
            machine.memory.protect(base);
        }
    }
    Ok(places)
}
