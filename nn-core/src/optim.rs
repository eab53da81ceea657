use nn_kernels::ops::{AdamSpec, SgdSpec};
use nn_kernels::{Device, Memory, View, ViewMut};

use crate::error::Error;
use crate::schedule::Schedule;
use crate::table::Run;
use crate::tensors::{slice, slice_mut};

/// An optimiser: one pass over the flat parameters a step.
pub trait Optimizer<D: Device> {
    /// Moves the parameters one step. `runs` says which of them decay.
    fn step(
        &mut self,
        device: &D,
        params: ViewMut<'_, D>,
        grads: View<'_, D>,
        runs: &[Run],
    ) -> Result<(), Error>;
    /// How many steps were taken.
    fn steps(&self) -> u64;
    /// The learning rate of the next step.
    fn rate(&self) -> f64;
    /// What a checkpoint for resuming keeps.
    fn save(&self) -> Saved<'_, D>;
    /// Takes up what [`save`](Self::save) gave, for a model with `len` elements of parameters.
    fn restore(&mut self, device: &D, len: usize, kind: &str, steps: u64, moments: &[Vec<f64>]) -> Result<(), String>;
}

/// An optimiser's state, as a checkpoint keeps it.
pub struct Saved<'a, D: Device> {
    /// Which optimiser it is.
    pub kind: &'static str,
    /// Steps taken.
    pub steps: u64,
    /// Its arenas, each as long as the parameters'.
    pub moments: Vec<(&'static str, View<'a, D>)>,
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

    fn rate(&self) -> f64 {
        self.rate * self.schedule.factor(self.steps)
    }

    /// The factor that brings the gradient's norm down to the limit: PyTorch's `clip_grad_norm_`.
    fn grad_scale<D: Device>(&self, device: &D, grads: View<'_, D>) -> f64 {
        match self.clip {
            Some(limit) => (limit / (device.sum_of_squares(grads).sqrt() + 1e-6)).min(1.0),
            None => 1.0,
        }
    }
}

/// Arenas that an optimiser keeps beside the parameters; made at its first step.
struct Moments<D: Device, const N: usize>(Option<[D::Buffer<D::Elem>; N]>);

impl<D: Device, const N: usize> Moments<D, N> {
    fn get(&mut self, device: &D, len: usize) -> Result<&mut [D::Buffer<D::Elem>; N], Error> {
        if self.0.is_none() {
            let mut all = Vec::with_capacity(N);
            for _ in 0..N {
                all.push(device.alloc(len)?);
            }
            self.0 = all.try_into().ok();
        }
        self.0.as_mut().ok_or_else(|| unreachable!("N buffers were made"))
    }

    fn save(&self, names: [&'static str; N]) -> Vec<(&'static str, View<'_, D>)> {
        let Some(buffers) = &self.0 else { return Vec::new() };
        names.into_iter().zip(buffers.iter().map(|b| D::view(b))).collect()
    }

    fn restore(&mut self, device: &D, len: usize, moments: &[Vec<f64>]) -> Result<(), String> {
        if moments.is_empty() {
            self.0 = None;
            return Ok(());
        }
        if moments.len() != N || moments.iter().any(|m| m.len() != len) {
            return Err("the optimiser's moments are those of another model".to_owned());
        }
        let buffers = self.get(device, len).map_err(|e| e.to_string())?;
        for (buffer, values) in buffers.iter_mut().zip(moments) {
            upload(device, values, D::view_mut(buffer));
        }
        Ok(())
    }
}

/// Copies double-precision values to the device.
pub(crate) fn upload<D: Memory>(device: &D, values: &[f64], to: ViewMut<'_, D>) {
    use nn_kernels::Float;
    let values: Vec<D::Elem> = values.iter().map(|v| D::Elem::from_f64(*v)).collect();
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
    velocity: Moments<D, 1>,
}

impl<D: Device> Sgd<D> {
    /// Without momentum.
    pub fn new(rate: f64) -> Self {
        Self { common: Common::new(rate), momentum: 0.0, nesterov: false, velocity: Moments(None) }
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
        mut params: ViewMut<'_, D>,
        grads: View<'_, D>,
        runs: &[Run],
    ) -> Result<(), Error> {
        let grad_scale = self.common.grad_scale(device, grads);
        let len = if self.momentum == 0.0 { 0 } else { D::len(grads) };
        let [velocity] = self.velocity.get(device, len)?;
        let mut velocity = D::view_mut(velocity);
        for run in runs {
            let spec = SgdSpec {
                lr: self.common.rate(),
                momentum: self.momentum,
                nesterov: self.nesterov,
                weight_decay: if run.decays { self.common.decay } else { 0.0 },
                grad_scale,
                first: self.common.steps == 0,
            };
            let v = if len == 0 {
                D::empty_mut()
            } else {
                slice_mut::<D>(D::reborrow(&mut velocity), run.start, run.len)
            };
            let p = slice_mut::<D>(D::reborrow(&mut params), run.start, run.len);
            device.sgd(&spec, p, slice::<D>(grads, run.start, run.len), v);
        }
        self.common.steps += 1;
        Ok(())
    }

