//! Tokens of PTX, with the line of each.

use super::parser::ParseError;

/// One token.
#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    /// A name, a dotted name, or a directive with its dot: `add.f32`, `%r1`, `.reg`, `$L1`.
    Word(String),
    /// An integer.
    Int(u64),
    /// An f32 by its bits.
    F32(u32),
    /// An f64 by its bits.
    F64(u64),
    /// A string, without its quotes.
    Text(String),
    /// One character of punctuation.
    Mark(char),
}

/// Splits a text. Comments and white space are gone.
pub fn tokens(text: &str) -> Result<Vec<(Token, u32)>, ParseError> {
    let mut lexer = Lexer {
        rest: text,
        line: 1,
    };
    let mut found = Vec::new();
    while let Some(token) = lexer.next()? {
        found.push(token);
    }
    Ok(found)
}

struct Lexer<'a> {
    rest: &'a str,
    line: u32,
}

fn is_name_start(c: char) -> bool {
    c.is_ascii_alphabetic() || matches!(c, '_' | '$' | '%' | '.')
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.')
}

impl Lexer<'_> {
    fn error(&self, reason: impl Into<String>) -> ParseError {
        ParseError {
            line: self.line,
            reason: reason.into(),
        }
    }

    fn skip(&mut self, bytes: usize) -> &str {
        let (skipped, rest) = self.rest.split_at(bytes);
        self.line += skipped.bytes().filter(|&byte| byte == b'\n').count() as u32;
        self.rest = rest;
        skipped
    }

    fn next(&mut self) -> Result<Option<(Token, u32)>, ParseError> {
        loop {
            let blank = self.rest.len()
                - self
                    .rest
                    .trim_start_matches(['\u{feff}', '\0', ' ', '\t', '\r', '\n'])
                    .len();
            self.skip(blank);
            if self.rest.starts_with("//") {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.skip(end);
            } else if self.rest.starts_with("/*") {
                let end = self
                    .rest
                    .find("*/")
                    .ok_or_else(|| self.error("a comment does not end"))?;
                self.skip(end + 2);
            } else {
                break;
            }
        }
        let Some(first) = self.rest.chars().next() else {
            return Ok(None);
        };
        let line = self.line;
        let token = if first.is_ascii_digit() {
            self.number()?
        } else if is_name_start(first) {
            self.word()
        } else if first == '"' {
            let end = self.rest[1..]
                .find('"')
                .ok_or_else(|| self.error("a string does not end"))?;
            let text = self.rest[1..=end].to_owned();
            self.skip(end + 2);
            Token::Text(text)
        } else {
            self.skip(first.len_utf8());
            Token::Mark(first)
        };
        Ok(Some((token, line)))
    }

    /// A name; `::` joins parts of a modifier, as in `mbarrier::complete_tx::bytes`. Directives
    /// end at the next dot: `.reg.b32` are two.
    fn word(&mut self) -> Token {
        let bytes = self.rest.as_bytes();
        let directive = bytes[0] == b'.';
        let mut len = 1;
        loop {
            while len < bytes.len()
                && is_name(bytes[len] as char)
                && !(directive && bytes[len] == b'.')
            {
                len += 1;
            }
            let joined = bytes[len..].starts_with(b"::")
                && bytes
                    .get(len + 2)
                    .is_some_and(|&next| is_name(next as char));
            if !joined {
                break;
            }
            len += 2;
        }
        Token::Word(self.skip(len).to_owned())
    }

    fn number(&mut self) -> Result<Token, ParseError> {
        let len = self
            .rest
            .find(|c: char| !is_name(c))
            .unwrap_or(self.rest.len());
        let text = self.rest[..len].to_owned();
        let bad = |lexer: &Self| lexer.error(format!("`{text}` is no number"));
        let prefix = text.get(..2).unwrap_or("");
        let token = match prefix {
            "0f" | "0F" if text.len() == 10 => {
                Token::F32(u32::from_str_radix(&text[2..], 16).map_err(|_| bad(self))?)
            }
            "0d" | "0D" if text.len() == 18 => {
                Token::F64(u64::from_str_radix(&text[2..], 16).map_err(|_| bad(self))?)
            }
            _ if text.contains('.')
                || (!prefix.eq_ignore_ascii_case("0x") && text.contains(['e', 'E'])) =>
            {
                return self.decimal();
            }
            _ => {
                let digits = text.strip_suffix(['U', 'u']).unwrap_or(&text);
                let (radix, digits) = match digits.get(..2) {
                    Some("0x" | "0X") => (16, &digits[2..]),
                    Some("0b" | "0B") => (2, &digits[2..]),
                    Some(_) if digits.starts_with('0') => (8, &digits[1..]),
                    _ => (10, digits),
                };
                Token::Int(u64::from_str_radix(digits, radix).map_err(|_| bad(self))?)
            }
        };
        self.skip(len);
        Ok(token)
    }

    /// A decimal floating-point number, whose exponent may have a sign.
    fn decimal(&mut self) -> Result<Token, ParseError> {
        let bytes = self.rest.as_bytes();
        let mut len = 0;
        while len < bytes.len() {
            let signed = matches!(bytes[len], b'+' | b'-') && matches!(bytes[len - 1], b'e' | b'E');
            if !(bytes[len].is_ascii_digit() || matches!(bytes[len], b'.' | b'e' | b'E') || signed)
            {
                break;
            }
            len += 1;
        }
        let value: f64 = self.rest[..len]
            .parse()
            .map_err(|_| self.error(format!("`{}` is no number", &self.rest[..len])))?;
        self.skip(len);
        Ok(Token::F64(value.to_bits()))
    }
}
