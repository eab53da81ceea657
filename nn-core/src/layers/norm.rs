//! Normalisations along the last axis.

use nn_kernels::{Device, View, WideViewMut};

use crate::ctx::Ctx;
use crate::dims::{Dim, Dims};
use crate::fault::Rule;
use crate::init::Init;
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::{along_last, rows_of};
use crate::real::{Real, Sci};
use crate::region::{slice, slice_mut};
use crate::signature::{S1, Signature};
use crate::tree::{Leaf, Node, Role};
use crate::{Size, Text, layer};

/// Layer normalisation: y = (x − mean) / √(var + EPS)·γ + β along the last axis, with the biased variance;
/// `[.., D]` keeps its shape.
///
/// Parameters, as in PyTorch: `weight` γ `[D]`, one at first, and `bias` β `[D]`, zero at first. Ba et al.
/// 2016, arXiv:1607.06450.
///
/// ```
/// use nn::{Layer, LayerNorm, T};
/// assert_eq!(<LayerNorm<8> as Layer<T![5, 8]>>::RULE.out.to_string(), "[5, 8]");
/// let fault = <LayerNorm<8> as Layer<T![8, 5]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `LayerNorm<8>` takes [.., 8], but it is given [8, 5]"
/// );
/// ```
#[layer(weight: S1<D>, bias: S1<D>)]
pub struct LayerNorm<const D: usize, EPS: Real = Sci<1, -5>>;

impl<D: Dim, EPS: Real> LayerNormOf<D, EPS> {
    const LEAVES: [Leaf; 2] = [
        Leaf::new("weight", Dims::new(&[D::EXTENT]), Role::Scale, Init::Constant(1.0)),
        Leaf::new("bias", Dims::new(&[D::EXTENT]), Role::Bias, Init::Constant(0.0)),
    ];
}

impl<D: Dim, EPS: Real> Params for LayerNormOf<D, EPS> {
    const LABEL: Text = Self::SHOWN;
    const TREE: &'static Node = &Node::of(&Self::LEAVES);
}

impl<X: Signature, D: Dim, EPS: Real> Layer<X> for LayerNormOf<D, EPS> {
    const RULE: Rule = match Rule::check_positive(&Self::LABEL, &["D"], Self::ARGS) {
        Some(rule) => rule,
        None => along_last(&Self::LABEL, Self::ARGS, &X::SIG, D::EXTENT, D::EXTENT).keeping(),
    };
    const KEEPS_X: bool = true;
    const SAVED: Size = Size::wide(rows_of(&X::SIG.dims(0)).saturating_mul(2));
    const CAUSAL: bool = true;
}

impl<V: Device, X: Signature, D: Dim, EPS: Real> Module<V, X> for LayerNormOf<D, EPS> {
    fn forward(cx: &mut Ctx<'_, V>, mut call: Forward<'_, V>) {
        let rows = cx.rows(const { &X::SIG.dims(0) });
        let gamma = slice::<V>(call.params, 0, D::N);
        let beta = slice::<V>(call.params, const { Self::TREE.leaf_offset(1) }, D::N);
        let stats = cx.keeps().then(|| call.saved.take(2 * rows));
        cx.device().layer_norm(
            D::N,
            EPS::VALUE,
            call.x.get(0),
            Some(gamma),
            Some(beta),
            call.y.get(0),
            stats,
        );
    }

    fn vjp(cx: &mut Ctx<'_, V>, mut call: Vjp<'_, V>) {
        let rows = cx.rows(const { &X::SIG.dims(0) });
        let gamma = slice::<V>(call.params, 0, D::N);
        let (dgamma, dbeta) = match call.dparams {
            Some(dparams) => {
                let (dgamma, dbeta) = V::split_mut(dparams, const { Self::TREE.leaf_offset(1) });
                (Some(slice_mut::<V>(dgamma, 0, D::N)), Some(slice_mut::<V>(dbeta, 0, D::N)))
            }
            None => (None, None),
        };
        let stats = call.saved.take(2 * rows);
        let (x, dy, dx) = (call.x.get(0), call.dy.get(0), call.dx.wanted(0));
        cx.device().layer_norm_vjp(D::N, x, Some(gamma), stats, dy, dx, dgamma, dbeta);
    }
}

/// Root mean square normalisation: y = x / √(mean(x²) + EPS)·γ along the last axis; `[.., D]` keeps its shape.
///
/// Parameter: `weight` γ `[D]`, one at first. Zhang and Sennrich 2019, arXiv:1910.07467. Language models
/// mostly write a smaller EPS, 10⁻⁵ or 10⁻⁶, than the 10⁻⁴ that it has here.
///
/// ```
/// use nn::{Layer, RMSNorm, T};
/// assert_eq!(<RMSNorm<8> as Layer<T![5, 8]>>::RULE.out.to_string(), "[5, 8]");
/// ```
#[layer(weight: S1<D>)]
pub struct RMSNorm<const D: usize, EPS: Real = Sci<1, -4>>;

impl<D: Dim, EPS: Real> RMSNormOf<D, EPS> {
    const LEAVES: [Leaf; 1] =
        [Leaf::new("weight", Dims::new(&[D::EXTENT]), Role::Scale, Init::Constant(1.0))];
}

impl<D: Dim, EPS: Real> Params for RMSNormOf<D, EPS> {
    const LABEL: Text = Self::SHOWN;
    const TREE: &'static Node = &Node::of(&Self::LEAVES);
}

