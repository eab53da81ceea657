use super::par::{self, GRAIN, Rows};
use super::simd::{Simd, kernels};
use super::size::size;
use super::{Real, kernels::Kernels};
use crate::hash;
use crate::ops::{GaussianSpec, Stream};
use crate::philox::philox4x32;

kernels! {
    fn dropout<E>(s: Stream, rate: f64, first: usize, x: &[E], y: &mut [E]);
    fn hash_dropout<E>(key: u64, rate: f64, first: usize, x: &[E], y: &mut [E]);
}

/// The key of a stream. The rank goes into it through a bijection, so that no two of them share a stream.
#[inline(always)]
pub(crate) fn philox_key(s: Stream) -> u64 {
    s.seed ^ u64::from(s.rank).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Words 4·block and on of a stream: one for each element.
#[inline(always)]
fn words(s: Stream, block: u32) -> [u32; 4] {
    let key = philox_key(s);
    philox4x32([block, s.place, s.step as u32, (s.step >> 32) as u32], [key as u32, (key >> 32) as u32])
}

/// The element is kept where its word is at least this.
pub(crate) fn threshold(rate: f64) -> u64 {
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

#[inline(always)]
fn hash_dropout<S: Simd, E: Real>(key: u64, rate: f64, first: usize, x: &[E], y: &mut [E]) {
    let (limit, scale) = (threshold(rate), E::from_f64(1.0 / (1.0 - rate)));
    for (i, (y, &x)) in y.iter_mut().zip(x).enumerate() {
        let word = hash::word(key, (first + i) as u64);
        *y = if u64::from(word) >= limit { x * scale } else { E::ZERO };
    }
}

/// Two normal numbers of a block.
fn normal_pair(s: Stream, block: usize) -> [f64; 2] {
    let [a, b, c, d] = words(s, block as u32).map(u64::from);
    let fraction = |word: u64| (word >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0);
    // 1 − u lies in (0, 1], so its logarithm is finite.
    let radius = (-2.0 * (1.0 - fraction(a | b << 32)).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * fraction(c | d << 32)).sin_cos();
    [radius * cos, radius * sin]
}

/// (tanh u, 1 − tanh² u, log(1 − tanh² u)), each right to the last places however large u is.
fn squash(u: f64) -> (f64, f64, f64) {
    let e = (-2.0 * u.abs()).exp();
    let slope = 4.0 * e / ((1.0 + e) * (1.0 + e));
    (u.tanh(), slope, 2.0 * (std::f64::consts::LN_2 - u.abs() - e.ln_1p()))
}

/// log √(2π).
const LOG_ROOT_TAU: f64 = 0.918_938_533_204_672_8;

/// The noise of an element, if there is any.
fn noise_at<E: Real>(noise: Option<&[E]>, i: usize) -> f64 {
    noise.map_or(0.0, |noise| noise[i].to_f64())
}

impl<E: Real> Kernels<E> {
    pub(crate) fn hash_dropout(&self, stream: Stream, rate: f64, x: &[E], y: &mut [E]) {
        assert_eq!(x.len(), y.len(), "hash_dropout: x and y differ in length");
        assert!((0.0..1.0).contains(&rate), "hash_dropout: the rate {rate} is not in [0, 1)");
        let Stream { seed, place, step, rank } = stream;
        let key = hash::key(seed, [u64::from(place), step, u64::from(rank)]);
        let isa = self.isa;
        par::split(x.len(), GRAIN, (x, y), &|first, (x, y)| run::hash_dropout(isa, key, rate, first, x, y));
    }

    pub(crate) fn normal(&self, stream: Stream, y: &mut [E]) {
        assert!(y.len() as u64 <= 1 << 33, "normal: more than 2³³ elements");
        let (pairs, last) = y.as_chunks_mut::<2>();
        let blocks = pairs.len();
        // A pair costs some hundred times a value's move.
        par::split(blocks, GRAIN / 64, pairs, &|first, pairs: &mut [[E; 2]]| {
            for (i, pair) in pairs.iter_mut().enumerate() {
                *pair = normal_pair(stream, first + i).map(E::from_f64);
            }
        });
        if let [last] = last {
            *last = E::from_f64(normal_pair(stream, blocks)[0]);
        }
    }

    pub(crate) fn gaussian(
        &self,
        s: &GaussianSpec,
        mean: &[E],
        log_std: &[E],
        noise: Option<&[E]>,
        sample: &mut [E],
        log_prob: Option<&mut [E]>,
    ) {
        let rows =
            check_gaussian("gaussian", s, [mean.len(), log_std.len(), sample.len()], noise.map(<[E]>::len));
        assert_eq!(
            log_prob.is_some(),
            s.squash,
            "gaussian: a log-density is given where it squashes, and only there"
        );
        if let Some(log_prob) = &log_prob {
            assert_eq!(log_prob.len(), rows, "gaussian: log_prob is not {rows} rows");
        }
        let cols = s.cols;
        let read = (Rows(mean, cols), Rows(log_std, cols), noise.map(|noise| Rows(noise, cols)));
        let views = (read, Rows(sample, cols), log_prob);
        par::split(
            rows,
            (GRAIN / 64 / cols).max(1),
            views,
            &|_, ((mean, log_std, noise), sample, log_prob)| {
                let (noise, mut log_prob) = (noise.map(|noise| noise.0), log_prob);
                for (row, sample) in sample.0.chunks_exact_mut(cols).enumerate() {
                    let mut sum = 0.0;
                    for (j, sample) in sample.iter_mut().enumerate() {
                        let i = row * cols + j;
                        let (log_std, noise) = (log_std.0[i].to_f64(), noise_at(noise, i));
                        let u = mean.0[i].to_f64() + log_std.exp() * noise;
                        if s.squash {
                            let (value, _, log_slope) = squash(u);
                            *sample = E::from_f64(value);
                            sum -= 0.5 * noise * noise + log_std + LOG_ROOT_TAU + log_slope;
                        } else {
                            *sample = E::from_f64(u);
                        }
                    }
                    if let Some(log_prob) = &mut log_prob {
                        log_prob[row] = E::from_f64(sum);
                    }
                }
            },
        );
    }

    pub(crate) fn gaussian_vjp(
        &self,
        s: &GaussianSpec,
        mean: &[E],
        log_std: &[E],
        noise: Option<&[E]>,
        dsample: &[E],
        dlog_prob: &[E],
        dmean: Option<&mut [E]>,
        dlog_std: Option<&mut [E]>,
    ) {
        let rows = check_gaussian(
            "gaussian_vjp",
            s,
            [mean.len(), log_std.len(), dsample.len()],
            noise.map(<[E]>::len),
        );
        assert!(!s.squash || dlog_prob.len() == rows, "gaussian_vjp: dlog_prob is not {rows} rows");
        for (name, given) in [("dmean", &dmean), ("dlog_std", &dlog_std)] {
            let same = given.as_ref().is_none_or(|given| given.len() == mean.len());
            assert!(same, "gaussian_vjp: {name} and mean differ in length");
        }
        let cols = s.cols;
        let views = (dmean.map(|d| Rows(d, cols)), dlog_std.map(|d| Rows(d, cols)));
        par::split(rows, (GRAIN / 64 / cols).max(1), views, &|first, (dmean, dlog_std)| {
            let (mut dmean, mut dlog_std) = (dmean.map(|d| d.0), dlog_std.map(|d| d.0));
            let len = dmean.as_ref().or(dlog_std.as_ref()).map_or(0, |d| d.len());
            for at in 0..len {
                let i = first * cols + at;
                let (log_std, noise) = (log_std[i].to_f64(), noise_at(noise, i));
                let spread = log_std.exp() * noise;
                let (mut du, mut direct) = (dsample[i].to_f64(), 0.0);
                if s.squash {
                    let (value, slope, _) = squash(mean[i].to_f64() + spread);
                    direct = -dlog_prob[i / cols].to_f64();
                    // −log(1 − tanh² u) grows by 2·tanh u.
                    du = du * slope - direct * 2.0 * value;
                }
                if let Some(dmean) = &mut dmean {
                    dmean[at] = E::from_f64(du);
                }
                if let Some(dlog_std) = &mut dlog_std {
                    dlog_std[at] = E::from_f64(du * spread + direct);
                }
            }
        });
    }
}

/// How many rows there are, if all have as many.
#[track_caller]
pub(crate) fn check_gaussian(name: &str, s: &GaussianSpec, lens: [usize; 3], noise: Option<usize>) -> usize {
    assert!(s.cols > 0, "{name}: rows of no values");
    let rows = lens[0] / s.cols;
    let all = size(name, &[rows, s.cols]);
    let same = lens.iter().all(|&len| len == all) && noise.is_none_or(|noise| noise == all);
    assert!(same, "{name}: mean, log_std, noise and sample are not rows of {} values, as many each", s.cols);
    rows
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
    use crate::cpu::testing::{assert_close, devices, gradient, on_threads, random, reals};

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
    fn a_hashed_mask_has_its_rate_is_scaled_and_depends_on_every_part_of_the_stream() {
        let mask = |stream, n| {
            let mut y = vec![0.0; n];
            devices::<f32>().pop().unwrap().hash_dropout(stream, 0.25, &vec![1.0; n], &mut y);
            y
        };
        let y = mask(STREAM, 10_000);
        let kept = y.iter().filter(|&&y| y != 0.0).count();
        assert!(y.iter().all(|&y| y == 0.0 || y == 1.0 / 0.75));
        assert!((7300..7700).contains(&kept), "{kept}");
        for other in [
            Stream { seed: 8, ..STREAM },
            Stream { place: 4, ..STREAM },
            Stream { step: 12, ..STREAM },
            Stream { step: 11 + (1 << 32), ..STREAM },
            Stream { rank: 1, ..STREAM },
        ] {
            let same = y.iter().zip(mask(other, 10_000)).filter(|(a, b)| **a == *b).count();
            // Two independent masks agree in 10 of 16 places.
            assert!((6000..6500).contains(&same), "{other:?}: {same}");
        }
        let x: Vec<f32> = reals(&random(1, 100_003));
        let run = |threads, device: &Kernels<f32>| {
            on_threads(threads, || {
                let mut y = x.clone();
                device.hash_dropout(STREAM, 0.5, &x, &mut y);
                y
            })
        };
        let all = devices();
        assert!(all.iter().all(|device| run(1, &all[0]) == run(4, device)));
    }

    #[test]
    fn normal_numbers_have_their_moments_and_are_those_of_their_stream() {
        let draw = |stream, n, threads| {
            on_threads(threads, || {
                let mut y = vec![f64::NAN; n];
                devices::<f64>()[0].normal(stream, &mut y);
                y
            })
        };
        let n = if cfg!(miri) { 101 } else { 100_001 };
        let y = draw(STREAM, n, 1);
        assert!(y == draw(STREAM, n, 4));
        assert_eq!(y[..77], draw(STREAM, 77, 1));
        for other in [Stream { place: 4, ..STREAM }, Stream { rank: 1, ..STREAM }] {
            assert!(y.iter().zip(draw(other, n, 1)).all(|(a, b)| *a != b));
        }
        let (count, mean) = (n as f64, y.iter().sum::<f64>() / n as f64);
        let square = y.iter().map(|x| x * x).sum::<f64>() / count;
        let neighbours = y.windows(2).map(|w| w[0] * w[1]).sum::<f64>() / count;
        let tolerance = 4.0 / count.sqrt();
        assert!(mean.abs() < tolerance && (square - 1.0).abs() < 2.0 * tolerance, "{mean} {square}");
        assert!(neighbours.abs() < tolerance, "{neighbours}");
    }

    #[test]
    fn the_density_of_a_squashed_sample_is_that_of_the_change_of_variable() {
        let s = GaussianSpec { cols: 1, squash: true };
        for (mean, log_std, noise) in [(0.3, -0.5, 1.2), (-1.0, 0.4, -0.7), (0.0, 0.0, 0.0)] {
            let (mut sample, mut log_prob) = ([0.0], [0.0]);
            let device = &devices::<f64>()[0];
            device.gaussian(&s, &[mean], &[log_std], Some(&[noise]), &mut sample, Some(&mut log_prob));
            // The Gaussian density of atanh a, times its slope.
            let (a, std) = (sample[0], f64::exp(log_std));
            let z = (f64::atanh(a) - mean) / std;
            let density = (-0.5 * z * z).exp() / (std * std::f64::consts::TAU.sqrt()) / (1.0 - a * a);
            assert!((log_prob[0] - density.ln()).abs() < 1e-13);
        }
        // Far out the slope is no difference of equal numbers.
        let (mut sample, mut log_prob) = ([0.0], [0.0]);
        devices::<f64>()[0].gaussian(&s, &[30.0], &[0.0], None, &mut sample, Some(&mut log_prob));
        let expected = -LOG_ROOT_TAU - (4f64.ln() - 60.0);
        assert!(sample[0] == 1.0 && (log_prob[0] - expected).abs() < 1e-12, "{log_prob:?}");
    }

    #[test]
    fn gradients_of_samples_match_finite_differences() {
        let (mean, log_std, noise) = (random(1, 6), random(2, 6), random(3, 6));
        let (dsample, dlog_prob) = (random(4, 6), random(5, 2));
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        for (device, squash) in devices::<f64>().into_iter().flat_map(|d| [(d, false), (d, true)]) {
            let s = GaussianSpec { cols: 3, squash };
            let loss = |mean: &[f64], log_std: &[f64]| {
                let (mut sample, mut log_prob) = (vec![0.0; 6], vec![0.0; 2]);
                let density = squash.then_some(&mut log_prob[..]);
                device.gaussian(&s, mean, log_std, Some(&noise), &mut sample, density);
                dot(&sample, &dsample) + dot(&log_prob, &dlog_prob)
            };
            let (mut dmean, mut dlog_std) = (vec![f64::NAN; 6], vec![f64::NAN; 6]);
            let (a, b) = (Some(&mut dmean[..]), Some(&mut dlog_std[..]));
            device.gaussian_vjp(&s, &mean, &log_std, Some(&noise), &dsample, &dlog_prob, a, b);
            assert_close(&dmean, &gradient(&mean, |mean| loss(mean, &log_std)), 1e-8, "dmean");
            assert_close(&dlog_std, &gradient(&log_std, |log_std| loss(&mean, log_std)), 1e-8, "dlog_std");
        }
    }

    #[test]
    #[should_panic(expected = "the rate 1 is not in [0, 1)")]
    fn a_rate_of_one_is_refused() {
        devices::<f32>()[0].dropout(STREAM, 1.0, &[], &mut []);
    }
}
