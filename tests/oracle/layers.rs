use nn::check::{Run, Values};
use nn::*;

use crate::fixture::{Fixture, Tensor, assert_near, devices, limit};

/// How a layer is compared with its fixture.
pub(crate) struct Options {
    /// The most terms that one of its sums has, which bounds the rounding in single precision.
    pub(crate) terms: usize,
    /// What the call is for.
    pub(crate) mode: Mode,
    /// The size of what cancels in a gradient that is zero.
    pub(crate) scale: f64,
    /// Whether a gradient is too small for single precision.
    pub(crate) underflows: bool,
    /// Whether the layer has parameters that the fixture lacks; they stay as they start.
    pub(crate) own: bool,
    /// Where the fixture's parameters are in the model: a path, with its last dot.
    pub(crate) under: &'static str,
    /// Whether the fixture's tensors have fewer axes than the layer's.
    pub(crate) unshaped: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            terms: 1,
            mode: Mode::Train,
            scale: 0.0,
            underflows: false,
            own: false,
            under: "",
            unshaped: false,
        }
    }
}

fn host<E: kernels::Float>(tensor: &Tensor) -> Values<E> {
    if tensor.is_ids { Values::Ids(tensor.ids()) } else { Values::Real(tensor.real()) }
}

#[track_caller]
fn same_shapes(what: &str, sig: &Sig, tensors: &[&Tensor]) {
    let expected: Vec<_> = sig.tensors().iter().map(|t| t.dims.to_vec()).collect();
    let found: Vec<_> = tensors.iter().map(|t| t.shape[1..].to_vec()).collect();
    assert_eq!(expected, found, "{what}");
}

/// Output, input gradients, parameter gradients and new state of `M` are those of the fixture, for every
/// instruction set.
pub(crate) fn check<E: kernels::cpu::Real, M: Module<Cpu<E>, X>, X: Signature>(
    name: &'static str,
    options: &Options,
) {
    let fixture = Fixture::read(name);
    let (x, y) = (fixture.numbered("x"), fixture.numbered("y"));
    if !options.unshaped {
        same_shapes("input", &X::SIG, &x);
        same_shapes("output", &M::RULE.out, &y);
    }
    let hosts = |tensors: &[&Tensor]| tensors.iter().map(|t| host::<E>(t)).collect::<Vec<_>>();
    let limit = limit::<E>(options.terms);
    let smallest = if size_of::<E>() == 4 { f64::from(f32::MIN_POSITIVE) } else { 0.0 };
    let scale = if options.underflows { smallest } else { options.scale };
    for device in devices() {
        let mut run = Run::<M, X, Cpu<E>>::new(&device, x[0].shape[0]).mode(options.mode);
        let at = |what: &str| format!("{name}, {what}, {device:?}");
        let mut set = Vec::new();
        for (path, tensor) in fixture.named("param.").chain(fixture.named("state.")) {
            // What PyTorch counts has no use here.
            if !path.ends_with("num_batches_tracked") {
                let path = format!("{}{path}", options.under);
                run.set(&path, &tensor.real());
                set.push(path);
            }
        }
        let paths: Vec<_> = run.paths().map(|(path, _)| path.to_owned()).collect();
        let left = paths.iter().find(|path| !set.contains(path));
        assert!(options.own || left.is_none(), "{name} does not set `{}`", left.unwrap());

        let outputs = run.forward(&hosts(&x));
        assert_eq!(run.fault(), None);
        for (i, (found, expected)) in outputs.iter().zip(&y).enumerate() {
            assert_near(&at(&format!("y{i}")), found.real(), &expected.values, 0.0, limit);
        }
        for (path, tensor) in fixture.named("state_after.") {
            if !path.ends_with("num_batches_tracked") {
                assert_near(&at(path), &run.get(path), &tensor.values, 0.0, limit);
            }
        }
        let gradients = run.vjp(&hosts(&fixture.numbered("dy")));
        for (i, found) in gradients.dx.iter().enumerate() {
            let name = format!("dx{i}");
            assert_eq!(found.is_some(), fixture.has(&name), "{}", at(&name));
            if let Some(found) = found {
                assert_near(&at(&name), found, &fixture.get(&name).values, scale, limit);
            }
        }
        for (path, tensor) in fixture.named("grad.") {
            let gradient = run.gradient(&gradients, &format!("{}{path}", options.under));
            assert_near(&at(path), &gradient, &tensor.values, scale, limit);
        }
    }
}

