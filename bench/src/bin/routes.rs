//! Measures which way products and convolutions of each size are computed fastest: `cargo run --release -p nn-bench --bin
//! routes`.
//!
//! With `--write` it writes what it found to nn-kernels/src/cpu/routes.rs, which the library decides by: the tables of
//! the instruction set that it ran with, AVX-512's or those of all others. Leave the machine alone meanwhile; it takes
//! about two minutes.

use std::hint::black_box;
use std::time::{Duration, Instant};

use nn::kernels::ops::{Conv as _, Conv2dSpec, Linear as _, LinearSpec, Unary};
use nn::kernels::philox::Philox;
use nn::{Cpu, Isa};

const ROWS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const SIZES: std::ops::RangeInclusive<u32> = 5..=12;
const WAYS: [&str; 3] = ["direct", "streamed", "packed"];
/// A way must be so much faster than the one of fewer rows to take its place: less is noise.
const MARGIN: f64 = 0.98;

const CHANNELS: [usize; 4] = [16, 32, 64, 128];
const SIDES: [usize; 3] = [8, 16, 32];
const CONVOLUTIONS: [&str; 2] = ["direct", "winograd"];
const IMAGES: usize = 8;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../nn-kernels/src/cpu/routes.rs");

fn random(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = Philox::new(seed, 0);
    (0..n).map(|_| rng.normal() as f32).collect()
}

/// The shortest time of a call, in nanoseconds, of each device: in turns, so that what disturbs one disturbs all.
fn times(devices: &[Cpu<f32>], mut call: impl FnMut(&Cpu<f32>)) -> Vec<f64> {
    let mut best = vec![f64::INFINITY; devices.len()];
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(200) || best.iter().any(|b| b.is_infinite()) {
        for (best, device) in best.iter_mut().zip(devices) {
            let (mut calls, start) = (0, Instant::now());
            while calls == 0 || start.elapsed() < Duration::from_micros(100) {
                call(device);
                calls += 1;
            }
            *best = best.min(start.elapsed().as_nanos() as f64 / f64::from(calls));
        }
    }
    best
}

/// Of a product.
fn product(devices: &[Cpu<f32>], rows: usize, edge: usize) -> Vec<f64> {
    let spec = LinearSpec { rows, inputs: edge, outputs: edge, act: Unary::Identity, transposed: false };
    let (x, w, mut y) = (random(1, rows * edge), random(2, edge * edge), random(3, rows * edge));
    times(devices, |device| device.linear(&spec, black_box(&x), &w, None, black_box(&mut y)))
}

/// Of a convolution of some images and the gradient of its input.
fn convolution(devices: &[Cpu<f32>], channels: usize, side: usize) -> Vec<f64> {
    let spec = Conv2dSpec {
        batch: IMAGES,
        in_channels: channels,
        out_channels: channels,
        input: [side; 2],
        output: [side; 2],
        kernel: [3; 2],
        stride: [1; 2],
        padding: [1; 2],
        dilation: [1; 2],
        groups: 1,
        act: Unary::Identity,
    };
    let n = IMAGES * channels * side * side;
    let (x, w) = (random(1, n), random(2, channels * channels * 9));
    let (mut y, mut dx) = (random(3, n), random(4, n));
    times(devices, |device| {
        device.conv2d(&spec, black_box(&x), &w, None, black_box(&mut y), &mut []);
        device.conv2d_vjp(&spec, &x, &w, None, &[], &y, Some(black_box(&mut dx)), None, None, &mut []);
    })
}

/// The device with each of some routes of an operation.
fn devices(operation: &str, routes: &[&str]) -> Result<Vec<Cpu<f32>>, nn::DeviceError> {
    routes.iter().map(|route| Cpu::new()?.forcing(&format!("{operation}={route}"))).collect()
}

/// The letter of the fastest route. It must be faster than `last` by more than noise.
fn letter(routes: &[&str], times: &[f64], last: &mut usize) -> char {
    let fastest = |best, i| if times[i] < MARGIN * times[best] { i } else { best };
    *last = (0..routes.len()).fold(*last, fastest);
    routes[*last].to_uppercase().chars().next().unwrap_or('?')
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let write = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--write") => true,
        Some(other) => return Err(format!("{other}: there is only --write").into()),
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    let products = pool.install(products)?;
    let convolutions = pool.install(convolutions)?;
    if write {
        let text = std::fs::read_to_string(FILE)?;
        let name = if Cpu::<f32>::new()?.isa() == Isa::Avx512 { "AVX512" } else { "AVX2" };
        let text = rewritten(&text, name, &products, &convolutions);
        std::fs::write(FILE, text.ok_or(format!("{FILE} has no tables {name}"))?)?;
        println!("written: {FILE}");
    }
    Ok(())
}

fn show(times: &[f64]) -> String {
    times.iter().map(|t| format!("{t:.0}")).collect::<Vec<_>>().join(" / ")
}

fn products() -> Result<String, nn::DeviceError> {
    let devices = devices("linear", &WAYS)?;
    println!("nanoseconds of {}, inputs × outputs by rows", WAYS.join(" / "));
    let lines = SIZES.map(|bits| 1 << bits).map(|edge| {
        let mut last = 0;
        let letters: String = ROWS
            .into_iter()
            .map(|rows| {
                let times = product(&devices, rows, edge);
                let letter = letter(&WAYS, &times, &mut last);
                println!("{edge:5}² {rows:4} rows: {:32} {letter}", show(&times));
                letter
            })
            .collect();
        format!("        *b\"{letters}\",\n")
    });
    Ok(lines.collect())
}

fn convolutions() -> Result<String, nn::DeviceError> {
    let devices = devices("conv2d", &CONVOLUTIONS)?;
    println!("nanoseconds of {}, {IMAGES} images, with the input's gradient", CONVOLUTIONS.join(" / "));
    let lines = CHANNELS.map(|channels| {
        let letters = SIDES.map(|side| {
            let times = convolution(&devices, channels, side);
            let letter = letter(&CONVOLUTIONS, &times, &mut 0);
            println!("{channels:4} channels {side:2}²: {:28} {letter}", show(&times));
            letter
        });
        format!("*b\"{}\"", String::from_iter(letters))
    });
    Ok(lines.join(", "))
}

/// The file with other lines in the tables of this name, and with the machine in the line before them.
fn rewritten(text: &str, name: &str, products: &str, convolutions: &str) -> Option<String> {
    let begin = format!("const {name}: Routes = Routes {{\n");
    let (head, rest) = text.split_once(&begin)?;
    let head = &head[..head.trim_end().rfind('\n')? + 1];
    let tail = rest.split_once("};\n")?.1;
    Some(format!(
        "{head}/// On {}, one thread.\n{begin}    products: [\n{products}    ],\n    convolutions: [{convolutions}],\n}};\n{tail}",
        machine()
    ))
}

/// What it was measured on.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    model.unwrap_or("an unknown processor").to_owned()
}
