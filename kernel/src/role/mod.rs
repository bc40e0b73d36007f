//! One warp's life a file, in the order in which it happens.

pub mod activate;
pub mod activation;
pub mod carry;
pub mod clear;
pub mod deal;
pub mod dequantize;
pub mod forward;
pub mod load;
pub mod multiply;
pub mod order;
pub mod pair;
pub mod panels;
pub mod peers;
pub mod product;
pub mod quantize;
pub mod rows;
pub mod schedule;
pub mod store;
pub mod table;
pub mod tickets;
