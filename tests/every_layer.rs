//! Each layer, forward and vjp, in batches of 1, 3 and 64: everything is written, and the bits are the same for any number
//! of threads. With the feature `cuda` in bfloat16 too, whose elements take less room than what is not rounded to them:
//! every layer says how much of each it needs.

use nn::check::{Run, Values};
use nn::kernels::philox::Philox;
use nn::*;

/// Inputs of a signature: random numbers, and indices below 7.
fn inputs(sig: &Sig, batch: usize) -> Vec<Values<f32>> {
    let mut random = Philox::new(1, batch as u64);
    let each = sig.tensors().iter().map(|t| {
        let n = batch * t.dims.numel();
        match t.kind {
            Kind::Real => Values::Real((0..n).map(|_| random.normal() as f32).collect()),
            Kind::Ids => Values::Ids((0..n).map(|_| random.below(7)).collect()),
        }
    });
    each.collect()
}

/// The bits of the outputs and of every gradient.
fn bits<M: Module<Cpu<f32>, X>, X: Signature>(batch: usize) -> Vec<u32> {
    let mut run = Run::<M, X, Cpu<f32>>::new(&Cpu::default(), batch).mode(Mode::Train);
    run.init(5);
    let outputs = run.forward(&inputs(&X::SIG, batch));
    let gradients = run.vjp(&inputs(&M::RULE.out, batch));
    let outputs = outputs.iter().flat_map(|y| y.real().to_vec());
    let gradients = gradients.dx.iter().flatten().flatten().copied().chain(gradients.dparams.iter().copied());
    outputs.chain(gradients).map(f32::to_bits).collect()
}

fn in_a_pool<T: Send>(threads: usize, run: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run)
}

fn check<M: Module<Cpu<f32>, X>, X: Signature>() {
    for batch in [1, 3, 64] {
        let one = in_a_pool(1, || bits::<M, X>(batch));
        // What a call must write held NaN before.
        assert!(one.iter().all(|b| f32::from_bits(*b).is_finite()), "{}, batch {batch}", M::LABEL);
        for threads in [2, 5] {
            let several = in_a_pool(threads, || bits::<M, X>(batch));
            assert!(one == several, "{}, batch {batch}, {threads} threads", M::LABEL);
        }
    }
}

#[cfg(feature = "cuda")]
mod in_bfloat16 {
    use half::bf16;
    use nn::kernels::Float;

    use super::*;

    /// Values that are the same in bfloat16.
    fn rounded<A: Float, B: Float>(values: &[A]) -> Vec<B> {
        values.iter().map(|v| B::from_f64(bf16::from_f64(v.to_f64()).to_f64())).collect()
    }

    fn given<E: Float>(sig: &Sig, batch: usize) -> Vec<Values<E>> {
        let each = inputs(sig, batch).into_iter().map(|values| match values {
            Values::Real(values) => Values::Real(rounded(&values)),
            Values::Ids(ids) => Values::Ids(ids),
        });
        each.collect()
    }

    /// Outputs, gradients and state.
    fn all<M: Module<D, X>, X: Signature, D: Device>(device: &D, batch: usize, mode: Mode) -> Vec<Vec<f64>> {
        fn wide<E: Float>(values: &[E]) -> Vec<f64> {
            values.iter().map(|v| v.to_f64()).collect()
        }
        let mut run = Run::<M, X, D>::new(device, batch).mode(mode);
        run.init(5);
        run.params = rounded(&run.params);
        let outputs = run.forward(&given(&X::SIG, batch));
        let gradients = run.vjp(&given(&M::RULE.out, batch));
        let outputs = outputs.iter().map(|y| wide(y.real()));
        let gradients = gradients
            .dx
            .iter()
            .flatten()
            .map(|dx| wide(dx))
            .chain([wide(&gradients.dparams)])
            .collect::<Vec<_>>();
        outputs.chain(gradients).chain([wide(&run.state)]).collect()
    }

