use super::gemm::{self, Mat, Start};
use super::size::size;
use super::{Real, kernels::Kernels};
use crate::ops::{LinearSpec, Unary};

/// The weight as a matrix `[inputs, outputs]`.
fn weight<'a, E>(s: &LinearSpec, w: &'a [E]) -> Mat<'a, E> {
    if s.transposed { Mat::new(w, s.outputs, s.inputs).t() } else { Mat::new(w, s.inputs, s.outputs) }
}

#[track_caller]
pub(crate) fn check(name: &str, s: &LinearSpec, x: usize, w: usize, y: usize, b: Option<usize>) {
    assert_eq!(x, size(name, &[s.rows, s.inputs]), "{name}: x is not rows × inputs");
    assert_eq!(w, size(name, &[s.inputs, s.outputs]), "{name}: the weight is not inputs × outputs");
    assert_eq!(y, size(name, &[s.rows, s.outputs]), "{name}: y or dy is not rows × outputs");
    assert_eq!(b.unwrap_or(s.outputs), s.outputs, "{name}: the bias is not outputs");
}

impl<E: Real> Kernels<E> {
    pub(crate) fn affine(&self, s: &LinearSpec, act: Unary, x: &[E], w: &[E], b: Option<&[E]>, y: &mut [E]) {
        let (x, w) = (Mat::new(x, s.rows, s.inputs), weight(s, w));
        // By the layer alone, and not by the batch, for the order of the sum is another.
        if s.outputs <= gemm::NARROW && !s.transposed {
            gemm::narrow_product(self.isa, x, w, b, act, y);
        } else {
            gemm::matrices(self.isa, self.forced.product, x, w, b.map_or(Start::Zero, Start::Row), act, y);
        }
    }
}

impl<E: Real> Kernels<E> {
    pub(crate) fn linear(&self, s: &LinearSpec, x: &[E], w: &[E], b: Option<&[E]>, y: &mut [E]) {
        check("linear", s, x.len(), w.len(), y.len(), b.map(<[E]>::len));
        self.affine(s, s.act, x, w, b, y);
    }

    pub(crate) fn linear_add(&self, s: &LinearSpec, x: &[E], w: &[E], y: &mut [E]) {
        check("linear_add", s, x.len(), w.len(), y.len(), None);
        assert_eq!(s.act, Unary::Identity, "linear_add: an activation");
        let x = Mat::new(x, s.rows, s.inputs);
        gemm::matrices(self.isa, self.forced.product, x, weight(s, w), Start::Add, Unary::Identity, y);
    }

