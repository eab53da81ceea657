use crate::{Memory, View, ViewMut};

/// A two-dimensional convolution of `batch` images, channels first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Conv2dSpec {
    /// Images.
    pub batch: usize,
    /// Channels of x.
    pub in_channels: usize,
    /// Channels of y.
    pub out_channels: usize,
    /// Height and width of x.
    pub input: [usize; 2],
    /// Height and width of y.
    pub output: [usize; 2],
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Step between outputs.
    pub stride: [usize; 2],
    /// Zeros around x, on each side.
    pub padding: [usize; 2],
    /// Step between a kernel's taps.
    pub dilation: [usize; 2],
    /// Groups of channels that do not see each other.
    pub groups: usize,
}

impl Conv2dSpec {
    /// Elements of scratch that either direction needs, whatever the device and the number of threads.
    pub const fn scratch(&self) -> usize {
        0
    }
}

/// Convolutions. Weights are `[out_channels, in_channels / groups, kernel…]`.
pub trait Conv: Memory {
    /// y = conv(x, w) + b.
    fn conv2d(
        &self,
        s: &Conv2dSpec,
        x: View<'_, Self>,
        w: View<'_, Self>,
        b: Option<View<'_, Self>>,
        y: ViewMut<'_, Self>,
        scratch: ViewMut<'_, Self>,
    );
    /// Gradients of [`conv2d`](Self::conv2d).
    #[allow(clippy::too_many_arguments, reason = "one view for each operand and each gradient")]
    fn conv2d_vjp(
        &self,
        s: &Conv2dSpec,
        x: View<'_, Self>,
        w: View<'_, Self>,
        dy: View<'_, Self>,
        dx: Option<ViewMut<'_, Self>>,
        dw: Option<ViewMut<'_, Self>>,
        db: Option<ViewMut<'_, Self>>,
        scratch: ViewMut<'_, Self>,
    );
    /// The name of the kernel that [`conv2d`](Self::conv2d) takes for this layer.
    fn conv2d_route(s: &Conv2dSpec) -> &'static str;
}
