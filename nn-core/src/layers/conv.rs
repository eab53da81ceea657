//! Convolutions.

use nn_kernels::ops::Conv2dSpec;
use nn_kernels::{Device, View};

use crate::ctx::Ctx;
use crate::dims::{Dim, Dims, Extent, Over};
use crate::fault::{Rule, label_with_defaults};
use crate::init::Init;
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::elementwise::{
    Activation, ELU, GELU, GELUTanh, Identity, Mish, ReLU, SiLU, Sigmoid, Tanh,
};
use crate::layers::linear::{No, Switch, Yes};
use crate::layers::{Window, product};
use crate::region::{slice, slice_mut};
use crate::signature::{S1, S4, Signature};
use crate::tree::{Leaf, Node, Role};
use crate::{Size, Text, layer};

/// y = act(conv(x) + b) in one pass: a [`Conv2D`] with an activation and, unless `BIAS` is [`No`], a bias.
///
/// Parameters as [`Conv2D`]'s.
///
/// ```
/// use nn::{Conv2DAct, GELU, Layer, No, Params, T};
/// type Stem = Conv2DAct<3, 16, 3, 2, 1, 1, 1, GELU, No>;
/// assert_eq!(<Stem as Layer<T![3, 32, 32]>>::RULE.out.to_string(), "[16, 16, 16]");
/// assert_eq!(Stem::LABEL.as_str(), "Conv2DGELUNoBias<3, 16, 3, 2, 1>");
/// ```
#[layer(weight: S4<OC, Over<IC, GROUPS>, K, K>, bias: Option<S1<OC>>)]
pub struct Conv2DAct<
    const IC: usize,
    const OC: usize,
    const K: usize,
    const STRIDE: usize = 1,
    const PAD: usize = 0,
    const DILATION: usize = 1,
    const GROUPS: usize = 1,
    ACT: Activation = Identity,
    BIAS: Switch = Yes,
>;

/// A convolution of images, channels first: `[IC, H, W]` → `[OC, H′, W′]` with
/// H′ = ⌊(H + 2·PAD − DILATION·(K − 1) − 1) / STRIDE⌋ + 1, and W′ likewise.
///
/// y\[o, r, c\] = b\[o\] + Σ w\[o, i, k, l\]·x\[i, r·STRIDE + k·DILATION − PAD, c·STRIDE + l·DILATION − PAD\], zeros
/// around x. With GROUPS, output channels of a group see the input channels of that group only; with as many
/// groups as channels it is a depthwise convolution.
///
/// Parameters, as in PyTorch: `weight` `[OC, IC/GROUPS, K, K]` and, unless `BIAS` is [`No`], `bias` `[OC]`,
/// both drawn from U(±1/√(IC/GROUPS·K²)).
///
/// ```
/// use nn::{Conv2D, Layer, T};
/// assert_eq!(<Conv2D<3, 16, 3> as Layer<T![3, 32, 32]>>::RULE.out.to_string(), "[16, 30, 30]");
/// assert_eq!(<Conv2D<3, 16, 3, 2, 1> as Layer<T![3, 32, 32]>>::RULE.out.to_string(), "[16, 16, 16]");
/// let fault = <Conv2D<3, 16, 3> as Layer<T![1, 28, 28]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `Conv2D<3, 16, 3>` takes [3, H, W], but it is given [1, 28, 28]"
/// );
/// ```
pub type Conv2D<
    const IC: usize,
    const OC: usize,
    const K: usize,
    const STRIDE: usize = 1,
    const PAD: usize = 0,
    const DILATION: usize = 1,
    const GROUPS: usize = 1,
    BIAS = Yes,
> = Conv2DAct<IC, OC, K, STRIDE, PAD, DILATION, GROUPS, Identity, BIAS>;
/// [`Conv2D`] over dimensions that are types: typenum's, or computed ones.
pub type Conv2DOf<IC, OC, K, STRIDE, PAD, DILATION, GROUPS, BIAS> =
    Conv2DActOf<IC, OC, K, STRIDE, PAD, DILATION, GROUPS, Identity, BIAS>;
