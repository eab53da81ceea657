//! Batch normalisation: the trait's methods are in [`norm`](super::norm).

use super::isa::Available;
use super::par::{self, Rows, rows_per_task};
use super::scratch::Scratch;
use super::simd::{Simd, kernels};
use super::size::size;
use super::{Real, reduce};
use crate::ops::BatchNormSpec;

kernels! {
    fn sums<E>(s: BatchNormSpec, term: Term, first: usize, m: &[f64], x: &[E], g: &[E], out: &mut [f64]);
    fn combine<E>(area: usize, c: [&[f64]; 4], a: &[E], b: &[E], out: &mut [E]);
}

/// What is summed over a channel. `m` is the channel's mean, g the gradient.
#[derive(Clone, Copy)]
enum Term {
    /// x.
    X,
    /// (x − m)².
    Square,
    /// g.
    G,
    /// (x − m)·g.
    Product,
}

/// out[c] = the sum of the term over channel `first + c`.
#[inline(always)]
fn sums<S: Simd, E: Real>(
    s: BatchNormSpec,
    term: Term,
    first: usize,
    m: &[f64],
    x: &[E],
    g: &[E],
    out: &mut [f64],
) {
    match term {
        Term::X => sums_of(s, first, m, x, x, out, |_, x, _| x),
        Term::Square => sums_of(s, first, m, x, x, out, |m, x, _| (x - m) * (x - m)),
        Term::G => sums_of(s, first, m, g, g, out, |_, g, _| g),
        Term::Product => sums_of(s, first, m, x, g, out, |m, x, g| (x - m) * g),
    }
}

#[inline(always)]
fn sums_of<E: Real>(
    s: BatchNormSpec,
    first: usize,
    m: &[f64],
    a: &[E],
    b: &[E],
    out: &mut [f64],
    f: impl Fn(f64, f64, f64) -> f64,
) {
    out.fill(0.0);
    let sample = s.channels * s.area;
    for (a, b) in a.chunks_exact(sample).zip(b.chunks_exact(sample)) {
        let of = first * s.area..(first + out.len()) * s.area;
        let (a, b) = (&a[of.clone()], &b[of]);
        if s.area == 1 {
            for (((out, m), a), b) in out.iter_mut().zip(m).zip(a).zip(b) {
                *out += f(*m, a.to_f64(), b.to_f64());
            }
        } else {
            let channels = a.chunks_exact(s.area).zip(b.chunks_exact(s.area));
            for ((out, m), (a, b)) in out.iter_mut().zip(m).zip(channels) {
                *out += reduce::sum2(a, b, |a, b| f(*m, a, b));
            }
        }
    }
}

/// out = p·a + q·(b − m) + r for each channel's own m, p, q and r.
#[inline(always)]
fn combine<S: Simd, E: Real>(area: usize, [m, p, q, r]: [&[f64]; 4], a: &[E], b: &[E], out: &mut [E]) {
    let f =
        |m: f64, p: f64, q: f64, r: f64, a: E, b: E| E::from_f64(p * a.to_f64() + q * (b.to_f64() - m) + r);
    let sample = m.len() * area;
    let samples = a.chunks_exact(sample).zip(b.chunks_exact(sample)).zip(out.chunks_exact_mut(sample));
    for ((a, b), out) in samples {
        let coefficients = m.iter().zip(p).zip(q.iter().zip(r));
        if area == 1 {
            for (((out, a), b), ((m, p), (q, r))) in out.iter_mut().zip(a).zip(b).zip(coefficients) {
                *out = f(*m, *p, *q, *r, *a, *b);
            }
        } else {
            let channels = a.chunks_exact(area).zip(b.chunks_exact(area)).zip(out.chunks_exact_mut(area));
            for (((a, b), out), ((m, p), (q, r))) in channels.zip(coefficients) {
                for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                    *out = f(*m, *p, *q, *r, *a, *b);
                }
            }
        }
    }
}

fn all_sums<E: Real>(
    isa: Available,
    s: &BatchNormSpec,
    term: Term,
    m: &[f64],
    x: &[E],
    g: &[E],
    out: &mut [f64],
) {
    let s = *s;
    par::split(s.channels, rows_per_task(s.batch * s.area), (m, out), &|first, (m, out)| {
        run::sums(isa, s, term, first, m, x, g, out)
    });
}

