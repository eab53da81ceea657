//! Products with weights that are stored in fewer bits.
//!
//! A product of a few rows is as fast as the weights come from memory: so they lie in the order in which they are needed,
//! 32 outputs side by side, and are made numbers in registers. A product of many rows makes each of them a number once
//! for several rows. The sums are the same in both: over runs of inputs, which are added one after the other.

use std::marker::PhantomData;
use std::ops::Range;

use super::gemm::{self, Mat, Right, Start, Threads};
use super::isa::Available;
use super::kernels::Kernels;
use super::simd::{Outlined, Simd, kernels};
use super::size::size;
use super::vector::Vector;
use super::{Real, par};
use crate::ops::{PackedSpec, Unary};
use crate::packing::{BLOCK, Packing, TILE};

kernels! {
    fn bf16<E>(p: &Product<'_, E>, tiles: Range<usize>);
    fn f16<E>(p: &Product<'_, E>, tiles: Range<usize>);
    fn q8_0<E>(p: &Product<'_, E>, tiles: Range<usize>);
}

/// Bytes of weights that a task should have at least: some 20 µs, at the speed of memory.
const BYTES: usize = 256 * 1024;
/// How far ahead weights are asked for, in bytes.
const AHEAD: usize = 1024;

/// Bytes that come from memory together.
const LINE: usize = 64;
/// Elements of x that are passed over again and again.
const CACHED: usize = 32 * 1024;

/// How a kernel reads packed weights. What most have in common is that of numbers of two bytes each.
trait Packed {
    /// Inputs that are summed before the sum is added to that of all.
    const RUN: usize = gemm::KC;
    /// Whether every run is of so many, so that the loop over it can be unrolled.
    const WHOLE: bool = false;
    /// Where a tile's weights for input `term` lie, in bytes from where those of its run do.
    #[inline(always)]
    fn term(term: usize) -> usize {
        2 * TILE * term
    }
    /// Those of `LANES` outputs from `column` of the tile on, before they are scaled.
    ///
    /// # Safety
    /// The instruction set is there, and a tile's weights of one input lie at `at`.
    unsafe fn weights<S: Simd, E: Real>(at: *const u8, column: usize) -> E::Vector<S>;
    /// The sum of all, and that of a run.
    ///
    /// # Safety
    /// The instruction set is there, and a tile's run lies at `run`.
    #[inline(always)]
    unsafe fn add<S: Simd, E: Real>(
        _run: *const u8,
        _column: usize,
        sum: E::Vector<S>,
        all: E::Vector<S>,
    ) -> E::Vector<S> {
        // SAFETY: the caller's.
        unsafe { all.add(sum) }
    }
}

struct Bf16;
impl Packed for Bf16 {
    #[inline(always)]
    unsafe fn weights<S: Simd, E: Real>(at: *const u8, column: usize) -> E::Vector<S> {
        // SAFETY: the caller's. There are 16 words, each with the weights of two outputs that are 16 apart.
        unsafe { E::Vector::<S>::bf16(at.add(column % (TILE / 2) * 4), column >= TILE / 2) }
    }
}

struct F16;
impl Packed for F16 {
    #[inline(always)]
    unsafe fn weights<S: Simd, E: Real>(at: *const u8, column: usize) -> E::Vector<S> {
        // SAFETY: the caller's. There are 32 of two bytes each.
        unsafe { E::Vector::<S>::f16(at.add(2 * column)) }
    }
}

struct Q8;
impl Packed for Q8 {
    const RUN: usize = BLOCK;
    const WHOLE: bool = true;
    #[inline(always)]
    fn term(term: usize) -> usize {
        // After the scales.
        TILE * (2 + term)
    }
    #[inline(always)]
    unsafe fn weights<S: Simd, E: Real>(at: *const u8, column: usize) -> E::Vector<S> {
        // SAFETY: the caller's. There are 32 of a byte each.
        unsafe { E::Vector::<S>::i8(at.add(column)) }
    }
    #[inline(always)]
    unsafe fn add<S: Simd, E: Real>(
        run: *const u8,
        column: usize,
        sum: E::Vector<S>,
        all: E::Vector<S>,
    ) -> E::Vector<S> {
        // SAFETY: the caller's. A run starts with 32 scales of two bytes each.
        unsafe { sum.mul_add(E::Vector::<S>::f16(run.add(2 * column)), all) }
    }
}

/// A product y = x·Wᵀ + b.
struct Product<'a, E> {
    s: PackedSpec,
    x: &'a [E],
    w: &'a [u8],
    b: Option<&'a [E]>,
    y: *mut E,
}

// SAFETY: all but `y` is `Sync` by itself if E is. `y` comes from a `&mut [E]` that `packed_linear` holds for as long as
// the product lives; threads write elements through it, hence `Send`, each those of its own tiles: `split` halves these,
// so no two overlap.
unsafe impl<E: Send + Sync> Sync for Product<'_, E> {}

#[inline(always)]
fn bf16<S: Simd, E: Real>(p: &Product<'_, E>, tiles: Range<usize>) {
    all_tiles::<S, E, Bf16>(p, tiles);
}

#[inline(always)]
fn f16<S: Simd, E: Real>(p: &Product<'_, E>, tiles: Range<usize>) {
    all_tiles::<S, E, F16>(p, tiles);
}

#[inline(always)]
fn q8_0<S: Simd, E: Real>(p: &Product<'_, E>, tiles: Range<usize>) {
    all_tiles::<S, E, Q8>(p, tiles);
}

/// The rows and columns of a piece of a tile.
#[derive(Clone, Copy)]
struct Piece {
    /// The first row of x and y.
    row: usize,
    tile: usize,
    /// The first column of the tile.
    column: usize,
}

#[inline(always)]
fn all_tiles<S: Simd, E: Real, P: Packed>(p: &Product<'_, E>, tiles: Range<usize>) {
    // So many that they stay in the second cache while the weights pass by.
    let most = (CACHED / p.s.inputs.max(1)).max(1).next_multiple_of(24);
    for (first, tile) in
        (0..p.s.rows).step_by(most).flat_map(|row| tiles.clone().map(move |tile| (row, tile)))
    {
        let (mut row, end) = (first, (first + most).min(p.s.rows));
        while row < end {
            let (rows, vectors) = shape::<S, E>(end - row);
            for column in (0..TILE).step_by(vectors * <E::Vector<S> as Vector>::LANES) {
                let piece = Piece { row, tile, column };
                macro_rules! pick {
                    ($($r:literal $v:literal)+) => {
                        match (rows, vectors) {
                            $(($r, $v) if const { fits::<S, E>($r, $v) } => {
                                // SAFETY: `S` is the instruction set this runs on, as `all_tiles` is called by way of
                                // `run` alone. These rows, tile and columns are in the product, and this call's own.
                                unsafe { S::outline(Shaped::<S, E, P, $r, $v>(p, piece, PhantomData)) }
                            })+
                            _ => unreachable!("no kernel of {rows} rows and {vectors} vectors"),
                        }
                    };
                }
                pick! { 1 4 2 4 3 2 4 2 6 2 1 2 2 2 8 2 }
            }
            row += rows;
        }
    }
}

/// How many rows of so many, and vectors of a tile, are computed at once: as many sums as there are registers, and as
/// few weights for each as can be.
#[inline(always)]
fn shape<S: Simd, E: Real>(rows: usize) -> (usize, usize) {
    let half = <E::Vector<S> as Vector>::LANES == TILE / 2;
    match rows {
        8.. if half => (8, 2),
        6.. if !half => (6, 2),
        4.. => (4, 2),
        3 => (3, 2),
        _ => (rows, if half { 2 } else { 4 }),
    }
}

/// Whether there is a use for a kernel of this shape.
const fn fits<S: Simd, E: Real>(rows: usize, vectors: usize) -> bool {
    let half = <E::Vector<S> as Vector>::LANES == TILE / 2;
    match rows {
        8 => half,
        6 => !half,
        3 | 4 => true,
        _ => half == (vectors == 2),
    }
}

/// A piece of `M` rows and `V` vectors. Made only where [`piece`] may be called.
struct Shaped<'a, S, E, P, const M: usize, const V: usize>(&'a Product<'a, E>, Piece, PhantomData<(S, P)>);

impl<S: Simd, E: Real, P: Packed, const M: usize, const V: usize> Outlined for Shaped<'_, S, E, P, M, V> {
    #[inline(always)]
    fn run(self) {
        // SAFETY: `all_tiles` alone makes these, for pieces of its own.
        unsafe { piece::<S, E, P, M, V>(self.0, self.1) }
    }
}

/// Computes `M` rows and `V` vectors' columns of a tile.
///
/// # Safety
/// The processor has the instruction set `S`. The rows, the tile and the columns are in the product; no other thread reads
/// or writes them.
#[inline(always)]
unsafe fn piece<S: Simd, E: Real, P: Packed, const M: usize, const V: usize>(p: &Product<'_, E>, at: Piece) {
    let lanes = <E::Vector<S> as Vector>::LANES;
    let PackedSpec { inputs, outputs, packing, .. } = p.s;
    let tile = &p.w[at.tile * packing.tile(inputs)..][..packing.tile(inputs)];
    let x = &p.x[at.row * inputs..][..M * inputs];
    let first = at.tile * TILE + at.column;
    debug_assert!(!P::WHOLE || inputs.is_multiple_of(P::RUN), "whole runs");
    // SAFETY: the caller has the instruction set. A tile holds the runs of all inputs, which are whole where P says
    // so, as `check` has seen; and of each all 32 columns, among them `column` and those after it. x holds M rows of all
    // inputs.
    unsafe {
        let zero = E::Vector::<S>::splat(E::ZERO);
        let mut all = [[zero; V]; M];
        let mut run = tile.as_ptr();
        for k in (0..inputs).step_by(P::RUN) {
            let terms = if P::WHOLE { P::RUN } else { P::RUN.min(inputs - k) };
            let mut sums = [[zero; V]; M];
            let x = x.as_ptr().add(k);
            for term in 0..terms {
                let from = run.add(P::term(term));
                if P::term(term).is_multiple_of(LINE) {
                    S::prefetch(from.wrapping_add(AHEAD));
                }
                // The fewer of the two are held in registers.
                if V < M {
                    let mut weights = [zero; V];
                    for (v, weights) in weights.iter_mut().enumerate() {
                        *weights = P::weights::<S, E>(from, at.column + v * lanes);
                    }
                    for (m, sums) in sums.iter_mut().enumerate() {
                        let x = E::Vector::<S>::splat(x.add(m * inputs + term).read());
                        for (weights, sum) in weights.iter().zip(sums) {
                            *sum = x.mul_add(*weights, *sum);
                        }
                    }
                } else {
                    let mut rows = [zero; M];
                    for (m, row) in rows.iter_mut().enumerate() {
                        *row = E::Vector::<S>::splat(x.add(m * inputs + term).read());
                    }
                    for v in 0..V {
                        let weights = P::weights::<S, E>(from, at.column + v * lanes);
                        for (row, sums) in rows.iter().zip(&mut sums) {
                            sums[v] = row.mul_add(weights, sums[v]);
                        }
                    }
                }
            }
            for m in 0..M {
                for v in 0..V {
                    all[m][v] = P::add::<S, E>(run, at.column + v * lanes, sums[m][v], all[m][v]);
                }
            }
            run = run.add(P::term(terms));
        }
        // SAFETY: so many columns from `first` on are in y, or none; and in the bias.
        for (m, all) in all.iter().enumerate() {
            for (v, sum) in all.iter().enumerate() {
                let column = first + v * lanes;
                let n = outputs.saturating_sub(column).min(lanes);
                if n == 0 {
                    break;
                }
                let to = p.y.add((at.row + m) * outputs + column);
                let sum = match p.b {
                    Some(b) => E::Vector::<S>::load_part(b[column..].as_ptr(), n).add(*sum),
                    None => *sum,
                };
                if n == lanes { sum.store(to) } else { sum.store_part(to, n) }
            }
        }
    }
}

/// Computes some tiles.
fn tiles<E: Real>(isa: Available, p: &Product<'_, E>, tiles: Range<usize>) {
    match p.s.packing {
        Packing::Bf16 => run::bf16(isa, p, tiles),
        Packing::F16 => run::f16(isa, p, tiles),
        Packing::Q8_0 => run::q8_0(isa, p, tiles),
    }
}

/// Halves a range of tiles until it is small enough for a task.
fn split<E: Real>(isa: Available, p: &Product<'_, E>, all: Range<usize>, grain: usize) {
    if all.len() <= grain {
        return tiles(isa, p, all);
    }
    let half = all.start + all.len() / 2;
    par::join(|| split(isa, p, all.start..half, grain), || split(isa, p, half..all.end, grain));
}

/// A packed matrix `[outputs, inputs]` as the right factor of a product: its terms are the outputs.
struct Unpacked<'a, E> {
    s: PackedSpec,
    w: &'a [E],
}

