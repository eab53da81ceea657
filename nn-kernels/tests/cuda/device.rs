//! Memory, and how launches are submitted.

use nn_kernels::ops::{Elementwise, Unary};
use nn_kernels::{Cuda, Memory};

use crate::cuda;

type D = Cuda<f64>;

#[test]
fn values_come_back_and_operations_are_done_in_order() {
    let Some(d) = cuda::<f64>() else { return };
    let x: Vec<f64> = (0..1000).map(f64::from).collect();
    let (mut a, mut b) = (d.alloc(1000).unwrap(), d.alloc(1000).unwrap());
    let mut y = vec![f64::NAN; 1000];
    d.download(D::view(&a), &mut y);
    assert!(y.iter().all(|&y| y == 0.0), "memory is zeroed");
    d.upload(&x, D::view_mut(&mut a));
    d.unary(Unary::Affine { scale: 2.0, shift: 1.0 }, D::view(&a), D::view_mut(&mut b));
    d.add_assign(D::view(&a), D::view_mut(&mut b));
    d.download(D::view(&b), &mut y);
    assert!(y.iter().zip(&x).all(|(y, x)| *y == 3.0 * x + 1.0), "{:?}", &y[..5]);
    d.finish().unwrap();
}

/// A step that needs all that changes from one to the next: dropout, a layer, its gradient, and an optimiser.
struct Step<E: CudaReal> {
    d: Cuda<E>,
    buffers: [Buffer<E>; 8],
    squares: Buffer<f64>,
}

const LAYER: LinearSpec = LinearSpec { rows: 3, inputs: 5, outputs: 4, act: Unary::Relu, transposed: false };

impl<E: CudaReal> Step<E> {
    fn new(d: Cuda<E>) -> Self {
        let sizes = [15, 15, 20, 12, 12, 20, 20, 20];
        let buffers = std::array::from_fn(|i| {
            let values = crate::random(i as u64, sizes[i]);
            let values: Vec<E> = values.iter().map(|&x| E::from_f64(x.abs())).collect();
            let mut buffer = d.alloc(sizes[i]).unwrap();
            d.upload(&values, Cuda::<E>::view_mut(&mut buffer));
            buffer
        });
        let squares = d.alloc(1).unwrap();
        Self { d, buffers, squares }
    }

    fn run(&mut self, step: u64) {
        type D<E> = Cuda<E>;
        let Self { d, buffers: [x, dropped, w, y, dz, dw, m, v], squares } = self;
        let lr = 0.1 / step as f64;
        d.together(|| {
            let stream = Stream { seed: 7, place: 1, step, rank: 0 };
            d.dropout(stream, 0.3, D::<E>::view(x), D::<E>::view_mut(dropped));
            d.hash_dropout(stream, 0.3, D::<E>::view(dropped), D::<E>::view_mut(x));
            d.linear(&LAYER, D::<E>::view(x), D::<E>::view(w), None, D::<E>::view_mut(y));
            d.linear_vjp(
                &LAYER,
                D::<E>::view(x),
                D::<E>::view(w),
                None,
                D::<E>::view(y),
                D::<E>::view(y),
                Some(D::<E>::view_mut(dropped)),
                Some(D::<E>::view_mut(dw)),
                None,
                D::<E>::view_mut(dz),
            );
            d.sum_of_squares(D::<E>::view(dw), D::<E>::view_mut(squares));
            let s = AdamSpec {
                lr,
                beta1: 0.9,
                beta2: 0.99,
                eps: 1e-8,
                weight_decay: 0.1,
                decoupled: true,
                clip: Some(1.0),
                step,
            };
            let (m, v) = (D::<E>::view_mut(m), D::<E>::view_mut(v));
            d.adam(&s, D::<E>::view(squares), D::<E>::view_mut(w), D::<E>::view(dw), m, v);
            let s = SgdSpec {
                lr,
                momentum: 0.9,
                nesterov: true,
                weight_decay: 0.0,
                clip: None,
                first: step == 1,
            };
            d.sgd(&s, D::<E>::empty(), D::<E>::view_mut(dw), D::<E>::view(w), D::<E>::view_mut(m_of(dz)));
        });
        // New inputs, for what was dropped stays so.
        let values: Vec<E> = crate::random(step, 15).into_iter().map(E::from_f64).collect();
        d.upload(&values, D::<E>::view_mut(x));
    }

    fn results(&self) -> Vec<Vec<u64>> {
        let bits = |buffer| {
            let view = Cuda::<E>::view(buffer);
            let mut values = vec![E::ZERO; Cuda::<E>::len(view)];
            self.d.download(view, &mut values);
            values.into_iter().map(|x| x.to_f64().to_bits()).collect()
        };
        self.buffers.iter().map(bits).collect()
    }
}
