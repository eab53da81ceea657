//! Shapes, modules, layers, losses and optimisers of `nn`. Use the `nn` crate, which re-exports this one.

// What the macros generate names `::nn`, also here.
extern crate self as nn;

mod at;
mod batches;
mod buffers;
pub mod check;
mod checkpoint;
mod ctx;
mod describe;
mod dims;
mod error;
mod fault;
mod glue;
mod host;
mod init;
mod layer;
mod layers;
mod loss;
mod model;
mod optim;
mod real;
mod schedule;
mod signature;
mod size;
mod summary;
mod table;
mod tensors;
mod text;
mod tree;
mod weights;
mod workspace;

pub use batches::{Batches, gather};
pub use buffers::Buffers;
pub use checkpoint::LoadReport;
pub use ctx::{CallFault, Ctx, Mode};
pub use describe::{Describe, Route, Row, routes};
pub use dims::{
    C, Dim, Dims, Extent, Impossible, MAX_LENGTHS, MAX_RANK, Minus, Over, Placed, Plus, Times, UpTo, place,
};
pub use error::Error;
pub use fault::{Fault, Input, Rule, accept, label, label_with_defaults, one_ids, one_real, two_equal};
pub use host::Host;
pub use init::{
    Init, Initialiser, Kaiming, KaimingNormal, Normal02, Orthogonal, TruncatedNormal, Xavier, XavierNormal,
    Zero,
};
pub use layer::{Arg, Declared, Forward, Keep, Layer, Module, Params, Place, Rebind, Vjp};
pub use layers::batch_norm::*;
pub use layers::combine::*;
pub use layers::conv::*;
pub use layers::dropout::*;
pub use layers::elementwise::*;
pub use layers::embedding::*;
pub use layers::feed_forward::*;
pub use layers::gated::*;
pub use layers::layout::*;
pub use layers::linear::*;
pub use layers::lora::*;
pub use layers::norm::*;
pub use layers::pool::*;
pub use layers::position::*;
pub use layers::recurrent::*;
pub use layers::rope::*;
pub use layers::sample::*;
pub use layers::softmax::*;
pub use layers::stop_grad::*;
pub use loss::{CrossEntropy, Loss, MSE, Rows, Targets, argmax};
pub use model::{Evaluation, Model};
pub use nn_kernels::ops::Reduction;
pub use nn_kernels::{self as kernels, Cpu, Device, DeviceError, Float, Isa, Memory, Open, View, ViewMut};
pub use nn_macros::{layer, module, sequential};
pub use optim::{Adam, AdamW, Optimizer, Restored, Saved, Sgd};
pub use real::{NegativeSci, Real, Sci};
pub use schedule::Schedule;
pub use signature::{Ids, Kind, MAX_TENSORS, S0, S1, S2, S3, S4, S5, S6, Sig, Signature, TensorType};
pub use size::Size;
pub use summary::Summary;
pub use table::{Parameter, Run, parameters_of};
pub use tensors::{Region, RegionRef, State, Tensor, TensorMut, Tensors, TensorsMut, slice, slice_mut};
pub use text::Text;
pub use tree::{Child, Field, Leaf, Node, Role, Stored};
pub use weights::Weights;
pub use workspace::Workspace;

/// What the macros' code names. Not for use by hand.
#[doc(hidden)]
pub mod __private {
    pub use crate::at::{
        At, Inert, NoLayer, NoPart, NoSig, NoUses, Part, Runs, SigOf, Unknown, Uses, UsesOf, describe,
        forward, has_forward, vjp,
    };
    pub use crate::fault::{accept, accept_from, label, label_with_defaults};
    pub use crate::glue::{Step, gradient, kept, value};
    pub use crate::size::{largest, sum};
    pub use crate::tree::{
        check_declared, check_free, check_possible, check_split, check_used, field, module_rule, within,
    };
    pub use crate::*;
}
