//! The microkernel: a tile of C in registers.

use std::marker::PhantomData;

use crate::cpu::Real;
use crate::cpu::simd::{Outlined, Simd};
use crate::cpu::vector::Vector;

/// One tile's operands.
#[derive(Clone, Copy)]
pub(super) struct Tile<E> {
    pub(super) k: usize,
    pub(super) a: *const E,
    pub(super) a_row: usize,
    pub(super) a_col: usize,
    pub(super) b: *const E,
    pub(super) b_row: usize,
    /// Lanes of the last vector that are in C.
    pub(super) last: usize,
    pub(super) start: TileStart,
    /// What a `Row` or a `Column` starts from, and anything otherwise. Not in the enum, where it would be
    /// uninitialised for the others: the compiler may compare pointers before it looks at which it is.
    pub(super) from: *const E,
    pub(super) c: *mut E,
    pub(super) c_row: usize,
}

#[derive(Clone, Copy)]
pub(super) enum TileStart {
    Zero,
    Row,
    Column,
    Add,
}

/// Terms from which on a tile takes long enough for C to come from memory meanwhile.
const FETCH_AHEAD: usize = 64;

/// C's tile of `M` rows and `V` vectors = start + A·B.
///
/// # Safety
/// The processor has the instruction set `S`. With n = (V − 1)·LANES + last columns, where last ≤ LANES, and last =
/// LANES unless `PART`:
/// - `a[i·a_row + p·a_col]` may be read for each i < M and p < k;
/// - `b[p·b_row + j]` may be read for each p < k and j < n;
/// - `c[i·c_row + j]` may be read and written, by this thread alone, for each i < M and j < n;
/// - `from` may be read up to n for a `Row`, up to M for a `Column`.
#[inline(always)]
unsafe fn tile<S: Simd, E: Real, const M: usize, const V: usize, const PART: bool>(t: Tile<E>) {
    // SAFETY: what is read and written are elements that the caller promises, and no others.
    unsafe {
        let lanes = <E::Vector<S> as Vector>::LANES;
        let load = |from: *const E, v: usize| {
            let from = from.add(v * lanes);
            if PART && v + 1 == V {
                E::Vector::<S>::load_part(from, t.last)
            } else {
                E::Vector::<S>::load(from)
            }
        };
        let mut rows = [t.a; M];
        for (m, row) in rows.iter_mut().enumerate() {
            // Wrapping, for A has no values where there are no terms.
            *row = t.a.wrapping_add(m * t.a_row);
        }
        let mut columns = [E::Vector::<S>::splat(E::ZERO); V];
        let mut acc = [[E::Vector::<S>::splat(E::ZERO); V]; M];
        let mut b = t.b;
        let mut at = 0;
        if t.k >= FETCH_AHEAD {
            for m in 0..M {
                for v in 0..V {
                    S::prefetch(t.c.wrapping_add(m * t.c_row + v * lanes).cast());
                }
            }
        }
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
                    TileStart::Row => load(t.from, v).add(*acc),
                    TileStart::Column => E::Vector::<S>::splat(t.from.add(m).read()).add(*acc),
                    TileStart::Add => load(c, v).add(*acc),
                };
                let to = c.add(v * lanes);
                if PART && v + 1 == V { sum.store_part(to, t.last) } else { sum.store(to) }
            }
        }
    }
}

/// The operands of a product with no more columns than a register has lanes.
#[derive(Clone, Copy)]
pub(super) struct Narrow<E> {
    pub(super) k: usize,
    pub(super) a: *const E,
    pub(super) a_row: usize,
    pub(super) b: *const E,
    pub(super) b_row: usize,
    pub(super) n: usize,
    /// Null where there is none.
    pub(super) bias: *const E,
    pub(super) c: *mut E,
    pub(super) c_row: usize,
}

/// Rows of A times a narrow B. Terms are summed in four chains, each those whose number leaves the same remainder.
struct NarrowRows<S, E, const M: usize>(Narrow<E>, PhantomData<S>);

