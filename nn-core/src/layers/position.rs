//! Positions of tokens, added to them.

use nn_kernels::Device;
use nn_kernels::ops::{Block, SinusoidSpec};

use crate::ctx::Ctx;
use crate::dims::{Dim, Dims, Extent};
use crate::fault::{Input, Rule, one_real};
use crate::init::Init;
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::as_given;
use crate::real::{Real, Sci};
use crate::region::{slice, slice_mut};
use crate::signature::{S2, Sig, Signature};
use crate::tree::{Leaf, Node, Role};
use crate::{Size, Text, layer};

/// The rule of a layer that takes S tokens, or up to S, of D values.
const fn tokens(label: &Text, args: &[Extent], s: Extent, d: Extent, given: &Sig) -> Rule {
    if let Some(rule) = Rule::check_positive(label, &["S", "D"], args) {
        return rule;
    }
    let dims = match one_real(label, args, given) {
        Input::Done(rule) => return rule,
        Input::Tensor(dims) => dims,
    };
    if dims.rank() == 2 && dims.n(0) == s.n && dims.axis(1).same(&d) {
        return Rule::ok(Sig::real(dims));
    }
    let takes = d.write(as_given(s, &dims, 0).write(Text::new().str("[")).str(", ")).str("]");
    Rule::mismatch(label, takes, given, Sig::real(dims)).keeping()
}

/// Learned positions: row t of a table of S rows is added to token t. `[S, D]`, or `[..S, D]` with sequences of any
/// length up to S, keeps its shape.
///
/// Parameter: `weight` `[S, D]`, drawn from N(0, 1) as PyTorch's `Embedding`. Rows past the sequence's end get no
/// gradient. Gehring et al. 2017, arXiv:1705.03122; BERT's and GPT-2's positions.
///
/// ```
/// use nn::{Layer, PosEmbed, T};
/// assert_eq!(<PosEmbed<128, 64> as Layer<T![..128, 64]>>::RULE.out.to_string(), "[..128, 64]");
/// let fault = <PosEmbed<128, 64> as Layer<T![256, 64]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `PosEmbed<128, 64>` takes [128, 64], but it is given [256, 64]"
/// );
/// ```
#[layer(weight: S2<S, D>)]
pub struct PosEmbed<const S: usize, const D: usize>;

impl<S: Dim, D: Dim> PosEmbedOf<S, D> {
    const LEAVES: [Leaf; 1] =
        [Leaf::new("weight", Dims::new(&[S::EXTENT, D::EXTENT]), Role::Weight, Init::Normal(1.0))];
}

impl<S: Dim, D: Dim> Params for PosEmbedOf<S, D> {
    const LABEL: Text = Self::SHOWN;
    const TREE: &'static Node = &Node::of(&Self::LEAVES);
}

impl<X: Signature, S: Dim, D: Dim> Layer<X> for PosEmbedOf<S, D> {
    const RULE: Rule = tokens(&Self::LABEL, Self::ARGS, S::EXTENT, D::EXTENT, &X::SIG);
    const CAUSAL: bool = true;
}

impl<V: Device, X: Signature, S: Dim, D: Dim> Module<V, X> for PosEmbedOf<S, D> {
    fn forward(cx: &mut Ctx<'_, V>, mut call: Forward<'_, V>) {
        let (first, seq) = (cx.position(), X::SIG.dims(0).axis_at(0, &cx.lengths));
        let (values, device) = (seq * D::N, cx.device());
        let mut y = call.y.get(0);
        if first == 0 || cx.batch == 0 {
            let rows = slice::<V>(call.params, first * D::N, values);
            device.broadcast_rows(cx.batch, rows, V::reborrow(&mut y));
        } else {
            // What goes on stands elsewhere each time.
            let (mut one, others) = V::split_mut(V::reborrow(&mut y), values);
            let (from, to) =
                (Block { offset: first * D::N, stride: values }, Block { offset: 0, stride: values });
            device.copy_moving_block(1, values, call.params, from, V::reborrow(&mut one), to);
            device.broadcast_rows(cx.batch - 1, V::read(&one), others);
        }
        cx.device().add_assign(call.x.get(0), y);
    }

