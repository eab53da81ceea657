//! The layers, one file a family.

pub(crate) mod elementwise;
pub(crate) mod linear;
