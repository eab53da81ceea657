use std::cmp::Ordering;
use std::hash::{BuildHasher, Hasher, RandomState};

use nn_kernels::Float;
use nn_kernels::philox::Philox;

use crate::error::Error;

/// How to choose one of the classes that logits score: the next token of a text, an action.
///
/// With temperature T a class of logit l has the probability p = softmax(l/T). What a method keeps is scaled to a sum of 1, and
/// drawn from. Where logits are equal, the lower index comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Sampling {
    /// The likeliest class. Nothing is drawn.
    #[default]
    Greedy,
    /// Any class.
    Temperature {
        /// T, above 0.
        temperature: f64,
    },
    /// One of the `k` likeliest (Fan, Lewis and Dauphin, *Hierarchical neural story generation*, 2018).
    TopK {
        /// How many are kept, at least 1. All are if it is more than there are.
        k: usize,
        /// T, above 0.
        temperature: f64,
    },
    /// One of the likeliest that together have a probability of at most `p`; the very likeliest is always kept
    /// (Holtzman and others, *The curious case of neural text degeneration*, 2020).
    ///
    /// A class that takes the sum from below `p` to above it is left out, where some other programs keep it.
    TopP {
        /// The probability, in (0, 1].
        p: f64,
        /// T, above 0.
        temperature: f64,
    },
    /// One of those that are at least `p` times as likely as the likeliest (Nguyen and others, *Turning up the heat: min-p sampling*,
    /// 2024).
    MinP {
        /// The share of the largest probability, in (0, 1].
        p: f64,
        /// T, above 0.
        temperature: f64,
    },
}

impl Sampling {
    fn temperature(&self) -> f64 {
        match *self {
            Self::Greedy => 1.0,
            Self::Temperature { temperature }
            | Self::TopK { temperature, .. }
            | Self::TopP { temperature, .. }
            | Self::MinP { temperature, .. } => temperature,
        }
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |reason: String| Err(Error::Sampling { reason });
        let temperature = self.temperature();
        if !(temperature > 0.0 && temperature.is_finite()) {
            return wrong(format!(
                "the temperature is {temperature}, and must be above 0 and finite; `Sampling::Greedy` is the limit at 0"
            ));
        }
        match *self {
            Self::TopK { k: 0, .. } => {
                wrong("top-k with k = 0 keeps nothing; `Sampling::Temperature` keeps everything".to_owned())
            }
            Self::TopP { p, .. } if !(p > 0.0 && p <= 1.0) => wrong(format!(
                "top-p's p is {p}, and must lie in (0, 1]; 1 keeps everything, and `Sampling::Greedy` the likeliest"
            )),
            Self::MinP { p, .. } if !(p > 0.0 && p <= 1.0) => wrong(format!(
                "min-p's p is {p}, and must lie in (0, 1]; `Sampling::Temperature` keeps everything"
            )),
            _ => Ok(()),
        }
    }
}

/// Chooses among classes by their logits, with random numbers of its own.
///
/// All memory is allocated when it is made. Logits may be `f32` or `f64`; everything is computed in `f64`. Each draw is a function of
/// the seed and of how many were drawn before, so that a [state](Self::state) is two numbers.
///
/// ```
/// use nn::{Sampler, Sampling};
///
/// let logits = [1.0_f32, 3.0, 0.5, 2.9];
/// assert_eq!(Sampler::new(Sampling::Greedy, 4, 1)?.sample(&logits)?, 1);
///
/// let nucleus = Sampling::TopP { p: 0.95, temperature: 0.6 };
/// let mut sampler = Sampler::new(nucleus, 4, 7)?;
/// let first: Vec<u32> = (0..8).map(|_| sampler.sample(&logits)).collect::<Result<_, _>>()?;
/// assert!(first.iter().all(|id| [1, 3].contains(id)));
///
/// // The same seed draws the same; a seed of 0 asks for one that nobody knows yet.
/// let mut again = Sampler::new(nucleus, 4, 7)?;
/// assert_eq!(first[0], again.sample(&logits)?);
/// println!("this run's seed: {}", Sampler::new(nucleus, 4, 0)?.seed());
/// # Ok::<(), nn::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    state: SamplerState,
    /// exp((l − max)/T), which the largest logit makes 1.
    weights: Vec<f64>,
    /// Classes by falling logit, as far as that was needed.
    order: Vec<u32>,
}