    pub(super) fn check<M: Module<Cpu<f32>, X> + Module<Cuda<bf16>, X>, X: Signature>() {
        if std::env::var("NN_CUDA").as_deref() != Ok("gpu")
            && let Err(missing) = nn_cuda_emulator::install()
        {
            assert!(std::env::var_os("NN_REQUIRE_EMULATOR").is_none(), "{missing}");
            return;
        }
        let device = Cuda::<bf16>::new(0).unwrap();
        for (mode, batch) in [(Mode::Train, 1), (Mode::Train, 2), (Mode::Infer, 2)] {
            let found = all::<M, X, _>(&device, batch, mode);
            let expected = all::<M, X, _>(&Cpu::<f32>::default(), batch, mode);
            assert_eq!(found.len(), expected.len());
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found.len(), expected.len());
                // Packed weights are no numbers, and the same.
                let off = found.iter().zip(expected).filter(|(a, b)| a.to_bits() != b.to_bits());
                let off = off.map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
                let size = expected.iter().filter(|b| b.is_finite()).map(|b| b * b).sum::<f64>().sqrt();
                assert!(
                    off <= 0.02 * size,
                    "{}, {mode:?}, batch {batch}: {i} is off by {off} of {size}",
                    M::LABEL
                );
            }
        }
    }
}

#[module]
struct Inner {
    a: LinearTanh<24, 24>,
}
#[module]
impl Inner {
    fn forward(&self, x: T![24]) -> T![24] {
        self.a(x)
    }
}

macro_rules! layers {
    ($($name:ident: $layer:ty, $x:ty;)*) => {$(
        #[test]
        fn $name() {
            check::<$layer, $x>();
            #[cfg(feature = "cuda")]
            in_bfloat16::check::<$layer, $x>();
        }
    )*};
}

