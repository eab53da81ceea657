use super::par::{self, GRAIN};
use super::simd::{Simd, kernels};
use super::{Real, kernels::Kernels, reduce};
use crate::ops::{AdamSpec, SgdSpec};

kernels! {
    fn sgd<E>(s: SgdSpec, p: &mut [E], g: &[E]);
    fn sgd_momentum<E>(s: SgdSpec, p: &mut [E], g: &[E], velocity: &mut [E]);
    fn adam<E>(s: AdamSpec, p: &mut [E], g: &[E], m: &mut [E], v: &mut [E]);
    fn squares<E>(x: &[E]) -> f64;
    fn lerp<E>(tau: f64, x: &[E], target: &mut [E]);
}

#[inline(always)]
fn sgd<S: Simd, E: Real>(s: SgdSpec, p: &mut [E], g: &[E]) {
    let [lr, decay, scale] = [s.lr, s.weight_decay, s.grad_scale].map(E::from_f64);
    for (p, &g) in p.iter_mut().zip(g) {
        *p = *p - lr * (g * scale + decay * *p);
    }
}

#[inline(always)]
fn sgd_momentum<S: Simd, E: Real>(s: SgdSpec, p: &mut [E], g: &[E], velocity: &mut [E]) {
    let [lr, decay, scale] = [s.lr, s.weight_decay, s.grad_scale].map(E::from_f64);
    let momentum = E::from_f64(s.momentum);
    for ((p, &g), v) in p.iter_mut().zip(g).zip(velocity) {
        let g = g * scale + decay * *p;
        *v = if s.first { g } else { momentum * *v + g };
        *p = *p - lr * if s.nesterov { g + momentum * *v } else { *v };
    }
}

#[inline(always)]
fn adam<S: Simd, E: Real>(s: AdamSpec, p: &mut [E], g: &[E], m: &mut [E], v: &mut [E]) {
    let correction = |beta: f64| 1.0 - beta.powf(s.step as f64);
    let step = E::from_f64(s.lr / correction(s.beta1));
    let root = E::from_f64(1.0 / correction(s.beta2).sqrt());
    let shrink = E::from_f64(if s.decoupled { 1.0 - s.lr * s.weight_decay } else { 1.0 });
    let pull = E::from_f64(if s.decoupled { 0.0 } else { s.weight_decay });
    let [b1, b2, new1, new2] = [s.beta1, s.beta2, 1.0 - s.beta1, 1.0 - s.beta2].map(E::from_f64);
    let [eps, scale] = [s.eps, s.grad_scale].map(E::from_f64);
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
    pub(crate) fn sgd(&self, s: &SgdSpec, p: &mut [E], g: &[E], velocity: &mut [E]) {
        assert_eq!(g.len(), p.len(), "sgd: g and p differ in length");
        let (isa, s) = (self.isa, *s);
        if s.momentum == 0.0 {
            par::split(p.len(), GRAIN, (p, g), &|_, (p, g)| run::sgd(isa, s, p, g));
        } else {
            assert_eq!(velocity.len(), p.len(), "sgd: velocity and p differ in length");
            par::split(p.len(), GRAIN, (p, g, velocity), &|_, (p, g, v)| run::sgd_momentum(isa, s, p, g, v));
        }
    }

    pub(crate) fn adam(&self, s: &AdamSpec, p: &mut [E], g: &[E], m: &mut [E], v: &mut [E]) {
        assert_eq!(g.len(), p.len(), "adam: g and p differ in length");
        assert_eq!(m.len(), p.len(), "adam: m and p differ in length");
        assert_eq!(v.len(), p.len(), "adam: v and p differ in length");
        assert!(s.step > 0, "adam: steps are counted from 1");
        let (isa, s) = (self.isa, *s);
        par::split(p.len(), GRAIN, (p, g, m, v), &|_, (p, g, m, v)| run::adam(isa, s, p, g, m, v));
    }

    pub(crate) fn sum_of_squares(&self, x: &[E]) -> f64 {
        let isa = self.isa;
        par::sum(x.len(), GRAIN, x, &|x| run::squares(isa, x))
    }

    pub(crate) fn lerp(&self, tau: f64, x: &[E], target: &mut [E]) {
        assert_eq!(x.len(), target.len(), "lerp: x and target differ in length");
        let isa = self.isa;
        par::split(x.len(), GRAIN, (x, target), &|_, (x, target)| run::lerp(isa, tau, x, target));
    }
}
