//! candle as a peer of the benchmarks: see `scripts/bench-peers`.

mod decode;
mod layers;
mod models;
#[path = "../../protocol.rs"]
mod protocol;

use candle_core::{DType, Device, Result, Shape, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

/// Every operation here allocates its result, which the system's allocator maps and unmaps where it's large.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use protocol::{Random, Workload};

fn main() {
    let threads = protocol::threads().to_string();
    // SAFETY: nothing else runs yet, so no other thread reads the environment.
    unsafe {
        std::env::set_var("RAYON_NUM_THREADS", &threads);
        std::env::set_var("CANDLE_NUM_THREADS", &threads);
    }
    protocol::serve("candle", "0.11.1", |name| {
        let prepared = match name.split_once('-') {
            Some(("w1", kind)) => models::policy(kind),
            Some(("w2", kind)) => models::digits(kind),
            Some(("w3", kind)) => models::convnet(kind),
            Some(("w4", "train")) => models::resnet20(),
            Some(("w5", "train")) => models::gpt(),
            Some(("w6", layer)) => layers::layer(layer),
            Some(("w7", weights)) => decode::decode(weights),
            Some(("w8", product)) => layers::product(product),
            _ => Ok(None),
        };
        prepared.map_err(|error| error.to_string())?.ok_or_else(|| "no such workload here".to_owned())
    });
}

/// None: this program has no such workload.
type Found = Result<Option<Workload>>;

/// What `call` does, as a workload that trains `params` numbers.
fn workload(params: usize, mut call: impl FnMut() -> Result<f32> + 'static) -> Found {
    Ok(Some(Workload { params, call: Box::new(move || call().map_err(|error| error.to_string())) }))
}

/// What `call` computes without training anything.
fn forward(params: usize, call: impl Fn() -> Result<Tensor> + 'static) -> Found {
    workload(params, move || {
        std::hint::black_box(call()?);
        Ok(0.0)
    })
}

fn normal(seed: u64, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    Tensor::from_vec(Random::new(seed).normal(shape.elem_count(), 1.0), shape, &Device::Cpu)
}

/// Normal numbers as small as a linear layer's initial weights of `inputs` inputs.
fn weights(seed: u64, shape: impl Into<Shape>, inputs: usize) -> Result<Tensor> {
    let shape = shape.into();
    let scale = 1.0 / (inputs as f32).sqrt();
    Tensor::from_vec(Random::new(seed).normal(shape.elem_count(), scale), shape, &Device::Cpu)
}

fn below(seed: u64, bound: u32, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    Tensor::from_vec(Random::new(seed).below(bound, shape.elem_count()), shape, &Device::Cpu)
}

/// A model's parameters: a builder for training it, and one whose tensors no graph is recorded for.
struct Params(VarMap);

impl Params {
    fn new() -> Self {
        Self(VarMap::new())
    }

    fn trained(&self) -> VarBuilder<'static> {
        VarBuilder::from_varmap(&self.0, DType::F32, &Device::Cpu)
    }

    /// The parameters that a model built from [`Self::trained`] has made, as plain tensors.
    fn frozen(&self) -> VarBuilder<'static> {
        let made = self.0.data().lock().expect("no thread of ours panics while it holds it");
        let tensors = made.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect();
        VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu)
    }

    /// What an optimiser is to train: everything but the batch norms' running statistics.
    fn vars(&self) -> Vec<Var> {
        let made = self.0.data().lock().expect("no thread of ours panics while it holds it");
        made.iter().filter(|(name, _)| !name.contains("running_")).map(|(_, var)| var.clone()).collect()
    }

    fn count(&self) -> usize {
        self.vars().iter().map(|var| var.elem_count()).sum()
    }
}
