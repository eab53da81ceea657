//! Batch normalisation.

use std::ops::RangeInclusive;

use nn_kernels::ops::BatchNormSpec;
use nn_kernels::{Device, Pod, View, WideView};

use crate::ctx::{CallFault, Ctx};
use crate::dims::{Dim, Dims, Extent};
use crate::fault::{Input, Rule, one_real};
use crate::init::Init;
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::product;
use crate::real::{Real, Sci};
use crate::region::{StateRef, slice, span_mut};
use crate::signature::{S1, Sig, Signature};
use crate::tree::{Leaf, Node, Role};
use crate::{Size, Text, layer};

/// Batch normalisation of images: y = (x − mean) / √(var + EPS)·γ + β for each channel; `[C, H, W]` keeps its
/// shape.
///
/// In training mean and variance (the biased one) are those of the batch, over samples, rows and columns; the
/// running ones move by MOMENTUM towards the batch's mean and its *unbiased* variance. In inference the
/// running ones are used, and are not touched. A batch with a single value a channel can't be trained on.
///
/// Parameters, as in PyTorch: `weight` γ `[C]`, one at first, and `bias` β `[C]`, zero at first. State:
/// `running_mean` `[C]`, zero at first, and `running_var` `[C]`, one at first. Ioffe and Szegedy 2015,
/// arXiv:1502.03167.
///
/// ```
/// use nn::{BatchNorm2D, Layer, T};
/// assert_eq!(<BatchNorm2D<16> as Layer<T![16, 8, 8]>>::RULE.out.to_string(), "[16, 8, 8]");
/// let fault = <BatchNorm2D<16> as Layer<T![3, 8, 8]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `BatchNorm2D<16>` takes [16, H, W], but it is given [3, 8, 8]"
/// );
/// ```
#[layer(weight: S1<C>, bias: S1<C>, running_mean: S1<C>, running_var: S1<C>)]
pub struct BatchNorm2D<const C: usize, EPS: Real = Sci<1, -5>, MOMENTUM: Real = Sci<1, -1>>;

/// Batch normalisation of vectors or sequences, `[C]` or `[C, L]`: [`BatchNorm2D`] otherwise.
///
/// ```
/// use nn::{BatchNorm1D, Layer, T};
/// assert_eq!(<BatchNorm1D<16> as Layer<T![16]>>::RULE.out.to_string(), "[16]");
/// assert_eq!(<BatchNorm1D<16> as Layer<T![16, 9]>>::RULE.out.to_string(), "[16, 9]");
/// ```
#[layer(weight: S1<C>, bias: S1<C>, running_mean: S1<C>, running_var: S1<C>)]
pub struct BatchNorm1D<const C: usize, EPS: Real = Sci<1, -5>, MOMENTUM: Real = Sci<1, -1>>;

/// Batch normalisation of volumes, `[C, D, H, W]`: [`BatchNorm2D`] otherwise.
///
/// ```
/// use nn::{BatchNorm3D, Layer, T};
/// assert_eq!(<BatchNorm3D<16> as Layer<T![16, 4, 8, 8]>>::RULE.out.to_string(), "[16, 4, 8, 8]");
/// ```
#[layer(weight: S1<C>, bias: S1<C>, running_mean: S1<C>, running_var: S1<C>)]
pub struct BatchNorm3D<const C: usize, EPS: Real = Sci<1, -5>, MOMENTUM: Real = Sci<1, -1>>;

const fn leaves(channels: Extent) -> [Leaf; 4] {
    let dims = Dims::new(&[channels]);
    [
        Leaf::new("weight", dims, Role::Scale, Init::Constant(1.0)),
        Leaf::new("bias", dims, Role::Bias, Init::Constant(0.0)),
        Leaf::new("running_mean", dims, Role::State, Init::Constant(0.0)),
        Leaf::new("running_var", dims, Role::State, Init::Constant(1.0)),
    ]
}

/// The rule for shapes that start with C and have so many axes; `rest` shows those after it.
const fn rule(label: &Text, args: &[Extent], given: &Sig, ranks: RangeInclusive<usize>, rest: &str) -> Rule {
    if let Some(rule) = Rule::check_positive(label, &["C"], args) {
        return rule;
    }
    let dims = match one_real(label, args, given) {
        Input::Done(rule) => return rule,
        Input::Tensor(dims) => dims,
    };
    let channels = args[0];
    let takes = channels.write(Text::new().str("[")).str(rest);
    if dims.rank() < *ranks.start() || dims.rank() > *ranks.end() {
        return Rule::mismatch(label, takes, given, Sig::real(dims));
    }
    let gives = Sig::real(dims.with(0, channels));
    if !dims.axis(0).same(&channels) {
        return Rule::mismatch(label, takes, given, gives);
    }
    if dims.numel() == 0 {
        return Rule::mismatch(label, takes.str(" with at least one value"), given, gives);
    }
    Rule::ok(gives)
}

