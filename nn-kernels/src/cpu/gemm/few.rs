//! Products that are too small, or have too few rows, for anything to be packed.

use std::marker::PhantomData;

use super::tile::{Narrow, Tile, TileStart, any_tile, narrow_tile, next_tile};
use super::{KC, Mat, Start, Threads, WORK, Way, product_by, tile_rows};
use crate::cpu::elementwise::activate;
use crate::cpu::isa::Available;
use crate::cpu::simd::{Outlined, Simd, kernels};
use crate::cpu::size::reach;
use crate::cpu::vector::Vector;
use crate::cpu::{Real, par};
use crate::ops::Unary;

kernels! {
    fn direct<E>(a: Mat<'_, E>, b: Mat<'_, E>, start: Start<'_, E>, act: Unary, c: &mut [E]);
    fn streamed<E>(a: Mat<'_, E>, b: Mat<'_, E>, start: Start<'_, E>, act: Unary, c: &mut [E], c_row: usize);
    fn narrow<E>(a: Mat<'_, E>, b: Mat<'_, E>, bias: Option<&[E]>, act: Unary, c: &mut [E]);
}

/// Sums that are kept in the first cache while rows of B pass by: of as many columns, divided by the rows of A.
const SUMS: usize = 4096;
/// Rows of A that pass over B together.
const TOGETHER: usize = 4;

/// The product of two matrices, as [`product`], in this way if one is forced. A column of C is computed as a row: its
/// tiles are then vectors and not single lanes. The sums are the same.
#[track_caller]
pub(crate) fn matrices<E: Real>(
    isa: Available,
    forced: Option<Way>,
    a: Mat<'_, E>,
    b: Mat<'_, E>,
    start: Start<'_, E>,
    act: Unary,
    c: &mut [E],
) {
    let (m, k, n) = (a.rows, a.cols, b.cols);
    if n == 1 && m > 1 && a.row == 1 {
        return product_by(isa, Threads::All, forced, &b.t(), &a.t(), start.t(), act, c, m);
    }
    let way = if b.col == 1 { forced.unwrap_or(Way::new(isa.get(), m, k, n)) } else { Way::Packed };
    let large = m.saturating_mul(n).saturating_mul(k) >= 2 * WORK && par::threads() > 1;
    match way {
        Way::Direct if !large => run::direct(isa, a, b, start, act, c),
        Way::Streamed if !large => run::streamed(isa, a, b, start, act, c, n),
        Way::Streamed if m == 1 => {
            let grain = (WORK / k.max(1)).next_multiple_of(64);
            par::split(n, grain, c, &|first, c| {
                let columns = first..first + c.len();
                let start = match start {
                    Start::Row(row) => Start::Row(&row[columns.clone()]),
                    start => start,
                };
                run::streamed(isa, a, b.columns(columns.clone()), start, act, c, columns.len());
            });
        }
        way => product_by(isa, Threads::All, Some(way), &a, &b, start, act, c, n),
    }
}

/// C = act(bias + A·B), for a B of at most [`NARROW`] columns, whose sums are taken in several chains.
#[track_caller]
pub(crate) fn narrow_product<E: Real>(
    isa: Available,
    a: Mat<'_, E>,
    b: Mat<'_, E>,
    bias: Option<&[E]>,
    act: Unary,
    c: &mut [E],
) {
    let (m, n) = (a.rows, b.cols);
    let grain = WORK.div_ceil((b.rows * n).max(1));
    par::split(m, grain, par::Rows(c, n), &|first, par::Rows(c, _)| {
        let rows = first..first + c.len().checked_div(n).unwrap_or(0);
        run::narrow(isa, a.some(rows), b, bias, act, c);
    });
}

/// Panics if the sizes do not fit, or B's rows do not lie as rows.
#[inline(always)]
#[track_caller]
fn check<E>(a: &Mat<'_, E>, b: &Mat<'_, E>, start: &Start<'_, E>, c: &[E], c_row: usize) {
    assert!(a.cols == b.rows && b.col == 1, "a product of other matrices");
    match start {
        Start::Row(row) => assert!(row.len() == b.cols, "a product with another bias"),
        Start::Column(column) => assert!(column.len() == a.rows, "a product with another bias"),
        Start::Zero | Start::Add => {}
    }
    let needed = if a.rows == 0 || b.cols == 0 { 0 } else { reach("a product", a.rows - 1, c_row, b.cols) };
    assert!(c.len() >= needed && c_row >= b.cols, "a product into a smaller matrix");
}

/// What a tile at row i and column j starts from.
///
/// # Safety
/// The start has more values than i or j.
#[inline(always)]
unsafe fn from<E>(start: Start<'_, E>, first: bool, i: usize, j: usize) -> (TileStart, *const E) {
    match start {
        _ if !first => (TileStart::Add, std::ptr::null()),
        Start::Zero => (TileStart::Zero, std::ptr::null()),
        // SAFETY: the caller's.
        Start::Row(row) => (TileStart::Row, unsafe { row.as_ptr().add(j) }),
        // SAFETY: the caller's.
        Start::Column(column) => (TileStart::Column, unsafe { column.as_ptr().add(i) }),
        Start::Add => (TileStart::Add, std::ptr::null()),
    }
}

/// C = act(start + A·B), with both as they lie.
#[inline(always)]
fn direct<S: Simd, E: Real>(a: Mat<'_, E>, b: Mat<'_, E>, start: Start<'_, E>, act: Unary, c: &mut [E]) {
    let (m, terms, n) = (a.rows, b.rows, b.cols);
    check(&a, &b, &start, c, n);
    let lanes = <E::Vector<S> as Vector>::LANES;
    let to = c.as_mut_ptr();
    let mut k = 0;
    // Once even if there are no terms: C is still its start.
    loop {
        let run = KC.min(terms - k);
        let mut i = 0;
        while i < m {
            let rows = tile_rows::<S>(m - i);
            let mut j = 0;
            while j < n {
                let (vectors, last) = next_tile::<S, E>(rows, n - j);
                // SAFETY: i < m and j < n, and the start has m or n values, by `check`.
                let (start, from) = unsafe { from(start, k == 0, i, j) };
                let tile = Tile {
                    k: run,
                    a: a.at(i, k),
                    a_row: a.row,
                    a_col: a.col,
                    b: b.at(k, j),
                    b_row: b.row,
                    last,
                    start,
                    from,
                    c: to.wrapping_add(i * n + j),
                    c_row: n,
                };
                // SAFETY: `S` is the instruction set this runs on, as this is called through `run` alone. i + rows ≤ m,
                // j + (vectors − 1)·lanes + last ≤ n and k + run ≤ terms: what is read of A and B is in the matrices,
                // which have as many rows and columns, and what is written in C, by `check`. C is borrowed mutably.
                unsafe { any_tile::<S, E>(rows, vectors, tile) };
                j += (vectors - 1) * lanes + last;
            }
            i += rows;
        }
        k += run;
        if k >= terms {
            break;
        }
    }
    activate::<S, E>(act, &mut c[..m * n]);
}

/// C = act(bias + A·B), for a B of few columns. A single chain of additions for each
/// element would take most of its time waiting, so that terms are summed in several, in an order that depends on the
/// number of terms alone.
#[inline(always)]
fn narrow<S: Simd, E: Real>(a: Mat<'_, E>, b: Mat<'_, E>, bias: Option<&[E]>, act: Unary, c: &mut [E]) {
    let (m, n) = (a.rows, b.cols);
    check(&a, &b, &bias.map_or(Start::Zero, Start::Row), c, n);
    assert!(a.col == 1, "a narrow product of a matrix whose rows do not lie as rows");
    let lanes = <E::Vector<S> as Vector>::LANES;
    for j in (0..n).step_by(lanes) {
        let mut i = 0;
        while i < m {
            let rows = (m - i).min(3);
            let tile = Narrow {
                k: b.rows,
                a: a.at(i, 0),
                a_row: a.row,
                b: b.at(0, j),
                b_row: b.row,
                n: lanes.min(n - j),
                bias: bias.map_or(std::ptr::null(), |bias| bias[j..].as_ptr()),
                c: c.as_mut_ptr().wrapping_add(i * n + j),
                c_row: n,
            };
            // SAFETY: `S` is the instruction set this runs on, as this is called through `run` alone. By `check`, A has
            // m ≥ i + rows rows of as many terms as B has rows, the bias n values and C m·n; of B's n columns, and
            // these, as many are taken from the j-th on as there are, and no more than the lanes.
            unsafe { narrow_tile::<S, E>(rows, tile) };
            i += rows;
        }
    }
    activate::<S, E>(act, &mut c[..m * n]);
}

/// C = act(start + A·B), for a large B and few rows of A: B is read once, row after row, as memory likes it best.
#[inline(always)]
fn streamed<S: Simd, E: Real>(
    a: Mat<'_, E>,
    b: Mat<'_, E>,
    start: Start<'_, E>,
    act: Unary,
    c: &mut [E],
    c_row: usize,
) {
    let (m, n) = (a.rows, b.cols);
    check(&a, &b, &start, c, c_row);
    let mut sums = [E::ZERO; SUMS];
    for i in (0..m).step_by(TOGETHER) {
        let rows = (m - i).min(TOGETHER);
        let block = SUMS / rows / 64 * 64;
        for j in (0..n).step_by(block) {
            let width = block.min(n - j);
            let mut k = 0;
            loop {
                let run = KC.min(b.rows - k);
                sums[..rows * width].fill(E::ZERO);
                let pass = Pass { a, b, at: [i, j], k, run, width, sums: sums.as_mut_ptr() };
                // Where B's rows are short, more of them are read side by side.
                let deep = n < 1024;
                // SAFETY: `S` is the instruction set this runs on, as this is called through `run` alone; `check` says
                // that the matrices fit; i + rows ≤ m, k + run ≤ B's rows, j + width ≤ n, rows·width ≤ SUMS.
                unsafe {
                    match rows {
                        1 if deep => S::outline(PassOf::<S, E, 1, 16>(pass, PhantomData)),
                        1 => S::outline(PassOf::<S, E, 1, 8>(pass, PhantomData)),
                        2 => S::outline(PassOf::<S, E, 2, 8>(pass, PhantomData)),
                        3 => S::outline(PassOf::<S, E, 3, 4>(pass, PhantomData)),
                        _ => S::outline(PassOf::<S, E, 4, 4>(pass, PhantomData)),
                    }
                }
                for (r, sums) in sums.chunks_exact(width).enumerate().take(rows) {
                    let c = &mut c[(i + r) * c_row + j..][..width];
                    match start {
                        _ if k > 0 => c.iter_mut().zip(sums).for_each(|(c, s)| *c += *s),
                        Start::Zero => c.copy_from_slice(sums),
                        Start::Row(row) => {
                            let row = &row[j..][..width];
                            c.iter_mut().zip(sums).zip(row).for_each(|((c, s), b)| *c = *b + *s);
                        }
                        Start::Column(column) => {
                            let b = column[i + r];
                            c.iter_mut().zip(sums).for_each(|(c, s)| *c = b + *s);
                        }
                        Start::Add => c.iter_mut().zip(sums).for_each(|(c, s)| *c += *s),
                    }
                }
                k += run;
                if k >= b.rows {
                    break;
                }
            }
            for r in i..i + rows {
                activate::<S, E>(act, &mut c[r * c_row + j..][..width]);
            }
        }
    }
}

/// The sums of one run of terms, for some rows of A and a block of columns.
struct Pass<'a, E> {
    a: Mat<'a, E>,
    b: Mat<'a, E>,
    at: [usize; 2],
    k: usize,
    run: usize,
    width: usize,
    /// Row after row, `width` values each.
    sums: *mut E,
}

/// With `M` rows of A, and `DEEP` rows of B side by side: memory is faster if it is read in several places at once.
///
/// Made only for an instruction set `S` that the processor has, and with rows, terms and columns that the matrices have.
struct PassOf<'a, S, E, const M: usize, const DEEP: usize>(Pass<'a, E>, PhantomData<S>);