    fn steps(&self) -> u64 {
        self.common.steps
    }

    fn rate(&self) -> f64 {
        self.common.rate()
    }

    fn save(&self) -> Saved<'_, D> {
        let moments = if self.momentum == 0.0 { Vec::new() } else { self.velocity.save(["velocity"]) };
        Saved { kind: "sgd", steps: self.common.steps, moments }
    }

    fn restore(&mut self, device: &D, len: usize, kind: &str, steps: u64, moments: &[Vec<f64>]) -> Result<(), String> {
        expect_kind("sgd", kind)?;
        self.velocity.restore(device, len, moments)?;
        self.common.steps = steps;
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
    moments: Moments<D, 2>,
}

impl<D: Device> Adam<D> {
    /// β = (0.9, 0.999), ε = 10⁻⁸. Weight decay, if any, is added to the gradient.
    pub fn new(rate: f64) -> Self {
        Self { common: Common::new(rate), betas: (0.9, 0.999), eps: 1e-8, decoupled: false, moments: Moments(None) }
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
        mut params: ViewMut<'_, D>,
        grads: View<'_, D>,
        runs: &[Run],
    ) -> Result<(), Error> {
        let grad_scale = self.common.grad_scale(device, grads);
        let [m, v] = self.moments.get(device, D::len(grads))?;
        let (mut m, mut v) = (D::view_mut(m), D::view_mut(v));
        for run in runs {
            let spec = AdamSpec {
                lr: self.common.rate(),
                beta1: self.betas.0,
                beta2: self.betas.1,
                eps: self.eps,
                weight_decay: if run.decays { self.common.decay } else { 0.0 },
                decoupled: self.decoupled,
                grad_scale,
                step: self.common.steps + 1,
            };
            device.adam(
                &spec,
                slice_mut::<D>(D::reborrow(&mut params), run.start, run.len),
                slice::<D>(grads, run.start, run.len),
                slice_mut::<D>(D::reborrow(&mut m), run.start, run.len),
                slice_mut::<D>(D::reborrow(&mut v), run.start, run.len),
            );
        }
        self.common.steps += 1;
        Ok(())
    }

    fn steps(&self) -> u64 {
        self.common.steps
    }

    fn rate(&self) -> f64 {
        self.common.rate()
    }

    fn save(&self) -> Saved<'_, D> {
        let kind = if self.decoupled { "adamw" } else { "adam" };
        Saved { kind, steps: self.common.steps, moments: self.moments.save(["exp_avg", "exp_avg_sq"]) }
    }

    fn restore(&mut self, device: &D, len: usize, kind: &str, steps: u64, moments: &[Vec<f64>]) -> Result<(), String> {
        expect_kind(if self.decoupled { "adamw" } else { "adam" }, kind)?;
        self.moments.restore(device, len, moments)?;
        self.common.steps = steps;
        Ok(())
    }
}

fn expect_kind(own: &str, kind: &str) -> Result<(), String> {
    if own == kind { Ok(()) } else { Err(format!("it was saved with the optimiser {kind}, and this is {own}")) }
}
