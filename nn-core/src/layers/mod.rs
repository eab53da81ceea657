//! The layers, one file a family.

pub(crate) mod elementwise;
pub(crate) mod linear;
pub(crate) mod norm;
pub(crate) mod softmax;

use crate::Text;
use crate::dims::{Dims, Extent};
use crate::fault::{Input, Rule, one_real};
use crate::signature::Sig;

/// The rule of a layer that works along a last axis of `n` values and keeps the shape.
const fn along_last(label: &Text, args: &[Extent], given: &Sig, n: Extent) -> Rule {
    match one_real(label, args, given) {
        Input::Done(rule) => rule,
        Input::Tensor(dims) if dims.rank() > 0 && dims.last().same(&n) => Rule::ok(Sig::real(dims)),
        Input::Tensor(dims) => {
            let takes = n.write(Text::new().str("[.., ")).str("]");
            Rule::mismatch(label, takes, given, Sig::real(dims))
        }
    }
}

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
