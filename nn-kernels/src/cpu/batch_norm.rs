//! Batch normalisation: the trait's methods are in [`norm`](super::norm).

use super::isa::Available;
use super::par::{self, Rows, rows_per_task};
use super::scratch::Scratch;
use super::simd::{Simd, kernels};
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
fn sums<S: Simd, E: Real>(s: BatchNormSpec, term: Term, first: usize, m: &[f64], x: &[E], g: &[E], out: &mut [f64]) {
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
    let f = |m: f64, p: f64, q: f64, r: f64, a: E, b: E| E::from_f64(p * a.to_f64() + q * (b.to_f64() - m) + r);
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

fn all_sums<E: Real>(isa: Available, s: &BatchNormSpec, term: Term, m: &[f64], x: &[E], g: &[E], out: &mut [f64]) {
    let s = *s;
    par::split(s.channels, rows_per_task(s.batch * s.area), (m, out), &|first, (m, out)| {
        run::sums(isa, s, term, first, m, x, g, out)
    });
}

fn combine_all<E: Real>(isa: Available, s: &BatchNormSpec, c: [&[f64]; 4], a: &[E], b: &[E], out: &mut [E]) {
    let (area, sample) = (s.area, s.channels * s.area);
    let views = (Rows(a, sample), Rows(b, sample), Rows(out, sample));
    par::split(s.batch, rows_per_task(sample), views, &|_, (a, b, out)| run::combine(isa, area, c, a.0, b.0, out.0));
}

#[track_caller]
fn check<E>(s: &BatchNormSpec, values: &[(&str, &[E])], channels: &[(&str, usize, &[E])]) {
    assert!(s.channels > 0 && s.area > 0, "batch_norm: no channels or no area");
    for (name, view) in values {
        assert_eq!(view.len(), s.batch * s.channels * s.area, "batch_norm: {name} is not batch × channels × area");
    }
    for (name, each, view) in channels {
        assert_eq!(view.len(), each * s.channels, "batch_norm: {name} is not {each} × channels");
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
    check(s, &[("x", x), ("y", y)], &[("gamma", 1, gamma), ("beta", 1, beta), ("stats", 2, stats)]);
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
        check(s, &[], &[("running means", 1, means), ("running variances", 1, variances)]);
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
    check(s, &[("x", x), ("y", y)], &[("gamma", 1, gamma), ("beta", 1, beta)]);
    check(s, &[], &[("running means", 1, means), ("running variances", 1, variances)]);
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
    check(s, &[("x", x), ("dy", dy)], &[("gamma", 1, gamma), ("stats", 2, stats)]);
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
        (q[c], r[c]) = if constant { (0.0, 0.0) } else { (-scale * rstd * rstd * product[c] / n, -scale * g[c] / n) };
    }
    if let Some(dx) = dx {
        check(s, &[("dx", dx)], &[]);
        combine_all(isa, s, [m, p, q, r], dy, x, dx);
    }
    if let Some(dgamma) = dgamma {
        check(s, &[], &[("dgamma", 1, dgamma)]);
        for c in 0..s.channels {
            dgamma[c] += E::from_f64(product[c] * stats[2 * c + 1].to_f64());
        }
    }
    if let Some(dbeta) = dbeta {
        check(s, &[], &[("dbeta", 1, dbeta)]);
        dbeta.iter_mut().zip(g).for_each(|(d, g)| *d += E::from_f64(*g));
    }
}

/// Cuts a buffer into `N` of `len` values.
fn columns<const N: usize>(buffer: &mut [f64], len: usize) -> [&mut [f64]; N] {
    let mut parts = buffer.chunks_exact_mut(len);
    std::array::from_fn(|_| parts.next().expect("a buffer for each"))
}
