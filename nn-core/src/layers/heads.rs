//! Heads as they lie: moved and repeated for attention.

use nn_kernels::Device;
use nn_kernels::ops::{Block, PermuteSpec};

use crate::ctx::Ctx;
use crate::dims::{Dim, Dims, Extent};
use crate::fault::Rule;
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::attention::{check, one_takes};
use crate::layers::product;
use crate::signature::Signature;
use crate::{Size, Text, layer};

/// The projection of S tokens, `[S, 3·H·D]`, as [`ScaledDotProductAttention`](crate::ScaledDotProductAttention) takes it, `[3, H, S, D]`. Moves values
/// only.
///
/// ```
/// use nn::{Layer, QKVToMajor, T};
/// assert_eq!(<QKVToMajor<128, 4, 16> as Layer<T![..128, 192]>>::RULE.out.to_string(), "[3, 4, ..128, 16]");
/// ```
#[layer]
pub struct QKVToMajor<const S: usize, const H: usize, const D: usize>;

/// Each of KV heads of S tokens REP times in a row: `[S, KV·D]` → `[S, KV·REP·D]`.
///
/// Head h of the output is head ⌊h / REP⌋ of the input (`repeat_interleave`); the vjp adds the copies' gradients.
/// [`GQAAttention`](crate::GQAAttention) reads shared heads as they lie, and needs no copies.
///
/// ```
/// use nn::{Layer, RepeatKVHeads, T};
/// assert_eq!(<RepeatKVHeads<128, 2, 3, 16> as Layer<T![..128, 32]>>::RULE.out.to_string(), "[..128, 96]");
/// ```
#[layer]
pub struct RepeatKVHeads<const S: usize, const KV: usize, const REP: usize, const D: usize>;

impl<S: Dim, H: Dim, D: Dim> QKVToMajorOf<S, H, D> {
    const TAKES: Dims = Dims::new(&[S::EXTENT, H::EXTENT.times(D::EXTENT).times(Extent::new(3))]);
    const GIVES: Dims = Dims::new(&[Extent::new(3), H::EXTENT, S::EXTENT, D::EXTENT]);

    fn spec<M: Device, X: Signature>(cx: &Ctx<'_, M>) -> PermuteSpec {
        let n = X::SIG.dims(0).axis_at(0, &cx.lengths);
        PermuteSpec { rank: 4, dims: [n, 3, H::N, D::N, 1, 1], axes: [1, 2, 0, 3, 4, 5] }
    }
}

impl<S: Dim, H: Dim, D: Dim> Params for QKVToMajorOf<S, H, D> {
    const LABEL: Text = Self::SHOWN;
}

impl<X: Signature, S: Dim, H: Dim, D: Dim> Layer<X> for QKVToMajorOf<S, H, D> {
    const RULE: Rule = match check(&Self::LABEL, &["S", "H", "D"], Self::ARGS) {
        Some(rule) => rule,
        None => one_takes(&Self::LABEL, &X::SIG, &Self::TAKES, 0, &Self::GIVES, 2),
    };
    const CAUSAL: bool = true;
}

impl<M: Device, X: Signature, S: Dim, H: Dim, D: Dim> Module<M, X> for QKVToMajorOf<S, H, D> {
    fn forward(cx: &mut Ctx<'_, M>, mut call: Forward<'_, M>) {
        cx.device().permute(cx.batch, &Self::spec::<M, X>(cx), call.x.get(0), call.y.get(0));
    }

    fn vjp(cx: &mut Ctx<'_, M>, mut call: Vjp<'_, M>) {
        if let Some(dx) = call.dx.wanted(0) {
            cx.device().permute(cx.batch, &Self::spec::<M, X>(cx).inverse(), call.dy.get(0), dx);
        }
    }
}

impl<S: Dim, KV: Dim, REP: Dim, D: Dim> RepeatKVHeadsOf<S, KV, REP, D> {
    const TAKES: Dims = Dims::new(&[S::EXTENT, KV::EXTENT.times(D::EXTENT)]);
    const GIVES: Dims = Dims::new(&[S::EXTENT, KV::EXTENT.times(REP::EXTENT).times(D::EXTENT)]);
    const ONE: Block = Block { offset: 0, stride: D::N };

    /// Where copy `i` of each head is.
    fn copy(i: usize) -> Block {
        Block { offset: i * D::N, stride: REP::N * D::N }
    }

    fn heads<M: Device, X: Signature>(cx: &Ctx<'_, M>) -> usize {
        cx.rows(const { &X::SIG.dims(0) }) * KV::N
    }
}

impl<S: Dim, KV: Dim, REP: Dim, D: Dim> Params for RepeatKVHeadsOf<S, KV, REP, D> {
    const LABEL: Text = Self::SHOWN;
}

impl<X: Signature, S: Dim, KV: Dim, REP: Dim, D: Dim> Layer<X> for RepeatKVHeadsOf<S, KV, REP, D> {
    const RULE: Rule = match check(&Self::LABEL, &["S", "KV", "REP", "D"], Self::ARGS) {
        Some(rule) => rule,
        None => one_takes(&Self::LABEL, &X::SIG, &Self::TAKES, 0, &Self::GIVES, 0),
    };
    // One copy's gradient.
    const VJP_SCRATCH: Size = Size::elements(product(&[S::N, KV::N, D::N])).when(REP::N > 1);
    const CAUSAL: bool = true;
}

impl<M: Device, X: Signature, S: Dim, KV: Dim, REP: Dim, D: Dim> Module<M, X>
    for RepeatKVHeadsOf<S, KV, REP, D>
{
    fn forward(cx: &mut Ctx<'_, M>, mut call: Forward<'_, M>) {
        let heads = Self::heads::<M, X>(cx);
        for i in 0..REP::N {
            cx.device().copy_block(heads, D::N, call.x.get(0), Self::ONE, call.y.get(0), Self::copy(i));
        }
    }

    fn vjp(cx: &mut Ctx<'_, M>, mut call: Vjp<'_, M>) {
        let heads = Self::heads::<M, X>(cx);
        let Some(mut dx) = call.dx.wanted(0) else { return };
        let dy = call.dy.get(0);
        cx.device().copy_block(heads, D::N, dy, Self::copy(0), M::reborrow(&mut dx), Self::ONE);
        if REP::N == 1 {
            return;
        }
        let mut one = call.scratch.take(heads * D::N);
        for i in 1..REP::N {
            cx.device().copy_block(heads, D::N, dy, Self::copy(i), M::reborrow(&mut one), Self::ONE);
            cx.device().add_assign(M::read(&one), M::reborrow(&mut dx));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::gradients;
    use crate::{Mode, T};

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            let mode = Mode::Train;
            gradients::<QKVToMajor<4, 2, 3>, T![..4, 18]>(batch, mode, 6).assert_within(1e-7);
            gradients::<RepeatKVHeads<3, 2, 3, 4>, T![..3, 8]>(batch, mode, 12).assert_within(1e-7);
            gradients::<RepeatKVHeads<3, 2, 1, 4>, T![3, 8]>(batch, mode, 13).assert_within(1e-7);
        }
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        let fault = <RepeatKVHeads<8, 2, 0, 4> as Layer<T![8, 8]>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "`RepeatKVHeads<8, 2, 0, 4>` can't exist: REP is 0");
    }
}
