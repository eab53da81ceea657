//! The factors of a convolution's products.

use std::ops::Range;

use super::Real;
use super::conv::is_pointwise;
use super::gemm::{Left, Mat, Right};
use super::isa::Available;
use super::scratch::Scratch;
use super::simd::{Simd, kernels};
use crate::ops::Conv2dSpec;

kernels! {
    fn pack_patches<E>(patches: &Patches<'_, E>, k: Range<usize>, columns: Range<usize>, width: usize, out: &mut [E]);
}

/// The pixels that a kernel sees, as a matrix: a row for each channel and tap, a column for each output of each
/// image. It is never stored; panels of it are packed straight from the images.
pub(crate) struct Patches<'a, E> {
    pub(crate) s: &'a Conv2dSpec,
    pub(crate) images: usize,
    /// From the group's first channel in the first image on.
    pub(crate) x: &'a [E],
}

impl<E> Patches<'_, E> {
    fn terms(&self) -> usize {
        self.s.in_channels / self.s.groups * self.s.kernel[0] * self.s.kernel[1]
    }

    fn columns(&self) -> usize {
        self.images * self.s.output[0] * self.s.output[1]
    }
}

/// The outputs along an axis whose pixel for this tap lies in the image.
#[inline(always)]
pub(crate) fn inside(s: &Conv2dSpec, axis: usize, tap: usize) -> Range<usize> {
    let (stride, offset) = (s.stride[axis], tap * s.dilation[axis]);
    let from = s.padding[axis].saturating_sub(offset).div_ceil(stride);
    let to = (s.input[axis] + s.padding[axis]).saturating_sub(offset).div_ceil(stride).min(s.output[axis]);
    from.min(to)..to
}

/// The pixel that output `o` sees through this tap; it must lie [`inside`].
#[inline(always)]
pub(crate) fn pixel(s: &Conv2dSpec, axis: usize, tap: usize, o: usize) -> usize {
    o * s.stride[axis] + tap * s.dilation[axis] - s.padding[axis]
}

/// The part of a range that lies in another.
#[inline(always)]
pub(crate) fn within(a: Range<usize>, b: Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

impl<E: Real> Right<E> for Patches<'_, E> {
    fn size(&self) -> (usize, usize) {
        (self.terms(), self.columns())
    }

    fn direct(&self) -> Option<Mat<'_, E>> {
        let whole = self.images == 1 && is_pointwise(self.s);
        whole.then(|| Mat::new(self.x, self.terms(), self.columns()))
    }

    fn pack(&self, isa: Available, k: Range<usize>, columns: Range<usize>, width: usize, out: &mut [E]) {
        run::pack_patches(isa, self, k, columns, width, out);
    }
}

#[inline(always)]
fn pack_patches<S: Simd, E: Real>(
    patches: &Patches<'_, E>,
    k: Range<usize>,
    columns: Range<usize>,
    width: usize,
    out: &mut [E],
) {
    let s = patches.s;
    let ([h, w], [oh, ow], [kh, kw]) = (s.input, s.output, s.kernel);
    let panel = width * k.len();
    for (p, k) in k.enumerate() {
        let (channel, tap) = (k / (kh * kw), [k / kw % kh, k % kw]);
        let (rows, cols) = (inside(s, 0, tap[0]), inside(s, 1, tap[1]));
        for out in out.chunks_exact_mut(panel).take(columns.len().div_ceil(width)) {
            out[p * width..(p + 1) * width].fill(E::ZERO);
        }
        // One row of outputs after the other, as far as they are among the columns.
        let first = columns.start / ow;
        let (mut image, mut row) = (first / oh, first % oh);
        let mut at = first * ow;
        while at < columns.end {
            let seen = within(at + cols.start..at + cols.end, columns.clone());
            if rows.contains(&row) && !seen.is_empty() {
                let plane = (image * s.in_channels + channel) * h * w;
                let from = plane + pixel(s, 0, tap[0], row) * w + pixel(s, 1, tap[1], seen.start - at);
                let mut from = &patches.x[from..];
                let mut j = seen.start - columns.start;
                let end = seen.end - columns.start;
                // Panel by panel.
                while j < end {
                    let n = (width - j % width).min(end - j);
                    let to = j / width * panel + p * width + j % width;
                    copy_strided(&mut out[to..to + n], from, s.stride[1]);
                    from = from.get(n.saturating_mul(s.stride[1])..).unwrap_or_default();
                    j += n;
                }
            }
            at += ow;
            row += 1;
            if row == oh {
                (image, row) = (image + 1, 0);
            }
        }
    }
}

#[inline(always)]
fn copy_strided<E: Real>(to: &mut [E], from: &[E], stride: usize) {
    if stride == 1 {
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from;
        }
    } else {
        for (to, from) in to.iter_mut().zip(from.iter().step_by(stride)) {
            *to = *from;
        }
    }
}

/// The transpose of [`Patches`]: a row for each output, a column for each channel and tap.
pub(crate) struct PatchesT<'a, E>(pub(crate) Patches<'a, E>);

impl<E: Real> Right<E> for PatchesT<'_, E> {
    fn size(&self) -> (usize, usize) {
        (self.0.columns(), self.0.terms())
    }

    fn direct(&self) -> Option<Mat<'_, E>> {
        None
    }

    fn pack(&self, isa: Available, outputs: Range<usize>, taps: Range<usize>, width: usize, out: &mut [E]) {
        let n = outputs.len();
        let mut rows = Scratch::<E>::new(width * n);
        for (at, out) in taps.clone().step_by(width).zip(out.chunks_exact_mut(width * n)) {
            let taps = at..(at + width).min(taps.end);
            self.0.pack(isa, taps.clone(), outputs.clone(), n, &mut rows);
            Right::pack(&Mat::new(&rows, taps.len(), n).t(), isa, 0..n, 0..taps.len(), width, out);
        }
    }
}

/// A group's channels of dy, each a row over the outputs of all images.
pub(crate) struct Outputs<'a, E> {
    pub(crate) channels: usize,
    pub(crate) images: usize,
    pub(crate) area: usize,
    /// Distance between images.
    pub(crate) image: usize,
    /// From the group's first channel in the first image on.
    pub(crate) dy: &'a [E],
}

impl<E: Real> Left<E> for Outputs<'_, E> {
    fn size(&self) -> (usize, usize) {
        (self.channels, self.images * self.area)
    }

    fn matrix(&self) -> Option<Mat<'_, E>> {
        (self.images == 1).then(|| Mat::new(self.dy, self.channels, self.area))
    }

    fn pack(&self, isa: Available, rows: Range<usize>, k: Range<usize>, out: &mut [E]) {
        let mut at = k.start;
        while at < k.end {
            let (image, from) = (at / self.area, at % self.area);
            let here = from..(from + k.end - at).min(self.area);
            let dy = Mat::new(&self.dy[image * self.image..], self.channels, self.area);
            let out = &mut out[(at - k.start) * rows.len()..];
            at += here.len();
            Left::pack(&dy, isa, rows.clone(), here, out);
        }
    }
}
