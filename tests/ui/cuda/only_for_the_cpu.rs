//! A layer that computes on the host, in a model for a GPU.

use nn::kernels::cpu;
use nn::*;

/// The median of each row.
#[layer]
pub struct Median;

impl Params for Median {
    const LABEL: Text = Self::SHOWN;
}
impl<X: Signature> Layer<X> for Median {
    const RULE: Rule = Rule::ok(Sig::real(Dims::of([1])));
}
impl<E: cpu::Real, X: Signature> Module<Cpu<E>, X> for Median {
    fn forward(_: &mut Ctx<'_, Cpu<E>>, mut call: Forward<'_, Cpu<E>>) {
        for (y, x) in call.y.get(0).iter_mut().zip(call.x.get(0).chunks_exact(3)) {
            let mut x = [x[0], x[1], x[2]];
            x.sort_by(|a, b| a.to_f64().total_cmp(&b.to_f64()));
            *y = x[1];
        }
    }
    fn vjp(_: &mut Ctx<'_, Cpu<E>>, _: Vjp<'_, Cpu<E>>) {}
}

sequential! { Net: [4] -> [1] = fc: Linear<4, 3>, median: Median }

fn main() {
    let _ = Model::<Net>::init(1, 1);
    let _ = Model::<Net, Cuda<f32>>::init(1, 1);
}
