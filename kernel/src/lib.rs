//! Device code of mok-rs, and the half of it that hosts share.
//!
//! Built for `nvptx64-nvidia-cuda` this crate is the kernels; built for a host it
//! is what both sides must agree on: [`gemm`], [`gate_up`], [`mxfp8`], [`unfused`], [`symmetric`], [`launch`] and
//! others.
//!
//! Reading order: [`gemm`] and [`unfused`] (what is computed), `entry` (each kernel's plan),
//! `role` (one warp's life a file), then `mma`, `sync` and `ptx` below them.
#![no_std]
#![deny(missing_docs)]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features))] // link_llvm_intrinsics
#![cfg_attr(
    target_arch = "nvptx64",
    feature(abi_ptx, asm_experimental_arch, link_llvm_intrinsics)
)]

pub mod arch;
pub mod failure;
pub mod forward;
pub mod gate_up;
pub mod gemm;
pub mod launch;
pub mod layout;
pub mod mxfp8;
pub mod route;
pub mod schedule;
pub mod symmetric;
pub mod trace;
pub mod unfused;

#[cfg(any(target_arch = "nvptx64", doc))]
pub mod entry;
#[cfg(any(target_arch = "nvptx64", doc))]
pub mod mma;
#[cfg(any(target_arch = "nvptx64", doc))]
pub mod ptx;
#[cfg(any(target_arch = "nvptx64", doc))]
pub mod role;
#[cfg(any(target_arch = "nvptx64", doc))]
pub mod sync;

/// The launch specs of every entry in the shipped PTX of an architecture.
pub fn entries(arch: arch::Arch) -> &'static [&'static launch::LaunchSpec] {
    if arch.pairs() { &OF_PAIRS } else { &OF_BLOCKS }
}

static OF_BLOCKS: [&launch::LaunchSpec; 18] = with_products([
    &gemm::FORWARD,
    &gemm::DGRAD,
    &gemm::WGRAD,
    &gate_up::GATE_UP,
    &forward::FORWARD,
]);

static OF_PAIRS: [&launch::LaunchSpec; 19] = with_products([
    &gemm::pair::FORWARD,
    &gemm::pair::DGRAD,
    &gemm::pair::WGRAD,
    &gate_up::GATE_UP_PAIR,
    &mxfp8::FORWARD,
    &forward::FORWARD_OF_PAIRS,
]);

/// An architecture's products, then what all have.
const fn with_products<const PRODUCTS: usize, const ALL: usize>(
    products: [&'static launch::LaunchSpec; PRODUCTS],
) -> [&'static launch::LaunchSpec; ALL] {
    assert!(PRODUCTS + OTHERS.len() == ALL);
    let mut all = [OTHERS[0]; ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < PRODUCTS {
            products[at]
        } else {
            OTHERS[at - PRODUCTS]
        };
        at += 1;
    }
    all
}

const OTHERS: [&launch::LaunchSpec; 13] = [
    &mxfp8::QUANTIZE,
    &mxfp8::DEQUANTIZE,
    &unfused::PUBLISH,
    &unfused::SIGNAL,
    &unfused::ABORT,
    &unfused::COUNT,
    &unfused::PLACE,
    &unfused::SCATTER,
    &unfused::DISPATCH,
    &unfused::COMBINE,
    &unfused::PERMUTE,
    &unfused::SWIGLU,
    &unfused::WEIGH,
];

#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    ptx::reg::trap()
}
