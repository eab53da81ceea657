//! Balances a pole on a cart: proximal policy optimisation in eight environments at once, on one core.
//!
//! `cargo run --release --example cartpole`

mod ppo;
#[path = "../support/mod.rs"]
mod support;

use std::collections::VecDeque;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use gymnasia::core::{Env, StepResult};
use gymnasia::envs::classical_control::cartpole::{CartPoleEnv, CartPoleObservation};
use gymnasia::wrappers::TimeLimit;
use nn::kernels::philox::Philox;
use nn::{Adam, Batches, Linear, LinearTanh, Model, Sampler, SamplerState, Sampling, Schedule};
use nn::{T, argmax, gather, module, sequential};
use ppo::{Ppo, Rollout, Targets, log_softmax, normalise};
use support::plot::{Chart, Curve, charts};

sequential! {
    /// Scores for pushing left and right.
    Policy: [4] -> [2] = LinearTanh<4, 64>, LinearTanh<64, 64>, Linear<64, 2>
}

sequential! {
    /// How much reward is to come.
    Value: [4] -> [1] = LinearTanh<4, 64>, LinearTanh<64, 64>, Linear<64, 1>
}

/// Both, with nothing in common.
#[module]
struct ActorCritic {
    #[init(nn::Orthogonal)]
    policy: Policy,
    #[init(nn::Orthogonal)]
    value: Value,
}

#[module]
impl ActorCritic {
    fn forward(&self, x: T![4]) -> (T![2], T![1]) {
        (self.policy(x), self.value(x))
    }
}

/// Environments that are played side by side.
const ENVIRONMENTS: usize = 8;
/// Steps of each before the policy is improved.
const STEPS: usize = 64;
/// How often an improvement goes through what was played.
const EPOCHS: u64 = 10;
/// Samples a step of the optimiser.
const BATCH: usize = 128;
/// Improvements from one checkpoint to the next.
const SAVE_EVERY: u64 = 50;
const DISCOUNT: f32 = 0.98;
const LAMBDA: f32 = 0.9;
/// What counts as solved: the mean return of so many episodes, none of which can return more than 500.
const SOLVED: f64 = 475.0;
const EPISODES: usize = 100;
/// While training, so many episodes in a row decide whether it's worth an evaluation.
const RECENT: usize = 40;

/// Trains a policy that balances a pole on a cart.
#[derive(Parser)]
struct Options {
    /// Give up after so many steps of all environments together.
    #[arg(long, default_value_t = 500_000)]
    steps: u64,
    /// Learning rate at first.
    #[arg(long, default_value_t = 1e-3)]
    rate: f64,
    /// Decides weights, actions and environments; 0 takes a fresh one.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Go on from the checkpoint in the output folder, with new episodes.
    #[arg(long)]
    resume: bool,
    /// Where picture and checkpoint go.
    #[arg(long, default_value = "out/cartpole")]
    out: PathBuf,
}

/// A cart with its pole.
struct Cart {
    environment: TimeLimit<CartPoleEnv>,
    observation: [f32; 4],
    /// The rewards of this episode so far.
    sum: f64,
}

impl Cart {
    fn new(seed: u64) -> Self {
        let environment = TimeLimit::new(CartPoleEnv::new(), 500);
        let mut cart = Self { environment, observation: [0.0; 4], sum: 0.0 };
        cart.reset(seed);
        cart
    }

    fn reset(&mut self, seed: u64) {
        self.observation = numbers(self.environment.reset(Some(seed), None));
        self.sum = 0.0;
    }

    fn step(&mut self, action: u32) -> StepResult<CartPoleObservation> {
        let result = self.environment.step(i64::from(action));
        self.observation = numbers(result.observation);
        self.sum += result.reward;
        result
    }
}

fn numbers(o: CartPoleObservation) -> [f32; 4] {
    [o.x, o.x_dot, o.theta, o.theta_dot].map(|v| v.into_inner() as f32)
}

/// The seeds of episodes: each its own, whatever was played before.
struct Seeds(Philox);

