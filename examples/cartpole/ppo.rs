//! Proximal policy optimisation (Schulman and others, 2017, arXiv:1707.06347): its advantages, and its loss with the gradient.

use nn::Float;

/// What a batch's actions are judged by, one value a sample.
pub(crate) struct Targets<'a, E> {
    pub(crate) actions: &'a [u32],
    /// The logarithm of the probability that the action had when it was taken.
    pub(crate) log_probs: &'a [E],
    pub(crate) advantages: &'a [E],
    pub(crate) returns: &'a [E],
}

/// The loss: the mean over the samples of −min(r·A, clip(r, 1 − ε, 1 + ε)·A) + v·(V − R)² − e·H, where r is how much likelier
/// the action has become, and H is the policy's entropy.
#[derive(Clone, Copy)]
pub(crate) struct Ppo {
    /// ε.
    pub(crate) clip: f64,
    /// v.
    pub(crate) value: f64,
    /// e.
    pub(crate) entropy: f64,
}

impl Ppo {
    /// The loss of a batch of logits, `ACTIONS` a sample, and values; the gradients go to `dlogits` and `dvalues`.
    pub(crate) fn loss<const ACTIONS: usize, E: Float>(
        &self,
        (logits, values): (&[E], &[E]),
        targets: &Targets<'_, E>,
        (dlogits, dvalues): (&mut [E], &mut [E]),
    ) -> f64 {
        let n = values.len() as f64;
        let (logits, dlogits) = (logits.as_chunks::<ACTIONS>().0, dlogits.as_chunks_mut::<ACTIONS>().0);
        let mut sum = 0.0;
        for (i, (logits, dlogits)) in logits.iter().zip(dlogits).enumerate() {
            let log_p = log_softmax(logits);
            let p = log_p.map(f64::exp);
            let action = targets.actions[i] as usize;
            let advantage = targets.advantages[i].to_f64();
            let ratio = (log_p[action] - targets.log_probs[i].to_f64()).exp();
            let free = ratio * advantage;
            let clipped = ratio.clamp(1.0 - self.clip, 1.0 + self.clip) * advantage;
            let entropy = -p.iter().zip(&log_p).map(|(p, l)| p * l).sum::<f64>();
            sum += -free.min(clipped) - self.entropy * entropy;

            // Where the clipped term is the smaller, the policy has moved far enough, and nothing pulls at it.
            let pull = if free <= clipped { -free } else { 0.0 };
            for (k, d) in dlogits.iter_mut().enumerate() {
                let of_log_p = f64::from(u8::from(k == action)) - p[k];
                let of_entropy = -p[k] * (log_p[k] + entropy);
                *d = E::from_f64((pull * of_log_p - self.entropy * of_entropy) / n);
            }
        }
        for ((v, r), d) in values.iter().zip(targets.returns).zip(dvalues) {
            let off = v.to_f64() - r.to_f64();
            sum += self.value * off * off;
            *d = E::from_f64(2.0 * self.value * off / n);
        }
        sum / n
    }
}

/// The logarithms of the probabilities.
pub(crate) fn log_softmax<const N: usize, E: Float>(logits: &[E; N]) -> [f64; N] {
    let x = logits.map(E::to_f64);
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = x.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
    x.map(|x| x - max - log_sum)
}

/// What a stretch of play gave, step by step, all environments of a step together.
#[derive(Default)]
pub(crate) struct Rollout {
    pub(crate) observations: Vec<f32>,
    pub(crate) actions: Vec<u32>,
    pub(crate) log_probs: Vec<f32>,
    pub(crate) values: Vec<f32>,
    pub(crate) rewards: Vec<f32>,
    /// Whether the episode ended with this step.
    pub(crate) ends: Vec<bool>,
    pub(crate) advantages: Vec<f32>,
    pub(crate) returns: Vec<f32>,
}

impl Rollout {
    /// Forgets everything but its memory.
    pub(crate) fn clear(&mut self) {
        self.observations.clear();
        self.actions.clear();
        [&mut self.log_probs, &mut self.values, &mut self.rewards].into_iter().for_each(Vec::clear);
        self.ends.clear();
    }

