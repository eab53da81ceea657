use crate::cpu::Real;
use crate::cpu::kernels::Kernels;
use crate::cpu::testing::{assert_close, devices, gradient, on_threads, random, reals};
use crate::ops::{AttentionGradients, AttentionSpec, Strides};

/// Where the row of a token and a head starts.
fn start(at: Strides, b: usize, t: usize, h: usize) -> usize {
    b * at.batch + t * at.token + h * at.head
}

/// Outputs, `lse`, and the gradients of q, k and v, by the definition, with all scores at once.
fn reference(
    s: &AttentionSpec,
    [q, k, v]: [&[f64]; 3],
    mask: Option<&[f64]>,
    dy: Option<&[f64]>,
) -> [Vec<f64>; 5] {
    let d = s.head_dim;
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let add = |to: &mut [f64], factor: f64, x: &[f64]| {
        to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
    };
    let mut y = vec![0.0; s.batch * s.q_len * s.heads * d];
    let mut lse = vec![f64::INFINITY; s.lse()];
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    for (b, h) in (0..s.batch).flat_map(|b| (0..s.heads).map(move |h| (b, h))) {
        let g = h / (s.heads / s.kv_heads);
        for i in 0..s.q_len {
            let q_at = start(s.q, b, i, h);
            let y_at = start(s.y, b, i, h);
            let seen: Vec<usize> = (0..s.k_len)
                .filter(|&j| !s.causal || (j + s.q_len) as isize <= (i + s.k_len) as isize)
                .filter(|&j| mask.is_none_or(|mask| mask[b * s.k_len + j] != 0.0))
                .collect();
            if seen.is_empty() {
                continue;
            }
            let (k_at, v_at) = (|j| start(s.k, b, j, g), |j| start(s.v, b, j, g));
            let scores: Vec<f64> =
                seen.iter().map(|&j| s.scale * dot(&q[q_at..][..d], &k[k_at(j)..][..d])).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
            lse[(b * s.heads + h) * s.q_len + i] = max + sum.ln();
            let p: Vec<f64> = scores.iter().map(|score| (score - max).exp() / sum).collect();
            for (p, &j) in p.iter().zip(&seen) {
                add(&mut y[y_at..][..d], *p, &v[v_at(j)..][..d]);
            }
            let Some(dy) = dy else { continue };
            let dy = &dy[y_at..][..d];
            let dp: Vec<f64> = seen.iter().map(|&j| dot(dy, &v[v_at(j)..][..d])).collect();
            let delta = dot(&p, &dp);
            for ((p, dp), &j) in p.iter().zip(&dp).zip(&seen) {
                let slope = s.scale * p * (dp - delta);
                add(&mut dv[v_at(j)..][..d], *p, dy);
                add(&mut dk[k_at(j)..][..d], slope, &q[q_at..][..d]);
                add(&mut dq[q_at..][..d], slope, &k[k_at(j)..][..d]);
            }
        }
    }
    [y, lse, dq, dk, dv]
}

/// The same by the kernels.
fn flash<E: Real>(
    device: Kernels<E>,
    s: &AttentionSpec,
    x: [&[f64]; 3],
    mask: Option<&[f64]>,
    dy: &[f64],
) -> [Vec<E>; 5] {
    let nan = |n| vec![E::from_f64(f64::NAN); n];
    let [q, k, v] = x.map(reals::<E>);
    let (mask, dy) = (mask.map(reals::<E>), reals::<E>(dy));
    let (mut y, mut lse) = (nan(dy.len()), nan(s.lse()));
    device.attention(s, &q, &k, &v, mask.as_deref(), &mut y, Some(&mut lse));
    let mut to = [&q, &k, &v].map(|x| nan(x.len()));
    let [dq, dk, dv] = to.each_mut().map(|to| Some(&mut to[..]));
    let to_all = AttentionGradients::Apart { q: dq, k: dk, v: dv };
    let mut scratch = nan(s.vjp_scratch());
    device.attention_vjp(s, &q, &k, &v, mask.as_deref(), &y, &lse, &dy, to_all, &mut scratch);
    let [dq, dk, dv] = to;
    [y, lse, dq, dk, dv]
}

