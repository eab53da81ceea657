//! Chains of small dense layers, which are one launch, held to the bits of launches of their own.

use nn_kernels::cuda::{Buffer, CudaReal, View};
use nn_kernels::ops::{Elementwise, Linear, LinearSpec, Unary};
use nn_kernels::{Cuda, Memory};

use crate::elementwise::UNARY;
use crate::{cuda, random};

/// A layer of a chain, and what it writes.
struct Layer<E> {
    s: LinearSpec,
    w: Buffer<E>,
    b: Option<Buffer<E>>,
    y: Buffer<E>,
}

/// Layers of which each takes what the one before it gives.
struct Chain<E: CudaReal> {
    d: Cuda<E>,
    x: Buffer<E>,
    layers: Vec<Layer<E>>,
}

fn upload<E: CudaReal>(d: &Cuda<E>, seed: u64, len: usize) -> Buffer<E> {
    let values: Vec<E> = random(seed, len).into_iter().map(E::from_f64).collect();
    let mut buffer = d.alloc(len).unwrap();
    d.upload(&values, Cuda::<E>::view_mut(&mut buffer));
    buffer
}

fn bits<E: CudaReal>(d: &Cuda<E>, buffer: &Buffer<E>) -> Vec<u64> {
    let mut values = vec![E::ZERO; Cuda::<E>::len(Cuda::<E>::view(buffer))];
    d.download(Cuda::<E>::view(buffer), &mut values);
    values.into_iter().map(|x| x.to_f64().to_bits()).collect()
}

/// How many launches this takes as a whole.
fn launches<E: CudaReal>(d: &Cuda<E>, work: impl FnOnce()) -> u64 {
    let before = d.launches();
    d.together(work);
    d.launches() - before
}

impl<E: CudaReal> Chain<E> {
    /// With these widths, activations in turn, every second layer with a bias and every third one's weight transposed.
    fn new(d: &Cuda<E>, rows: usize, widths: &[usize], acts: &[Unary]) -> Self {
        let layers = widths.windows(2).enumerate().map(|(i, w)| {
            let (act, transposed) = (acts[i % acts.len()], i % 3 == 1);
            let s = LinearSpec { rows, inputs: w[0], outputs: w[1], act, transposed };
            let seed = 10 * i as u64;
            let mut y = d.alloc(rows * s.outputs).unwrap();
            d.fill(f64::NAN, Cuda::<E>::view_mut(&mut y));
            let w = upload(d, seed + 1, s.inputs * s.outputs);
            let b = i.is_multiple_of(2).then(|| upload(d, seed + 2, s.outputs));
            Layer { s, w, b, y }
        });
        Self { d: d.clone(), x: upload(d, 5, rows * widths[0]), layers: layers.collect() }
    }

    fn run(&mut self) {
        for i in 0..self.layers.len() {
            self.run_layer(i);
        }
    }

    fn run_layer(&mut self, i: usize) {
        let (before, rest) = self.layers.split_at_mut(i);
        let Layer { s, w, b, y } = &mut rest[0];
        let x = before.last().map_or(&self.x, |layer| &layer.y);
        let b = b.as_ref().map(Cuda::<E>::view);
        self.d.linear(s, Cuda::<E>::view(x), Cuda::<E>::view(w), b, Cuda::<E>::view_mut(y));
    }

    fn results(&self) -> Vec<Vec<u64>> {
        self.layers.iter().map(|layer| bits(&self.d, &layer.y)).collect()
    }
}

fn forcing<E: CudaReal>(routes: &str) -> Option<Cuda<E>> {
    cuda::<E>().map(|d| d.forcing(&format!("linear=kernels, {routes}")).unwrap())
}

/// All that layers write as launches of their own, whose number is checked.
fn separate<E: CudaReal>(rows: usize, widths: &[usize], acts: &[Unary]) -> Vec<Vec<u64>> {
    let d = forcing::<E>("linear=separate").unwrap();
    let mut chain = Chain::new(&d, rows, widths, acts);
    assert_eq!(launches(&d, || chain.run()), widths.len() as u64 - 1, "{widths:?}");
    let results = chain.results();
    d.finish().unwrap();
    results
}

/// One launch gives what separate ones give.
fn is_one_launch<E: CudaReal>(rows: usize, widths: &[usize], acts: &[Unary]) {
    let Some(d) = cuda::<E>() else { return };
    let mut chain = Chain::new(&d, rows, widths, acts);
    assert_eq!(launches(&d, || chain.run()), 1, "{rows} rows of {widths:?}");
    let (found, expected) = (chain.results(), separate::<E>(rows, widths, acts));
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!(found == expected, "{rows} rows of {widths:?}, layer {i}");
        let nan = found.iter().any(|x| f64::from_bits(*x).is_nan());
        assert!(!nan, "{rows} rows of {widths:?}, layer {i}: not all is written");
    }
    d.finish().unwrap();
}