fn combine_all<E: Real>(isa: Available, s: &BatchNormSpec, c: [&[f64]; 4], a: &[E], b: &[E], out: &mut [E]) {
    let (area, sample) = (s.area, s.channels * s.area);
    let views = (Rows(a, sample), Rows(b, sample), Rows(out, sample));
    par::split(s.batch, rows_per_task(sample), views, &|_, (a, b, out)| {
        run::combine(isa, area, c, a.0, b.0, out.0)
    });
}

#[track_caller]
pub(crate) fn check(s: &BatchNormSpec, values: &[(&str, usize)], channels: &[(&str, usize, usize)]) {
    assert!(s.channels > 0 && s.area > 0, "batch_norm: no channels or no area");
    for (name, len) in values {
        assert_eq!(
            *len,
            size("batch_norm", &[s.batch, s.channels, s.area]),
            "batch_norm: {name} is not batch × channels × area"
        );
    }
    for (name, each, len) in channels {
        assert_eq!(
            *len,
            size("batch_norm", &[*each, s.channels]),
            "batch_norm: {name} is not {each} × channels"
        );
    }
}

pub(crate) fn train<E: Real>(
    isa: Available,
    s: &BatchNormSpec,
    x: &[E],
    gamma: &[E],
    beta: &[E],
    y: &mut [E],
    stats: &mut [E],
    running: Option<[&mut [E]; 2]>,
) {
    check(
        s,
        &[("x", x.len()), ("y", y.len())],
        &[("gamma", 1, gamma.len()), ("beta", 1, beta.len()), ("stats", 2, stats.len())],
    );
    let n = (s.batch * s.area) as f64;
    let mut buffer = Scratch::<f64>::new(5 * s.channels);
    let [zero, m, variance, q, r] = columns(&mut buffer, s.channels);
    zero.fill(0.0);
    all_sums(isa, s, Term::X, zero, x, x, m);
    m.iter_mut().for_each(|m| *m /= n);
    all_sums(isa, s, Term::Square, m, x, x, variance);
    variance.iter_mut().for_each(|v| *v /= n);
    for c in 0..s.channels {
        let rstd = 1.0 / (variance[c] + s.eps).sqrt();
        stats[2 * c] = E::from_f64(m[c]);
        stats[2 * c + 1] = E::from_f64(rstd);
        (q[c], r[c]) = (gamma[c].to_f64() * rstd, beta[c].to_f64());
    }
    combine_all(isa, s, [m, zero, q, r], x, x, y);
    if let Some([means, variances]) = running {
        check(s, &[], &[("running means", 1, means.len()), ("running variances", 1, variances.len())]);
        let unbiased = n / (n - 1.0).max(1.0);
        let mix = |old: E, new: f64| E::from_f64((1.0 - s.momentum) * old.to_f64() + s.momentum * new);
        means.iter_mut().zip(m).for_each(|(old, new)| *old = mix(*old, *new));
        variances.iter_mut().zip(variance).for_each(|(old, new)| *old = mix(*old, *new * unbiased));
    }
}

pub(crate) fn infer<E: Real>(
    isa: Available,
    s: &BatchNormSpec,
    x: &[E],
    gamma: &[E],
    beta: &[E],
    [means, variances]: [&[E]; 2],
    y: &mut [E],
) {
    check(s, &[("x", x.len()), ("y", y.len())], &[("gamma", 1, gamma.len()), ("beta", 1, beta.len())]);
    check(s, &[], &[("running means", 1, means.len()), ("running variances", 1, variances.len())]);
    let mut buffer = Scratch::<f64>::new(4 * s.channels);
    let [zero, m, q, r] = columns(&mut buffer, s.channels);
    zero.fill(0.0);
    for c in 0..s.channels {
        m[c] = means[c].to_f64();
        q[c] = gamma[c].to_f64() / (variances[c].to_f64() + s.eps).sqrt();
        r[c] = beta[c].to_f64();
    }
    combine_all(isa, s, [m, zero, q, r], x, x, y);
}

