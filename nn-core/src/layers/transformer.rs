//! Blocks of transformers: attention and a feed-forward network, each with a residual and a norm.

use std::marker::PhantomData;

use nn_kernels::Device;

use crate::ctx::Ctx;
use crate::describe::Describe;
use crate::dims::{C, Dim};
use crate::fault::{Fault, Rule};
use crate::glue::{self, Step};
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::combine::ResidualOf;
use crate::layers::elementwise::{GELU, GELUTanh, SiLU};
use crate::layers::feed_forward::{FeedForwardOf, GatedFeedForwardOf};
use crate::layers::linear::{No, Yes};
use crate::layers::norm::{LayerNormOf, RMSNormOf};
use crate::layers::quantized::MaybeFormat;
use crate::layers::self_attention::{CausalSelfAttentionOf, SelfAttentionOf};
use crate::real::{MaybeReal, Real, Sci};
use crate::signature::{Sig, Signature};
use crate::tensors::{Tensors, TensorsMut};
use crate::tree::{Child, Node, within};
use crate::views::{Access, Arenas, FromArenas, Views};
use crate::{Size, Text, layer};

/// A, then B, both of which keep the shape. What is inside [`PreNormBlock`] and [`PostNormBlock`], which have the names and the rule.
struct Both<A, B>(PhantomData<fn() -> (A, B)>);

impl<A: Params, B: Params> Both<A, B> {
    const PARTS: [Child; 2] = [Child::new("", A::TREE), Child::new("", B::TREE)];
}

impl<A: Params, B: Params> Params for Both<A, B> {
    const LABEL: Text = Text::new();
    const TREE: &'static Node = &Node::new(&[], &Self::PARTS);
}

impl<X: Signature, A: Layer<X>, B: Layer<X>> Layer<X> for Both<A, B> {
    const RULE: Rule = Rule::ok(X::SIG);
    const KEEPS_X: bool = A::KEEPS_X;
    const KEEPS_Y: bool = B::KEEPS_Y;
    const SAVED: Size = A::SAVED.plus(B::SAVED).plus(X::SIG.size().when(A::KEEPS_Y || B::KEEPS_X));
    const CACHE: Size = A::CACHE.plus(B::CACHE);
    const CAUSAL: bool = A::CAUSAL && B::CAUSAL;
    const SCRATCH: Size = X::SIG.size().plus(A::SCRATCH.max(B::SCRATCH));
    const VJP_SCRATCH: Size = X::SIG.size().plus(A::VJP_SCRATCH.max(B::VJP_SCRATCH));
    const MACS: usize = A::MACS.saturating_add(B::MACS);
    const PLACES: u32 = A::PLACES.saturating_add(B::PLACES);
}

impl<D: Device, X: Signature, A: Module<D, X>, B: Module<D, X>> Module<D, X> for Both<A, B> {
    fn forward(cx: &mut Ctx<'_, D>, call: Forward<'_, D>) {
        let Forward { params, mut state, x, mut y, mut saved, mut scratch } = call;
        let (first, second) = steps::<A, B>(A::PLACES);
        let mut slot = scratch.part(cx, X::SIG.size());
        let mut between = glue::value::<D, X>(cx, A::KEEPS_Y || B::KEEPS_X, &mut saved, &mut slot);
        glue::forward::<D, A, X>(cx, first, params, &mut state, &x, &mut between, &mut saved, &mut scratch);
        let x = between.freeze_as::<X>();
        glue::forward::<D, B, X>(cx, second, params, &mut state, &x, &mut y, &mut saved, &mut scratch);
    }

    fn vjp(cx: &mut Ctx<'_, D>, call: Vjp<'_, D>) {
        let Vjp { params, state, x, y, mut saved, dy, mut dx, mut dparams, mut scratch } = call;
        let (first, second) = steps::<A, B>(A::PLACES);
        let between = match A::KEEPS_Y || B::KEEPS_X {
            true => saved.tensors_as::<X>(cx),
            false => Tensors::EMPTY,
        };
        let (saved_a, saved_b) = (saved.part(cx, A::SAVED), saved.part(cx, B::SAVED));
        let mut gradient =
            TensorsMut::carve_gradient_as::<X>(cx, &mut scratch.part(cx, const { X::SIG.size() }));
        glue::vjp::<D, B, X>(
            cx,
            second,
            params,
            state,
            &between,
            &y,
            saved_b,
            &dy,
            &mut gradient,
            &mut dparams,
            &mut scratch,
        );
        let dy = gradient.freeze_as::<X>();
        glue::vjp::<D, A, X>(
            cx,
            first,
            params,
            state,
            &x,
            &between,
            saved_a,
            &dy,
            &mut dx,
            &mut dparams,
            &mut scratch,
        );
    }
}

