//! One token through a Llama-shaped stack.

use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Result, Tensor};
use candle_nn::kv_cache::KvCache;
use candle_nn::{Embedding, Module, RmsNorm, ops, rotary_emb};

use crate::layers::rotary_tables;
use crate::{Found, below, forward, normal, weights};

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
    /// candle's CPU multiplies no bf16 tensors, but quantised ones of that type.
    Bf16,
    Q8,
}

pub fn decode(kind: &str) -> Found {
    let stored = match kind {
        "decode-f32" => Stored::F32,
        "decode-bf16" => Stored::Bf16,
        "decode-8bit" => Stored::Q8,
        _ => return Ok(None),
    };
    let model = Llama::new(stored)?;
    let token = below(1, VOCABULARY as u32, 1)?;
    let params = 2 * VOCABULARY * WIDTH
        + BLOCKS * (2 * WIDTH * WIDTH + 2 * WIDTH * KV_HEADS * HEAD + 3 * WIDTH * HIDDEN + 2 * WIDTH)
        + WIDTH;
    forward(params, move || model.forward(&token))
}

fn linear(seed: u64, inputs: usize, outputs: usize, stored: Stored) -> Result<QMatMul> {
    let w = weights(seed, (outputs, inputs), inputs)?;
    let quantised = |dtype| Ok(QMatMul::QTensor(Arc::new(QTensor::quantize(&w, dtype)?)));
    match stored {
        Stored::F32 => Ok(QMatMul::Tensor(w)),
        Stored::Bf16 => quantised(GgmlDType::BF16),
        Stored::Q8 => quantised(GgmlDType::Q8_0),
    }
}

fn norm(seed: u64) -> Result<RmsNorm> {
    Ok(RmsNorm::new(normal(seed, WIDTH)?, 1e-5))
}

struct Block {
    norms: [RmsNorm; 2],
    q: QMatMul,
    k: QMatMul,
    v: QMatMul,
    out: QMatMul,
    gate: QMatMul,
    up: QMatMul,
    down: QMatMul,
    cache: KvCache,
}

impl Block {
    fn new(seed: u64, stored: Stored) -> Result<Self> {
        let mut cache = KvCache::new(1, CACHED + 1);
        let shape = (1, CACHED, KV_HEADS, HEAD);
        cache.append(&normal(seed + 9, shape)?, &normal(seed + 10, shape)?)?;
        Ok(Self {
            norms: [norm(seed)?, norm(seed + 1)?],
            q: linear(seed + 2, WIDTH, HEADS * HEAD, stored)?,
            k: linear(seed + 3, WIDTH, KV_HEADS * HEAD, stored)?,
            v: linear(seed + 4, WIDTH, KV_HEADS * HEAD, stored)?,
            out: linear(seed + 5, HEADS * HEAD, WIDTH, stored)?,
            gate: linear(seed + 6, WIDTH, HIDDEN, stored)?,
            up: linear(seed + 7, WIDTH, HIDDEN, stored)?,
            down: linear(seed + 8, HIDDEN, WIDTH, stored)?,
            cache,
        })
    }

    /// The cosines and sines are those of this token's position.
    fn forward(&self, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
        let [norm1, norm2] = &self.norms;
        let y = norm1.forward(x)?;
        let q = self.q.forward(&y)?.reshape((1, 1, HEADS, HEAD))?;
        let k = self.k.forward(&y)?.reshape((1, 1, KV_HEADS, HEAD))?;
        let v = self.v.forward(&y)?.reshape((1, 1, KV_HEADS, HEAD))?;
        let (q, k) = (rotary_emb::rope_thd(&q, cos, sin)?, rotary_emb::rope_thd(&k, cos, sin)?);
        // The clone shares the preallocated tensors and counts on by itself: the next call writes here again.
        let (k, v) = self.cache.clone().append(&k, &v)?;
        let y = attention(&q, &k, &v)?;
        let x = (x + self.out.forward(&y.reshape((1, HEADS * HEAD))?)?)?;
        let y = norm2.forward(&x)?;
        let hidden = (self.gate.forward(&y)?.silu()? * self.up.forward(&y)?)?;
        x + self.down.forward(&hidden)?
    }
}

/// The query heads of a key's head become rows of one product, which spares repeating keys and values.
fn attention(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let q = q.reshape((1, KV_HEADS, HEADS / KV_HEADS, HEAD))?;
    let (k, v) = (k.transpose(1, 2)?, v.transpose(1, 2)?);
    let scores = (q.matmul(&k.t()?)? * (1.0 / (HEAD as f64).sqrt()))?;
    ops::softmax_last_dim(&scores)?.matmul(&v)
}

struct Llama {
    tokens: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: QMatMul,
    cos: Tensor,
    sin: Tensor,
}

impl Llama {
    fn new(stored: Stored) -> Result<Self> {
        let table = normal(2, (VOCABULARY, WIDTH))?;
        let table = if let Stored::Bf16 = stored { table.to_dtype(DType::BF16)? } else { table };
        let (cos, sin) = rotary_tables(CACHED + 1, HEAD)?;
        Ok(Self {
            tokens: Embedding::new(table, WIDTH),
            blocks: (0..BLOCKS).map(|i| Block::new(100 * (i as u64 + 1), stored)).collect::<Result<_>>()?,
            norm: norm(3)?,
            head: linear(4, WIDTH, VOCABULARY, stored)?,
            cos,
            sin,
        })
    }

    fn forward(&self, token: &Tensor) -> Result<Tensor> {
        let mut x = self.tokens.forward(token)?.to_dtype(DType::F32)?;
        let (cos, sin) = (self.cos.narrow(0, CACHED, 1)?, self.sin.narrow(0, CACHED, 1)?);
        for block in &self.blocks {
            x = block.forward(&x, &cos, &sin)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }
}
