//! The factors of a product, and how they are packed into panels for the tiles.

use std::ops::Range;

use crate::cpu::Real;
use crate::cpu::isa::Available;
use crate::cpu::simd::{Simd, kernels};
use crate::cpu::size::reach;
use crate::cpu::vector::Vector;

kernels! {
    fn pack_panel<E>(a: Mat<'_, E>, rows: Range<usize>, k: Range<usize>, width: usize, out: &mut [E]);
    fn pack_panels<E>(a: Mat<'_, E>, rows: Range<usize>, k: Range<usize>, width: usize, out: &mut [E]);
}

/// A matrix seen through strides: element (i, j) is `data[i·row + j·col]`, which lies in `data` for each i < rows and
/// j < cols. [`Mat::strided`] checks that, and only [`Mat::t`] makes one otherwise.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a, E> {
    pub(super) data: &'a [E],
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) row: usize,
    pub(super) col: usize,
}

impl<'a, E> Mat<'a, E> {
    /// Rows that lie one after the other. Panics if there are fewer values.
    #[track_caller]
    pub(crate) fn new(data: &'a [E], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols)
    }

    /// Rows that lie `row` apart. Panics if there are fewer values.
    #[track_caller]
    pub(crate) fn strided(data: &'a [E], rows: usize, cols: usize, row: usize) -> Self {
        let needed = if rows == 0 || cols == 0 { 0 } else { reach("a matrix", rows - 1, row, cols) };
        assert!(data.len() >= needed, "a matrix of {} values, not {rows} × {cols}", data.len());
        Self { data, rows, cols, row, col: 1 }
    }

    /// The transpose, at no cost.
    pub(crate) fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, row: self.col, col: self.row, ..self }
    }

    /// Rows and columns.
    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// Some of the rows of a matrix whose rows lie as rows. Panics if there are fewer.
    #[track_caller]
    pub(crate) fn some(&self, rows: Range<usize>) -> Self {
        assert!(rows.end <= self.rows && self.col == 1, "rows of a matrix of {} rows", self.rows);
        Self::strided(&self.data[rows.start * self.row..], rows.len(), self.cols, self.row)
    }

    /// Some of the columns of a matrix whose rows lie as rows. Panics if there are fewer.
    #[track_caller]
    pub(super) fn columns(&self, columns: Range<usize>) -> Self {
        assert!(columns.end <= self.cols && self.col == 1, "columns of a matrix of {} columns", self.cols);
        let from = if self.rows == 0 { 0 } else { columns.start };
        Self::strided(&self.data[from..], self.rows, columns.len(), self.row)
    }

    /// The values of a matrix whose rows lie as rows, and how far apart these start. The last row ends where the values
    /// do.
    pub(crate) fn rows(&self) -> (&'a [E], usize) {
        debug_assert!(self.col == 1, "rows that lie as rows");
        (&self.data[..(self.rows.max(1) - 1) * self.row + self.cols], self.row)
    }

    /// Where element (i, j) lies. It may be read if it is in the matrix.
    #[inline(always)]
    pub(super) fn at(&self, i: usize, j: usize) -> *const E {
        self.data.as_ptr().wrapping_add(i.wrapping_mul(self.row).wrapping_add(j.wrapping_mul(self.col)))
    }
}

/// The left factor of a product.
pub(crate) trait Left<E>: Sync {
    /// Rows, and terms.
    fn size(&self) -> (usize, usize);
    /// The factor as a matrix, if it is one.
    fn matrix(&self) -> Option<Mat<'_, E>>;
    /// Writes `out[p·rows.len() + i]` = element (rows.start + i, k.start + p).
    fn pack(&self, isa: Available, rows: Range<usize>, k: Range<usize>, out: &mut [E]);
}

/// The right factor of a product.
pub(crate) trait Right<E>: Sync {
    /// Terms, and columns.
    fn size(&self) -> (usize, usize);
    /// The factor as a matrix, if its rows can be read as they lie.
    fn direct(&self) -> Option<Mat<'_, E>>;
    /// Writes panels of `width` columns, one after the other: in each, `out[p·width + i]` is the element of term
    /// k.start + p and the panel's column i, or 0 where that is not in `columns`.
    fn pack(&self, isa: Available, k: Range<usize>, columns: Range<usize>, width: usize, out: &mut [E]);
}

impl<E: Real> Left<E> for Mat<'_, E> {
    fn size(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    fn matrix(&self) -> Option<Mat<'_, E>> {
        Some(*self)
    }

    fn pack(&self, isa: Available, rows: Range<usize>, k: Range<usize>, out: &mut [E]) {
        let width = rows.len();
        run::pack_panel(isa, *self, rows, k, width, out);
    }
}

impl<E: Real> Right<E> for Mat<'_, E> {
    fn size(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    fn direct(&self) -> Option<Mat<'_, E>> {
        (self.col == 1).then_some(*self)
    }

    fn pack(&self, isa: Available, k: Range<usize>, columns: Range<usize>, width: usize, out: &mut [E]) {
        run::pack_panels(isa, self.t(), columns, k, width, out);
    }
}

