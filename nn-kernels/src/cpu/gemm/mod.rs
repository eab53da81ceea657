//! Matrix products.
//!
//! One microkernel does all the arithmetic: it keeps a tile of C in registers, walks down k, and reads A and B
//! through strides, so that it runs on packed panels and on matrices as they lie in memory alike. Each element of C
//! is summed over k in one order, in runs of [`KC`] that are added one after the other, whatever the tile around
//! it: so a row's bits depend neither on how many rows there are, nor on the threads, nor on what was packed.

mod factors;
mod few;
mod tile;

use std::ops::Range;

use super::elementwise::activate;
use super::isa::Available;
use super::routes::Routes;
use super::scratch::Scratch;
use super::simd::{Simd, kernels};
use super::size::reach;
use super::vector::Vector;
use super::{Real, par};
use crate::Isa;
use crate::ops::Unary;
pub(crate) use factors::{Left, Mat, Right};
pub(crate) use few::{matrices, narrow_product};
use tile::{Tile, TileStart, any_tile, next_tile};

kernels! {
    fn area<E>(p: &Product<'_, E>, area: Area);
}

/// Terms that are summed in registers before they are added to C. Most instruction sets' panels of B of
/// this length fit in the first cache.
pub(crate) const KC: usize = 256;
/// Columns of a packed block of B, about: the block fits in the second or third cache.
const NC: usize = 512;
/// Bytes of a panel that stays in the first cache beside what passes by.
const PANEL: usize = 32 * 1024;
/// Bytes of a page of memory.
const PAGE: usize = 4096;
/// Row tiles in a packed block of A: with [`KC`], it fits in the second cache.
const ROW_TILES: usize = 24;
/// The largest block of A: [`ROW_TILES`] tiles of 8 rows.
const PACKED_A: usize = ROW_TILES * 8 * KC;
/// Products that a task should have at least: some 10 µs on one core.
pub(crate) const WORK: usize = 256 * 1024;
/// Elements below which a matrix is used as it lies: it stays in the second cache without being packed.
const UNPACKED: usize = 16 * 1024;

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

/// A product C = act(start + A·B).
struct Product<'a, E> {
    isa: Available,
    a: &'a dyn Left<E>,
    b: &'a dyn Right<E>,
    /// A and B as they lie, if they do: asked for once, so that what was checked is what is read.
    matrix: Option<Mat<'a, E>>,
    direct: Option<Mat<'a, E>>,
    terms: usize,
    start: Start<'a, E>,
    act: Unary,
    c: *mut E,
    c_row: usize,
    pack_a: bool,
    pack_b: bool,
}

// SAFETY: all but `c` is `Sync` by itself if E is. `c` comes from a `&mut [E]` that `product` holds for as long as the
// product lives; threads write elements through it, hence `Send`, each those of its own `Area`: `split` makes these by
// halving, so no two overlap.
unsafe impl<E: Send + Sync> Sync for Product<'_, E> {}

/// A rectangle of C.
#[derive(Clone)]
struct Area {
    rows: Range<usize>,
    cols: Range<usize>,
}

/// Computes one rectangle of C.
#[inline(always)]
fn area<S: Simd, E: Real>(p: &Product<'_, E>, area: Area) {
    if p.pack_a || p.pack_b {
        // The same amount always, so that a thread allocates once.
        let mut buffer = Scratch::new(PACKED_A + KC * NC);
        let (a, b) = buffer.split_at_mut(PACKED_A);
        blocks::<S, E>(p, area, a, b);
    } else {
        blocks::<S, E>(p, area, &mut [], &mut []);
    }
}

