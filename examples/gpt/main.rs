//! Learns to write like Shakespeare, character by character, then writes.
//!
//! `scripts/get-data.sh shakespeare`, then `cargo run --release --example gpt`

mod model;
mod numbers;
#[path = "../support/mod.rs"]
mod support;
mod text;
mod write;

use std::error::Error;
use std::f64::consts::LN_2;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser, ValueEnum};
use nn::{Adam, AdamW, Batches, Cpu, CrossEntropy, Declared, Ids, Model, Module, Optimizer, Sampler};
use nn::{Sampling, Schedule, T};
use support::plot::{Chart, Curve, charts};
use text::{Corpus, VOCAB, Windows};

/// Trains a language model of characters on a text, or without one on what numbers are called, then writes more of it.
#[derive(Parser)]
struct Options {
    /// A folder with texts (.md, .txt), such as `scripts/get-data.sh shakespeare` fetches.
    #[arg(long, default_value = "data/shakespeare")]
    data: PathBuf,
    /// 0.8 million parameters and a context of 128 characters, or 4.4 million and 256, for a machine with more cores.
    #[arg(long, value_enum, default_value_t = Size::Small)]
    size: Size,
    /// Steps of training [default: 1500; 300 without a text]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Windows of text a step, each as long as the model's context.
    #[arg(long, default_value_t = 16)]
    batch: usize,
    /// Learning rate at its highest.
    #[arg(long, default_value_t = 3e-3)]
    rate: f64,
    /// Steps from one evaluation and checkpoint to the next.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// Decides weights, the order of the text, and what is written; 0 takes a fresh one.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Go on from the checkpoint, with its rate, exactly as if training had not stopped.
    #[arg(long, conflicts_with = "write_only")]
    resume: bool,
    /// Write with the checkpoint, and don't train.
    #[arg(long)]
    write_only: bool,
    /// Where picture and checkpoint go.
    #[arg(long, default_value = "out/gpt")]
    out: PathBuf,
    #[command(flatten)]
    writing: Writing,
}

#[derive(Args)]
#[command(next_help_heading = "Writing")]
struct Writing {
    /// What the text begins with [default: a new line]
    #[arg(long, default_value = "\n", hide_default_value = true)]
    prompt: String,
    /// How many characters to write.
    #[arg(long, default_value_t = 600)]
    length: usize,
    /// How daring: above 1 more than the text is, below 1 less; 0 always takes the likeliest character.
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    /// Choose among so many of the likeliest characters only.
    #[arg(long, group = "among")]
    top_k: Option<usize>,
    /// Choose among the likeliest characters that together have this probability.
    #[arg(long, group = "among")]
    top_p: Option<f64>,
    /// Choose among the characters at least this share as likely as the likeliest.
    #[arg(long, group = "among")]
    min_p: Option<f64>,
}

