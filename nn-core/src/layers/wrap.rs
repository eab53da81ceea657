//! Layers that do something to another, under its names.

use std::marker::PhantomData;

use nn_kernels::Device;

use crate::ctx::Ctx;
use crate::describe::Describe;
use crate::dims::Dims;
use crate::fault::{Fault, Rule};
use crate::glue::Given;
use crate::init::Initialiser;
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::region::State;
use crate::signature::{Kind, Sig, Signature};
use crate::tensors::TensorsMut;
use crate::tree::{Child, Node};
use crate::views::{Access, Views};
use crate::{Size, Text, layer};

const fn wrapped(name: &str, inner: &Text) -> Text {
    Text::new().str(name).str("<").text(inner).str(">")
}

/// M with its parameters frozen: they get no gradient, no moments and no decay. The gradient of its input is M's.
///
/// They lie with the [state](crate::Weights::state), so a checkpoint and a target network have them; names are M's. Layers with
/// running statistics still move those when they train.
///
/// ```
/// use nn::{Linear, Model, MSE, ReLU, Sgd, StopGradParams, sequential};
///
/// sequential! { Net: [2] -> [1] = base: StopGradParams<Linear<2, 4>>, ReLU, head: Linear<4, 1> }
///
/// let mut net = Model::<Net>::init(1, 1)?;
/// let (base, head) = (net.weights().get("base.weight")?, net.weights().get("head.weight")?);
/// net.train_step(&[0.5, -1.0], &[3.0], &MSE::default(), &mut Sgd::new(0.1))?;
/// assert_eq!(net.weights().get("base.weight")?, base);
/// assert_ne!(net.weights().get("head.weight")?, head);
/// # Ok::<(), nn::Error>(())
/// ```
#[layer(own_views)]
pub struct StopGradParams<M: Params>;

impl<M: Params> StopGradParamsOf<M> {
    const INNER: [Child; 1] = [Child::new("", M::TREE).frozen()];
}

impl<M: Params> Params for StopGradParamsOf<M> {
    const LABEL: Text = wrapped("StopGradParams", &M::LABEL);
    const TREE: &'static Node = &Node::wrapping(&Self::INNER);
}

impl<M: Views> Views for StopGradParamsOf<M> {
    type View<A: Access> = M::View<A>;
}

impl<X: Signature, M: Layer<X>> Layer<X> for StopGradParamsOf<M> {
    const RULE: Rule = M::RULE;
    const KEEPS_X: bool = M::KEEPS_X;
    const KEEPS_Y: bool = M::KEEPS_Y;
    const SAVED: Size = M::SAVED;
    const CACHE: Size = M::CACHE;
    const CAUSAL: bool = M::CAUSAL;
    const SCRATCH: Size = M::SCRATCH;
    const VJP_SCRATCH: Size = M::VJP_SCRATCH;
    const MACS: usize = M::MACS;
    const PLACES: u32 = M::PLACES;
}

impl<D: Device, X: Signature, M: Module<D, X>> Module<D, X> for StopGradParamsOf<M> {
    fn forward(cx: &mut Ctx<'_, D>, call: Forward<'_, D>) {
        let (params, state) = call.state.split_frozen(M::TREE.params());
        M::forward(cx, Forward { params, state, ..call });
    }

    fn vjp(cx: &mut Ctx<'_, D>, call: Vjp<'_, D>) {
        let (at, len) = (M::TREE.params(), M::TREE.state());
        let (params, state) = (call.state.slice(0, at).elements(), call.state.slice(at, len));
        M::vjp(cx, Vjp { params, state, dparams: None, ..call });
    }

    fn describe(out: &mut Describe) {
        M::describe(out);
    }
}

