//! Softmax attention: y = softmax(q·kᵀ/√D)·v in each head.

use nn_kernels::ops::{AttentionGradients, AttentionSpec, Block, Strides};
use nn_kernels::{Device, View, ViewMut, WideView, WideViewMut};

use crate::ctx::Ctx;
use crate::dims::{Dim, Dims, Extent};
use crate::fault::{Input, Rule, label, one_real};
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::linear::{No, Switch, Yes};
use crate::layers::{as_given, product};
use crate::region::{Region, slice_mut};
use crate::signature::{Kind, Sig, Signature};
use crate::tensors::Tensors;
use crate::{Size, Text, layer};

/// Attention of S tokens to each other, in H heads of D values: `[3, H, S, D]`, which is all queries, then all keys,
/// then all values, each head by head → `[S, H·D]`, the heads of a token side by side.
///
/// y = softmax(q·kᵀ/√D)·v in each head. Where CAUSAL is [`Yes`], token t sees the tokens up to t and no later one:
/// [`MaskedAttention`]. No parameters. The scores are never stored: what is kept for the vjp is one number for each
/// query and head, and the vjp computes them again (Dao 2023, arXiv:2307.08691). S may be bounded.
/// [`ScaledDotProductAttentionQKV`] reads the output of a projection as it is. Vaswani et al. 2017, arXiv:1706.03762.
///
/// ```
/// use nn::{Layer, ScaledDotProductAttention, T};
/// type Heads = ScaledDotProductAttention<128, 4, 16>;
/// assert_eq!(<Heads as Layer<T![3, 4, ..128, 16]>>::RULE.out.to_string(), "[..128, 64]");
/// let fault = <Heads as Layer<T![128, 192]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `ScaledDotProductAttention<128, 4, 16>` takes [3, 4, 128, 16], but it is given [128, 192]"
/// );
/// ```
#[layer]
pub struct ScaledDotProductAttention<const S: usize, const H: usize, const D: usize, CAUSAL: Switch = No>;

/// [`ScaledDotProductAttention`] in which no token sees a later one.
pub type MaskedAttention<const S: usize, const H: usize, const D: usize> =
    ScaledDotProductAttention<S, H, D, Yes>;

/// Attention of S tokens to each other, in H heads of D values: `[S, 3·H·D]`, a token's queries of all heads, then its
/// keys, then its values → `[S, H·D]`.
///
/// It computes what [`QKVToMajor`](crate::QKVToMajor) and then [`ScaledDotProductAttention`] do, and moves nothing.
/// Where CAUSAL is [`Yes`], no token sees a later one: [`CausalAttention`].
///
/// ```
/// use nn::{CausalAttention, Layer, ScaledDotProductAttentionQKV, T};
/// type Heads = ScaledDotProductAttentionQKV<128, 4, 16>;
/// assert_eq!(<Heads as Layer<T![..128, 192]>>::RULE.out.to_string(), "[..128, 64]");
/// let fault = <CausalAttention<128, 4, 16> as Layer<T![128, 64]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `CausalAttention<128, 4, 16>` takes [128, 192], but it is given [128, 64]"
/// );
/// ```
#[layer]
pub struct ScaledDotProductAttentionQKV<const S: usize, const H: usize, const D: usize, CAUSAL: Switch = No>;

/// [`ScaledDotProductAttentionQKV`] in which token t sees the tokens up to t and no later one.
pub type CausalAttention<const S: usize, const H: usize, const D: usize> =
    ScaledDotProductAttentionQKV<S, H, D, Yes>;

/// Grouped-query attention of S tokens to each other: queries `[S, H·D]`, keys `[S, KV·D]` and values `[S, KV·D]` →
/// `[S, H·D]`.
///
/// KV divides H, and query head h reads key and value head ⌊h / (H/KV)⌋, as after
/// [`RepeatKVHeads`](crate::RepeatKVHeads): neighbours share a head. Unless CAUSAL is [`No`], token t sees the tokens up
/// to t and no later one. S may be bounded. Ainslie et al. 2023, arXiv:2305.13245.
///
/// ```
/// use nn::{GQAAttention, Layer, T};
/// type Heads = GQAAttention<128, 6, 2, 16>;
/// let given = <Heads as Layer<(T![..128, 96], T![..128, 32], T![..128, 32])>>::RULE;
/// assert_eq!(given.out.to_string(), "[..128, 96]");
/// let fault = <GQAAttention<128, 6, 4, 16> as Layer<T![128, 96]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "`GQAAttention<128, 6, 4, 16>` can't exist: 6 query heads can't share 4 heads of keys and values"
/// );
/// ```
#[layer]
pub struct GQAAttention<const S: usize, const H: usize, const KV: usize, const D: usize, CAUSAL: Switch = Yes>;

