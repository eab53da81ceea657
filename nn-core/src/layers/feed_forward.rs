//! The feed-forward networks of transformers.

use nn_kernels::Device;
use nn_kernels::ops::{GatedSpec, LinearSpec, Unary};

use crate::ctx::Ctx;
use crate::dims::Dim;
use crate::fault::{Rule, label};
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::elementwise::{Activation, GELU, GELUTanh, Identity, SiLU, Sigmoid};
use crate::layers::linear::{LinearActOf, No, Yes};
use crate::layers::quantized::{MaybeFormat, Part, check_format};
use crate::layers::{along_last, product, rows_of};
use crate::region::{slice, slice_mut};
use crate::signature::{Sig, Signature};
use crate::tree::{Child, Node};
use crate::{Size, Text, layer};

view_of_parts! {
    /// The parameters of a [`FeedForward`].
    FeedForwardView<D: Dim, FF: Dim> of FeedForwardOf<D, FF, ACT>[ACT: Activation] {
        /// Of the layer into the middle.
        0 fc1: LinearActOf<D, FF, Identity, Yes>,
        /// Of the layer out of it.
        1 fc2: LinearActOf<FF, D, Identity, Yes>,
    }
}

view_of_parts! {
    /// The parameters of a [`GatedFeedForward`].
    GatedFeedForwardView<D: Dim, H: Dim, F: MaybeFormat> of GatedFeedForwardOf<D, H, ACT, F>[ACT: Activation] {
        /// Of the layer whose output is activated.
        0 gate_proj: F::Linear<D, H, No>,
        /// Of the layer that is gated.
        1 up_proj: F::Linear<D, H, No>,
        /// Of the layer back.
        2 down_proj: F::Linear<H, D, No>,
    }
}

const fn plain(rows: usize, inputs: usize, outputs: usize) -> LinearSpec {
    LinearSpec { rows, inputs, outputs, act: Unary::Identity, transposed: false }
}

