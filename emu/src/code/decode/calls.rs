//! Calls of device functions: their bodies are inlined.
//!
//! An argument is the caller's own `.param` variable under the callee's name, in local memory. A
//! call through a pointer branches to one of the functions that its arguments fit. So threads
//! that diverge in a call meet again behind it, as anywhere; recursion is an error at load.

use super::{Decoder, LoadError, Meaning, extent};
use crate::code::{Op, Slot};
use crate::ptx::ast::{self, Function, Operand, Space, Statement, Variable};

/// The label of a function's end, which no file can spell.
const END: &str = "the end";
/// What a failed `assert` calls: the one function of CUDA's system that is emulated.
const ASSERT: &str = "__assertfail";
/// Others, which are not.
const SYSTEM: [&str; 6] = [
    "vprintf",
    "malloc",
    "free",
    "cudaGetParameterBufferV2",
    "cudaLaunchDeviceV2",
    "cudaCGSynchronizeGrid",
];
/// More instructions than any kernel has.
const MOST_INSTRUCTIONS: usize = 1 << 22;

/// What a pointer to a function holds: its number, from 1 on.
pub fn function_address(functions: &[Function], name: &str) -> Option<u64> {
    let at = functions
        .iter()
        .position(|function| !function.entry && function.name == name)?;
    Some(at as u64 + 1)
}

/// The operands of a call.
struct Call<'a> {
    results: &'a [Operand],
    callee: &'a Operand,
    arguments: &'a [Operand],
}

impl<'a> Call<'a> {
    /// `(r), f, (a, b)`, where both lists may be missing, and a prototype may follow.
    fn new(operands: &'a [Operand]) -> Option<Call<'a>> {
        let (results, rest): (&[Operand], _) = match operands {
            [Operand::List(results), rest @ ..] => (results, rest),
            rest => (&[], rest),
        };
        let (callee, rest) = rest.split_first()?;
        let arguments: &[Operand] = match rest.first() {
            Some(Operand::List(arguments)) => arguments,
            _ => &[],
        };
        Some(Call {
            results,
            callee,
            arguments,
        })
    }
}

impl<'a> Decoder<'a> {
    /// Whether a device function is being inlined.
    pub(in crate::code) fn in_function(&self) -> bool {
        !self.calls.is_empty()
    }

    /// A return from a device function.
    pub(in crate::code) fn back(&mut self, line: u32) -> Op {
        self.target(0, END, line);
        Op::Branch(0)
    }

    /// Shared variables live for the whole launch: they come before dynamic memory. Those of the
    /// functions that are called are among them.
    pub(super) fn shared_in(&mut self, statements: &'a [Statement]) -> Result<(), LoadError> {
        let mut bodies = vec![statements];
        if uses_calls(self.function) {
            let called = self.functions.iter().filter(|function| !function.entry);
            bodies.extend(called.map(|function| &function.body[..]));
        }
        for body in bodies {
            self.open(None);
            self.shared_of(body)?;
            self.scopes.pop();
        }
        Ok(())
    }

