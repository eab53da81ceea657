//! burn as two peers of the benchmarks, `burn flex` and `burn ndarray` (the argument): see `scripts/bench-peers`.

mod decode;
mod layers;
mod models;
#[path = "../../protocol.rs"]
mod protocol;

use burn::prelude::*;
use burn::tensor::TensorData;

use protocol::{Random, Workload};

/// Every operation here allocates its result, which the system's allocator maps and unmaps where it's large.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    // SAFETY: nothing else runs yet, so no other thread reads the environment.
    unsafe { std::env::set_var("RAYON_NUM_THREADS", protocol::threads().to_string()) };
    let (name, device) = match std::env::args().nth(1).as_deref() {
        Some("flex") => ("burn-flex", Device::flex()),
        Some("ndarray") => ("burn-ndarray", Device::ndarray()),
        _ => {
            eprintln!("which backend: flex or ndarray?");
            std::process::exit(2);
        }
    };
    protocol::serve(name, "0.22.1", |name| {
        let device = device.clone();
        let prepared = match name.split_once('-') {
            Some(("w1", kind)) => models::policy(kind, device),
            Some(("w2", kind)) => models::digits(kind, device),
            Some(("w3", kind)) => models::convnet(kind, device),
            Some(("w4", "train")) => models::resnet20(device.autodiff()),
            Some(("w5", "train")) => models::gpt(device.autodiff()),
            Some(("w6", layer)) => layers::layer(layer, device),
            Some(("w7", weights)) => decode::decode(weights, device),
            Some(("w8", product)) => layers::product(product, device),
            _ => None,
        };
        prepared.ok_or_else(|| "no such workload here".to_owned())
    });
}

/// None: this program has no such workload.
type Found = Option<Workload>;

/// What `call` computes without training anything.
fn forward<const D: usize>(params: usize, mut call: impl FnMut() -> Tensor<D> + 'static) -> Found {
    let call = move || {
        std::hint::black_box(call());
        Ok(0.0)
    };
    Some(Workload { params, call: Box::new(call) })
}

fn normal<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    let values = Random::new(seed).normal(shape.iter().product(), 1.0);
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn below<const D: usize>(seed: u64, bound: u32, shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    let values = Random::new(seed).below(bound, shape.iter().product());
    let values: Vec<i32> = values.into_iter().map(|value| value as i32).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}