pub(crate) fn vjp<E: Real>(
    isa: Available,
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
    check(s, &[("x", x.len()), ("dy", dy.len())], &[("gamma", 1, gamma.len()), ("stats", 2, stats.len())]);
    let n = (s.batch * s.area) as f64;
    let mut buffer = Scratch::<f64>::new(6 * s.channels);
    let [m, g, product, p, q, r] = columns(&mut buffer, s.channels);
    if constant {
        m.iter_mut().zip(stats.chunks_exact(2)).for_each(|(m, stat)| *m = stat[0].to_f64());
    } else {
        // Not the rounded one of `stats`, which is too coarse where it is large.
        p.fill(0.0);
        all_sums(isa, s, Term::X, p, x, x, m);
        m.iter_mut().for_each(|m| *m /= n);
    }
    all_sums(isa, s, Term::G, m, x, dy, g);
    all_sums(isa, s, Term::Product, m, x, dy, product);
    for c in 0..s.channels {
        let rstd = stats[2 * c + 1].to_f64();
        let scale = gamma[c].to_f64() * rstd;
        p[c] = scale;
        (q[c], r[c]) =
            if constant { (0.0, 0.0) } else { (-scale * rstd * rstd * product[c] / n, -scale * g[c] / n) };
    }
    if let Some(dx) = dx {
        check(s, &[("dx", dx.len())], &[]);
        combine_all(isa, s, [m, p, q, r], dy, x, dx);
    }
    if let Some(dgamma) = dgamma {
        check(s, &[], &[("dgamma", 1, dgamma.len())]);
        for c in 0..s.channels {
            dgamma[c] += E::from_f64(product[c] * stats[2 * c + 1].to_f64());
        }
    }
    if let Some(dbeta) = dbeta {
        check(s, &[], &[("dbeta", 1, dbeta.len())]);
        dbeta.iter_mut().zip(g).for_each(|(d, g)| *d += E::from_f64(*g));
    }
}

