//! A function's statements to a program: scopes, registers, variables, labels.

use std::collections::HashMap;

use super::{Entry, Instruction, Op, ParamSlot, SHARED_START, Slot, Special, instruction};
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
    /// A variable's address in its space.
    Address {
        space: Space,
        address: u64,
    },
}

/// Decodes one entry. `globals` are the addresses of the module's variables in device memory,
/// `shared` the module's variables in shared memory.
pub fn decode(
    function: &Function,
    globals: &HashMap<String, u64>,
    shared: &[Variable],
) -> Result<Entry, LoadError> {
    let mut decoder = Decoder::new(function);
    for (name, &address) in globals {
        decoder.define(
            name,
            Meaning::Address {
                space: Space::Global,
                address,
            },
        );
    }
    let mut params = Vec::new();
    for param in &function.params {
        let (bytes, align) = extent(param).map_err(|reason| decoder.error(param.line, reason))?;
        let offset = decoder.param_bytes.next_multiple_of(align);
        decoder.param_bytes = offset + bytes;
        decoder.define(
            &param.name,
            Meaning::Address {
                space: Space::Param,
                address: offset.into(),
            },
        );
        params.push(ParamSlot {
            name: param.name.clone(),
            offset,
            bytes,
        });
    }
    let mut dynamic: Vec<&Variable> = Vec::new();
    for variable in shared {
        if variable.len == 0 {
            dynamic.push(variable)
        } else {
            decoder.variable(variable)?
        }
    }
    decoder.shared_in(&function.body)?;
    // All arrays without a size share the start of dynamic shared memory.
    let align = dynamic
        .iter()
        .map(|variable| variable.align.max(16))
        .max()
        .unwrap_or(16);
    let start = decoder
        .shared_end
        .checked_next_multiple_of(align.next_power_of_two());
    let start =
        start.ok_or_else(|| decoder.error(function.line, "too much shared memory".into()))?;
    for variable in dynamic {
        decoder.define(
            &variable.name,
            Meaning::Address {
                space: Space::Shared,
                address: start.into(),
            },
        );
    }
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

/// State while a function is decoded.
pub(super) struct Decoder<'a> {
    function: &'a Function,
    scopes: Vec<HashMap<String, Meaning>>,
    slots: Slot,
    constants: HashMap<u64, Slot>,
    specials: Vec<(Slot, Special)>,
    names: Vec<(Slot, String)>,
    code: Vec<Instruction>,
    labels: HashMap<String, u32>,
    /// Instructions whose targets are known only at the end: number, position in its list, label.
    jumps: Vec<(usize, usize, String, u32)>,
    tables: HashMap<String, Vec<String>>,
    /// Operations that were decoded before, by name.
    scalars: HashMap<&'a str, ScalarOp>,
    widths: HashMap<Slot, u32>,
    param_bytes: u32,
    shared_end: u32,
    local_end: u32,
}

impl<'a> Decoder<'a> {
    fn new(function: &'a Function) -> Decoder<'a> {
        Decoder {
            function,
            scopes: vec![HashMap::new()],
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
        }
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
            scope.insert(name.to_owned(), meaning);
        }
    }

    fn look(&self, name: &str) -> Option<Meaning> {
        self.scopes
            .iter()
            .rev()
            .find_map(|scope| scope.get(name))
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
            Space::Local => &mut self.local_end,
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
        let address = end.next_multiple_of(align);
        *end = address + bytes;
        self.define(
            &variable.name,
            Meaning::Address {
                space: variable.space,
                address: address.into(),
            },
        );
        Ok(())
    }

