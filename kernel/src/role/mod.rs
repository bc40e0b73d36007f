//! One warp's life a file, in the order in which it happens.

pub mod load;
pub mod multiply;
pub mod product;
pub mod table;
