//! The kernels, each a short composition of roles.

pub mod gemm;
