//! A function's statements to a program: scopes, registers, variables, labels.

mod calls;
mod labels;

use std::collections::HashMap;

pub use calls::function_address;
use labels::Jump;

use super::{
    Entry, Instruction, Op, ParamSlot, SHARED_START, Slot, Special, instruction, registers, tcgen05,
};
use crate::ptx::ast::{self, Function, Operand, Space, Statement, Variable};
use crate::ptx::type_bytes;
use crate::scalar::ScalarOp;

/// Why a program can't be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The function.
    pub function: String,
    /// The line.
    pub line: u32,
    /// What is wrong.
    pub reason: String,
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, line {}: {}", self.function, self.line, self.reason)
    }
}

impl std::error::Error for LoadError {}

/// What a name in scope stands for.
#[derive(Clone, Copy, Debug)]
enum Meaning {
    Register {
        slot: Slot,
        bits: u32,
    },
    /// A variable's address in its space, and its size.
    Address {
        space: Space,
        address: u64,
        bytes: u32,
    },
}

/// Names between two braces.
#[derive(Debug)]
struct Scope {
    names: HashMap<String, Meaning>,
    number: usize,
}

/// Decodes one entry. `functions` are all of the module's, `globals` the addresses of its variables
/// in device memory, `shared` its variables in shared memory.
pub fn decode(
    function: &Function,
    functions: &[Function],
    globals: &HashMap<String, u64>,
    shared: &[Variable],
) -> Result<Entry, LoadError> {
    let mut decoder = Decoder::new(function, functions);
    for (name, &address) in globals {
        decoder.define(
            name,
            Meaning::Address {
                space: Space::Global,
                address,
                bytes: 0,
            },
        );
    }
    let (dynamic, sized): (Vec<&Variable>, Vec<&Variable>) =
        shared.iter().partition(|variable| variable.len == 0);
    for variable in sized {
        decoder.variable(variable)?;
    }
    decoder.shared_in(&function.body)?;
    // All arrays without a size share the start of dynamic shared memory.
    let mut align = 16;
    for variable in &dynamic {
        let (_, own) = extent(variable).map_err(|reason| decoder.error(variable.line, reason))?;
        align = align.max(own);
    }
    let (start, _) = behind(decoder.shared_end, align, 0)
        .ok_or_else(|| decoder.error(function.line, "too much shared memory".into()))?;
    for variable in dynamic {
        decoder.define(
            &variable.name,
            Meaning::Address {
                space: Space::Shared,
                address: start.into(),
                bytes: 0,
            },
        );
    }
    decoder.open(None);
    let params = decoder.parameters(function)?;
    decoder.statements(&function.body)?;
    decoder.push(Op::Exit, None, 0);
    decoder.finish(function, params, start)
}

/// Size and alignment of a variable.
fn extent(variable: &Variable) -> Result<(u32, u32), String> {
    let bytes = u64::from(variable.element) * variable.len;
    let bytes = u32::try_from(bytes).ok().filter(|&bytes| bytes <= 1 << 30);
    let bytes = bytes.ok_or_else(|| format!("`{}` is too large", variable.name))?;
    let align = variable.align.max(variable.element.min(16)).max(1);
    match align.is_power_of_two() && align <= 1 << 20 {
        true => Ok((bytes, align)),
        false => Err(format!("the alignment of `{}` is {align}", variable.name)),
    }
}

/// Where something lies behind `end`, and its own end.
fn behind(end: u32, align: u32, bytes: u32) -> Option<(u32, u32)> {
    let at = end.checked_next_multiple_of(align)?;
    let end = at.checked_add(bytes).filter(|end| *end <= 1 << 30)?;
    Some((at, end))
}

/// State while a function is decoded.
pub(super) struct Decoder<'a> {
    function: &'a Function,
    functions: &'a [Function],
    /// Functions whose bodies are being inlined, outermost first.
    calls: Vec<&'a str>,
    scopes: Vec<Scope>,
    /// The scope around each scope, in the same function.
    outer: Vec<Option<usize>>,
    /// Where declarations of a function that is inlined more than once were put the first time.
    placed: HashMap<*const Statement, u32>,
    slots: Slot,
    constants: HashMap<u64, Slot>,
    specials: Vec<(Slot, Special)>,
    names: Vec<(Slot, String)>,
    code: Vec<Instruction>,
    /// By scope and name.
    labels: HashMap<(usize, String), u32>,
    jumps: Vec<Jump>,
    tables: HashMap<(usize, String), Vec<String>>,
    /// Operations that were decoded before, by name.
    scalars: HashMap<&'a str, ScalarOp>,
    widths: HashMap<Slot, u32>,
    param_bytes: u32,
    shared_end: u32,
    local_end: u32,
}

