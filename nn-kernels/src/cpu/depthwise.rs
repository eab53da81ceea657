//! Convolutions of each channel by itself: the outputs of a tap are a shifted piece of the image, times one weight.

use std::ops::Range;

use super::isa::Available;
use super::par::{self, Rows, rows_per_task};
use super::patches::{inside, pixel};
use super::simd::{Simd, kernels};
use super::{Real, reduce};
use crate::ops::Conv2dSpec;

kernels! {
    fn forward_planes<E>(s: &Conv2dSpec, first: usize, x: &[E], w: &[E], b: Option<&[E]>, y: &mut [E]);
    fn input_planes<E>(s: &Conv2dSpec, first: usize, w: &[E], dy: &[E], dx: &mut [E]);
    fn weight_planes<E>(s: &Conv2dSpec, first: usize, x: &[E], dy: &[E], dw: &mut [E]);
}

/// The pixels and outputs that meet at one tap: for each row, `cols` of them.
struct Tap {
    rows: Range<usize>,
    cols: Range<usize>,
    at: [usize; 2],
}

impl Tap {
    #[inline(always)]
    fn new(s: &Conv2dSpec, tap: usize) -> Self {
        let at = [tap / s.kernel[1], tap % s.kernel[1]];
        let cols = inside(s, 1, at[1]);
        let rows = if cols.is_empty() { 0..0 } else { inside(s, 0, at[0]) };
        Self { rows, cols, at }
    }

    /// Where a row's first pixel and first output lie.
    #[inline(always)]
    fn starts(&self, s: &Conv2dSpec, row: usize) -> (usize, usize) {
        let pixel = pixel(s, 0, self.at[0], row) * s.input[1] + pixel(s, 1, self.at[1], self.cols.start);
        (pixel, row * s.output[1] + self.cols.start)
    }
}

/// Pixels of a plane of x, of a plane of y, and taps.
#[inline(always)]
fn sizes(s: &Conv2dSpec) -> (usize, usize, usize) {
    (s.input[0] * s.input[1], s.output[0] * s.output[1], s.kernel[0] * s.kernel[1])
}

#[inline(always)]
fn forward_planes<S: Simd, E: Real>(
    s: &Conv2dSpec,
    first: usize,
    x: &[E],
    w: &[E],
    b: Option<&[E]>,
    y: &mut [E],
) {
    let (inputs, outputs, taps) = sizes(s);
    for (plane, (x, y)) in x.chunks_exact(inputs).zip(y.chunks_exact_mut(outputs)).enumerate() {
        let channel = (first + plane) % s.in_channels;
        y.fill(b.map_or(E::ZERO, |b| b[channel]));
        for (k, &w) in w[channel * taps..(channel + 1) * taps].iter().enumerate() {
            let tap = Tap::new(s, k);
            for row in tap.rows.clone() {
                let (from, to) = tap.starts(s, row);
                let y = &mut y[to..to + tap.cols.len()];
                if s.stride[1] == 1 {
                    for (y, x) in y.iter_mut().zip(&x[from..]) {
                        *y = x.mul_add::<S>(w, *y);
                    }
                } else {
                    for (y, x) in y.iter_mut().zip(x[from..].iter().step_by(s.stride[1])) {
                        *y = x.mul_add::<S>(w, *y);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn input_planes<S: Simd, E: Real>(s: &Conv2dSpec, first: usize, w: &[E], dy: &[E], dx: &mut [E]) {
    let (inputs, outputs, taps) = sizes(s);
    for (plane, (dy, dx)) in dy.chunks_exact(outputs).zip(dx.chunks_exact_mut(inputs)).enumerate() {
        let channel = (first + plane) % s.in_channels;
        dx.fill(E::ZERO);
        for (k, &w) in w[channel * taps..(channel + 1) * taps].iter().enumerate() {
            let tap = Tap::new(s, k);
            for row in tap.rows.clone() {
                let (to, from) = tap.starts(s, row);
                let dy = &dy[from..from + tap.cols.len()];
                if s.stride[1] == 1 {
                    for (dx, dy) in dx[to..].iter_mut().zip(dy) {
                        *dx = dy.mul_add::<S>(w, *dx);
                    }
                } else {
                    for (dx, dy) in dx[to..].iter_mut().step_by(s.stride[1]).zip(dy) {
                        *dx = dy.mul_add::<S>(w, *dx);
                    }
                }
            }
        }
    }
}

/// The weights of the channels from `first` on, each over all images in their order.
#[inline(always)]
fn weight_planes<S: Simd, E: Real>(s: &Conv2dSpec, first: usize, x: &[E], dy: &[E], dw: &mut [E]) {
    let (inputs, outputs, taps) = sizes(s);
    for (channel, dw) in dw.chunks_exact_mut(taps).enumerate() {
        for (k, dw) in dw.iter_mut().enumerate() {
            let tap = Tap::new(s, k);
            let mut sum = 0.0;
            for image in 0..s.batch {
                let plane = image * s.in_channels + first + channel;
                let x = &x[plane * inputs..(plane + 1) * inputs];
                let dy = &dy[plane * outputs..(plane + 1) * outputs];
                for row in tap.rows.clone() {
                    let (from, to) = tap.starts(s, row);
                    let dy = &dy[to..to + tap.cols.len()];
                    if s.stride[1] == 1 {
                        sum += reduce::sum2(&x[from..from + dy.len()], dy, |x, g| x * g);
                    } else {
                        for (x, g) in x[from..].iter().step_by(s.stride[1]).zip(dy) {
                            sum += x.to_f64() * g.to_f64();
                        }
                    }
                }
            }
            *dw += E::from_f64(sum);
        }
    }
}

pub(crate) fn forward<E: Real>(
    isa: Available,
    s: &Conv2dSpec,
    x: &[E],
    w: &[E],
    b: Option<&[E]>,
    y: &mut [E],
) {
    let (inputs, outputs, _) = sizes(s);
    let views = (Rows(x, inputs), Rows(y, outputs));
    par::split(s.batch * s.in_channels, grain(s), views, &|first, (x, y)| {
        run::forward_planes(isa, s, first, x.0, w, b, y.0)
    });
}

pub(crate) fn input_gradient<E: Real>(isa: Available, s: &Conv2dSpec, w: &[E], dy: &[E], dx: &mut [E]) {
    let (inputs, outputs, _) = sizes(s);
    if inputs == 0 || outputs == 0 {
        return dx.fill(E::ZERO);
    }
    let views = (Rows(dy, outputs), Rows(dx, inputs));
    par::split(s.batch * s.in_channels, grain(s), views, &|first, (dy, dx)| {
        run::input_planes(isa, s, first, w, dy.0, dx.0)
    });
}

pub(crate) fn weight_gradient<E: Real>(isa: Available, s: &Conv2dSpec, x: &[E], dy: &[E], dw: &mut [E]) {
    let taps = s.kernel[0] * s.kernel[1];
    par::split(s.in_channels, (grain(s) / s.batch.max(1)).max(1), Rows(dw, taps), &|first, dw| {
        run::weight_planes(isa, s, first, x, dy, dw.0)
    });
}

/// Planes that make up a task.
fn grain(s: &Conv2dSpec) -> usize {
    let (_, outputs, taps) = sizes(s);
    rows_per_task(outputs.saturating_mul(taps))
}
