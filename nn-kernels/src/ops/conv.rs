use super::Unary;
use crate::{Memory, View, ViewMut};

/// A two-dimensional convolution of `batch` images, channels first.
#[derive(Debug, Clone, Copy, PartialEq)]
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
    /// Applied to the sum.
    pub act: Unary,
}

impl Conv2dSpec {
    /// How many elements of scratch `conv2d` needs, whatever the device and the number of threads.
    pub const fn scratch(&self) -> usize {
        0
    }
    /// How many elements of scratch `conv2d_vjp` needs: the gradient before the activation.
    pub const fn vjp_scratch(&self) -> usize {
        if let Unary::Identity = self.act {
            return 0;
        }
        let factors = [self.out_channels, self.output[0], self.output[1]];
        let (mut scratch, mut i) = (self.batch, 0);
        while i < factors.len() {
            scratch = match scratch.checked_mul(factors[i]) {
                Some(scratch) => scratch,
                None => panic!("conv2d_vjp: batch × out_channels × output overflows"),
            };
            i += 1;
        }
        scratch
    }
    /// Whether the vjp must be given y, because the activation's derivative is a function of it.
    pub const fn needs_y(&self) -> bool {
        self.act.needs_y()
    }
    /// Whether the vjp computes the convolution again, because the activation's derivative is a function of it.
    pub const fn recomputes(&self) -> bool {
        self.act.needs_x()
    }
}

/// Convolutions. Weights are `[out_channels, in_channels / groups, kernel…]`.
pub trait Conv: Memory {
    /// y = act(conv(x, w) + b).
    fn conv2d(
        &self,
        s: &Conv2dSpec,
        x: View<'_, Self>,
        w: View<'_, Self>,
        b: Option<View<'_, Self>>,
        y: ViewMut<'_, Self>,
        scratch: ViewMut<'_, Self>,
    );
    /// Gradients of [`conv2d`](Self::conv2d). `y` may be empty unless [`Conv2dSpec::needs_y`]; `scratch` holds
    /// [`Conv2dSpec::vjp_scratch`] elements. `b` is read only where [`Conv2dSpec::recomputes`].
    #[allow(clippy::too_many_arguments, reason = "one view for each operand and each gradient")]
    fn conv2d_vjp(
        &self,
        s: &Conv2dSpec,
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
    /// The name of the kernel that [`conv2d`](Self::conv2d) takes for this layer.
    fn conv2d_route(s: &Conv2dSpec) -> &'static str;
}
