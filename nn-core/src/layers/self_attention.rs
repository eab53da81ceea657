//! A whole block of self-attention: projections, norms, positions, attention.

use nn_kernels::Device;
use nn_kernels::ops::{AttentionGradients, AttentionSpec, Block, RopeSpec, Strides};

use crate::ctx::Ctx;
use crate::dims::{Dim, Dims, Extent, Plus, Times};
use crate::fault::{Input, Rule, label_with_defaults, one_real};
use crate::init::Init;
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::attention::{self, Call};
use crate::layers::linear::{No, Switch, Yes};
use crate::layers::quantized::{MaybeFormat, Part, check_format};
use crate::layers::{as_given, product, rows_of};
use crate::real::MaybeReal;
use crate::region::{slice, slice_mut};
use crate::signature::{S1, Sig, Signature};
use crate::tree::{Child, Leaf, Node, Piece, Role};
use crate::views::{Access, Arenas, FromArenas, TensorView, Views};
use crate::{C, Size, Text, layer};

/// Self-attention of S tokens as a block: projections to queries, keys and values, attention in H heads of D values, and
/// a projection back: `[S, DIM]` keeps its shape. S may be bounded.
///
/// * KV heads of keys and values serve H heads of queries, as in [`GQAAttention`](crate::GQAAttention). D is DIM/H if it is 0.
/// * CAUSAL is [`Yes`]: token t sees the tokens up to t and no later one. With [`No`], all see all.
/// * ROPE is a number: queries and keys are turned by their positions, with that base, as in [`RoPE`](crate::RoPE).
/// * NORM is a number: each head of the queries and of the keys is normalised by itself, before it is turned, as in
///   [`RMSNorm`](crate::RMSNorm) with that ε, each with a gain of D values.
/// * BIAS: the projections to queries, keys and values have one. OBIAS: the one back has.
/// * F is a [`Format`](crate::Format): the projections are [`QuantizedLinear`](crate::QuantizedLinear)s, which don't learn.
///
/// [`CausalSelfAttention`] is GPT-2's. Parameters: `q_proj`, `k_proj`, `v_proj` and `o_proj`, each with `weight` and perhaps `bias`,
/// as in [`Linear`](crate::Linear); `q_norm.weight` and `k_norm.weight` `[D]`, if there is a norm. In memory the first three are one matrix, and one
/// product computes them. Vaswani et al. 2017, arXiv:1706.03762; Henry et al. 2020, arXiv:2010.04245.
///
/// ```
/// use nn::{Layer, Sci, SelfAttention, T, Yes};
/// type Llama = SelfAttention<128, 64, 4, 2, 0, Yes, Sci<1, 4>>;
/// assert_eq!(<Llama as Layer<T![..128, 64]>>::RULE.out.to_string(), "[..128, 64]");
/// let fault = <SelfAttention<128, 64, 4, 3> as Layer<T![128, 64]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "`SelfAttention<128, 64, 4, 3>` can't exist: 4 query heads can't share 3 heads of keys and values"
/// );
/// ```
#[layer(own_views)]
pub struct SelfAttention<
    const S: usize,
    const DIM: usize,
    const H: usize,
    const KV: usize,
    const D: usize = 0,
    CAUSAL: Switch = Yes,
    ROPE: MaybeReal = No,
    NORM: MaybeReal = No,
    BIAS: Switch = Yes,
    OBIAS: Switch = Yes,
    F: MaybeFormat = No,
>;

/// [`SelfAttention`] in which no token sees a later one, with as many heads of keys and values as of queries, and biases: GPT-2's.
///
/// ```
/// use nn::{CausalSelfAttention, Layer, T};
/// assert_eq!(<CausalSelfAttention<128, 64, 4> as Layer<T![128, 64]>>::RULE.out.to_string(), "[128, 64]");
/// let fault = <CausalSelfAttention<128, 64, 4> as Layer<T![128, 60]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `CausalSelfAttention<128, 64, 4>` takes [128, 64], but it is given [128, 60]"
/// );
/// ```
#[layer(own_views)]
pub struct CausalSelfAttention<const S: usize, const DIM: usize, const H: usize>;

type Gpt2<S, DIM, H> = SelfAttentionOf<S, DIM, H, H, C<0>, Yes, No, No, Yes, Yes, No>;

