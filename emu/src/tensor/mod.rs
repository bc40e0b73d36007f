//! Tensor instructions as pure functions of bits: nothing here knows of the machine.
//!
//! Every layout is stated from the PTX ISA 9.0 alone, so that a mistake here and a mistake in
//! the kernels' own layouts are found by each other:
//!
//! | module | states |
//! |---|---|
//! | [`number`] | the element types and their conversions |
//! | [`swizzle`] | the XOR on shared-memory addresses |
//! | [`descriptor`] | the wgmma matrix descriptor and the canonical layouts (9.7.15.5.1.2) |
//! | [`product`] | how a tensor core sums |
//! | [`wgmma`] | `wgmma.mma_async` |
//! | [`mma`] | `mma.sync` |
//! | [`wmma`] | `wmma.load`, `wmma.mma`, `wmma.store` |
//! | [`matrix`] | `ldmatrix`, `stmatrix`, `movmatrix` |
//! | [`map`] | the bytes of a tensor map, and replacing its fields |
//! | [`tma`] | tensor maps, boxes and where each byte of a box lies |
//! | [`reduce`] | the reductions of `cp.reduce.async.bulk` |
//! | [`tcgen05`] | the fifth generation of tensor cores: tensor memory and its instructions |
//!
//! Illegal bits are an `Err` that says what is wrong; no input panics.

pub mod descriptor;
pub mod map;
pub mod matrix;
pub mod mma;
pub mod number;
pub mod product;
mod reads;
pub mod reduce;
pub mod swizzle;
pub mod tcgen05;
pub mod tma;
pub mod wgmma;
pub mod wmma;

#[cfg(test)]
mod tests;

/// What this module executes: (opcode pattern, types and shapes), made from the tables that
/// the decoders read.
#[must_use]
pub fn isa() -> Vec<(String, String)> {
    let mut rows = wgmma::isa();
    rows.extend(mma::isa());
    rows.extend(wmma::isa());
    rows.extend(matrix::isa());
    rows.extend(reduce::isa());
    rows.extend(tma::isa());
    rows.extend(tcgen05::isa());
    rows
}