/// A test a fixture, in both precisions.
macro_rules! cases {
    ($($name:ident: $layer:ty, $x:ty $(, $key:ident = $value:expr)*;)*) => {
        /// The fixtures read here.
        pub(crate) const READ: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            fn $name() {
                #[allow(clippy::needless_update, reason = "a case may set them all")]
                let options = Options { $($key: $value,)* ..Options::default() };
                check::<f64, $layer, $x>(stringify!($name), &options);
                check::<f32, $layer, $x>(stringify!($name), &options);
            }
        )*
    };
}

#[module]
struct AddSame {}
#[module]
impl AddSame {
    fn forward(&self, x: T![6]) -> T![6] {
        x + x
    }
}

#[module]
struct MulSame {}
#[module]
impl MulSame {
    fn forward(&self, x: T![6]) -> T![6] {
        x * x
    }
}

/// One table both as embedding and as output.
#[module]
struct Tied {
    tokens: Embedding<7, 5>,
    #[tied = "tokens.weight"]
    head: TiedLinear<5, 7>,
}
#[module]
impl Tied {
    fn forward(&self, ids: Ids<T![4]>) -> T![4, 7] {
        self.head(self.tokens(ids))
    }
}

cases! {
    linear: Linear<7, 5>, T![7], terms = 7;
    linear_batch1: Linear<9, 8>, T![9], terms = 9;
    linear_in1: Linear<1, 5>, T![1], terms = 5;
    linear_out1: Linear<7, 1>, T![7], terms = 7;
    linear_square: Linear<6, 6>, T![6], terms = 6;
    linear_wide: Linear<5, 16>, T![5], terms = 16;
    linear_tokens: Linear<6, 5>, T![4, 6], terms = 12;
    linear_nobias: LinearNoBias<7, 5>, T![7], terms = 7;
    linear_nobias_tokens: LinearNoBias<6, 8>, T![5, 6], terms = 10;
    linear_relu: LinearReLU<6, 5>, T![6], terms = 6;
    linear_tanh: LinearTanh<6, 5>, T![6], terms = 6;
    linear_sigmoid: LinearSigmoid<6, 5>, T![6], terms = 6;
    linear_silu: LinearSwish<6, 5>, T![6], terms = 6;
    linear_mish: LinearMish<6, 5>, T![6], terms = 6;
    linear_gelu: LinearGELU<6, 5>, T![6], terms = 6;
    linear_gelu_tanh: LinearGELUTanh<6, 5>, T![6], terms = 6;
    linear_gelu_tanh_tokens: LinearGELUTanh<5, 8>, T![3, 5], terms = 8;
    linear_elu: LinearELU<6, 5>, T![6], terms = 6;

    act_relu: ReLU, T![16];
    act_relu_large: ReLU, T![8];
    act_relu_tiny: ReLU, T![5];
    act_tanh: Tanh, T![16];
    act_tanh_large: Tanh, T![8];
    act_tanh_tiny: Tanh, T![5];
    act_sigmoid: Sigmoid, T![16];
    act_sigmoid_large: Sigmoid, T![8];
    act_sigmoid_tiny: Sigmoid, T![5];
    act_silu: SiLU, T![16];
    act_silu_large: SiLU, T![8];
    act_silu_tiny: SiLU, T![5];
    act_mish: Mish, T![16];
    act_mish_large: Mish, T![8];
    act_mish_tiny: Mish, T![5];
    act_gelu: GELU, T![16];
    act_gelu_large: GELU, T![8];
    act_gelu_tiny: GELU, T![5];
    act_gelu_tanh: GELUTanh, T![16];
    act_gelu_tanh_large: GELUTanh, T![8];
    act_gelu_tanh_tiny: GELUTanh, T![5];
    act_elu: ELU, T![16];
    act_elu_large: ELU, T![8];
    act_elu_tiny: ELU, T![5];

    swiglu: SwiGLU<4>, T![8];
    swiglu_tokens: SwiGLU<5>, T![3, 10];
    geglu: GeGLU<4>, T![8];
    glu: GLU<4>, T![8];
    swiglu_feed_forward: SwiGLUFeedForward<6, 10>, T![3, 6], terms = 20;
    swiglu_feed_forward_square: SwiGLUFeedForward<5, 5>, T![5], terms = 10;
    geglu_feed_forward: GeGLUFeedForward<6, 7>, T![6], terms = 14;
    glu_feed_forward: GLUFeedForward<6, 7>, T![6], terms = 14;
    feed_forward_gelu: FeedForwardGELU<6, 16>, T![3, 6], terms = 16;

    pos_embed: PosEmbed<5, 6>, T![..5, 6], terms = 3;
    sinusoidal_pos_add: SinusoidalPosAdd<5, 8>, T![5, 8];
    sinusoidal_pos_add_theta100: SinusoidalPosAdd<7, 6, Sci<1, 2>>, T![7, 6];

    lora_linear: LoRALinear<7, 5, 2, Sci<15, -1>>, T![7], terms = 9;
    lora_linear_square: LoRALinear<4, 4, 4, Sci<25, -2>>, T![3, 4], terms = 8;
    lora_linear_nobias: LoRALinear<6, 5, 1, Sci<2, 0>, No>, T![3, 6], terms = 7;

    hash_dropout: HashDropout<Sci<3, -1>>, T![20];
    rsample: RSample<5>, (T![5], T![5]);
    rsample_infer: RSample<5>, (T![5], T![5]), mode = Mode::Infer;
    rsample_tanh: RSampleTanh<5>, (T![5], T![5]), terms = 5;
    rsample_tanh_infer: RSampleTanh<5>, (T![5], T![5]), terms = 5, mode = Mode::Infer;

    lstm_cell: LSTMCell<4, 5>, (T![4], T![5], T![5]), terms = 20;
    lstm_cell_square: LSTMCell<3, 3>, (T![3], T![3], T![3]), terms = 12;
    lstm_seq: LSTMSeq<4, 5, 6>, T![6, 4], terms = 20;
    lstm_seq_square: LSTMSeq<3, 3, 3>, T![3, 3], terms = 12;
    lstm_seq_state: LSTMSeq<3, 5, 4>, (T![4, 3], T![5], T![5]), terms = 20;
    gru_cell: GRUCell<4, 5>, (T![4], T![5]), terms = 15;
    gru_cell_square: GRUCell<3, 3>, (T![3], T![3]), terms = 9;
    gru_seq: GRUSeq<4, 5, 6>, T![6, 4], terms = 18;
    gru_seq_square: GRUSeq<3, 3, 3>, T![3, 3], terms = 9;
    gru_seq_state: GRUSeq<3, 5, 4>, (T![4, 3], T![5]), terms = 15;

    softmax: Softmax, T![7];
    softmax_tokens: Softmax, T![4, 5];
    softmax_offset: Softmax, T![6];
    softmax_spread: Softmax, T![9], underflows = true;
    log_softmax: LogSoftmax, T![7];
    log_softmax_tokens: LogSoftmax, T![4, 5];
    log_softmax_offset: LogSoftmax, T![6];
    log_softmax_spread: LogSoftmax, T![9];

    layer_norm: LayerNorm<8>, T![8];
    layer_norm_tokens: LayerNorm<13>, T![4, 13];
    layer_norm_eps12: LayerNorm<8, Sci<1, -12>>, T![8];
    layer_norm_small: LayerNorm<9>, T![9];
    layer_norm_large_mean: LayerNorm<16>, T![16];
    layer_norm_no_affine: LayerNorm<8>, T![8], own = true;
    rms_norm: RMSNorm<8>, T![8];
    rms_norm_small: RMSNorm<8>, T![8];
    rms_norm_eps5_small: RMSNorm<12, Sci<1, -5>>, T![12];
    rms_norm_tokens: RMSNorm<5, Sci<1, -5>>, T![3, 5];

    add: Add, (T![4, 5], T![4, 5]);
    add_same: AddSame, T![6];
    mul: Mul, (T![4, 5], T![4, 5]);
    mul_same: MulSame, T![6];

    batch_norm1d_train: BatchNorm2D<6>, T![6, 1, 1], terms = 5, unshaped = true;
    batch_norm1d_eval: BatchNorm2D<6>, T![6, 1, 1], terms = 5, unshaped = true, mode = Mode::Infer;
    batch_norm2d_train: BatchNorm2D<4>, T![4, 3, 2], terms = 18;
    batch_norm2d_train_batch1: BatchNorm2D<5>, T![5, 3, 4], terms = 12;
    batch_norm2d_train_large_mean: BatchNorm2D<3>, T![3, 4, 4], terms = 48;
    batch_norm2d_eval: BatchNorm2D<4>, T![4, 3, 2], terms = 18, mode = Mode::Infer;

    conv2d: Conv2D<3, 4, 3>, T![3, 6, 6], terms = 48;
    conv2d_square: Conv2D<4, 4, 3>, T![4, 5, 5], terms = 36;
    conv2d_no_bias: Conv2DNoBias<2, 3, 3>, T![2, 5, 5], terms = 27;
    conv2d_stride2_pad1: Conv2D<2, 3, 3, 2, 1>, T![2, 7, 7], terms = 48;
    conv2d_stride2_pad1_even: Conv2D<3, 2, 3, 2, 1>, T![3, 8, 8], terms = 32;
    conv2d_dilation2: Conv2D<2, 3, 3, 1, 1, 2>, T![2, 8, 8], terms = 72;
    conv2d_groups2: Conv2D<4, 6, 3, 1, 1, 1, 2>, T![4, 5, 5], terms = 75;
    conv2d_depthwise: Conv2D<5, 5, 3, 1, 1, 1, 5>, T![5, 5, 5], terms = 75;
    conv2d_depthwise_stride2: Conv2D<4, 4, 3, 2, 1, 1, 4>, T![4, 7, 6], terms = 24;
    conv2d_depthwise_twice: Conv2D<3, 6, 3, 1, 1, 1, 3>, T![3, 5, 5], terms = 50;
    conv2d_oc1: Conv2D<3, 1, 3>, T![3, 6, 6], terms = 48;
    conv2d_ic1: Conv2D<1, 5, 3, 1, 1>, T![1, 6, 6], terms = 108;
    conv2d_1x1: Conv2D<5, 4, 1>, T![5, 4, 4], terms = 48;
    conv2d_1x1_stride2: Conv2D<4, 6, 1, 2>, T![4, 5, 5], terms = 18;
    conv2d_k5_pad2: Conv2D<2, 3, 5, 1, 2>, T![2, 6, 6], terms = 75;
    conv2d_not_square: Conv2D<2, 3, 3, 2, 1>, T![2, 5, 9], terms = 45;
    conv2d_patch: Conv2D<3, 6, 4, 4>, T![3, 8, 4], terms = 48;
    conv2d_all: Conv2D<4, 6, 3, 2, 2, 2, 2>, T![4, 9, 7], terms = 40;

    max_pool2d_k2: MaxPool2D<2>, T![2, 6, 4];
    max_pool2d_k2_odd: MaxPool2D<2>, T![2, 7, 5];
    max_pool2d_k2_ties: MaxPool2D<2>, T![2, 6, 6];
    max_pool2d_k3s1p1_ties: MaxPool2D<3, 1, 1>, T![1, 5, 6];
    max_pool2d_k3s2p1: MaxPool2D<3, 2, 1>, T![2, 7, 6];
    max_pool2d_k3s2p1_negative: MaxPool2D<3, 2, 1>, T![2, 5, 5];
    max_pool2d_k3s2p1_ties: MaxPool2D<3, 2, 1>, T![2, 7, 7];
    avg_pool2d_k2: AvgPool2D<2>, T![2, 6, 4];
    avg_pool2d_k2_odd: AvgPool2D<2>, T![2, 7, 5];
    avg_pool2d_k3s2p1: AvgPool2D<3, 2, 1>, T![2, 7, 6];

    pixel_shuffle: PixelShuffle<4, 3, 2>, T![16, 3];
    pixel_shuffle_s3: PixelShuffle<6, 2, 3>, T![36, 2];
    pixel_shuffle_s4: PixelShuffle<4, 5, 4>, T![16, 5];
    concat_axis0: Concat<0>, (T![5], T![8]);
    concat_axis0_planes: Concat<0>, (T![2, 4, 3], T![1, 4, 3], T![3, 4, 3]);
    concat_axis1: Concat<1>, (T![4, 2], T![4, 5]);
    slice_axis0: Slice<0, 2, 6>, T![9];
    slice_axis0_planes: Slice<0, 1, 4>, T![5, 2, 3];
    slice_axis1: Slice<1, 3, 7>, T![4, 7];

    embedding: Embedding<7, 5>, Ids<T![4]>;
    embedding_tied: Tied, Ids<T![4]>, terms = 12, under = "tokens.";
    rope: RoPE<5, 2, 8>, T![5, 16];
    rope_d2: RoPE<4, 3, 2>, T![4, 6];
    rope_partial: RoPE<4, 2, 8, Sci<1, 4>, No, 4>, T![4, 16];
    rope_interleaved: RoPEInterleaved<5, 2, 8>, T![5, 16];

    attention_major: ScaledDotProductAttention<5, 2, 4>, T![3, 2, 5, 4], terms = 5;
    attention_major_causal: MaskedAttention<6, 3, 2>, T![3, 3, 6, 2], terms = 6;
    attention_qkv: ScaledDotProductAttentionQKV<5, 2, 3>, T![5, 18], terms = 5;
    attention_causal: CausalAttention<7, 2, 4>, T![7, 24], terms = 7;
    attention_causal_one_token: CausalAttention<1, 2, 3>, T![1, 18], terms = 3;
    attention_causal_d1: CausalAttention<9, 3, 1>, T![9, 9], terms = 9;
    attention_causal_d80: CausalAttention<5, 2, 80>, T![5, 480], terms = 80;
    attention_causal_long: CausalAttention<131, 1, 5>, T![131, 15], terms = 131;
    qkv_to_major: QKVToMajor<5, 2, 3>, T![5, 18];
    gqa: GQAAttention<5, 6, 2, 3>, (T![5, 18], T![5, 6], T![5, 6]), terms = 5;
    gqa_open: GQAAttention<4, 4, 2, 5, No>, (T![4, 20], T![4, 10], T![4, 10]), terms = 5;
    gqa_one_head: GQAAttention<5, 3, 1, 4>, (T![5, 12], T![5, 4], T![5, 4]), terms = 5;
    gqa_full: GQAAttention<5, 3, 3, 2>, (T![5, 6], T![5, 6], T![5, 6]), terms = 5;
    // A bias of all keys changes nothing: its gradient is zero, and rounding is measured against one.
    causal_self_attention: CausalSelfAttention<5, 6, 2>, T![5, 6], terms = 24, scale = 1.0;
    self_attention_open: SelfAttention<4, 6, 3, 1, 0, No>, T![..4, 6], terms = 24, scale = 1.0;
    self_attention_turned: SelfAttention<5, 6, 4, 2, 4, Yes, Sci<1, 2>, No, No, No>, T![5, 6], terms = 24;
    self_attention_normed: SelfAttention<4, 6, 2, 1, 4, Yes, Sci<1, 4>, Sci<1, -6>, No, No>, T![4, 6], terms = 24;
    self_attention_normed_only: SelfAttention<4, 6, 2, 2, 0, No, No, Sci<1, -2>, Yes, No>, T![4, 6], terms = 24;
    encoder_block: EncoderBlock<4, 6, 2, 10>, T![4, 6], terms = 40, scale = 1.0;
    encoder_block_pre_norm: EncoderBlockPreNorm<4, 6, 2, 10>, T![..4, 6], terms = 40, scale = 1.0;
    decoder_block: DecoderBlock<5, 6, 2, 12>, T![5, 6], terms = 40, scale = 1.0;
    llama_block: LlamaBlock<5, 8, 4, 2, 10>, T![..5, 8], terms = 40;
    repeat_kv_heads: RepeatKVHeads<4, 2, 3, 5>, T![4, 10], terms = 3;
    cross_attention: CrossAttention<6, 2, 4, 6>, (T![4, 6], T![6, 6], T![6, 6]), terms = 6;
    cross_attention_one_query: CrossAttention<4, 1, 1, 5>, (T![1, 4], T![5, 4], T![5, 4]), terms = 5;
    cross_attention_masked: CrossAttention<4, 2, 2, 5, Yes>, (T![2, 4], T![5, 4], T![5, 4], T![5]), terms = 5;
    cross_attention_nothing_seen: CrossAttention<4, 1, 3, 4, Yes>, (T![3, 4], T![4, 4], T![4, 4], T![4]), terms = 4;
}

