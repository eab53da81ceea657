//! What a model gives besides one tensor of numbers, and what a loss of one's own is given.

use nn::kernels::cpu;
use nn::*;

/// The index of the larger of two numbers: a layer that gives indices.
#[layer]
pub struct Larger;

impl Params for Larger {
    const LABEL: Text = Self::SHOWN;
}
impl<X: Signature> Layer<X> for Larger {
    const RULE: Rule = Rule::ok(Sig::ids(Dims::of([1])));
    const KEEPS_X: bool = false;
}
impl<E: cpu::Real, X: Signature> Module<Cpu<E>, X> for Larger {
    fn forward(_: &mut Ctx<'_, Cpu<E>>, mut call: Forward<'_, Cpu<E>>) {
        let x = call.x.get(0);
        for (y, x) in call.y.get_ids(0).iter_mut().zip(x.chunks_exact(2)) {
            *y = u32::from(x[1] > x[0]);
        }
    }
    fn vjp(_: &mut Ctx<'_, Cpu<E>>, mut call: Vjp<'_, Cpu<E>>) {
        if let Some(dx) = call.dx.wanted(0) {
            dx.fill(E::ZERO);
        }
    }
}

#[module]
struct Choice {
    fc: Linear<3, 2>,
    top: Larger,
}

#[module]
impl Choice {
    fn forward(&self, x: T![3]) -> (Ids<T![1]>, T![2]) {
        let scores = self.fc(x);
        (self.top(scores), scores)
    }
}

#[test]
fn gradients_are_right_beside_outputs_that_have_none() {
    let mut model = Model::<Choice>::init(1, 2).unwrap();
    model
        .accumulate_custom(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], |(top, scores), dy| {
            assert_eq!((top.len(), scores.len()), (2, 4));
            dy[1].copy_from_slice(&[1.0, 2.0, 10.0, 20.0]);
            0.0
        })
        .unwrap();
    assert_eq!(model.gradient("fc.bias").unwrap(), [11.0, 22.0]);
    assert_eq!(model.gradient("fc.weight").unwrap(), [41.0, 52.0, 63.0, 82.0, 104.0, 126.0]);
}

sequential! { Head: [3] -> [2] = fc: Linear<3, 2> }

#[test]
fn a_loss_of_ones_own_starts_from_a_zero_gradient() {
    let mut model = Model::<Head>::init(1, 1).unwrap();
    for _ in 0..3 {
        model.zero_gradients();
        model
            .accumulate_custom(&[1.0, 2.0, 3.0], |_, dy| {
                dy[0][0] += 1.0;
                0.0
            })
            .unwrap();
        assert_eq!(model.gradient("fc.bias").unwrap(), [1.0, 0.0]);
    }
}

sequential! { Turned: [..8, 4] -> [..8, 4] = RoPE<8, 1, 4> }

#[test]
fn sequences_of_one_call_do_not_run_into_each_other() {
    let mut model = Model::<Turned>::init(1, 2).unwrap();
    let x: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let one = model.forward(&x[..12]).unwrap().to_vec();
    let other = model.forward(&x[12..]).unwrap().to_vec();
    let as_one = model.forward(&x).unwrap().to_vec();
    model.set_sequences(2);
    let both = model.forward(&x).unwrap().to_vec();
    assert_eq!(both, [one, other].concat());
    assert_ne!(both, as_one, "positions go on where there is one sequence");
}
