//! How the time of a training step grows with the batch, the width, the depth and the length of a sequence:
//! `cargo run --release -p nn-bench --bin scaling` writes docs/scaling.png, and prints the numbers. One thread.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use nn::kernels::philox::Philox;
use nn::{
    AdamW, CausalSelfAttention, Conv2D, CrossEntropy, Embedding, FeedForwardGELU, LayerNorm, Linear,
    LinearNoBias, LinearReLU, Model, PosEmbed, PreNormBlock, ReLU, Repeat, sequential,
};
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

sequential! {
    /// A perceptron, W wide, with N hidden layers.
    Mlp<const W: usize, const N: usize>: [64] -> [10] =
        LinearReLU<64, W>, Repeat<LinearReLU<W, W>, N>, Linear<W, 10>
}

sequential! {
    /// A convolution, and what follows it.
    Conv<const C: usize>: [C, 16, 16] -> [C, 16, 16] = Conv2D<C, C, 3, 1, 1>, ReLU
}

sequential! {
    /// A convolutional network with C channels and N hidden layers.
    Cnn<const C: usize, const N: usize>: [3, 16, 16] -> [10] =
        Conv2D<3, C, 3, 1, 1>, ReLU, Repeat<Conv<C>, N>, nn::AvgPool2D<16>, nn::Flatten, Linear<C, 10>
}

sequential! {
    /// A block of a transformer.
    Block<const D: usize>: [..512, D] -> [..512, D] =
        PreNormBlock<LayerNorm<D>, CausalSelfAttention<512, D, 4>, LayerNorm<D>, FeedForwardGELU<D, { 4 * D }>>
}

sequential! {
    /// A transformer over characters, D wide, with N blocks.
    Gpt<const D: usize, const N: usize>: Ids[..512] -> [..512, 65] =
        Embedding<65, D>, PosEmbed<512, D>, Repeat<Block<D>, N>, LayerNorm<D>, LinearNoBias<D, 65>
}

fn random(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = Philox::new(seed, 0);
    (0..n).map(|_| rng.normal() as f32).collect()
}

fn ids(seed: u64, n: usize, below: u32) -> Vec<u32> {
    let mut rng = Philox::new(seed, 0);
    (0..n).map(|_| rng.below(below)).collect()
}

/// The shortest of several calls, in seconds.
fn shortest(mut call: impl FnMut()) -> f64 {
    call();
    let (begin, mut best, mut calls) = (Instant::now(), f64::INFINITY, 0);
    while calls < 3 || begin.elapsed() < Duration::from_millis(400) {
        let start = Instant::now();
        call();
        best = best.min(start.elapsed().as_secs_f64());
        calls += 1;
    }
    best
}

const WHOLE: &str = "the sizes fit the model";

/// A training step of a model for vectors or pictures.
macro_rules! step {
    ($model:ty, $inputs:expr, $batch:expr) => {{
        let mut model = Model::<$model>::init(1, $batch)?;
        let (x, t) = (random(2, $inputs * $batch), ids(3, $batch, 10));
        let mut adam = AdamW::new(1e-3);
        shortest(|| {
            model.train_step(&x, &t, &CrossEntropy::default(), &mut adam).expect(WHOLE);
        })
    }};
}

/// A training step of a model for sequences.
macro_rules! sequences {
    ($model:ty, $batch:expr, $length:expr) => {{
        let mut model = Model::<$model>::init(1, $batch)?;
        model.set_sequences($batch);
        let (x, t) = (ids(2, $batch * $length, 65), ids(3, $batch * $length, 65));
        let mut adam = AdamW::new(1e-3);
        shortest(|| {
            model.train_step(&x, &t, &CrossEntropy::default(), &mut adam).expect(WHOLE);
        })
    }};
}

/// A line: what it is of, and its points.
struct Curve {
    name: &'static str,
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// The exponent of the power that fits the larger half of the points best: 1 where twice as much takes twice as long.
    fn slope(&self) -> f64 {
        let from = self.points.len() / 2;
        let logs: Vec<_> =
            self.points[from.saturating_sub(1)..].iter().map(|p| (p.0.ln(), p.1.ln())).collect();
        let n = logs.len() as f64;
        let (mx, my) = (logs.iter().map(|p| p.0).sum::<f64>() / n, logs.iter().map(|p| p.1).sum::<f64>() / n);
        logs.iter().map(|p| (p.0 - mx) * (p.1 - my)).sum::<f64>()
            / logs.iter().map(|p| (p.0 - mx).powi(2)).sum::<f64>()
    }
}

/// One chart: what grows, and the lines.
struct Chart {
    x: &'static str,
    curves: Vec<Curve>,
}

