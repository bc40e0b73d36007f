//! Tokens to the syntax tree.

use super::ast::*;
use super::lexer::{Token, tokens};

/// Why a text is not PTX that this parser takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The line.
    pub line: u32,
    /// What is wrong there.
    pub reason: String,
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

impl std::error::Error for ParseError {}

pub(super) type Result<T> = std::result::Result<T, ParseError>;

/// Parses a whole file.
pub fn parse(text: &str) -> Result<Module> {
    let mut parser = Parser {
        tokens: tokens(text)?,
        at: 0,
        depth: 0,
    };
    let mut module = Module::default();
    while !parser.done() {
        parser.top_level(&mut module)?;
    }
    if module.version == (0, 0) {
        return Err(ParseError {
            line: 1,
            reason: "it has no .version: is it PTX?".into(),
        });
    }
    Ok(module)
}

pub(super) struct Parser {
    pub(super) tokens: Vec<(Token, u32)>,
    pub(super) at: usize,
    pub(super) depth: u32,
}

/// Deeper nesting than any compiler writes; the parser is recursive.
pub(super) const MAX_DEPTH: u32 = 64;

/// Bytes of a fundamental type.
pub fn type_bytes(ty: &str) -> Option<u32> {
    let bits = ty.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    match ty {
        "pred" => Some(1),
        "texref" | "samplerref" | "surfref" => Some(8),
        "bf16" => Some(2),
        "bf16x2" | "f16x2" | "tf32" => Some(4),
        _ if ty.starts_with(['b', 'u', 's', 'f']) => match bits {
            "8" => Some(1),
            "16" => Some(2),
            "32" => Some(4),
            "64" => Some(8),
            "128" => Some(16),
            _ => None,
        },
        _ => None,
    }
}

impl Parser {
    fn done(&self) -> bool {
        self.at >= self.tokens.len()
    }

    pub(super) fn line(&self) -> u32 {
        let at = self.at.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(at).map_or(1, |(_, line)| *line)
    }

