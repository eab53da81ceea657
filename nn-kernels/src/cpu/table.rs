use super::par::{self, GRAIN, Rows, rows_per_task};
use super::simd::{Simd, kernels};
use super::{Real, kernels::Kernels};

kernels! {
    fn scatter_add<E>(cols: usize, first: usize, ids: &[u32], dy: &[E], dtable: &mut [E]);
}

/// Adds to the rows of the table from `first` on, as many as `dtable` has.
#[inline(always)]
fn scatter_add<S: Simd, E: Real>(cols: usize, first: usize, ids: &[u32], dy: &[E], dtable: &mut [E]) {
    for (&id, dy) in ids.iter().zip(dy.chunks_exact(cols)) {
        let row = (id as usize).checked_sub(first).and_then(|row| dtable.chunks_exact_mut(cols).nth(row));
        if let Some(row) = row {
            for (d, &g) in row.iter_mut().zip(dy) {
                *d += g;
            }
        }
    }
}

#[track_caller]
fn check<E>(name: &str, cols: usize, table: &[E], ids: &[u32], y: &[E]) {
    assert!(cols > 0, "{name}: rows of no values");
    assert_eq!(table.len() % cols, 0, "{name}: the table is no whole rows of {cols}");
    assert_eq!(y.len(), ids.len() * cols, "{name}: not {cols} values an id");
}

impl<E: Real> Kernels<E> {
    pub(crate) fn gather(&self, cols: usize, table: &[E], ids: &[u32], y: &mut [E]) -> Option<u32> {
        check("gather", cols, table, ids, y);
        par::split(ids.len(), rows_per_task(cols), (ids, Rows(y, cols)), &|_, (ids, y)| {
            for (&id, y) in ids.iter().zip(y.0.chunks_exact_mut(cols)) {
                match table.chunks_exact(cols).nth(id as usize) {
                    Some(row) => y.copy_from_slice(row),
                    None => y.fill(E::ZERO),
                }
            }
        });
        let rows = table.len() / cols;
        ids.iter().copied().find(|&id| id as usize >= rows)
    }

    pub(crate) fn scatter_add(&self, cols: usize, ids: &[u32], dy: &[E], dtable: &mut [E]) {
        check("scatter_add", cols, dtable, ids, dy);
        let isa = self.isa;
        let rows = dtable.len() / cols;
        // Each task looks through all ids for those of its rows, so there are few tasks.
        let grain = if dy.len() < GRAIN { rows } else { rows.div_ceil(4 * par::threads()) };
        par::split(rows, grain, Rows(dtable, cols), &|first, dtable| {
            run::scatter_add(isa, cols, first, ids, dy, dtable.0)
        });
    }
}
