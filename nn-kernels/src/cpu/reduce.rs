//! Sums and maxima of a row, in an order that depends on its length alone.
//!
//! Sums have independent lanes: they are what is vectorised, and they keep the rounding of an `f64` row far below one part
//! in 10¹². Lanes are in double precision, or, where terms are of one size, in that of the elements ([`sums`]):
//! then a few dozen terms at most are summed before the lanes are added up in double precision.

use super::Real;
use super::simd::Simd;
use super::vector::Vector;

const LANES: usize = 16;

#[inline(always)]
fn total(lanes: [f64; LANES]) -> f64 {
    let mut lanes = lanes;
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Σ f(x).
#[inline(always)]
pub(crate) fn sum<E: Real>(x: &[E], f: impl Fn(f64) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for i in 0..LANES {
            lanes[i] += f(block[i].to_f64());
        }
    }
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *lane += f(v.to_f64());
    }
    total(lanes)
}

/// Σ f(a, b).
#[inline(always)]
pub(crate) fn sum2<E: Real>(a: &[E], b: &[E], f: impl Fn(f64, f64) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            lanes[i] += f(a[i].to_f64(), b[i].to_f64());
        }
    }
    for (lane, (a, b)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += f(a.to_f64(), b.to_f64());
    }
    total(lanes)
}

/// Vectors that are summed in the precision of the elements at a time.
const VECTORS: usize = 128;

/// Lanes of the longest vector.
const MOST: usize = 16;

