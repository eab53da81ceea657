//! Layers as generated code names them, which can't know whether a type it was given is one.
//!
//! A constant of the type itself goes before one of a trait: `At::<L, X>::RULE` is `L`'s if `L` is a layer, and
//! [`NoLayer`]'s if it is not. So a field that is no layer is reported where it is declared, and nowhere else.

#![allow(
    missing_docs,
    reason = "the constants are those of `Layer` and `Params`, and nobody names them by hand"
)]

use std::fmt::Debug;
use std::marker::PhantomData;

use nn_kernels::{Device, View, ViewMut};

use crate::ctx::Ctx;
use crate::describe::Describe;
use crate::fault::Rule;
use crate::glue::{self, Step};
use crate::layer::{Declared, Forward, Layer, Module, Params, Vjp};
use crate::region::{Region, RegionRef, State, StateRef};
use crate::signature::{Kind, Sig, Signature};
use crate::tensors::{Tensors, TensorsMut};
use crate::tree::{Child, Node};
use crate::views::{Access, Views};
use crate::{Size, Text};

/// The layer `L` as it is given `X`.
pub struct At<L, X>(PhantomData<(L, X)>);

impl<L: Layer<X>, X: Signature> At<L, X> {
    pub const RULE: Rule = L::RULE;
    pub const KEEPS_X: bool = L::KEEPS_X;
    pub const KEEPS_Y: bool = L::KEEPS_Y;
    pub const SAVED: Size = L::SAVED;
    pub const CACHE: Size = L::CACHE;
    pub const CAUSAL: bool = L::CAUSAL;
    pub const SCRATCH: Size = L::SCRATCH;
    pub const VJP_SCRATCH: Size = L::VJP_SCRATCH;
    pub const MACS: usize = L::MACS;
    pub const PLACES: u32 = L::PLACES;
}

/// What takes the place of a layer that is none: it fits everywhere.
pub trait NoLayer {
    const RULE: Rule = Rule::ok(Sig::POISON);
    const KEEPS_X: bool = false;
    const KEEPS_Y: bool = false;
    const SAVED: Size = Size::ZERO;
    const CACHE: Size = Size::ZERO;
    const CAUSAL: bool = true;
    const SCRATCH: Size = Size::ZERO;
    const VJP_SCRATCH: Size = Size::ZERO;
    const MACS: usize = 0;
    const PLACES: u32 = 0;
}
impl<L, X> NoLayer for At<L, X> {}

/// An [`At`] that runs on the device `D`.
pub trait Runs<D: Device> {
    type Layer: Module<D, Self::X>;
    type X: Signature;
}
impl<D: Device, L: Module<D, X>, X: Signature> Runs<D> for At<L, X> {
    type Layer = L;
    type X = X;
}

/// The type of a field, whatever it is given.
pub struct Part<T>(PhantomData<T>);

impl<T: Params> Part<T> {
    pub const TREE: &'static Node = T::TREE;
    pub const LABEL: Text = T::LABEL;
}
impl<T: Default> Part<T> {
    pub fn value() -> T {
        T::default()
    }
}
impl<T: Debug> Part<T> {
    pub fn debug(value: &T) -> &dyn Debug {
        value
    }
}

/// What takes the place of a field that is no layer.
pub trait NoPart<T> {
    const TREE: &'static Node = &Node::EMPTY;
    const LABEL: Text = Text::new();
    fn value() -> T {
        unreachable!("a model with a field that is no layer does not compile")
    }
    fn debug(_: &T) -> &dyn Debug {
        &"no layer"
    }
}
impl<T> NoPart<T> for Part<T> {}

/// What takes the place of a field whose type the macros could not read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inert;

