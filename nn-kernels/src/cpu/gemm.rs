//! Matrix products.
//!
//! One microkernel does all the arithmetic: it keeps a tile of C in registers, walks down k, and reads A and B
//! through strides, so that it runs on packed panels and on matrices as they lie in memory alike. Each element of C
//! is summed over k in one order, in runs of [`KC`] that are added one after the other, whatever the tile around
//! it: so a row's bits depend neither on how many rows there are, nor on the threads, nor on what was packed.

use std::ops::Range;

use super::isa::Available;
use super::scratch::Scratch;
use super::simd::{Simd, dispatch};
use super::vector::Vector;
use super::{Real, elementwise, par};
use crate::ops::Unary;

/// Terms that are summed in registers before they are added to C. A panel of B this long fits in the first cache.
const KC: usize = 256;
/// Columns of a packed block of B, about: the block fits in the second or third cache.
const NC: usize = 512;
/// Row tiles in a packed block of A: with [`KC`], it fits in the second cache.
const ROW_TILES: usize = 24;
/// The largest block of A: [`ROW_TILES`] tiles of 8 rows.
const PACKED_A: usize = ROW_TILES * 8 * KC;
/// Products that a task should have at least: some 10 µs on one core.
const WORK: usize = 256 * 1024;
/// Elements below which a matrix is used as it lies: it stays in the second cache without being packed.
const UNPACKED: usize = 16 * 1024;

/// A matrix seen through strides.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a, E> {
    data: &'a [E],
    rows: usize,
    cols: usize,
    row: usize,
    col: usize,
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
        let needed = if rows == 0 || cols == 0 { 0 } else { (rows - 1) * row + cols };
        assert!(data.len() >= needed, "a matrix of {} values, not {rows} × {cols}", data.len());
        Self { data, rows, cols, row, col: 1 }
    }

    /// The transpose, at no cost.
    pub(crate) fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, row: self.col, col: self.row, ..self }
    }

    /// Where element (i, j) lies, which must be in the matrix, or one past it.
    #[inline(always)]
    fn at(&self, i: usize, j: usize) -> *const E {
        self.data.as_ptr().wrapping_add(i * self.row + j * self.col)
    }
}

/// The right factor of a product.
pub(crate) trait Source<E>: Sync {
    /// Terms, and columns.
    fn size(&self) -> (usize, usize);
    /// The matrix, if its rows can be read as they lie.
    fn direct(&self) -> Option<Mat<'_, E>>;
    /// Writes `out[p·width + j]` = element (k.start + p, j.start + j), and 0 for the columns from `j.len()` on.
    fn pack<S: Simd>(&self, k: Range<usize>, j: Range<usize>, width: usize, out: &mut [E]);
}

impl<E: Real> Source<E> for Mat<'_, E> {
    fn size(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    fn direct(&self) -> Option<Mat<'_, E>> {
        (self.col == 1).then_some(*self)
    }

    #[inline(always)]
    fn pack<S: Simd>(&self, k: Range<usize>, j: Range<usize>, width: usize, out: &mut [E]) {
        pack_panel::<S, E>(self.t(), j, k, width, out);
    }
}

