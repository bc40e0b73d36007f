//! Benchmarks of mok-rs: see `benches/`. GPU measurements are `cargo xtask bench`.
