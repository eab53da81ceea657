//! Convolutions of each channel by itself: the outputs of a tap are a shifted piece of the image, times one weight.
//!
//! Each plane is copied with its zeros, and for a stride its columns are sorted by their remainder, so that the pixels of
//! neighbouring outputs are neighbours. Sums stay in registers over all taps, and over all outputs for a weight.

use super::Real;
use super::direct::{copy, zero};
use super::elementwise::activate;
use super::isa::Available;
use super::par::{self, Rows, rows_per_task};
use super::scratch::Scratch;
use super::simd::{Simd, kernels};
use super::sweep::{Axis, backward, forward as outputs_along};
use super::vector::Vector;
use crate::ops::Conv2dSpec;

kernels! {
    fn forward_planes<E>(s: &Conv2dSpec, first: usize, x: &[E], w: &[E], b: Option<&[E]>, y: &mut [E]);
    fn input_planes<E>(s: &Conv2dSpec, first: usize, w: &[E], dy: &[E], dx: &mut [E]);
    fn weight_planes<E>(s: &Conv2dSpec, first: usize, x: &[E], dy: &[E], dw: &mut [E]);
}

/// Pixels of a plane of x, of a plane of y, and taps.
#[inline(always)]
fn sizes(s: &Conv2dSpec) -> (usize, usize, usize) {
    (s.input[0] * s.input[1], s.output[0] * s.output[1], s.kernel[0] * s.kernel[1])
}

/// A kernel's taps that some outputs see: weights, and the distances from an output's place.
#[derive(Clone, Copy)]
struct Taps<'a, E> {
    w: &'a [E],
    at: &'a [u32],
}

/// How a plane is copied for some outputs.
#[derive(Clone, Copy)]
struct Sheet {
    axes: [Axis; 2],
    input: [usize; 2],
    /// The pixel that the copy starts with.
    start: [isize; 2],
    rows: usize,
    /// Values of a row's columns of one remainder, with room for a register more, and of the row.
    part: usize,
    row: usize,
}

impl Sheet {
    #[inline(always)]
    fn new(axes: [Axis; 2], input: [usize; 2], lanes: usize) -> Self {
        let seen = axes.map(|axis| axis.taps.seen());
        let span =
            |a: usize| (axes[a].count.max(1) - 1) * axes[a].step + (seen[a].1 - seen[a].0) as usize + 1;
        let part = span(1).div_ceil(axes[1].step) + lanes;
        Self { axes, input, start: seen.map(|seen| seen.0), rows: span(0), part, row: part * axes[1].step }
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.rows * self.row
    }

    #[inline(always)]
    fn taps(&self) -> usize {
        self.axes[0].taps.count * self.axes[1].taps.count
    }

    /// The tap's number among the kernel's, and its distance from an output's place.
    #[inline(always)]
    fn tap(&self, t: usize, width: usize) -> (usize, usize) {
        let [rows, cols] = self.axes.map(|axis| axis.taps);
        let (i, j) = (t / cols.count, t % cols.count);
        let row = (rows.pixel + rows.pixel_step * i as isize - self.start[0]) as usize;
        let col = (cols.pixel + cols.pixel_step * j as isize - self.start[1]) as usize;
        let step = self.axes[1].step;
        let number = (rows.tap + i * rows.tap_step) * width + cols.tap + j * cols.tap_step;
        (number, row * self.row + col % step * self.part + col / step)
    }

