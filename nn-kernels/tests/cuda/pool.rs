use nn_kernels::ops::Pool2dSpec;

use crate::cases;

fn spec(
    planes: usize,
    input: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
) -> Pool2dSpec {
    let size = |a: usize| (input[a] + 2 * padding[a] - kernel[a]) / stride[a] + 1;
    Pool2dSpec { planes, input, output: [size(0), size(1)], kernel, stride, padding }
}

fn specs() -> [Pool2dSpec; 6] {
    [
        spec(1, [1, 1], [1, 1], [1, 1], [0, 0]),
        spec(3, [4, 6], [2, 2], [2, 2], [0, 0]),
        spec(2, [7, 5], [3, 3], [2, 1], [1, 1]),
        spec(2, [5, 9], [2, 3], [1, 2], [1, 0]),
        spec(4, [7, 7], [7, 7], [7, 7], [0, 0]),
        spec(1, [9, 1], [3, 1], [1, 1], [1, 0]),
    ]
}

cases! {
    maxima_means_and_their_gradients within 1e-6 |t| {
        for s in specs() {
            let (inputs, outputs) = (s.planes * s.input[0] * s.input[1], s.planes * s.output[0] * s.output[1]);
            let (x, dy) = (t.random(1, inputs), t.random(2, outputs));
            let (mut y, mut dx, mut argmax) = (t.room(outputs), t.room(inputs), t.upload(&vec![9_u32; outputs]));
            t.d.max_pool2d(&s, D::view(&x), D::view_mut(&mut y), Some(D::view_mut(&mut argmax)));
            t.keep_elements(format!("{s:?} max"), &y);
            t.keep::<u32>(format!("{s:?} argmax"), &argmax);
            t.d.max_pool2d_vjp(&s, D::view(&argmax), D::view(&dy), D::view_mut(&mut dx));
            t.keep_elements(format!("{s:?} max dx"), &dx);
            t.d.avg_pool2d(&s, D::view(&x), D::view_mut(&mut y));
            t.keep_elements(format!("{s:?} mean"), &y);
            t.d.avg_pool2d_vjp(&s, D::view(&dy), D::view_mut(&mut dx));
            t.keep_elements(format!("{s:?} mean dx"), &dx);
        }
    }

    the_first_of_equal_maxima_wins_and_nan_wins_over_all within 1e-6 |t| {
        let s = spec(1, [2, 2], [2, 2], [2, 2], [0, 0]);
        for x in [[1.0; 4], [0.0, 2.0, 2.0, 1.0], [f64::NEG_INFINITY; 4], [9.0, 1.0, f64::NAN, 3.0]] {
            let (x, mut y, mut argmax) = (t.values(&x), t.room(1), t.upload(&[9_u32]));
            t.d.max_pool2d(&s, D::view(&x), D::view_mut(&mut y), Some(D::view_mut(&mut argmax)));
            t.keep_elements("max", &y);
            t.keep::<u32>("argmax", &argmax);
        }
    }
}
