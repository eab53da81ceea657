use std::ops::Range;

use super::direct::copy;
use super::par::{self, Rows, rows_per_task};
use super::scratch::Scratch;
use super::simd::{Simd, kernels};
use super::size::{reach, size};
use super::{Real, kernels::Kernels, reduce};
use crate::ops::Pool2dSpec;

kernels! {
    fn max_pool<E>(s: Pool2dSpec, x: &[E], y: &mut [E], argmax: Option<&mut [u32]>);
    fn max_pool_vjp<E>(s: Pool2dSpec, argmax: &[u32], dy: &[E], dx: &mut [E]);
    fn avg_pool<E>(s: Pool2dSpec, x: &[E], y: &mut [E]);
    fn avg_pool_vjp<E>(s: Pool2dSpec, dy: &[E], dx: &mut [E]);
}

/// The part of window `i` along an axis that lies in the image.
#[inline(always)]
fn window(s: &Pool2dSpec, axis: usize, i: usize) -> Range<usize> {
    let from = i * s.stride[axis];
    let to = (from + s.kernel[axis]).saturating_sub(s.padding[axis]).min(s.input[axis]);
    from.saturating_sub(s.padding[axis]).min(to)..to
}

/// The outputs along an axis whose windows lie in the image wholly.
#[inline(always)]
fn whole(s: &Pool2dSpec, axis: usize) -> Range<usize> {
    let (n, kernel, stride, padding) = (s.input[axis], s.kernel[axis], s.stride[axis], s.padding[axis]);
    let from = padding.div_ceil(stride.max(1));
    let to = match (n + padding).checked_sub(kernel) {
        Some(room) if stride > 0 => room / stride + 1,
        _ => 0,
    };
    from.min(s.output[axis])..to.clamp(from.min(s.output[axis]), s.output[axis])
}

/// Whether `v` becomes the maximum. A NaN wins too, and nothing wins against it.
#[inline(always)]
fn wins<E: Real>(v: E, best: E) -> bool {
    // No branch, so that the compiler can do it for a register of values.
    (v > best) | (is_nan(v) & !is_nan(best))
}

/// [`wins`] in other words: what is not less or equal is greater, or one of both is a NaN. Windows of nine values take a
/// quarter less time so, those of four with their places as much more.
#[expect(clippy::neg_cmp_op_on_partial_ord, reason = "that a NaN makes it true is what is wanted")]
#[inline(always)]
fn wins_of_many<E: Real>(v: E, best: E) -> bool {
    !(v <= best) & !is_nan(best)
}

#[inline(always)]
fn is_nan<E: Real>(x: E) -> bool {
    x.partial_cmp(&x).is_none()
}

/// The maximum of one window, and where it is.
#[inline(always)]
fn largest<E: Real>(w: usize, rows: Range<usize>, cols: Range<usize>, x: &[E]) -> (E, usize) {
    let (mut best, mut at) = (E::from_f64(f64::NEG_INFINITY), rows.start * w + cols.start);
    for r in rows {
        for (c, &v) in x[r * w + cols.start..r * w + cols.end].iter().enumerate() {
            if wins(v, best) {
                (best, at) = (v, r * w + cols.start + c);
            }
        }
    }
    (best, at)
}

/// What windows of R rows and K columns, S apart, see of the rows that start at `from` on: the value of tap (r, k) and
/// output c is `[r][k][c][k % S]`. All views are of one length, for which the compiler needs no further checks; that may
/// be one less than `n`, where the last window ends with the image.
#[inline(always)]
fn views<E, const R: usize, const K: usize, const S: usize>(
    w: usize,
    from: usize,
    x: &[E],
    n: usize,
) -> ([[&[[E; S]]; K]; R], usize) {
    let row = |r: usize, k: usize| x[from + r * w + k / S * S..].as_chunks::<S>().0;
    let n = n.min(row(R - 1, K - 1).len());
    (std::array::from_fn(|r| std::array::from_fn(|k| &row(r, k)[..n])), n)
}