/// One of the three, once its spec for this call is known.
struct BatchNorm<'n> {
    spec: BatchNormSpec,
    tree: &'n Node,
}

impl BatchNorm<'_> {
    fn affine<'a, D: Device>(&self, params: View<'a, D>) -> [View<'a, D>; 2] {
        let c = self.spec.channels;
        [slice::<D>(params, 0, c), slice::<D>(params, self.tree.leaf_offset(1), c)]
    }

    fn running<'a, D: Device>(&self, state: StateRef<'a, D>) -> [WideView<'a, D>; 2] {
        let c = self.spec.channels;
        [state.slice(0, c).values(), state.slice(self.tree.leaf_offset(3), c).values()]
    }

    /// Two neighbours of an arena: the first starts it, the second is leaf `second`.
    fn pair<'a, D: Device, T: Pod>(&self, arena: D::ViewMut<'a, T>, second: usize) -> [D::ViewMut<'a, T>; 2] {
        let c = self.spec.channels;
        let (a, b) = D::split_mut(arena, self.tree.leaf_offset(second));
        [span_mut::<D, T>(a, 0, c), span_mut::<D, T>(b, 0, c)]
    }

    fn values(&self) -> usize {
        self.spec.batch * self.spec.area
    }

    fn forward<D: Device>(&self, cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        let [gamma, beta] = self.affine::<D>(call.params);
        let (x, y) = (call.x.get(0), call.y.get(0));
        if !cx.trains() || self.values() < 2 {
            if cx.trains() && self.values() == 1 {
                cx.fail(CallFault::OneValueAChannel);
            }
            let running = self.running::<D>(call.state.read());
            cx.device().batch_norm_infer(&self.spec, x, gamma, beta, running, y);
            return;
        }
        let n = 2 * self.spec.channels;
        let stats = if cx.keeps() { call.saved.take(n) } else { call.scratch.take(n) };
        let running = call.state.write().map(|state| self.pair::<D, _>(state, 3));
        cx.device().batch_norm_train(&self.spec, x, gamma, beta, y, stats, running);
    }

    fn vjp<D: Device>(&self, cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        let [gamma, _] = self.affine::<D>(call.params);
        let [dgamma, dbeta] = match call.dparams {
            Some(dparams) => self.pair::<D, _>(dparams, 1).map(Some),
            None => [None, None],
        };
        let trains = cx.trains() && self.values() > 1;
        let n = 2 * self.spec.channels;
        let stats = if trains {
            call.saved.take(n)
        } else {
            let mut stats = call.scratch.take(n);
            let running = self.running::<D>(call.state);
            cx.device().batch_norm_stats(&self.spec, running, D::reborrow(&mut stats));
            D::freeze(stats)
        };
        let (x, dy, dx) = (call.x.get(0), call.dy.get(0), call.dx.wanted(0));
        cx.device().batch_norm_vjp(&self.spec, !trains, x, gamma, stats, dy, dx, dgamma, dbeta);
    }
}

