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
mod header;
mod host;
mod init;
mod kv_cache;
mod layer;
mod layers;
mod loss;
mod model;
mod optim;
mod partial;
mod real;
mod region;
mod sample;
mod schedule;
mod signature;
mod size;
mod summary;
mod table;
mod tensors;
mod text;
mod tree;
mod views;
mod weights;
mod workspace;

pub use batches::{Batches, gather};
pub use buffers::Buffers;
pub use checkpoint::{LoadReport, header_json};
pub use ctx::{CallFault, Ctx, Mode};
pub use describe::{Describe, Route, Row, routes, routes_on};
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
pub use kv_cache::KvCache;
pub use layer::{Arg, Declared, Forward, Keep, Layer, Module, Params, Place, Rebind, Vjp};
pub use layers::attention::*;
pub use layers::batch_norm::*;
pub use layers::combine::*;
pub use layers::conv::*;
pub use layers::dropout::*;
pub use layers::elementwise::*;
pub use layers::embedding::*;
pub use layers::feed_forward::*;
pub use layers::gated::*;
pub use layers::heads::*;
pub use layers::layout::*;
pub use layers::linear::*;
pub use layers::lora::*;
pub use layers::norm::*;
pub use layers::pool::*;
pub use layers::position::*;
pub use layers::quantized::*;
pub use layers::recurrent::*;
pub use layers::rope::*;
pub use layers::sample::*;
pub use layers::self_attention::*;
pub use layers::softmax::*;
pub use layers::stop_grad::*;
pub use layers::transformer::*;
pub use layers::wrap::*;
pub use loss::{CrossEntropy, CrossEntropyRows, Loss, MSE, Rows, Targets, argmax};
pub use model::{Evaluation, Model};
pub use nn_kernels::ops::Reduction;
pub use nn_kernels::{
    self as kernels, Cpu, Device, DeviceError, Float, Isa, Memory, Open, Packing, View, ViewMut, WideView,
    WideViewMut,
};
#[cfg(feature = "cuda")]
pub use nn_kernels::{Cuda, bf16};
pub use nn_macros::{checkpoint, layer, module, sequential};
pub use optim::{Adam, AdamW, Optimizer, Restored, Saved, Sgd};
pub use partial::Partial;
pub use real::{MaybeReal, NegativeSci, Real, Sci};
pub use region::{Region, RegionRef, State, StateRef, slice, slice_mut, span, span_mut};
pub use sample::{Sampler, SamplerState, Sampling};
pub use schedule::Schedule;
pub use signature::{Ids, Kind, MAX_TENSORS, S0, S1, S2, S3, S4, S5, S6, Sig, Signature, TensorType};
pub use size::Size;
pub use summary::Summary;
pub use table::{Parameter, Run, parameters_of};
pub use tensors::{Tensor, TensorMut, Tensors, TensorsMut};
pub use text::Text;
pub use tree::{Child, Field, Leaf, Node, Piece, Role, Stored};
pub use views::{Access, Arenas, FromArenas, TensorView, Views};
pub use weights::Weights;
pub use workspace::Workspace;

/// What the macros' code names. Not for use by hand.
#[doc(hidden)]
pub mod __private {
    pub use crate::at::{
        At, Inert, NoLayer, NoPart, NoSig, NoUses, Part, Runs, Same, SigOf, Unknown, Uses, UsesOf, describe,
        describe_part, forward, has_forward, vjp,
    };
    pub use crate::fault::{accept, accept_from, label, label_with_defaults};
    pub use crate::glue::{Step, freeze, gradient, kept, read, value};
    pub use crate::header::{Compared, Entry, Wanted, compare};
    pub use crate::size::{largest, sum};
    pub use crate::tree::{
        check_declared, check_free, check_possible, check_split, check_used, child, field, module_rule,
        within,
    };
    pub use crate::*;
}
