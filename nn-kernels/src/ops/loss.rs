use crate::{Memory, View, ViewMut};

/// How the losses of a batch become one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Reduction {
    /// Their mean.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

/// Losses. Each returns the reduced value and, where `dx` is given, writes its gradient: a loss is the end
/// of a model, so forward and vjp are one pass. Values per row are summed in double precision, in order.
pub trait Loss: Memory {
    /// Σ or mean of (x − target)².
    fn mse(
        &self,
        reduction: Reduction,
        x: View<'_, Self>,
        target: View<'_, Self>,
        dx: Option<ViewMut<'_, Self>>,
    ) -> f64;
    /// −log `softmax(x)[target]` of each row of `classes` values, with label smoothing: a share `smoothing` of
    /// the target is spread evenly over all classes. Rows whose target is `ignore` count neither in the loss
    /// nor in the mean. The first target that is out of range is the error.
    #[allow(clippy::too_many_arguments, reason = "one argument for each of PyTorch's")]
    fn cross_entropy(
        &self,
        reduction: Reduction,
        classes: usize,
        smoothing: f64,
        ignore: Option<u32>,
        x: View<'_, Self>,
        target: Self::View<'_, u32>,
        dx: Option<ViewMut<'_, Self>>,
    ) -> Result<f64, u32>;
}
