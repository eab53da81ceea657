//! Attention against the CPU in double precision.

use half::bf16;
use nn_kernels::cuda::CudaReal;
use nn_kernels::ops::{Attention, AttentionGradients, AttentionSpec, Strides};
use nn_kernels::{Cpu, Cuda, Float, Memory};

use crate::{cuda, random};

/// A device's memory with these values.
fn held<D: Memory, T: Float>(d: &D, values: &[f64]) -> D::Buffer<T> {
    let mut buffer = d.alloc(values.len()).unwrap();
    let values: Vec<_> = values.iter().map(|&x| T::from_f64(x)).collect();
    d.upload(&values, D::view_mut(&mut buffer));
    buffer
}

fn values<D: Memory, T: Float>(d: &D, buffer: &D::Buffer<T>) -> Vec<f64> {
    let mut values = vec![T::from_f64(0.0); D::len(D::view(buffer))];
    d.download(D::view(buffer), &mut values);
    values.into_iter().map(Float::to_f64).collect()
}

/// A call: what it reads, which may lie in one buffer, and where in it.
struct Case {
    s: AttentionSpec,
    qkv: [Vec<f64>; 3],
    dy: Vec<f64>,
    mask: Option<Vec<f64>>,
}

const NAMES: [&str; 5] = ["y", "lse", "dq", "dk", "dv"];

impl Case {
    fn new(s: AttentionSpec, seed: u64) -> Self {
        let (q, k) = (s.batch * s.q_len * s.heads * s.head_dim, s.batch * s.k_len * s.kv_heads * s.head_dim);
        let qkv = [(seed, q), (seed + 1, k), (seed + 2, k)].map(|(seed, n)| random(seed, n));
        Self { s, qkv, dy: random(seed + 3, q), mask: None }
    }

    /// Every third key and all of sample 1's are not to be seen.
    fn masked(self) -> Self {
        let s = &self.s;
        let hidden = |i: usize| i % 3 == 1 || i / s.k_len == 1;
        let mask = (0..s.batch * s.k_len).map(|i| if hidden(i) { 0.0 } else { 1.0 }).collect();
        Self { mask: Some(mask), ..self }
    }

    /// Output, `lse` and the gradients of q, k and v. What nobody writes is NaN.
    fn run<D: Attention>(&self, d: &D) -> [Vec<f64>; 5] {
        self.run_for(d, [true; 3])
    }

    /// With the gradients that are wanted.
    fn run_for<D: Attention>(&self, d: &D, wanted: [bool; 3]) -> [Vec<f64>; 5] {
        let s = &self.s;
        let wide_nan = |n| held::<D, D::Wide>(d, &vec![f64::NAN; n]);
        let nan = |n| held::<D, D::Elem>(d, &vec![f64::NAN; n]);
        let [q, k, v] = self.qkv.each_ref().map(|x| held(d, x));
        let [q, k, v] = [&q, &k, &v].map(D::view);
        let (dy, mask) = (held(d, &self.dy), self.mask.as_ref().map(|mask| held(d, mask)));
        let mask = mask.as_ref().map(|mask| D::view(mask));
        let (mut y, mut lse, mut scratch) =
            (nan(self.dy.len()), wide_nan(s.lse()), wide_nan(s.vjp_scratch()));
        let mut to = self.qkv.each_ref().map(|x| nan(x.len()));
        d.attention(s, q, k, v, mask, D::view_mut(&mut y), Some(D::view_mut(&mut lse)));
        let mut views = to.iter_mut().zip(wanted).map(|(to, wanted)| wanted.then(|| D::view_mut(to)));
        let mut next = || views.next().flatten();
        let gradients = AttentionGradients::Apart { q: next(), k: next(), v: next() };
        let scratch = D::view_mut(&mut scratch);
        let (y_view, lse_view) = (D::view(&y), D::view(&lse));
        d.attention_vjp(s, q, k, v, mask, y_view, lse_view, D::view(&dy), gradients, scratch);
        d.finish().unwrap();
        let [dq, dk, dv] = to;
        let [y, dq, dk, dv] = [y, dq, dk, dv].map(|buffer| values(d, &buffer));
        [y, values(d, &lse), dq, dk, dv]
    }
}