/// Attention of Q tokens to KV others, in H heads: queries `[Q, DIM]`, keys `[KV, DIM]` and values `[KV, DIM]` →
/// `[Q, DIM]`, heads of DIM/H values side by side.
///
/// Three inputs, so that a position may be added to queries and keys and not to values. Where MASKED is [`Yes`] there
/// is a fourth, `[KV]`, which says for each sample which keys are there: **1 = attend, 0 = ignore**, the inverse of
/// PyTorch's `key_padding_mask`. Whatever is not 0 counts as 1, and its gradient is 0. Keys that are ignored are passed
/// over, whatever they hold; a sample whose keys all are has zeros for its output, and gives no gradients. Q and KV
/// may be bounded, with one length or two.
///
/// ```
/// use nn::{C, CrossAttention, Layer, S2, T, UpTo, Yes};
/// type Memory = S2<UpTo<C<50>, 1>, C<32>>;
/// let given = <CrossAttention<32, 4, 10, 50> as Layer<(T![..10, 32], Memory, Memory)>>::RULE;
/// assert_eq!(given.out.to_string(), "[..10, 32]");
/// let fault = <CrossAttention<32, 4, 10, 50, Yes> as Layer<(T![10, 32], T![50, 32], T![50, 32])>>::RULE.fault;
/// assert_eq!(
///     fault.unwrap().to_string(),
///     "shape mismatch: `CrossAttention<32, 4, 10, 50, Yes>` takes ([10, 32], [50, 32], [50, 32], [50]), \
///      but it is given ([10, 32], [50, 32], [50, 32])"
/// );
/// ```
#[layer]
pub struct CrossAttention<
    const DIM: usize,
    const H: usize,
    const Q: usize,
    const KV: usize,
    MASKED: Switch = No,
>;

/// The rule of a layer whose arguments must be positive.
pub(super) const fn check(label: &Text, names: &[&str], args: &[Extent]) -> Option<Rule> {
    match Rule::check_positive(label, names, args) {
        Some(rule) => Some(rule),
        None => Rule::check_args(label, args),
    }
}

/// What a layer takes: axes of its own, one of which may be bounded.
const fn fits(given: &Dims, takes: &Dims, free: usize) -> bool {
    if given.rank() != takes.rank() {
        return false;
    }
    let mut i = 0;
    while i < takes.rank() {
        let same = given.axis(i).same(&takes.axis(i));
        if !same && (i != free || given.n(i) != takes.n(i)) {
            return false;
        }
        i += 1;
    }
    true
}

/// The rule of a layer that takes one tensor, `takes`, whose axis `free` may be bounded. It gives `gives`, where that
/// axis is `kept`.
pub(super) const fn one_takes(
    label: &Text,
    given: &Sig,
    takes: &Dims,
    free: usize,
    gives: &Dims,
    kept: usize,
) -> Rule {
    let dims = match one_real(label, &[], given) {
        Input::Done(rule) => return rule,
        Input::Tensor(dims) => dims,
    };
    if fits(&dims, takes, free) {
        return Rule::ok(Sig::real(gives.with(kept, dims.axis(free))));
    }
    let shown = takes.with(free, as_given(takes.axis(free), &dims, free));
    Rule::mismatch(label, shown.write(Text::new()), given, Sig::POISON)
}

/// The rule of a layer that takes several tensors, `takes`, whose first axes may be bounded. It gives what the first
/// of them is.
const fn several_take(label: &Text, given: &Sig, takes: &Sig, one_length: bool) -> Rule {
    if given.is_poison() {
        return Rule::ok(Sig::POISON);
    }
    let mut fit = given.len() == takes.len();
    let mut i = 0;
    while fit && i < takes.len() {
        let (tensor, takes) = (&given.tensors()[i], &takes.tensors()[i]);
        fit = matches!(tensor.kind, Kind::Real) && fits(&tensor.dims, &takes.dims, 0);
        // Keys, values and mask have one length; queries the same, or another.
        let like = if one_length { 0 } else { 1 };
        fit = fit && (i <= like || tensor.dims.axis(0).same(&given.tensors()[like].dims.axis(0)));
        i += 1;
    }
    if fit {
        Rule::ok(given.nth(0))
    } else {
        Rule::mismatch(label, takes.write(Text::new()), given, Sig::POISON)
    }
}

/// What all attention layers need of a call: nothing but the spec, and where their tensors start in the inputs.
pub(super) struct Call {
    spec: AttentionSpec,
    /// The inputs that hold q, k and v, and where these start in them: one input, or three.
    packed: bool,
    at: [usize; 3],
    /// How many tokens a sequence has at most.
    most: usize,
}

impl Call {
    /// On one input, in which q, k and v start there.
    pub(super) fn new(spec: AttentionSpec, at: [usize; 3], most: usize) -> Self {
        let at = if spec.batch * spec.q_len == 0 { [0; 3] } else { at };
        Self { spec, packed: true, at, most }
    }

    /// How many sums of a softmax there are.
    pub(super) fn lse(&self) -> usize {
        self.spec.lse()
    }

    /// Working memory of the vjp.
    pub(super) fn vjp_scratch(&self) -> usize {
        self.spec.vjp_scratch()
    }

    /// One input that holds q, then k, then v, `part` values apart.
    fn packed(spec: AttentionSpec, part: usize, most: usize) -> Self {
        // Where nothing is, nothing starts.
        let part = if spec.batch * spec.q_len == 0 { 0 } else { part };
        Self { spec, packed: true, at: [0, part, 2 * part], most }
    }