const fn larger(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

/// So many values for each row of the input.
const fn hidden(given: &Sig, width: usize) -> Size {
    Size::elements(rows_of(&given.dims(0)).saturating_mul(width))
}

/// y = W₂·ACT(W₁·x + b₁) + b₂ along the last axis, FF values wide in the middle: `[.., D]` keeps its shape.
///
/// Parameters: `fc1.weight` `[FF, D]`, `fc1.bias` `[FF]`, `fc2.weight` `[D, FF]`, `fc2.bias` `[D]`, each as in
/// [`Linear`](crate::Linear). Of what it computes on the way it keeps the FF values before the activation.
#[layer(own_views)]
pub struct FeedForward<const D: usize, const FF: usize, ACT: Activation>;

/// [`FeedForward`] with [`GELUTanh`], as in GPT-2: `[.., D]` keeps its shape.
///
/// Parameters: `fc1.weight` `[FF, D]`, `fc1.bias` `[FF]`, `fc2.weight` `[D, FF]`, `fc2.bias` `[D]`. Radford et al. 2019.
///
/// ```
/// use nn::{FeedForwardGELU, Layer, T};
/// assert_eq!(<FeedForwardGELU<8, 32> as Layer<T![5, 8]>>::RULE.out.to_string(), "[5, 8]");
/// let fault = <FeedForwardGELU<8, 32> as Layer<T![5, 32]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `FeedForwardGELU<8, 32>` takes [.., 8], but it is given [5, 32]"
/// );
/// ```
pub type FeedForwardGELU<const D: usize, const FF: usize> = FeedForward<D, FF, GELUTanh>;

impl<D: Dim, FF: Dim, ACT: Activation> FeedForwardOf<D, FF, ACT> {
    const CHILDREN: [Child; 2] = [
        Child::new("fc1", LinearActOf::<D, FF, Identity, Yes>::TREE),
        Child::new("fc2", LinearActOf::<FF, D, Identity, Yes>::TREE),
    ];
    /// Where the weight and the bias of a part start.
    const FC1: [usize; 2] = [0, LinearActOf::<D, FF, Identity, Yes>::TREE.leaf_offset(1)];
    const FC2: [usize; 2] = {
        let at = Self::TREE.field(1).params;
        [at, at + LinearActOf::<FF, D, Identity, Yes>::TREE.leaf_offset(1)]
    };
}

impl<D: Dim, FF: Dim, ACT: Activation> Params for FeedForwardOf<D, FF, ACT> {
    const LABEL: Text = match ACT::F {
        Unary::GeluTanh => label("FeedForwardGELU", Self::ARGS),
        _ => {
            let text = D::EXTENT.write(Text::new().str("FeedForward<")).str(", ");
            FF::EXTENT.write(text).str(", ").str(ACT::NAME).str(">")
        }
    };
    const TREE: &'static Node = &Node::new(&[], &Self::CHILDREN);
}

impl<X: Signature, D: Dim, FF: Dim, ACT: Activation> Layer<X> for FeedForwardOf<D, FF, ACT> {
    const RULE: Rule = match Rule::check_positive(&Self::LABEL, &["D", "FF"], Self::ARGS) {
        Some(rule) => rule,
        None => along_last(&Self::LABEL, Self::ARGS, &X::SIG, D::EXTENT, D::EXTENT).keeping(),
    };
    const KEEPS_X: bool = true;
    // Before the activation.
    const SAVED: Size = hidden(&X::SIG, FF::N);
    // After it.
    const SCRATCH: Size = hidden(&X::SIG, FF::N);
    // After it, and the gradients on both sides of it.
    const VJP_SCRATCH: Size = hidden(&X::SIG, FF::N).times(if ACT::F.needs_y() { 3 } else { 2 });
    const MACS: usize = product(&[rows_of(&X::SIG.dims(0)), 2, D::N, FF::N]);
    const CAUSAL: bool = true;
}

impl<V: Device, X: Signature, D: Dim, FF: Dim, ACT: Activation> Module<V, X> for FeedForwardOf<D, FF, ACT> {
    fn forward(cx: &mut Ctx<'_, V>, mut call: Forward<'_, V>) {
        let rows = cx.rows(const { &X::SIG.dims(0) });
        let [w1, w2] = [Self::FC1, Self::FC2].map(|at| slice::<V>(call.params, at[0], D::N * FF::N));
        let b1 = slice::<V>(call.params, Self::FC1[1], FF::N);
        let b2 = slice::<V>(call.params, Self::FC2[1], D::N);
        let mut after = call.scratch.take(rows * FF::N);
        let first = plain(rows, D::N, FF::N);
        if cx.keeps() {
            let mut before = call.saved.take(rows * FF::N);
            cx.device().linear(&first, call.x.get(0), w1, Some(b1), V::reborrow(&mut before));
            cx.device().unary(ACT::F, V::read(&before), V::reborrow(&mut after));
        } else {
            let first = LinearSpec { act: ACT::F, ..first };
            cx.device().linear(&first, call.x.get(0), w1, Some(b1), V::reborrow(&mut after));
        }
        cx.device().linear(&plain(rows, FF::N, D::N), V::read(&after), w2, Some(b2), call.y.get(0));
    }

    fn vjp(cx: &mut Ctx<'_, V>, mut call: Vjp<'_, V>) {
        let rows = cx.rows(const { &X::SIG.dims(0) });
        let n = rows * FF::N;
        let [w1, w2] = [Self::FC1, Self::FC2].map(|at| slice::<V>(call.params, at[0], D::N * FF::N));
        let [[dw1, db1], [dw2, db2]] = match call.dparams {
            Some(dparams) => {
                let (first, second) = V::split_mut(dparams, Self::FC2[0]);
                let (dw1, db1) = V::split_mut(first, Self::FC1[1]);
                let (dw2, db2) = V::split_mut(second, Self::FC2[1] - Self::FC2[0]);
                [[(dw1, D::N * FF::N), (db1, FF::N)], [(dw2, D::N * FF::N), (db2, D::N)]]
                    .map(|part| part.map(|(view, len)| Some(slice_mut::<V>(view, 0, len))))
            }
            None => [[None, None], [None, None]],
        };
        let before = call.saved.take(n);
        let (mut after, mut dafter) = (call.scratch.take(n), call.scratch.take(n));
        let device = cx.device();
        device.unary(ACT::F, before, V::reborrow(&mut after));
        device.linear_vjp(
            &plain(rows, FF::N, D::N),
            V::read(&after),
            w2,
            None,
            V::empty(),
            call.dy.get(0),
            Some(V::reborrow(&mut dafter)),
            dw2,
            db2,
            V::empty_mut(),
        );
        // Where the derivative is a function of what is before the activation, what is after it is done with.
        let dbefore = if ACT::F.needs_y() {
            let mut dbefore = call.scratch.take(n);
            device.unary_vjp(ACT::F, before, V::read(&after), V::read(&dafter), V::reborrow(&mut dbefore));
            dbefore
        } else {
            device.unary_vjp(ACT::F, before, V::empty(), V::read(&dafter), V::reborrow(&mut after));
            after
        };
        let dbefore = V::read(&dbefore);
        let (x, dx) = (call.x.get(0), call.dx.wanted(0));
        let first = plain(rows, D::N, FF::N);
        device.linear_vjp(&first, x, w1, None, V::empty(), dbefore, dx, dw1, db1, V::empty_mut());
    }

    fn route() -> &'static str {
        V::linear_route(&plain(1, D::N, FF::N))
    }
}