/// The maxima of windows of which R rows and all K columns lie in the image, and how many there are. In each pass of the
/// loop over the outputs they are independent, and the compiler makes vectors of them.
#[expect(clippy::needless_range_loop, reason = "r and k name a tap, by which a place is counted too")]
#[inline(always)]
fn largest_of<E: Real, const R: usize, const K: usize, const S: usize>(
    w: usize,
    from: usize,
    x: &[E],
    y: &mut [E],
    argmax: Option<&mut [u32]>,
) -> usize {
    let (x, n) = views::<E, R, K, S>(w, from, x, y.len());
    let y = &mut y[..n];
    match argmax {
        Some(argmax) => {
            let argmax = &mut argmax[..n];
            for c in 0..n {
                let (mut best, mut at) = (x[0][0][c][0], 0);
                for r in 0..R {
                    for k in 0..K {
                        let v = x[r][k][c][k % S];
                        let won = wins_of_many(v, best);
                        best = if won { v } else { best };
                        at = if won { (r * w + k) as u32 } else { at };
                    }
                }
                y[c] = best;
                argmax[c] = at + (from + c * S) as u32;
            }
        }
        None => {
            for c in 0..n {
                let mut best = x[0][0][c][0];
                for r in 0..R {
                    for k in 0..K {
                        let v = x[r][k][c][k % S];
                        best = if wins_of_many(v, best) { v } else { best };
                    }
                }
                y[c] = best;
            }
        }
    }
    n
}

/// Whether windows are 2×2, side by side, and lie in the image.
#[inline(always)]
fn in_pairs(s: &Pool2dSpec) -> bool {
    s.kernel == [2, 2] && s.stride == [2, 2] && s.padding == [0, 0]
}

/// The upper and the lower pairs of values of each window, one row of windows after the other: a loop over all of a plane
/// fills its registers where a row of windows is shorter than they are.
#[inline(always)]
fn pairs<'a, S: Simd, E: Real>(s: &Pool2dSpec, x: &[E], rows: &'a mut [E]) -> [&'a [[E; 2]]; 2] {
    let (w, pairs) = (s.input[1], 2 * s.output[1]);
    let (upper, lower) = rows.split_at_mut(s.output[0] * pairs);
    let both = upper.chunks_exact_mut(pairs).zip(lower.chunks_exact_mut(pairs));
    for ((upper, lower), x) in both.zip(x.chunks_exact(2 * w)) {
        copy::<S, E>(&x[..pairs], upper);
        copy::<S, E>(&x[w..w + pairs], lower);
    }
    [upper.as_chunks().0, lower.as_chunks().0]
}

/// [`max_pool`] of windows [`in_pairs`].
#[inline(always)]
fn max_of_pairs<S: Simd, E: Real>(s: &Pool2dSpec, x: &[E], y: &mut [E], argmax: Option<&mut [u32]>) {
    let (w, ow, n) = (s.input[1], s.output[1], s.output[0] * s.output[1]);
    let mut rows = Scratch::<E>::new(4 * n);
    let mut firsts = Scratch::<u32>::new(n);
    for (o, first) in firsts.iter_mut().enumerate() {
        *first = (o / ow * 2 * w + o % ow * 2) as u32;
    }
    let firsts = &firsts[..n];
    let mut argmax = argmax;
    for (plane, (x, y)) in x.chunks_exact(s.input[0] * w).zip(y.chunks_exact_mut(n)).enumerate() {
        let [upper, lower] = pairs::<S, E>(s, x, &mut rows);
        let (upper, lower, y) = (&upper[..n], &lower[..n], &mut y[..n]);
        let Some(argmax) = argmax.as_mut() else {
            for o in 0..n {
                let mut best = upper[o][0];
                for v in [upper[o][1], lower[o][0], lower[o][1]] {
                    best = if wins(v, best) { v } else { best };
                }
                y[o] = best;
            }
            continue;
        };
        let argmax = &mut argmax[plane * n..][..n];
        for o in 0..n {
            let (mut best, mut at) = (upper[o][0], 0);
            for (v, place) in [(upper[o][1], 1), (lower[o][0], w), (lower[o][1], w + 1)] {
                let won = wins(v, best);
                best = if won { v } else { best };
                at = if won { place as u32 } else { at };
            }
            y[o] = best;
            argmax[o] = firsts[o] + at;
        }
    }
}