/// Whether what nobody wants changes nothing about the rest.
fn assert_parts_are_those_of_the_whole<E: Real>(device: Kernels<E>, s: &AttentionSpec, seed: u64) {
    let x = operands(s, seed);
    let [y, lse, dq, dk, dv] = flash(device, s, [&x[0], &x[1], &x[2]], None, &x[3]);
    let [q, k, v, dy] = x.map(|x| reals::<E>(&x));
    let mut alone = vec![E::ZERO; y.len()];
    device.attention(s, &q, &k, &v, None, &mut alone, None);
    assert!(y == alone);
    let mut scratch = vec![E::ZERO; s.vjp_scratch()];
    for (which, whole) in [dq, dk, dv].into_iter().enumerate() {
        let mut part = vec![E::ZERO; whole.len()];
        let mut wanted = [None, None, None];
        wanted[which] = Some(&mut part[..]);
        let [q_to, k_to, v_to] = wanted;
        let to = AttentionGradients::Apart { q: q_to, k: k_to, v: v_to };
        device.attention_vjp(s, &q, &k, &v, None, &y, &lse, &dy, to, &mut scratch);
        assert!(part == whole, "{which}");
    }
}

#[test]
fn what_nobody_wants_changes_nothing_about_the_rest() {
    for device in devices::<f32>() {
        assert_parts_are_those_of_the_whole(device, &spec((2, 70, 90, 4, 2, 12, true)), 1);
    }
}

/// Queries, keys, values and output gradients of a spec whose tensors are apart.
fn operands(s: &AttentionSpec, seed: u64) -> [Vec<f64>; 4] {
    let (q, k) = (s.batch * s.q_len * s.heads * s.head_dim, s.batch * s.k_len * s.kv_heads * s.head_dim);
    [(seed, q), (seed + 1, k), (seed + 2, k), (seed + 3, q)].map(|(seed, n)| random(seed, n))
}

/// Odd sizes: batch, queries, keys, heads, heads of keys, values in a head, causal.
const SIZES: [(usize, usize, usize, usize, usize, usize, bool); 17] = [
    (1, 1, 1, 1, 1, 1, false),
    (1, 1, 130, 4, 2, 5, true),
    (3, 1, 65, 2, 1, 32, false),
    (1, 7, 7, 3, 3, 5, true),
    (3, 70, 70, 2, 2, 1, true),
    (1, 64, 64, 1, 1, 64, true),
    (1, 63, 128, 2, 1, 32, true),
    (3, 129, 129, 4, 1, 5, true),
    (1, 65, 131, 6, 2, 80, true),
    (1, 3, 200, 6, 3, 128, true),
    (2, 33, 100, 4, 4, 16, false),
    (2, 3, 150, 2, 2, 8, false),
    (1, 4, 70, 6, 2, 9, true),
    // The first queries see no key at all.
    (2, 100, 33, 2, 1, 8, true),
    (1, 2, 1, 1, 1, 3, true),
    (1, 5, 0, 2, 1, 4, false),
    (2, 0, 5, 2, 1, 4, true),
];

fn spec(
    (batch, q_len, k_len, heads, kv_heads, d, causal): (usize, usize, usize, usize, usize, usize, bool),
) -> AttentionSpec {
    AttentionSpec { causal, ..AttentionSpec::new(batch, q_len, k_len, heads, kv_heads, d) }
}

/// Every third key and all of sample 1's are not to be seen.
fn holes(s: &AttentionSpec) -> Vec<f64> {
    (0..s.batch * s.k_len).map(|i| if i % 3 == 1 || i / s.k_len == 1 { 0.0 } else { 1.0 }).collect()
}

#[track_caller]
fn assert_all_close<E: Real>(found: &[Vec<E>; 5], expected: &[Vec<f64>; 5], tolerance: f64, what: &str) {
    for ((found, expected), name) in found.iter().zip(expected).zip(["y", "lse", "dq", "dk", "dv"]) {
        // Infinity is a value too, where it should be.
        let infinite = |x: f64| x == f64::INFINITY;
        assert!(
            found.iter().zip(expected).all(|(f, e)| infinite(f.to_f64()) == infinite(*e)),
            "{what}: {name}"
        );
        let found: Vec<E> = found.iter().map(|&x| if infinite(x.to_f64()) { E::ZERO } else { x }).collect();
        let expected: Vec<f64> = expected.iter().map(|&x| if infinite(x) { 0.0 } else { x }).collect();
        // A gradient that is zero, as that of a key where only one is seen, is so up to rounding.
        let scale = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
        let floor = tolerance * (expected.len() as f64).sqrt();
        if scale < floor {
            let error = found.iter().map(|x| x.to_f64() * x.to_f64()).sum::<f64>().sqrt();
            assert!(error <= floor, "{what}: {name}: {error:e} where 0 is expected");
        } else {
            assert_close(&found, &expected, tolerance, &format!("{what}: {name}"));
        }
    }
}

