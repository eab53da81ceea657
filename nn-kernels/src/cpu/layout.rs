use super::par::{self, Rows, rows_per_task};
use super::scratch::Scratch;
use super::simd::{Simd, kernels};
use super::{Real, kernels::Kernels};
use crate::ops::{Block, PermuteSpec, RopeSpec};

kernels! {
    fn permute<E>(loops: Loops, x: &[E], y: &mut [E]);
    fn rope<E>(s: RopeSpec, inverse: bool, first: usize, frequencies: &[f64], x: &[E], y: &mut [E]);
}

/// A sample's reordering as loops: for each axis of the result how long it is and how far its neighbours are
/// apart in the input. Axes that stay neighbours are one.
#[derive(Clone, Copy)]
struct Loops {
    len: [usize; 6],
    stride: [usize; 6],
}

impl Loops {
    fn new(s: &PermuteSpec) -> Self {
        let mut strides = [1; 6];
        for k in (0..s.rank.saturating_sub(1)).rev() {
            strides[k] = strides[k + 1] * s.dims[k + 1];
        }
        // Filled from the end, so that unused axes are the outer ones.
        let (mut len, mut stride, mut at) = ([1; 6], [0; 6], 6);
        for k in (0..s.rank).rev() {
            let (n, step) = (s.dims[s.axes[k]], strides[s.axes[k]]);
            if at < 6 && step == stride[at] * len[at] {
                len[at] *= n;
            } else {
                at -= 1;
                (len[at], stride[at]) = (n, step);
            }
        }
        Self { len, stride }
    }
}

#[inline(always)]
fn permute<S: Simd, E: Real>(loops: Loops, x: &[E], y: &mut [E]) {
    let Loops { len, stride } = loops;
    let sample = len.iter().product();
    for (x, y) in x.chunks_exact(sample).zip(y.chunks_exact_mut(sample)) {
        let mut index = [0; 5];
        let mut from = 0;
        for y in y.chunks_exact_mut(len[5]) {
            if stride[5] == 1 {
                y.copy_from_slice(&x[from..from + len[5]]);
            } else {
                for (y, &x) in y.iter_mut().zip(x[from..].iter().step_by(stride[5])) {
                    *y = x;
                }
            }
            for k in (0..5).rev() {
                index[k] += 1;
                from += stride[k];
                if index[k] < len[k] {
                    break;
                }
                from -= len[k] * stride[k];
                index[k] = 0;
            }
        }
    }
}

#[inline(always)]
fn rope<S: Simd, E: Real>(s: RopeSpec, inverse: bool, first: usize, frequencies: &[f64], x: &[E], y: &mut [E]) {
    let token = s.heads * s.dim;
    let half = s.dim / 2;
    let (gap, step) = if s.interleaved { (1, 2) } else { (half, 1) };
    for (r, (x, y)) in x.chunks_exact(token).zip(y.chunks_exact_mut(token)).enumerate() {
        let position = (s.offset + (first + r) % s.seq) as f64;
        for (j, frequency) in frequencies.iter().enumerate() {
            let (sin, cos) = (position * frequency).sin_cos();
            let (sin, cos) = (E::from_f64(if inverse { -sin } else { sin }), E::from_f64(cos));
            for head in 0..s.heads {
                let at = head * s.dim + j * step;
                let (a, b) = (x[at], x[at + gap]);
                y[at] = a * cos - b * sin;
                y[at + gap] = b * cos + a * sin;
            }
        }
    }
}

#[track_caller]
fn check_block(name: &str, rows: usize, cols: usize, block: Block, len: usize) {
    assert!(block.offset + cols <= block.stride || rows == 1, "copy_block: {name}'s block is wider than its rows");
    assert!(
        (rows - 1) * block.stride + block.offset + cols <= len,
        "copy_block: {name} has {len} values, too few for {rows} rows of {}",
        block.stride
    );
}

