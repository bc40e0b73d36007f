//! Executes PTX on the CPU. Nothing here yet.
//!
//! This crate never depends on `mok-kernel`: it will state swizzles, descriptors and
//! fragments itself, from the PTX ISA, so that a mistake in one statement is found by the other.
#![deny(missing_docs)]