fn spec(
    (batch, q_len, k_len, heads, kv_heads, d): (usize, usize, usize, usize, usize, usize),
    causal: bool,
) -> AttentionSpec {
    AttentionSpec { causal, ..AttentionSpec::new(batch, q_len, k_len, heads, kv_heads, d) }
}

/// The largest |found − expected| over the root mean square of what is expected. Infinities are where they should be.
#[track_caller]
fn error(found: &[f64], expected: &[f64], what: &str) -> f64 {
    assert_eq!(found.len(), expected.len(), "{what}: lengths");
    let squares: f64 = expected.iter().filter(|e| e.is_finite()).map(|e| e * e).sum();
    let scale = (squares / expected.len().max(1) as f64).sqrt().max(1e-2);
    found.iter().zip(expected).fold(0.0, |most, (f, e)| {
        assert!(
            f.is_finite() == e.is_finite() && (f.is_finite() || f == e),
            "{what}: {f} where {e} is expected"
        );
        if f.is_finite() { (f - e).abs().max(most * scale) / scale } else { most }
    })
}

/// Odd sizes: batch, queries, keys, heads, heads of keys, values in a head.
const SIZES: [(usize, usize, usize, usize, usize, usize); 14] = [
    (1, 1, 1, 1, 1, 1),
    (2, 1, 130, 6, 2, 8),
    (1, 3, 17, 6, 2, 40),
    (2, 17, 17, 6, 2, 32),
    (1, 64, 64, 2, 1, 64),
    (2, 65, 65, 2, 2, 8),
    (1, 64, 130, 6, 2, 8),
    (1, 130, 130, 2, 1, 16),
    (1, 17, 65, 1, 1, 128),
    (1, 3, 65, 2, 1, 130),
    (1, 3, 5, 1, 1, 300),
    // The first queries see no key at all.
    (2, 65, 17, 2, 1, 8),
    (1, 5, 0, 2, 1, 4),
    (2, 0, 5, 2, 1, 4),
];

fn agrees<E: CudaReal>(tolerance: f64) {
    let Some(d) = cuda::<E>() else { return };
    let d = d.full_precision();
    let cpu = Cpu::<f64>::default();
    let mut most = 0.0_f64;
    for (i, size) in SIZES.into_iter().enumerate() {
        for causal in [false, true] {
            let case = Case::new(spec(size, causal), 7);
            let case = if (i + usize::from(causal)) % 2 == 0 { case } else { case.masked() };
            let (found, expected) = (case.run(&d), case.run(&cpu));
            for ((found, expected), name) in found.iter().zip(&expected).zip(NAMES) {
                let what = format!("{size:?}, causal {causal}, mask {}: {name}", case.mask.is_some());
                let error = error(found, expected, &what);
                assert!(error <= tolerance, "{what}: {error:e}");
                most = most.max(error);
            }
        }
    }
    println!("{}: {most:e}", std::any::type_name::<E>());
}

/// In bfloat16, in full precision and on tensor cores, each result is rounded, and some are computed of others; the largest
/// are several times the root mean square that errors are held to.
#[test]
fn in_bfloat16_it_is_the_cpus_within_rounding() {
    let (Some(d), Some(tensor)) = (cuda::<bf16>(), tensor::<bf16>()) else { return };
    let cpu = Cpu::<f64>::default();
    for (i, size) in SIZES.into_iter().chain(TENSOR_SIZES).enumerate() {
        for causal in [false, true] {
            let case = Case::new(spec(size, causal), 7);
            let mut case = if (i + usize::from(causal)) % 2 == 0 { case } else { case.masked() };
            for x in case.qkv.iter_mut().chain([&mut case.dy]).flatten() {
                *x = bf16::from_f64(*x).to_f64();
            }
            let expected = case.run(&cpu);
            for (d, which) in [(&d, "plain"), (&tensor, "tensor cores")] {
                for ((found, expected), name) in case.run(d).iter().zip(&expected).zip(NAMES) {
                    let what = format!("{which}, {size:?}, causal {causal}: {name}");
                    let error = error(found, expected, &what);
                    assert!(error <= 0.06, "{what}: {error:e}");
                }
            }
        }
    }
}