#[test]
#[should_panic(expected = "linear_relu, y0")]
fn another_function_is_told_apart() {
    check::<f64, LinearTanh<6, 5>, T![6]>("linear_relu", &Options::default());
}

#[test]
#[should_panic(expected = "attention_causal, y0")]
fn attention_to_later_tokens_is_told_apart() {
    check::<f64, ScaledDotProductAttentionQKV<7, 2, 4>, T![7, 24]>("attention_causal", &Options::default());
}

#[test]
#[should_panic(expected = "layer_norm_eps12, y0")]
fn another_epsilon_is_told_apart() {
    check::<f64, LayerNorm<8, Sci<2, -12>>, T![8]>("layer_norm_eps12", &Options::default());
}

#[test]
#[should_panic(expected = "linear, dx0")]
fn a_limit_that_is_too_tight_fails() {
    // Single precision can't keep the bound of double precision.
    let fixture = Fixture::read("linear");
    let mut run = Run::<Linear<7, 5>, T![7], Cpu<f32>>::new(&Cpu::default(), 3);
    run.set("weight", &fixture.get("param.weight").real());
    run.forward(&[host(fixture.get("x0"))]);
    let gradients = run.vjp(&[host(fixture.get("dy0"))]);
    assert_near(
        "linear, dx0",
        gradients.dx[0].as_ref().unwrap(),
        &fixture.get("dx0").values,
        0.0,
        limit::<f64>(1),
    );
}
