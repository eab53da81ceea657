use std::collections::BTreeMap;
use std::str::FromStr;

use nn_kernels::ops::{AdamSpec, SgdSpec};
use nn_kernels::{Device, Memory, WideView, WideViewMut};

use crate::error::Error;
use crate::region::{span, span_mut};
use crate::schedule::Schedule;
use crate::table::Run;

/// An optimiser: one pass over the flat parameters a step.
pub trait Optimizer<D: Device> {
    /// Moves the parameters one step. `runs` says which of them decay. On an error the parameters stay as they
    /// were.
    fn step(
        &mut self,
        device: &D,
        params: WideViewMut<'_, D>,
        grads: WideView<'_, D>,
        runs: &[Run],
    ) -> Result<(), Error>;
    /// How many steps were taken.
    fn steps(&self) -> u64;
    /// Says how many steps were taken: the last one turned out to have come to nothing.
    fn set_steps(&mut self, steps: u64);
    /// The learning rate of the next step.
    fn rate(&self) -> f64;
    /// What a checkpoint for resuming keeps.
    fn save(&self) -> Saved<'_, D>;
    /// Takes up what [`save`](Self::save) gave, for a model with `len` elements of parameters: settings too, so
    /// that a rate that was changed on the way is as it was. If that can't be, says why and stays as it was.
    fn restore(&mut self, device: &D, len: usize, saved: &Restored) -> Result<(), String>;
}

/// An optimiser's state, as a checkpoint keeps it.
pub struct Saved<'a, D: Device> {
    /// Which optimiser it is.
    pub kind: &'static str,
    /// Steps taken.
    pub steps: u64,
    /// Rate, schedule, decay and so on, in words and numbers.
    pub settings: Vec<(&'static str, String)>,
    /// Its arenas, each as long as the parameters'.
    pub moments: Vec<(&'static str, WideView<'a, D>)>,
}

/// An optimiser's state, as read from a checkpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Restored {
    /// Which optimiser it was.
    pub kind: String,
    /// Steps taken.
    pub steps: u64,
    /// Rate, schedule, decay and so on, by name.
    pub settings: BTreeMap<String, String>,
    /// Its arenas.
    pub moments: Vec<(String, Vec<f64>)>,
}

impl Restored {
    /// A setting.
    pub fn setting<T: FromStr>(&self, name: &str) -> Result<T, String> {
        let text = self.settings.get(name).ok_or_else(|| format!("the setting `{name}` is missing"))?;
        text.parse().map_err(|_| format!("the setting `{name}` is {text:?}"))
    }

    fn expect(&self, kind: &str) -> Result<(), String> {
        if self.kind == kind {
            Ok(())
        } else {
            Err(format!("it was saved with the optimiser {}, and this is {kind}", self.kind))
        }
    }
}

/// What every optimiser has.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Common {
    rate: f64,
    schedule: Schedule,
    decay: f64,
    clip: Option<f64>,
    steps: u64,
}

impl Common {
    fn new(rate: f64) -> Self {
        Self { rate, schedule: Schedule::Constant, decay: 0.0, clip: None, steps: 0 }
    }

    /// Where each stretch starts, how long it is, and how it decays. Without decay all are alike, and a kernel is called
    /// once.
    fn stretches<'r>(&self, mut runs: &'r [Run]) -> impl Iterator<Item = (usize, usize, f64)> + use<'r> {
        let decay = self.decay;
        std::iter::from_fn(move || {
            let (&Run { start, mut len, decays }, mut rest) = runs.split_first()?;
            while let Some((next, others)) = rest.split_first()
                && next.start == start + len
                && (next.decays == decays || decay == 0.0)
            {
                (len, rest) = (len + next.len, others);
            }
            runs = rest;
            Some((start, len, if decays { decay } else { 0.0 }))
        })
    }

    fn rate(&self) -> f64 {
        self.rate * self.schedule.factor(self.steps)
    }

    fn save(&self) -> Vec<(&'static str, String)> {
        let clip = self.clip.map_or("none".to_owned(), |limit| limit.to_string());
        vec![
            ("rate", self.rate.to_string()),
            ("schedule", self.schedule.to_string()),
            ("decay", self.decay.to_string()),
            ("clip", clip),
        ]
    }

    fn restored(saved: &Restored) -> Result<Self, String> {
        let clip: String = saved.setting("clip")?;
        Ok(Self {
            rate: saved.setting("rate")?,
            schedule: saved.setting("schedule")?,
            decay: saved.setting("decay")?,
            clip: if clip == "none" { None } else { Some(saved.setting("clip")?) },
            steps: saved.steps,
        })
    }
}

