//! Single layers, forward and backward, and matrix products.

use burn::module::Param;
use burn::nn::conv::Conv2dConfig;
use burn::nn::{
    Embedding, EmbeddingConfig, Gelu, Identity, LayerNormConfig, LinearConfig, PaddingConfig2d, RmsNormConfig,
};
use burn::optim::GradientsParams;
use burn::prelude::*;
use burn::tensor::TensorData;
use burn::tensor::activation::softmax;
use burn::tensor::module::attention;

use crate::models::causal;
use crate::protocol::Workload;
use crate::{Found, below, forward, normal};

pub fn layer(name: &str, device: Device) -> Found {
    let (name, device) = match name.strip_suffix("-vjp") {
        Some(name) => (name, device.autodiff()),
        None => (name, device),
    };
    let rows = |count, width| [normal(1, [count, width], &device)];
    match name {
        "linear-64x256x256" => {
            let layer = LinearConfig::new(256, 256).init(&device);
            either(layer, rows(64, 256), |layer, [x]| layer.forward(x))
        }
        "linear-1024x768x3072" => {
            let layer = LinearConfig::new(768, 3072).init(&device);
            either(layer, rows(1024, 768), |layer, [x]| layer.forward(x))
        }
        "layer-norm" => {
            let mut layer = LayerNormConfig::new(768).init(&device);
            layer.gamma = Param::from_tensor(normal(2, [768], &device));
            layer.beta = Some(Param::from_tensor(normal(3, [768], &device)));
            either(layer, rows(1024, 768), |layer, [x]| layer.forward(x))
        }
        "rms-norm" => {
            let mut layer = RmsNormConfig::new(768).init(&device);
            layer.gamma = Param::from_tensor(normal(2, [768], &device));
            either(layer, rows(1024, 768), |layer, [x]| layer.forward(x))
        }
        "softmax" => either(Identity::new(), rows(1024, 768), |_, [x]| softmax(x, 1)),
        "gelu" => either(Gelu::new(), [normal(1, [1 << 20], &device)], |layer, [x]| layer.forward(x)),
        "attention" => {
            let qkv = [1, 2, 3].map(|seed| normal(seed, [2, 6, 256, 64], &device));
            either(Identity::new(), qkv, |_, [q, k, v]| attention(q, k, v, None, None, causal()))
        }
        "conv" => {
            let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
            let layer = Conv2dConfig::new([64, 64], [3, 3]).with_padding(padding).init(&device);
            either(layer, [normal(1, [32, 64, 32, 32], &device)], |layer, [x]| layer.forward(x))
        }
        "rope" => {
            let (cos, sin) = rotary_tables(256, 64, &device);
            let (cos, sin) = (cos.unsqueeze_dim::<3>(1).unsqueeze(), sin.unsqueeze_dim::<3>(1).unsqueeze());
            let q = normal(1, [2, 256, 6, 64], &device);
            either(Identity::new(), [q], move |_, [q]| rotated(q, cos.clone(), sin.clone()))
        }
        "embedding" => {
            let layer = EmbeddingConfig::new(65_536, 256).init(&device);
            let ids = below(2, 65_536, [1, 4096], &device);
            // An embedding has no input that a gradient goes to.
            let none: [Tensor<1>; 0] = [];
            either(layer, none, move |layer: &Embedding, []| layer.forward(ids.clone()))
        }
        _ => None,
    }
}

/// Forward; and where the inputs' device records gradients, backward to all of them and to `layer`'s parameters.
fn either<M: Module + 'static, const N: usize, const D: usize, const E: usize>(
    layer: M,
    inputs: [Tensor<D>; N],
    call: impl Fn(&M, [Tensor<D>; N]) -> Tensor<E> + 'static,
) -> Found {
    let params = layer.num_params();
    let y = call(&layer, inputs.clone());
    let device = y.device();
    if !device.is_autodiff() {
        return forward(params, move || call(&layer, inputs.clone()));
    }
    let dy = normal(9, y.dims(), &device);
    let inputs = inputs.map(Tensor::require_grad);
    let call = move || {
        let mut grads = (call(&layer, inputs.clone()) * dy.clone()).backward();
        for input in &inputs {
            std::hint::black_box(input.grad_remove(&mut grads).ok_or("an input has no gradient")?);
        }
        let grads = GradientsParams::from_grads(grads, &layer);
        if params > 0 && grads.is_empty() {
            return Err("the parameters have no gradients".to_owned());
        }
        std::hint::black_box(grads);
        Ok(0.0)
    };
    Some(Workload { params, call: Box::new(call) })
}

/// The cosines and sines of rotary embedding, `[positions, dim / 2]` each.
pub fn rotary_tables(positions: usize, dim: usize, device: &Device) -> (Tensor<2>, Tensor<2>) {
    let table = |of: fn(f32) -> f32| {
        let angle = |p: usize, i: usize| p as f32 * 1e4_f32.powf(-2.0 * i as f32 / dim as f32);
        let values: Vec<f32> =
            (0..positions).flat_map(|p| (0..dim / 2).map(move |i| of(angle(p, i)))).collect();
        Tensor::from_data(TensorData::new(values, [positions, dim / 2]), device)
    };
    (table(f32::cos), table(f32::sin))
}

/// Rotary embedding that pairs a head's halves: burn's own pairs neighbours.
pub fn rotated(x: Tensor<4>, cos: Tensor<4>, sin: Tensor<4>) -> Tensor<4> {
    let half = x.dims()[3] / 2;
    let (a, b) = (x.clone().narrow(3, 0, half), x.narrow(3, half, half));
    let first = a.clone() * cos.clone() - b.clone() * sin.clone();
    Tensor::cat(vec![first, b * cos + a * sin], 3)
}

/// `matmul-N` and `matmul-MxKxN`.
pub fn product(name: &str, device: Device) -> Found {
    let sizes = name.strip_prefix("matmul-")?;
    let sizes: Vec<usize> = sizes.split('x').map(|size| size.parse().ok()).collect::<Option<_>>()?;
    let (m, k, n) = match sizes[..] {
        [n] => (n, n, n),
        [m, k, n] => (m, k, n),
        _ => return None,
    };
    let (a, b) = (normal(1, [m, k], &device), normal(2, [k, n], &device));
    forward(0, move || a.clone().matmul(b.clone()))
}