/// y = W_down·(ACT(W_gate·x) ⊙ W_up·x) along the last axis, H values wide in the middle and without biases: `[.., D]`
/// keeps its shape.
///
/// Parameters, named as in Hugging Face's Llama: `gate_proj.weight` `[H, D]`, `up_proj.weight` `[H, D]`,
/// `down_proj.weight` `[D, H]`, each as in [`LinearNoBias`](crate::LinearNoBias). [`SwiGLUFeedForward`],
/// [`GeGLUFeedForward`] and [`GLUFeedForward`] are the usual ones. Of what it computes on the way it keeps W_gate·x and
/// W_up·x. With a [`Format`](crate::Format) F the three are [`QuantizedLinear`](crate::QuantizedLinear)s, which don't learn.
#[layer(own_views)]
pub struct GatedFeedForward<const D: usize, const H: usize, ACT: Activation, F: MaybeFormat = No>;

/// y = W_down·(SiLU(W_gate·x) ⊙ W_up·x): the feed-forward network of Llama, Mistral and Qwen. `[.., D]` keeps its shape.
///
/// Parameters: `gate_proj.weight` `[H, D]`, `up_proj.weight` `[H, D]`, `down_proj.weight` `[D, H]`. Shazeer 2020,
/// arXiv:2002.05202.
///
/// ```
/// use nn::{Layer, SwiGLUFeedForward, T};
/// assert_eq!(<SwiGLUFeedForward<8, 24> as Layer<T![..5, 8]>>::RULE.out.to_string(), "[..5, 8]");
/// let fault = <SwiGLUFeedForward<8, 24> as Layer<T![24]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `SwiGLUFeedForward<8, 24>` takes [.., 8], but it is given [24]"
/// );
/// ```
pub type SwiGLUFeedForward<const D: usize, const H: usize, F = No> = GatedFeedForward<D, H, SiLU, F>;
/// [`GatedFeedForward`] with the exact [`GELU`]. Gemma has [`GELUTanh`]: `GatedFeedForward<D, H, GELUTanh>`.
pub type GeGLUFeedForward<const D: usize, const H: usize> = GatedFeedForward<D, H, GELU>;
/// [`GatedFeedForward`] with [`Sigmoid`].
pub type GLUFeedForward<const D: usize, const H: usize> = GatedFeedForward<D, H, Sigmoid>;

impl<D: Dim, H: Dim, ACT: Activation, F: MaybeFormat> GatedFeedForwardOf<D, H, ACT, F> {
    const CHILDREN: [Child; 3] = [
        Child::new("gate_proj", F::Linear::<D, H, No>::TREE),
        Child::new("up_proj", F::Linear::<D, H, No>::TREE),
        Child::new("down_proj", F::Linear::<H, D, No>::TREE),
    ];

    fn parts() -> [Part; 3] {
        [0, 1, 2].map(|i| match i {
            2 => Part::of::<F>(Self::TREE, i, H::N, D::N),
            _ => Part::of::<F>(Self::TREE, i, D::N, H::N),
        })
    }

    /// The two halves lie behind one another.
    const fn spec(rows: usize) -> GatedSpec {
        GatedSpec { act: ACT::F, rows: 1, cols: rows * H::N, gate_last: false }
    }
}

impl<D: Dim, H: Dim, ACT: Activation, F: MaybeFormat> Params for GatedFeedForwardOf<D, H, ACT, F> {
    const LABEL: Text = match ACT::F {
        Unary::Silu => label("SwiGLUFeedForward", Self::ARGS),
        Unary::Gelu => label("GeGLUFeedForward", Self::ARGS),
        Unary::Sigmoid => label("GLUFeedForward", Self::ARGS),
        _ => {
            let text = D::EXTENT.write(Text::new().str("GatedFeedForward<")).str(", ");
            H::EXTENT.write(text).str(", ").str(ACT::NAME).str(">")
        }
    };
    const TREE: &'static Node = &Node::new(&[], &Self::CHILDREN);
}

