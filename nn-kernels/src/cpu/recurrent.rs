use super::math::{sigmoid, tanh};
use super::par::{self, Rows, rows_per_task};
use super::simd::{Simd, kernels};
use super::size::size;
use super::{Real, kernels::Kernels};

kernels! {
    fn lstm<E>(hidden: usize, gates: &mut [E], c: &[E], c_next: &mut [E], h_next: &mut [E]);
    fn lstm_vjp<E>(
        hidden: usize, gates: &[E], c: &[E], c_next: &[E], dh_next: &[E], dc: &mut [E], dgates: &mut [E],
    );
    fn gru<E>(hidden: usize, gates: &mut [E], recurrent: &[E], h: &[E], h_next: &mut [E]);
    fn gru_vjp<E>(
        hidden: usize, gates: &[E], recurrent: &[E], h: &[E], dh: &mut [E], dgates: &mut [E], drecurrent: &mut [E],
    );
}

/// A row's gates.
#[inline(always)]
fn three<E>(row: &[E], hidden: usize) -> [&[E]; 3] {
    let (a, rest) = row.split_at(hidden);
    let (b, c) = rest.split_at(hidden);
    [a, b, c]
}

#[inline(always)]
fn three_mut<E>(row: &mut [E], hidden: usize) -> [&mut [E]; 3] {
    let (a, rest) = row.split_at_mut(hidden);
    let (b, c) = rest.split_at_mut(hidden);
    [a, b, c]
}

#[inline(always)]
fn lstm<S: Simd, E: Real>(hidden: usize, gates: &mut [E], c: &[E], c_next: &mut [E], h_next: &mut [E]) {
    let rows = gates.chunks_exact_mut(4 * hidden).zip(c.chunks_exact(hidden));
    let rows = rows.zip(c_next.chunks_exact_mut(hidden).zip(h_next.chunks_exact_mut(hidden)));
    for ((gates, c), (c_next, h_next)) in rows {
        let (first, o) = gates.split_at_mut(3 * hidden);
        let [i, f, g] = three_mut(first, hidden);
        for k in 0..hidden {
            i[k] = sigmoid::<S, E>(i[k]);
            f[k] = sigmoid::<S, E>(f[k]);
            g[k] = tanh::<S, E>(g[k]);
            o[k] = sigmoid::<S, E>(o[k]);
            c_next[k] = f[k].mul_add::<S>(c[k], i[k] * g[k]);
            h_next[k] = o[k] * tanh::<S, E>(c_next[k]);
        }
    }
}

#[inline(always)]
fn lstm_vjp<S: Simd, E: Real>(
    hidden: usize,
    gates: &[E],
    c: &[E],
    c_next: &[E],
    dh_next: &[E],
    dc: &mut [E],
    dgates: &mut [E],
) {
    let read = gates.chunks_exact(4 * hidden).zip(c.chunks_exact(hidden).zip(c_next.chunks_exact(hidden)));
    let written = dc.chunks_exact_mut(hidden).zip(dgates.chunks_exact_mut(4 * hidden));
    for (((gates, (c, c_next)), dh), (dc, dgates)) in read.zip(dh_next.chunks_exact(hidden)).zip(written) {
        let (first, o) = gates.split_at(3 * hidden);
        let [i, f, g] = three(first, hidden);
        let (first, dout) = dgates.split_at_mut(3 * hidden);
        let [di, df, dg] = three_mut(first, hidden);
        for k in 0..hidden {
            let t = tanh::<S, E>(c_next[k]);
            dout[k] = dh[k] * t * (o[k] * (E::ONE - o[k]));
            let d = (dh[k] * o[k]).mul_add::<S>(E::ONE - t * t, dc[k]);
            di[k] = d * g[k] * (i[k] * (E::ONE - i[k]));
            df[k] = d * c[k] * (f[k] * (E::ONE - f[k]));
            dg[k] = d * i[k] * (E::ONE - g[k] * g[k]);
            dc[k] = d * f[k];
        }
    }
}

