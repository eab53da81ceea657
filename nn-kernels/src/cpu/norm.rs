use super::par::{self, Rows, rows_per_task};
use super::scratch::Scratch;
use super::simd::{Simd, kernels};
use super::size::size;
use super::{Real, batch_norm, kernels::Kernels, reduce};
use crate::ops::BatchNormSpec;

kernels! {
    fn column_sums<E>(cols: usize, first: usize, x: &[E], y: &mut [E]);
    fn layer_norm<E>(cols: usize, eps: f64, x: &[E], gamma: Option<&[E]>, beta: Option<&[E]>, y: &mut [E], stats: Option<&mut [E]>);
    fn row_means<E>(cols: usize, x: &[E], means: &mut [f64]);
    fn layer_norm_dx<E>(cols: usize, x: &[E], gamma: Option<&[E]>, means: &[f64], stats: &[E], dy: &[E], dx: &mut [E]);
    fn layer_norm_dgamma<E>(cols: usize, first: usize, x: &[E], means: &[f64], stats: &[E], dy: &[E], dgamma: &mut [E]);
    fn rms_norm<E>(cols: usize, eps: f64, x: &[E], gamma: Option<&[E]>, y: &mut [E], stats: Option<&mut [E]>);
    fn rms_norm_dx<E>(cols: usize, x: &[E], gamma: Option<&[E]>, stats: &[E], dy: &[E], dx: &mut [E]);
    fn rms_norm_dgamma<E>(cols: usize, first: usize, x: &[E], stats: &[E], dy: &[E], dgamma: &mut [E]);
}

/// Mean and 1/√(variance + eps) of a row.
#[inline(always)]
fn moments<E: Real>(eps: f64, x: &[E]) -> (f64, f64) {
    let n = x.len() as f64;
    let mean = reduce::sum(x, |v| v) / n;
    let variance = reduce::sum(x, |v| (v - mean) * (v - mean)) / n;
    (mean, 1.0 / (variance + eps).sqrt())
}

/// y = (x − mean)·rstd·γ + β. In double precision, or a large mean would leave only its rounding.
#[inline(always)]
fn affine_row<E: Real>(mean: f64, rstd: f64, x: &[E], gamma: Option<&[E]>, beta: Option<&[E]>, y: &mut [E]) {
    match (gamma, beta) {
        (None, None) => {
            for (y, x) in y.iter_mut().zip(x) {
                *y = E::from_f64((x.to_f64() - mean) * rstd);
            }
        }
        (Some(gamma), None) => {
            for ((y, x), g) in y.iter_mut().zip(x).zip(gamma) {
                *y = E::from_f64((x.to_f64() - mean) * rstd * g.to_f64());
            }
        }
        (None, Some(beta)) => {
            for ((y, x), b) in y.iter_mut().zip(x).zip(beta) {
                *y = E::from_f64((x.to_f64() - mean) * rstd + b.to_f64());
            }
        }
        (Some(gamma), Some(beta)) => {
            for (((y, x), g), b) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
                *y = E::from_f64((x.to_f64() - mean) * rstd * g.to_f64() + b.to_f64());
            }
        }
    }
}

/// dx = rstd·(g − mean(g)·`centred` − x̂·mean(g·x̂)), with g = dy·γ.
#[inline(always)]
fn slope_row<E: Real>(
    centred: bool,
    mean: f64,
    rstd: f64,
    x: &[E],
    gamma: Option<&[E]>,
    dy: &[E],
    dx: &mut [E],
) {
    let n = x.len() as f64;
    let (sum, product) = match gamma {
        None => (reduce::sum(dy, |g| g), reduce::sum2(x, dy, |x, g| (x - mean) * g)),
        Some(gamma) => (
            reduce::sum2(gamma, dy, |w, g| w * g),
            reduce::sum3(x, gamma, dy, |x, w, g| (x - mean) * (w * g)),
        ),
    };
    let shift = if centred { sum / n } else { 0.0 };
    let pull = rstd * rstd * product / n;
    match gamma {
        None => {
            for ((dx, x), g) in dx.iter_mut().zip(x).zip(dy) {
                *dx = E::from_f64(rstd * (g.to_f64() - shift - (x.to_f64() - mean) * pull));
            }
        }
        Some(gamma) => {
            for (((dx, x), g), w) in dx.iter_mut().zip(x).zip(dy).zip(gamma) {
                *dx = E::from_f64(rstd * (w.to_f64() * g.to_f64() - shift - (x.to_f64() - mean) * pull));
            }
        }
    }
}

