//! The kernels, each a short composition of roles.

pub mod gemm;
#[cfg(feature = "entries")]
pub mod unfused;
