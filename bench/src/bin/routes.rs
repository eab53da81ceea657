//! Measures which way products of each size are computed fastest: `cargo run --release -p nn-bench --bin routes`.
//!
//! With `--write` it writes what it found to nn-kernels/src/cpu/gemm/routes.rs, which the library decides by: the table of
//! the instruction set that it ran with, AVX-512's or that of all others. Leave the
//! machine alone meanwhile; it takes about a minute.

use std::hint::black_box;
use std::time::{Duration, Instant};

use nn::kernels::ops::{Linear as _, LinearSpec, Unary};
use nn::kernels::philox::Philox;
use nn::{Cpu, Isa};

const ROWS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const SIZES: std::ops::RangeInclusive<u32> = 5..=12;
const WAYS: [&str; 3] = ["direct", "streamed", "packed"];
/// A way must be so much faster than the one of fewer rows to take its place: less is noise.
const MARGIN: f64 = 0.98;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../nn-kernels/src/cpu/gemm/routes.rs");

fn random(seed: u64, n: usize) -> Vec<f32> {
    let mut rng = Philox::new(seed, 0);
    (0..n).map(|_| rng.normal() as f32).collect()
}

/// The shortest time of a call, in nanoseconds, of each device: in turns, so that what disturbs one disturbs all.
fn times(devices: &[Cpu<f32>], rows: usize, inputs: usize, outputs: usize) -> Vec<f64> {
    let spec = LinearSpec { rows, inputs, outputs, act: Unary::Identity, transposed: false };
    let (x, w, mut y) = (random(1, rows * inputs), random(2, inputs * outputs), random(3, rows * outputs));
    let mut best = vec![f64::INFINITY; devices.len()];
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(200) || best.iter().any(|b| b.is_infinite()) {
        for (best, device) in best.iter_mut().zip(devices) {
            let (mut calls, start) = (0, Instant::now());
            while calls == 0 || start.elapsed() < Duration::from_micros(100) {
                device.linear(&spec, black_box(&x), &w, None, black_box(&mut y));
                calls += 1;
            }
            *best = best.min(start.elapsed().as_nanos() as f64 / f64::from(calls));
        }
    }
    best
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let write = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--write") => true,
        Some(other) => return Err(format!("{other}: there is only --write").into()),
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    let lines = pool.install(measure)?;
    if write {
        let text = std::fs::read_to_string(FILE)?;
        let name = if Cpu::<f32>::new()?.isa() == Isa::Avx512 { "AVX512" } else { "AVX2" };
        let text = rewritten(&text, name, &lines).ok_or(format!("{FILE} has no table {name}"))?;
        std::fs::write(FILE, text)?;
        println!("written: {FILE}");
    }
    Ok(())
}

fn measure() -> Result<String, nn::DeviceError> {
    let mut devices = Vec::new();
    for way in WAYS {
        devices.push(Cpu::<f32>::new()?.forcing(&format!("linear={way}"))?);
    }
    let mut table = String::new();
    println!("nanoseconds of {}, inputs × outputs by rows", WAYS.join(" / "));
    for edge in SIZES.map(|bits| 1 << bits) {
        let mut letters = String::new();
        let mut last = 0;
        for rows in ROWS {
            let times = times(&devices, rows, edge, edge);
            let best =
                (0..WAYS.len()).fold(last, |best, i| if times[i] < MARGIN * times[best] { i } else { best });
            letters.push(WAYS[best].to_uppercase().chars().next().unwrap_or('?'));
            last = best;
            let shown: Vec<_> = times.iter().map(|t| format!("{t:.0}")).collect();
            println!("{edge:5}² {rows:4} rows: {:32} {}", shown.join(" / "), WAYS[best]);
        }
        table += &format!("    *b\"{letters}\",\n");
    }
    Ok(table)
}

/// The file with other lines in the table of this name, and with the machine in the line before it.
fn rewritten(text: &str, name: &str, lines: &str) -> Option<String> {
    let begin = format!("const {name}: Table = [\n");
    let (head, rest) = text.split_once(&begin)?;
    let head = &head[..head.trim_end().rfind('\n')? + 1];
    let tail = rest.split_once("];\n")?.1;
    Some(format!("{head}/// On {}, one thread.\n{begin}{lines}];\n{tail}", machine()))
}

/// What it was measured on.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    model.unwrap_or("an unknown processor").to_owned()
}