/// Writes `out[p·width + i]` = element (rows.start + i, k.start + p), and 0 for rows from `rows.len()` on.
#[inline(always)]
fn pack_panel<S: Simd, E: Real>(a: Mat<'_, E>, rows: Range<usize>, k: Range<usize>, width: usize, out: &mut [E]) {
    assert!(rows.end <= a.rows && k.end <= a.cols && rows.len() <= width && k.len() * width <= out.len());
    let (m, kc) = (rows.len(), k.len());
    if m < width {
        out[..kc * width].fill(E::ZERO);
    }
    if m == 0 || kc == 0 {
        return;
    }
    let data = &a.data[rows.start * a.row + k.start * a.col..];
    if a.row == 1 {
        for (p, out) in out.chunks_exact_mut(width).enumerate().take(kc) {
            out[..m].copy_from_slice(&data[p * a.col..p * a.col + m]);
        }
        return;
    }
    let block = <E::Vector<S> as Vector>::BLOCK;
    let whole = if a.col == 1 { (m / block * block, kc / block * block) } else { (0, 0) };
    for i in (0..whole.0).step_by(block) {
        for p in (0..whole.1).step_by(block) {
            // SAFETY: `S` is the instruction set this runs on. The block's rows i.. and terms p.. are within the
            // panel and so, by the assertion above, within `a` (whose extent `Mat::strided` checked) and `out`.
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

/// What the sum over k is added to.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a, E> {
    /// Nothing.
    Zero,
    /// The same row everywhere: a bias.
    Row(&'a [E]),
    /// A value for each row.
    Column(&'a [E]),
    /// What C holds.
    Add,
}

impl<E> Start<'_, E> {
    /// That of the transposed product.
    fn t(self) -> Self {
        match self {
            Self::Row(v) => Self::Column(v),
            Self::Column(v) => Self::Row(v),
            other => other,
        }
    }
}

/// One tile's operands.
#[derive(Clone, Copy)]
struct Tile<E> {
    k: usize,
    a: *const E,
    a_row: usize,
    a_col: usize,
    b: *const E,
    b_row: usize,
    /// Lanes of the last vector that are in C.
    last: usize,
    start: TileStart<E>,
    c: *mut E,
    c_row: usize,
}

#[derive(Clone, Copy)]
enum TileStart<E> {
    Zero,
    Row(*const E),
    Column(*const E),
    Add,
}

/// C's tile of `M` rows and `V` vectors = start + A·B.
///
/// # Safety
/// The processor has the instruction set `S`; a, b, the start and c are valid for the tile.
#[inline(always)]
unsafe fn tile<S: Simd, E: Real, const M: usize, const V: usize, const PART: bool>(t: Tile<E>) {
    // SAFETY: the caller's, for every load and store.
    unsafe {
        let lanes = <E::Vector<S> as Vector>::LANES;
        let load = |from: *const E, v: usize| {
            let from = from.add(v * lanes);
            if PART && v + 1 == V { E::Vector::<S>::load_part(from, t.last) } else { E::Vector::<S>::load(from) }
        };
        let mut rows = [t.a; M];
        for (m, row) in rows.iter_mut().enumerate() {
            *row = t.a.add(m * t.a_row);
        }
        let mut columns = [E::Vector::<S>::splat(E::ZERO); V];
        let mut acc = [[E::Vector::<S>::splat(E::ZERO); V]; M];
        let mut b = t.b;
        let mut at = 0;
        for _ in 0..t.k {
            for (v, column) in columns.iter_mut().enumerate() {
                *column = load(b, v);
            }
            for (row, acc) in rows.iter().zip(&mut acc) {
                let x = E::Vector::<S>::splat(row.wrapping_add(at).read());
                for (column, acc) in columns.iter().zip(acc) {
                    *acc = x.mul_add(*column, *acc);
                }
            }
            b = b.wrapping_add(t.b_row);
            at += t.a_col;
        }
        for (m, acc) in acc.iter().enumerate() {
            let c = t.c.add(m * t.c_row);
            for (v, acc) in acc.iter().enumerate() {
                let sum = match t.start {
                    TileStart::Zero => *acc,
                    TileStart::Row(row) => load(row, v).add(*acc),
                    TileStart::Column(column) => E::Vector::<S>::splat(column.add(m).read()).add(*acc),
                    TileStart::Add => load(c, v).add(*acc),
                };
                let to = c.add(v * lanes);
                if PART && v + 1 == V { sum.store_part(to, t.last) } else { sum.store(to) }
            }
        }
    }
}

/// Runs [`tile`] for a number of rows and vectors known only now.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn any_tile<S: Simd, E: Real>(rows: usize, vectors: usize, t: Tile<E>) {
    let whole = t.last == <E::Vector<S> as Vector>::LANES;
    macro_rules! pick {
        ($($rows:literal: $($whole:literal)+ | $($part:literal)+;)+) => {
            match (rows, vectors, whole) {
                $($(
                    ($rows, $whole, true) if const { $rows <= S::ROWS && is_whole::<S>($whole) } => {
                        // SAFETY: the caller's.
                        unsafe { S::call(|t| tile::<S, E, $rows, $whole, false>(t), t) }
                    }
                )+$(
                    ($rows, $part, _) if const { $rows <= S::ROWS && $part <= S::VECTORS } => {
                        // SAFETY: the caller's.
                        unsafe { S::call(|t| tile::<S, E, $rows, $part, true>(t), t) }
                    }
                )+)+
                _ => unreachable!("no tile of {rows} rows and {vectors} vectors"),
            }
        };
    }
    pick! {
        1: 2 3 4 8 | 1 2 3;
        2: 2 3 4 | 1 2 3;
        3: 2 3 | 1 2 3;
        4: 2 3 | 1 2 3;
        5: 2 3 | 1 2 3;
        6: 2 3 | 1 2 3;
        7: 2 3 | 1 2 3;
        8: 2 3 | 1 2 3;
    }
}

/// Whether tiles of so many vectors have a kernel without masks: the usual one, and the wide ones for few rows.
const fn is_whole<S: Simd>(vectors: usize) -> bool {
    vectors == S::VECTORS || vectors >= 4
}

/// How many vectors the next tile of `rows` rows takes, of `left` columns of B as it lies, and the lanes of its last.
/// The fewer rows there are, the wider a tile must be to keep the multipliers busy.
#[inline(always)]
fn next_tile<S: Simd, E: Real>(rows: usize, left: usize) -> (usize, usize) {
    let lanes = <E::Vector<S> as Vector>::LANES;
    match (rows, left / lanes) {
        (1, 8..) => (8, lanes),
        (1 | 2, 4..) => (4, lanes),
        (_, whole) if whole >= S::VECTORS => (S::VECTORS, lanes),
        _ => (left.div_ceil(lanes), left - (left - 1) / lanes * lanes),
    }
}

/// A product C = act(start + A·B).
struct Product<'a, E, B> {
    a: Mat<'a, E>,
    b: &'a B,
    start: Start<'a, E>,
    act: Unary,
    c: *mut E,
    c_row: usize,
    pack_a: bool,
    pack_b: bool,
}

// SAFETY: threads share a product only to write rectangles of C that do not overlap.
unsafe impl<E: Sync, B: Sync> Sync for Product<'_, E, B> {}

/// A rectangle of C.
#[derive(Clone)]
struct Area {
    rows: Range<usize>,
    cols: Range<usize>,
}

/// Computes one rectangle of C.
#[inline(always)]
fn area<S: Simd, E: Real, B: Source<E>>(p: &Product<'_, E, B>, area: Area) {
    if p.pack_a || p.pack_b {
        // The same amount always, so that a thread allocates once.
        let mut buffer = Scratch::new(PACKED_A + KC * NC);
        let (a, b) = buffer.split_at_mut(PACKED_A);
        blocks::<S, E, B>(p, area, a, b);
    } else {
        blocks::<S, E, B>(p, area, &mut [], &mut []);
    }
}

#[inline(always)]
fn blocks<S: Simd, E: Real, B: Source<E>>(p: &Product<'_, E, B>, area: Area, a: &mut [E], b: &mut [E]) {
    let lanes = <E::Vector<S> as Vector>::LANES;
    let width = S::VECTORS * lanes;
    let terms = p.a.cols;
    let Area { rows, cols } = area;
    for j in cols.clone().step_by(NC / width * width) {
        let js = j..(j + NC / width * width).min(cols.end);
        let mut k = 0;
        // Once even if there are no terms: C is still its start.
        loop {
            let ks = k..(k + KC).min(terms);
            if p.pack_b {
                for (panel, at) in b.chunks_exact_mut(width * ks.len().max(1)).zip(js.clone().step_by(width)) {
                    p.b.pack::<S>(ks.clone(), at..(at + width).min(js.end), width, panel);
                }
            }
            for i in rows.clone().step_by(ROW_TILES * S::ROWS) {
                let is = i..(i + ROW_TILES * S::ROWS).min(rows.end);
                if p.pack_a {
                    for (panel, at) in a.chunks_exact_mut(S::ROWS * ks.len().max(1)).zip(is.clone().step_by(S::ROWS)) {
                        let tile = at..(at + S::ROWS).min(is.end);
                        pack_panel::<S, E>(p.a, tile.clone(), ks.clone(), tile.len(), panel);
                    }
                }
                tiles::<S, E, B>(p, is, js.clone(), ks.clone(), a, b);
            }
            k = ks.end;
            if k >= terms {
                break;
            }
        }
        if p.act != Unary::Identity {
            for i in rows.clone() {
                // SAFETY: this call alone writes this rectangle of C, which `product` checked to be in it.
                let row = unsafe { std::slice::from_raw_parts_mut(p.c.add(i * p.c_row + js.start), js.len()) };
                // SAFETY: `S` is the instruction set this runs on.
                unsafe { S::call(|row| elementwise::unary_in_place::<S, E>(p.act, row), row) };
            }
        }
    }
}

/// All tiles of one block, over one run of terms.
#[inline(always)]
fn tiles<S: Simd, E: Real, B: Source<E>>(
    p: &Product<'_, E, B>,
    is: Range<usize>,
    js: Range<usize>,
    ks: Range<usize>,
    a: &[E],
    b: &[E],
) {
    let lanes = <E::Vector<S> as Vector>::LANES;
    let width = S::VECTORS * lanes;
    // B as it lies is passed over row tile by row tile, so that tiles of few rows can be wide; of a packed B a
    // panel stays in the first cache while all of A passes by.
    let (outer_i, outer_j) = if p.pack_b { (is.len(), width) } else { (S::ROWS, js.len()) };
    for j0 in js.clone().step_by(outer_j.max(1)) {
        let direct = p.b.direct();
        for i0 in is.clone().step_by(outer_i.max(1)) {
            let i1 = (i0 + outer_i).min(is.end);
            for i in (i0..i1).step_by(S::ROWS) {
                let rows = S::ROWS.min(i1 - i);
                let j1 = (j0 + outer_j).min(js.end);
                let mut j = j0;
                while j < j1 {
                    let (vectors, last) = if p.pack_b {
                        let n = j1 - j;
                        (n.div_ceil(lanes), n - (n - 1) / lanes * lanes)
                    } else {
                        next_tile::<S, E>(rows, j1 - j)
                    };
                    let (a, a_row, a_col) = if p.pack_a {
                        (a[(i - is.start) * ks.len()..].as_ptr(), 1, rows)
                    } else {
                        (p.a.at(i, ks.start), p.a.row, p.a.col)
                    };
                    let (b, b_row) = match &direct {
                        Some(b) if !p.pack_b => (b.at(ks.start, j), b.row),
                        _ => (b[(j - js.start) * ks.len()..].as_ptr(), width),
                    };
                    let start = match p.start {
                        _ if ks.start > 0 => TileStart::Add,
                        Start::Zero => TileStart::Zero,
                        Start::Row(row) => TileStart::Row(row[j..].as_ptr()),
                        Start::Column(column) => TileStart::Column(column[i..].as_ptr()),
                        Start::Add => TileStart::Add,
                    };
                    let c = p.c.wrapping_add(i * p.c_row + j);
                    let t = Tile { k: ks.len(), a, a_row, a_col, b, b_row, last, start, c, c_row: p.c_row };
                    // SAFETY: `S` is the instruction set this runs on. Rows i.. and terms ks lie in A, or were packed
                    // `rows` wide at this place; terms ks and the columns from j on, of which `last` are in the last
                    // vector, lie in B, or were packed `width` wide; the start covers the tile's rows or columns, and
                    // the tile lies in C, as `product` checked.
                    unsafe { any_tile::<S, E>(rows, vectors, t) };
                    j += (vectors - 1) * lanes + last;
                }
            }
        }
    }
}

/// The way a product takes. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// B is small and used as it lies.
    Small,
    /// B is packed if there are many rows: a few pass over it faster as it lies.
    Gemm,
    /// B is packed always, because its rows do not lie in memory as rows.
    Packed,
}