    pub(crate) fn linear_vjp(
        &self,
        s: &LinearSpec,
        x: &[E],
        w: &[E],
        b: Option<&[E]>,
        y: &[E],
        dy: &[E],
        dx: Option<&mut [E]>,
        dw: Option<&mut [E]>,
        db: Option<&mut [E]>,
        scratch: &mut [E],
    ) {
        check("linear_vjp", s, x.len(), w.len(), dy.len(), b.map(<[E]>::len));
        // The gradient before the activation.
        let dz = match s.act {
            Unary::Identity => dy,
            act => {
                assert!(scratch.len() >= dy.len(), "linear_vjp: the scratch is not rows × outputs");
                let dz = &mut scratch[..dy.len()];
                if s.recomputes() {
                    self.affine(s, Unary::Identity, x, w, b, dz);
                    self.slope_in_place(act, dy, dz);
                } else {
                    self.unary_vjp(act, &[], y, dy, dz);
                }
                dz
            }
        };
        let z = Mat::new(dz, s.rows, s.outputs);
        if let Some(dx) = dx {
            assert_eq!(dx.len(), x.len(), "linear_vjp: dx and x differ in length");
            gemm::matrices(
                self.isa,
                self.forced.product,
                z,
                weight(s, w).t(),
                Start::Zero,
                Unary::Identity,
                dx,
            );
        }
        if let Some(dw) = dw {
            assert_eq!(dw.len(), w.len(), "linear_vjp: dw and w differ in length");
            let x = Mat::new(x, s.rows, s.inputs);
            let (a, b) = if s.transposed { (z.t(), x) } else { (x.t(), z) };
            gemm::matrices(self.isa, self.forced.product, a, b, Start::Add, Unary::Identity, dw);
        }
        if let Some(db) = db {
            assert_eq!(db.len(), s.outputs, "linear_vjp: db is not outputs");
            if s.outputs > 0 {
                self.add_column_sums(s.outputs, dz, db);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::forced::Forced;
    use crate::cpu::gemm::Way;
    use crate::cpu::testing::{assert_close, devices, gradient, on_threads, random, reals};

    const ACTS: [Unary; 4] =
        [Unary::Identity, Unary::Relu, Unary::Gelu, Unary::Affine { scale: 2.0, shift: 0.5 }];

    fn spec(rows: usize, inputs: usize, outputs: usize) -> LinearSpec {
        LinearSpec { rows, inputs, outputs, act: Unary::Identity, transposed: false }
    }

    /// The sum before the activation, in double precision and in the order of the formula.
    fn reference(s: &LinearSpec, x: &[f64], w: &[f64], b: &[f64]) -> Vec<f64> {
        let weight = |i, o| if s.transposed { w[o * s.inputs + i] } else { w[i * s.outputs + o] };
        (0..s.rows * s.outputs)
            .map(|at| {
                let (r, o) = (at / s.outputs, at % s.outputs);
                b[o] + (0..s.inputs).map(|i| x[r * s.inputs + i] * weight(i, o)).sum::<f64>()
            })
            .collect()
    }

    fn shapes() -> Vec<LinearSpec> {
        let mut shapes = Vec::new();
        for rows in [1, 2, 3, 5, 6, 7, 13, 33] {
            for (inputs, outputs) in [(1, 1), (8, 64), (3, 4), (64, 1), (5, 7), (33, 17), (17, 100), (300, 9)]
            {
                for transposed in [false, true] {
                    shapes.push(LinearSpec { transposed, ..spec(rows, inputs, outputs) });
                }
            }
        }
        for (rows, inputs, outputs) in [(40, 270, 130), (100, 300, 70), (1, 513, 300), (200, 20, 600)] {
            shapes.push(spec(rows, inputs, outputs));
            shapes.push(LinearSpec { transposed: true, ..spec(rows, inputs, outputs) });
        }
        shapes.truncate(if cfg!(miri) { 20 } else { shapes.len() });
        shapes
    }

    fn forward_matches<E: Real>(tolerance: f64) {
        for device in devices::<E>() {
            for s in shapes() {
                let (x, w, b) =
                    (random(1, s.rows * s.inputs), random(2, s.inputs * s.outputs), random(3, s.outputs));
                let expected = reference(&s, &x, &w, &b);
                let mut y = vec![E::from_f64(f64::NAN); expected.len()];
                device.linear(&s, &reals(&x), &reals(&w), Some(&reals(&b)), &mut y);
                assert_close(
                    &y,
                    &expected,
                    tolerance * (s.inputs as f64).sqrt(),
                    &format!("{device:?} {s:?}"),
                );
                device.linear(&s, &reals(&x), &reals(&w), None, &mut y);
                let expected = reference(&s, &x, &w, &vec![0.0; s.outputs]);
                assert_close(
                    &y,
                    &expected,
                    tolerance * (s.inputs as f64).sqrt(),
                    &format!("{device:?} {s:?}"),
                );
            }
        }
    }

    #[test]
    fn forward_is_the_sum_of_products() {
        forward_matches::<f32>(2e-7);
        forward_matches::<f64>(1e-15);
    }

    #[test]
    fn products_are_added_to_what_is_there() {
        for device in devices::<f64>() {
            for s in shapes() {
                let (x, w, y) = (
                    random(1, s.rows * s.inputs),
                    random(2, s.inputs * s.outputs),
                    random(3, s.rows * s.outputs),
                );
                let mut sum = y.clone();
                device.linear_add(&s, &x, &w, &mut sum);
                let product = reference(&s, &x, &w, &vec![0.0; s.outputs]);
                let expected: Vec<_> = y.iter().zip(product).map(|(y, p)| y + p).collect();
                assert_close(&sum, &expected, 1e-15 * (s.inputs as f64).sqrt(), &format!("{device:?} {s:?}"));
            }
        }
    }

    fn vjp_matches<E: Real>(tolerance: f64) {
        for device in devices::<E>() {
            for s in shapes() {
                let (x, w, b) =
                    (random(1, s.rows * s.inputs), random(2, s.inputs * s.outputs), random(3, s.outputs));
                let dy = random(4, s.rows * s.outputs);
                // dx = dy·Wᵀ and dW = xᵀ·dy are linear layers themselves.
                let zeros = vec![0.0; s.inputs.max(s.outputs)];
                let turned = LinearSpec { transposed: !s.transposed, ..spec(s.rows, s.outputs, s.inputs) };
                let dx_expected = reference(&turned, &dy, &w, &zeros);
                let dw_expected: Vec<f64> = (0..w.len())
                    .map(|at| {
                        let (i, o) = if s.transposed {
                            (at % s.inputs, at / s.inputs)
                        } else {
                            (at / s.outputs, at % s.outputs)
                        };
                        1.0 + (0..s.rows).map(|r| x[r * s.inputs + i] * dy[r * s.outputs + o]).sum::<f64>()
                    })
                    .collect();
                let db_expected: Vec<f64> = (0..s.outputs)
                    .map(|o| 1.0 + (0..s.rows).map(|r| dy[r * s.outputs + o]).sum::<f64>())
                    .collect();
                let mut dx = vec![E::from_f64(f64::NAN); x.len()];
                let (mut dw, mut db) = (vec![E::ONE; w.len()], vec![E::ONE; b.len()]);
                device.linear_vjp(
                    &s,
                    &reals(&x),
                    &reals(&w),
                    Some(&reals(&b)),
                    &[],
                    &reals(&dy),
                    Some(&mut dx),
                    Some(&mut dw),
                    Some(&mut db),
                    &mut [],
                );
                let what = format!("{device:?} {s:?}");
                assert_close(&dx, &dx_expected, tolerance * (s.outputs as f64).sqrt(), &what);
                assert_close(&dw, &dw_expected, tolerance * (s.rows as f64).sqrt(), &what);
                assert_close(&db, &db_expected, tolerance * (s.rows as f64).sqrt(), &what);
            }
        }
    }

    #[test]
    fn gradients_are_the_transposed_products_and_parameters_add() {
        vjp_matches::<f32>(2e-7);
        vjp_matches::<f64>(1e-15);
    }

    #[test]
    fn gradients_through_an_activation_match_finite_differences() {
        for device in devices::<f64>() {
            for act in ACTS {
                let s = LinearSpec { act, ..spec(3, 5, 4) };
                let (x, w, b, dy) = (random(1, 15), random(2, 20), random(3, 4), random(4, 12));
                let loss = |x: &[f64], w: &[f64], b: &[f64]| {
                    let mut y = vec![0.0; 12];
                    device.linear(&s, x, w, Some(b), &mut y);
                    y.iter().zip(&dy).map(|(y, g)| y * g).sum::<f64>()
                };
                let mut y = vec![0.0; 12];
                device.linear(&s, &x, &w, Some(&b), &mut y);
                let (mut dx, mut dw, mut db) = (vec![0.0; 15], vec![0.0; 20], vec![0.0; 4]);
                let mut scratch = vec![0.0; s.vjp_scratch()];
                let y = if s.needs_y() { &y[..] } else { &[] };
                let (gx, gw, gb) = (Some(&mut dx[..]), Some(&mut dw[..]), Some(&mut db[..]));
                device.linear_vjp(&s, &x, &w, Some(&b), y, &dy, gx, gw, gb, &mut scratch);
                assert_close(&dx, &gradient(&x, |x| loss(x, &w, &b)), 1e-8, "dx");
                assert_close(&dw, &gradient(&w, |w| loss(&x, w, &b)), 1e-8, "dw");
                assert_close(&db, &gradient(&b, |b| loss(&x, &w, b)), 1e-8, "db");
            }
        }
    }

    #[test]
    fn an_activation_in_the_product_is_the_one_after_it() {
        for device in devices::<f64>() {
            for act in ACTS {
                let s = LinearSpec { act, ..spec(33, 70, 50) };
                let (x, w, b) = (random(1, 33 * 70), random(2, 70 * 50), random(3, 50));
                let (mut fused, mut plain, mut after) = (vec![0.0; 1650], vec![0.0; 1650], vec![0.0; 1650]);
                device.linear(&s, &x, &w, Some(&b), &mut fused);
                device.linear(&LinearSpec { act: Unary::Identity, ..s }, &x, &w, Some(&b), &mut plain);
                device.unary(act, &plain, &mut after);
                assert_eq!(fused, after);
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_in_a_batch() {
        for device in devices::<f32>() {
            for (inputs, outputs) in [(8, 64), (64, 1), (70, 33), (300, 200), (1000, 17), (31, 49)] {
                for transposed in [false, true] {
                    let s = LinearSpec { transposed, act: Unary::Tanh, ..spec(100, inputs, outputs) };
                    let x: Vec<f32> = reals(&random(1, 100 * inputs));
                    let w: Vec<f32> = reals(&random(2, inputs * outputs));
                    let mut batch = vec![0.0; 100 * outputs];
                    device.linear(&s, &x, &w, None, &mut batch);
                    for rows in [1, 2, 3, 5, 7, 8, 31] {
                        let mut some = vec![0.0; rows * outputs];
                        let first = 100 - rows;
                        device.linear(&LinearSpec { rows, ..s }, &x[first * inputs..], &w, None, &mut some);
                        assert_eq!(
                            some,
                            batch[first * outputs..],
                            "{device:?} {rows} of {inputs} × {outputs}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        for device in devices::<f32>() {
            for transposed in [false, true] {
                let s = LinearSpec { transposed, act: Unary::Gelu, ..spec(130, 310, 250) };
                let n = 130 * 250;
                let x: Vec<f32> = reals(&random(1, 130 * 310));
                let w: Vec<f32> = reals(&random(2, 310 * 250));
                let dy: Vec<f32> = reals(&random(3, n));
                let run = |threads| {
                    on_threads(threads, || {
                        let (mut y, mut scratch, mut db) = (vec![0.0; n], vec![0.0; n], vec![0.5; 250]);
                        let (mut dx, mut dw) = (vec![0.0; x.len()], vec![0.5; w.len()]);
                        device.linear(&s, &x, &w, None, &mut y);
                        let (gx, gw, gb) = (Some(&mut dx[..]), Some(&mut dw[..]), Some(&mut db[..]));
                        device.linear_vjp(&s, &x, &w, None, &y, &dy, gx, gw, gb, &mut scratch);
                        [y, dx, dw, db]
                    })
                };
                assert!(run(1) == run(4), "{device:?}");
            }
        }
    }

    #[test]
    fn every_way_gives_the_same_bits() {
        for device in devices::<f32>() {
            for s in shapes() {
                let s = LinearSpec { act: Unary::Tanh, ..s };
                let x: Vec<f32> = reals(&random(1, s.rows * s.inputs));
                let w: Vec<f32> = reals(&random(2, s.inputs * s.outputs));
                let b: Vec<f32> = reals(&random(3, s.outputs));
                let dy: Vec<f32> = reals(&random(4, s.rows * s.outputs));
                let run = |product| {
                    let mut device = device;
                    device.forced = Forced { product, ..Forced::default() };
                    let (mut y, mut sum) = (vec![f32::NAN; dy.len()], dy.clone());
                    device.linear(&s, &x, &w, Some(&b), &mut y);
                    device.linear_add(&LinearSpec { act: Unary::Identity, ..s }, &x, &w, &mut sum);
                    let (mut dx, mut dw) = (vec![f32::NAN; x.len()], vec![0.5; w.len()]);
                    let mut scratch = vec![f32::NAN; dy.len()];
                    let (gx, gw) = (Some(&mut dx[..]), Some(&mut dw[..]));
                    device.linear_vjp(&s, &x, &w, Some(&b), &y, &dy, gx, gw, None, &mut scratch);
                    [y, sum, dx, dw]
                };
                let measured = run(None);
                for way in [Way::Direct, Way::Streamed, Way::Packed] {
                    assert!(run(Some(way)) == measured, "{device:?} {way:?} {s:?}");
                }
            }
        }
    }

    #[test]
    fn the_route_depends_on_the_layer_alone() {
        use crate::{Cpu, Isa, ops::Linear};
        let of = |isa, inputs, outputs| crate::cpu::gemm::route(isa, inputs, outputs, false);
        assert_eq!(of(Isa::Avx2, 64, 64), "direct");
        assert_eq!(of(Isa::Avx2, 784, 512), "direct, many rows packed");
        assert_eq!(of(Isa::Avx512, 784, 512), "streamed, many rows packed");
        assert_eq!(of(Isa::Avx2, 2048, 2048), "streamed, many rows packed");
        let route = |s: LinearSpec| Cpu::<f32>::linear_route(&s);
        assert_eq!(route(spec(1, 2048, 2048)), route(spec(9, 2048, 2048)));
        assert_eq!(route(spec(1, 784, 4)), "narrow");
        assert_eq!(route(LinearSpec { transposed: true, ..spec(1, 64, 64) }), "packed");
    }

    #[test]
    #[should_panic(expected = "x is not rows × inputs")]
    fn a_short_x_is_refused() {
        devices::<f32>()[0].linear(&spec(2, 2, 2), &[0.0; 3], &[0.0; 4], None, &mut [0.0; 4]);
    }

    #[test]
    #[should_panic(expected = "y or dy is not rows × outputs")]
    fn a_short_y_is_refused() {
        devices::<f32>()[0].linear(&spec(2, 2, 2), &[0.0; 4], &[0.0; 4], None, &mut [0.0; 3]);
    }
}
