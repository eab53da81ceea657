//! How long `nn` takes on a GPU: a line of JSON for each measurement, as `scripts/peers/torch_gpu.py` has for PyTorch.
//!
//! `gpu [--tiny] [--seconds S] [--only TEXT]`: sizes that an emulator manages, the time for each measurement, and only
//! works whose name holds a text.
//!
//! A step is timed from its call to its loss, on the host. Single kernels are called many times in a row, so that
//! their launches hide behind them, and all but the smaller product work on more than the GPU's caches hold.

use std::error::Error;
use std::time::{Duration, Instant};

use nn::kernels::cuda::{Buffer, CudaReal};
use nn::kernels::ops::{
    AdamSpec, Attention, AttentionGradients, AttentionSpec, Elementwise, Linear as _, LinearSpec, Norm,
    Optim, Unary,
};
use nn::{
    Adam, AdamW, CausalSelfAttention, CrossEntropy, Cuda, Declared, Embedding, FeedForward, GELU, LayerNorm,
    LinearNoBias, MSE, Memory, Model, Module, Open, PosEmbed, PreNormBlock, Repeat, Weights, bf16,
    sequential,
};
use nn_bench::models::{Policy, ResNet20};
use nn_bench::{ids, random};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

macro_rules! gpts {
    ($(
        $(#[$doc:meta])*
        $name:ident: $blocks:literal of $dim:literal, $hidden:literal, heads $heads:literal, length $s:literal;
    )*) => {$(
        sequential! {
            $(#[$doc])*
            $name: Ids[$s] -> [$s, 65] =
                Embedding<65, $dim>, PosEmbed<$s, $dim>,
                Repeat<
                    PreNormBlock<
                        LayerNorm<$dim>, CausalSelfAttention<$s, $dim, $heads>,
                        LayerNorm<$dim>, FeedForward<$dim, $hidden, GELU>
                    >,
                    $blocks
                >,
                LayerNorm<$dim>, LinearNoBias<$dim, 65>
        }
    )*};
}
gpts! {
    /// A transformer over characters.
    Gpt: 6 of 384, 1536, heads 6, length 256;
    /// The same, for an emulator.
    TinyGpt: 2 of 32, 128, heads 2, length 16;
}

/// What is measured. The other library's program must count the same.
#[derive(Clone, Copy)]
struct Work {
    name: &'static str,
    /// Numbers that are trained.
    params: usize,
    /// Additions and multiplications.
    flops: f64,
    /// Bytes that must be read or written, where they are what limits.
    bytes: f64,
    /// How many of `unit` there are in a call.
    items: usize,
    unit: &'static str,
}

impl Work {
    fn kernel(name: &'static str, flops: f64, bytes: usize) -> Self {
        Self { name, params: 0, flops, bytes: bytes as f64, items: 1, unit: "calls" }
    }
}

struct Bench<E> {
    device: Cuda<E>,
    tiny: bool,
    time: Duration,
    only: Option<String>,
}

impl<E: CudaReal> Bench<E> {
    /// The precisions of products, and the device that has each.
    fn precisions(&self) -> Vec<(&'static str, Cuda<E>)> {
        let device = || self.device.clone();
        match size_of::<E>() {
            2 => vec![("bf16", device())],
            _ => vec![("tf32", device()), ("f32", device().full_precision())],
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|part| name.contains(part.as_str()))
    }

    /// Seconds a call, sample by sample, each of so many calls.
    fn samples(&self, calls: u32, mut run: impl FnMut(u32) -> Outcome) -> Outcome<Vec<f64>> {
        let (begin, mut samples) = (Instant::now(), Vec::new());
        while samples.len() < 5 || begin.elapsed() < self.time && samples.len() < 20_000 {
            let start = Instant::now();
            run(calls)?;
            samples.push(start.elapsed().as_secs_f64() / f64::from(calls));
        }
        samples.sort_by(f64::total_cmp);
        Ok(samples)
    }

    fn report(&self, work: &Work, mode: &str, precision: &str, sorted: &[f64]) {
        let (median, least) = (sorted[sorted.len() / 2], sorted[0]);
        let Work { name, params, flops, bytes, items, unit } = work;
        println!(
            "{{\"peer\":\"nn\",\"work\":\"{name}\",\"mode\":\"{mode}\",\"precision\":\"{precision}\",\"tiny\":{},\
             \"params\":{params},\"flops\":{flops},\"bytes\":{bytes},\"ms\":{:.6},\"min_ms\":{:.6},\"samples\":{},\
             \"per_s\":{:.3},\"unit\":\"{unit}\",\"tflops\":{:.4},\"gb_s\":{:.3}}}",
            self.tiny,
            median * 1e3,
            least * 1e3,
            sorted.len(),
            *items as f64 / median,
            flops / median * 1e-12,
            bytes / median * 1e-9,
        );
    }

    /// Times a step with and without graphs. `call` does it once, and has its result when it returns.
    fn steps(&self, work: &Work, precision: &str, mut call: impl FnMut() -> Outcome) -> Outcome {
        self.device.use_graphs(false);
        let before = self.device.launches();
        call()?;
        // A single launch is as good as a graph, and is not made one.
        let several = self.device.launches() - before > 1;
        for (mode, graphs) in [("graphs", true), ("launches", false)] {
            self.device.use_graphs(graphs);
            (0..5).try_for_each(|_| call())?;
            let before = self.device.replays();
            let samples = self.samples(1, |_| call())?;
            let replayed = self.device.replays() - before;
            let expected = if graphs && several { samples.len() as u64 } else { 0 };
            if replayed != expected {
                let name = work.name;
                return Err(format!("{name}: {replayed} graphs were replayed, not {expected}").into());
            }
            self.report(work, mode, precision, &samples);
        }
        self.device.use_graphs(true);
        Ok(())
    }

    /// A model's training, with products in the given precisions.
    fn trains<M>(
        &self,
        work: Work,
        batch: usize,
        precisions: Vec<(&'static str, Cuda<E>)>,
        adam: impl Fn() -> Adam<Cuda<E>>,
        step: impl Fn(&mut Model<M, Cuda<E>>, &mut Adam<Cuda<E>>) -> Result<f64, nn::Error>,
    ) -> Outcome
    where
        M: Declared + Module<Cuda<E>, <M as Declared>::In>,
    {
        if !self.wants(work.name) {
            return Ok(());
        }
        for (precision, device) in precisions {
            let weights = Weights::<M, Cuda<E>>::new(device, 1)?;
            let params = weights.parameters().iter().filter(|p| !p.role.in_state()).map(|p| p.len()).sum();
            let (mut model, mut adam) = (Model::new(weights, 1, batch)?, adam());
            self.steps(&Work { params, ..work }, precision, || match step(&mut model, &mut adam)? {
                loss if loss.is_finite() => Ok(()),
                loss => Err(format!("{}: the loss is {loss}", work.name).into()),
            })?;
        }
        Ok(())
    }

    /// A kernel, called so often in a row that a sample takes some milliseconds.
    fn kernel(&self, work: &Work, device: &Cuda<E>, precision: &str, mut call: impl FnMut()) -> Outcome {
        let mut run = |calls| {
            (0..calls).for_each(|_| call());
            Ok(device.finish()?)
        };
        run(3)?;
        let mut calls = 1;
        loop {
            let start = Instant::now();
            run(calls)?;
            if self.tiny || start.elapsed() > Duration::from_millis(5) || calls >= 4096 {
                break;
            }
            calls *= 2;
        }
        let samples = self.samples(calls, run)?;
        self.report(work, "kernel", precision, &samples);
        Ok(())
    }

    /// Random numbers on the GPU. They come again after a million: making them takes long.
    fn filled(&self, seed: u64, n: usize) -> Outcome<Buffer<E>> {
        let some: Vec<E> =
            random(seed, n.min(1 << 20)).into_iter().map(|x| E::from_f64(f64::from(x))).collect();
        let all: Vec<E> = some.iter().copied().cycle().take(n).collect();
        let mut buffer = self.device.alloc(n)?;
        self.device.upload(&all, Cuda::<E>::view_mut(&mut buffer));
        Ok(buffer)
    }

    fn product(&self, name: &'static str, [rows, inputs, outputs]: [usize; 3]) -> Outcome {
        if !self.wants(name) {
            return Ok(());
        }
        let s = LinearSpec { rows, inputs, outputs, act: Unary::Identity, transposed: false };
        let (x, w) = (self.filled(1, rows * inputs)?, self.filled(2, inputs * outputs)?);
        let mut y = self.device.alloc::<E>(rows * outputs)?;
        let work = Work::kernel(name, 2.0 * (rows * inputs * outputs) as f64, 0);
        for (precision, device) in self.precisions() {
            self.kernel(&work, &device, precision, || {
                device.linear(
                    &s,
                    Cuda::<E>::view(&x),
                    Cuda::<E>::view(&w),
                    None,
                    Cuda::<E>::view_mut(&mut y),
                );
            })?;
        }
        Ok(())
    }

    fn attention(&self) -> Outcome {
        if !self.wants("attention") {
            return Ok(());
        }
        let [batch, heads, len, dim] = if self.tiny { [1, 2, 40, 64] } else { [8, 12, 1024, 64] };
        let s = AttentionSpec { causal: true, ..AttentionSpec::new(batch, len, len, heads, heads, dim) };
        let n = batch * heads * len * dim;
        let [q, k, v, dy] = [1, 2, 3, 4].map(|seed| self.filled(seed, n));
        let (q, k, v, dy) = (q?, k?, v?, dy?);
        let alloc = |n| self.device.alloc::<E>(n);
        let wide = |n| self.device.alloc::<E::Wide>(n);
        let (mut y, mut lse, mut scratch) = (alloc(n)?, wide(s.lse())?, wide(s.vjp_scratch())?);
        let (mut dq, mut dk, mut dv) = (alloc(n)?, alloc(n)?, alloc(n)?);
        let flops = attention_flops(batch, heads * dim, len);
        for (precision, device) in self.precisions() {
            let [q, k, v, dy] = [&q, &k, &v, &dy].map(Cuda::<E>::view);
            self.kernel(&Work::kernel("attention", flops, 0), &device, precision, || {
                device.attention(
                    &s,
                    q,
                    k,
                    v,
                    None,
                    Cuda::<E>::view_mut(&mut y),
                    Some(Cuda::<E>::view_mut(&mut lse)),
                );
            })?;
            // Five products of which forward has two.
            self.kernel(&Work::kernel("attention-vjp", 2.5 * flops, 0), &device, precision, || {
                let [q_, k_, v_] = [&mut dq, &mut dk, &mut dv].map(|d| Some(Cuda::<E>::view_mut(d)));
                let gradients = AttentionGradients::Apart { q: q_, k: k_, v: v_ };
                let (y, lse) = (Cuda::<E>::view(&y), Cuda::<E>::view(&lse));
                device.attention_vjp(
                    &s,
                    q,
                    k,
                    v,
                    None,
                    y,
                    lse,
                    dy,
                    gradients,
                    Cuda::<E>::view_mut(&mut scratch),
                );
            })?;
        }
        Ok(())
    }

    fn gpt<M>(&self, sizes: [usize; 4], step: Step<M, E>) -> Outcome
    where
        M: Declared + Module<Cuda<E>, <M as Declared>::In>,
    {
        let [batch, len, dim, blocks] = sizes;
        let tokens = batch * len;
        let products = 2 * tokens * (blocks * 12 * dim * dim + dim * 65);
        let flops = 3.0 * (products as f64 + blocks as f64 * attention_flops(batch, dim, len));
        let work = Work { name: "gpt-train", params: 0, flops, bytes: 0.0, items: tokens, unit: "tokens" };
        let (x, target) = (ids(2, tokens, 65), ids(3, tokens, 65));
        let adam = || AdamW::new(1e-3).weight_decay(0.1);
        self.trains::<M>(work, batch, self.precisions(), adam, |model, adam| step(model, adam, &x, &target))
    }
}

/// What is measured in single precision alone.
impl Bench<f32> {
    fn infers(&self, name: &'static str, batch: usize) -> Outcome {
        if !self.wants(name) {
            return Ok(());
        }
        let mut model = Model::<Policy, Single>::new(Weights::new(self.device.clone(), 1)?, 1, batch)?;
        let x = random(2, 8 * batch);
        let params = model.weights().parameters().iter().map(|p| p.len()).sum();
        let flops = perceptron(batch, &POLICY) as f64;
        let work = Work { name, params, flops, bytes: 0.0, items: batch, unit: "samples" };
        self.steps(&work, "f32", || {
            let y = model.forward(&x)?;
            if y.iter().all(|y| y.is_finite()) { Ok(()) } else { Err("an output is not finite".into()) }
        })
    }

    fn rows(&self) -> Outcome {
        let [rows, cols] = if self.tiny { [8, 64] } else { [65_536, 1024] };
        let (n, device) = (rows * cols, &self.device);
        let (x, mut y) = (self.filled(1, n)?, device.alloc::<f32>(n)?);
        let (gamma, beta) = (self.filled(2, cols)?, self.filled(3, cols)?);
        let x = Single::view(&x);
        if self.wants("copy") {
            self.kernel(&Work::kernel("copy", 0.0, 8 * n), device, "f32", || {
                device.copy(x, Single::view_mut(&mut y));
            })?;
        }
        if self.wants("layer-norm") {
            let [gamma, beta] = [&gamma, &beta].map(|b| Some(Single::view(b)));
            self.kernel(&Work::kernel("layer-norm", 0.0, 8 * n), device, "f32", || {
                device.layer_norm(cols, 1e-5, x, gamma, beta, Single::view_mut(&mut y), None);
            })?;
        }
        if self.wants("softmax") {
            self.kernel(&Work::kernel("softmax", 0.0, 8 * n), device, "f32", || {
                device.softmax(cols, x, Single::view_mut(&mut y));
            })?;
        }
        Ok(())
    }

    fn adam(&self) -> Outcome {
        if !self.wants("adam") {
            return Ok(());
        }
        let n = if self.tiny { 1000 } else { 100_000_000 };
        let (mut p, g) = (self.filled(1, n)?, self.filled(2, n)?);
        let [mut m, mut v] = [self.device.alloc::<f32>(n)?, self.device.alloc::<f32>(n)?];
        let mut s = AdamSpec {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.1,
            decoupled: true,
            clip: None,
            step: 0,
        };
        let work = Work { params: n, ..Work::kernel("adam", 0.0, 28 * n) };
        self.kernel(&work, &self.device, "f32", || {
            s.step += 1;
            let [p, m, v] = [&mut p, &mut m, &mut v].map(Single::view_mut);
            self.device.adam(&s, Single::empty(), p, Single::view(&g), m, v);
        })
    }
}

type Single = Cuda<f32>;
type Step<M, E> = fn(&mut Model<M, Cuda<E>>, &mut Adam<Cuda<E>>, &[u32], &[u32]) -> Result<f64, nn::Error>;

const POLICY: [usize; 4] = [8, 64, 64, 4];

fn perceptron(rows: usize, widths: &[usize]) -> usize {
    widths.windows(2).map(|pair| 2 * rows * pair[0] * pair[1]).sum()
}

/// Two products, of the half of all scores that a causal mask leaves.
fn attention_flops(batch: usize, width: usize, len: usize) -> f64 {
    (4 * batch * width * (len * (len + 1) / 2)) as f64
}

/// Forward of ResNet-20 on 32×32: its first convolution, and all.
fn resnet_flops(batch: usize) -> [usize; 2] {
    let first = 9 * 3 * 16 * 1024;
    let stages = 6 * 9 * 16 * 16 * 1024
        + (9 * 16 * 32 + 5 * 9 * 32 * 32 + 16 * 32) * 256
        + (9 * 32 * 64 + 5 * 9 * 64 * 64 + 32 * 64) * 64;
    [first, first + stages + 640].map(|n| 2 * batch * n)
}

fn transformers<E: CudaReal>(bench: &Bench<E>) -> Outcome {
    if bench.tiny {
        bench.gpt::<TinyGpt>([2, 16, 32, 2], |model, adam, x, target| {
            model.train_step(x, target, &CrossEntropy::default(), adam)
        })
    } else {
        bench.gpt::<Gpt>([64, 256, 384, 6], |model, adam, x, target| {
            model.train_step(x, target, &CrossEntropy::default(), adam)
        })
    }
}

fn products<E: CudaReal>(bench: &Bench<E>) -> Outcome {
    let tiny = bench.tiny;
    bench.product("product-4096", if tiny { [64; 3] } else { [4096; 3] })?;
    bench.product("product-1024x768x3072", if tiny { [32, 24, 96] } else { [1024, 768, 3072] })?;
    bench.attention()
}

fn main() -> Outcome {
    let (mut tiny, mut seconds, mut only) = (false, 1.0, None);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--tiny" => tiny = true,
            "--seconds" => seconds = value()?.parse()?,
            "--only" => only = Some(value()?),
            _ => return Err("gpu [--tiny] [--seconds S] [--only TEXT]".into()),
        }
    }
    let time = Duration::from_secs_f64(seconds);
    let bench = Bench { device: Cuda::<f32>::open()?, tiny, time, only: only.clone() };
    eprintln!("nn {} on {:?}", env!("CARGO_PKG_VERSION"), bench.device);
    transformers(&bench)?;
    products(&bench)?;
    let half = Bench { device: Cuda::<bf16>::open()?, tiny, time, only };
    transformers(&half)?;
    products(&half)?;

    let batch = if tiny { 1 } else { 128 };
    let (x, target) = (random(2, 3 * 32 * 32 * batch), ids(3, batch, 10));
    let [first, all] = resnet_flops(batch);
    // Nobody wants the pictures' gradient.
    let flops = (3 * all - first) as f64;
    let work = Work { name: "resnet-train", params: 0, flops, bytes: 0.0, items: batch, unit: "samples" };
    bench.trains::<ResNet20>(
        work,
        batch,
        bench.precisions(),
        || Adam::new(1e-3),
        |model, adam| model.train_step(&x, &target, &CrossEntropy::default(), adam),
    )?;

    let (x, target) = (random(2, 8 * 256), random(3, 4 * 256));
    let flops = (3 * perceptron(256, &POLICY) - perceptron(256, &POLICY[..2])) as f64;
    let work = Work { name: "policy-train", params: 0, flops, bytes: 0.0, items: 256, unit: "samples" };
    bench.trains::<Policy>(
        work,
        256,
        vec![("f32", bench.device.clone())],
        || Adam::new(1e-3),
        |model, adam| model.train_step(&x, &target, &MSE::default(), adam),
    )?;
    bench.infers("policy-forward-1", 1)?;
    bench.infers("policy-forward-256", 256)?;

    bench.rows()?;
    bench.adam()
}
