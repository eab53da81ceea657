use nn_kernels::ops::Reduction;
use nn_kernels::{Cpu, Float, cpu};

use crate::error::Error;
use crate::tensors::{Tensors, TensorsMut};

/// A loss: a number from a model's output and a target, and its gradient.
pub trait Loss<E: cpu::Real> {
    /// What the output is compared with.
    type Target: ?Sized;

    /// The loss of a batch; its gradient goes to `dy` if that is given.
    fn value(
        &self,
        device: &Cpu<E>,
        batch: usize,
        y: Tensors<'_, Cpu<E>>,
        target: &Self::Target,
        dy: Option<TensorsMut<'_, Cpu<E>>>,
    ) -> Result<f64, Error>;
    /// The targets of the samples `from..to`, of `samples` in all.
    fn part<'a>(&self, target: &'a Self::Target, samples: usize, from: usize, to: usize) -> &'a Self::Target;
    /// How the losses of a batch become one.
    fn reduction(&self) -> Reduction;
    /// How much the mean over a batch weighs among those of other batches: what was counted in it.
    fn weight(&self, samples: usize, target: &Self::Target) -> f64 {
        let _ = target;
        samples as f64
    }
    /// How many predictions are right, and of how many, where that means something.
    fn correct(&self, y: Tensors<'_, Cpu<E>>, target: &Self::Target) -> Option<(usize, usize)> {
        let _ = (y, target);
        None
    }
}

/// Mean (or sum) of the squared differences: (1/n)·Σ (y − t)² over all elements.
#[derive(Clone, Copy, Debug, Default)]
pub struct MSE {
    /// How the differences become one number.
    pub reduction: Reduction,
}

impl<E: cpu::Real> Loss<E> for MSE {
    type Target = [E];

    fn value(
        &self,
        device: &Cpu<E>,
        batch: usize,
        y: Tensors<'_, Cpu<E>>,
        target: &[E],
        mut dy: Option<TensorsMut<'_, Cpu<E>>>,
    ) -> Result<f64, Error> {
        use nn_kernels::ops::Loss;
        let y = y.get(0);
        if target.len() != y.len() {
            return Err(Error::TargetLength { found: target.len(), batch, expected: y.len() });
        }
        Ok(device.mse(self.reduction, y, target, dy.as_mut().and_then(|dy| dy.wanted(0))))
    }

    fn part<'a>(&self, target: &'a [E], samples: usize, from: usize, to: usize) -> &'a [E] {
        rows(target, samples, from, to)
    }

    fn reduction(&self) -> Reduction {
        self.reduction
    }
}

/// Softmax cross-entropy with class indices: −log softmax(y)[t], mean or sum over the rows.
///
/// As PyTorch's `cross_entropy`: with label smoothing ε a row's target is (1 − ε) at its class plus ε spread
/// evenly over all classes, and rows whose target is `ignore` count neither in the sum nor in the mean.
/// A row is the output's last axis.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropy {
    /// How the rows become one number.
    pub reduction: Reduction,
    /// The share of a row's target that is spread evenly.
    pub smoothing: f64,
    /// The target of rows that don't count.
    pub ignore: Option<u32>,
    /// How many classes there are; 0: as many as a sample of the output has values. A model that gives
    /// several rows a sample says it here.
    pub classes: usize,
}

impl CrossEntropy {
    fn classes(&self, batch: usize, len: usize) -> usize {
        if self.classes > 0 { self.classes } else { len / batch.max(1) }
    }
}

impl<E: cpu::Real> Loss<E> for CrossEntropy {
    type Target = [u32];

    fn value(
        &self,
        device: &Cpu<E>,
        batch: usize,
        y: Tensors<'_, Cpu<E>>,
        target: &[u32],
        mut dy: Option<TensorsMut<'_, Cpu<E>>>,
    ) -> Result<f64, Error> {
        use nn_kernels::ops::Loss;
        let y = y.get(0);
        let classes = self.classes(batch, y.len());
        if target.len() * classes != y.len() {
            return Err(Error::TargetLength { found: target.len(), batch, expected: y.len() / classes.max(1) });
        }
        let dy = dy.as_mut().and_then(|dy| dy.wanted(0));
        device
            .cross_entropy(self.reduction, classes, self.smoothing, self.ignore, y, target, dy)
            .map_err(|target| Error::TargetOutOfRange { target, classes })
    }

    fn part<'a>(&self, target: &'a [u32], samples: usize, from: usize, to: usize) -> &'a [u32] {
        rows(target, samples, from, to)
    }

    fn reduction(&self) -> Reduction {
        self.reduction
    }

    fn weight(&self, _: usize, target: &[u32]) -> f64 {
        target.iter().filter(|t| Some(**t) != self.ignore).count() as f64
    }

    fn correct(&self, y: Tensors<'_, Cpu<E>>, target: &[u32]) -> Option<(usize, usize)> {
        let y = y.get(0);
        let classes = y.len() / target.len().max(1);
        let counted = target.iter().filter(|t| Some(**t) != self.ignore).count();
        let right = y
            .chunks_exact(classes.max(1))
            .zip(target)
            .filter(|(row, t)| Some(**t) != self.ignore && argmax(row) == **t as usize)
            .count();
        Some((right, counted))
    }
}

/// The rows that belong to the samples `from..to`.
fn rows<T>(all: &[T], samples: usize, from: usize, to: usize) -> &[T] {
    let each = all.len() / samples.max(1);
    &all[(from * each).min(all.len())..(to * each).min(all.len())]
}

/// The index of the first largest value.
pub fn argmax<E: Float>(row: &[E]) -> usize {
    let mut best = 0;
    for (i, v) in row.iter().enumerate() {
        if *v > row[best] {
            best = i;
        }
    }
    best
}
