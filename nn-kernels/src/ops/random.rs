use crate::{Memory, View, ViewMut};

/// Which random numbers: the same four always give the same ones, on every device and for any number of
/// threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stream {
    /// The model's seed.
    pub seed: u64,
    /// The layer's place in the model, so that equal layers differ.
    pub place: u32,
    /// Counts steps, so that each draws anew.
    pub step: u64,
    /// A rank or a replica.
    pub rank: u32,
}

/// A Gaussian sample for each of some rows of `cols` values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GaussianSpec {
    /// Values in a row.
    pub cols: usize,
    /// The sample is the tanh of a Gaussian one, and its log-density is asked for.
    pub squash: bool,
}

/// Random masks and samples.
pub trait Random: Memory {
    /// As [`dropout`](Self::dropout), with [`hash::word`](crate::hash::word) in place of Philox: cheaper, and good
    /// enough for a mask.
    fn hash_dropout(&self, stream: Stream, rate: f64, x: View<'_, Self>, y: ViewMut<'_, Self>);
    /// Numbers from the normal distribution of mean 0 and variance 1, by Box and Muller's method in double precision: the
    /// four words a, b, c and d of a block of the stream give numbers 2·block, r·cos φ, and 2·block + 1, r·sin φ, with
    /// r = √(−2·log(1 − u)), φ = 2π·v, u the upper 53 bits of a + 2³²·b and v those of c + 2³²·d, as fractions.
    fn normal(&self, stream: Stream, y: ViewMut<'_, Self>);
    /// `sample` = mean + exp(log_std)·noise, without `noise` the mean; with [`GaussianSpec::squash`] the tanh of that, and
    /// its log-density, a row's sum, into `log_prob`.
    fn gaussian(
        &self,
        s: &GaussianSpec,
        mean: View<'_, Self>,
        log_std: View<'_, Self>,
        noise: Option<View<'_, Self>>,
        sample: ViewMut<'_, Self>,
        log_prob: Option<ViewMut<'_, Self>>,
    );
    /// Gradients of [`gaussian`](Self::gaussian), the noise held fixed. `dlog_prob` is read only where it squashes.
    #[allow(clippy::too_many_arguments, reason = "one view for each operand and each gradient")]
    fn gaussian_vjp(
        &self,
        s: &GaussianSpec,
        mean: View<'_, Self>,
        log_std: View<'_, Self>,
        noise: Option<View<'_, Self>>,
        dsample: View<'_, Self>,
        dlog_prob: View<'_, Self>,
        dmean: Option<ViewMut<'_, Self>>,
        dlog_std: Option<ViewMut<'_, Self>>,
    );
    /// y = x / (1 − rate) where the element's draw is ≥ rate, else 0. Given the gradient for x, this is the vjp.
    fn dropout(&self, stream: Stream, rate: f64, x: View<'_, Self>, y: ViewMut<'_, Self>);
}
