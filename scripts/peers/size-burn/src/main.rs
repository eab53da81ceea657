//! One train step of an MLP: what a small program of burn's takes to build, and how large it is.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{AdamConfig, GradientsParams};
use burn::prelude::*;
use burn::tensor::Distribution;

#[derive(Module, Debug)]
struct Mlp {
    first: Linear,
    second: Linear,
    third: Linear,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(784, 256).init(device),
            second: LinearConfig::new(256, 128).init(device),
            third: LinearConfig::new(128, 10).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = Relu::new().forward(self.first.forward(x));
        let x = Relu::new().forward(self.second.forward(x));
        self.third.forward(x)
    }
}

fn main() {
    let device = Device::flex().autodiff();
    let model = Mlp::new(&device);
    let mut optimiser = AdamConfig::new().init();
    let x = Tensor::random([64, 784], Distribution::Normal(0.0, 1.0), &device);
    let labels = Tensor::<1, Int>::random([64], Distribution::Uniform(0.0, 10.0), &device);
    let loss = CrossEntropyLossConfig::new().init(&device).forward(model.forward(x), labels);
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    let _trained = optimiser.step(1e-3, model, grads);
    println!("{}", loss.into_scalar::<f32>());
}
