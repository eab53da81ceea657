use super::norm::{check, rows_of};
use super::par::{self, Rows, rows_per_task};
use super::simd::{Simd, kernels};
use super::vector::Vector;
use super::{Real, kernels::Kernels, math, reduce};

kernels! {
    fn softmax<E>(cols: usize, x: &[E], y: &mut [E]);
    fn softmax_vjp<E>(cols: usize, y: &[E], dy: &[E], dx: &mut [E]);
    fn log_softmax<E>(cols: usize, x: &[E], y: &mut [E]);
    fn log_softmax_vjp<E>(cols: usize, y: &[E], dy: &[E], dx: &mut [E]);
}

type RowsMut<'a, E> = Rows<&'a mut [E]>;

/// Powers that are summed before the next ones are computed: they stay in the first cache.
pub(crate) const PART: usize = 512;
/// Powers that are computed at once.
const BLOCK: usize = 16;

/// y = e^(x − max), and the sum of that.
#[inline(always)]
pub(crate) fn powers<S: Simd, E: Real>(max: E, x: &[E], y: &mut [E]) -> f64 {
    let mut total = 0.0;
    for (x, y) in x.chunks(PART).zip(y.chunks_mut(PART)) {
        total += part_of_powers::<S, E>(max, x, y);
    }
    total
}

/// Σ e^(x − max), to the same bits, with room for some of them.
#[inline(always)]
pub(crate) fn sum_of_powers<S: Simd, E: Real>(max: E, x: &[E], y: &mut [E; PART]) -> f64 {
    let mut total = 0.0;
    for x in x.chunks(PART) {
        total += part_of_powers::<S, E>(max, x, &mut y[..x.len()]);
    }
    total
}

#[inline(always)]
fn part_of_powers<S: Simd, E: Real>(max: E, x: &[E], y: &mut [E]) -> f64 {
    let ((blocks, rest), (y_blocks, y_rest)) = (x.as_chunks::<BLOCK>(), y.as_chunks_mut::<BLOCK>());
    for (x, y) in blocks.iter().zip(y_blocks) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = math::exp_down::<S, E>(x - max);
        }
    }
    if !rest.is_empty() {
        // As a block too, filled up with what is left out again.
        let mut block = [max; BLOCK];
        block[..rest.len()].copy_from_slice(rest);
        for y in &mut block {
            *y = math::exp_down::<S, E>(*y - max);
        }
        y_rest.copy_from_slice(&block[..y_rest.len()]);
    }
    // SAFETY: a kernel of S runs on a processor that has it.
    let [sum] = unsafe { reduce::sums::<S, E, 1, 1, 8>([y], |y| y) };
    sum
}

#[inline(always)]
fn softmax<S: Simd, E: Real>(cols: usize, x: &[E], y: &mut [E]) {
    for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)) {
        let scale = E::from_f64(1.0 / powers::<S, E>(reduce::max(x), x, y));
        for y in y {
            *y = *y * scale;
        }
    }
}

/// dx = y·(dy − Σ y·dy).
#[inline(always)]
fn softmax_vjp<S: Simd, E: Real>(cols: usize, y: &[E], dy: &[E], dx: &mut [E]) {
    let rows = y.chunks_exact(cols).zip(dy.chunks_exact(cols)).zip(dx.chunks_exact_mut(cols));
    for ((y, dy), dx) in rows {
        // SAFETY: a kernel of S runs on a processor that has it.
        let [dot] = unsafe { reduce::sums::<S, E, 2, 1, 4>([y, dy], |[y, g]| [y.mul(g)]) };
        let dot = E::from_f64(dot);
        for ((dx, &y), &g) in dx.iter_mut().zip(y).zip(dy) {
            *dx = y * (g - dot);
        }
    }
}

#[inline(always)]
fn log_softmax<S: Simd, E: Real>(cols: usize, x: &[E], y: &mut [E]) {
    for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)) {
        let max = reduce::max(x);
        let log = max.to_f64() + powers::<S, E>(max, x, y).ln();
        for (y, x) in y.iter_mut().zip(x) {
            *y = E::from_f64(x.to_f64() - log);
        }
    }
}

#[inline(always)]
fn log_softmax_vjp<S: Simd, E: Real>(cols: usize, y: &[E], dy: &[E], dx: &mut [E]) {
    let rows = y.chunks_exact(cols).zip(dy.chunks_exact(cols)).zip(dx.chunks_exact_mut(cols));
    for ((y, dy), dx) in rows {
        let sum = E::from_f64(reduce::sum(dy, |g| g));
        for ((dx, &y), &g) in dx.iter_mut().zip(y).zip(dy) {
            *dx = g - math::exp_down::<S, E>(y) * sum;
        }
    }
}

impl<E: Real> Kernels<E> {
    pub(crate) fn softmax(&self, cols: usize, x: &[E], y: &mut [E]) {
        rows_of("softmax", cols, x.len());
        check("softmax", "y", y.len(), x.len());
        let isa = self.isa;
        self.by_rows(cols, x, y, |x, y| run::softmax(isa, cols, x, y));
    }

    pub(crate) fn softmax_vjp(&self, cols: usize, y: &[E], dy: &[E], dx: &mut [E]) {
        rows_of("softmax_vjp", cols, y.len());
        check("softmax_vjp", "dy", dy.len(), y.len());
        check("softmax_vjp", "dx", dx.len(), y.len());
        let isa = self.isa;
        self.by_rows_vjp(cols, y, dy, dx, |y, dy, dx| run::softmax_vjp(isa, cols, y, dy, dx));
    }