delegate! {
    leaf CausalSelfAttentionOf<S: Dim, DIM: Dim, H: Dim> => Gpt2<S, DIM, H>
}

/// Heads of the queries, of keys and values, and values in a head.
struct Heads {
    q: usize,
    kv: usize,
    dim: usize,
}

impl Heads {
    const fn queries(&self) -> usize {
        self.q.saturating_mul(self.dim)
    }

    /// Of keys, or of values.
    const fn keys(&self) -> usize {
        self.kv.saturating_mul(self.dim)
    }

    /// Queries, keys and values of a token, side by side.
    const fn width(&self) -> usize {
        self.queries().saturating_add(self.keys().saturating_mul(2))
    }
}

/// How many values a head of [`SelfAttention`] has: D, or DIM/H if that is 0.
#[derive(Clone, Copy, Debug)]
pub struct HeadDim<DIM, H, D>(std::marker::PhantomData<(DIM, H, D)>);
impl<DIM: Dim, H: Dim, D: Dim> Dim for HeadDim<DIM, H, D> {
    const EXTENT: Extent = if D::N == 0 { DIM::EXTENT.over(H::EXTENT) } else { D::EXTENT };
}

type Proj<DIM, H, KV, D, BIAS, F> =
    <F as MaybeFormat>::Linear<DIM, Times<Plus<H, Plus<KV, KV>>, HeadDim<DIM, H, D>>, BIAS>;
type Out<DIM, H, D, BIAS, F> = <F as MaybeFormat>::Linear<Times<H, HeadDim<DIM, H, D>>, DIM, BIAS>;

type GainView<A, DIM, H, D> = TensorView<A, S1<HeadDim<DIM, H, D>>>;

/// The parameters of a [`SelfAttention`].
pub struct SelfAttentionView<
    A: Access,
    DIM: Dim,
    H: Dim,
    KV: Dim,
    D: Dim,
    BIAS: Switch,
    OBIAS: Switch,
    F: MaybeFormat,
> {
    /// The projections to queries, keys and values, one under the other.
    pub qkv: <Proj<DIM, H, KV, D, BIAS, F> as Views>::View<A>,
    /// The projection back.
    pub o_proj: <Out<DIM, H, D, OBIAS, F> as Views>::View<A>,
    /// The gain of the queries' norm, if there is one.
    pub q_norm: Option<GainView<A, DIM, H, D>>,
    /// The gain of the keys' norm, if there is one.
    pub k_norm: Option<GainView<A, DIM, H, D>>,
}

impl<A: Access, DIM: Dim, H: Dim, KV: Dim, D: Dim, BIAS: Switch, OBIAS: Switch, F: MaybeFormat> FromArenas<A>
    for SelfAttentionView<A, DIM, H, KV, D, BIAS, OBIAS, F>
{
    fn from_arenas(mut arenas: Arenas<A>) -> Self {
        let norms = arenas.children() > 2;
        Self {
            qkv: arenas.child(0),
            o_proj: arenas.child(1),
            q_norm: norms.then(|| arenas.child::<Gain<A, _>>(2).0),
            k_norm: norms.then(|| arenas.child::<Gain<A, _>>(3).0),
        }
    }
}

/// A gain as a part of its own.
struct Gain<A: Access, N: Dim>(TensorView<A, S1<N>>);
impl<A: Access, N: Dim> FromArenas<A> for Gain<A, N> {
    fn from_arenas(mut arenas: Arenas<A>) -> Self {
        Self(arenas.leaf("weight").expect("a norm has a gain"))
    }
}

impl<S, DIM, H, KV, D, CAUSAL, ROPE, NORM, BIAS, OBIAS, F> Views
    for SelfAttentionOf<S, DIM, H, KV, D, CAUSAL, ROPE, NORM, BIAS, OBIAS, F>
where
    S: Dim,
    DIM: Dim,
    H: Dim,
    KV: Dim,
    D: Dim,
    CAUSAL: Switch,
    ROPE: MaybeReal,
    NORM: MaybeReal,
    BIAS: Switch,
    OBIAS: Switch,
    F: MaybeFormat,
{
    type View<A: Access> = SelfAttentionView<A, DIM, H, KV, D, BIAS, OBIAS, F>;
}