/// [`Conv2D`] without a bias, as before a batch normalisation.
pub type Conv2DNoBias<
    const IC: usize,
    const OC: usize,
    const K: usize,
    const STRIDE: usize = 1,
    const PAD: usize = 0,
    const DILATION: usize = 1,
    const GROUPS: usize = 1,
> = Conv2DAct<IC, OC, K, STRIDE, PAD, DILATION, GROUPS, Identity, No>;

/// Names for a convolution with each activation.
macro_rules! with_activation {
    ($($(#[$doc:meta])* $name:ident $act:ident;)*) => {$(
        $(#[$doc])*
        pub type $name<
            const IC: usize,
            const OC: usize,
            const K: usize,
            const STRIDE: usize = 1,
            const PAD: usize = 0,
            const DILATION: usize = 1,
            const GROUPS: usize = 1,
        > = Conv2DAct<IC, OC, K, STRIDE, PAD, DILATION, GROUPS, $act>;
    )*};
}
with_activation! {
    /// [`Conv2D`], then [`ReLU`], in one pass.
    ///
    /// ```
    /// use nn::{Conv2DReLU, Layer, T};
    /// assert_eq!(<Conv2DReLU<3, 16, 3> as Layer<T![3, 32, 32]>>::RULE.out.to_string(), "[16, 30, 30]");
    /// let fault = <Conv2DReLU<3, 16, 3> as Layer<T![1, 28, 28]>>::RULE.fault.unwrap();
    /// assert_eq!(
    ///     fault.to_string(),
    ///     "shape mismatch: `Conv2DReLU<3, 16, 3>` takes [3, H, W], but it is given [1, 28, 28]"
    /// );
    /// ```
    Conv2DReLU ReLU;
    /// [`Conv2D`], then [`Tanh`], in one pass.
    Conv2DTanh Tanh;
    /// [`Conv2D`], then [`Sigmoid`], in one pass.
    Conv2DSigmoid Sigmoid;
    /// [`Conv2D`], then [`SiLU`], in one pass.
    Conv2DSwish SiLU;
    /// [`Conv2D`], then [`Mish`], in one pass.
    Conv2DMish Mish;
    /// [`Conv2D`], then [`GELU`], in one pass.
    Conv2DGELU GELU;
    /// [`Conv2D`], then [`GELUTanh`], in one pass.
    Conv2DGELUTanh GELUTanh;
    /// [`Conv2D`], then [`ELU`], in one pass.
    Conv2DELU ELU;
}

impl<
    IC: Dim,
    OC: Dim,
    K: Dim,
    STRIDE: Dim,
    PAD: Dim,
    DILATION: Dim,
    GROUPS: Dim,
    ACT: Activation,
    BIAS: Switch,
> Conv2DActOf<IC, OC, K, STRIDE, PAD, DILATION, GROUPS, ACT, BIAS>
{
    const WINDOW: Window = Window { kernel: K::N, stride: STRIDE::N, padding: PAD::N, dilation: DILATION::N };
    /// Input channels that an output channel sees.
    const SEEN: Extent = IC::EXTENT.over(GROUPS::EXTENT);
    const WEIGHT: Dims = Dims::new(&[OC::EXTENT, Self::SEEN, K::EXTENT, K::EXTENT]);
    const LEAVES: [Leaf; 2] = [
        Leaf::new("weight", Self::WEIGHT, Role::Weight, Init::PyTorch(0)),
        Leaf::new("bias", Dims::new(&[OC::EXTENT]), Role::Bias, Init::PyTorch(Self::WEIGHT.product(1, 4).n)),
    ];

    const fn spec<X: Signature>(batch: usize) -> Conv2dSpec {
        let dims = X::SIG.dims(0);
        let input = [dims.n_or_one(1), dims.n_or_one(2)];
        Conv2dSpec {
            batch,
            in_channels: IC::N,
            out_channels: OC::N,
            input,
            output: [Self::WINDOW.places(input[0]).n, Self::WINDOW.places(input[1]).n],
            kernel: [K::N; 2],
            stride: [STRIDE::N; 2],
            padding: [PAD::N; 2],
            dilation: [DILATION::N; 2],
            groups: GROUPS::N,
            act: ACT::F,
        }
    }

    const fn rule<X: Signature>() -> Rule {
        let names = &["IC", "OC", "K", "STRIDE"];
        if let Some(rule) = Rule::check_positive(&Self::LABEL, names, Self::ARGS) {
            return rule;
        }
        let rest = &["DILATION", "GROUPS"];
        if let Some(rule) = Rule::check_positive(&Self::LABEL, rest, &[DILATION::EXTENT, GROUPS::EXTENT]) {
            return rule;
        }
        if let Some(rule) = Rule::check_args(&Self::LABEL, Self::ARGS) {
            return rule;
        }
        let channels = [(IC::N, " input"), (OC::N, " output")];
        let mut i = 0;
        while i < channels.len() {
            let (n, kind) = channels[i];
            if !n.is_multiple_of(GROUPS::N) {
                let text = Text::new().num(n).str(kind).str(" channels can't be divided into ");
                return Rule::cannot_exist(&Self::LABEL, text.num(GROUPS::N).str(" groups"));
            }
            i += 1;
        }
        Self::WINDOW.rule(&Self::LABEL, Self::ARGS, &X::SIG, Some(IC::EXTENT), OC::EXTENT)
    }

    /// Values of a sample's output, or 0 if they can't be counted.
    const fn outputs<X: Signature>() -> usize {
        let [height, width] = Self::spec::<X>(1).output;
        product(&[OC::N, height, width])
    }

    fn weights() -> usize {
        Self::WEIGHT.numel()
    }

    fn bias<D: Device>(params: View<'_, D>) -> Option<View<'_, D>> {
        BIAS::ON.then(|| slice::<D>(params, const { Node::of(&Self::LEAVES).leaf_offset(1) }, OC::N))
    }
}

impl<
    IC: Dim,
    OC: Dim,
    K: Dim,
    STRIDE: Dim,
    PAD: Dim,
    DILATION: Dim,
    GROUPS: Dim,
    ACT: Activation,
    BIAS: Switch,
> Params for Conv2DActOf<IC, OC, K, STRIDE, PAD, DILATION, GROUPS, ACT, BIAS>
{
    const LABEL: Text = {
        let name = Text::new().str("Conv2D").str(ACT::NAME).str(if BIAS::ON { "" } else { "NoBias" });
        label_with_defaults(
            name.as_str(),
            Self::ARGS,
            &[None, None, None, Some(1), Some(0), Some(1), Some(1)],
        )
    };
    const TREE: &'static Node =
        if BIAS::ON { &Node::of(&Self::LEAVES) } else { &Node::of(Self::LEAVES.split_at(1).0) };
}

impl<
    X: Signature,
    IC: Dim,
    OC: Dim,
    K: Dim,
    STRIDE: Dim,
    PAD: Dim,
    DILATION: Dim,
    GROUPS: Dim,
    ACT: Activation,
    BIAS: Switch,
> Layer<X> for Conv2DActOf<IC, OC, K, STRIDE, PAD, DILATION, GROUPS, ACT, BIAS>
{
    const RULE: Rule = Self::rule::<X>();
    const KEEPS_X: bool = true;
    const KEEPS_Y: bool = ACT::F.needs_y();
    // As much again for each sample: the kernel's own need may have a part that does not grow with the batch.
    const SCRATCH: Size = match Self::rule::<X>().fault {
        None if !X::SIG.is_poison() => Size::elements(Self::spec::<X>(1).scratch()),
        _ => Size::ZERO,
    };
    const VJP_SCRATCH: Size = match Self::rule::<X>().fault {
        // What does not even count is a fault elsewhere.
        None if !X::SIG.is_poison() && Self::outputs::<X>() > 0 => {
            Size::elements(Self::spec::<X>(1).vjp_scratch())
        }
        _ => Size::ZERO,
    };
    const MACS: usize = {
        let s = Self::spec::<X>(1);
        product(&[s.output[0], s.output[1], Self::WEIGHT.numel()])
    };
}

impl<
    D: Device,
    X: Signature,
    IC: Dim,
    OC: Dim,
    K: Dim,
    STRIDE: Dim,
    PAD: Dim,
    DILATION: Dim,
    GROUPS: Dim,
    ACT: Activation,
    BIAS: Switch,
> Module<D, X> for Conv2DActOf<IC, OC, K, STRIDE, PAD, DILATION, GROUPS, ACT, BIAS>
{
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        let spec = Self::spec::<X>(cx.batch);
        let weight = slice::<D>(call.params, 0, Self::weights());
        let scratch = call.scratch.take(spec.scratch());
        let bias = Self::bias::<D>(call.params);
        cx.device().conv2d(&spec, call.x.get(0), weight, bias, call.y.get(0), scratch);
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        let spec = Self::spec::<X>(cx.batch);
        let weight = slice::<D>(call.params, 0, Self::weights());
        let (dw, db) = match call.dparams {
            Some(dparams) if BIAS::ON => {
                let (dw, db) = D::split_mut(dparams, const { Node::of(&Self::LEAVES).leaf_offset(1) });
                (Some(slice_mut::<D>(dw, 0, Self::weights())), Some(slice_mut::<D>(db, 0, OC::N)))
            }
            Some(dparams) => (Some(slice_mut::<D>(dparams, 0, Self::weights())), None),
            None => (None, None),
        };
        let bias = Self::bias::<D>(call.params);
        let scratch = call.scratch.take(spec.vjp_scratch());
        let (x, y, dy, dx) = (call.x.get(0), call.y.get(0), call.dy.get(0), call.dx.wanted(0));
        cx.device().conv2d_vjp(&spec, x, weight, bias, y, dy, dx, dw, db, scratch);
    }

    fn route() -> &'static str {
        D::conv2d_route(&Self::spec::<X>(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Run, Values, gradients};
    use crate::{Cpu, Ids, Mode, T};

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            gradients::<Conv2D<2, 3, 3>, T![2, 5, 4]>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<Conv2D<2, 4, 3, 2, 1>, T![2, 6, 5]>(batch, Mode::Infer, 2).assert_within(1e-7);
            gradients::<Conv2D<1, 2, 2, 1, 2, 3>, T![1, 3, 4]>(batch, Mode::Infer, 3).assert_within(1e-7);
            gradients::<Conv2D<4, 6, 3, 1, 1, 1, 2>, T![4, 3, 3]>(batch, Mode::Infer, 4).assert_within(1e-7);
            gradients::<Conv2DNoBias<3, 3, 3, 1, 1, 1, 3>, T![3, 4, 3]>(batch, Mode::Infer, 5)
                .assert_within(1e-7);
            gradients::<Conv2D<3, 5, 1>, T![3, 2, 3]>(batch, Mode::Infer, 6).assert_within(1e-7);
        }
    }

    #[test]
    fn gradients_through_an_activation_are_those_of_finite_differences() {
        for batch in [1, 3] {
            gradients::<Conv2DReLU<2, 3, 3>, T![2, 5, 4]>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<Conv2DTanh<2, 4, 3, 2, 1>, T![2, 6, 5]>(batch, Mode::Infer, 2).assert_within(1e-7);
            gradients::<Conv2DSigmoid<3, 5, 1>, T![3, 2, 3]>(batch, Mode::Infer, 3).assert_within(1e-7);
            gradients::<Conv2DSwish<4, 6, 3, 1, 1, 1, 2>, T![4, 3, 3]>(batch, Mode::Infer, 4)
                .assert_within(1e-7);
            gradients::<Conv2DMish<3, 3, 3, 1, 1, 1, 3>, T![3, 4, 3]>(batch, Mode::Infer, 5)
                .assert_within(1e-7);
            gradients::<Conv2DGELU<3, 1, 3>, T![3, 5, 4]>(batch, Mode::Infer, 6).assert_within(1e-7);
            gradients::<Conv2DGELUTanh<1, 4, 3, 1, 1>, T![1, 4, 4]>(batch, Mode::Infer, 7)
                .assert_within(1e-7);
            gradients::<Conv2DELU<2, 3, 3>, T![2, 5, 4]>(batch, Mode::Infer, 8).assert_within(1e-7);
            gradients::<Conv2DAct<2, 3, 3, 1, 1, 1, 1, SiLU, No>, T![2, 5, 4]>(batch, Mode::Infer, 9)
                .assert_within(1e-7);
        }
    }

    #[test]
    fn fusing_changes_no_bit() {
        type X = T![2, 6, 5];
        fn forward<M: Module<Cpu<f64>, X>>(params: &[f64], x: &[f64]) -> Vec<f64> {
            let mut run = Run::<M, X, Cpu<f64>>::new(&Cpu::default(), 3);
            run.params.copy_from_slice(params);
            run.forward(&[Values::Real(x.to_vec())])[0].real().to_vec()
        }
        let start = Run::<Conv2D<2, 5, 3>, X, Cpu<f64>>::new(&Cpu::default(), 3).params;
        let x: Vec<_> = (0..180).map(|i| f64::from(i * 7 % 61) * 0.1 - 3.0).collect();
        let plain = forward::<Conv2D<2, 5, 3>>(&start, &x);
        let after = |f| {
            let mut y = vec![0.0; plain.len()];
            nn_kernels::ops::Elementwise::unary(&Cpu::<f64>::default(), f, &plain, &mut y);
            y
        };
        assert_eq!(forward::<Conv2DReLU<2, 5, 3>>(&start, &x), after(ReLU::F));
        assert_eq!(forward::<Conv2DTanh<2, 5, 3>>(&start, &x), after(Tanh::F));
        assert_eq!(forward::<Conv2DGELU<2, 5, 3>>(&start, &x), after(GELU::F));
        assert_eq!(forward::<Conv2DSwish<2, 5, 3>>(&start, &x), after(SiLU::F));
        assert_ne!(forward::<Conv2DGELUTanh<2, 5, 3>>(&start, &x), after(GELU::F));
    }

    #[test]
    fn nothing_overflows_whatever_it_is_given() {
        type Huge = T![1, { usize::MAX / 4 }, 9];
        assert_eq!(<Conv2DTanh<1, 9, 3> as Layer<Huge>>::VJP_SCRATCH, Size::ZERO);
        assert_eq!(<Conv2DTanh<1, 9, 3> as Layer<T![1, 4, 5]>>::VJP_SCRATCH, Size::elements(54));
        assert_eq!(<Conv2D<1, 9, 3> as Layer<T![1, 4, 5]>>::VJP_SCRATCH, Size::ZERO);
    }

    #[test]
    fn one_output_channel_is_no_special_case() {
        for batch in [1, 3] {
            gradients::<Conv2D<3, 1, 3>, T![3, 5, 4]>(batch, Mode::Train, 7).assert_within(1e-7);
            gradients::<Conv2DNoBias<1, 1, 2, 2>, T![1, 4, 4]>(batch, Mode::Train, 8).assert_within(1e-7);
        }
    }

    #[test]
    fn the_kernel_is_not_flipped_and_groups_are_consecutive() {
        let mut run = Run::<Conv2DNoBias<1, 1, 2>, T![1, 2, 3], Cpu<f64>>::new(&Cpu::default(), 1);
        run.set("weight", &[1.0, 10.0, 100.0, 1000.0]);
        let y = run.forward(&[Values::Real(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0])]);
        assert_eq!(y[0].real(), [5421.0, 6532.0]);

        type Grouped = Conv2DNoBias<4, 2, 1, 1, 0, 1, 2>;
        let mut run = Run::<Grouped, T![4, 1, 1], Cpu<f64>>::new(&Cpu::default(), 1);
        run.set("weight", &[1.0, 2.0, 3.0, 4.0]);
        let y = run.forward(&[Values::Real(vec![1.0, 10.0, 100.0, 1000.0])]);
        // Interleaved groups would give 1 + 200 and 30 + 4000.
        assert_eq!(y[0].real(), [21.0, 4300.0]);
    }

    fn fault<L: Layer<X>, X: Signature>() -> String {
        assert!(L::SCRATCH == Size::ZERO);
        let _ = (L::MACS, L::SAVED, L::VJP_SCRATCH);
        L::RULE.fault.unwrap().to_string()
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        assert_eq!(
            fault::<Conv2D<3, 8, 3>, T![3, 32]>(),
            "shape mismatch: `Conv2D<3, 8, 3>` takes [3, H, W], but it is given [3, 32]"
        );
        assert_eq!(
            fault::<Conv2D<3, 8, 3>, Ids<T![3, 8, 8]>>(),
            "shape mismatch: `Conv2D<3, 8, 3>` takes one tensor of numbers, but it is given ids [3, 8, 8]"
        );
        assert_eq!(
            fault::<Conv2D<3, 8, 3>, T![3, ..8, 8]>(),
            "shape mismatch: `Conv2D<3, 8, 3>` takes [3, H, W] without bounds, but it is given [3, ..8, 8]"
        );
        assert_eq!(
            fault::<Conv2D<6, 8, 3, 1, 0, 1, 4>, T![6, 8, 8]>(),
            "`Conv2D<6, 8, 3, 1, 0, 1, 4>` can't exist: 6 input channels can't be divided into 4 groups"
        );
        assert_eq!(
            fault::<Conv2D<6, 8, 3, 1, 0, 1, 3>, T![6, 8, 8]>(),
            "`Conv2D<6, 8, 3, 1, 0, 1, 3>` can't exist: 8 output channels can't be divided into 3 groups"
        );
        assert_eq!(
            fault::<Conv2D<1, 8, 3, 1, 1, 4>, T![1, 6, 8]>(),
            "shape mismatch: `Conv2D<1, 8, 3, 1, 1, 4>` needs an image of at least 9×9, padding included, \
             but it is given [1, 6, 8], padded to 8×10"
        );
        assert_eq!(
            fault::<Conv2D<1, 8, 7>, T![1, 5, 8]>(),
            "shape mismatch: `Conv2D<1, 8, 7>` needs an image of at least 7×7, but it is given [1, 5, 8]"
        );
        assert_eq!(
            fault::<Conv2D<1, 8, 3, 0>, T![1, 5, 8]>(),
            "`Conv2D<1, 8, 3, 0>` can't exist: STRIDE is 0"
        );
        assert_eq!(
            fault::<Conv2DNoBias<1, 8, 3, 1, 0, 1, 0>, T![1, 5, 8]>(),
            "`Conv2DNoBias<1, 8, 3, 1, 0, 1, 0>` can't exist: GROUPS is 0"
        );
        assert_eq!(
            fault::<Conv2DSwish<3, 8, 3>, T![4, 8, 8]>(),
            "shape mismatch: `Conv2DSwish<3, 8, 3>` takes [3, H, W], but it is given [4, 8, 8]"
        );
        assert_eq!(
            fault::<Conv2DAct<3, 8, 3, 1, 0, 1, 2, ReLU, No>, T![3, 8, 8]>(),
            "`Conv2DReLUNoBias<3, 8, 3, 1, 0, 1, 2>` can't exist: 3 input channels can't be divided into 2 groups"
        );
        // The wrong number of channels is one mistake: what follows sees the right ones.
        assert_eq!(<Conv2D<3, 8, 3> as Layer<T![4, 8, 9]>>::RULE.out.to_string(), "[8, 6, 7]");
    }
}