    /// Generalised advantages (Schulman and others, 2015, arXiv:1506.02438) and returns: A = δ + γλA′ with δ = r + γV′ − V,
    /// where V′ and A′ are those of the next step, and 0 at an episode's end; `next` holds the values after the last step.
    pub(crate) fn judge(&mut self, next: &[f32], discount: f32, lambda: f32) {
        let environments = next.len();
        self.advantages.resize(self.values.len(), 0.0);
        for (e, &next) in next.iter().enumerate() {
            let (mut value, mut advantage) = (next, 0.0);
            for i in (e..self.values.len()).step_by(environments).rev() {
                if self.ends[i] {
                    (value, advantage) = (0.0, 0.0);
                }
                let delta = self.rewards[i] + discount * value - self.values[i];
                advantage = delta + discount * lambda * advantage;
                value = self.values[i];
                self.advantages[i] = advantage;
            }
        }
        self.returns.clear();
        self.returns.extend(self.advantages.iter().zip(&self.values).map(|(a, v)| a + v));
    }
}

/// Makes a batch's advantages of mean 0 and variance 1.
pub(crate) fn normalise(advantages: &mut [f32]) {
    let n = advantages.len() as f32;
    let mean = advantages.iter().sum::<f32>() / n;
    let std = (advantages.iter().map(|a| (a - mean) * (a - mean)).sum::<f32>() / n).sqrt();
    advantages.iter_mut().for_each(|a| *a = (*a - mean) / (std + 1e-8));
}

#[cfg(test)]
mod tests {
    use nn::{Cpu, LinearTanh, Model, T, module};

    use super::*;

    const PPO: Ppo = Ppo { clip: 0.2, value: 0.5, entropy: 0.03 };

    /// Actions that have become likelier and less likely, within the limits and beyond, good ones and bad ones.
    const LOGITS: [f64; 24] = [
        0.3, -0.2, 0.1, 1.1, 0.0, -0.7, -0.4, 0.9, 0.2, 0.5, 0.5, -1.5, //
        0.3, -0.2, 0.1, 1.1, 0.0, -0.7, -0.4, 0.9, 0.2, 0.5, 0.5, -1.5,
    ];
    const VALUES: [f64; 8] = [0.1, -0.3, 2.0, 0.7, 1.0, -1.0, 0.2, 0.4];
    /// How much likelier each action is to have become.
    const RATIOS: [f64; 8] = [1.05, 0.9, 1.4, 0.6, 1.1, 0.95, 1.5, 0.5];