/// Where two parts that follow one another are.
fn steps<A: Params, B: Params>(places: u32) -> (Step, Step) {
    let tree = Both::<A, B>::TREE;
    (Step { field: tree.field(0), place: 0 }, Step { field: tree.field(1), place: places })
}

/// The first fault of the parts, or a part that does not keep the shape.
const fn rule(label: &Text, given: &Sig, parts: [(&'static str, &Text, &Rule); 4]) -> Rule {
    if given.is_poison() {
        return Rule::ok(Sig::POISON);
    }
    let mut i = 0;
    while i < 4 {
        let (name, part, rule) = parts[i];
        if rule.fault.is_some() {
            return Rule { out: *given, fault: within(rule.fault, name, "") };
        }
        if !rule.out.is_poison() && !rule.out.same(given) {
            let text = Text::new().str("shape mismatch: the parts of `").text(label);
            let text = given.write(text.str("` keep the shape, but `").text(part).str("`, given "));
            let fault = Some(Fault::new(rule.out.write(text.str(", gives "))));
            return Rule { out: *given, fault: within(fault, name, "") };
        }
        i += 1;
    }
    Rule::ok(*given)
}

macro_rules! blocks {
    ($(
        $(#[$doc:meta])*
        $name:ident $own:ident $view:ident $title:literal,
        [$($i:literal $key:ident $part:ident)*], $body:ty;
    )*) => {$(
        $(#[$doc])*
        #[layer(own_views)]
        pub struct $name<NORM1: Params, ATTN: Params, NORM2: Params, MLP: Params>;

        #[doc = $title]
        #[allow(missing_docs, reason = "each is named after the part whose parameters it holds")]
        pub struct $view<A: Access, NORM1: Views, ATTN: Views, NORM2: Views, MLP: Views> {
            $(pub $key: $part::View<A>,)*
        }

        impl<A: Access, NORM1: Views, ATTN: Views, NORM2: Views, MLP: Views> FromArenas<A>
            for $view<A, NORM1, ATTN, NORM2, MLP>
        {
            fn from_arenas(mut arenas: Arenas<A>) -> Self {
                Self { $($key: arenas.child($i),)* }
            }
        }

        impl<NORM1: Views, ATTN: Views, NORM2: Views, MLP: Views> Views for $own<NORM1, ATTN, NORM2, MLP> {
            type View<A: Access> = $view<A, NORM1, ATTN, NORM2, MLP>;
        }

        impl<NORM1: Params, ATTN: Params, NORM2: Params, MLP: Params> $own<NORM1, ATTN, NORM2, MLP> {
            const PARTS: [Child; 4] = [$(Child::new(stringify!($key), $part::TREE)),*];

            /// With a label of a layer that is this with parts settled.
            const fn rule<X: Signature>(label: &Text) -> Rule
            where
                NORM1: Layer<X>,
                ATTN: Layer<X>,
                NORM2: Layer<X>,
                MLP: Layer<X>,
            {
                rule(label, &X::SIG, [$((stringify!($key), &$part::LABEL, &$part::RULE)),*])
            }
        }

        impl<NORM1: Params, ATTN: Params, NORM2: Params, MLP: Params> Params for $own<NORM1, ATTN, NORM2, MLP> {
            const LABEL: Text = {
                let text = Text::new().str(stringify!($name)).str("<").text(&NORM1::LABEL).str(", ");
                let text = text.text(&ATTN::LABEL).str(", ").text(&NORM2::LABEL).str(", ");
                text.text(&MLP::LABEL).str(">")
            };
            const TREE: &'static Node = &Node::new(&[], &Self::PARTS);
        }

        impl<X: Signature, NORM1: Layer<X>, ATTN: Layer<X>, NORM2: Layer<X>, MLP: Layer<X>> Layer<X>
            for $own<NORM1, ATTN, NORM2, MLP>
        {
            const RULE: Rule = Self::rule::<X>(&Self::LABEL);
            const KEEPS_X: bool = <$body as Layer<X>>::KEEPS_X;
            const KEEPS_Y: bool = <$body as Layer<X>>::KEEPS_Y;
            const SAVED: Size = <$body as Layer<X>>::SAVED;
            const CACHE: Size = <$body as Layer<X>>::CACHE;
            const CAUSAL: bool = <$body as Layer<X>>::CAUSAL;
            const SCRATCH: Size = <$body as Layer<X>>::SCRATCH;
            const VJP_SCRATCH: Size = <$body as Layer<X>>::VJP_SCRATCH;
            const MACS: usize = <$body as Layer<X>>::MACS;
            const PLACES: u32 = <$body as Layer<X>>::PLACES;
        }

        impl<D: Device, X: Signature, NORM1, ATTN, NORM2, MLP> Module<D, X> for $own<NORM1, ATTN, NORM2, MLP>
        where
            NORM1: Module<D, X>,
            ATTN: Module<D, X>,
            NORM2: Module<D, X>,
            MLP: Module<D, X>,
        {
            fn forward(cx: &mut Ctx<'_, D>, call: Forward<'_, D>) {
                <$body as Module<D, X>>::forward(cx, call);
            }
            fn vjp(cx: &mut Ctx<'_, D>, call: Vjp<'_, D>) {
                <$body as Module<D, X>>::vjp(cx, call);
            }
            fn describe(out: &mut Describe) {
                $(out.within(stringify!($key), $part::describe);)*
            }
        }
    )*};
}

// The order of the parts is that in which they run.
blocks! {
    /// A block of a transformer with its norms before its parts, of any parts that keep the shape:
    /// h = x + ATTN(NORM1(x)), y = h + MLP(NORM2(h)).
    ///
    /// Parameters are below `norm1`, `attn`, `norm2` and `mlp`. [`DecoderBlock`] and [`LlamaBlock`] are the usual ones.
    /// Xiong et al. 2020, arXiv:2002.04745.
    ///
    /// ```
    /// use nn::{CausalSelfAttention, Layer, PreNormBlock, RMSNorm, SwiGLUFeedForward, T};
    /// type Block = PreNormBlock<RMSNorm<8>, CausalSelfAttention<16, 8, 2>, RMSNorm<8>, SwiGLUFeedForward<8, 20>>;
    /// assert_eq!(<Block as Layer<T![..16, 8]>>::RULE.out.to_string(), "[..16, 8]");
    /// ```
    PreNormBlock PreNormBlockOf PreNormBlockView "The parameters of a [`PreNormBlock`].",
    [0 norm1 NORM1 1 attn ATTN 2 norm2 NORM2 3 mlp MLP],
    Both<ResidualOf<Both<NORM1, ATTN>>, ResidualOf<Both<NORM2, MLP>>>;

    /// A block of a transformer with its norms after its parts, of any parts that keep the shape:
    /// h = NORM1(x + ATTN(x)), y = NORM2(h + MLP(h)), as in the first transformers and BERT.
    ///
    /// Parameters are below `attn`, `norm1`, `mlp` and `norm2`. [`EncoderBlock`] is the usual one. Vaswani et al. 2017, arXiv:1706.03762.
    ///
    /// ```
    /// use nn::{FeedForwardGELU, Layer, LayerNorm, PostNormBlock, SelfAttention, T};
    /// type Block = PostNormBlock<LayerNorm<8>, SelfAttention<16, 8, 2, 2>, LayerNorm<8>, FeedForwardGELU<8, 20>>;
    /// assert_eq!(<Block as Layer<T![..16, 8]>>::RULE.out.to_string(), "[..16, 8]");
    /// ```
    PostNormBlock PostNormBlockOf PostNormBlockView "The parameters of a [`PostNormBlock`].",
    [0 attn ATTN 1 norm1 NORM1 2 mlp MLP 3 norm2 NORM2],
    Both<Both<ResidualOf<ATTN>, NORM1>, Both<ResidualOf<MLP>, NORM2>>;
}

/// A block of a decoder, GPT-2's: `[S, DIM]` keeps its shape. S may be bounded.
///
/// h = x + attn(norm1(x)), y = h + mlp(norm2(h)), with [`CausalSelfAttention`](crate::CausalSelfAttention) in H heads and
/// [`FeedForwardGELU`](crate::FeedForwardGELU), FF wide. Parameters are below `norm1`, `attn`, `norm2` and `mlp`. Radford et al. 2019.
///
/// ```
/// use nn::{DecoderBlock, Layer, T};
/// assert_eq!(<DecoderBlock<16, 8, 2, 32> as Layer<T![..16, 8]>>::RULE.out.to_string(), "[..16, 8]");
/// let fault = <DecoderBlock<16, 8, 3, 32> as Layer<T![16, 8]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "`CausalSelfAttention<16, 8, 3>` can't exist: 8 values can't be divided into 3 heads, at `attn`"
/// );
/// ```
#[layer(own_views)]
pub struct DecoderBlock<const S: usize, const DIM: usize, const H: usize, const FF: usize>;

type Decoder<S, DIM, H, FF> = PreNormBlockOf<
    LayerNormOf<DIM, Sci<1, -5>>,
    CausalSelfAttentionOf<S, DIM, H>,
    LayerNormOf<DIM, Sci<1, -5>>,
    FeedForwardOf<DIM, FF, GELUTanh>,
>;
delegate! { parts DecoderBlockOf<S: Dim, DIM: Dim, H: Dim, FF: Dim> => Decoder<S, DIM, H, FF> }

/// A block of an encoder, BERT's: `[S, DIM]` keeps its shape. S may be bounded.
///
/// h = norm1(x + attn(x)), y = norm2(h + mlp(h)), with [`SelfAttention`](crate::SelfAttention) in H heads in which every token sees every other,
/// and a [`FeedForward`](crate::FeedForward) with [`GELU`], FF wide. Parameters are below `attn`, `norm1`, `mlp` and `norm2`. Devlin et al. 2018, arXiv:1810.04805.
/// [`EncoderBlockPreNorm`] has its norms before its parts.
///
/// There is no mask: a sentence that is padded attends to its padding. Sentences of one length run together, any length
/// up to S as it is.
///
/// ```
/// use nn::{EncoderBlock, Layer, T};
/// assert_eq!(<EncoderBlock<16, 8, 2, 32> as Layer<T![..16, 8]>>::RULE.out.to_string(), "[..16, 8]");
/// ```
#[layer(own_views)]
pub struct EncoderBlock<
    const S: usize,
    const DIM: usize,
    const H: usize,
    const FF: usize,
    EPS: Real = Sci<1, -12>,
>;

type Bidirectional<S, DIM, H> = SelfAttentionOf<S, DIM, H, H, C<0>, No, No, No, Yes, Yes, No>;
type Encoder<S, DIM, H, FF, EPS> = PostNormBlockOf<
    LayerNormOf<DIM, EPS>,
    Bidirectional<S, DIM, H>,
    LayerNormOf<DIM, EPS>,
    FeedForwardOf<DIM, FF, GELU>,
>;
delegate! { parts EncoderBlockOf<S: Dim, DIM: Dim, H: Dim, FF: Dim, EPS: Real> => Encoder<S, DIM, H, FF, EPS> }

/// A block of an encoder with its norms before its parts, as in vision transformers: `[S, DIM]` keeps its shape. S may be bounded.
///
/// h = x + attn(norm1(x)), y = h + mlp(norm2(h)), the parts as in [`EncoderBlock`]. Parameters are below `norm1`, `attn`, `norm2` and `mlp`.
/// Dosovitskiy et al. 2020, arXiv:2010.11929.
///
/// ```
/// use nn::{EncoderBlockPreNorm, Layer, T};
/// assert_eq!(<EncoderBlockPreNorm<16, 8, 2, 32> as Layer<T![16, 8]>>::RULE.out.to_string(), "[16, 8]");
/// ```
#[layer(own_views)]
pub struct EncoderBlockPreNorm<
    const S: usize,
    const DIM: usize,
    const H: usize,
    const FF: usize,
    EPS: Real = Sci<1, -6>,
>;

type EncoderPreNorm<S, DIM, H, FF, EPS> = PreNormBlockOf<
    LayerNormOf<DIM, EPS>,
    Bidirectional<S, DIM, H>,
    LayerNormOf<DIM, EPS>,
    FeedForwardOf<DIM, FF, GELU>,
>;
delegate! {
    parts EncoderBlockPreNormOf<S: Dim, DIM: Dim, H: Dim, FF: Dim, EPS: Real> => EncoderPreNorm<S, DIM, H, FF, EPS>
}

/// A block of a decoder, Llama's: `[S, DIM]` keeps its shape. S may be bounded.
///
/// h = x + attn(norm1(x)), y = h + mlp(norm2(h)), with [`RMSNorm`](crate::RMSNorm), [`SelfAttention`](crate::SelfAttention) with H heads of queries, KV of keys and values, turned
/// with base THETA, without biases, and a [`SwiGLUFeedForward`](crate::SwiGLUFeedForward), FF wide. Parameters are below `norm1`, `attn`, `norm2` and `mlp`. Touvron et al. 2023,
/// arXiv:2302.13971.
///
/// With a [`Format`](crate::Format) F the weights of all its dense layers are stored in that, for inference: they are named as
/// without, and don't learn; the norms' do.
///
/// ```
/// use nn::{Layer, LlamaBlock, T};
/// assert_eq!(<LlamaBlock<16, 8, 4, 2, 20> as Layer<T![..16, 8]>>::RULE.out.to_string(), "[..16, 8]");
/// type Small = LlamaBlock<16, 64, 4, 2, 96, nn::Sci<1, 4>, nn::Sci<1, -5>, nn::Q8_0>;
/// assert_eq!(<Small as Layer<T![..16, 64]>>::RULE.out.to_string(), "[..16, 64]");
/// ```
#[layer(own_views)]
pub struct LlamaBlock<
    const S: usize,
    const DIM: usize,
    const H: usize,
    const KV: usize,
    const FF: usize,
    THETA: MaybeReal = Sci<1, 4>,
    EPS: Real = Sci<1, -5>,
    F: MaybeFormat = No,
>;

type Llama<S, DIM, H, KV, FF, THETA, EPS, F> = PreNormBlockOf<
    RMSNormOf<DIM, EPS>,
    SelfAttentionOf<S, DIM, H, KV, C<0>, Yes, THETA, No, No, No, F>,
    RMSNormOf<DIM, EPS>,
    GatedFeedForwardOf<DIM, FF, SiLU, F>,
>;
delegate! {
    parts LlamaBlockOf<S: Dim, DIM: Dim, H: Dim, KV: Dim, FF: Dim, THETA: MaybeReal, EPS: Real, F: MaybeFormat>
        => Llama<S, DIM, H, KV, FF, THETA, EPS, F>
}

#[cfg(test)]
mod tests {
    use crate::check::{Run, Values, gradients};
    use crate::*;

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            let mode = Mode::Train;
            gradients::<DecoderBlock<3, 4, 2, 6>, T![3, 4]>(batch, mode, 1).assert_within(1e-6);
            gradients::<EncoderBlock<3, 4, 2, 6, Sci<1, -2>>, T![..3, 4]>(batch, mode, 2).assert_within(1e-6);
            gradients::<EncoderBlockPreNorm<3, 4, 2, 6>, T![3, 4]>(batch, mode, 3).assert_within(1e-6);
            gradients::<LlamaBlock<3, 4, 2, 1, 6>, T![..3, 4]>(batch, mode, 4).assert_within(1e-6);
        }
    }

    #[module]
    struct Pre {
        norm1: LayerNorm<8>,
        attn: CausalSelfAttention<5, 8, 2>,
        norm2: LayerNorm<8>,
        mlp: FeedForwardGELU<8, 12>,
    }
    #[module]
    impl Pre {
        fn forward(&self, x: T![5, 8]) -> T![5, 8] {
            let h = x + self.attn(self.norm1(x));
            h + self.mlp(self.norm2(h))
        }
    }

    #[module]
    struct Post {
        attn: SelfAttention<5, 8, 2, 2, 0, No>,
        norm1: LayerNorm<8, 1e-12>,
        mlp: FeedForward<8, 12, GELU>,
        norm2: LayerNorm<8, 1e-12>,
    }
    #[module]
    impl Post {
        fn forward(&self, x: T![5, 8]) -> T![5, 8] {
            let h = self.norm1(x + self.attn(x));
            self.norm2(h + self.mlp(h))
        }
    }

    fn numbers(n: usize, seed: u32) -> Vec<f64> {
        let draw = |i: u32| f64::from((i + seed).wrapping_mul(2_654_435_761) >> 16) / 32768.0 - 1.0;
        (0..n as u32).map(draw).collect()
    }

    /// The paths, the output, the input's gradient and all parameters'.
    fn step<M: Module<Cpu<f64>, T![5, 8]>>() -> (Vec<String>, Vec<f64>, Vec<f64>, Vec<f64>) {
        let mut run = Run::<M, T![5, 8], Cpu<f64>>::new(&Cpu::default(), 2);
        run.init(3);
        let paths: Vec<_> = run.paths().map(|(path, _)| path.to_owned()).collect();
        let y = run.forward(&[Values::Real(numbers(80, 7))])[0].real().to_vec();
        let gradients = run.vjp(&[Values::Real(numbers(80, 9))]);
        let each = paths.iter().flat_map(|path| run.gradient(&gradients, path)).collect();
        (paths, y, gradients.dx[0].clone().unwrap(), each)
    }

    #[test]
    fn blocks_are_their_parts_with_residuals_and_norms_where_they_belong() {
        assert_eq!(step::<DecoderBlock<5, 8, 2, 12>>(), step::<Pre>());
        assert_eq!(step::<EncoderBlock<5, 8, 2, 12>>(), step::<Post>());
        assert_ne!(step::<EncoderBlockPreNorm<5, 8, 2, 12>>().1, step::<Post>().1);
    }

    sequential! {
        Stack: [..5, 8] -> [..5, 8] = blocks: Repeat<LlamaBlock<5, 8, 4, 2, 12>, 2>, last: DecoderBlock<5, 8, 2, 12>
    }

    #[test]
    fn parts_have_names_places_and_views() {
        let weights = Weights::<Stack, Cpu<f32>>::new(Cpu::default(), 1).unwrap();
        let view = weights.view();
        let block = &view.blocks[1];
        assert_eq!(block.norm2.weight.to_vec(), weights.get("blocks.1.norm2.weight").unwrap());
        assert_eq!(block.mlp.up_proj.weight.to_vec(), weights.get("blocks.1.mlp.up_proj.weight").unwrap());
        assert_eq!(block.attn.o_proj.weight.to_vec(), weights.get("blocks.1.attn.o_proj.weight").unwrap());
        let qkv = ["q_proj", "k_proj", "v_proj"]
            .map(|p| weights.get(&format!("blocks.1.attn.{p}.weight")).unwrap());
        assert_eq!(block.attn.qkv.weight.to_vec(), qkv.concat());
        assert!(block.attn.q_norm.is_none() && block.attn.qkv.bias.is_none());
        assert_eq!(view.last.mlp.fc1.bias.unwrap().to_vec(), weights.get("last.mlp.fc1.bias").unwrap());
        let rows = Describe::of::<Stack, Cpu<f32>, T![..5, 8]>().rows;
        assert_eq!(rows.len(), 12);
        assert_eq!(rows.len(), <Stack as Layer<T![..5, 8]>>::PLACES as usize);
        assert_eq!(
            (rows[5].path.as_str(), rows[5].layer.as_str()),
            ("blocks.1.attn", "SelfAttention<5, 8, 4, 2>")
        );
        assert_eq!(
            (rows[9].path.as_str(), rows[9].layer.as_str()),
            ("last.attn", "CausalSelfAttention<5, 8, 2>")
        );
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        let fault = <EncoderBlock<8, 6, 2, 0> as Layer<T![8, 6]>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "`FeedForward<6, 0, GELU>` can't exist: FF is 0, at `mlp`");
        let fault = <LlamaBlock<8, 6, 2, 2, 9> as Layer<T![8, 6]>>::RULE.fault.unwrap();
        let said = "`SelfAttention<8, 6, 2, 2>` can't exist: a head of 3 values can't be divided into pairs, at `attn`";
        assert_eq!(fault.to_string(), said);
        type Odd = PreNormBlock<LayerNorm<6>, Linear<6, 5>, LayerNorm<6>, FeedForwardGELU<6, 8>>;
        let fault = <Odd as Layer<T![8, 6]>>::RULE.fault.unwrap();
        let label = "PreNormBlock<LayerNorm<6>, Linear<6, 5>, LayerNorm<6>, FeedForwardGELU<6, 8>>";
        let text = format!(
            "shape mismatch: the parts of `{label}` keep the shape, but `Linear<6, 5>`, given [8, 6], gives [8, 5], at `attn`"
        );
        assert_eq!(fault.to_string(), text);
    }
}
