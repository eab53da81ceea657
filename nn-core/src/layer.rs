use nn_kernels::{Device, View, ViewMut};

use crate::ctx::Ctx;
use crate::describe::Describe;
use crate::fault::Rule;
use crate::region::{Region, RegionRef, State, StateRef};
use crate::signature::Signature;
use crate::tensors::{Tensors, TensorsMut};
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
    /// What forward leaves for the vjp besides. Statistics that an operation takes as [`WideView`](crate::WideView)s are
    /// [`Size::wide`], here and in working memory: elsewhere than on a [mixed](crate::Memory::MIXED) device the two are one.
    const SAVED: Size = Size::ZERO;
    /// What forward leaves for the tokens to come, when it is given a sequence piece by piece: keys and values.
    const CACHE: Size = Size::ZERO;
    /// Whether a sequence can be given piece by piece to a [`KvCache`](crate::KvCache): if what it gives for a token
    /// depends on no later one, and on earlier ones only by way of [`CACHE`](Self::CACHE), position by position. A layer
    /// that does not say so is taken not to, where it is given a run-time length;
    /// [`check::causal`](crate::check::causal) shows whether it is so.
    const CAUSAL: bool = !X::SIG.is_bounded();
    /// Working memory of forward.
    const SCRATCH: Size = Size::ZERO;
    /// Working memory of the vjp.
    const VJP_SCRATCH: Size = Size::ZERO;
    /// Multiply-adds of one sample's forward pass.
    const MACS: usize = 0;
    /// How many places it has: leaves, each with random numbers of its own. A layer that gives its input as it is may have
    /// none; then it must not [describe](Module::describe) itself either.
    const PLACES: u32 = 1;
}

/// What runs: the arithmetic of a layer on the device `D`.
///
/// Implementations must not allocate. `forward` writes all of `y`; `vjp` writes all of every input gradient
/// that is wanted, and **adds to** parameter gradients.
///
/// # Calling one
/// [`Model`](crate::Model) and [`Workspace`](crate::Workspace) do it for a whole model. One layer, or a module, on
/// slices of one's own:
///
/// ```
/// # use nn_core as nn;
/// use nn::{Buffers, Cpu, Ctx, Forward, LinearTanh, Module, Params, T, Tensors, TensorsMut, Vjp, parameters_of};
///
/// type L = LinearTanh<3, 2>;
/// let device = Cpu::<f64>::new()?;
///
/// // The parameters, one flat arena; `write` puts PyTorch's layout where the layer wants it.
/// let mut params = vec![0.0; L::TREE.params()];
/// let table = parameters_of::<L>();
/// assert_eq!(table[0].path, "weight");
/// table[0].write(&[0.1, 0.2, 0.3, 0.4, 0.5, 0.6], &mut params)?;
/// table[1].write(&[0.5, -0.5], &mut params)?;
///
/// // A batch of two.
/// let x = [1.0, 0.0, -1.0, 0.0, 1.0, 0.0];
/// let mut y = [0.0; 4];
/// let mut buffers = Buffers::new::<L, T![3]>(&device, 2)?;
/// let mut cx = Ctx::new(&device, 2).keeping();
/// let (saved, scratch) = buffers.forward();
/// let (from, to) = (Tensors::real(&x[..]), TensorsMut::real(&mut y[..]));
/// <L as Module<_, T![3]>>::forward(&mut cx, Forward { saved, scratch, ..Forward::new(&params[..], from, to) });
/// assert!((y[0] - (0.1_f64 - 0.3 + 0.5).tanh()).abs() < 1e-15);
///
/// // The gradients of y[0].
/// let (mut dx, mut dparams) = ([0.0; 6], vec![0.0; params.len()]);
/// let (saved, scratch) = buffers.vjp();
/// let (dy, to) = (Tensors::real(&[1.0, 0.0, 0.0, 0.0][..]), TensorsMut::real(&mut dx[..]));
/// let call = Vjp {
///     y: Tensors::real(&y[..]),
///     saved,
///     scratch,
///     dparams: Some(&mut dparams[..]),
///     ..Vjp::new(&params[..], Tensors::real(&x[..]), dy, to)
/// };
/// <L as Module<_, T![3]>>::vjp(&mut cx, call);
/// let slope = 1.0 - y[0] * y[0];
/// assert!((dx[1] - 0.2 * slope).abs() < 1e-15 && dx[3..] == [0.0; 3]);
/// assert!((table[1].read(&dparams)?[0] - slope).abs() < 1e-15);
/// # Ok::<(), nn::Error>(())
/// ```
///
/// # Writing one
/// A layer is a [`layer`](macro@crate::layer) struct, its parameters, its shape rule and its arithmetic, in the
/// operations that every device has. Then [`check::gradients`](crate::check::gradients) shows whether the vjp is
/// right.
///
/// ```
/// # use nn_core as nn;
/// use nn::kernels::ops::Binary;
/// use nn::{
///     Ctx, Device, Dim, Dims, Forward, Init, Input, Layer, Leaf, Mode, Module, Node, Params, Role, Rule, Sig,
///     Signature, Size, T, Text, Vjp, check, layer, one_real, slice, slice_mut,
/// };
///
/// /// y = γ·x, a gain for each of the N values of a sample.
/// #[layer(weight: nn::S1<N>)]
/// pub struct Gain<const N: usize>;
///
/// impl<N: Dim> Params for GainOf<N> {
///     const LABEL: Text = Self::SHOWN;
///     const TREE: &'static Node =
///         &Node::of(&[Leaf::new("weight", Dims::new(&[N::EXTENT]), Role::Scale, Init::Constant(1.0))]);
/// }
///
/// impl<X: Signature, N: Dim> Layer<X> for GainOf<N> {
///     const RULE: Rule = match one_real(&Self::LABEL, Self::ARGS, &X::SIG) {
///         Input::Done(rule) => rule,
///         Input::Tensor(dims) if dims.rank() == 1 && dims.last().same(&N::EXTENT) => Rule::ok(Sig::real(dims)),
///         Input::Tensor(dims) => {
///             let takes = N::EXTENT.write(Text::new().str("[")).str("]");
///             Rule::mismatch(&Self::LABEL, takes, &X::SIG, Sig::real(dims))
///         }
///     };
///     const KEEPS_X: bool = true;
///     const VJP_SCRATCH: Size = Size::fixed_elements(N::N);
/// }
///
/// impl<D: Device, X: Signature, N: Dim> Module<D, X> for GainOf<N> {
///     fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
///         let gain = slice::<D>(call.params, 0, N::N);
///         let mut y = call.y.get(0);
///         for i in 0..cx.batch {
///             let x = slice::<D>(call.x.get(0), i * N::N, N::N);
///             cx.device().binary(Binary::Mul, x, gain, slice_mut::<D>(D::reborrow(&mut y), i * N::N, N::N));
///         }
///     }
///     fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
///         let gain = slice::<D>(call.params, 0, N::N);
///         let mut product = call.scratch.take(N::N);
///         for i in 0..cx.batch {
///             let dy = slice::<D>(call.dy.get(0), i * N::N, N::N);
///             if let Some(dx) = call.dx.wanted(0) {
///                 cx.device().binary(Binary::Mul, dy, gain, slice_mut::<D>(dx, i * N::N, N::N));
///             }
///             if let Some(dparams) = &mut call.dparams {
///                 let x = slice::<D>(call.x.get(0), i * N::N, N::N);
///                 cx.device().binary(Binary::Mul, dy, x, D::reborrow(&mut product));
///                 // Added to, and not overwritten.
///                 cx.device().add_assign(D::read(&product), slice_mut::<D>(D::reborrow(dparams), 0, N::N));
///             }
///         }
///     }
/// }
///
/// check::gradients::<Gain<5>, T![5]>(3, Mode::Train, 1).assert_within(1e-8);
///
/// // It goes wherever the layers of this crate go.
/// nn::sequential! { Net: [4] -> [2] = nn::Linear<4, 5>, Gain<5>, nn::ReLU, nn::Linear<5, 2> }
/// assert!(nn::Model::<Net>::init(1, 8)?.forward(&[0.5; 12]).is_ok());
/// # Ok::<(), nn::Error>(())
/// ```
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
    /// [`Layer::SAVED`], to be written if [`Ctx::keeps`]; [`Layer::CACHE`], to be read and written if [`Ctx::past`] says
    /// that a sequence goes on; else empty.
    pub saved: Region<'a, D>,
    /// [`Layer::SCRATCH`].
    pub scratch: Region<'a, D>,
}

