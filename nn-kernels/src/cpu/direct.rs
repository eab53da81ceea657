//! Convolutions without patches: a matrix product whose left factor is read from the padded image where it lies.
//!
//! Element (m, p) of that factor is `x[at[m] + off[p]]`: for an output of the convolution, `at` is the place of its
//! first pixel, and `off` that of a channel and tap; for a gradient of the weights they change places. The right factor
//! is packed, with output channels as columns, so that each value read from the image meets whole registers of
//! them, whatever the stride and the width of the image are.

use std::marker::PhantomData;
use std::ops::Range;

use super::Real;
use super::gemm::WORK;
use super::isa::Available;
use super::par::{self, Rows};
use super::simd::{Outlined, Simd, kernels};
use super::vector::Vector;

kernels! {
    fn product_of<E>(p: &Gathered<'_, E>, c: &mut [E]);
    fn columns_of<E>(of: PhantomData<E>) -> [usize; 2];
    fn pad_image<E>(p: Padding, x: &[E], out: &mut [E]);
    fn pad_parity<E>(p: Padding, x: &[E], out: &mut [E]);
    fn turn_rows<E>(from: &[E], from_row: usize, rows: usize, cols: usize, to: &mut [E], to_row: usize);
}

/// Terms that are summed in registers before they are added to C: a panel of the right factor this long leaves room in
/// the first cache for the image.
const TERMS: usize = 320;

/// A product C = start + A·B, where A's element (m, p) is `x[at[m] + off[p]]`.
pub(crate) struct Gathered<'a, E> {
    pub(crate) x: &'a [E],
    pub(crate) at: &'a [u32],
    pub(crate) off: &'a [u32],
    /// Panels of [`Columns::panel`] columns, one after the other; in each, the columns of one term after those of
    /// another. The last panel has only the registers that it needs.
    pub(crate) b: &'a [E],
    /// Columns, a multiple of a register's.
    pub(crate) columns: usize,
    /// The row that C starts from, or what it holds.
    pub(crate) start: Option<&'a [E]>,
}

/// How columns are laid out for an instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    /// A register.
    pub(crate) lanes: usize,
    /// Those of a panel.
    pub(crate) panel: usize,
}

impl Columns {
    pub(crate) fn new<E: Real>(isa: Available) -> Self {
        let [lanes, panel] = run::columns_of(isa, PhantomData::<E>);
        Self { lanes, panel }
    }

    /// Columns for `n`: whole registers.
    pub(crate) fn of(self, n: usize) -> usize {
        n.next_multiple_of(self.lanes)
    }

    /// Calls `image` with each image's number, some of its `n` channels of `area` values, and these. There are as many tasks as
    /// images if that keeps all threads busy; else the channels of each are shared out. An image costs `work`.
    pub(crate) fn each_image<E: Real>(
        self,
        images: usize,
        [n, area]: [usize; 2],
        work: usize,
        y: &mut [E],
        image: &(impl Fn(usize, Range<usize>, &mut [E]) + Sync),
    ) {
        let grain = |work: usize| (WORK / work.max(1)).max(1);
        if images >= 2 * par::threads() {
            par::split(images, grain(work), Rows(y, n * area), &|first, y: Rows<&mut [E]>| {
                for (i, y) in (first..).zip(y.0.chunks_exact_mut(n * area)) {
                    image(i, 0..n, y);
                }
            });
        } else {
            let panels = n.div_ceil(self.panel);
            for (i, y) in y.chunks_exact_mut(n * area).enumerate() {
                let rows = Rows(y, self.panel * area);
                par::split(panels, grain(work / panels), rows, &|first, y: Rows<&mut [E]>| {
                    let from = first * self.panel;
                    image(i, from..from + y.0.len() / area, y.0);
                });
            }
        }
    }
}

#[inline(always)]
fn columns_of<S: Simd, E: Real>(_: PhantomData<E>) -> [usize; 2] {
    let lanes = <E::Vector<S> as Vector>::LANES;
    [lanes, S::VECTORS * lanes]
}

impl<E: Real> Gathered<'_, E> {
    /// Writes C, rows of as many values as there are columns.
    ///
    /// Panics if a view is too small.
    #[track_caller]
    pub(crate) fn product(&self, isa: Available, c: &mut [E]) {
        run::product_of(isa, self, c);
    }
}

