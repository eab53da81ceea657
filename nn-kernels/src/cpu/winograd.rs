//! Convolutions of 3×3 by fewer products: 16 for 2×2 outputs, not 36 (Lavin and Gray, *Fast Algorithms for Convolutional
//! Neural Networks*, 2016: F(2×2, 3×3)).
//!
//! Patches of 4×4 pixels, 2 apart, and the kernels are transformed so that their product by elements, summed over
//! channels, is the transform of 2×2 outputs. Each of the 16 elements is a matrix product of its own.

use std::ops::Range;

use super::Real;
use super::direct::{Columns, Gathered, Padding, turn};
use super::elementwise::activate_columns;
use super::isa::Available;
use super::scratch::Scratch;
use super::simd::{Simd, kernels};
use super::vector::Vector;
use crate::ops::{Conv2dSpec, Unary};

kernels! {
    fn transform_kernels<E>(turned: bool, taps: &[E], width: usize, out: &mut [E], next: usize);
    fn transform_pixels<E>(p: &Patches, x: &[E], out: &mut [E]);
    fn transform_back<E>(p: &Back, sums: &[E], start: &[E], y: &mut [E]);
}

/// Elements of a transformed patch.
const ELEMENTS: usize = 16;
/// Transformed values that stay in the second cache.
const VALUES: usize = 96 * 1024;

/// Whether there are such products for it.
pub(crate) const fn can(s: &Conv2dSpec) -> bool {
    s.kernel[0] == 3
        && s.kernel[1] == 3
        && s.stride[0] == 1
        && s.stride[1] == 1
        && s.dilation[0] == 1
        && s.dilation[1] == 1
}

/// a − b.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn less<V: Vector<Elem = E>, E: Real>(a: V, b: V) -> V {
    // SAFETY: the caller's.
    unsafe { b.mul_add(V::splat(E::lit(-1.0)), a) }
}

/// Patches of a piece of an image whose even columns lie before the odd ones.
struct Patches {
    channels: usize,
    /// Rows and columns of patches.
    rows: usize,
    cols: usize,
    /// Values between rows of a piece's columns of one parity.
    part: usize,
    /// Values between channels of the result.
    line: usize,
}

/// Bᵀ·patch·B of each patch: element e of channel c and patch t is `out[(e·channels + c)·line + t]`.
#[inline(always)]
fn transform_pixels<S: Simd, E: Real>(p: &Patches, x: &[E], out: &mut [E]) {
    let lanes = <E::Vector<S> as Vector>::LANES;
    let (row, plane) = (2 * p.part, (2 * p.rows + 2) * 2 * p.part);
    assert!(p.part > p.cols.next_multiple_of(lanes), "rows with room for a register more");
    assert!(x.len() >= p.channels * plane, "a piece for all patches");
    assert!(
        p.line >= p.rows * p.cols + lanes && out.len() >= ELEMENTS * p.channels * p.line,
        "room for all patches"
    );
    let next = p.channels * p.line;
    for channel in 0..p.channels {
        for r in 0..p.rows {
            for c in (0..p.cols).step_by(lanes) {
                // SAFETY: `S` is the instruction set this runs on, as this is called through `run` alone. Registers are
                // read from columns c and c + 1 of each part, c + 1 + lanes ≤ part by the first assertion, of rows up to
                // 2·rows + 1, all in x by the second; they are written from patch r·cols + c on, which leaves a
                // register in the line by the third.
                unsafe {
                    let from = x.as_ptr().add(channel * plane + 2 * r * row + c);
                    let to = out.as_mut_ptr().add(channel * p.line + r * p.cols + c);
                    let load = |i: usize, odd: usize, next: usize| {
                        E::Vector::<S>::load(from.add(i * row + odd * p.part + next))
                    };
                    macro_rules! column {
                        ($q:literal, $f:expr) => {
                            let f = $f;
                            let h = [f(0), f(1), f(2), f(3)];
                            let v = [less(h[0], h[2]), h[1].add(h[2]), less(h[2], h[1]), less(h[1], h[3])];
                            for (i, v) in v.into_iter().enumerate() {
                                v.store(to.add((4 * i + $q) * next));
                            }
                        };
                    }
                    column!(0, |i| less(load(i, 0, 0), load(i, 0, 1)));
                    column!(1, |i| load(i, 1, 0).add(load(i, 0, 1)));
                    column!(2, |i| less(load(i, 0, 1), load(i, 1, 0)));
                    column!(3, |i| less(load(i, 1, 0), load(i, 1, 1)));
                }
            }
        }
    }
}

