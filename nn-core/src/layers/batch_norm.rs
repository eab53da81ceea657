//! Batch normalisation.

use nn_kernels::ops::BatchNormSpec;
use nn_kernels::{Device, View, ViewMut};

use crate::ctx::{CallFault, Ctx};
use crate::dims::{Dim, Dims};
use crate::fault::{Input, Rule, one_real};
use crate::init::Init;
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::product;
use crate::real::{Real, Sci};
use crate::signature::{Sig, Signature};
use crate::tensors::{slice, slice_mut};
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
#[layer]
pub struct BatchNorm2D<const C: usize, EPS: Real = Sci<1, -5>, MOMENTUM: Real = Sci<1, -1>>;

impl<C: Dim, EPS: Real, MOMENTUM: Real> BatchNorm2DOf<C, EPS, MOMENTUM> {
    const LEAVES: [Leaf; 4] = [
        Leaf::new("weight", Dims::new(&[C::EXTENT]), Role::Scale, Init::Constant(1.0)),
        Leaf::new("bias", Dims::new(&[C::EXTENT]), Role::Bias, Init::Constant(0.0)),
        Leaf::new("running_mean", Dims::new(&[C::EXTENT]), Role::State, Init::Constant(0.0)),
        Leaf::new("running_var", Dims::new(&[C::EXTENT]), Role::State, Init::Constant(1.0)),
    ];

    fn spec<D: Device, X: Signature>(cx: &Ctx<'_, D>) -> BatchNormSpec {
        let dims = X::SIG.dims(0);
        BatchNormSpec {
            batch: cx.batch,
            channels: C::N,
            area: dims.axis_at(1, &cx.lengths) * dims.axis_at(2, &cx.lengths),
            eps: EPS::VALUE,
            momentum: MOMENTUM::VALUE,
        }
    }

    fn affine<D: Device>(params: View<'_, D>) -> [View<'_, D>; 2] {
        [slice::<D>(params, 0, C::N), slice::<D>(params, Self::TREE.leaf_offset(1), C::N)]
    }

    fn running<D: Device>(state: View<'_, D>) -> [View<'_, D>; 2] {
        [slice::<D>(state, 0, C::N), slice::<D>(state, Self::TREE.leaf_offset(3), C::N)]
    }

    fn running_mut<D: Device>(state: ViewMut<'_, D>) -> [ViewMut<'_, D>; 2] {
        let (mean, var) = D::split_mut(state, Self::TREE.leaf_offset(3));
        [slice_mut::<D>(mean, 0, C::N), slice_mut::<D>(var, 0, C::N)]
    }
}

impl<C: Dim, EPS: Real, MOMENTUM: Real> Params for BatchNorm2DOf<C, EPS, MOMENTUM> {
    const LABEL: Text = Self::SHOWN;
    const TREE: &'static Node = &Node::of(&Self::LEAVES);
}

const fn rule(label: &Text, args: &[crate::Extent], given: &Sig) -> Rule {
    if let Some(rule) = Rule::check_positive(label, &["C"], args) {
        return rule;
    }
    let dims = match one_real(label, args, given) {
        Input::Done(rule) => return rule,
        Input::Tensor(dims) => dims,
    };
    let takes = args[0].write(Text::new().str("[")).str(", H, W]");
    if dims.rank() != 3 {
        return Rule::mismatch(label, takes, given, Sig::real(dims));
    }
    let gives = Sig::real(dims.with(0, args[0]));
    if !dims.axis(0).same(&args[0]) {
        return Rule::mismatch(label, takes, given, gives);
    }
    if dims.n(1) == 0 || dims.n(2) == 0 {
        return Rule::mismatch(label, takes.str(" with at least one value"), given, gives);
    }
    Rule::ok(gives)
}

impl<X: Signature, C: Dim, EPS: Real, MOMENTUM: Real> Layer<X> for BatchNorm2DOf<C, EPS, MOMENTUM> {
    const RULE: Rule = rule(&Self::LABEL, Self::ARGS, &X::SIG);
    const KEEPS_X: bool = true;
    const SAVED: Size = Size::fixed_elements(product(&[2, C::N]));
    // For the statistics, where nobody keeps them.
    const SCRATCH: Size = Size::fixed_elements(product(&[2, C::N]));
    const VJP_SCRATCH: Size = Size::fixed_elements(product(&[2, C::N]));
}

impl<D: Device, X: Signature, C: Dim, EPS: Real, MOMENTUM: Real> Module<D, X>
    for BatchNorm2DOf<C, EPS, MOMENTUM>
{
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        let spec = Self::spec::<D, X>(cx);
        let [gamma, beta] = Self::affine::<D>(call.params);
        let (x, y) = (call.x.get(0), call.y.get(0));
        let trains = cx.trains() && spec.batch * spec.area > 1;
        if !trains {
            if cx.trains() && spec.batch * spec.area == 1 {
                cx.fail(CallFault::OneValueAChannel);
            }
            let running = Self::running::<D>(call.state.read());
            cx.device().batch_norm_infer(&spec, x, gamma, beta, running, y);
            return;
        }
        let stats = if cx.keeps() { call.saved.take(2 * C::N) } else { call.scratch.take(2 * C::N) };
        let running = call.state.write().map(Self::running_mut::<D>);
        cx.device().batch_norm_train(&spec, x, gamma, beta, y, stats, running);
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        let spec = Self::spec::<D, X>(cx);
        let [gamma, _] = Self::affine::<D>(call.params);
        let (dgamma, dbeta) = match call.dparams {
            Some(dparams) => {
                let (dgamma, dbeta) = D::split_mut(dparams, Self::TREE.leaf_offset(1));
                (Some(slice_mut::<D>(dgamma, 0, C::N)), Some(slice_mut::<D>(dbeta, 0, C::N)))
            }
            None => (None, None),
        };
        let trains = cx.trains() && spec.batch * spec.area > 1;
        let stats = if trains {
            call.saved.take(2 * C::N)
        } else {
            let mut stats = call.scratch.take(2 * C::N);
            let running = Self::running::<D>(call.state);
            cx.device().batch_norm_stats(&spec, running, D::reborrow(&mut stats));
            D::freeze(stats)
        };
        let (x, dy, dx) = (call.x.get(0), call.dy.get(0), call.dx.wanted(0));
        cx.device().batch_norm_vjp(&spec, !trains, x, gamma, stats, dy, dx, dgamma, dbeta);
    }
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
        let fault = <BatchNorm2D<0> as Layer<T![0, 1, 1]>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "`BatchNorm2D<0>` can't exist: C is 0");
    }
}
