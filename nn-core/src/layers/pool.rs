//! Pooling over images.

use nn_kernels::Device;
use nn_kernels::ops::Pool2dSpec;

use crate::ctx::Ctx;
use crate::dims::{Dim, Extent};
use crate::fault::Rule;
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::Window;
use crate::signature::Signature;
use crate::{Size, Text, layer};

/// The maximum of each K×K window, S apart, of every channel: `[C, H, W]` → `[C, H′, W′]` with
/// H′ = ⌊(H + 2·P − K) / S⌋ + 1, and W′ likewise. S = 0, the default, stands for K: windows side by side.
///
/// Padding never wins, NaN always does. Where a maximum occurs twice the gradient goes to the first, in reading
/// order, as in PyTorch.
///
/// ```
/// use nn::{Layer, MaxPool2D, T};
/// assert_eq!(<MaxPool2D<2> as Layer<T![16, 28, 28]>>::RULE.out.to_string(), "[16, 14, 14]");
/// assert_eq!(<MaxPool2D<3, 2, 1> as Layer<T![16, 28, 28]>>::RULE.out.to_string(), "[16, 14, 14]");
/// let fault = <MaxPool2D<3> as Layer<T![16, 2, 2]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `MaxPool2D<3>` needs an image of at least 3×3, but it is given [16, 2, 2]"
/// );
/// ```
#[layer]
pub struct MaxPool2D<const K: usize, const S: usize = 0, const P: usize = 0>;

/// The mean of each K×K window, S apart, of every channel: `[C, H, W]` → `[C, H′, W′]` as [`MaxPool2D`]. The sum
/// is divided by K² always: padding counts as zeros, as in PyTorch.
///
/// ```
/// use nn::{AvgPool2D, Layer, T};
/// assert_eq!(<AvgPool2D<2> as Layer<T![16, 28, 28]>>::RULE.out.to_string(), "[16, 14, 14]");
/// ```
#[layer]
pub struct AvgPool2D<const K: usize, const S: usize = 0, const P: usize = 0>;

const fn window(k: usize, s: usize, p: usize) -> Window {
    Window { kernel: k, stride: if s == 0 { k } else { s }, padding: p, dilation: 1 }
}

impl Window {
    const fn pool(&self, label: &Text, args: &[Extent], given: &crate::Sig) -> Rule {
        if let Some(rule) = Rule::check_positive(label, &["K"], args) {
            return rule;
        }
        if let Some(rule) = Rule::check_args(label, args) {
            return rule;
        }
        if self.padding > self.kernel / 2 {
            let text =
                Text::new().str("a padding of ").num(self.padding).str(" is more than half the window of ");
            return Rule::cannot_exist(label, text.num(self.kernel));
        }
        self.rule(label, args, given, None, Extent::new(0))
    }

    fn pool_spec<D: Device, X: Signature>(&self, cx: &Ctx<'_, D>) -> Pool2dSpec {
        let dims = X::SIG.dims(0);
        let input = [dims.n_or_one(1), dims.n_or_one(2)];
        Pool2dSpec {
            planes: cx.batch * dims.n_or_one(0),
            input,
            output: [self.places(input[0]).n, self.places(input[1]).n],
            kernel: [self.kernel; 2],
            stride: [self.stride; 2],
            padding: [self.padding; 2],
        }
    }
}

impl<K: Dim, S: Dim, P: Dim> Params for MaxPool2DOf<K, S, P> {
    const LABEL: Text = Self::SHOWN;
}

impl<X: Signature, K: Dim, S: Dim, P: Dim> Layer<X> for MaxPool2DOf<K, S, P> {
    const RULE: Rule = window(K::N, S::N, P::N).pool(&Self::LABEL, Self::ARGS, &X::SIG);
    const SAVED: Size = Size::bytes(<Self as Layer<X>>::RULE.out.dims(0).numel().saturating_mul(4));
}

impl<D: Device, X: Signature, K: Dim, S: Dim, P: Dim> Module<D, X> for MaxPool2DOf<K, S, P> {
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        let spec = window(K::N, S::N, P::N).pool_spec::<D, X>(cx);
        let argmax =
            cx.keeps().then(|| call.saved.take(cx.numel(const { &<Self as Layer<X>>::RULE.out.dims(0) })));
        cx.device().max_pool2d(&spec, call.x.get(0), call.y.get(0), argmax);
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        let spec = window(K::N, S::N, P::N).pool_spec::<D, X>(cx);
        if let Some(dx) = call.dx.wanted(0) {
            let argmax = call.saved.take(cx.numel(const { &<Self as Layer<X>>::RULE.out.dims(0) }));
            cx.device().max_pool2d_vjp(&spec, argmax, call.dy.get(0), dx);
        }
    }
}