impl<X: Signature, D: Dim, H: Dim, ACT: Activation, F: MaybeFormat> Layer<X>
    for GatedFeedForwardOf<D, H, ACT, F>
{
    const RULE: Rule = match Rule::check_positive(&Self::LABEL, &["D", "H"], Self::ARGS) {
        Some(rule) => rule,
        None => {
            match (check_format::<F>(&Self::LABEL, D::EXTENT), check_format::<F>(&Self::LABEL, H::EXTENT)) {
                (Some(rule), _) | (None, Some(rule)) => rule,
                (None, None) => along_last(&Self::LABEL, Self::ARGS, &X::SIG, D::EXTENT, D::EXTENT).keeping(),
            }
        }
    };
    const KEEPS_X: bool = true;
    const SAVED: Size = hidden(&X::SIG, H::N.saturating_mul(2));
    // The product of the halves; and the halves, where they are not kept.
    const SCRATCH: Size = hidden(&X::SIG, H::N).plus(hidden(&X::SIG, H::N.saturating_mul(2)));
    // The gradient of the product, then one of x's two; and those of the halves.
    const VJP_SCRATCH: Size =
        hidden(&X::SIG, larger(H::N, D::N)).plus(hidden(&X::SIG, H::N.saturating_mul(2)));
    const MACS: usize = product(&[rows_of(&X::SIG.dims(0)), 3, D::N, H::N]);
    const CAUSAL: bool = true;
}