impl<S, DIM, H, KV, D, CAUSAL, ROPE, NORM, BIAS, OBIAS, F>
    SelfAttentionOf<S, DIM, H, KV, D, CAUSAL, ROPE, NORM, BIAS, OBIAS, F>
where
    S: Dim,
    DIM: Dim,
    H: Dim,
    KV: Dim,
    D: Dim,
    CAUSAL: Switch,
    ROPE: MaybeReal,
    NORM: MaybeReal,
    BIAS: Switch,
    OBIAS: Switch,
    F: MaybeFormat,
{
    const HEAD: Extent = <HeadDim<DIM, H, D> as Dim>::EXTENT;
    const HEADS: Heads = Heads {
        q: H::N,
        kv: KV::N,
        // What is impossible is a fault, and nothing runs.
        dim: if Self::wrong(&Text::new()).is_some() { 1 } else { Self::HEAD.n },
    };
    const QUERIES: Extent = H::EXTENT.times(Self::HEAD);
    const KEYS: Extent = KV::EXTENT.times(Self::HEAD);
    const PIECES: [Piece; 3] = [
        Piece::of("q_proj", Self::QUERIES),
        Piece::of("k_proj", Self::KEYS),
        Piece::of("v_proj", Self::KEYS),
    ];
    const GAIN: [Leaf; 1] = [Leaf::new("weight", Dims::new(&[Self::HEAD]), Role::Scale, Init::Constant(1.0))];
    const GAINS: Node = Node::of(&Self::GAIN);
    const PARTS: [Child; 4] = [
        Child::new("qkv", Self::PROJ).fused(&Self::PIECES),
        Child::new("o_proj", Self::OUT),
        Child::new("q_norm", &Self::GAINS),
        Child::new("k_norm", &Self::GAINS),
    ];
    const PROJ: &'static Node = Proj::<DIM, H, KV, D, BIAS, F>::TREE;
    const OUT: &'static Node = Out::<DIM, H, D, OBIAS, F>::TREE;

    /// What is wrong with it, whatever it is given.
    const fn wrong(label: &Text) -> Option<Rule> {
        let positive = Rule::check_positive(label, &["S", "DIM", "H", "KV"], Self::ARGS);
        match (positive, Rule::check_args(label, Self::ARGS)) {
            (Some(rule), _) | (None, Some(rule)) => Some(rule),
            _ if Self::HEAD.is_poison() => {
                let text =
                    Text::new().num(DIM::N).str(" values can't be divided into ").num(H::N).str(" heads");
                Some(Rule::cannot_exist(label, text))
            }
            _ if !H::N.is_multiple_of(KV::N) => {
                let text = Text::new().num(H::N).str(" query heads can't share ").num(KV::N);
                Some(Rule::cannot_exist(label, text.str(" heads of keys and values")))
            }
            _ if ROPE::MAYBE.is_some() && !Self::HEAD.n.is_multiple_of(2) => {
                let text = Text::new().str("a head of ").num(Self::HEAD.n);
                Some(Rule::cannot_exist(label, text.str(" values can't be divided into pairs")))
            }
            _ => match Rule::check_args(label, &[Self::QUERIES.plus(Self::KEYS).plus(Self::KEYS)]) {
                Some(rule) => Some(rule),
                None => match check_format::<F>(label, DIM::EXTENT) {
                    Some(rule) => Some(rule),
                    None => check_format::<F>(label, Self::QUERIES),
                },
            },
        }
    }

    pub(super) const fn rule<X: Signature>(label: &Text) -> Rule {
        if let Some(rule) = Self::wrong(label) {
            return rule;
        }
        let given = &X::SIG;
        let dims = match one_real(label, &[], given) {
            Input::Done(rule) => return rule,
            Input::Tensor(dims) => dims,
        };
        if dims.rank() == 2 && dims.n(0) == S::N && dims.axis(1).same(&DIM::EXTENT) {
            return Rule::ok(Sig::real(dims));
        }
        let takes = Dims::new(&[as_given(S::EXTENT, &dims, 0), DIM::EXTENT]).write(Text::new());
        Rule::mismatch(label, takes, given, Sig::real(dims)).keeping()
    }

    fn into() -> Part {
        Part::of::<F>(Self::TREE, 0, DIM::N, Self::HEADS.width())
    }

    fn back() -> Part {
        Part::of::<F>(Self::TREE, 1, Self::HEADS.queries(), DIM::N)
    }

    fn gain(which: usize) -> usize {
        <Self as Params>::TREE.field(2 + which).params
    }

    /// The attention proper, on queries, keys and values side by side.
    fn call<M: Device>(cx: &Ctx<'_, M>, tokens: usize) -> Call {
        let Heads { q, kv, dim } = Self::HEADS;
        let lies = Strides::token_major(tokens, Self::HEADS.width(), dim);
        let spec = AttentionSpec::new(cx.batch, tokens, tokens, q, kv, dim);
        let spec = AttentionSpec { causal: CAUSAL::ON, q: lies, k: lies, v: lies, ..spec };
        Call::new(spec, Self::starts(), S::N)
    }

    /// Where queries, keys and values start in a token.
    const fn starts() -> [usize; 3] {
        let (queries, keys) = (Self::HEADS.queries(), Self::HEADS.keys());
        [0, queries, queries.saturating_add(keys)]
    }

    fn turn<M: Device>(cx: &Ctx<'_, M>, theta: f64, tokens: usize, heads: usize) -> RopeSpec {
        let dim = Self::HEADS.dim;
        RopeSpec {
            rows: cx.batch * tokens,
            seq: tokens.max(1),
            offset: cx.position(),
            heads,
            dim,
            rotary: dim,
            theta,
            interleaved: false,
        }
    }

    /// The columns of queries (0) or keys (1), and how many heads they are.
    const fn columns(which: usize) -> (Block, usize) {
        let block = Block { offset: Self::starts()[which], stride: Self::HEADS.width() };
        (block, if which == 0 { H::N } else { KV::N })
    }
}

