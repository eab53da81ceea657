//! Dropout.

use nn_kernels::Device;

use crate::ctx::Ctx;
use crate::fault::{Input, Rule, one_real};
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::real::Real;
use crate::signature::{Sig, Signature};
use crate::{Text, layer};

/// In training, each value is dropped (becomes zero) with probability RATE, and what is kept is divided by
/// 1 − RATE; in inference y = x. Any shape. Srivastava et al. 2014.
///
/// The mask is a function of the call's random numbers and of the layer's place in the model: equal layers and
/// copies differ, and the vjp draws it again instead of keeping it.
///
/// ```
/// use nn::{Dropout, Layer, Sci, T};
/// assert_eq!(<Dropout<Sci<1, -1>> as Layer<T![5, 8]>>::RULE.out.to_string(), "[5, 8]");
/// let fault = <Dropout<Sci<1, 0>> as Layer<T![5, 8]>>::RULE.fault.unwrap();
/// assert_eq!(fault.to_string(), "`Dropout<1>` can't exist: its rate is not in 0..1");
/// ```
#[layer]
pub struct Dropout<RATE: Real>;

impl<RATE: Real> Params for DropoutOf<RATE> {
    const LABEL: Text = Text::new().str("Dropout<").real(RATE::VALUE).str(">");
}

impl<X: Signature, RATE: Real> Layer<X> for DropoutOf<RATE> {
    const RULE: Rule = if RATE::VALUE >= 0.0 && RATE::VALUE < 1.0 {
        match one_real(&Self::LABEL, &[], &X::SIG) {
            Input::Tensor(dims) => Rule::ok(Sig::real(dims)),
            Input::Done(rule) => rule,
        }
    } else {
        Rule::cannot_exist(&Self::LABEL, Text::new().str("its rate is not in 0..1"))
    };
}

impl<D: Device, X: Signature, RATE: Real> Module<D, X> for DropoutOf<RATE> {
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        if cx.trains() {
            cx.device().dropout(cx.random(), RATE::VALUE, call.x.get(0), call.y.get(0));
        } else {
            cx.device().copy(call.x.get(0), call.y.get(0));
        }
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        if let Some(dx) = call.dx.wanted(0) {
            if cx.trains() {
                cx.device().dropout(cx.random(), RATE::VALUE, call.dy.get(0), dx);
            } else {
                cx.device().copy(call.dy.get(0), dx);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Run, Values, gradients};
    use crate::{Cpu, Mode, Sci, T};

    type Half = Dropout<Sci<5, -1>>;

    fn drop(place: impl Fn(&mut Run<Half, T![1000], Cpu<f64>>)) -> Vec<f64> {
        let mut run = Run::<Half, T![1000], Cpu<f64>>::new(&Cpu::default(), 2).mode(Mode::Train);
        place(&mut run);
        run.forward(&[Values::Real(vec![1.0; 2000])])[0].real().to_vec()
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            gradients::<Half, T![20]>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<Dropout<Sci<1, -1>>, T![4, ..5]>(batch, Mode::Train, 2).assert_within(1e-7);
            gradients::<Dropout<Sci<0, 0>>, T![3]>(batch, Mode::Train, 3).assert_within(1e-7);
            gradients::<Half, T![5]>(batch, Mode::Infer, 4).assert_within(1e-7);
        }
    }

    #[test]
    fn it_drops_at_its_rate_keeps_the_mean_and_draws_anew() {
        let y = drop(|_| {});
        assert!(y.iter().all(|&v| v == 0.0 || v == 2.0));
        let kept = y.iter().filter(|&&v| v > 0.0).count();
        assert!((900..1100).contains(&kept), "{kept}");
        assert_eq!(y, drop(|_| {}));
        assert_ne!(y, drop(|run| run.stream.step = 1));
        assert_ne!(y, drop(|run| run.stream.seed = 1));
        assert_ne!(y, drop(|run| run.stream.rank = 1));
        assert_eq!(drop(|run| run.mode = Mode::Infer), [1.0; 2000]);
    }

    #[test]
    fn a_negative_rate_is_a_fault() {
        let fault = <Dropout<Sci<-25, -2>> as Layer<T![1]>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "`Dropout<-0.25>` can't exist: its rate is not in 0..1");
    }
}