fn agrees<E: Real>(tolerance: f64) {
    for (size, device) in SIZES.into_iter().flat_map(|s| devices::<E>().into_iter().map(move |d| (s, d))) {
        let s = spec(size);
        let [q, k, v, dy] = operands(&s, 1);
        for mask in [None, Some(holes(&s))] {
            let x = [&q[..], &k, &v];
            let expected = reference(&s, x, mask.as_deref(), Some(&dy));
            let found = flash(device, &s, x, mask.as_deref(), &dy);
            let what = format!("{device:?} {size:?}, mask {}", mask.is_some());
            assert_all_close(&found, &expected, tolerance, &what);
        }
    }
}

#[test]
fn attention_is_that_of_the_definition() {
    agrees::<f64>(1e-13);
    agrees::<f32>(2e-6);
}

#[test]
fn large_scores_do_not_overflow() {
    for device in devices::<f32>() {
        let s = spec((1, 70, 90, 2, 2, 8, true));
        let [q, k, v, dy] = operands(&s, 5).map(|x| x.iter().map(|x| x * 30.0).collect::<Vec<_>>());
        let x = [&q[..], &k, &v];
        let expected = reference(&s, x, None, Some(&dy));
        let found = flash(device, &s, x, None, &dy);
        assert_close(&found[0], &expected[0], 2e-4, "y");
        assert!(found.iter().flatten().all(|x| x.is_finite()));
    }
}

#[test]
fn the_reference_has_the_gradients_of_finite_differences() {
    let s = AttentionSpec { scale: 0.9, ..spec((1, 3, 5, 2, 1, 2, true)) };
    let [q, k, v, dy] = operands(&s, 9);
    let mask = [1.0, 0.0, 1.0, 1.0, 1.0];
    let dot = |y: &[f64]| y.iter().zip(&dy).map(|(y, g)| y * g).sum::<f64>();
    let [_, _, dq, dk, dv] = reference(&s, [&q, &k, &v], Some(&mask), Some(&dy));
    let f = |x: [&[f64]; 3]| dot(&reference(&s, x, Some(&mask), None)[0]);
    assert_close(&dq, &gradient(&q, |q| f([q, &k, &v])), 1e-8, "dq");
    assert_close(&dk, &gradient(&k, |k| f([&q, k, &v])), 1e-8, "dk");
    assert_close(&dv, &gradient(&v, |v| f([&q, &k, v])), 1e-8, "dv");
}

/// Packed buffers of several layouts, with room that belongs to no one.
#[test]
fn packed_buffers_are_read_and_written_as_they_lie() {
    let (batch, n, heads, kv, d) = (3, 67, 4, 2, 6);
    let width = (heads + 2 * kv) * d;
    let token = Strides::token_major(n, width, d);
    let room = 5;
    let sample = 3 * heads * n * d + room;
    let major = Strides::head_major(sample, n, d);
    let y = Strides::token_major(n, heads * d, d);
    // The strides of q, k and v, where k and v start, and the length of all.
    let layouts = [
        (kv, [token; 3], [0, heads * d, (heads + kv) * d], batch * n * width),
        (heads, [major; 3], [0, heads * n * d, 2 * heads * n * d], batch * sample),
    ];
    for (device, (kv, at, from, len)) in
        devices::<f64>().into_iter().flat_map(|device| layouts.map(|layout| (device, layout)))
    {
        let s = AttentionSpec {
            causal: true,
            q: at[0],
            k: at[1],
            v: at[2],
            y,
            ..AttentionSpec::new(batch, n, n, heads, kv, d)
        };
        let (x, dy) = (random(1, len), random(2, batch * n * heads * d));
        let [q, k, v] = from.map(|from| &x[from..]);
        let [expected_y, _, dq, dk, dv] = reference(&s, [q, k, v], None, Some(&dy));
        let (mut y, mut lse) = (vec![f64::NAN; dy.len()], vec![f64::NAN; s.lse()]);
        device.attention(&s, q, k, v, None, &mut y, Some(&mut lse));
        assert_close(&y, &expected_y, 1e-13, "y");
        // What belongs to no one stays as it is.
        let mut dx = vec![0.0; len];
        let mut scratch = vec![f64::NAN; s.vjp_scratch()];
        let to = AttentionGradients::Packed { qkv: &mut dx[..], at: from };
        device.attention_vjp(&s, q, k, v, None, &y, &lse, &dy, to, &mut scratch);
        let mut expected = vec![0.0; len];
        for (from, part) in from.into_iter().zip([dq, dk, dv]) {
            expected[from..].iter_mut().zip(part).for_each(|(e, p)| *e += p);
        }
        assert_close(&dx, &expected, 1e-13, "packed gradients");
    }
}