/// M, started by the initialiser INIT wherever nothing further in decides: `InitWith<Block<64>, Orthogonal>`. Names are M's.
///
/// ```
/// use nn::{InitWith, Linear, Model, Zero, sequential};
/// sequential! { Net: [2] -> [1] = Linear<2, 4>, InitWith<Linear<4, 1>, Zero> }
/// assert_eq!(Model::<Net>::init(1, 1)?.weights().get("1.weight")?, [0.0; 4]);
/// # Ok::<(), nn::Error>(())
/// ```
#[layer(own_views)]
pub struct InitWith<M: Params, INIT: Initialiser>;

impl<M: Params, INIT: Initialiser> InitWithOf<M, INIT> {
    const INNER: [Child; 1] = [Child::new("", M::TREE).init(INIT::INIT)];
}

impl<M: Params, INIT: Initialiser> Params for InitWithOf<M, INIT> {
    const LABEL: Text = M::LABEL;
    const TREE: &'static Node = &Node::wrapping(&Self::INNER);
}

impl<M: Views, INIT: Initialiser> Views for InitWithOf<M, INIT> {
    type View<A: Access> = M::View<A>;
}

impl<X: Signature, M: Layer<X>, INIT: Initialiser> Layer<X> for InitWithOf<M, INIT> {
    const RULE: Rule = M::RULE;
    const KEEPS_X: bool = M::KEEPS_X;
    const KEEPS_Y: bool = M::KEEPS_Y;
    const SAVED: Size = M::SAVED;
    const CACHE: Size = M::CACHE;
    const CAUSAL: bool = M::CAUSAL;
    const SCRATCH: Size = M::SCRATCH;
    const VJP_SCRATCH: Size = M::VJP_SCRATCH;
    const MACS: usize = M::MACS;
    const PLACES: u32 = M::PLACES;
}

impl<D: Device, X: Signature, M: Module<D, X>, INIT: Initialiser> Module<D, X> for InitWithOf<M, INIT> {
    fn forward(cx: &mut Ctx<'_, D>, call: Forward<'_, D>) {
        M::forward(cx, call);
    }

    fn vjp(cx: &mut Ctx<'_, D>, call: Vjp<'_, D>) {
        M::vjp(cx, call);
    }

    fn describe(out: &mut Describe) {
        M::describe(out);
    }
}

/// M, computed once more in the vjp instead of kept: of all that it would leave, only its input stays. A `Repeat<Remat<Block<D>>, N>`
/// needs the memory of one block, and N inputs, for a third more time. Chen et al. 2016, arXiv:1604.06174.
///
/// The second pass draws the same random numbers and leaves running statistics alone: the gradients are, bit for bit,
/// those of M. Names are M's.
///
/// ```
/// use nn::{Layer, LinearTanh, Remat, Repeat, Residual, T};
/// type Block = Residual<Repeat<LinearTanh<8, 8>, 4>>;
/// let plain = <Repeat<Block, 6> as Layer<T![8]>>::SAVED.at(32, 4);
/// let remat = <Repeat<Remat<Block>, 6> as Layer<T![8]>>::SAVED.at(32, 4);
/// assert!(remat < plain / 3);
/// ```
#[layer(own_views)]
pub struct Remat<M: Params>;

impl<M: Params> Params for RematOf<M> {
    const LABEL: Text = wrapped("Remat", &M::LABEL);
    const TREE: &'static Node = M::TREE;
}

impl<M: Views> Views for RematOf<M> {
    type View<A: Access> = M::View<A>;
}

impl<X: Signature, M: Layer<X>> Layer<X> for RematOf<M> {
    const RULE: Rule = M::RULE;
    const KEEPS_X: bool = true;
    const CACHE: Size = M::CACHE;
    const CAUSAL: bool = M::CAUSAL;
    const SCRATCH: Size = M::SCRATCH;
    const VJP_SCRATCH: Size = M::SAVED.plus(M::RULE.out.size()).plus(M::SCRATCH.max(M::VJP_SCRATCH));
    const MACS: usize = M::MACS;
    const PLACES: u32 = M::PLACES;
}

impl<D: Device, X: Signature, M: Module<D, X>> Module<D, X> for RematOf<M> {
    fn forward(cx: &mut Ctx<'_, D>, call: Forward<'_, D>) {
        if cx.keeps() {
            let batch = cx.batch;
            cx.apart(false, batch, |cx| M::forward(cx, call));
        } else {
            M::forward(cx, call);
        }
    }