#[inline(always)]
fn layer_norm<S: Simd, E: Real>(
    cols: usize,
    eps: f64,
    x: &[E],
    gamma: Option<&[E]>,
    beta: Option<&[E]>,
    y: &mut [E],
    stats: Option<&mut [E]>,
) {
    let mut stats = stats.map(|stats| stats.chunks_exact_mut(2));
    for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)) {
        let (mean, rstd) = moments(eps, x);
        affine_row(mean, rstd, x, gamma, beta, y);
        if let Some([m, r]) = stats.as_mut().and_then(Iterator::next) {
            (*m, *r) = (E::from_f64(mean), E::from_f64(rstd));
        }
    }
}

/// The mean of each row once more: `stats` holds it rounded, which is too coarse where it is large.
#[inline(always)]
fn row_means<S: Simd, E: Real>(cols: usize, x: &[E], means: &mut [f64]) {
    for (mean, x) in means.iter_mut().zip(x.chunks_exact(cols)) {
        *mean = reduce::sum(x, |v| v) / cols as f64;
    }
}

#[inline(always)]
fn layer_norm_dx<S: Simd, E: Real>(
    cols: usize,
    x: &[E],
    gamma: Option<&[E]>,
    means: &[f64],
    stats: &[E],
    dy: &[E],
    dx: &mut [E],
) {
    let rows = x.chunks_exact(cols).zip(dy.chunks_exact(cols)).zip(dx.chunks_exact_mut(cols));
    for (((x, dy), dx), (mean, stat)) in rows.zip(means.iter().zip(stats.chunks_exact(2))) {
        slope_row(true, *mean, stat[1].to_f64(), x, gamma, dy, dx);
    }
}

#[inline(always)]
fn layer_norm_dgamma<S: Simd, E: Real>(
    cols: usize,
    first: usize,
    x: &[E],
    means: &[f64],
    stats: &[E],
    dy: &[E],
    dgamma: &mut [E],
) {
    reduce::sum_columns(
        cols,
        first,
        x,
        dy,
        dgamma,
        |r| (means[r], stats[2 * r + 1].to_f64()),
        |(m, s), x, g| g * ((x - m) * s),
    );
}

#[inline(always)]
fn rms_norm<S: Simd, E: Real>(
    cols: usize,
    eps: f64,
    x: &[E],
    gamma: Option<&[E]>,
    y: &mut [E],
    stats: Option<&mut [E]>,
) {
    let mut stats = stats.map(|stats| stats.iter_mut());
    for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)) {
        let rstd = 1.0 / (reduce::sum(x, |v| v * v) / cols as f64 + eps).sqrt();
        affine_row(0.0, rstd, x, gamma, None, y);
        if let Some(stat) = stats.as_mut().and_then(Iterator::next) {
            *stat = E::from_f64(rstd);
        }
    }
}

#[inline(always)]
fn rms_norm_dx<S: Simd, E: Real>(
    cols: usize,
    x: &[E],
    gamma: Option<&[E]>,
    stats: &[E],
    dy: &[E],
    dx: &mut [E],
) {
    let rows = x.chunks_exact(cols).zip(dy.chunks_exact(cols)).zip(dx.chunks_exact_mut(cols));
    for (((x, dy), dx), stat) in rows.zip(stats) {
        slope_row(false, 0.0, stat.to_f64(), x, gamma, dy, dx);
    }
}