impl<S: Simd, E: Real, const M: usize> Outlined for NarrowRows<S, E, M> {
    #[inline(always)]
    fn run(self) {
        const CHAINS: usize = 4;
        let t = self.0;
        // SAFETY: `narrow_tile` alone makes these, with its caller's promise for M rows.
        unsafe {
            let zero = E::Vector::<S>::splat(E::ZERO);
            let mut acc = [[zero; CHAINS]; M];
            // A macro, for a closure might be a function of its own, without the instruction set's features.
            macro_rules! term {
                ($p:expr, $chain:expr) => {
                    let b = E::Vector::<S>::load_part(t.b.add($p * t.b_row), t.n);
                    for (m, acc) in acc.iter_mut().enumerate() {
                        let x = E::Vector::<S>::splat(t.a.add(m * t.a_row + $p).read());
                        acc[$chain] = x.mul_add(b, acc[$chain]);
                    }
                };
            }
            let whole = t.k / CHAINS * CHAINS;
            let mut p = 0;
            while p < whole {
                term!(p, 0);
                term!(p + 1, 1);
                term!(p + 2, 2);
                term!(p + 3, 3);
                p += CHAINS;
            }
            for (chain, p) in (whole..t.k).enumerate() {
                term!(p, chain);
            }
            for (m, acc) in acc.iter().enumerate() {
                let sum = acc[0].add(acc[1]).add(acc[2].add(acc[3]));
                let sum =
                    if t.bias.is_null() { sum } else { E::Vector::<S>::load_part(t.bias, t.n).add(sum) };
                sum.store_part(t.c.add(m * t.c_row), t.n);
            }
        }
    }
}

/// Runs the product of at most three rows with a narrow B.
///
/// # Safety
/// The processor has the instruction set `S`; `n` is no more than a register's lanes; `a[i·a_row + p]` may be read for
/// each i < rows and p < k, `b[p·b_row + j]` for each j < n, `bias[j]` unless it is null, and `c[i·c_row + j]` be written.
#[inline(always)]
pub(super) unsafe fn narrow_tile<S: Simd, E: Real>(rows: usize, t: Narrow<E>) {
    // SAFETY: the caller's.
    unsafe {
        match rows {
            1 => S::outline(NarrowRows::<S, E, 1>(t, PhantomData)),
            2 => S::outline(NarrowRows::<S, E, 2>(t, PhantomData)),
            _ => S::outline(NarrowRows::<S, E, 3>(t, PhantomData)),
        }
    }
}

/// A tile whose shape is known to the compiler.
///
/// Made only where [`tile`] may be called.
struct Shaped<S, E, const M: usize, const V: usize, const PART: bool>(Tile<E>, PhantomData<S>);

impl<S: Simd, E: Real, const M: usize, const V: usize, const PART: bool> Outlined
    for Shaped<S, E, M, V, PART>
{
    #[inline(always)]
    fn run(self) {
        // SAFETY: `any_tile` alone makes these, with its caller's promise for a tile of M rows and V vectors; it has
        // no `PART` only where the last vector is whole.
        unsafe { tile::<S, E, M, V, PART>(self.0) }
    }
}

/// Runs [`tile`] for a number of rows and vectors known only now.
///
/// # Safety
/// As for [`tile`], with `rows` for M and `vectors` for V.
#[inline(always)]
pub(super) unsafe fn any_tile<S: Simd, E: Real>(rows: usize, vectors: usize, t: Tile<E>) {
    let whole = t.last == <E::Vector<S> as Vector>::LANES;
    macro_rules! pick {
        ($($rows:literal: $($whole:literal)+ | $($part:literal)+;)+) => {
            match (rows, vectors, whole) {
                $($(
                    ($rows, $whole, true) if const { $rows <= S::ROWS && is_whole::<S>($whole) } => {
                        // SAFETY: the caller's.
                        unsafe { S::outline(Shaped::<S, E, $rows, $whole, false>(t, PhantomData)) }
                    }
                )+$(
                    ($rows, $part, _) if const { $rows <= S::ROWS && $part <= S::VECTORS } => {
                        // SAFETY: the caller's.
                        unsafe { S::outline(Shaped::<S, E, $rows, $part, true>(t, PhantomData)) }
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
pub(super) fn next_tile<S: Simd, E: Real>(rows: usize, left: usize) -> (usize, usize) {
    let lanes = <E::Vector<S> as Vector>::LANES;
    match (rows, left / lanes) {
        (1, 8..) => (8, lanes),
        (1 | 2, 4..) => (4, lanes),
        (_, whole) if whole >= S::VECTORS => (S::VECTORS, lanes),
        _ => (left.div_ceil(lanes), left - (left - 1) / lanes * lanes),
    }
}
