//! Where gradients stop.

use nn_kernels::Device;

use crate::ctx::Ctx;
use crate::describe::Describe;
use crate::dims::{C, Dims};
use crate::fault::{Input, Rule, one_real};
use crate::init::Init;
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::signature::{S1, Sig, Signature};
use crate::tree::{Leaf, Node, Role};
use crate::{Text, layer};

const fn unchanged(label: &Text, given: &Sig) -> Rule {
    match one_real(label, &[], given) {
        Input::Tensor(dims) => Rule::ok(Sig::real(dims)),
        Input::Done(rule) => rule,
    }
}

/// y = x, whose gradient is zero: what is before it learns nothing from what is after it. Any shape. PyTorch's `detach`.
///
/// It has no [place](Layer::PLACES): with it or without, other layers draw the same random numbers, and a summary does not
/// show it.
///
/// ```
/// use nn::{Layer, StopGrad, T};
/// assert_eq!(<StopGrad as Layer<T![5, 8]>>::RULE.out.to_string(), "[5, 8]");
/// let fault = <StopGrad as Layer<nn::Ids<T![5]>>>::RULE.fault.unwrap();
/// assert_eq!(fault.to_string(), "shape mismatch: `StopGrad` takes one tensor of numbers, but it is given ids [5]");
/// ```
#[layer]
pub struct StopGrad;

impl Params for StopGrad {
    const LABEL: Text = Self::SHOWN;
}

impl<X: Signature> Layer<X> for StopGrad {
    const RULE: Rule = unchanged(&Self::LABEL, &X::SIG);
    const PLACES: u32 = 0;
    const CAUSAL: bool = true;
}

impl<D: Device, X: Signature> Module<D, X> for StopGrad {
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        cx.device().copy(call.x.get(0), call.y.get(0));
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        call.dx.zero(cx);
    }

    fn describe(_: &mut Describe) {}
}

/// y = x, with a gate for the gradient that is switched while the program runs. Open, as it is at first, the gradient
/// passes unchanged, and a model trains bit for bit as without the gate; shut, it is zero, as with [`StopGrad`]. Any shape.
///
/// State: `stop` `[1]`, zero at first. It is shut while that is more than ½:
///
/// ```
/// use nn::{CrossEntropy, GradGate, Linear, LinearTanh, Model, Sgd, sequential};
///
/// sequential! { Net: [3] -> [2] = body: LinearTanh<3, 4>, gate: GradGate, head: Linear<4, 2> }
///
/// let mut net = Model::<Net>::init(1, 1)?;
/// let (x, mut sgd) = ([1.0, -1.0, 0.5], Sgd::new(0.1));
/// net.weights_mut().set("gate.stop", &[1.0])?;
/// net.train_step(&x, &[1], &CrossEntropy::default(), &mut sgd)?;
/// assert_eq!(net.gradient("body.bias")?, [0.0; 4]);
/// net.weights_mut().set("gate.stop", &[0.0])?;
/// net.train_step(&x, &[1], &CrossEntropy::default(), &mut sgd)?;
/// assert_ne!(net.gradient("body.bias")?, [0.0; 4]);
/// # Ok::<(), nn::Error>(())
/// ```
///
/// Being state, the switch is saved in checkpoints and copied with the weights; where those are averaged
/// ([`move_towards`](crate::Weights::move_towards)) it moves as they do, and shuts once it has passed ½. The gate has no [place](Layer::PLACES): with
/// it or without, other layers draw the same random numbers, and a summary does not show it.
#[layer(stop: S1<C<1>>)]
pub struct GradGate;

impl GradGate {
    const LEAVES: [Leaf; 1] = [Leaf::new("stop", Dims::of([1]), Role::State, Init::Constant(0.0))];
}

impl Params for GradGate {
    const LABEL: Text = Self::SHOWN;
    const TREE: &'static Node = &Node::of(&Self::LEAVES);
}

impl<X: Signature> Layer<X> for GradGate {
    const RULE: Rule = unchanged(&Self::LABEL, &X::SIG);
    const PLACES: u32 = 0;
    const CAUSAL: bool = true;
}

