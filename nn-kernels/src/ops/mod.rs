//! The operations a device offers: one trait a family, one `Spec` an operation.

mod attention;
mod conv;
mod elementwise;
mod layout;
mod linear;
mod loss;
mod norm;
mod optim;
mod pool;
mod random;
mod recurrent;
mod table;

pub use attention::{Attention, AttentionGradients, AttentionSpec, Strides};
pub use conv::{Conv, Conv2dSpec};
pub use elementwise::{Binary, Elementwise, GatedSpec, Unary};
pub use layout::{Block, Layout, PermuteSpec, RopeSpec, SinusoidSpec};
pub use linear::{Linear, LinearSpec, PackedSpec};
pub use loss::{CrossEntropySpec, Loss, Reduction};
pub use norm::{BatchNormSpec, Norm};
pub(crate) use optim::grad_scale;
pub use optim::{AdamSpec, Optim, SgdSpec};
pub use pool::{Pool, Pool2dSpec};
pub use random::{GaussianSpec, Random, Stream};
pub use recurrent::Recurrent;
pub use table::Table;