#[inline(always)]
fn max_pool<S: Simd, E: Real>(s: Pool2dSpec, x: &[E], y: &mut [E], argmax: Option<&mut [u32]>) {
    if in_pairs(&s) {
        return max_of_pairs::<S, E>(&s, x, y, argmax);
    }
    let [h, w] = s.input;
    let [oh, ow] = s.output;
    let inner_cols = whole(&s, 1);
    let mut argmax = argmax;
    for (plane, (x, y)) in x.chunks_exact(h * w).zip(y.chunks_exact_mut(oh * ow)).enumerate() {
        for (row, y) in y.chunks_exact_mut(ow).enumerate() {
            let mut argmax = argmax
                .as_mut()
                .map(|argmax| &mut argmax[(plane * oh + row) * ow..(plane * oh + row + 1) * ow]);
            let (mut inner, rows) = (inner_cols.clone(), window(&s, 0, row));
            if !inner.is_empty() {
                let from = rows.start * w + inner.start * s.stride[1] - s.padding[1];
                let (y, argmax) =
                    (&mut y[inner.clone()], argmax.as_mut().map(|argmax| &mut argmax[inner.clone()]));
                // The first row of windows, and sometimes the last, has one row of pixels less than the kernel.
                let done = match (rows.len(), s.kernel[1], s.stride[1]) {
                    (2, 2, 2) => largest_of::<E, 2, 2, 2>(w, from, x, y, argmax),
                    (3, 3, 2) => largest_of::<E, 3, 3, 2>(w, from, x, y, argmax),
                    (2, 3, 2) => largest_of::<E, 2, 3, 2>(w, from, x, y, argmax),
                    (2, 2, 1) => largest_of::<E, 2, 2, 1>(w, from, x, y, argmax),
                    (3, 3, 1) => largest_of::<E, 3, 3, 1>(w, from, x, y, argmax),
                    (2, 3, 1) => largest_of::<E, 2, 3, 1>(w, from, x, y, argmax),
                    _ => 0,
                };
                inner.end = inner.start + done;
            }
            for c in (0..inner.start).chain(inner.end..ow) {
                let (best, at) = largest(w, rows.clone(), window(&s, 1, c), x);
                y[c] = best;
                if let Some(argmax) = &mut argmax {
                    argmax[c] = at as u32;
                }
            }
        }
    }
}

#[inline(always)]
fn max_pool_vjp<S: Simd, E: Real>(s: Pool2dSpec, argmax: &[u32], dy: &[E], dx: &mut [E]) {
    let (plane, outputs) = (s.input[0] * s.input[1], s.output[0] * s.output[1]);
    let planes = argmax.chunks_exact(outputs).zip(dy.chunks_exact(outputs));
    for ((argmax, dy), dx) in planes.zip(dx.chunks_exact_mut(plane)) {
        dx.fill(E::ZERO);
        for (&at, &g) in argmax.iter().zip(dy) {
            dx[at as usize] += g;
        }
    }
}

