use nn_kernels::{Device, View, ViewMut};

use crate::ctx::Ctx;
use crate::describe::Describe;
use crate::fault::Rule;
use crate::signature::Signature;
use crate::tensors::{Region, RegionRef, State, Tensors, TensorsMut};
use crate::tree::Node;
use crate::{Size, Text};

/// What a layer has whatever it is given: a name and parameters.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a layer",
    note = "layers are declared with `#[module]`, `sequential!` or `#[layer]`"
)]
pub trait Params: 'static {
    /// Its name with its arguments, as messages and tables show it: `Linear<784, 64>`.
    const LABEL: Text;
    /// Its parameters.
    const TREE: &'static Node = &Node::EMPTY;
}

/// What the compiler settles about a layer that is given `X`. It takes **any** signature: what does not fit
/// is a [`Rule::fault`], in words and numbers, and not a missing implementation.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a layer",
    note = "layers are declared with `#[module]`, `sequential!` or `#[layer]`"
)]
pub trait Layer<X: Signature>: Params {
    /// What it gives, and what is wrong with what it is given.
    const RULE: Rule;
    /// Whether the vjp reads the input.
    const KEEPS_X: bool = false;
    /// Whether the vjp reads the output.
    const KEEPS_Y: bool = false;
    /// What forward leaves for the vjp besides.
    const SAVED: Size = Size::ZERO;
    /// Working memory of forward.
    const SCRATCH: Size = Size::ZERO;
    /// Working memory of the vjp.
    const VJP_SCRATCH: Size = Size::ZERO;
    /// Multiply-adds of one sample's forward pass.
    const MACS: usize = 0;
    /// How many places it has: leaves, each with random numbers of its own.
    const PLACES: u32 = 1;
}

/// What runs: the arithmetic of a layer on the device `D`.
///
/// Implementations must not allocate. `forward` writes all of `y`; `vjp` writes all of every input gradient
/// that is wanted, and **adds to** parameter gradients.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not run on `{D}`",
    note = "implement `Module<D, X>` for it: forward and vjp"
)]
pub trait Module<D: Device, X: Signature>: Layer<X> {
    /// Computes the output.
    fn forward(cx: &mut Ctx<'_, D>, call: Forward<'_, D>);
    /// Computes the gradients, given that of the output.
    fn vjp(cx: &mut Ctx<'_, D>, call: Vjp<'_, D>);
    /// Adds its rows to a table. A leaf adds one.
    fn describe(out: &mut Describe) {
        out.leaf::<Self, D, X>(Self::route());
    }
    /// The kernel this layer got, if there is a choice.
    fn route() -> &'static str {
        ""
    }
}

/// What [`Module::forward`] works on.
pub struct Forward<'a, D: Device> {
    /// The layer's parameters.
    pub params: View<'a, D>,
    /// The layer's state.
    pub state: State<'a, D>,
    /// The input.
    pub x: Tensors<'a, D>,
    /// The output, to be written.
    pub y: TensorsMut<'a, D>,
    /// [`Layer::SAVED`], to be written if [`Ctx::keeps`]; else empty.
    pub saved: Region<'a, D>,
    /// [`Layer::SCRATCH`].
    pub scratch: Region<'a, D>,
}

/// What [`Module::vjp`] works on.
pub struct Vjp<'a, D: Device> {
    /// The layer's parameters.
    pub params: View<'a, D>,
    /// The layer's state, as it is after the forward pass.
    pub state: View<'a, D>,
    /// The input; may be empty unless [`Layer::KEEPS_X`].
    pub x: Tensors<'a, D>,
    /// The output; may be empty unless [`Layer::KEEPS_Y`].
    pub y: Tensors<'a, D>,
    /// What forward left.
    pub saved: RegionRef<'a, D>,
    /// The gradient of the output.
    pub dy: Tensors<'a, D>,
    /// The gradient of the input, to be written. Tensors that nobody wants are absent.
    pub dx: TensorsMut<'a, D>,
    /// The gradient of the parameters, to be added to, if anyone wants it.
    pub dparams: Option<ViewMut<'a, D>>,
    /// [`Layer::VJP_SCRATCH`].
    pub scratch: Region<'a, D>,
}

/// The same layer with other arguments, so that `{4 * D}` can be one: `To` is the layer whose arguments are
/// those of the tuple, [`Keep`] standing for what it already has.
#[diagnostic::on_unimplemented(
    message = "the arguments of `{Self}` can't be computed",
    note = "`{{4 * D}}` can be an argument of a layer, in the place of a number"
)]
pub trait Rebind<Args> {
    /// The layer with the new arguments.
    type To;
}

/// In a [`Rebind`] tuple: the argument stays.
#[derive(Clone, Copy, Debug)]
pub struct Keep;

/// One argument of a [`Rebind`] tuple: itself, or what was there if it is [`Keep`].
pub trait Arg<Old> {
    /// The argument.
    type To;
}
impl<Old> Arg<Old> for Keep {
    type To = Old;
}
impl<T: crate::Dim, Old> Arg<Old> for T {
    type To = T;
}

/// A model with its input settled, as [`Model`](crate::Model) takes it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a declared model",
    note = "a model is declared by `#[module]` on a struct and on its impl with `forward`, or by `sequential!`"
)]
pub trait Declared: Layer<Self::In> {
    /// What it takes.
    type In: Signature;
    /// What it gives.
    type Out: Signature;
}