    #[inline(always)]
    fn fill<S: Simd, E: Real>(&self, x: &[E], sheet: &mut [E]) {
        let [h, w] = self.input;
        let step = self.axes[1].step;
        let from = (-self.start[1]).max(0) as usize;
        let first = self.start[1].max(0) as usize;
        for (r, row) in sheet.chunks_exact_mut(self.row).enumerate() {
            let at = r as isize + self.start[0];
            zero::<S, E>(row);
            if at < 0 || at >= h as isize {
                continue;
            }
            let x = &x[at as usize * w..][..w];
            if first >= w {
                continue;
            }
            if step == 1 {
                let n = (w - first).min(self.part.saturating_sub(from));
                copy::<S, E>(&x[first..first + n], &mut row[from..from + n]);
                continue;
            }
            for remainder in 0..step {
                // The first column with this remainder that is a pixel.
                let skip = (remainder + step - from % step) % step;
                if first + skip >= w {
                    continue;
                }
                let to = &mut row[remainder * self.part + (from + skip) / step..(remainder + 1) * self.part];
                for (to, x) in to.iter_mut().zip(x[first + skip..].iter().step_by(step)) {
                    *to = *x;
                }
            }
        }
    }

    /// Writes the sums of all outputs, one row after the other.
    #[inline(always)]
    fn sums<S: Simd, E: Real>(&self, sheet: &[E], taps: Taps<'_, E>, start: E, y: &mut [E]) {
        let lanes = <E::Vector<S> as Vector>::LANES;
        let [rows, cols] = self.axes;
        let beyond =
            taps.at.iter().fold(0, |max, &at| max.max(at)) as usize + cols.count.next_multiple_of(lanes);
        assert!(
            rows.count == 0 || sheet.len() >= (rows.count - 1) * rows.step * self.row + beyond,
            "taps beyond the plane"
        );
        for (r, y) in y.chunks_exact_mut(cols.count).enumerate().take(rows.count) {
            let sheet = sheet[r * rows.step * self.row..].as_ptr();
            let mut c = 0;
            while c < cols.count {
                let left = cols.count - c;
                // SAFETY: `S` is the instruction set this runs on, as this is called through `run` alone. For each tap
                // whole registers are read up to the column `cols.count.next_multiple_of(lanes)` at most, which is in
                // the sheet, by the assertion; what is written ends at `cols.count`, the length of y.
                unsafe {
                    let (sheet, y) = (sheet.add(c), y.as_mut_ptr().add(c));
                    if left >= 4 * lanes {
                        sum::<S, E, 4>(sheet, taps, start, y, lanes);
                        c += 4 * lanes;
                    } else if left >= 2 * lanes {
                        sum::<S, E, 2>(sheet, taps, start, y, lanes);
                        c += 2 * lanes;
                    } else {
                        sum::<S, E, 1>(sheet, taps, start, y, left.min(lanes));
                        c += lanes;
                    }
                }
            }
        }
    }
}

/// Writes `V` registers of outputs, of the last one as many values as `last`.
///
/// # Safety
/// The processor has the instruction set; V registers may be read at each tap from `sheet` on, and V − 1 registers and
/// `last` values written to y.
#[inline(always)]
unsafe fn sum<S: Simd, E: Real, const V: usize>(
    sheet: *const E,
    taps: Taps<'_, E>,
    start: E,
    y: *mut E,
    last: usize,
) {
    // SAFETY: what is read and written is what the caller promises.
    unsafe {
        let lanes = <E::Vector<S> as Vector>::LANES;
        let mut sums = [E::Vector::<S>::splat(start); V];
        for (w, at) in taps.w.iter().zip(taps.at) {
            let (w, from) = (E::Vector::<S>::splat(*w), sheet.add(*at as usize));
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = E::Vector::<S>::load(from.add(v * lanes)).mul_add(w, *sum);
            }
        }
        for (v, sum) in sums.iter().enumerate() {
            let to = y.add(v * lanes);
            if v + 1 == V && last < lanes { sum.store_part(to, last) } else { sum.store(to) }
        }
    }
}