/// [`pack_panel`], `width` rows at a time.
#[inline(always)]
fn pack_panels<S: Simd, E: Real>(
    a: Mat<'_, E>,
    rows: Range<usize>,
    k: Range<usize>,
    width: usize,
    out: &mut [E],
) {
    let kc = k.len();
    let whole = rows.start + if a.row == 1 { rows.len() / width * width } else { 0 };
    if whole > rows.start {
        assert!(rows.end <= a.rows && k.end <= a.cols, "panels of other rows or terms than the matrix has");
        // Several panels at a time, so that what is read lies together in memory.
        for (g, at) in (rows.start..whole).step_by(TOGETHER * width).enumerate() {
            let end = (at + TOGETHER * width).min(whole);
            let out = &mut out[g * TOGETHER * width * kc..][..(end - at) * kc];
            for (p, k) in k.clone().enumerate() {
                let from = &a.data[at + k * a.col..end + k * a.col];
                for (j, from) in from.chunks_exact(width).enumerate() {
                    // SAFETY: `S` is the instruction set this runs on, as this is called through `run` alone.
                    unsafe { copy::<S, E>(from, &mut out[j * width * kc + p * width..][..width]) };
                }
            }
        }
    }
    let rest = &mut out[(whole - rows.start) * kc..];
    for (at, out) in (whole..rows.end).step_by(width).zip(rest.chunks_exact_mut(width * kc.max(1))) {
        pack_panel::<S, E>(a, at..(at + width).min(rows.end), k.clone(), width, out);
    }
}

/// Panels that are packed together.
const TOGETHER: usize = 8;

/// Copies a panel's row: a copy whose length the compiler does not know would be a call.
///
/// # Safety
/// The processor has the instruction set `S`.
#[inline(always)]
unsafe fn copy<S: Simd, E: Real>(from: &[E], to: &mut [E]) {
    let lanes = <E::Vector<S> as Vector>::LANES;
    let (mut from, mut to) = (from.chunks_exact(lanes), to.chunks_exact_mut(lanes));
    for (from, to) in from.by_ref().zip(to.by_ref()) {
        // SAFETY: both have as many values as a register.
        unsafe { E::Vector::<S>::load(from.as_ptr()).store(to.as_mut_ptr()) };
    }
    for (from, to) in from.remainder().iter().zip(to.into_remainder()) {
        *to = *from;
    }
}

/// Writes `out[p·width + i]` = element (rows.start + i, k.start + p), and 0 for rows from `rows.len()` on.
#[inline(always)]
fn pack_panel<S: Simd, E: Real>(
    a: Mat<'_, E>,
    rows: Range<usize>,
    k: Range<usize>,
    width: usize,
    out: &mut [E],
) {
    let (m, kc) = (rows.len(), k.len());
    assert!(
        rows.end <= a.rows && k.end <= a.cols && m <= width,
        "a panel of other rows or terms than the matrix has"
    );
    assert!(reach("a panel", kc, width, 0) <= out.len(), "a panel of {kc} × {width} values in {}", out.len());
    if m < width {
        out[..kc * width].fill(E::ZERO);
    }
    if m == 0 || kc == 0 {
        return;
    }
    let data = &a.data[rows.start * a.row + k.start * a.col..];
    if a.row == 1 {
        let lanes = <E::Vector<S> as Vector>::LANES;
        // As whole registers, which reach over the end of a row into the next, where what they leave is written over: a copy
        // whose length the compiler does not know would be a call. Not the last row, which has no next one.
        let over = m.next_multiple_of(lanes);
        let whole = if over <= a.col && over <= 2 * width { kc - 1 } else { 0 };
        for p in 0..whole {
            let (from, to) = (&data[p * a.col..][..over], &mut out[p * width..][..over]);
            for (from, to) in from.chunks_exact(lanes).zip(to.chunks_exact_mut(lanes)) {
                // SAFETY: `S` is the instruction set this runs on, as this is called through `run` alone, and both have as
                // many values as a register.
                unsafe { E::Vector::<S>::load(from.as_ptr()).store(to.as_mut_ptr()) };
            }
        }
        if m < width {
            // What reached over is not all written over then.
            for out in out.chunks_exact_mut(width).take(whole) {
                out[m..].fill(E::ZERO);
            }
        }
        for (p, out) in out.chunks_exact_mut(width).enumerate().take(kc).skip(whole) {
            out[..m].copy_from_slice(&data[p * a.col..p * a.col + m]);
            out[m..].fill(E::ZERO);
        }
        return;
    }
    let block = <E::Vector<S> as Vector>::BLOCK;
    let whole = if a.col == 1 { (m / block * block, kc / block * block) } else { (0, 0) };
    for i in (0..whole.0).step_by(block) {
        for p in (0..whole.1).step_by(block) {
            // SAFETY: `S` is the instruction set this runs on, as this is called through `run` alone. `a.col` is 1, and
            // the block's rows i.. and terms p.. end before m and kc: with `rows.start` and `k.start` added they are
            // in `a`, by the first assertion, and so in its data. What is written ends before kc·width, as i + block ≤
            // m ≤ width, and so in `out`, by the second.
            unsafe {
                let from = data.as_ptr().add(i * a.row + p);
                E::Vector::<S>::transpose(from, a.row, out.as_mut_ptr().add(p * width + i), width);
            }
        }
    }
    for i in 0..m {
        let done = if i < whole.0 { whole.1 } else { 0 };
        for p in done..kc {
            out[p * width + i] = data[i * a.row + p * a.col];
        }
    }
}