    fn operands<'a, D: Device>(&self, x: Tensors<'a, D>) -> [View<'a, D>; 3] {
        let of = |i: usize| D::split(x.get(if self.packed { 0 } else { i }), self.at[i]).1;
        [of(0), of(1), of(2)]
    }

    fn forward<D: Device>(&self, cx: &Ctx<'_, D>, mut call: Forward<'_, D>, mask: bool) {
        let lse = cx.keeps().then(|| call.saved.take(self.spec.lse()));
        let mask = mask.then(|| call.x.get(3));
        self.run(cx, self.operands(call.x), mask, call.y.get(0), lse, &mut call.saved);
    }

    /// On one input that holds q, k and v.
    pub(super) fn attend<D: Device>(
        &self,
        cx: &Ctx<'_, D>,
        x: View<'_, D>,
        y: ViewMut<'_, D>,
        lse: Option<WideViewMut<'_, D>>,
        cache: &mut Region<'_, D>,
    ) {
        self.run(cx, self.operands::<D>(Tensors::real(x)), None, y, lse, cache);
    }

    fn run<D: Device>(
        &self,
        cx: &Ctx<'_, D>,
        [q, k, v]: [View<'_, D>; 3],
        mask: Option<View<'_, D>>,
        y: ViewMut<'_, D>,
        lse: Option<WideViewMut<'_, D>>,
        cache: &mut Region<'_, D>,
    ) {
        if let Some(past) = cx.past().filter(|_| self.spec.causal) {
            let width = self.spec.kv_heads * self.spec.head_dim;
            let mut cached = || cache.take(cx.batch * self.most * width);
            let (mut keys, mut values) = (cached(), cached());
            self.append(cx, past, k, self.spec.k, D::reborrow(&mut keys));
            self.append(cx, past, v, self.spec.v, D::reborrow(&mut values));
            let lies = Strides::token_major(self.most, width, self.spec.head_dim);
            let spec = AttentionSpec { k_len: past + self.spec.k_len, k: lies, v: lies, ..self.spec };
            cx.device().attention(&spec, q, D::read(&keys), D::read(&values), None, y, None);
            return;
        }
        cx.device().attention(&self.spec, q, k, v, mask, y, lse);
    }

    /// The gradients of [`attend`](Self::attend).
    #[allow(clippy::too_many_arguments, reason = "one view for each operand and each gradient")]
    pub(super) fn attend_vjp<D: Device>(
        &self,
        cx: &Ctx<'_, D>,
        x: View<'_, D>,
        y: View<'_, D>,
        lse: WideView<'_, D>,
        dy: View<'_, D>,
        to: AttentionGradients<ViewMut<'_, D>>,
        scratch: WideViewMut<'_, D>,
    ) {
        let [q, k, v] = self.operands::<D>(Tensors::real(x));
        cx.device().attention_vjp(&self.spec, q, k, v, None, y, lse, dy, to, scratch);
    }

    /// Puts new keys or values behind those of `past` tokens, in a cache that holds the heads of a token side by side.
    fn append<D: Device>(
        &self,
        cx: &Ctx<'_, D>,
        past: usize,
        x: View<'_, D>,
        lies: Strides,
        mut cache: ViewMut<'_, D>,
    ) {
        let AttentionSpec { kv_heads, head_dim, k_len, .. } = self.spec;
        let width = kv_heads * head_dim;
        // Heads that lie side by side are one block.
        let (blocks, cols) = if lies.head == head_dim { (1, width) } else { (kv_heads, head_dim) };
        if k_len == 1 {
            // One token goes to the same place in each sequence, so that a sequence is a row.
            for block in 0..blocks {
                let from = Block { offset: block * lies.head, stride: lies.batch };
                let to = Block { offset: past * width + block * cols, stride: self.most * width };
                cx.device().copy_moving_block(cx.batch, cols, x, from, D::reborrow(&mut cache), to);
            }
            return;
        }
        for sample in 0..cx.batch {
            for block in 0..blocks {
                let from = Block { offset: 0, stride: lies.token };
                let x = D::split(x, sample * lies.batch + block * lies.head).1;
                let to = Block { offset: block * cols, stride: width };
                let start = (sample * self.most + past) * width;
                let room = slice_mut::<D>(D::reborrow(&mut cache), start, k_len * width);
                cx.device().copy_block(k_len, cols, x, from, room, to);
            }
        }
    }

    fn vjp<D: Device>(&self, cx: &Ctx<'_, D>, mut call: Vjp<'_, D>, mask: bool) {
        let [q, k, v] = self.operands(call.x);
        let mask = mask.then(|| call.x.get(3));
        let lse = call.saved.take(self.spec.lse());
        let scratch = call.scratch.take(self.spec.vjp_scratch());
        if self.packed {
            if let Some(qkv) = call.dx.wanted(0) {
                let to = AttentionGradients::Packed { qkv, at: self.at };
                let (y, dy) = (call.y.get(0), call.dy.get(0));
                cx.device().attention_vjp(&self.spec, q, k, v, mask, y, lse, dy, to, scratch);
            }
            return;
        }
        let (mut dq, rest) = call.dx.split(1);
        let (mut dk, mut dv) = rest.split(1);
        if let Some(mask) = dv.wanted(1) {
            cx.device().fill(0.0, mask);
        }
        let to = AttentionGradients::Apart { q: dq.wanted(0), k: dk.wanted(0), v: dv.wanted(0) };
        let (y, dy) = (call.y.get(0), call.dy.get(0));
        cx.device().attention_vjp(&self.spec, q, k, v, mask, y, lse, dy, to, scratch);
    }
}

