use super::norm::rows_of;
use super::par::{self, GRAIN, Rows, rows_per_task};
use super::simd::{Simd, kernels};
use super::{Real, kernels::Kernels, math, reduce};
use crate::ops::Reduction;

kernels! {
    fn difference<E>(scale: f64, x: &[E], target: &[E], dx: &mut [E]);
    fn squared<E>(x: &[E], target: &[E]) -> f64;
    fn cross_entropy<E>(c: CrossEntropy, x: &[E], target: &[u32], dx: Option<&mut [E]>) -> f64;
}

#[inline(always)]
fn squared<S: Simd, E: Real>(x: &[E], target: &[E]) -> f64 {
    reduce::sum2(x, target, |x, t| (x - t) * (x - t))
}

#[inline(always)]
fn difference<S: Simd, E: Real>(scale: f64, x: &[E], target: &[E], dx: &mut [E]) {
    for ((dx, x), t) in dx.iter_mut().zip(x).zip(target) {
        *dx = E::from_f64(scale * (x.to_f64() - t.to_f64()));
    }
}

/// What a row of cross-entropy needs to know of the call.
#[derive(Clone, Copy)]
struct CrossEntropy {
    classes: usize,
    smoothing: f64,
    ignore: Option<u32>,
    /// Multiplies the gradient: 1 or one over the number of rows that count.
    scale: f64,
}

/// Σ over rows of −(1 − s)·log p[target] − s·mean(log p), and its gradient scale·(p − (1 − s)·onehot − s/classes).
#[inline(always)]
fn cross_entropy<S: Simd, E: Real>(c: CrossEntropy, x: &[E], target: &[u32], dx: Option<&mut [E]>) -> f64 {
    let mut total = 0.0;
    let mut dx = dx.map(|dx| dx.chunks_exact_mut(c.classes));
    for (x, &target) in x.chunks_exact(c.classes).zip(target) {
        let dx = dx.as_mut().and_then(Iterator::next);
        if Some(target) == c.ignore {
            if let Some(dx) = dx {
                dx.fill(E::ZERO);
            }
            continue;
        }
        let hit = x[target as usize].to_f64();
        let max = reduce::max(x);
        let share = c.smoothing / c.classes as f64;
        let sum = reduce::sum(x, |v| exp::<S, E>(E::from_f64(v) - max));
        let log = max.to_f64() + sum.ln();
        total += (1.0 - c.smoothing) * (log - hit);
        if share != 0.0 {
            total += share * reduce::sum(x, |v| log - v);
        }
        if let Some(dx) = dx {
            for (dx, x) in dx.iter_mut().zip(x) {
                *dx = E::from_f64(c.scale * (exp::<S, E>(*x - max) / sum - share));
            }
            let p = exp::<S, E>(x[target as usize] - max) / sum;
            dx[target as usize] = E::from_f64(c.scale * (p - share - (1.0 - c.smoothing)));
        }
    }
    total
}

/// eˣ of an element, in double precision.
#[inline(always)]
fn exp<S: Simd, E: Real>(x: E) -> f64 {
    math::exp::<S, E>(x).to_f64()
}

impl<E: Real> Kernels<E> {
    pub(crate) fn mse(&self, reduction: Reduction, x: &[E], target: &[E], dx: Option<&mut [E]>) -> f64 {
        assert_eq!(x.len(), target.len(), "mse: x and target differ in length");
        let isa = self.isa;
        let share = match reduction {
            Reduction::Mean => 1.0 / x.len() as f64,
            Reduction::Sum => 1.0,
        };
        if let Some(dx) = dx {
            assert_eq!(dx.len(), x.len(), "mse: dx and x differ in length");
            par::split(x.len(), GRAIN, (x, target, dx), &|_, (x, target, dx)| {
                run::difference(isa, 2.0 * share, x, target, dx)
            });
        }
        share * par::sum(x.len(), GRAIN, (x, target), &|(x, target)| run::squared(isa, x, target))
    }

    pub(crate) fn cross_entropy(
        &self,
        reduction: Reduction,
        classes: usize,
        smoothing: f64,
        ignore: Option<u32>,
        x: &[E],
        target: &[u32],
        dx: Option<&mut [E]>,
    ) -> Result<f64, u32> {
        let rows = rows_of("cross_entropy", classes, x);
        assert_eq!(target.len(), rows, "cross_entropy: not one target a row");
        if let Some(dx) = &dx {
            assert_eq!(dx.len(), x.len(), "cross_entropy: dx and x differ in length");
        }
        let counted = |target: &&u32| Some(**target) != ignore;
        if let Some(&bad) = target.iter().filter(counted).find(|&&target| target as usize >= classes) {
            return Err(bad);
        }
        let scale = match reduction {
            Reduction::Mean => 1.0 / target.iter().filter(counted).count() as f64,
            Reduction::Sum => 1.0,
        };
        let c = CrossEntropy { classes, smoothing, ignore, scale };
        let isa = self.isa;
        let views = (Rows(x, classes), target, dx.map(|dx| Rows(dx, classes)));
        let sum = par::sum(rows, rows_per_task(classes), views, &|(x, target, dx)| {
            let dx = dx.map(|dx| dx.0);
            run::cross_entropy(isa, c, x.0, target, dx)
        });
        Ok(scale * sum)
    }
}