/// The sum of a vector's lanes, in double precision.
#[inline(always)]
fn across<S: Simd, E: Real>(v: E::Vector<S>) -> f64 {
    const { assert!(<E::Vector<S> as Vector>::LANES <= MOST) };
    let mut lanes = [E::ZERO; MOST];
    // SAFETY: the kernel that this is inlined into runs on a processor that has the instruction set; there is room.
    unsafe { v.store(lanes.as_mut_ptr()) };
    let mut doubles = [0.0; MOST];
    for i in 0..<E::Vector<S> as Vector>::LANES {
        doubles[i] = lanes[i].to_f64();
    }
    let mut lanes = doubles;
    let mut half = <E::Vector<S> as Vector>::LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// A vector's first `n` lanes, and 0 for the others.
///
/// # Safety
/// The kernel that this is inlined into runs on a processor that has the instruction set.
#[inline(always)]
unsafe fn first<S: Simd, E: Real>(v: E::Vector<S>, n: usize) -> E::Vector<S> {
    let mut lanes = [E::ZERO; MOST];
    // SAFETY: as the caller promises; there is room.
    unsafe {
        v.store_part(lanes.as_mut_ptr(), n);
        Vector::load(lanes.as_ptr())
    }
}

/// # Safety
/// As [`Vector::load`] and [`Vector::load_part`] have it.
#[inline(always)]
pub(crate) unsafe fn read<S: Simd, E: Real>(from: *const E, n: usize) -> E::Vector<S> {
    // SAFETY: as the caller promises.
    unsafe {
        if n == <E::Vector<S> as Vector>::LANES { Vector::load(from) } else { Vector::load_part(from, n) }
    }
}

/// # Safety
/// As [`Vector::store`] and [`Vector::store_part`] have it.
#[inline(always)]
pub(crate) unsafe fn write<S: Simd, E: Real>(v: E::Vector<S>, to: *mut E, n: usize) {
    // SAFETY: as the caller promises.
    unsafe { if n == <E::Vector<S> as Vector>::LANES { v.store(to) } else { v.store_part(to, n) } }
}

/// K sums over N rows of equal length, in the precision of the elements, each with `A` vectors to sum in. `f` gives the
/// terms.
///
/// # Safety
/// The kernel that this is inlined into runs on a processor that has the instruction set.
#[inline(always)]
pub(crate) unsafe fn sums<S: Simd, E: Real, const N: usize, const K: usize, const A: usize>(
    rows: [&[E]; N],
    f: impl Fn([E::Vector<S>; N]) -> [E::Vector<S>; K],
) -> [f64; K] {
    let lanes = <E::Vector<S> as Vector>::LANES;
    let n = rows[0].len();
    for row in rows {
        assert_eq!(row.len(), n, "rows of equal length");
    }
    let mut totals = [0.0; K];
    let mut at = 0;
    while at < n {
        let end = n.min(at + VECTORS * lanes);
        // SAFETY: as the caller promises; at + A·lanes ≤ n, or the part is as long as what is left.
        unsafe {
            // No closures of the standard library's here: they may stay calls, and those have no vectors.
            let zero = <E::Vector<S> as Vector>::splat(E::ZERO);
            let mut sums = [[zero; K]; A];
            let mut values = [zero; N];
            while at + A * lanes <= end {
                for sums in &mut sums {
                    for i in 0..N {
                        values[i] = Vector::load(rows[i].as_ptr().add(at));
                    }
                    let terms = f(values);
                    for k in 0..K {
                        sums[k] = sums[k].add(terms[k]);
                    }
                    at += lanes;
                }
            }
            while at < end {
                let part = lanes.min(end - at);
                for i in 0..N {
                    values[i] = read::<S, E>(rows[i].as_ptr().add(at), part);
                }
                let terms = f(values);
                for k in 0..K {
                    let term = if part == lanes { terms[k] } else { first::<S, E>(terms[k], part) };
                    sums[0][k] = sums[0][k].add(term);
                }
                at += part;
            }
            for k in 0..K {
                let mut sum = sums[0][k];
                for other in &sums[1..] {
                    sum = sum.add(other[k]);
                }
                totals[k] += across::<S, E>(sum);
            }
        }
    }
    totals
}

/// The largest value that is not NaN, or −∞.
#[inline(always)]
pub(crate) fn max<E: Real>(x: &[E]) -> E {
    let larger = |a: E, b: E| if b > a { b } else { a };
    let mut lanes = [E::lit(f64::NEG_INFINITY); LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for i in 0..LANES {
            lanes[i] = larger(lanes[i], block[i]);
        }
    }
    for (lane, &v) in lanes.iter_mut().zip(rest) {
        *lane = larger(*lane, v);
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = larger(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Columns that [`sum_columns`] keeps in registers while it walks down the rows.
const TILE: usize = 32;

/// y[j] += Σ over rows of f(row's own constants, a, b), each column in the order of its rows. `a` and `b` hold whole
/// rows of `cols` values, of which the columns from `first` on are summed, as many as y has.
#[inline(always)]
pub(crate) fn sum_columns<E: Real, R: Copy>(
    cols: usize,
    first: usize,
    a: &[E],
    b: &[E],
    y: &mut [E],
    row: impl Fn(usize) -> R,
    f: impl Fn(R, f64, f64) -> f64,
) {
    let rows = || a.chunks_exact(cols).zip(b.chunks_exact(cols)).enumerate();
    let (tiles, rest) = y.as_chunks_mut::<TILE>();
    let mut at = first;
    for y in tiles {
        let mut sums = [0.0; TILE];
        for (r, (a, b)) in rows() {
            let row = row(r);
            // Of a length that the compiler knows, or it keeps the sums in memory.
            if let (Some(a), Some(b)) = (a[at..].first_chunk::<TILE>(), b[at..].first_chunk::<TILE>()) {
                for j in 0..TILE {
                    sums[j] += f(row, a[j].to_f64(), b[j].to_f64());
                }
            }
        }
        for (y, sum) in y.iter_mut().zip(sums) {
            *y += E::from_f64(sum);
        }
        at += TILE;
    }
    if rest.is_empty() {
        return;
    }
    let columns = at..at + rest.len();
    let mut sums = [0.0; TILE];
    for (r, (a, b)) in rows() {
        let row = row(r);
        for ((sum, a), b) in sums.iter_mut().zip(&a[columns.clone()]).zip(&b[columns.clone()]) {
            *sum += f(row, a.to_f64(), b.to_f64());
        }
    }
    for (y, sum) in rest.iter_mut().zip(sums) {
        *y += E::from_f64(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_maxima_count_every_value() {
        for n in 0..70 {
            let x: Vec<f32> = (0..n).map(|i| i as f32 - 20.0).collect();
            let expected: f64 = x.iter().map(|&v| f64::from(v)).sum();
            assert_eq!(sum(&x, |v| v), expected);
            assert_eq!(sum2(&x, &x, |a, b| a + b), 2.0 * expected);
            assert_eq!(max(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }

    #[test]
    fn columns_are_summed_from_the_first_asked_for() {
        let x: Vec<f64> = (0..3 * 200).map(f64::from).collect();
        let mut y = vec![1.0; 150];
        sum_columns(200, 50, &x, &x, &mut y, |_| (), |(), a, _| a);
        for (j, y) in y.iter().enumerate() {
            assert_eq!(*y, 1.0 + 3.0 * (50 + j) as f64 + 600.0);
        }
    }
}