#[test]
fn in_double_precision_it_is_the_cpus() {
    agrees::<f64>(1e-12);
}

#[test]
fn in_single_precision_it_is_the_cpus_within_rounding() {
    agrees::<f32>(2e-5);
}

#[test]
fn what_nobody_wants_changes_nothing_about_the_rest() {
    let Some(d) = cuda::<f32>() else { return };
    let case = Case::new(spec((2, 20, 70, 4, 2, 12), true), 1);
    let all = case.run(&d);
    for which in 0..3 {
        let one = case.run_for(&d, std::array::from_fn(|i| i == which));
        for i in 0..3 {
            if i == which {
                assert!(one[2 + i] == all[2 + i], "{}", NAMES[2 + i]);
            } else {
                assert!(one[2 + i].iter().all(|x| x.is_nan()), "{} is written", NAMES[2 + i]);
            }
        }
    }
}

/// All three in one buffer: side by side in each token, or head by head, with room that belongs to no one.
#[test]
fn packed_buffers_are_read_and_written_as_they_lie() {
    let Some(device) = cuda::<f64>() else { return };
    packed(&device, 6, 1e-12);
}

fn packed<E: CudaReal>(device: &Cuda<E>, d: usize, tolerance: f64) {
    let (batch, n, heads, kv) = (2, 67, 4, 2);
    let width = (heads + 2 * kv) * d;
    let token = Strides::token_major(n, width, d);
    let sample = 3 * heads * n * d + 5;
    let major = Strides::head_major(sample, n, d);
    let layouts = [
        (kv, token, [0, heads * d, (heads + kv) * d], batch * n * width),
        (heads, major, [0, heads * n * d, 2 * heads * n * d], batch * sample),
    ];
    for (kv, at, from, len) in layouts {
        let s = AttentionSpec { q: at, k: at, v: at, ..spec((batch, n, n, heads, kv, d), true) };
        let (x, dy) = (random(1, len), random(2, batch * n * heads * d));
        let (found, expected) =
            (packed_run(device, &s, from, &x, &dy), packed_run(&Cpu::<f64>::default(), &s, from, &x, &dy));
        for ((found, expected), what) in found.iter().zip(&expected).zip(["y", "packed gradients"]) {
            let error = error(found, expected, what);
            assert!(error <= tolerance, "{what}: {error:e}");
        }
    }
}

/// The output, and the gradients over a buffer of ones.
fn packed_run<D: Attention>(
    d: &D,
    s: &AttentionSpec,
    at: [usize; 3],
    x: &[f64],
    dy: &[f64],
) -> [Vec<f64>; 2] {
    let [x, dy, mut dx]: [D::Buffer<D::Elem>; 3] = [held(d, x), held(d, dy), held(d, &vec![1.0; x.len()])];
    let mut y: D::Buffer<D::Elem> = held(d, &vec![f64::NAN; D::len(D::view(&dy))]);
    let [mut lse, mut scratch] =
        [s.lse(), s.vjp_scratch()].map(|n| held::<D, D::Wide>(d, &vec![f64::NAN; n]));
    let [q, k, v] = at.map(|at| D::split(D::view(&x), at).1);
    d.attention(s, q, k, v, None, D::view_mut(&mut y), Some(D::view_mut(&mut lse)));
    let gradients = AttentionGradients::Packed { qkv: D::view_mut(&mut dx), at };
    let scratch = D::view_mut(&mut scratch);
    d.attention_vjp(s, q, k, v, None, D::view(&y), D::view(&lse), D::view(&dy), gradients, scratch);
    [values(d, &y), values(d, &dx)]
}