#[inline(always)]
fn gru<S: Simd, E: Real>(hidden: usize, gates: &mut [E], recurrent: &[E], h: &[E], h_next: &mut [E]) {
    let read = recurrent.chunks_exact(3 * hidden).zip(h.chunks_exact(hidden));
    let written = gates.chunks_exact_mut(3 * hidden).zip(h_next.chunks_exact_mut(hidden));
    for ((recurrent, h), (gates, h_next)) in read.zip(written) {
        let ([r, z, n], [hr, hz, hn]) = (three_mut(gates, hidden), three(recurrent, hidden));
        for k in 0..hidden {
            r[k] = sigmoid::<S, E>(r[k] + hr[k]);
            z[k] = sigmoid::<S, E>(z[k] + hz[k]);
            n[k] = tanh::<S, E>(r[k].mul_add::<S>(hn[k], n[k]));
            h_next[k] = (E::ONE - z[k]) * n[k] + z[k] * h[k];
        }
    }
}

#[inline(always)]
fn gru_vjp<S: Simd, E: Real>(
    hidden: usize,
    gates: &[E],
    recurrent: &[E],
    h: &[E],
    dh: &mut [E],
    dgates: &mut [E],
    drecurrent: &mut [E],
) {
    let read =
        gates.chunks_exact(3 * hidden).zip(recurrent.chunks_exact(3 * hidden)).zip(h.chunks_exact(hidden));
    let written = dgates.chunks_exact_mut(3 * hidden).zip(drecurrent.chunks_exact_mut(3 * hidden));
    let written = written.zip(dh.chunks_exact_mut(hidden));
    for (((gates, recurrent), h), ((dgates, drecurrent), dh)) in read.zip(written) {
        let ([r, z, n], [_, _, hn]) = (three(gates, hidden), three(recurrent, hidden));
        let ([dr, dz, dn], [dhr, dhz, dhn]) = (three_mut(dgates, hidden), three_mut(drecurrent, hidden));
        for k in 0..hidden {
            let slope = dh[k] * (E::ONE - z[k]) * (E::ONE - n[k] * n[k]);
            dn[k] = slope;
            dhn[k] = slope * r[k];
            dr[k] = slope * hn[k] * (r[k] * (E::ONE - r[k]));
            dhr[k] = dr[k];
            dz[k] = dh[k] * (h[k] - n[k]) * (z[k] * (E::ONE - z[k]));
            dhz[k] = dz[k];
            dh[k] = dh[k] * z[k];
        }
    }
}

/// How many rows there are, if every operand has as many, of so many values each.
#[track_caller]
pub(crate) fn rows<const N: usize>(name: &str, hidden: usize, operands: [(&str, usize, usize); N]) -> usize {
    assert!(hidden > 0, "{name}: states of no values");
    let (_, len, wide) = operands[0];
    let rows = len / size(name, &[wide, hidden]);
    for (what, len, wide) in operands {
        assert_eq!(
            len,
            size(name, &[rows, wide, hidden]),
            "{name}: {what} is not {rows} rows of {wide}·{hidden}"
        );
    }
    rows
}

/// A function is worth some twenty values.
fn grain(hidden: usize) -> usize {
    (rows_per_task(hidden) / 20).max(1)
}

impl<E: Real> Kernels<E> {
    pub(crate) fn lstm(&self, hidden: usize, gates: &mut [E], c: &[E], c_next: &mut [E], h_next: &mut [E]) {
        let operands =
            [("gates", gates.len(), 4), ("c", c.len(), 1), ("c′", c_next.len(), 1), ("h′", h_next.len(), 1)];
        let rows = rows("lstm", hidden, operands);
        let isa = self.isa;
        let views = (Rows(gates, 4 * hidden), Rows(c, hidden), Rows(c_next, hidden), Rows(h_next, hidden));
        par::split(rows, grain(hidden), views, &|_, (gates, c, c_next, h_next)| {
            run::lstm(isa, hidden, gates.0, c.0, c_next.0, h_next.0)
        });
    }

    pub(crate) fn lstm_vjp(
        &self,
        hidden: usize,
        gates: &[E],
        c: &[E],
        c_next: &[E],
        dh_next: &[E],
        dc: &mut [E],
        dgates: &mut [E],
    ) {
        let operands = [
            ("gates", gates.len(), 4),
            ("c", c.len(), 1),
            ("c′", c_next.len(), 1),
            ("dh′", dh_next.len(), 1),
            ("dc", dc.len(), 1),
            ("dgates", dgates.len(), 4),
        ];
        let rows = rows("lstm_vjp", hidden, operands);
        let isa = self.isa;
        let read = (Rows(gates, 4 * hidden), Rows(c, hidden), Rows(c_next, hidden), Rows(dh_next, hidden));
        let views = (read, (Rows(dc, hidden), Rows(dgates, 4 * hidden)));
        par::split(rows, grain(hidden), views, &|_, ((gates, c, c_next, dh), (dc, dgates))| {
            run::lstm_vjp(isa, hidden, gates.0, c.0, c_next.0, dh.0, dc.0, dgates.0)
        });
    }

