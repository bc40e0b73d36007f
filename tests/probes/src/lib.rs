//! Probes: one small kernel for each family of device wrappers in `mok-kernel`, run on
//! a GPU (or an emulator of one) against what the host computes.
//!
//! They also show how a crate of one's own builds kernels from `mok-kernel`: entries in
//! device code, launch specs and argument structs in the half that hosts share. Built for sm_90a, and, those of
//! tensor memory, for sm_100a.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

pub mod spec;

#[cfg(all(target_arch = "nvptx64", feature = "entries", mok_arch = "sm_90a"))]
mod cluster;
#[cfg(all(target_arch = "nvptx64", feature = "entries", mok_arch = "sm_90a"))]
mod copies;
#[cfg(all(target_arch = "nvptx64", feature = "entries", mok_arch = "sm_90a"))]
mod gemm;
#[cfg(all(target_arch = "nvptx64", feature = "entries", mok_arch = "sm_90a"))]
mod memory;
#[cfg(all(target_arch = "nvptx64", feature = "entries", mok_arch = "sm_90a"))]
mod races;
#[cfg(all(target_arch = "nvptx64", feature = "entries", mok_arch = "sm_100a"))]
mod tcgen05;
#[cfg(all(target_arch = "nvptx64", feature = "entries", mok_arch = "sm_90a"))]
mod warp;
#[cfg(all(target_arch = "nvptx64", feature = "entries", mok_arch = "sm_90a"))]
mod wgmma;
