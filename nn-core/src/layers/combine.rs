//! Layers made of layers, and parameters that are no layer's.

use std::marker::PhantomData;

use nn_kernels::Device;
use nn_kernels::ops::Binary;

use crate::ctx::Ctx;
use crate::describe::Describe;
use crate::dims::Dim;
use crate::fault::{Fault, Rule};
use crate::glue::{self, Step};
use crate::init::{Initialiser, Zero};
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::check_shape;
use crate::region::{slice, slice_mut};
use crate::signature::{Kind, Sig, Signature};
use crate::tensors::{Tensors, TensorsMut};
use crate::tree::{Child, Field, Leaf, Node, Role};
use crate::views::{Access, TensorView, Views};
use crate::{Size, Text, layer};

/// All of a layer's parameters and state are those of `M`.
fn whole<M: Params>() -> Step {
    copy_of::<M>(0)
}

/// Where copy `i` of `M` is, of copies that lie behind one another.
fn copy_of<M: Params>(i: usize) -> Step {
    let (params, state) = (M::TREE.params(), M::TREE.state());
    Step {
        field: Field { params: i * params, params_len: params, state: i * state, state_len: state },
        place: 0,
    }
}

/// y = x + M(x), for an M that keeps the shape. Parameters are M's, under M's names.
///
/// ```
/// use nn::{Layer, Linear, Residual, T};
/// assert_eq!(<Residual<Linear<8, 8>> as Layer<T![3, 8]>>::RULE.out.to_string(), "[3, 8]");
/// let fault = <Residual<Linear<8, 4>> as Layer<T![3, 8]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `Residual<Linear<8, 4>>` adds its input, [3, 8], and what becomes of it, [3, 4]"
/// );
/// ```
#[layer(own_views)]
pub struct Residual<M: Params>;

impl<M: Views> Views for ResidualOf<M> {
    type View<A: Access> = M::View<A>;
}

impl<M: Params> Params for ResidualOf<M> {
    const LABEL: Text = Text::new().str("Residual<").text(&M::LABEL).str(">");
    const TREE: &'static Node = M::TREE;
}

const fn residual(label: &Text, given: &Sig, inner: &Rule) -> Rule {
    if given.is_poison() {
        return Rule::ok(Sig::POISON);
    }
    if inner.fault.is_some() {
        return Rule { out: *given, fault: inner.fault };
    }
    let mut i = 0;
    while i < given.len() {
        if !matches!(given.tensors()[i].kind, Kind::Real) {
            return Rule::mismatch(label, Text::new().str("real numbers"), given, *given);
        }
        i += 1;
    }
    if inner.out.is_poison() || inner.out.same(given) {
        return Rule::ok(*given);
    }
    let text = Text::new().str("shape mismatch: `").text(label).str("` adds its input, ");
    let text = given.write(text).str(", and what becomes of it, ");
    Rule { out: *given, fault: Some(Fault::new(inner.out.write(text))) }
}

impl<X: Signature, M: Layer<X>> Layer<X> for ResidualOf<M> {
    const RULE: Rule = residual(&Self::LABEL, &X::SIG, &M::RULE);
    const KEEPS_X: bool = M::KEEPS_X;
    // M's output, which is not the whole's.
    const SAVED: Size = M::SAVED.plus(X::SIG.size().when(M::KEEPS_Y));
    const CACHE: Size = M::CACHE;
    const CAUSAL: bool = M::CAUSAL;
    const SCRATCH: Size = M::SCRATCH;
    const VJP_SCRATCH: Size = M::VJP_SCRATCH;
    const MACS: usize = M::MACS;
    const PLACES: u32 = M::PLACES;
}