#[test]
fn a_cache_with_room_for_more_is_read_as_it_lies() {
    let (batch, room, len, heads, d) = (2, 50, 37, 3, 4);
    let cache = Strides { batch: room * heads * d, token: heads * d, head: d };
    let s = AttentionSpec {
        causal: true,
        k: cache,
        v: cache,
        ..AttentionSpec::new(batch, 2, len, heads, heads, d)
    };
    let q = random(1, batch * 2 * heads * d);
    let [mut k, mut v] = [2, 3].map(|seed| random(seed, batch * room * heads * d));
    let expected = &reference(&s, [&q, &k, &v], None, None)[0];
    for (i, row) in (0..).zip(k.chunks_mut(heads * d).zip(v.chunks_mut(heads * d))) {
        if i % room >= len {
            row.0.fill(f64::NAN);
            row.1.fill(f64::NAN);
        }
    }
    for device in devices::<f64>() {
        let mut y = vec![0.0; q.len()];
        device.attention(&s, &q, &k, &v, None, &mut y, None);
        assert_close(&y, expected, 1e-13, "y");
    }
}

/// Each token's output when it is the last of all that there are.
fn one_by_one<E: Real>(heads: usize, kv: usize, d: usize) {
    let n = 150;
    for device in devices::<E>() {
        let s = spec((1, n, n, heads, kv, d, true));
        let [q, k, v] = [1, 2, 3].map(|seed| reals::<E>(&random(seed, n * heads * d)));
        let mut all = vec![E::ZERO; n * heads * d];
        device.attention(&s, &q, &k, &v, None, &mut all, None);
        for t in 0..n {
            let s = spec((1, 1, t + 1, heads, kv, d, true));
            let mut one = vec![E::ZERO; heads * d];
            let row = t * heads * d..(t + 1) * heads * d;
            device.attention(
                &s,
                &q[row.clone()],
                &k[..(t + 1) * kv * d],
                &v[..(t + 1) * kv * d],
                None,
                &mut one,
                None,
            );
            assert!(one == all[row], "{device:?}: token {t}");
        }
        // And some at a time, as a long prompt is read.
        let mut at = 0;
        for step in [1, 70, 5, 74] {
            let s = spec((1, step, at + step, heads, kv, d, true));
            let mut some = vec![E::ZERO; step * heads * d];
            let row = at * heads * d..(at + step) * heads * d;
            device.attention(
                &s,
                &q[row.clone()],
                &k[..(at + step) * kv * d],
                &v[..(at + step) * kv * d],
                None,
                &mut some,
                None,
            );
            assert!(some == all[row], "{device:?}: tokens from {at}");
            at += step;
        }
    }
}

#[test]
fn tokens_one_by_one_have_the_bits_of_all_at_once() {
    for (heads, kv, d) in [(4, 2, 24), (2, 2, 7), (6, 1, 16)] {
        one_by_one::<f64>(heads, kv, d);
        one_by_one::<f32>(heads, kv, d);
    }
}

