use super::par::{self, Rows, rows_per_task};
use super::scratch::Scratch;
use super::simd::{Simd, kernels};
use super::size::{reach, size};
use super::{Real, kernels::Kernels, math};
use crate::ops::{Block, PermuteSpec, RopeSpec, SinusoidSpec};

kernels! {
    fn permute<E>(loops: Loops, x: &[E], y: &mut [E]);
    fn turns<E>(inverse: bool, first: usize, frequencies: &[f64], turns: &mut [E]);
    fn rope<E>(s: RopeSpec, first: usize, turns: &[E], x: &[E], y: &mut [E]);
    fn sinusoids<E>(first: usize, frequencies: &[f64], y: &mut [E]);
}

/// A sample's reordering as loops: for each axis of the result how long it is and how far its neighbours are
/// apart in the input. Axes that stay neighbours are one.
#[derive(Clone, Copy)]
pub(crate) struct Loops {
    pub(crate) len: [usize; 6],
    pub(crate) stride: [usize; 6],
}

impl Loops {
    pub(crate) fn new(s: &PermuteSpec) -> Self {
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

/// The sine and the cosine of a position's angle.
#[inline(always)]
fn turn<S: Simd>(angle: f64) -> (f64, f64) {
    if angle.abs() < math::SIN_COS_END { math::sin_cos::<S>(angle) } else { angle.sin_cos() }
}

/// For each position from `first` on, a row of cosines and one of sines; or of those of the angles' negatives.
#[inline(always)]
fn turns<S: Simd, E: Real>(inverse: bool, first: usize, frequencies: &[f64], turns: &mut [E]) {
    let sign = if inverse { -1.0 } else { 1.0 };
    let half = frequencies.len();
    for (r, turns) in turns.chunks_exact_mut(2 * half).enumerate() {
        let position = (first + r) as f64;
        let (cosines, sines) = turns.split_at_mut(half);
        let far = frequencies.iter().any(|f| (position * f).abs() >= math::SIN_COS_END);
        let each = cosines.iter_mut().zip(sines).zip(frequencies);
        if far {
            for ((c, s), frequency) in each {
                let (sin, cos) = turn::<S>(position * frequency);
                (*c, *s) = (E::from_f64(cos), E::from_f64(sign * sin));
            }
        } else {
            for ((c, s), frequency) in each {
                let (sin, cos) = math::sin_cos::<S>(position * frequency);
                (*c, *s) = (E::from_f64(cos), E::from_f64(sign * sin));
            }
        }
    }
}

/// `turns` are those of the positions of a sequence; `first` is the number of the first row.
#[inline(always)]
fn rope<S: Simd, E: Real>(s: RopeSpec, first: usize, turns: &[E], x: &[E], y: &mut [E]) {
    let token = s.heads * s.dim;
    for (r, (x, y)) in x.chunks_exact(token).zip(y.chunks_exact_mut(token)).enumerate() {
        let position = (first + r) % s.seq;
        let (cosines, sines) = turns[position * s.rotary..(position + 1) * s.rotary].split_at(s.rotary / 2);
        for (x, y) in x.chunks_exact(s.dim).zip(y.chunks_exact_mut(s.dim)) {
            let ((x, x_rest), (y, y_rest)) = (x.split_at(s.rotary), y.split_at_mut(s.rotary));
            y_rest.copy_from_slice(x_rest);
            if s.interleaved {
                let pairs = y.as_chunks_mut::<2>().0.iter_mut().zip(x.as_chunks::<2>().0);
                for ((y, &[a, b]), (&cos, &sin)) in pairs.zip(cosines.iter().zip(sines)) {
                    *y = [a * cos - b * sin, b * cos + a * sin];
                }
            } else {
                let ((a, b), (y, z)) = (x.split_at(s.rotary / 2), y.split_at_mut(s.rotary / 2));
                let values = y.iter_mut().zip(z).zip(a.iter().zip(b));
                for (((y, z), (&a, &b)), (&cos, &sin)) in values.zip(cosines.iter().zip(sines)) {
                    (*y, *z) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
        }
    }
}

/// Pairs of a sine and a cosine, for each position from `first` on.
#[inline(always)]
fn sinusoids<S: Simd, E: Real>(first: usize, frequencies: &[f64], y: &mut [E]) {
    for (t, y) in y.chunks_exact_mut(2 * frequencies.len()).enumerate() {
        for (pair, frequency) in y.as_chunks_mut::<2>().0.iter_mut().zip(frequencies) {
            let (sin, cos) = turn::<S>((first + t) as f64 * frequency);
            *pair = [E::from_f64(sin), E::from_f64(cos)];
        }
    }
}

/// theta^(−2j/dim).
fn frequencies(theta: f64, dim: usize) -> Scratch<f64> {
    let mut frequencies = Scratch::new(dim / 2);
    for (j, frequency) in frequencies.iter_mut().enumerate() {
        *frequency = theta.powf(-2.0 * j as f64 / dim as f64);
    }
    frequencies
}

#[track_caller]
pub(crate) fn check_block(name: &str, rows: usize, cols: usize, block: Block, len: usize) {
    let end = reach("copy_block", 1, block.offset, cols);
    assert!(end <= block.stride || rows == 1, "copy_block: {name}'s block is wider than its rows");
    assert!(
        reach("copy_block", rows - 1, block.stride, end) <= len,
        "copy_block: {name} has {len} values, too few for {rows} rows of {}",
        block.stride
    );
}

/// How many values a sample has.
#[track_caller]
pub(crate) fn check_permute(rows: usize, s: &PermuteSpec, x: usize, y: usize) -> usize {
    let mut seen = [false; 6];
    assert!(s.rank <= 6, "permute: at most 6 axes");
    s.axes[..s.rank].iter().for_each(|&axis| seen[axis.min(5)] |= axis < s.rank);
    assert!(seen[..s.rank].iter().all(|&seen| seen), "permute: the axes are no reordering");
    let sample = size("permute", &s.dims[..s.rank]);
    assert_eq!(x, size("permute", &[rows, sample]), "permute: x is not {rows} samples of {sample} values");
    assert_eq!(y, x, "permute: x and y differ in length");
    sample
}

#[track_caller]
pub(crate) fn check_sinusoids(s: &SinusoidSpec, y: usize) {
    assert!(s.dim.is_multiple_of(2) && s.dim > 0, "sinusoids: a token of {} values has no pairs", s.dim);
    assert!(s.first.checked_add(s.rows).is_some(), "sinusoids: positions from {} on overflow", s.first);
    let len = size("sinusoids", &[s.rows, s.dim]);
    assert_eq!(y, len, "sinusoids: y is not {} tokens of {} values", s.rows, s.dim);
}

/// How many values a token has.
#[track_caller]
pub(crate) fn check_rope(s: &RopeSpec, x: usize, y: usize) -> usize {
    assert!(s.rotary.is_multiple_of(2) && s.rotary > 0, "rope: {} values of a head are no pairs", s.rotary);
    assert!(s.rotary <= s.dim, "rope: {} values of a head of {} are turned", s.rotary, s.dim);
    assert!(s.seq > 0, "rope: sequences of no tokens");
    assert!(s.offset.checked_add(s.seq).is_some(), "rope: positions from {} on overflow", s.offset);
    let token = size("rope", &[s.heads, s.dim]);
    assert_eq!(x, size("rope", &[s.rows, token]), "rope: x is not {} tokens of {token} values", s.rows);
    assert_eq!(y, x, "rope: x and y differ in length");
    token
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
        assert_eq!(
            y.len(),
            size("broadcast_rows", &[rows, x.len()]),
            "broadcast_rows: y is not {rows} rows of x"
        );
        if !x.is_empty() {
            par::split(rows, rows_per_task(x.len()), Rows(y, x.len()), &|_, y: Rows<&mut [E]>| {
                y.0.chunks_exact_mut(x.len()).for_each(|y| y.copy_from_slice(x));
            });
        }
    }

    pub(crate) fn sum_rows(&self, rows: usize, x: &[E], y: &mut [E]) {
        assert_eq!(x.len(), size("sum_rows", &[rows, y.len()]), "sum_rows: x is not {rows} rows of y");
        if !y.is_empty() {
            self.add_column_sums(y.len(), x, y);
        }
    }

    pub(crate) fn permute(&self, rows: usize, s: &PermuteSpec, x: &[E], y: &mut [E]) {
        let sample = check_permute(rows, s, x.len(), y.len());
        if sample > 0 {
            let (isa, loops) = (self.isa, Loops::new(s));
            par::split(rows, rows_per_task(sample), (Rows(x, sample), Rows(y, sample)), &|_, (x, y)| {
                run::permute(isa, loops, x.0, y.0)
            });
        }
    }

    pub(crate) fn sinusoids(&self, s: &SinusoidSpec, y: &mut [E]) {
        check_sinusoids(s, y.len());
        let (isa, first) = (self.isa, s.first);
        let frequencies = &frequencies(s.theta, s.dim)[..];
        // An angle costs some ten times a value's move.
        let grain = (rows_per_task(s.dim) / 10).max(1);
        par::split(s.rows, grain, Rows(y, s.dim), &|row, y: Rows<&mut [E]>| {
            run::sinusoids(isa, first + row, frequencies, y.0)
        });
    }

    pub(crate) fn rope(&self, s: &RopeSpec, inverse: bool, x: &[E], y: &mut [E]) {
        let token = check_rope(s, x.len(), y.len());
        if token == 0 {
            return;
        }
        let (isa, s) = (self.isa, *s);
        let frequencies = &frequencies(s.theta, s.rotary)[..];
        // A sequence's, once for the whole batch and all heads.
        let positions = s.seq.min(s.rows);
        let mut turns = Scratch::<E>::new(size("rope", &[positions, s.rotary]));
        // An angle costs some ten times a product.
        let grain = (rows_per_task(s.rotary) / 10).max(1);
        par::split(positions, grain, Rows(&mut turns[..], s.rotary), &|first, turns: Rows<&mut [E]>| {
            run::turns(isa, inverse, s.offset + first, frequencies, turns.0)
        });
        let turns = &turns[..];
        par::split(s.rows, rows_per_task(token), (Rows(x, token), Rows(y, token)), &|first, (x, y)| {
            run::rope(isa, s, first, turns, x.0, y.0)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, devices, on_threads, random, reals};

    fn spec(dims: &[usize], axes: &[usize]) -> PermuteSpec {
        let mut s = PermuteSpec { rank: dims.len(), dims: [1; 6], axes: [0, 1, 2, 3, 4, 5] };
        s.dims[..dims.len()].copy_from_slice(dims);
        s.axes[..axes.len()].copy_from_slice(axes);
        s
    }

    #[test]
    fn axes_are_reordered_and_the_inverse_undoes_it() {
        let cases: [(&[usize], &[usize]); 9] = [
            (&[5], &[0]),
            (&[3, 4], &[1, 0]),
            (&[3, 4], &[0, 1]),
            (&[2, 3, 4], &[2, 0, 1]),
            (&[2, 3, 4], &[1, 2, 0]),
            (&[2, 3, 4], &[0, 2, 1]),
            (&[2, 1, 3, 2], &[3, 1, 0, 2]),
            (&[2, 3, 2, 1, 3], &[4, 2, 0, 1, 3]),
            (&[2, 2, 3, 2, 1, 3], &[5, 3, 1, 0, 2, 4]),
        ];
        for (dims, axes) in cases {
            let s = spec(dims, axes);
            let n: usize = dims.iter().product();
            let x = random(1, 3 * n);
            let mut expected = vec![0.0; 3 * n];
            for (i, x) in x.iter().enumerate() {
                // The input's index on each axis, then its place in the result.
                let (mut rest, mut index) = (i % n, vec![0; dims.len()]);
                for k in (0..dims.len()).rev() {
                    (index[k], rest) = (rest % dims[k], rest / dims[k]);
                }
                let place = axes.iter().fold(0, |place, &axis| place * dims[axis] + index[axis]);
                expected[i / n * n + place] = *x;
            }
            for device in devices::<f64>() {
                let (mut y, mut back) = (vec![0.0; 3 * n], vec![0.0; 3 * n]);
                device.permute(3, &s, &x, &mut y);
                assert_eq!(y, expected, "{s:?}");
                device.permute(3, &s.inverse(), &y, &mut back);
                assert_eq!(back, x, "{s:?}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "the axes are no reordering")]
    fn an_axis_that_comes_twice_is_refused() {
        devices::<f32>()[0].permute(1, &spec(&[2, 2], &[1, 1]), &[0.0; 4], &mut [0.0; 4]);
    }

    #[test]
    fn blocks_of_columns_are_copied_and_nothing_else() {
        for device in devices::<f32>() {
            let x: Vec<f32> = (0..12).map(|i| i as f32).collect();
            let mut y = vec![-1.0; 15];
            let (from, to) = (Block { offset: 1, stride: 4 }, Block { offset: 3, stride: 5 });
            device.copy_block(3, 2, &x, from, &mut y, to);
            assert_eq!(y, [-1., -1., -1., 1., 2., -1., -1., -1., 5., 6., -1., -1., -1., 9., 10.]);
            // Views may be longer than the rows asked for, and the last row need not be whole.
            let mut y = vec![-1.0; 9];
            device.copy_block(2, 1, &x, from, &mut y, Block { offset: 0, stride: 3 });
            assert_eq!(y, [1., -1., -1., 5., -1., -1., -1., -1., -1.]);
            let mut y = vec![-1.0; 4];
            device.copy_block(2, 1, &x[..6], from, &mut y, Block { offset: 0, stride: 3 });
            assert_eq!(y, [1., -1., -1., 5.]);
        }
    }

    #[test]
    #[should_panic(expected = "copy_block: y has 8 values")]
    fn a_block_that_leaves_its_view_is_refused() {
        let (from, to) = (Block { offset: 0, stride: 2 }, Block { offset: 2, stride: 4 });
        devices::<f32>()[0].copy_block(3, 2, &[0.0; 6], from, &mut [0.0; 8], to);
    }

    #[test]
    fn rows_are_broadcast_and_summed() {
        for device in devices::<f64>() {
            let x = random(1, 70);
            let mut y = vec![0.0; 210];
            device.broadcast_rows(3, &x, &mut y);
            assert!(y.chunks(70).all(|row| row == x));
            let mut sum = vec![1.0; 70];
            device.sum_rows(3, &y, &mut sum);
            assert_close(&sum, &x.iter().map(|x| 1.0 + 3.0 * x).collect::<Vec<_>>(), 1e-15, "sum");
        }
    }

    #[test]
    fn pairs_turn_by_their_angles_and_back() {
        for (device, interleaved) in devices::<f64>().into_iter().flat_map(|d| [(d, false), (d, true)]) {
            let s = RopeSpec {
                rows: 6,
                seq: 3,
                offset: 5,
                heads: 2,
                dim: 6,
                rotary: 6,
                theta: 100.0,
                interleaved,
            };
            let x = random(1, 6 * 12);
            let mut expected = vec![0.0; 72];
            for (row, head, j) in
                (0..6).flat_map(|r| (0..2).flat_map(move |h| (0..3).map(move |j| (r, h, j))))
            {
                let angle = (5 + row % 3) as f64 / 100f64.powf(2.0 * j as f64 / 6.0);
                let base = row * 12 + head * 6;
                let (a, b) =
                    if interleaved { (base + 2 * j, base + 2 * j + 1) } else { (base + j, base + j + 3) };
                expected[a] = x[a] * angle.cos() - x[b] * angle.sin();
                expected[b] = x[b] * angle.cos() + x[a] * angle.sin();
            }
            let (mut y, mut back) = (vec![0.0; 72], vec![0.0; 72]);
            device.rope(&s, false, &x, &mut y);
            assert_close(&y, &expected, 1e-14, "turned");
            device.rope(&s, true, &y, &mut back);
            assert_close(&back, &x, 1e-14, "turned back");
        }
    }

    #[test]
    fn sines_and_cosines_are_those_of_their_positions() {
        for device in devices::<f64>() {
            let mut y = vec![f64::NAN; 12];
            device.sinusoids(&SinusoidSpec { rows: 2, first: 3, dim: 6, theta: 100.0 }, &mut y);
            for (at, y) in y.iter().enumerate() {
                let (t, j) = (at / 6 + 3, at % 6 / 2);
                let angle = t as f64 / 100f64.powf(2.0 * j as f64 / 6.0);
                let expected = if at % 2 == 0 { angle.sin() } else { angle.cos() };
                assert!((y - expected).abs() < 1e-15);
            }
        }
        let run = |threads| {
            on_threads(threads, || {
                let mut y = vec![0.0; 500 * 64];
                let s = SinusoidSpec { rows: 500, first: 1, dim: 64, theta: 1e4 };
                devices::<f32>()[0].sinusoids(&s, &mut y);
                y
            })
        };
        assert!(run(1) == run(4));
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let x: Vec<f32> = reals(&random(1, 300 * 512));
        let s = RopeSpec {
            rows: 300,
            seq: 100,
            offset: 1,
            heads: 8,
            dim: 64,
            rotary: 64,
            theta: 1e4,
            interleaved: false,
        };
        let run = |threads| {
            on_threads(threads, || {
                let device = devices::<f32>().pop().unwrap();
                let (mut y, mut sum, mut turned) = (x.clone(), vec![0.0; 512], x.clone());
                device.rope(&s, false, &x, &mut y);
                device.sum_rows(300, &y, &mut sum);
                device.permute(300, &spec(&[8, 64], &[1, 0]), &x, &mut turned);
                let block = Block { offset: 3, stride: 512 };
                device.copy_block(300, 500, &x, block, &mut y, block);
                [y, sum, turned]
            })
        };
        assert!(run(1) == run(4));
    }
}