impl<'a> Decoder<'a> {
    fn new(function: &'a Function, functions: &'a [Function]) -> Decoder<'a> {
        let mut decoder = Decoder {
            function,
            functions,
            calls: Vec::new(),
            scopes: Vec::new(),
            outer: Vec::new(),
            placed: HashMap::new(),
            slots: 0,
            constants: HashMap::new(),
            specials: Vec::new(),
            names: Vec::new(),
            code: Vec::new(),
            labels: HashMap::new(),
            jumps: Vec::new(),
            tables: HashMap::new(),
            scalars: HashMap::new(),
            widths: HashMap::new(),
            param_bytes: 0,
            shared_end: SHARED_START,
            local_end: 0,
        };
        decoder.open(None);
        decoder
    }

    /// Opens a scope.
    fn open(&mut self, outer: Option<usize>) {
        let number = self.outer.len();
        self.outer.push(outer);
        self.scopes.push(Scope {
            names: HashMap::new(),
            number,
        });
    }

    pub(super) fn error(&self, line: u32, reason: String) -> LoadError {
        LoadError {
            function: self.function.name.clone(),
            line,
            reason,
        }
    }

    fn define(&mut self, name: &str, meaning: Meaning) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.names.insert(name.to_owned(), meaning);
        }
    }

    fn look(&self, name: &str) -> Option<Meaning> {
        self.scopes
            .iter()
            .rev()
            .find_map(|scope| scope.names.get(name))
            .copied()
    }

    fn new_slot(&mut self) -> Slot {
        self.slots += 1;
        self.slots - 1
    }

    fn variable(&mut self, variable: &Variable) -> Result<(), LoadError> {
        let (bytes, align) =
            extent(variable).map_err(|reason| self.error(variable.line, reason))?;
        let end = match variable.space {
            Space::Shared => &mut self.shared_end,
            // Arguments of calls lie in local memory, where the callee finds them.
            Space::Local | Space::Param => &mut self.local_end,
            _ => {
                return Err(self.error(
                    variable.line,
                    format!(
                        "`{}` in a function is no shared or local variable",
                        variable.name
                    ),
                ));
            }
        };
        let Some((address, new_end)) = behind(*end, align, bytes) else {
            return Err(self.error(
                variable.line,
                format!("there is no room for `{}`", variable.name),
            ));
        };
        *end = new_end;
        self.define_variable(variable, address, bytes);
        Ok(())
    }

    fn define_variable(&mut self, variable: &Variable, address: u32, bytes: u32) {
        let space = match variable.space {
            Space::Param => Space::Local,
            space => space,
        };
        self.define(
            &variable.name,
            Meaning::Address {
                space,
                address: address.into(),
                bytes,
            },
        );
    }

    /// The entry's parameters.
    fn parameters(&mut self, function: &Function) -> Result<Vec<ParamSlot>, LoadError> {
        let mut params = Vec::new();
        for param in &function.params {
            let (bytes, align) = extent(param).map_err(|reason| self.error(param.line, reason))?;
            let (offset, end) = behind(self.param_bytes, align, bytes).ok_or_else(|| {
                self.error(param.line, format!("there is no room for `{}`", param.name))
            })?;
            self.param_bytes = end;
            self.define(
                &param.name,
                Meaning::Address {
                    space: Space::Param,
                    address: offset.into(),
                    bytes,
                },
            );
            params.push(ParamSlot {
                name: param.name.clone(),
                offset,
                bytes,
            });
        }
        Ok(params)
    }

    fn statements(&mut self, statements: &'a [Statement]) -> Result<(), LoadError> {
        for statement in statements {
            match statement {
                Statement::Registers { ty, names } => self.registers(statement, ty, names)?,
                Statement::Variable(variable) => self.placed_variable(statement, variable)?,
                Statement::Label(name) => self.label(name),
                Statement::Block(inner) => {
                    self.open(Some(self.scope()));
                    self.statements(inner)?;
                    self.scopes.pop();
                }
                Statement::Targets(name, targets) => {
                    self.tables
                        .insert((self.scope(), name.clone()), targets.clone());
                }
                Statement::Instruction(instruction) => self.instruction(instruction)?,
            }
        }
        Ok(())
    }

    /// The number of the innermost scope.
    fn scope(&self) -> usize {
        self.scopes.last().map_or(0, |scope| scope.number)
    }

    /// A function's variable. Inlined again, the function finds it where it was.
    fn placed_variable(
        &mut self,
        statement: *const Statement,
        variable: &Variable,
    ) -> Result<(), LoadError> {
        let Some(&address) = self.placed.get(&statement) else {
            self.variable(variable)?;
            if let Some(Meaning::Address { address, .. }) = self.look(&variable.name) {
                self.placed.insert(statement, address as u32);
            }
            return Ok(());
        };
        let (bytes, _) = extent(variable).map_err(|reason| self.error(variable.line, reason))?;
        self.define_variable(variable, address, bytes);
        Ok(())
    }

    fn registers(
        &mut self,
        statement: *const Statement,
        ty: &str,
        names: &[(String, Option<u32>)],
    ) -> Result<(), LoadError> {
        /// More than any compiler declares; a register takes 256 bytes of each warp.
        const MOST: u32 = 1 << 17;
        let bits = if ty == "pred" {
            1
        } else {
            8 * type_bytes(ty).unwrap_or(8)
        };
        // Inlined again, a function has the registers that it had: no thread is in it twice.
        let again = self.placed.get(&statement).copied();
        self.placed.entry(statement).or_insert(self.slots);
        let mut next = again.unwrap_or_default();
        for (name, count) in names {
            let many = count.unwrap_or(1);
            let wide = 1 + u32::from(bits == 128);
            if many > MOST || self.slots + wide * many > MOST {
                return Err(self.error(self.function.line, format!("more than {MOST} registers")));
            }
            for index in 0..many {
                let slot = match again {
                    Some(_) => next,
                    None => self.new_slot(),
                };
                // The upper half of 128 bits follows.
                if bits == 128 && again.is_none() {
                    self.new_slot();
                }
                next += wide;
                let name = if count.is_some() {
                    format!("{name}{index}")
                } else {
                    name.clone()
                };
                self.define(&name, Meaning::Register { slot, bits });
                self.widths.insert(slot, bits);
                if again.is_none() {
                    self.names.push((slot, name));
                }
            }
        }
        Ok(())
    }

    fn instruction(&mut self, instruction: &'a ast::Instruction) -> Result<(), LoadError> {
        let line = instruction.line;
        let guard = match &instruction.guard {
            None => None,
            Some(guard) => match self.look(&guard.register) {
                Some(Meaning::Register { slot, bits: 1 }) => Some((slot, guard.negated)),
                _ => {
                    return Err(self.error(
                        line,
                        format!("`{}` is no predicate register", guard.register),
                    ));
                }
            },
        };
        if instruction.opcode == "call" || instruction.opcode == "call.uni" {
            return self.call(instruction, guard);
        }
        let op = instruction::decode(self, instruction)
            .map_err(|reason| self.error(line, format!("`{}`: {reason}", instruction.opcode)))?;
        self.push(op, guard, line);
        Ok(())
    }

    fn push(&mut self, op: Op, guard: Option<(Slot, bool)>, line: u32) {
        self.code.push(Instruction { op, guard, line });
    }

    /// The operation on registers of this name.
    pub(super) fn scalar(&mut self, opcode: &'a str) -> Result<ScalarOp, String> {
        if let Some(op) = self.scalars.get(opcode) {
            return Ok(*op);
        }
        let parts: Vec<&str> = opcode.split('.').collect();
        let op = ScalarOp::decode(&parts)?.ok_or("unknown instruction")?;
        self.scalars.insert(opcode, op);
        Ok(op)
    }

    /// A register that holds a constant.
    pub(super) fn constant(&mut self, value: u64) -> Slot {
        if let Some(&slot) = self.constants.get(&value) {
            return slot;
        }
        let slot = self.new_slot();
        self.constants.insert(value, slot);
        slot
    }

    /// A register that holds a variable's address.
    fn place(&mut self, space: Space, address: u64) -> Slot {
        match space {
            Space::Shared => self.special(Special::SharedAddress(address as u32)),
            _ => self.constant(address),
        }
    }

    /// A register that holds a special register.
    pub(super) fn special(&mut self, special: Special) -> Slot {
        if let Some(&(slot, _)) = self.specials.iter().find(|(_, known)| *known == special) {
            return slot;
        }
        let slot = self.new_slot();
        self.specials.push((slot, special));
        slot
    }

    /// The register that a destination names, and its bits.
    pub(super) fn register(&self, operand: &Operand) -> Result<(Slot, u32), String> {
        match operand {
            Operand::Name(name) => match self.look(name) {
                Some(Meaning::Register { slot, bits }) => Ok((slot, bits)),
                _ => Err(format!("`{name}` is no register")),
            },
            other => Err(format!("{other:?} is no register")),
        }
    }

    /// Bits of a declared register.
    pub(super) fn bits(&self, slot: Slot) -> u32 {
        self.widths.get(&slot).copied().unwrap_or(64)
    }

    /// A destination that may be `_`.
    pub(super) fn optional(&self, operand: &Operand) -> Result<Option<Slot>, String> {
        match operand {
            Operand::Sink => Ok(None),
            operand => self.register(operand).map(|(slot, _)| Some(slot)),
        }
    }

    /// Any source: a register, a number, a special register, a variable's address. Numbers of
    /// floating-point operands take the operand's format.
    pub(super) fn source(&mut self, operand: &Operand, float_bits: u32) -> Result<Slot, String> {
        match operand {
            Operand::Name(name) => match self.look(name) {
                Some(Meaning::Register { slot, .. }) => Ok(slot),
                Some(Meaning::Address { space, address, .. }) => Ok(self.place(space, address)),
                None => match function_address(self.functions, name) {
                    Some(address) => Ok(self.constant(address)),
                    None => self.special_named(name),
                },
            },
            Operand::Offset(name, offset) => match self.look(name) {
                Some(Meaning::Address { space, address, .. }) => {
                    Ok(self.place(space, address.wrapping_add_signed(*offset)))
                }
                _ => Err(format!("`{name}` is no variable")),
            },
            Operand::Int(value) => Ok(self.constant(*value)),
            Operand::F32(bits) => {
                let bits = if float_bits == 64 {
                    f64::from(f32::from_bits(*bits)).to_bits()
                } else {
                    u64::from(*bits)
                };
                Ok(self.constant(bits))
            }
            Operand::F64(bits) => {
                let bits = if float_bits == 32 {
                    u64::from((f64::from_bits(*bits) as f32).to_bits())
                } else {
                    *bits
                };
                Ok(self.constant(bits))
            }
            other => Err(format!("{other:?} is no value")),
        }
    }

    fn special_named(&mut self, name: &str) -> Result<Slot, String> {
        let special =
            super::special::fixed(name).ok_or_else(|| format!("unknown name `{name}`"))?;
        Ok(self.special(special))
    }

    /// The base register and offset of an address operand, whose space a variable may decide.
    pub(super) fn address(
        &mut self,
        operand: &Operand,
        space: Space,
    ) -> Result<super::Address, String> {
        let Operand::Address { base, offset, .. } = operand else {
            return Err(format!("{operand:?} is no address"));
        };
        let (base, space) = match &**base {
            Operand::Name(name) => match self.look(name) {
                Some(Meaning::Register { slot, .. }) => match space {
                    Space::Param if self.in_function() => (slot, Space::Local),
                    space => (slot, space),
                },
                Some(Meaning::Address {
                    space: own,
                    address,
                    ..
                }) => {
                    // Parameters of device functions are in local memory.
                    let space = match space {
                        Space::Generic | Space::Param => own,
                        space => space,
                    };
                    (self.place(own, address), space)
                }
                None => return Err(format!("unknown name `{name}`")),
            },
            Operand::Int(value) => (self.constant(*value), space),
            other => return Err(format!("{other:?} is no address")),
        };
        Ok(super::Address {
            space,
            base,
            offset: *offset,
        })
    }

    fn finish(
        mut self,
        function: &Function,
        params: Vec<ParamSlot>,
        dynamic_shared: u32,
    ) -> Result<Entry, LoadError> {
        self.resolve()?;
        let pairs =
            tcgen05::pairs(&self.code).map_err(|(line, reason)| self.error(line, reason))?;
        Ok(Entry {
            launch_registers: registers::at_launch(&function.directives, &self.code),
            name: function.name.clone(),
            params,
            param_bytes: self.param_bytes,
            slots: self.slots,
            constants: self
                .constants
                .into_iter()
                .map(|(value, slot)| (slot, value))
                .collect(),
            specials: self.specials,
            code: self.code,
            static_shared: self.shared_end - SHARED_START,
            dynamic_shared,
            local_bytes: self.local_end,
            directives: function.directives,
            pairs,
            names: self.names,
        })
    }
}