impl<S: Simd, E: Real, const M: usize, const DEEP: usize> Outlined for PassOf<'_, S, E, M, DEEP> {
    #[inline(always)]
    fn run(self) {
        let Pass { a, b, at: [i, j], k: first, run, width, sums } = self.0;
        let lanes = <E::Vector<S> as Vector>::LANES;
        let whole = width / lanes * lanes;
        // A macro, for a closure might be a function of its own, without the instruction set's features.
        macro_rules! columns {
            ($w:ident, $deep:expr, $k:ident, $load:expr, $store:expr) => {
                let mut acc: [E::Vector<S>; M] = [E::Vector::<S>::splat(E::ZERO); M];
                for (r, acc) in acc.iter_mut().enumerate() {
                    *acc = $load(sums.add(r * width + $w));
                }
                for d in 0..$deep {
                    let row = $load(b.at($k + d, j + $w));
                    for (r, acc) in acc.iter_mut().enumerate() {
                        *acc = E::Vector::<S>::splat(a.at(i + r, $k + d).read()).mul_add(row, *acc);
                    }
                }
                for (r, acc) in acc.into_iter().enumerate() {
                    $store(acc, sums.add(r * width + $w));
                }
            };
        }
        let mut k = first;
        while k < first + run {
            let deep = DEEP.min(first + run - k);
            // SAFETY: as this is made, rows i.. + M and terms k.. + deep of A, and terms k.. + deep and columns j.. + width
            // of B, are there, and M·width sums. A register's lanes end within `whole`, and the rest is less than one.
            unsafe {
                let mut w = 0;
                while w < whole {
                    if deep == DEEP {
                        columns!(w, DEEP, k, E::Vector::<S>::load, E::Vector::<S>::store);
                    } else {
                        columns!(w, deep, k, E::Vector::<S>::load, E::Vector::<S>::store);
                    }
                    w += lanes;
                }
                if w < width {
                    let n = width - w;
                    columns!(w, deep, k, |p| E::Vector::<S>::load_part(p, n), |v: E::Vector<S>, p| v
                        .store_part(p, n));
                }
            }
            k += deep;
        }
    }
}