    pub(crate) fn log_softmax(&self, cols: usize, x: &[E], y: &mut [E]) {
        rows_of("log_softmax", cols, x.len());
        check("log_softmax", "y", y.len(), x.len());
        let isa = self.isa;
        self.by_rows(cols, x, y, |x, y| run::log_softmax(isa, cols, x, y));
    }

    pub(crate) fn log_softmax_vjp(&self, cols: usize, y: &[E], dy: &[E], dx: &mut [E]) {
        rows_of("log_softmax_vjp", cols, y.len());
        check("log_softmax_vjp", "dy", dy.len(), y.len());
        check("log_softmax_vjp", "dx", dx.len(), y.len());
        let isa = self.isa;
        self.by_rows_vjp(cols, y, dy, dx, |y, dy, dx| run::log_softmax_vjp(isa, cols, y, dy, dx));
    }

    /// Calls `f` with pieces of rows of `x` and `y`.
    pub(crate) fn by_rows(&self, cols: usize, x: &[E], y: &mut [E], f: impl Fn(&[E], &mut [E]) + Sync) {
        let rows = x.len() / cols;
        par::split(rows, rows_per_task(cols), (Rows(x, cols), Rows(y, cols)), &|_,
                                                                                (x, y): (
            Rows<_>,
            RowsMut<E>,
        )| { f(x.0, y.0) });
    }

    /// Calls `f` with pieces of rows of `x`, `dy` and `dx`.
    pub(crate) fn by_rows_vjp(
        &self,
        cols: usize,
        x: &[E],
        dy: &[E],
        dx: &mut [E],
        f: impl Fn(&[E], &[E], &mut [E]) + Sync,
    ) {
        let views = (Rows(x, cols), Rows(dy, cols), Rows(dx, cols));
        par::split(x.len() / cols, rows_per_task(cols), views, &|_,
                                                                 (x, dy, dx): (
            Rows<_>,
            Rows<_>,
            RowsMut<E>,
        )| { f(x.0, dy.0, dx.0) });
    }
}

#[cfg(test)]
mod tests {
    use crate::cpu::Real;
    use crate::cpu::testing::{assert_close, devices, gradient, on_threads, random, reals};

    const COLS: [usize; 5] = [1, 3, 16, 33, 100];

    #[test]
    fn softmax_and_its_logarithm_are_those_of_the_definition() {
        fn check<E: Real>(tolerance: f64) {
            for (device, cols) in devices::<E>().into_iter().flat_map(|d| COLS.map(|c| (d, c))) {
                // Far apart and far out, where an exponential without the maximum overflows.
                let x: Vec<f64> =
                    random(1, 3 * cols).iter().map(|x| f64::from((x * 20.0 + 1e4) as f32)).collect();
                let expected: Vec<f64> = x
                    .chunks(cols)
                    .flat_map(|x| {
                        let sum: f64 = x.iter().map(|v| (v - 1e4).exp()).sum();
                        x.iter().map(|v| v - 1e4 - sum.ln()).collect::<Vec<_>>()
                    })
                    .collect();
                let mut y = vec![E::ZERO; x.len()];
                device.log_softmax(cols, &reals(&x), &mut y);
                assert_close(&y, &expected, tolerance, &format!("log_softmax {device:?} {cols}"));
                device.softmax(cols, &reals(&x), &mut y);
                let expected: Vec<f64> = expected.iter().map(|v| v.exp()).collect();
                assert_close(&y, &expected, tolerance, &format!("softmax {device:?} {cols}"));
            }
        }
        check::<f32>(1e-6);
        check::<f64>(1e-12);
    }

    #[test]
    fn gradients_of_softmax_match_finite_differences() {
        for (device, cols) in devices::<f64>().into_iter().flat_map(|d| [1, 3, 17].map(|c| (d, c))) {
            let (x, dy) = (random(1, 2 * cols), random(2, 2 * cols));
            let (mut y, mut dx) = (vec![0.0; x.len()], vec![0.0; x.len()]);
            let dot = |y: &[f64]| y.iter().zip(&dy).map(|(y, g)| y * g).sum::<f64>();
            device.softmax(cols, &x, &mut y);
            device.softmax_vjp(cols, &y, &dy, &mut dx);
            let expected = gradient(&x, |x| {
                let mut y = vec![0.0; x.len()];
                device.softmax(cols, x, &mut y);
                dot(&y)
            });
            assert!(dx.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-9));
            device.log_softmax(cols, &x, &mut y);
            device.log_softmax_vjp(cols, &y, &dy, &mut dx);
            let expected = gradient(&x, |x| {
                let mut y = vec![0.0; x.len()];
                device.log_softmax(cols, x, &mut y);
                dot(&y)
            });
            assert!(dx.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-9));
        }
    }

    #[test]
    fn nan_makes_its_row_nan_and_no_other() {
        for device in devices::<f32>() {
            let mut x = vec![1.0; 40];
            x[23] = f32::NAN;
            let mut y = vec![0.0; 40];
            device.softmax(20, &x, &mut y);
            assert!(y[..20].iter().all(|y| *y == 0.05) && y[20..].iter().all(|y| y.is_nan()));
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let x: Vec<f32> = reals(&random(1, 300 * 200));
        let run = |threads| {
            on_threads(threads, || {
                let device = devices::<f32>().pop().unwrap();
                let (mut p, mut dx) = (x.clone(), x.clone());
                device.softmax(200, &x, &mut p);
                device.softmax_vjp(200, &p, &x, &mut dx);
                [p, dx]
            })
        };
        assert!(run(1) == run(4));
    }
}