/// The sum of the squares of all gradients, where they are clipped; made at the first step that needs it.
struct Squares<D: Device>(Option<D::Buffer<f64>>);

impl<D: Device> Squares<D> {
    const NONE: Self = Self(None);

    fn of(
        &mut self,
        device: &D,
        grads: WideView<'_, D>,
        clip: Option<f64>,
    ) -> Result<D::View<'_, f64>, Error> {
        if clip.is_none() {
            return Ok(D::empty());
        }
        let buffer = match &mut self.0 {
            Some(buffer) => buffer,
            none => none.insert(device.alloc(1)?),
        };
        device.sum_of_squares(grads, D::view_mut(buffer));
        Ok(D::view(buffer))
    }
}

/// An arena that an optimiser keeps beside the parameters; made at its first step.
struct Moment<D: Device>(Option<D::Buffer<D::Wide>>);

impl<D: Device> Moment<D> {
    const NONE: Self = Self(None);

    fn get(&mut self, device: &D, len: usize) -> Result<WideViewMut<'_, D>, Error> {
        let buffer = match &mut self.0 {
            Some(buffer) => buffer,
            none => none.insert(device.alloc(len)?),
        };
        let expected = D::len(D::view(buffer));
        if expected == len {
            Ok(D::view_mut(buffer))
        } else {
            Err(Error::OtherModel { expected, found: len })
        }
    }

    fn save<'a>(&'a self, name: &'static str) -> Option<(&'static str, WideView<'a, D>)> {
        self.0.as_ref().map(|buffer| (name, D::view(buffer)))
    }

    fn restored(device: &D, len: usize, saved: &Restored, name: &str) -> Result<Self, String> {
        let Some((_, values)) = saved.moments.iter().find(|m| m.0 == name) else {
            return Ok(Self::NONE);
        };
        if values.len() != len {
            return Err(format!("`{name}` is that of another model"));
        }
        let mut moment = Self::NONE;
        upload(device, values, moment.get(device, len).map_err(|e| e.to_string())?);
        Ok(moment)
    }
}

/// Copies double-precision values to the device.
pub(crate) fn upload<D: Memory>(device: &D, values: &[f64], to: WideViewMut<'_, D>) {
    use nn_kernels::Float;
    let values: Vec<D::Wide> = values.iter().map(|v| D::Wide::from_f64(*v)).collect();
    device.upload(&values, to);
}

macro_rules! common {
    ($name:ident) => {
        impl<D: Device> $name<D> {
            /// Changes the learning rate from step to step.
            pub fn schedule(mut self, schedule: Schedule) -> Self {
                self.common.schedule = schedule;
                self
            }
            /// Weight decay of matrices, kernels and tables. Biases and gains don't decay.
            pub fn weight_decay(mut self, decay: f64) -> Self {
                self.common.decay = decay;
                self
            }
            /// Scales the gradient down where its norm over all parameters is more than `limit`.
            pub fn clip_norm(mut self, limit: f64) -> Self {
                self.common.clip = Some(limit);
                self
            }
            /// Sets the learning rate, which the schedule multiplies.
            pub fn set_rate(&mut self, rate: f64) {
                self.common.rate = rate;
            }
        }
        impl<D: Device> std::fmt::Debug for $name<D> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).field("settings", &self.common).finish_non_exhaustive()
            }
        }
    };
}

