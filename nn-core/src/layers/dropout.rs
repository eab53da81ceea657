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

const fn rule(label: &Text, rate: f64, given: &Sig) -> Rule {
    if !(rate >= 0.0 && rate < 1.0) {
        return Rule::cannot_exist(label, Text::new().str("its rate is not in 0..1"));
    }
    match one_real(label, &[], given) {
        Input::Tensor(dims) => Rule::ok(Sig::real(dims)),
        Input::Done(rule) => rule,
    }
}

impl<RATE: Real> Params for DropoutOf<RATE> {
    const LABEL: Text = Text::new().str("Dropout<").real(RATE::VALUE).str(">");
}

impl<X: Signature, RATE: Real> Layer<X> for DropoutOf<RATE> {
    const RULE: Rule = rule(&Self::LABEL, RATE::VALUE, &X::SIG);
    const CAUSAL: bool = true;
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

/// [`Dropout`] with a cheaper mask: an element is dropped by a hash of the call's random numbers, the layer's place in the
/// model and the element's index ([`kernels::hash`](nn_kernels::hash)), and not by Philox. Any shape.
///
/// As in [`Dropout`], what is kept is divided by 1 − RATE, in inference y = x, equal layers, copies and ranks have different
/// masks, and the vjp computes the mask again instead of keeping it. The masks of the two differ. The hash takes two
/// multiplications an element where Philox takes ten rounds for four; its words pass for random in a mask, but that they are
/// independent is less well tested than of Philox.
///
/// ```
/// use nn::{HashDropout, Layer, Sci, T};
/// assert_eq!(<HashDropout<Sci<1, -1>> as Layer<T![5, 8]>>::RULE.out.to_string(), "[5, 8]");
/// let fault = <HashDropout<Sci<1, 0>> as Layer<T![5, 8]>>::RULE.fault.unwrap();
/// assert_eq!(fault.to_string(), "`HashDropout<1>` can't exist: its rate is not in 0..1");
/// ```
#[layer]
pub struct HashDropout<RATE: Real>;

impl<RATE: Real> Params for HashDropoutOf<RATE> {
    const LABEL: Text = Text::new().str("HashDropout<").real(RATE::VALUE).str(">");
}

impl<X: Signature, RATE: Real> Layer<X> for HashDropoutOf<RATE> {
    const RULE: Rule = rule(&Self::LABEL, RATE::VALUE, &X::SIG);
    const CAUSAL: bool = true;
}

impl<D: Device, X: Signature, RATE: Real> Module<D, X> for HashDropoutOf<RATE> {
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        if cx.trains() {
            cx.device().hash_dropout(cx.random(), RATE::VALUE, call.x.get(0), call.y.get(0));
        } else {
            cx.device().copy(call.x.get(0), call.y.get(0));
        }
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        if let Some(dx) = call.dx.wanted(0) {
            if cx.trains() {
                cx.device().hash_dropout(cx.random(), RATE::VALUE, call.dy.get(0), dx);
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

    type Hashed = HashDropout<Sci<5, -1>>;

    fn drop<M: Module<Cpu<f64>, T![1000]>>(place: impl Fn(&mut Run<M, T![1000], Cpu<f64>>)) -> Vec<f64> {
        let mut run = Run::<M, T![1000], Cpu<f64>>::new(&Cpu::default(), 2).mode(Mode::Train);
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
            gradients::<Hashed, T![20]>(batch, Mode::Train, 5).assert_within(1e-7);
            gradients::<HashDropout<Sci<1, -1>>, T![4, ..5]>(batch, Mode::Train, 6).assert_within(1e-7);
            gradients::<Hashed, T![5]>(batch, Mode::Infer, 7).assert_within(1e-7);
        }
    }

    #[test]
    fn it_drops_at_its_rate_keeps_the_mean_and_draws_anew() {
        fn check<M: Module<Cpu<f64>, T![1000]>>() {
            let y = drop::<M>(|_| {});
            assert!(y.iter().all(|&v| v == 0.0 || v == 2.0));
            let kept = y.iter().filter(|&&v| v > 0.0).count();
            assert!((900..1100).contains(&kept), "{kept}");
            assert_eq!(y, drop::<M>(|_| {}));
            assert_ne!(y, drop::<M>(|run| run.stream.step = 1));
            assert_ne!(y, drop::<M>(|run| run.stream.seed = 1));
            assert_ne!(y, drop::<M>(|run| run.stream.rank = 1));
            assert_eq!(drop::<M>(|run| run.mode = Mode::Infer), [1.0; 2000]);
        }
        check::<Half>();
        check::<Hashed>();
        assert_ne!(drop::<Half>(|_| {}), drop::<Hashed>(|_| {}));
    }

    /// Whether so many layers behind one another drop independently: what all keep is a share of 2⁻ⁿ.
    #[test]
    fn copies_and_equal_layers_have_different_masks() {
        crate::sequential! { Pair: [1000] -> [1000] = HashDropout<0.5>, HashDropout<0.5> }
        fn kept<M: Module<Cpu<f64>, T![1000]>>() -> usize {
            drop::<M>(|_| {}).iter().filter(|v| **v > 0.0).count()
        }
        for pair in [kept::<crate::Repeat<Hashed, 2>>(), kept::<crate::Repeat<Half, 2>>(), kept::<Pair>()] {
            assert!((430..570).contains(&pair), "{pair}");
        }
    }

    #[test]
    fn a_negative_rate_is_a_fault() {
        let fault = <Dropout<Sci<-25, -2>> as Layer<T![1]>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "`Dropout<-0.25>` can't exist: its rate is not in 0..1");
    }
}