#[inline(always)]
fn product_of<S: Simd, E: Real>(p: &Gathered<'_, E>, c: &mut [E]) {
    let lanes = <E::Vector<S> as Vector>::LANES;
    let panel = S::VECTORS * lanes;
    let (rows, terms, columns) = (p.at.len(), p.off.len(), p.columns);
    let last = |places: &[u32]| places.iter().fold(0, |max, &at| max.max(at)) as usize;
    assert!(
        rows == 0 || terms == 0 || last(p.at) + last(p.off) < p.x.len(),
        "a product of values beyond the image"
    );
    assert!(columns.is_multiple_of(lanes) && p.b.len() >= columns * terms, "a product of other columns");
    assert!(c.len() >= rows * columns, "a product of {rows} × {columns} in {} values", c.len());
    assert!(p.start.is_none_or(|start| start.len() >= columns), "a start of other columns");
    // Runs of about the same length.
    let run = terms.div_ceil(terms.div_ceil(TERMS).max(1)).max(1);
    let mut k = 0;
    // Once even if there are no terms: C is still its start.
    loop {
        let ks = k..(k + run).min(terms);
        for j in (0..columns).step_by(panel) {
            let width = panel.min(columns - j);
            let b = p.b[j * terms..].as_ptr().wrapping_add(ks.start * width);
            for i in (0..rows).step_by(S::ROWS) {
                let at = &p.at[i..(i + S::ROWS).min(rows)];
                let start = if ks.start == 0 { p.start.map(|start| start[j..].as_ptr()) } else { None };
                let t = Tile {
                    x: p.x.as_ptr(),
                    at: at.as_ptr(),
                    off: p.off[ks.clone()].as_ptr(),
                    terms: ks.len(),
                    b,
                    start: start.unwrap_or(std::ptr::null()),
                    c: c[i * columns + j..].as_mut_ptr(),
                    c_row: columns,
                };
                // SAFETY: `S` is the instruction set this runs on, as this is called through `run` alone. Every place
                // read in x is at most the sum of the largest of both lists, which is in x by the first assertion.
                // Panel j starts at j·terms, as all before it are whole, and has width·terms values, which are in B by
                // the second; rows i.. and columns j..j + width are in C by the third, and in the start by the fourth.
                unsafe { any_tile::<S, E>(at.len(), width / lanes, t) };
            }
        }
        k = ks.end;
        if k >= terms {
            break;
        }
    }
}

/// One tile's operands.
#[derive(Clone, Copy)]
struct Tile<E> {
    x: *const E,
    at: *const u32,
    off: *const u32,
    terms: usize,
    b: *const E,
    /// Null where C's own values are the start.
    start: *const E,
    c: *mut E,
    c_row: usize,
}

/// C's tile of `M` rows and `V` vectors.
///
/// # Safety
/// The processor has the instruction set `S`. `at` may be read up to M and `off` up to the number of terms, `x` at each
/// sum of the two, `b` up to terms·V·LANES, `start` up to V·LANES unless it is null, and `c[m·c_row..][..V·LANES]` may be
/// read and written, by this thread alone, for each m < M.
#[inline(always)]
unsafe fn tile<S: Simd, E: Real, const M: usize, const V: usize>(t: Tile<E>) {
    // SAFETY: what is read and written are elements that the caller promises, and no others.
    unsafe {
        let lanes = <E::Vector<S> as Vector>::LANES;
        let mut rows = [t.x; M];
        for (m, row) in rows.iter_mut().enumerate() {
            *row = t.x.wrapping_add(t.at.add(m).read() as usize);
        }
        let mut columns = [E::Vector::<S>::splat(E::ZERO); V];
        let mut acc = [[E::Vector::<S>::splat(E::ZERO); V]; M];
        let mut b = t.b;
        for p in 0..t.terms {
            let off = t.off.add(p).read() as usize;
            for (v, column) in columns.iter_mut().enumerate() {
                *column = E::Vector::<S>::load(b.add(v * lanes));
            }
            for (row, acc) in rows.iter().zip(&mut acc) {
                let x = E::Vector::<S>::splat(row.wrapping_add(off).read());
                for (column, acc) in columns.iter().zip(acc) {
                    *acc = x.mul_add(*column, *acc);
                }
            }
            b = b.wrapping_add(V * lanes);
        }
        for (m, acc) in acc.iter().enumerate() {
            let c = t.c.add(m * t.c_row);
            let start = if t.start.is_null() { c.cast_const() } else { t.start };
            for (v, acc) in acc.iter().enumerate() {
                E::Vector::<S>::load(start.add(v * lanes)).add(*acc).store(c.add(v * lanes));
            }
        }
    }
}

/// A tile whose shape is known to the compiler. Made only where [`tile`] may be called.
struct Shaped<S, E, const M: usize, const V: usize>(Tile<E>, PhantomData<S>);

impl<S: Simd, E: Real, const M: usize, const V: usize> Outlined for Shaped<S, E, M, V> {
    #[inline(always)]
    fn run(self) {
        // SAFETY: `any_tile` alone makes these, with its caller's promise for M rows and V vectors.
        unsafe { tile::<S, E, M, V>(self.0) }
    }
}

