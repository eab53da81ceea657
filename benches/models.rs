//! Whole models on one core: a policy stepped one observation at a time, a perceptron and a convolutional network trained.
//!
//! `cargo bench`

#![allow(missing_docs, reason = "criterion's macros make public functions")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use nn::kernels::philox::Philox;
use nn::{Adam, CrossEntropy, MSE, Model, sequential};

sequential! {
    /// A small policy.
    Policy: [8] -> [4] = nn::LinearTanh<8, 64>, nn::LinearTanh<64, 64>, nn::Linear<64, 4>
}

sequential! {
    /// A perceptron for pictures of 28×28.
    Perceptron: [784] -> [10] = nn::LinearReLU<784, 256>, nn::LinearReLU<256, 128>, nn::Linear<128, 10>
}

sequential! {
    /// A convolutional network for pictures of 28×28.
    LeNet: [1, 28, 28] -> [10] =
        nn::Conv2D<1, 16, 3, 1, 1>, nn::ReLU, nn::MaxPool2D<2>,
        nn::Conv2D<16, 32, 3, 1, 1>, nn::ReLU, nn::MaxPool2D<2>,
        nn::Flatten, nn::Linear<1568, 10>
}

/// Numbers that are never zero.
fn random(n: usize) -> Vec<f32> {
    let mut rng = Philox::new(1, 0);
    (0..n).map(|_| rng.normal() as f32).collect()
}

fn policy(c: &mut Criterion) {
    let mut group = c.benchmark_group("policy 8-64-64-4");
    for batch in [1, 32, 256] {
        let mut model = Model::<Policy>::init(1, batch).expect("memory");
        let (x, t) = (random(8 * batch), random(4 * batch));
        group.throughput(Throughput::Elements(batch as u64));
        group.bench_function(format!("forward, batch {batch}"), |b| {
            b.iter(|| model.forward(black_box(&x)).expect("a whole batch")[0]);
        });
        if batch > 1 {
            let mut adam = Adam::new(1e-4);
            group.bench_function(format!("train step, batch {batch}"), |b| {
                b.iter(|| {
                    model.train_step(black_box(&x), &t, &MSE::default(), &mut adam).expect("a whole batch")
                });
            });
        }
    }
}

macro_rules! classifier {
    ($name:ident, $model:ty, $title:literal, $batch:literal) => {
        fn $name(c: &mut Criterion) {
            let mut group = c.benchmark_group($title);
            let mut model = Model::<$model>::init(1, $batch).expect("memory");
            let x = random(784 * $batch);
            let t: Vec<u32> = (0..$batch).map(|i| i % 10).collect();
            let mut adam = Adam::new(1e-4);
            group.throughput(Throughput::Elements($batch));
            group.bench_function("forward", |b| {
                b.iter(|| model.forward(black_box(&x)).expect("a whole batch")[0])
            });
            group.bench_function("train step", |b| {
                let loss = CrossEntropy::default();
                b.iter(|| model.train_step(black_box(&x), &t, &loss, &mut adam).expect("a whole batch"));
            });
        }
    };
}
classifier!(perceptron, Perceptron, "perceptron 784-256-128-10, batch 64", 64);
classifier!(lenet, LeNet, "two convolutions on 28x28, batch 32", 32);

criterion_group!(benches, policy, perceptron, lenet);
criterion_main!(benches);
