//! One train step of an MLP: what a small program of this library's takes to build, and how large it is.

use nn::{AdamW, CrossEntropy, Error, Linear, LinearReLU, Model, sequential};

sequential! {
    /// Three layers.
    Mlp: [784] -> [10] = LinearReLU<784, 256>, LinearReLU<256, 128>, Linear<128, 10>
}

fn main() -> Result<(), Error> {
    let mut model = Model::<Mlp>::init(1, 64)?;
    let x: Vec<f32> = (0..64 * 784).map(|i| ((i * 7919) % 1009) as f32 / 1009.0).collect();
    let labels: Vec<u32> = (0..64).map(|i| i % 10).collect();
    let loss = model.train_step(&x, &labels, &CrossEntropy::default(), &mut AdamW::new(1e-3))?;
    println!("{loss}");
    Ok(())
}