/// The means of whole windows, as [`largest_of`].
#[expect(clippy::needless_range_loop, reason = "r and k name a tap, as they do for maxima")]
#[inline(always)]
fn means_of<E: Real, const K: usize, const S: usize>(w: usize, from: usize, x: &[E], y: &mut [E]) -> usize {
    let (x, n) = views::<E, K, K, S>(w, from, x, y.len());
    let y = &mut y[..n];
    for c in 0..n {
        let mut sum = 0.0;
        for r in 0..K {
            for k in 0..K {
                sum += x[r][k][c][k % S].to_f64();
            }
        }
        y[c] = E::from_f64(sum * const { 1.0 / (K * K) as f64 });
    }
    n
}

#[inline(always)]
fn avg_pool<S: Simd, E: Real>(s: Pool2dSpec, x: &[E], y: &mut [E]) {
    let [h, w] = s.input;
    let [oh, ow] = s.output;
    if in_pairs(&s) {
        let mut rows = Scratch::<E>::new(4 * oh * ow);
        for (x, y) in x.chunks_exact(h * w).zip(y.chunks_exact_mut(oh * ow)) {
            let [upper, lower] = pairs::<S, E>(&s, x, &mut rows);
            for ((y, a), b) in y.iter_mut().zip(upper).zip(lower) {
                let [a, b] = [a, b].map(|pair| pair.map(E::to_f64));
                *y = E::from_f64((a[0] + a[1] + b[0] + b[1]) * 0.25);
            }
        }
        return;
    }
    let share = 1.0 / (s.kernel[0] * s.kernel[1]) as f64;
    let (inner_rows, inner_cols) = (whole(&s, 0), whole(&s, 1));
    for (x, y) in x.chunks_exact(h * w).zip(y.chunks_exact_mut(oh * ow)) {
        for (row, y) in y.chunks_exact_mut(ow).enumerate() {
            let mut inner = if inner_rows.contains(&row) { inner_cols.clone() } else { 0..0 };
            if !inner.is_empty() {
                let from = (row * s.stride[0] - s.padding[0]) * w + inner.start * s.stride[1] - s.padding[1];
                let y = &mut y[inner.clone()];
                let done = match (s.kernel, s.stride[1]) {
                    ([2, 2], 2) => means_of::<E, 2, 2>(w, from, x, y),
                    ([3, 3], 1) => means_of::<E, 3, 1>(w, from, x, y),
                    ([3, 3], 2) => means_of::<E, 3, 2>(w, from, x, y),
                    _ => 0,
                };
                inner.end = inner.start + done;
            }
            let rows = window(&s, 0, row);
            for c in (0..inner.start).chain(inner.end..ow) {
                let cols = window(&s, 1, c);
                let sums = rows.clone().map(|r| reduce::sum(&x[r * w + cols.start..r * w + cols.end], |v| v));
                y[c] = E::from_f64(sums.sum::<f64>() * share);
            }
        }
    }
}

#[inline(always)]
fn avg_pool_vjp<S: Simd, E: Real>(s: Pool2dSpec, dy: &[E], dx: &mut [E]) {
    let [h, w] = s.input;
    let [oh, ow] = s.output;
    let share = E::from_f64(1.0 / (s.kernel[0] * s.kernel[1]) as f64);
    for (dy, dx) in dy.chunks_exact(oh * ow).zip(dx.chunks_exact_mut(h * w)) {
        dx.fill(E::ZERO);
        for (row, dy) in dy.chunks_exact(ow).enumerate() {
            for r in window(&s, 0, row) {
                let dx = &mut dx[r * w..(r + 1) * w];
                if s.kernel[1] == 2 && s.stride[1] == 2 && s.padding[1] == 0 {
                    for (dx, g) in dx.as_chunks_mut::<2>().0.iter_mut().zip(dy) {
                        *dx = [dx[0] + *g * share, dx[1] + *g * share];
                    }
                    continue;
                }
                for (c, &g) in dy.iter().enumerate() {
                    for d in &mut dx[window(&s, 1, c)] {
                        *d += g * share;
                    }
                }
            }
        }
    }
}

