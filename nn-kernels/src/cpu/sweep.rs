//! Convolutions and their gradients as products of [`direct`](super::direct): what is padded, packed and swept over.

use std::ops::Range;

use super::Real;
use super::direct::{Columns, Gathered, Padding, turn};
use super::elementwise::activate_columns;
use super::isa::Available;
use super::par::{self, Rows};
use super::scratch::Scratch;
use crate::ops::{Conv2dSpec, Unary};

/// Values of a product's rows that stay in the second cache until they are turned into channels.
const ROWS: usize = 16 * 1024;
/// Values of a padded piece of an image that stay there too.
const PIECE: usize = 32 * 1024;

/// The taps along an axis that some outputs see: an arithmetic sequence, as are the pixels they see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taps {
    pub(super) count: usize,
    /// The kernel's first tap among them, and the distance of the next.
    pub(super) tap: usize,
    pub(super) tap_step: usize,
    /// The pixel that output 0 sees through the first, and the distance of the next tap's.
    pub(super) pixel: isize,
    pub(super) pixel_step: isize,
}

impl Taps {
    /// The first and the last pixel that output 0 sees.
    pub(super) fn seen(&self) -> (isize, isize) {
        let last = self.pixel + self.pixel_step * (self.count as isize - 1);
        (self.pixel.min(last), self.pixel.max(last))
    }
}

/// The outputs along an axis that see the same taps: from `first` on, `every` apart. Output number r of them sees pixels
/// `step`·r beyond those that the first one sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Axis {
    pub(super) first: usize,
    pub(super) every: usize,
    pub(super) count: usize,
    pub(super) step: usize,
    pub(super) taps: Taps,
}

/// Outputs of y along an axis.
pub(super) fn forward(s: &Conv2dSpec, axis: usize) -> Axis {
    let dilation = s.dilation[axis];
    let pixel = -(s.padding[axis] as isize);
    let taps = Taps { count: s.kernel[axis], tap: 0, tap_step: 1, pixel, pixel_step: dilation as isize };
    Axis { first: 0, every: 1, count: s.output[axis], step: s.stride[axis], taps }
}

/// Pixels of x along an axis whose distance from `phase` is a multiple of the stride, as outputs of the gradient: the
/// "pixels" they see are those of dy.
pub(super) fn backward(s: &Conv2dSpec, axis: usize, phase: usize) -> Axis {
    let (stride, dilation) = (s.stride[axis], s.dilation[axis]);
    let count = s.input[axis].saturating_sub(phase).div_ceil(stride);
    // Pixel phase + stride·r meets output o at tap k where o·stride = phase + stride·r + padding − k·dilation.
    let fits = |k: &usize| (phase + s.padding[axis]) as isize - (k * dilation) as isize;
    let meets = |k: &usize| fits(k).rem_euclid(stride as isize) == 0;
    let mut taps = (0..s.kernel[axis].min(2 * stride)).filter(meets);
    let Some(tap) = taps.next() else {
        return Axis {
            first: phase,
            every: stride,
            count,
            step: 1,
            taps: Taps { count: 0, tap: 0, tap_step: 1, pixel: 0, pixel_step: 0 },
        };
    };
    let tap_step = taps.next().map_or(s.kernel[axis], |next| next - tap);
    let taps = Taps {
        count: (s.kernel[axis] - tap).div_ceil(tap_step),
        tap,
        tap_step,
        pixel: fits(&tap).div_euclid(stride as isize),
        pixel_step: -((tap_step * dilation / stride) as isize),
    };
    Axis { first: phase, every: stride, count, step: 1, taps }
}

/// How the outputs of some axes are swept over: in bands of rows, each from a piece of the image.
struct Plan {
    axes: [Axis; 2],
    /// Channels and size of the image.
    channels: usize,
    input: [usize; 2],
    /// Rows of outputs in a band.
    rows: usize,
    /// The size of a piece, and where the first one starts.
    size: [usize; 2],
    start: [isize; 2],
    /// Whether the image is read as it lies: no output sees beyond it.
    lies: bool,
    /// The width of the image that the outputs belong to.
    line: usize,
}

