//! The models, as a user would declare them.

use nn::{
    BatchNorm2D, Bf16, CausalSelfAttention, Conv2DNoBias, Conv2DReLU, Embedding, F16, FeedForward, GELU,
    LayerNorm, Linear, LinearNoBias, LinearReLU, LinearTanh, LlamaBlock, MaxPool2D, No, PosEmbed,
    PreNormBlock, Q8_0, QuantizedLinear, RMSNorm, ReLU, Repeat, Residual, T, module, sequential,
};

sequential! {
    /// A policy for an agent.
    pub Policy: [8] -> [4] = LinearTanh<8, 64>, LinearTanh<64, 64>, Linear<64, 4>
}

sequential! {
    /// A perceptron for pictures of 28×28.
    pub Perceptron: [784] -> [10] = LinearReLU<784, 256>, LinearReLU<256, 128>, Linear<128, 10>
}

sequential! {
    /// A convolutional network for pictures of 28×28.
    pub SmallCnn: [1, 28, 28] -> [10] =
        Conv2DReLU<1, 16, 3, 1, 1>, MaxPool2D<2>,
        Conv2DReLU<16, 32, 3, 1, 1>, MaxPool2D<2>,
        nn::Flatten, Linear<1568, 10>
}

sequential! {
    /// What a block of a residual network adds.
    pub Branch<const C: usize, const N: usize>: [C, N, N] -> [C, N, N] =
        Conv2DNoBias<C, C, 3, 1, 1>, BatchNorm2D<C>, ReLU, Conv2DNoBias<C, C, 3, 1, 1>, BatchNorm2D<C>
}

sequential! {
    /// A block of a residual network.
    pub Block<const C: usize, const N: usize>: [C, N, N] -> [C, N, N] = Residual<Branch<C, N>>, ReLU
}

/// The first block of a stage: half the size, twice the channels.
#[module]
pub struct Down<const IC: usize, const OC: usize, const IN: usize, const N: usize> {
    conv1: Conv2DNoBias<IC, OC, 3, 2, 1>,
    bn1: BatchNorm2D<OC>,
    relu: ReLU,
    conv2: Conv2DNoBias<OC, OC, 3, 1, 1>,
    bn2: BatchNorm2D<OC>,
    shortcut: Conv2DNoBias<IC, OC, 1, 2>,
    shortcut_bn: BatchNorm2D<OC>,
}

#[module]
impl<const IC: usize, const OC: usize, const IN: usize, const N: usize> Down<IC, OC, IN, N> {
    fn forward(&self, x: T![IC, IN, IN]) -> T![OC, N, N] {
        let h = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))));
        self.relu(h + self.shortcut_bn(self.shortcut(x)))
    }
}

sequential! {
    /// He et al. 2015, the network of 20 layers for pictures of 32×32.
    pub ResNet20: [3, 32, 32] -> [10] =
        Conv2DNoBias<3, 16, 3, 1, 1>, BatchNorm2D<16>, ReLU,
        Repeat<Block<16, 32>, 3>,
        Down<16, 32, 32, 16>, Repeat<Block<32, 16>, 2>,
        Down<32, 64, 16, 8>, Repeat<Block<64, 8>, 2>,
        nn::AvgPool2D<8>, nn::Flatten, Linear<64, 10>
}

type GptBlock<const S: usize> =
    PreNormBlock<LayerNorm<128>, CausalSelfAttention<S, 128, 4>, LayerNorm<128>, FeedForward<128, 512, GELU>>;

sequential! {
    /// A transformer over characters.
    pub Gpt: Ids[128] -> [128, 65] =
        Embedding<65, 128>, PosEmbed<128, 128>, Repeat<GptBlock<128>, 4>, LayerNorm<128>, LinearNoBias<128, 65>
}

macro_rules! llamas {
    ($($(#[$doc:meta])* $name:ident $format:ident $head:ident<$($arg:tt),*>;)*) => {$(
        sequential! {
            $(#[$doc])*
            pub $name: Ids[..257] -> [..257, 32000] =
                Embedding<32000, 512>, Repeat<LlamaBlock<257, 512, 8, 4, 1408, 1e4, 1e-5, $format>, 8>,
                RMSNorm<512, 1e-5>, $head<$($arg),*>
        }
    )*};
}
llamas! {
    /// A stack of Llama's shape.
    Llama No LinearNoBias<512, 32000>;
    /// The same for inference, with weights in bfloat16.
    LlamaBf16 Bf16 QuantizedLinear<Bf16, 512, 32000>;
    /// The same in half precision.
    LlamaF16 F16 QuantizedLinear<F16, 512, 32000>;
    /// The same in 8 bits.
    LlamaQ8 Q8_0 QuantizedLinear<Q8_0, 512, 32000>;
}