impl<D: Device, X: Signature> Module<D, X> for GradGate {
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        cx.device().copy(call.x.get(0), call.y.get(0));
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        if let Some(dx) = call.dx.wanted(0) {
            cx.device().copy_unless(call.state.slice(0, 1).values(), call.dy.get(0), dx);
        }
    }

    fn describe(_: &mut Describe) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Run, Values, gradients};
    use crate::{
        Adam, Cpu, CrossEntropy, Dropout, Error, Linear, LinearTanh, Mode, Model, T, Weights, module,
        sequential,
    };

    #[test]
    fn an_open_gate_has_the_gradients_of_finite_differences() {
        for batch in [1, 3] {
            gradients::<GradGate, T![4]>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<GradGate, T![..4, 3]>(batch, Mode::Infer, 2).assert_within(1e-7);
        }
    }

    #[test]
    fn the_value_passes_and_the_gradient_stops() {
        fn run<M: Module<Cpu<f64>, T![2]>>(stop: Option<f64>) -> (Vec<f64>, Vec<f64>) {
            let mut run = Run::<M, T![2], Cpu<f64>>::new(&Cpu::default(), 2).mode(Mode::Train);
            if let Some(stop) = stop {
                run.set("stop", &[stop]);
            }
            let y = run.forward(&[Values::Real(vec![1.0, -2.0, 3.0, -4.0])])[0].real().to_vec();
            let gradients = run.vjp(&[Values::Real(vec![5.0, 6.0, 7.0, -8.0])]);
            (y, gradients.dx.into_iter().next().flatten().unwrap())
        }
        let (x, dy) = (vec![1.0, -2.0, 3.0, -4.0], vec![5.0, 6.0, 7.0, -8.0]);
        assert_eq!(run::<StopGrad>(None), (x.clone(), vec![0.0; 4]));
        assert_eq!(run::<GradGate>(None), (x.clone(), dy.clone()));
        assert_eq!(run::<GradGate>(Some(1.0)), (x.clone(), vec![0.0; 4]));
        assert_eq!(run::<GradGate>(Some(0.0)), (x, dy));
    }

    sequential! {
        Without: [4] -> [3] = a: LinearTanh<4, 16>, Dropout<0.3>, b: LinearTanh<16, 16>, Dropout<0.3>, c: Linear<16, 3>
    }
    sequential! {
        With: [4] -> [3] =
            a: LinearTanh<4, 16>, gate: GradGate, Dropout<0.3>, b: LinearTanh<16, 16>, Dropout<0.3>, c: Linear<16, 3>
    }

    /// Trains for some steps, with dropout, and gives all parameters.
    fn trained<M>(stop: Option<f32>) -> Vec<(String, Vec<f32>)>
    where
        M: crate::Declared<In = T![4], Out = T![3]> + Module<Cpu<f32>, T![4]>,
    {
        let mut model = Model::<M>::init(3, 5).unwrap();
        if let Some(stop) = stop {
            model.weights_mut().set("gate.stop", &[stop]).unwrap();
        }
        let x: Vec<f32> = (0..20).map(|i| (i * 37 % 11) as f32 / 5.0 - 1.0).collect();
        let mut adam = Adam::new(0.01);
        for _ in 0..4 {
            model.train_step(&x, &[0, 2, 1, 1, 0], &CrossEntropy::default(), &mut adam).unwrap();
        }
        let weights = model.weights();
        let paths = weights.parameters().iter().map(|p| p.path.clone()).filter(|path| path != "gate.stop");
        paths.map(|path| (path.clone(), weights.get(&path).unwrap())).collect()
    }

    #[test]
    fn an_open_gate_trains_bit_for_bit_as_none() {
        let without = trained::<Without>(None);
        assert!(trained::<With>(None) == without);
        let shut = trained::<With>(Some(1.0));
        let start = Model::<Without>::init(3, 1).unwrap();
        for (i, path) in ["a.weight", "a.bias", "b.weight", "b.bias"].into_iter().enumerate() {
            assert_eq!(shut[i].0, path);
            let moved = shut[i].1 != start.weights().get(path).unwrap();
            assert_eq!(moved, path.starts_with('b'), "{path}");
        }
    }

    #[test]
    fn the_switch_is_in_copies() {
        let mut weights = Weights::<With, Cpu<f32>>::new(Cpu::default(), 1).unwrap();
        let mut copy = weights.try_clone().unwrap();
        weights.set("gate.stop", &[1.0]).unwrap();
        copy.copy_from(&weights);
        assert_eq!(copy.get("gate.stop").unwrap(), [1.0]);
    }

    /// A value is used twice, and learns by one way only.
    #[module]
    struct Twice {
        a: Linear<2, 2>,
    }
    #[module]
    impl Twice {
        fn forward(&self, x: T![2]) -> T![2] {
            let h = self.a(x);
            h + StopGrad(h) * 3.0
        }
    }

    #[test]
    fn only_the_stopped_way_is_stopped() {
        let mut run = Run::<Twice, T![2], Cpu<f64>>::new(&Cpu::default(), 1);
        run.forward(&[Values::Real(vec![1.0, 2.0])]);
        let gradients = run.vjp(&[Values::Real(vec![1.0, 10.0])]);
        // Not four times as much.
        assert_eq!(run.gradient(&gradients, "a.bias"), [1.0, 10.0]);
    }

    sequential! { First: [2] -> [2] = gate: GradGate, head: Linear<2, 2> }

    #[test]
    fn what_is_not_finite_is_the_next_layers() {
        let mut model = Model::<First>::init(1, 1).unwrap();
        model.check_finite(true);
        assert!(model.forward(&[1.0, 2.0]).is_ok());
        let error = model.forward(&[f32::NAN, 1.0]).unwrap_err();
        assert!(matches!(&error, Error::NotFinite { path } if path == "head"), "{error}");
    }

    #[test]
    fn masks_after_it_are_those_without_it() {
        assert_eq!((<With as Layer<T![4]>>::PLACES, <Without as Layer<T![4]>>::PLACES), (5, 5));
    }
}