    fn vjp(cx: &mut Ctx<'_, V>, mut call: Vjp<'_, V>) {
        let (first, seq) = (cx.position(), X::SIG.dims(0).axis_at(0, &cx.lengths));
        if let Some(dx) = call.dx.wanted(0) {
            cx.device().copy(call.dy.get(0), dx);
        }
        if let Some(dparams) = call.dparams {
            let drows = slice_mut::<V>(dparams, first * D::N, seq * D::N);
            cx.device().sum_rows(cx.batch, call.dy.get(0), drows);
        }
    }
}

/// Sines and cosines of a token's position t are added to it: y₂ⱼ = x₂ⱼ + sin(t·THETA^(−2j/D)) and
/// y₂ⱼ₊₁ = x₂ⱼ₊₁ + cos(t·THETA^(−2j/D)), next to each other and not in halves. `[S, D]`, or `[..S, D]`, keeps its shape.
/// No parameters.
///
/// Angles are computed in double precision. Vaswani et al. 2017, arXiv:1706.03762.
///
/// ```
/// use nn::{Layer, SinusoidalPosAdd, T};
/// assert_eq!(<SinusoidalPosAdd<5, 8> as Layer<T![5, 8]>>::RULE.out.to_string(), "[5, 8]");
/// let fault = <SinusoidalPosAdd<5, 7> as Layer<T![5, 7]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "`SinusoidalPosAdd<5, 7>` can't exist: a token of 7 values can't be divided into pairs"
/// );
/// ```
#[layer]
pub struct SinusoidalPosAdd<const S: usize, const D: usize, THETA: Real = Sci<1, 4>>;

impl<S: Dim, D: Dim, THETA: Real> SinusoidalPosAddOf<S, D, THETA> {
    const fn rule(given: &Sig) -> Rule {
        let rule = tokens(&Self::LABEL, Self::ARGS, S::EXTENT, D::EXTENT, given);
        let possible = S::EXTENT.n > 0 && !S::EXTENT.is_poison() && !D::EXTENT.is_poison();
        if possible && D::EXTENT.length.is_none() && !D::N.is_multiple_of(2) {
            let text = Text::new().str("a token of ").num(D::N).str(" values can't be divided into pairs");
            return Rule::cannot_exist(&Self::LABEL, text);
        }
        rule
    }
}

impl<S: Dim, D: Dim, THETA: Real> Params for SinusoidalPosAddOf<S, D, THETA> {
    const LABEL: Text = Self::SHOWN;
}

impl<X: Signature, S: Dim, D: Dim, THETA: Real> Layer<X> for SinusoidalPosAddOf<S, D, THETA> {
    const RULE: Rule = Self::rule(&X::SIG);
    // The sines and cosines, which are those of every sample.
    const SCRATCH: Size = Size::fixed_elements(S::N.saturating_mul(D::N));
    const CAUSAL: bool = true;
}

impl<V: Device, X: Signature, S: Dim, D: Dim, THETA: Real> Module<V, X> for SinusoidalPosAddOf<S, D, THETA> {
    fn forward(cx: &mut Ctx<'_, V>, mut call: Forward<'_, V>) {
        let (first, seq) = (cx.position(), X::SIG.dims(0).axis_at(0, &cx.lengths));
        let spec = SinusoidSpec { rows: seq, first, dim: D::N, theta: THETA::VALUE };
        let mut table = call.scratch.take(seq * D::N);
        cx.device().sinusoids(&spec, V::reborrow(&mut table));
        let mut y = call.y.get(0);
        cx.device().broadcast_rows(cx.batch, V::read(&table), V::reborrow(&mut y));
        cx.device().add_assign(call.x.get(0), y);
    }