impl Plan {
    fn new(axes: [Axis; 2], channels: usize, input: [usize; 2], columns: usize, line: usize) -> Self {
        let seen = axes.map(|axis| axis.taps.seen());
        let span =
            |a: usize, count: usize| (count.max(1) - 1) * axes[a].step + (seen[a].1 - seen[a].0) as usize + 1;
        let lies = (0..2).all(|a| seen[a].0 >= 0 && seen[a].0 as usize + span(a, axes[a].count) <= input[a]);
        let width = span(1, axes[1].count);
        let row = channels * width;
        let mut rows = (ROWS / (columns * axes[1].count).max(1)).clamp(1, axes[0].count.max(1));
        while !lies && rows > 1 && span(0, rows) * row > PIECE {
            rows -= 1;
        }
        // Bands of about the same height.
        rows = axes[0].count.div_ceil(axes[0].count.div_ceil(rows).max(1)).max(1);
        let (size, start) =
            if lies { (input, [0, 0]) } else { ([span(0, rows), width], [seen[0].0, seen[1].0]) };
        Self { axes, channels, input, rows, size, start, lies, line }
    }

    fn terms(&self) -> usize {
        self.channels * self.axes[0].taps.count * self.axes[1].taps.count
    }

    /// Outputs of a band.
    fn outputs(&self) -> usize {
        self.rows * self.axes[1].count
    }

    /// Values of a piece that must be made.
    fn piece(&self) -> usize {
        if self.lies { 0 } else { self.channels * self.size[0] * self.size[1] }
    }

    /// Rows of outputs of each band.
    fn bands(&self) -> impl Iterator<Item = Range<usize>> {
        let (rows, all) = (self.rows, self.axes[0].count);
        (0..all).step_by(rows).map(move |from| from..(from + rows).min(all))
    }

    /// Where the first pixels of a band's outputs lie in its piece, and where channels and taps lie from there.
    fn places(&self, outputs: &mut [u32], terms: &mut [u32]) {
        let [rows, cols] = self.axes;
        for (r, line) in outputs.chunks_exact_mut(cols.count.max(1)).enumerate() {
            for (c, place) in line.iter_mut().enumerate() {
                *place = (r * rows.step * self.size[1] + c * cols.step) as u32;
            }
        }
        let along = |axis: usize, tap: usize| {
            let taps = self.axes[axis].taps;
            (taps.pixel + taps.pixel_step * tap as isize - self.start[axis]) as usize
        };
        let mut place = terms.iter_mut();
        for channel in 0..self.channels {
            for row in 0..rows.taps.count {
                for col in 0..cols.taps.count {
                    if let Some(place) = place.next() {
                        let line = channel * self.size[0] + along(0, row);
                        *place = (line * self.size[1] + along(1, col)) as u32;
                    }
                }
            }
        }
    }

    /// The piece of the image that a band of outputs sees, with those of its channels that are asked for.
    fn see<'a, E: Real>(
        &self,
        isa: Available,
        x: &'a [E],
        band: &Range<usize>,
        channels: Range<usize>,
        piece: &'a mut [E],
    ) -> &'a [E] {
        let from = band.start * self.axes[0].step;
        if self.lies {
            return &x[from * self.size[1]..];
        }
        let first = [self.start[0] + from as isize, self.start[1]];
        let (pixels, places) = (self.input[0] * self.input[1], self.size[0] * self.size[1]);
        let padding = Padding { channels: channels.len(), input: self.input, size: self.size, first };
        padding.pad(isa, &x[channels.start * pixels..], &mut piece[channels.start * places..]);
        piece
    }
}

/// Whether all places of a piece can be counted in 32 bits.
pub(crate) const fn fits(s: &Conv2dSpec) -> bool {
    const MOST: usize = u32::MAX as usize / 4;
    let mut axis = 0;
    let (mut x, mut y) = (s.in_channels, s.out_channels);
    while axis < 2 {
        let span = s.kernel[axis].saturating_mul(s.dilation[axis]);
        let seen = s.output[axis].saturating_mul(s.stride[axis]).saturating_add(span);
        x = x.saturating_mul(seen.saturating_add(s.input[axis]));
        y = y.saturating_mul(s.output[axis].saturating_add(s.input[axis]).saturating_add(span));
        axis += 1;
    }
    x < MOST && y < MOST
}

/// y = act(conv(x, w) + b).
pub(crate) fn outputs<E: Real>(
    isa: Available,
    s: &Conv2dSpec,
    x: &[E],
    w: &[E],
    b: Option<&[E]>,
    y: &mut [E],
) {
    let (ic, oc) = (s.in_channels / s.groups, s.out_channels / s.groups);
    let columns = Columns::new::<E>(isa);
    let plan = Plan::new([forward(s, 0), forward(s, 1)], ic, s.input, columns.of(oc), s.output[1]);
    let terms = plan.terms();
    let pack = |group: usize, panels: &mut [E]| {
        let w = &w[group * oc * terms..][..oc * terms];
        for at in (0..oc).step_by(columns.panel) {
            let n = columns.panel.min(oc - at);
            let width = columns.of(n);
            let panel = &mut panels[at * terms..][..width * terms];
            if n < width {
                panel.fill(E::ZERO);
            }
            turn(isa, (&w[at * terms..], terms), (n, terms), (panel, width));
        }
    };
    let bias = |group: usize, start: &mut [E]| {
        if let Some(b) = b {
            start[..oc].copy_from_slice(&b[group * oc..][..oc]);
        }
    };
    sweep(isa, s, &plan, columns, oc, s.act, x, y, pack, bias);
}

