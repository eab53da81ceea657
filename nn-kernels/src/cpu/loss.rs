use super::norm::rows_of;
use super::par::{self, GRAIN, Rows, rows_per_task};
use super::simd::{Simd, kernels};
use super::{Real, kernels::Kernels, math, reduce, softmax};
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
    let (mut total, mut room) = (0.0, [E::ZERO; softmax::PART]);
    let mut dx = dx.map(|dx| dx.chunks_exact_mut(c.classes));
    for (x, &target) in x.chunks_exact(c.classes).zip(target) {
        let dx = dx.as_mut().and_then(Iterator::next);
        if Some(target) == c.ignore {
            if let Some(dx) = dx {
                dx.fill(E::ZERO);
            }
            continue;
        }
        let hit = x[target as usize];
        let max = reduce::max(x);
        let share = c.smoothing / c.classes as f64;
        let sum = match dx {
            None => softmax::sum_of_powers::<S, E>(max, x, &mut room),
            Some(dx) => {
                let sum = softmax::powers::<S, E>(max, x, dx);
                let (scale, shift) = (E::from_f64(c.scale / sum), E::from_f64(c.scale * share));
                for dx in &mut *dx {
                    *dx = *dx * scale - shift;
                }
                let p = math::exp::<S, E>(hit - max).to_f64() / sum;
                dx[target as usize] = E::from_f64(c.scale * (p - share - (1.0 - c.smoothing)));
                sum
            }
        };
        let log = max.to_f64() + sum.ln();
        total += (1.0 - c.smoothing) * (log - hit.to_f64());
        if share != 0.0 {
            total += share * reduce::sum(x, |v| log - v);
        }
    }
    total
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, devices, gradient, on_threads, random, reals};

    #[test]
    fn mse_and_its_gradient() {
        for device in devices::<f64>() {
            let (x, t) = (random(1, 37), random(2, 37));
            let sum: f64 = x.iter().zip(&t).map(|(x, t)| (x - t) * (x - t)).sum();
            for (reduction, scale) in [(Reduction::Mean, 1.0 / 37.0), (Reduction::Sum, 1.0)] {
                let mut dx = vec![0.0; 37];
                let loss = device.mse(reduction, &x, &t, Some(&mut dx));
                assert!((loss - scale * sum).abs() < 1e-13);
                assert_close(&dx, &gradient(&x, |x| device.mse(reduction, x, &t, None)), 1e-8, "dx");
            }
        }
    }

    /// −Σ q·log softmax(x) with the smoothed targets q, in the order of the formula.
    fn reference(
        classes: usize,
        smoothing: f64,
        ignore: Option<u32>,
        x: &[f64],
        target: &[u32],
    ) -> (f64, f64) {
        let (mut sum, mut count) = (0.0, 0.0);
        for (x, &target) in x.chunks(classes).zip(target).filter(|(_, target)| Some(**target) != ignore) {
            let total: f64 = x.iter().map(|v| v.exp()).sum();
            for (class, v) in x.iter().enumerate() {
                let q =
                    smoothing / classes as f64 + if class == target as usize { 1.0 - smoothing } else { 0.0 };
                sum -= q * (v - total.ln());
            }
            count += 1.0;
        }
        (sum, count)
    }

    fn cross_entropy_matches<E: Real>(tolerance: f64) {
        for (device, classes) in devices::<E>().into_iter().flat_map(|d| [1, 3, 10, 33].map(|c| (d, c))) {
            let x: Vec<f64> = random(1, 5 * classes).iter().map(|x| f64::from((4.0 * x) as f32)).collect();
            let target = [0, classes as u32 - 1, 77, classes as u32 / 2, 0];
            for (smoothing, reduction) in
                [(0.0, Reduction::Mean), (0.1, Reduction::Sum), (0.3, Reduction::Mean)]
            {
                let mut dx = vec![E::ZERO; x.len()];
                let loss = device
                    .cross_entropy(
                        reduction,
                        classes,
                        smoothing,
                        Some(77),
                        &reals(&x),
                        &target,
                        Some(&mut dx),
                    )
                    .unwrap();
                let expected = |x: &[f64]| {
                    let (sum, count) = reference(classes, smoothing, Some(77), x, &target);
                    if reduction == Reduction::Mean { sum / count } else { sum }
                };
                let error = (loss - expected(&x)).abs();
                assert!(error <= tolerance * expected(&x).abs().max(1.0), "{device:?} {classes} {error:e}");
                let slope = gradient(&x, expected);
                let error = dx.iter().zip(&slope).map(|(a, b)| (a.to_f64() - b).abs()).fold(0.0, f64::max);
                assert!(error < 1e-7f64.max(tolerance), "{device:?} {classes} {smoothing}: {error:e}");
            }
        }
    }

    #[test]
    fn cross_entropy_with_smoothing_and_ignored_rows_and_its_gradient() {
        cross_entropy_matches::<f32>(1e-6);
        cross_entropy_matches::<f64>(1e-13);
    }

    #[test]
    fn logits_far_out_do_not_overflow() {
        for device in devices::<f32>() {
            let loss = device.cross_entropy(Reduction::Mean, 3, 0.0, None, &[1e4, -1e4, 0.0], &[0], None);
            assert_eq!(loss, Ok(0.0));
            let loss = device.cross_entropy(Reduction::Mean, 3, 0.0, None, &[1e4, -1e4, 0.0], &[1], None);
            assert_eq!(loss, Ok(2e4));
        }
    }

    #[test]
    fn the_first_target_out_of_range_is_the_error_and_nothing_is_written() {
        let mut dx = [9.0; 6];
        let device = devices::<f32>()[0];
        let loss =
            device.cross_entropy(Reduction::Sum, 2, 0.0, Some(5), &[0.0; 6], &[5, 2, 3], Some(&mut dx));
        assert_eq!((loss, dx), (Err(2), [9.0; 6]));
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let x: Vec<f32> = reals(&random(1, 1000 * 100));
        let target: Vec<u32> = (0..1000).map(|i| i % 100).collect();
        let run = |threads| {
            on_threads(threads, || {
                let device = devices::<f32>().pop().unwrap();
                let mut dx = x.clone();
                let loss = device
                    .cross_entropy(Reduction::Mean, 100, 0.1, None, &x, &target, Some(&mut dx))
                    .unwrap();
                let mse = device.mse(Reduction::Sum, &x, &dx, None);
                (loss.to_bits(), mse.to_bits(), dx)
            })
        };
        assert!(run(1) == run(4));
    }
}
