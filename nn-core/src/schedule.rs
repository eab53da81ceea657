use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;

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

/// As a checkpoint keeps it: `cosine 1000 0.1`. What is written is read back exactly.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant => write!(f, "constant"),
            Self::Cosine { steps, floor } => write!(f, "cosine {steps} {floor}"),
            Self::Warmup { steps, start } => write!(f, "warmup {steps} {start}"),
            Self::WarmupCosine { warmup, steps, start, floor } => {
                write!(f, "warmup-cosine {warmup} {steps} {start} {floor}")
            }
        }
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        fn number<T: FromStr>(text: &str) -> Option<T> {
            text.parse().ok()
        }
        let read = || {
            Some(match *text.split(' ').collect::<Vec<_>>() {
                ["constant"] => Self::Constant,
                ["cosine", steps, floor] => Self::Cosine { steps: number(steps)?, floor: number(floor)? },
                ["warmup", steps, start] => Self::Warmup { steps: number(steps)?, start: number(start)? },
                ["warmup-cosine", warmup, steps, start, floor] => Self::WarmupCosine {
                    warmup: number(warmup)?,
                    steps: number(steps)?,
                    start: number(start)?,
                    floor: number(floor)?,
                },
                _ => return None,
            })
        };
        read().ok_or_else(|| format!("{text:?} is no schedule"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let (start, floor) = (1.0 / 3.0, 1e-300);
        for schedule in [
            Schedule::Constant,
            Schedule::Cosine { steps: u64::MAX, floor },
            Schedule::Warmup { steps: 0, start },
            Schedule::WarmupCosine { warmup: 3, steps: 9, start, floor },
        ] {
            assert_eq!(schedule.to_string().parse(), Ok(schedule));
        }
        for wrong in ["", "constant 1", "cosine 5", "cosine -5 0", "cosine five 0", "Constant"] {
            assert_eq!(wrong.parse::<Schedule>(), Err(format!("{wrong:?} is no schedule")));
        }
    }

    #[test]
    fn schedules_end_where_they_should() {
        let cosine = Schedule::Cosine { steps: 10, floor: 0.1 };
        assert_eq!((cosine.factor(0), cosine.factor(10), cosine.factor(u64::MAX)), (1.0, 0.1, 0.1));
        let both = Schedule::WarmupCosine { warmup: 4, steps: 10, start: 0.5, floor: 0.0 };
        assert_eq!((both.factor(0), both.factor(2), both.factor(4), both.factor(10)), (0.5, 0.75, 1.0, 0.0));
        // Shorter than its own rise, or no steps at all: no division by zero.
        for schedule in [
            Schedule::Cosine { steps: 0, floor: 0.25 },
            Schedule::WarmupCosine { warmup: 0, steps: 0, start: 0.0, floor: 0.25 },
        ] {
            assert_eq!(schedule.factor(0), 0.25);
        }
        assert_eq!(Schedule::Warmup { steps: 0, start: 0.0 }.factor(0), 1.0);
    }
}