impl<D: Device, X: Signature, M: Module<D, X>> Module<D, X> for ResidualOf<M> {
    fn forward(cx: &mut Ctx<'_, D>, call: Forward<'_, D>) {
        let Forward { params, mut state, x, mut y, mut saved, mut scratch } = call;
        let mut own = saved.part(cx, cx.left::<M, X>());
        let step = whole::<M>();
        if M::KEEPS_Y && cx.keeps() {
            let mut inner = TensorsMut::carve_as::<X>(cx, &mut saved);
            glue::forward::<D, M, X>(cx, step, params, &mut state, &x, &mut inner, &mut own, &mut scratch);
            let inner = inner.freeze();
            for i in 0..X::SIG.len() {
                cx.device().binary(Binary::Add, x.get(i), inner.get(i), y.get(i));
            }
        } else {
            glue::forward::<D, M, X>(cx, step, params, &mut state, &x, &mut y, &mut own, &mut scratch);
            y.add(cx, x);
        }
    }

    fn vjp(cx: &mut Ctx<'_, D>, call: Vjp<'_, D>) {
        let Vjp { params, state, x, y: _, mut saved, dy, mut dx, mut dparams, mut scratch } = call;
        let own = saved.part(cx, M::SAVED);
        let y = if M::KEEPS_Y { saved.tensors_as::<X>(cx) } else { Tensors::EMPTY };
        let step = whole::<M>();
        glue::vjp::<D, M, X>(cx, step, params, state, &x, &y, own, &dy, &mut dx, &mut dparams, &mut scratch);
        dx.add(cx, dy);
    }

    fn describe(out: &mut Describe) {
        M::describe(out);
    }
}

/// N copies of M behind one another, for an M that keeps the shape: the trunk of a transformer.
///
/// Every copy has parameters, state and random numbers of its own; those of copy 0 of a field `blocks` are
/// named `blocks.0.…`. M is compiled once, however many copies there are.
///
/// ```
/// use nn::{Layer, Linear, LinearTanh, Params, Repeat, T};
/// type Trunk = Repeat<LinearTanh<8, 8>, 3>;
/// assert_eq!(<Trunk as Layer<T![8]>>::RULE.out.to_string(), "[8]");
/// let fault = <Repeat<Linear<8, 4>, 3> as Layer<T![8]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: copies in `Repeat<Linear<8, 4>, 3>` take what the one before gives, \
///      but given [8] they give [4]"
/// );
/// ```
#[layer(own_views)]
pub struct Repeat<M: Params, const N: usize>;

impl<M: Params, N: Dim> RepeatOf<M, N> {
    const CHILDREN: [Child; 1] =
        [Child::new("", M::TREE).times(if N::EXTENT.is_poison() { 0 } else { N::N })];

    fn step<X: Signature>(copy: usize) -> Step
    where
        M: Layer<X>,
    {
        Step { place: copy as u32 * M::PLACES, ..copy_of::<M>(copy) }
    }
}

impl<M: Views, N: Dim> Views for RepeatOf<M, N> {
    type View<A: Access> = Vec<M::View<A>>;
}

impl<M: Params, N: Dim> Params for RepeatOf<M, N> {
    const LABEL: Text = N::EXTENT.write(Text::new().str("Repeat<").text(&M::LABEL).str(", ")).str(">");
    const TREE: &'static Node = &Node::new(&[], &Self::CHILDREN);
}

const fn repeat(label: &Text, args: &[crate::Extent], given: &Sig, inner: &Rule) -> Rule {
    if let Some(rule) = Rule::check_positive(label, &["N"], args) {
        return rule;
    }
    if let Some(rule) = Rule::check_args(label, args) {
        return rule;
    }
    if given.is_poison() {
        return Rule::ok(Sig::POISON);
    }
    if inner.fault.is_some() {
        return Rule { out: *given, fault: inner.fault };
    }
    if inner.out.is_poison() || inner.out.same(given) {
        return Rule::ok(*given);
    }
    let text = Text::new().str("shape mismatch: copies in `").text(label);
    let text = given.write(text.str("` take what the one before gives, but given ")).str(" they give ");
    Rule { out: *given, fault: Some(Fault::new(inner.out.write(text))) }
}

