//! The workloads that `nn` is measured with: the same for `cargo bench` and for the comparison with other libraries.

mod layers;
pub mod models;

use std::hint::black_box;
use std::time::{Duration, Instant};

use nn::kernels::ops::{Linear as _, LinearSpec, Unary};
use nn::kernels::philox::Philox;
use nn::{Adam, AdamW, Cpu, CrossEntropy, Error, KvCache, MSE, Model, Weights};

/// One piece of work, ready to be done again and again.
pub struct Work {
    /// How many numbers of the model are trained.
    pub params: usize,
    /// Does it once.
    pub call: Box<dyn FnMut() + Send>,
}

/// All names, in the order of the report.
pub const NAMES: &[&str] = &[
    "w1-forward-1",
    "w1-forward-32",
    "w1-forward-256",
    "w1-train-32",
    "w1-train-256",
    "w2-forward",
    "w2-train",
    "w3-forward",
    "w3-train",
    "w4-train",
    "w5-train",
    "w6-linear-64x256x256",
    "w6-linear-64x256x256-vjp",
    "w6-linear-1024x768x3072",
    "w6-linear-1024x768x3072-vjp",
    "w6-layer-norm",
    "w6-layer-norm-vjp",
    "w6-rms-norm",
    "w6-rms-norm-vjp",
    "w6-softmax",
    "w6-softmax-vjp",
    "w6-gelu",
    "w6-gelu-vjp",
    "w6-attention",
    "w6-attention-vjp",
    "w6-conv",
    "w6-conv-vjp",
    "w6-rope",
    "w6-rope-vjp",
    "w6-embedding",
    "w6-embedding-vjp",
    "w7-decode-f32",
    "w7-decode-bf16",
    "w7-decode-8bit",
    "w8-matmul-64",
    "w8-matmul-128",
    "w8-matmul-256",
    "w8-matmul-512",
    "w8-matmul-1024",
    "w8-matmul-2048",
    "w8-matmul-1x1024x1024",
    "w8-matmul-8x1024x1024",
    "w8-matmul-32x1024x1024",
];

/// The next token of a model that has been given a text.
macro_rules! decode {
    ($model:ty) => {{
        let prompt = || -> Result<Work, Error> {
            let weights = Weights::<$model, Cpu<f32>>::new(Cpu::new()?, 1)?;
            let mut cache = KvCache::new(&weights, 1)?;
            cache.forward(&weights, &ids(2, PROMPT, 32000))?;
            // Frozen ones, too: some weights are in a format that does not learn.
            let params = weights.parameters().iter().map(|p| p.len()).sum();
            let call = Box::new(move || {
                cache.rewind(PROMPT);
                black_box(cache.forward(&weights, &[17]).expect(WHOLE));
            });
            Ok(Work { params, call })
        };
        prompt()
    }};
}

/// Makes a workload, or `None` if there is none of that name.
pub fn work(name: &str) -> Option<Result<Work, Error>> {
    if let Some(sizes) = name.strip_prefix("w8-matmul-") {
        let sizes: Vec<usize> = sizes.split('x').filter_map(|n| n.parse().ok()).collect();
        return match sizes[..] {
            [n] => Some(Ok(matmul(n, n, n))),
            [m, k, n] => Some(Ok(matmul(m, k, n))),
            _ => None,
        };
    }
    Some(match name {
        "w1-forward-1" => policy(1, false),
        "w1-forward-32" => policy(32, false),
        "w1-forward-256" => policy(256, false),
        "w1-train-32" => policy(32, true),
        "w1-train-256" => policy(256, true),
        "w2-forward" => perceptron(false),
        "w2-train" => perceptron(true),
        "w3-forward" => small_cnn(false),
        "w3-train" => small_cnn(true),
        "w4-train" => resnet(true),
        "w5-train" => gpt(),
        "w7-decode-f32" => decode!(models::Llama),
        "w7-decode-bf16" => decode!(models::LlamaBf16),
        "w7-decode-f16" => decode!(models::LlamaF16),
        "w7-decode-8bit" => decode!(models::LlamaQ8),
        _ => return layers::work(name),
    })
}

/// Numbers of a normal distribution, which are never all zero.
pub fn random(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = Philox::new(seed, 0);
    (0..n).map(|_| rng.normal() as f32).collect()
}

/// Whole numbers below `below`.
pub fn ids(seed: u64, n: usize, below: u32) -> Vec<u32> {
    let mut rng = Philox::new(seed, 0);
    (0..n).map(|_| rng.below(below)).collect()
}

