use super::compile::File;
use super::launch::{Grid, Kernel};
use super::memory::{View, ViewMut};
use super::{Cuda, CudaReal};
use crate::cpu::table::check;
use crate::ops::Table;

const fn kernel(name: &'static str) -> Kernel {
    Kernel::new(File::Table, name)
}

impl<E: CudaReal> Table for Cuda<E> {
    fn gather(
        &self,
        place: u32,
        cols: usize,
        table: View<'_, E>,
        ids: View<'_, u32>,
        y: ViewMut<'_, E>,
    ) -> Option<u32> {
        check("gather", cols, table.len(), ids.len(), y.len());
        let mut record = self.record();
        let fault = record.fault();
        let launch = record.launch(kernel("gather"), Grid::flat(y.len())).arg(fault).arg(place).arg(table);
        launch.arg(ids).arg(&y).arg(ids.len()).arg(table.len() / cols).arg(cols).done();
        None
    }

    fn scatter_add(&self, cols: usize, ids: View<'_, u32>, dy: View<'_, E>, dtable: ViewMut<'_, E>) {
        check("scatter_add", cols, dtable.len(), ids.len(), dy.len());
        let n = ids.len();
        assert!(n < u32::MAX as usize, "scatter_add: more than 2³² ids");
        let mut record = self.record();
        let next = record.scratch(8 * n);
        let head = next.after(4 * n);
        // A warp for each id.
        let launch = record.launch(kernel("links"), Grid::flat(n.saturating_mul(32)));
        launch.arg(ids).arg(next).arg(head).arg(n).done();
        let launch = record.launch(kernel("scatter_add"), Grid::flat(dy.len())).arg(ids).arg(next).arg(head);
        launch.arg(dy).arg(&dtable).arg(n).arg(dtable.len() / cols).arg(cols).done();
    }
}
