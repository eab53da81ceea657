//! The layers, one file a family.

/// A layer that is another with some of its arguments settled. Its own name is in messages.
macro_rules! delegate {
    (leaf $own:ident<$($p:ident: $bound:path),*> => $to:ty) => {
        delegate! { @ $own<$($p: $bound),*> => $to, {} }
    };
    (parts $own:ident<$($p:ident: $bound:path),*> => $to:ty) => {
        delegate! { @ $own<$($p: $bound),*> => $to, {
            fn describe(out: &mut crate::describe::Describe) {
                <$to as Module<M, X>>::describe(out);
            }
        } }
    };
    (@ $own:ident<$($p:ident: $bound:path),*> => $to:ty, { $($describe:tt)* }) => {
        impl<$($p: $bound),*> crate::views::Views for $own<$($p),*> {
            type View<A: crate::views::Access> = <$to as crate::views::Views>::View<A>;
        }
        impl<$($p: $bound),*> Params for $own<$($p),*> {
            const LABEL: Text = Self::SHOWN;
            const TREE: &'static Node = <$to as Params>::TREE;
        }
        impl<X: Signature, $($p: $bound),*> Layer<X> for $own<$($p),*> {
            const RULE: Rule = <$to>::rule::<X>(&<Self as Params>::LABEL);
            const KEEPS_X: bool = <$to as Layer<X>>::KEEPS_X;
            const KEEPS_Y: bool = <$to as Layer<X>>::KEEPS_Y;
            const SAVED: Size = <$to as Layer<X>>::SAVED;
            const CACHE: Size = <$to as Layer<X>>::CACHE;
            const CAUSAL: bool = <$to as Layer<X>>::CAUSAL;
            const SCRATCH: Size = <$to as Layer<X>>::SCRATCH;
            const VJP_SCRATCH: Size = <$to as Layer<X>>::VJP_SCRATCH;
            const MACS: usize = <$to as Layer<X>>::MACS;
            const PLACES: u32 = <$to as Layer<X>>::PLACES;
        }
        impl<M: Device, X: Signature, $($p: $bound),*> Module<M, X> for $own<$($p),*> {
            fn forward(cx: &mut Ctx<'_, M>, call: Forward<'_, M>) {
                <$to as Module<M, X>>::forward(cx, call);
            }
            fn vjp(cx: &mut Ctx<'_, M>, call: Vjp<'_, M>) {
                <$to as Module<M, X>>::vjp(cx, call);
            }
            $($describe)*
        }
    };
}

