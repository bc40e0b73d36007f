//! Executes PTX on the CPU.
//!
//! This crate never depends on `mok-kernel`: it states swizzles, descriptors and fragments
//! itself, from the PTX ISA, so that a mistake in one statement is found by the other.
#![deny(missing_docs)]

mod check;
pub mod code;
mod exec;
pub mod machine;
pub mod memory;
pub mod program;
pub mod ptx;
pub mod report;
pub mod scalar;
pub mod tensor;
