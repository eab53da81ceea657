//! Matrix products on tensor cores, held to what rounding their factors to TF32 may change.

use half::bf16;
use nn_kernels::cuda::CudaReal;
use nn_kernels::ops::{Linear, LinearSpec, Unary};
use nn_kernels::{Cpu, Cuda, Device, Memory};

use crate::{Trial, cuda, random};

/// One value, sizes around those of tiles, steps and fours, and sums that are cut into parts.
const SHAPES: [(usize, usize, usize); 9] = [
    (1, 1, 1),
    (3, 5, 2),
    (17, 16, 33),
    (64, 20, 65),
    (128, 48, 128),
    (129, 17, 130),
    (130, 3, 260),
    (1100, 12, 8),
    (1, 131, 36),
];

/// y, and from ones on dx, dw and y + x·W, of a layer whose operands start `offset` values into their memory.
fn results<D: Device>(d: D, s: &LinearSpec, offset: usize, seed: u64) -> [Vec<f64>; 4] {
    results_of(Trial::new(d), s, offset, seed)
}

fn results_of<D: Device>(t: Trial<D>, s: &LinearSpec, offset: usize, seed: u64) -> [Vec<f64>; 4] {
    let at = |buffer| D::split(D::view(buffer), offset).1;
    let [rows, inputs, outputs] = [s.rows, s.inputs, s.outputs];
    let sizes = [rows * inputs, inputs * outputs, outputs, rows * outputs];
    let [x, w, b, dy] =
        [0, 1, 2, 3].map(|i| t.values(&[vec![0.0; offset], random(seed + i as u64, sizes[i])].concat()));
    let [mut y, mut dx, mut dw, mut sum] = [
        t.room(rows * outputs),
        t.room(rows * inputs),
        t.values(&vec![1.0; inputs * outputs]),
        t.values(&vec![1.0; rows * outputs]),
    ];
    let mut scratch = t.room(s.vjp_scratch());
    t.d.linear(s, at(&x), at(&w), Some(at(&b)), D::view_mut(&mut y));
    t.d.linear_vjp(
        s,
        at(&x),
        at(&w),
        Some(at(&b)),
        D::view(&y),
        at(&dy),
        Some(D::view_mut(&mut dx)),
        Some(D::view_mut(&mut dw)),
        None,
        D::view_mut(&mut scratch),
    );
    t.d.linear_add(&LinearSpec { act: Unary::Identity, ..*s }, at(&x), at(&w), D::view_mut(&mut sum));
    t.d.finish().unwrap();
    [y, dx, dw, sum].map(|buffer| t.downloaded(&buffer))
}

/// Σ |a|·|b| of each output, times what a product of two rounded factors may be off: 11 significant bits are off by at
/// most 2⁻¹¹ of the number, and sums of n terms of `f32` by n·2⁻²⁴ of that of their sizes.
fn bound(rows: usize, cols: usize, depth: usize, product: impl Fn(usize, usize, usize) -> f64) -> Vec<f64> {
    let u = 1.0 / 2048.0;
    let off = (1.0 + u) * (1.0 + u) - 1.0 + (depth + 4) as f64 / f64::from(1 << 24);
    let size = |row, col| (0..depth).map(|k| product(row, col, k).abs()).sum::<f64>();
    (0..rows * cols).map(|i| 1e-6 + off * size(i / cols, i % cols)).collect()
}

fn tensor<E: CudaReal>() -> Option<Cuda<E>> {
    cuda::<E>().map(|d| d.forcing("linear=tensor").unwrap())
}

#[test]
fn products_are_off_by_no_more_than_their_factors_are_rounded() {
    let Some(d) = tensor::<f32>() else { return };
    let mut most = 0.0_f64;
    for ((rows, inputs, outputs), transposed) in SHAPES.into_iter().flat_map(|s| [(s, false), (s, true)]) {
        let s = LinearSpec { rows, inputs, outputs, act: Unary::Identity, transposed };
        let found = results(d.clone(), &s, 0, 7);
        let expected = results(Cpu::<f64>::default(), &s, 0, 7);
        let (x, w, dy) = (random(7, rows * inputs), random(8, inputs * outputs), random(10, rows * outputs));
        let weight = |i: usize, o: usize| if transposed { w[o * inputs + i] } else { w[i * outputs + o] };
        let y = bound(rows, outputs, inputs, |r, o, i| x[r * inputs + i] * weight(i, o));
        let dx = bound(rows, inputs, outputs, |r, i, o| dy[r * outputs + o] * weight(i, o));
        let slope = |i: usize, o: usize, r: usize| x[r * inputs + i] * dy[r * outputs + o];
        let dw = if transposed {
            bound(outputs, inputs, rows, |o, i, r| slope(i, o, r))
        } else {
            bound(inputs, outputs, rows, slope)
        };
        for ((found, expected), (bound, name)) in
            found.iter().zip(&expected).zip([(&y, "y"), (&dx, "dx"), (&dw, "dw"), (&y, "sum")])
        {
            assert_eq!(found.len(), expected.len());
            for (i, ((found, expected), bound)) in found.iter().zip(expected).zip(bound).enumerate() {
                let off = (found - expected).abs();
                assert!(
                    off <= *bound,
                    "{s:?}: {name} {i}: {found} where {expected} is expected, within {bound:e}"
                );
                most = most.max(off / bound);
            }
        }
    }
    println!("{most:.3} of what is allowed");
    // That of the full precision would be far less.
    assert!(most > 0.05, "no factor was rounded");
}