impl<E: Real> Right<E> for Unpacked<'_, E> {
    fn size(&self) -> (usize, usize) {
        (self.s.outputs, self.s.inputs)
    }

    fn direct(&self) -> Option<Mat<'_, E>> {
        None
    }

    fn pack(&self, _: Available, k: Range<usize>, columns: Range<usize>, width: usize, out: &mut [E]) {
        let panels = columns.clone().step_by(width).zip(out.chunks_exact_mut(width * k.len().max(1)));
        for (first, panel) in panels {
            for (o, row) in k.clone().zip(panel.chunks_exact_mut(width)) {
                let (inside, outside) = row.split_at_mut(width.min(columns.end - first));
                self.s.packing.read_some(self.s.inputs, o, first, self.w, inside);
                outside.fill(E::ZERO);
            }
        }
    }
}

#[track_caller]
pub(crate) fn check(name: &str, s: &PackedSpec, x: usize, w: usize, y: usize) {
    assert_eq!(x, size(name, &[s.rows, s.inputs]), "{name}: x or dx is not rows × inputs");
    assert_eq!(y, size(name, &[s.rows, s.outputs]), "{name}: y or dy is not rows × outputs");
    assert_eq!(w, s.slots(), "{name}: the weight is not inputs × outputs as it is packed");
    assert!(s.inputs.is_multiple_of(s.packing.group()), "{name}: inputs that are no whole blocks");
}

