//! Who computes which tile, and when: pure iterators that every role walks.

pub mod forward;
pub mod grouped;
pub mod tile;