    fn targets<'a>(logits: &[f64], log_probs: &'a mut Vec<f64>) -> Targets<'a, f64> {
        const TAKEN: [u32; 8] = [0, 1, 2, 1, 1, 0, 2, 0];
        *log_probs = Vec::new();
        for (i, row) in logits.as_chunks::<3>().0.iter().enumerate() {
            log_probs.push(log_softmax(row)[TAKEN[i] as usize] - RATIOS[i].ln());
        }
        Targets {
            actions: &TAKEN,
            log_probs,
            advantages: &[1.0, 0.5, 2.0, 1.5, -1.0, -0.5, -2.0, -1.5],
            returns: &[0.0, 0.5, 1.0, -0.5, 1.5, 0.3, -0.2, 0.4],
        }
    }

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        let mut log_probs = Vec::new();
        let targets = targets(&LOGITS, &mut log_probs);
        let (mut dlogits, mut dvalues) = ([f64::NAN; 24], [f64::NAN; 8]);
        PPO.loss::<3, _>((&LOGITS, &VALUES), &targets, (&mut dlogits, &mut dvalues));
        let at = |i: usize, step: f64| {
            let (mut logits, mut values) = (LOGITS, VALUES);
            if i < 24 {
                logits[i] += step
            } else {
                values[i - 24] += step
            }
            PPO.loss::<3, _>((&logits, &values), &targets, (&mut [0.0; 24], &mut [0.0; 8]))
        };
        for (i, d) in dlogits.iter().chain(&dvalues).enumerate() {
            let slope = (at(i, 1e-5) - at(i, -1e-5)) / 2e-5;
            assert!((d - slope).abs() < 1e-9, "{i}: {d}, {slope}");
        }
    }

    #[test]
    fn only_what_has_moved_too_far_the_right_way_is_let_go() {
        let mut log_probs = Vec::new();
        let targets = targets(&LOGITS, &mut log_probs);
        let mut dlogits = [f64::NAN; 24];
        let without = Ppo { entropy: 0.0, ..PPO };
        without.loss::<3, _>((&LOGITS, &VALUES), &targets, (&mut dlogits, &mut [0.0; 8]));
        let pulled = dlogits.as_chunks::<3>().0.iter().map(|d| d.iter().any(|d| *d != 0.0));
        // Good ones at ratio 1.4, bad ones at 0.5.
        assert_eq!(pulled.collect::<Vec<_>>(), [true, true, false, true, true, true, true, false]);
    }

    #[module]
    struct Both {
        policy: LinearTanh<4, 3>,
        value: LinearTanh<4, 1>,
    }
    #[module]
    impl Both {
        fn forward(&self, x: T![4]) -> (T![3], T![1]) {
            (self.policy(x), self.value(x))
        }
    }

    #[test]
    fn a_models_parameters_get_the_gradient_of_finite_differences() {
        let mut model = Model::<Both, Cpu<f64>>::init(1, 8).unwrap();
        let x: Vec<f64> = (0..32).map(|i| f64::from(i * 7 % 11) / 5.0 - 1.0).collect();
        let logits = model.forward(&x).unwrap().0.to_vec();
        let mut log_probs = Vec::new();
        let targets = targets(&logits, &mut log_probs);
        let loss = |y: (&[f64], &[f64]), dy: &mut [&mut [f64]]| match dy {
            [dlogits, dvalues] => PPO.loss::<3, _>(y, &targets, (dlogits, dvalues)),
            _ => panic!("two outputs"),
        };
        model.accumulate_custom(&x, loss).unwrap();
        for path in ["policy.weight", "policy.bias", "value.weight", "value.bias"] {
            let gradient = model.gradient(path).unwrap();
            let values = model.weights().get(path).unwrap();
            for (i, d) in gradient.iter().enumerate() {
                let mut at = |step: f64| {
                    let mut moved = values.clone();
                    moved[i] += step;
                    model.weights_mut().set(path, &moved).unwrap();
                    PPO.loss::<3, _>(model.forward(&x).unwrap(), &targets, (&mut [0.0; 24], &mut [0.0; 8]))
                };
                let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                assert!((d - slope).abs() < 1e-8, "{path}[{i}]: {d}, {slope}");
            }
            model.weights_mut().set(path, &values).unwrap();
        }
    }

    #[test]
    fn advantages_are_those_worked_out_by_hand() {
        // Two environments, three steps; the second's episode ends with its second step.
        let mut rollout = Rollout {
            values: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            rewards: vec![1.0; 6],
            ends: vec![false, false, false, true, false, false],
            ..Rollout::default()
        };
        rollout.judge(&[7.0, 8.0], 0.5, 0.5);
        // First: δ = 1 + ½·7 − 5 = −½; 1 + ½·5 − 3 = ½; 1 + ½·3 − 1 = 3/2. Second: −1; 1 − 4 = −3; 1 + ½·4 − 2 = 1.
        let first = [1.5 + 0.25 * (0.5 - 0.25 * 0.5), 0.5 - 0.25 * 0.5, -0.5];
        let second = [1.0 - 0.25 * 3.0, -3.0, -1.0];
        assert_eq!(rollout.advantages, [first[0], second[0], first[1], second[1], first[2], second[2]]);
        assert_eq!(rollout.returns[3], 1.0);
    }

    #[test]
    fn normalised_advantages_have_mean_0_and_variance_1() {
        let mut a = [1.0, 2.0, 3.0, 6.0];
        normalise(&mut a);
        let mean = a.iter().sum::<f32>() / 4.0;
        let variance = a.iter().map(|a| a * a).sum::<f32>() / 4.0;
        assert!(mean.abs() < 1e-6 && (variance - 1.0).abs() < 1e-6, "{a:?}");
    }
}
