//! Softmax and its logarithm.

use nn_kernels::Device;

use crate::ctx::Ctx;
use crate::fault::{Input, Rule, one_real};
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::signature::{Sig, Signature};
use crate::{Text, layer};

/// y = eˣ / Σ eˣ along the last axis, the maximum taken off first.
///
/// ```
/// use nn::{Cpu, Softmax, T, check::{Values, Run}};
/// let mut run = Run::<Softmax, T![2], Cpu<f64>>::new(&Cpu::default(), 1);
/// assert_eq!(run.forward_only(&[Values::Real(vec![1e4, 1e4])]), [Values::Real(vec![0.5, 0.5])]);
/// ```
#[layer]
pub struct Softmax;

/// y = x − log Σ eˣ along the last axis, the maximum taken off first: more exact than a logarithm of
/// [`Softmax`].
///
/// ```
/// use nn::{Cpu, LogSoftmax, T, check::{Values, Run}};
/// let mut run = Run::<LogSoftmax, T![2], Cpu<f64>>::new(&Cpu::default(), 1);
/// assert_eq!(run.forward_only(&[Values::Real(vec![0.0, 1e4])]), [Values::Real(vec![-1e4, 0.0])]);
/// ```
#[layer]
pub struct LogSoftmax;

const fn rule(label: &Text, given: &Sig) -> Rule {
    match one_real(label, &[], given) {
        Input::Done(rule) => rule,
        Input::Tensor(dims) if dims.rank() > 0 => Rule::ok(Sig::real(dims)),
        Input::Tensor(_) => Rule::mismatch(label, Text::new().str("at least one axis"), given, Sig::POISON),
    }
}

/// The length of the last axis in this call; not 0, for rows of nothing are not even counted.
fn cols<D: Device, X: Signature>(cx: &Ctx<'_, D>) -> usize {
    let dims = X::SIG.dims(0);
    dims.axis_at(dims.rank() - 1, &cx.lengths).max(1)
}

macro_rules! softmax {
    ($name:ident $forward:ident $vjp:ident) => {
        impl Params for $name {
            const LABEL: Text = Self::SHOWN;
        }
        impl<X: Signature> Layer<X> for $name {
            const RULE: Rule = rule(&Self::LABEL, &X::SIG);
            const KEEPS_Y: bool = true;
            // Along a sequence, the first depends on the last.
            const CAUSAL: bool = X::SIG.is_empty() || X::SIG.dims(0).last().length.is_none();
        }
        impl<D: Device, X: Signature> Module<D, X> for $name {
            fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
                cx.device().$forward(cols::<D, X>(cx), call.x.get(0), call.y.get(0));
            }
            fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
                if let Some(dx) = call.dx.wanted(0) {
                    cx.device().$vjp(cols::<D, X>(cx), call.y.get(0), call.dy.get(0), dx);
                }
            }
        }
    };
}
softmax!(Softmax softmax softmax_vjp);
softmax!(LogSoftmax log_softmax log_softmax_vjp);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Run, Values, gradients};
    use crate::{Cpu, Mode, T};

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            gradients::<Softmax, T![5]>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<Softmax, T![2, ..4]>(batch, Mode::Infer, 2).assert_within(1e-7);
            gradients::<LogSoftmax, T![7]>(batch, Mode::Train, 3).assert_within(1e-7);
            gradients::<LogSoftmax, T![..3, 4]>(batch, Mode::Infer, 4).assert_within(1e-7);
        }
    }

    #[test]
    fn large_values_neither_overflow_nor_vanish() {
        let mut run = Run::<Softmax, T![3], Cpu<f64>>::new(&Cpu::default(), 2);
        let y = run.forward(&[Values::Real(vec![1e4, 1e4 - 1.0, -1e4, -1e4, -1e4 - 1.0, -3e4])]);
        let (big, small) = y[0].real().split_at(3);
        assert!((big[0] - 1.0 / (1.0 + (-1.0f64).exp())).abs() < 1e-12);
        assert_eq!(big[..2], small[..2]);
    }

    #[test]
    fn a_scalar_has_no_row() {
        let fault = <Softmax as Layer<T![]>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "shape mismatch: `Softmax` takes at least one axis, but it is given []"
        );
    }
}
