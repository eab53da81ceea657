//! Reads handwritten digits: trains a small convolutional network on 1,437 pictures and tests it on 360 others.
//!
//! `cargo run --release --example digits`

mod digits;
#[path = "../support/mod.rs"]
mod support;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Parser;
use nn::kernels::philox::Philox;
use nn::{AdamW, Batches, CrossEntropy, Model, Schedule, argmax, gather, sequential};
use support::data::Pictures;
use support::plot::{Chart, Curve, Tile, charts, tiles};

sequential! {
    /// Two convolutions for pictures of 8×8.
    DigitNet: [1, 8, 8] -> [10] =
        conv1: nn::Conv2DReLU<1, 16, 3, 1, 1>,
        conv2: nn::Conv2DReLU<16, 32, 3, 1, 1>, nn::MaxPool2D<2>,
        nn::Flatten, nn::Dropout<0.3>,
        fc1: nn::LinearReLU<512, 64>,
        fc2: nn::Linear<64, 10>
}

/// Trains a network that reads handwritten digits.
#[derive(Parser)]
struct Options {
    /// How often to go through the training pictures.
    #[arg(long, default_value_t = 40)]
    epochs: u64,
    /// Pictures a step.
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Learning rate at its highest.
    #[arg(long, default_value_t = 3e-3)]
    rate: f64,
    /// Decides weights, dropout and the order of the pictures.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where pictures and checkpoint go.
    #[arg(long, default_value = "out/digits")]
    out: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    std::fs::create_dir_all(&options.out)?;
    let (train, test) = digits::read(1437)?;
    println!("{} pictures to train on, {} to test on\n", train.len(), test.len());

    let mut model = Model::<DigitNet>::init(options.seed, options.batch)?;
    println!("{}\n", model.summary());

    let mut batches = Batches::new(train.len(), options.batch, options.seed);
    let steps = options.epochs * batches.per_epoch() as u64;
    let schedule = Schedule::WarmupCosine { warmup: steps / 20, steps, start: 0.05, floor: 0.01 };
    let mut optimizer = AdamW::new(options.rate).weight_decay(0.02).schedule(schedule);
    let loss = CrossEntropy { smoothing: 0.05, ..CrossEntropy::default() };

    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    let [mut train_loss, mut test_loss, mut accuracy] = [const { Vec::new() }; 3];
    let mut random = Philox::new(options.seed, 0);
    let bar = support::progress(steps);
    let start = Instant::now();
    while batches.epoch() < options.epochs {
        let (mut sum, mut count) = (0.0, 0);
        while let Some(indices) = batches.next_batch() {
            gather(&train.pixels, train.each(), indices, &mut pixels)?;
            gather(&train.labels, 1, indices, &mut labels)?;
            shift(&mut pixels, train.size, &mut random);
            sum += model.train_step(&pixels, &labels, &loss, &mut optimizer)?;
            count += 1;
            bar.inc(1);
        }
        let found = model.evaluate(&test.pixels, &test.labels, &loss)?;
        let right = found.accuracy.unwrap_or_default();
        let epoch = batches.epoch() as f64;
        train_loss.push((epoch, sum / f64::from(count)));
        test_loss.push((epoch, found.loss));
        accuracy.push((epoch, right));
        bar.set_message(format!("test {:.2} %", 100.0 * right));
    }
    bar.finish();
    println!("trained in {:.1} s", start.elapsed().as_secs_f64());

    let found = model.evaluate(&test.pixels, &test.labels, &loss)?;
    println!("test accuracy {:.2} %, loss {:.4}", 100.0 * found.accuracy.unwrap_or_default(), found.loss);

    let checkpoint = options.out.join("digits.safetensors");
    model.save(&checkpoint)?;
    let mut again = Model::<DigitNet>::init(options.seed + 1, options.batch)?;
    again.load(&checkpoint)?;
    let (before, after) = (predict(&mut model, &test)?, predict(&mut again, &test)?);
    let same = before.iter().zip(&after).all(|(a, b)| a.to_bits() == b.to_bits());
    println!(
        "saved {}; read again it predicts {}",
        checkpoint.display(),
        if same { "the same bits" } else { "OTHER bits" }
    );

    let curves = options.out.join("curves.png");
    charts(
        &curves,
        &[
            Chart {
                title: "loss",
                x: "epoch",
                curves: &[
                    Curve { name: "train (dropout, shifts)", points: &train_loss },
                    Curve { name: "test", points: &test_loss },
                ],
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
    let mistakes = options.out.join("mistakes.png");
    draw_mistakes(&mistakes, &test, &before)?;
    println!("pictures: {} and {}", curves.display(), mistakes.display());
    if same { Ok(()) } else { Err("the checkpoint does not give the model back".into()) }
}

/// Moves each picture by up to one pixel: a new hand writes elsewhere.
fn shift(pixels: &mut [f32], [height, width]: [usize; 2], random: &mut Philox) {
    let mut moved = vec![0.0; height * width];
    for picture in pixels.chunks_mut(height * width) {
        let (down, right) = (random.below(3) as usize, random.below(3) as usize);
        for (i, v) in moved.iter_mut().enumerate() {
            let (y, x) = (i / width + 1, i % width + 1);
            let inside = (down..height + down).contains(&y) && (right..width + right).contains(&x);
            *v = if inside { picture[(y - down) * width + x - right] } else { 0.0 };
        }
        picture.copy_from_slice(&moved);
    }
}

/// The scores of every picture, as many at a time as the workspace has room for.
fn predict(model: &mut Model<DigitNet>, pictures: &Pictures) -> Result<Vec<f32>, nn::Error> {
    let mut scores = Vec::new();
    for part in pictures.pixels.chunks(32 * pictures.each()) {
        scores.extend_from_slice(model.forward(part)?);
    }
    Ok(scores)
}

fn draw_mistakes(path: &Path, pictures: &Pictures, scores: &[f32]) -> Result<(), Box<dyn Error>> {
    let mut wrong = Vec::new();
    let samples = pictures.pixels.chunks(pictures.each()).zip(&pictures.labels).zip(scores.chunks(10));
    for ((pixels, label), scores) in samples {
        let read = argmax(scores);
        if read != *label as usize {
            wrong.push(Tile { pixels, caption: format!("{label}, read {read}") });
        }
    }
    let title = format!("{} of {} read wrongly", wrong.len(), pictures.len());
    tiles(path, &title, pictures.size, &wrong)
}