// Large enough, at 64, for work to be spread over threads.
layers! {
    linear: Linear<96, 130>, T![17, 96];
    linear_no_bias: LinearNoBias<96, 1>, T![33, 96];
    linear_relu: LinearReLU<64, 96>, T![17, 64];
    linear_tanh: LinearTanh<64, 96>, T![17, 64];
    linear_sigmoid: LinearSigmoid<64, 96>, T![17, 64];
    linear_swish: LinearSwish<64, 96>, T![17, 64];
    linear_mish: LinearMish<64, 96>, T![17, 64];
    linear_gelu: LinearGELU<64, 96>, T![17, 64];
    linear_gelu_tanh: LinearGELUTanh<64, 96>, T![17, 64];
    linear_elu: LinearELU<64, 96>, T![17, 64];
    quantized_bf16: QuantizedLinear<Bf16, 97, 130>, T![17, 97];
    quantized_f16: QuantizedLinear<F16, 97, 1, Yes>, T![33, 97];
    quantized_q8_0: QuantizedLinear<Q8_0, 96, 130, Yes>, T![17, 96];
    quantized_llama_block: LlamaBlock<37, 64, 4, 2, 96, Sci<1, 4>, Sci<1, -5>, Q8_0>, T![37, 64];
    relu: ReLU, T![37, 101];
    tanh: Tanh, T![37, 101];
    sigmoid: Sigmoid, T![37, 101];
    silu: SiLU, T![37, 101];
    mish: Mish, T![37, 101];
    gelu: GELU, T![37, 101];
    gelu_tanh: GELUTanh, T![37, 101];
    elu: ELU, T![37, 101];
    swiglu: SwiGLU<51>, T![37, 102];
    glu: GLU<51>, T![37, 102];
    swiglu_feed_forward: SwiGLUFeedForward<33, 80>, T![17, 33];
    feed_forward_gelu: FeedForwardGELU<33, 80>, T![17, 33];
    feed_forward_sigmoid: FeedForward<33, 80, Sigmoid>, T![17, 33];
    pos_embed: PosEmbed<37, 102>, T![37, 102];
    sinusoidal_pos_add: SinusoidalPosAdd<37, 102>, T![37, 102];
    lora_linear: LoRALinear<96, 130, 5, Sci<2, 0>>, T![17, 96];
    stop_grad: StopGrad, T![37, 101];
    grad_gate: GradGate, T![37, 101];
    hash_dropout: HashDropout<Sci<3, -1>>, T![37, 101];
    rsample: RSample<101>, (T![37, 101], T![37, 101]);
    rsample_tanh: RSampleTanh<101>, (T![37, 101], T![37, 101]);
    lstm_cell: LSTMCell<96, 130>, (T![96], T![130], T![130]);
    gru_cell: GRUCell<96, 130>, (T![96], T![130]);
    lstm_seq: LSTMSeq<33, 70, 9>, T![9, 33];
    lstm_seq_state: LSTMSeq<33, 70, 9>, (T![9, 33], T![70], T![70]);
    gru_seq: GRUSeq<33, 70, 9>, T![9, 33];
    gru_seq_state: GRUSeq<33, 70, 9>, (T![9, 33], T![70]);
    add: Add, (T![37, 101], T![37, 101]);
    mul: Mul, (T![37, 101], T![37, 101]);
    softmax: Softmax, T![19, 203];
    log_softmax: LogSoftmax, T![19, 203];
    layer_norm: LayerNorm<203>, T![19, 203];
    rms_norm: RMSNorm<203>, T![19, 203];
    batch_norm: BatchNorm2D<5>, T![5, 17, 19];
    dropout: Dropout<Sci<3, -1>>, T![37, 101];
    flatten: Flatten, T![3, 17, 19];
    conv2d: Conv2D<3, 10, 3, 1, 1>, T![3, 13, 14];
    conv2d_strided_dilated_grouped: Conv2D<4, 6, 3, 2, 2, 2, 2>, T![4, 13, 14];
    conv2d_depthwise: Conv2D<6, 6, 3, 1, 1, 1, 6>, T![6, 13, 14];
    conv2d_one_output: Conv2D<3, 1, 3>, T![3, 13, 14];
    conv2d_relu: Conv2DReLU<3, 10, 3, 1, 1>, T![3, 13, 14];
    conv2d_swish: Conv2DSwish<6, 6, 3, 1, 1, 1, 6>, T![6, 13, 14];
    max_pool2d: MaxPool2D<3, 2, 1>, T![4, 13, 14];
    avg_pool2d: AvgPool2D<3, 2, 1>, T![4, 13, 14];
    embedding: Embedding<7, 65>, Ids<T![90]>;
    concat: Concat<1>, (T![5, 7, 3], T![5, 2, 3]);
    slice: Slice<1, 2, 6>, T![5, 7, 13];
    pixel_shuffle: PixelShuffle<6, 5, 3>, T![36, 5];
    rope: RoPE<31, 3, 8>, T![31, 24];
    attention_of_packed_heads: ScaledDotProductAttention<37, 3, 8>, T![3, 3, 37, 8];
    masked_attention: MaskedAttention<37, 3, 8>, T![3, 3, 37, 8];
    attention_of_a_projection: ScaledDotProductAttentionQKV<37, 3, 8>, T![37, 72];
    causal_attention: CausalAttention<70, 3, 8>, T![70, 72];
    qkv_to_major: QKVToMajor<37, 3, 8>, T![37, 72];
    gqa_attention: GQAAttention<37, 4, 2, 8>, (T![37, 32], T![37, 16], T![37, 16]);
    cross_attention: CrossAttention<24, 3, 19, 70>, (T![19, 24], T![70, 24], T![70, 24]);
    cross_attention_masked: CrossAttention<24, 3, 19, 41, Yes>, (T![19, 24], T![41, 24], T![41, 24], T![41]);
    repeat_kv_heads: RepeatKVHeads<37, 2, 3, 8>, T![37, 16];
    causal_self_attention: CausalSelfAttention<37, 24, 3>, T![37, 24];
    self_attention: SelfAttention<37, 24, 4, 2, 8, No, Sci<1, 4>, Sci<1, -6>, No, No>, T![37, 24];
    decoder_block: DecoderBlock<37, 24, 3, 50>, T![37, 24];
    encoder_block: EncoderBlock<37, 24, 3, 50>, T![37, 24];
    encoder_block_pre_norm: EncoderBlockPreNorm<37, 24, 3, 50>, T![37, 24];
    llama_block: LlamaBlock<37, 24, 4, 2, 50>, T![37, 24];
    remat: Remat<Inner>, T![24];
    tok: Tok<Inner>, T![37, 24];
    init_with: InitWith<Inner, Orthogonal>, T![24];
    stop_grad_params: StopGradParams<Inner>, T![24];
    repeat_conditional: RepeatConditional<Add, 5>, (T![37, 101], T![37, 101]);
    residual: Residual<Inner>, T![24];
    repeat: Repeat<Inner, 5>, T![24];
}