    pub(super) fn error<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(ParseError {
            line: self.line(),
            reason: reason.into(),
        })
    }

    pub(super) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    pub(super) fn peek_word(&self) -> Option<&str> {
        match self.peek() {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    pub(super) fn next(&mut self) -> Result<Token> {
        match self.tokens.get(self.at) {
            Some((token, _)) => {
                self.at += 1;
                Ok(token.clone())
            }
            None => self.error("the file ends in the middle"),
        }
    }

    pub(super) fn is_mark(&self, mark: char) -> bool {
        self.peek() == Some(&Token::Mark(mark))
    }

    pub(super) fn take_mark(&mut self, mark: char) -> bool {
        let found = self.is_mark(mark);
        self.at += usize::from(found);
        found
    }

    pub(super) fn mark(&mut self, mark: char) -> Result<()> {
        match self.take_mark(mark) {
            true => Ok(()),
            false => self.error(format!("expected `{mark}`, found {}", self.found())),
        }
    }

    pub(super) fn found(&self) -> String {
        match self.peek() {
            None => "the end of the file".into(),
            Some(Token::Word(word)) => format!("`{word}`"),
            Some(Token::Mark(mark)) => format!("`{mark}`"),
            Some(token) => format!("{token:?}"),
        }
    }

    pub(super) fn word(&mut self) -> Result<String> {
        match self.peek_word() {
            Some(word) => {
                let word = word.to_owned();
                self.at += 1;
                Ok(word)
            }
            None => self.error(format!("expected a name, found {}", self.found())),
        }
    }

    pub(super) fn int(&mut self) -> Result<u64> {
        match self.next()? {
            Token::Int(value) => Ok(value),
            _ => {
                self.at -= 1;
                self.error(format!("expected an integer, found {}", self.found()))
            }
        }
    }

    /// Skips to behind the next `;` or, for sections, the closing brace.
    pub(super) fn skip_statement(&mut self) -> Result<()> {
        loop {
            match self.next()? {
                Token::Mark(';') => return Ok(()),
                Token::Mark('{') => return self.skip_braces(),
                _ => {}
            }
        }
    }

    fn skip_braces(&mut self) -> Result<()> {
        let mut open = 1;
        while open > 0 {
            match self.next()? {
                Token::Mark('{') => open += 1,
                Token::Mark('}') => open -= 1,
                _ => {}
            }
        }
        Ok(())
    }

    fn top_level(&mut self, module: &mut Module) -> Result<()> {
        let Some(word) = self.peek_word().map(str::to_owned) else {
            return self.error(format!("expected a directive, found {}", self.found()));
        };
        match word.as_str() {
            ".version" => {
                self.at += 1;
                module.version = match self.next()? {
                    // `8.4` is read as a decimal number.
                    Token::F64(bits) => {
                        let value = f64::from_bits(bits);
                        (value as u32, (value.fract() * 10.0).round() as u32)
                    }
                    _ => return self.error("expected a version such as 8.4"),
                };
            }
            ".target" => {
                self.at += 1;
                let target = self.word()?;
                while self.take_mark(',') {
                    self.word()?;
                }
                if module.target.is_empty() {
                    module.target = target;
                }
            }
            ".address_size" => {
                self.at += 1;
                if self.int()? != 64 {
                    return self.error("only 64-bit addresses are supported");
                }
            }
            ".file" | ".pragma" | ".section" | ".loc" | ".alias" => self.debug_directive()?,
            _ => self.declaration(module)?,
        }
        Ok(())
    }

    /// Line tables and the like, which compute nothing.
    pub(super) fn debug_directive(&mut self) -> Result<()> {
        let word = self.word()?;
        match word.as_str() {
            ".section" | ".pragma" | ".alias" => self.skip_statement(),
            // `.file 1 "name", 2, 3` and `.loc 1 2 3, function_name ...` end with their line.
            _ => {
                let line = self.tokens[self.at - 1].1;
                while self.tokens.get(self.at).is_some_and(|(_, at)| *at == line) {
                    self.at += 1;
                }
                Ok(())
            }
        }
    }

    fn declaration(&mut self, module: &mut Module) -> Result<()> {
        let mut external = false;
        loop {
            match self.peek_word() {
                Some(".extern") => external = true,
                Some(".visible" | ".weak" | ".common") => {}
                _ => break,
            }
            self.at += 1;
        }
        match self.peek_word() {
            Some(".entry" | ".func") => {
                if let Some(function) = self.function()? {
                    module.functions.push(function);
                }
            }
            _ => {
                let variables = self.variables(external)?;
                module.variables.extend(variables);
            }
        }
        Ok(())
    }

    /// A function; `None` for a declaration without a body.
    fn function(&mut self) -> Result<Option<Function>> {
        let line = self.line();
        let entry = self.word()? == ".entry";
        let returns = if self.is_mark('(') {
            self.parameters()?
        } else {
            Vec::new()
        };
        let name = self.word()?;
        let params = if self.is_mark('(') {
            self.parameters()?
        } else {
            Vec::new()
        };
        let mut directives = Directives::default();
        loop {
            if self.take_mark(';') {
                return Ok(None);
            }
            if self.take_mark('{') {
                break;
            }
            self.directive(&mut directives)?;
        }
        let body = self.block()?;
        Ok(Some(Function {
            name,
            entry,
            returns,
            params,
            directives,
            body,
            line,
        }))
    }

    fn directive(&mut self, directives: &mut Directives) -> Result<()> {
        let word = self.word()?;
        let mut numbers = [1u32; 3];
        let mut count = 0;
        while let Some(Token::Int(value)) = self.peek() {
            let value = u32::try_from(*value).unwrap_or(u32::MAX);
            self.at += 1;
            if let Some(number) = numbers.get_mut(count) {
                *number = value;
            }
            count += 1;
            if !self.take_mark(',') {
                break;
            }
        }
        match word.as_str() {
            ".reqntid" => directives.required_threads = Some(numbers),
            ".maxntid" => directives.max_threads = Some(numbers),
            ".reqnctapercluster" => directives.cluster = Some(numbers),
            ".minnctapersm" => directives.min_blocks = Some(numbers[0]),
            ".maxnreg" => directives.max_registers = Some(numbers[0]),
            ".maxclusterrank" | ".explicitcluster" | ".noreturn" | ".maxnctapersm"
            | ".blocksareclusters" => {}
            ".pragma" => {
                self.next()?;
                self.mark(';')?;
            }
            _ => {
                self.at -= 1;
                return self.error(format!("unknown directive `{word}`"));
            }
        }
        Ok(())
    }

    fn parameters(&mut self) -> Result<Vec<Variable>> {
        self.mark('(')?;
        let mut params = Vec::new();
        while !self.take_mark(')') {
            let space = self.word()?;
            if space != ".param" && space != ".reg" {
                self.at -= 1;
                return self.error("expected `.param`");
            }
            let mut variable = self.variable_of(Space::Param, false)?;
            variable.space = if space == ".reg" {
                Space::Generic
            } else {
                Space::Param
            };
            params.push(variable);
            if !self.take_mark(',') && !self.is_mark(')') {
                return self.error(format!("expected `,` or `)`, found {}", self.found()));
            }
        }
        Ok(params)
    }

    /// `.space [.align n] .type name[len] = ..., name ...;`
    pub(super) fn variables(&mut self, external: bool) -> Result<Vec<Variable>> {
        let word = self.word()?;
        let space = match word.split("::").next().unwrap_or("") {
            ".global" | ".tex" => Space::Global,
            ".const" => Space::Const,
            ".shared" => Space::Shared,
            ".local" => Space::Local,
            ".param" => Space::Param,
            _ => {
                self.at -= 1;
                return self.error(format!("unknown directive `{word}`"));
            }
        };
        let first = self.variable_of(space, external)?;
        let (align, element) = (first.align, first.element);
        let mut variables = vec![first];
        while self.take_mark(',') {
            variables.push(self.named_variable(space, external, align, element)?);
        }
        self.mark(';')?;
        Ok(variables)
    }

    fn variable_of(&mut self, space: Space, external: bool) -> Result<Variable> {
        let (mut align, mut element, mut vector) = (0, None, 1);
        while let Some(word) = self.peek_word().map(str::to_owned) {
            if !word.starts_with('.') {
                break;
            }
            self.at += 1;
            match word.as_str() {
                ".align" => align = self.int()? as u32,
                ".v2" => vector = 2,
                ".v4" => vector = 4,
                ".v8" => vector = 8,
                // `.ptr .global .align 16`: what a pointer parameter points to.
                ".ptr" => {
                    while let Some(word) = self.peek_word().filter(|word| word.starts_with('.')) {
                        let aligned = word == ".align";
                        self.at += 1;
                        if aligned {
                            self.int()?;
                        }
                    }
                }
                ".attribute" | ".managed" => {
                    if self.take_mark('(') {
                        while !self.take_mark(')') {
                            self.next()?;
                        }
                    }
                }
                _ => match type_bytes(&word[1..]) {
                    Some(bytes) => element = Some(bytes),
                    None => {
                        self.at -= 1;
                        return self.error(format!("unknown type `{word}`"));
                    }
                },
            }
        }
        let Some(element) = element else {
            return self.error("a declaration without a type");
        };
        self.named_variable(space, external, align, element * vector)
    }

    fn named_variable(
        &mut self,
        space: Space,
        external: bool,
        align: u32,
        element: u32,
    ) -> Result<Variable> {
        let line = self.line();
        // A parameter of a prototype may be `_`.
        let name = self.word()?;
        let mut len: u64 = 1;
        while self.take_mark('[') {
            len = match self.peek() {
                Some(Token::Mark(']')) => 0,
                _ => self.int()?.checked_mul(len).ok_or(ParseError {
                    line,
                    reason: "an array is too large".into(),
                })?,
            };
            self.mark(']')?;
        }
        let init = if self.take_mark('=') {
            self.initialiser()?
        } else {
            Vec::new()
        };
        if len == 0 && !init.is_empty() {
            len = init.len() as u64;
        }
        Ok(Variable {
            name,
            space,
            align,
            element,
            len,
            external,
            init,
            line,
        })
    }

    fn initialiser(&mut self) -> Result<Vec<Init>> {
        if !self.take_mark('{') {
            return Ok(vec![self.initial()?]);
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.error("initial values are nested too deeply");
        }
        let mut values = Vec::new();
        while !self.take_mark('}') {
            if self.is_mark('{') {
                values.extend(self.initialiser()?);
            } else {
                values.push(self.initial()?);
            }
            if !self.take_mark(',') && !self.is_mark('}') {
                return self.error(format!("expected `,` or `}}`, found {}", self.found()));
            }
        }
        self.depth -= 1;
        Ok(values)
    }

    fn initial(&mut self) -> Result<Init> {
        let negative = self.take_mark('-');
        match self.next()? {
            Token::Int(value) => Ok(Init::Bits(if negative {
                value.wrapping_neg()
            } else {
                value
            })),
            Token::F32(bits) => Ok(Init::Bits(bits.into())),
            Token::F64(bits) => Ok(Init::Bits(bits)),
            Token::Word(mut name) => {
                // `generic(name)`: the address is generic already.
                if name == "generic" && self.take_mark('(') {
                    name = self.word()?;
                    self.mark(')')?;
                }
                let offset = if self.take_mark('+') {
                    self.int()? as i64
                } else {
                    0
                };
                Ok(Init::Address(name, offset))
            }
            _ => {
                self.at -= 1;
                self.error(format!("expected a value, found {}", self.found()))
            }
        }
    }
}
