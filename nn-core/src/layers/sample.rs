//! Samples whose gradients reach the distribution they are drawn from.

use nn_kernels::Device;
use nn_kernels::ops::GaussianSpec;

use crate::ctx::Ctx;
use crate::dims::{Dim, Extent};
use crate::fault::{Rule, label};
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::linear::{No, Switch, Yes};
use crate::signature::{Kind, Sig, Signature};
use crate::{Size, Text, layer};

/// A sample of a Gaussian distribution, reparameterised: given the mean and the logarithm of the standard deviation, both
/// `[.., N]`, it gives mean + exp(log_std) ⊙ ε, `[.., N]`, with ε from N(0, 1). In inference ε is 0, and it gives the mean.
///
/// The gradient goes through both inputs, the noise held fixed. The noise is a function of the call's random numbers and of
/// the layer's place in the model: equal layers and copies draw different ones, and the vjp draws them again instead of
/// keeping them. Kingma and Welling 2013, arXiv:1312.6114. [`RSampleTanh`] squashes.
///
/// ```
/// use nn::{Layer, RSample, T};
/// assert_eq!(<RSample<3> as Layer<(T![3], T![3])>>::RULE.out.to_string(), "[3]");
/// let fault = <RSample<3> as Layer<(T![3], T![4])>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `RSample<3>` takes two tensors [.., 3] of one shape, but it is given ([3], [4])"
/// );
/// ```
#[layer]
pub struct RSample<const N: usize, SQUASH: Switch = No>;

/// [`RSample`] squashed by tanh, with the logarithm of its density: (mean `[.., N]`, log_std `[.., N]`) →
/// (a `[.., N]`, log p(a) `[.., 1]`).
///
/// u = mean + exp(log_std) ⊙ ε, a = tanh u and
/// log p(a) = Σ −½ε² − log_std − ½ log 2π − log(1 − tanh² u), summed over the N values. The last term is computed as
/// 2(log 2 − |u| − log(1 + e^(−2|u|))), which stays right however large u is. In inference ε is 0: the action is tanh(mean), with
/// its log-density. Haarnoja et al. 2018, arXiv:1801.01290, appendix C.
///
/// ```
/// use nn::{Layer, RSampleTanh, T};
/// assert_eq!(<RSampleTanh<3> as Layer<(T![3], T![3])>>::RULE.out.to_string(), "([3], [1])");
/// ```
pub type RSampleTanh<const N: usize> = RSample<N, Yes>;

impl<N: Dim, SQUASH: Switch> RSampleOf<N, SQUASH> {
    const SPEC: GaussianSpec = GaussianSpec { cols: N::N, squash: SQUASH::ON };

    const fn rule(given: &Sig) -> Rule {
        if let Some(rule) = Rule::check_positive(&Self::LABEL, &["N"], Self::ARGS) {
            return rule;
        }
        if let Some(rule) = Rule::check_args(&Self::LABEL, Self::ARGS) {
            return rule;
        }
        if given.is_poison() {
            return Rule::ok(Sig::POISON);
        }
        let t = given.tensors();
        if t.len() == 2
            && matches!((t[0].kind, t[1].kind), (Kind::Real, Kind::Real))
            && t[0].dims.rank() > 0
            && t[0].dims.same(&t[1].dims)
            && t[0].dims.last().same(&N::EXTENT)
        {
            let sample = Sig::real(t[0].dims);
            return Rule::ok(if SQUASH::ON {
                sample.join(&Sig::real(t[0].dims.with_last(Extent::new(1))))
            } else {
                sample
            });
        }
        let takes = N::EXTENT.write(Text::new().str("two tensors [.., ")).str("] of one shape");
        Rule::mismatch(&Self::LABEL, takes, given, Sig::POISON)
    }
}

impl<N: Dim, SQUASH: Switch> Params for RSampleOf<N, SQUASH> {
    const LABEL: Text = label(if SQUASH::ON { "RSampleTanh" } else { "RSample" }, Self::ARGS);
}

impl<X: Signature, N: Dim, SQUASH: Switch> Layer<X> for RSampleOf<N, SQUASH> {
    const RULE: Rule = Self::rule(&X::SIG);
    const KEEPS_X: bool = true;
    // The noise.
    const SCRATCH: Size = Size::elements(X::SIG.dims(0).numel());
    const VJP_SCRATCH: Size = Size::elements(X::SIG.dims(0).numel());
    const CAUSAL: bool = true;
}

