//! MNIST: 60,000 pictures to train on, 10,000 to test on.
//!
//! `scripts/get-data.sh mnist`, then `cargo run --release --example mnist`

mod idx;
#[path = "../support/mod.rs"]
mod support;

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use nn::{AdamW, Batches, CrossEntropy, Model, Schedule, argmax, gather, sequential};
use support::plot::{Chart, Curve, Tile, charts, tiles};

sequential! {
    /// LeNet's successor: two convolutions and two dense layers.
    LeNet: [1, 28, 28] -> [10] =
        conv1: nn::Conv2DReLU<1, 16, 3, 1, 1>, nn::MaxPool2D<2>,
        conv2: nn::Conv2DReLU<16, 32, 3, 1, 1>, nn::MaxPool2D<2>,
        nn::Flatten,
        fc1: nn::LinearReLU<1568, 128>, nn::Dropout<0.3>,
        fc2: nn::Linear<128, 10>
}

/// Trains a network on MNIST.
#[derive(Parser)]
struct Options {
    /// How often to go through the training pictures.
    #[arg(long, default_value_t = 3)]
    epochs: u64,
    /// Pictures a step.
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Learning rate at its highest.
    #[arg(long, default_value_t = 2e-3)]
    rate: f64,
    /// Decides weights, dropout and the order of the pictures.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where `scripts/get-data.sh mnist` put the data.
    #[arg(long, default_value = "data/mnist")]
    data: PathBuf,
    /// Where pictures and checkpoint go.
    #[arg(long, default_value = "out/mnist")]
    out: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    if !options.data.is_dir() {
        let text =
            format!("{} is not there: fetch it with `scripts/get-data.sh mnist`", options.data.display());
        return Err(text.into());
    }
    std::fs::create_dir_all(&options.out)?;
    let train = idx::read(&options.data, "train-images-idx3-ubyte", "train-labels-idx1-ubyte")?;
    let test = idx::read(&options.data, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")?;

    let mut model = Model::<LeNet>::init(options.seed, options.batch)?;
    println!("{}\n", model.summary());
    let mut batches = Batches::new(train.len(), options.batch, options.seed);
    let steps = options.epochs * batches.per_epoch() as u64;
    let schedule = Schedule::WarmupCosine { warmup: steps / 20, steps, start: 0.05, floor: 0.01 };
    let mut optimizer = AdamW::new(options.rate).schedule(schedule);
    let loss = CrossEntropy::default();

    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    let [mut train_loss, mut accuracy] = [const { Vec::new() }; 2];
    let bar = support::progress(steps);
    let start = Instant::now();
    while batches.epoch() < options.epochs {
        let (mut sum, mut count) = (0.0, 0);
        while let Some(indices) = batches.next_batch() {
            gather(&train.pixels, train.each(), indices, &mut pixels)?;
            gather(&train.labels, 1, indices, &mut labels)?;
            sum += model.train_step(&pixels, &labels, &loss, &mut optimizer)?;
            count += 1;
            bar.inc(1);
            if count == 100 {
                train_loss.push((epochs(bar.position(), batches.per_epoch()), sum / f64::from(count)));
                (sum, count) = (0.0, 0);
            }
        }
        let found = model.evaluate(&test.pixels, &test.labels, &loss)?;
        let right = found.accuracy.unwrap_or_default();
        accuracy.push((batches.epoch() as f64, right));
        bar.set_message(format!("test {:.2} %", 100.0 * right));
    }
    bar.finish();
    let found = model.evaluate(&test.pixels, &test.labels, &loss)?;
    println!("trained in {:.1} s", start.elapsed().as_secs_f64());
    println!("test accuracy {:.2} %, loss {:.4}", 100.0 * found.accuracy.unwrap_or_default(), found.loss);
    model.save(options.out.join("mnist.safetensors"))?;

    charts(
        &options.out.join("curves.png"),
        &[
            Chart {
                title: "training loss",
                x: "epoch",
                curves: &[Curve { name: "mean of 100 steps", points: &train_loss }],
                is_share: false,
            },
            Chart {
                title: "test accuracy",
                x: "epoch",
                curves: &[Curve { name: "test", points: &accuracy }],
                is_share: true,
            },
        ],
    )?;
    let mut wrong = Vec::new();
    for (pixels, label) in test.pixels.chunks(test.each()).zip(&test.labels) {
        let read = argmax(model.forward(pixels)?);
        if read != *label as usize && wrong.len() < 32 {
            wrong.push(Tile { pixels, caption: format!("{label}, read {read}") });
        }
    }
    tiles(&options.out.join("mistakes.png"), "the first that are read wrongly", test.size, &wrong)?;
    println!("checkpoint and pictures: {}", options.out.display());
    Ok(())
}

/// Steps in epochs.
fn epochs(steps: u64, per_epoch: usize) -> f64 {
    steps as f64 / per_epoch as f64
}
