//! Statements of a body, and operands.

use super::ast::*;
use super::lexer::Token;
use super::parser::{MAX_DEPTH, Parser, Result, type_bytes};

impl Parser {
    /// Statements up to the closing brace.
    pub(super) fn block(&mut self) -> Result<Vec<Statement>> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.error("scopes are nested too deeply");
        }
        let mut statements = Vec::new();
        while !self.take_mark('}') {
            self.statement(&mut statements)?;
        }
        self.depth -= 1;
        Ok(statements)
    }

    fn statement(&mut self, statements: &mut Vec<Statement>) -> Result<()> {
        if self.take_mark('{') {
            let block = self.block()?;
            statements.push(Statement::Block(block));
            return Ok(());
        }
        if self.take_mark(';') {
            return Ok(());
        }
        let label = matches!(self.tokens.get(self.at + 1), Some((Token::Mark(':'), _)));
        if let (true, Some(name)) = (label, self.peek_word().map(str::to_owned)) {
            self.at += 2;
            if self.peek_word() == Some(".branchtargets") {
                self.at += 1;
                let mut targets = vec![self.word()?];
                while self.take_mark(',') {
                    targets.push(self.word()?);
                }
                self.mark(';')?;
                statements.push(Statement::Targets(name, targets));
            } else if self
                .peek_word()
                .is_some_and(|word| matches!(word, ".callprototype" | ".calltargets"))
            {
                self.skip_statement()?;
            } else {
                statements.push(Statement::Label(name));
            }
            return Ok(());
        }
        match self.peek_word() {
            Some(".reg") => {
                self.at += 1;
                statements.push(self.registers()?);
            }
            Some(".loc" | ".pragma" | ".file") => self.debug_directive()?,
            Some(word) if word.starts_with('.') => {
                let variables = self.variables(false)?;
                statements.extend(variables.into_iter().map(Statement::Variable));
            }
            _ => statements.push(Statement::Instruction(self.instruction()?)),
        }
        Ok(())
    }

    fn registers(&mut self) -> Result<Statement> {
        let mut ty = self.word()?;
        // `.reg .align 8 .b64 x` and vectors don't come from compilers; the type is last.
        while self.peek_word().is_some_and(|word| word.starts_with('.')) {
            ty = self.word()?;
        }
        let ty = ty.trim_start_matches('.').to_owned();
        if type_bytes(&ty).is_none() {
            self.at -= 1;
            return self.error(format!("unknown register type `.{ty}`"));
        }
        let mut names = Vec::new();
        loop {
            let name = self.word()?;
            let mut count = None;
            if self.take_mark('<') {
                count = Some(u32::try_from(self.int()?).unwrap_or(u32::MAX));
                self.mark('>')?;
            }
            names.push((name, count));
            if !self.take_mark(',') {
                break;
            }
        }
        self.mark(';')?;
        Ok(Statement::Registers { ty, names })
    }

    fn instruction(&mut self) -> Result<Instruction> {
        let guard = if self.take_mark('@') {
            let negated = self.take_mark('!');
            Some(Guard {
                register: self.word()?,
                negated,
            })
        } else {
            None
        };
        let line = self.line();
        let mut opcode = self.word()?;
        // White space may part a name: `ld.global .u32`.
        while let Some(part) = self.peek_word().filter(|word| word.starts_with('.')) {
            opcode += part;
            self.at += 1;
        }
        let mut operands = Vec::new();
        while !self.take_mark(';') {
            operands.push(self.operand()?);
            if !self.take_mark(',') && !self.is_mark(';') {
                return self.error(format!(
                    "expected `,` or `;` after an operand of `{opcode}`, found {}",
                    self.found()
                ));
            }
        }
        Ok(Instruction {
            guard,
            opcode,
            operands,
            line,
        })
    }

    fn operand(&mut self) -> Result<Operand> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.error("operands are nested too deeply");
        }
        let operand = self.one_operand();
        self.depth -= 1;
        operand
    }

    fn one_operand(&mut self) -> Result<Operand> {
        let operand = match self.next()? {
            Token::Mark('{') => Operand::Vector(self.operands_until('}')?),
            Token::Mark('(') => Operand::List(self.operands_until(')')?),
            Token::Mark('[') => {
                let base = self.operand()?;
                let (base, mut offset) = match base {
                    Operand::Offset(name, offset) => (Operand::Name(name), offset),
                    base => (base, 0),
                };
                if self.take_mark('+') {
                    offset = self.signed()?;
                }
                let parts = if self.take_mark(',') {
                    self.operands_until(']')?
                } else {
                    self.mark(']').map(|()| Vec::new())?
                };
                Operand::Address {
                    base: Box::new(base),
                    offset,
                    parts,
                }
            }
            Token::Mark('!') => Operand::Not(Box::new(self.operand()?)),
            Token::Mark('-') => match self.operand()? {
                Operand::Int(value) => Operand::Int(value.wrapping_neg()),
                Operand::F32(bits) => Operand::F32(bits ^ 1 << 31),
                Operand::F64(bits) => Operand::F64(bits ^ 1 << 63),
                other => Operand::Minus(Box::new(other)),
            },
            Token::Int(value) => Operand::Int(value),
            Token::F32(bits) => Operand::F32(bits),
            Token::F64(bits) => Operand::F64(bits),
            Token::Word(name) if name == "_" => Operand::Sink,
            Token::Word(name) => {
                if self.is_mark('+')
                    || (self.is_mark('-')
                        && matches!(self.tokens.get(self.at + 1), Some((Token::Int(_), _))))
                {
                    let negative = self.is_mark('-');
                    self.at += 1;
                    let value = self.signed()?;
                    Operand::Offset(name, if negative { -value } else { value })
                } else {
                    Operand::Name(name)
                }
            }
            _ => {
                self.at -= 1;
                return self.error(format!("expected an operand, found {}", self.found()));
            }
        };
        if self.take_mark('|') {
            return Ok(Operand::Pair(Box::new(operand), Box::new(self.operand()?)));
        }
        Ok(operand)
    }

    fn signed(&mut self) -> Result<i64> {
        let negative = self.take_mark('-');
        let value = self.int()? as i64;
        Ok(if negative {
            value.wrapping_neg()
        } else {
            value
        })
    }

    fn operands_until(&mut self, close: char) -> Result<Vec<Operand>> {
        let mut operands = Vec::new();
        while !self.take_mark(close) {
            operands.push(self.operand()?);
            if !self.take_mark(',') && !self.is_mark(close) {
                return self.error(format!("expected `,` or `{close}`, found {}", self.found()));
            }
        }
        Ok(operands)
    }
}