/// Cuts a buffer into `N` of `len` values.
fn columns<const N: usize>(buffer: &mut [f64], len: usize) -> [&mut [f64]; N] {
    let mut parts = buffer.chunks_exact_mut(len);
    std::array::from_fn(|_| parts.next().expect("a buffer for each"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, devices, gradient, on_threads, random, reals};

    fn spec(batch: usize, channels: usize, area: usize) -> BatchNormSpec {
        BatchNormSpec { batch, channels, area, eps: 1e-5, momentum: 0.1 }
    }

    const SPECS: [(usize, usize, usize); 6] =
        [(2, 1, 1), (4, 3, 1), (64, 70, 1), (3, 5, 7), (1, 3, 20), (5, 2, 33)];

    /// y, and each channel's mean and biased variance.
    fn expected(s: &BatchNormSpec, x: &[f64], gamma: &[f64], beta: &[f64]) -> (Vec<f64>, Vec<(f64, f64)>) {
        let channel = |i: usize| i / s.area % s.channels;
        let n = (s.batch * s.area) as f64;
        let moments: Vec<_> = (0..s.channels)
            .map(|c| {
                let of = || (0..x.len()).filter(move |&i| i / s.area % s.channels == c);
                let mean = of().map(|i| x[i]).sum::<f64>() / n;
                (mean, of().map(|i| (x[i] - mean).powi(2)).sum::<f64>() / n)
            })
            .collect();
        let y = (0..x.len())
            .map(|i| {
                let (c, (mean, variance)) = (channel(i), moments[channel(i)]);
                (x[i] - mean) / (variance + s.eps).sqrt() * gamma[c] + beta[c]
            })
            .collect();
        (y, moments)
    }

    /// Means, and variances.
    fn halves<E>(running: &[E]) -> [&[E]; 2] {
        let (means, variances) = running.split_at(running.len() / 2);
        [means, variances]
    }

    fn forward<E: Real>(tolerance: f64) {
        for (device, (batch, channels, area)) in
            devices::<E>().into_iter().flat_map(|d| SPECS.map(|s| (d, s)))
        {
            let s = spec(batch, channels, area);
            let n = batch * channels * area;
            let (gamma, beta) = (random(2, channels), random(3, channels));
            for shift in [0.0, 500.0] {
                let x: Vec<f64> = random(1, n).iter().map(|x| f64::from((x + shift) as f32)).collect();
                let (y_expected, moments) = expected(&s, &x, &gamma, &beta);
                let (g, b) = (reals::<E>(&gamma), reals::<E>(&beta));
                let (mut y, mut stats) = (vec![E::ZERO; n], vec![E::ZERO; 2 * channels]);
                let mut running: Vec<E> =
                    (0..2 * channels).map(|i| E::from_f64((i >= channels) as u8 as f64)).collect();
                let (means, variances) = running.split_at_mut(channels);
                device.batch_norm_train(&s, &reals(&x), &g, &b, &mut y, &mut stats, Some([means, variances]));
                let what = format!("{device:?} {s:?}");
                assert_close(&y, &y_expected, tolerance, &what);
                let count = (batch * area) as f64;
                let means = moments.iter().map(|m| 0.1 * m.0);
                let variances = moments.iter().map(|m| 0.9 + 0.1 * m.1 * count / (count - 1.0));
                let running_expected: Vec<f64> = means.chain(variances).collect();
                assert_close(&running, &running_expected, tolerance, &what);

                device.batch_norm_infer(&s, &reals(&x), &g, &b, halves(&running), &mut y);
                let y_expected: Vec<f64> = (0..n)
                    .map(|i| {
                        let c = i / area % channels;
                        let (mean, variance) = (running[c].to_f64(), running[channels + c].to_f64());
                        (x[i] - mean) / (variance + s.eps).sqrt() * gamma[c] + beta[c]
                    })
                    .collect();
                assert_close(&y, &y_expected, tolerance, &what);
            }
        }
    }

    #[test]
    fn channels_are_normalised_and_running_statistics_follow() {
        forward::<f32>(1e-6);
        forward::<f64>(1e-12);
    }

    #[test]
    fn gradients_match_finite_differences_in_training_and_inference() {
        for (device, (batch, channels, area)) in
            devices::<f64>().into_iter().flat_map(|d| SPECS.map(|s| (d, s)))
        {
            if batch * channels * area > 200 {
                continue;
            }
            let s = spec(batch, channels, area);
            let n = batch * channels * area;
            let (x, dy, gamma, beta) = (random(1, n), random(4, n), random(2, channels), random(3, channels));
            let running: Vec<f64> = random(5, 2 * channels).iter().map(|x| x + 1.5).collect();
            for constant in [false, true] {
                let (mut y, mut stats) = (vec![0.0; n], vec![0.0; 2 * channels]);
                let loss = |x: &[f64], gamma: &[f64]| {
                    let (mut y, mut stats) = (vec![0.0; n], vec![0.0; 2 * channels]);
                    if constant {
                        device.batch_norm_infer(&s, x, gamma, &beta, halves(&running), &mut y);
                    } else {
                        device.batch_norm_train(&s, x, gamma, &beta, &mut y, &mut stats, None);
                    }
                    y.iter().zip(&dy).map(|(y, g)| y * g).sum::<f64>()
                };
                if constant {
                    device.batch_norm_stats(&s, halves(&running), &mut stats);
                } else {
                    device.batch_norm_train(&s, &x, &gamma, &beta, &mut y, &mut stats, None);
                }
                let (mut dx, mut dg, mut db) = (vec![0.0; n], vec![1.0; channels], vec![1.0; channels]);
                let (gx, gg, gb) = (Some(&mut dx[..]), Some(&mut dg[..]), Some(&mut db[..]));
                device.batch_norm_vjp(&s, constant, &x, &gamma, &stats, &dy, gx, gg, gb);
                let near = |a: &[f64], b: &[f64]| {
                    a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6 * (1.0 + b.abs()))
                };
                assert!(near(&dx, &gradient(&x, |x| loss(x, &gamma))), "dx {s:?} {constant}");
                let dgamma: Vec<f64> = gradient(&gamma, |g| loss(&x, g)).iter().map(|g| g + 1.0).collect();
                assert!(near(&dg, &dgamma), "dgamma {s:?} {constant}");
                for (c, db) in db.iter().enumerate() {
                    let sum: f64 = (0..n).filter(|i| i / area % channels == c).map(|i| dy[i]).sum();
                    assert!((db - 1.0 - sum).abs() < 1e-12);
                }
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        for (batch, channels, area) in [(40, 30, 100), (500, 200, 1)] {
            let s = spec(batch, channels, area);
            let x: Vec<f32> = reals(&random(1, batch * channels * area));
            let gamma: Vec<f32> = reals(&random(2, channels));
            let run = |threads| {
                on_threads(threads, || {
                    let device = devices::<f32>().pop().unwrap();
                    let (mut y, mut stats, mut dx) = (x.clone(), vec![0.0; 2 * channels], x.clone());
                    let (mut dg, mut db) = (gamma.clone(), gamma.clone());
                    device.batch_norm_train(&s, &x, &gamma, &gamma, &mut y, &mut stats, None);
                    let (gx, gg, gb) = (Some(&mut dx[..]), Some(&mut dg[..]), Some(&mut db[..]));
                    device.batch_norm_vjp(&s, false, &x, &gamma, &stats, &y, gx, gg, gb);
                    [y, stats, dx, dg, db]
                })
            };
            assert!(run(1) == run(4));
        }
    }
}
