use crate::{Memory, View, ViewMut};

/// One step of recurrent layers for a batch of `rows` samples with states of `hidden` values. Gates lie side by side in a
/// row, in PyTorch's order.
///
/// The products with the weights are [`linear`](super::Linear::linear) and [`linear_add`](super::Linear::linear_add).
pub trait Recurrent: Memory {
    /// c′ = σ(f)·c + σ(i)·tanh(g) and h′ = σ(o)·tanh(c′), with `gates` `[rows, 4·hidden]` holding i, f, g and o before
    /// their activations, and afterwards after them.
    fn lstm(
        &self,
        hidden: usize,
        gates: ViewMut<'_, Self>,
        c: View<'_, Self>,
        c_next: ViewMut<'_, Self>,
        h_next: ViewMut<'_, Self>,
    );
    /// Gradients of [`lstm`](Self::lstm): those of the gates before their activations into `dgates`, and that of c in
    /// place of that of c′, which `dc` holds before. `gates` are those after their activations.
    #[allow(clippy::too_many_arguments, reason = "one view for each operand and each gradient")]
    fn lstm_vjp(
        &self,
        hidden: usize,
        gates: View<'_, Self>,
        c: View<'_, Self>,
        c_next: View<'_, Self>,
        dh_next: View<'_, Self>,
        dc: ViewMut<'_, Self>,
        dgates: ViewMut<'_, Self>,
    );
    /// h′ = (1 − z)·n + z·h with r = σ(x_r + h_r), z = σ(x_z + h_z) and n = tanh(x_n + r·h_n). `gates`
    /// `[rows, 3·hidden]` holds x_r, x_z and x_n, what comes from the input, and afterwards r, z and n; `recurrent` holds
    /// h_r, h_z and h_n, what comes from the state.
    fn gru(
        &self,
        hidden: usize,
        gates: ViewMut<'_, Self>,
        recurrent: View<'_, Self>,
        h: View<'_, Self>,
        h_next: ViewMut<'_, Self>,
    );
    /// Gradients of [`gru`](Self::gru): those of x_r, x_z and x_n into `dgates`, those of h_r, h_z and h_n into
    /// `drecurrent`, and that of h by the way of z·h alone in place of that of h′, which `dh` holds before. `gates` are r, z
    /// and n, of `recurrent` only h_n is read.
    #[allow(clippy::too_many_arguments, reason = "one view for each operand and each gradient")]
    fn gru_vjp(
        &self,
        hidden: usize,
        gates: View<'_, Self>,
        recurrent: View<'_, Self>,
        h: View<'_, Self>,
        dh: ViewMut<'_, Self>,
        dgates: ViewMut<'_, Self>,
        drecurrent: ViewMut<'_, Self>,
    );
}