#[track_caller]
pub(crate) fn check(name: &str, s: &Pool2dSpec, x: usize, y: usize) -> (usize, usize) {
    let (inputs, outputs) = (size(name, &s.input), size(name, &s.output));
    size(name, &s.kernel);
    assert!(inputs > 0 && outputs > 0, "{name}: an empty image");
    assert_eq!(x, size(name, &[s.planes, inputs]), "{name}: x or dx is not planes × input");
    assert_eq!(y, size(name, &[s.planes, outputs]), "{name}: y or dy is not planes × output");
    for axis in 0..2 {
        let seen = reach(name, s.output[axis] - 1, s.stride[axis], s.kernel[axis]);
        let padded = reach(name, 2, s.padding[axis], s.input[axis]);
        assert!(s.kernel[axis] > 0 && seen <= padded, "{name}: windows leave the padded image");
    }
    (inputs, outputs)
}

impl<E: Real> Kernels<E> {
    pub(crate) fn max_pool2d(&self, s: &Pool2dSpec, x: &[E], y: &mut [E], argmax: Option<&mut [u32]>) {
        let (inputs, outputs) = check("max_pool2d", s, x.len(), y.len());
        if let Some(argmax) = &argmax {
            assert_eq!(argmax.len(), y.len(), "max_pool2d: argmax and y differ in length");
        }
        let (isa, s) = (self.isa, *s);
        let views = (Rows(x, inputs), Rows(y, outputs), argmax.map(|argmax| Rows(argmax, outputs)));
        par::split(s.planes, rows_per_task(inputs), views, &|_, (x, y, argmax)| {
            let argmax = argmax.map(|argmax| argmax.0);
            run::max_pool(isa, s, x.0, y.0, argmax)
        });
    }

    pub(crate) fn max_pool2d_vjp(&self, s: &Pool2dSpec, argmax: &[u32], dy: &[E], dx: &mut [E]) {
        let (inputs, outputs) = check("max_pool2d_vjp", s, dx.len(), dy.len());
        assert_eq!(argmax.len(), dy.len(), "max_pool2d_vjp: argmax and dy differ in length");
        let (isa, s) = (self.isa, *s);
        let views = (Rows(argmax, outputs), Rows(dy, outputs), Rows(dx, inputs));
        par::split(s.planes, rows_per_task(inputs), views, &|_, (argmax, dy, dx)| {
            run::max_pool_vjp(isa, s, argmax.0, dy.0, dx.0)
        });
    }

    pub(crate) fn avg_pool2d(&self, s: &Pool2dSpec, x: &[E], y: &mut [E]) {
        let (inputs, outputs) = check("avg_pool2d", s, x.len(), y.len());
        let (isa, s) = (self.isa, *s);
        par::split(s.planes, rows_per_task(inputs), (Rows(x, inputs), Rows(y, outputs)), &|_, (x, y)| {
            run::avg_pool(isa, s, x.0, y.0)
        });
    }