/// The view of a layer made of others, whose parameters are all in its parts.
macro_rules! view_of_parts {
    (
        $(#[$doc:meta])*
        $view:ident<$($p:ident: $bound:path),*> of $own:ident<$($arg:ident),*>[$($free:ident: $free_bound:path),*] {
            $($(#[$note:meta])* $i:literal $key:ident: $part:ty,)*
        }
    ) => {
        $(#[$doc])*
        pub struct $view<A: crate::views::Access, $($p: $bound),*> {
            $($(#[$note])* pub $key: <$part as crate::views::Views>::View<A>,)*
        }
        impl<A: crate::views::Access, $($p: $bound),*> crate::views::FromArenas<A> for $view<A, $($p),*> {
            fn from_arenas(mut arenas: crate::views::Arenas<A>) -> Self {
                Self { $($key: arenas.child($i),)* }
            }
        }
        impl<$($p: $bound,)* $($free: $free_bound),*> crate::views::Views for $own<$($arg),*> {
            type View<A: crate::views::Access> = $view<A, $($p),*>;
        }
    };
}

pub(crate) mod attention;
pub(crate) mod batch_norm;
pub(crate) mod combine;
pub(crate) mod conv;
pub(crate) mod dropout;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod feed_forward;
pub(crate) mod gated;
pub(crate) mod heads;
pub(crate) mod layout;
pub(crate) mod linear;
pub(crate) mod lora;
pub(crate) mod norm;
pub(crate) mod pool;
pub(crate) mod position;
pub(crate) mod quantized;
pub(crate) mod recurrent;
pub(crate) mod rope;
pub(crate) mod sample;
pub(crate) mod self_attention;
pub(crate) mod softmax;
pub(crate) mod stop_grad;
pub(crate) mod transformer;
pub(crate) mod wrap;

use crate::Text;
use crate::dims::{Dims, Extent, Impossible};
use crate::fault::{Input, Rule, one_real};
use crate::signature::{Kind, Sig};

/// The rule of a layer that turns rows of `takes` values, along the last axis, into rows of `gives`.
const fn along_last(label: &Text, args: &[Extent], given: &Sig, takes: Extent, gives: Extent) -> Rule {
    let dims = match one_real(label, args, given) {
        Input::Done(rule) => return rule,
        Input::Tensor(dims) => dims,
    };
    let out = Sig::real(dims.with_last(gives));
    if dims.rank() > 0 && dims.last().same(&takes) {
        return Rule::ok(out);
    }
    let rule = Rule::mismatch(label, takes.write(Text::new().str("[.., ")).str("]"), given, out);
    match rule.fault {
        Some(fault) if dims.last().length.is_some() => {
            Rule { out, fault: Some(fault.because(", whose last axis is known only when it runs")) }
        }
        _ => rule,
    }
}

/// Whether a shape that is an argument is one tensor of real numbers and known.
const fn check_shape(label: &Text, shape: &Sig) -> Option<Rule> {
    if shape.len() != 1 || !matches!(shape.tensors()[0].kind, Kind::Real) {
        return Some(Rule::cannot_exist(label, Text::new().str("it is one tensor of real numbers")));
    }
    let dims = shape.dims(0);
    let mut i = 0;
    while i < dims.rank() {
        if let Some(rule) = Rule::check_args(label, &[dims.axis(i)]) {
            return Some(rule);
        }
        i += 1;
    }
    None
}

/// An axis that may be bounded, as that of the input is: so that only what differs is said to.
const fn as_given(n: Extent, given: &Dims, axis: usize) -> Extent {
    if axis < given.rank() && given.axis(axis).length.is_some() && !n.is_poison() {
        return Extent { length: given.axis(axis).length, ..n };
    }
    n
}

/// How many rows a sample has, if a row is its last axis.
const fn rows_of(dims: &Dims) -> usize {
    if dims.rank() == 0 { 1 } else { dims.product(0, dims.rank() - 1).n }
}

/// The product of all; 0 if that is too large to be one, which is a fault elsewhere.
const fn product(factors: &[usize]) -> usize {
    let mut n: usize = 1;
    let mut i = 0;
    while i < factors.len() {
        n = match n.checked_mul(factors[i]) {
            // Far from the end, so that sums of a few don't overflow either.
            Some(n) if n <= usize::MAX >> 16 => n,
            _ => return 0,
        };
        i += 1;
    }
    n
}

/// A window that moves over an image, along one axis or, as here, both alike.
#[derive(Clone, Copy)]
struct Window {
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
}

impl Window {
    /// How much of the image it covers at once, gaps included.
    const fn extent(&self) -> usize {
        self.dilation.saturating_mul(self.kernel.saturating_sub(1)).saturating_add(1)
    }

    const fn padded(&self, n: usize) -> usize {
        n.saturating_add(self.padding.saturating_mul(2))
    }

    /// How many places it has along an axis of `n` values.
    const fn places(&self, n: usize) -> Extent {
        let (padded, extent) = (self.padded(n), self.extent());
        if padded < extent || self.stride == 0 {
            return Extent::impossible(Impossible::Negative(padded, extent));
        }
        Extent::new((padded - extent) / self.stride + 1)
    }

    /// The rule of a layer that moves it over `[C, H, W]`, takes `channels` of them (none: any number) and
    /// gives as many as `out` says (none: as many as there are).
    const fn rule(
        &self,
        label: &Text,
        args: &[Extent],
        given: &Sig,
        channels: Option<Extent>,
        out: Extent,
    ) -> Rule {
        let dims = match one_real(label, args, given) {
            Input::Done(rule) => return rule,
            Input::Tensor(dims) => dims,
        };
        let any = channels.is_none();
        let takes = match &channels {
            Some(n) => n.write(Text::new().str("[")).str(", H, W]"),
            None => Text::new().str("[C, H, W]"),
        };
        if dims.rank() != 3 {
            return Rule::mismatch(label, takes, given, Sig::POISON);
        }
        let (h, w) = (dims.axis(1), dims.axis(2));
        if h.length.is_some() || w.length.is_some() || dims.axis(0).length.is_some() {
            return Rule::mismatch(label, takes.str(" without bounds"), given, Sig::POISON);
        }
        let gives =
            Sig::real(Dims::new(&[if any { dims.axis(0) } else { out }, self.places(h.n), self.places(w.n)]));
        if let Some(n) = &channels
            && !dims.axis(0).same(n)
        {
            return Rule::mismatch(label, takes, given, gives);
        }
        if h.n == 0 || w.n == 0 {
            return Rule::mismatch(label, takes.str(" with at least one value"), given, Sig::POISON);
        }
        if gives.is_poison() {
            let text = Text::new().str("shape mismatch: `").text(label).str("` needs an image of at least ");
            let text = text.num(self.extent()).str("×").num(self.extent());
            let text = text.str(if self.padding == 0 { "" } else { ", padding included" });
            let text = given.write(text.str(", but it is given "));
            let text = if self.padding == 0 {
                text
            } else {
                text.str(", padded to ").num(self.padded(h.n)).str("×").num(self.padded(w.n))
            };
            return Rule { out: Sig::POISON, fault: Some(crate::Fault::of_input(text)) };
        }
        Rule::ok(gives)
    }
}

#[cfg(test)]
mod tests {
    use crate::*;

    /// Has the compiler work out every constant of a layer, and gives the fault.
    #[inline(never)]
    fn settle<L: Layer<X>, X: Signature>() -> Option<String> {
        let _ = (L::SAVED, L::SCRATCH, L::VJP_SCRATCH, L::MACS, L::PLACES, L::LABEL, L::TREE.params());
        L::RULE.fault.map(|fault| fault.to_string())
    }

    type Third = Over<C<4>, C<3>>;
    type Huge = C<{ usize::MAX - 1 }>;

    macro_rules! settle_all {
        ($($layer:ty),* $(,)?) => {$(
            let given = [
                settle::<$layer, ()>(),
                settle::<$layer, T![]>(),
                settle::<$layer, T![0]>(),
                settle::<$layer, T![0, 0, 0]>(),
                settle::<$layer, T![4]>(),
                settle::<$layer, T![..4, 4]>(),
                settle::<$layer, T![..4, ..4, ..4]>(),
                settle::<$layer, T![4, 4, 4, 4, 4, 4]>(),
                settle::<$layer, Ids<T![4, 4, 4, 4, 4, 4]>>(),
                settle::<$layer, (T![4], Ids<T![]>)>(),
                settle::<$layer, (T![4], T![4], T![4], T![4], T![4], T![4])>(),
                settle::<$layer, S1<Third>>(),
                settle::<$layer, S3<C<4>, Third, C<4>>>(),
                settle::<$layer, Ids<S2<Third, C<4>>>>(),
                settle::<$layer, (S1<Third>, S1<C<4>>)>(),
                settle::<$layer, S1<Huge>>(),
                settle::<$layer, S3<C<4>, Huge, Huge>>(),
                settle::<$layer, S3<Huge, Huge, C<4>>>(),
            ];
            assert!(given.iter().flatten().all(|fault| fault.contains('`')), "{given:?}");
            // What follows a fault stays silent, unless the layer itself is impossible.
            let silent = settle::<$layer, S1<Third>>().is_none_or(|fault| fault.contains("can't exist"));
            assert!(silent, "{}", stringify!($layer));
        )*};
    }

    #[test]
    fn whatever_is_given_the_compiler_has_an_answer() {
        settle_all! {
            ReLU, GELU, Scale<Sci<1, 0>>, Add, Div, Softmax, LogSoftmax, Flatten,
            Linear<4, 4>, LinearTanh<4, 4>, Linear<0, 4>, LinearOf<Third, C<4>>, LinearOf<UpTo<C<4>>, C<4>>,
            Linear<4, { usize::MAX - 1 }>,
            LayerNorm<4>, RMSNorm<4>, LayerNorm<0>, BatchNorm2D<4>, BatchNorm2D<0>, BatchNorm1D<4>, BatchNorm3D<4>,
            Conv2D<4, 4, 3>, Conv2D<4, 4, 0>, Conv2D<4, 4, 3, 0>, Conv2D<4, 4, 1, 1, 0, 0, 0>,
            Conv2D<4, 4, { usize::MAX - 1 }>, Conv2D<4, 4, 1, 1, { usize::MAX - 1 }>,
            Conv2D<4, 4, 3, 1, 1, { usize::MAX - 1 }>, Conv2DTanh<4, 4, 3>, Conv2DReLU<4, { usize::MAX - 1 }, 1>,
            Conv2DSwish<4, 4, 1, 1, { usize::MAX - 1 }>,
            MaxPool2D<2>, MaxPool2D<0>, AvgPool2D<3, 0, 1>, AvgPool2D<{ usize::MAX - 1 }, 1, 5>,
            Embedding<4, 4>, Embedding<0, 0>, TiedLinear<4, 4>, Dropout<Sci<1, -1>>, Dropout<Sci<2, 0>>,
            Reshape<T![2, 2]>, Reshape<S1<Third>>, Reshape<()>, Concat<0>, Concat<5>, Concat<{ usize::MAX - 1 }>,
            Slice<0, 1, 3>, Slice<2, 3, 1>, Slice<{ usize::MAX - 1 }, 0, 1>, Transpose<0, 2>, Transpose<7, 9>,
            PixelShuffle<2, 4, 2>, PixelShuffle<3, 4, 2>, PixelShuffle<0, 0, 0>,
            PixelShuffle<{ usize::MAX - 1 }, 4, 1>,
            RoPE<4, 2, 2>, RoPE<4, 2, 3>, RoPE<0, 0, 0>, RoPEInterleaved<4, 1, 4>, RoPE<4, { usize::MAX - 1 }, 4>,
            ScaledDotProductAttention<4, 2, 4>, ScaledDotProductAttention<{ usize::MAX - 1 }, 2, { usize::MAX - 1 }>,
            MaskedAttention<0, 0, 0>, ScaledDotProductAttentionQKV<4, 1, 4>, CausalAttention<4, { usize::MAX - 1 }, 4>,
            QKVToMajor<4, 1, 4>, QKVToMajor<4, 0, 4>, QKVToMajor<4, { usize::MAX - 1 }, 4>, GQAAttention<4, 4, 2, 1>,
            GQAAttention<4, 3, 2, 1>, GQAAttention<4, 3, 0, 1>, GQAAttention<4, { usize::MAX - 1 }, 1, 4, No>,
            CrossAttention<4, 2, 4, 4>, CrossAttention<4, 3, 4, 4, Yes>, CrossAttention<4, 0, 0, 4>,
            CrossAttention<{ usize::MAX - 1 }, 1, { usize::MAX - 1 }, 4>, RepeatKVHeads<4, 1, 2, 4>,
            RepeatKVHeads<4, 0, 0, 4>, RepeatKVHeads<4, { usize::MAX - 1 }, { usize::MAX - 1 }, 4>,
            Residual<Linear<4, 4>>, Residual<Linear<4, 3>>, Residual<Add>, Repeat<LinearReLU<4, 4>, 3>,
            Repeat<Residual<LinearReLU<4, 4>>, 0>, Repeat<Flatten, 2>, Repeat<LinearReLU<4, 4>, { usize::MAX - 1 }>,
            Repeat<Repeat<BatchNorm2D<4>, { usize::MAX - 1 }>, { usize::MAX - 1 }>, Repeat<Repeat<ReLU, 1000>, 1000>,
            SwiGLU<4>, GeGLU<0>, GLU<2>, GatedAct<{ usize::MAX - 1 }, Tanh>, FeedForwardGELU<4, 4>,
            FeedForward<4, { usize::MAX - 1 }, ReLU>, SwiGLUFeedForward<4, 4>, GeGLUFeedForward<0, 4>,
            GLUFeedForward<4, { usize::MAX - 1 }>, GatedFeedForward<{ usize::MAX - 1 }, 4, Tanh>,
            PosEmbed<4, 4>, PosEmbed<0, 4>, PosEmbed<4, { usize::MAX - 1 }>, SinusoidalPosAdd<4, 4>,
            SinusoidalPosAdd<4, 3>, SinusoidalPosAdd<{ usize::MAX - 1 }, 4>, SinusoidalPosAdd<4, 0>,
            LoRALinear<4, 4, 2, Sci<1, 0>>, LoRALinear<4, 0, 2, Sci<1, 0>, No>,
            LoRALinear<4, 4, { usize::MAX - 1 }, Sci<1, 0>>, LoRALinear<{ usize::MAX - 1 }, 4, 4, Sci<1, 0>>,
            QuantizedLinear<Bf16, 4, 4>, QuantizedLinear<Q8_0, 4, 4>, QuantizedLinear<F16, 0, 4, Yes>,
            QuantizedLinear<Bf16, { usize::MAX - 1 }, { usize::MAX - 1 }>, QuantizedLinear<Q8_0, { usize::MAX - 31 }, 4>,
            QuantizedLinearOf<F16, Third, C<4>, Yes>, LlamaBlock<4, 4, 2, 1, 8, No, Sci<1, -5>, Bf16>,
            SwiGLUFeedForward<4, { usize::MAX - 31 }, Q8_0>,
            StopGrad, GradGate, HashDropout<Sci<1, -1>>, HashDropout<Sci<2, 0>>, RSample<4>, RSampleTanh<4>,
            RSample<0>, RSampleTanh<{ usize::MAX - 1 }>,
            LSTMCell<4, 4>, LSTMCell<0, 4>, GRUCell<4, { usize::MAX - 1 }>, LSTMSeq<4, 4, 4>, GRUSeq<4, 4, 0>,
            GRUSeq<4, { usize::MAX - 1 }, 4>, LSTMSeq<4, 4, { usize::MAX - 1 }>,
            SelfAttention<4, 4, 2, 2>, SelfAttention<4, 4, 2, 1, 4, No, Sci<1, 4>, Sci<1, -6>>, SelfAttention<4, 4, 3, 3>,
            SelfAttention<0, 0, 0, 0>, SelfAttention<4, 4, 2, { usize::MAX - 1 }>, SelfAttention<{ usize::MAX - 1 }, 4, 4, 4>,
            SelfAttention<4, 4, { usize::MAX - 1 }, 1, 4>, SelfAttention<4, 4, 4, 4, { usize::MAX - 1 }, Yes, Sci<1, 4>>,
            CausalSelfAttention<4, 4, 2>, CausalSelfAttention<4, 4, 0>, DecoderBlock<4, 4, 2, 8>, DecoderBlock<4, 4, 3, 8>,
            EncoderBlock<4, 4, 2, 0>, EncoderBlockPreNorm<4, { usize::MAX - 1 }, 2, 8>, LlamaBlock<4, 4, 2, 1, 8>,
            LlamaBlock<4, 4, { usize::MAX - 1 }, 1, { usize::MAX - 1 }>, PreNormBlock<ReLU, Flatten, ReLU, Add>,
            PostNormBlock<ReLU, Linear<4, 3>, ReLU, ReLU>, Remat<Linear<4, 4>>, Remat<Add>, Tok<ReLU>, Tok<Flatten>,
            Tok<Linear<4, 3>>, Tok<Reshape<T![1, 1, 1, 1, 1, 1]>>, InitWith<Linear<4, 4>, Zero>, StopGradParams<Linear<4, 4>>,
            StopGradParams<Repeat<LinearReLU<4, 4>, { usize::MAX - 1 }>>, RepeatConditional<Add, 3>, RepeatConditional<Add, 0>,
            RepeatConditional<Linear<4, 4>, 2>, RepeatConditional<Concat<0>, { usize::MAX - 1 }>,
            Param<T![4]>, Param<T![]>, Param<T![..4]>, Param<Ids<T![4]>>,
        }
    }

    sequential! {
        /// Images, with every kind of layer that takes them.
        Trunk: [2, 6, 6] -> [3] =
            Conv2D<2, 4, 3, 1, 1>, BatchNorm2D<4>, ReLU, MaxPool2D<2>,
            Conv2DMish<4, 6, 2, 1, 0, 1, 2>, AvgPool2D<2>, Flatten, Dropout<0.1>, Linear<6, 3>, LogSoftmax
    }

    /// Words in, scores of words out, by one table.
    #[module]
    struct Words<const S: usize, const D: usize> {
        tokens: Embedding<7, D>,
        positions: Param<T![S, D], Normal02>,
        norm: LayerNorm<D, 1e-6>,
        blocks: Repeat<Residual<LinearSwish<4, 4>>, 2>,
        up: LinearGELU<D, { 2 * D }>,
        out: RMSNorm<{ 2 * D }>,
        #[tied = "tokens.weight"]
        head: TiedLinear<D, 7>,
    }
    #[module]
    impl<const S: usize, const D: usize> Words<S, D> {
        fn forward(&self, ids: Ids<T![S]>) -> T![S, 7] {
            let h = self.blocks(self.norm(self.tokens(ids) + self.positions));
            let wide = self.out(self.up(RoPE::<S, 1, D>(h)));
            let a = Slice::<1, 0, D>(wide);
            let both = Concat::<1>(a, h);
            self.head(Slice::<1, 2, { 2 + D }>(both))
        }
    }

    #[test]
    fn layers_fit_together_in_modules() {
        use crate::check::{Options, gradients};
        gradients::<Trunk, T![2, 6, 6]>(3, Mode::Train, 1).assert_within(1e-7);
        gradients::<Trunk, T![2, 6, 6]>(1, Mode::Infer, 2).assert_within(1e-7);
        for batch in [1, 3] {
            let options = Options { ids_below: 7, ..Options::new(batch, Mode::Train, 3) };
            options.check::<Words<3, 4>, Ids<T![3]>>().assert_within(1e-7);
        }
        let run = check::Run::<Words<3, 4>, Ids<T![3]>, Cpu<f64>>::new(&Cpu::default(), 1);
        let paths: Vec<_> = run.paths().map(|(path, _)| path.to_owned()).collect();
        let expected = [
            "tokens.weight",
            "positions",
            "norm.weight",
            "norm.bias",
            "blocks.0.weight",
            "blocks.0.bias",
            "blocks.1.weight",
            "blocks.1.bias",
            "up.weight",
            "up.bias",
            "out.weight",
        ];
        assert_eq!(paths, expected);
    }
}
