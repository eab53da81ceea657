use crate::{Memory, View, ViewMut, WideView};

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

/// Cross-entropy of samples of `rows` rows each, of which the first `counted` have a target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrossEntropySpec {
    /// How the rows become one number.
    pub reduction: Reduction,
    /// Values a row.
    pub classes: usize,
    /// The share of a row's target that is spread evenly over all classes.
    pub smoothing: f64,
    /// The target of rows that count neither in the loss nor in the mean.
    pub ignore: Option<u32>,
    /// Rows a sample.
    pub rows: usize,
    /// Rows of each sample that have a target, its first ones.
    pub counted: usize,
}

impl CrossEntropySpec {
    /// The mean over rows that all have a target, without smoothing.
    pub const fn new(classes: usize) -> Self {
        Self { reduction: Reduction::Mean, classes, smoothing: 0.0, ignore: None, rows: 1, counted: 1 }
    }
}

/// Losses. Each gives the reduced value and, where `dx` is given, its gradient: a loss is the end of a model, so forward
/// and vjp are one pass. Values per row are summed in double precision, in order. The value is left on the device, so
/// that the work that follows need not wait for it.
pub trait Loss: Memory {
    /// Σ or mean of (x − target)².
    fn mse(
        &self,
        reduction: Reduction,
        x: View<'_, Self>,
        target: WideView<'_, Self>,
        dx: Option<ViewMut<'_, Self>>,
        value: Self::ViewMut<'_, f64>,
    );
    /// −log `softmax(x)[target]` of each row of `classes` values. A target that is out of range makes the value, and its
    /// row of the gradient, NaN.
    fn cross_entropy(
        &self,
        s: &CrossEntropySpec,
        x: View<'_, Self>,
        target: Self::View<'_, u32>,
        dx: Option<ViewMut<'_, Self>>,
        value: Self::ViewMut<'_, f64>,
    );
}
