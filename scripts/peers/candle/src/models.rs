//! Whole models: their inference, and their train steps.

use candle_core::{D, Device, Result, Tensor};
use candle_nn::{
    AdamW, BatchNorm, Conv2d, Conv2dConfig, Embedding, Linear, Module, ModuleT, Optimizer, ParamsAdamW,
    VarBuilder, batch_norm, conv2d, conv2d_no_bias, embedding, linear, linear_no_bias, loss, ops,
};

use crate::{Found, Params, below, forward, normal, workload};

/// candle has Adam as the AdamW of no weight decay.
const ADAM: ParamsAdamW = ParamsAdamW { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };

/// A train step of what `build` builds, of the loss that `loss` makes of it.
fn train<M: 'static>(
    settings: ParamsAdamW,
    build: impl FnOnce(VarBuilder) -> Result<M>,
    loss: impl Fn(&M) -> Result<Tensor> + 'static,
) -> Found {
    let params = Params::new();
    let model = build(params.trained())?;
    let mut optimiser = AdamW::new(params.vars(), settings)?;
    workload(params.count(), move || {
        let loss = loss(&model)?;
        optimiser.backward_step(&loss)?;
        loss.to_scalar()
    })
}

/// The inference of what `build` builds, on `x`.
fn infer<M: Module + 'static>(build: impl Fn(VarBuilder) -> Result<M>, x: Tensor) -> Found {
    let params = Params::new();
    build(params.trained())?;
    let model = build(params.frozen())?;
    forward(params.count(), move || model.forward(&x))
}

struct Mlp {
    linears: [Linear; 3],
    activation: fn(&Tensor) -> Result<Tensor>,
}

impl Mlp {
    fn new(widths: [usize; 4], activation: fn(&Tensor) -> Result<Tensor>, vb: VarBuilder) -> Result<Self> {
        let [a, b, c, d] = widths;
        let linears =
            [linear(a, b, vb.pp("first"))?, linear(b, c, vb.pp("second"))?, linear(c, d, vb.pp("third"))?];
        Ok(Self { linears, activation })
    }
}

impl Module for Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [first, second, third] = &self.linears;
        let x = (self.activation)(&first.forward(x)?)?;
        let x = (self.activation)(&second.forward(&x)?)?;
        third.forward(&x)
    }
}

pub fn policy(kind: &str) -> Found {
    let build = |vb: VarBuilder| Mlp::new([8, 64, 64, 4], Tensor::tanh, vb);
    match kind.split_once('-').map(|(kind, batch)| (kind, batch.parse::<usize>())) {
        Some(("forward", Ok(batch))) => infer(build, normal(1, (batch, 8))?),
        Some(("train", Ok(batch))) => {
            let (x, target) = (normal(1, (batch, 8))?, normal(2, (batch, 4))?);
            train(ADAM, build, move |model| loss::mse(&model.forward(&x)?, &target))
        }
        _ => Ok(None),
    }
}

pub fn digits(kind: &str) -> Found {
    let build = |vb: VarBuilder| Mlp::new([784, 256, 128, 10], Tensor::relu, vb);
    classifier(kind, build, normal(1, (64, 784))?)
}

pub fn convnet(kind: &str) -> Found {
    classifier(kind, ConvNet::new, normal(1, (32, 1, 28, 28))?)
}

/// `forward` and `train` of a model of ten classes.
fn classifier<M: Module + 'static>(
    kind: &str,
    build: impl Fn(VarBuilder) -> Result<M> + 'static,
    x: Tensor,
) -> Found {
    let labels = below(2, 10, x.dim(0)?)?;
    match kind {
        "forward" => infer(build, x),
        "train" => train(ADAM, build, move |model| loss::cross_entropy(&model.forward(&x)?, &labels)),
        _ => Ok(None),
    }
}

struct ConvNet {
    first: Conv2d,
    second: Conv2d,
    head: Linear,
}