impl<K: Dim, S: Dim, P: Dim> Params for AvgPool2DOf<K, S, P> {
    const LABEL: Text = Self::SHOWN;
}

impl<X: Signature, K: Dim, S: Dim, P: Dim> Layer<X> for AvgPool2DOf<K, S, P> {
    const RULE: Rule = window(K::N, S::N, P::N).pool(&Self::LABEL, Self::ARGS, &X::SIG);
}

impl<D: Device, X: Signature, K: Dim, S: Dim, P: Dim> Module<D, X> for AvgPool2DOf<K, S, P> {
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        let spec = window(K::N, S::N, P::N).pool_spec::<D, X>(cx);
        cx.device().avg_pool2d(&spec, call.x.get(0), call.y.get(0));
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        let spec = window(K::N, S::N, P::N).pool_spec::<D, X>(cx);
        if let Some(dx) = call.dx.wanted(0) {
            cx.device().avg_pool2d_vjp(&spec, call.dy.get(0), dx);
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
            gradients::<MaxPool2D<2>, T![2, 4, 6]>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<MaxPool2D<3, 2, 1>, T![1, 5, 4]>(batch, Mode::Infer, 2).assert_within(1e-7);
            gradients::<MaxPool2D<2, 3>, T![3, 5, 5]>(batch, Mode::Infer, 3).assert_within(1e-7);
            gradients::<AvgPool2D<2>, T![2, 5, 6]>(batch, Mode::Train, 4).assert_within(1e-7);
            gradients::<AvgPool2D<3, 2, 1>, T![1, 5, 4]>(batch, Mode::Infer, 5).assert_within(1e-7);
        }
    }

    #[test]
    fn the_gradient_of_a_tied_maximum_goes_to_the_first() {
        let mut run = Run::<MaxPool2D<2>, T![1, 2, 4], Cpu<f64>>::new(&Cpu::default(), 1);
        run.forward(&[Values::Real(vec![1.0, 7.0, 0.0, 0.0, 7.0, 7.0, 0.0, 0.0])]);
        let dx = run.vjp(&[Values::Real(vec![3.0, 5.0])]).dx;
        assert_eq!(dx, [Some(vec![0.0, 3.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0])]);
    }

    #[test]
    fn padding_never_wins_a_maximum_and_counts_in_a_mean() {
        let x = [Values::Real(vec![-1.0, -2.0, -3.0, -4.0])];
        let max = Run::<MaxPool2D<3, 2, 1>, T![1, 2, 2], Cpu<f64>>::new(&Cpu::default(), 1).forward(&x);
        assert_eq!(max[0].real(), [-1.0]);
        let mean = Run::<AvgPool2D<3, 2, 1>, T![1, 2, 2], Cpu<f64>>::new(&Cpu::default(), 1).forward(&x);
        assert_eq!(mean[0].real(), [-10.0 / 9.0]);
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        fn fault<L: Layer<X>, X: Signature>() -> String {
            let _ = L::SAVED;
            L::RULE.fault.unwrap().to_string()
        }
        assert_eq!(
            fault::<MaxPool2D<3, 1, 2>, T![1, 8, 8]>(),
            "`MaxPool2D<3, 1, 2>` can't exist: a padding of 2 is more than half the window of 3"
        );
        assert_eq!(fault::<AvgPool2D<0>, T![1, 8, 8]>(), "`AvgPool2D<0>` can't exist: K is 0");
        assert_eq!(
            fault::<AvgPool2D<2>, T![8, 8]>(),
            "shape mismatch: `AvgPool2D<2>` takes [C, H, W], but it is given [8, 8]"
        );
        assert_eq!(
            fault::<AvgPool2D<4, 4, 1>, T![5, 1, 9]>(),
            "shape mismatch: `AvgPool2D<4, 4, 1>` needs an image of at least 4×4, padding included, \
             but it is given [5, 1, 9], padded to 3×11"
        );
    }
}