/// Multiply-adds of attention: a product of queries with keys, and one of weights with values.
pub(super) const fn macs(q_len: usize, k_len: usize, heads: usize, dim: usize, causal: bool) -> usize {
    let all = product(&[q_len, k_len, heads, dim, 2]);
    if causal { all / 2 + product(&[q_len, heads, dim]) } else { all }
}

/// What forward leaves for the vjp: the logarithms of the denominators.
pub(super) const fn saved(q_len: usize, heads: usize) -> Size {
    Size::wide(product(&[q_len, heads]))
}

/// The keys and values of the tokens that were given.
pub(super) const fn cache(most: usize, kv_heads: usize, dim: usize) -> Size {
    Size::elements(product(&[most, kv_heads, dim])).times(2)
}

/// What the vjp needs: sums of the gradients of keys and values.
pub(super) const fn vjp_scratch(k_len: usize, kv_heads: usize, dim: usize) -> Size {
    Size::wide(product(&[k_len, kv_heads, dim, 2]))
}

impl<S: Dim, H: Dim, D: Dim, CAUSAL: Switch> ScaledDotProductAttentionOf<S, H, D, CAUSAL> {
    const TAKES: Dims = Dims::new(&[Extent::new(3), H::EXTENT, S::EXTENT, D::EXTENT]);
    const GIVES: Dims = Dims::new(&[S::EXTENT, H::EXTENT.times(D::EXTENT)]);

    fn call<M: Device, X: Signature>(cx: &Ctx<'_, M>) -> Call {
        let n = X::SIG.dims(0).axis_at(2, &cx.lengths);
        let part = H::N * n * D::N;
        let q = Strides::head_major(3 * part, n, D::N);
        let spec = AttentionSpec::new(cx.batch, n, n, H::N, H::N, D::N);
        Call::packed(AttentionSpec { causal: CAUSAL::ON, q, k: q, v: q, ..spec }, part, S::N)
    }
}

impl<S: Dim, H: Dim, D: Dim, CAUSAL: Switch> Params for ScaledDotProductAttentionOf<S, H, D, CAUSAL> {
    const LABEL: Text =
        label(if CAUSAL::ON { "MaskedAttention" } else { "ScaledDotProductAttention" }, Self::ARGS);
}

impl<X: Signature, S: Dim, H: Dim, D: Dim, CAUSAL: Switch> Layer<X>
    for ScaledDotProductAttentionOf<S, H, D, CAUSAL>
{
    const RULE: Rule = match check(&Self::LABEL, &["S", "H", "D"], Self::ARGS) {
        Some(rule) => rule,
        None => one_takes(&Self::LABEL, &X::SIG, &Self::TAKES, 2, &Self::GIVES, 0),
    };
    const KEEPS_X: bool = true;
    const KEEPS_Y: bool = true;
    const SAVED: Size = saved(S::N, H::N);
    const CACHE: Size = cache(S::N, H::N, D::N).when(CAUSAL::ON);
    const CAUSAL: bool = CAUSAL::ON;
    const VJP_SCRATCH: Size = vjp_scratch(S::N, H::N, D::N);
    const MACS: usize = macs(S::N, S::N, H::N, D::N, CAUSAL::ON);
}

impl<M: Device, X: Signature, S: Dim, H: Dim, D: Dim, CAUSAL: Switch> Module<M, X>
    for ScaledDotProductAttentionOf<S, H, D, CAUSAL>
{
    fn forward(cx: &mut Ctx<'_, M>, call: Forward<'_, M>) {
        Self::call::<M, X>(cx).forward(cx, call, false);
    }

    fn vjp(cx: &mut Ctx<'_, M>, call: Vjp<'_, M>) {
        Self::call::<M, X>(cx).vjp(cx, call, false);
    }
}

impl<S: Dim, H: Dim, D: Dim, CAUSAL: Switch> ScaledDotProductAttentionQKVOf<S, H, D, CAUSAL> {
    const WIDTH: Extent = H::EXTENT.times(D::EXTENT);
    const TAKES: Dims = Dims::new(&[S::EXTENT, Self::WIDTH.times(Extent::new(3))]);
    const GIVES: Dims = Dims::new(&[S::EXTENT, Self::WIDTH]);

    fn call<M: Device, X: Signature>(cx: &Ctx<'_, M>) -> Call {
        let n = X::SIG.dims(0).axis_at(0, &cx.lengths);
        let width = H::N * D::N;
        let q = Strides::token_major(n, 3 * width, D::N);
        let spec = AttentionSpec::new(cx.batch, n, n, H::N, H::N, D::N);
        Call::packed(AttentionSpec { causal: CAUSAL::ON, q, k: q, v: q, ..spec }, width, S::N)
    }
}

impl<S: Dim, H: Dim, D: Dim, CAUSAL: Switch> Params for ScaledDotProductAttentionQKVOf<S, H, D, CAUSAL> {
    const LABEL: Text =
        label(if CAUSAL::ON { "CausalAttention" } else { "ScaledDotProductAttentionQKV" }, Self::ARGS);
}