/// All that a [`Sampler`] must know to go on as it would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SamplerState {
    /// The seed, as it is: here 0 is a seed like any other.
    pub seed: u64,
    /// How often it has drawn.
    pub drawn: u64,
}

impl Sampler {
    /// For logits of `classes` classes. Any seed but 0 gives the same draws each time; 0 stands for a fresh one.
    ///
    /// # Errors
    /// A temperature that is not above 0, a `k` of 0, a `p` outside (0, 1], no classes or more than `u32` can count.
    pub fn new(sampling: Sampling, classes: usize, seed: u64) -> Result<Self, Error> {
        sampling.check()?;
        let Some(last) = classes.checked_sub(1) else {
            return Err(Error::Sampling { reason: "there are no classes to choose among".to_owned() });
        };
        if u32::try_from(last).is_err() {
            return Err(Error::Sampling {
                reason: format!("{classes} classes are more than a `u32` counts"),
            });
        }
        Ok(Self {
            sampling,
            state: SamplerState { seed: if seed == 0 { fresh_seed() } else { seed }, drawn: 0 },
            weights: vec![0.0; classes],
            order: vec![0; classes],
        })
    }

    /// The seed, which is the one drawn for it where it was made with 0.
    pub fn seed(&self) -> u64 {
        self.state.seed
    }

    /// How it chooses.
    pub fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// How many classes it chooses among.
    pub fn classes(&self) -> usize {
        self.weights.len()
    }

    /// Where its random numbers stand, to be saved.
    pub fn state(&self) -> SamplerState {
        self.state
    }

    /// Goes to where a [state](Self::state) was saved.
    pub fn restore(&mut self, state: SamplerState) {
        self.state = state;
    }

    /// A class.
    ///
    /// # Errors
    /// Another number of logits than it was made for, a logit that is NaN or +∞, all of them −∞. Then nothing was drawn. Some may be −∞:
    /// they are never chosen.
    pub fn sample<E: Float>(&mut self, logits: &[E]) -> Result<u32, Error> {
        let likeliest = self.likeliest(logits)?;
        let (max, temperature) = (logits[likeliest].to_f64(), self.sampling.temperature());
        if self.sampling == Sampling::Greedy {
            return Ok(likeliest as u32);
        }
        for (weight, logit) in self.weights.iter_mut().zip(logits) {
            // The difference first: the quotient of a large logit and a small temperature overflows.
            *weight = ((logit.to_f64() - max) / temperature).exp();
        }
        Ok(match self.sampling {
            Sampling::Greedy => likeliest as u32,
            Sampling::Temperature { .. } => self.draw(0.0),
            // w = p/max(p).
            Sampling::MinP { p, .. } => self.draw(p),
            Sampling::TopK { k, .. } => {
                let kept = k.min(logits.len());
                self.sort(logits, 0, kept);
                self.draw_sorted(kept)
            }
            Sampling::TopP { p, .. } => {
                let kept = self.nucleus(logits, p);
                self.draw_sorted(kept)
            }
        })
    }

    /// The first of the largest logits, of which none must be NaN or +∞.
    fn likeliest<E: Float>(&self, logits: &[E]) -> Result<usize, Error> {
        let wrong = |reason: String| Err(Error::Sampling { reason });
        if logits.len() != self.weights.len() {
            return wrong(format!(
                "{} logits were given to a sampler made for {} classes",
                logits.len(),
                self.weights.len()
            ));
        }
        let mut best = 0;
        for (i, logit) in logits.iter().enumerate() {
            let value = logit.to_f64();
            if value.is_nan() || value == f64::INFINITY {
                return wrong(format!(
                    "logit {i} is {value}; `check_finite` tells which layer it comes from"
                ));
            }
            if value > logits[best].to_f64() {
                best = i;
            }
        }
        if logits[best].to_f64() == f64::NEG_INFINITY {
            return wrong(
                "every logit is -inf, which leaves nothing to choose; leave at least one finite".to_owned(),
            );
        }
        Ok(best)
    }