/// Runs [`tile`] for a number of rows and vectors known only now.
///
/// # Safety
/// As for [`tile`], with `rows` for M and `vectors` for V.
#[inline(always)]
unsafe fn any_tile<S: Simd, E: Real>(rows: usize, vectors: usize, t: Tile<E>) {
    macro_rules! pick {
        ($($rows:literal)+) => {
            match (rows, vectors) {
                $(
                    // SAFETY: the caller's, here and below.
                    ($rows, 1) if const { $rows <= S::ROWS } => unsafe {
                        S::outline(Shaped::<S, E, $rows, 1>(t, PhantomData))
                    },
                    ($rows, 2) if const { $rows <= S::ROWS && S::VECTORS >= 2 } => unsafe {
                        S::outline(Shaped::<S, E, $rows, 2>(t, PhantomData))
                    },
                    ($rows, 3) if const { $rows <= S::ROWS && S::VECTORS >= 3 } => unsafe {
                        S::outline(Shaped::<S, E, $rows, 3>(t, PhantomData))
                    },
                )+
                _ => unreachable!("no tile of {rows} rows and {vectors} vectors"),
            }
        };
    }
    pick!(1 2 3 4 5 6 7 8);
}

/// A piece of an image with zeros around.
#[derive(Clone, Copy)]
pub(crate) struct Padding {
    pub(crate) channels: usize,
    /// Of the image.
    pub(crate) input: [usize; 2],
    /// Of the piece.
    pub(crate) size: [usize; 2],
    /// The pixel that its first value is; negative in the zeros.
    pub(crate) first: [isize; 2],
}

impl Padding {
    pub(crate) fn pad<E: Real>(self, isa: Available, x: &[E], out: &mut [E]) {
        run::pad_image(isa, self, x, out);
    }

    /// As [`pad`](Self::pad), with each row as its even columns and then its odd ones, as many as the piece's width each.
    pub(crate) fn pad_by_parity<E: Real>(self, isa: Available, x: &[E], out: &mut [E]) {
        run::pad_parity(isa, self, x, out);
    }
}

/// The places of a piece along an axis that are pixels.
#[inline(always)]
fn pixels(p: &Padding, axis: usize) -> Range<usize> {
    let from = (-p.first[axis]).clamp(0, p.size[axis] as isize);
    let to = (p.input[axis] as isize - p.first[axis]).clamp(from, p.size[axis] as isize);
    from as usize..to as usize
}

#[inline(always)]
fn pad_image<S: Simd, E: Real>(p: Padding, x: &[E], out: &mut [E]) {
    let ([h, w], [oh, ow]) = (p.input, p.size);
    if ow == 0 || oh == 0 {
        return;
    }
    let (rows, cols) = (pixels(&p, 0), pixels(&p, 1));
    for (channel, out) in out.chunks_exact_mut(oh * ow).enumerate().take(p.channels) {
        for (r, out) in out.chunks_exact_mut(ow).enumerate() {
            if !rows.contains(&r) || cols.is_empty() {
                zero::<S, E>(out);
                continue;
            }
            let from = (channel * h + r.wrapping_add_signed(p.first[0])) * w
                + cols.start.wrapping_add_signed(p.first[1]);
            copy::<S, E>(&x[from..from + cols.len()], &mut out[cols.clone()]);
            zero::<S, E>(&mut out[..cols.start]);
            zero::<S, E>(&mut out[cols.end..]);
        }
    }
}

#[inline(always)]
fn pad_parity<S: Simd, E: Real>(p: Padding, x: &[E], out: &mut [E]) {
    let ([h, w], [oh, ow]) = (p.input, p.size);
    let rows = pixels(&p, 0);
    let cols = {
        let [from, to] =
            [-p.first[1], w as isize - p.first[1]].map(|at| at.clamp(0, 2 * ow as isize) as usize);
        from..to.max(from)
    };
    for (channel, out) in out.chunks_exact_mut(oh * 2 * ow).enumerate().take(p.channels) {
        for (r, out) in out.chunks_exact_mut(2 * ow).enumerate() {
            zero::<S, E>(out);
            if !rows.contains(&r) || cols.is_empty() {
                continue;
            }
            let from = (channel * h + r.wrapping_add_signed(p.first[0])) * w
                + cols.start.wrapping_add_signed(p.first[1]);
            let mut x = &x[from..from + cols.len()];
            let (even, odd) = out.split_at_mut(ow);
            let mut at = cols.start;
            if at % 2 == 1
                && let Some((first, rest)) = x.split_first()
            {
                odd[at / 2] = *first;
                (x, at) = (rest, at + 1);
            }
            let (pairs, last) = x.as_chunks::<2>();
            let n = pairs.len();
            let (even, odd) = (&mut even[at / 2..], &mut odd[at / 2..]);
            for ((pair, even), odd) in pairs.iter().zip(&mut even[..n]).zip(&mut odd[..n]) {
                (*even, *odd) = (pair[0], pair[1]);
            }
            if let [last] = last {
                even[n] = *last;
            }
        }
    }
}

