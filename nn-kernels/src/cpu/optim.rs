use super::par::{self, GRAIN};
use super::simd::{Simd, kernels};
use super::{Real, kernels::Kernels, reduce};
use crate::ops::{AdamSpec, SgdSpec, grad_scale};

kernels! {
    fn sgd<E>(s: SgdSpec, scale: f64, p: &mut [E], g: &[E]);
    fn sgd_momentum<E>(s: SgdSpec, scale: f64, p: &mut [E], g: &[E], velocity: &mut [E]);
    fn adam<E>(s: AdamSpec, scale: f64, p: &mut [E], g: &[E], m: &mut [E], v: &mut [E]);
    fn squares<E>(x: &[E]) -> f64;
    fn lerp<E>(tau: f64, x: &[E], target: &mut [E]);
}

#[inline(always)]
fn sgd<S: Simd, E: Real>(s: SgdSpec, scale: f64, p: &mut [E], g: &[E]) {
    let [lr, decay, scale] = [s.lr, s.weight_decay, scale].map(E::from_f64);
    for (p, &g) in p.iter_mut().zip(g) {
        *p = *p - lr * (g * scale + decay * *p);
    }
}

#[inline(always)]
fn sgd_momentum<S: Simd, E: Real>(s: SgdSpec, scale: f64, p: &mut [E], g: &[E], velocity: &mut [E]) {
    let [lr, decay, scale] = [s.lr, s.weight_decay, scale].map(E::from_f64);
    let momentum = E::from_f64(s.momentum);
    for ((p, &g), v) in p.iter_mut().zip(g).zip(velocity) {
        let g = g * scale + decay * *p;
        *v = if s.first { g } else { momentum * *v + g };
        *p = *p - lr * if s.nesterov { g + momentum * *v } else { *v };
    }
}