impl<X: Signature, S: Dim, H: Dim, D: Dim, CAUSAL: Switch> Layer<X>
    for ScaledDotProductAttentionQKVOf<S, H, D, CAUSAL>
{
    const RULE: Rule = match check(&Self::LABEL, &["S", "H", "D"], Self::ARGS) {
        Some(rule) => rule,
        None => one_takes(&Self::LABEL, &X::SIG, &Self::TAKES, 0, &Self::GIVES, 0),
    };
    const KEEPS_X: bool = true;
    const KEEPS_Y: bool = true;
    const SAVED: Size = saved(S::N, H::N);
    const CACHE: Size = cache(S::N, H::N, D::N).when(CAUSAL::ON);
    const CAUSAL: bool = CAUSAL::ON;
    const VJP_SCRATCH: Size = vjp_scratch(S::N, H::N, D::N);
    const MACS: usize = macs(S::N, S::N, H::N, D::N, CAUSAL::ON);
}

impl<M: Device, X: Signature, S: Dim, H: Dim, D: Dim, CAUSAL: Switch> Module<M, X>
    for ScaledDotProductAttentionQKVOf<S, H, D, CAUSAL>
{
    fn forward(cx: &mut Ctx<'_, M>, call: Forward<'_, M>) {
        Self::call::<M, X>(cx).forward(cx, call, false);
    }

    fn vjp(cx: &mut Ctx<'_, M>, call: Vjp<'_, M>) {
        Self::call::<M, X>(cx).vjp(cx, call, false);
    }
}

impl<S: Dim, H: Dim, KV: Dim, D: Dim, CAUSAL: Switch> GQAAttentionOf<S, H, KV, D, CAUSAL> {
    const TAKES: Sig = {
        let queries = Sig::real(Dims::new(&[S::EXTENT, H::EXTENT.times(D::EXTENT)]));
        let keys = Sig::real(Dims::new(&[S::EXTENT, KV::EXTENT.times(D::EXTENT)]));
        queries.join(&keys).join(&keys)
    };

    const fn rule(given: &Sig) -> Rule {
        if let Some(rule) = check(&Self::LABEL, &["S", "H", "KV", "D"], Self::ARGS) {
            return rule;
        }
        if !H::N.is_multiple_of(KV::N) {
            let text = Text::new().num(H::N).str(" query heads can't share ").num(KV::N);
            return Rule::cannot_exist(&Self::LABEL, text.str(" heads of keys and values"));
        }
        several_take(&Self::LABEL, given, &Self::TAKES, true)
    }

    fn call<M: Device, X: Signature>(cx: &Ctx<'_, M>) -> Call {
        let n = X::SIG.dims(0).axis_at(0, &cx.lengths);
        let spec = AttentionSpec::new(cx.batch, n, n, H::N, KV::N, D::N);
        Call { spec: AttentionSpec { causal: CAUSAL::ON, ..spec }, packed: false, at: [0; 3], most: S::N }
    }
}

impl<S: Dim, H: Dim, KV: Dim, D: Dim, CAUSAL: Switch> Params for GQAAttentionOf<S, H, KV, D, CAUSAL> {
    const LABEL: Text = with_switch(label("GQAAttention", Self::ARGS), "No", !CAUSAL::ON);
}

/// A label with one more argument, if that is not at its default.
const fn with_switch(label: Text, argument: &str, differs: bool) -> Text {
    if !differs {
        return label;
    }
    let text = label.as_str().split_at(label.as_str().len() - 1).0;
    Text::new().str(text).str(", ").str(argument).str(">")
}

impl<X: Signature, S: Dim, H: Dim, KV: Dim, D: Dim, CAUSAL: Switch> Layer<X>
    for GQAAttentionOf<S, H, KV, D, CAUSAL>
{
    const RULE: Rule = Self::rule(&X::SIG);
    const KEEPS_X: bool = true;
    const KEEPS_Y: bool = true;
    const SAVED: Size = saved(S::N, H::N);
    const CACHE: Size = cache(S::N, KV::N, D::N).when(CAUSAL::ON);
    const CAUSAL: bool = CAUSAL::ON;
    const VJP_SCRATCH: Size = vjp_scratch(S::N, KV::N, D::N);
    const MACS: usize = macs(S::N, S::N, H::N, D::N, CAUSAL::ON);
}

impl<M: Device, X: Signature, S: Dim, H: Dim, KV: Dim, D: Dim, CAUSAL: Switch> Module<M, X>
    for GQAAttentionOf<S, H, KV, D, CAUSAL>
{
    fn forward(cx: &mut Ctx<'_, M>, call: Forward<'_, M>) {
        Self::call::<M, X>(cx).forward(cx, call, false);
    }

    fn vjp(cx: &mut Ctx<'_, M>, call: Vjp<'_, M>) {
        Self::call::<M, X>(cx).vjp(cx, call, false);
    }
}

impl<DIM: Dim, H: Dim, Q: Dim, KV: Dim, MASKED: Switch> CrossAttentionOf<DIM, H, Q, KV, MASKED> {
    const HEAD: usize = DIM::EXTENT.over(H::EXTENT).n;
    const TAKES: Sig = {
        let queries = Sig::real(Dims::new(&[Q::EXTENT, DIM::EXTENT]));
        let keys = Sig::real(Dims::new(&[KV::EXTENT, DIM::EXTENT]));
        let all = queries.join(&keys).join(&keys);
        if MASKED::ON { all.join(&Sig::real(Dims::new(&[KV::EXTENT]))) } else { all }
    };

