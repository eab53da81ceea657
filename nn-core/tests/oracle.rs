//! Layers against what PyTorch computes in double precision.

use std::collections::BTreeMap;
use std::path::Path;

use nn::check::{Run, Values};
use nn::*;
use safetensors::{Dtype, SafeTensors};

/// A case's tensors by name: numbers, and the shape.
struct Case {
    name: String,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<f64>)>,
}

impl Case {
    fn open(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("../tests/oracle/fixtures/{name}.safetensors"));
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.tensors().into_iter().map(|(name, view)| {
            let words = view.data().chunks_exact(8).map(|w| <[u8; 8]>::try_from(w).unwrap());
            let values = match view.dtype() {
                Dtype::F64 => words.map(f64::from_le_bytes).collect(),
                Dtype::I64 => words.map(|w| i64::from_le_bytes(w) as f64).collect(),
                other => panic!("{name} is {other:?}"),
            };
            (name, (view.dtype(), view.shape().to_vec(), values))
        });
        Self { name: name.to_owned(), tensors: tensors.collect() }
    }

    fn get(&self, name: &str) -> &[f64] {
        &self.tensors.get(name).unwrap_or_else(|| panic!("{}: no {name}", self.name)).2
    }

    fn values<E: Float>(&self, name: &str) -> Option<Values<E>> {
        let (dtype, _, values) = self.tensors.get(name)?;
        Some(match dtype {
            Dtype::I64 => Values::Ids(values.iter().map(|v| *v as u32).collect()),
            _ => Values::Real(values.iter().map(|v| E::from_f64(*v)).collect()),
        })
    }

    fn all<E: Float>(&self, prefix: &str) -> Vec<Values<E>> {
        (0..).map_while(|i| self.values(&format!("{prefix}{i}"))).collect()
    }
}

fn close<E: Float>(case: &Case, name: &str, found: &[E], limit: f64) {
    let expected = case.get(name);
    assert_eq!(found.len(), expected.len(), "{} {name}", case.name);
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(expected).map(|(a, b)| a.to_f64() - b));
    // A gradient that is zero by nature has an absolute bound, that of its terms.
    let size = norm(&mut expected.iter().copied()).max(1e-3 * norm(&mut case.get("dy0").iter().copied()));
    let error = if difference == 0.0 { 0.0 } else { difference / size };
    assert!(error <= limit, "{} {name}: {error:e}", case.name);
}

fn compare<E, M, X>(name: &str, mode: Mode, limit: f64)
where
    E: Float + nn::kernels::cpu::Real,
    M: Module<Cpu<E>, X>,
    X: Signature,
    Cpu<E>: Device<Elem = E>,
{
    let case = Case::open(name);
    let batch = case.tensors["x0"].1[0];
    let mut run = Run::<M, X, Cpu<E>>::new(&Cpu::default(), batch).mode(mode);
    let paths: Vec<_> = run.paths().map(|(path, _)| path.to_owned()).collect();
    let cast = |values: &[f64]| values.iter().map(|v| E::from_f64(*v)).collect::<Vec<_>>();
    for path in &paths {
        let name = if path.contains("running") { format!("state.{path}") } else { format!("param.{path}") };
        run.set(path, &cast(case.get(&name)));
    }
    let y = run.forward(&case.all("x"));
    close(&case, "y0", y[0].real(), limit);
    let gradients = run.vjp(&case.all("dy"));
    for (i, dx) in gradients.dx.iter().enumerate() {
        if let Some(dx) = dx {
            close(&case, &format!("dx{i}"), dx, limit);
        }
    }
    for path in &paths {
        if path.contains("running") {
            close(&case, &format!("state_after.{path}"), &run.get(path), limit);
        } else {
            close(&case, &format!("grad.{path}"), &run.gradient(&gradients, path), limit);
        }
    }
}

macro_rules! cases {
    ($($test:ident { $($name:literal $mode:ident $f32:literal $layer:ty, $x:ty;)* })*) => {$(
        #[test]
        fn $test() {
            $(
                compare::<f64, $layer, $x>($name, Mode::$mode, 1e-12);
                compare::<f32, $layer, $x>($name, Mode::$mode, $f32);
            )*
        }
    )*};
}

