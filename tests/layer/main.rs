//! The layer on emulated ranks: numbers, bits, and what goes wrong.

mod errors;
mod fused;
mod graph;
mod late;
mod lost;
mod numbers;
mod timeline;