impl<X: Signature, M: Layer<X>, N: Dim> Layer<X> for RepeatOf<M, N> {
    const RULE: Rule = repeat(&Self::LABEL, Self::ARGS, &X::SIG, &M::RULE);
    const KEEPS_X: bool = M::KEEPS_X;
    const KEEPS_Y: bool = M::KEEPS_Y;
    // What each copy leaves; then the values between them, if anyone reads them.
    const SAVED: Size =
        M::SAVED.times(N::N).plus(X::SIG.size().when(M::KEEPS_X || M::KEEPS_Y).times(N::N.saturating_sub(1)));
    const CACHE: Size = M::CACHE.times(N::N);
    const CAUSAL: bool = M::CAUSAL;
    // Values go to and fro between the output and this.
    const SCRATCH: Size = X::SIG.size().when(N::N > 1).plus(M::SCRATCH);
    const VJP_SCRATCH: Size =
        X::SIG.size().when(N::N > 1).plus(X::SIG.size().when(N::N > 2)).plus(M::VJP_SCRATCH);
    const MACS: usize = super::product(&[M::MACS, N::N]);
    const PLACES: u32 = M::PLACES.saturating_mul(if N::N > u32::MAX as usize { 0 } else { N::N as u32 });
}

impl<D: Device, X: Signature, M: Module<D, X>, N: Dim> Module<D, X> for RepeatOf<M, N> {
    fn forward(cx: &mut Ctx<'_, D>, call: Forward<'_, D>) {
        let Forward { params, mut state, x, mut y, mut saved, mut scratch } = call;
        let mut own = saved.parts(cx, cx.left::<M, X>(), N::N);
        let keeps = (M::KEEPS_X || M::KEEPS_Y) && cx.keeps();
        let mut slot = match N::N {
            1 => TensorsMut::unwanted(X::SIG.len()),
            _ => TensorsMut::carve_as::<X>(cx, &mut scratch.part(cx, const { X::SIG.size() })),
        };
        let mut kept = x.shorten();
        for copy in 0..N::N {
            let step = Self::step::<X>(copy);
            if keeps && copy + 1 < N::N {
                let mut to = TensorsMut::carve_as::<X>(cx, &mut saved.part(cx, const { X::SIG.size() }));
                glue::forward::<D, M, X>(
                    cx,
                    step,
                    params,
                    &mut state,
                    &kept,
                    &mut to,
                    &mut own,
                    &mut scratch,
                );
                kept = to.freeze();
                continue;
            }
            // So that the last one writes the output.
            let to_y = (N::N - copy) % 2 == 1;
            let (from, mut to) = match (copy == 0 || keeps, to_y) {
                (true, true) => (kept.shorten(), y.reborrow()),
                (true, false) => (kept.shorten(), slot.reborrow()),
                (false, true) => (slot.read(), y.reborrow()),
                (false, false) => (y.read(), slot.reborrow()),
            };
            glue::forward::<D, M, X>(cx, step, params, &mut state, &from, &mut to, &mut own, &mut scratch);
        }
    }