    pub(crate) fn gru(&self, hidden: usize, gates: &mut [E], recurrent: &[E], h: &[E], h_next: &mut [E]) {
        let operands = [
            ("gates", gates.len(), 3),
            ("recurrent", recurrent.len(), 3),
            ("h", h.len(), 1),
            ("h′", h_next.len(), 1),
        ];
        let rows = rows("gru", hidden, operands);
        let isa = self.isa;
        let views =
            (Rows(gates, 3 * hidden), Rows(recurrent, 3 * hidden), Rows(h, hidden), Rows(h_next, hidden));
        par::split(rows, grain(hidden), views, &|_, (gates, recurrent, h, h_next)| {
            run::gru(isa, hidden, gates.0, recurrent.0, h.0, h_next.0)
        });
    }

    pub(crate) fn gru_vjp(
        &self,
        hidden: usize,
        gates: &[E],
        recurrent: &[E],
        h: &[E],
        dh: &mut [E],
        dgates: &mut [E],
        drecurrent: &mut [E],
    ) {
        let operands = [
            ("gates", gates.len(), 3),
            ("recurrent", recurrent.len(), 3),
            ("h", h.len(), 1),
            ("dh", dh.len(), 1),
            ("dgates", dgates.len(), 3),
            ("drecurrent", drecurrent.len(), 3),
        ];
        let rows = rows("gru_vjp", hidden, operands);
        let isa = self.isa;
        let read = (Rows(gates, 3 * hidden), Rows(recurrent, 3 * hidden), Rows(h, hidden));
        let views = (read, (Rows(dh, hidden), Rows(dgates, 3 * hidden), Rows(drecurrent, 3 * hidden)));
        par::split(rows, grain(hidden), views, &|_, ((gates, recurrent, h), (dh, dgates, drecurrent))| {
            run::gru_vjp(isa, hidden, gates.0, recurrent.0, h.0, dh.0, dgates.0, drecurrent.0)
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::cpu::testing::{assert_close, devices, gradient, on_threads, random, reals};

    fn logistic(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    /// c′ and h′ of one value by the formula.
    fn lstm_by_hand([i, f, g, o]: [f64; 4], c: f64) -> [f64; 2] {
        let c = logistic(f) * c + logistic(i) * g.tanh();
        [c, logistic(o) * c.tanh()]
    }

    fn gru_by_hand([xr, xz, xn]: [f64; 3], [hr, hz, hn]: [f64; 3], h: f64) -> f64 {
        let (r, z) = (logistic(xr + hr), logistic(xz + hz));
        let n = (xn + r * hn).tanh();
        (1.0 - z) * n + z * h
    }

    const ROWS: usize = 3;
    const HIDDEN: usize = 5;
    const N: usize = ROWS * HIDDEN;

    fn gate<const G: usize>(gates: &[f64], at: usize) -> [f64; G] {
        std::array::from_fn(|g| gates[(at / HIDDEN * G + g) * HIDDEN + at % HIDDEN])
    }

    #[test]
    fn steps_are_those_of_the_formulas() {
        let (x, s) = (random(1, 4 * N), random(2, N));
        for device in devices::<f64>() {
            let (mut gates, mut c, mut h) = (x.clone(), vec![0.0; N], vec![0.0; N]);
            device.lstm(HIDDEN, &mut gates, &s, &mut c, &mut h);
            let expected: Vec<_> = (0..N).map(|at| lstm_by_hand(gate::<4>(&x, at), s[at])).collect();
            assert_close(&c, &expected.iter().map(|e| e[0]).collect::<Vec<_>>(), 1e-14, "c");
            assert_close(&h, &expected.iter().map(|e| e[1]).collect::<Vec<_>>(), 1e-14, "h");
            let (mut gates, recurrent) = (x[..3 * N].to_vec(), random(3, 3 * N));
            device.gru(HIDDEN, &mut gates, &recurrent, &s, &mut h);
            let hand = |at| gru_by_hand(gate::<3>(&x[..3 * N], at), gate::<3>(&recurrent, at), s[at]);
            assert_close(&h, &(0..N).map(hand).collect::<Vec<_>>(), 1e-14, "h");
        }
    }

    #[test]
    fn gradients_match_finite_differences() {
        let (x, s, recurrent) = (random(1, 4 * N), random(2, N), random(3, 3 * N));
        let (dc_next, dh_next) = (random(4, N), random(5, N));
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        for device in devices::<f64>() {
            let forward = |x: &[f64], s: &[f64]| {
                let (mut gates, mut c, mut h) = (x.to_vec(), vec![0.0; N], vec![0.0; N]);
                device.lstm(HIDDEN, &mut gates, s, &mut c, &mut h);
                (gates, c, h)
            };
            let loss = |x: &[f64], s: &[f64]| {
                let (_, c, h) = forward(x, s);
                dot(&c, &dc_next) + dot(&h, &dh_next)
            };
            let (gates, c, _) = forward(&x, &s);
            let (mut dc, mut dgates) = (dc_next.clone(), vec![f64::NAN; 4 * N]);
            device.lstm_vjp(HIDDEN, &gates, &s, &c, &dh_next, &mut dc, &mut dgates);
            assert_close(&dgates, &gradient(&x, |x| loss(x, &s)), 1e-8, "dgates");
            assert_close(&dc, &gradient(&s, |s| loss(&x, s)), 1e-8, "dc");

            let forward = |x: &[f64], recurrent: &[f64], s: &[f64]| {
                let (mut gates, mut h) = (x.to_vec(), vec![0.0; N]);
                device.gru(HIDDEN, &mut gates, recurrent, s, &mut h);
                (gates, h)
            };
            let x = &x[..3 * N];
            let (gates, _) = forward(x, &recurrent, &s);
            let (mut dh, mut dgates, mut drecurrent) =
                (dh_next.clone(), vec![f64::NAN; 3 * N], vec![f64::NAN; 3 * N]);
            device.gru_vjp(HIDDEN, &gates, &recurrent, &s, &mut dh, &mut dgates, &mut drecurrent);
            let loss = |x: &[f64], recurrent: &[f64], s: &[f64]| dot(&forward(x, recurrent, s).1, &dh_next);
            assert_close(&dgates, &gradient(x, |x| loss(x, &recurrent, &s)), 1e-8, "dgates");
            assert_close(&drecurrent, &gradient(&recurrent, |r| loss(x, r, &s)), 1e-8, "drecurrent");
            assert_close(&dh, &gradient(&s, |s| loss(x, &recurrent, s)), 1e-8, "dh");
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let (rows, hidden) = (300, 77);
        let n = rows * hidden;
        let x: Vec<f32> = reals(&random(1, 4 * n));
        for device in devices::<f32>() {
            let run = |threads| {
                on_threads(threads, || {
                    let (mut gates, mut c, mut h) = (x.clone(), vec![0.0; n], vec![0.0; n]);
                    device.lstm(hidden, &mut gates, &x[..n], &mut c, &mut h);
                    let (mut dc, mut dgates) = (h.clone(), x.clone());
                    device.lstm_vjp(hidden, &gates, &x[..n], &c, &h, &mut dc, &mut dgates);
                    let mut three = x[..3 * n].to_vec();
                    device.gru(hidden, &mut three, &x[n..], &x[..n], &mut h);
                    let (mut d, mut drecurrent) = (x[..3 * n].to_vec(), x[..3 * n].to_vec());
                    device.gru_vjp(hidden, &three, &x[n..], &x[..n], &mut h, &mut d, &mut drecurrent);
                    [gates, c, h, dc, dgates, three, d, drecurrent]
                })
            };
            assert!(run(1) == run(4), "{device:?}");
        }
    }

    #[test]
    #[should_panic(expected = "lstm: c is not 2 rows of 1·3")]
    fn a_short_state_is_refused() {
        devices::<f32>()[0].lstm(3, &mut [0.0; 24], &[0.0; 5], &mut [0.0; 6], &mut [0.0; 6]);
    }
}
