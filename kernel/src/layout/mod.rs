//! Where things lie: `const fn` only, tested on the host.

pub mod descriptor;
pub mod fragment;
pub mod swizzle;
pub mod tcgen05;