    const fn rule(given: &Sig) -> Rule {
        if let Some(rule) = check(&Self::LABEL, &["DIM", "H", "Q", "KV"], Self::ARGS) {
            return rule;
        }
        if !DIM::N.is_multiple_of(H::N) {
            let text = Text::new().num(DIM::N).str(" values can't be divided into ").num(H::N);
            return Rule::cannot_exist(&Self::LABEL, text.str(" heads"));
        }
        several_take(&Self::LABEL, given, &Self::TAKES, false)
    }

    fn call<M: Device, X: Signature>(cx: &Ctx<'_, M>) -> Call {
        let (q, k) = (X::SIG.dims(0).axis_at(0, &cx.lengths), X::SIG.dims(1).axis_at(0, &cx.lengths));
        let spec = AttentionSpec::new(cx.batch, q, k, H::N, H::N, Self::HEAD);
        Call { spec, packed: false, at: [0; 3], most: KV::N }
    }
}

impl<DIM: Dim, H: Dim, Q: Dim, KV: Dim, MASKED: Switch> Params for CrossAttentionOf<DIM, H, Q, KV, MASKED> {
    const LABEL: Text = with_switch(label("CrossAttention", Self::ARGS), "Yes", MASKED::ON);
}

impl<X: Signature, DIM: Dim, H: Dim, Q: Dim, KV: Dim, MASKED: Switch> Layer<X>
    for CrossAttentionOf<DIM, H, Q, KV, MASKED>
{
    const RULE: Rule = Self::rule(&X::SIG);
    const KEEPS_X: bool = true;
    const KEEPS_Y: bool = true;
    const SAVED: Size = saved(Q::N, H::N);
    const CAUSAL: bool = false;
    const VJP_SCRATCH: Size = vjp_scratch(KV::N, 1, DIM::N);
    const MACS: usize = macs(Q::N, KV::N, 1, DIM::N, false);
}

