//! Benchmarks of mok-rs, and the programs that they are compared with. Nothing here yet.