    fn vjp(cx: &mut Ctx<'_, D>, call: Vjp<'_, D>) {
        let Vjp { params, state, x, y, mut saved, dy, mut dx, mut dparams, mut scratch } = call;
        let own = saved.parts(cx, M::SAVED, N::N);
        let size = const { X::SIG.size() };
        // Between copy `i` and the next.
        let between = |cx: &Ctx<'_, D>, i| match M::KEEPS_X || M::KEEPS_Y {
            true => saved.nth(cx, size, i).tensors_as::<X>(cx),
            false => Tensors::EMPTY,
        };
        let mut slot = |least: usize| match N::N < least {
            true => TensorsMut::unwanted(X::SIG.len()),
            false => TensorsMut::carve_gradient_as::<X>(cx, &mut scratch.part(cx, size)),
        };
        let (mut odd, mut even) = (slot(2), slot(3));
        for copy in (0..N::N).rev() {
            let last = copy + 1 == N::N;
            let x = if copy == 0 { x.shorten() } else { between(cx, copy - 1) };
            let y = if last { y.shorten() } else { between(cx, copy) };
            let (from, mut to) = match copy % 2 == 1 {
                true => (if last { dy.shorten() } else { even.read() }, odd.reborrow()),
                false => (
                    if last { dy.shorten() } else { odd.read() },
                    if copy == 0 { dx.reborrow() } else { even.reborrow() },
                ),
            };
            let (step, own) = (Self::step::<X>(copy), own.nth(cx, M::SAVED, copy));
            glue::vjp::<D, M, X>(
                cx,
                step,
                params,
                state,
                &x,
                &y,
                own,
                &from,
                &mut to,
                &mut dparams,
                &mut scratch,
            );
        }
    }

    fn describe(out: &mut Describe) {
        for copy in 0..N::N {
            out.within(&copy.to_string(), M::describe);
        }
    }
}

/// N copies of M behind one another, each given the same further inputs: (x, c, …) → x′, where M takes (x, c, …) and gives x′ of
/// x's shape. The trunk of a transformer that is told something: the time of a diffusion, what a decoder attends to.
///
/// Names and random numbers are as those of [`Repeat`]; the gradients of c are the sums over all copies.
///
/// ```
/// use nn::{Add, Layer, RepeatConditional, T};
/// assert_eq!(<RepeatConditional<Add, 3> as Layer<(T![8], T![8])>>::RULE.out.to_string(), "[8]");
/// let fault = <RepeatConditional<Add, 3> as Layer<T![8]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `RepeatConditional<+, 3>` takes a tensor and what goes to every copy, but it is given [8]"
/// );
/// ```
#[layer(own_views)]
pub struct RepeatConditional<M: Params, const N: usize>;

/// The first tensor.
struct First<X>(PhantomData<fn() -> X>);
impl<X: Signature> Signature for First<X> {
    const SIG: Sig = if X::SIG.is_poison() || X::SIG.is_empty() { Sig::POISON } else { X::SIG.nth(0) };
}

impl<M: Views, N: Dim> Views for RepeatConditionalOf<M, N> {
    type View<A: Access> = Vec<M::View<A>>;
}

impl<M: Params, N: Dim> Params for RepeatConditionalOf<M, N> {
    const LABEL: Text =
        N::EXTENT.write(Text::new().str("RepeatConditional<").text(&M::LABEL).str(", ")).str(">");
    const TREE: &'static Node = RepeatOf::<M, N>::TREE;
}

const fn repeat_conditional(label: &Text, args: &[crate::Extent], given: &Sig, inner: &Rule) -> Rule {
    if !given.is_poison() && given.len() < 2 {
        let takes = Text::new().str("a tensor and what goes to every copy");
        return Rule::mismatch(label, takes, given, Sig::POISON);
    }
    let first = if given.is_poison() { Sig::POISON } else { given.nth(0) };
    repeat(label, args, &first, inner)
}

impl<X: Signature, M: Layer<X>, N: Dim> Layer<X> for RepeatConditionalOf<M, N> {
    const RULE: Rule = repeat_conditional(&Self::LABEL, Self::ARGS, &X::SIG, &M::RULE);
    const KEEPS_X: bool = M::KEEPS_X;
    const KEEPS_Y: bool = M::KEEPS_Y;
    const SAVED: Size = M::SAVED
        .times(N::N)
        .plus(First::<X>::SIG.size().when(M::KEEPS_X || M::KEEPS_Y).times(N::N.saturating_sub(1)));
    const CACHE: Size = M::CACHE.times(N::N);
    const CAUSAL: bool = M::CAUSAL;
    const SCRATCH: Size = First::<X>::SIG.size().when(N::N > 1).plus(M::SCRATCH);
    // Two gradients to and fro, and one of all that is given to a copy but its first.
    const VJP_SCRATCH: Size =
        First::<X>::SIG.size().times(2).plus(X::SIG.size()).when(N::N > 1).plus(M::VJP_SCRATCH);
    const MACS: usize = super::product(&[M::MACS, N::N]);
    const PLACES: u32 = <RepeatOf<M, N> as Layer<X>>::PLACES;
}