impl Params for Inert {
    const LABEL: Text = Text::new().str("?");
}
impl Views for Inert {
    type View<A: Access> = ();
}
impl<X: Signature> Layer<X> for Inert {
    const RULE: Rule = Rule::ok(Sig::POISON);
}
impl<D: Device, X: Signature> Module<D, X> for Inert {
    fn forward(_: &mut Ctx<'_, D>, _: Forward<'_, D>) {}
    fn vjp(_: &mut Ctx<'_, D>, _: Vjp<'_, D>) {}
}

/// What gives a module's input as its output: a copy, so that every output has a buffer of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Same;

impl Params for Same {
    const LABEL: Text = Text::new().str("Same");
}
impl Views for Same {
    type View<A: Access> = ();
}
impl<X: Signature> Layer<X> for Same {
    const RULE: Rule = {
        let (mut i, mut ids) = (0, false);
        while i < X::SIG.len() {
            ids = ids || matches!(X::SIG.tensors()[i].kind, Kind::Ids);
            i += 1;
        }
        if ids {
            Rule::wrong(
                Text::new().str("`forward` can't give an input of ids as it is: give what it computes"),
            )
        } else {
            Rule::ok(X::SIG)
        }
    };
    const CAUSAL: bool = true;
    const PLACES: u32 = 0;
}
impl<D: Device, X: Signature> Module<D, X> for Same {
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        call.y.copy(cx, call.x);
    }
    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        call.dx.copy(cx, call.dy);
    }
    fn describe(_: &mut Describe) {}
}

/// A signature that is not known because of a mistake elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Unknown;
impl Signature for Unknown {
    const SIG: Sig = Sig::POISON;
}

/// What a type stands for, if it is a signature.
pub struct SigOf<T>(PhantomData<T>);
impl<T: Signature> SigOf<T> {
    pub const SIG: Sig = T::SIG;
}
/// What takes the place of a signature that is none.
pub trait NoSig {
    const SIG: Sig = Sig::POISON;
}
impl<T> NoSig for SigOf<T> {}

/// Which fields a module's `forward` uses.
pub trait Uses {
    /// Their names; `None` if `forward` could not be read.
    const FIELDS: Option<&'static [&'static str]>;
}

/// [`Uses`] of a type, if it has it.
pub struct UsesOf<T>(PhantomData<T>);
impl<T: Uses> UsesOf<T> {
    pub const FIELDS: Option<&'static [&'static str]> = T::FIELDS;
}
/// What takes the place of [`Uses`] where there is no `forward`.
pub trait NoUses {
    const FIELDS: Option<&'static [&'static str]> = None;
}
impl<T> NoUses for UsesOf<T> {}

/// Stops the compiler unless the module has a `forward`.
pub const fn has_forward<T: Declared>() {}

/// `glue::forward` of an [`At`].
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "generated code calls it, with one argument a buffer")]
pub fn forward<D: Device, A: Runs<D>>(
    cx: &mut Ctx<'_, D>,
    step: Step,
    params: View<'_, D>,
    state: &mut State<'_, D>,
    x: &Tensors<'_, D>,
    y: &mut TensorsMut<'_, D>,
    saved: &mut Region<'_, D>,
    scratch: &mut Region<'_, D>,
) {
    glue::forward::<D, A::Layer, A::X>(cx, step, params, state, x, y, saved, scratch);
}

/// `glue::vjp` of an [`At`].
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "generated code calls it, with one argument a buffer")]
pub fn vjp<D: Device, A: Runs<D>>(
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
    glue::vjp::<D, A::Layer, A::X>(cx, step, params, state, x, y, saved, dy, dx, dparams, scratch);
}

/// Adds the rows of a layer that is called by its type to a table.
pub fn describe<D: Device, A: Runs<D>>(out: &mut Describe) {
    <A::Layer as Module<D, A::X>>::describe(out);
}

/// Adds the rows of a module's part to a table.
pub fn describe_part<D: Device, A: Runs<D>>(out: &mut Describe, part: Option<&Child>) {
    let walk = <A::Layer as Module<D, A::X>>::describe;
    match part {
        Some(part) => out.part(part, walk),
        None => walk(out),
    }
}