/// Products of bfloat16 are exact, and their sums are rounded once.
#[test]
fn products_of_bfloat16_are_off_by_no_more_than_the_result_is_rounded() {
    let (Some(d), Some(plain)) = (tensor::<bf16>(), cuda::<bf16>()) else { return };
    for ((rows, inputs, outputs), transposed) in SHAPES.into_iter().flat_map(|s| [(s, false), (s, true)]) {
        let s = LinearSpec { rows, inputs, outputs, act: Unary::Identity, transposed };
        let found = results(d.clone(), &s, 0, 7);
        let expected = results_of(Trial::rounding(Cpu::<f64>::default()), &s, 0, 7);
        for ((found, expected), (depth, name)) in
            found.iter().zip(&expected).zip([(inputs, "y"), (outputs, "dx"), (rows, "dw"), (inputs, "sum")])
        {
            for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                // No term is larger than 1.
                let summed = (depth * (depth + 4)) as f64 / f64::from(1 << 24);
                let bound = expected.abs() / 256.0 + summed + 1e-6;
                let off = (found - expected).abs();
                assert!(off <= bound, "{s:?}: {name} {i}: {found} where {expected} is expected, {bound:e}");
            }
        }
    }
    // In full precision 256 terms are summed before they are added to the others: here they are lost in the large one.
    let y = |d: &Cuda<bf16>, rows: usize, outputs: usize| {
        let s = LinearSpec { rows, inputs: 768, outputs, act: Unary::Identity, transposed: false };
        let mut x = vec![0.0; rows * 768];
        (x[0], x[512]) = (f64::from(1 << 30), -f64::from(1 << 30));
        x[256..512].fill(1.0);
        let t = Trial::new(d.clone());
        let (x, w, mut y) = (t.values(&x), t.values(&vec![1.0; 768 * outputs]), t.room(rows * outputs));
        t.d.linear(&s, Cuda::<bf16>::view(&x), Cuda::<bf16>::view(&w), None, Cuda::<bf16>::view_mut(&mut y));
        t.downloaded(&y)[0]
    };
    assert_eq!((y(&d, 17, 17), y(&plain, 17, 17)), (0.0, 256.0), "tensor cores, and full precision");
    // 2²⁰ multiplications are not yet many.
    assert_eq!((y(&plain, 36, 37), y(&plain, 37, 37)), (256.0, 0.0));
    let full = plain.full_precision();
    assert_eq!((y(&full, 37, 37), y(&full.forcing("linear=tensor").unwrap(), 37, 37)), (256.0, 256.0));
}

fn same_wherever_they_start<E: CudaReal>() {
    let Some(d) = tensor::<E>() else { return };
    for transposed in [false, true] {
        let s = LinearSpec { rows: 36, inputs: 40, outputs: 48, act: Unary::Gelu, transposed };
        let first = results(d.clone(), &s, 0, 3);
        for offset in [1, 4, 8] {
            assert!(first == results(d.clone(), &s, offset, 3), "{offset} values before");
        }
    }
}

/// Rows that start at multiples of 16 bytes are copied in one way, others in another.
#[test]
fn wherever_operands_start_the_bits_are_the_same() {
    same_wherever_they_start::<f32>();
    same_wherever_they_start::<bf16>();
}

#[test]
fn biases_and_activations_follow_the_sum() {
    let Some(d) = tensor::<f32>() else { return };
    for act in [Unary::Relu, Unary::Gelu, Unary::Tanh] {
        let s = LinearSpec { rows: 20, inputs: 24, outputs: 28, act, transposed: false };
        let (found, expected) = (results(d.clone(), &s, 0, 5), results(Cpu::<f64>::default(), &s, 0, 5));
        for (found, expected) in found.iter().zip(&expected).take(1) {
            // No activation here is steeper than 1.2.
            let most = found.iter().zip(expected).map(|(f, e)| (f - e).abs()).fold(0.0, f64::max);
            assert!(most <= 1.2 * 24.0 * 2.0 / 2048.0, "{act:?}: {most:e}");
        }
    }
}

#[test]
fn large_products_take_tensor_cores_unless_full_precision_is_asked_for() {
    let (Some(d), Some(tensor)) = (cuda::<f32>(), tensor()) else { return };
    let plain = d.forcing("linear=large").unwrap();
    let y = |d: &Cuda<f32>, rows: usize, inputs: usize, outputs: usize| {
        let s = LinearSpec { rows, inputs, outputs, act: Unary::Identity, transposed: false };
        let t = Trial::new(d.clone());
        let (x, w) = (t.random(1, rows * inputs), t.random(2, inputs * outputs));
        let mut y = t.room(rows * outputs);
        t.d.linear(&s, Cuda::<f32>::view(&x), Cuda::<f32>::view(&w), None, Cuda::<f32>::view_mut(&mut y));
        t.downloaded(&y)
    };
    // 2²⁴ multiplications are not yet many.
    assert!(y(&d, 128, 1024, 128) == y(&plain, 128, 1024, 128));
    assert!(y(&d, 128, 1025, 128) == y(&tensor, 128, 1025, 128));
    assert!(y(&d, 128, 1025, 128) != y(&plain, 128, 1025, 128));
    assert!(y(&tensor.full_precision(), 128, 1025, 128) == y(&plain, 128, 1025, 128));
    assert!(y(&d.full_precision(), 128, 1025, 128) == y(&plain, 128, 1025, 128));
    // Of a few rows, most of a tile on tensor cores would be empty.
    assert!(y(&cuda().unwrap(), 16, 1025, 1025) == y(&plain, 16, 1025, 1025));
}
