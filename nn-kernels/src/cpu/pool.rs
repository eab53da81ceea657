use std::ops::Range;

use super::par::{self, Rows, rows_per_task};
use super::simd::{Simd, kernels};
use super::{Real, kernels::Kernels};
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

#[inline(always)]
fn max_pool<S: Simd, E: Real>(s: Pool2dSpec, x: &[E], y: &mut [E], argmax: Option<&mut [u32]>) {
    let [h, w] = s.input;
    let [oh, ow] = s.output;
    let mut argmax = argmax.map(|argmax| argmax.iter_mut());
    for (x, y) in x.chunks_exact(h * w).zip(y.chunks_exact_mut(oh * ow)) {
        for (o, y) in y.iter_mut().enumerate() {
            let (rows, cols) = (window(&s, 0, o / ow), window(&s, 1, o % ow));
            let (mut best, mut at) = (E::from_f64(f64::NEG_INFINITY), rows.start * w + cols.start);
            for r in rows {
                for (c, &v) in x[r * w + cols.start..r * w + cols.end].iter().enumerate() {
                    // A NaN wins too, and nothing wins against it.
                    let wins = v > best || is_nan(v) && !is_nan(best);
                    if wins {
                        (best, at) = (v, r * w + cols.start + c);
                    }
                }
            }
            *y = best;
            if let Some(argmax) = argmax.as_mut().and_then(Iterator::next) {
                *argmax = at as u32;
            }
        }
    }
}

#[inline(always)]
fn is_nan<E: Real>(x: E) -> bool {
    x.partial_cmp(&x).is_none()
}

#[inline(always)]
fn max_pool_vjp<S: Simd, E: Real>(s: Pool2dSpec, argmax: &[u32], dy: &[E], dx: &mut [E]) {
    let (plane, outputs) = (s.input[0] * s.input[1], s.output[0] * s.output[1]);
    dx.fill(E::ZERO);
    let planes = argmax.chunks_exact(outputs).zip(dy.chunks_exact(outputs));
    for ((argmax, dy), dx) in planes.zip(dx.chunks_exact_mut(plane)) {
        for (&at, &g) in argmax.iter().zip(dy) {
            dx[at as usize] += g;
        }
    }
}

#[inline(always)]
fn avg_pool<S: Simd, E: Real>(s: Pool2dSpec, x: &[E], y: &mut [E]) {
    let [h, w] = s.input;
    let [oh, ow] = s.output;
    let area = (s.kernel[0] * s.kernel[1]) as f64;
    for (x, y) in x.chunks_exact(h * w).zip(y.chunks_exact_mut(oh * ow)) {
        for (o, y) in y.iter_mut().enumerate() {
            let (rows, cols) = (window(&s, 0, o / ow), window(&s, 1, o % ow));
            let mut sum = 0.0;
            for r in rows {
                for v in &x[r * w + cols.start..r * w + cols.end] {
                    sum += v.to_f64();
                }
            }
            *y = E::from_f64(sum / area);
        }
    }
}

#[inline(always)]
fn avg_pool_vjp<S: Simd, E: Real>(s: Pool2dSpec, dy: &[E], dx: &mut [E]) {
    let [h, w] = s.input;
    let [oh, ow] = s.output;
    let share = E::from_f64(1.0 / (s.kernel[0] * s.kernel[1]) as f64);
    dx.fill(E::ZERO);
    for (dy, dx) in dy.chunks_exact(oh * ow).zip(dx.chunks_exact_mut(h * w)) {
        for (o, &g) in dy.iter().enumerate() {
            let (rows, cols) = (window(&s, 0, o / ow), window(&s, 1, o % ow));
            for r in rows {
                for d in &mut dx[r * w + cols.start..r * w + cols.end] {
                    *d += g * share;
                }
            }
        }
    }
}

#[track_caller]
fn check(name: &str, s: &Pool2dSpec, x: usize, y: usize) -> (usize, usize) {
    let (inputs, outputs) = (s.input[0] * s.input[1], s.output[0] * s.output[1]);
    assert!(inputs > 0 && outputs > 0, "{name}: an empty image");
    assert_eq!(x, s.planes * inputs, "{name}: x or dx is not planes × input");
    assert_eq!(y, s.planes * outputs, "{name}: y or dy is not planes × output");
    for axis in 0..2 {
        let reach = (s.output[axis] - 1) * s.stride[axis] + s.kernel[axis];
        assert!(
            s.kernel[axis] > 0 && reach <= s.input[axis] + 2 * s.padding[axis],
            "{name}: windows leave the padded image"
        );
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