    fn vjp(cx: &mut Ctx<'_, D>, call: Vjp<'_, D>) {
        let Vjp { params, state, x, y: _, saved: _, dy, dx, dparams, mut scratch } = call;
        let mut saved = scratch.part(cx, M::SAVED);
        let mut y =
            TensorsMut::carve_as::<Given<M, X>>(cx, &mut scratch.part(cx, const { M::RULE.out.size() }));
        let again = Forward {
            params: D::shorten(params),
            state: State::read_only(state.shorten()),
            x: x.shorten(),
            y: y.reborrow(),
            saved: saved.reborrow(),
            scratch: scratch.reborrow(),
        };
        let batch = cx.batch;
        cx.apart(true, batch, |cx| M::forward(cx, again));
        let (saved, y) = (saved.freeze(), y.freeze());
        M::vjp(cx, Vjp { params, state, x, y, saved, dy, dx, dparams, scratch });
    }

    fn describe(out: &mut Describe) {
        M::describe(out);
    }
}

/// M on each token of a sequence, or each element of any first axis: `[S, …]` → `[S, …′]`, where M takes `[…]` and gives `[…′]`. Each
/// is to M a sample of its own. For layers that take one shape only; those along the last axis, as
/// [`Linear`](crate::Linear), take sequences by themselves. Names are M's.
///
/// ```
/// use nn::{Conv2D, Layer, T, Tok};
/// assert_eq!(<Tok<Conv2D<3, 8, 3>> as Layer<T![..5, 3, 8, 8]>>::RULE.out.to_string(), "[..5, 8, 6, 6]");
/// let fault = <Tok<Conv2D<3, 8, 3>> as Layer<T![]>>::RULE.fault.unwrap();
/// assert_eq!(fault.to_string(), "shape mismatch: `Tok<Conv2D<3, 8, 3>>` takes [S, ..], but it is given []");
/// ```
#[layer(own_views)]
pub struct Tok<M: Params>;

impl<M: Params> Params for TokOf<M> {
    const LABEL: Text = wrapped("Tok", &M::LABEL);
    const TREE: &'static Node = M::TREE;
}

impl<M: Views> Views for TokOf<M> {
    type View<A: Access> = M::View<A>;
}

/// One element of the first axis of each tensor.
struct Each<X>(PhantomData<fn() -> X>);
impl<X: Signature> Signature for Each<X> {
    const SIG: Sig = each(&X::SIG);
}

/// Whether all tensors have the same first axis.
const fn alike(sig: &Sig) -> bool {
    let mut i = 0;
    while i < sig.len() {
        if sig.dims(i).rank() == 0 || !sig.dims(i).axis(0).same(&sig.dims(0).axis(0)) {
            return false;
        }
        i += 1;
    }
    !sig.is_empty()
}

const fn each(sig: &Sig) -> Sig {
    if sig.is_poison() || !alike(sig) {
        return Sig::POISON;
    }
    let mut out = Sig::NONE;
    let mut i = 0;
    while i < sig.len() {
        let all = sig.dims(i);
        let mut dims = Dims::new(&[]);
        let mut axis = 1;
        while axis < all.rank() {
            dims = dims.push(all.axis(axis));
            axis += 1;
        }
        out = out.join(&match sig.tensors()[i].kind {
            Kind::Real => Sig::real(dims),
            Kind::Ids => Sig::ids(dims),
        });
        i += 1;
    }
    out
}

