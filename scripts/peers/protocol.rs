//! What `scripts/bench-peers` and a peer's program say to each other, a line at a time, and how calls are sampled.

use std::collections::HashMap;
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// One entire call: its loss where it is a train step, any number elsewhere.
pub type Call = Box<dyn FnMut() -> Result<f32, String>>;

pub struct Workload {
    /// How many numbers it trains.
    pub params: usize,
    pub call: Call,
}

struct Prepared {
    call: Call,
    calls_per_sample: u32,
}

const SAMPLE: Duration = Duration::from_micros(200);
const MOST_SAMPLES: usize = 200;

/// How many threads `BENCH_THREADS` allows; one where it isn't said.
pub fn threads() -> usize {
    std::env::var("BENCH_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// Answers the lines on standard input until `quit` or their end.
pub fn serve(name: &str, version: &str, mut prepare: impl FnMut(&str) -> Result<Workload, String>) {
    let mut prepared: HashMap<String, Prepared> = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["hello"] => format!("hello {name} {version}"),
            ["prepare", workload] => match caught(|| warmed_up(prepare(workload)?)) {
                Ok((params, ready)) => {
                    prepared.insert(workload.to_owned(), ready);
                    format!("ready {workload} params={params}")
                }
                Err(why) => format!("unsupported {workload} {}", short(&why)),
            },
            ["time", workload, seconds] => match (prepared.get_mut(workload), seconds.parse()) {
                (Some(ready), Ok(seconds)) => match caught(|| samples(ready, seconds)) {
                    Ok(times) => format!("times {workload}{times}"),
                    Err(why) => format!("unsupported {workload} {}", short(&why)),
                },
                _ => format!("unsupported {workload} it isn't prepared, or {seconds} is no number"),
            },
            ["forget", workload] => {
                prepared.remove(workload);
                format!("forgotten {workload}")
            }
            ["quit"] => return,
            [] => continue,
            _ => {
                eprintln!("not understood: {line}");
                continue;
            }
        };
        println!("{answer}");
        if std::io::stdout().flush().is_err() {
            return;
        }
    }
}

/// Calls it three times at least, and till a call's time is known.
fn warmed_up(workload: Workload) -> Result<(usize, Prepared), String> {
    let Workload { params, mut call } = workload;
    let mut fastest = Duration::MAX;
    let (start, mut calls) = (Instant::now(), 0);
    while calls < 3 || (start.elapsed() < Duration::from_millis(50) && calls < 2000) {
        let before = Instant::now();
        let number = black_box(call()?);
        fastest = fastest.min(before.elapsed());
        if !number.is_finite() {
            return Err(format!("a call gave {number}"));
        }
        calls += 1;
    }
    let calls_per_sample = if fastest >= SAMPLE {
        1
    } else {
        SAMPLE.as_nanos().div_ceil(fastest.as_nanos().max(1)).try_into().unwrap_or(u32::MAX)
    };
    Ok((params, Prepared { call, calls_per_sample }))
}

/// A space and the nanoseconds of a call, once a sample: at most [`MOST_SAMPLES`], evenly chosen.
fn samples(ready: &mut Prepared, seconds: f64) -> Result<String, String> {
    let mut nanoseconds = Vec::new();
    let start = Instant::now();
    while nanoseconds.len() < 3 || start.elapsed().as_secs_f64() < seconds {
        let before = Instant::now();
        for _ in 0..ready.calls_per_sample {
            black_box((ready.call)()?);
        }
        nanoseconds.push(before.elapsed().as_nanos() / u128::from(ready.calls_per_sample));
    }
    let printed = nanoseconds.len().min(MOST_SAMPLES);
    Ok((0..printed).map(|i| format!(" {}", nanoseconds[i * nanoseconds.len() / printed])).collect())
}

/// What it gives, or what it said as it panicked.
fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        Err(said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned())
    })
}

fn short(why: &str) -> String {
    why.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}

/// Normally distributed and uniform numbers that are the same in every run and for every library.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Box and Muller's normal numbers, times `scale`.
    pub fn normal(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len)
            .map(|_| {
                let radius = (-2.0 * self.unit().ln()).sqrt();
                (radius * (std::f64::consts::TAU * self.unit()).cos()) as f32 * scale
            })
            .collect()
    }

    /// Whole numbers below `bound`.
    pub fn below(&mut self, bound: u32, len: usize) -> Vec<u32> {
        (0..len).map(|_| (self.next() % u64::from(bound)) as u32).collect()
    }
}
