use super::Unary;
use crate::{Memory, Packing, View, ViewMut, WideView};

/// `rows` products of a row of `inputs` values with one matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearSpec {
    /// Rows of x and y.
    pub rows: usize,
    /// Columns of x.
    pub inputs: usize,
    /// Columns of y.
    pub outputs: usize,
    /// Applied to the sum.
    pub act: Unary,
    /// The weight is stored `[outputs, inputs]` (a tied embedding's table) and not `[inputs, outputs]`.
    pub transposed: bool,
}

impl LinearSpec {
    /// How many elements of scratch `linear_vjp` needs: the gradient before the activation.
    pub const fn vjp_scratch(&self) -> usize {
        match self.act {
            Unary::Identity => 0,
            _ => match self.rows.checked_mul(self.outputs) {
                Some(scratch) => scratch,
                None => panic!("linear_vjp: rows × outputs overflows"),
            },
        }
    }
    /// Whether the vjp must be given y, because the activation's derivative is a function of it.
    pub const fn needs_y(&self) -> bool {
        self.act.needs_y()
    }
    /// Whether the vjp computes x·W again, because the activation's derivative is a function of it.
    pub const fn recomputes(&self) -> bool {
        self.act.needs_x()
    }
}

/// `rows` products of a row of `inputs` values with one matrix that is stored in fewer bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PackedSpec {
    /// Rows of x and y.
    pub rows: usize,
    /// Columns of x, a multiple of [`Packing::group`].
    pub inputs: usize,
    /// Columns of y.
    pub outputs: usize,
    /// How the matrix is stored.
    pub packing: Packing,
}

impl PackedSpec {
    /// How many elements hold the matrix.
    pub const fn slots(&self) -> usize {
        self.packing.slots(self.outputs, self.inputs)
    }
}

/// Dense layers and matrix products.
pub trait Linear: Memory {
    /// y = act(x·W + b).
    fn linear(
        &self,
        s: &LinearSpec,
        x: View<'_, Self>,
        w: View<'_, Self>,
        b: Option<View<'_, Self>>,
        y: ViewMut<'_, Self>,
    );
    /// Gradients of [`linear`](Self::linear). `y` may be empty unless [`LinearSpec::needs_y`]; `scratch`
    /// holds [`LinearSpec::vjp_scratch`] elements. `b` is read only where [`LinearSpec::recomputes`].
    #[allow(clippy::too_many_arguments, reason = "one view for each operand and each gradient")]
    fn linear_vjp(
        &self,
        s: &LinearSpec,
        x: View<'_, Self>,
        w: View<'_, Self>,
        b: Option<View<'_, Self>>,
        y: View<'_, Self>,
        dy: View<'_, Self>,
        dx: Option<ViewMut<'_, Self>>,
        dw: Option<ViewMut<'_, Self>>,
        db: Option<ViewMut<'_, Self>>,
        scratch: ViewMut<'_, Self>,
    );
    /// y += x·W, for an [`act`](LinearSpec::act) that is the identity.
    fn linear_add(&self, s: &LinearSpec, x: View<'_, Self>, w: View<'_, Self>, y: ViewMut<'_, Self>);
    /// y = x·Wᵀ + b for the numbers that a packed W stands for, computed with elements: each is what it is in full.
    fn packed_linear(
        &self,
        s: &PackedSpec,
        x: View<'_, Self>,
        w: WideView<'_, Self>,
        b: Option<View<'_, Self>>,
        y: ViewMut<'_, Self>,
    );
    /// The gradient of x of [`packed_linear`](Self::packed_linear): dx = dy·W.
    fn packed_linear_vjp(
        &self,
        s: &PackedSpec,
        w: WideView<'_, Self>,
        dy: View<'_, Self>,
        dx: ViewMut<'_, Self>,
    );
    /// The name of the kernel that [`linear`](Self::linear) takes for this layer, whatever the number of rows; with the
    /// fastest instruction set of this machine.
    fn linear_route(s: &LinearSpec) -> &'static str;
}