/// So many statistics for each token.
const fn statistics(given: &Sig, values: usize) -> Size {
    Size::wide(product(&[rows_of(&given.dims(0)), values]))
}

/// So many values for each token.
const fn each(given: &Sig, values: usize) -> Size {
    Size::elements(product(&[rows_of(&given.dims(0)), values]))
}

impl<S, DIM, H, KV, D, CAUSAL, ROPE, NORM, BIAS, OBIAS, F> Params
    for SelfAttentionOf<S, DIM, H, KV, D, CAUSAL, ROPE, NORM, BIAS, OBIAS, F>
where
    S: Dim,
    DIM: Dim,
    H: Dim,
    KV: Dim,
    D: Dim,
    CAUSAL: Switch,
    ROPE: MaybeReal,
    NORM: MaybeReal,
    BIAS: Switch,
    OBIAS: Switch,
    F: MaybeFormat,
{
    const LABEL: Text = label_with_defaults("SelfAttention", Self::ARGS, &[None, None, None, None, Some(0)]);
    const TREE: &'static Node = if NORM::MAYBE.is_some() {
        &Node::new(&[], &Self::PARTS)
    } else {
        &Node::new(&[], Self::PARTS.split_at(2).0)
    };
}

impl<X, S, DIM, H, KV, D, CAUSAL, ROPE, NORM, BIAS, OBIAS, F> Layer<X>
    for SelfAttentionOf<S, DIM, H, KV, D, CAUSAL, ROPE, NORM, BIAS, OBIAS, F>
where
    X: Signature,
    S: Dim,
    DIM: Dim,
    H: Dim,
    KV: Dim,
    D: Dim,
    CAUSAL: Switch,
    ROPE: MaybeReal,
    NORM: MaybeReal,
    BIAS: Switch,
    OBIAS: Switch,
    F: MaybeFormat,
{
    const RULE: Rule = Self::rule::<X>(&<Self as Params>::LABEL);
    const KEEPS_X: bool = true;
    // Queries, keys and values as attention saw them, what it gave, and its sums; queries and keys before their norm, and that's.
    const SAVED: Size = each(&X::SIG, Self::HEADS.width())
        .plus(each(&X::SIG, Self::HEADS.queries()))
        .plus(attention::saved(S::N, H::N))
        .plus(
            each(&X::SIG, Self::HEADS.queries())
                .plus(each(&X::SIG, Self::HEADS.keys()))
                .plus(statistics(&X::SIG, H::N))
                .plus(statistics(&X::SIG, KV::N))
                .when(NORM::MAYBE.is_some()),
        );
    const CACHE: Size = attention::cache(S::N, KV::N, Self::HEADS.dim).when(CAUSAL::ON);
    const CAUSAL: bool = CAUSAL::ON;
    // Those that forward keeps, if it keeps none; and two of queries or keys.
    const SCRATCH: Size =
        each(&X::SIG, Self::HEADS.width()).plus(each(&X::SIG, Self::HEADS.queries()).times(4));
    const VJP_SCRATCH: Size = each(&X::SIG, Self::HEADS.width())
        .plus(each(&X::SIG, Self::HEADS.queries()).times(4))
        .plus(attention::vjp_scratch(S::N, KV::N, Self::HEADS.dim));
    const MACS: usize = product(&[
        rows_of(&X::SIG.dims(0)),
        DIM::N,
        Self::HEADS.width().saturating_add(Self::HEADS.queries()),
    ])
    .saturating_add(attention::macs(S::N, S::N, H::N, Self::HEADS.dim, CAUSAL::ON));
}

