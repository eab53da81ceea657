use nn_kernels::ops::{Binary, GatedSpec, Unary};

use crate::cases;

pub(crate) const UNARY: [Unary; 12] = [
    Unary::Identity,
    Unary::Relu,
    Unary::Tanh,
    Unary::Sigmoid,
    Unary::Silu,
    Unary::Gelu,
    Unary::GeluTanh,
    Unary::Mish,
    Unary::Elu,
    Unary::Affine { scale: 0.7, shift: -0.3 },
    Unary::Divide { by: 3.0 },
    Unary::Reciprocal { c: 2.0 },
];

/// Values near 0 and far out, of both signs.
fn spread() -> Vec<f64> {
    let near = (1..200).map(|i| f64::from((f64::from(i) * 0.05 - 5.0) as f32 + 0.01));
    near.chain([1e-6, -1e-6, 30.0, -30.0, 80.0, 1e4, -1e4]).collect()
}

cases! {
    functions_and_their_derivatives within 1e-6 |t| {
        for f in UNARY {
            for x in [spread(), vec![0.25]] {
                let n = x.len();
                let (x, dy) = (t.values(&x), t.random(2, n));
                let (mut y, mut dx) = (t.room(n), t.room(n));
                t.d.unary(f, D::view(&x), D::view_mut(&mut y));
                t.d.unary_vjp(f, D::view(&x), D::view(&y), D::view(&dy), D::view_mut(&mut dx));
                t.keep_elements(format!("{f:?}"), &y);
                t.keep_elements(format!("{f:?} dx"), &dx);
            }
        }
    }

    what_is_not_a_number_stays_so_and_far_out_is_finite within 1e-6 |t| {
        for f in UNARY {
            let (x, mut y) = (t.values(&[f64::NAN, 1e4, -1e4, 1.0]), t.room(4));
            t.d.unary(f, D::view(&x), D::view_mut(&mut y));
            t.keep_elements(format!("{f:?}"), &y);
        }
    }

    two_operands_and_their_gradients within 1e-6 |t| {
        let all = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div];
        for (f, n) in all.into_iter().flat_map(|f| [(f, 1), (f, 300)]) {
            let b: Vec<f64> = crate::random(2, n).iter().map(|b| b + 2.0).collect();
            let (a, b, dy) = (t.random(1, n), t.values(&b), t.random(3, n));
            let (mut y, mut da, mut db) = (t.room(n), t.room(n), t.room(n));
            t.d.binary(f, D::view(&a), D::view(&b), D::view_mut(&mut y));
            t.d.binary_vjp(
                f, D::view(&a), D::view(&b), D::view(&dy), Some(D::view_mut(&mut da)), Some(D::view_mut(&mut db)),
            );
            for (name, buffer) in [("y", &y), ("da", &da), ("db", &db)] {
                t.keep_elements(format!("{f:?} {name}"), buffer);
            }
        }
    }

    gates within 1e-6 |t| {
        for (act, (rows, cols)) in UNARY.into_iter().flat_map(|act| [(act, (1, 37)), (act, (3, 5))]) {
            for gate_last in [false, true] {
                let s = GatedSpec { act, rows, cols, gate_last };
                let n = rows * cols;
                let (x, dy, mut y, mut dx) = (t.random(1, 2 * n), t.random(2, n), t.room(n), t.room(2 * n));
                t.d.gated(&s, D::view(&x), D::view_mut(&mut y));
                t.d.gated_vjp(&s, D::view(&x), D::view(&dy), D::view_mut(&mut dx));
                t.keep_elements(format!("{s:?}"), &y);
                t.keep_elements(format!("{s:?} dx"), &dx);
            }
        }
    }

    copies_fills_and_sums within 1e-6 |t| {
        for n in [1, 33, 1000] {
            let (x, mut y) = (t.random(1, n), t.random(2, n));
            t.d.add_assign(D::view(&x), D::view_mut(&mut y));
            t.keep_elements("add_assign", &y);
            for switch in [0.0, 1.0] {
                let switch = t.wide(&[switch]);
                t.d.copy_unless(D::view(&switch), D::view(&x), D::view_mut(&mut y));
                t.keep_elements("copy_unless", &y);
            }
            t.d.fill(0.1, D::view_mut(&mut y));
            t.keep_elements("fill", &y);
            t.d.copy(D::view(&x), D::view_mut(&mut y));
            t.keep_elements("copy", &y);
            assert!(t.d.all_finite(D::view(&x)));
            let bad = t.values(&[vec![1.0; n], vec![f64::INFINITY]].concat());
            assert!(!t.d.all_finite(D::view(&bad)));
        }
    }
}
