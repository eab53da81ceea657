//! Dense layers whose weights are stored in fewer bits than they are computed with.

use nn_kernels::ops::{LinearSpec, PackedSpec};
use nn_kernels::{Device, Packing, View, ViewMut};

use crate::ctx::Ctx;
use crate::dims::{Dim, Dims, Extent};
use crate::fault::Rule;
use crate::init::Init;
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::elementwise::Identity;
use crate::layers::linear::{LinearActOf, No, Switch};
use crate::layers::{along_last, product, rows_of};
use crate::region::{StateRef, slice, slice_mut};
use crate::signature::{S1, Signature};
use crate::tree::{Field, Leaf, Node, Role};
use crate::views::Views;
use crate::{Text, layer};

/// How the weights of a [`QuantizedLinear`] are stored: [`Bf16`], [`F16`] or [`Q8_0`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no format of weights",
    note = "formats are `Bf16`, `F16` and `Q8_0`"
)]
pub trait Format: MaybeFormat {
    /// How the kernels know it.
    const PACKING: Packing;
}

/// A [`Format`], or [`No`]: weights are then elements, and learn.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a format of weights nor `No`",
    note = "formats are `Bf16`, `F16` and `Q8_0`"
)]
pub trait MaybeFormat: 'static {
    /// How the kernels know the format, if there is one.
    const MAYBE: Option<Packing>;
    /// A dense layer with such weights.
    type Linear<IN: Dim, OUT: Dim, BIAS: Switch>: Views;
}

impl MaybeFormat for No {
    const MAYBE: Option<Packing> = None;
    type Linear<IN: Dim, OUT: Dim, BIAS: Switch> = LinearActOf<IN, OUT, Identity, BIAS>;
}

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl Format for $name {
            const PACKING: Packing = Packing::$name;
        }
        impl MaybeFormat for $name {
            const MAYBE: Option<Packing> = Some(Packing::$name);
            type Linear<IN: Dim, OUT: Dim, BIAS: Switch> = QuantizedLinearOf<Self, IN, OUT, BIAS>;
        }
    )*};
}
formats! {
    /// Weights in bfloat16: two bytes each, 8 bits of exponent as in single precision, and 7 of fraction.
    Bf16;
    /// Weights in half precision, IEEE 754's: two bytes each, 5 bits of exponent and 10 of fraction.
    F16;
    /// Weights in 8 bits: of 32 neighbouring inputs of an output, the largest weight is ±127 and the others are rounded to
    /// multiples of a 127th of it, the scale, which is in half precision. GGUF's format of this name: 34 bytes for 32.
    Q8_0;
}

/// y = x·Wᵀ, and + b if `BIAS` is [`Yes`](crate::Yes), for a weight that is stored in the format `F` and computed with in
/// full: `[.., IN]` → `[.., OUT]`. For inference: with few rows a product takes as long as its weights take to come from
/// memory, and these are a half of what a [`Linear`](crate::Linear)'s are, or about a quarter.
///
/// Parameters: `weight` `[OUT, IN]` and perhaps `bias` `[OUT]`, named as [`Linear`](crate::Linear)'s, which are
/// [frozen](crate::Role::Frozen): no gradient, no moments, but saved, loaded and copied as all others. Numbers are
/// rounded to those of the format where they are drawn, set or loaded, and are these from then on; so a checkpoint of a
/// trained `Linear` is loaded as it is, and one in bfloat16 is exactly what [`Bf16`] holds. They are not seen in
/// [views](crate::Weights::view). The gradient of x is dy·W, so that layers before it and beside it can be trained.
///
/// IN must be a multiple of 32 for [`Q8_0`]. In memory OUT is rounded up to a multiple of 32.
///
/// ```
/// use nn::{Bf16, Layer, Linear, Model, Q8_0, QuantizedLinear, T, Yes, sequential};
/// assert_eq!(<QuantizedLinear<Bf16, 784, 64> as Layer<T![5, 784]>>::RULE.out.to_string(), "[5, 64]");
/// let fault = <QuantizedLinear<Q8_0, 784, 64> as Layer<T![784]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "`QuantizedLinear<Q8_0, 784, 64>` can't exist: `Q8_0` stores inputs in blocks of 32, and 784 is no multiple of it"
/// );
///
/// sequential! { Trained: [64] -> [10] = out: Linear<64, 10> }
/// sequential! { Small: [64] -> [10] = out: QuantizedLinear<Q8_0, 64, 10, Yes> }
/// let mut trained = Model::<Trained>::init(1, 1)?;
/// let mut small = Model::<Small>::init(2, 1)?;
/// let folder = tempfile::tempdir().unwrap();
/// trained.save(folder.path().join("out.safetensors"))?;
/// small.load(folder.path().join("out.safetensors"))?;
/// let (x, y) = ([0.5; 64], trained.forward(&[0.5; 64])?.to_vec());
/// assert!(small.forward(&x)?.iter().zip(&y).all(|(a, b)| (a - b).abs() < 0.01));
/// # Ok::<(), nn::Error>(())
/// ```
#[layer(bias: Option<S1<OUT>>)]
pub struct QuantizedLinear<F: Format, const IN: usize, const OUT: usize, BIAS: Switch = No>;

