use nn_kernels::ops::{GaussianSpec, Stream};

use crate::cases;

const STREAMS: [Stream; 3] = [
    Stream { seed: 7, place: 3, step: 11, rank: 0 },
    Stream { seed: 1 << 40, place: 0, step: 1 << 33, rank: 2 },
    Stream { seed: 0, place: 0, step: 0, rank: 0 },
];

cases! {
    masks_are_the_same_as_on_the_cpu within 1e-7 |t| {
        for (stream, n) in STREAMS.into_iter().flat_map(|s| [(s, 1), (s, 6), (s, 1003)]) {
            for rate in [0.0, 0.25, 0.9] {
                let (x, mut y) = (t.values(&vec![1.0; n]), t.room(n));
                t.d.dropout(stream, rate, D::view(&x), D::view_mut(&mut y));
                t.keep_elements(format!("{stream:?} {rate}"), &y);
                t.d.hash_dropout(stream, rate, D::view(&x), D::view_mut(&mut y));
                t.keep_elements(format!("hashed {stream:?} {rate}"), &y);
            }
        }
    }

    normal_numbers within 1e-6 |t| {
        for (stream, n) in STREAMS.into_iter().flat_map(|s| [(s, 1), (s, 101)]) {
            let mut y = t.room(n);
            t.d.normal(stream, D::view_mut(&mut y));
            t.keep_elements(format!("{stream:?}"), &y);
        }
    }

    samples_their_densities_and_gradients within 1e-6 |t| {
        for ((rows, cols), squash) in [(1, 1), (3, 5), (33, 4)].into_iter().flat_map(|s| [(s, false), (s, true)]) {
            for noisy in [true, false] {
                let s = GaussianSpec { cols, squash };
                let n = rows * cols;
                let (mean, log_std, noise) = (t.random(1, n), t.random(2, n), t.random(3, n));
                let (dsample, dlog_prob) = (t.random(4, n), t.random(5, rows));
                let (mut sample, mut log_prob, mut dmean, mut dlog_std) =
                    (t.room(n), t.room(rows), t.room(n), t.room(n));
                let noise = noisy.then(|| D::view(&noise));
                t.d.gaussian(
                    &s, D::view(&mean), D::view(&log_std), noise, D::view_mut(&mut sample),
                    squash.then(|| D::view_mut(&mut log_prob)),
                );
                t.d.gaussian_vjp(
                    &s, D::view(&mean), D::view(&log_std), noise, D::view(&dsample), D::view(&dlog_prob),
                    Some(D::view_mut(&mut dmean)), Some(D::view_mut(&mut dlog_std)),
                );
                let all = [("sample", &sample), ("log_prob", &log_prob), ("dmean", &dmean), ("dlog_std", &dlog_std)];
                for (name, buffer) in all {
                    t.keep_elements(format!("{s:?} {noisy} {name}"), buffer);
                }
            }
        }
    }
}
