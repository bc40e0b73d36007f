//! PTX text to a syntax tree.
//!
//! An own parser of a few hundred lines, and not the `ptx-syntax` crate: that one types every
//! instruction of the grammar, so a modifier that it doesn't know yet is a syntax error, and it
//! takes minutes to compile. Here an instruction is a dotted name and operands; what the name
//! means, and whether it is known at all, is decided once, at load, by the machine's own tables,
//! which are also what `--isa` prints.

pub mod ast;
mod lexer;
mod parser;
mod statements;

pub use parser::{ParseError, parse, type_bytes};