/// Calls `f` with the number of each plane of `x` and `y`, the sheet of the plane of x and the taps with their weights.
#[inline(always)]
fn planes<S: Simd, E: Real>(
    s: &Conv2dSpec,
    sheet: &Sheet,
    first: usize,
    w: &[E],
    x: &[E],
    mut f: impl FnMut(usize, usize, &[E], Taps<'_, E>),
) {
    let (all, seen) = (s.kernel[0] * s.kernel[1], sheet.taps());
    let mut values = Scratch::<E>::new(sheet.len() + seen);
    let (plane, weights) = values.split_at_mut(sheet.len());
    let mut at = Scratch::<u32>::new(seen);
    for (t, at) in at.iter_mut().enumerate() {
        *at = sheet.tap(t, s.kernel[1]).1 as u32;
    }
    for (number, x) in x.chunks_exact(sheet.input[0] * sheet.input[1]).enumerate() {
        let channel = (first + number) % s.in_channels;
        for (t, weight) in weights.iter_mut().enumerate() {
            *weight = w[channel * all + sheet.tap(t, s.kernel[1]).0];
        }
        sheet.fill::<S, E>(x, plane);
        f(number, channel, plane, Taps { w: weights, at: &at });
    }
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
    let outputs = s.output[0] * s.output[1];
    let axes = [outputs_along(s, 0), outputs_along(s, 1)];
    let sheet = Sheet::new(axes, s.input, <E::Vector<S> as Vector>::LANES);
    planes::<S, E>(s, &sheet, first, w, x, |number, channel, plane, taps| {
        let start = b.map_or(E::ZERO, |b| b[channel]);
        let y = &mut y[number * outputs..(number + 1) * outputs];
        sheet.sums::<S, E>(plane, taps, start, &mut *y);
        activate::<S, E>(s.act, y);
    });
}

/// A convolution of dy with the taps turned round, one for each remainder of a pixel's place modulo the stride.
#[inline(always)]
fn input_planes<S: Simd, E: Real>(s: &Conv2dSpec, first: usize, w: &[E], dy: &[E], dx: &mut [E]) {
    let inputs = s.input[0] * s.input[1];
    let alone = s.stride == [1, 1];
    if !alone {
        // Some pixels may meet no output.
        dx.fill(E::ZERO);
    }
    for phase in 0..s.stride[0] * s.stride[1] {
        let axes = [backward(s, 0, phase / s.stride[1]), backward(s, 1, phase % s.stride[1])];
        let [rows, cols] = axes;
        if axes.iter().any(|axis| axis.taps.count == 0 || axis.count == 0) {
            if alone {
                dx.fill(E::ZERO);
            }
            continue;
        }
        let sheet = Sheet::new(axes, s.output, <E::Vector<S> as Vector>::LANES);
        let mut sums = Scratch::<E>::new(if alone { 0 } else { rows.count * cols.count });
        planes::<S, E>(s, &sheet, first, w, dy, |number, _, plane, taps| {
            let dx = &mut dx[number * inputs..(number + 1) * inputs];
            if alone {
                return sheet.sums::<S, E>(plane, taps, E::ZERO, dx);
            }
            sheet.sums::<S, E>(plane, taps, E::ZERO, &mut sums);
            for (r, sums) in sums.chunks_exact(cols.count).enumerate() {
                let dx = &mut dx[(rows.first + r * rows.every) * s.input[1] + cols.first..];
                for (dx, sum) in dx.iter_mut().step_by(cols.every).zip(sums) {
                    *dx = *sum;
                }
            }
        });
    }
}

/// Adds to `totals` each tap's sum of pixels times gradients over one plane, for `T` taps.
///
/// # Safety
/// The processor has the instruction set; at each tap as many rows of as many values as there are outputs may be read
/// from `plane` on, the rows `row` apart.
#[inline(always)]
unsafe fn correlate<S: Simd, E: Real, const T: usize>(
    plane: *const E,
    row: usize,
    at: &[u32],
    dy: &[E],
    cols: usize,
    totals: &mut [f64],
) {
    /// Lanes of the widest register.
    const MOST: usize = 16;
    let lanes = <E::Vector<S> as Vector>::LANES;
    // SAFETY: what is read is what the caller promises, and dy up to the end of each of its rows.
    unsafe {
        let mut sums = [E::Vector::<S>::splat(E::ZERO); T];
        let from: [*const E; T] = std::array::from_fn(|t| plane.wrapping_add(at[t] as usize));
        for (r, dy) in dy.chunks_exact(cols).enumerate() {
            let (dy, r) = (dy.as_ptr(), r * row);
            let mut c = 0;
            while c + lanes <= cols {
                let g = E::Vector::<S>::load(dy.add(c));
                for (sum, from) in sums.iter_mut().zip(from) {
                    *sum = E::Vector::<S>::load(from.add(r + c)).mul_add(g, *sum);
                }
                c += lanes;
            }
            if c < cols {
                // Parts of the pixels too: what lies beyond may be no number, and then no product with 0 is 0.
                let g = E::Vector::<S>::load_part(dy.add(c), cols - c);
                for (sum, from) in sums.iter_mut().zip(from) {
                    *sum = E::Vector::<S>::load_part(from.add(r + c), cols - c).mul_add(g, *sum);
                }
            }
        }
        for (total, sum) in totals.iter_mut().zip(sums) {
            let mut parts = [E::ZERO; MOST];
            sum.store(parts.as_mut_ptr());
            *total += parts[..lanes].iter().map(|part| part.to_f64()).sum::<f64>();
        }
    }
}

/// The weights of the channels from `first` on, each over all images in their order.
#[inline(always)]
fn weight_planes<S: Simd, E: Real>(s: &Conv2dSpec, first: usize, x: &[E], dy: &[E], dw: &mut [E]) {
    let (inputs, outputs, taps) = sizes(s);
    let axes = [outputs_along(s, 0), outputs_along(s, 1)];
    let sheet = Sheet::new(axes, s.input, <E::Vector<S> as Vector>::LANES);
    let row = axes[0].step * sheet.row;
    let mut plane = Scratch::<E>::new(sheet.len());
    let mut at = Scratch::<u32>::new(taps);
    for (t, at) in at.iter_mut().enumerate() {
        *at = sheet.tap(t, s.kernel[1]).1 as u32;
    }
    let last = at.iter().fold(0, |max, &at| max.max(at)) as usize;
    assert!(plane.len() >= (s.output[0] - 1) * row + last + s.output[1], "taps beyond the plane");
    let mut totals = Scratch::<f64>::new(taps);
    for (channel, dw) in dw.chunks_exact_mut(taps).enumerate() {
        totals.fill(0.0);
        for image in 0..s.batch {
            let number = image * s.in_channels + first + channel;
            sheet.fill::<S, E>(&x[number * inputs..(number + 1) * inputs], &mut plane);
            let dy = &dy[number * outputs..(number + 1) * outputs];
            let mut t = 0;
            while t < taps {
                let (plane, at, totals) = (plane.as_ptr(), &at[t..], &mut totals[t..]);
                // SAFETY: `S` is the instruction set this runs on, as this is called through `run` alone; at the last
                // of the taps all rows and columns of outputs are in the plane, by the assertion.
                unsafe {
                    match at.len() {
                        9.. => correlate::<S, E, 9>(plane, row, at, dy, s.output[1], totals),
                        3.. => correlate::<S, E, 3>(plane, row, at, dy, s.output[1], totals),
                        _ => correlate::<S, E, 1>(plane, row, at, dy, s.output[1], totals),
                    }
                }
                t += match taps - t {
                    9.. => 9,
                    3.. => 3,
                    _ => 1,
                };
            }
        }
        for (dw, total) in dw.iter_mut().zip(totals.iter()) {
            *dw += E::from_f64(*total);
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
    let (_, outputs, taps) = sizes(s);
    if outputs == 0 {
        return;
    }
    par::split(s.in_channels, (grain(s) / s.batch.max(1)).max(1), Rows(dw, taps), &|first, dw| {
        run::weight_planes(isa, s, first, x, dy, dw.0)
    });
}

/// Planes that make up a task.
fn grain(s: &Conv2dSpec) -> usize {
    let (_, outputs, taps) = sizes(s);
    rows_per_task(outputs.saturating_mul(taps))
}