    /// How many of the likeliest have a probability of at most `p` together. Sorts them.
    fn nucleus<E: Float>(&mut self, logits: &[E], p: f64) -> usize {
        let classes = self.weights.len();
        if p == 1.0 {
            // A sum of all that rounding takes above 1 must not cut the tail.
            self.sort(logits, 0, classes);
            return classes;
        }
        let total: f64 = self.weights.iter().sum();
        // A nucleus is small as a rule, and sorting a large vocabulary takes long.
        let (mut sum, mut done, mut next) = (0.0, 0, 256);
        while done < classes {
            let end = classes.min(next);
            self.sort(logits, done, end);
            for (i, class) in self.order.iter().enumerate().take(end).skip(done) {
                sum += self.weights[*class as usize] / total;
                if sum > p {
                    return i.max(1);
                }
            }
            (done, next) = (end, 4 * end);
        }
        classes
    }

    /// Makes `order[from..to]` what it is in the order of all classes. `order[..from]` is so already.
    fn sort<E: Float>(&mut self, logits: &[E], from: usize, to: usize) {
        if from == 0 {
            (0..).zip(&mut self.order).for_each(|(i, class)| *class = i);
        }
        // No two classes are equal, so that an unstable sort, which needs no memory, has one result. By the logits: their weights can
        // be equal where they are not.
        let falling = |a: &u32, b: &u32| -> Ordering {
            let by_logit = logits[*b as usize].partial_cmp(&logits[*a as usize]);
            by_logit.unwrap_or(Ordering::Equal).then(a.cmp(b))
        };
        let rest = &mut self.order[from..];
        if to - from < rest.len() {
            rest.select_nth_unstable_by(to - from, falling);
        }
        rest[..to - from].sort_unstable_by(falling);
    }

    /// One of the classes whose weight is at least `least`, each as likely as its weight says.
    fn draw(&mut self, least: f64) -> u32 {
        let kept = |weights: &[f64]| -> f64 { weights.iter().filter(|w| **w >= least).sum() };
        let target = self.uniform() * kept(&self.weights);
        choose((0..).zip(&self.weights).map(|(i, w)| (i, *w)).filter(|(_, w)| *w >= least), target)
    }

    /// One of the `kept` likeliest classes, each as likely as its weight says.
    fn draw_sorted(&mut self, kept: usize) -> u32 {
        let u = self.uniform();
        let classes = || self.order[..kept].iter().map(|class| (*class, self.weights[*class as usize]));
        choose(classes(), u * classes().map(|(_, w)| w).sum::<f64>())
    }

