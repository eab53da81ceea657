//! Gated units: one half of a row, activated, times the other.

use nn_kernels::Device;
use nn_kernels::ops::{GatedSpec, Unary};

use crate::ctx::Ctx;
use crate::dims::{C, Dim};
use crate::fault::{Rule, label};
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::along_last;
use crate::layers::elementwise::{Activation, GELU, SiLU, Sigmoid};
use crate::layers::linear::{No, Switch, Yes};
use crate::signature::Signature;
use crate::{Text, layer};

/// y = ACT(a) ⊙ b, where a and b are the first and the second half of a row: `[.., 2·H]` → `[.., H]`. With `LAST`, the
/// second half is the gate, a ⊙ ACT(b). No parameters.
///
/// [`SwiGLU`], [`GeGLU`] and [`GLU`] are the usual ones. Shazeer 2020, arXiv:2002.05202.
#[layer]
pub struct GatedAct<const H: usize, ACT: Activation, LAST: Switch = No>;

/// y = SiLU(first half) ⊙ second half: `[.., 2·H]` → `[.., H]`, the middle of a gated feed-forward network. No parameters.
///
/// [`SwiGLUFeedForward`](crate::SwiGLUFeedForward) is the whole network. Shazeer 2020, arXiv:2002.05202.
///
/// ```
/// use nn::{Layer, SwiGLU, T};
/// assert_eq!(<SwiGLU<4> as Layer<T![5, 8]>>::RULE.out.to_string(), "[5, 4]");
/// let fault = <SwiGLU<4> as Layer<T![5, 4]>>::RULE.fault.unwrap();
/// assert_eq!(fault.to_string(), "shape mismatch: `SwiGLU<4>` takes [.., 8], but it is given [5, 4]");
/// ```
pub type SwiGLU<const H: usize> = GatedAct<H, SiLU>;
/// y = GELU(first half) ⊙ second half, with the exact [`GELU`]: `[.., 2·H]` → `[.., H]`. No parameters.
///
/// ```
/// use nn::{GeGLU, Layer, T};
/// assert_eq!(<GeGLU<4> as Layer<T![8]>>::RULE.out.to_string(), "[4]");
/// ```
pub type GeGLU<const H: usize> = GatedAct<H, GELU>;
/// y = first half ⊙ σ(second half), as PyTorch's `GLU`: `[.., 2·H]` → `[.., H]`. No parameters. Dauphin et al. 2016,
/// arXiv:1612.08083.
///
/// The gate is the **second** half, other than in [`SwiGLU`].
///
/// ```
/// use nn::{GLU, Layer, T};
/// assert_eq!(<GLU<4> as Layer<T![8]>>::RULE.out.to_string(), "[4]");
/// ```
pub type GLU<const H: usize> = GatedAct<H, Sigmoid, Yes>;

impl<H: Dim, ACT: Activation, LAST: Switch> GatedActOf<H, ACT, LAST> {
    const fn spec(rows: usize) -> GatedSpec {
        GatedSpec { act: ACT::F, rows, cols: H::N, gate_last: LAST::ON }
    }
}

impl<H: Dim, ACT: Activation, LAST: Switch> Params for GatedActOf<H, ACT, LAST> {
    const LABEL: Text = match (ACT::F, LAST::ON) {
        (Unary::Silu, false) => label("SwiGLU", Self::ARGS),
        (Unary::Gelu, false) => label("GeGLU", Self::ARGS),
        (Unary::Sigmoid, true) => label("GLU", Self::ARGS),
        (_, last) => {
            let text = H::EXTENT.write(Text::new().str("GatedAct<")).str(", ").str(ACT::NAME);
            text.str(if last { ", Yes>" } else { ">" })
        }
    };
}

impl<X: Signature, H: Dim, ACT: Activation, LAST: Switch> Layer<X> for GatedActOf<H, ACT, LAST> {
    const RULE: Rule = match Rule::check_positive(&Self::LABEL, &["H"], Self::ARGS) {
        Some(rule) => rule,
        None => match Rule::check_args(&Self::LABEL, Self::ARGS) {
            Some(rule) => rule,
            None => {
                let both = H::EXTENT.times(C::<2>::EXTENT);
                along_last(&Self::LABEL, &[both], &X::SIG, both, H::EXTENT)
            }
        },
    };
    const KEEPS_X: bool = true;
    const CAUSAL: bool = true;
}

impl<D: Device, X: Signature, H: Dim, ACT: Activation, LAST: Switch> Module<D, X>
    for GatedActOf<H, ACT, LAST>
{
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        let spec = Self::spec(cx.rows(const { &X::SIG.dims(0) }));
        cx.device().gated(&spec, call.x.get(0), call.y.get(0));
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        if let Some(dx) = call.dx.wanted(0) {
            let spec = Self::spec(cx.rows(const { &X::SIG.dims(0) }));
            cx.device().gated_vjp(&spec, call.x.get(0), call.dy.get(0), dx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Run, Values, gradients};
    use crate::{Cpu, Mode, T, Tanh};

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            gradients::<SwiGLU<4>, T![8]>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<GeGLU<3>, T![..4, 6]>(batch, Mode::Infer, 2).assert_within(1e-7);
            gradients::<GLU<1>, T![2, 3, 2]>(batch, Mode::Train, 3).assert_within(1e-7);
            gradients::<GatedAct<2, Tanh>, T![4]>(batch, Mode::Infer, 4).assert_within(1e-7);
        }
    }

    fn at<M: Module<Cpu<f64>, T![4]>>(x: [f64; 4]) -> Vec<f64> {
        let mut run = Run::<M, T![4], Cpu<f64>>::new(&Cpu::default(), 1);
        run.forward_only(&[Values::Real(x.to_vec())])[0].real().to_vec()
    }

    #[test]
    fn the_right_half_is_the_gate_and_halves_are_no_neighbours() {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let close = |a: &[f64], b: [f64; 2]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-14);
        let x = [0.5, -1.0, 2.0, 3.0];
        let silu = |x: f64| x * sigmoid(x);
        let y = at::<SwiGLU<2>>(x);
        assert!(close(&y, [silu(0.5) * 2.0, silu(-1.0) * 3.0]));
        // The other half as the gate, and halves that alternate, fit as well and are wrong.
        assert!(!close(&y, [silu(2.0) * 0.5, -silu(3.0)]));
        assert!(!close(&y, [-silu(0.5), silu(2.0) * 3.0]));
        let y = at::<GLU<2>>(x);
        assert!(close(&y, [0.5 * sigmoid(2.0), -sigmoid(3.0)]));
        assert!(!close(&y, [sigmoid(0.5) * 2.0, sigmoid(-1.0) * 3.0]));
    }

    #[test]
    fn gelu_is_the_exact_one() {
        // Φ(1) = 0.8413447460685429.
        assert!((at::<GeGLU<2>>([1.0, 0.0, 2.0, 5.0])[0] - 2.0 * 0.841_344_746_068_542_9).abs() < 1e-14);
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        let fault = <GLU<0> as Layer<T![0]>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "`GLU<0>` can't exist: H is 0");
        let fault = <GatedAct<4, Tanh, Yes> as Layer<T![7]>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "shape mismatch: `GatedAct<4, Tanh, Yes>` takes [.., 8], but it is given [7]"
        );
        let fault = <GeGLU<{ usize::MAX - 1 }> as Layer<T![7]>>::RULE.fault.unwrap();
        assert!(fault.to_string().ends_with("can't exist: the number is too large"), "{fault}");
    }
}