impl Route {
    /// That for a right factor of `k` × `n`, whose rows lie in memory as rows where it is `direct`.
    pub(crate) const fn new(k: usize, n: usize, direct: bool) -> Self {
        if !direct {
            Self::Packed
        } else if k * n <= UNPACKED {
            Self::Small
        } else {
            Self::Gemm
        }
    }

    /// As it is told to users.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Gemm => "gemm",
            Self::Packed => "packed gemm",
        }
    }
}

/// C = act(start + A·B), where C's rows lie `c_row` apart.
///
/// Panics if the sizes do not fit.
#[track_caller]
pub(crate) fn product<E: Real, B: Source<E>>(
    isa: Available,
    a: Mat<'_, E>,
    b: &B,
    start: Start<'_, E>,
    act: Unary,
    c: &mut [E],
    c_row: usize,
) {
    let (m, (k, n)) = (a.rows, b.size());
    assert_eq!(a.cols, k, "product: A's columns and B's rows");
    match start {
        Start::Row(row) => assert_eq!(row.len(), n, "product: the bias and the columns"),
        Start::Column(column) => assert_eq!(column.len(), m, "product: the bias and the rows"),
        Start::Zero | Start::Add => {}
    }
    if m == 0 || n == 0 {
        return;
    }
    assert!(c_row >= n && c.len() >= (m - 1) * c_row + n, "product: C is smaller than {m} × {n}");
    if let (2.., 1, 1, 1, Some(b)) = (m, n, c_row, a.row, b.direct()) {
        // A column of C as a row: its tiles are then vectors and not single lanes. The sums are the same.
        return product(isa, b.t(), &a.t(), start.t(), act, c, m);
    }
    let pack_b = match Route::new(k, n, b.direct().is_some()) {
        Route::Small => false,
        Route::Gemm => m >= 32,
        Route::Packed => true,
    };
    let pack_a = n >= 64 && m >= 16 && m * k > UNPACKED;
    let p = Product { a, b, start, act, c: c.as_mut_ptr(), c_row, pack_a, pack_b };
    let all = Area { rows: 0..m, cols: 0..n };
    let work = m.saturating_mul(n).saturating_mul(k.max(1));
    if work < 2 * WORK || par::threads() == 1 {
        dispatch!(isa, area::<E, B>(&p, all));
    } else {
        // Some more tasks than threads, so that none waits long for the last.
        split(isa, &p, all, k, (work / (4 * par::threads())).max(WORK));
    }
}

/// Halves a rectangle until its work is small enough for a task.
fn split<E: Real, B: Source<E>>(isa: Available, p: &Product<'_, E, B>, all: Area, k: usize, grain: usize) {
    /// Edges of tasks lie on multiples of this, which are tiles' edges for most instruction sets.
    const EDGE: usize = 48;
    let (m, n) = (all.rows.len(), all.cols.len());
    if m * n * k <= grain || m.max(n) < 2 * EDGE {
        return dispatch!(isa, area::<E, B>(p, all));
    }
    let (mut low, mut high) = (all.clone(), all);
    if m > n {
        low.rows.end = low.rows.start + (m / 2).next_multiple_of(EDGE);
        high.rows.start = low.rows.end;
    } else {
        low.cols.end = low.cols.start + (n / 2).next_multiple_of(EDGE);
        high.cols.start = low.cols.end;
    }
    par::join(|| split(isa, p, low, k, grain), || split(isa, p, high, k, grain));
}