impl<M: Device, X: Signature, DIM: Dim, H: Dim, Q: Dim, KV: Dim, MASKED: Switch> Module<M, X>
    for CrossAttentionOf<DIM, H, Q, KV, MASKED>
{
    fn forward(cx: &mut Ctx<'_, M>, call: Forward<'_, M>) {
        Self::call::<M, X>(cx).forward(cx, call, MASKED::ON);
    }

    fn vjp(cx: &mut Ctx<'_, M>, call: Vjp<'_, M>) {
        Self::call::<M, X>(cx).vjp(cx, call, MASKED::ON);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Options, Run, Values, gradients};
    use crate::{C, Cpu, Linear, LinearNoBias, Mode, QKVToMajor, RepeatKVHeads, RoPE, S2, T, UpTo, module};

    type Three<Q, K> = (Q, K, K);
    type Far<const N: usize, const W: usize> = S2<UpTo<C<N>, 1>, C<W>>;

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            let mode = Mode::Train;
            gradients::<ScaledDotProductAttention<5, 2, 3>, T![3, 2, 5, 3]>(batch, mode, 1)
                .assert_within(1e-7);
            gradients::<MaskedAttention<5, 2, 3>, T![3, 2, ..5, 3]>(batch, mode, 2).assert_within(1e-7);
            gradients::<ScaledDotProductAttentionQKV<4, 2, 3>, T![4, 18]>(batch, mode, 3).assert_within(1e-7);
            gradients::<CausalAttention<5, 2, 3>, T![5, 18]>(batch, mode, 4).assert_within(1e-7);
            gradients::<CausalAttention<6, 1, 4>, T![..6, 12]>(batch, mode, 5).assert_within(1e-7);
            gradients::<GQAAttention<4, 4, 2, 3>, Three<T![4, 12], T![4, 6]>>(batch, mode, 7)
                .assert_within(1e-7);
            gradients::<GQAAttention<4, 3, 1, 2, No>, Three<T![..4, 6], T![..4, 2]>>(batch, mode, 8)
                .assert_within(1e-7);
            gradients::<CrossAttention<6, 2, 3, 5>, Three<T![3, 6], T![5, 6]>>(batch, mode, 9)
                .assert_within(1e-7);
            gradients::<CrossAttention<4, 1, 3, 5>, Three<T![..3, 4], Far<5, 4>>>(batch, mode, 10)
                .assert_within(1e-7);
            gradients::<CrossAttention<4, 2, 2, 3, Yes>, (T![2, 4], T![3, 4], T![3, 4], T![3])>(
                batch, mode, 11,
            )
            .assert_within(1e-7);
        }
        // Queries and keys of two lengths.
        let options = Options { lengths: Some([2, 5, 0, 0]), ..Options::new(2, Mode::Infer, 14) };
        options.check::<CrossAttention<4, 2, 3, 6>, Three<T![..3, 4], Far<6, 4>>>().assert_within(1e-7);
    }

    #[module]
    struct Block<const S: usize> {
        qkv: Linear<8, 24>,
        attend: CausalAttention<S, 2, 4>,
        q: LinearNoBias<8, 8>,
        kv: LinearNoBias<8, 4>,
        turn: RoPE<S, 2, 4>,
        turn_keys: RoPE<S, 1, 4>,
        share: GQAAttention<S, 2, 1, 4>,
    }
    #[module]
    impl<const S: usize> Block<S> {
        fn forward(&self, x: T![..S, 8]) -> T![..S, 8] {
            let h = x + self.attend(self.qkv(x));
            let kv = self.kv(h);
            h + self.share(self.turn(self.q(h)), self.turn_keys(kv), kv)
        }
    }

    #[test]
    fn blocks_of_attention_have_the_gradients_of_finite_differences() {
        for length in [1, 4, 5] {
            let options = Options { lengths: Some([length, 0, 0, 0]), ..Options::new(2, Mode::Train, 1) };
            options.check::<Block<5>, T![..5, 8]>().assert_within(1e-7);
        }
    }

    fn values(seed: u32, n: usize) -> Vec<f64> {
        (0..n as u32)
            .map(|i| f64::from((i + seed).wrapping_mul(2_654_435_761) >> 16) / 32768.0 - 1.0)
            .collect()
    }

    fn given<M: Module<Cpu<f64>, X>, X: Signature>(batch: usize, x: &[&[f64]]) -> Vec<f64> {
        let x: Vec<_> = x.iter().map(|x| Values::Real(x.to_vec())).collect();
        Run::<M, X, Cpu<f64>>::new(&Cpu::default(), batch).forward(&x)[0].real().to_vec()
    }

    #[test]
    fn no_token_sees_a_later_one() {
        fn changed<M: Module<Cpu<f64>, T![9, 24]>>(t: usize) -> Vec<bool> {
            let x = values(1, 9 * 24);
            let mut other = x.clone();
            other[t * 24..].iter_mut().for_each(|x| *x += 3.0);
            let [a, b] = [x, other].map(|x| given::<M, T![9, 24]>(1, &[&x]));
            a.chunks(8).zip(b.chunks(8)).map(|(a, b)| a != b).collect()
        }
        for t in 0..9 {
            let expected: Vec<_> = (0..9).map(|i| i >= t).collect();
            assert_eq!(changed::<CausalAttention<9, 2, 4>>(t), expected);
            assert_eq!(changed::<ScaledDotProductAttentionQKV<9, 2, 4>>(t), [true; 9]);
        }
    }

    #[test]
    fn queries_keys_and_values_have_their_places() {
        // Every way to take three blocks of a token for q, k and v, and heads before blocks.
        let (x, batch) = (values(2, 2 * 5 * 18), 2);
        let y = given::<ScaledDotProductAttentionQKV<5, 2, 3>, T![5, 18]>(batch, &[&x]);
        let part = |i: usize| -> Vec<f64> { x.chunks(6).skip(i).step_by(3).flatten().copied().collect() };
        let by = |[q, k, v]: [usize; 3]| {
            type Apart = Three<T![5, 6], T![5, 6]>;
            given::<CrossAttention<6, 2, 5, 5>, Apart>(batch, &[&part(q), &part(k), &part(v)])
        };
        assert_eq!(y, by([0, 1, 2]));
        for other in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            assert_ne!(y, by(other), "{other:?}");
        }
        let major = given::<QKVToMajor<5, 2, 3>, T![5, 18]>(batch, &[&x]);
        let at = |b: usize, which: usize, h: usize, t: usize| ((((b * 3) + which) * 2 + h) * 5 + t) * 3;
        for (b, t) in (0..2).flat_map(|b| (0..5).map(move |t| (b, t))) {
            for (which, h) in (0..3).flat_map(|w| (0..2).map(move |h| (w, h))) {
                let from = (b * 5 + t) * 18 + which * 6 + h * 3;
                assert_eq!(major[at(b, which, h, t)..][..3], x[from..from + 3]);
            }
        }
        assert_eq!(y, given::<ScaledDotProductAttention<5, 2, 3>, T![3, 2, 5, 3]>(batch, &[&major]));
        let causal = given::<CausalAttention<5, 2, 3>, T![5, 18]>(batch, &[&x]);
        assert_eq!(causal, given::<MaskedAttention<5, 2, 3>, T![3, 2, 5, 3]>(batch, &[&major]));
    }

    #[test]
    fn neighbouring_query_heads_share_a_head_of_keys() {
        let (q, k, v) = (values(3, 2 * 5 * 18), values(4, 2 * 5 * 6), values(5, 2 * 5 * 6));
        let y = given::<GQAAttention<5, 6, 2, 3>, Three<T![5, 18], T![5, 6]>>(2, &[&q, &k, &v]);
        let repeated = |x: &[f64]| given::<RepeatKVHeads<5, 2, 3, 3>, T![5, 6]>(2, &[x]);
        let tiled = |x: &[f64]| -> Vec<f64> { x.chunks(6).flat_map(|row| row.repeat(3)).collect() };
        let full = |k: &[f64], v: &[f64]| {
            given::<GQAAttention<5, 6, 6, 3>, Three<T![5, 18], T![5, 18]>>(2, &[&q, k, v])
        };
        assert_eq!(y, full(&repeated(&k), &repeated(&v)));
        assert_ne!(y, full(&tiled(&k), &tiled(&v)));
        assert_eq!(repeated(&k)[..18], [&k[..3], &k[..3], &k[..3], &k[3..6], &k[3..6], &k[3..6]].concat());
        let open = given::<GQAAttention<5, 6, 2, 3, No>, Three<T![5, 18], T![5, 6]>>(2, &[&q, &k, &v]);
        assert!(open != y && open[4 * 18..5 * 18] == y[4 * 18..5 * 18], "the last token sees all either way");
    }

    #[test]
    fn one_attends_and_zero_ignores() {
        type Masked = CrossAttention<6, 2, 3, 4, Yes>;
        type All = (T![3, 6], T![4, 6], T![4, 6], T![4]);
        let (q, k, v) = (values(6, 18), values(7, 24), values(8, 24));
        let y = given::<Masked, All>(1, &[&q, &k, &v, &[1.0, 0.0, 1.0, 0.0]]);
        // What is attended to alone.
        let kept = |x: &[f64]| [&x[..6], &x[12..18]].concat();
        let dropped = |x: &[f64]| [&x[6..12], &x[18..]].concat();
        type Two = Three<T![3, 6], T![2, 6]>;
        assert_eq!(y, given::<CrossAttention<6, 2, 3, 2>, Two>(1, &[&q, &kept(&k), &kept(&v)]));
        assert_ne!(y, given::<CrossAttention<6, 2, 3, 2>, Two>(1, &[&q, &dropped(&k), &dropped(&v)]));
        let ones = given::<Masked, All>(1, &[&q, &k, &v, &[1.0; 4]]);
        assert_eq!(ones, given::<CrossAttention<6, 2, 3, 4>, Three<T![3, 6], T![4, 6]>>(1, &[&q, &k, &v]));
    }

    #[test]
    fn a_sample_without_keys_gives_zeros_and_no_gradients() {
        type Masked = CrossAttention<6, 2, 3, 4, Yes>;
        type All = (T![3, 6], T![4, 6], T![4, 6], T![4]);
        let mut run = Run::<Masked, All, Cpu<f64>>::new(&Cpu::default(), 2);
        let mask = vec![1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0];
        let x = [values(1, 36), values(2, 48), values(3, 48), mask].map(Values::Real);
        let y = run.forward(&x)[0].real().to_vec();
        assert!(y[..18].iter().all(|y| *y != 0.0) && y[18..] == [0.0; 18]);
        let dx: Vec<_> = run.vjp(&[Values::Real(values(4, 36))]).dx.into_iter().flatten().collect();
        assert!(dx[0][..18].iter().all(|g| *g != 0.0) && dx[0][18..] == [0.0; 18]);
        for gradient in &dx[1..3] {
            assert!(gradient[..12].iter().all(|g| *g != 0.0));
            assert!(gradient[12..18] == [0.0; 6] && gradient[24..] == [0.0; 24]);
        }
        assert_eq!(dx[3], [0.0; 8]);
    }

    #[test]
    fn only_the_tokens_that_are_there_count() {
        let x = values(9, 2 * 3 * 24);
        let mut run = Run::<CausalAttention<7, 2, 4>, T![..7, 24], Cpu<f64>>::new(&Cpu::default(), 2);
        run = run.lengths([3, 0, 0, 0]);
        let y = run.forward(&[Values::Real(x.clone())])[0].real().to_vec();
        assert_eq!(y, given::<CausalAttention<3, 2, 4>, T![3, 24]>(2, &[&x]));
        // A call without tokens has nothing to do.
        run = run.lengths([0; 4]);
        assert!(run.forward(&[Values::Real(Vec::new())])[0].real().is_empty());
        assert_eq!(run.vjp(&[Values::Real(Vec::new())]).dx, [Some(Vec::new())]);
    }

    #[test]
    fn memory_grows_with_the_tokens_and_not_with_their_square() {
        type Long<const S: usize> = CausalAttention<S, 6, 64>;
        fn bytes<M: Layer<X>, X: Signature>() -> usize {
            M::SAVED.plus(M::SCRATCH).plus(M::VJP_SCRATCH).at(1, 4)
        }
        let (short, long) = (bytes::<Long<1024>, T![1024, 1152]>(), bytes::<Long<4096>, T![4096, 1152]>());
        // One number a query and head, and the gradients of keys and values.
        assert!(long <= 4 * (4096 * 6 + 4096 * 6 * 64 * 2) + 256, "{long}");
        assert!(long <= 4 * short);
        // A matrix of scores for a single head would be more.
        assert!(long < 4 * 4096 * 4096);
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        fn fault<L: Layer<X>, X: Signature>() -> String {
            L::RULE.fault.unwrap().to_string()
        }
        assert_eq!(
            fault::<CrossAttention<10, 3, 4, 4>, T![4, 10]>(),
            "`CrossAttention<10, 3, 4, 4>` can't exist: 10 values can't be divided into 3 heads"
        );
        assert_eq!(
            fault::<GQAAttention<8, 4, 2, 3, No>, Three<T![8, 12], T![8, 12]>>(),
            "shape mismatch: `GQAAttention<8, 4, 2, 3, No>` takes ([8, 12], [8, 6], [8, 6]), \
             but it is given ([8, 12], [8, 12], [8, 12])"
        );
        // Of one bound, but not of one length.
        assert_eq!(
            fault::<GQAAttention<8, 4, 2, 3>, Three<T![..8, 12], Far<8, 6>>>(),
            "shape mismatch: `GQAAttention<8, 4, 2, 3>` takes ([8, 12], [8, 6], [8, 6]), \
             but it is given ([..8, 12], [..8 @ 1, 6], [..8 @ 1, 6])"
        );
        assert_eq!(
            fault::<MaskedAttention<8, 2, 4>, T![3, 8, 2, 4]>(),
            "shape mismatch: `MaskedAttention<8, 2, 4>` takes [3, 2, 8, 4], but it is given [3, 8, 2, 4]"
        );
    }
}
