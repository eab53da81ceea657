use nn_kernels::ops::Reduction;
use nn_kernels::{Cpu, Float, cpu};

use crate::error::Error;
use crate::tensors::{Tensors, TensorsMut};

/// What a batch of outputs is, as a loss is told: so many samples, that together have so many rows. A row is the
/// output's last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Samples.
    pub samples: usize,
    /// Rows of all samples together.
    pub count: usize,
    /// Values a row.
    pub len: usize,
}

/// What a loss compares with, as an array, a slice or a `Vec`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what this loss compares with",
    label = "the loss takes `{T}`",
    note = "`MSE` takes numbers like the output's, `&[f32]`; `CrossEntropy` takes class indices, `&[u32]`"
)]
pub trait Targets<T: ?Sized> {
    /// The targets.
    fn targets(&self) -> &T;
}
impl<T: ?Sized, S: AsRef<T> + ?Sized> Targets<T> for S {
    fn targets(&self) -> &T {
        self.as_ref()
    }
}

/// A loss: a number from a model's output and a target, and its gradient.
pub trait Loss<E: cpu::Real> {
    /// What the output is compared with.
    type Target: ?Sized;

    /// Whether the target has the length that goes with such an output.
    fn check(&self, rows: Rows, target: &Self::Target) -> Result<(), Error>;
    /// The loss of a batch; its gradient goes to `dy` if that is given.
    fn value(
        &self,
        device: &Cpu<E>,
        rows: Rows,
        y: Tensors<'_, Cpu<E>>,
        target: &Self::Target,
        dy: Option<TensorsMut<'_, Cpu<E>>>,
    ) -> Result<f64, Error>;
    /// The targets of the samples `from..to`, of `samples` in all. They were [checked](Self::check).
    fn part<'a>(&self, target: &'a Self::Target, samples: usize, from: usize, to: usize) -> &'a Self::Target;
    /// How the losses of a batch become one.
    fn reduction(&self) -> Reduction;
    /// How much the mean over a batch weighs among those of other batches: what was counted in it.
    fn weight(&self, samples: usize, target: &Self::Target) -> f64 {
        let _ = target;
        samples as f64
    }
    /// How many predictions are right, and of how many, where that means something.
    fn correct(&self, rows: Rows, y: Tensors<'_, Cpu<E>>, target: &Self::Target) -> Option<(usize, usize)> {
        let _ = (rows, y, target);
        None
    }
}

/// Whether there are as many targets as there should be.
fn expect(expected: usize, found: usize, samples: usize) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(Error::TargetLength { found, batch: samples, expected }) }
}

/// Mean (or sum) of the squared differences: (1/n)·Σ (y − t)² over all elements.
#[derive(Clone, Copy, Debug, Default)]
pub struct MSE {
    /// How the differences become one number.
    pub reduction: Reduction,
}

impl<E: cpu::Real> Loss<E> for MSE {
    type Target = [E];

    fn check(&self, rows: Rows, target: &[E]) -> Result<(), Error> {
        expect(rows.count * rows.len, target.len(), rows.samples)
    }

    fn value(
        &self,
        device: &Cpu<E>,
        rows: Rows,
        y: Tensors<'_, Cpu<E>>,
        target: &[E],
        mut dy: Option<TensorsMut<'_, Cpu<E>>>,
    ) -> Result<f64, Error> {
        use nn_kernels::ops::Loss as _;
        Loss::<E>::check(self, rows, target)?;
        Ok(device.mse(self.reduction, y.get(0), target, dy.as_mut().and_then(|dy| dy.wanted(0))))
    }

    fn part<'a>(&self, target: &'a [E], samples: usize, from: usize, to: usize) -> &'a [E] {
        part(target, samples, from, to)
    }

    fn reduction(&self) -> Reduction {
        self.reduction
    }
}

/// Softmax cross-entropy with class indices: −log softmax(y)\[t\], mean or sum over the rows.
///
/// As PyTorch's `cross_entropy`: with label smoothing ε a row's target is (1 − ε) at its class plus ε spread
/// evenly over all classes, and rows whose target is `ignore` count neither in the sum nor in the mean.
/// A row is the output's last axis: a model that gives `[64, 50257]` takes 64 targets a sample.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropy {
    /// How the rows become one number.
    pub reduction: Reduction,
    /// The share of a row's target that is spread evenly.
    pub smoothing: f64,
    /// The target of rows that don't count.
    pub ignore: Option<u32>,
}

impl CrossEntropy {
    fn counts(&self, target: u32) -> bool {
        Some(target) != self.ignore
    }
}

impl<E: cpu::Real> Loss<E> for CrossEntropy {
    type Target = [u32];

    fn check(&self, rows: Rows, target: &[u32]) -> Result<(), Error> {
        expect(rows.count, target.len(), rows.samples)
    }

    fn value(
        &self,
        device: &Cpu<E>,
        rows: Rows,
        y: Tensors<'_, Cpu<E>>,
        target: &[u32],
        mut dy: Option<TensorsMut<'_, Cpu<E>>>,
    ) -> Result<f64, Error> {
        use nn_kernels::ops::Loss as _;
        Loss::<E>::check(self, rows, target)?;
        let dy = dy.as_mut().and_then(|dy| dy.wanted(0));
        device
            .cross_entropy(self.reduction, rows.len, self.smoothing, self.ignore, y.get(0), target, dy)
            .map_err(|target| Error::TargetOutOfRange { target, classes: rows.len })
    }

    fn part<'a>(&self, target: &'a [u32], samples: usize, from: usize, to: usize) -> &'a [u32] {
        part(target, samples, from, to)
    }

    fn reduction(&self) -> Reduction {
        self.reduction
    }

    fn weight(&self, _: usize, target: &[u32]) -> f64 {
        target.iter().filter(|t| self.counts(**t)).count() as f64
    }

    fn correct(&self, rows: Rows, y: Tensors<'_, Cpu<E>>, target: &[u32]) -> Option<(usize, usize)> {
        let rows = y.get(0).chunks_exact(rows.len.max(1));
        let counted = rows.zip(target).filter(|(_, t)| self.counts(**t));
        Some(counted.fold((0, 0), |(right, all), (row, t)| {
            (right + usize::from(argmax(row) == *t as usize), all + 1)
        }))
    }
}

/// The targets that belong to the samples `from..to`.
fn part<T>(all: &[T], samples: usize, from: usize, to: usize) -> &[T] {
    let each = all.len() / samples.max(1);
    all.get(from * each..to * each).unwrap_or(&[])
}

/// The index of the first largest value; 0 if there is none.
pub fn argmax<E: Float>(row: &[E]) -> usize {
    let mut best = 0;
    for (i, v) in row.iter().enumerate() {
        if *v > row[best] {
            best = i;
        }
    }
    best
}
