use super::compile::File;
use super::launch::{Argument, Grid, Kernel, Live, Struct};
use super::memory::{View, ViewMut};
use super::{Cuda, CudaReal};
use crate::cpu::layout::{Loops, check_block, check_permute, check_rope, check_sinusoids};
use crate::cpu::size::size;
use crate::ops::{Block, Layout, PermuteSpec, RopeSpec, SinusoidSpec};

const fn kernel(name: &'static str) -> Kernel {
    Kernel::new(File::Layout, name)
}

/// A position that a sequence has come to: it changes from call to call. None where a sequence begins.
fn moving(position: usize) -> Option<Live> {
    (position > 0).then_some(Live::Word(position as u64))
}

/// The result's axes as kernels know them. The unused ones are the outer ones.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Axes {
    len: [u64; 6],
    stride: [u64; 6],
}

impl Axes {
    /// And how many there are.
    fn new(s: &PermuteSpec) -> (Self, u32) {
        let loops = Loops::new(s);
        let outer = loops.len.iter().take_while(|&&len| len == 1).count();
        let each = |sizes: [usize; 6]| sizes.map(|size| size as u64);
        (Self { len: each(loops.len), stride: each(loops.stride) }, 6 - outer as u32)
    }
}

impl<E: CudaReal> Cuda<E> {
    /// Copies a block, by a kernel that takes offsets as they are, or as `offset` makes them.
    fn copy_from_to<A: Argument>(
        &self,
        name: &'static str,
        rows: usize,
        cols: usize,
        x: View<'_, E>,
        from: Block,
        y: &ViewMut<'_, E>,
        to: Block,
        offset: impl Fn(usize) -> A,
    ) {
        if rows == 0 || cols == 0 {
            return;
        }
        check_block("x", rows, cols, from, x.len());
        check_block("y", rows, cols, to, y.len());
        let mut record = self.record();
        let launch = record.launch(kernel(name), Grid::flat(rows * cols)).arg(x);
        let launch = launch.arg(offset(from.offset)).arg(from.stride).arg(y);
        launch.arg(offset(to.offset)).arg(to.stride).arg(rows).arg(cols).done();
    }
}

impl<E: CudaReal> Layout for Cuda<E> {
    fn copy_block(
        &self,
        rows: usize,
        cols: usize,
        x: View<'_, E>,
        from: Block,
        y: ViewMut<'_, E>,
        to: Block,
    ) {
        self.copy_from_to("copy_block", rows, cols, x, from, &y, to, |offset| offset);
    }

    fn copy_moving_block(
        &self,
        rows: usize,
        cols: usize,
        x: View<'_, E>,
        from: Block,
        y: ViewMut<'_, E>,
        to: Block,
    ) {
        let live = |offset| Live::Word(offset as u64);
        self.copy_from_to("copy_moving_block", rows, cols, x, from, &y, to, live);
    }

    fn broadcast_rows(&self, rows: usize, x: View<'_, E>, y: ViewMut<'_, E>) {
        assert_eq!(
            y.len(),
            size("broadcast_rows", &[rows, x.len()]),
            "broadcast_rows: y is not {rows} rows of x"
        );
        let mut record = self.record();
        let launch = record.launch(kernel("broadcast_rows"), Grid::flat(y.len()));
        launch.arg(x).arg(&y).arg(rows).arg(x.len()).done();
    }

    fn sum_rows(&self, rows: usize, x: View<'_, E>, y: ViewMut<'_, E>) {
        assert_eq!(x.len(), size("sum_rows", &[rows, y.len()]), "sum_rows: x is not {rows} rows of y");
        self.add_column_sums(rows, x, &y);
    }

    fn permute(&self, rows: usize, s: &PermuteSpec, x: View<'_, E>, y: ViewMut<'_, E>) {
        let sample = check_permute(rows, s, x.len(), y.len());
        let mut record = self.record();
        let (axes, rank) = Axes::new(s);
        let launch = record.launch(kernel("permute"), Grid::flat(y.len())).arg(Struct(&axes));
        launch.arg(rank).arg(x).arg(&y).arg(rows).arg(sample).done();
    }

    fn sinusoids(&self, s: &SinusoidSpec, y: ViewMut<'_, E>) {
        check_sinusoids(s, y.len());
        let mut record = self.record();
        let launch = record.launch(kernel("sinusoids"), Grid::flat(y.len() / 2));
        launch.arg(s.theta).arg(moving(s.first)).arg(&y).arg(s.rows).arg(s.dim).done();
    }

    fn rope(&self, s: &RopeSpec, inverse: bool, x: View<'_, E>, y: ViewMut<'_, E>) {
        check_rope(s, x.len(), y.len());
        let mut record = self.record();
        let slots = s.dim - s.rotary / 2;
        let launch = record.launch(kernel("rope"), Grid::flat(s.rows * slots)).arg(s.theta).arg(inverse);
        let launch = launch.arg(s.interleaved).arg(x).arg(&y).arg(s.rows).arg(s.seq).arg(moving(s.offset));
        launch.arg(s.heads).arg(s.dim).arg(s.rotary).done();
    }
}