const WHOLE: &str = "the workload's sizes fit its model";

fn policy(batch: usize, trains: bool) -> Result<Work, Error> {
    let mut model = Model::<models::Policy>::init(1, batch)?;
    let (x, target) = (random(2, 8 * batch), random(3, 4 * batch));
    let params = trained(model.weights());
    let mut adam = Adam::new(1e-3);
    Ok(Work {
        params,
        call: if trains {
            Box::new(move || {
                let loss = model.train_step(&x, &target, &MSE::default(), &mut adam);
                assert!(loss.expect(WHOLE).is_finite());
            })
        } else {
            Box::new(move || {
                black_box(model.forward(black_box(&x)).expect(WHOLE));
            })
        },
    })
}

/// Pictures and their classes, cross-entropy and Adam.
macro_rules! classifier {
    ($model:ty, $inputs:expr, $batch:expr, $trains:expr) => {{
        let mut model = Model::<$model>::init(1, $batch)?;
        let (x, target) = (random(2, $inputs * $batch), ids(3, $batch, 10));
        let params = trained(model.weights());
        let mut adam = Adam::new(1e-3);
        Ok(Work {
            params,
            call: if $trains {
                Box::new(move || {
                    let loss = model.train_step(&x, &target, &CrossEntropy::default(), &mut adam);
                    assert!(loss.expect(WHOLE).is_finite());
                })
            } else {
                Box::new(move || {
                    black_box(model.forward(black_box(&x)).expect(WHOLE));
                })
            },
        })
    }};
}

fn perceptron(trains: bool) -> Result<Work, Error> {
    classifier!(models::Perceptron, 784, 64, trains)
}

fn small_cnn(trains: bool) -> Result<Work, Error> {
    classifier!(models::SmallCnn, 784, 32, trains)
}

fn resnet(trains: bool) -> Result<Work, Error> {
    classifier!(models::ResNet20, 3 * 32 * 32, 32, trains)
}

fn gpt() -> Result<Work, Error> {
    let mut model = Model::<models::Gpt>::init(1, 8)?;
    let (x, target) = (ids(2, 8 * 128, 65), ids(3, 8 * 128, 65));
    let params = trained(model.weights());
    let mut adam = AdamW::new(1e-3).weight_decay(0.1);
    Ok(Work {
        params,
        call: Box::new(move || {
            let loss = model.train_step(&x, &target, &CrossEntropy::default(), &mut adam);
            assert!(loss.expect(WHOLE).is_finite());
        }),
    })
}

/// How many tokens are in the cache when the next one is asked for.
const PROMPT: usize = 256;

fn trained<M: nn::Declared>(weights: &Weights<M, Cpu<f32>>) -> usize {
    weights.parameters().iter().filter(|p| !p.role.in_state()).map(|p| p.len()).sum()
}

fn matmul(rows: usize, inputs: usize, outputs: usize) -> Work {
    let device = Cpu::<f32>::default();
    let spec = LinearSpec { rows, inputs, outputs, act: Unary::Identity, transposed: false };
    let (a, b, mut c) = (random(1, rows * inputs), random(2, inputs * outputs), random(3, rows * outputs));
    let call = Box::new(move || device.linear(&spec, black_box(&a), &b, None, black_box(&mut c)));
    Work { params: 0, call }
}

/// How long one call takes.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    calls: u32,
}

impl Timing {
    /// Samples of fewer calls than this would be those of the clock.
    const SAMPLE: Duration = Duration::from_micros(200);
    /// More samples are not told.
    const SAMPLES: usize = 200;

    /// Warms up, and finds out how many calls a sample has.
    pub fn new(work: &mut Work) -> Self {
        (0..3).for_each(|_| (work.call)());
        let mut calls = 1;
        loop {
            let start = Instant::now();
            (0..calls).for_each(|_| (work.call)());
            if start.elapsed() >= Self::SAMPLE || calls > 1 << 20 {
                return Self { calls };
            }
            calls *= 2;
        }
    }

    /// Nanoseconds a call, sample by sample, for about so long and three samples at least.
    pub fn samples(&self, work: &mut Work, time: Duration) -> Vec<f64> {
        let mut samples = Vec::new();
        let begin = Instant::now();
        while samples.len() < 3 || begin.elapsed() < time && samples.len() < Self::SAMPLES {
            let start = Instant::now();
            (0..self.calls).for_each(|_| (work.call)());
            samples.push(start.elapsed().as_nanos() as f64 / f64::from(self.calls));
        }
        samples
    }
}