/// G·kernel·Gᵀ of `width` kernels whose taps are rows of `taps`, for each channel; element e of channel c is the row
/// `out[e·next + c·width..]`.
#[inline(always)]
fn transform_kernels<S: Simd, E: Real>(turned: bool, taps: &[E], width: usize, out: &mut [E], next: usize) {
    let half = E::lit(0.5);
    for (c, taps) in taps.chunks_exact(9 * width).enumerate() {
        for o in 0..width {
            let tap = |k: usize| taps[if turned { 8 - k } else { k } * width + o];
            let across = |a: E, b: E, c: E| [a, (a + c + b) * half, (a + c - b) * half, c];
            let rows: [[E; 4]; 3] =
                std::array::from_fn(|r| across(tap(3 * r), tap(3 * r + 1), tap(3 * r + 2)));
            for q in 0..4 {
                let column = across(rows[0][q], rows[1][q], rows[2][q]);
                for (i, v) in column.into_iter().enumerate() {
                    out[(4 * i + q) * next + c * width + o] = v;
                }
            }
        }
    }
}

/// Outputs of a band.
struct Back {
    /// Rows and columns of patches.
    rows: usize,
    cols: usize,
    /// Columns of outputs.
    width: usize,
    /// Channels, a multiple of a register's.
    channels: usize,
    /// Values between elements.
    next: usize,
}

/// y = start + Aᵀ·sums·A: rows of channels for each output, and two rows of outputs for each row of patches.
#[inline(always)]
fn transform_back<S: Simd, E: Real>(p: &Back, sums: &[E], start: &[E], y: &mut [E]) {
    let lanes = <E::Vector<S> as Vector>::LANES;
    let patches = p.rows * p.cols;
    assert!(p.channels.is_multiple_of(lanes) && start.len() >= p.channels, "whole registers of channels");
    assert!(sums.len() >= (ELEMENTS - 1) * p.next + patches * p.channels, "sums of all patches");
    assert!(
        y.len() >= 2 * p.rows * p.width * p.channels && p.width.div_ceil(2) == p.cols,
        "room for all outputs"
    );
    for patch in 0..patches {
        let (row, col) = (2 * (patch / p.cols), 2 * (patch % p.cols));
        for o in (0..p.channels).step_by(lanes) {
            // SAFETY: `S` is the instruction set this runs on, as this is called through `run` alone. Registers are whole
            // by the first assertion, which has the start's, and of patches and elements in the sums by the second;
            // outputs are in y by the third, as the column is below the width.
            unsafe {
                let from = sums.as_ptr().add(patch * p.channels + o);
                let start = E::Vector::<S>::load(start.as_ptr().add(o));
                let m = |i: usize, q: usize| E::Vector::<S>::load(from.add((4 * i + q) * p.next));
                let upper = |q| m(0, q).add(m(1, q)).add(m(2, q));
                let lower = |q| less(less(m(1, q), m(2, q)), m(3, q));
                let up = [upper(0), upper(1), upper(2), upper(3)];
                let low = [lower(0), lower(1), lower(2), lower(3)];
                for (a, s) in [up, low].into_iter().enumerate() {
                    let to = y.as_mut_ptr().add(((row + a) * p.width + col) * p.channels + o);
                    start.add(s[0].add(s[1]).add(s[2])).store(to);
                    if col + 1 < p.width {
                        start.add(less(less(s[1], s[2]), s[3])).store(to.add(p.channels));
                    }
                }
            }
        }
    }
}

/// A convolution of 3×3 whose output (r, c) sees the pixels from (r + start, c + start) on.
struct Pass {
    batch: usize,
    groups: usize,
    /// Channels that are summed over and those of the outputs, of one group.
    channels: usize,
    outputs: usize,
    input: [usize; 2],
    output: [usize; 2],
    start: [isize; 2],
    /// Whether taps are turned round.
    turned: bool,
    act: Unary,
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
    let pass = Pass {
        batch: s.batch,
        groups: s.groups,
        channels: ic,
        outputs: oc,
        input: s.input,
        output: s.output,
        start: s.padding.map(|padding| -(padding as isize)),
        turned: false,
        act: s.act,
    };
    // All taps of some outputs' kernels, as rows.
    let taps = |group: usize, at: Range<usize>, out: &mut [E], width: usize| {
        let w = &w[(group * oc + at.start) * ic * 9..];
        turn(isa, (w, ic * 9), (at.len(), ic * 9), (out, width));
    };
    run_pass(isa, &pass, x, y, b, taps);
}

/// The gradient of x: a convolution of dy with the taps turned round.
pub(crate) fn input_gradient<E: Real>(isa: Available, s: &Conv2dSpec, w: &[E], dy: &[E], dx: &mut [E]) {
    let (ic, oc) = (s.in_channels / s.groups, s.out_channels / s.groups);
    let pass = Pass {
        batch: s.batch,
        groups: s.groups,
        channels: oc,
        outputs: ic,
        input: s.output,
        output: s.input,
        start: s.padding.map(|padding| padding as isize - 2),
        turned: true,
        act: Unary::Identity,
    };
    let taps = |group: usize, at: Range<usize>, out: &mut [E], width: usize| {
        for (o, out) in out.chunks_exact_mut(9 * width).enumerate().take(oc) {
            let w = &w[((group * oc + o) * ic + at.start) * 9..];
            turn(isa, (w, 9), (at.len(), 9), (out, width));
        }
    };
    run_pass(isa, &pass, dy, dx, None, taps);
}

