//! The roles of a forward pass in one launch, where they differ from those of the separate launches.

pub mod consume;
pub mod feed;
pub mod pair;
pub mod settle;
pub mod source;
pub mod stamp;
pub mod travel;