impl<E: Real> Kernels<E> {
    pub(crate) fn copy_block(&self, rows: usize, cols: usize, x: &[E], from: Block, y: &mut [E], to: Block) {
        if rows == 0 || cols == 0 {
            return;
        }
        check_block("x", rows, cols, from, x.len());
        check_block("y", rows, cols, to, y.len());
        // Cut where the last row's block ends, so that there are as many rows as asked for.
        let x = &x[..(rows - 1) * from.stride + from.offset + cols];
        let y = &mut y[..(rows - 1) * to.stride + to.offset + cols];
        let views = (Rows(x, from.stride), Rows(y, to.stride));
        par::split(rows, rows_per_task(cols), views, &|_, (x, y): (Rows<&[E]>, Rows<&mut [E]>)| {
            let x = x.0.chunks(from.stride.max(from.offset + cols));
            for (x, y) in x.zip(y.0.chunks_mut(to.stride.max(to.offset + cols))) {
                y[to.offset..to.offset + cols].copy_from_slice(&x[from.offset..from.offset + cols]);
            }
        });
    }

    pub(crate) fn broadcast_rows(&self, rows: usize, x: &[E], y: &mut [E]) {
        assert_eq!(y.len(), rows * x.len(), "broadcast_rows: y is not {rows} rows of x");
        if !x.is_empty() {
            par::split(rows, rows_per_task(x.len()), Rows(y, x.len()), &|_, y: Rows<&mut [E]>| {
                y.0.chunks_exact_mut(x.len()).for_each(|y| y.copy_from_slice(x));
            });
        }
    }

    pub(crate) fn sum_rows(&self, rows: usize, x: &[E], y: &mut [E]) {
        assert_eq!(x.len(), rows * y.len(), "sum_rows: x is not {rows} rows of y");
        if !y.is_empty() {
            self.add_column_sums(y.len(), x, y);
        }
    }

    pub(crate) fn permute(&self, rows: usize, s: &PermuteSpec, x: &[E], y: &mut [E]) {
        let mut seen = [false; 6];
        assert!(s.rank <= 6, "permute: at most 6 axes");
        s.axes[..s.rank].iter().for_each(|&axis| seen[axis] = true);
        assert!(seen[..s.rank].iter().all(|&seen| seen), "permute: the axes are no reordering");
        let sample = s.dims[..s.rank].iter().product();
        assert_eq!(x.len(), rows * sample, "permute: x is not {rows} samples of {sample} values");
        assert_eq!(y.len(), x.len(), "permute: x and y differ in length");
        if sample > 0 {
            let (isa, loops) = (self.isa, Loops::new(s));
            par::split(rows, rows_per_task(sample), (Rows(x, sample), Rows(y, sample)), &|_, (x, y)| {
                run::permute(isa, loops, x.0, y.0)
            });
        }
    }

    pub(crate) fn rope(&self, s: &RopeSpec, inverse: bool, x: &[E], y: &mut [E]) {
        assert!(s.dim.is_multiple_of(2) && s.dim > 0, "rope: a head of {} values has no pairs", s.dim);
        assert!(s.seq > 0, "rope: sequences of no tokens");
        let token = s.heads * s.dim;
        assert_eq!(x.len(), s.rows * token, "rope: x is not {} tokens of {token} values", s.rows);
        assert_eq!(y.len(), x.len(), "rope: x and y differ in length");
        let (isa, s) = (self.isa, *s);
        let mut frequencies = Scratch::<f64>::new(s.dim / 2);
        for (j, frequency) in frequencies.iter_mut().enumerate() {
            *frequency = s.theta.powf(-2.0 * j as f64 / s.dim as f64);
        }
        let frequencies = &frequencies[..];
        // An angle costs some ten times a product.
        let grain = (rows_per_task(token) / 10).max(1);
        par::split(s.rows, grain, (Rows(x, token), Rows(y, token)), &|first, (x, y)| {
            run::rope(isa, s, inverse, first, frequencies, x.0, y.0)
        });
    }
}
