use crate::{Memory, View, ViewMut};

/// A two-dimensional pooling window over `planes` = batch × channels images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool2dSpec {
    /// Images times channels.
    pub planes: usize,
    /// Height and width of x.
    pub input: [usize; 2],
    /// Height and width of y.
    pub output: [usize; 2],
    /// Height and width of the window.
    pub kernel: [usize; 2],
    /// Step between windows.
    pub stride: [usize; 2],
    /// Cells around x on each side: −∞ for a maximum, 0 for an average.
    pub padding: [usize; 2],
}

/// Pooling.
pub trait Pool: Memory {
    /// y = the window's maximum; NaN wins. Where `argmax` is given it gets, per output, the index of the
    /// first maximum within its plane (row-major order).
    fn max_pool2d(
        &self,
        s: &Pool2dSpec,
        x: View<'_, Self>,
        y: ViewMut<'_, Self>,
        argmax: Option<Self::ViewMut<'_, u32>>,
    );
    /// Sends each output's gradient to its maximum.
    fn max_pool2d_vjp(
        &self,
        s: &Pool2dSpec,
        argmax: Self::View<'_, u32>,
        dy: View<'_, Self>,
        dx: ViewMut<'_, Self>,
    );
    /// y = the window's sum over its full area, padding counted (PyTorch's `count_include_pad`).
    fn avg_pool2d(&self, s: &Pool2dSpec, x: View<'_, Self>, y: ViewMut<'_, Self>);
    /// The gradient of [`avg_pool2d`](Self::avg_pool2d).
    fn avg_pool2d_vjp(&self, s: &Pool2dSpec, dy: View<'_, Self>, dx: ViewMut<'_, Self>);
}