    fn shared_of(&mut self, statements: &'a [Statement]) -> Result<(), LoadError> {
        for statement in statements {
            match statement {
                Statement::Variable(variable) if variable.space == Space::Shared => {
                    self.placed_variable(statement, variable)?
                }
                Statement::Block(inner) => self.shared_of(inner)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// A call: the body of what is called.
    pub(super) fn call(
        &mut self,
        instruction: &'a ast::Instruction,
        guard: Option<(Slot, bool)>,
    ) -> Result<(), LoadError> {
        let line = instruction.line;
        let wrong =
            |decoder: &Self, reason: String| decoder.error(line, format!("`call`: {reason}"));
        let Some(call) = Call::new(&instruction.operands) else {
            return Err(wrong(self, "it takes a function".into()));
        };
        // What is behind the call is outside the callee's scope.
        self.open(Some(self.scope()));
        if let Some((slot, negated)) = guard {
            let skip = self.back(line);
            self.push(skip, Some((slot, !negated)), line);
        }
        let direct = match call.callee {
            Operand::Name(name) if self.look(name).is_none() => {
                let functions = self.functions;
                let found = functions
                    .iter()
                    .find(|function| !function.entry && function.name == *name);
                if found.is_none() && name == ASSERT {
                    let op = self
                        .assertion(&call)
                        .map_err(|reason| wrong(self, reason))?;
                    self.push(op, None, line);
                    self.label(END);
                    self.scopes.pop();
                    return Ok(());
                }
                Some(found.ok_or_else(|| {
                    let system = SYSTEM.contains(&name.as_str());
                    let why = if system {
                        ": what CUDA's system provides is not emulated"
                    } else {
                        ""
                    };
                    wrong(
                        self,
                        format!("there is no function `{name}` in the file{why}"),
                    )
                })?)
            }
            _ => None,
        };
        match direct {
            Some(function) if self.calls.contains(&function.name.as_str()) => {
                let reason = format!("`{}` calls itself, which is not emulated", function.name);
                return Err(wrong(self, reason));
            }
            Some(function) => {
                let variables = self
                    .fit(function, &call)
                    .map_err(|reason| wrong(self, reason))?;
                self.inline(function, &variables)?;
            }
            None => {
                let index = self
                    .source(call.callee, 0)
                    .map_err(|reason| wrong(self, reason))?;
                self.indirect(&call, index, line)?;
            }
        }
        self.label(END);
        self.scopes.pop();
        Ok(())
    }

    /// The end of a thread whose `assert` failed.
    fn assertion(&self, call: &Call<'_>) -> Result<Op, String> {
        let mut places = [0; 4];
        let [what, file, line, function, _] = call.arguments else {
            return Err(format!("`{ASSERT}` has 5 arguments"));
        };
        let arguments = [(what, 8), (file, 8), (line, 4), (function, 8)];
        for (place, (argument, size)) in places.iter_mut().zip(arguments) {
            *place = match argument {
                Operand::Name(name) => match self.look(name) {
                    Some(Meaning::Address {
                        space: Space::Local,
                        address,
                        bytes,
                    }) if bytes == size => address as u32,
                    _ => return Err(format!("`{name}` is no .param variable of {size} bytes")),
                },
                other => return Err(format!("{other:?} is no .param variable")),
            };
        }
        Ok(Op::AssertFail(places))
    }

    /// A branch to the function that a register says.
    fn indirect(&mut self, call: &Call<'_>, index: Slot, line: u32) -> Result<(), LoadError> {
        let functions = self.functions;
        let names: Vec<String> = (0..=functions.len())
            .map(|at| format!("function {at}"))
            .collect();
        for (position, name) in names.iter().enumerate() {
            self.target(position, name, line);
        }
        let targets = vec![0; names.len()];
        self.push(Op::BranchIndexed { index, targets }, None, line);
        // No function, or one that takes something else.
        let mut others = vec![0];
        for (at, function) in functions.iter().enumerate() {
            let active = self.calls.contains(&function.name.as_str());
            match self.fit(function, call) {
                Ok(variables) if !function.entry && !active => {
                    self.label(&names[at + 1]);
                    self.inline(function, &variables)?;
                    let end = self.back(line);
                    self.push(end, None, line);
                }
                _ => others.push(at + 1),
            }
        }
        for at in others {
            self.label(&names[at]);
        }
        self.push(Op::Trap, None, line);
        Ok(())
    }

    /// What the parameters and results of a function stand for in a call.
    fn fit(
        &self,
        function: &'a Function,
        call: &Call<'_>,
    ) -> Result<Vec<(&'a Variable, Meaning)>, String> {
        let mut variables = Vec::new();
        for (formal, actual, what) in [
            (&function.returns, call.results, "results"),
            (&function.params, call.arguments, "arguments"),
        ] {
            if formal.len() != actual.len() {
                let (takes, given) = (formal.len(), actual.len());
                return Err(format!(
                    "`{}` has {takes} {what}, not {given}",
                    function.name
                ));
            }
            for (formal, actual) in formal.iter().zip(actual) {
                let meaning = match actual {
                    Operand::Name(name) => self.look(name),
                    _ => None,
                };
                let (size, _) = extent(formal)?;
                match meaning {
                    Some(meaning @ Meaning::Address { bytes, .. })
                        if formal.space == Space::Param && bytes == size =>
                    {
                        variables.push((formal, meaning));
                    }
                    _ => {
                        let name = &formal.name;
                        return Err(format!(
                            "`{name}` takes a .param variable of {size} bytes, not {actual:?}"
                        ));
                    }
                }
            }
        }
        Ok(variables)
    }

    fn inline(
        &mut self,
        function: &'a Function,
        variables: &[(&'a Variable, Meaning)],
    ) -> Result<(), LoadError> {
        if self.code.len() > MOST_INSTRUCTIONS {
            let reason = format!("more than {MOST_INSTRUCTIONS} instructions with what it calls");
            return Err(self.error(function.line, reason));
        }
        // Of the caller's names it sees the module's only.
        let callers = self.scopes.split_off(1);
        self.calls.push(&function.name);
        self.open(None);
        for (variable, meaning) in variables {
            self.define(&variable.name, *meaning);
        }
        self.statements(&function.body)?;
        self.label(END);
        self.scopes.truncate(1);
        self.scopes.extend(callers);
        self.calls.pop();
        Ok(())
    }
}

/// Whether a function calls another.
fn uses_calls(function: &Function) -> bool {
    fn inside(statements: &[Statement]) -> bool {
        statements.iter().any(|statement| match statement {
            Statement::Block(inner) => inside(inner),
            Statement::Instruction(instruction) => instruction.opcode.starts_with("call"),
            _ => false,
        })
    }
    inside(&function.body)
}