#[inline(always)]
fn blocks<S: Simd, E: Real>(p: &Product<'_, E>, area: Area, a: &mut [E], b: &mut [E]) {
    let lanes = <E::Vector<S> as Vector>::LANES;
    let width = S::VECTORS * lanes;
    let terms = p.terms;
    let Area { rows, cols } = area;
    for j in cols.clone().step_by(NC / width * width) {
        let js = j..(j + NC / width * width).min(cols.end);
        let mut k = 0;
        // Once even if there are no terms: C is still its start.
        loop {
            let ks = k..(k + KC).min(terms);
            if p.pack_b {
                p.b.pack(p.isa, ks.clone(), js.clone(), width, b);
            }
            for i in rows.clone().step_by(ROW_TILES * S::ROWS) {
                let is = i..(i + ROW_TILES * S::ROWS).min(rows.end);
                match &p.matrix {
                    _ if !p.pack_a => {}
                    // A tile reads rows that lie as rows as well as any; they only must not lie far apart.
                    Some(m) if m.col == 1 => {
                        for (row, i) in a.chunks_exact_mut(ks.len().max(1)).zip(is.clone()) {
                            row.copy_from_slice(&m.data[i * m.row..][ks.clone()]);
                        }
                    }
                    _ => {
                        let mut at = is.start;
                        while at < is.end {
                            let tile = at..at + tile_rows::<S>(is.end - at);
                            let panel = &mut a[(at - is.start) * ks.len()..][..tile.len() * ks.len()];
                            at = tile.end;
                            p.a.pack(p.isa, tile, ks.clone(), panel);
                        }
                    }
                }
                tiles::<S, E>(p, is, js.clone(), ks.clone(), a, b);
            }
            k = ks.end;
            if k >= terms {
                break;
            }
        }
        if p.act != Unary::Identity {
            for i in rows.clone() {
                // SAFETY: row i and the columns `js` are in C, as `product` checked, and in this call's area, which no
                // other call reads or writes. The slice ends with this turn of the loop.
                let row =
                    unsafe { std::slice::from_raw_parts_mut(p.c.add(i * p.c_row + js.start), js.len()) };
                activate::<S, E>(p.act, row);
            }
        }
    }
}

/// Rows of the next tile of so many that are left: as many as a tile has, but no remainder is left over that is much
/// smaller, for a tile of few rows is slow.
#[inline(always)]
fn tile_rows<S: Simd>(left: usize) -> usize {
    left.div_ceil(left.div_ceil(S::ROWS).max(1))
}

