//! The layer on emulated ranks: numbers, bits, and what goes wrong.

mod errors;
mod graph;
mod late;
mod lost;
mod numbers;