/// Stochastic gradient descent, as PyTorch's `SGD`: g ← g + decay·p, v ← momentum·v + g, p ← p − rate·v.
pub struct Sgd<D: Device = nn_kernels::Cpu<f32>> {
    common: Common,
    momentum: f64,
    nesterov: bool,
    velocity: Moment<D>,
    squares: Squares<D>,
}

impl<D: Device> Sgd<D> {
    /// Without momentum.
    pub fn new(rate: f64) -> Self {
        Self {
            common: Common::new(rate),
            momentum: 0.0,
            nesterov: false,
            velocity: Moment::NONE,
            squares: Squares::NONE,
        }
    }
    /// With momentum.
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.momentum = momentum;
        self
    }
    /// With Nesterov's look ahead: p ← p − rate·(g + momentum·v).
    pub fn nesterov(mut self) -> Self {
        self.nesterov = true;
        self
    }
}

common!(Sgd);

impl<D: Device> Optimizer<D> for Sgd<D> {
    fn step(
        &mut self,
        device: &D,
        mut params: WideViewMut<'_, D>,
        grads: WideView<'_, D>,
        runs: &[Run],
    ) -> Result<(), Error> {
        let squares = self.squares.of(device, grads, self.common.clip)?;
        // Without momentum there is nothing to keep.
        let mut velocity = match self.momentum {
            0.0 => None,
            _ => Some(self.velocity.get(device, D::len(grads))?),
        };
        for (start, len, weight_decay) in self.common.stretches(runs) {
            let spec = SgdSpec {
                lr: self.common.rate(),
                momentum: self.momentum,
                nesterov: self.nesterov,
                weight_decay,
                clip: self.common.clip,
                first: self.common.steps == 0,
            };
            let v = match &mut velocity {
                Some(velocity) => span_mut::<D, _>(D::reborrow(velocity), start, len),
                None => D::empty_mut(),
            };
            let p = span_mut::<D, _>(D::reborrow(&mut params), start, len);
            device.sgd(&spec, squares, p, span::<D, _>(grads, start, len), v);
        }
        self.common.steps += 1;
        Ok(())
    }

    fn steps(&self) -> u64 {
        self.common.steps
    }

    fn set_steps(&mut self, steps: u64) {
        self.common.steps = steps;
    }

    fn rate(&self) -> f64 {
        self.common.rate()
    }

    fn save(&self) -> Saved<'_, D> {
        let mut settings = self.common.save();
        settings.push(("momentum", self.momentum.to_string()));
        settings.push(("nesterov", self.nesterov.to_string()));
        let velocity = if self.momentum == 0.0 { None } else { self.velocity.save("velocity") };
        // There is none before the first step with momentum.
        settings.push(("velocity", velocity.is_some().to_string()));
        Saved { kind: "sgd", steps: self.common.steps, settings, moments: velocity.into_iter().collect() }
    }

    fn restore(&mut self, device: &D, len: usize, saved: &Restored) -> Result<(), String> {
        saved.expect("sgd")?;
        let velocity = Moment::restored(device, len, saved, "velocity")?;
        if saved.setting::<bool>("velocity")? != velocity.0.is_some() {
            return Err("its `velocity` is missing, or it should have none".to_owned());
        }
        *self = Self {
            common: Common::restored(saved)?,
            momentum: saved.setting("momentum")?,
            nesterov: saved.setting("nesterov")?,
            velocity,
            squares: Squares::NONE,
        };
        Ok(())
    }
}

/// Adam (Kingma and Ba 2014, arXiv:1412.6980) and AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101), as
/// PyTorch's: m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², p ← p − rate·m̂/(√v̂ + ε).
pub struct Adam<D: Device = nn_kernels::Cpu<f32>> {
    common: Common,
    betas: (f64, f64),
    eps: f64,
    decoupled: bool,
    first: Moment<D>,
    second: Moment<D>,
    squares: Squares<D>,
}