#[test]
fn what_is_not_seen_has_no_influence_whatever_it_is() {
    let s = spec((1, 70, 70, 2, 1, 8, true));
    let [q, k, v, dy] = operands(&s, 1);
    let width = [s.heads * s.head_dim, s.kv_heads * s.head_dim];
    for device in devices::<f64>() {
        let plain = flash(device, &s, [&q, &k, &v], None, &dy);
        for from in [1, 40, 69] {
            // Later keys, values and queries.
            let [mut q2, mut k2, mut v2] = [&q, &k, &v].map(Clone::clone);
            q2[from * width[0]..].fill(f64::INFINITY);
            k2[from * width[1]..].fill(f64::NAN);
            v2[from * width[1]..].fill(f64::NEG_INFINITY);
            let mut dy2 = dy.clone();
            dy2[from * width[0]..].fill(0.0);
            let found = flash(device, &s, [&q2, &k2, &v2], None, &dy2);
            let rows = from * width[0];
            assert!(found[0][..rows] == plain[0][..rows], "{device:?}: y before {from}");
            assert!(found[2][..rows] == plain[2][..rows], "{device:?}: dq before {from}");
            // With the causality off they do.
            let open = AttentionSpec { causal: false, ..s };
            let found = flash(device, &open, [&q2, &k2, &v2], None, &dy2);
            assert!(found[0][..rows].iter().all(|y| y.is_nan()));
        }
        // Keys that a mask hides.
        let mask: Vec<f64> = (0..70).map(|j| if j % 5 == 2 { 0.0 } else { 1.0 }).collect();
        let plain = flash(device, &s, [&q, &k, &v], Some(&mask), &dy);
        let [mut k2, mut v2] = [&k, &v].map(Clone::clone);
        for j in (2..70).step_by(5) {
            k2[j * width[1]..(j + 1) * width[1]].fill(f64::NAN);
            v2[j * width[1]..(j + 1) * width[1]].fill(f64::NAN);
        }
        let found = flash(device, &s, [&q, &k2, &v2], Some(&mask), &dy);
        assert!(found == plain, "{device:?}: masked");
        assert!((2..70).step_by(5).all(|j| found[3][j * width[1]] == 0.0 && found[4][j * width[1]] == 0.0));
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let s = spec((2, 200, 200, 6, 3, 32, true));
    let [q, k, v, dy] = operands(&s, 1);
    let run =
        |threads| on_threads(threads, || flash(devices::<f32>().pop().unwrap(), &s, [&q, &k, &v], None, &dy));
    let one = run(1);
    assert!(one == run(2) && one == run(5));
}

#[test]
fn memory_grows_with_the_tokens_and_not_with_their_square() {
    let of = |n| spec((2, n, n, 6, 3, 64, true));
    assert_eq!(of(4096).vjp_scratch(), 2 * 3 * 4096 * 64 * 2);
    assert_eq!(of(8192).vjp_scratch(), 2 * of(4096).vjp_scratch());
    assert_eq!(of(4096).lse(), 2 * 6 * 4096);
}

#[test]
#[should_panic(expected = "attention: rows that are written overlap")]
fn overlapping_outputs_are_refused() {
    let mut s = spec((1, 4, 4, 2, 2, 4, false));
    s.y.token = 4;
    let [q, k, v, mut y] = operands(&s, 1);
    devices::<f64>()[0].attention(&s, &q, &k, &v, None, &mut y, None);
}

fn packed_at(at: [usize; 3]) {
    let s = AttentionSpec { q: Strides::token_major(4, 24, 4), ..spec((2, 4, 4, 2, 2, 4, false)) };
    let s = AttentionSpec { k: s.q, v: s.q, ..s };
    let x = random(1, 2 * 4 * 24 + 8);
    let (mut y, mut lse) = (vec![0.0; 64], vec![0.0; s.lse()]);
    devices::<f64>()[0].attention(&s, &x, &x[8..], &x[16..], None, &mut y, Some(&mut lse));
    let (mut dx, mut scratch) = (x.clone(), vec![0.0; s.vjp_scratch()]);
    let to = AttentionGradients::Packed { qkv: &mut dx[..], at };
    devices::<f64>()[0].attention_vjp(&s, &x, &x[8..], &x[16..], None, &y, &lse, &y, to, &mut scratch);
}

#[test]
#[should_panic(expected = "attention_vjp: rows that are written overlap")]
fn overlapping_gradients_are_refused() {
    packed_at([0, 8, 8]);
}

#[test]
#[should_panic(expected = "attention_vjp: rows that are written overlap")]
fn gradients_that_reach_into_the_next_token_are_refused() {
    packed_at([0, 8, 24]);
}

#[test]
#[should_panic(expected = "attention_vjp: rows that are written overlap")]
fn overlapping_gradients_are_refused_where_there_are_no_queries() {
    let s = spec((1, 0, 4, 2, 2, 4, false));
    let (x, mut dx, mut scratch) = (vec![0.0; 32], vec![0.0; 64], vec![0.0; s.vjp_scratch()]);
    let to = AttentionGradients::Packed { qkv: &mut dx[..], at: [0, 0, 4] };
    devices::<f64>()[0].attention_vjp(&s, &[], &x, &x, None, &[], &[], &[], to, &mut scratch);
}

#[test]
fn gradients_side_by_side_are_fine() {
    packed_at([0, 8, 16]);
    packed_at([16, 8, 0]);
}