impl<V: Device, X: Signature, D: Dim, H: Dim, ACT: Activation, F: MaybeFormat> Module<V, X>
    for GatedFeedForwardOf<D, H, ACT, F>
{
    fn forward(cx: &mut Ctx<'_, V>, mut call: Forward<'_, V>) {
        let rows = cx.rows(const { &X::SIG.dims(0) });
        let n = rows * H::N;
        let ([gate, up, down], device) = (Self::parts(), cx.device());
        let (x, arenas) = (call.x.get(0), (call.params, call.state.read()));
        let mut between = call.scratch.take(n);
        let both = if cx.keeps() { &mut call.saved } else { &mut call.scratch };
        let mut both = both.take(2 * n);
        let (to_gate, to_up) = V::split_mut(V::reborrow(&mut both), n);
        gate.forward(device, rows, arenas, x, to_gate);
        up.forward(device, rows, arenas, x, to_up);
        device.gated(&Self::spec(rows), V::read(&both), V::reborrow(&mut between));
        down.forward(device, rows, arenas, V::read(&between), call.y.get(0));
    }

    fn vjp(cx: &mut Ctx<'_, V>, mut call: Vjp<'_, V>) {
        let rows = cx.rows(const { &X::SIG.dims(0) });
        let n = rows * H::N;
        let ([gate, up, down], device) = (Self::parts(), cx.device());
        let (arenas, mut dparams) = ((call.params, call.state), call.dparams);
        let both = call.saved.take(2 * n);
        let mut one = call.scratch.take(rows * larger(H::N, D::N));
        let mut dboth = call.scratch.take(2 * n);
        // The product of the halves is computed again, where its gradient's own halves will be.
        let mut between = slice_mut::<V>(V::reborrow(&mut dboth), 0, n);
        device.gated(&Self::spec(rows), both, V::reborrow(&mut between));
        let dproduct = Some(slice_mut::<V>(V::reborrow(&mut one), 0, n));
        down.vjp(device, rows, arenas, V::read(&between), call.dy.get(0), dproduct, &mut dparams);
        drop(between);
        let dbetween = slice::<V>(V::read(&one), 0, n);
        device.gated_vjp(&Self::spec(rows), both, dbetween, V::reborrow(&mut dboth));
        let (dto_gate, dto_up) = V::split(V::read(&dboth), n);
        let x = call.x.get(0);
        let mut second = slice_mut::<V>(one, 0, rows * D::N);
        let wanted = call.dx.wanted(0).is_some();
        gate.vjp(device, rows, arenas, x, dto_gate, call.dx.wanted(0), &mut dparams);
        up.vjp(device, rows, arenas, x, dto_up, wanted.then(|| V::reborrow(&mut second)), &mut dparams);
        if let Some(dx) = call.dx.wanted(0) {
            device.add_assign(V::read(&second), dx);
        }
    }

    fn route() -> &'static str {
        match F::MAYBE {
            Some(packing) => packing.name(),
            None => V::linear_route(&plain(1, D::N, H::N)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Run, Values, gradients};
    use crate::{Cpu, ELU, Linear, LinearNoBias, Mode, ReLU, T, module};

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            gradients::<FeedForwardGELU<4, 7>, T![4]>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<FeedForwardGELU<5, 3>, T![..4, 5]>(batch, Mode::Infer, 2).assert_within(1e-7);
            // One whose derivative is a function of the output, and one of the input.
            gradients::<FeedForward<3, 5, Sigmoid>, T![2, 3]>(batch, Mode::Train, 3).assert_within(1e-7);
            gradients::<FeedForward<3, 5, ELU>, T![2, 3]>(batch, Mode::Train, 4).assert_within(1e-7);
            gradients::<SwiGLUFeedForward<4, 7>, T![4]>(batch, Mode::Train, 5).assert_within(1e-7);
            gradients::<SwiGLUFeedForward<5, 3>, T![..4, 5]>(batch, Mode::Infer, 6).assert_within(1e-7);
            gradients::<GeGLUFeedForward<3, 4>, T![2, 2, 3]>(batch, Mode::Train, 7).assert_within(1e-7);
            gradients::<GLUFeedForward<1, 1>, T![1]>(batch, Mode::Train, 8).assert_within(1e-7);
        }
    }

    /// The same of three layers.
    #[module]
    struct Parts {
        gate_proj: LinearNoBias<4, 6>,
        up_proj: LinearNoBias<4, 6>,
        down_proj: LinearNoBias<6, 4>,
    }
    #[module]
    impl Parts {
        fn forward(&self, x: T![3, 4]) -> T![3, 4] {
            self.down_proj(SiLU(self.gate_proj(x)) * self.up_proj(x))
        }
    }

    #[module]
    struct Plain {
        fc1: Linear<4, 6>,
        fc2: Linear<6, 4>,
    }
    #[module]
    impl Plain {
        fn forward(&self, x: T![3, 4]) -> T![3, 4] {
            self.fc2(GELUTanh(self.fc1(x)))
        }
    }

    fn all<M: Module<Cpu<f64>, T![3, 4]>>(swap: bool) -> (Vec<String>, Vec<f64>) {
        let mut run = Run::<M, T![3, 4], Cpu<f64>>::new(&Cpu::default(), 2).mode(Mode::Train);
        run.init(7);
        if swap {
            let (gate, up) = (run.get("gate_proj.weight"), run.get("up_proj.weight"));
            run.set("gate_proj.weight", &up);
            run.set("up_proj.weight", &gate);
        }
        let x: Vec<_> = (0..24).map(|i| f64::from(i * 37 % 23) / 10.0 - 1.1).collect();
        let mut values = run.forward(&[Values::Real(x.clone())])[0].real().to_vec();
        let gradients = run.vjp(&[Values::Real(x)]);
        values.extend(gradients.dx[0].as_ref().unwrap());
        values.extend(&gradients.dparams);
        (run.paths().map(|(path, _)| path.to_owned()).collect(), values)
    }

    fn near(a: &[f64], b: &[f64]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-13)
    }

    #[test]
    fn the_whole_is_its_parts_under_their_names() {
        let (whole, parts) = (all::<SwiGLUFeedForward<4, 6>>(false), all::<Parts>(false));
        assert_eq!(whole.0, ["gate_proj.weight", "up_proj.weight", "down_proj.weight"]);
        assert_eq!(whole.0, parts.0);
        assert!(near(&whole.1, &parts.1));
        // Both projections have the same shape: one in the other's place fits as well.
        assert!(!near(&whole.1, &all::<SwiGLUFeedForward<4, 6>>(true).1));
        assert!(!near(&whole.1, &all::<GLUFeedForward<4, 6>>(false).1));

        let (whole, parts) = (all::<FeedForwardGELU<4, 6>>(false), all::<Plain>(false));
        assert_eq!(whole.0, ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]);
        assert_eq!(whole.0, parts.0);
        assert!(near(&whole.1, &parts.1));
        // The exact form differs by less than the tanh form's own error, but by more than rounding.
        assert!(!near(&whole.1, &all::<FeedForward<4, 6, GELU>>(false).1));
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        let fault = <FeedForward<4, 0, ReLU> as Layer<T![4]>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "`FeedForward<4, 0, ReLU>` can't exist: FF is 0");
        let fault = <GatedFeedForward<4, 6, GELUTanh> as Layer<T![6]>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "shape mismatch: `GatedFeedForward<4, 6, GELUTanh>` takes [.., 4], but it is given [6]"
        );
    }
}