/// The gradient of x. As a convolution of dy with the taps turned round, one for each remainder of a pixel's place modulo
/// the stride.
pub(crate) fn input_gradient<E: Real>(isa: Available, s: &Conv2dSpec, w: &[E], dy: &[E], dx: &mut [E]) {
    let (ic, oc) = (s.in_channels / s.groups, s.out_channels / s.groups);
    let columns = Columns::new::<E>(isa);
    let taps = s.kernel[0] * s.kernel[1];
    if s.stride != [1, 1] {
        // Some pixels may meet no output.
        dx.fill(E::ZERO);
    }
    for phase in 0..s.stride[0] * s.stride[1] {
        let axes = [backward(s, 0, phase / s.stride[1]), backward(s, 1, phase % s.stride[1])];
        let [rows, cols] = axes.map(|axis| axis.taps);
        if rows.count * cols.count == 0 || axes[0].count * axes[1].count == 0 {
            if s.stride == [1, 1] {
                dx.fill(E::ZERO);
            }
            continue;
        }
        let plan = Plan::new(axes, oc, s.output, columns.of(ic), s.input[1]);
        let terms = plan.terms();
        let pack = |group: usize, panels: &mut [E]| {
            for at in (0..ic).step_by(columns.panel) {
                let n = columns.panel.min(ic - at);
                let width = columns.of(n);
                let panel = &mut panels[at * terms..][..width * terms];
                if n < width {
                    panel.fill(E::ZERO);
                }
                for (o, panel) in panel.chunks_exact_mut(terms / oc * width).enumerate() {
                    let w = &w[((group * oc + o) * ic + at) * taps..][..n * taps];
                    if s.stride == [1, 1] {
                        turn(isa, (w, taps), (n, taps), (panel, width));
                        continue;
                    }
                    for (t, panel) in panel.chunks_exact_mut(width).enumerate() {
                        let (row, col) = (t / cols.count, t % cols.count);
                        let tap =
                            (rows.tap + row * rows.tap_step) * s.kernel[1] + cols.tap + col * cols.tap_step;
                        for (to, w) in panel.iter_mut().zip(w[tap..].iter().step_by(taps)) {
                            *to = *w;
                        }
                    }
                }
            }
        };
        sweep(isa, s, &plan, columns, ic, Unary::Identity, dy, dx, pack, |_, _| {});
    }
}

/// Writes the outputs of a plan, `n` channels for each group. There is an activation only where they are all of y.
fn sweep<E: Real>(
    isa: Available,
    s: &Conv2dSpec,
    plan: &Plan,
    columns: Columns,
    n: usize,
    act: Unary,
    x: &[E],
    y: &mut [E],
    pack: impl Fn(usize, &mut [E]),
    bias: impl Fn(usize, &mut [E]),
) {
    let (terms, wide) = (plan.terms(), columns.of(n));
    let mut places = Scratch::<u32>::new(plan.outputs() + terms);
    let (at, off) = places.split_at_mut(plan.outputs());
    plan.places(at, off);
    let (at, off) = (&*at, &*off);
    let mut packed = Scratch::<E>::new(s.groups * (terms + 1) * wide);
    for (group, packed) in packed.chunks_exact_mut((terms + 1) * wide).enumerate() {
        let (start, panels) = packed.split_at_mut(wide);
        start.fill(E::ZERO);
        bias(group, start);
        pack(group, panels);
    }
    let packed = &*packed;

    let pieces = s.batch * s.groups;
    let (from, area) = (x.len() / pieces.max(1), y.len() / pieces.max(1) / n.max(1));
    let work = plan.axes[0].count * plan.axes[1].count * wide * terms;
    let image = |group: usize, channels: Range<usize>, x: &[E], y: &mut [E]| {
        let packed = &packed[group * (terms + 1) * wide..][..(terms + 1) * wide];
        let (start, panels) = packed.split_at(wide);
        let width = columns.of(channels.len());
        let mut buffer = Scratch::<E>::new(plan.piece() + plan.outputs() * width);
        let (piece, sums) = buffer.split_at_mut(plan.piece());
        for band in plan.bands() {
            let at = &at[..band.len() * plan.axes[1].count];
            let x = plan.see(isa, x, &band, 0..plan.channels, piece);
            let product = Gathered {
                x,
                at,
                off,
                b: &panels[channels.start * terms..],
                columns: width,
                start: Some(&start[channels.start..]),
            };
            product.product(isa, sums);
            place(isa, plan, &band, (sums, width), channels.len(), y, area);
            // While they are in the cache.
            let line = plan.axes[1].count;
            activate_columns(isa, act, area, band.start * line..band.end * line, y);
        }
    };
    columns.each_image(pieces, [n, area], work, y, &|piece, some, y| {
        image(piece % s.groups, some, &x[piece * from..][..from], y);
    });
}