impl ConvNet {
    fn new(vb: VarBuilder) -> Result<Self> {
        let same = Conv2dConfig { padding: 1, ..Default::default() };
        Ok(Self {
            first: conv2d(1, 16, 3, same, vb.pp("first"))?,
            second: conv2d(16, 32, 3, same, vb.pp("second"))?,
            head: linear(1568, 10, vb.pp("head"))?,
        })
    }
}

impl Module for ConvNet {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.first.forward(x)?.relu()?.max_pool2d(2)?;
        let x = self.second.forward(&x)?.relu()?.max_pool2d(2)?;
        self.head.forward(&x.flatten_from(1)?)
    }
}

/// A convolution without bias and its batch norm.
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm,
}

impl ConvNorm {
    fn new(inputs: usize, outputs: usize, kernel: usize, stride: usize, vb: VarBuilder) -> Result<Self> {
        let config = Conv2dConfig { stride, padding: kernel / 2, ..Default::default() };
        let conv = conv2d_no_bias(inputs, outputs, kernel, config, vb.pp("conv"))?;
        Ok(Self { conv, norm: batch_norm(outputs, 1e-5, vb.pp("norm"))? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward_t(&self.conv.forward(x)?, true)
    }
}

struct BasicBlock {
    first: ConvNorm,
    second: ConvNorm,
    shortcut: Option<ConvNorm>,
}

impl BasicBlock {
    fn new(inputs: usize, outputs: usize, stride: usize, vb: VarBuilder) -> Result<Self> {
        let shortcut = (stride != 1).then(|| ConvNorm::new(inputs, outputs, 1, stride, vb.pp("shortcut")));
        Ok(Self {
            first: ConvNorm::new(inputs, outputs, 3, stride, vb.pp("first"))?,
            second: ConvNorm::new(outputs, outputs, 3, 1, vb.pp("second"))?,
            shortcut: shortcut.transpose()?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.second.forward(&self.first.forward(x)?.relu()?)?;
        match &self.shortcut {
            Some(shortcut) => (y + shortcut.forward(x)?)?.relu(),
            None => (y + x)?.relu(),
        }
    }
}

struct ResNet20 {
    stem: ConvNorm,
    blocks: Vec<BasicBlock>,
    head: Linear,
}

impl ResNet20 {
    fn new(vb: VarBuilder) -> Result<Self> {
        let mut blocks = Vec::new();
        for (stage, (inputs, outputs)) in [(16, 16), (16, 32), (32, 64)].into_iter().enumerate() {
            for block in 0..3 {
                let (inputs, stride) = match block {
                    0 => (inputs, if stage == 0 { 1 } else { 2 }),
                    _ => (outputs, 1),
                };
                let vb = vb.pp(format!("stages.{stage}.{block}"));
                blocks.push(BasicBlock::new(inputs, outputs, stride, vb)?);
            }
        }
        Ok(Self {
            stem: ConvNorm::new(3, 16, 3, 1, vb.pp("stem"))?,
            blocks,
            head: linear(64, 10, vb.pp("head"))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = self.stem.forward(x)?.relu()?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.head.forward(&x.mean((2, 3))?)
    }
}

pub fn resnet20() -> Found {
    let (x, labels) = (normal(1, (32, 3, 32, 32))?, below(2, 10, 32)?);
    train(ADAM, ResNet20::new, move |model| loss::cross_entropy(&model.forward(&x)?, &labels))
}

/// `candle_nn::LayerNorm` takes a fused operation that no gradient goes through, hence `layer_norm_slow`.
struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
}

impl LayerNorm {
    fn new(width: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            weight: vb.get_with_hints(width, "weight", candle_nn::init::ONE)?,
            bias: vb.get_with_hints(width, "bias", candle_nn::init::ZERO)?,
        })
    }
}

impl Module for LayerNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::layer_norm_slow(x, &self.weight, &self.bias, 1e-5)
    }
}

const WIDTH: usize = 128;
const HEADS: usize = 4;

struct GptBlock {
    norms: [LayerNorm; 2],
    qkv: Linear,
    projection: Linear,
    up: Linear,
    down: Linear,
}

impl GptBlock {
    fn new(vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            norms: [LayerNorm::new(WIDTH, vb.pp("norm1"))?, LayerNorm::new(WIDTH, vb.pp("norm2"))?],
            qkv: linear(WIDTH, 3 * WIDTH, vb.pp("qkv"))?,
            projection: linear(WIDTH, WIDTH, vb.pp("projection"))?,
            up: linear(WIDTH, 4 * WIDTH, vb.pp("up"))?,
            down: linear(4 * WIDTH, WIDTH, vb.pp("down"))?,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let [norm1, norm2] = &self.norms;
        let x = (x + self.attention(&norm1.forward(x)?, mask)?)?;
        let hidden = self.up.forward(&norm2.forward(&x)?)?.gelu_erf()?;
        x + self.down.forward(&hidden)?
    }

