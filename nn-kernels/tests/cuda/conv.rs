use nn_kernels::ops::{Conv2dSpec, Unary};

use crate::cases;

fn spec(batch: usize, channels: [usize; 2], input: [usize; 2], kernel: [usize; 2]) -> Conv2dSpec {
    let output = [input[0] + 1 - kernel[0], input[1] + 1 - kernel[1]];
    let ([in_channels, out_channels], one) = (channels, [1, 1]);
    let (stride, padding, dilation) = (one, [0, 0], one);
    Conv2dSpec {
        batch,
        in_channels,
        out_channels,
        input,
        output,
        kernel,
        stride,
        padding,
        dilation,
        groups: 1,
        act: Unary::Identity,
    }
}

/// One value, strides, padding, dilation, groups, one row or column, and outputs that stop before the image does.
fn specs() -> Vec<Conv2dSpec> {
    let with = |s: Conv2dSpec, stride: [usize; 2], padding: [usize; 2], dilation: [usize; 2], groups| {
        let size =
            |a: usize| (s.input[a] + 2 * padding[a] - dilation[a] * (s.kernel[a] - 1) - 1) / stride[a] + 1;
        Conv2dSpec { stride, padding, dilation, groups, output: [size(0), size(1)], ..s }
    };
    vec![
        spec(1, [1, 1], [1, 1], [1, 1]),
        spec(1, [1, 9], [1, 1], [1, 1]),
        spec(3, [3, 10], [7, 5], [3, 3]),
        with(spec(2, [4, 12], [6, 9], [3, 2]), [2, 1], [1, 0], [1, 2], 1),
        with(spec(1, [8, 20], [5, 5], [3, 3]), [2, 2], [1, 1], [1, 1], 2),
        with(spec(2, [6, 6], [5, 8], [3, 3]), [1, 1], [1, 1], [1, 1], 6),
        with(spec(3, [2, 4], [9, 1], [4, 1]), [3, 1], [2, 0], [1, 1], 1),
        Conv2dSpec { output: [2, 3], ..spec(1, [2, 9], [8, 8], [2, 2]) },
        spec(3, [16, 70], [6, 5], [1, 1]),
        with(spec(4, [3, 8], [16, 16], [3, 3]), [1, 1], [1, 1], [1, 1], 1),
    ]
}

cases! {
    convolutions_and_their_gradients within 1e-6 |t| {
        for s in specs() {
            let x = t.random(1, s.batch * s.in_channels * s.input[0] * s.input[1]);
            let weights = s.out_channels * s.in_channels / s.groups * s.kernel[0] * s.kernel[1];
            let (w, b) = (t.random(2, weights), t.random(3, s.out_channels));
            let outputs = s.batch * s.out_channels * s.output[0] * s.output[1];
            let (mut y, dy) = (t.room(outputs), t.random(4, outputs));
            let mut dx = t.room(D::len(D::view(&x)));
            let (mut dw, mut db) = (t.random(5, weights), t.random(6, s.out_channels));
            t.d.conv2d(&s, D::view(&x), D::view(&w), Some(D::view(&b)), D::view_mut(&mut y), D::empty_mut());
            t.keep_elements(format!("{s:?}"), &y);
            t.d.conv2d(&s, D::view(&x), D::view(&w), None, D::view_mut(&mut y), D::empty_mut());
            t.d.conv2d_vjp(
                &s, D::view(&x), D::view(&w), None, D::empty(), D::view(&dy), Some(D::view_mut(&mut dx)),
                Some(D::view_mut(&mut dw)), Some(D::view_mut(&mut db)), D::empty_mut(),
            );
            for (name, buffer) in [("y", &y), ("dx", &dx), ("dw", &dw), ("db", &db)] {
                t.keep_elements(format!("{s:?} {name}"), buffer);
            }
        }
    }
    activations_of_convolutions_and_their_gradients within 1e-6 |t| {
        // By tiles, and an output at a time.
        for s in [
            spec(2, [3, 10], [7, 5], [3, 3]),
            Conv2dSpec { groups: 3, ..spec(2, [3, 3], [4, 5], [2, 2]) },
        ] {
            let (n, outputs) = (s.in_channels * s.input[0] * s.input[1], s.output[0] * s.output[1]);
            let weights = s.out_channels * s.in_channels / s.groups * s.kernel[0] * s.kernel[1];
            let (x, w, b) = (t.random(1, 2 * n), t.random(2, weights), t.random(3, s.out_channels));
            let dy = t.random(4, 2 * s.out_channels * outputs);
            for act in [Unary::Relu, Unary::Tanh, Unary::Silu, Unary::Affine { scale: 2.0, shift: 0.5 }] {
                let s = Conv2dSpec { act, ..s };
                let (mut y, mut dz) = (t.room(D::len(D::view(&dy))), t.room(s.vjp_scratch()));
                let mut dx = t.room(D::len(D::view(&x)));
                let (mut dw, mut db) = (t.random(5, weights), t.random(6, s.out_channels));
                let (x, w, b) = (D::view(&x), D::view(&w), Some(D::view(&b)));
                t.d.conv2d(&s, x, w, b, D::view_mut(&mut y), D::empty_mut());
                let known = if s.needs_y() { D::view(&y) } else { D::empty() };
                t.d.conv2d_vjp(
                    &s, x, w, b, known, D::view(&dy), Some(D::view_mut(&mut dx)),
                    Some(D::view_mut(&mut dw)), Some(D::view_mut(&mut db)), D::view_mut(&mut dz),
                );
                for (name, buffer) in [("y", &y), ("dx", &dx), ("dw", &dw), ("db", &db)] {
                    t.keep_elements(format!("{s:?} {name}"), buffer);
                }
            }
        }
    }
}