/// Puts a band's sums, a row for each output, where they belong.
fn place<E: Real>(
    isa: Available,
    plan: &Plan,
    band: &Range<usize>,
    (sums, width): (&[E], usize),
    channels: usize,
    y: &mut [E],
    area: usize,
) {
    let [rows, cols] = plan.axes;
    if rows.every == 1 && cols.every == 1 {
        let to = &mut y[band.start * cols.count..];
        return turn(isa, (sums, width), (band.len() * cols.count, channels), (to, area));
    }
    for (o, y) in y.chunks_exact_mut(area).enumerate() {
        for (r, sums) in sums.chunks_exact(cols.count * width).take(band.len()).enumerate() {
            let row = rows.first + rows.every * (band.start + r);
            let y = &mut y[row * plan.line..][cols.first..];
            for (y, sums) in y.iter_mut().step_by(cols.every).zip(sums.chunks_exact(width)) {
                *y = sums[o];
            }
        }
    }
}

/// dW += its gradient: for each band of outputs a product with the outputs as terms.
pub(crate) fn weight_gradient<E: Real>(isa: Available, s: &Conv2dSpec, x: &[E], dy: &[E], dw: &mut [E]) {
    let (ic, oc) = (s.in_channels / s.groups, s.out_channels / s.groups);
    let columns = Columns::new::<E>(isa);
    let wide = columns.of(oc);
    let plan = Plan::new([forward(s, 0), forward(s, 1)], ic, s.input, wide, s.output[1]);
    let (terms, taps) = (plan.terms(), s.kernel[0] * s.kernel[1]);
    let (pixels, area) = (s.input[0] * s.input[1], s.output[0] * s.output[1]);
    let mut places = Scratch::<u32>::new(plan.outputs() + terms);
    let (off, at) = places.split_at_mut(plan.outputs());
    plan.places(off, at);
    let (at, off) = (&*at, &*off);
    let mut sums = Scratch::<E>::new(terms * wide);
    let work = s.batch * area * wide;
    let grain = (super::gemm::WORK / work.max(1)).max(terms.div_ceil(par::threads()));
    for (group, dw) in dw.chunks_exact_mut(oc * terms).enumerate() {
        par::split(terms, grain, Rows(&mut sums[..], wide), &|first, sums: Rows<&mut [E]>| {
            let sums = sums.0;
            sums.fill(E::ZERO);
            let at = &at[first..first + sums.len() / wide];
            let channels = first / taps..(first + at.len()).div_ceil(taps);
            let mut buffer = Scratch::<E>::new(plan.piece() + plan.outputs() * wide);
            let (piece, panels) = buffer.split_at_mut(plan.piece());
            for image in 0..s.batch {
                let x = &x[(image * s.in_channels + group * ic) * pixels..][..ic * pixels];
                let dy = &dy[(image * s.out_channels + group * oc) * area..][..oc * area];
                for band in plan.bands() {
                    let off = &off[..band.len() * s.output[1]];
                    for from in (0..oc).step_by(columns.panel) {
                        let n = columns.panel.min(oc - from);
                        let width = columns.of(n);
                        let panel = &mut panels[from * off.len()..][..width * off.len()];
                        if n < width {
                            panel.fill(E::ZERO);
                        }
                        let dy = &dy[from * area + band.start * s.output[1]..];
                        turn(isa, (dy, area), (n, off.len()), (panel, width));
                    }
                    let x = plan.see(isa, x, &band, channels.clone(), piece);
                    let product = Gathered { x, at, off, b: panels, columns: wide, start: None };
                    product.product(isa, sums);
                }
            }
        });
        for (o, dw) in dw.chunks_exact_mut(terms).enumerate() {
            for (dw, sums) in dw.iter_mut().zip(sums.chunks_exact(wide)) {
                *dw += sums[o];
            }
        }
    }
}