    /// Shared variables of a function live for the whole launch: they come before dynamic memory.
    fn shared_in(&mut self, statements: &[Statement]) -> Result<(), LoadError> {
        for statement in statements {
            match statement {
                Statement::Variable(variable) if variable.space == Space::Shared => {
                    self.variable(variable)?
                }
                Statement::Block(inner) => self.shared_in(inner)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn statements(&mut self, statements: &'a [Statement]) -> Result<(), LoadError> {
        for statement in statements {
            match statement {
                Statement::Registers { ty, names } => self.registers(ty, names)?,
                Statement::Variable(variable) if variable.space == Space::Shared => {}
                Statement::Variable(variable) => self.variable(variable)?,
                Statement::Label(name) => {
                    let at = self.code.len() as u32;
                    self.labels.insert(name.clone(), at);
                }
                Statement::Block(inner) => {
                    self.scopes.push(HashMap::new());
                    self.statements(inner)?;
                    self.scopes.pop();
                }
                Statement::Targets(name, targets) => {
                    self.tables.insert(name.clone(), targets.clone());
                }
                Statement::Instruction(instruction) => self.instruction(instruction)?,
            }
        }
        Ok(())
    }

    fn registers(&mut self, ty: &str, names: &[(String, Option<u32>)]) -> Result<(), LoadError> {
        /// More than any compiler declares; a register takes 256 bytes of each warp.
        const MOST: u32 = 1 << 17;
        let bits = if ty == "pred" {
            1
        } else {
            8 * type_bytes(ty).unwrap_or(8)
        };
        for (name, count) in names {
            let many = count.unwrap_or(1);
            if many > MOST || self.slots + many > MOST {
                return Err(self.error(self.function.line, format!("more than {MOST} registers")));
            }
            for index in 0..many {
                let slot = self.new_slot();
                let name = if count.is_some() {
                    format!("{name}{index}")
                } else {
                    name.clone()
                };
                self.define(&name, Meaning::Register { slot, bits });
                self.widths.insert(slot, bits);
                self.names.push((slot, name));
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
        let op = instruction::decode(self, instruction)
            .map_err(|reason| self.error(line, format!("`{}`: {reason}", instruction.opcode)))?;
        self.push(op, guard, line);
        Ok(())
    }

    fn push(&mut self, op: Op, guard: Option<(Slot, bool)>, line: u32) {
        self.code.push(Instruction { op, guard, line });
    }

    /// A label as a target of the instruction that is being decoded.
    pub(super) fn target(&mut self, position: usize, label: &str, line: u32) {
        self.jumps
            .push((self.code.len(), position, label.to_owned(), line));
    }

    /// The labels of a table.
    pub(super) fn table(&self, name: &str) -> Option<&Vec<String>> {
        self.tables.get(name)
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
                Some(Meaning::Address { address, .. }) => Ok(self.constant(address)),
                None => self.special_named(name),
            },
            Operand::Offset(name, offset) => match self.look(name) {
                Some(Meaning::Address { address, .. }) => {
                    Ok(self.constant(address.wrapping_add_signed(*offset)))
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
        let (base, axis) = match name.rsplit_once('.') {
            Some((base, "x")) => (base, 0),
            Some((base, "y")) => (base, 1),
            Some((base, "z")) => (base, 2),
            _ => (name, 0),
        };
        let special = match base {
            "%tid" => Special::Tid(axis),
            "%ntid" => Special::Ntid(axis),
            "%ctaid" => Special::Ctaid(axis),
            "%nctaid" => Special::Nctaid(axis),
            "%laneid" => Special::LaneId,
            "%warpid" => Special::WarpId,
            "%nwarpid" => Special::NWarpId,
            "%smid" => Special::SmId,
            "%nsmid" => Special::NSmId,
            "%gridid" => Special::GridId,
            "%clusterid" => Special::ClusterId(axis),
            "%nclusterid" => Special::NClusterId(axis),
            "%cluster_ctaid" => Special::ClusterCtaid(axis),
            "%cluster_nctaid" => Special::ClusterNctaid(axis),
            "%cluster_ctarank" => Special::ClusterCtarank,
            "%cluster_nctarank" => Special::ClusterNctarank,
            "%lanemask_eq" => Special::LaneMask(super::LaneMask::Eq),
            "%lanemask_lt" => Special::LaneMask(super::LaneMask::Lt),
            "%lanemask_le" => Special::LaneMask(super::LaneMask::Le),
            "%lanemask_gt" => Special::LaneMask(super::LaneMask::Gt),
            "%lanemask_ge" => Special::LaneMask(super::LaneMask::Ge),
            "%dynamic_smem_size" => Special::DynamicSharedSize,
            "%total_smem_size" => Special::TotalSharedSize,
            "WARP_SZ" => Special::WarpSize,
            _ => return Err(format!("unknown name `{name}`")),
        };
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
                Some(Meaning::Register { slot, .. }) => (slot, space),
                Some(Meaning::Address {
                    space: own,
                    address,
                }) => {
                    let space = if space == Space::Generic { own } else { space };
                    (self.constant(address), space)
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
        for (at, position, label, line) in std::mem::take(&mut self.jumps) {
            let Some(&to) = self.labels.get(&label) else {
                return Err(self.error(line, format!("there is no label `{label}`")));
            };
            match &mut self.code[at].op {
                Op::Branch(target) => *target = to,
                Op::BranchIndexed { targets, .. } => targets[position] = to,
                _ => {}
            }
        }
        Ok(Entry {
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
            names: self.names,
        })
    }
}