#[inline(always)]
fn adam<S: Simd, E: Real>(s: AdamSpec, scale: f64, p: &mut [E], g: &[E], m: &mut [E], v: &mut [E]) {
    let correction = |beta: f64| 1.0 - beta.powf(s.step as f64);
    let step = E::from_f64(s.lr / correction(s.beta1));
    let root = E::from_f64(1.0 / correction(s.beta2).sqrt());
    let shrink = E::from_f64(if s.decoupled { 1.0 - s.lr * s.weight_decay } else { 1.0 });
    let pull = E::from_f64(if s.decoupled { 0.0 } else { s.weight_decay });
    let [b1, b2, new1, new2] = [s.beta1, s.beta2, 1.0 - s.beta1, 1.0 - s.beta2].map(E::from_f64);
    let [eps, scale] = [s.eps, scale].map(E::from_f64);
    for (((p, &g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
        let g = g * scale + pull * *p;
        *m = b1 * *m + new1 * g;
        *v = b2 * *v + new2 * (g * g);
        *p = *p * shrink - step * (*m / (v.sqrt() * root + eps));
    }
}

#[inline(always)]
fn lerp<S: Simd, E: Real>(tau: f64, x: &[E], target: &mut [E]) {
    let tau = E::from_f64(tau);
    for (t, &x) in target.iter_mut().zip(x) {
        *t += tau * (x - *t);
    }
}

#[inline(always)]
fn squares<S: Simd, E: Real>(x: &[E]) -> f64 {
    reduce::sum(x, |v| v * v)
}

impl<E: Real> Kernels<E> {
    pub(crate) fn sgd(&self, s: &SgdSpec, squares: &[f64], p: &mut [E], g: &[E], velocity: &mut [E]) {
        assert_eq!(g.len(), p.len(), "sgd: g and p differ in length");
        let (isa, s, scale) = (self.isa, *s, grad_scale(s.clip, squares));
        if s.momentum == 0.0 {
            par::split(p.len(), GRAIN, (p, g), &|_, (p, g)| run::sgd(isa, s, scale, p, g));
        } else {
            assert_eq!(velocity.len(), p.len(), "sgd: velocity and p differ in length");
            par::split(p.len(), GRAIN, (p, g, velocity), &|_, (p, g, v)| {
                run::sgd_momentum(isa, s, scale, p, g, v);
            });
        }
    }

    pub(crate) fn adam(&self, s: &AdamSpec, squares: &[f64], p: &mut [E], g: &[E], m: &mut [E], v: &mut [E]) {
        assert_eq!(g.len(), p.len(), "adam: g and p differ in length");
        assert_eq!(m.len(), p.len(), "adam: m and p differ in length");
        assert_eq!(v.len(), p.len(), "adam: v and p differ in length");
        assert!(s.step > 0, "adam: steps are counted from 1");
        let (isa, s, scale) = (self.isa, *s, grad_scale(s.clip, squares));
        par::split(p.len(), GRAIN, (p, g, m, v), &|_, (p, g, m, v)| run::adam(isa, s, scale, p, g, m, v));
    }

    pub(crate) fn sum_of_squares(&self, x: &[E], sum: &mut [f64]) {
        let isa = self.isa;
        sum[0] = par::sum(x.len(), GRAIN, x, &|x| run::squares(isa, x));
    }

    pub(crate) fn copy_wide(&self, x: &[E], y: &mut [E]) {
        self.copy(x, y);
    }

    pub(crate) fn clear(&self, y: &mut [E]) {
        self.fill(0.0, y);
    }

    pub(crate) fn narrow(&self, x: &[E], y: &mut [E]) {
        self.copy(x, y);
    }

    pub(crate) fn collect(&self, g: &mut [E], sum: &mut [E]) {
        self.add_assign(g, sum);
        self.fill(0.0, g);
    }

    pub(crate) fn lerp(&self, tau: f64, x: &[E], target: &mut [E]) {
        assert_eq!(x.len(), target.len(), "lerp: x and target differ in length");
        let isa = self.isa;
        par::split(x.len(), GRAIN, (x, target), &|_, (x, target)| run::lerp(isa, tau, x, target));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, devices, on_threads, random, reals};

    /// The sum of squares of gradients whose norm is so much.
    fn squares(norm: f64) -> [f64; 1] {
        // Clipping adds a millionth to the norm.
        [(norm - 1e-6) * (norm - 1e-6)]
    }

    #[test]
    fn sgd_follows_pytorch_with_momentum_and_without() {
        for (device, momentum, nesterov) in
            devices::<f64>().into_iter().flat_map(|d| [(d, 0.0, false), (d, 0.9, false), (d, 0.9, true)])
        {
            let (mut p, mut expected) = (random(1, 37), random(1, 37));
            let (mut v, mut velocity) = (vec![f64::NAN; 37], [0.0; 37]);
            for step in 0..3 {
                let g = random(10 + step, 37);
                let s = SgdSpec {
                    lr: 0.1,
                    momentum,
                    nesterov,
                    weight_decay: 0.01,
                    clip: Some(2.0),
                    first: step == 0,
                };
                let velocity_given = if momentum == 0.0 { &mut [][..] } else { &mut v[..] };
                device.sgd(&s, &squares(4.0), &mut p, &g, velocity_given);
                for i in 0..37 {
                    let d = 0.5 * g[i] + 0.01 * expected[i];
                    velocity[i] = if step == 0 { d } else { momentum * velocity[i] + d };
                    let direction = match (momentum == 0.0, nesterov) {
                        (true, _) => d,
                        (_, true) => d + momentum * velocity[i],
                        (_, false) => velocity[i],
                    };
                    expected[i] -= 0.1 * direction;
                }
                assert_close(&p, &expected, 1e-14, &format!("{device:?} {step}"));
            }
        }
    }

    #[test]
    fn adam_follows_pytorch_with_either_decay() {
        for (device, decoupled) in devices::<f64>().into_iter().flat_map(|d| [(d, false), (d, true)]) {
            let (mut p, mut expected) = (random(1, 37), random(1, 37));
            let (mut m, mut v) = (vec![0.0; 37], vec![0.0; 37]);
            let (mut first, mut second) = ([0.0; 37], [0.0; 37]);
            for step in 1..=3 {
                let g = random(10 + step, 37);
                let s = AdamSpec {
                    lr: 1e-2,
                    beta1: 0.9,
                    beta2: 0.99,
                    eps: 1e-8,
                    weight_decay: 0.1,
                    decoupled,
                    clip: Some(2.0),
                    step,
                };
                device.adam(&s, &squares(4.0), &mut p, &g, &mut m, &mut v);
                for i in 0..37 {
                    let mut d = 0.5 * g[i];
                    if decoupled {
                        expected[i] *= 1.0 - 1e-2 * 0.1;
                    } else {
                        d += 0.1 * expected[i];
                    }
                    first[i] = 0.9 * first[i] + 0.1 * d;
                    second[i] = 0.99 * second[i] + 0.01 * d * d;
                    let (c1, c2) = (1.0 - 0.9f64.powi(step as i32), 1.0 - 0.99f64.powi(step as i32));
                    expected[i] -= 1e-2 / c1 * first[i] / (second[i].sqrt() / c2.sqrt() + 1e-8);
                }
                assert_close(&p, &expected, 1e-13, &format!("{device:?} {step}"));
                assert_close(&m, &first, 1e-13, "m");
                assert_close(&v, &second, 1e-13, "v");
            }
        }
    }

    #[test]
    fn a_target_moves_by_its_share() {
        for device in devices::<f64>() {
            let (x, mut target) = (random(1, 37), random(2, 37));
            let expected: Vec<f64> = target.iter().zip(&x).map(|(t, x)| t + 0.005 * (x - t)).collect();
            device.lerp(0.005, &x, &mut target);
            assert_close(&target, &expected, 1e-15, "lerp");
        }
    }

    #[test]
    fn sums_of_squares_are_exact_enough_and_the_same_for_any_number_of_threads() {
        let x = random(1, 100_003);
        let expected: f64 = x.iter().map(|x| x * x).sum();
        let single: Vec<f32> = reals(&x);
        let run = |threads| {
            on_threads(threads, || {
                let mut sum = [f64::NAN];
                devices::<f32>().pop().unwrap().sum_of_squares(&single, &mut sum);
                sum[0]
            })
        };
        assert_eq!(run(1).to_bits(), run(4).to_bits());
        assert!((run(1) / expected - 1.0).abs() < 1e-12);
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let g: Vec<f32> = reals(&random(1, 100_003));
        let s = AdamSpec {
            lr: 1e-2,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: 0.1,
            decoupled: true,
            clip: None,
            step: 5,
        };
        let run = |threads| {
            on_threads(threads, || {
                let (mut p, mut m, mut v) = (g.clone(), g.clone(), vec![0.5; g.len()]);
                devices::<f32>().pop().unwrap().adam(&s, &[], &mut p, &g, &mut m, &mut v);
                [p, m, v]
            })
        };
        assert!(run(1) == run(4));
    }
}
