//! Products with weights that are stored in fewer bits: the trait's methods are in [`linear`](super::linear).

use super::compile::File;
use super::launch::{Grid, Kernel};
use super::memory::{View, ViewMut};
use super::route::Tiles;
use super::{Cuda, CudaReal};
use crate::Packing;
use crate::cpu::packed::check;
use crate::ops::PackedSpec;

const fn code(packing: Packing) -> u32 {
    match packing {
        Packing::Bf16 => 0,
        Packing::F16 => 1,
        Packing::Q8_0 => 2,
    }
}

pub(super) fn linear<E: CudaReal>(
    device: &Cuda<E>,
    s: &PackedSpec,
    x: View<'_, E>,
    w: View<'_, E::Wide>,
    b: Option<View<'_, E>>,
    y: &ViewMut<'_, E>,
) {
    check("packed_linear", s, x.len(), w.len(), y.len());
    assert_eq!(b.map_or(s.outputs, View::len), s.outputs, "packed_linear: the bias is not outputs");
    let grid = Grid::blocks([Tiles::Small.count(s.rows, s.outputs), 1, 1], Tiles::THREADS);
    let mut record = device.record();
    let launch = record.launch(Kernel::new(File::Packed, "packed"), grid).arg(code(s.packing)).arg(x).arg(w);
    launch.arg(b).arg(y).arg(s.rows).arg(s.inputs).arg(s.outputs).done();
}

pub(super) fn linear_vjp<E: CudaReal>(
    device: &Cuda<E>,
    s: &PackedSpec,
    w: View<'_, E::Wide>,
    dy: View<'_, E>,
    dx: &ViewMut<'_, E>,
) {
    check("packed_linear_vjp", s, dx.len(), w.len(), dy.len());
    let grid = Grid::blocks([Tiles::Small.count(s.rows, s.inputs), 1, 1], Tiles::THREADS);
    let mut record = device.record();
    let launch = record.launch(Kernel::new(File::Packed, "packed_vjp"), grid).arg(code(s.packing));
    launch.arg(dy).arg(w).arg(dx).arg(s.rows).arg(s.inputs).arg(s.outputs).done();
}
