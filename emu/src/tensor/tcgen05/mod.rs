//! `tcgen05`: the fifth generation of tensor cores (PTX ISA 9.0, 9.7.16).
//!
//! | module | states |
//! |---|---|
//! | [`memory`] | tensor memory: its addresses (9.7.16.1.1) |
//! | [`fragment`] | which thread of a warp holds what (9.7.16.2.3.1) |
//! | [`reduction`] | what `tcgen05.ld.red` adds to that |
//! | [`descriptor`] | the shared-memory descriptor (9.7.16.4.1) |
//! | [`instruction`] | the instruction descriptor, shapes and kinds (9.7.16.2.1, 9.7.16.4.2) |
//! | [`datapath`] | in which lanes rows of A and D lie (9.7.16.10.5) |
//! | [`product`] | `tcgen05.mma` |
//! | [`scales`] | where scale factors lie, and what they do (9.7.16.10.7) |
//! | [`copy`] | `tcgen05.cp` |
//!
//! Not implemented, and an error at load: `tcgen05.mma` with `.ws`, `.sp` or `.ashift`,
//! `tcgen05.cp.4x256b`, `tcgen05.shift` and `tcgen05.ld.red.16x32bx2` (of which the ISA's text leaves
//! open which lanes move where). A finding where it is executed:
//! block scaling with M = 128 and `.cta_group::2`, K = 96, absolute leading addresses.

pub mod copy;
pub mod datapath;
pub mod descriptor;
pub mod fragment;
pub mod instruction;
pub mod memory;
pub mod product;
pub mod reduction;
pub mod scales;

/// What this module executes, made from the tables that the decoders read.
#[must_use]
pub fn isa() -> Vec<(String, String)> {
    let mut rows = fragment::isa();
    rows.extend(copy::isa());
    rows.extend(product::isa());
    rows
}