impl Writing {
    fn sampling(&self) -> Sampling {
        let temperature = self.temperature;
        match (self.top_k, self.top_p, self.min_p) {
            _ if temperature == 0.0 => Sampling::Greedy,
            (Some(k), ..) => Sampling::TopK { k, temperature },
            (_, Some(p), _) => Sampling::TopP { p, temperature },
            (_, _, Some(p)) => Sampling::MinP { p, temperature },
            _ => Sampling::Temperature { temperature },
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Size {
    Small,
    Base,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match options.size {
        Size::Small => run::<model::Small, 128>(&options, "small"),
        Size::Base => run::<model::Base, 256>(&options, "base"),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run<M, const S: usize>(options: &Options, size: &str) -> Result<(), Box<dyn Error>>
where
    M: Declared<In = Ids<T![..S]>, Out = T![..S, VOCAB]> + Module<Cpu<f32>, Ids<T![..S]>>,
{
    let mut sampler = Sampler::new(options.writing.sampling(), VOCAB, options.seed)?;
    let (prompt, _) = text::encode(&options.writing.prompt);
    if prompt.is_empty() {
        return Err("the prompt has no character of the alphabet, which is printable ASCII".into());
    }
    std::fs::create_dir_all(&options.out)?;
    let mut model = Model::<M>::init(sampler.seed(), options.batch)?;
    println!("seed {}\n{}\n", sampler.seed(), model.summary());

    let numbers = !options.write_only && !options.data.is_dir();
    if numbers {
        println!(
            "{} is not there: `scripts/get-data.sh shakespeare` fetches it. Numbers will do for now.\n",
            options.data.display()
        );
    }
    let checkpoint = options.out.join(format!("{size}.safetensors"));
    if options.write_only {
        model.load(&checkpoint)?;
    } else {
        let corpus = if numbers {
            Corpus::tail(text::encode(&numbers::text(6_000, 1)).0)
        } else {
            Corpus::read(&options.data)?
        };
        let steps = options.steps.unwrap_or(if numbers { 300 } else { 1500 });
        train::<M, S>(options, &corpus, steps, sampler.seed(), &mut model, &checkpoint)?;
    }

    let mut out = std::io::stdout().lock();
    let shown: String = prompt.iter().map(|id| text::character(*id)).collect();
    write!(out, "\n{shown}")?;
    let mut shown = Ok(());
    let written =
        write::write::<M, S>(model.weights(), &prompt, options.writing.length, &mut sampler, |id| {
            let show = write!(out, "{}", text::character(id)).and_then(|()| out.flush());
            shown = std::mem::replace(&mut shown, Ok(())).and(show);
        })?;
    shown?;
    writeln!(out, "\n")?;
    let pace = options.writing.length.saturating_sub(1) as f64 / written.writing.as_secs_f64();
    let reading = 1e3 * written.reading.as_secs_f64();
    writeln!(
        out,
        "{pace:.0} characters/s, one after the other; the prompt of {} took {reading:.1} ms",
        prompt.len()
    )?;
    if written.slides > 0 {
        let times = if written.slides == 1 { "once" } else { &format!("{} times", written.slides) };
        writeln!(
            out,
            "the context of {S} characters was full {times}: its later half was read again, and what came before forgotten"
        )?;
    }
    if numbers {
        let all: String = written.ids.iter().map(|id| text::character(*id)).collect();
        let (right, lines) = numbers::right(&all);
        writeln!(out, "{right} of {lines} whole lines are right")?;
    }
    Ok(())
}

/// Losses at a step: the mean in training since the last, and that of the text that is held out.
struct Losses {
    step: u64,
    train: Option<f64>,
    held_out: f64,
}

fn train<M, const S: usize>(
    options: &Options,
    corpus: &Corpus,
    steps: u64,
    seed: u64,
    model: &mut Model<M>,
    checkpoint: &Path,
) -> Result<(), Box<dyn Error>>
where
    M: Declared<In = Ids<T![..S]>, Out = T![..S, VOCAB]> + Module<Cpu<f32>, Ids<T![..S]>>,
{
    let (uniform, unigram) = ((VOCAB as f64).ln(), corpus.unigram());
    let windows = Windows { text: &corpus.train, length: S };
    let held_out = Windows { text: &corpus.held_out, length: S };
    if windows.count() == 0 || held_out.count() == 0 {
        return Err(format!("the text is too short for windows of {S} characters").into());
    }
    println!(
        "{} characters to train on, {} held out: {}",
        corpus.train.len(),
        corpus.held_out.len(),
        corpus.split
    );
    if corpus.dropped > 0 {
        println!("{} characters outside the alphabet were left out", corpus.dropped);
    }
    println!(
        "losses of a guess: {} for any character, {} by how often each comes\n",
        nats(uniform),
        nats(unigram)
    );

    let mut batches = Batches::new(windows.count(), options.batch, seed);
    let schedule = Schedule::WarmupCosine { warmup: steps / 20, steps, start: 0.02, floor: 0.05 };
    let mut optimizer: Adam =
        AdamW::new(options.rate).betas(0.9, 0.99).weight_decay(0.1).clip_norm(1.0).schedule(schedule);
    let record = checkpoint.with_extension("csv");
    let mut losses = Vec::new();
    if options.resume {
        model
            .load_training(checkpoint, &mut optimizer, &mut batches)
            .map_err(|e| format!("can't resume: {e}"))?;
        if batches.per_epoch() != windows.count().div_ceil(options.batch) {
            return Err("can't resume: the checkpoint was saved with another `--batch`".into());
        }
        // It came with the schedule it was saved with, and `--steps` may be others now.
        optimizer = optimizer.schedule(schedule);
        losses = read(&record, optimizer.steps())?;
    }
    let loss = CrossEntropy::default();
    let [mut x, mut target] = [const { Vec::new() }; 2];
    let mut evaluate = |model: &mut Model<M>, most: usize| {
        let step = held_out.count().div_ceil(most);
        let some: Vec<_> = (0..held_out.count()).step_by(step).collect();
        held_out.gather(0, &some, &mut x, &mut target);
        model.set_sequences(some.len());
        model.evaluate(&x, &target, &loss).map(|found| found.loss)
    };
    /// Windows of an evaluation on the way, from all over the text that is held out.
    const SOME: usize = 64;
    if losses.is_empty() && optimizer.steps() == 0 {
        losses.push(Losses { step: 0, train: None, held_out: evaluate(model, SOME)? });
    }

    let bar = support::progress(steps);
    bar.set_position(optimizer.steps());
    bar.reset_eta();
    let [mut x, mut target] = [const { Vec::new() }; 2];
    let (mut sum, mut count, mut seen, mut start) = (0.0, 0_u32, 0, Instant::now());
    while optimizer.steps() < steps {
        let offset = windows.offset(batches.epoch());
        // The next epoch begins, with another offset.
        let Some(indices) = batches.next_batch() else { continue };
        windows.gather(offset, indices, &mut x, &mut target);
        model.set_sequences(indices.len());
        let value = model.train_step(&x, &target, &loss, &mut optimizer)?;
        if !value.is_finite() {
            return Err("the loss is no longer finite: try a lower `--rate`".into());
        }
        sum += value;
        count += 1;
        seen += x.len();
        bar.inc(1);
        let step = optimizer.steps();
        if step.is_multiple_of(options.every) || step == steps {
            let (pace, train) = (seen as f64 / start.elapsed().as_secs_f64(), sum / f64::from(count));
            let held_out = evaluate(model, SOME)?;
            losses.push(Losses { step, train: Some(train), held_out });
            bar.suspend(|| {
                println!(
                    "step {step:5}: training {train:.3}, held out {held_out:.3}; {pace:.0} characters/s"
                );
            });
            write_record(&record, &losses)?;
            model.save_training(checkpoint, &optimizer, &batches)?;
            (sum, count, seen, start) = (0.0, 0, 0, Instant::now());
        }
    }
    bar.finish_and_clear();

    let found = evaluate(model, usize::MAX)?;
    println!("\nall that is held out: {}", nats(found));
    println!("an even guess: {}; one by how often each comes: {}", nats(uniform), nats(unigram));
    let picture = checkpoint.with_extension("png");
    draw(&picture, &losses, uniform, unigram)?;
    println!("picture: {}\ncheckpoint: {}", picture.display(), checkpoint.display());
    Ok(())
}

/// A loss in both of the usual units.
fn nats(loss: f64) -> String {
    format!("{loss:.3} nats ({:.3} bits) a character", loss / LN_2)
}

/// Writes the losses so far beside the checkpoint, before it: what is there is never less than the checkpoint knows.
fn write_record(path: &Path, losses: &[Losses]) -> Result<(), Box<dyn Error>> {
    let mut text = "step,training,held out\n".to_owned();
    for Losses { step, train, held_out } in losses {
        let train = train.map(|train| train.to_string()).unwrap_or_default();
        text.push_str(&format!("{step},{train},{held_out}\n"));
    }
    let aside = path.with_extension("csv.tmp");
    std::fs::write(&aside, text)?;
    Ok(std::fs::rename(aside, path)?)
}

/// The losses up to a step; none if there is no record.
fn read(path: &Path, last: u64) -> Result<Vec<Losses>, Box<dyn Error>> {
    let Ok(text) = std::fs::read_to_string(path) else { return Ok(Vec::new()) };
    let line = |line: &str| {
        let mut parts = line.split(',');
        let mut next = || parts.next().unwrap_or_default();
        Some(Losses {
            step: next().parse().ok()?,
            train: next().parse().ok(),
            held_out: next().parse().ok()?,
        })
    };
    let all: Option<Vec<_>> = text.lines().skip(1).map(line).collect();
    let all = all.ok_or_else(|| format!("{}: a line is no record of losses", path.display()))?;
    Ok(all.into_iter().filter(|losses| losses.step <= last).collect())
}

fn draw(path: &Path, losses: &[Losses], uniform: f64, unigram: f64) -> Result<(), Box<dyn Error>> {
    let train: Vec<_> = losses.iter().filter_map(|l| Some((l.step as f64, l.train?))).collect();
    let held_out: Vec<_> = losses.iter().map(|l| (l.step as f64, l.held_out)).collect();
    let last = losses.last().map_or(0.0, |l| l.step as f64);
    let line = |y: f64| [(0.0, y), (last, y)];
    let chart = Chart {
        title: "loss, in nats a character",
        x: "step",
        curves: &[
            Curve { name: "training", points: &train },
            Curve { name: "held out", points: &held_out },
            Curve { name: "by how often each comes", points: &line(unigram) },
            Curve { name: "an even guess", points: &line(uniform) },
        ],
        is_share: false,
    };
    charts(path, &[chart])
}