const fn tok(label: &Text, given: &Sig, inner: &Rule) -> Rule {
    if given.is_poison() {
        return Rule::ok(Sig::POISON);
    }
    if !alike(given) {
        let takes = if given.len() > 1 { "tensors with one first axis" } else { "[S, ..]" };
        return Rule::mismatch(label, Text::new().str(takes), given, Sig::POISON);
    }
    if inner.out.is_poison() {
        return *inner;
    }
    let mut out = Sig::NONE;
    let mut i = 0;
    while i < inner.out.len() {
        let one = inner.out.dims(i);
        if one.rank() == crate::MAX_RANK {
            let text = Text::new().str("`").text(label).str("` would give a tensor of more than 6 axes");
            return Rule { out: Sig::POISON, fault: Some(Fault::new(text)) };
        }
        let mut dims = Dims::new(&[given.dims(0).axis(0)]);
        let mut axis = 0;
        while axis < one.rank() {
            dims = dims.push(one.axis(axis));
            axis += 1;
        }
        out = out.join(&match inner.out.tensors()[i].kind {
            Kind::Real => Sig::real(dims),
            Kind::Ids => Sig::ids(dims),
        });
        i += 1;
    }
    Rule { out, fault: inner.fault }
}

impl<M: Params> TokOf<M> {
    /// How many tokens a sample has at most.
    const fn most(sig: &Sig) -> usize {
        if alike(sig) && !sig.is_poison() { sig.dims(0).n(0) } else { 1 }
    }

    fn tokens<D: Device, X: Signature>(cx: &Ctx<'_, D>) -> usize {
        cx.batch * X::SIG.dims(0).axis_at(0, &cx.lengths)
    }
}

impl<X: Signature, M: Layer<Each<X>>> Layer<X> for TokOf<M> {
    const RULE: Rule = tok(&Self::LABEL, &X::SIG, &M::RULE);
    const KEEPS_X: bool = M::KEEPS_X;
    const KEEPS_Y: bool = M::KEEPS_Y;
    const SAVED: Size = M::SAVED.times(Self::most(&X::SIG));
    const SCRATCH: Size = M::SCRATCH.times(Self::most(&X::SIG));
    const VJP_SCRATCH: Size = M::VJP_SCRATCH.times(Self::most(&X::SIG));
    // Each token is M's alone, if it is tokens that run on, and not what is inside one.
    const CAUSAL: bool = !<Each<X>>::SIG.is_bounded() && !M::RULE.out.is_bounded();
    const MACS: usize = super::product(&[M::MACS, Self::most(&X::SIG)]);
    const PLACES: u32 = M::PLACES;
}

impl<D: Device, X: Signature, M: Module<D, Each<X>>> Module<D, X> for TokOf<M> {
    fn forward(cx: &mut Ctx<'_, D>, call: Forward<'_, D>) {
        let (keep, tokens) = (cx.keeps(), Self::tokens::<D, X>(cx));
        cx.apart(keep, tokens, |cx| M::forward(cx, call));
    }

    fn vjp(cx: &mut Ctx<'_, D>, call: Vjp<'_, D>) {
        let (keep, tokens) = (cx.keeps(), Self::tokens::<D, X>(cx));
        cx.apart(keep, tokens, |cx| M::vjp(cx, call));
    }