#[inline(always)]
fn rms_norm_dgamma<S: Simd, E: Real>(
    cols: usize,
    first: usize,
    x: &[E],
    stats: &[E],
    dy: &[E],
    dgamma: &mut [E],
) {
    reduce::sum_columns(cols, first, x, dy, dgamma, |r| stats[r].to_f64(), |s, x, g| g * (x * s));
}

#[inline(always)]
fn column_sums<S: Simd, E: Real>(cols: usize, first: usize, x: &[E], y: &mut [E]) {
    reduce::sum_columns(cols, first, x, x, y, |_| (), |(), x, _| x);
}

/// How many rows of `cols` values `x` holds.
#[track_caller]
pub(crate) fn rows_of<E>(name: &str, cols: usize, x: &[E]) -> usize {
    assert!(cols > 0, "{name}: rows of no values");
    assert_eq!(x.len() % cols, 0, "{name}: {} values are no whole rows of {cols}", x.len());
    x.len() / cols
}

#[track_caller]
pub(crate) fn check(name: &str, operand: &str, found: usize, expected: usize) {
    assert_eq!(found, expected, "{name}: {operand} has {found} values, not {expected}");
}

impl<E: Real> Kernels<E> {
    /// y[j] += Σ over rows of x, each column in the order of its rows.
    pub(crate) fn add_column_sums(&self, cols: usize, x: &[E], y: &mut [E]) {
        let isa = self.isa;
        par::split(cols, rows_per_task(x.len() / cols.max(1)), y, &|first, y| {
            run::column_sums(isa, cols, first, x, y)
        });
    }
}

impl<E: Real> Kernels<E> {
    pub(crate) fn layer_norm(
        &self,
        cols: usize,
        eps: f64,
        x: &[E],
        gamma: Option<&[E]>,
        beta: Option<&[E]>,
        y: &mut [E],
        stats: Option<&mut [E]>,
    ) {
        let rows = rows_of("layer_norm", cols, x);
        check("layer_norm", "y", y.len(), x.len());
        gamma.inspect(|v| check("layer_norm", "gamma", v.len(), cols));
        beta.inspect(|v| check("layer_norm", "beta", v.len(), cols));
        if let Some(stats) = &stats {
            check("layer_norm", "stats", stats.len(), 2 * rows);
        }
        let isa = self.isa;
        let views = (Rows(x, cols), Rows(y, cols), stats.map(|stats| Rows(stats, 2)));
        par::split(rows, rows_per_task(cols), views, &|_, (x, y, stats)| {
            let stats = stats.map(|stats| stats.0);
            run::layer_norm(isa, cols, eps, x.0, gamma, beta, y.0, stats)
        });
    }

    pub(crate) fn layer_norm_vjp(
        &self,
        cols: usize,
        x: &[E],
        gamma: Option<&[E]>,
        stats: &[E],
        dy: &[E],
        dx: Option<&mut [E]>,
        dgamma: Option<&mut [E]>,
        dbeta: Option<&mut [E]>,
    ) {
        let rows = rows_of("layer_norm_vjp", cols, x);
        gamma.inspect(|v| check("layer_norm_vjp", "gamma", v.len(), cols));
        check("layer_norm_vjp", "stats", stats.len(), 2 * rows);
        check("layer_norm_vjp", "dy", dy.len(), x.len());
        let isa = self.isa;
        let mut means = Scratch::<f64>::new(rows);
        par::split(rows, rows_per_task(cols), (Rows(x, cols), &mut means[..]), &|_, (x, means)| {
            run::row_means(isa, cols, x.0, means)
        });
        let means = &means[..];
        if let Some(dx) = dx {
            check("layer_norm_vjp", "dx", dx.len(), x.len());
            let views = (Rows(x, cols), means, Rows(stats, 2), Rows(dy, cols), Rows(dx, cols));
            par::split(rows, rows_per_task(cols), views, &|_, (x, means, stats, dy, dx)| {
                run::layer_norm_dx(isa, cols, x.0, gamma, means, stats.0, dy.0, dx.0)
            });
        }
        if let Some(dgamma) = dgamma {
            check("layer_norm_vjp", "dgamma", dgamma.len(), cols);
            par::split(cols, rows_per_task(rows), dgamma, &|first, dgamma| {
                run::layer_norm_dgamma(isa, cols, first, x, means, stats, dy, dgamma)
            });
        }
        if let Some(dbeta) = dbeta {
            check("layer_norm_vjp", "dbeta", dbeta.len(), cols);
            self.add_column_sums(cols, dy, dbeta);
        }
    }

