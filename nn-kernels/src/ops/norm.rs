use crate::{Memory, View, ViewMut, WideView, WideViewMut};

/// Batch normalisation of `batch` × `channels` × `area` values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchNormSpec {
    /// Samples.
    pub batch: usize,
    /// Channels, each normalised on its own.
    pub channels: usize,
    /// Values a channel has in one sample.
    pub area: usize,
    /// Added to the variance, inside the root.
    pub eps: f64,
    /// Weight of the newest batch in the running statistics.
    pub momentum: f64,
}

/// Normalisations and softmax, over rows of `cols` values.
pub trait Norm: Memory {
    /// y = (x − mean)·rstd·γ + β with the biased variance, two passes. `stats`, if given, gets mean and
    /// 1/√(var + eps) of each row, interleaved: `[rows, 2]`.
    #[allow(clippy::too_many_arguments, reason = "one view for each operand")]
    fn layer_norm(
        &self,
        cols: usize,
        eps: f64,
        x: View<'_, Self>,
        gamma: Option<View<'_, Self>>,
        beta: Option<View<'_, Self>>,
        y: ViewMut<'_, Self>,
        stats: Option<WideViewMut<'_, Self>>,
    );
    /// Gradients of [`layer_norm`](Self::layer_norm).
    #[allow(clippy::too_many_arguments, reason = "one view for each operand and each gradient")]
    fn layer_norm_vjp(
        &self,
        cols: usize,
        x: View<'_, Self>,
        gamma: Option<View<'_, Self>>,
        stats: WideView<'_, Self>,
        dy: View<'_, Self>,
        dx: Option<ViewMut<'_, Self>>,
        dgamma: Option<ViewMut<'_, Self>>,
        dbeta: Option<ViewMut<'_, Self>>,
    );
    /// y = x / √(mean(x²) + eps)·γ. `stats`, if given, gets 1/√(mean(x²) + eps) of each row.
    fn rms_norm(
        &self,
        cols: usize,
        eps: f64,
        x: View<'_, Self>,
        gamma: Option<View<'_, Self>>,
        y: ViewMut<'_, Self>,
        stats: Option<WideViewMut<'_, Self>>,
    );
    /// Gradients of [`rms_norm`](Self::rms_norm).
    #[allow(clippy::too_many_arguments, reason = "one view for each operand and each gradient")]
    fn rms_norm_vjp(
        &self,
        cols: usize,
        x: View<'_, Self>,
        gamma: Option<View<'_, Self>>,
        stats: WideView<'_, Self>,
        dy: View<'_, Self>,
        dx: Option<ViewMut<'_, Self>>,
        dgamma: Option<ViewMut<'_, Self>>,
    );
    /// Normalises with the batch's own mean and biased variance (two passes), which go to `stats` as
    /// mean and 1/√(var + eps), interleaved: `[channels, 2]`. Where `running`, means and
    /// variances, is given it moves by `momentum` towards the batch's mean and its **unbiased** variance.
    #[allow(clippy::too_many_arguments, reason = "one view for each operand")]
    fn batch_norm_train(
        &self,
        s: &BatchNormSpec,
        x: View<'_, Self>,
        gamma: View<'_, Self>,
        beta: View<'_, Self>,
        y: ViewMut<'_, Self>,
        stats: WideViewMut<'_, Self>,
        running: Option<[WideViewMut<'_, Self>; 2]>,
    );
    /// Normalises with the running statistics: means and variances.
    fn batch_norm_infer(
        &self,
        s: &BatchNormSpec,
        x: View<'_, Self>,
        gamma: View<'_, Self>,
        beta: View<'_, Self>,
        running: [WideView<'_, Self>; 2],
        y: ViewMut<'_, Self>,
    );
    /// Gradients through the batch's statistics. With `constant` statistics (inference) they are not
    /// differentiated; `stats` is then made from the running ones by [`batch_norm_stats`](Self::batch_norm_stats).
    #[allow(clippy::too_many_arguments, reason = "one view for each operand and each gradient")]
    fn batch_norm_vjp(
        &self,
        s: &BatchNormSpec,
        constant: bool,
        x: View<'_, Self>,
        gamma: View<'_, Self>,
        stats: WideView<'_, Self>,
        dy: View<'_, Self>,
        dx: Option<ViewMut<'_, Self>>,
        dgamma: Option<ViewMut<'_, Self>>,
        dbeta: Option<ViewMut<'_, Self>>,
    );
    /// Turns running means and variances into the `stats` of [`batch_norm_train`](Self::batch_norm_train).
    fn batch_norm_stats(
        &self,
        s: &BatchNormSpec,
        running: [WideView<'_, Self>; 2],
        stats: WideViewMut<'_, Self>,
    );
    /// y = softmax(x) along each row, minus the row's maximum first. NaN in a row makes the row NaN.
    fn softmax(&self, cols: usize, x: View<'_, Self>, y: ViewMut<'_, Self>);
    /// dx = y ⊙ (dy − Σ y·dy).
    fn softmax_vjp(&self, cols: usize, y: View<'_, Self>, dy: View<'_, Self>, dx: ViewMut<'_, Self>);
    /// y = x − max − log Σ e^(x − max) along each row.
    fn log_softmax(&self, cols: usize, x: View<'_, Self>, y: ViewMut<'_, Self>);
    /// dx = dy − eʸ·Σ dy.
    fn log_softmax_vjp(&self, cols: usize, y: View<'_, Self>, dy: View<'_, Self>, dx: ViewMut<'_, Self>);
}