    /// A number in [0, 1), a function of the seed and of how many were drawn before.
    fn uniform(&mut self) -> f64 {
        // Apart from what a model with the same seed draws.
        let words = Philox::new(self.state.seed, 0x7361_6D70_6C65).at(self.state.drawn);
        self.state.drawn = self.state.drawn.wrapping_add(1);
        let bits = u64::from(words[0]) | u64::from(words[1]) << 32;
        (bits >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }
}

/// The first class at which the sum of the weights passes `target`.
fn choose(classes: impl Iterator<Item = (u32, f64)>, target: f64) -> u32 {
    let (mut sum, mut last) = (0.0, 0);
    for (class, weight) in classes.filter(|(_, weight)| *weight > 0.0) {
        sum += weight;
        last = class;
        if sum > target {
            break;
        }
    }
    last
}

/// A seed that differs from run to run, and is not 0.
fn fresh_seed() -> u64 {
    // The keys of the standard library's hash maps are the system's random numbers.
    RandomState::new().build_hasher().finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const METHODS: [Sampling; 5] = [
        Sampling::Greedy,
        Sampling::Temperature { temperature: 0.8 },
        Sampling::TopK { k: 3, temperature: 0.8 },
        Sampling::TopP { p: 0.7, temperature: 0.8 },
        Sampling::MinP { p: 0.3, temperature: 0.8 },
    ];

    /// Logits whose probabilities are known.
    fn ln(p: &[f64]) -> Vec<f64> {
        p.iter().map(|p| p.ln()).collect()
    }

    fn draws(sampling: Sampling, logits: &[f64], seed: u64, n: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(sampling, logits.len(), seed).unwrap();
        (0..n).map(|_| sampler.sample(logits).unwrap()).collect()
    }

    /// Which classes are ever drawn.
    fn reached(sampling: Sampling, logits: &[f64]) -> Vec<u32> {
        let mut all = draws(sampling, logits, 11, 2000);
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Pearson's test: whether the classes are drawn as often as they should be, and those of probability 0 never.
    #[track_caller]
    fn assert_distribution(sampling: Sampling, logits: &[f64], expected: &[f64]) {
        assert!((expected.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        let n = if cfg!(miri) { 200 } else { 20_000 };
        for seed in [1, 2, u64::MAX] {
            let mut counts = vec![0.0; logits.len()];
            draws(sampling, logits, seed, n).iter().for_each(|class| counts[*class as usize] += 1.0);
            let mut square = 0.0;
            for (count, p) in counts.iter().zip(expected) {
                if *p == 0.0 {
                    assert_eq!(*count, 0.0, "{sampling:?} {counts:?}");
                } else {
                    let e = p * n as f64;
                    square += (count - e) * (count - e) / e;
                }
            }
            // With up to four degrees of freedom, one right sampler in ten thousand exceeds this.
            assert!(square < 23.5, "{sampling:?}: {counts:?}, chi-square {square}");
        }
    }

    /// The definition, step by step, with the random number `u`.
    fn reference(sampling: Sampling, logits: &[f64], u: f64) -> u32 {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        if matches!(sampling, Sampling::TopK { .. } | Sampling::TopP { .. }) {
            order.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).unwrap());
        }
        if let Sampling::TopK { k, .. } = sampling {
            order.truncate(k);
        }
        let max = logits.iter().copied().fold(f64::MIN, f64::max);
        let t = sampling.temperature();
        let exps: Vec<f64> = order.iter().map(|i| ((logits[*i] - max) / t).exp()).collect();
        let sum: f64 = exps.iter().sum();
        let mut probs: Vec<f64> = exps.iter().map(|e| e / sum).collect();
        if let Sampling::TopP { p, .. } = sampling {
            let mut cumulative = 0.0;
            for (i, prob) in probs.iter_mut().enumerate() {
                cumulative += *prob;
                if i > 0 && cumulative > p {
                    *prob = 0.0;
                }
            }
        }
        if let Sampling::MinP { p, .. } = sampling {
            let threshold = p * probs.iter().copied().fold(0.0, f64::max);
            probs.iter_mut().filter(|prob| **prob < threshold).for_each(|prob| *prob = 0.0);
        }
        let sum: f64 = probs.iter().sum();
        let mut cumulative = 0.0;
        for (i, prob) in order.iter().zip(&probs) {
            cumulative += prob / sum;
            if cumulative > u {
                return *i as u32;
            }
        }
        unreachable!("the probabilities sum to 1")
    }

    #[test]
    fn each_method_has_the_distribution_worked_out_by_hand() {
        let logits = ln(&[0.1, 0.4, 0.2, 0.3]);
        let temperature = 1.0;
        assert_distribution(Sampling::Temperature { temperature }, &logits, &[0.1, 0.4, 0.2, 0.3]);
        // At ½ the probabilities are as their squares.
        let squares = [1.0 / 30.0, 16.0 / 30.0, 4.0 / 30.0, 9.0 / 30.0];
        assert_distribution(Sampling::Temperature { temperature: 0.5 }, &logits, &squares);
        assert_distribution(Sampling::TopK { k: 2, temperature }, &logits, &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
        let half = [0.0, 16.0 / 25.0, 0.0, 9.0 / 25.0];
        assert_distribution(Sampling::TopK { k: 2, temperature: 0.5 }, &logits, &half);
        // 0.4, 0.7, 0.9: the third would pass 0.75.
        assert_distribution(
            Sampling::TopP { p: 0.75, temperature },
            &logits,
            &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0],
        );
        // 16/30, 25/30, 29/30.
        let three = [0.0, 16.0 / 29.0, 4.0 / 29.0, 9.0 / 29.0];
        assert_distribution(Sampling::TopP { p: 0.97, temperature: 0.5 }, &logits, &three);
        // At least 0.45·0.4 = 0.18.
        assert_distribution(
            Sampling::MinP { p: 0.45, temperature },
            &logits,
            &[0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0],
        );
        // At least 0.45·16/30 = 7.2/30.
        assert_distribution(Sampling::MinP { p: 0.45, temperature: 0.5 }, &logits, &half);
    }

    #[test]
    fn every_choice_is_that_of_the_definition() {
        let mut rng = Philox::new(5, 5);
        for round in 0..if cfg!(miri) { 2 } else { 12 } {
            // More than are sorted at first, with many equal ones.
            let classes = [3, 17, 700, 3000][round % 4];
            let spread = [0.5, 3.0, 12.0][round % 3];
            let logits: Vec<f64> =
                (0..classes).map(|_| (rng.normal() * spread * 16.0).round() / 16.0).collect();
            let methods = [0.02, 0.5, 0.9, 0.999].map(|p| Sampling::TopP { p, temperature: 1.3 });
            let more =
                [Sampling::TopK { k: 300, temperature: 1.3 }, Sampling::MinP { p: 0.01, temperature: 2.0 }];
            for sampling in METHODS.into_iter().skip(1).chain(methods).chain(more) {
                let mut sampler = Sampler::new(sampling, classes, 9).unwrap();
                for _ in 0..8 {
                    let u = sampler.clone().uniform();
                    let found = sampler.sample(&logits).unwrap();
                    assert_eq!(found, reference(sampling, &logits, u), "{sampling:?} of {classes}");
                }
            }
        }
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest_and_draws_nothing() {
        let mut sampler = Sampler::new(Sampling::Greedy, 4, 3).unwrap();
        assert_eq!(sampler.sample(&[1.0, 2.0, 2.0, 0.0]).unwrap(), 1);
        assert_eq!(sampler.sample(&[-0.0, 0.0, -0.0, 0.0]).unwrap(), 0);
        assert_eq!(sampler.sample(&[f32::NEG_INFINITY, -3e38, -3e38, f32::NEG_INFINITY]).unwrap(), 1);
        assert_eq!(sampler.state(), SamplerState { seed: 3, drawn: 0 });
    }

    #[test]
    fn a_nucleus_reaches_exactly_up_to_p() {
        let temperature = 1.0;
        let top_p = |p| Sampling::TopP { p, temperature };
        // Four of ¼ each, whose sums are exact.
        assert_eq!(reached(top_p(0.5), &[2.0; 4]), [0, 1]);
        assert_eq!(reached(top_p(0.5_f64.next_down()), &[2.0; 4]), [0]);
        assert_eq!(reached(top_p(0.5_f64.next_up()), &[2.0; 4]), [0, 1]);
        assert_eq!(reached(top_p(0.75_f64.next_down()), &[2.0; 4]), [0, 1]);
        assert_eq!(reached(top_p(0.75), &[2.0; 4]), [0, 1, 2]);
        assert_eq!(reached(top_p(1.0), &[2.0; 4]), [0, 1, 2, 3]);
    }

    #[test]
    fn the_likeliest_is_kept_however_small_p_is() {
        let logits = ln(&[0.1, 0.6, 0.3]);
        for p in [1e-300, 0.1, 0.6_f64.next_down() - 1e-9] {
            assert_eq!(reached(Sampling::TopP { p, temperature: 1.0 }, &logits), [1]);
        }
        assert_eq!(reached(Sampling::MinP { p: 1.0, temperature: 1.0 }, &logits), [1]);
        assert_eq!(reached(Sampling::TopK { k: 1, temperature: 1.0 }, &logits), [1]);
    }

    #[test]
    fn a_nucleus_of_1_keeps_a_tail_that_rounding_would_cut() {
        // The sum of these exceeds 1 before the last.
        let n = 1000;
        let logits = vec![0.1; n];
        let mut sampler = Sampler::new(Sampling::TopP { p: 1.0, temperature: 0.7 }, n, 1).unwrap();
        sampler.sample(&logits).unwrap();
        assert!((0..n).map(|_| 1.0 / n as f64).sum::<f64>() > 1.0);
        assert_eq!(sampler.nucleus(&logits, 1.0), n);
    }

    #[test]
    fn min_p_keeps_what_is_exactly_at_its_threshold() {
        let temperature = std::f64::consts::LOG2_E;
        // Weights 2⁰, 2⁻¹, 2⁻².
        let logits = [0.0, -1.0, -2.0];
        let exact = ((-1.0 / temperature).exp(), (-2.0 / temperature).exp());
        assert_eq!(exact, (0.5, 0.25), "so that the threshold is met exactly");
        assert_eq!(reached(Sampling::MinP { p: 0.5, temperature }, &logits), [0, 1]);
        assert_eq!(reached(Sampling::MinP { p: 0.5_f64.next_up(), temperature }, &logits), [0]);
        assert_eq!(reached(Sampling::MinP { p: 0.25, temperature }, &logits), [0, 1, 2]);
    }

    #[test]
    fn ties_keep_the_lower_index() {
        let temperature = 1.0;
        let logits = [1.0, 3.0, 1.0, 3.0, 3.0, 1.0];
        assert_eq!(reached(Sampling::TopK { k: 2, temperature }, &logits), [1, 3]);
        assert_eq!(reached(Sampling::TopK { k: 4, temperature }, &logits), [0, 1, 3, 4]);
        // Two zeros that compare equal.
        assert_eq!(reached(Sampling::TopK { k: 1, temperature }, &[-0.0, 0.0]), [0]);
        // All weights are 1 at such a temperature, but the logits differ.
        assert_eq!(reached(Sampling::TopK { k: 1, temperature: 1e300 }, &[1.0, 2.0]), [1]);
    }

    #[test]
    fn more_than_there_are_is_all() {
        let logits = ln(&[0.5, 0.3, 0.2]);
        assert_distribution(Sampling::TopK { k: usize::MAX, temperature: 1.0 }, &logits, &[0.5, 0.3, 0.2]);
        assert_distribution(Sampling::TopK { k: 3, temperature: 1.0 }, &[7.0; 3], &[1.0 / 3.0; 3]);
    }

    #[test]
    fn extreme_logits_and_temperatures_give_no_nan() {
        let inf = f64::NEG_INFINITY;
        for sampling in METHODS {
            assert_eq!(reached(sampling, &[inf, -1e308, inf, 1e308]), [3], "{sampling:?}");
            assert_eq!(reached(sampling, &[inf, 0.0, inf]), [1], "{sampling:?}");
            assert_eq!(reached(sampling, &[5.0]), [0], "{sampling:?}");
        }
        assert_eq!(reached(Sampling::TopK { k: 3, temperature: 1.0 }, &[inf, 0.0, 0.0]), [1, 2]);
        assert_eq!(reached(Sampling::TopP { p: 1.0, temperature: 1.0 }, &[inf, 0.0, 0.0]), [1, 2]);
        assert_eq!(reached(Sampling::Temperature { temperature: 1e-308 }, &[1.0, 1.0 + 1e-9, -1.0]), [1]);
        assert_eq!(reached(Sampling::Temperature { temperature: 1e308 }, &[1e4, -1e4]), [0, 1]);
    }

    #[test]
    fn precisions_of_the_same_logits_choose_alike() {
        let single: Vec<f32> = (0..50).map(|i| (i * 37 % 50) as f32 / 7.0).collect();
        let double: Vec<f64> = single.iter().map(|v| f64::from(*v)).collect();
        for sampling in METHODS {
            let mut a = Sampler::new(sampling, 50, 4).unwrap();
            let mut b = a.clone();
            for _ in 0..50 {
                assert_eq!(a.sample(&single).unwrap(), b.sample(&double).unwrap());
            }
        }
    }

    #[test]
    fn a_seed_repeats_its_draws_and_0_does_not() {
        let flat = [0.0; 1000];
        let temperature = Sampling::Temperature { temperature: 1.0 };
        assert_eq!(draws(temperature, &flat, 8, 20), draws(temperature, &flat, 8, 20));
        assert_ne!(draws(temperature, &flat, 8, 20), draws(temperature, &flat, 9, 20));
        assert_ne!(draws(temperature, &flat, 0, 20), draws(temperature, &flat, 0, 20));
        let fresh = Sampler::new(temperature, 1000, 0).unwrap();
        assert_ne!(fresh.seed(), 0);
        let again = draws(temperature, &flat, fresh.seed(), 20);
        assert_eq!(
            {
                let mut s = fresh;
                (0..20).map(|_| s.sample(&flat).unwrap()).collect::<Vec<_>>()
            },
            again
        );
    }

    #[test]
    fn draws_go_on_where_they_were_saved() {
        let logits = ln(&[0.1, 0.2, 0.3, 0.4]);
        for sampling in METHODS.into_iter().skip(1) {
            let mut sampler = Sampler::new(sampling, 4, 21).unwrap();
            (0..13).for_each(|_| drop(sampler.sample(&logits)));
            let saved = sampler.state();
            assert_eq!(saved, SamplerState { seed: 21, drawn: 13 });
            let rest: Vec<u32> = (0..30).map(|_| sampler.sample(&logits).unwrap()).collect();
            let mut other = Sampler::new(sampling, 4, 99).unwrap();
            other.restore(saved);
            assert_eq!((0..30).map(|_| other.sample(&logits).unwrap()).collect::<Vec<_>>(), rest);
        }
    }

    #[test]
    fn what_can_not_be_sampled_says_what_to_do() {
        let message = |sampling| Sampler::new(sampling, 4, 1).unwrap_err().to_string();
        for temperature in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let all = [
                Sampling::Temperature { temperature },
                Sampling::TopK { k: 2, temperature },
                Sampling::TopP { p: 0.5, temperature },
                Sampling::MinP { p: 0.5, temperature },
            ];
            for sampling in all {
                assert!(message(sampling).contains("`Sampling::Greedy`"), "{sampling:?}");
            }
        }
        assert_eq!(
            message(Sampling::Temperature { temperature: -1.0 }),
            "can't sample: the temperature is -1, and must be above 0 and finite; `Sampling::Greedy` is the limit at 0"
        );
        assert!(message(Sampling::TopK { k: 0, temperature: 1.0 }).contains("k = 0 keeps nothing"));
        for p in [0.0, -0.5, 1.0_f64.next_up(), f64::NAN, f64::INFINITY] {
            assert!(message(Sampling::TopP { p, temperature: 1.0 }).contains("must lie in (0, 1]"), "{p}");
            assert!(message(Sampling::MinP { p, temperature: 1.0 }).contains("must lie in (0, 1]"), "{p}");
        }
        assert!(Sampler::new(Sampling::Greedy, 0, 1).unwrap_err().to_string().contains("no classes"));
    }

    #[test]
    fn logits_that_can_not_be_chosen_from_are_errors_and_draw_nothing() {
        let inf = f64::INFINITY;
        for sampling in METHODS {
            let mut sampler = Sampler::new(sampling, 3, 1).unwrap();
            let mut message = |logits: &[f64]| sampler.sample(logits).unwrap_err().to_string();
            assert!(message(&[0.0, f64::NAN, 1.0]).starts_with("can't sample: logit 1 is NaN"));
            assert!(message(&[f64::NAN; 3]).contains("logit 0 is NaN"));
            assert!(message(&[0.0, 1.0, inf]).contains("logit 2 is inf"));
            assert!(message(&[-inf; 3]).contains("every logit is -inf"));
            assert_eq!(
                message(&[0.0; 4]),
                "can't sample: 4 logits were given to a sampler made for 3 classes"
            );
            assert!(message(&[]).contains("0 logits"));
            assert_eq!(sampler.state().drawn, 0);
        }
    }

    #[test]
    fn the_ends_of_the_random_numbers_choose_what_has_weight() {
        let classes = || [(4, 0.0), (7, 0.25), (1, 0.75), (2, 0.0)].into_iter();
        assert_eq!(choose(classes(), 0.0), 7);
        assert_eq!(choose(classes(), 0.25_f64.next_down()), 7);
        assert_eq!(choose(classes(), 0.25), 1);
        assert_eq!(choose(classes(), 1.0), 1);
    }
}