    fn vjp(cx: &mut Ctx<'_, V>, mut call: Vjp<'_, V>) {
        if let Some(dx) = call.dx.wanted(0) {
            cx.device().copy(call.dy.get(0), dx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Run, Values, gradients};
    use crate::{Cpu, MAX_LENGTHS, Mode, T};

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            gradients::<PosEmbed<5, 3>, T![5, 3]>(batch, Mode::Train, 1).assert_within(1e-7);
            // Sequences of three.
            gradients::<PosEmbed<4, 3>, T![..4, 3]>(batch, Mode::Infer, 2).assert_within(1e-7);
            gradients::<SinusoidalPosAdd<5, 4>, T![5, 4]>(batch, Mode::Train, 3).assert_within(1e-7);
            gradients::<SinusoidalPosAdd<4, 2, Sci<1, 2>>, T![..4, 2]>(batch, Mode::Infer, 4)
                .assert_within(1e-7);
        }
    }

    #[test]
    fn a_token_gets_its_own_row_and_rows_past_the_end_no_gradient() {
        let mut lengths = [0; MAX_LENGTHS];
        lengths[0] = 2;
        let mut run = Run::<PosEmbed<3, 2>, T![..3, 2], Cpu<f64>>::new(&Cpu::default(), 2).lengths(lengths);
        run.set("weight", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        // Two sequences of two: the second starts anew.
        let x = vec![10.0, 10.0, 20.0, 20.0, 30.0, 30.0, 40.0, 40.0];
        let y = run.forward(&[Values::Real(x)]);
        assert_eq!(y[0].real(), [11.0, 12.0, 23.0, 24.0, 31.0, 32.0, 43.0, 44.0]);
        let gradients = run.vjp(&[Values::Real((1..9).map(f64::from).collect())]);
        assert_eq!(run.gradient(&gradients, "weight"), [6.0, 8.0, 10.0, 12.0, 0.0, 0.0]);
    }

    #[test]
    fn sines_and_cosines_alternate_and_are_not_halves() {
        let mut run = Run::<SinusoidalPosAdd<3, 4>, T![3, 4], Cpu<f64>>::new(&Cpu::default(), 2);
        let y = run.forward_only(&[Values::Real(vec![0.0; 24])])[0].real().to_vec();
        assert_eq!(y[..4], [0.0, 1.0, 0.0, 1.0]);
        for t in [1, 2] {
            // Both sequences alike: positions don't run on over the batch.
            for row in [&y[4 * t..4 * t + 4], &y[12 + 4 * t..16 + 4 * t]] {
                let t = t as f64;
                let expected = [t.sin(), t.cos(), (t / 100.0).sin(), (t / 100.0).cos()];
                assert!(row.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-15), "{row:?}");
                let halves = [t.sin(), (t / 100.0).sin(), t.cos(), (t / 100.0).cos()];
                assert!(row.iter().zip(halves).any(|(a, b)| (a - b).abs() > 1e-2));
            }
        }
    }

    #[test]
    fn sequences_of_no_tokens_are_nothing() {
        let lengths = [0; MAX_LENGTHS];
        let mut run = Run::<PosEmbed<3, 2>, T![..3, 2], Cpu<f64>>::new(&Cpu::default(), 2).lengths(lengths);
        assert!(run.forward(&[Values::Real(vec![])])[0].real().is_empty());
        assert_eq!(run.vjp(&[Values::Real(vec![])]).dparams, vec![0.0; run.params.len()]);
        type Fixed = SinusoidalPosAdd<3, 2>;
        let mut run = Run::<Fixed, T![..3, 2], Cpu<f64>>::new(&Cpu::default(), 2).lengths(lengths);
        assert!(run.forward(&[Values::Real(vec![])])[0].real().is_empty());
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        let fault = <PosEmbed<0, 2> as Layer<T![0, 2]>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "`PosEmbed<0, 2>` can't exist: S is 0");
        let fault = <SinusoidalPosAdd<5, 4> as Layer<T![4, 5]>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "shape mismatch: `SinusoidalPosAdd<5, 4>` takes [5, 4], but it is given [4, 5]"
        );
        let fault = <PosEmbed<5, 4> as Layer<T![5]>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "shape mismatch: `PosEmbed<5, 4>` takes [5, 4], but it is given [5]");
    }
}
