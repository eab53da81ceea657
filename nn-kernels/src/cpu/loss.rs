use super::norm::rows_of;
use super::par::{self, GRAIN, Rows, rows_per_task};
use super::simd::{Simd, kernels};
use super::size::size;
use super::{Real, kernels::Kernels, math, reduce, softmax};
use crate::ops::{CrossEntropySpec, Reduction};

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

/// What a sample's cross-entropy needs to know of the call.
#[derive(Clone, Copy)]
struct CrossEntropy {
    spec: CrossEntropySpec,
    /// Multiplies the gradient: 1 or one over the number of rows that count.
    scale: f64,
}

/// Σ over rows of −(1 − s)·log p[target] − s·mean(log p), and its gradient scale·(p − (1 − s)·onehot − s/classes).
#[inline(always)]
fn cross_entropy<S: Simd, E: Real>(c: CrossEntropy, x: &[E], target: &[u32], dx: Option<&mut [E]>) -> f64 {
    let (mut total, mut room) = (0.0, [E::ZERO; softmax::PART]);
    let CrossEntropySpec { classes, smoothing, ignore, rows, counted, .. } = c.spec;
    let mut dx = dx.map(|dx| dx.chunks_exact_mut(classes));
    let mut targets = target.iter();
    for (row, x) in x.chunks_exact(classes).enumerate() {
        let dx = dx.as_mut().and_then(Iterator::next);
        let target = if row % rows < counted { targets.next().copied() } else { None };
        let Some(target) = target.filter(|target| Some(*target) != ignore) else {
            if let Some(dx) = dx {
                dx.fill(E::ZERO);
            }
            continue;
        };
        let Some(&hit) = x.get(target as usize) else {
            total = f64::NAN;
            if let Some(dx) = dx {
                dx.fill(E::from_f64(f64::NAN));
            }
            continue;
        };
        let max = reduce::max(x);
        let share = smoothing / classes as f64;
        let sum = match dx {
            None => softmax::sum_of_powers::<S, E>(max, x, &mut room),
            Some(dx) => {
                let sum = softmax::powers::<S, E>(max, x, dx);
                let (scale, shift) = (E::from_f64(c.scale / sum), E::from_f64(c.scale * share));
                for dx in &mut *dx {
                    *dx = *dx * scale - shift;
                }
                let p = math::exp::<S, E>(hit - max).to_f64() / sum;
                dx[target as usize] = E::from_f64(c.scale * (p - share - (1.0 - smoothing)));
                sum
            }
        };
        let log = max.to_f64() + sum.ln();
        total += (1.0 - smoothing) * (log - hit.to_f64());
        if share != 0.0 {
            total += share * reduce::sum(x, |v| log - v);
        }
    }
    total
}

/// How many samples there are.
#[track_caller]
pub(crate) fn check_cross_entropy(s: &CrossEntropySpec, x: usize, target: usize, dx: Option<usize>) -> usize {
    assert!(0 < s.counted && s.counted <= s.rows, "cross_entropy: {} of {} rows count", s.counted, s.rows);
    let samples = rows_of("cross_entropy", size("cross_entropy", &[s.rows, s.classes]), x);
    assert_eq!(
        target,
        size("cross_entropy", &[samples, s.counted]),
        "cross_entropy: not one target for each row that counts"
    );
    assert_eq!(dx.unwrap_or(x), x, "cross_entropy: dx and x differ in length");
    samples
}

impl<E: Real> Kernels<E> {
    pub(crate) fn mse(
        &self,
        reduction: Reduction,
        x: &[E],
        target: &[E],
        dx: Option<&mut [E]>,
        value: &mut [f64],
    ) {
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
        value[0] = share * par::sum(x.len(), GRAIN, (x, target), &|(x, target)| run::squared(isa, x, target));
    }

    pub(crate) fn cross_entropy(
        &self,
        s: &CrossEntropySpec,
        x: &[E],
        target: &[u32],
        dx: Option<&mut [E]>,
        value: &mut [f64],
    ) {
        let samples = check_cross_entropy(s, x.len(), target.len(), dx.as_ref().map(|dx| dx.len()));
        let sample = s.rows * s.classes;
        let scale = match s.reduction {
            Reduction::Mean => 1.0 / target.iter().filter(|target| Some(**target) != s.ignore).count() as f64,
            Reduction::Sum => 1.0,
        };
        let (isa, c) = (self.isa, CrossEntropy { spec: *s, scale });
        let views = (Rows(x, sample), Rows(target, s.counted), dx.map(|dx| Rows(dx, sample)));
        let sum = par::sum(samples, rows_per_task(sample), views, &|(x, target, dx)| {
            let dx = dx.map(|dx| dx.0);
            run::cross_entropy(isa, c, x.0, target.0, dx)
        });
        value[0] = scale * sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, devices, gradient, on_threads, random, reals};

