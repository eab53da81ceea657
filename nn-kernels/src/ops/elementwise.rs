use crate::{Memory, View, ViewMut, WideView};

/// An elementwise function of one value. Formulas are those of PyTorch.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Unary {
    /// x.
    Identity,
    /// max(x, 0); the gradient at 0 is 0; NaN stays NaN.
    Relu,
    /// tanh x.
    Tanh,
    /// 1 / (1 + e⁻ˣ).
    Sigmoid,
    /// x·σ(x).
    Silu,
    /// x·Φ(x), with erf.
    Gelu,
    /// ½x(1 + tanh(√(2/π)(x + 0.044715x³))).
    GeluTanh,
    /// x·tanh(log(1 + eˣ)).
    Mish,
    /// x where x > 0, else eˣ − 1.
    Elu,
    /// scale·x + shift.
    Affine {
        /// Factor.
        scale: f64,
        /// Added last.
        shift: f64,
    },
    /// x / by, rounded once: 1 / by as a factor would round twice.
    Divide {
        /// Divisor.
        by: f64,
    },
    /// c / x.
    Reciprocal {
        /// Numerator.
        c: f64,
    },
}

impl Unary {
    /// Whether the derivative needs the input.
    pub const fn needs_x(self) -> bool {
        matches!(
            self,
            Self::Silu | Self::Gelu | Self::GeluTanh | Self::Mish | Self::Elu | Self::Reciprocal { .. }
        )
    }
    /// Whether the derivative needs the output.
    pub const fn needs_y(self) -> bool {
        matches!(self, Self::Relu | Self::Tanh | Self::Sigmoid)
    }
}

/// An elementwise function of two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Binary {
    /// a + b.
    Add,
    /// a − b.
    Sub,
    /// a·b.
    Mul,
    /// a / b.
    Div,
}

/// `rows` rows of two halves of `cols` values each, of which one is the other's gate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GatedSpec {
    /// Applied to the gate.
    pub act: Unary,
    /// Rows. Two tensors that lie behind one another are one row.
    pub rows: usize,
    /// Values in a half of a row.
    pub cols: usize,
    /// The gate is the second half and not the first.
    pub gate_last: bool,
}

/// Elementwise operations. All views of one call have the same length, but where it says otherwise.
pub trait Elementwise: Memory {
    /// y = f(x).
    fn unary(&self, f: Unary, x: View<'_, Self>, y: ViewMut<'_, Self>);
    /// dx = f′(x)·dy. `x` may be empty unless [`Unary::needs_x`], `y` unless [`Unary::needs_y`].
    fn unary_vjp(
        &self,
        f: Unary,
        x: View<'_, Self>,
        y: View<'_, Self>,
        dy: View<'_, Self>,
        dx: ViewMut<'_, Self>,
    );
    /// y = f(a, b).
    fn binary(&self, f: Binary, a: View<'_, Self>, b: View<'_, Self>, y: ViewMut<'_, Self>);
    /// Gradients of `binary`. `a` and `b` may be empty for `Add` and `Sub`.
    fn binary_vjp(
        &self,
        f: Binary,
        a: View<'_, Self>,
        b: View<'_, Self>,
        dy: View<'_, Self>,
        da: Option<ViewMut<'_, Self>>,
        db: Option<ViewMut<'_, Self>>,
    );
    /// y = act(gate)·other, where x has the halves that `s` says and y a half's values a row.
    fn gated(&self, s: &GatedSpec, x: View<'_, Self>, y: ViewMut<'_, Self>);
    /// Gradient of [`gated`](Self::gated).
    fn gated_vjp(&self, s: &GatedSpec, x: View<'_, Self>, dy: View<'_, Self>, dx: ViewMut<'_, Self>);
    /// y = x, or 0 where the one value of `switch` is more than ½.
    fn copy_unless(&self, switch: WideView<'_, Self>, x: View<'_, Self>, y: ViewMut<'_, Self>);
    /// y += x.
    fn add_assign(&self, x: View<'_, Self>, y: ViewMut<'_, Self>);
    /// y = value everywhere.
    fn fill(&self, value: f64, y: ViewMut<'_, Self>);
    /// y = x.
    fn copy(&self, x: View<'_, Self>, y: ViewMut<'_, Self>);
    /// Whether every value is finite.
    fn all_finite(&self, x: View<'_, Self>) -> bool;
}
