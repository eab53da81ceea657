//! Dense layers: y = act(x·Wᵀ + b).

use nn_kernels::Device;
use nn_kernels::ops::LinearSpec;

use crate::ctx::Ctx;
use crate::dims::{Dim, Dims};
use crate::fault::{Rule, label};
use crate::init::Init;
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::elementwise::{
    Activation, ELU, GELU, GELUTanh, Identity, Mish, ReLU, SiLU, Sigmoid, Tanh,
};
use crate::layers::{along_last, product, rows_of};
use crate::region::{slice, slice_mut};
use crate::signature::{S1, S2, Signature};
use crate::tree::{Leaf, Node, Role};
use crate::{Size, Text, layer};

/// Whether a layer has something, as a type argument.
pub trait Switch: 'static {
    /// Whether it has.
    const ON: bool;
}
/// It has.
#[derive(Clone, Copy, Debug)]
pub struct Yes;
/// It has not.
#[derive(Clone, Copy, Debug)]
pub struct No;
impl Switch for Yes {
    const ON: bool = true;
}
impl Switch for No {
    const ON: bool = false;
}

/// y = act(x·Wᵀ + b) in one pass: `[.., IN]` → `[.., OUT]`, with an activation and, unless `BIAS` is
/// [`No`], a bias.
///
/// Parameters, as in PyTorch: `weight` `[OUT, IN]`, `bias` `[OUT]`, both drawn from U(±1/√IN). In memory the
/// weight lies as `[IN, OUT]`.
#[layer(weight: S2<OUT, IN>, bias: Option<S1<OUT>>)]
pub struct LinearAct<const IN: usize, const OUT: usize, ACT: Activation, BIAS: Switch = Yes>;

/// A dense layer: y = x·Wᵀ + b, `[.., IN]` → `[.., OUT]`.
///
/// ```
/// use nn::{Layer, Linear, T};
/// assert_eq!(<Linear<784, 64> as Layer<T![784]>>::RULE.out.to_string(), "[64]");
/// let fault = <Linear<784, 64> as Layer<T![3, 780]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `Linear<784, 64>` takes [.., 784], but it is given [3, 780]"
/// );
/// ```
pub type Linear<const IN: usize, const OUT: usize> = LinearAct<IN, OUT, Identity>;
/// [`Linear`] over dimensions that are types: typenum's, or computed ones.
pub type LinearOf<IN, OUT> = LinearActOf<IN, OUT, Identity, Yes>;
/// y = x·Wᵀ: [`Linear`] without a bias.
pub type LinearNoBias<const IN: usize, const OUT: usize> = LinearAct<IN, OUT, Identity, No>;
/// [`Linear`], then [`ReLU`], in one pass.
pub type LinearReLU<const IN: usize, const OUT: usize> = LinearAct<IN, OUT, ReLU>;
/// [`Linear`], then [`Tanh`], in one pass.
pub type LinearTanh<const IN: usize, const OUT: usize> = LinearAct<IN, OUT, Tanh>;
/// [`Linear`], then [`Sigmoid`], in one pass.
pub type LinearSigmoid<const IN: usize, const OUT: usize> = LinearAct<IN, OUT, Sigmoid>;
/// [`Linear`], then [`SiLU`], in one pass.
pub type LinearSwish<const IN: usize, const OUT: usize> = LinearAct<IN, OUT, SiLU>;
/// [`Linear`], then [`Mish`], in one pass.
pub type LinearMish<const IN: usize, const OUT: usize> = LinearAct<IN, OUT, Mish>;
/// [`Linear`], then [`GELU`], in one pass.
pub type LinearGELU<const IN: usize, const OUT: usize> = LinearAct<IN, OUT, GELU>;
/// [`Linear`], then [`GELUTanh`], in one pass.
pub type LinearGELUTanh<const IN: usize, const OUT: usize> = LinearAct<IN, OUT, GELUTanh>;
/// [`Linear`], then [`ELU`], in one pass.
pub type LinearELU<const IN: usize, const OUT: usize> = LinearAct<IN, OUT, ELU>;

impl<IN: Dim, OUT: Dim, ACT: Activation, BIAS: Switch> LinearActOf<IN, OUT, ACT, BIAS> {
    const LEAVES: [Leaf; 2] = [
        Leaf::new("weight", Dims::new(&[OUT::EXTENT, IN::EXTENT]), Role::Weight, Init::PyTorch(0))
            .transposed(),
        Leaf::new("bias", Dims::new(&[OUT::EXTENT]), Role::Bias, Init::PyTorch(IN::N)),
    ];

    const BIAS_AT: usize = Node::of(&Self::LEAVES).leaf_offset(1);

    const fn spec(rows: usize) -> LinearSpec {
        LinearSpec { rows, inputs: IN::N, outputs: OUT::N, act: ACT::F, transposed: false }
    }