    fn describe(out: &mut Describe) {
        M::describe(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Options, Run, Values, gradients};
    use crate::*;

    sequential! {
        /// With everything that a second pass could get wrong.
        Noisy: [2, 3, 3] -> [2, 3, 3] =
            conv: Conv2D<2, 2, 3, 1, 1>, norm: BatchNorm2D<2>, Tanh, Dropout<0.5>, last: Conv2D<2, 2, 1>
    }

    fn numbers(n: usize, seed: i32) -> Vec<f64> {
        (0..n).map(|i| f64::from((i as i32 * 37 + seed * 11) % 101) / 50.0 - 1.0).collect()
    }

    /// Outputs, state and gradients of one step.
    fn step<M: Module<Cpu<f64>, T![2, 3, 3]>>() -> (Vec<f64>, Vec<f64>, Vec<f64>, Vec<f64>) {
        let mut run = Run::<M, T![2, 3, 3], Cpu<f64>>::new(&Cpu::default(), 3).mode(Mode::Train);
        let paths: Vec<_> =
            run.paths().map(|(path, dims)| (path.to_owned(), dims.iter().product())).collect();
        for (i, (path, n)) in paths.iter().enumerate() {
            run.set(path, &numbers(*n, i as i32 + 2));
        }
        let y = run.forward(&[Values::Real(numbers(54, 1))])[0].real().to_vec();
        let gradients = run.vjp(&[Values::Real(numbers(54, 9))]);
        let dx = gradients.dx[0].clone().unwrap();
        (y, run.get("norm.running_mean"), dx, run.gradient(&gradients, "conv.weight"))
    }

    #[test]
    fn computing_again_gives_the_same_bits_and_moves_statistics_once() {
        assert_eq!(step::<Remat<Noisy>>(), step::<Noisy>());
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        type X = T![2, 3, 3];
        type Wide = Repeat<Residual<LinearTanh<4, 4>>, 2>;
        for batch in [1, 3] {
            gradients::<Remat<Wide>, T![3, 4]>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<Remat<Remat<LinearSwish<4, 2>>>, T![4]>(batch, Mode::Train, 2).assert_within(1e-7);
            gradients::<StopGradParams<Wide>, T![3, 4]>(batch, Mode::Train, 3).assert_within(1e-7);
            gradients::<InitWith<Wide, Xavier>, T![3, 4]>(batch, Mode::Train, 4).assert_within(1e-7);
            gradients::<Tok<Conv2D<2, 3, 2>>, T![3, 2, 3, 3]>(batch, Mode::Train, 5).assert_within(1e-7);
            gradients::<Tok<Conv2D<2, 3, 2>>, T![..3, 2, 3, 3]>(batch, Mode::Train, 6).assert_within(1e-7);
            gradients::<Tok<Add>, (T![3, 4], T![3, 4])>(batch, Mode::Train, 7).assert_within(1e-7);
        }
        gradients::<Remat<Noisy>, X>(3, Mode::Train, 8).assert_within(1e-6);
        gradients::<StopGradParams<Noisy>, X>(3, Mode::Train, 9).assert_within(1e-6);
        let ids = Options { ids_below: 4, ..Options::new(2, Mode::Train, 10) };
        ids.check::<Remat<Embedding<4, 3>>, Ids<T![5]>>().assert_within(1e-7);
        ids.check::<Tok<Embedding<4, 3>>, Ids<T![5, 2]>>().assert_within(1e-7);
    }

    #[test]
    fn every_token_is_a_sample() {
        let x = numbers(2 * 3 * 18, 1);
        let run = |tok: bool| {
            let set = [numbers(3 * 2 * 4, 2), numbers(3, 3)];
            if tok {
                let mut run = Run::<Tok<Conv2D<2, 3, 2>>, T![3, 2, 3, 3], Cpu<f64>>::new(&Cpu::default(), 2);
                run.set("weight", &set[0]);
                run.set("bias", &set[1]);
                run.forward(&[Values::Real(x.clone())])[0].real().to_vec()
            } else {
                let mut run = Run::<Conv2D<2, 3, 2>, T![2, 3, 3], Cpu<f64>>::new(&Cpu::default(), 6);
                run.set("weight", &set[0]);
                run.set("bias", &set[1]);
                run.forward(&[Values::Real(x.clone())])[0].real().to_vec()
            }
        };
        assert_eq!(run(true), run(false));
    }

    sequential! {
        Frozen: [4] -> [2] =
            base: StopGradParams<Repeat<LinearTanh<4, 4>, 2>>, mid: InitWith<Linear<4, 4>, Zero>, head: Linear<4, 2>
    }

    #[test]
    fn what_is_frozen_is_saved_and_copied_but_not_optimised() {
        let mut model = Model::<Frozen, Cpu<f64>>::init(1, 2).unwrap();
        let paths: Vec<_> = model.weights().parameters().iter().map(|p| p.path.clone()).collect();
        assert_eq!(paths[..4], ["base.0.weight", "base.0.bias", "base.1.weight", "base.1.bias"]);
        // Drawn as if nobody had frozen it.
        assert!(model.weights().get("base.1.weight").unwrap().iter().any(|w| *w != 0.0));
        assert_eq!(model.weights().get("mid.weight").unwrap(), [0.0; 16]);
        assert!(model.gradient("base.0.weight").is_err());
        let frozen =
            |w: &Weights<Frozen, Cpu<f64>>| (w.get("base.0.weight").unwrap(), w.get("base.1.bias").unwrap());
        let (before, head) = (frozen(model.weights()), model.weights().get("head.weight").unwrap());
        let mut adam = AdamW::new(0.1);
        for _ in 0..3 {
            model.train_step(&numbers(8, 1), &[1, 0], &CrossEntropy::default(), &mut adam).unwrap();
        }
        assert_eq!(frozen(model.weights()), before);
        assert_ne!(model.weights().get("head.weight").unwrap(), head);
        assert_ne!(model.weights().get("mid.weight").unwrap(), [0.0; 16]);

        let mut other = Weights::<Frozen, Cpu<f64>>::new(Cpu::default(), 2).unwrap();
        other.copy_from(model.weights());
        assert_eq!(frozen(&other), before);

        let view = other.view();
        assert_eq!(view.base[1].weight.to_vec(), other.get("base.1.weight").unwrap());
        assert_eq!(view.mid.weight.to_vec(), other.get("mid.weight").unwrap());
        assert_eq!(view.head.weight.to_vec(), other.get("head.weight").unwrap());
    }

    #[module]
    struct Tuned {
        lora: LoRALinear<4, 4, 2, 1.0>,
        gain: Param<T![4], Zero>,
        #[init(Normal02)]
        shift: Param<T![4], Zero>,
    }
    #[module]
    impl Tuned {
        fn forward(&self, x: T![4]) -> T![4] {
            self.lora(x) * self.gain + self.shift
        }
    }
    sequential! {
        Outer: [4] -> [4] = a: InitWith<Tuned, Orthogonal>, b: InitWith<InitWith<Linear<4, 4>, Zero>, Orthogonal>
    }

    #[test]
    fn what_a_layer_decides_itself_only_its_own_initialiser_replaces() {
        for weights in [
            Weights::<Outer, Cpu<f64>>::new(Cpu::default(), 1).unwrap(),
            Weights::<Outer, Cpu<f64>>::init_with::<Xavier>(Cpu::default(), 1).unwrap(),
        ] {
            assert_eq!(weights.get("a.lora.lora_B.weight").unwrap(), [0.0; 8]);
            assert_eq!(weights.get("a.gain").unwrap(), [0.0; 4]);
            assert!(weights.get("a.shift").unwrap().iter().all(|v| *v != 0.0));
            // The base is orthogonal, frozen or not.
            let base = weights.get("a.lora.weight").unwrap();
            assert!((base[..4].iter().map(|v| v * v).sum::<f64>() - 1.0).abs() < 1e-12);
            assert_eq!(weights.get("b.weight").unwrap(), [0.0; 16], "the inner one wins");
        }
    }

    #[test]
    fn frozen_statistics_still_move() {
        let (y, mean, dx, _) = {
            let mut run = Run::<StopGradParams<Noisy>, T![2, 3, 3], Cpu<f64>>::new(&Cpu::default(), 3)
                .mode(Mode::Train);
            let paths: Vec<_> =
                run.paths().map(|(path, dims)| (path.to_owned(), dims.iter().product())).collect();
            for (i, (path, n)) in paths.iter().enumerate() {
                run.set(path, &numbers(*n, i as i32 + 2));
            }
            let y = run.forward(&[Values::Real(numbers(54, 1))])[0].real().to_vec();
            let gradients = run.vjp(&[Values::Real(numbers(54, 9))]);
            (y, run.get("norm.running_mean"), gradients.dx[0].clone().unwrap(), ())
        };
        let plain = step::<Noisy>();
        assert_eq!((y, mean, dx), (plain.0, plain.1, plain.2));
    }
}
