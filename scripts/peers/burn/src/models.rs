//! Whole models: their inference, and their train steps.

use burn::nn::activation::{Activation, ActivationConfig};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::{CrossEntropyLossConfig, MseLoss, Reduction};
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig, Linear,
    LinearConfig, PaddingConfig2d, Relu,
};
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::prelude::*;
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;

use crate::protocol::Workload;
use crate::{Found, below, forward, normal};

fn adam() -> ModuleOptimizer {
    AdamConfig::new().with_epsilon(1e-8).init()
}

/// A train step of `model` by the loss that `loss` makes of it.
fn train<M: Module + 'static>(
    model: M,
    mut optimiser: ModuleOptimizer,
    loss: impl Fn(&M) -> Tensor<1> + 'static,
) -> Found {
    let params = model.num_params();
    let mut model = Some(model);
    let call = move || {
        let current = model.take().ok_or("an earlier step failed")?;
        let loss = loss(&current);
        let grads = GradientsParams::from_grads(loss.backward(), &current);
        model = Some(optimiser.step(1e-3, current, grads));
        Ok(loss.into_scalar())
    };
    Some(Workload { params, call: Box::new(call) })
}

#[derive(Module, Debug)]
struct Mlp {
    first: Linear,
    second: Linear,
    third: Linear,
    activation: Activation,
}

impl Mlp {
    fn new([a, b, c, d]: [usize; 4], activation: ActivationConfig, device: &Device) -> Self {
        Self {
            first: LinearConfig::new(a, b).init(device),
            second: LinearConfig::new(b, c).init(device),
            third: LinearConfig::new(c, d).init(device),
            activation: activation.init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = self.activation.forward(self.first.forward(x));
        let x = self.activation.forward(self.second.forward(x));
        self.third.forward(x)
    }
}

pub fn policy(kind: &str, device: Device) -> Found {
    let build = |device: &Device| Mlp::new([8, 64, 64, 4], ActivationConfig::Tanh, device);
    let (kind, batch) = kind.split_once('-')?;
    let batch = batch.parse().ok()?;
    match kind {
        "forward" => {
            let (model, x) = (build(&device), normal(1, [batch, 8], &device));
            forward(model.num_params(), move || model.forward(x.clone()))
        }
        "train" => {
            let device = device.autodiff();
            let (x, target) = (normal(1, [batch, 8], &device), normal(2, [batch, 4], &device));
            train(build(&device), adam(), move |model: &Mlp| {
                MseLoss::new().forward(model.forward(x.clone()), target.clone(), Reduction::Mean)
            })
        }
        _ => None,
    }
}

pub fn digits(kind: &str, device: Device) -> Found {
    let build = |device: &Device| Mlp::new([784, 256, 128, 10], ActivationConfig::Relu, device);
    classifier(kind, device, build, [64, 784], Mlp::forward)
}

pub fn convnet(kind: &str, device: Device) -> Found {
    classifier(kind, device, ConvNet::new, [32, 1, 28, 28], ConvNet::forward)
}

/// `forward` and `train` of a model of ten classes.
fn classifier<M: Module + 'static, const D: usize>(
    kind: &str,
    device: Device,
    build: impl Fn(&Device) -> M,
    shape: [usize; D],
    run: impl Fn(&M, Tensor<D>) -> Tensor<2> + 'static,
) -> Found {
    match kind {
        "forward" => {
            let (model, x) = (build(&device), normal(1, shape, &device));
            forward(model.num_params(), move || run(&model, x.clone()))
        }
        "train" => {
            let device = device.autodiff();
            let (x, labels) = (normal(1, shape, &device), below(2, 10, [shape[0]], &device));
            let loss = CrossEntropyLossConfig::new().init(&device);
            train(build(&device), adam(), move |model: &M| {
                loss.forward(run(model, x.clone()), labels.clone())
            })
        }
        _ => None,
    }
}

#[derive(Module, Debug)]
struct ConvNet {
    first: Conv2d,
    second: Conv2d,
    pool: MaxPool2d,
    head: Linear,
}

impl ConvNet {
    fn new(device: &Device) -> Self {
        let conv = |inputs, outputs| {
            let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
            Conv2dConfig::new([inputs, outputs], [3, 3]).with_padding(padding).init(device)
        };
        Self {
            first: conv(1, 16),
            second: conv(16, 32),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            head: LinearConfig::new(1568, 10).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self.pool.forward(Relu::new().forward(self.first.forward(x)));
        let x = self.pool.forward(Relu::new().forward(self.second.forward(x)));
        self.head.forward(x.flatten(1, 3))
    }
}

/// A convolution without bias and its batch norm.
#[derive(Module, Debug)]
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm,
}

impl ConvNorm {
    fn new(inputs: usize, outputs: usize, kernel: usize, stride: usize, device: &Device) -> Self {
        let pad = kernel / 2;
        let conv = Conv2dConfig::new([inputs, outputs], [kernel, kernel])
            .with_stride([stride, stride])
            .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
            .with_bias(false)
            .init(device);
        Self { conv, norm: BatchNormConfig::new(outputs).init(device) }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.norm.forward(self.conv.forward(x))
    }
}

#[derive(Module, Debug)]
struct BasicBlock {
    first: ConvNorm,
    second: ConvNorm,
    shortcut: Option<ConvNorm>,
}