fn measure() -> Result<Vec<Chart>, nn::Error> {
    let mut batch = [Vec::new(), Vec::new(), Vec::new()];
    for n in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
        batch[0].push((n as f64, step!(Mlp<128, 2>, 64, n)));
    }
    for n in [1, 2, 4, 8, 16, 32, 64] {
        batch[1].push((n as f64, step!(Cnn<16, 3>, 3 * 256, n)));
    }
    for n in [1, 2, 4, 8, 16] {
        batch[2].push((n as f64, sequences!(Gpt<64, 2>, n, 64)));
    }
    let width = [
        vec![
            (32.0, step!(Mlp<32, 2>, 64, 64)),
            (64.0, step!(Mlp<64, 2>, 64, 64)),
            (128.0, step!(Mlp<128, 2>, 64, 64)),
            (256.0, step!(Mlp<256, 2>, 64, 64)),
            (512.0, step!(Mlp<512, 2>, 64, 64)),
            (1024.0, step!(Mlp<1024, 2>, 64, 64)),
        ],
        vec![
            (8.0, step!(Cnn<8, 3>, 3 * 256, 8)),
            (16.0, step!(Cnn<16, 3>, 3 * 256, 8)),
            (32.0, step!(Cnn<32, 3>, 3 * 256, 8)),
            (64.0, step!(Cnn<64, 3>, 3 * 256, 8)),
        ],
        vec![
            (32.0, sequences!(Gpt<32, 2>, 4, 64)),
            (64.0, sequences!(Gpt<64, 2>, 4, 64)),
            (128.0, sequences!(Gpt<128, 2>, 4, 64)),
            (256.0, sequences!(Gpt<256, 2>, 4, 64)),
        ],
    ];
    let depth = [
        vec![
            (1.0, step!(Mlp<128, 1>, 64, 64)),
            (2.0, step!(Mlp<128, 2>, 64, 64)),
            (4.0, step!(Mlp<128, 4>, 64, 64)),
            (8.0, step!(Mlp<128, 8>, 64, 64)),
            (16.0, step!(Mlp<128, 16>, 64, 64)),
        ],
        vec![
            (1.0, step!(Cnn<16, 1>, 3 * 256, 8)),
            (2.0, step!(Cnn<16, 2>, 3 * 256, 8)),
            (4.0, step!(Cnn<16, 4>, 3 * 256, 8)),
            (8.0, step!(Cnn<16, 8>, 3 * 256, 8)),
            (16.0, step!(Cnn<16, 16>, 3 * 256, 8)),
        ],
        vec![
            (1.0, sequences!(Gpt<64, 1>, 4, 64)),
            (2.0, sequences!(Gpt<64, 2>, 4, 64)),
            (4.0, sequences!(Gpt<64, 4>, 4, 64)),
            (8.0, sequences!(Gpt<64, 8>, 4, 64)),
        ],
    ];
    let mut length = Vec::new();
    for n in [16, 32, 64, 128, 256, 512] {
        length.push((n as f64, sequences!(Gpt<64, 2>, 4, n)));
    }
    const NAMES: [&str; 3] = ["perceptron", "convolutions", "transformer"];
    let curves = |points: [Vec<(f64, f64)>; 3]| {
        NAMES.into_iter().zip(points).map(|(name, points)| Curve { name, points }).collect()
    };
    Ok(vec![
        Chart { x: "samples in a batch", curves: curves(batch) },
        Chart { x: "width: units, channels, dimensions", curves: curves(width) },
        Chart { x: "depth: hidden layers, blocks", curves: curves(depth) },
        Chart { x: "tokens in a sequence", curves: vec![Curve { name: NAMES[2], points: length }] },
    ])
}

const COLOURS: [RGBColor; 3] = [RGBColor(31, 119, 180), RGBColor(255, 127, 14), RGBColor(44, 160, 44)];

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.3} µs", s * 1e6),
        s => format!("{:.3} ms", s * 1e3),
    }
}

/// A round number of seconds, for the axis.
fn tick(seconds: f64) -> String {
    match seconds {
        s if s < 0.95e-3 => format!("{:.0} µs", s * 1e6),
        s => format!("{:.0} ms", s * 1e3),
    }
}

fn draw(path: &Path, all: &[Chart]) -> Result<(), Box<dyn Error>> {
    register_font("sans-serif", FontStyle::Normal, dejavu::sans::regular())
        .map_err(|_| "the font is damaged")?;
    let root = BitMapBackend::new(path, (1200, 900)).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, chart) in root.split_evenly((2, 2)).iter().zip(all) {
        let points = || chart.curves.iter().flat_map(|c| c.points.iter().copied());
        let span = |of: fn((f64, f64)) -> f64| {
            points().map(of).fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(v), high.max(v)))
        };
        let (x, y) = (span(|p| p.0), span(|p| p.1));
        let curve_of = 0.7..1.5;
        let mut drawn = ChartBuilder::on(area)
            .margin(14)
            .x_label_area_size(40)
            .y_label_area_size(66)
            .build_cartesian_2d(
                (x.0..x.1 * 1.05).log_scale().base(2.0),
                (y.0 * curve_of.start..y.1 * curve_of.end).log_scale(),
            )?;
        drawn
            .configure_mesh()
            .x_desc(chart.x)
            .y_label_formatter(&|y| tick(*y))
            .x_label_formatter(&|x| format!("{x:.0}"))
            .label_style(("sans-serif", 13))
            .axis_desc_style(("sans-serif", 15))
            .light_line_style(BLACK.mix(0.05))
            .draw()?;
        let colours = COLOURS.iter().skip(COLOURS.len() - chart.curves.len());
        for (curve, colour) in chart.curves.iter().zip(colours) {
            drawn
                .draw_series(
                    LineSeries::new(curve.points.iter().copied(), colour.stroke_width(2)).point_size(3),
                )?
                .label(format!("{}: slope {:.2}", curve.name, curve.slope()))
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        drawn
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .label_font(("sans-serif", 14))
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.2))
            .draw()?;
    }
    root.present()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    let charts = pool.install(measure)?;
    for chart in &charts {
        for curve in &chart.curves {
            let points: Vec<_> = curve.points.iter().map(|(x, y)| format!("{x}: {}", time(*y))).collect();
            println!("{}, {}: {}; slope {:.2}", chart.x, curve.name, points.join(", "), curve.slope());
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/scaling.png");
    draw(Path::new(path), &charts)?;
    println!("written: {path}");
    Ok(())
}
