use super::compile::File;
use super::launch::{Address, Grid, Kernel, Record, THREADS};
use super::memory::{View, ViewMut};
use super::{Cuda, CudaReal};
use crate::cpu::loss::check_cross_entropy;
use crate::ops::{CrossEntropySpec, Loss, Reduction};

const fn kernel(name: &'static str) -> Kernel {
    Kernel::new(File::Loss, name)
}

/// Blocks that a sum is cut into at most.
const PARTS: usize = 512;
/// Values that a block should have at least.
const VALUES: usize = 4096;

/// Blocks whose parts of a sum over `n` values are summed then.
fn blocks(n: usize) -> usize {
    n.div_ceil(VALUES).clamp(1, PARTS)
}

/// value = factor·scale·Σ parts.
fn sum_parts(
    record: &mut Record<'_>,
    parts: Address,
    n: usize,
    factor: f64,
    scale: Option<Address>,
    value: &ViewMut<'_, f64>,
) {
    let launch = record.launch(kernel("sum_parts"), Grid::rows(1, THREADS));
    launch.arg(parts).arg(n).arg(factor).arg(scale).arg(value).done();
}

impl<E: CudaReal> Cuda<E> {
    /// sum = Σ x².
    pub(super) fn squares(&self, x: View<'_, E::Wide>, sum: &ViewMut<'_, f64>) {
        let blocks = blocks(x.len());
        let mut record = self.record();
        let parts = record.scratch(8 * blocks);
        let launch = record.launch(kernel("squares"), Grid::rows(blocks, THREADS));
        launch.arg(x).arg(parts).arg(x.len()).done();
        sum_parts(&mut record, parts, blocks, 1.0, None, sum);
    }
}

impl<E: CudaReal> Loss for Cuda<E> {
    fn mse(
        &self,
        reduction: Reduction,
        x: View<'_, E>,
        target: View<'_, E::Wide>,
        dx: Option<ViewMut<'_, E>>,
        value: ViewMut<'_, f64>,
    ) {
        assert_eq!(x.len(), target.len(), "mse: x and target differ in length");
        dx.as_ref().inspect(|dx| assert_eq!(dx.len(), x.len(), "mse: dx and x differ in length"));
        assert!(value.len() > 0, "mse: no room for the value");
        let share = match reduction {
            Reduction::Mean => 1.0 / x.len() as f64,
            Reduction::Sum => 1.0,
        };
        let blocks = blocks(x.len());
        let mut record = self.record();
        let parts = record.scratch(8 * blocks);
        let launch = record.launch(kernel("mse"), Grid::rows(blocks, THREADS)).arg(2.0 * share);
        launch.arg(x).arg(target).arg(dx.as_ref()).arg(parts).arg(x.len()).done();
        sum_parts(&mut record, parts, blocks, share, None, &value);
    }

    fn cross_entropy(
        &self,
        s: &CrossEntropySpec,
        x: View<'_, E>,
        target: View<'_, u32>,
        dx: Option<ViewMut<'_, E>>,
        value: ViewMut<'_, f64>,
    ) {
        let samples = check_cross_entropy(s, x.len(), target.len(), dx.as_ref().map(|dx| dx.len()));
        assert!(value.len() > 0, "cross_entropy: no room for the value");
        let rows = samples * s.rows;
        let (ignores, ignored) = (s.ignore.is_some(), s.ignore.unwrap_or_default());
        let mut record = self.record();
        let room = record.scratch(8 * (rows + 1));
        let parts = room.after(8);
        let scale = match s.reduction {
            Reduction::Mean => {
                let launch = record.launch(kernel("count_targets"), Grid::rows(1, THREADS));
                launch.arg(target).arg(target.len()).arg(ignores).arg(ignored).arg(room).done();
                Some(room)
            }
            Reduction::Sum => None,
        };
        let threads = if s.classes <= 128 { 32 } else { THREADS };
        let launch = record.launch(kernel("cross_entropy"), Grid::rows(rows, threads)).arg(x).arg(target);
        let launch = launch.arg(dx.as_ref()).arg(parts).arg(scale).arg(rows).arg(s.classes).arg(s.smoothing);
        launch.arg(ignores).arg(ignored).arg(s.rows).arg(s.counted).done();
        sum_parts(&mut record, parts, rows, 1.0, scale, &value);
    }
}