    pub(crate) fn avg_pool2d_vjp(&self, s: &Pool2dSpec, dy: &[E], dx: &mut [E]) {
        let (inputs, outputs) = check("avg_pool2d_vjp", s, dx.len(), dy.len());
        let (isa, s) = (self.isa, *s);
        par::split(s.planes, rows_per_task(inputs), (Rows(dy, outputs), Rows(dx, inputs)), &|_, (dy, dx)| {
            run::avg_pool_vjp(isa, s, dy.0, dx.0)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, devices, on_threads, random, reals};

    fn spec(
        planes: usize,
        input: [usize; 2],
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
    ) -> Pool2dSpec {
        let output = std::array::from_fn(|a| (input[a] + 2 * padding[a] - kernel[a]) / stride[a] + 1);
        Pool2dSpec { planes, input, output, kernel, stride, padding }
    }

    fn specs() -> [Pool2dSpec; 10] {
        [
            spec(1, [1, 1], [1, 1], [1, 1], [0, 0]),
            spec(3, [4, 6], [2, 2], [2, 2], [0, 0]),
            spec(2, [7, 5], [3, 3], [2, 1], [1, 1]),
            spec(2, [5, 9], [2, 3], [1, 2], [1, 0]),
            spec(4, [7, 7], [7, 7], [7, 7], [0, 0]),
            spec(2, [19, 37], [2, 2], [2, 2], [0, 0]),
            spec(2, [18, 41], [2, 2], [2, 2], [1, 1]),
            spec(2, [20, 35], [3, 3], [2, 2], [1, 1]),
            spec(1, [9, 40], [3, 3], [1, 1], [1, 1]),
            spec(2, [6, 39], [2, 2], [1, 1], [0, 0]),
        ]
    }

    /// For each output, the places of its window that lie in the image.
    fn windows(s: &Pool2dSpec) -> Vec<Vec<usize>> {
        let [h, w] = s.input;
        let mut windows = Vec::new();
        for (plane, o) in (0..s.planes).flat_map(|p| (0..s.output[0] * s.output[1]).map(move |o| (p, o))) {
            let (r, c) = (o / s.output[1] * s.stride[0], o % s.output[1] * s.stride[1]);
            let taps = (0..s.kernel[0] * s.kernel[1]).map(|k| (r + k / s.kernel[1], c + k % s.kernel[1]));
            let inside = taps.filter_map(|(r, c)| {
                let (r, c) = (r.checked_sub(s.padding[0])?, c.checked_sub(s.padding[1])?);
                (r < h && c < w).then_some(plane * h * w + r * w + c)
            });
            windows.push(inside.collect());
        }
        windows
    }

    #[test]
    fn maxima_and_means_are_those_of_the_windows_and_gradients_go_back() {
        for (device, s) in devices::<f64>().into_iter().flat_map(|d| specs().map(|s| (d, s))) {
            let area = s.input[0] * s.input[1];
            let (x, windows) = (random(1, s.planes * area), windows(&s));
            let dy = random(2, windows.len());
            let (mut y, mut argmax) = (vec![0.0; windows.len()], vec![0; windows.len()]);
            let mut dx = vec![f64::NAN; x.len()];
            device.max_pool2d(&s, &x, &mut y, Some(&mut argmax));
            let best: Vec<usize> =
                windows.iter().map(|w| *w.iter().max_by(|&&a, &&b| x[a].total_cmp(&x[b])).unwrap()).collect();
            assert_eq!(y, best.iter().map(|&i| x[i]).collect::<Vec<_>>());
            assert_eq!(argmax, best.iter().map(|&i| (i % area) as u32).collect::<Vec<_>>());
            device.max_pool2d_vjp(&s, &argmax, &dy, &mut dx);
            let mut expected = vec![0.0; x.len()];
            best.iter().zip(&dy).for_each(|(&i, g)| expected[i] += g);
            assert_close(&dx, &expected, 1e-15, "max dx");

            let share = 1.0 / (s.kernel[0] * s.kernel[1]) as f64;
            device.avg_pool2d(&s, &x, &mut y);
            let expected: Vec<f64> =
                windows.iter().map(|w| w.iter().map(|&i| x[i]).sum::<f64>() * share).collect();
            assert_close(&y, &expected, 1e-14, "avg");
            device.avg_pool2d_vjp(&s, &dy, &mut dx);
            let mut expected = vec![0.0; x.len()];
            windows.iter().zip(&dy).for_each(|(w, g)| w.iter().for_each(|&i| expected[i] += g * share));
            assert_close(&dx, &expected, 1e-14, "avg dx");
        }
    }

    #[test]
    fn the_first_of_equal_maxima_wins_and_nan_wins_over_all() {
        const WINDOWS: usize = 19;
        let s = spec(1, [2, 2 * WINDOWS], [2, 2], [2, 2], [0, 0]);
        for device in devices::<f32>() {
            for (x, at) in [
                ([1.0, 1.0, 1.0, 1.0], 0),
                ([0.0, 2.0, 2.0, 1.0], 1),
                ([f32::NEG_INFINITY; 4], 0),
                ([9.0, 1.0, f32::NAN, 3.0], 2),
                ([f32::NAN, f32::NAN, 5.0, f32::INFINITY], 0),
            ] {
                let (mut y, mut alone, mut argmax) = ([0.0; WINDOWS], [0.0; WINDOWS], [9; WINDOWS]);
                let image = [x[..2].repeat(WINDOWS), x[2..].repeat(WINDOWS)].concat();
                device.max_pool2d(&s, &image, &mut y, Some(&mut argmax));
                device.max_pool2d(&s, &image, &mut alone, None);
                for (c, (argmax, y)) in argmax.iter().zip(y.iter().zip(alone)).enumerate() {
                    assert_eq!(*argmax as usize, at / 2 * 2 * WINDOWS + 2 * c + at % 2, "{x:?}");
                    assert_eq!([y.0.to_bits(), y.1.to_bits()], [x[at].to_bits(); 2]);
                }
            }
        }
    }

    #[test]
    fn of_few_values_the_first_largest_wins_in_every_window() {
        const VALUES: [f32; 5] = [f32::NEG_INFINITY, -1.0, 0.0, 2.0, f32::NAN];
        for (device, s) in devices::<f32>().into_iter().flat_map(|d| specs().map(|s| (d, s))) {
            let area = s.input[0] * s.input[1];
            // Most windows have no NaN, or it would win in all of them.
            let value = |x: &f64| VALUES[if *x > 0.95 { 4 } else { (x.abs() * 4.0) as usize }];
            let x: Vec<f32> = random(1, s.planes * area).iter().map(value).collect();
            let windows = windows(&s);
            let (mut y, mut alone) = (vec![9.0; windows.len()], vec![9.0; windows.len()]);
            let mut argmax = vec![9; windows.len()];
            device.max_pool2d(&s, &x, &mut y, Some(&mut argmax));
            device.max_pool2d(&s, &x, &mut alone, None);
            for (o, window) in windows.iter().enumerate() {
                let nan = window.iter().find(|&&i| x[i].is_nan());
                let first = |best: usize, &i: &usize| if x[i] > x[best] { i } else { best };
                let best = *nan.unwrap_or(&window.iter().fold(window[0], first));
                assert_eq!(argmax[o] as usize, best % area, "{device:?} {s:?}");
                assert_eq!([y[o].to_bits(), alone[o].to_bits()], [x[best].to_bits(); 2], "{device:?} {s:?}");
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let s = spec(50, [40, 40], [3, 3], [2, 2], [1, 1]);
        let x: Vec<f32> = reals(&random(1, 50 * 1600));
        let n = 50 * s.output[0] * s.output[1];
        let run = |threads| {
            on_threads(threads, || {
                let device = devices::<f32>().pop().unwrap();
                let (mut y, mut argmax, mut dx, mut mean) =
                    (vec![0.0; n], vec![0; n], x.clone(), vec![0.0; n]);
                device.max_pool2d(&s, &x, &mut y, Some(&mut argmax));
                device.max_pool2d_vjp(&s, &argmax, &y, &mut dx);
                device.avg_pool2d(&s, &x, &mut mean);
                (y, argmax, dx, mean)
            })
        };
        assert!(run(1) == run(4));
    }

    #[test]
    #[should_panic(expected = "windows leave the padded image")]
    fn an_output_that_is_too_large_is_refused() {
        let s = Pool2dSpec { output: [3, 2], ..spec(1, [4, 4], [2, 2], [2, 2], [0, 0]) };
        devices::<f32>()[0].avg_pool2d(&s, &[0.0; 16], &mut [0.0; 6]);
    }
}