impl<F: Format, IN: Dim, OUT: Dim, BIAS: Switch> QuantizedLinearOf<F, IN, OUT, BIAS> {
    const LEAVES: [Leaf; 2] = [
        Leaf::new("weight", Dims::new(&[OUT::EXTENT, IN::EXTENT]), Role::Frozen, Init::PyTorch(0))
            .packed(F::PACKING),
        Leaf::new("bias", Dims::new(&[OUT::EXTENT]), Role::Frozen, Init::PyTorch(IN::N)),
    ];

    const fn spec(rows: usize) -> PackedSpec {
        PackedSpec { rows, inputs: IN::N, outputs: OUT::N, packing: F::PACKING }
    }
}

impl<F: Format, IN: Dim, OUT: Dim, BIAS: Switch> Params for QuantizedLinearOf<F, IN, OUT, BIAS> {
    const LABEL: Text = {
        let text = Text::new().str("QuantizedLinear<").str(F::PACKING.name()).str(", ");
        let text = OUT::EXTENT.write(IN::EXTENT.write(text).str(", "));
        text.str(if BIAS::ON { ", Yes>" } else { ">" })
    };
    const TREE: &'static Node =
        if BIAS::ON { &Node::of(&Self::LEAVES) } else { &Node::of(Self::LEAVES.split_at(1).0) };
}

/// Whether such weights can have so many inputs.
pub(super) const fn check_format<F: MaybeFormat>(label: &Text, inputs: Extent) -> Option<Rule> {
    match F::MAYBE {
        Some(packing) if !inputs.is_poison() && !inputs.n.is_multiple_of(packing.group()) => {
            let text = Text::new().str("`").str(packing.name()).str("` stores inputs in blocks of ");
            let text = text.num(packing.group()).str(", and ").num(inputs.n).str(" is no multiple of it");
            Some(Rule::cannot_exist(label, text))
        }
        _ => None,
    }
}

impl<X: Signature, F: Format, IN: Dim, OUT: Dim, BIAS: Switch> Layer<X>
    for QuantizedLinearOf<F, IN, OUT, BIAS>
{
    const RULE: Rule = match Rule::check_positive(&Self::LABEL, &["IN", "OUT"], Self::ARGS) {
        Some(rule) => rule,
        None => match check_format::<F>(&Self::LABEL, IN::EXTENT) {
            Some(rule) => rule,
            None => along_last(&Self::LABEL, Self::ARGS, &X::SIG, IN::EXTENT, OUT::EXTENT),
        },
    };
    const MACS: usize = product(&[rows_of(&X::SIG.dims(0)), IN::N, OUT::N]);
    const CAUSAL: bool = true;
}

impl<D: Device, X: Signature, F: Format, IN: Dim, OUT: Dim, BIAS: Switch> Module<D, X>
    for QuantizedLinearOf<F, IN, OUT, BIAS>
{
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        let spec = Self::spec(cx.rows(&X::SIG.dims(0)));
        let state = call.state.read();
        let weight = state.slice(0, spec.slots()).values();
        let bias = BIAS::ON.then(|| state.slice(Self::TREE.leaf_offset(1), OUT::N).elements());
        cx.device().packed_linear(&spec, call.x.get(0), weight, bias, call.y.get(0));
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        let spec = Self::spec(cx.rows(&X::SIG.dims(0)));
        if let Some(dx) = call.dx.wanted(0) {
            let weight = call.state.slice(0, spec.slots()).values();
            cx.device().packed_linear_vjp(&spec, weight, call.dy.get(0), dx);
        }
    }

    fn route() -> &'static str {
        F::PACKING.name()
    }
}