fn run_pass<E: Real>(
    isa: Available,
    p: &Pass,
    x: &[E],
    y: &mut [E],
    b: Option<&[E]>,
    taps: impl Fn(usize, Range<usize>, &mut [E], usize),
) {
    let columns = Columns::new::<E>(isa);
    let (channels, n, wide) = (p.channels, p.outputs, columns.of(p.outputs));
    let [rows, cols] = p.output.map(|n| n.div_ceil(2));
    // Rows of patches in a band, about the same for all.
    let most = (VALUES / (ELEMENTS * (channels + wide) * cols)).clamp(1, rows);
    let band = rows.div_ceil(rows.div_ceil(most));
    let patches = band * cols;
    let line = patches + columns.lanes;
    let part = cols.next_multiple_of(columns.lanes) + 1;
    let piece = channels * (2 * band + 2) * 2 * part;

    // The transformed kernels of each group, and what its outputs start from.
    let (next, group_len) = (channels * wide, (ELEMENTS * channels + 1) * wide);
    let mut packed = Scratch::<E>::new(p.groups * group_len);
    let mut raw = Scratch::<E>::new(9 * channels * columns.panel);
    for (group, packed) in packed.chunks_exact_mut(group_len).enumerate() {
        let (start, panels) = packed.split_at_mut(wide);
        start.fill(E::ZERO);
        if let Some(b) = b {
            start[..n].copy_from_slice(&b[group * n..(group + 1) * n]);
        }
        for at in (0..n).step_by(columns.panel) {
            let some = at..(at + columns.panel).min(n);
            let width = columns.of(some.len());
            let raw = &mut raw[..9 * channels * width];
            if some.len() < width {
                raw.fill(E::ZERO);
            }
            taps(group, some, raw, width);
            run::transform_kernels(isa, p.turned, raw, width, &mut panels[at * channels..], next);
        }
    }
    drop(raw);
    let packed = &*packed;
    let mut places = Scratch::<u32>::new(patches + channels);
    let (at, off) = places.split_at_mut(patches);
    at.iter_mut().enumerate().for_each(|(t, at)| *at = t as u32);
    off.iter_mut().enumerate().for_each(|(c, off)| *off = (c * line) as u32);
    let (at, off) = (&*at, &*off);
    let mut zeros = Scratch::<E>::new(wide);
    zeros.fill(E::ZERO);
    let zeros = &*zeros;

    let pieces = p.batch * p.groups;
    let (from, area) = (channels * p.input[0] * p.input[1], p.output[0] * p.output[1]);
    let image = |group: usize, some: Range<usize>, x: &[E], y: &mut [E]| {
        let packed = &packed[group * group_len..(group + 1) * group_len];
        let (start, panels) = packed.split_at(wide);
        let width = columns.of(some.len());
        // So far apart that not all elements of a patch fall in the same place of a cache.
        let sums_next = patches * width + 16;
        let lens = [piece, ELEMENTS * channels * line, ELEMENTS * sums_next, 4 * patches * width];
        let mut buffer = Scratch::<E>::new(lens.iter().sum());
        let (pixels, rest) = buffer.split_at_mut(lens[0]);
        let (values, rest) = rest.split_at_mut(lens[1]);
        let (sums, done) = rest.split_at_mut(lens[2]);
        for first in (0..rows).step_by(band) {
            let rows = band.min(rows - first);
            let seen = Padding {
                channels,
                input: p.input,
                size: [2 * rows + 2, part],
                first: [2 * first as isize + p.start[0], p.start[1]],
            };
            seen.pad_by_parity(isa, x, pixels);
            let parts = Patches { channels, rows, cols, part, line };
            run::transform_pixels(isa, &parts, pixels, values);
            for e in 0..ELEMENTS {
                let product = Gathered {
                    x: &values[e * channels * line..],
                    at: &at[..rows * cols],
                    off,
                    b: &panels[e * next + some.start * channels..],
                    columns: width,
                    start: Some(zeros),
                };
                product.product(isa, &mut sums[e * sums_next..]);
            }
            let back = Back { rows, cols, width: p.output[1], channels: width, next: sums_next };
            run::transform_back(isa, &back, sums, &start[some.start..], done);
            let outputs = (2 * rows).min(p.output[0] - 2 * first) * p.output[1];
            let from = 2 * first * p.output[1];
            turn(isa, (done, width), (outputs, some.len()), (&mut y[from..], area));
            // While they are in the cache.
            activate_columns(isa, p.act, area, from..from + outputs, y);
        }
    };
    let work = rows * cols * ELEMENTS * channels * wide;
    columns.each_image(pieces, [n, area], work, y, &|piece, some, y| {
        image(piece % p.groups, some, &x[piece * from..][..from], y);
    });
}
