//! The outputs of ONNX's own test vectors, for the layers that compute the same: an implementation beside PyTorch's.
//!
//! The vectors are fetched by `scripts/get-data.sh onnx-node-tests`; without them these tests say that they are skipped.

use std::collections::HashMap;
use std::path::PathBuf;

use nn::check::{Run, Values};
use nn::{
    AvgPool2D, BatchNorm2D, Conv2DNoBias, Cpu, GELU, GELUTanh, LayerNorm, LogSoftmax, MaxPool2D, Module,
    RMSNorm, ReLU, Sci, Sigmoid, Signature, Softmax, T, Tanh,
};
use safetensors::SafeTensors;

/// The tensors of a test by name; `None` if they are not here.
fn read(name: &str) -> Option<HashMap<String, Vec<f32>>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join(format!("data/onnx-node-tests/test_{name}.safetensors"));
    let bytes = std::fs::read(path).ok()?;
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = file.tensors().into_iter().map(|(name, t)| {
        let values = t.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        (name, values)
    });
    Some(tensors.collect())
}

/// The layer's output is `out0` for the input `in0` and the parameters `in1`, `in2`, …, which have the paths given.
fn check<M: Module<Cpu<f32>, X>, X: Signature>(name: &str, parameters: &[&str]) {
    let Some(tensors) = read(name) else {
        println!("skipped {name}: fetch the vectors with `scripts/get-data.sh onnx-node-tests`");
        return;
    };
    let get = |key: &str| &tensors[key];
    let (x, expected) = (get("in0"), get("out0"));
    let batch = x.len() / X::SIG.dims(0).numel();
    let mut run = Run::<M, X, Cpu<f32>>::new(&Cpu::default(), batch);
    for (i, path) in parameters.iter().enumerate() {
        run.set(path, get(&format!("in{}", i + 1)));
    }
    let outputs = run.forward_only(&[Values::Real(x.clone())]);
    let found = outputs[0].real();
    assert_eq!(found.len(), expected.len(), "{name}");
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|v| v * v).sum::<f64>().sqrt();
    let error = norm(&mut found.iter().zip(expected).map(|(a, b)| f64::from(a - b)));
    let size = norm(&mut expected.iter().map(|v| f64::from(*v)));
    // The vectors are themselves rounded to single precision.
    assert!(error <= 1e-6 * size.max(1e-30), "{name}: off by {:e} of its size", error / size);
}

macro_rules! cases {
    ($($name:ident: $layer:ty, $x:ty $(, $parameter:literal)*;)*) => {$(
        #[test]
        fn $name() {
            check::<$layer, $x>(stringify!($name), &[$($parameter),*]);
        }
    )*};
}

cases! {
    averagepool_2d_default: AvgPool2D<2, 1>, T![3, 32, 32];
    averagepool_2d_precomputed_pads_count_include_pad: AvgPool2D<5, 1, 2>, T![1, 5, 5];
    averagepool_2d_precomputed_strides: AvgPool2D<2>, T![1, 5, 5];
    averagepool_2d_strides: AvgPool2D<5, 3>, T![3, 32, 32];
    maxpool_2d_default: MaxPool2D<2, 1>, T![3, 32, 32];
    maxpool_2d_precomputed_pads: MaxPool2D<5, 1, 2>, T![1, 5, 5];
    maxpool_2d_precomputed_strides: MaxPool2D<2>, T![1, 5, 5];
    maxpool_2d_strides: MaxPool2D<5, 3>, T![3, 32, 32];
    basic_conv_with_padding: Conv2DNoBias<1, 1, 3, 1, 1>, T![1, 5, 5], "weight";
    basic_conv_without_padding: Conv2DNoBias<1, 1, 3>, T![1, 5, 5], "weight";
    conv_with_strides_no_padding: Conv2DNoBias<1, 1, 3, 2>, T![1, 7, 5], "weight";
    conv_with_strides_padding: Conv2DNoBias<1, 1, 3, 2, 1>, T![1, 7, 5], "weight";
    batchnorm_example: BatchNorm2D<3>, T![3, 4, 5], "weight", "bias", "running_mean", "running_var";
    batchnorm_epsilon: BatchNorm2D<3, Sci<1, -2>>, T![3, 4, 5], "weight", "bias", "running_mean", "running_var";
    layer_normalization_2d_axis1: LayerNorm<4>, T![4], "weight", "bias";
    layer_normalization_3d_axis2_epsilon: LayerNorm<5, Sci<1, -1>>, T![3, 5], "weight", "bias";
    layer_normalization_4d_axis3: LayerNorm<5>, T![3, 4, 5], "weight", "bias";
    layer_normalization_default_axis: LayerNorm<5>, T![3, 4, 5], "weight", "bias";
    rms_normalization_2d_axis1: RMSNorm<4, Sci<1, -5>>, T![4], "weight";
    rms_normalization_3d_axis2_epsilon: RMSNorm<5, Sci<1, -1>>, T![3, 5], "weight";
    rms_normalization_4d_axis3: RMSNorm<5, Sci<1, -5>>, T![3, 4, 5], "weight";
    softmax_axis_2: Softmax, T![4, 5];
    softmax_default_axis: Softmax, T![4, 5];
    softmax_example: Softmax, T![3];
    softmax_large_number: Softmax, T![4];
    logsoftmax_axis_2: LogSoftmax, T![4, 5];
    logsoftmax_default_axis: LogSoftmax, T![4, 5];
    logsoftmax_example_1: LogSoftmax, T![3];
    logsoftmax_large_number: LogSoftmax, T![4];
    relu: ReLU, T![4, 5];
    tanh: Tanh, T![4, 5];
    tanh_example: Tanh, T![];
    sigmoid: Sigmoid, T![4, 5];
    sigmoid_example: Sigmoid, T![];
    gelu_default_1: GELU, T![];
    gelu_default_2: GELU, T![4, 5];
    gelu_tanh_1: GELUTanh, T![];
    gelu_tanh_2: GELUTanh, T![4, 5];
}