/// A dense layer within another, with weights in a format or not: [`MaybeFormat::Linear`].
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// Where its parameters and its state lie.
    pub(super) field: Field,
    pub(super) node: &'static Node,
    pub(super) format: Option<Packing>,
    pub(super) bias: bool,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
}

impl Part {
    /// Part `i` of a layer.
    pub(super) fn of<F: MaybeFormat>(tree: &Node, i: usize, inputs: usize, outputs: usize) -> Self {
        let node = tree.children[i].node;
        let bias = node.leaves.len() > 1;
        Self { field: tree.field(i), node, format: F::MAYBE, bias, inputs, outputs }
    }

    fn bias<'a, D: Device>(&self, arena: View<'a, D>, at: usize) -> Option<View<'a, D>> {
        self.bias.then(|| slice::<D>(arena, at + self.node.leaf_offset(1), self.outputs))
    }

    fn plain(&self, rows: usize) -> LinearSpec {
        let (inputs, outputs, act) = (self.inputs, self.outputs, nn_kernels::ops::Unary::Identity);
        LinearSpec { rows, inputs, outputs, act, transposed: false }
    }

    /// Computes y.
    pub(super) fn forward<D: Device>(
        &self,
        device: &D,
        rows: usize,
        (params, state): (View<'_, D>, StateRef<'_, D>),
        x: View<'_, D>,
        y: ViewMut<'_, D>,
    ) {
        match self.format {
            None => {
                let at = self.field.params;
                let weight = slice::<D>(params, at, self.inputs * self.outputs);
                device.linear(&self.plain(rows), x, weight, self.bias::<D>(params, at), y);
            }
            Some(packing) => {
                let (inputs, outputs, at) = (self.inputs, self.outputs, self.field.state);
                let spec = PackedSpec { rows, inputs, outputs, packing };
                let weight = state.slice(at, spec.slots()).values();
                device.packed_linear(&spec, x, weight, self.bias::<D>(state.elements(), at), y);
            }
        }
    }

    /// Computes dx, and adds to the gradients of what learns.
    #[allow(clippy::too_many_arguments, reason = "the operands and gradients of one product")]
    pub(super) fn vjp<D: Device>(
        &self,
        device: &D,
        rows: usize,
        (params, state): (View<'_, D>, StateRef<'_, D>),
        x: View<'_, D>,
        dy: View<'_, D>,
        dx: Option<ViewMut<'_, D>>,
        dparams: &mut Option<ViewMut<'_, D>>,
    ) {
        let (inputs, outputs) = (self.inputs, self.outputs);
        if let Some(packing) = self.format {
            let spec = PackedSpec { rows, inputs, outputs, packing };
            if let Some(dx) = dx {
                let weight = state.slice(self.field.state, spec.slots()).values();
                device.packed_linear_vjp(&spec, weight, dy, dx);
            }
            return;
        }
        let weight = slice::<D>(params, self.field.params, inputs * outputs);
        let (dw, db) = match dparams {
            None => (None, None),
            Some(dparams) => {
                let own = slice_mut::<D>(D::reborrow(dparams), self.field.params, self.field.params_len);
                let (dw, db) = match self.bias {
                    true => D::split_mut(own, self.node.leaf_offset(1)),
                    false => (own, D::empty_mut()),
                };
                let db = self.bias.then(|| slice_mut::<D>(db, 0, outputs));
                (Some(slice_mut::<D>(dw, 0, inputs * outputs)), db)
            }
        };
        let none = D::empty_mut();
        device.linear_vjp(&self.plain(rows), x, weight, None, D::empty(), dy, dx, dw, db, none);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Run, Values, gradients};
    use crate::{
        Adam, Cpu, Declared, Error, Linear, LinearNoBias, LlamaBlock, MSE, Mode, Model, RMSNorm, Sci,
        SelfAttention, SwiGLUFeedForward, T, Weights, Yes, module, sequential,
    };

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            gradients::<QuantizedLinear<Bf16, 5, 3>, T![5]>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<QuantizedLinear<F16, 7, 33, Yes>, T![..4, 7]>(batch, Mode::Infer, 2)
                .assert_within(1e-7);
            gradients::<QuantizedLinear<Q8_0, 64, 5, Yes>, T![2, 3, 64]>(batch, Mode::Train, 3)
                .assert_within(1e-7);
            gradients::<SwiGLUFeedForward<32, 64, Q8_0>, T![3, 32]>(batch, Mode::Train, 4)
                .assert_within(1e-6);
            gradients::<SelfAttention<4, 6, 2, 1, 2, Yes, Sci<1, 2>, Sci<1, -2>, Yes, Yes, Bf16>, T![..4, 6]>(
                batch,
                Mode::Train,
                5,
            )
            .assert_within(1e-6);
            gradients::<Block<F16>, T![..3, 4]>(batch, Mode::Train, 6).assert_within(1e-6);
        }
    }

    type Block<F> = LlamaBlock<3, 4, 2, 1, 6, Sci<1, 4>, Sci<1, -5>, F>;

    /// The numbers that those of a checkpoint are rounded to.
    fn rounded(packing: Packing, inputs: usize, values: &[f64]) -> Vec<f64> {
        let mut slots = vec![0.0_f64; packing.slots(values.len() / inputs, inputs)];
        packing.write(inputs, 0, values, &mut slots);
        let mut back = vec![0.0; values.len()];
        packing.read(inputs, 0, &slots, &mut back);
        back
    }

    fn is_a_linear_with_rounded_weights<F: Format>() {
        let mut run = Run::<QuantizedLinear<F, 64, 40, Yes>, T![64], Cpu<f64>>::new(&Cpu::default(), 3);
        let mut plain = Run::<Linear<64, 40>, T![64], Cpu<f64>>::new(&Cpu::default(), 3);
        let weight = rounded(F::PACKING, 64, &plain.get("weight"));
        // It starts as one, too, but for the rounding.
        assert_eq!(run.get("weight"), weight);
        assert_ne!(run.get("weight"), plain.get("weight"));
        assert_eq!(run.get("bias"), plain.get("bias"));
        plain.set("weight", &weight);
        let x = Values::Real((0..192).map(|i| f64::from(i) * 0.3 % 1.7 - 0.8).collect());
        let (y, expected) = (run.forward(std::slice::from_ref(&x)), plain.forward(&[x]));
        let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-13);
        assert!(close(y[0].real(), expected[0].real()));
        let dy = Values::Real((0..120).map(|i| f64::from(i) * 0.7 % 1.3 - 0.6).collect());
        let (gradients, expected) = (run.vjp(std::slice::from_ref(&dy)), plain.vjp(&[dy]));
        assert!(close(gradients.dx[0].as_ref().unwrap(), expected.dx[0].as_ref().unwrap()));
        assert!(gradients.dparams.is_empty());
    }

    #[test]
    fn it_is_a_linear_whose_weights_are_rounded() {
        is_a_linear_with_rounded_weights::<Bf16>();
        is_a_linear_with_rounded_weights::<F16>();
        is_a_linear_with_rounded_weights::<Q8_0>();
    }

    sequential! {
        Trained: [3, 64] -> [3, 64] = block: LlamaBlock<3, 64, 2, 1, 96, 1e4, 1e-5, No>, norm: RMSNorm<64, 1e-5>
    }
    sequential! {
        InBf16: [3, 64] -> [3, 64] = block: LlamaBlock<3, 64, 2, 1, 96, 1e4, 1e-5, Bf16>, norm: RMSNorm<64, 1e-5>
    }
    sequential! {
        InF16: [3, 64] -> [3, 64] = block: LlamaBlock<3, 64, 2, 1, 96, 1e4, 1e-5, F16>, norm: RMSNorm<64, 1e-5>
    }
    sequential! {
        InQ8: [3, 64] -> [3, 64] = block: LlamaBlock<3, 64, 2, 1, 96, 1e4, 1e-5, Q8_0>, norm: RMSNorm<64, 1e-5>
    }

    fn numbers(n: usize) -> Vec<f32> {
        (0..n).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect()
    }

    fn a_trained_checkpoint_is_loaded<M>(packing: Packing, tolerance: f32)
    where
        M: Declared<In = T![3, 64], Out = T![3, 64]> + Module<Cpu<f32>, T![3, 64]>,
    {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("net.safetensors");
        let mut plain = Model::<Trained>::init(1, 1).unwrap();
        let (x, y) = (numbers(192), numbers(192));
        plain.train_step(&x, &y, &MSE::default(), &mut Adam::new(0.01)).unwrap();
        plain.save(&file).unwrap();
        let mut small = Model::<M>::init(2, 1).unwrap();
        let report = small.load(&file).unwrap();
        assert!(report.is_exact() && report.converted.is_empty(), "{report}");
        let paths = |p: &[crate::Parameter]| p.iter().map(|p| p.path.clone()).collect::<Vec<_>>();
        assert_eq!(paths(small.weights().parameters()), paths(plain.weights().parameters()));
        for p in plain.weights().parameters() {
            let values: Vec<f64> = plain.weights().get(&p.path).unwrap().into_iter().map(f64::from).collect();
            let expected = match p.dims.rank() {
                1 => values,
                _ => rounded(packing, p.dims.n(1), &values),
            };
            let found: Vec<f64> = small.weights().get(&p.path).unwrap().into_iter().map(f64::from).collect();
            assert_eq!(found, expected, "{}", p.path);
        }
        let (y, small_y) = (plain.forward(&x).unwrap(), small.forward(&x).unwrap());
        let error = y.iter().zip(small_y).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(error > 0.0 && error < tolerance, "{error}");

        // What it saves is what it holds: to the bit, when that is loaded again.
        small.save(&file).unwrap();
        let mut again = Model::<M>::init(3, 1).unwrap();
        again.load(&file).unwrap();
        let bits = |m: &Model<M>| m.weights().state().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert!(bits(&again) == bits(&small));
        let (plain, small) = (plain.summary(), small.summary());
        assert_eq!(plain.params, small.params);
        assert!(small.bytes < plain.bytes * 11 / 20, "{} of {}", small.bytes, plain.bytes);
        assert!(small.to_string().contains("KiB,") && !plain.to_string().contains("KiB,"), "{small}");
    }

    #[test]
    fn a_trained_checkpoint_is_loaded_under_the_same_names() {
        a_trained_checkpoint_is_loaded::<InBf16>(Packing::Bf16, 0.05);
        a_trained_checkpoint_is_loaded::<InF16>(Packing::F16, 0.01);
        a_trained_checkpoint_is_loaded::<InQ8>(Packing::Q8_0, 0.1);
    }

    #[test]
    fn what_a_bfloat16_file_holds_is_what_the_model_holds() {
        use safetensors::tensor::{Dtype, TensorView};
        // Every finite number of the kind.
        let bits: Vec<u16> = (0..=u16::MAX).filter(|b| b & 0x7F80 != 0x7F80).collect();
        let bytes: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
        sequential! { Flat: [510] -> [128] = out: QuantizedLinear<Bf16, 510, 128> }
        let view = TensorView::new(Dtype::BF16, vec![128, 510], &bytes).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("flat.safetensors");
        std::fs::write(&file, safetensors::serialize([("out.weight", view)], None).unwrap()).unwrap();
        let mut model = Model::<Flat>::init(1, 1).unwrap();
        model.load(&file).unwrap();
        let found = model.weights().get("out.weight").unwrap();
        assert!(found.iter().zip(&bits).all(|(v, b)| v.to_bits() == u32::from(*b) << 16));
    }

    /// A frozen matrix in 8 bits, and what is learnt beside and before it.
    #[module]
    struct Adapted {
        first: Linear<8, 32>,
        base: QuantizedLinear<Q8_0, 32, 8>,
        down: LinearNoBias<32, 2>,
        up: LinearNoBias<2, 8>,
    }
    #[module]
    impl Adapted {
        fn forward(&self, x: T![8]) -> T![8] {
            let h = self.first(x);
            self.base(h) + self.up(self.down(h))
        }
    }

    #[test]
    fn adapters_around_it_are_trained() {
        let mut model = Model::<Adapted>::init(1, 4).unwrap();
        let before = model.weights().get("base.weight").unwrap();
        let first = model.weights().get("first.weight").unwrap();
        let (x, y, mut adam) = (numbers(32), numbers(32), Adam::new(0.02));
        let losses: Vec<f64> =
            (0..40).map(|_| model.train_step(&x, &y, &MSE::default(), &mut adam).unwrap()).collect();
        assert!(losses[39] < losses[0] / 4.0, "{losses:?}");
        assert_eq!(model.weights().get("base.weight").unwrap(), before);
        assert_ne!(model.weights().get("first.weight").unwrap(), first);
        assert!(matches!(model.gradient("base.weight"), Err(Error::NotOptimised { .. })));
        gradients::<Adapted, T![8]>(3, Mode::Train, 2).assert_within(1e-7);
    }

    #[test]
    fn averages_are_of_the_numbers_and_not_of_the_bits() {
        type Kept = Weights<InQ8, Cpu<f32>>;
        let [mut a, mut b, mut c] = [1, 2, 1].map(|seed| Kept::new(Cpu::default(), seed).unwrap());
        let path = "block.attn.k_proj.weight";
        for weights in [&mut a, &mut c] {
            weights.set("norm.weight", &[3.0; 64]).unwrap();
        }
        let bits = |w: &Kept| w.state().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        // Nothing moves towards itself.
        a.move_towards(&c, 0.3);
        assert!(bits(&a) == bits(&c) && a.params() == c.params());
        a.move_towards(&b, 0.25);
        let all = [&c, &b, &a].map(|w| w.get(path).unwrap());
        let mixed: Vec<f64> = all[0]
            .iter()
            .zip(&all[1])
            .map(|(c, b)| f64::from(*c) + 0.25 * (f64::from(*b) - f64::from(*c)))
            .collect();
        let expected = rounded(Packing::Q8_0, 64, &mixed);
        assert!(all[2].iter().zip(&expected).all(|(a, e)| f64::from(*a) == *e));
        assert_eq!(a.get("norm.weight").unwrap(), [2.5; 64]);
        b.copy_from(&a);
        assert!(bits(&a) == bits(&b));
    }

    #[test]
    fn a_bias_beside_it_is_averaged_as_it_is() {
        sequential! { Two: [32] -> [3] = a: QuantizedLinear<Bf16, 32, 32, Yes>, b: QuantizedLinear<F16, 32, 3, Yes> }
        type Kept = Weights<Two, Cpu<f32>>;
        let [mut a, b] = [1, 2].map(|seed| Kept::new(Cpu::default(), seed).unwrap());
        for path in ["a.bias", "b.bias"] {
            let (own, other) = (a.get(path).unwrap(), b.get(path).unwrap());
            let mut copy = a.try_clone().unwrap();
            copy.move_towards(&b, 0.5);
            let close = |m: f32, (x, y): (f32, f32)| (m - f32::midpoint(x, y)).abs() < 1e-7;
            assert!(
                copy.get(path).unwrap().iter().zip(own.into_iter().zip(other)).all(|(m, p)| close(*m, p)),
                "{path}"
            );
        }
        a.copy_from(&b);
        assert_eq!(a.get("b.weight").unwrap(), b.get("b.weight").unwrap());
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        let fault = <QuantizedLinear<Q8_0, 40, 3> as Layer<T![40]>>::RULE.fault.unwrap();
        let expected = "`Q8_0` stores inputs in blocks of 32, and 40 is no multiple of it";
        assert_eq!(fault.to_string(), format!("`QuantizedLinear<Q8_0, 40, 3>` can't exist: {expected}"));
        let fault = <QuantizedLinear<Bf16, 40, 3, Yes> as Layer<T![3]>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "shape mismatch: `QuantizedLinear<Bf16, 40, 3, Yes>` takes [.., 40], but it is given [3]"
        );
        let fault = <SwiGLUFeedForward<32, 40, Q8_0> as Layer<T![3, 32]>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), format!("`SwiGLUFeedForward<32, 40>` can't exist: {expected}"));
        let fault =
            <SelfAttention<3, 40, 2, 1, 16, Yes, No, No, No, No, Q8_0> as Layer<T![3, 40]>>::RULE.fault;
        assert_eq!(
            fault.unwrap().to_string(),
            format!("`SelfAttention<3, 40, 2, 1, 16>` can't exist: {expected}")
        );
    }
}
