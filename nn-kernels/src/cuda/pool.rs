use super::compile::File;
use super::launch::{Grid, Kernel, Struct};
use super::memory::{View, ViewMut};
use super::{Cuda, CudaReal};
use crate::cpu::pool::check;
use crate::ops::{Pool, Pool2dSpec};

const fn kernel(name: &'static str) -> Kernel {
    Kernel::new(File::Pool, name)
}

/// A pooling as kernels know it.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Shape {
    planes: u64,
    input: [u64; 2],
    output: [u64; 2],
    kernel: [u64; 2],
    stride: [u64; 2],
    padding: [u64; 2],
}

impl Shape {
    fn new(s: &Pool2dSpec) -> Self {
        let both = |sizes: [usize; 2]| sizes.map(|size| size as u64);
        Self {
            planes: s.planes as u64,
            input: both(s.input),
            output: both(s.output),
            kernel: both(s.kernel),
            stride: both(s.stride),
            padding: both(s.padding),
        }
    }
}

/// One over the window's area.
fn share(s: &Pool2dSpec) -> f64 {
    1.0 / (s.kernel[0] * s.kernel[1]) as f64
}

impl<E: CudaReal> Pool for Cuda<E> {
    fn max_pool2d(
        &self,
        s: &Pool2dSpec,
        x: View<'_, E>,
        y: ViewMut<'_, E>,
        argmax: Option<ViewMut<'_, u32>>,
    ) {
        check("max_pool2d", s, x.len(), y.len());
        if let Some(argmax) = &argmax {
            assert_eq!(argmax.len(), y.len(), "max_pool2d: argmax and y differ in length");
        }
        let mut record = self.record();
        let shape = Shape::new(s);
        let launch = record.launch(kernel("max_pool"), Grid::flat(y.len())).arg(Struct(&shape));
        launch.arg(x).arg(&y).arg(argmax.as_ref()).done();
    }

    fn max_pool2d_vjp(&self, s: &Pool2dSpec, argmax: View<'_, u32>, dy: View<'_, E>, dx: ViewMut<'_, E>) {
        check("max_pool2d_vjp", s, dx.len(), dy.len());
        assert_eq!(argmax.len(), dy.len(), "max_pool2d_vjp: argmax and dy differ in length");
        let mut record = self.record();
        let shape = Shape::new(s);
        let launch = record.launch(kernel("max_pool_vjp"), Grid::flat(dx.len())).arg(Struct(&shape));
        launch.arg(argmax).arg(dy).arg(&dx).done();
    }

    fn avg_pool2d(&self, s: &Pool2dSpec, x: View<'_, E>, y: ViewMut<'_, E>) {
        check("avg_pool2d", s, x.len(), y.len());
        let mut record = self.record();
        let shape = Shape::new(s);
        let launch = record.launch(kernel("avg_pool"), Grid::flat(y.len())).arg(Struct(&shape));
        launch.arg(share(s)).arg(x).arg(&y).done();
    }

    fn avg_pool2d_vjp(&self, s: &Pool2dSpec, dy: View<'_, E>, dx: ViewMut<'_, E>) {
        check("avg_pool2d_vjp", s, dx.len(), dy.len());
        let mut record = self.record();
        let shape = Shape::new(s);
        let launch = record.launch(kernel("avg_pool_vjp"), Grid::flat(dx.len())).arg(Struct(&shape));
        launch.arg(share(s)).arg(dy).arg(&dx).done();
    }
}