/// One row, rows that are no whole fours or tiles, one value, widths around those of tiles, and sums in several runs.
fn sizes<E: CudaReal>() {
    let widths: [&[usize]; 7] = [
        &[8, 64, 64, 4],
        &[1, 1, 1],
        &[1, 5, 64, 65, 1],
        &[65, 64, 5, 1, 65],
        &[64, 65, 64],
        &[300, 4, 1],
        &[2, 3, 2, 3, 2, 3, 2, 3, 2],
    ];
    for rows in [1, 3, 16, 33] {
        for widths in widths {
            is_one_launch::<E>(rows, widths, &[Unary::Tanh, Unary::Relu, Unary::Identity]);
        }
    }
}

#[test]
fn a_chain_gives_the_bits_of_its_layers_in_single_precision() {
    sizes::<f32>();
    is_one_launch::<f32>(5, &[3, 530, 2], &[Unary::Identity]);
}

#[test]
fn a_chain_gives_the_bits_of_its_layers_in_double_precision() {
    sizes::<f64>();
}

#[test]
fn a_chain_gives_the_bits_of_its_layers_in_bfloat16() {
    sizes::<half::bf16>();
    is_one_launch::<half::bf16>(5, &[3, 530, 2], &[Unary::Gelu]);
}

#[test]
fn every_activation_is_that_of_a_layer_of_its_own() {
    for act in UNARY {
        is_one_launch::<f32>(3, &[4, 7, 5], &[act]);
        is_one_launch::<f64>(3, &[4, 7, 5], &[act]);
    }
}

/// More tiles of rows than there are blocks, so that some take a second one.
#[test]
fn a_block_takes_several_tiles_of_rows() {
    is_one_launch::<f32>(4300, &[3, 2, 4], &[Unary::Relu]);
}

#[test]
fn a_chain_is_replayed_with_what_reads_it() {
    fn outputs<E: CudaReal>(d: &Cuda<E>, graphs: bool) -> Vec<Vec<u64>> {
        d.use_graphs(graphs);
        let mut chain = Chain::new(d, 5, &[6, 7, 8, 3], &[Unary::Tanh]);
        let (mut first, mut all) = (d.alloc(5 * 7).unwrap(), Vec::new());
        for round in 0..5 {
            chain.x = {
                let values: Vec<E> = random(round, 30).into_iter().map(E::from_f64).collect();
                let mut x = std::mem::replace(&mut chain.x, d.alloc(0).unwrap());
                d.upload(&values, Cuda::<E>::view_mut(&mut x));
                x
            };
            d.together(|| {
                chain.run();
                // What lies between two layers is there for others.
                let y = Cuda::<E>::view(&chain.layers[0].y);
                d.unary(Unary::Relu, y, Cuda::<E>::view_mut(&mut first));
            });
            all.extend(chain.results());
            all.push(bits(d, &first));
        }
        d.finish().unwrap();
        all
    }
    fn check<E: CudaReal>() {
        let (Some(d), Some(separate)) = (cuda::<E>(), forcing::<E>("linear=separate")) else { return };
        let expected = outputs(&separate, false);
        assert!(outputs(&d, false) == expected);
        let (replays, launches) = (d.replays(), d.launches());
        assert!(outputs(&d, true) == expected);
        assert_eq!(d.replays() - replays, 3);
        // Memory is filled three times, and each round is the chain and what reads it.
        assert_eq!(d.launches() - launches, 3 + 5 * 2);
    }
    check::<f32>();
    check::<f64>();
}

#[test]
fn another_operation_between_two_layers_ends_a_chain() {
    let (Some(d), Some(alone)) = (cuda::<f64>(), forcing::<f64>("linear=separate")) else { return };
    let run = |d: &Cuda<f64>| {
        let mut chain = Chain::new(d, 20, &[3, 4, 5, 6], &[Unary::Relu]);
        let one = upload(d, 9, 20 * 4);
        let launches = launches(d, || {
            chain.run_layer(0);
            d.add_assign(Cuda::<f64>::view(&one), Cuda::<f64>::view_mut(&mut chain.layers[0].y));
            chain.run_layer(1);
            chain.run_layer(2);
        });
        (launches, chain.results())
    };
    let ((few, found), (all, expected)) = (run(&d), run(&alone));
    assert_eq!((few, all), (3, 4));
    assert!(found == expected);
}

