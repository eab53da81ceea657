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