impl<D: Device, X: Signature, M: Module<D, X>, N: Dim> Module<D, X> for RepeatConditionalOf<M, N> {
    fn forward(cx: &mut Ctx<'_, D>, call: Forward<'_, D>) {
        let Forward { params, mut state, x, mut y, mut saved, mut scratch } = call;
        let mut own = saved.parts(cx, cx.left::<M, X>(), N::N);
        let keeps = (M::KEEPS_X || M::KEEPS_Y) && cx.keeps();
        let size = const { First::<X>::SIG.size() };
        let mut slot = match N::N {
            1 => TensorsMut::unwanted(1),
            _ => TensorsMut::carve_as::<First<X>>(cx, &mut scratch.part(cx, size)),
        };
        let (x, given) = x.split(1);
        let mut kept = x.shorten();
        for copy in 0..N::N {
            let step = RepeatOf::<M, N>::step::<X>(copy);
            if keeps && copy + 1 < N::N {
                let mut to = TensorsMut::carve_as::<First<X>>(cx, &mut saved.part(cx, size));
                let from = kept.join(given.shorten());
                glue::forward::<D, M, X>(
                    cx,
                    step,
                    params,
                    &mut state,
                    &from,
                    &mut to,
                    &mut own,
                    &mut scratch,
                );
                kept = to.freeze();
                continue;
            }
            // So that the last one writes the output.
            let to_y = (N::N - copy) % 2 == 1;
            let (from, mut to) = match (copy == 0 || keeps, to_y) {
                (true, true) => (kept.shorten(), y.reborrow()),
                (true, false) => (kept.shorten(), slot.reborrow()),
                (false, true) => (slot.read(), y.reborrow()),
                (false, false) => (y.read(), slot.reborrow()),
            };
            let from = from.join(given.shorten());
            glue::forward::<D, M, X>(cx, step, params, &mut state, &from, &mut to, &mut own, &mut scratch);
        }
    }

    fn vjp(cx: &mut Ctx<'_, D>, call: Vjp<'_, D>) {
        let Vjp { params, state, x, y, mut saved, dy, dx, mut dparams, mut scratch } = call;
        let own = saved.parts(cx, M::SAVED, N::N);
        let size = const { First::<X>::SIG.size() };
        let keeps = M::KEEPS_X || M::KEEPS_Y;
        let between = |cx: &Ctx<'_, D>, i| match keeps {
            true => saved.nth(cx, size, i).tensors_as::<First<X>>(cx),
            false => Tensors::EMPTY.join(Tensors::real(D::empty())),
        };
        let mut slot = || match N::N {
            1 => TensorsMut::unwanted(1),
            _ => TensorsMut::carve_gradient_as::<First<X>>(cx, &mut scratch.part(cx, size)),
        };
        let (mut odd, mut even) = (slot(), slot());
        let mut all = match N::N {
            1 => TensorsMut::unwanted(X::SIG.len()),
            _ => TensorsMut::carve_gradient_as::<X>(cx, &mut scratch.part(cx, const { X::SIG.size() })),
        };
        let (_, mut part) = all.reborrow().split(1);
        let (x, given) = x.split(1);
        let (mut dx, mut dgiven) = dx.split(1);
        for copy in (0..N::N).rev() {
            let last = copy + 1 == N::N;
            let x = if copy == 0 { x.shorten() } else { between(cx, copy - 1) };
            let y = if last { y.shorten() } else { between(cx, copy) };
            let (from, to) = match copy % 2 == 1 {
                true => (if last { dy.shorten() } else { even.read() }, odd.reborrow()),
                false => (
                    if last { dy.shorten() } else { odd.read() },
                    if copy == 0 { dx.reborrow() } else { even.reborrow() },
                ),
            };
            let mut to = to.join(if last { dgiven.reborrow() } else { part.reborrow() });
            let (step, own) = (RepeatOf::<M, N>::step::<X>(copy), own.nth(cx, M::SAVED, copy));
            let x = x.join(given.shorten());
            glue::vjp::<D, M, X>(
                cx,
                step,
                params,
                state,
                &x,
                &y,
                own,
                &from,
                &mut to,
                &mut dparams,
                &mut scratch,
            );
            drop(to);
            if !last {
                dgiven.add(cx, part.read());
            }
        }
    }

    fn describe(out: &mut Describe) {
        for copy in 0..N::N {
            out.within(&copy.to_string(), M::describe);
        }
    }
}

