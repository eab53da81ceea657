//! Rotary position embedding.

use nn_kernels::Device;
use nn_kernels::ops::RopeSpec;

use crate::ctx::Ctx;
use crate::dims::{Dim, Extent};
use crate::fault::{Input, Rule, one_real};
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::as_given;
use crate::layers::linear::{No, Switch, Yes};
use crate::real::{Real, Sci};
use crate::signature::{Sig, Signature};
use crate::{Text, layer};

/// Rotary position embedding of S tokens with H heads of D values, packed token by token: `[S, H·D]` keeps its
/// shape.
///
/// In each head the pair (xⱼ, xⱼ₊D⁄₂), for j < D/2, is turned by the angle position·THETA^(−2j/D), which is
/// computed in double precision; the vjp turns back. Heads of a token turn alike. For queries and for keys,
/// whose H may differ. [`RoPEInterleaved`] pairs neighbours instead. Su et al. 2021, arXiv:2104.09864; these
/// pairs are those of GPT-NeoX and Llama in `transformers`. With ROTARY, the first ROTARY values of a head are turned, as
/// if they were all of it, and the others stay. Positions are counted from the sequence's start, also where it goes on
/// from a [`KvCache`](crate::KvCache).
///
/// ```
/// use nn::{Layer, RoPE, T};
/// assert_eq!(<RoPE<128, 4, 16> as Layer<T![..128, 64]>>::RULE.out.to_string(), "[..128, 64]");
/// let fault = <RoPE<128, 4, 16> as Layer<T![128, 60]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `RoPE<128, 4, 16>` takes [128, 64], but it is given [128, 60]"
/// );
/// ```
#[layer]
pub struct RoPE<
    const S: usize,
    const H: usize,
    const D: usize,
    THETA: Real = Sci<1, 4>,
    INTERLEAVED: Switch = No,
    const ROTARY: usize = 0,
>;

/// [`RoPE`] with the pairs (x₂ⱼ, x₂ⱼ₊₁): the paper's own, and those of Llama's weights in GGUF files.
pub type RoPEInterleaved<const S: usize, const H: usize, const D: usize, THETA = Sci<1, 4>> =
    RoPE<S, H, D, THETA, Yes>;

impl<S: Dim, H: Dim, D: Dim, THETA: Real, INTERLEAVED: Switch, ROTARY: Dim>
    RoPEOf<S, H, D, THETA, INTERLEAVED, ROTARY>
{
    const WIDTH: Extent = H::EXTENT.times(D::EXTENT);
    /// How many values of a head are turned.
    const TURNED: usize = if ROTARY::N == 0 { D::N } else { ROTARY::N };

    const fn rule(given: &Sig) -> Rule {
        if let Some(rule) = Rule::check_positive(&Self::LABEL, &["S", "H", "D"], Self::ARGS) {
            return rule;
        }
        if let Some(rule) = Rule::check_args(&Self::LABEL, Self::ARGS) {
            return rule;
        }
        if Self::TURNED > D::N {
            let text = Text::new().str("ROTARY is ").num(Self::TURNED).str(", but a head has ").num(D::N);
            return Rule::cannot_exist(&Self::LABEL, text.str(" values"));
        }
        if !Self::TURNED.is_multiple_of(2) {
            let what = if ROTARY::N == 0 { "a head of " } else { "a rotary part of " };
            let text = Text::new().str(what).num(Self::TURNED).str(" values can't be divided into pairs");
            return Rule::cannot_exist(&Self::LABEL, text);
        }
        let dims = match one_real(&Self::LABEL, &[Self::WIDTH], given) {
            Input::Done(rule) => return rule,
            Input::Tensor(dims) => dims,
        };
        if dims.rank() == 2 && dims.n(0) == S::N && dims.axis(1).same(&Self::WIDTH) {
            return Rule::ok(Sig::real(dims));
        }
        let takes = as_given(S::EXTENT, &dims, 0).write(Text::new().str("[")).str(", ");
        Rule::mismatch(&Self::LABEL, Self::WIDTH.write(takes).str("]"), given, Sig::real(dims))
    }

    fn spec<M: Device, X: Signature>(cx: &Ctx<'_, M>) -> RopeSpec {
        let seq = X::SIG.dims(0).axis_at(0, &cx.lengths);
        RopeSpec {
            rows: cx.batch * seq,
            // Sequences of no tokens have no rows either.
            seq: seq.max(1),
            offset: cx.position(),
            heads: H::N,
            dim: D::N,
            rotary: Self::TURNED,
            theta: THETA::VALUE,
            interleaved: INTERLEAVED::ON,
        }
    }
}

impl<S: Dim, H: Dim, D: Dim, THETA: Real, INTERLEAVED: Switch, ROTARY: Dim> Params
    for RoPEOf<S, H, D, THETA, INTERLEAVED, ROTARY>
{
    const LABEL: Text = crate::fault::label_with_defaults(
        if INTERLEAVED::ON { "RoPEInterleaved" } else { "RoPE" },
        Self::ARGS,
        &[None, None, None, Some(0)],
    );
}

impl<X: Signature, S: Dim, H: Dim, D: Dim, THETA: Real, INTERLEAVED: Switch, ROTARY: Dim> Layer<X>
    for RoPEOf<S, H, D, THETA, INTERLEAVED, ROTARY>
{
    const RULE: Rule = Self::rule(&X::SIG);
    const CAUSAL: bool = true;
}