impl<D: Device> Adam<D> {
    /// β = (0.9, 0.999), ε = 10⁻⁸. Weight decay, if any, is added to the gradient.
    pub fn new(rate: f64) -> Self {
        Self {
            common: Common::new(rate),
            betas: (0.9, 0.999),
            eps: 1e-8,
            decoupled: false,
            first: Moment::NONE,
            second: Moment::NONE,
            squares: Squares::NONE,
        }
    }
    /// AdamW: as [`new`](Self::new), but weight decay (0.01 unless set) shrinks the parameters themselves.
    pub fn w(rate: f64) -> Self {
        let adam = Self::new(rate).weight_decay(0.01);
        Self { decoupled: true, ..adam }
    }
    /// The decay of both moments.
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Self {
        self.betas = (beta1, beta2);
        self
    }
    /// What is added to the root of the second moment.
    pub fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }
}

common!(Adam);

/// AdamW under its own name.
pub struct AdamW;

impl AdamW {
    /// [`Adam::w`].
    #[allow(clippy::new_ret_no_self, reason = "AdamW is a way to make an Adam")]
    pub fn new<D: Device>(rate: f64) -> Adam<D> {
        Adam::w(rate)
    }
}

impl<D: Device> Optimizer<D> for Adam<D> {
    fn step(
        &mut self,
        device: &D,
        mut params: WideViewMut<'_, D>,
        grads: WideView<'_, D>,
        runs: &[Run],
    ) -> Result<(), Error> {
        let squares = self.squares.of(device, grads, self.common.clip)?;
        let mut m = self.first.get(device, D::len(grads))?;
        let mut v = self.second.get(device, D::len(grads))?;
        for (start, len, weight_decay) in self.common.stretches(runs) {
            let spec = AdamSpec {
                lr: self.common.rate(),
                beta1: self.betas.0,
                beta2: self.betas.1,
                eps: self.eps,
                weight_decay,
                decoupled: self.decoupled,
                clip: self.common.clip,
                step: self.common.steps + 1,
            };
            device.adam(
                &spec,
                squares,
                span_mut::<D, _>(D::reborrow(&mut params), start, len),
                span::<D, _>(grads, start, len),
                span_mut::<D, _>(D::reborrow(&mut m), start, len),
                span_mut::<D, _>(D::reborrow(&mut v), start, len),
            );
        }
        self.common.steps += 1;
        Ok(())
    }

    fn steps(&self) -> u64 {
        self.common.steps
    }

    fn set_steps(&mut self, steps: u64) {
        self.common.steps = steps;
    }

    fn rate(&self) -> f64 {
        self.common.rate()
    }

    fn save(&self) -> Saved<'_, D> {
        let mut settings = self.common.save();
        settings.push(("beta1", self.betas.0.to_string()));
        settings.push(("beta2", self.betas.1.to_string()));
        settings.push(("eps", self.eps.to_string()));
        let moments = [self.first.save("exp_avg"), self.second.save("exp_avg_sq")];
        let moments = moments.into_iter().flatten().collect();
        Saved { kind: self.kind(), steps: self.common.steps, settings, moments }
    }

    fn restore(&mut self, device: &D, len: usize, saved: &Restored) -> Result<(), String> {
        saved.expect(self.kind())?;
        let first = Moment::restored(device, len, saved, "exp_avg")?;
        let second = Moment::restored(device, len, saved, "exp_avg_sq")?;
        if saved.steps > 0 && (first.0.is_none() || second.0.is_none()) {
            return Err("it has no moments".to_owned());
        }
        *self = Self {
            common: Common::restored(saved)?,
            betas: (saved.setting("beta1")?, saved.setting("beta2")?),
            eps: saved.setting("eps")?,
            decoupled: self.decoupled,
            first,
            second,
            squares: Squares::NONE,
        };
        Ok(())
    }
}

impl<D: Device> Adam<D> {
    fn kind(&self) -> &'static str {
        if self.decoupled { "adamw" } else { "adam" }
    }
}