impl<'a, D: Device> Forward<'a, D> {
    /// Without state, and without memory: name what the layer needs besides, as in
    /// `Forward { scratch, ..Forward::new(params, x, y) }`.
    pub fn new(params: View<'a, D>, x: Tensors<'a, D>, y: TensorsMut<'a, D>) -> Self {
        let state = State::read_only(StateRef::empty());
        Self { params, state, x, y, saved: Region::empty(), scratch: Region::empty() }
    }
}

/// What [`Module::vjp`] works on.
pub struct Vjp<'a, D: Device> {
    /// The layer's parameters.
    pub params: View<'a, D>,
    /// The layer's state, as it is after the forward pass.
    pub state: StateRef<'a, D>,
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

impl<'a, D: Device> Vjp<'a, D> {
    /// Without state, output and memory, and without parameter gradients: name what the layer needs besides,
    /// as in `Vjp { y, scratch, ..Vjp::new(params, x, dy, dx) }`.
    pub fn new(params: View<'a, D>, x: Tensors<'a, D>, dy: Tensors<'a, D>, dx: TensorsMut<'a, D>) -> Self {
        Self {
            params,
            state: StateRef::empty(),
            x,
            y: Tensors::EMPTY,
            saved: RegionRef::empty(),
            dy,
            dx,
            dparams: None,
            scratch: Region::empty(),
        }
    }
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

/// In a [`Rebind`] tuple: the argument becomes `T`, if it was the number that stands for the place `I`. An alias that
/// leaves places out or changes their order would otherwise be given wrong arguments in silence.
#[derive(Clone, Copy, Debug)]
pub struct Place<const I: usize, T>(std::marker::PhantomData<T>);

/// One argument of a [`Rebind`] tuple: that of a [`Place`], or what was there if it is [`Keep`].
pub trait Arg<Old> {
    /// The argument.
    type To;
}
impl<Old> Arg<Old> for Keep {
    type To = Old;
}
impl<const I: usize, T: crate::Dim, Old: crate::Dim> Arg<Old> for Place<I, T> {
    type To = crate::dims::Placed<I, T, Old>;
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
