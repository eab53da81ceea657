//! Functions of one value or two, applied to every element: any shape goes.

use nn_kernels::Device;
use nn_kernels::ops::{Binary, Unary};

use crate::ctx::Ctx;
use crate::fault::{Input, Rule, one_real, two_equal};
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::real::Real;
use crate::signature::{Sig, Signature};
use crate::{Text, layer};

/// An activation as a type argument: `LinearAct<64, 64, Tanh>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an activation",
    note = "take one of `ReLU`, `Tanh`, `Sigmoid`, `SiLU`, `Mish`, `GELU`, `GELUTanh`, `ELU`, `Identity`"
)]
pub trait Activation: 'static {
    /// The function.
    const F: Unary;
    /// Its name, as in `LinearReLU`.
    const NAME: &'static str;
}

/// The rule of a layer whose output has its input's shape.
const fn unchanged(label: &Text, given: &Sig) -> Rule {
    match one_real(label, &[], given) {
        Input::Tensor(dims) => Rule::ok(Sig::real(dims)),
        Input::Done(rule) => rule,
    }
}

macro_rules! unary {
    ($name:ident [$($p:ident)*] $label:expr, $f:expr) => {
        impl<$($p: Real),*> Params for $name<$($p),*> {
            const LABEL: Text = $label;
        }
        impl<X: Signature, $($p: Real),*> Layer<X> for $name<$($p),*> {
            const RULE: Rule = unchanged(&<Self as Params>::LABEL, &X::SIG);
            const KEEPS_X: bool = $f.needs_x();
            const KEEPS_Y: bool = $f.needs_y();
            const CAUSAL: bool = true;
        }
        impl<D: Device, X: Signature, $($p: Real),*> Module<D, X> for $name<$($p),*> {
            fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
                cx.device().unary($f, call.x.get(0), call.y.get(0));
            }
            fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
                if let Some(dx) = call.dx.wanted(0) {
                    cx.device().unary_vjp($f, call.x.get(0), call.y.get(0), call.dy.get(0), dx);
                }
            }
        }
    };
}

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident $f:expr, $shown:literal;)*) => {$(
        $(#[$doc])*
        #[layer]
        pub struct $name;
        unary!($name [] Self::SHOWN, $f);
        impl Activation for $name {
            const F: Unary = $f;
            const NAME: &'static str = $shown;
        }
    )*};
}

activations! {
    /// x.
    Identity Unary::Identity, "";
    /// max(x, 0), with gradient 0 at 0. Nair and Hinton 2010.
    ReLU Unary::Relu, "ReLU";
    /// tanh x.
    Tanh Unary::Tanh, "Tanh";
    /// σ(x) = 1 / (1 + e⁻ˣ).
    Sigmoid Unary::Sigmoid, "Sigmoid";
    /// x·σ(x), also called Swish. Elfwing et al. 2017, arXiv:1702.03118.
    SiLU Unary::Silu, "Swish";
    /// x·tanh(log(1 + eˣ)). Misra 2019, arXiv:1908.08681.
    Mish Unary::Mish, "Mish";
    /// x·Φ(x) with Φ(x) = ½(1 + erf(x/√2)): the exact form, PyTorch's default and BERT's. Not [`GELUTanh`],
    /// from which it differs by up to 5·10⁻⁴. Hendrycks and Gimpel 2016, arXiv:1606.08415.
    GELU Unary::Gelu, "GELU";
    /// ½x(1 + tanh(√(2/π)(x + 0.044715x³))): GPT-2's approximation of [`GELU`], JAX's default.
    GELUTanh Unary::GeluTanh, "GELUTanh";
    /// x where x > 0, else eˣ − 1. Clevert et al. 2015, arXiv:1511.07289.
    ELU Unary::Elu, "ELU";
}

/// [`SiLU`] under its other name.
pub type Swish = SiLU;

macro_rules! scaled {
    ($($(#[$doc:meta])* $name:ident $own:ident $text:literal, |$k:ident| $f:expr;)*) => {$(
        $(#[$doc])*
        #[layer]
        pub struct $name<K: Real>;
        unary!($own [K] Text::new().str($text), { let $k = K::VALUE; $f });
    )*};
}

scaled! {
    /// K·x: `x * 0.5` in a module.
    Scale ScaleOf "Scale", |k| Unary::Affine { scale: k, shift: 0.0 };
    /// x + K: `x + 1.0` in a module.
    Shift ShiftOf "Shift", |k| Unary::Affine { scale: 1.0, shift: k };
    /// K − x: `1.0 - x` in a module.
    MinusFrom MinusFromOf "MinusFrom", |k| Unary::Affine { scale: -1.0, shift: k };
    /// x / K: `x / 2.0` in a module.
    DivideBy DivideByOf "DivideBy", |k| Unary::Divide { by: k };
    /// K / x: `1.0 / x` in a module.
    Reciprocal ReciprocalOf "Reciprocal", |k| Unary::Reciprocal { c: k };
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident $f:expr, $sign:literal, $reads:literal;)*) => {$(
        $(#[$doc])*
        #[layer]
        pub struct $name;
        impl Params for $name {
            const LABEL: Text = Text::new().str($sign);
        }
        impl<X: Signature> Layer<X> for $name {
            const RULE: Rule = two_equal(&<Self as Params>::LABEL, &X::SIG);
            const KEEPS_X: bool = $reads;
            const CAUSAL: bool = true;
        }
        impl<D: Device, X: Signature> Module<D, X> for $name {
            fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
                cx.device().binary($f, call.x.get(0), call.x.get(1), call.y.get(0));
            }
            fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
                let (da, db) = call.dx.wanted_pair(0, 1);
                cx.device().binary_vjp($f, call.x.get(0), call.x.get(1), call.dy.get(0), da, db);
            }
        }
    )*};
}