/// All tiles of one block, over one run of terms.
#[inline(always)]
fn tiles<S: Simd, E: Real>(
    p: &Product<'_, E>,
    is: Range<usize>,
    js: Range<usize>,
    ks: Range<usize>,
    a: &[E],
    b: &[E],
) {
    let lanes = <E::Vector<S> as Vector>::LANES;
    let width = S::VECTORS * lanes;
    // B as it lies is passed over row tile by row tile, so that tiles of few rows can be wide. Of a packed B a panel stays
    // in the first cache while all of A passes by; unless it does not fit there, or the rows of C are so far apart that
    // each is on a page of its own, of which only so many are known by heart: then a panel of A stays.
    let panel = KC * width * size_of::<E>();
    let by_panel = p.pack_b && panel <= PANEL && p.c_row * size_of::<E>() < PAGE;
    for j0 in js.clone().step_by(if by_panel { width } else { js.len().max(1) }) {
        let mut i0 = is.start;
        while i0 < is.end {
            let i1 = if by_panel { is.end } else { i0 + tile_rows::<S>(is.end - i0) };
            let mut i = i0;
            while i < i1 {
                let rows = tile_rows::<S>(i1 - i);
                let j1 = if by_panel { (j0 + width).min(js.end) } else { js.end };
                let mut j = j0;
                while j < j1 {
                    let (vectors, last) = if p.pack_b {
                        let n = (j1 - j).min(width);
                        (n.div_ceil(lanes), n - (n - 1) / lanes * lanes)
                    } else {
                        next_tile::<S, E>(rows, j1 - j)
                    };
                    let (a, a_row, a_col) = match &p.matrix {
                        Some(a) if !p.pack_a => (a.at(i, ks.start), a.row, a.col),
                        Some(m) if m.col == 1 => (a[(i - is.start) * ks.len()..].as_ptr(), ks.len(), 1),
                        _ => (a[(i - is.start) * ks.len()..].as_ptr(), 1, rows),
                    };
                    let (b, b_row) = match &p.direct {
                        Some(b) if !p.pack_b => (b.at(ks.start, j), b.row),
                        _ => (b[(j - js.start) * ks.len()..].as_ptr(), width),
                    };
                    let (start, from) = match p.start {
                        _ if ks.start > 0 => (TileStart::Add, a),
                        Start::Zero => (TileStart::Zero, a),
                        Start::Row(row) => (TileStart::Row, row[j..].as_ptr()),
                        Start::Column(column) => (TileStart::Column, column[i..].as_ptr()),
                        Start::Add => (TileStart::Add, a),
                    };
                    let c = p.c.wrapping_add(i * p.c_row + j);
                    let t =
                        Tile { k: ks.len(), a, a_row, a_col, b, b_row, last, start, from, c, c_row: p.c_row };
                    // SAFETY: `S` is the instruction set this runs on, as `area` is called through `run` alone.
                    // i + rows ≤ m and j + (vectors − 1)·lanes + last ≤ n, and ks are among the terms. So A's elements
                    // are in `p.matrix`, of m rows and all terms; or they are in the panel that starts at
                    // (i − is.start)·ks.len() and holds rows·ks.len() values, as a block of A is no longer than
                    // `PACKED_A`. B's are in `p.direct`, of all terms and n columns; or they are in the panel that
                    // starts at (j − js.start)·ks.len() and holds width·ks.len() values, as a block of B is no longer
                    // than KC·NC. The start has n or m values, and C's last row ends within C: `product` checked all of
                    // these. The area is this call's own.
                    unsafe { any_tile::<S, E>(rows, vectors, t) };
                    j += (vectors - 1) * lanes + last;
                }
                i += rows;
            }
            i0 = i1;
        }
    }
}

/// How a product of matrices is computed. All ways give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Both factors are read as they lie.
    Direct,
    /// A few rows at a time, B is read once from end to end.
    Streamed,
    /// Panels of B are packed, and of A where it pays.
    Packed,
}

impl Way {
    const ALL: [Self; 3] = [Self::Direct, Self::Streamed, Self::Packed];

    /// That of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.name() == name)
    }

    /// As it is told to users.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Streamed => "streamed",
            Self::Packed => "packed",
        }
    }

    /// The names of all, for messages.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// The fastest for `m` × `k` times `k` × `n`, as it was [measured](Routes).
    pub(crate) const fn new(isa: Isa, m: usize, k: usize, n: usize) -> Self {
        match Routes::of(isa).product(m, k.saturating_mul(n)) {
            b'S' => Self::Streamed,
            b'P' => Self::Packed,
            _ => Self::Direct,
        }
    }
}

/// What a layer's products are called: the way of one row, and that of many if it is another.
pub(crate) const fn route(isa: Isa, k: usize, n: usize, transposed: bool) -> &'static str {
    match (Way::new(isa, 1, k, n), Way::new(isa, usize::MAX, k, n)) {
        _ if transposed => Way::Packed.name(),
        _ if n <= NARROW => "narrow",
        (Way::Direct, Way::Direct) => Way::Direct.name(),
        (Way::Direct, _) => "direct, many rows packed",
        (Way::Streamed, Way::Packed) => "streamed, many rows packed",
        (Way::Streamed, _) => "streamed, many rows direct",
        (Way::Packed, _) => Way::Packed.name(),
    }
}

/// Columns up to which a dense layer's sums are taken in several chains, for the widest register may hold them.
pub(crate) const NARROW: usize = 8;

/// Which threads a product may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    /// This one: the caller has shared out the work already.
    This,
    /// All, if it is large enough.
    All,
}