impl Seeds {
    fn at(&self, i: u64) -> u64 {
        let [low, high, ..] = self.0.at(i);
        u64::from(low) | u64::from(high) << 32
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(mean) if mean >= SOLVED => {
            println!("solved: at least {SOLVED}");
            ExitCode::SUCCESS
        }
        Ok(_) => {
            eprintln!(
                "NOT solved: the mean return is below {SOLVED}. Try more `--steps`, or another `--seed`"
            );
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Trains, and gives the mean return.
fn run(options: &Options) -> Result<f64, Box<dyn Error>> {
    std::fs::create_dir_all(&options.out)?;
    let mut sampler = Sampler::new(Sampling::Temperature { temperature: 1.0 }, 2, options.seed)?;
    let seed = sampler.seed();
    let mut model = Model::<ActorCritic>::init(seed, BATCH)?;
    println!("seed {seed}\n{}\n", model.summary());

    let samples = STEPS * ENVIRONMENTS;
    let mut batches = Batches::new(samples, BATCH, seed);
    let rollouts = options.steps / samples as u64;
    let updates = rollouts * EPOCHS * batches.per_epoch() as u64;
    let schedule = Schedule::Cosine { steps: updates, floor: 0.05 };
    let mut optimizer = Adam::new(options.rate).clip_norm(0.5).schedule(schedule);
    let checkpoint = options.out.join("cartpole.safetensors");
    if options.resume {
        model
            .load_training(&checkpoint, &mut optimizer, &mut batches)
            .map_err(|e| format!("can't resume: {e}"))?;
        // It came with the schedule it was saved with, and `--steps` may be others now.
        optimizer = optimizer.schedule(schedule);
    }
    // The place in the data tells how much was played.
    let played = |batches: &Batches| batches.epoch() / EPOCHS * samples as u64;
    let from = played(&batches);
    sampler.restore(SamplerState { seed, drawn: from });

    let ppo = Ppo { clip: 0.2, value: 0.5, entropy: 0.001 };
    let episodes = Seeds(Philox::new(seed, 1));
    let mut carts: Vec<Cart> = (0..ENVIRONMENTS as u64).map(|i| Cart::new(episodes.at(from + i))).collect();
    let mut rollout = Rollout::default();
    let mut batch = Rollout::default();
    let mut recent = VecDeque::from([0.0; RECENT]);
    let (mut finished, mut curve) = (0_usize, Vec::new());
    let (mut evaluations, mut found) = (0, None);
    let bar = support::progress(options.steps);
    bar.set_position(from);
    bar.reset_eta();
    let start = Instant::now();
    while played(&batches) + samples as u64 <= options.steps {
        let before = played(&batches);
        play(&mut model, &mut sampler, &mut carts, &mut rollout, |i, cart| {
            recent.pop_front();
            recent.push_back(cart.sum);
            finished += 1;
            // Beyond those that the carts began with.
            cart.reset(episodes.at(before + i as u64 + ENVIRONMENTS as u64));
        })?;
        for _ in 0..EPOCHS {
            while let Some(indices) = batches.next_batch() {
                gather(&rollout.observations, 4, indices, &mut batch.observations)?;
                gather(&rollout.actions, 1, indices, &mut batch.actions)?;
                gather(&rollout.log_probs, 1, indices, &mut batch.log_probs)?;
                gather(&rollout.advantages, 1, indices, &mut batch.advantages)?;
                gather(&rollout.returns, 1, indices, &mut batch.returns)?;
                normalise(&mut batch.advantages);
                let targets = Targets {
                    actions: &batch.actions,
                    log_probs: &batch.log_probs,
                    advantages: &batch.advantages,
                    returns: &batch.returns,
                };
                model.zero_gradients();
                model.accumulate_custom(&batch.observations, |y, dy| {
                    let [dlogits, dvalues] = dy else { unreachable!("the model has two outputs") };
                    ppo.loss::<2, _>(y, &targets, (dlogits, dvalues))
                })?;
                model.apply(&mut optimizer)?;
            }
        }
        bar.set_position(played(&batches));
        if batches.epoch().is_multiple_of(SAVE_EVERY * EPOCHS) {
            model.save_training(&checkpoint, &optimizer, &batches)?;
        }
        let count = finished.min(RECENT);
        if count > 0 {
            let mean = recent.iter().sum::<f64>() / count as f64;
            bar.set_message(format!("mean return {mean:.0}"));
            curve.push((played(&batches) as f64 / 1000.0, mean));
            if count == RECENT && mean >= SOLVED {
                // Other episodes than any that were trained on or evaluated before.
                evaluations += 1;
                let mean = evaluate(&mut model, &Seeds(Philox::new(seed, 1 + evaluations)))?;
                found = Some(mean);
                if mean >= SOLVED {
                    break;
                }
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    bar.finish();
    model.save_training(&checkpoint, &optimizer, &batches)?;

    let steps = played(&batches);
    let pace = (steps - from) as f64 / seconds;
    println!("{} steps in {seconds:.1} s: {pace:.0} steps/s, with what was learned from them", steps - from);
    let solved = found.is_some_and(|mean| mean >= SOLVED);
    let mean = match found {
        Some(mean) if solved => mean,
        _ => {
            evaluations += 1;
            evaluate(&mut model, &Seeds(Philox::new(seed, 1 + evaluations)))?
        }
    };
    println!(
        "mean return {mean:.1} over {EPISODES} episodes that it was not trained on (evaluation {evaluations})"
    );
    if !curve.is_empty() {
        let picture = options.out.join("returns.png");
        let curves = &[Curve { name: "mean of 40 episodes", points: &curve }];
        charts(&picture, &[Chart { title: "return", x: "thousand steps", curves, is_share: false }])?;
        println!("picture: {}", picture.display());
    }
    println!("checkpoint: {}", checkpoint.display());
    Ok(mean)
}

/// Plays `STEPS` steps with actions drawn from the policy, and judges them. `end` is called where an episode ends, with the
/// step's number.
fn play(
    model: &mut Model<ActorCritic>,
    sampler: &mut Sampler,
    carts: &mut [Cart],
    rollout: &mut Rollout,
    mut end: impl FnMut(usize, &mut Cart),
) -> Result<(), nn::Error> {
    rollout.clear();
    for _ in 0..STEPS {
        let first = rollout.observations.len();
        carts.iter().for_each(|cart| rollout.observations.extend(cart.observation));
        let (logits, values) = model.forward(&rollout.observations[first..])?;
        rollout.values.extend(values);
        for scores in logits.as_chunks::<2>().0 {
            let action = sampler.sample(scores)?;
            rollout.actions.push(action);
            rollout.log_probs.push(log_softmax(scores)[action as usize] as f32);
        }
        for cart in carts.iter_mut() {
            let i = rollout.rewards.len();
            let result = cart.step(rollout.actions[i]);
            let mut reward = result.reward as f32;
            if result.truncated {
                // The pole still stands, and would have earned more.
                reward += DISCOUNT * model.forward(&cart.observation)?.1[0];
            }
            rollout.rewards.push(reward);
            let ends = result.terminated || result.truncated;
            rollout.ends.push(ends);
            if ends {
                end(i, cart);
            }
        }
    }
    let now: Vec<f32> = carts.iter().flat_map(|cart| cart.observation).collect();
    rollout.judge(model.forward(&now)?.1, DISCOUNT, LAMBDA);
    Ok(())
}

/// The mean return of the likeliest actions, over episodes that begin with these seeds.
fn evaluate(model: &mut Model<ActorCritic>, seeds: &Seeds) -> Result<f64, nn::Error> {
    let mut carts: Vec<Cart> = (0..EPISODES as u64).map(|i| Cart::new(seeds.at(i))).collect();
    let mut sum = 0.0;
    while !carts.is_empty() {
        let observations: Vec<f32> = carts.iter().flat_map(|cart| cart.observation).collect();
        let (logits, _) = model.forward(&observations)?;
        let mut scores = logits.chunks(2);
        carts.retain_mut(|cart| {
            let action = scores.next().map_or(0, argmax) as u32;
            let result = cart.step(action);
            let ends = result.terminated || result.truncated;
            if ends {
                sum += cart.sum;
            }
            !ends
        });
    }
    Ok(sum / EPISODES as f64)
}