/// Copies a short row, for which a call would take longer. No masks: they are slow where they are written through.
#[inline(always)]
pub(super) fn copy<S: Simd, E: Real>(from: &[E], to: &mut [E]) {
    let lanes = <E::Vector<S> as Vector>::LANES;
    let n = from.len();
    assert_eq!(n, to.len(), "rows of one length");
    if n < lanes {
        let ((fours, rest), (from_fours, from_rest)) = (to.as_chunks_mut::<4>(), from.as_chunks::<4>());
        for (to, from) in fours.iter_mut().zip(from_fours) {
            *to = *from;
        }
        match (rest, from_rest) {
            ([a], [x]) => *a = *x,
            ([a, b], [x, y]) => (*a, *b) = (*x, *y),
            ([a, b, c], [x, y, z]) => (*a, *b, *c) = (*x, *y, *z),
            _ => {}
        }
        return;
    }
    // SAFETY: `S` is the instruction set this runs on, as this is called through `run` alone; all that is read or
    // written lies before n.
    unsafe {
        let (from, to) = (from.as_ptr(), to.as_mut_ptr());
        let mut i = 0;
        while i + lanes <= n {
            E::Vector::<S>::load(from.add(i)).store(to.add(i));
            i += lanes;
        }
        if i < n {
            E::Vector::<S>::load(from.add(n - lanes)).store(to.add(n - lanes));
        }
    }
}

/// Fills a short row with zeros, as [`copy`].
#[inline(always)]
pub(super) fn zero<S: Simd, E: Real>(to: &mut [E]) {
    let lanes = <E::Vector<S> as Vector>::LANES;
    let n = to.len();
    if n < lanes {
        let (fours, rest) = to.as_chunks_mut::<4>();
        for to in fours {
            *to = [E::ZERO; 4];
        }
        match rest {
            [a] => *a = E::ZERO,
            [a, b] => (*a, *b) = (E::ZERO, E::ZERO),
            [a, b, c] => (*a, *b, *c) = (E::ZERO, E::ZERO, E::ZERO),
            _ => {}
        }
        return;
    }
    // SAFETY: as in `copy`.
    unsafe {
        let (to, zero) = (to.as_mut_ptr(), E::Vector::<S>::splat(E::ZERO));
        let mut i = 0;
        while i + lanes <= n {
            zero.store(to.add(i));
            i += lanes;
        }
        zero.store(to.add(n - lanes));
    }
}

/// `to[j·to_row + i] = from[i·from_row + j]` for i < rows and j < cols.
///
/// Panics if a view is too small.
#[track_caller]
pub(crate) fn turn<E: Real>(
    isa: Available,
    (from, from_row): (&[E], usize),
    (rows, cols): (usize, usize),
    (to, to_row): (&mut [E], usize),
) {
    run::turn_rows(isa, from, from_row, rows, cols, to, to_row);
}

#[inline(always)]
fn turn_rows<S: Simd, E: Real>(
    from: &[E],
    from_row: usize,
    rows: usize,
    cols: usize,
    to: &mut [E],
    to_row: usize,
) {
    if rows == 0 || cols == 0 {
        return;
    }
    assert!(cols <= from_row && from.len() >= (rows - 1) * from_row + cols, "fewer values than are turned");
    assert!(rows <= to_row && to.len() >= (cols - 1) * to_row + rows, "less room than for what is turned");
    let block = <E::Vector<S> as Vector>::BLOCK;
    for j0 in (0..cols).step_by(block) {
        let j1 = (j0 + block).min(cols);
        for i0 in (0..rows).step_by(block) {
            let i1 = (i0 + block).min(rows);
            if i1 - i0 == block && j1 - j0 == block {
                // SAFETY: `S` is the instruction set this runs on, as this is called through `run` alone; the block is
                // whole, and so within the rows and columns, which are in both views by the assertions.
                unsafe {
                    let from = from.as_ptr().add(i0 * from_row + j0);
                    E::Vector::<S>::transpose(from, from_row, to.as_mut_ptr().add(j0 * to_row + i0), to_row);
                }
                continue;
            }
            for j in j0..j1 {
                for i in i0..i1 {
                    to[j * to_row + i] = from[i * from_row + j];
                }
            }
        }
    }
}