impl<E: Real> Kernels<E> {
    pub(crate) fn packed_linear(&self, s: &PackedSpec, x: &[E], w: &[E], b: Option<&[E]>, y: &mut [E]) {
        check("packed_linear", s, x.len(), w.len(), y.len());
        assert_eq!(b.map_or(s.outputs, <[E]>::len), s.outputs, "packed_linear: the bias is not outputs");
        let bytes = &bytemuck::cast_slice(w)[..s.packing.bytes(s.outputs, s.inputs)];
        let p = Product { s: *s, x, w: bytes, b, y: y.as_mut_ptr() };
        let all = 0..s.outputs.div_ceil(TILE);
        let tile = s.packing.tile(s.inputs).max(s.rows.saturating_mul(s.inputs * TILE) / 8).max(1);
        if par::threads() == 1 || all.len().saturating_mul(tile) < 2 * BYTES {
            tiles(self.isa, &p, all);
        } else {
            // Some more tasks than threads, so that none waits long for the last.
            let grain = (all.len() / (4 * par::threads())).max(BYTES / tile).max(1);
            split(self.isa, &p, all, grain);
        }
    }

    pub(crate) fn packed_linear_vjp(&self, s: &PackedSpec, w: &[E], dy: &[E], dx: &mut [E]) {
        check("packed_linear_vjp", s, dx.len(), w.len(), dy.len());
        let dy = Mat::new(dy, s.rows, s.outputs);
        gemm::product(
            self.isa,
            Threads::All,
            &dy,
            &Unpacked { s: *s, w },
            Start::Zero,
            Unary::Identity,
            dx,
            s.inputs,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, devices, on_threads, random, reals};

    const ALL: [Packing; 3] = [Packing::Bf16, Packing::F16, Packing::Q8_0];

    /// A packed matrix, and the numbers that it stands for.
    fn packed<E: Real>(s: &PackedSpec, seed: u64) -> (Vec<E>, Vec<f64>) {
        let mut slots = vec![E::ZERO; s.slots()];
        let mut numbers = random(seed, s.outputs * s.inputs);
        s.packing.write(s.inputs, 0, &numbers, &mut slots);
        s.packing.read(s.inputs, 0, &slots, &mut numbers);
        (slots, numbers)
    }

    fn shapes() -> Vec<PackedSpec> {
        let mut all = Vec::new();
        let few = if cfg!(miri) { &[1, 7][..] } else { &[1, 2, 3, 4, 5, 6, 7, 8, 11, 33] };
        for packing in ALL {
            let sizes: &[(usize, usize)] = match packing.group() {
                1 => &[(1, 1), (7, 5), (33, 100), (1, 100), (33, 1), (300, 64), (513, 31)],
                _ => &[(32, 1), (64, 5), (96, 100), (32, 33), (320, 64)],
            };
            let sizes = &sizes[..if cfg!(miri) { 3 } else { sizes.len() }];
            for rows in few {
                all.extend(sizes.iter().map(|&(inputs, outputs)| PackedSpec {
                    rows: *rows,
                    inputs,
                    outputs,
                    packing,
                }));
            }
        }
        all
    }

    fn forward_matches<E: Real>(tolerance: f64) {
        for device in devices::<E>() {
            for s in shapes() {
                let (w, numbers) = packed::<E>(&s, 2);
                let (x, b) = (random(1, s.rows * s.inputs), random(3, s.outputs));
                for bias in [None, Some(&b[..])] {
                    let mut expected = Vec::new();
                    for (r, o) in (0..s.rows).flat_map(|r| (0..s.outputs).map(move |o| (r, o))) {
                        let (x, w) = (&x[r * s.inputs..], &numbers[o * s.inputs..]);
                        let sum: f64 = (0..s.inputs).map(|i| x[i] * w[i]).sum();
                        expected.push(sum + bias.map_or(0.0, |b| b[o]));
                    }
                    let mut y = vec![E::from_f64(f64::NAN); expected.len()];
                    let bias = bias.map(reals);
                    device.packed_linear(&s, &reals(&x), &w, bias.as_deref(), &mut y);
                    assert_close(
                        &y,
                        &expected,
                        tolerance * (s.inputs as f64).sqrt(),
                        &format!("{s:?} {device:?}"),
                    );
                }
            }
        }
    }

    #[test]
    fn products_are_those_with_the_numbers_that_weights_stand_for() {
        forward_matches::<f64>(1e-15);
        forward_matches::<f32>(2e-7);
    }

    #[test]
    fn gradients_are_those_with_the_numbers_that_weights_stand_for() {
        for device in devices::<f64>() {
            for s in shapes() {
                let (w, numbers) = packed::<f64>(&s, 2);
                let dy = random(4, s.rows * s.outputs);
                let mut expected = Vec::new();
                for (r, i) in (0..s.rows).flat_map(|r| (0..s.inputs).map(move |i| (r, i))) {
                    let dy = &dy[r * s.outputs..];
                    expected.push((0..s.outputs).map(|o| dy[o] * numbers[o * s.inputs + i]).sum());
                }
                let mut dx = vec![f64::NAN; expected.len()];
                device.packed_linear_vjp(&s, &w, &dy, &mut dx);
                assert_close(&dx, &expected, 1e-14, &format!("{s:?} {device:?}"));
            }
        }
    }

    #[test]
    fn a_rows_bits_depend_on_neither_other_rows_nor_threads() {
        for device in devices::<f32>() {
            for packing in ALL {
                // So large that work is shared out for one row, too.
                let sizes = if cfg!(miri) { (64, 70) } else { (1024, 1500) };
                let s = PackedSpec { rows: 14, inputs: sizes.0, outputs: sizes.1, packing };
                let (w, _) = packed::<f32>(&s, 2);
                let x: Vec<f32> = reals(&random(1, s.rows * s.inputs));
                let run = |threads, rows: Range<usize>| {
                    let s = PackedSpec { rows: rows.len(), ..s };
                    let mut y = vec![f32::NAN; s.rows * s.outputs];
                    let x = &x[rows.start * s.inputs..rows.end * s.inputs];
                    on_threads(threads, || device.packed_linear(&s, x, &w, None, &mut y));
                    y
                };
                let all = run(1, 0..s.rows);
                for rows in [0..1, 0..2, 3..6, 1..7, 5..13, 13..14, 0..14] {
                    for threads in [1, 2, 5] {
                        let some = run(threads, rows.clone());
                        assert!(
                            some == all[rows.start * s.outputs..rows.end * s.outputs],
                            "{rows:?} {s:?} {device:?}"
                        );
                    }
                }
                let gradient = |threads| {
                    let mut dx = vec![f32::NAN; s.rows * s.inputs];
                    let dy: Vec<f32> = reals(&random(1, s.rows * s.outputs));
                    on_threads(threads, || device.packed_linear_vjp(&s, &w, &dy, &mut dx));
                    dx
                };
                let one = gradient(1);
                assert!([2, 5].into_iter().all(|threads| gradient(threads) == one), "{s:?} {device:?}");
            }
        }
    }
}
