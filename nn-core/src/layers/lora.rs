//! Dense layers that are fine-tuned by a matrix of low rank.

use nn_kernels::ops::{LinearSpec, Unary};
use nn_kernels::{Device, View};

use crate::ctx::Ctx;
use crate::dims::{Dim, Dims};
use crate::fault::Rule;
use crate::init::Init;
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::linear::{Switch, Yes};
use crate::layers::{along_last, product, rows_of};
use crate::real::Real;
use crate::region::{slice, slice_mut};
use crate::signature::{S1, S2, Sig, Signature};
use crate::tree::{Leaf, Node, Role};
use crate::{Size, Text, layer};

/// So many values for each row of the input.
const fn per_row(given: &Sig, width: usize) -> Size {
    Size::elements(rows_of(&given.dims(0)).saturating_mul(width))
}

/// A dense layer whose weight is frozen and to which a product of rank R is added:
/// y = x·Wᵀ + b + SCALE·(x·Aᵀ)·Bᵀ, `[.., IN]` → `[.., OUT]`. Without b if `BIAS` is [`No`](crate::No).
///
/// Parameters, named as in `peft`: `weight` W `[OUT, IN]` and `bias` b `[OUT]`, which are
/// [frozen](crate::Role::Frozen): no gradient, no moments, no decay, but saved, loaded and copied as all others;
/// `lora_A.weight` A `[R, IN]`, drawn from U(±1/√IN) (Kaiming with a = √5); `lora_B.weight` B `[OUT, R]`, zero at first, so
/// that the layer starts as x·Wᵀ + b. `peft`'s SCALE is alpha / R. Hu et al. 2021, arXiv:2106.09685.
///
/// ```
/// use nn::{Layer, LoRALinear, Params, Role, Sci, T, parameters_of};
/// type L = LoRALinear<64, 32, 4, Sci<2, 0>>;
/// assert_eq!(<L as Layer<T![5, 64]>>::RULE.out.to_string(), "[5, 32]");
/// let frozen: Vec<_> = parameters_of::<L>().into_iter().filter(|p| p.role == Role::Frozen).map(|p| p.path).collect();
/// assert_eq!(frozen, ["weight", "bias"]);
/// // Gradients and moments are of A and B alone.
/// assert_eq!(L::TREE.params(), 4 * 64 + 32 * 4);
/// let fault = <L as Layer<T![32]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `LoRALinear<64, 32, 4, 2>` takes [.., 64], but it is given [32]"
/// );
/// ```
#[layer(
    lora_a = "lora_A.weight": S2<R, IN>,
    lora_b = "lora_B.weight": S2<OUT, R>,
    weight: S2<OUT, IN>,
    bias: Option<S1<OUT>>
)]
pub struct LoRALinear<const IN: usize, const OUT: usize, const R: usize, SCALE: Real, BIAS: Switch = Yes>;

impl<IN: Dim, OUT: Dim, R: Dim, SCALE: Real, BIAS: Switch> LoRALinearOf<IN, OUT, R, SCALE, BIAS> {
    const LEAVES: [Leaf; 4] = [
        Leaf::new("lora_A.weight", Dims::new(&[R::EXTENT, IN::EXTENT]), Role::Weight, Init::PyTorch(0))
            .transposed(),
        // A model's own initialiser must not make it anything but zero.
        Leaf::new("lora_B.weight", Dims::new(&[OUT::EXTENT, R::EXTENT]), Role::Weight, Init::Constant(0.0))
            .transposed()
            .decided(),
        Leaf::new("weight", Dims::new(&[OUT::EXTENT, IN::EXTENT]), Role::Frozen, Init::PyTorch(0))
            .transposed(),
        Leaf::new("bias", Dims::new(&[OUT::EXTENT]), Role::Frozen, Init::PyTorch(IN::N)),
    ];

    const fn base(rows: usize) -> LinearSpec {
        LinearSpec { rows, inputs: IN::N, outputs: OUT::N, act: Unary::Identity, transposed: false }
    }

