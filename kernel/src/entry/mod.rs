//! The kernels, each a short composition of roles.

pub mod forward;
pub mod gemm;
pub mod pair;
#[cfg(feature = "entries")]
pub mod quantize;
#[cfg(feature = "entries")]
pub mod unfused;