impl<M: Device, X: Signature, S: Dim, H: Dim, D: Dim, THETA: Real, INTERLEAVED: Switch, ROTARY: Dim>
    Module<M, X> for RoPEOf<S, H, D, THETA, INTERLEAVED, ROTARY>
{
    fn forward(cx: &mut Ctx<'_, M>, mut call: Forward<'_, M>) {
        cx.device().rope(&Self::spec::<M, X>(cx), false, call.x.get(0), call.y.get(0));
    }

    fn vjp(cx: &mut Ctx<'_, M>, mut call: Vjp<'_, M>) {
        if let Some(dx) = call.dx.wanted(0) {
            cx.device().rope(&Self::spec::<M, X>(cx), true, call.dy.get(0), dx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Run, Values, gradients};
    use crate::{Cpu, Mode, T};

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            gradients::<RoPE<5, 2, 4>, T![5, 8]>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<RoPE<4, 3, 2, Sci<1, 2>>, T![..4, 6]>(batch, Mode::Infer, 2).assert_within(1e-7);
            gradients::<RoPEInterleaved<4, 1, 6>, T![4, 6]>(batch, Mode::Infer, 3).assert_within(1e-7);
            gradients::<RoPE<4, 2, 5, Sci<1, 4>, No, 4>, T![4, 10]>(batch, Mode::Infer, 4)
                .assert_within(1e-7);
        }
    }

    fn turned<M: Module<Cpu<f64>, X>, X: Signature>(x: &[f64], batch: usize) -> Vec<f64> {
        let mut run = Run::<M, X, Cpu<f64>>::new(&Cpu::default(), batch);
        run.forward_only(&[Values::Real(x.to_vec())])[0].real().to_vec()
    }

    /// Turns pairs that lie `gap` apart and `step` from the next.
    fn by_hand(
        x: &[f64],
        seq: usize,
        heads: usize,
        dim: usize,
        theta: f64,
        gap: usize,
        step: usize,
    ) -> Vec<f64> {
        let mut y = vec![0.0; x.len()];
        for (row, j) in (0..x.len() / (heads * dim)).flat_map(|r| (0..dim / 2).map(move |j| (r, j))) {
            let angle = (row % seq) as f64 * theta.powf(-2.0 * j as f64 / dim as f64);
            for head in 0..heads {
                let a = row * heads * dim + head * dim + j * step;
                y[a] = x[a] * angle.cos() - x[a + gap] * angle.sin();
                y[a + gap] = x[a + gap] * angle.cos() + x[a] * angle.sin();
            }
        }
        y
    }

    fn close(a: &[f64], b: &[f64]) -> bool {
        a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-13)
    }

    #[test]
    fn pairs_are_halves_or_neighbours_and_heads_turn_alike() {
        let x: Vec<_> = (0..48).map(|i| f64::from(i * 37 % 101) / 50.0 - 1.0).collect();
        let (halves, neighbours) = (by_hand(&x, 3, 2, 4, 1e4, 2, 1), by_hand(&x, 3, 2, 4, 1e4, 1, 2));
        let y = turned::<RoPE<3, 2, 4>, T![3, 8]>(&x, 2);
        assert!(close(&y, &halves) && !close(&y, &neighbours));
        let y = turned::<RoPEInterleaved<3, 2, 4>, T![3, 8]>(&x, 2);
        assert!(close(&y, &neighbours) && !close(&y, &halves));
        // One head of eight, or positions that run on over the batch, fit as well and are wrong.
        let y = turned::<RoPE<3, 2, 4>, T![3, 8]>(&x, 2);
        assert!(!close(&y, &by_hand(&x, 3, 1, 8, 1e4, 4, 1)) && !close(&y, &by_hand(&x, 6, 2, 4, 1e4, 2, 1)));
        let y = turned::<RoPE<3, 2, 4, Sci<1, 2>>, T![3, 8]>(&x, 2);
        assert!(close(&y, &by_hand(&x, 3, 2, 4, 1e2, 2, 1)));
    }

    #[test]
    fn the_first_token_stays_and_lengths_are_kept() {
        let x: Vec<_> = (0..16).map(|i| f64::from(i) - 7.5).collect();
        let y = turned::<RoPE<2, 2, 4>, T![2, 8]>(&x, 1);
        assert_eq!(y[..8], x[..8]);
        let norm = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>();
        assert!((norm(&y) - norm(&x)).abs() < 1e-12);
    }

    #[test]
    fn a_rotary_part_turns_as_a_head_of_its_own_and_the_rest_stays() {
        let x: Vec<_> = (0..24).map(|i| f64::from(i * 37 % 101) / 50.0 - 1.0).collect();
        let y = turned::<RoPE<2, 2, 6, Sci<1, 4>, No, 4>, T![2, 12]>(&x, 1);
        let part = |v: &[f64]| v.chunks(6).flat_map(|head| head[..4].to_vec()).collect::<Vec<_>>();
        assert!(close(&part(&y), &by_hand(&part(&x), 2, 2, 4, 1e4, 2, 1)));
        assert!(y.chunks(6).zip(x.chunks(6)).all(|(y, x)| y[4..] == x[4..]));
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        let fault = <RoPE<8, 2, 3> as Layer<T![8, 6]>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "`RoPE<8, 2, 3>` can't exist: a head of 3 values can't be divided into pairs"
        );
        let fault = <RoPE<8, 2, 4, Sci<1, 4>, No, 6> as Layer<T![8, 8]>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "`RoPE<8, 2, 4, 6>` can't exist: ROTARY is 6, but a head has 4 values");
        let fault = <RoPEInterleaved<8, 2, 4> as Layer<T![2, 8, 8]>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "shape mismatch: `RoPEInterleaved<8, 2, 4>` takes [8, 8], but it is given [2, 8, 8]"
        );
    }
}
