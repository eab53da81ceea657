use crate::{Memory, ViewMut, WideView, WideViewMut};

/// Stochastic gradient descent with momentum, as PyTorch's `SGD` (dampening 0).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdSpec {
    /// Learning rate.
    pub lr: f64,
    /// Momentum; 0 needs no velocity.
    pub momentum: f64,
    /// Nesterov's form.
    pub nesterov: bool,
    /// Added to the gradient as `weight_decay·p`.
    pub weight_decay: f64,
    /// The norm that the gradients are scaled down to first, where theirs is larger.
    pub clip: Option<f64>,
    /// The first step sets the velocity to the gradient.
    pub first: bool,
}

/// Adam and AdamW, as PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamSpec {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the corrected second moment.
    pub eps: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// Decay the parameter itself (AdamW) and not the gradient (Adam with L2).
    pub decoupled: bool,
    /// The norm that the gradients are scaled down to first, where theirs is larger.
    pub clip: Option<f64>,
    /// The number of this step, from 1.
    pub step: u64,
}

/// What gradients are multiplied by where their norm is to be `clip` at most: PyTorch's `clip_grad_norm_`. `squares`, which
/// is read if `clip` is given, holds the sum of all their squares.
pub(crate) fn grad_scale(clip: Option<f64>, squares: &[f64]) -> f64 {
    clip.map_or(1.0, |limit| (limit / (squares[0].sqrt() + 1e-6)).min(1.0))
}

/// One pass over a flat run of parameters. `squares` is the sum of the squares of all gradients, as
/// [`sum_of_squares`](Self::sum_of_squares) gives it; it may be empty unless gradients are clipped.
pub trait Optim: Memory {
    /// p ← one step of SGD. `velocity` may be empty when momentum is 0.
    fn sgd(
        &self,
        s: &SgdSpec,
        squares: Self::View<'_, f64>,
        p: WideViewMut<'_, Self>,
        g: WideView<'_, Self>,
        velocity: WideViewMut<'_, Self>,
    );
    /// p ← one step of Adam.
    fn adam(
        &self,
        s: &AdamSpec,
        squares: Self::View<'_, f64>,
        p: WideViewMut<'_, Self>,
        g: WideView<'_, Self>,
        m: WideViewMut<'_, Self>,
        v: WideViewMut<'_, Self>,
    );
    /// Σ x², summed in double precision, in an order that does not depend on threads.
    fn sum_of_squares(&self, x: WideView<'_, Self>, sum: Self::ViewMut<'_, f64>);
    /// y = x.
    fn copy_wide(&self, x: WideView<'_, Self>, y: WideViewMut<'_, Self>);
    /// y = 0 everywhere.
    fn clear(&self, y: WideViewMut<'_, Self>);
    /// y = x, each rounded once to the nearest element.
    fn narrow(&self, x: WideView<'_, Self>, y: ViewMut<'_, Self>);
    /// sum ← sum + g, and g ← 0.
    fn collect(&self, g: ViewMut<'_, Self>, sum: WideViewMut<'_, Self>);
    /// target ← target + tau·(x − target).
    fn lerp(&self, tau: f64, x: WideView<'_, Self>, target: WideViewMut<'_, Self>);
}
