//! Who computes which tile, and when: pure iterators that every role walks.

pub mod grouped;
pub mod tile;