macro_rules! batch_norm {
    ($($own:ident $ranks:expr, $rest:literal;)*) => {$(
        impl<C: Dim, EPS: Real, MOMENTUM: Real> $own<C, EPS, MOMENTUM> {
            const LEAVES: [Leaf; 4] = leaves(C::EXTENT);

            fn at<D: Device, X: Signature>(cx: &Ctx<'_, D>) -> BatchNorm<'static> {
                let dims = X::SIG.dims(0);
                let area = (1..dims.rank()).map(|i| dims.axis_at(i, &cx.lengths)).product();
                let (eps, momentum) = (EPS::VALUE, MOMENTUM::VALUE);
                let spec = BatchNormSpec { batch: cx.batch, channels: C::N, area, eps, momentum };
                BatchNorm { spec, tree: Self::TREE }
            }
        }

        impl<C: Dim, EPS: Real, MOMENTUM: Real> Params for $own<C, EPS, MOMENTUM> {
            const LABEL: Text = Self::SHOWN;
            const TREE: &'static Node = &Node::of(&Self::LEAVES);
        }

        impl<X: Signature, C: Dim, EPS: Real, MOMENTUM: Real> Layer<X> for $own<C, EPS, MOMENTUM> {
            const RULE: Rule = rule(&Self::LABEL, Self::ARGS, &X::SIG, $ranks, $rest);
            const KEEPS_X: bool = true;
            const SAVED: Size = Size::fixed_wide(product(&[2, C::N]));
            // For the statistics, where nobody keeps them.
            const SCRATCH: Size = Size::fixed_wide(product(&[2, C::N]));
            const VJP_SCRATCH: Size = Size::fixed_wide(product(&[2, C::N]));
            const CAUSAL: bool = true;
        }

        impl<D: Device, X: Signature, C: Dim, EPS: Real, MOMENTUM: Real> Module<D, X> for $own<C, EPS, MOMENTUM> {
            fn forward(cx: &mut Ctx<'_, D>, call: Forward<'_, D>) {
                Self::at::<D, X>(cx).forward(cx, call);
            }

            fn vjp(cx: &mut Ctx<'_, D>, call: Vjp<'_, D>) {
                Self::at::<D, X>(cx).vjp(cx, call);
            }
        }
    )*};
}
batch_norm! {
    BatchNorm1DOf 1..=2, "] or with one axis more";
    BatchNorm2DOf 3..=3, ", H, W]";
    BatchNorm3DOf 4..=4, ", D, H, W]";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Run, Values, gradients};
    use crate::{Cpu, Mode, T};

    #[test]
    fn gradients_are_those_of_finite_differences() {
        gradients::<BatchNorm2D<3>, T![3, 2, 3]>(1, Mode::Train, 1).assert_within(1e-7);
        gradients::<BatchNorm2D<3>, T![3, 2, 3]>(3, Mode::Train, 2).assert_within(1e-7);
        gradients::<BatchNorm2D<20>, T![20, 1, 1]>(3, Mode::Train, 3).assert_within(1e-7);
        gradients::<BatchNorm2D<2, Sci<1, -1>>, T![2, ..4, 2]>(3, Mode::Train, 4).assert_within(1e-7);
        gradients::<BatchNorm2D<3>, T![3, 2, 3]>(3, Mode::Infer, 5).assert_within(1e-7);
        gradients::<BatchNorm2D<18>, T![18, 1, 1]>(1, Mode::Infer, 6).assert_within(1e-7);
        gradients::<BatchNorm1D<3>, T![3]>(3, Mode::Train, 7).assert_within(1e-7);
        gradients::<BatchNorm1D<3>, T![3, ..4]>(1, Mode::Train, 8).assert_within(1e-7);
        gradients::<BatchNorm3D<2>, T![2, 2, 1, 3]>(3, Mode::Train, 9).assert_within(1e-7);
    }

    #[test]
    fn running_statistics_move_in_training_and_only_there() {
        let mut run = Run::<BatchNorm2D<1>, T![1, 1, 2], Cpu<f64>>::new(&Cpu::default(), 2);
        let x = [Values::Real(vec![1.0, 2.0, 3.0, 6.0])];
        run.forward(&x);
        assert_eq!((run.get("running_mean"), run.get("running_var")), (vec![0.0], vec![1.0]));
        run.mode = Mode::Train;
        run.forward(&x);
        assert!((run.get("running_mean")[0] - 0.1 * 3.0).abs() < 1e-15);
        // The unbiased variance is 14/3; the biased one would be 14/4.
        assert!((run.get("running_var")[0] - (0.9 + 0.1 * 14.0 / 3.0)).abs() < 1e-15);
        let moved = run.state.clone();
        run.forward_only(&x);
        assert_ne!(run.state, moved);
    }

    #[test]
    fn state_is_not_among_the_parameters() {
        let tree = <BatchNorm2D<20> as Params>::TREE;
        assert_eq!((tree.params(), tree.state()), (64, 64));
    }

    #[test]
    fn one_value_a_channel_is_a_fault_in_training_only() {
        let mut run = Run::<BatchNorm2D<2>, T![2, 1, 1], Cpu<f64>>::new(&Cpu::default(), 1);
        let x = [Values::Real(vec![1.0, 2.0])];
        run.forward(&x);
        assert_eq!(run.fault(), None);
        run.mode = Mode::Train;
        let before = run.state.clone();
        run.forward(&x);
        assert_eq!(run.fault(), Some((0, CallFault::OneValueAChannel)));
        assert_eq!(run.state, before);
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        let fault = <BatchNorm2D<4> as Layer<T![4]>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "shape mismatch: `BatchNorm2D<4>` takes [4, H, W], but it is given [4]"
        );
        let fault = <BatchNorm1D<4> as Layer<T![3, 4]>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "shape mismatch: `BatchNorm1D<4>` takes [4] or with one axis more, but it is given [3, 4]"
        );
        let fault = <BatchNorm2D<0> as Layer<T![0, 1, 1]>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "`BatchNorm2D<0>` can't exist: C is 0");
    }
}
