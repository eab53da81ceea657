//! What the code that the macros generate is made of.

use std::marker::PhantomData;

use nn_kernels::{Device, View, ViewMut};

use crate::ctx::Ctx;
use crate::layer::{Forward, Layer, Module, Vjp};
use crate::region::{Region, RegionRef, State, StateRef, slice, slice_mut};
use crate::signature::{Sig, Signature};
use crate::tensors::{Tensors, TensorsMut};
use crate::tree::Field;

/// A layer's place in a module: where its parameters are, and how many places lie before it.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Its parameters and state.
    pub field: Field,
    /// Places of the module's layers before it.
    pub place: u32,
}

/// The buffer of a value: in the saved region if the vjp needs it, else in a slot that later values reuse.
#[inline(always)]
pub fn value<'s, 'a: 's, D: Device, V: Signature>(
    cx: &Ctx<'_, D>,
    keep: bool,
    saved: &mut Region<'a, D>,
    slot: &'s mut Region<'_, D>,
) -> TensorsMut<'s, D> {
    if keep && cx.keeps() {
        TensorsMut::carve_as::<V>(cx, saved).shorten()
    } else {
        TensorsMut::carve_as::<V>(cx, &mut slot.reborrow())
    }
}

/// The value that [`value`] kept, if it did.
#[inline(always)]
pub fn kept<'s, D: Device, V: Signature>(
    cx: &Ctx<'_, D>,
    keep: bool,
    saved: &mut RegionRef<'s, D>,
) -> Tensors<'s, D> {
    if keep { saved.tensors_as::<V>(cx) } else { Tensors::EMPTY }
}

/// The buffer of a value's gradient.
#[inline(always)]
pub fn gradient<'s, D: Device, V: Signature>(
    cx: &Ctx<'_, D>,
    slot: &'s mut Region<'_, D>,
) -> TensorsMut<'s, D> {
    TensorsMut::carve_gradient_as::<V>(cx, &mut slot.reborrow())
}

/// The value in a buffer, to be read from now on.
#[inline(always)]
pub fn freeze<'s, D: Device, V: Signature>(buffer: TensorsMut<'s, D>) -> Tensors<'s, D> {
    buffer.freeze_as::<V>()
}

/// The value in a buffer, to be read.
#[inline(always)]
pub fn read<'s, D: Device, V: Signature>(buffer: &'s TensorsMut<'_, D>) -> Tensors<'s, D> {
    buffer.read_as::<V>()
}

/// What a layer gives, as a signature.
pub(crate) struct Given<L, X>(PhantomData<fn() -> (L, X)>);
impl<L: Layer<X>, X: Signature> Signature for Given<L, X> {
    const SIG: Sig = L::RULE.out;
}

/// y = layer(x), for a layer within a module.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "generated code calls it, with one argument a buffer")]
pub(crate) fn forward<D: Device, L: Module<D, X>, X: Signature>(
    cx: &mut Ctx<'_, D>,
    step: Step,
    params: View<'_, D>,
    state: &mut State<'_, D>,
    x: &Tensors<'_, D>,
    y: &mut TensorsMut<'_, D>,
    saved: &mut Region<'_, D>,
    scratch: &mut Region<'_, D>,
) {
    let mut saved = if const { L::SAVED.is_zero() && L::CACHE.is_zero() } {
        Region::empty()
    } else {
        saved.part(cx, cx.left::<L, X>()).shorten()
    };
    let place = cx.enter(step.place);
    let call = Forward {
        params: slice::<D>(params, step.field.params, step.field.params_len),
        state: state.field(step.field),
        x: x.lend::<X>(),
        y: y.lend::<Given<L, X>>(),
        saved: saved.reborrow(),
        scratch: scratch.reborrow(),
    };
    L::forward(cx, call);
    // A layer without a place gives what it is given, which others look at.
    if const { L::PLACES > 0 } && cx.watches() {
        cx.look(y.read_as::<Given<L, X>>(), L::PLACES);
    }
    cx.leave(place);
}

/// The gradients of [`forward`].
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "generated code calls it, with one argument a buffer")]
pub(crate) fn vjp<D: Device, L: Module<D, X>, X: Signature>(
    cx: &mut Ctx<'_, D>,
    step: Step,
    params: View<'_, D>,
    state: StateRef<'_, D>,
    x: &Tensors<'_, D>,
    y: &Tensors<'_, D>,
    saved: RegionRef<'_, D>,
    dy: &Tensors<'_, D>,
    dx: &mut TensorsMut<'_, D>,
    dparams: &mut Option<ViewMut<'_, D>>,
    scratch: &mut Region<'_, D>,
) {
    let field = step.field;
    let place = cx.enter(step.place);
    let call = Vjp {
        params: slice::<D>(params, field.params, field.params_len),
        state: state.slice(field.state, field.state_len),
        x: x.lend::<X>(),
        y: y.lend::<Given<L, X>>(),
        saved: saved.shorten(),
        dy: dy.lend::<Given<L, X>>(),
        dx: dx.lend::<X>(),
        dparams: dparams.as_mut().map(|d| slice_mut::<D>(D::reborrow(d), field.params, field.params_len)),
        scratch: scratch.reborrow(),
    };
    L::vjp(cx, call);
    cx.leave(place);
}
