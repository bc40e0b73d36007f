//! The roles where pairs of blocks multiply together. What differs from single blocks': tiles are dealt
//! to both, products are one thread's, and sums come out of tensor memory.

pub mod bring;
pub mod clear;
pub mod deal;
pub mod elements;
pub mod issue;
pub mod load;
