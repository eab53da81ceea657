use super::par::{self, GRAIN};
use super::simd::{Simd, kernels};
use super::{Real, kernels::Kernels};
use crate::ops::Stream;
use crate::philox::philox4x32;

kernels! {
    fn dropout<E>(s: Stream, rate: f64, first: usize, x: &[E], y: &mut [E]);
}

/// Words 4·block and on of a stream: one for each element.
#[inline(always)]
fn words(s: Stream, block: u32) -> [u32; 4] {
    // The rank goes into the key through a bijection, so that no two of them share a stream.
    let key = s.seed ^ u64::from(s.rank).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    philox4x32([block, s.place, s.step as u32, (s.step >> 32) as u32], [key as u32, (key >> 32) as u32])
}

/// The element is kept where its word is at least this.
fn threshold(rate: f64) -> u64 {
    (rate * 4_294_967_296.0).round() as u64
}

#[inline(always)]
fn dropout<S: Simd, E: Real>(s: Stream, rate: f64, first: usize, x: &[E], y: &mut [E]) {
    let (limit, scale) = (threshold(rate), E::from_f64(1.0 / (1.0 - rate)));
    // Eight blocks at a time, which the compiler interleaves.
    for (g, (x, y)) in x.chunks(32).zip(y.chunks_mut(32)).enumerate() {
        let mut draws = [[0; 4]; 8];
        for (b, draw) in draws.iter_mut().enumerate() {
            *draw = words(s, (first / 4 + g * 8 + b) as u32);
        }
        for ((y, &x), &word) in y.iter_mut().zip(x).zip(draws.as_flattened()) {
            *y = if u64::from(word) >= limit { x * scale } else { E::ZERO };
        }
    }
}

impl<E: Real> Kernels<E> {
    pub(crate) fn dropout(&self, stream: Stream, rate: f64, x: &[E], y: &mut [E]) {
        assert_eq!(x.len(), y.len(), "dropout: x and y differ in length");
        assert!((0.0..1.0).contains(&rate), "dropout: the rate {rate} is not in [0, 1)");
        assert!(x.len() as u64 <= 1 << 34, "dropout: more than 2³⁴ elements");
        let isa = self.isa;
        // In units of four elements, so that no task starts within a block.
        let whole = x.len() / 4;
        let (x, x_rest) = x.split_at(4 * whole);
        let (y, y_rest) = y.split_at_mut(4 * whole);
        par::split(whole, GRAIN / 16, (par::Rows(x, 4), par::Rows(y, 4)), &|first, (x, y)| {
            run::dropout(isa, stream, rate, 4 * first, x.0, y.0)
        });
        run::dropout(isa, stream, rate, 4 * whole, x_rest, y_rest);
    }
}
