//! The layers, one file a family.

pub mod elementwise;
pub mod linear;