    /// SCALE·(x·Aᵀ).
    const fn down(rows: usize) -> LinearSpec {
        let act = Unary::Affine { scale: SCALE::VALUE, shift: 0.0 };
        LinearSpec { outputs: R::N, act, ..Self::base(rows) }
    }

    const fn up(rows: usize) -> LinearSpec {
        LinearSpec { inputs: R::N, ..Self::base(rows) }
    }

    fn weight<D: Device>(state: View<'_, D>) -> View<'_, D> {
        slice::<D>(state, const { Self::TREE.leaf_offset(2) }, IN::N * OUT::N)
    }

    fn factors<D: Device>(params: View<'_, D>) -> [View<'_, D>; 2] {
        [
            slice::<D>(params, const { Self::TREE.leaf_offset(0) }, IN::N * R::N),
            slice::<D>(params, const { Self::TREE.leaf_offset(1) }, R::N * OUT::N),
        ]
    }
}

impl<IN: Dim, OUT: Dim, R: Dim, SCALE: Real, BIAS: Switch> Params for LoRALinearOf<IN, OUT, R, SCALE, BIAS> {
    const LABEL: Text = {
        let text = IN::EXTENT.write(Text::new().str("LoRALinear<")).str(", ");
        let text = R::EXTENT.write(OUT::EXTENT.write(text).str(", ")).str(", ").real(SCALE::VALUE);
        text.str(if BIAS::ON { ">" } else { ", No>" })
    };
    const TREE: &'static Node =
        if BIAS::ON { &Node::of(&Self::LEAVES) } else { &Node::of(Self::LEAVES.split_at(3).0) };
}

impl<X: Signature, IN: Dim, OUT: Dim, R: Dim, SCALE: Real, BIAS: Switch> Layer<X>
    for LoRALinearOf<IN, OUT, R, SCALE, BIAS>
{
    const RULE: Rule = match Rule::check_positive(&Self::LABEL, &["IN", "OUT", "R"], Self::ARGS) {
        Some(rule) => rule,
        None => along_last(&Self::LABEL, Self::ARGS, &X::SIG, IN::EXTENT, OUT::EXTENT),
    };
    const KEEPS_X: bool = true;
    // SCALE·(x·Aᵀ).
    const SAVED: Size = per_row(&X::SIG, R::N);
    const SCRATCH: Size = per_row(&X::SIG, R::N);
    // The gradients after and before the scale, and one of x's two.
    const VJP_SCRATCH: Size = per_row(&X::SIG, R::N).times(2).plus(per_row(&X::SIG, IN::N));
    const MACS: usize = product(&[
        rows_of(&X::SIG.dims(0)),
        product(&[IN::N, OUT::N]) + product(&[R::N, IN::N]) + product(&[R::N, OUT::N]),
    ]);
    const CAUSAL: bool = true;
}

impl<D: Device, X: Signature, IN: Dim, OUT: Dim, R: Dim, SCALE: Real, BIAS: Switch> Module<D, X>
    for LoRALinearOf<IN, OUT, R, SCALE, BIAS>
{
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        let rows = cx.rows(const { &X::SIG.dims(0) });
        let [a, b] = Self::factors::<D>(call.params);
        let state = call.state.read().elements();
        let bias =
            BIAS::ON.then(|| slice::<D>(state, const { Node::of(&Self::LEAVES).leaf_offset(3) }, OUT::N));
        let (x, mut y) = (call.x.get(0), call.y.get(0));
        let down = if cx.keeps() { &mut call.saved } else { &mut call.scratch };
        let mut down = down.take(rows * R::N);
        cx.device().linear(&Self::down(rows), x, a, None, D::reborrow(&mut down));
        cx.device().linear(&Self::base(rows), x, Self::weight::<D>(state), bias, D::reborrow(&mut y));
        cx.device().linear_add(&Self::up(rows), D::read(&down), b, y);
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        let rows = cx.rows(const { &X::SIG.dims(0) });
        let [a, b] = Self::factors::<D>(call.params);
        let (da, db) = match call.dparams {
            Some(dparams) => {
                let (da, db) = D::split_mut(dparams, const { Self::TREE.leaf_offset(1) });
                (Some(slice_mut::<D>(da, 0, IN::N * R::N)), Some(slice_mut::<D>(db, 0, R::N * OUT::N)))
            }
            None => (None, None),
        };
        let (x, dy, device) = (call.x.get(0), call.dy.get(0), cx.device());
        let down = call.saved.take(rows * R::N);
        let (mut ddown, scaled) = (call.scratch.take(rows * R::N), call.scratch.take(rows * R::N));
        let mut dx = call.scratch.take(rows * IN::N);
        let to = Some(D::reborrow(&mut ddown));
        device.linear_vjp(&Self::up(rows), down, b, None, D::empty(), dy, to, db, None, D::empty_mut());
        let to = call.dx.wanted(0).is_some().then(|| D::reborrow(&mut dx));
        device.linear_vjp(&Self::down(rows), x, a, None, D::empty(), D::read(&ddown), to, da, None, scaled);
        if let Some(mut to) = call.dx.wanted(0) {
            let weight = Self::weight::<D>(call.state.elements());
            device.linear_vjp(
                &Self::base(rows),
                x,
                weight,
                None,
                D::empty(),
                dy,
                Some(D::reborrow(&mut to)),
                None,
                None,
                D::empty_mut(),
            );
            device.add_assign(D::read(&dx), to);
        }
    }