impl<D: Device, X: Signature, N: Dim, SQUASH: Switch> Module<D, X> for RSampleOf<N, SQUASH> {
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        let mut noise = call.scratch.take(cx.numel(const { &X::SIG.dims(0) }));
        if cx.trains() {
            cx.device().normal(cx.random(), D::reborrow(&mut noise));
        }
        let noise = cx.trains().then(|| D::read(&noise));
        let (mean, log_std) = (call.x.get(0), call.x.get(1));
        if SQUASH::ON {
            let (sample, log_prob) = call.y.wanted_pair(0, 1);
            let sample = sample.unwrap_or_else(D::empty_mut);
            cx.device().gaussian(&Self::SPEC, mean, log_std, noise, sample, log_prob);
        } else {
            cx.device().gaussian(&Self::SPEC, mean, log_std, noise, call.y.get(0), None);
        }
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        let mut noise = call.scratch.take(cx.numel(const { &X::SIG.dims(0) }));
        if cx.trains() {
            cx.device().normal(cx.random(), D::reborrow(&mut noise));
        }
        let noise = cx.trains().then(|| D::read(&noise));
        let (mean, log_std) = (call.x.get(0), call.x.get(1));
        let dlog_prob = if SQUASH::ON { call.dy.get(1) } else { D::empty() };
        let (dmean, dlog_std) = call.dx.wanted_pair(0, 1);
        cx.device().gaussian_vjp(
            &Self::SPEC,
            mean,
            log_std,
            noise,
            call.dy.get(0),
            dlog_prob,
            dmean,
            dlog_std,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Run, Values, gradients};
    use crate::{Cpu, Mode, T, module};
    use nn_kernels::ops::{Random, Stream};

    type Two = (T![5], T![5]);

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            gradients::<RSample<5>, Two>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<RSample<5>, Two>(batch, Mode::Infer, 2).assert_within(1e-7);
            gradients::<RSampleTanh<5>, Two>(batch, Mode::Train, 3).assert_within(1e-7);
            gradients::<RSampleTanh<5>, Two>(batch, Mode::Infer, 4).assert_within(1e-7);
            gradients::<RSampleTanh<3>, (T![2, ..4, 3], T![2, ..4, 3])>(batch, Mode::Train, 5)
                .assert_within(1e-7);
        }
    }

    const MEAN: [f64; 10] = [0.5, -1.0, 2.0, 0.0, 0.25, 1.0, -0.5, 0.75, -2.0, 0.1];
    const LOG_STD: [f64; 10] = [0.0, -1.0, 0.5, -0.5, 0.25, -2.0, 0.1, -0.1, 0.3, -0.7];

    fn sample(mode: Mode, stream: Stream) -> Vec<f64> {
        let mut run = Run::<RSample<5>, Two, Cpu<f64>>::new(&Cpu::default(), 2).mode(mode);
        run.stream = stream;
        run.forward(&[Values::Real(MEAN.to_vec()), Values::Real(LOG_STD.to_vec())])[0].real().to_vec()
    }

    #[test]
    fn the_noise_is_that_of_the_stream_and_inference_has_none() {
        let stream = Stream { seed: 3, place: 0, step: 5, rank: 2 };
        let mut noise = vec![0.0; 10];
        Cpu::<f64>::default().normal(stream, &mut noise);
        let expected: Vec<_> = (0..10).map(|i| MEAN[i] + LOG_STD[i].exp() * noise[i]).collect();
        let y = sample(Mode::Train, stream);
        assert!(y.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-14));
        // The variance in place of the standard deviation's logarithm fits as well and is wrong.
        assert!(
            y.iter()
                .zip(0..10)
                .any(|(y, i)| (y - MEAN[i] - (LOG_STD[i] / 2.0).exp() * noise[i]).abs() > 0.01)
        );
        for other in
            [Stream { seed: 4, ..stream }, Stream { step: 6, ..stream }, Stream { rank: 1, ..stream }]
        {
            assert!(y.iter().zip(sample(Mode::Train, other)).all(|(a, b)| *a != b), "{other:?}");
        }
        assert_eq!(sample(Mode::Infer, stream), MEAN);
    }

    /// Two samples of one distribution.
    #[module]
    struct Both {}
    #[module]
    impl Both {
        fn forward(&self, mean: T![5], log_std: T![5]) -> (T![5], T![5]) {
            (RSample::<5>(mean, log_std), RSample::<5>(mean, log_std))
        }
    }

    #[test]
    fn equal_layers_draw_different_noise() {
        let mut run = Run::<Both, Two, Cpu<f64>>::new(&Cpu::default(), 2).mode(Mode::Train);
        let y = run.forward(&[Values::Real(MEAN.to_vec()), Values::Real(LOG_STD.to_vec())]);
        assert!(y[0].real().iter().zip(y[1].real()).all(|(a, b)| a != b));
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        let fault = <RSampleTanh<0> as Layer<(T![0], T![0])>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "`RSampleTanh<0>` can't exist: N is 0");
        let fault = <RSampleTanh<4> as Layer<T![8]>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "shape mismatch: `RSampleTanh<4>` takes two tensors [.., 4] of one shape, but it is given [8]"
        );
    }
}
