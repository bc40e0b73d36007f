//! Who waits for whom: built from the instructions in `ptx`, used by the roles.

pub mod pair;
pub mod ring;
pub mod words;
