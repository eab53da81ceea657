//! Which calls the libraries get, how they are asked, and what they are asked for.

use std::process::Command;

use half::bf16;
use nn_kernels::cuda::{Buffer, CudaReal};
use nn_kernels::ops::{Conv, Conv2dSpec, Linear, LinearSpec, Unary};
use nn_kernels::{Cpu, Cuda, Device, Float, Memory};

use crate::{cuda, plain, random};

type D = Cuda<f32>;

/// Does something in a process of its own, where nobody else calls a library. Counts are of the emulator.
fn alone(test: &str, work: impl FnOnce()) {
    const CHILD: &str = "NN_TEST_CHILD";
    if std::env::var("NN_CUDA").as_deref() == Ok("gpu") || plain::<f32>().is_none() {
        return;
    }
    if std::env::var_os(CHILD).is_some() {
        return work();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args([test, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("1 passed"), "the test's name is another");
}

fn calls(functions: &[&str]) -> Vec<u64> {
    functions.iter().map(|function| nn_cuda_emulator::calls(function).expect("the emulator")).collect()
}

fn upload<D: Device>(d: &D, seed: u64, len: usize) -> D::Buffer<D::Elem> {
    let values: Vec<D::Elem> = random(seed, len).into_iter().map(D::Elem::from_f64).collect();
    let mut buffer = d.alloc(len).unwrap();
    d.upload(&values, D::view_mut(&mut buffer));
    buffer
}

fn download<D: Device>(d: &D, buffer: &D::Buffer<D::Elem>) -> Vec<f64> {
    let mut values = vec![D::Elem::default(); D::len(D::view(buffer))];
    d.download(D::view(buffer), &mut values);
    values.into_iter().map(Float::to_f64).collect()
}

const fn layer(rows: usize, inputs: usize, outputs: usize, act: Unary) -> LinearSpec {
    LinearSpec { rows, inputs, outputs, act, transposed: false }
}

/// y, dx and dw.
fn linear<D: Device>(d: &D, s: &LinearSpec) -> [Vec<f64>; 3] {
    let (x, w) = (upload(d, 1, s.rows * s.inputs), upload(d, 2, s.inputs * s.outputs));
    let (b, dy) = (upload(d, 3, s.outputs), upload(d, 4, s.rows * s.outputs));
    let (mut y, mut dx) = (upload(d, 5, s.rows * s.outputs), upload(d, 6, s.rows * s.inputs));
    let (mut dw, mut scratch) = (upload(d, 7, s.inputs * s.outputs), upload(d, 8, s.vjp_scratch()));
    d.linear(s, D::view(&x), D::view(&w), Some(D::view(&b)), D::view_mut(&mut y));
    d.linear_vjp(
        s,
        D::view(&x),
        D::view(&w),
        Some(D::view(&b)),
        D::view(&y),
        D::view(&dy),
        Some(D::view_mut(&mut dx)),
        Some(D::view_mut(&mut dw)),
        None,
        D::view_mut(&mut scratch),
    );
    [y, dx, dw].map(|buffer| download(d, &buffer))
}

/// A convolution with kernels of 3 by 3, whose outputs are as many as its inputs.
fn same(batch: usize, channels: [usize; 2], side: usize, groups: usize) -> Conv2dSpec {
    let ([in_channels, out_channels], size, one) = (channels, [side, side], [1, 1]);
    Conv2dSpec {
        batch,
        in_channels,
        out_channels,
        input: size,
        output: size,
        kernel: [3, 3],
        stride: one,
        padding: one,
        dilation: one,
        groups,
        act: Unary::Identity,
    }
}

/// y, dx and dw.
fn conv<D: Device>(d: &D, s: &Conv2dSpec) -> [Vec<f64>; 3] {
    let inputs = s.batch * s.in_channels * s.input[0] * s.input[1];
    let outputs = s.batch * s.out_channels * s.output[0] * s.output[1];
    let weights = s.out_channels * s.in_channels / s.groups * s.kernel[0] * s.kernel[1];
    let (x, w, b) = (upload(d, 1, inputs), upload(d, 2, weights), upload(d, 3, s.out_channels));
    let (dy, mut y) = (upload(d, 4, outputs), upload(d, 5, outputs));
    let (mut dx, mut dw) = (upload(d, 6, inputs), upload(d, 7, weights));
    let mut scratch = upload(d, 8, s.vjp_scratch());
    d.conv2d(s, D::view(&x), D::view(&w), Some(D::view(&b)), D::view_mut(&mut y), D::empty_mut());
    d.conv2d_vjp(
        s,
        D::view(&x),
        D::view(&w),
        Some(D::view(&b)),
        D::view(&y),
        D::view(&dy),
        Some(D::view_mut(&mut dx)),
        Some(D::view_mut(&mut dw)),
        None,
        D::view_mut(&mut scratch),
    );
    [y, dx, dw].map(|buffer| download(d, &buffer))
}

/// ‖found − expected‖ / ‖expected‖.
fn error(found: &[f64], expected: &[f64]) -> f64 {
    let difference: f64 = found.iter().zip(expected).map(|(f, e)| (f - e) * (f - e)).sum();
    (difference / expected.iter().map(|e| e * e).sum::<f64>()).sqrt()
}

const PRODUCTS: [&str; 2] = ["cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"];
const CONVOLUTIONS: [&str; 6] = [
    "cudnnGetConvolutionForwardAlgorithm_v7",
    "cudnnConvolutionForward",
    "cudnnGetConvolutionBackwardDataAlgorithm_v7",
    "cudnnConvolutionBackwardData",
    "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
    "cudnnConvolutionBackwardFilter",
];

#[test]
fn an_algorithm_is_asked_for_once() {
    alone("routes::an_algorithm_is_asked_for_once", || {
        let d = cuda::<f32>().unwrap();
        for _ in 0..3 {
            linear(&d, &layer(5, 7, 9, Unary::Identity));
        }
        assert_eq!(calls(&PRODUCTS), [3, 9]);
        // The activation is a kernel's, so that the product is the same; of another size it is another.
        linear(&d, &layer(5, 7, 9, Unary::Silu));
        assert_eq!(calls(&PRODUCTS)[0], 3);
        linear(&d, &layer(6, 7, 9, Unary::Identity));
        assert_eq!(calls(&PRODUCTS)[0], 6);
        for _ in 0..2 {
            conv(&d, &same(2, [4, 6], 5, 2));
        }
        assert_eq!(calls(&CONVOLUTIONS), [1, 2, 1, 2, 1, 2]);
        d.finish().unwrap();
    });
}

#[test]
fn operands_may_start_anywhere() {
    alone("routes::operands_may_start_anywhere", || {
        let d = cuda::<f32>().unwrap();
        let s = layer(2, 3, 4, Unary::Identity);
        let (x, w, mut y) = (upload(&d, 1, 7), upload(&d, 2, 13), upload(&d, 3, 8));
        let mut results = Vec::new();
        for _ in 0..2 {
            for at in [0, 1] {
                let (_, x) = D::split(D::view(&x), at);
                let (_, w) = D::split(D::view(&w), at);
                let ((x, _), (w, _)) = (D::split(x, 6), D::split(w, 12));
                d.linear(&s, x, w, None, D::view_mut(&mut y));
                results.push(download(&d, &y));
            }
        }
        d.finish().unwrap();
        assert!(results[0] == results[2] && results[1] == results[3] && results[0] != results[1]);
        assert_eq!(calls(&PRODUCTS), [2, 4], "how operands are aligned is part of what is asked");
        // The descriptors of cuDNN can't say it.
        let s = same(1, [1, 1], 3, 1);
        let (x, w, mut y) = (upload(&d, 1, 10), upload(&d, 2, 9), upload(&d, 3, 9));
        for (at, expected) in [(0, 1), (1, 1)] {
            let (x, _) = D::split(D::split(D::view(&x), at).1, 9);
            d.conv2d(&s, x, D::view(&w), None, D::view_mut(&mut y), D::empty_mut());
            d.finish().unwrap();
            assert_eq!(calls(&["cudnnConvolutionForward"]), [expected]);
        }
    });
}

#[test]
fn large_products_of_bfloat16_are_the_librarys() {
    alone("routes::large_products_of_bfloat16_are_the_librarys", || {
        let d = plain::<bf16>().unwrap();
        // No ReLU, whose gradient comes or goes with the sign of an output that is rounded.
        let s = layer(101, 101, 103, Unary::Identity);
        let found = linear(&d, &s);
        d.finish().unwrap();
        assert_eq!(calls(&PRODUCTS), [3, 3]);
        for (found, expected) in found.iter().zip(&linear(&Cpu::<f64>::default(), &s)) {
            // Operands were rounded as well.
            assert!(error(found, expected) < 0.02);
        }
        let kernels = linear(&d.forcing("linear=kernels").unwrap(), &s);
        for (found, expected) in found.iter().zip(&kernels) {
            assert!(error(found, expected) < 0.005);
        }
        conv(&d, &same(1, [15, 32], 16, 1));
        assert_eq!((calls(&PRODUCTS)[1], calls(&CONVOLUTIONS)[1]), (3, 0));
        assert_eq!(Cuda::<bf16>::linear_route(&s), "cublaslt");
    });
}

#[test]
fn large_calls_of_single_precision_are_the_libraries() {
    alone("routes::large_calls_of_single_precision_are_the_libraries", || {
        let d = plain::<f32>().unwrap();
        let (small, large) = (layer(100, 101, 103, Unary::Relu), layer(101, 101, 103, Unary::Relu));
        linear(&d, &small);
        linear(&plain::<f64>().unwrap(), &large);
        linear(&d.forcing("linear=small").unwrap(), &large);
        assert_eq!(calls(&PRODUCTS), [0, 0]);
        linear(&d, &large);
        assert_eq!(calls(&PRODUCTS), [3, 3]);
        let routes = [D::linear_route(&small), D::linear_route(&large), Cuda::<f64>::linear_route(&large)];
        assert_eq!(routes, ["tiles", "cublaslt", "tiles"]);

        let (small, large) = (same(1, [14, 32], 16, 1), same(1, [15, 32], 16, 1));
        let groups = same(1, [64, 64], 43, 64);
        conv(&d, &small);
        conv(&d, &groups);
        conv(&d.forcing("conv2d=gemm").unwrap(), &large);
        assert_eq!(calls(&CONVOLUTIONS), [0; 6]);
        conv(&d, &large);
        assert_eq!(calls(&CONVOLUTIONS), [1; 6]);
        let routes = [&small, &groups, &large].map(D::conv2d_route);
        assert_eq!(routes, ["implicit gemm", "direct", "cudnn"]);
        assert_eq!(Cuda::<f64>::conv2d_route(&large), "implicit gemm");
        d.finish().unwrap();
    });
}

#[test]
fn a_step_that_comes_again_is_a_graph_with_the_libraries_in_it() {
    alone("routes::a_step_that_comes_again_is_a_graph_with_the_libraries_in_it", || {
        let d = cuda::<f32>().unwrap();
        let s = layer(5, 7, 9, Unary::Tanh);
        let image = same(3, [2, 4], 5, 1);
        let (mut x, w, mut y) = (upload(&d, 1, 35), upload(&d, 2, 63), upload(&d, 3, 45));
        let (mut pixels, taps, mut to) = (upload(&d, 4, 150), upload(&d, 5, 72), upload(&d, 6, 300));
        let mut seen = Vec::new();
        for step in 0..5 {
            d.upload(&random(step, 35).iter().map(|x| *x as f32).collect::<Vec<_>>(), D::view_mut(&mut x));
            let values = random(step, 150).iter().map(|x| *x as f32).collect::<Vec<_>>();
            d.upload(&values, D::view_mut(&mut pixels));
            d.together(|| {
                d.linear(&s, D::view(&x), D::view(&w), None, D::view_mut(&mut y));
                d.conv2d(
                    &image,
                    D::view(&pixels),
                    D::view(&taps),
                    None,
                    D::view_mut(&mut to),
                    D::empty_mut(),
                );
            });
            let found = [download(&d, &y), download(&d, &to)];
            let eager = d.forcing("linear=library, conv2d=library").unwrap();
            eager.use_graphs(false);
            // The same, in buffers of its own.
            let (x, w, mut y) = (copied(&eager, &d, &x), copied(&eager, &d, &w), upload(&eager, 3, 45));
            let (pixels, taps) = (copied(&eager, &d, &pixels), copied(&eager, &d, &taps));
            let mut to = upload(&eager, 6, 300);
            eager.linear(&s, D::view(&x), D::view(&w), None, D::view_mut(&mut y));
            eager.conv2d(
                &image,
                D::view(&pixels),
                D::view(&taps),
                None,
                D::view_mut(&mut to),
                D::empty_mut(),
            );
            assert!(found == [download(&eager, &y), download(&eager, &to)], "step {step}");
            assert!(!seen.contains(&found), "what was uploaded makes a difference");
            seen.push(found);
        }
        d.finish().unwrap();
        assert_eq!(d.replays(), 3);
        // Once at the first step, once as the graph was made, and each time on the other device.
        assert_eq!(calls(&["cublasLtMatmul", "cudnnConvolutionForward"]), [7, 7]);
    });
}

fn copied(to: &D, from: &D, buffer: &Buffer<f32>) -> Buffer<f32> {
    let values: Vec<f32> = download(from, buffer).iter().map(|x| *x as f32).collect();
    let mut copy = to.alloc(values.len()).unwrap();
    to.upload(&values, D::view_mut(&mut copy));
    copy
}

#[test]
fn factors_of_large_calls_are_rounded_to_tf32_unless_full_precision_is_asked_for() {
    let Some(d) = cuda::<f32>() else { return };
    let cpu = Cpu::<f64>::default();
    let (s, image) = (layer(256, 257, 256, Unary::Identity), same(2, [32, 64], 24, 1));
    let expected = linear(&cpu, &s).into_iter().chain(conv(&cpu, &image));
    let found = |d: &D| linear(d, &s).into_iter().chain(conv(d, &image));
    let (rounded, full) = (found(&d), found(&d.clone().full_precision()));
    for ((expected, rounded), full) in expected.zip(rounded).zip(full) {
        let (rounded, full) = (error(&rounded, &expected), error(&full, &expected));
        assert!(full < 2e-6 && rounded < 1e-3, "{full:e} {rounded:e}");
        assert!(rounded > 1e-5, "tensor cores are used: {rounded:e}");
    }
    d.finish().unwrap();
}

#[test]
fn the_same_call_gives_the_same_bits() {
    let Some(d) = cuda::<f32>() else { return };
    for s in [layer(3, 700, 5, Unary::Gelu), layer(257, 300, 256, Unary::Gelu)] {
        assert!(linear(&d, &s) == linear(&d, &s), "{s:?}");
    }
    for s in [same(1, [3, 8], 9, 1), same(3, [32, 64], 20, 1)] {
        assert!(conv(&d, &s) == conv(&d, &s), "{s:?}");
    }
    d.finish().unwrap();
}

#[test]
fn a_relu_keeps_nan() {
    fn last<E: CudaReal>(d: &Cuda<E>) -> Vec<f64> {
        let s = layer(2, 1, 1, Unary::Relu);
        let (mut x, w, mut y) = (d.alloc(2).unwrap(), d.alloc(1).unwrap(), d.alloc(2).unwrap());
        d.upload(&[E::from_f64(f64::NAN), E::from_f64(1.0)], Cuda::<E>::view_mut(&mut x));
        let y_view = Cuda::<E>::view_mut(&mut y);
        d.linear(&s, Cuda::<E>::view(&x), Cuda::<E>::view(&w), None, y_view);
        download(d, &y)
    }
    let Some(d) = cuda::<f32>() else { return };
    let y = last(&d);
    assert!(y[0].is_nan() && y[1] == 0.0, "{y:?}");
}
