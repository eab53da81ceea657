use nn_kernels::Packing;
use nn_kernels::ops::{LinearSpec, PackedSpec, Unary};

use crate::cases;
use crate::elementwise::UNARY;

/// One value, one row, tails of tiles, and sums that are cut into parts.
const SHAPES: [(usize, usize, usize); 8] =
    [(1, 1, 1), (1, 70, 5), (3, 5, 65), (17, 33, 66), (65, 40, 7), (130, 20, 130), (1100, 3, 2), (2, 530, 3)];

cases! {
    layers_and_their_gradients within 3e-6 |t| {
        for ((rows, inputs, outputs), transposed) in SHAPES.into_iter().flat_map(|s| [(s, false), (s, true)]) {
            for act in [Unary::Identity, Unary::Relu, Unary::Gelu] {
                let s = LinearSpec { rows, inputs, outputs, act, transposed };
                let (x, w, b) = (t.random(1, rows * inputs), t.random(2, inputs * outputs), t.random(3, outputs));
                let dy = t.random(4, rows * outputs);
                let (mut y, mut dx) = (t.room(rows * outputs), t.room(rows * inputs));
                let (mut dw, mut db) = (t.random(5, inputs * outputs), t.random(6, outputs));
                let mut scratch = t.room(s.vjp_scratch());
                t.d.linear(&s, D::view(&x), D::view(&w), Some(D::view(&b)), D::view_mut(&mut y));
                t.d.linear_vjp(
                    &s, D::view(&x), D::view(&w), Some(D::view(&b)), D::view(&y), D::view(&dy),
                    Some(D::view_mut(&mut dx)), Some(D::view_mut(&mut dw)), Some(D::view_mut(&mut db)),
                    D::view_mut(&mut scratch),
                );
                for (name, buffer) in [("y", &y), ("dx", &dx), ("dw", &dw), ("db", &db)] {
                    t.keep_elements(format!("{s:?} {name}"), buffer);
                }
            }
        }
    }

    every_activation within 1e-6 |t| {
        for act in UNARY {
            let s = LinearSpec { rows: 3, inputs: 4, outputs: 5, act, transposed: false };
            let (x, w, b, dy) = (t.random(1, 12), t.random(2, 20), t.random(3, 5), t.random(4, 15));
            let (mut y, mut dx, mut dw, mut db) = (t.room(15), t.room(12), t.random(5, 20), t.random(6, 5));
            let mut scratch = t.room(s.vjp_scratch());
            t.d.linear(&s, D::view(&x), D::view(&w), Some(D::view(&b)), D::view_mut(&mut y));
            t.d.linear_vjp(
                &s, D::view(&x), D::view(&w), Some(D::view(&b)), D::view(&y), D::view(&dy),
                Some(D::view_mut(&mut dx)), Some(D::view_mut(&mut dw)), Some(D::view_mut(&mut db)),
                D::view_mut(&mut scratch),
            );
            for (name, buffer) in [("y", &y), ("dx", &dx), ("dw", &dw), ("db", &db)] {
                t.keep_elements(format!("{act:?} {name}"), buffer);
            }
        }
    }

    products_are_added_and_biases_left_out within 1e-6 |t| {
        for (rows, inputs, outputs) in SHAPES {
            let s = LinearSpec { rows, inputs, outputs, act: Unary::Identity, transposed: false };
            let (x, w) = (t.random(1, rows * inputs), t.random(2, inputs * outputs));
            let mut y = t.random(3, rows * outputs);
            t.d.linear_add(&s, D::view(&x), D::view(&w), D::view_mut(&mut y));
            t.keep_elements(format!("{s:?} add"), &y);
            t.d.linear(&s, D::view(&x), D::view(&w), None, D::view_mut(&mut y));
            t.keep_elements(format!("{s:?}"), &y);
        }
    }

    packed_weights within 1e-6 |t| {
        for packing in [Packing::Bf16, Packing::F16, Packing::Q8_0] {
            for (rows, inputs, outputs) in [(1, 32, 1), (3, 64, 33), (17, 96, 70)] {
                let s = PackedSpec { rows, inputs, outputs, packing };
                let mut slots = vec![D::Wide::default(); s.slots()];
                packing.write(inputs, 0, &crate::random(1, inputs * outputs), &mut slots);
                let (w, x, b) = (t.upload(&slots), t.random(2, rows * inputs), t.random(3, outputs));
                let (mut y, mut dx) = (t.room(rows * outputs), t.room(rows * inputs));
                t.d.packed_linear(&s, D::view(&x), D::view(&w), Some(D::view(&b)), D::view_mut(&mut y));
                t.keep_elements(format!("{s:?}"), &y);
                t.d.packed_linear_vjp(&s, D::view(&w), D::view(&y), D::view_mut(&mut dx));
                t.keep_elements(format!("{s:?} dx"), &dx);
            }
        }
    }
}
