//! Convolutions of each channel by itself: the outputs of a tap are a shifted piece of the image, times one weight.

use super::conv::{inside, pixel};
use super::isa::Available;
use super::par::{self, Rows, rows_per_task};
use super::simd::{Simd, dispatch};
use super::{Real, reduce};
use crate::ops::Conv2dSpec;

/// Calls `f` with every tap's number, row of outputs and matching pixels: where they start in x, where in y, and how
/// many there are.
#[inline(always)]
fn runs(s: &Conv2dSpec, mut f: impl FnMut(usize, usize, usize, usize)) {
    let [kh, kw] = s.kernel;
    for tap in 0..kh * kw {
        let (ki, kj) = (tap / kw, tap % kw);
        let cols = inside(s, 1, kj);
        if cols.is_empty() {
            continue;
        }
        for row in inside(s, 0, ki) {
            let x = pixel(s, 0, ki, row) * s.input[1] + pixel(s, 1, kj, cols.start);
            f(tap, x, row * s.output[1] + cols.start, cols.len());
        }
    }
}

#[inline(always)]
fn forward_planes<S: Simd, E: Real>(s: &Conv2dSpec, first: usize, x: &[E], w: &[E], b: Option<&[E]>, y: &mut [E]) {
    let (inputs, outputs, taps) = (s.input[0] * s.input[1], s.output[0] * s.output[1], s.kernel[0] * s.kernel[1]);
    for (plane, (x, y)) in x.chunks_exact(inputs).zip(y.chunks_exact_mut(outputs)).enumerate() {
        let channel = (first + plane) % s.in_channels;
        let w = &w[channel * taps..(channel + 1) * taps];
        y.fill(b.map_or(E::ZERO, |b| b[channel]));
        runs(s, |tap, from, to, n| {
            let w = w[tap];
            let y = &mut y[to..to + n];
            if s.stride[1] == 1 {
                for (y, x) in y.iter_mut().zip(&x[from..]) {
                    *y = x.mul_add::<S>(w, *y);
                }
            } else {
                for (y, x) in y.iter_mut().zip(x[from..].iter().step_by(s.stride[1])) {
                    *y = x.mul_add::<S>(w, *y);
                }
            }
        });
    }
}

#[inline(always)]
fn input_planes<S: Simd, E: Real>(s: &Conv2dSpec, first: usize, w: &[E], dy: &[E], dx: &mut [E]) {
    let (inputs, outputs, taps) = (s.input[0] * s.input[1], s.output[0] * s.output[1], s.kernel[0] * s.kernel[1]);
    for (plane, (dy, dx)) in dy.chunks_exact(outputs).zip(dx.chunks_exact_mut(inputs)).enumerate() {
        let channel = (first + plane) % s.in_channels;
        let w = &w[channel * taps..(channel + 1) * taps];
        dx.fill(E::ZERO);
        runs(s, |tap, to, from, n| {
            let w = w[tap];
            let dy = &dy[from..from + n];
            if s.stride[1] == 1 {
                for (dx, dy) in dx[to..].iter_mut().zip(dy) {
                    *dx = dy.mul_add::<S>(w, *dx);
                }
            } else {
                for (dx, dy) in dx[to..].iter_mut().step_by(s.stride[1]).zip(dy) {
                    *dx = dy.mul_add::<S>(w, *dx);
                }
            }
        });
    }
}

/// The weights of the channels from `first` on, each over all images in their order.
#[inline(always)]
fn weight_planes<S: Simd, E: Real>(s: &Conv2dSpec, first: usize, x: &[E], dy: &[E], dw: &mut [E]) {
    let (inputs, outputs, taps) = (s.input[0] * s.input[1], s.output[0] * s.output[1], s.kernel[0] * s.kernel[1]);
    for (channel, dw) in dw.chunks_exact_mut(taps).enumerate() {
        for image in 0..s.batch {
            let plane = image * s.in_channels + first + channel;
            let x = &x[plane * inputs..(plane + 1) * inputs];
            let dy = &dy[plane * outputs..(plane + 1) * outputs];
            let (mut tap, mut sum) = (0, 0.0);
            runs(s, |next, from, to, n| {
                if next != tap {
                    dw[tap] += E::from_f64(sum);
                    (tap, sum) = (next, 0.0);
                }
                let dy = &dy[to..to + n];
                sum += if s.stride[1] == 1 {
                    reduce::sum2(&x[from..from + n], dy, |x, g| x * g)
                } else {
                    let x = x[from..].iter().step_by(s.stride[1]);
                    x.zip(dy).map(|(x, g)| x.to_f64() * g.to_f64()).sum()
                };
            });
            dw[tap] += E::from_f64(sum);
        }
    }
}

pub(crate) fn forward<E: Real>(isa: Available, s: &Conv2dSpec, x: &[E], w: &[E], b: Option<&[E]>, y: &mut [E]) {
    let (inputs, outputs) = (s.input[0] * s.input[1], s.output[0] * s.output[1]);
    let views = (Rows(x, inputs), Rows(y, outputs));
    par::split(s.batch * s.in_channels, grain(s), views, &|first, (x, y)| {
        dispatch!(isa, forward_planes::<E>(s, first, x.0, w, b, y.0))
    });
}

pub(crate) fn input_gradient<E: Real>(isa: Available, s: &Conv2dSpec, w: &[E], dy: &[E], dx: &mut [E]) {
    let (inputs, outputs) = (s.input[0] * s.input[1], s.output[0] * s.output[1]);
    if inputs == 0 || outputs == 0 {
        return dx.fill(E::ZERO);
    }
    let views = (Rows(dy, outputs), Rows(dx, inputs));
    par::split(s.batch * s.in_channels, grain(s), views, &|first, (dy, dx)| {
        dispatch!(isa, input_planes::<E>(s, first, w, dy.0, dx.0))
    });
}

pub(crate) fn weight_gradient<E: Real>(isa: Available, s: &Conv2dSpec, x: &[E], dy: &[E], dw: &mut [E]) {
    let taps = s.kernel[0] * s.kernel[1];
    par::split(s.in_channels, (grain(s) / s.batch.max(1)).max(1), Rows(dw, taps), &|first, dw| {
        dispatch!(isa, weight_planes::<E>(s, first, x, dy, dw.0))
    });
}

/// Planes that make up a task.
fn grain(s: &Conv2dSpec) -> usize {
    rows_per_task(s.output[0] * s.output[1] * s.kernel[0] * s.kernel[1])
}