/// C = act(start + A·B), where C's rows lie `c_row` apart.
///
/// Panics if the sizes do not fit.
#[track_caller]
pub(crate) fn product<E: Real>(
    isa: Available,
    threads: Threads,
    a: &dyn Left<E>,
    b: &dyn Right<E>,
    start: Start<'_, E>,
    act: Unary,
    c: &mut [E],
    c_row: usize,
) {
    product_by(isa, threads, None, a, b, start, act, c, c_row);
}

/// The same in this way, if one is given and the factors allow it.
#[track_caller]
fn product_by<E: Real>(
    isa: Available,
    threads: Threads,
    way: Option<Way>,
    a: &dyn Left<E>,
    b: &dyn Right<E>,
    start: Start<'_, E>,
    act: Unary,
    c: &mut [E],
    c_row: usize,
) {
    let ((m, terms), (k, n)) = (a.size(), b.size());
    assert_eq!(terms, k, "product: A's columns and B's rows");
    let (matrix, direct) = (a.matrix(), b.direct());
    assert!(matrix.is_none_or(|a| (a.rows, a.cols) == (m, k)), "product: A is another matrix than it says");
    assert!(
        direct.is_none_or(|b| (b.rows, b.cols, b.col) == (k, n, 1)),
        "product: B is another matrix than it says"
    );
    match start {
        Start::Row(row) => assert_eq!(row.len(), n, "product: the bias and the columns"),
        Start::Column(column) => assert_eq!(column.len(), m, "product: the bias and the rows"),
        Start::Zero | Start::Add => {}
    }
    if m == 0 || n == 0 {
        return;
    }
    assert!(
        c_row >= n && c.len() >= reach("product", m - 1, c_row, n),
        "product: C is smaller than {m} × {n}"
    );
    let way = way.unwrap_or(Way::new(isa.get(), m, k, n));
    let (pack_a, pack_b) = packs(way, m, k, n, matrix, direct.is_some());
    let c = c.as_mut_ptr();
    let p = Product { isa, a, b, matrix, direct, terms, start, act, c, c_row, pack_a, pack_b };
    let all = Area { rows: 0..m, cols: 0..n };
    let work = m.saturating_mul(n).saturating_mul(k.max(1));
    if threads == Threads::This || work < 2 * WORK || par::threads() == 1 {
        run::area(isa, &p, all);
    } else {
        // Some more tasks than threads, so that none waits long for the last.
        split(&p, all, k, (work / (4 * par::threads())).max(WORK));
    }
}

/// Whether A and B are packed.
fn packs<E>(
    way: Way,
    m: usize,
    k: usize,
    n: usize,
    matrix: Option<Mat<'_, E>>,
    direct: bool,
) -> (bool, bool) {
    let b = !direct || way == Way::Packed;
    let a = match matrix {
        None => true,
        // Rows that lie as rows hurt only where they are far apart and are read again and again.
        Some(a) if a.col == 1 => b && k > KC && n >= 64,
        Some(_) => n >= 64 && m >= 16 && m.saturating_mul(k) > UNPACKED,
    };
    (a, b)
}

/// Halves a rectangle until its work is small enough for a task.
fn split<E: Real>(p: &Product<'_, E>, all: Area, k: usize, grain: usize) {
    /// Edges of tasks lie on multiples of this, which are tiles' edges for most instruction sets.
    const EDGE: usize = 48;
    let (m, n) = (all.rows.len(), all.cols.len());
    if m.saturating_mul(n).saturating_mul(k) <= grain || m.max(n) < 2 * EDGE {
        return run::area(p.isa, p, all);
    }
    let (mut low, mut high) = (all.clone(), all);
    if m > n {
        low.rows.end = low.rows.start + (m / 2).next_multiple_of(EDGE);
        high.rows.start = low.rows.end;
    } else {
        low.cols.end = low.cols.start + (n / 2).next_multiple_of(EDGE);
        high.cols.start = low.cols.end;
    }
    par::join(|| split(p, low, k, grain), || split(p, high, k, grain));
}
