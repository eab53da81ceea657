//! Sequences that go on token by token: the position is no part of what is replayed.

use nn_kernels::cuda::CudaReal;
use nn_kernels::ops::{AttentionSpec, Block, RopeSpec, SinusoidSpec, Strides};
use nn_kernels::{Cpu, Device, Float};

use crate::{Trial, cuda, random};

const MOST: usize = 10;
const BATCH: usize = 2;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 32;

/// What each token gives: turned queries and keys, attention over all tokens so far, a row of a table, and sinusoids.
fn decode<D: Device>(d: D) -> Vec<f64> {
    let (width, all) = (KV_HEADS * DIM, (HEADS + 2 * KV_HEADS) * DIM);
    let t = Trial::new(d);
    // Tokens that were not given are not seen, whatever is in their place.
    let (mut keys, mut values) = (t.room(BATCH * MOST * width), t.room(BATCH * MOST * width));
    let (mut turned, mut y) = (t.room(BATCH * all), t.room(BATCH * HEADS * DIM));
    let (table, mut row, mut sines) = (t.random(1, MOST * 7), t.room(7), t.room(6));
    let mut x = t.room(BATCH * all);
    let mut results = Vec::new();
    for past in 0..MOST {
        let new = random(2 + past as u64, BATCH * all);
        let new: Vec<_> = new.into_iter().map(D::Elem::from_f64).collect();
        t.d.upload(&new, D::view_mut(&mut x));
        t.d.together(|| {
            let s = RopeSpec {
                rows: BATCH,
                seq: 1,
                offset: past,
                heads: all / DIM,
                dim: DIM,
                rotary: 16,
                theta: 1e4,
                interleaved: false,
            };
            t.d.rope(&s, false, D::view(&x), D::view_mut(&mut turned));
            for (i, cache) in [&mut keys, &mut values].into_iter().enumerate() {
                let from = Block { offset: (HEADS + i * KV_HEADS) * DIM, stride: all };
                let to = Block { offset: past * width, stride: MOST * width };
                t.d.copy_moving_block(BATCH, width, D::view(&turned), from, D::view_mut(cache), to);
            }
            let lies = Strides::token_major(MOST, width, DIM);
            let s = AttentionSpec {
                causal: true,
                q: Strides::token_major(1, all, DIM),
                k: lies,
                v: lies,
                ..AttentionSpec::new(BATCH, 1, past + 1, HEADS, KV_HEADS, DIM)
            };
            let (q, k, v) = (D::view(&turned), D::view(&keys), D::view(&values));
            t.d.attention(&s, q, k, v, None, D::view_mut(&mut y), None);
            let (from, to) = (Block { offset: past * 7, stride: 7 }, Block { offset: 0, stride: 7 });
            t.d.copy_moving_block(1, 7, D::view(&table), from, D::view_mut(&mut row), to);
            let s = SinusoidSpec { rows: 1, first: past, dim: 6, theta: 1e4 };
            t.d.sinusoids(&s, D::view_mut(&mut sines));
        });
        for buffer in [&y, &row, &sines] {
            results.extend(t.downloaded(buffer));
        }
    }
    t.d.finish().unwrap();
    results
}

fn is_replayed<E: CudaReal>(routes: &str, tolerance: f64) {
    let Some(d) = cuda::<E>().map(|d| d.forcing(routes).unwrap()) else { return };
    d.use_graphs(false);
    let launched = decode(d.clone());
    d.use_graphs(true);
    assert!(decode(d.clone()) == launched, "a replay gives other bits");
    // The first token sees no other one, and is launched; so is the second, and the third is made a graph.
    assert_eq!(d.replays(), MOST as u64 - 3);
    for (found, expected) in launched.iter().zip(decode(Cpu::<f64>::default())) {
        assert!((found - expected).abs() < tolerance, "{routes}: {found} instead of {expected}");
    }
}

#[test]
fn tokens_are_replayed_wherever_they_are() {
    is_replayed::<f64>("attention=plain", 1e-12);
    is_replayed::<f32>("attention=plain", 1e-5);
    // Factors are rounded to 11 bits: a mean of values below 1 with weights that are off by less than 1%.
    is_replayed::<f32>("attention=tensor", 1e-2);
}
