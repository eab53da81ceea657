//! Says how much alike sentences are: all-MiniLM-L6-v2, a BERT of six layers.
//!
//! `scripts/get-data.sh minilm`, then `cargo run --release --example minilm -- "A text" "Another"`

mod bert;
mod encoder;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use encoder::{Encoder, WIDTH, dot};

/// The example on sentence-transformers' front page, and what it gives there.
const SENTENCES: [&str; 3] =
    ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."];
const SCORES: [(usize, usize, f32); 3] = [(0, 1, 0.6660), (0, 2, 0.1046), (1, 2, 0.1411)];

/// Embeds texts, and compares them.
#[derive(Parser)]
struct Options {
    /// Texts. Without any, the sentences of sentence-transformers' front page, whose scores are known.
    texts: Vec<String>,
    /// Print the vectors: one JSON array a text.
    #[arg(long)]
    vectors: bool,
    /// Texts of one length that are run together.
    #[arg(long, default_value_t = 16)]
    batch: usize,
    /// Measure the throughput for so many seconds; 0 leaves it out.
    #[arg(long, default_value_t = 1.0)]
    measure: f64,
    /// Where `scripts/get-data.sh minilm` put the model.
    #[arg(long, default_value = "data/minilm")]
    data: PathBuf,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the scores are right, where they are known.
fn run(options: &Options) -> Result<bool, Box<dyn Error>> {
    if !options.data.join("model.safetensors").is_file() {
        let folder = options.data.display();
        return Err(format!("{folder} has no model: fetch it with `scripts/get-data.sh minilm`").into());
    }
    let start = Instant::now();
    let mut encoder = Encoder::open(&options.data, options.batch.max(1))?;
    let parameters = encoder.weights().params().len() as f64 / 1e6;
    println!("{parameters:.1} million parameters, read in {:.2} s", start.elapsed().as_secs_f64());

    let known = options.texts.is_empty();
    let texts: Vec<&str> =
        if known { SENTENCES.to_vec() } else { options.texts.iter().map(String::as_str).collect() };
    for text in &texts {
        let (tokens, is_cut) = encoder.tokens(text)?;
        let cut = if is_cut { ", and what comes after them is not read" } else { "" };
        println!("{:3} tokens{cut}: {}", tokens.len(), start_of(text));
    }
    let vectors = encoder.embed(&texts)?;
    if options.vectors {
        for vector in &vectors {
            println!("{}", serde_json::to_string(vector)?);
        }
    }
    println!("\nhow much alike they are, as vectors of {WIDTH} values:");
    for a in &vectors {
        let row: Vec<_> = vectors.iter().map(|b| format!("{:7.4}", dot(a, b))).collect();
        println!("{}", row.join(" "));
    }
    if options.measure > 0.0 {
        measure(&mut encoder, &texts, options)?;
    }
    if !known {
        return Ok(true);
    }
    let far = SCORES.iter().filter(|(i, k, score)| (dot(&vectors[*i], &vectors[*k]) - score).abs() > 1e-4);
    let far = far.count();
    match far {
        0 => println!("\nthe scores are those of sentence-transformers"),
        _ => eprintln!("\n{far} scores are NOT those of sentence-transformers: {SCORES:?}"),
    }
    Ok(far == 0)
}

/// Prints how many sentences a second are embedded, one by one and in batches.
fn measure(encoder: &mut Encoder, texts: &[&str], options: &Options) -> Result<(), Box<dyn Error>> {
    let time = Duration::from_secs_f64(options.measure.min(3600.0) / 2.0);
    let batches: Vec<&str> = texts.iter().flat_map(|text| vec![*text; options.batch.max(1)]).collect();
    println!();
    for (how, texts) in [("one by one".to_owned(), texts), (format!("{} at a time", options.batch), &batches)]
    {
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < time {
            encoder.embed(texts)?;
            count += texts.len();
        }
        println!("{:.0} sentences/s {how}", count as f64 / start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// The first words of a text.
fn start_of(text: &str) -> String {
    let mut start: String = text.chars().take(60).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(60).is_some() {
        start.push('…');
    }
    start
}