binary! {
    /// a + b of two tensors of one shape: `a + b` in a module.
    Add Binary::Add, "+", false;
    /// a − b of two tensors of one shape: `a - b` in a module.
    Sub Binary::Sub, "-", false;
    /// a·b of two tensors of one shape, element by element: `a * b` in a module.
    Mul Binary::Mul, "*", true;
    /// a / b of two tensors of one shape, element by element: `a / b` in a module.
    Div Binary::Div, "/", true;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Run, Values, gradients};
    use crate::{Cpu, Mode, Sci, T};

    #[test]
    fn gradients_are_those_of_finite_differences() {
        macro_rules! check {
            ($($layer:ty)*) => {$(
                for batch in [1, 3] {
                    gradients::<$layer, T![7]>(batch, Mode::Train, 1).assert_within(1e-7);
                    gradients::<$layer, T![2, ..4, 3]>(batch, Mode::Infer, 2).assert_within(1e-7);
                }
            )*};
        }
        check! {
            Identity ReLU Tanh Sigmoid SiLU Mish GELU GELUTanh ELU
            Scale<Sci<-3, 0>> Shift<Sci<2, 0>> MinusFrom<Sci<1, 0>> DivideBy<Sci<4, 0>>
        }
        for batch in [1, 3] {
            gradients::<Add, (T![2, 3], T![2, 3])>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<Sub, (T![..3], T![..3])>(batch, Mode::Train, 2).assert_within(1e-7);
            gradients::<Mul, (T![5], T![5])>(batch, Mode::Train, 3).assert_within(1e-7);
            gradients::<Div, (T![5], T![5])>(batch, Mode::Train, 4).assert_within(1e-6);
            gradients::<Reciprocal<Sci<2, 0>>, T![5]>(batch, Mode::Train, 5).assert_within(1e-6);
        }
    }

    fn at<M: Module<Cpu<f64>, T![]>>(x: f64) -> f64 {
        let mut run = Run::<M, T![], Cpu<f64>>::new(&Cpu::default(), 1);
        run.forward_only(&[Values::Real(vec![x])])[0].real()[0]
    }

    #[test]
    fn a_quotient_is_that_of_the_processor() {
        assert_ne!(5.0 * (1.0 / 3.0), 5.0 / 3.0);
        assert_eq!(at::<DivideBy<Sci<3, 0>>>(5.0), 5.0 / 3.0);
    }

    #[test]
    fn gelu_is_the_exact_one_and_gelu_tanh_the_approximation() {
        // Φ(1) = 0.8413447460685429.
        assert!((at::<GELU>(1.0) - 0.841_344_746_068_542_9).abs() < 1e-14);
        let approximation = 0.5 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * 1.044_715f64).tanh());
        assert!((at::<GELUTanh>(1.0) - approximation).abs() < 1e-14);
        assert!((at::<GELUTanh>(1.0) - at::<GELU>(1.0)).abs() > 1e-4);
    }

    #[test]
    fn far_values_stay_right_and_nan_stays_nan() {
        macro_rules! check {
            ($($layer:ident $low:expr, $high:expr;)*) => {$(
                assert_eq!(at::<$layer>(-1e4), $low, "{}", stringify!($layer));
                assert_eq!(at::<$layer>(1e4), $high, "{}", stringify!($layer));
                assert!(at::<$layer>(f64::NAN).is_nan(), "{}", stringify!($layer));
            )*};
        }
        check! {
            Identity -1e4, 1e4;
            ReLU 0.0, 1e4;
            Tanh -1.0, 1.0;
            Sigmoid 0.0, 1.0;
            SiLU 0.0, 1e4;
            Mish 0.0, 1e4;
            GELU 0.0, 1e4;
            GELUTanh 0.0, 1e4;
            ELU -1.0, 1e4;
        }
    }

    #[test]
    fn two_shapes_that_differ_are_both_named() {
        let fault = <Add as Layer<(T![2, 3], T![3, 2])>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "shape mismatch: `+` takes two tensors of one shape, but it is given ([2, 3], [3, 2])"
        );
    }
}