/// The output of some queries from the last tokens on.
fn last<D: Attention>(d: &D, case: &Case, from: usize, to: usize) -> Vec<f64> {
    let AttentionSpec { heads, kv_heads, head_dim, .. } = case.s;
    let s = spec((1, to - from, to, heads, kv_heads, head_dim), true);
    let [q, k, v] = &case.qkv;
    let keys = to * kv_heads * head_dim;
    let q = held(d, &q[from * heads * head_dim..to * heads * head_dim]);
    let [k, v] = [k, v].map(|x| held(d, &x[..keys]));
    let mut y = held(d, &vec![f64::NAN; (to - from) * heads * head_dim]);
    d.attention(&s, D::view(&q), D::view(&k), D::view(&v), None, D::view_mut(&mut y), None);
    values(d, &y)
}

fn some_at_a_time<E: CudaReal>(d: &Cuda<E>, heads: usize, kv: usize, head_dim: usize) {
    let n = 100;
    let case = Case::new(spec((1, n, n, heads, kv, head_dim), true), 3);
    let [all, ..] = case.run(d);
    let row = heads * head_dim;
    for (from, to) in [(0, 1), (63, 64), (64, 65), (99, 100), (1, 71), (30, 47), (71, 100)] {
        let some = last(d, &case, from, to);
        assert!(some == all[from * row..to * row], "tokens from {from} to {to}");
    }
}

#[test]
fn tokens_one_by_one_have_the_bits_of_all_at_once() {
    let (Some(single), Some(double)) = (cuda::<f32>(), cuda::<f64>()) else { return };
    some_at_a_time(&single, 4, 2, 24);
    some_at_a_time(&double, 6, 1, 16);
}

/// Later tokens, and keys that a mask hides, whatever they hold.
fn assert_unseen_has_no_influence<E: CudaReal>(d: &Cuda<E>, head_dim: usize) {
    let case = Case::new(spec((1, 70, 70, 2, 1, head_dim), true), 1);
    let width = [2 * head_dim, head_dim, head_dim];
    let plain = case.run(d);
    for from in [1, 40, 69] {
        let mut other = Case::new(case.s, 1);
        let hold = [f64::INFINITY, f64::NAN, f64::NEG_INFINITY];
        for ((x, width), hold) in other.qkv.iter_mut().zip(width).zip(hold) {
            x[from * width..].fill(hold);
        }
        let found = other.run(d);
        let rows = from * width[0];
        assert!(found[0][..rows] == plain[0][..rows], "y before {from}");
        assert!(found[2][..rows] == plain[2][..rows], "dq before {from}");
        other.s.causal = false;
        assert!(other.run(d)[0][..rows].iter().all(|y| y.is_nan()), "with all seen they have");
    }
    // Early queries do not see the last keys.
    let mut early = Case::new(case.s, 1);
    early.qkv[0][..30 * width[0]].fill(f64::NAN);
    early.dy[..30 * width[0]].fill(f64::NAN);
    let found = early.run(d);
    for i in [3, 4] {
        assert!(found[i][30 * head_dim..] == plain[i][30 * head_dim..], "{} from 30 on", NAMES[i]);
    }

    let mask: Vec<f64> = (0..70).map(|j| if j % 5 == 2 { 0.0 } else { 1.0 }).collect();
    let masked = Case { mask: Some(mask.clone()), ..Case::new(case.s, 1) };
    let plain = masked.run(d);
    let mut other = Case { mask: Some(mask), ..Case::new(case.s, 1) };
    for j in (2..70).step_by(5) {
        other.qkv[1][j * head_dim..(j + 1) * head_dim].fill(f64::NAN);
        other.qkv[2][j * head_dim..(j + 1) * head_dim].fill(f64::NAN);
    }
    let found = other.run(d);
    assert!(found == plain, "masked");
    assert!((2..70).step_by(5).all(|j| found[3][j * head_dim] == 0.0 && found[4][j * head_dim] == 0.0));
}