impl BasicBlock {
    fn new(inputs: usize, outputs: usize, stride: usize, device: &Device) -> Self {
        Self {
            first: ConvNorm::new(inputs, outputs, 3, stride, device),
            second: ConvNorm::new(outputs, outputs, 3, 1, device),
            shortcut: (stride != 1).then(|| ConvNorm::new(inputs, outputs, 1, stride, device)),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let y = self.second.forward(Relu::new().forward(self.first.forward(x.clone())));
        let x = match &self.shortcut {
            Some(shortcut) => shortcut.forward(x),
            None => x,
        };
        Relu::new().forward(y + x)
    }
}

#[derive(Module, Debug)]
struct ResNet20 {
    stem: ConvNorm,
    blocks: Vec<BasicBlock>,
    pool: AdaptiveAvgPool2d,
    head: Linear,
}

impl ResNet20 {
    fn new(device: &Device) -> Self {
        let mut blocks = Vec::new();
        for (inputs, outputs, stride) in [(16, 16, 1), (16, 32, 2), (32, 64, 2)] {
            blocks.push(BasicBlock::new(inputs, outputs, stride, device));
            blocks.push(BasicBlock::new(outputs, outputs, 1, device));
            blocks.push(BasicBlock::new(outputs, outputs, 1, device));
        }
        Self {
            stem: ConvNorm::new(3, 16, 3, 1, device),
            blocks,
            pool: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            head: LinearConfig::new(64, 10).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = Relu::new().forward(self.stem.forward(x));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.head.forward(self.pool.forward(x).flatten(1, 3))
    }
}

/// `device` records gradients, which is what puts batch norm in its training mode.
pub fn resnet20(device: Device) -> Found {
    let (x, labels) = (normal(1, [32, 3, 32, 32], &device), below(2, 10, [32], &device));
    let loss = CrossEntropyLossConfig::new().init(&device);
    let found = train(ResNet20::new(&device), adam(), move |model: &ResNet20| {
        loss.forward(model.forward(x.clone()), labels.clone())
    });
    // burn counts running means and variances too: of 7 norms of 16 channels, 7 of 32 and 7 of 64.
    found.map(|work| Workload { params: work.params - 2 * 7 * (16 + 32 + 64), ..work })
}

const WIDTH: usize = 128;
const HEADS: usize = 4;

#[derive(Module, Debug)]
struct GptBlock {
    norm1: LayerNorm,
    qkv: Linear,
    projection: Linear,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
}

impl GptBlock {
    fn new(device: &Device) -> Self {
        Self {
            norm1: LayerNormConfig::new(WIDTH).init(device),
            qkv: LinearConfig::new(WIDTH, 3 * WIDTH).init(device),
            projection: LinearConfig::new(WIDTH, WIDTH).init(device),
            norm2: LayerNormConfig::new(WIDTH).init(device),
            up: LinearConfig::new(WIDTH, 4 * WIDTH).init(device),
            down: LinearConfig::new(4 * WIDTH, WIDTH).init(device),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = x.clone() + self.attention(self.norm1.forward(x));
        let hidden = Gelu::new().forward(self.up.forward(self.norm2.forward(x.clone())));
        x + self.down.forward(hidden)
    }

    fn attention(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, tokens, _] = x.dims();
        let qkv = self.qkv.forward(x);
        let heads = |which: usize| {
            let part = qkv.clone().narrow(2, which * WIDTH, WIDTH);
            part.reshape([batch, tokens, HEADS, WIDTH / HEADS]).swap_dims(1, 2)
        };
        let y = attention(heads(0), heads(1), heads(2), None, None, causal());
        self.projection.forward(y.swap_dims(1, 2).reshape([batch, tokens, WIDTH]))
    }
}

/// Causal attention of the usual scale.
pub fn causal() -> AttentionModuleOptions {
    AttentionModuleOptions { is_causal: true, ..Default::default() }
}

#[derive(Module, Debug)]
struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<GptBlock>,
    norm: LayerNorm,
    head: Linear,
}

impl Gpt {
    fn new(device: &Device) -> Self {
        Self {
            tokens: EmbeddingConfig::new(65, WIDTH).init(device),
            positions: EmbeddingConfig::new(128, WIDTH).init(device),
            blocks: (0..4).map(|_| GptBlock::new(device)).collect(),
            norm: LayerNormConfig::new(WIDTH).init(device),
            head: LinearConfig::new(WIDTH, 65).with_bias(false).init(device),
        }
    }

    fn forward(&self, ids: Tensor<2, Int>, positions: Tensor<2, Int>) -> Tensor<3> {
        let x = self.tokens.forward(ids) + self.positions.forward(positions);
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.head.forward(self.norm.forward(x))
    }
}

pub fn gpt(device: Device) -> Found {
    let (ids, labels) = (below(1, 65, [8, 128], &device), below(2, 65, [8 * 128], &device));
    let positions = Tensor::<1, Int>::arange(0..128, &device).unsqueeze::<2>();
    let loss = CrossEntropyLossConfig::new().init(&device);
    let optimiser = AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.1).init();
    train(Gpt::new(&device), optimiser, move |model: &Gpt| {
        let logits = model.forward(ids.clone(), positions.clone());
        loss.forward(logits.flatten(0, 1), labels.clone())
    })
}
