//! One train step of an MLP: what a small program of candle's takes to build, and how large it is.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{AdamW, Module, Optimizer, VarBuilder, VarMap, linear, loss, seq};

fn main() -> Result<()> {
    let parameters = VarMap::new();
    let vb = VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu);
    let model = seq()
        .add(linear(784, 256, vb.pp("first"))?)
        .add_fn(Tensor::relu)
        .add(linear(256, 128, vb.pp("second"))?)
        .add_fn(Tensor::relu)
        .add(linear(128, 10, vb.pp("third"))?);
    let mut optimiser = AdamW::new_lr(parameters.all_vars(), 1e-3)?;
    let x = Tensor::randn(0_f32, 1.0, (64, 784), &Device::Cpu)?;
    let labels = Tensor::rand(0_f32, 10.0, 64, &Device::Cpu)?.to_dtype(DType::U32)?;
    let loss = loss::cross_entropy(&model.forward(&x)?, &labels)?;
    optimiser.backward_step(&loss)?;
    println!("{}", loss.to_scalar::<f32>()?);
    Ok(())
}
