//! Sums and maxima of a row, in an order that depends on its length alone.
//!
//! Everything is summed in double precision, in independent lanes: the lanes are what the compiler
//! vectorises, and they keep the rounding of an `f64` row far below one part in 10¹².

use super::Real;

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

/// Σ f(a, b, c).
#[inline(always)]
pub(crate) fn sum3<E: Real>(a: &[E], b: &[E], c: &[E], f: impl Fn(f64, f64, f64) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let (c, c_rest) = c.as_chunks::<LANES>();
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        for i in 0..LANES {
            lanes[i] += f(a[i].to_f64(), b[i].to_f64(), c[i].to_f64());
        }
    }
    for (lane, ((a, b), c)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest).zip(c_rest)) {
        *lane += f(a.to_f64(), b.to_f64(), c.to_f64());
    }
    total(lanes)
}

/// The largest value that is not NaN, or −∞.
#[inline(always)]
pub(crate) fn max<E: Real>(x: &[E]) -> E {
    let mut lanes = [E::lit(f64::NEG_INFINITY); LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for i in 0..LANES {
            lanes[i] = if block[i] > lanes[i] { block[i] } else { lanes[i] };
        }
    }
    rest.iter().chain(&lanes).fold(E::lit(f64::NEG_INFINITY), |m, &v| if v > m { v } else { m })
}

/// Columns that [`sum_columns`] keeps in registers and the first cache while it walks down the rows.
const TILE: usize = 64;

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
    for (tile, y) in y.chunks_mut(TILE).enumerate() {
        let columns = first + tile * TILE..first + tile * TILE + y.len();
        let mut sums = [0.0; TILE];
        for (r, (a, b)) in a.chunks_exact(cols).zip(b.chunks_exact(cols)).enumerate() {
            let row = row(r);
            for ((sum, a), b) in sums.iter_mut().zip(&a[columns.clone()]).zip(&b[columns.clone()]) {
                *sum += f(row, a.to_f64(), b.to_f64());
            }
        }
        for (y, sum) in y.iter_mut().zip(sums) {
            *y += E::from_f64(sum);
        }
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