#[test]
fn what_does_not_go_on_with_the_last_output_starts_anew() {
    let Some(d) = cuda::<f32>() else { return };
    type D = Cuda<f32>;
    let layer =
        |rows, inputs, outputs| LinearSpec { rows, inputs, outputs, act: Unary::Identity, transposed: false };
    let w = upload(&d, 1, 64);
    let (x, mut y, mut z) = (upload(&d, 2, 96), d.alloc::<f32>(96).unwrap(), d.alloc::<f32>(96).unwrap());
    let w = |s: &LinearSpec| D::split(D::view(&w), s.inputs * s.outputs).0;
    let mut two = |first: &LinearSpec, second: &LinearSpec, from: usize| {
        launches(&d, || {
            let of = |n| D::split(D::view(&x), n).0;
            let to = D::split_mut(D::view_mut(&mut y), first.rows * first.outputs).0;
            d.linear(first, of(first.rows * first.inputs), w(first), None, to);
            let of = D::split(D::split(D::view(&y), from).1, second.rows * second.inputs).0;
            let to = D::split_mut(D::view_mut(&mut z), second.rows * second.outputs).0;
            d.linear(second, of, w(second), None, to);
        })
    };
    let first = layer(12, 2, 4);
    assert_eq!(two(&first, &layer(12, 4, 3), 0), 1);
    assert_eq!(two(&first, &layer(24, 2, 3), 0), 2, "the same values as other rows");
    assert_eq!(two(&first, &layer(11, 4, 3), 0), 2, "fewer rows");
    assert_eq!(two(&first, &layer(12, 2, 3), 0), 2, "half of the values");
    assert_eq!(two(&first, &layer(12, 4, 3), 4), 2, "from another row on");
    assert_eq!(two(&first, &layer(0, 4, 3), 0), 1, "no rows at all");
    // Both read the same, and neither what the other writes.
    let beside = launches(&d, || {
        for to in [&mut y, &mut z] {
            let (x, to) = (D::split(D::view(&x), 24).0, D::split_mut(D::view_mut(to), 48).0);
            d.linear(&first, x, w(&first), None, to);
        }
    });
    assert_eq!(beside, 2);
    d.finish().unwrap();
    // Outside of `together` each is submitted when it is recorded.
    let mut chain = Chain::new(&d, 3, &[4, 5, 6], &[Unary::Relu]);
    let before = d.launches();
    chain.run();
    assert_eq!(d.launches() - before, 2);
    // Of what was submitted nothing goes on, though as many launches come before it.
    let mut chain = Chain::new(&d, 3, &[4, 5, 6], &[Unary::Relu]);
    d.together(|| chain.run_layer(0));
    assert_eq!(launches(&d, || chain.run_layer(1)), 1);
    assert!(chain.results() == separate::<f32>(3, &[4, 5, 6], &[Unary::Relu]));
}

/// An output in the place of the input, or of an earlier output: one launch only where each row stays in its place.
/// Otherwise a block could write where another has not read yet; on the emulator, the first or the last block comes
/// first, so widths go up and down.
#[test]
fn outputs_over_what_was_read_are_one_launch_only_in_the_same_rows() {
    fn run(d: &Cuda<f64>, rows: usize, widths: &[usize]) -> (u64, Vec<Vec<u64>>) {
        type D = Cuda<f64>;
        let most = rows * widths.iter().max().unwrap();
        let (mut a, mut b) = (upload(d, 1, most), upload(d, 2, most));
        let weights: Vec<_> =
            widths.windows(2).zip(3..).map(|(w, seed)| upload(d, seed, w[0] * w[1])).collect();
        let launches = launches(d, || {
            for (i, w) in widths.windows(2).enumerate() {
                let (from, to) = if i % 2 == 0 { (&a, &mut b) } else { (&b, &mut a) };
                let act = Unary::Tanh;
                let s = LinearSpec { rows, inputs: w[0], outputs: w[1], act, transposed: false };
                let x = D::split(D::view(from), rows * w[0]).0;
                let y = D::split_mut(D::view_mut(to), rows * w[1]).0;
                d.linear(&s, x, D::view(&weights[i]), None, y);
            }
        });
        (launches, vec![bits(d, &a), bits(d, &b)])
    }
    let (Some(d), Some(separate)) = (cuda::<f64>(), forcing::<f64>("linear=separate")) else { return };
    let cases: [(u64, &[usize]); 7] = [
        (1, &[5, 5, 5, 5]),
        (1, &[5, 7, 5, 7, 5]),
        (2, &[8, 5, 3]),
        (2, &[3, 5, 8]),
        (2, &[5, 8, 5, 4]),
        (2, &[5, 4, 5, 8]),
        (2, &[6, 6, 6, 6, 7]),
    ];
    for (launches, widths) in cases {
        let ((few, found), (all, expected)) = (run(&d, 100, widths), run(&separate, 100, widths));
        assert_eq!((few, all), (launches, widths.len() as u64 - 1), "{widths:?}");
        assert!(found == expected, "{widths:?}");
    }
}