impl<X: Signature, D: Dim, EPS: Real> Layer<X> for RMSNormOf<D, EPS> {
    const RULE: Rule = match Rule::check_positive(&Self::LABEL, &["D"], Self::ARGS) {
        Some(rule) => rule,
        None => along_last(&Self::LABEL, Self::ARGS, &X::SIG, D::EXTENT, D::EXTENT).keeping(),
    };
    const KEEPS_X: bool = true;
    const SAVED: Size = Size::wide(rows_of(&X::SIG.dims(0)));
    const CAUSAL: bool = true;
}

impl<V: Device, X: Signature, D: Dim, EPS: Real> Module<V, X> for RMSNormOf<D, EPS> {
    fn forward(cx: &mut Ctx<'_, V>, mut call: Forward<'_, V>) {
        let gamma: View<'_, V> = slice::<V>(call.params, 0, D::N);
        let stats: Option<WideViewMut<'_, V>> =
            cx.keeps().then(|| call.saved.take(cx.rows(const { &X::SIG.dims(0) })));
        cx.device().rms_norm(D::N, EPS::VALUE, call.x.get(0), Some(gamma), call.y.get(0), stats);
    }

    fn vjp(cx: &mut Ctx<'_, V>, mut call: Vjp<'_, V>) {
        let gamma = slice::<V>(call.params, 0, D::N);
        let dgamma = call.dparams.map(|dparams| slice_mut::<V>(dparams, 0, D::N));
        let stats = call.saved.take(cx.rows(const { &X::SIG.dims(0) }));
        let (x, dy, dx) = (call.x.get(0), call.dy.get(0), call.dx.wanted(0));
        cx.device().rms_norm_vjp(D::N, x, Some(gamma), stats, dy, dx, dgamma);
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
            gradients::<LayerNorm<5>, T![5]>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<LayerNorm<6>, T![2, 3, 6]>(batch, Mode::Infer, 2).assert_within(1e-7);
            gradients::<LayerNorm<6, Sci<1, -1>>, T![..4, 6]>(batch, Mode::Infer, 3).assert_within(1e-7);
            gradients::<RMSNorm<5>, T![5]>(batch, Mode::Train, 4).assert_within(1e-7);
            gradients::<RMSNorm<4, Sci<1, -1>>, T![3, 4]>(batch, Mode::Infer, 5).assert_within(1e-7);
            gradients::<RMSNorm<4>, T![..5, 4]>(batch, Mode::Infer, 6).assert_within(1e-7);
        }
    }

    fn one_row<M: Module<Cpu<f64>, T![4]>>(x: [f64; 4]) -> Vec<f64> {
        let mut run = Run::<M, T![4], Cpu<f64>>::new(&Cpu::default(), 1);
        run.forward_only(&[Values::Real(x.to_vec())])[0].real().to_vec()
    }

    #[test]
    fn epsilon_stands_inside_the_root() {
        let x = [0.3f64, -0.1, 0.2, 0.4];
        let square = x.iter().map(|v| v * v).sum::<f64>() / 4.0;
        let y = one_row::<RMSNorm<4, Sci<1, -1>>>(x);
        assert!((y[0] - x[0] / (square + 0.1).sqrt()).abs() < 1e-15);
        // Outside, or on the sum and not the mean, it would give another value.
        assert!((y[0] - x[0] / (square.sqrt() + 0.1)).abs() > 1e-2);
        assert!((y[0] - x[0] / (square + 0.1 / 4.0).sqrt()).abs() > 1e-2);

        let mean = x.iter().sum::<f64>() / 4.0;
        let var = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 4.0;
        let y = one_row::<LayerNorm<4, Sci<1, -1>>>(x);
        assert!((y[0] - (x[0] - mean) / (var + 0.1).sqrt()).abs() < 1e-15);
        assert!((y[0] - (x[0] - mean) / (var * 4.0 / 3.0 + 0.1).sqrt()).abs() > 1e-3);
    }

    #[test]
    fn a_large_mean_does_not_drown_the_variance() {
        let near = one_row::<LayerNorm<4>>([1.0, 2.0, 3.0, 4.0]);
        let far = one_row::<LayerNorm<4>>([1.0, 2.0, 3.0, 4.0].map(|v| v + 1e9));
        assert!(near.iter().zip(&far).all(|(a, b)| (a - b).abs() < 1e-7));
        // The mean of squares less the square of the mean knows nothing of a variance of 1.25 at 10⁹.
        let squares = [1.0, 2.0, 3.0, 4.0].map(|v: f64| (v + 1e9).powi(2));
        let naive = squares.iter().sum::<f64>() / 4.0 - (1e9f64 + 2.5).powi(2);
        assert!((naive - 1.25).abs() > 1.0);
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        let fault = <LayerNorm<0> as Layer<T![0]>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "`LayerNorm<0>` can't exist: D is 0");
        let fault = <RMSNorm<4> as Layer<(T![4], T![4])>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "shape mismatch: `RMSNorm<4>` takes one tensor, but it is given ([4], [4])"
        );
        let fault = <RMSNorm<4> as Layer<T![]>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "shape mismatch: `RMSNorm<4>` takes [.., 4], but it is given []");
        type Third = crate::Over<crate::C<4>, crate::C<3>>;
        let fault = <LayerNormOf<Third, Sci<1, -5>> as Layer<T![4]>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "`LayerNorm<?>` can't exist: 4 / 3 is not a whole number");
        assert!(<LayerNorm<4> as Layer<crate::S1<Third>>>::RULE.fault.is_none());
        assert!(<LayerNorm<4> as Layer<crate::S1<Third>>>::SAVED != Size::ZERO);
    }
}
