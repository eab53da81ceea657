use std::f64::consts::PI;

/// How the learning rate changes from step to step, as a factor of the optimiser's own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// Always 1.
    #[default]
    Constant,
    /// From 1 to `floor` along half a cosine in `steps` steps, then `floor`:
    /// floor + (1 − floor)(1 + cos(π·t/steps))/2.
    Cosine {
        /// How long it takes.
        steps: u64,
        /// What is left at the end.
        floor: f64,
    },
    /// From `start` to 1 in `warmup` steps, in equal steps, then [`Schedule::Cosine`] in the rest of `steps`.
    WarmupCosine {
        /// How long the rise takes.
        warmup: u64,
        /// How long it takes in all.
        steps: u64,
        /// What it begins with.
        start: f64,
        /// What is left at the end.
        floor: f64,
    },
    /// From `start` to 1 in `steps` equal steps, then 1.
    Warmup {
        /// How long it takes.
        steps: u64,
        /// What it begins with.
        start: f64,
    },
}

impl Schedule {
    /// The factor at step `t`, counted from 0.
    pub fn factor(&self, t: u64) -> f64 {
        match *self {
            Self::Constant => 1.0,
            Self::Cosine { steps, floor } => cosine(t, steps, floor),
            Self::Warmup { steps, start } => rise(t, steps, start),
            Self::WarmupCosine { warmup, steps, start, floor } => {
                if t < warmup {
                    rise(t, warmup, start)
                } else {
                    cosine(t - warmup, steps.saturating_sub(warmup), floor)
                }
            }
        }
    }
}

fn cosine(t: u64, steps: u64, floor: f64) -> f64 {
    if t >= steps {
        return floor;
    }
    floor + (1.0 - floor) * (1.0 + (PI * t as f64 / steps as f64).cos()) / 2.0
}

fn rise(t: u64, steps: u64, start: f64) -> f64 {
    if t >= steps { 1.0 } else { start + (1.0 - start) * t as f64 / steps as f64 }
}
