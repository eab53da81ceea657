//! What the code that the macros generate is made of.

use nn_kernels::{Device, View, ViewMut};

use crate::ctx::Ctx;
use crate::layer::{Forward, Module, Vjp};
use crate::signature::Signature;
use crate::tensors::{Region, RegionRef, State, Tensors, TensorsMut, slice, slice_mut};
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
        TensorsMut::carve(cx, &V::SIG, saved).shorten()
    } else {
        TensorsMut::carve(cx, &V::SIG, &mut slot.reborrow())
    }
}

/// The value that [`value`] kept, if it did.
#[inline(always)]
pub fn kept<'s, D: Device, V: Signature>(
    cx: &Ctx<'_, D>,
    keep: bool,
    saved: &mut RegionRef<'s, D>,
) -> Tensors<'s, D> {
    if keep { saved.tensors(cx, &V::SIG) } else { Tensors::EMPTY }
}

/// The buffer of a value's gradient.
#[inline(always)]
pub fn gradient<'s, D: Device, V: Signature>(
    cx: &Ctx<'_, D>,
    slot: &'s mut Region<'_, D>,
) -> TensorsMut<'s, D> {
    TensorsMut::carve_gradient(cx, &V::SIG, &mut slot.reborrow())
}

/// y = layer(x), for a layer within a module.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "generated code calls it, with one argument a buffer")]
pub(crate) fn forward<D: Device, L: Module<D, X>, X: Signature>(
    cx: &mut Ctx<'_, D>,
    step: Step,
    params: View<'_, D>,
    state: &mut State<'_, D>,
    x: Tensors<'_, D>,
    mut y: TensorsMut<'_, D>,
    saved: &mut Region<'_, D>,
    scratch: &mut Region<'_, D>,
) {
    let mut saved = saved.part(cx, cx.left::<L, X>());
    let place = cx.enter(step.place);
    let call = Forward {
        params: slice::<D>(params, step.field.params, step.field.params_len),
        state: state.field(step.field),
        x: x.shorten(),
        y: y.reborrow(),
        saved: saved.reborrow(),
        scratch: scratch.reborrow(),
    };
    L::forward(cx, call);
    cx.look(y.read(), L::PLACES);
    cx.leave(place);
}

/// The gradients of [`forward`].
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "generated code calls it, with one argument a buffer")]
pub(crate) fn vjp<D: Device, L: Module<D, X>, X: Signature>(
    cx: &mut Ctx<'_, D>,
    step: Step,
    params: View<'_, D>,
    state: View<'_, D>,
    x: Tensors<'_, D>,
    y: Tensors<'_, D>,
    saved: RegionRef<'_, D>,
    dy: Tensors<'_, D>,
    mut dx: TensorsMut<'_, D>,
    dparams: &mut Option<ViewMut<'_, D>>,
    scratch: &mut Region<'_, D>,
) {
    let field = step.field;
    let place = cx.enter(step.place);
    let call = Vjp {
        params: slice::<D>(params, field.params, field.params_len),
        state: slice::<D>(state, field.state, field.state_len),
        x: x.shorten(),
        y: y.shorten(),
        saved: saved.shorten(),
        dy: dy.shorten(),
        dx: dx.reborrow(),
        dparams: dparams.as_mut().map(|d| slice_mut::<D>(D::reborrow(d), field.params, field.params_len)),
        scratch: scratch.reborrow(),
    };
    L::vjp(cx, call);
    cx.leave(place);
}