    fn bias<D: Device>(params: nn_kernels::View<'_, D>) -> Option<nn_kernels::View<'_, D>> {
        BIAS::ON.then(|| slice::<D>(params, Self::BIAS_AT, OUT::N))
    }
}

impl<IN: Dim, OUT: Dim, ACT: Activation, BIAS: Switch> Params for LinearActOf<IN, OUT, ACT, BIAS> {
    const LABEL: Text = {
        let name = Text::new().str("Linear").str(ACT::NAME).str(if BIAS::ON { "" } else { "NoBias" });
        label(name.as_str(), Self::ARGS)
    };
    const TREE: &'static Node =
        if BIAS::ON { &Node::of(&Self::LEAVES) } else { &Node::of(Self::LEAVES.split_at(1).0) };
}

impl<X: Signature, IN: Dim, OUT: Dim, ACT: Activation, BIAS: Switch> Layer<X>
    for LinearActOf<IN, OUT, ACT, BIAS>
{
    const RULE: Rule = match Rule::check_positive(&Self::LABEL, &["IN", "OUT"], Self::ARGS) {
        Some(rule) => rule,
        None => along_last(&Self::LABEL, Self::ARGS, &X::SIG, IN::EXTENT, OUT::EXTENT),
    };
    const KEEPS_X: bool = true;
    const KEEPS_Y: bool = ACT::F.needs_y();
    const VJP_SCRATCH: Size = match rows_of(&X::SIG.dims(0)) {
        // What does not even count is a fault elsewhere.
        rows if rows.checked_mul(OUT::N).is_none() => Size::ZERO,
        rows => Size::elements(Self::spec(rows).vjp_scratch()),
    };
    const MACS: usize = product(&[rows_of(&X::SIG.dims(0)), IN::N, OUT::N]);
    const CAUSAL: bool = true;
}

impl<D: Device, X: Signature, IN: Dim, OUT: Dim, ACT: Activation, BIAS: Switch> Module<D, X>
    for LinearActOf<IN, OUT, ACT, BIAS>
{
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        let spec = Self::spec(cx.rows(const { &X::SIG.dims(0) }));
        let weight = slice::<D>(call.params, 0, IN::N * OUT::N);
        cx.device().linear(&spec, call.x.get(0), weight, Self::bias::<D>(call.params), call.y.get(0));
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        let spec = Self::spec(cx.rows(const { &X::SIG.dims(0) }));
        let weight = slice::<D>(call.params, 0, IN::N * OUT::N);
        let (dw, db) = match call.dparams {
            Some(dparams) if BIAS::ON => {
                let (dw, db) = D::split_mut(dparams, Self::BIAS_AT);
                (Some(slice_mut::<D>(dw, 0, IN::N * OUT::N)), Some(slice_mut::<D>(db, 0, OUT::N)))
            }
            Some(dparams) => (Some(slice_mut::<D>(dparams, 0, IN::N * OUT::N)), None),
            None => (None, None),
        };
        cx.device().linear_vjp(
            &spec,
            call.x.get(0),
            weight,
            Self::bias::<D>(call.params),
            call.y.get(0),
            call.dy.get(0),
            call.dx.wanted(0),
            dw,
            db,
            call.scratch.take(spec.vjp_scratch()),
        );
    }

    fn route() -> &'static str {
        D::linear_route(&Self::spec(1))
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
            gradients::<Linear<5, 3>, T![5]>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<LinearNoBias<4, 1>, T![2, 3, 4]>(batch, Mode::Infer, 2).assert_within(1e-7);
            gradients::<LinearReLU<6, 4>, T![..4, 6]>(batch, Mode::Infer, 3).assert_within(1e-7);
            gradients::<LinearTanh<4, 4>, T![3, 4]>(batch, Mode::Infer, 4).assert_within(1e-7);
            gradients::<LinearSigmoid<1, 4>, T![3, 1]>(batch, Mode::Infer, 5).assert_within(1e-7);
            gradients::<LinearSwish<4, 2>, T![4]>(batch, Mode::Infer, 6).assert_within(1e-7);
            gradients::<LinearMish<4, 2>, T![4]>(batch, Mode::Infer, 7).assert_within(1e-7);
            gradients::<LinearGELU<4, 2>, T![4]>(batch, Mode::Infer, 8).assert_within(1e-7);
            gradients::<LinearGELUTanh<4, 2>, T![4]>(batch, Mode::Infer, 9).assert_within(1e-7);
            gradients::<LinearELU<4, 2>, T![4]>(batch, Mode::Infer, 10).assert_within(1e-7);
        }
    }

    #[test]
    fn fusing_changes_no_bit() {
        fn forward<M: Module<Cpu<f64>, T![4]>>(params: &[f64], x: &[f64]) -> Vec<f64> {
            let mut run = Run::<M, T![4], Cpu<f64>>::new(&Cpu::default(), 3);
            run.params.copy_from_slice(params);
            run.forward(&[Values::Real(x.to_vec())])[0].real().to_vec()
        }
        let start = Run::<Linear<4, 3>, T![4], Cpu<f64>>::new(&Cpu::default(), 3).params;
        let x: Vec<_> = (0..12).map(|i| f64::from(i) * 0.3 - 1.7).collect();
        let plain = forward::<Linear<4, 3>>(&start, &x);
        let after = |f| {
            let mut y = vec![0.0; 9];
            nn_kernels::ops::Elementwise::unary(&Cpu::<f64>::default(), f, &plain, &mut y);
            y
        };
        assert_eq!(forward::<LinearReLU<4, 3>>(&start, &x), after(ReLU::F));
        assert_eq!(forward::<LinearTanh<4, 3>>(&start, &x), after(Tanh::F));
        assert_eq!(forward::<LinearGELU<4, 3>>(&start, &x), after(GELU::F));
        assert_eq!(forward::<LinearSwish<4, 3>>(&start, &x), after(SiLU::F));
        assert_ne!(forward::<LinearGELUTanh<4, 3>>(&start, &x), after(GELU::F));
    }

    #[test]
    fn nothing_overflows_whatever_it_is_given() {
        type Huge = T![{ usize::MAX / 2 }, 3, 4];
        assert_eq!(<LinearTanh<4, 9> as Layer<Huge>>::VJP_SCRATCH, Size::ZERO);
        assert_eq!(<LinearTanh<4, 9> as Layer<Huge>>::MACS, 0);
        assert_eq!(<LinearTanh<4, 9> as Layer<T![2, 4]>>::VJP_SCRATCH, Size::elements(18));
        assert_eq!(<LinearTanh<4, 9> as Layer<T![2, 4]>>::MACS, 72);
    }
}
