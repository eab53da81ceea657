//! The layers, one file a family.

pub(crate) mod elementwise;
pub(crate) mod linear;

use crate::dims::Dims;

/// How many rows a sample has, if a row is its last axis.
const fn rows_of(dims: &Dims) -> usize {
    if dims.rank() == 0 { 1 } else { dims.product(0, dims.rank() - 1).n }
}

/// The product of all; 0 if that is too large to be one, which is a fault elsewhere.
const fn product(factors: &[usize]) -> usize {
    let mut n: usize = 1;
    let mut i = 0;
    while i < factors.len() {
        n = match n.checked_mul(factors[i]) {
            // Far from the end, so that sums of a few don't overflow either.
            Some(n) if n <= usize::MAX >> 16 => n,
            _ => return 0,
        };
        i += 1;
    }
    n
}
