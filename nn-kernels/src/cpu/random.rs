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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{devices, on_threads, random, reals};

    const STREAM: Stream = Stream { seed: 7, place: 3, step: 11, rank: 0 };

    fn mask(stream: Stream, n: usize) -> Vec<f32> {
        let mut y = vec![0.0; n];
        devices::<f32>().pop().unwrap().dropout(stream, 0.25, &vec![1.0; n], &mut y);
        y
    }

    #[test]
    fn the_kept_are_scaled_and_about_as_many_as_the_rate_says() {
        let y = mask(STREAM, 10_000);
        let kept = y.iter().filter(|&&y| y != 0.0).count();
        assert!(y.iter().all(|&y| y == 0.0 || y == 1.0 / 0.75));
        assert!((7300..7700).contains(&kept), "{kept}");
    }

    #[test]
    fn an_element_is_kept_by_its_own_word_of_the_stream() {
        let y = mask(STREAM, 103);
        for (i, y) in y.iter().enumerate() {
            let word = words(STREAM, (i / 4) as u32)[i % 4];
            assert_eq!(*y != 0.0, f64::from(word) >= 0.25 * 4_294_967_296.0);
        }
    }

    #[test]
    fn every_part_of_the_stream_matters_and_nothing_else() {
        let y = mask(STREAM, 200);
        assert_eq!(y, mask(STREAM, 300)[..200]);
        for other in [
            Stream { seed: 8, ..STREAM },
            Stream { place: 4, ..STREAM },
            Stream { step: 12, ..STREAM },
            Stream { step: 11 + (1 << 32), ..STREAM },
            Stream { rank: 1, ..STREAM },
        ] {
            assert_ne!(y, mask(other, 200), "{other:?}");
        }
    }

    #[test]
    fn a_rate_of_zero_keeps_all() {
        for device in devices::<f64>() {
            let x = random(1, 33);
            let mut y = vec![0.0; 33];
            device.dropout(STREAM, 0.0, &x, &mut y);
            assert_eq!(x, y);
        }
    }

    #[test]
    fn instruction_sets_and_threads_draw_the_same() {
        let x: Vec<f32> = reals(&random(1, 50_003));
        let run = |threads, device: &Kernels<f32>| {
            on_threads(threads, || {
                let mut y = x.clone();
                device.dropout(STREAM, 0.5, &x, &mut y);
                y
            })
        };
        let all = devices();
        for device in &all {
            assert!(run(1, &all[0]) == run(4, device));
        }
    }

    #[test]
    #[should_panic(expected = "the rate 1 is not in [0, 1)")]
    fn a_rate_of_one_is_refused() {
        devices::<f32>()[0].dropout(STREAM, 1.0, &[], &mut []);
    }
}