impl<M, X, S, DIM, H, KV, D, CAUSAL, ROPE, NORM, BIAS, OBIAS, F> Module<M, X>
    for SelfAttentionOf<S, DIM, H, KV, D, CAUSAL, ROPE, NORM, BIAS, OBIAS, F>
where
    M: Device,
    X: Signature,
    S: Dim,
    DIM: Dim,
    H: Dim,
    KV: Dim,
    D: Dim,
    CAUSAL: Switch,
    ROPE: MaybeReal,
    NORM: MaybeReal,
    BIAS: Switch,
    OBIAS: Switch,
    F: MaybeFormat,
{
    fn forward(cx: &mut Ctx<'_, M>, mut call: Forward<'_, M>) {
        let tokens = X::SIG.dims(0).axis_at(0, &cx.lengths);
        let (rows, heads, device, keeps) = (cx.batch * tokens, Self::HEADS, cx.device(), cx.keeps());
        let attention = Self::call(cx, tokens);
        let (saved, scratch) = (&mut call.saved, &mut call.scratch);
        let mut room = |n: usize| if keeps { saved.take(n) } else { scratch.take(n) };
        let (mut packed, mut mixed) = (room(rows * heads.width()), room(rows * heads.queries()));
        let lse = keeps.then(|| saved.take(attention.lse()));

        let arenas = (call.params, call.state.read());
        Self::into().forward(device, rows, arenas, call.x.get(0), M::reborrow(&mut packed));
        for which in if NORM::MAYBE.is_some() || ROPE::MAYBE.is_some() { 0..2 } else { 0..0 } {
            let (block, n) = Self::columns(which);
            let (cols, own) = (n * heads.dim, Block { offset: 0, stride: n * heads.dim });
            let mut here = scratch.reborrow();
            let (mut raw, mut normed, mut turned) =
                (here.take(rows * cols), here.take(rows * cols), here.take(rows * cols));
            let mut last = &mut raw;
            device.copy_block(rows, cols, M::read(&packed), block, M::reborrow(last), own);
            if let Some(eps) = NORM::MAYBE {
                if keeps {
                    device.copy(M::read(last), saved.take(rows * cols));
                }
                let gain = slice::<M>(call.params, Self::gain(which), heads.dim);
                let stats = keeps.then(|| saved.take(rows * n));
                device.rms_norm(heads.dim, eps, M::read(last), Some(gain), M::reborrow(&mut normed), stats);
                last = &mut normed;
            }
            if let Some(theta) = ROPE::MAYBE {
                let turn = Self::turn(cx, theta, tokens, n);
                device.rope(&turn, false, M::read(last), M::reborrow(&mut turned));
                last = &mut turned;
            }
            device.copy_block(rows, cols, M::read(last), own, M::reborrow(&mut packed), block);
        }
        attention.attend(cx, M::read(&packed), M::reborrow(&mut mixed), lse, saved);
        Self::back().forward(device, rows, arenas, M::read(&mixed), call.y.get(0));
    }

    fn vjp(cx: &mut Ctx<'_, M>, mut call: Vjp<'_, M>) {
        let tokens = X::SIG.dims(0).axis_at(0, &cx.lengths);
        let (rows, heads, device) = (cx.batch * tokens, Self::HEADS, cx.device());
        let (saved, scratch) = (&mut call.saved, &mut call.scratch);
        let packed = saved.take(rows * heads.width());
        let mixed = saved.take(rows * heads.queries());
        let attention = Self::call(cx, tokens);
        let lse = saved.take(attention.lse());

        let mut dparams = call.dparams;
        let mut dpacked = scratch.take(rows * heads.width());
        let mut dmixed = scratch.take(rows * heads.queries());
        let arenas = (call.params, call.state);
        let (dy, to) = (call.dy.get(0), Some(M::reborrow(&mut dmixed)));
        Self::back().vjp(device, rows, arenas, mixed, dy, to, &mut dparams);

        let sums = scratch.reborrow().take(attention.vjp_scratch());
        let to = AttentionGradients::Packed { qkv: M::reborrow(&mut dpacked), at: Self::starts() };
        attention.attend_vjp(cx, packed, mixed, lse, M::read(&dmixed), to, sums);

        for which in if NORM::MAYBE.is_some() || ROPE::MAYBE.is_some() { 0..2 } else { 0..0 } {
            let (block, n) = Self::columns(which);
            let (cols, own) = (n * heads.dim, Block { offset: 0, stride: n * heads.dim });
            let mut here = scratch.reborrow();
            let (mut given, mut turned, mut raw) =
                (here.take(rows * cols), here.take(rows * cols), here.take(rows * cols));
            let mut last = &mut given;
            device.copy_block(rows, cols, M::read(&dpacked), block, M::reborrow(last), own);
            if let Some(theta) = ROPE::MAYBE {
                let turn = Self::turn(cx, theta, tokens, n);
                device.rope(&turn, true, M::read(last), M::reborrow(&mut turned));
                last = &mut turned;
            }
            if NORM::MAYBE.is_some() {
                let (before, stats) = (saved.take(rows * cols), saved.take(rows * n));
                let at = Self::gain(which);
                let gain = slice::<M>(call.params, at, heads.dim);
                let dgain = dparams.as_mut().map(|d| slice_mut::<M>(M::reborrow(d), at, heads.dim));
                let to = Some(M::reborrow(&mut raw));
                device.rms_norm_vjp(heads.dim, before, Some(gain), stats, M::read(last), to, dgain);
                last = &mut raw;
            }
            device.copy_block(rows, cols, M::read(last), own, M::reborrow(&mut dpacked), block);
        }
        let (x, dx) = (call.x.get(0), call.dx.wanted(0));
        Self::into().vjp(device, rows, arenas, x, M::read(&dpacked), dx, &mut dparams);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Run, Values, gradients};
    use crate::{Cpu, GQAAttention, Linear, LinearNoBias, Mode, RMSNorm, Reshape, RoPE, Sci, T, module};

    type Theta = Sci<1, 2>;
    type Eps = Sci<1, -2>;

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            let mode = Mode::Train;
            gradients::<CausalSelfAttention<4, 6, 2>, T![4, 6]>(batch, mode, 1).assert_within(1e-7);
            gradients::<SelfAttention<4, 6, 2, 1>, T![..4, 6]>(batch, mode, 2).assert_within(1e-7);
            gradients::<SelfAttention<3, 4, 4, 2, 2, No, Theta, No, No, No>, T![3, 4]>(batch, mode, 3)
                .assert_within(1e-7);
            gradients::<SelfAttention<3, 4, 2, 1, 2, Yes, Theta, Eps, Yes, No>, T![3, 4]>(batch, mode, 4)
                .assert_within(1e-6);
            gradients::<SelfAttention<3, 4, 2, 2, 3, No, No, Eps, No, Yes>, T![..3, 4]>(batch, mode, 5)
                .assert_within(1e-6);
        }
    }

    /// The same, layer by layer: each head normalised, then turned.
    #[module]
    struct Apart {
        q_proj: Linear<6, 16>,
        k_proj: Linear<6, 8>,
        v_proj: Linear<6, 8>,
        q_norm: RMSNorm<4, 1e-2>,
        k_norm: RMSNorm<4, 1e-2>,
        attend: GQAAttention<5, 4, 2, 4>,
        o_proj: LinearNoBias<16, 6>,
    }
    #[module]
    impl Apart {
        fn forward(&self, x: T![5, 6]) -> T![5, 6] {
            let q = Reshape::<T![5, 16]>(self.q_norm(Reshape::<T![20, 4]>(self.q_proj(x))));
            let k = Reshape::<T![5, 8]>(self.k_norm(Reshape::<T![10, 4]>(self.k_proj(x))));
            let (q, k) = (RoPE::<5, 4, 4, 1e2>(q), RoPE::<5, 2, 4, 1e2>(k));
            self.o_proj(self.attend(q, k, self.v_proj(x)))
        }
    }

    fn numbers(n: usize, seed: u32) -> Vec<f64> {
        let draw = |i: u32| f64::from((i + seed).wrapping_mul(2_654_435_761) >> 16) / 32768.0 - 1.0;
        (0..n as u32).map(draw).collect()
    }

    type ByPath = Vec<(String, Vec<f64>)>;

    /// Output, input gradient and every parameter's gradient by path.
    fn step<M: Module<Cpu<f64>, T![5, 6]>>() -> (Vec<f64>, Vec<f64>, ByPath) {
        let mut run = Run::<M, T![5, 6], Cpu<f64>>::new(&Cpu::default(), 2);
        let mut paths: Vec<_> = run.paths().map(|(path, dims)| (path.to_owned(), dims)).collect();
        paths.sort();
        for (i, (path, dims)) in paths.iter().enumerate() {
            run.set(path, &numbers(dims.iter().product(), 100 * i as u32));
        }
        let y = run.forward(&[Values::Real(numbers(60, 7))])[0].real().to_vec();
        let gradients = run.vjp(&[Values::Real(numbers(60, 9))]);
        let each =
            paths.into_iter().map(|(path, _)| (path.clone(), run.gradient(&gradients, &path))).collect();
        (y, gradients.dx[0].clone().unwrap(), each)
    }

    fn close(a: &[f64], b: &[f64]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12)
    }

    #[test]
    fn the_block_is_its_parts_one_after_the_other() {
        type Block = SelfAttention<5, 6, 4, 2, 4, Yes, Theta, Eps, Yes, No>;
        let (whole, parts) = (step::<Block>(), step::<Apart>());
        assert!(close(&whole.0, &parts.0) && close(&whole.1, &parts.1));
        assert_eq!(whole.2.len(), 9);
        for ((path, found), (expected_path, expected)) in whole.2.iter().zip(&parts.2) {
            assert_eq!(path, expected_path);
            assert!(close(found, expected), "{path}");
        }
    }

    #[test]
    fn names_are_of_separate_projections_and_no_token_sees_a_later_one() {
        let mut run = Run::<CausalSelfAttention<3, 4, 2>, T![3, 4], Cpu<f64>>::new(&Cpu::default(), 1);
        run.init(1);
        let paths: Vec<_> = run.paths().map(|(path, dims)| (path.to_owned(), dims)).collect();
        let names = ["q_proj", "k_proj", "v_proj", "o_proj"];
        for (name, pair) in ["q_proj", "k_proj", "v_proj"].iter().zip(paths.chunks(2)) {
            assert_eq!(pair[0], (format!("{name}.weight"), vec![4, 4]));
            assert_eq!(pair[1], (format!("{name}.bias"), vec![4]));
        }
        assert_eq!(paths.len(), 2 * names.len());
        let x = numbers(12, 1);
        let mut later = x.clone();
        later[8..].iter_mut().for_each(|x| *x += 1.0);
        let y = run.forward(&[Values::Real(x)])[0].real().to_vec();
        let other = run.forward(&[Values::Real(later)])[0].real().to_vec();
        assert_eq!(y[..8], other[..8]);
        assert_ne!(y[8..], other[8..]);
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        let fault = <CausalSelfAttention<8, 6, 4> as Layer<T![8, 6]>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "`CausalSelfAttention<8, 6, 4>` can't exist: 6 values can't be divided into 4 heads"
        );
        let fault = <SelfAttention<8, 6, 2, 2, 0, Yes, Theta> as Layer<T![8, 6]>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "`SelfAttention<8, 6, 2, 2>` can't exist: a head of 3 values can't be divided into pairs"
        );
        let fault = <SelfAttention<8, 6, 2, 0> as Layer<T![8, 6]>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "`SelfAttention<8, 6, 2, 0>` can't exist: KV is 0");
        let fault = <SelfAttention<8, 6, 2, 2> as Layer<T![..9, 6]>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "shape mismatch: `SelfAttention<8, 6, 2, 2>` takes [..8, 6], but it is given [..9, 6]"
        );
    }
}