    pub(crate) fn rms_norm(
        &self,
        cols: usize,
        eps: f64,
        x: &[E],
        gamma: Option<&[E]>,
        y: &mut [E],
        stats: Option<&mut [E]>,
    ) {
        let rows = rows_of("rms_norm", cols, x);
        check("rms_norm", "y", y.len(), x.len());
        gamma.inspect(|v| check("rms_norm", "gamma", v.len(), cols));
        if let Some(stats) = &stats {
            check("rms_norm", "stats", stats.len(), rows);
        }
        let isa = self.isa;
        par::split(rows, rows_per_task(cols), (Rows(x, cols), Rows(y, cols), stats), &|_, (x, y, stats)| {
            run::rms_norm(isa, cols, eps, x.0, gamma, y.0, stats)
        });
    }

    pub(crate) fn rms_norm_vjp(
        &self,
        cols: usize,
        x: &[E],
        gamma: Option<&[E]>,
        stats: &[E],
        dy: &[E],
        dx: Option<&mut [E]>,
        dgamma: Option<&mut [E]>,
    ) {
        let rows = rows_of("rms_norm_vjp", cols, x);
        gamma.inspect(|v| check("rms_norm_vjp", "gamma", v.len(), cols));
        check("rms_norm_vjp", "stats", stats.len(), rows);
        check("rms_norm_vjp", "dy", dy.len(), x.len());
        let isa = self.isa;
        if let Some(dx) = dx {
            check("rms_norm_vjp", "dx", dx.len(), x.len());
            let views = (Rows(x, cols), stats, Rows(dy, cols), Rows(dx, cols));
            par::split(rows, rows_per_task(cols), views, &|_, (x, stats, dy, dx)| {
                run::rms_norm_dx(isa, cols, x.0, gamma, stats, dy.0, dx.0)
            });
        }
        if let Some(dgamma) = dgamma {
            check("rms_norm_vjp", "dgamma", dgamma.len(), cols);
            par::split(cols, rows_per_task(rows), dgamma, &|first, dgamma| {
                run::rms_norm_dgamma(isa, cols, first, x, stats, dy, dgamma)
            });
        }
    }

    pub(crate) fn batch_norm_train(
        &self,
        s: &BatchNormSpec,
        x: &[E],
        gamma: &[E],
        beta: &[E],
        y: &mut [E],
        stats: &mut [E],
        running: Option<[&mut [E]; 2]>,
    ) {
        batch_norm::train(self.isa, s, x, gamma, beta, y, stats, running);
    }

    pub(crate) fn batch_norm_infer(
        &self,
        s: &BatchNormSpec,
        x: &[E],
        gamma: &[E],
        beta: &[E],
        running: [&[E]; 2],
        y: &mut [E],
    ) {
        batch_norm::infer(self.isa, s, x, gamma, beta, running, y);
    }

    pub(crate) fn batch_norm_vjp(
        &self,
        s: &BatchNormSpec,
        constant: bool,
        x: &[E],
        gamma: &[E],
        stats: &[E],
        dy: &[E],
        dx: Option<&mut [E]>,
        dgamma: Option<&mut [E]>,
        dbeta: Option<&mut [E]>,
    ) {
        batch_norm::vjp(self.isa, s, constant, x, gamma, stats, dy, dx, dgamma, dbeta);
    }

