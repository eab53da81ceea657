//! Neural-network layers whose shapes the compiler checks.

pub use nn_core::*;
#[doc(hidden)]
pub use nn_core::__private;