    fn attention(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (batch, tokens, _) = x.dims3()?;
        let qkv = self.qkv.forward(x)?;
        let heads = |which: usize| {
            qkv.narrow(D::Minus1, which * WIDTH, WIDTH)?
                .reshape((batch, tokens, HEADS, WIDTH / HEADS))?
                .transpose(1, 2)?
                .contiguous()
        };
        let y = causal_attention(&heads(0)?, &heads(1)?, &heads(2)?, mask)?;
        self.projection.forward(&y.transpose(1, 2)?.reshape((batch, tokens, WIDTH))?)
    }
}

/// 0 where a token may look, minus infinity where it may not.
pub fn causal_mask(tokens: usize) -> Result<Tensor> {
    let mask: Vec<f32> = (0..tokens)
        .flat_map(|row| (0..tokens).map(move |column| if column > row { f32::NEG_INFINITY } else { 0.0 }))
        .collect();
    Tensor::from_vec(mask, (tokens, tokens), &Device::Cpu)
}

/// Attention made of operations that gradients go through.
pub fn causal_attention(q: &Tensor, k: &Tensor, v: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let scale = 1.0 / (q.dim(D::Minus1)? as f64).sqrt();
    let scores = (q.matmul(&k.t()?)? * scale)?.broadcast_add(mask)?;
    ops::softmax(&scores, D::Minus1)?.matmul(v)
}

struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<GptBlock>,
    norm: LayerNorm,
    head: Linear,
}

impl Gpt {
    fn new(vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            tokens: embedding(65, WIDTH, vb.pp("tokens"))?,
            positions: embedding(128, WIDTH, vb.pp("positions"))?,
            blocks: (0..4).map(|i| GptBlock::new(vb.pp(format!("blocks.{i}")))).collect::<Result<_>>()?,
            norm: LayerNorm::new(WIDTH, vb.pp("norm"))?,
            head: linear_no_bias(WIDTH, 65, vb.pp("head"))?,
        })
    }

    fn forward(&self, ids: &Tensor, positions: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let mut x =
            self.tokens.forward(ids)?.broadcast_add(&self.positions.forward(positions)?.unsqueeze(0)?)?;
        for block in &self.blocks {
            x = block.forward(&x, mask)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }
}

pub fn gpt() -> Found {
    let (ids, labels) = (below(1, 65, (8, 128))?, below(2, 65, 8 * 128)?);
    let (positions, mask) = (Tensor::arange(0_u32, 128, &Device::Cpu)?, causal_mask(128)?);
    train(ParamsAdamW { weight_decay: 0.1, ..ADAM }, Gpt::new, move |model| {
        let logits = model.forward(&ids, &positions, &mask)?;
        loss::cross_entropy(&logits.flatten_to(1)?, &labels)
    })
}