#[test]
fn what_is_not_seen_has_no_influence_whatever_it_is() {
    let Some(d) = cuda::<f64>() else { return };
    assert_unseen_has_no_influence(&d, 8);
}

#[test]
fn large_scores_do_not_overflow() {
    let Some(d) = cuda::<f32>() else { return };
    let mut case = Case::new(spec((1, 70, 90, 2, 2, 8), true), 5);
    case.qkv.iter_mut().flatten().for_each(|x| *x *= 30.0);
    let found = case.run(&d.full_precision());
    assert!(found.iter().flatten().all(|x| x.is_finite()));
    let [expected, ..] = case.run(&Cpu::<f64>::default());
    assert!(error(&found[0], &expected, "y") < 1e-3);
}

#[test]
#[should_panic(expected = "attention: k of 10 values")]
fn a_view_that_is_too_short_is_refused() {
    let Some(d) = cuda::<f64>() else { panic!("attention: k of 10 values") };
    let mut case = Case::new(spec((1, 2, 3, 1, 1, 4), false), 1);
    case.qkv[1].truncate(10);
    case.run(&d);
}

fn tensor<E: CudaReal>() -> Option<Cuda<E>> {
    cuda::<E>().map(|d| d.forcing("attention=tensor").unwrap())
}

/// How far results may be off where factors are rounded to TF32, element by element: 11 significant bits are off by at
/// most 2⁻¹¹ of the number. The sums, of up to 256 terms of `f32`, add at most 2⁻¹⁶ of theirs, a 32nd of that.
fn bounds(case: &Case) -> [Vec<f64>; 5] {
    const U: f64 = (1.0 + 1.0 / 32.0) / 2048.0;
    /// Of a product of two rounded factors.
    const TWICE: f64 = (1.0 + U) * (1.0 + U) - 1.0;
    let s = &case.s;
    let [q, k, v] = &case.qkv;
    let d = s.head_dim;
    let row = |x: &[f64], at: Strides, b: usize, t: usize, h: usize| {
        let start = b * at.batch + t * at.token + h * at.head;
        x[start..start + d].to_vec()
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let sizes = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum::<f64>();
    // What is 0 may be so up to rounding.
    let floor = |n| vec![1e-6; n];
    let (mut y, mut lse) = (floor(case.dy.len()), floor(s.lse()));
    let [mut dq, mut dk, mut dv] = case.qkv.each_ref().map(|x| floor(x.len()));
    for (b, h, i) in
        (0..s.batch * s.heads * s.q_len).map(|n| (n / s.q_len / s.heads, n / s.q_len % s.heads, n % s.q_len))
    {
        let g = h / (s.heads / s.kv_heads);
        let (query, pull) = (row(q, s.q, b, i, h), row(&case.dy, s.y, b, i, h));
        let seen: Vec<_> = (0..s.k_len)
            .filter(|j| !s.causal || j + s.q_len <= i + s.k_len)
            .filter(|j| case.mask.as_ref().is_none_or(|mask| mask[b * s.k_len + j] != 0.0))
            .map(|j| (j, row(k, s.k, b, j, g), row(v, s.v, b, j, g)))
            .collect();
        let scores: Vec<_> = seen.iter().map(|(_, key, _)| s.scale * dot(&query, key)).collect();
        // A score is off by so much at most, and so is the logarithm of the sum of their exponentials. A weight is off
        // by a factor of no more than the exponential of both.
        let off = seen.iter().map(|(_, key, _)| TWICE * s.scale * sizes(&query, key)).fold(0.0, f64::max);
        let weight_off = (2.0 * off).exp();
        lse[(b * s.heads + h) * s.q_len + i] += off;
        let total: f64 = scores.iter().map(|score| score.exp()).sum();
        let weights: Vec<_> = scores.iter().map(|score| score.exp() / total).collect();
        let pulls: Vec<_> = seen.iter().map(|(_, _, value)| dot(&pull, value)).collect();
        let mean = dot(&weights, &pulls);
        let to = b * s.y.batch + i * s.y.token + h * s.y.head;
        let mut mean_off = 0.0;
        for x in 0..d {
            let size: f64 = weights.iter().zip(&seen).map(|(p, (_, _, value))| p * value[x].abs()).sum();
            y[to + x] += size * (weight_off * (1.0 + TWICE) - 1.0);
            mean_off += y[to + x] * pull[x].abs();
        }
        for (((j, key, value), p), dp) in seen.iter().zip(&weights).zip(&pulls) {
            let slope = s.scale * p * (dp - mean).abs();
            let most = weight_off * (slope + s.scale * p * (TWICE * sizes(&pull, value) + mean_off));
            let slope_off = most * (1.0 + TWICE) - slope;
            let p_off = p * (weight_off * (1.0 + TWICE) - 1.0);
            let q_at = b * s.q.batch + i * s.q.token + h * s.q.head;
            let k_at = b * s.k.batch + j * s.k.token + g * s.k.head;
            let v_at = b * s.v.batch + j * s.v.token + g * s.v.head;
            for x in 0..d {
                dq[q_at + x] += slope_off * key[x].abs();
                dk[k_at + x] += slope_off * query[x].abs();
                dv[v_at + x] += p_off * pull[x].abs();
            }
        }
    }
    [y, lse, dq, dk, dv]
}

const TENSOR_SIZES: [(usize, usize, usize, usize, usize, usize); 12] = [
    (1, 1, 1, 1, 1, 32),
    (2, 1, 130, 6, 2, 64),
    (1, 3, 17, 6, 2, 128),
    (2, 17, 17, 6, 2, 32),
    (1, 64, 64, 2, 1, 64),
    (1, 65, 65, 2, 2, 128),
    (1, 64, 130, 6, 2, 32),
    (1, 130, 130, 2, 1, 64),
    (2, 17, 65, 1, 1, 128),
    (1, 130, 65, 6, 2, 32),
    (2, 5, 0, 2, 1, 32),
    (2, 0, 5, 2, 1, 64),
];

#[test]
fn on_tensor_cores_it_is_off_by_no_more_than_its_factors_are_rounded() {
    let Some(d) = tensor::<f32>() else { return };
    let cpu = Cpu::<f64>::default();
    for (i, size) in TENSOR_SIZES.into_iter().enumerate() {
        for causal in [false, true] {
            let case = Case::new(spec(size, causal), 7);
            let case = if (i + usize::from(causal)) % 2 == 0 { case } else { case.masked() };
            let (found, expected, bounds) = (case.run(&d), case.run(&cpu), bounds(&case));
            let mut most = [0.0_f64; 2];
            for (((found, expected), bounds), name) in found.iter().zip(&expected).zip(bounds).zip(NAMES) {
                for (at, ((&found, &expected), bound)) in found.iter().zip(expected).zip(bounds).enumerate() {
                    let off = if found == expected { 0.0 } else { (found - expected).abs() };
                    let what =
                        format!("{size:?}, causal {causal}, mask {}: {name} {at}", case.mask.is_some());
                    assert!(off <= bound, "{what}: {found} where {expected} is expected, within {bound:e}");
                    most = [most[0].max(off), most[1].max(off / bound)];
                }
            }
            println!("{size:?}, causal {causal}: {:e}, {:.3} of what is allowed", most[0], most[1]);
            // That of the full precision would be far less.
            assert!(size.1 * size.2 < 100 || most[0] > 2e-5, "{size:?}: no factor was rounded");
        }
    }
}

#[test]
fn on_tensor_cores_tokens_one_by_one_have_the_bits_of_all_at_once() {
    let Some(d) = tensor::<f32>() else { return };
    some_at_a_time(&d, 4, 2, 32);
    some_at_a_time(&d, 2, 2, 128);
    some_at_a_time(&tensor::<bf16>().unwrap(), 4, 2, 64);
}

#[test]
fn on_tensor_cores_what_is_not_seen_has_no_influence_whatever_it_is() {
    let Some(d) = tensor::<f32>() else { return };
    assert_unseen_has_no_influence(&d, 32);
    assert_unseen_has_no_influence(&d, 64);
    assert_unseen_has_no_influence(&tensor::<bf16>().unwrap(), 64);
    assert_unseen_has_no_influence(&tensor::<bf16>().unwrap(), 128);
}

/// Rows that start at multiples of 16 bytes are copied in one way, others in another.
#[test]
fn on_tensor_cores_packed_rows_give_the_bits_of_rows_apart_wherever_they_start() {
    packed_as_apart::<f32>();
    packed_as_apart::<bf16>();
}

fn packed_as_apart<E: CudaReal>() {
    let Some(device) = tensor::<E>() else { return };
    let (batch, n, heads, kv, d) = (2, 67, 4, 2, 32);
    let width = (heads + 2 * kv) * d;
    let at = Strides::token_major(n, width, d);
    let s = AttentionSpec { q: at, k: at, v: at, ..spec((batch, n, n, heads, kv, d), true) };
    let apart = spec((batch, n, n, heads, kv, d), true);
    for room in [0, 4, 8, 1] {
        let (x, dy) = (random(1, room + batch * n * width), random(2, batch * n * heads * d));
        let from = [room, room + heads * d, room + (heads + kv) * d];
        let [y, dx] = packed_run(&device, &s, from, &x, &dy);
        let rows = |x: &[f64], part: usize| -> Vec<f64> {
            let heads = if part == 0 { heads } else { kv };
            let row = |t: usize| x[from[part] + t * width..][..heads * d].iter().copied();
            (0..batch * n).flat_map(row).collect()
        };
        let case = Case { s: apart, qkv: std::array::from_fn(|part| rows(&x, part)), dy, mask: None };
        let found = case.run(&device);
        assert!(found[0] == y, "y, {room} before");
        for part in 0..3 {
            assert!(found[2 + part] == rows(&dx, part), "{}, {room} before", NAMES[2 + part]);
        }
        assert!(dx[..room].iter().all(|&x| x == 1.0));
    }
}

#[test]
fn large_calls_take_tensor_cores_unless_full_precision_is_asked_for() {
    let (Some(d), Some(tensor)) = (cuda::<f32>(), tensor()) else { return };
    let plain = d.forcing("attention=plain").unwrap();
    let last = |d: &Cuda<f32>, n: usize| {
        let case = Case::new(spec((1, n, 512, 1, 1, 32), false), 5);
        let [q, k, v] = case.qkv.each_ref().map(|x| held(d, x));
        let [q, k, v] = [&q, &k, &v].map(Cuda::<f32>::view);
        let mut y = held(d, &case.dy);
        d.attention(&case.s, q, k, v, None, Cuda::<f32>::view_mut(&mut y), None);
        values(d, &y)
    };
    // 2²⁴ multiplications are not yet many.
    assert!(last(&d, 512) == last(&plain, 512) && last(&d, 512) != last(&tensor, 512));
    assert!(last(&d, 513) == last(&tensor, 513) && last(&d, 513) != last(&plain, 513));
    assert!(last(&d.full_precision(), 513) == last(&plain, 513));
    assert!(last(&tensor.full_precision(), 513) == last(&plain, 513));
}