    fn mse<E: Real>(
        device: Kernels<E>,
        reduction: Reduction,
        x: &[E],
        target: &[E],
        dx: Option<&mut [E]>,
    ) -> f64 {
        let mut value = [f64::NAN];
        device.mse(reduction, x, target, dx, &mut value);
        value[0]
    }

    fn entropy<E: Real>(
        device: Kernels<E>,
        s: &CrossEntropySpec,
        x: &[E],
        target: &[u32],
        dx: Option<&mut [E]>,
    ) -> f64 {
        let mut value = [f64::NAN];
        device.cross_entropy(s, x, target, dx, &mut value);
        value[0]
    }

    #[test]
    fn mse_and_its_gradient() {
        for device in devices::<f64>() {
            let (x, t) = (random(1, 37), random(2, 37));
            let sum: f64 = x.iter().zip(&t).map(|(x, t)| (x - t) * (x - t)).sum();
            for (reduction, scale) in [(Reduction::Mean, 1.0 / 37.0), (Reduction::Sum, 1.0)] {
                let mut dx = vec![0.0; 37];
                let loss = mse(device, reduction, &x, &t, Some(&mut dx));
                assert!((loss - scale * sum).abs() < 1e-13);
                assert_close(&dx, &gradient(&x, |x| mse(device, reduction, x, &t, None)), 1e-8, "dx");
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
                let s = CrossEntropySpec {
                    reduction,
                    smoothing,
                    ignore: Some(77),
                    ..CrossEntropySpec::new(classes)
                };
                let loss = entropy(device, &s, &reals(&x), &target, Some(&mut dx));
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
            let loss =
                |target| entropy(device, &CrossEntropySpec::new(3), &[1e4, -1e4, 0.0], &[target], None);
            assert_eq!([loss(0), loss(1)], [0.0, 2e4]);
        }
    }

    #[test]
    fn a_target_out_of_range_makes_its_row_nan_and_no_other() {
        for device in devices::<f32>() {
            let mut dx = [9.0; 6];
            let s =
                CrossEntropySpec { reduction: Reduction::Sum, ignore: Some(5), ..CrossEntropySpec::new(2) };
            assert!(entropy(device, &s, &[0.0; 6], &[5, 2, 1], Some(&mut dx)).is_nan());
            assert_eq!((&dx[..2], &dx[4..]), (&[0.0; 2][..], &[0.5, -0.5][..]));
            assert!(dx[2].is_nan() && dx[3].is_nan());
        }
    }

    #[test]
    fn rows_without_a_target_count_as_ignored_ones_do() {
        for device in devices::<f64>() {
            let (x, target) = (random(1, 3 * 4 * 5), [4, 0, 1, 1, 3, 2]);
            let s = CrossEntropySpec { rows: 4, counted: 2, ..CrossEntropySpec::new(5) };
            let mut dx = vec![f64::NAN; x.len()];
            let value = entropy(device, &s, &x, &target, Some(&mut dx));
            let all: Vec<u32> = target.chunks(2).flat_map(|t| [t[0], t[1], 9, 9]).collect();
            let s = CrossEntropySpec { ignore: Some(9), ..CrossEntropySpec::new(5) };
            let mut expected = vec![f64::NAN; x.len()];
            assert!((entropy(device, &s, &x, &all, Some(&mut expected)) - value).abs() < 1e-15);
            assert_eq!(dx, expected);
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let x: Vec<f32> = reals(&random(1, 1000 * 100));
        let target: Vec<u32> = (0..1000).map(|i| i % 100).collect();
        let run = |threads| {
            on_threads(threads, || {
                let device = devices::<f32>().pop().unwrap();
                let mut dx = x.clone();
                let s = CrossEntropySpec { smoothing: 0.1, ..CrossEntropySpec::new(100) };
                let loss = entropy(device, &s, &x, &target, Some(&mut dx));
                let mse = mse(device, Reduction::Sum, &x, &dx, None);
                (loss.to_bits(), mse.to_bits(), dx)
            })
        };
        assert!(run(1) == run(4));
    }
}