/// A parameter that is no layer's: a class token, a position table, a scale. It takes nothing and gives `S`, the
/// same for every sample; in a module it is read as a value, `x + self.positions`.
///
/// Its name in a checkpoint is its field's. It starts as `INIT` says, unless an `#[init(..)]` says otherwise, and decays as a
/// weight does.
///
/// ```
/// use nn::{Layer, Param, T, module};
///
/// #[module]
/// struct Shifted {
///     offset: Param<T![3]>,
/// }
/// #[module]
/// impl Shifted {
///     fn forward(&self, x: T![3]) -> T![3] {
///         x + self.offset
///     }
/// }
/// assert_eq!(<Shifted as Layer<T![3]>>::RULE.out.to_string(), "[3]");
/// ```
#[layer(own_views)]
pub struct Param<S: Signature, INIT: Initialiser = Zero>;

impl<S: Signature, INIT: Initialiser> ParamOf<S, INIT> {
    const LEAVES: [Leaf; 1] = [Leaf::new("", S::SIG.dims(0), Role::Weight, INIT::INIT).decided()];
}

impl<S: Signature, INIT: Initialiser> Views for ParamOf<S, INIT> {
    type View<A: Access> = TensorView<A, S>;
}

impl<S: Signature, INIT: Initialiser> Params for ParamOf<S, INIT> {
    const LABEL: Text = S::SIG.write(Text::new().str("Param<")).str(">");
    const TREE: &'static Node = &Node::of(&Self::LEAVES);
}

impl<X: Signature, S: Signature, INIT: Initialiser> Layer<X> for ParamOf<S, INIT> {
    const RULE: Rule = match check_shape(&Self::LABEL, &S::SIG) {
        Some(rule) => rule,
        None if X::SIG.is_empty() || X::SIG.is_poison() => Rule::ok(S::SIG),
        None => Rule::mismatch(&Self::LABEL, Text::new().str("nothing"), &X::SIG, S::SIG),
    };
}