#[test]
fn parameters_that_a_layer_before_writes_or_one_after_overwrites_are_no_part_of_a_chain() {
    type D = Cuda<f32>;
    fn first(buffer: &Buffer<f32>, n: usize) -> View<'_, f32> {
        D::split(D::view(buffer), n).0
    }
    /// A second layer whose weight, or bias, is of the first one's output, or that writes over the first one's.
    fn run(d: &D, what: usize) -> (u64, [Vec<u64>; 3]) {
        let s = |outputs| LinearSpec { rows: 40, inputs: 5, outputs, act: Unary::Relu, transposed: false };
        let (x, mut w, v) = (upload(d, 1, 200), upload(d, 2, 200), upload(d, 3, 25));
        let (mut b, mut y, mut z) = (upload(d, 4, 200), upload(d, 5, 200), upload(d, 6, 200));
        let launches = launches(d, || {
            let to = D::view_mut(&mut y);
            d.linear(&s(5), D::view(&x), first(&w, 25), Some(first(&b, 5)), to);
            let x = D::view(&y);
            match what {
                0 => d.linear(&s(5), x, first(&y, 25), None, D::view_mut(&mut z)),
                1 => d.linear(&s(5), x, first(&v, 25), Some(first(&y, 5)), D::view_mut(&mut z)),
                2 => d.linear(&s(5), x, first(&v, 25), None, D::view_mut(&mut w)),
                3 => d.linear(&s(5), x, first(&v, 25), None, D::view_mut(&mut b)),
                _ => d.linear(&s(5), x, first(&w, 25), Some(first(&b, 5)), D::view_mut(&mut z)),
            }
        });
        (launches, [bits(d, &w), bits(d, &b), bits(d, &z)])
    }
    let (Some(d), Some(separate)) = (cuda::<f32>(), forcing::<f32>("linear=separate")) else { return };
    for what in 0..5 {
        let ((few, found), (all, expected)) = (run(&d, what), run(&separate, what));
        assert_eq!((few, all), (if what == 4 { 1 } else { 2 }, 2), "{what}");
        assert!(found == expected, "{what}");
    }
}

#[test]
fn a_chain_ends_where_a_block_or_a_launch_is_full() {
    let count = |d: &Cuda<f64>, rows, widths: &[usize]| {
        let mut chain = Chain::new(d, rows, widths, &[Unary::Relu]);
        let launches = launches(d, || chain.run());
        assert!(chain.results() == separate::<f64>(rows, widths, &[Unary::Relu]), "{widths:?}");
        launches
    };
    let Some(d) = cuda::<f64>() else { return };
    assert_eq!(count(&d, 2, &[2; 10]), 2, "nine layers");
    assert_eq!(count(&d, 2, &[2; 18]), 3, "seventeen layers");
    // Of the emulator's memory, half a block's is less than 116 KB: 14500 numbers.
    assert_eq!(count(&d, 2, &[90, 90, 90, 4]), 2, "the first two layers' weights are too many together");
    assert_eq!(count(&d, 2, &[4, 150, 150, 4]), 3, "the second layer's alone are");
}

#[test]
fn routes_are_forced_and_forbidden() {
    let Some(d) = cuda::<f32>() else { return };
    let run = |routes: &str, rows: usize| {
        let d = d.forcing(routes).unwrap();
        let mut chain = Chain::new(&d, rows, &[3, 66, 5], &[Unary::Identity]);
        let launches = launches(&d, || chain.run());
        (launches, chain.results())
    };
    for (rows, usual) in [(70, 1), (4300, 2)] {
        let (launches, expected) = run("linear=separate, linear=kernels", rows);
        assert_eq!(launches, 2);
        for (routes, launches) in [
            ("linear=kernels", usual),
            ("linear=fused", 1),
            ("linear=large", 2),
            ("linear=small", 2),
            ("linear=small, linear=fused", 1),
            ("linear=fused, linear=small", 2),
        ] {
            let (found, results) = run(routes, rows);
            assert_eq!(found, launches, "{routes}: {rows} rows");
            assert!(results == expected, "{routes}: {rows} rows");
        }
    }
    assert_eq!(run("linear=tensor", 70).0, 2);
}