cases! {
    activations {
        "act_elu" Infer 1e-6 ELU, T![16];
        "act_elu_large" Infer 1e-6 ELU, T![8];
        "act_elu_tiny" Infer 1e-6 ELU, T![5];
        "act_gelu" Infer 1e-6 GELU, T![16];
        "act_gelu_large" Infer 1e-6 GELU, T![8];
        "act_gelu_tiny" Infer 1e-6 GELU, T![5];
        "act_gelu_tanh" Infer 1e-6 GELUTanh, T![16];
        "act_gelu_tanh_large" Infer 1e-6 GELUTanh, T![8];
        "act_gelu_tanh_tiny" Infer 1e-6 GELUTanh, T![5];
        "act_mish" Infer 1e-6 Mish, T![16];
        "act_mish_large" Infer 1e-6 Mish, T![8];
        "act_mish_tiny" Infer 1e-6 Mish, T![5];
        "act_relu" Infer 1e-6 ReLU, T![16];
        "act_relu_large" Infer 1e-6 ReLU, T![8];
        "act_sigmoid" Infer 1e-6 Sigmoid, T![16];
        "act_sigmoid_large" Infer 1e-6 Sigmoid, T![8];
        "act_silu" Infer 1e-6 SiLU, T![16];
        "act_silu_large" Infer 1e-6 SiLU, T![8];
        "act_tanh" Infer 1e-6 Tanh, T![16];
        "act_tanh_large" Infer 1e-6 Tanh, T![8];
        "add" Infer 1e-6 Add, (T![4, 5], T![4, 5]);
        "mul" Infer 1e-6 Mul, (T![4, 5], T![4, 5]);
    }
    linear {
        "linear" Infer 3e-6 Linear<7, 5>, T![7];
        "linear_batch1" Infer 3e-6 Linear<9, 8>, T![9];
        "linear_elu" Infer 3e-6 LinearELU<6, 5>, T![6];
        "linear_gelu" Infer 3e-6 LinearGELU<6, 5>, T![6];
        "linear_gelu_tanh" Infer 3e-6 LinearGELUTanh<6, 5>, T![6];
        "linear_gelu_tanh_tokens" Infer 3e-6 LinearGELUTanh<5, 8>, T![3, 5];
        "linear_in1" Infer 3e-6 Linear<1, 5>, T![1];
        "linear_mish" Infer 3e-6 LinearMish<6, 5>, T![6];
        "linear_nobias" Infer 3e-6 LinearNoBias<7, 5>, T![7];
        "linear_nobias_tokens" Infer 3e-6 LinearNoBias<6, 8>, T![5, 6];
        "linear_out1" Infer 3e-6 Linear<7, 1>, T![7];
        "linear_relu" Infer 3e-6 LinearReLU<6, 5>, T![6];
        "linear_sigmoid" Infer 3e-6 LinearSigmoid<6, 5>, T![6];
        "linear_silu" Infer 3e-6 LinearSwish<6, 5>, T![6];
        "linear_square" Infer 3e-6 Linear<6, 6>, T![6];
        "linear_tanh" Infer 3e-6 LinearTanh<6, 5>, T![6];
        "linear_tokens" Infer 3e-6 Linear<6, 5>, T![4, 6];
        "linear_wide" Infer 3e-6 Linear<5, 16>, T![5];
        "embedding" Infer 3e-6 Embedding<7, 5>, Ids<T![4]>;
    }
    norms {
        "layer_norm" Infer 1e-6 LayerNorm<8>, T![8];
        "layer_norm_eps12" Infer 1e-6 LayerNorm<8, Sci<1, -12>>, T![8];
        "layer_norm_large_mean" Infer 1e-6 LayerNorm<16>, T![16];
        "layer_norm_small" Infer 1e-6 LayerNorm<9>, T![9];
        "layer_norm_tokens" Infer 1e-6 LayerNorm<13>, T![4, 13];
        "rms_norm" Infer 1e-6 RMSNorm<8>, T![8];
        "rms_norm_small" Infer 1e-6 RMSNorm<8>, T![8];
        "rms_norm_eps5_small" Infer 1e-6 RMSNorm<12, Sci<1, -5>>, T![12];
        "rms_norm_tokens" Infer 1e-6 RMSNorm<5, Sci<1, -5>>, T![3, 5];
        "softmax" Infer 1e-6 Softmax, T![7];
        "softmax_offset" Infer 1e-6 Softmax, T![6];
        "softmax_spread" Infer 1e-6 Softmax, T![9];
        "softmax_tokens" Infer 1e-6 Softmax, T![4, 5];
        "log_softmax" Infer 1e-6 LogSoftmax, T![7];
        "log_softmax_offset" Infer 1e-6 LogSoftmax, T![6];
        "log_softmax_spread" Infer 1e-6 LogSoftmax, T![9];
        "log_softmax_tokens" Infer 1e-6 LogSoftmax, T![4, 5];
        "batch_norm1d_eval" Infer 1e-6 BatchNorm1D<6>, T![6];
        "batch_norm1d_train" Train 1e-6 BatchNorm1D<6>, T![6];
        "batch_norm2d_eval" Infer 1e-6 BatchNorm2D<4>, T![4, 3, 2];
        "batch_norm2d_train" Train 1e-6 BatchNorm2D<4>, T![4, 3, 2];
        "batch_norm2d_train_batch1" Train 1e-6 BatchNorm2D<5>, T![5, 3, 4];
        "batch_norm2d_train_large_mean" Train 1e-6 BatchNorm2D<3>, T![3, 4, 4];
    }
    images {
        "conv2d" Infer 1e-5 Conv2D<3, 4, 3>, T![3, 6, 6];
        "conv2d_1x1" Infer 1e-5 Conv2D<5, 4, 1>, T![5, 4, 4];
        "conv2d_1x1_stride2" Infer 1e-5 Conv2D<4, 6, 1, 2>, T![4, 5, 5];
        "conv2d_all" Infer 1e-5 Conv2D<4, 6, 3, 2, 2, 2, 2>, T![4, 9, 7];
        "conv2d_depthwise" Infer 1e-5 Conv2D<5, 5, 3, 1, 1, 1, 5>, T![5, 5, 5];
        "conv2d_depthwise_stride2" Infer 1e-5 Conv2D<4, 4, 3, 2, 1, 1, 4>, T![4, 7, 6];
        "conv2d_depthwise_twice" Infer 1e-5 Conv2D<3, 6, 3, 1, 1, 1, 3>, T![3, 5, 5];
        "conv2d_dilation2" Infer 1e-5 Conv2D<2, 3, 3, 1, 1, 2>, T![2, 8, 8];
        "conv2d_groups2" Infer 1e-5 Conv2D<4, 6, 3, 1, 1, 1, 2>, T![4, 5, 5];
        "conv2d_ic1" Infer 1e-5 Conv2D<1, 5, 3, 1, 1>, T![1, 6, 6];
        "conv2d_k5_pad2" Infer 1e-5 Conv2D<2, 3, 5, 1, 2>, T![2, 6, 6];
        "conv2d_no_bias" Infer 1e-5 Conv2DNoBias<2, 3, 3>, T![2, 5, 5];
        "conv2d_not_square" Infer 1e-5 Conv2D<2, 3, 3, 2, 1>, T![2, 5, 9];
        "conv2d_oc1" Infer 1e-5 Conv2D<3, 1, 3>, T![3, 6, 6];
        "conv2d_patch" Infer 1e-5 Conv2D<3, 6, 4, 4>, T![3, 8, 4];
        "conv2d_square" Infer 1e-5 Conv2D<4, 4, 3>, T![4, 5, 5];
        "conv2d_stride2_pad1" Infer 1e-5 Conv2D<2, 3, 3, 2, 1>, T![2, 7, 7];
        "conv2d_stride2_pad1_even" Infer 1e-5 Conv2D<3, 2, 3, 2, 1>, T![3, 8, 8];
        "avg_pool2d_k2" Infer 1e-6 AvgPool2D<2>, T![2, 6, 4];
        "avg_pool2d_k2_odd" Infer 1e-6 AvgPool2D<2>, T![2, 7, 5];
        "avg_pool2d_k3s2p1" Infer 1e-6 AvgPool2D<3, 2, 1>, T![2, 7, 6];
        "max_pool2d_k2" Infer 1e-6 MaxPool2D<2>, T![2, 6, 4];
        "max_pool2d_k2_odd" Infer 1e-6 MaxPool2D<2>, T![2, 7, 5];
        "max_pool2d_k2_ties" Infer 1e-6 MaxPool2D<2>, T![2, 6, 6];
        "max_pool2d_k3s1p1_ties" Infer 1e-6 MaxPool2D<3, 1, 1>, T![1, 5, 6];
        "max_pool2d_k3s2p1" Infer 1e-6 MaxPool2D<3, 2, 1>, T![2, 7, 6];
        "max_pool2d_k3s2p1_negative" Infer 1e-6 MaxPool2D<3, 2, 1>, T![2, 5, 5];
        "max_pool2d_k3s2p1_ties" Infer 1e-6 MaxPool2D<3, 2, 1>, T![2, 7, 7];
    }
    layout {
        "concat_axis0" Infer 1e-6 Concat<0>, (T![5], T![8]);
        "concat_axis0_planes" Infer 1e-6 Concat<0>, (T![2, 4, 3], T![1, 4, 3], T![3, 4, 3]);
        "concat_axis1" Infer 1e-6 Concat<1>, (T![4, 2], T![4, 5]);
        "slice_axis0" Infer 1e-6 Slice<0, 2, 6>, T![9];
        "slice_axis0_planes" Infer 1e-6 Slice<0, 1, 4>, T![5, 2, 3];
        "slice_axis1" Infer 1e-6 Slice<1, 3, 7>, T![4, 7];
        "pixel_shuffle" Infer 1e-6 PixelShuffle<4, 3, 2>, T![16, 3];
        "pixel_shuffle_s3" Infer 1e-6 PixelShuffle<6, 2, 3>, T![36, 2];
        "pixel_shuffle_s4" Infer 1e-6 PixelShuffle<4, 5, 4>, T![16, 5];
        "rope" Infer 1e-6 RoPE<5, 2, 8>, T![5, 16];
        "rope_d2" Infer 1e-6 RoPE<4, 3, 2>, T![4, 6];
        "rope_interleaved" Infer 1e-6 RoPEInterleaved<5, 2, 8>, T![5, 16];
    }
    models {
        "net_residual_mlp" Infer 1e-5 ResidualMlp, T![4, 6];
    }
}

#[module]
struct ResidualMlp {
    ln: LayerNorm<6>,
    up: LinearGELUTanh<6, 16>,
    down: Linear<16, 6>,
}
#[module]
impl ResidualMlp {
    fn forward(&self, x: T![4, 6]) -> T![4, 6] {
        x + self.down(self.up(self.ln(x)))
    }
}