    pub(crate) fn batch_norm_stats(&self, s: &BatchNormSpec, [means, variances]: [&[E]; 2], stats: &mut [E]) {
        check("batch_norm_stats", "means", means.len(), s.channels);
        check("batch_norm_stats", "variances", variances.len(), s.channels);
        check("batch_norm_stats", "stats", stats.len(), size("batch_norm_stats", &[2, s.channels]));
        for (stat, (&mean, variance)) in stats.chunks_exact_mut(2).zip(means.iter().zip(variances)) {
            stat[0] = mean;
            stat[1] = E::from_f64(1.0 / (variance.to_f64() + s.eps).sqrt());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, devices, gradient, on_threads, random, reals};

    const COLS: [usize; 5] = [1, 3, 16, 33, 100];

    /// Rows whose mean is a thousand times their spread, so that a one-pass variance would be noise.
    fn far_from_zero(rows: usize, cols: usize) -> Vec<f64> {
        random(1, rows * cols).iter().map(|x| f64::from((x + 1000.0) as f32)).collect()
    }

    /// γ·(x − centre)/√(spread + eps) + β, row by row, with the formulas of the definition.
    fn normalised(cols: usize, centred: bool, x: &[f64], gamma: &[f64], beta: &[f64]) -> Vec<f64> {
        let row = |x: &[f64]| {
            let n = cols as f64;
            let mean = if centred { x.iter().sum::<f64>() / n } else { 0.0 };
            let spread = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let normal = x.iter().map(|x| (x - mean) / (spread + 1e-5).sqrt()).collect::<Vec<_>>();
            normal.iter().zip(gamma).zip(beta).map(|((x, g), b)| x * g + b).collect::<Vec<_>>()
        };
        x.chunks(cols).flat_map(row).collect()
    }

    fn forward<E: Real>(tolerance: f64) {
        for (device, cols) in devices::<E>().into_iter().flat_map(|d| COLS.map(|c| (d, c))) {
            let (gamma, beta, rows) = (random(2, cols), random(3, cols), 5);
            for x in [random(1, rows * cols), far_from_zero(rows, cols)] {
                let expected = normalised(cols, true, &x, &gamma, &beta);
                let (mut y, mut stats) = (vec![E::ZERO; x.len()], vec![E::ZERO; 2 * rows]);
                let (g, b) = (reals(&gamma), reals(&beta));
                device.layer_norm(cols, 1e-5, &reals(&x), Some(&g), Some(&b), &mut y, Some(&mut stats));
                assert_close(&y, &expected, tolerance, &format!("layer_norm {device:?} {cols}"));
                let means: Vec<E> = stats.iter().copied().step_by(2).collect();
                let expected: Vec<f64> =
                    x.chunks(cols).map(|x| x.iter().sum::<f64>() / cols as f64).collect();
                assert_close(&means, &expected, tolerance, "the statistics' means");
                let expected = normalised(cols, false, &x, &gamma, &vec![0.0; cols]);
                device.rms_norm(cols, 1e-5, &reals(&x), Some(&g), &mut y, Some(&mut stats[..rows]));
                assert_close(&y, &expected, tolerance, &format!("rms_norm {device:?} {cols}"));
            }
            let (x, ones, zeros) = (random(1, 2 * cols), vec![1.0; cols], vec![0.0; cols]);
            let mut y = vec![E::ZERO; 2 * cols];
            device.layer_norm(cols, 1e-5, &reals(&x), None, None, &mut y, None);
            assert_close(&y, &normalised(cols, true, &x, &ones, &zeros), tolerance, "without gamma and beta");
            device.layer_norm(cols, 1e-5, &reals(&x), None, Some(&reals(&beta)), &mut y, None);
            assert_close(&y, &normalised(cols, true, &x, &ones, &beta), tolerance, "without gamma");
        }
    }

    #[test]
    fn rows_are_normalised_even_far_from_zero() {
        forward::<f32>(1e-6);
        forward::<f64>(1e-12);
    }

    #[test]
    fn gradients_of_norms_match_finite_differences_and_parameters_add() {
        for (device, cols) in devices::<f64>().into_iter().flat_map(|d| [1, 3, 17].map(|c| (d, c))) {
            let rows = 4;
            let (x, dy) = (random(1, rows * cols), random(4, rows * cols));
            let (gamma, beta) = (random(2, cols), random(3, cols));
            let dot = |y: &[f64]| y.iter().zip(&dy).map(|(y, g)| y * g).sum::<f64>();
            let (mut y, mut stats) = (vec![0.0; x.len()], vec![0.0; 2 * rows]);
            let (mut dx, mut dg, mut db) = (vec![0.0; x.len()], vec![1.0; cols], vec![1.0; cols]);
            for centred in [true, false] {
                let loss =
                    |x: &[f64], gamma: &[f64], beta: &[f64]| dot(&normalised(cols, centred, x, gamma, beta));
                let zeros = vec![0.0; cols];
                let beta = if centred { &beta } else { &zeros };
                if centred {
                    device.layer_norm(cols, 1e-5, &x, Some(&gamma), Some(beta), &mut y, Some(&mut stats));
                    let (gx, gg, gb) = (Some(&mut dx[..]), Some(&mut dg[..]), Some(&mut db[..]));
                    device.layer_norm_vjp(cols, &x, Some(&gamma), &stats, &dy, gx, gg, gb);
                    let expected: Vec<f64> =
                        gradient(beta, |beta| loss(&x, &gamma, beta)).iter().map(|g| g + 1.0).collect();
                    assert_close(&db, &expected, 1e-8, "dbeta");
                } else {
                    dg.fill(1.0);
                    device.rms_norm(cols, 1e-5, &x, Some(&gamma), &mut y, Some(&mut stats[..rows]));
                    let (gx, gg) = (Some(&mut dx[..]), Some(&mut dg[..]));
                    device.rms_norm_vjp(cols, &x, Some(&gamma), &stats[..rows], &dy, gx, gg);
                }
                let expected = gradient(&x, |x| loss(x, &gamma, beta));
                let absolute = 1e-6 * expected.iter().map(|x| x * x).sum::<f64>().sqrt() + 1e-8;
                let error: f64 = dx.iter().zip(&expected).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
                assert!(error < absolute, "dx {cols} {centred}: {error}");
                let expected: Vec<f64> =
                    gradient(&gamma, |gamma| loss(&x, gamma, beta)).iter().map(|g| g + 1.0).collect();
                assert_close(&dg, &expected, 1e-7, "dgamma");
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let (rows, cols) = (300, 200);
        let x: Vec<f32> = reals(&random(1, rows * cols));
        let gamma: Vec<f32> = reals(&random(2, cols));
        let run = |threads| {
            on_threads(threads, || {
                let device = devices::<f32>().pop().unwrap();
                let (mut y, mut stats, mut dx) = (x.clone(), vec![0.0; 2 * rows], x.clone());
                let (mut dg, mut db) = (gamma.clone(), gamma.clone());
                device.layer_norm(cols, 1e-5, &x, Some(&gamma), None, &mut y, Some(&mut stats));
                let (gx, gg, gb) = (Some(&mut dx[..]), Some(&mut dg[..]), Some(&mut db[..]));
                device.layer_norm_vjp(cols, &x, Some(&gamma), &stats, &y, gx, gg, gb);
                let mut p = x.clone();
                device.softmax(cols, &x, &mut p);
                [y, stats, dx, dg, db, p]
            })
        };
        assert!(run(1) == run(4));
    }

    #[test]
    #[should_panic(expected = "gamma has 3 values, not 4")]
    fn a_gamma_of_the_wrong_length_is_refused() {
        devices::<f32>()[0].rms_norm(4, 1e-5, &[0.0; 8], Some(&[1.0; 3]), &mut [0.0; 8], None);
    }
}