    fn route() -> &'static str {
        D::linear_route(&Self::base(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Run, Values, gradients};
    use crate::{
        AdamW, Cpu, Error, Linear, LinearTanh, MSE, Mode, Model, No, Sci, T, Weights, Xavier, sequential,
    };

    type Scaled = LoRALinear<4, 3, 2, Sci<15, -1>>;

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            gradients::<Scaled, T![4]>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<LoRALinear<3, 5, 1, Sci<-2, 0>, No>, T![..4, 3]>(batch, Mode::Infer, 2)
                .assert_within(1e-7);
            gradients::<LoRALinear<5, 1, 3, Sci<1, 0>>, T![2, 3, 5]>(batch, Mode::Train, 3)
                .assert_within(1e-7);
        }
    }

    #[test]
    fn it_starts_as_its_frozen_layer_whose_initial_values_are_those_of_a_linear() {
        let x: Vec<_> = (0..12).map(|i| f64::from(i) * 0.3 - 1.7).collect();
        let mut tuned = Run::<Scaled, T![4], Cpu<f64>>::new(&Cpu::default(), 3);
        let mut plain = Run::<Linear<4, 3>, T![4], Cpu<f64>>::new(&Cpu::default(), 3);
        for path in ["weight", "bias"] {
            assert_eq!(tuned.get(path), plain.get(path));
        }
        let input = [Values::Real(x)];
        let y = plain.forward_only(&input);
        assert_eq!(tuned.forward_only(&input), y);
        assert!(tuned.get("lora_A.weight").iter().all(|v| *v != 0.0 && v.abs() <= 0.5));
        tuned.set("lora_B.weight", &[1.0; 6]);
        assert_ne!(tuned.forward_only(&input), y);
    }

    sequential! {
        Tuned: [3] -> [2] = first: LoRALinear<3, 8, 2, 0.5>, mid: LinearTanh<8, 8>, last: LoRALinear<8, 2, 1, 2.0, No>
    }

    const FROZEN: [&str; 3] = ["first.weight", "first.bias", "last.weight"];
    const X: [f32; 6] = [0.1, -0.2, 0.3, 0.4, 0.5, -0.6];

    /// The bits of every parameter, by path.
    fn bits(weights: &Weights<Tuned, Cpu<f32>>) -> Vec<(String, Vec<u32>)> {
        let value = |path: &str| weights.get(path).unwrap().into_iter().map(f32::to_bits).collect();
        weights.parameters().iter().map(|p| (p.path.clone(), value(&p.path))).collect()
    }

    #[test]
    fn training_moves_all_but_what_is_frozen() {
        let mut model = Model::<Tuned>::init(1, 2).unwrap();
        let before = bits(model.weights());
        let mut adam = AdamW::new(0.1).weight_decay(0.1);
        for _ in 0..3 {
            model.train_step(&X, &[1.0_f32, 2.0, 3.0, 4.0], &MSE::default(), &mut adam).unwrap();
        }
        for ((path, before), (_, after)) in before.iter().zip(bits(model.weights())) {
            let frozen = FROZEN.contains(&path.as_str());
            assert_eq!(before.iter().zip(&after).all(|(a, b)| a == b), frozen, "{path}");
        }
        for path in FROZEN {
            assert!(matches!(model.gradient(path), Err(Error::NotOptimised { .. })), "{path}");
        }
        // Gradients, and with them moments, of A and B and of what lies between alone.
        let paths: Vec<_> = model.gradient_norms().into_iter().map(|(path, _)| path).collect();
        let expected = [
            "first.lora_A.weight",
            "first.lora_B.weight",
            "mid.weight",
            "mid.bias",
            "last.lora_A.weight",
            "last.lora_B.weight",
        ];
        assert_eq!(paths, expected);
    }

    #[test]
    fn what_is_frozen_is_saved_and_copied() {
        let model = Model::<Tuned>::init(1, 2).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tuned.safetensors");
        model.save(&file).unwrap();
        let mut other = Model::<Tuned>::init(2, 2).unwrap();
        assert!(bits(other.weights()) != bits(model.weights()));
        other.load(&file).unwrap();
        assert!(bits(other.weights()) == bits(model.weights()));

        let mut target = Weights::<Tuned, Cpu<f32>>::new(Cpu::default(), 3).unwrap();
        target.copy_from(model.weights());
        assert!(bits(&target) == bits(model.weights()));
        // Averages of equal values are these, however often they are taken.
        for _ in 0..10 {
            target.move_towards(other.weights(), 0.3);
        }
        assert!(bits(&target) == bits(model.weights()));
        let mut target = Weights::<Tuned, Cpu<f32>>::new(Cpu::default(), 3).unwrap();
        target.move_towards(model.weights(), 0.5);
        let half = target.get("first.weight").unwrap();
        assert!(half != model.weights().get("first.weight").unwrap());
    }

    #[test]
    fn a_models_initialiser_goes_for_the_frozen_weight_and_leaves_b_zero() {
        type Net = Weights<Tuned, Cpu<f32>>;
        let [own, xavier] =
            [Net::new(Cpu::default(), 1).unwrap(), Net::init_with::<Xavier>(Cpu::default(), 1).unwrap()];
        assert!(own.get("first.bias").unwrap().iter().all(|v| *v != 0.0));
        assert!(own.get("first.weight").unwrap().iter().all(|v| v.abs() <= 1.0 / 3f32.sqrt()));
        let most = xavier.get("first.weight").unwrap().iter().fold(0.0_f32, |most, v| most.max(v.abs()));
        assert!(most > 1.0 / 3f32.sqrt() && most <= (6.0 / 11.0_f32).sqrt(), "{most}");
        assert_eq!(xavier.get("first.bias").unwrap(), [0.0; 8]);
        assert_eq!(xavier.get("first.lora_B.weight").unwrap(), [0.0; 16]);
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        let fault = <LoRALinear<4, 3, 0, Sci<1, 0>> as Layer<T![4]>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "`LoRALinear<4, 3, 0, 1>` can't exist: R is 0");
        let fault = <LoRALinear<4, 3, 2, Sci<5, -1>, No> as Layer<T![3]>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "shape mismatch: `LoRALinear<4, 3, 2, 0.5, No>` takes [.., 4], but it is given [3]"
        );
    }
}
