use super::compile::File;
use super::launch::{Grid, Kernel};
use super::memory::{View, ViewMut};
use super::{Cuda, CudaReal};
use crate::cpu::recurrent::rows;
use crate::ops::Recurrent;

const fn kernel(name: &'static str) -> Kernel {
    Kernel::new(File::Recurrent, name)
}

impl<E: CudaReal> Recurrent for Cuda<E> {
    fn lstm(
        &self,
        hidden: usize,
        gates: ViewMut<'_, E>,
        c: View<'_, E>,
        c_next: ViewMut<'_, E>,
        h_next: ViewMut<'_, E>,
    ) {
        let operands =
            [("gates", gates.len(), 4), ("c", c.len(), 1), ("c′", c_next.len(), 1), ("h′", h_next.len(), 1)];
        let rows = rows("lstm", hidden, operands);
        let mut record = self.record();
        let launch = record.launch(kernel("lstm"), Grid::flat(c.len())).arg(&gates).arg(c);
        launch.arg(&c_next).arg(&h_next).arg(rows).arg(hidden).done();
    }

    fn lstm_vjp(
        &self,
        hidden: usize,
        gates: View<'_, E>,
        c: View<'_, E>,
        c_next: View<'_, E>,
        dh_next: View<'_, E>,
        dc: ViewMut<'_, E>,
        dgates: ViewMut<'_, E>,
    ) {
        let operands = [
            ("gates", gates.len(), 4),
            ("c", c.len(), 1),
            ("c′", c_next.len(), 1),
            ("dh′", dh_next.len(), 1),
            ("dc", dc.len(), 1),
            ("dgates", dgates.len(), 4),
        ];
        let rows = rows("lstm_vjp", hidden, operands);
        let mut record = self.record();
        let launch = record.launch(kernel("lstm_vjp"), Grid::flat(c.len())).arg(gates).arg(c).arg(c_next);
        launch.arg(dh_next).arg(&dc).arg(&dgates).arg(rows).arg(hidden).done();
    }

    fn gru(
        &self,
        hidden: usize,
        gates: ViewMut<'_, E>,
        recurrent: View<'_, E>,
        h: View<'_, E>,
        h_next: ViewMut<'_, E>,
    ) {
        let operands = [
            ("gates", gates.len(), 3),
            ("recurrent", recurrent.len(), 3),
            ("h", h.len(), 1),
            ("h′", h_next.len(), 1),
        ];
        let rows = rows("gru", hidden, operands);
        let mut record = self.record();
        let launch = record.launch(kernel("gru"), Grid::flat(h.len())).arg(&gates).arg(recurrent);
        launch.arg(h).arg(&h_next).arg(rows).arg(hidden).done();
    }

    fn gru_vjp(
        &self,
        hidden: usize,
        gates: View<'_, E>,
        recurrent: View<'_, E>,
        h: View<'_, E>,
        dh: ViewMut<'_, E>,
        dgates: ViewMut<'_, E>,
        drecurrent: ViewMut<'_, E>,
    ) {
        let operands = [
            ("gates", gates.len(), 3),
            ("recurrent", recurrent.len(), 3),
            ("h", h.len(), 1),
            ("dh", dh.len(), 1),
            ("dgates", dgates.len(), 3),
            ("drecurrent", drecurrent.len(), 3),
        ];
        let rows = rows("gru_vjp", hidden, operands);
        let mut record = self.record();
        let launch = record.launch(kernel("gru_vjp"), Grid::flat(h.len())).arg(gates).arg(recurrent).arg(h);
        launch.arg(&dh).arg(&dgates).arg(&drecurrent).arg(rows).arg(hidden).done();
    }
}
