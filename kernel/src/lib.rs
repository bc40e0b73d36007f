//! Device code of mok-rs, and the half of it that hosts share.
//!
//! Built for `nvptx64-nvidia-cuda` this crate is the kernels; built for a host it
//! is what both sides must agree on: [`gemm`], [`launch`], [`layout`], [`schedule`].
//!
//! Reading order: [`gemm`] (what is computed), `entry` (each kernel's plan),
//! `role` (one warp's life a file), then `mma`, `sync` and `ptx` below them.
#![no_std]
#![deny(missing_docs)]

pub mod arch;
pub mod gemm;
pub mod launch;
