//! One token through a Llama-shaped stack.

use burn::module::{ModuleMapper, Param, Quantizer};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, LinearLayout, RmsNorm, RmsNormConfig};
use burn::prelude::*;
use burn::tensor::FloatDType;
use burn::tensor::activation::silu;
use burn::tensor::module::attention;
use burn::tensor::quantization::{Calibration, QuantValue};

use crate::layers::{rotary_tables, rotated};
use crate::{Found, below, forward, normal};

const VOCABULARY: usize = 32_000;
const WIDTH: usize = 512;
const HIDDEN: usize = 1408;
const HEADS: usize = 8;
const KV_HEADS: usize = 4;
const HEAD: usize = 64;
const BLOCKS: usize = 8;
/// How many tokens the cache holds before the timed one.
const CACHED: usize = 256;

/// How the weights are stored.
#[derive(Clone, Copy)]
enum Stored {
    F32,
    /// burn's operations take tensors of one type, so all of the arithmetic is bf16.
    Bf16,
    /// Of the linears only, symmetric, with one scale a tensor: the default scheme of burn's CPU backends.
    Q8,
}

pub fn decode(kind: &str, device: Device) -> Found {
    let stored = match kind {
        "decode-f32" => Stored::F32,
        "decode-bf16" => Stored::Bf16,
        "decode-8bit" => Stored::Q8,
        _ => return None,
    };
    let mut model = Llama::new(stored, &device);
    let token = below(1, VOCABULARY as u32, [1, 1], &device);
    let params = 2 * VOCABULARY * WIDTH
        + BLOCKS * (2 * WIDTH * WIDTH + 2 * WIDTH * KV_HEADS * HEAD + 3 * WIDTH * HIDDEN + 2 * WIDTH)
        + WIDTH;
    forward(params, move || model.forward(token.clone()))
}

struct ToBf16;

impl ModuleMapper for ToBf16 {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.cast(FloatDType::BF16))
    }
}

fn cast<const D: usize>(tensor: Tensor<D>, stored: Stored) -> Tensor<D> {
    match stored {
        Stored::Bf16 => tensor.cast(FloatDType::BF16),
        Stored::F32 | Stored::Q8 => tensor,
    }
}

fn linear(inputs: usize, outputs: usize, stored: Stored, device: &Device) -> Linear {
    let layout = if std::env::var("COL").is_ok() { LinearLayout::Col } else { LinearLayout::Row };
    let layer = LinearConfig::new(inputs, outputs).with_bias(false).with_layout(layout).init(device);
    match stored {
        Stored::F32 => layer,
        Stored::Bf16 => layer.map(&mut ToBf16),
        Stored::Q8 => {
            let scheme = device.settings().quantization.scheme.with_value(QuantValue::Q8S);
            layer.quantize_weights(&mut Quantizer::new(Calibration::MinMax, scheme))
        }
    }
}

fn norm(seed: u64, stored: Stored, device: &Device) -> RmsNorm {
    let mut norm = RmsNormConfig::new(WIDTH).init(device);
    norm.gamma = Param::from_tensor(cast(normal(seed, [WIDTH], device), stored));
    norm
}

/// A token's place in what the blocks have kept of the tokens before.
struct Cache(Option<Tensor<4>>);

impl Cache {
    fn new(seed: u64, stored: Stored, device: &Device) -> Self {
        Self(Some(cast(normal(seed, [1, KV_HEADS, CACHED + 1, HEAD], device), stored)))
    }

    /// All tokens' values, of which `latest` are the last: written in place, as nothing else holds the tensor.
    fn with(&mut self, latest: Tensor<4>) -> Tensor<4> {
        let kept = self.0.take().expect("it's always put back");
        let kept = kept.slice_assign(s![.., .., CACHED..=CACHED, ..], latest);
        self.0.insert(kept).clone()
    }
}

struct Block {
    norm1: RmsNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    norm2: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
    keys: Cache,
    values: Cache,
}

impl Block {
    fn new(seed: u64, stored: Stored, device: &Device) -> Self {
        Self {
            norm1: norm(seed, stored, device),
            q: linear(WIDTH, HEADS * HEAD, stored, device),
            k: linear(WIDTH, KV_HEADS * HEAD, stored, device),
            v: linear(WIDTH, KV_HEADS * HEAD, stored, device),
            out: linear(HEADS * HEAD, WIDTH, stored, device),
            norm2: norm(seed + 1, stored, device),
            gate: linear(WIDTH, HIDDEN, stored, device),
            up: linear(WIDTH, HIDDEN, stored, device),
            down: linear(HIDDEN, WIDTH, stored, device),
            keys: Cache::new(seed + 2, stored, device),
            values: Cache::new(seed + 3, stored, device),
        }
    }

    /// The cosines and sines are those of this token's position.
    fn forward(&mut self, x: Tensor<2>, cos: Tensor<4>, sin: Tensor<4>) -> Tensor<2> {
        let y = self.norm1.forward(x.clone());
        // The query heads of a key's head are rows of one product, which spares repeating keys and values.
        let q = self.q.forward(y.clone()).reshape([1, KV_HEADS, HEADS / KV_HEADS, HEAD]);
        let k = self.k.forward(y.clone()).reshape([1, KV_HEADS, 1, HEAD]);
        let v = self.v.forward(y).reshape([1, KV_HEADS, 1, HEAD]);
        let keys = self.keys.with(rotated(k, cos.clone(), sin.clone()));
        let values = self.values.with(v);
        let y = attention(rotated(q, cos, sin), keys, values, None, None, Default::default());
        let x = x + self.out.forward(y.reshape([1, HEADS * HEAD]));
        let y = self.norm2.forward(x.clone());
        let hidden = silu(self.gate.forward(y.clone())) * self.up.forward(y);
        x + self.down.forward(hidden)
    }
}

struct Llama {
    tokens: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Linear,
    cos: Tensor<4>,
    sin: Tensor<4>,
}

impl Llama {
    fn new(stored: Stored, device: &Device) -> Self {
        let tokens = EmbeddingConfig::new(VOCABULARY, WIDTH).init(device);
        let (cos, sin) = rotary_tables(CACHED + 1, HEAD, device);
        let here = |table: Tensor<2>| cast(table.narrow(0, CACHED, 1).unsqueeze::<4>(), stored);
        Self {
            tokens: if let Stored::Bf16 = stored { tokens.map(&mut ToBf16) } else { tokens },
            blocks: (1..=BLOCKS).map(|i| Block::new(100 * i as u64, stored, device)).collect(),
            norm: norm(3, stored, device),
            head: linear(WIDTH, VOCABULARY, stored, device),
            cos: here(cos),
            sin: here(sin),
        }
    }

    fn forward(&mut self, token: Tensor<2, Int>) -> Tensor<2> {
        let mut x = self.tokens.forward(token).reshape([1, WIDTH]);
        for block in &mut self.blocks {
            x = block.forward(x, self.cos.clone(), self.sin.clone());
        }
        self.head.forward(self.norm.forward(x))
    }
}
