//! Arithmetic on flat slices for the `nn` layers.
//!
//! This crate knows nothing of modules or shapes in types. A [`Device`] is memory plus an element
//! type plus one kernel trait per family of operations; each operation takes a small `Spec` of
//! plain numbers and flat views, and is safe to call. Specs are `Copy` and hold everything that
//! was settled when the model was compiled; only the number of rows varies from call to call.
//!
//! Two conventions hold everywhere: a `*_vjp` **writes** gradients of inputs and **adds to**
//! gradients of parameters, and a gradient that nobody wants is `None`.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
mod float;
pub mod hash;
mod memory;
pub mod ops;
mod packing;
pub mod philox;

pub use cpu::{Cpu, Isa};
#[cfg(feature = "cuda")]
pub use cuda::Cuda;
pub use error::DeviceError;
pub use float::{DType, Float, Pod};
#[cfg(feature = "cuda")]
pub use half::bf16;
pub use memory::{Memory, Open, View, ViewMut, WideView, WideViewMut};
pub use packing::Packing;

/// Everything a model runs on: memory, the types of its values, and every kernel family.
///
/// Modules are generic over this one trait, so they carry no bound per kernel.
pub trait Device:
    Memory
    + ops::Elementwise
    + ops::Linear
    + ops::Norm
    + ops::Conv
    + ops::Pool
    + ops::Attention
    + ops::Layout
    + ops::Table
    + ops::Random
    + ops::Recurrent
    + ops::Loss
    + ops::Optim
{
}

/// The bytes of a slice.
pub fn bytes_of<T: Pod>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}