impl<D: Device, X: Signature, S: Signature, INIT: Initialiser> Module<D, X> for ParamOf<S, INIT> {
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        let value = slice::<D>(call.params, 0, S::SIG.dims(0).numel());
        cx.device().broadcast_rows(cx.batch, value, call.y.get(0));
    }

    fn vjp(cx: &mut Ctx<'_, D>, call: Vjp<'_, D>) {
        if let Some(dparams) = call.dparams {
            let gradient = slice_mut::<D>(dparams, 0, S::SIG.dims(0).numel());
            cx.device().sum_rows(cx.batch, call.dy.get(0), gradient);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Run, Values, gradients};
    use crate::{
        BatchNorm2D, Cpu, Dropout, Ids, Linear, LinearReLU, LinearTanh, Mode, ReLU, Sci, Softmax, T, module,
        sequential,
    };

    sequential! {
        /// Reads its input and its output, and has values in between.
        Block: [4] -> [4] = LinearTanh<4, 6>, LinearReLU<6, 4>
    }

    #[module]
    struct Token {
        token: Param<T![2, 3]>,
    }
    #[module]
    impl Token {
        fn forward(&self, x: T![2, 3]) -> T![2, 3] {
            x * self.token + self.token
        }
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            gradients::<Residual<Linear<4, 4>>, T![4]>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<Residual<LinearTanh<4, 4>>, T![..3, 4]>(batch, Mode::Train, 2).assert_within(1e-7);
            gradients::<Residual<Softmax>, T![5]>(batch, Mode::Train, 3).assert_within(1e-7);
            gradients::<Residual<Block>, T![4]>(batch, Mode::Train, 4).assert_within(1e-7);
            gradients::<Residual<Dropout<Sci<5, -1>>>, T![8]>(batch, Mode::Train, 5).assert_within(1e-7);
            gradients::<Repeat<LinearTanh<4, 4>, 1>, T![4]>(batch, Mode::Train, 6).assert_within(1e-7);
            gradients::<Repeat<Block, 2>, T![4]>(batch, Mode::Train, 7).assert_within(1e-7);
            gradients::<Repeat<Residual<Block>, 3>, T![4]>(batch, Mode::Train, 8).assert_within(1e-7);
            gradients::<Repeat<Residual<LinearTanh<3, 3>>, 4>, T![..4, 3]>(batch, Mode::Infer, 9)
                .assert_within(1e-7);
            // Neither input nor output is read, so that nothing is kept.
            gradients::<Repeat<Dropout<Sci<2, -1>>, 5>, T![9]>(batch, Mode::Train, 10).assert_within(1e-7);
            gradients::<Repeat<Repeat<Softmax, 2>, 3>, T![4]>(batch, Mode::Train, 11).assert_within(1e-7);
            gradients::<Param<T![2, 3]>, ()>(batch, Mode::Train, 12).assert_within(1e-7);
            gradients::<Token, T![2, 3]>(batch, Mode::Train, 13).assert_within(1e-7);
        }
        gradients::<Repeat<BatchNorm2D<2>, 3>, T![2, 2, 3]>(3, Mode::Train, 14).assert_within(1e-7);
        gradients::<Repeat<Residual<BatchNorm2D<2>>, 2>, T![2, 2, 3]>(3, Mode::Infer, 15).assert_within(1e-7);
    }

    #[test]
    fn wrappers_do_not_show_in_names_and_copies_are_numbered() {
        let run = Run::<Repeat<Residual<Block>, 2>, T![4], Cpu<f64>>::new(&Cpu::default(), 1);
        let paths: Vec<_> = run.paths().map(|(path, _)| path.to_owned()).collect();
        let each = ["0.weight", "0.bias", "1.weight", "1.bias"];
        let all: Vec<_> = (0..2).flat_map(|i| each.map(|name| format!("{i}.{name}"))).collect();
        assert_eq!(paths, all);
        assert_ne!(run.get("0.0.weight"), run.get("1.0.weight"));

        let run = Run::<Token, T![2, 3], Cpu<f64>>::new(&Cpu::default(), 1);
        assert_eq!(run.paths().collect::<Vec<_>>(), [("token", vec![2, 3])]);
        assert_eq!(run.get("token"), [0.0; 6]);

        let rows = Describe::of::<Repeat<Residual<Block>, 2>, Cpu<f64>, T![4]>().rows;
        let paths: Vec<_> = rows.iter().map(|row| row.path.as_str()).collect();
        assert_eq!(paths, ["0.0", "0.1", "1.0", "1.1"]);
    }

    #[test]
    fn copies_run_in_order_each_with_its_parameters() {
        let x = [Values::Real(vec![1.0, 10.0])];
        for keep in [false, true] {
            let mut run = Run::<Repeat<Linear<1, 1>, 3>, T![1], Cpu<f64>>::new(&Cpu::default(), 2);
            for (i, (weight, bias)) in [(2.0, 1.0), (3.0, 0.0), (1.0, -5.0)].into_iter().enumerate() {
                run.set(&format!("{i}.weight"), &[weight]);
                run.set(&format!("{i}.bias"), &[bias]);
            }
            let y = if keep { run.forward(&x) } else { run.forward_only(&x) };
            assert_eq!(y[0].real(), [4.0, 58.0]);
        }
    }

    #[test]
    fn copies_draw_random_numbers_of_their_own() {
        type Twice = Repeat<Dropout<Sci<5, -1>>, 2>;
        let mut run = Run::<Twice, T![1000], Cpu<f64>>::new(&Cpu::default(), 1).mode(Mode::Train);
        let y = run.forward(&[Values::Real(vec![1.0; 1000])]);
        let kept = y[0].real().iter().filter(|&&v| v == 4.0).count();
        // A quarter passes both; with the same numbers half would.
        assert!((200..300).contains(&kept), "{kept}");
    }

    #[test]
    fn copies_have_states_of_their_own_and_know_the_mode() {
        type Two = Repeat<Residual<BatchNorm2D<1>>, 2>;
        let mut run = Run::<Two, T![1, 1, 2], Cpu<f64>>::new(&Cpu::default(), 2);
        let x = [Values::Real(vec![1.0, 2.0, 3.0, 6.0])];
        run.forward(&x);
        assert_eq!(run.get("0.running_mean"), [0.0]);
        run.mode = Mode::Train;
        run.forward(&x);
        assert!((run.get("0.running_mean")[0] - 0.3).abs() < 1e-15);
        // The first copy's output has mean 3 too, for what it adds has mean zero; its variance is another.
        assert!((run.get("1.running_mean")[0] - 0.3).abs() < 1e-15);
        assert!(run.get("1.running_var")[0] > run.get("0.running_var")[0] + 0.1);
    }

    #[test]
    fn values_between_copies_take_one_buffer_unless_they_are_read() {
        type Deep = Repeat<LinearTanh<4, 4>, 50>;
        assert_eq!(<Deep as Layer<T![4]>>::SCRATCH, Size::elements(4));
        assert_eq!(<Deep as Layer<T![4]>>::SAVED, Size::elements(4).times(49));
        type Free = Repeat<Dropout<Sci<5, -1>>, 50>;
        assert_eq!(<Free as Layer<T![4]>>::SAVED, Size::ZERO);
        assert_eq!(<Deep as Layer<T![4]>>::PLACES, 50);
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        fn fault<L: Layer<X>, X: Signature>() -> String {
            let _ = (L::SAVED, L::SCRATCH, L::VJP_SCRATCH, L::MACS, L::PLACES);
            L::RULE.fault.unwrap().to_string()
        }
        // One of what is inside is said as it is.
        assert_eq!(
            fault::<Repeat<Residual<Linear<4, 4>>, 3>, T![5]>(),
            "shape mismatch: `Linear<4, 4>` takes [.., 4], but it is given [5]"
        );
        assert_eq!(
            fault::<Repeat<Block, 2>, T![5]>(),
            "shape mismatch: `Block` takes [4], but it is given [5]"
        );
        assert_eq!(fault::<Repeat<ReLU, 0>, T![5]>(), "`Repeat<ReLU, 0>` can't exist: N is 0");
        assert_eq!(
            fault::<Residual<crate::Embedding<4, 4>>, Ids<T![5]>>(),
            "shape mismatch: `Residual<Embedding<4, 4>>` takes real numbers, but it is given ids [5]"
        );
        assert_eq!(
            fault::<Param<T![2]>, T![5]>(),
            "shape mismatch: `Param<[2]>` takes nothing, but it is given [5]"
        );
        assert_eq!(
            fault::<Param<(T![2], T![2])>, ()>(),
            "`Param<([2], [2])>` can't exist: it is one tensor of real numbers"
        );
        type Third = crate::S1<crate::Over<crate::C<4>, crate::C<3>>>;
        assert_eq!(fault::<Param<Third>, ()>(), "`Param<[?]>` can't exist: 4 / 3 is not a whole number");
    }
}
