use super::par::{self, GRAIN, Rows, rows_per_task};
use super::simd::{Simd, kernels};
use super::size::size;
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
pub(crate) fn check(name: &str, cols: usize, table: usize, ids: usize, y: usize) {
    assert!(cols > 0, "{name}: rows of no values");
    assert_eq!(table % cols, 0, "{name}: the table is no whole rows of {cols}");
    assert_eq!(y, size(name, &[ids, cols]), "{name}: not {cols} values an id");
}

impl<E: Real> Kernels<E> {
    pub(crate) fn gather(&self, _: u32, cols: usize, table: &[E], ids: &[u32], y: &mut [E]) -> Option<u32> {
        check("gather", cols, table.len(), ids.len(), y.len());
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
        check("scatter_add", cols, dtable.len(), ids.len(), dy.len());
        let isa = self.isa;
        let rows = dtable.len() / cols;
        // Each task looks through all ids for those of its rows, so there are few tasks.
        let grain = if dy.len() < GRAIN { rows } else { rows.div_ceil(4 * par::threads()) };
        par::split(rows, grain, Rows(dtable, cols), &|first, dtable| {
            run::scatter_add(isa, cols, first, ids, dy, dtable.0)
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::cpu::testing::{devices, on_threads, random, reals};

    #[test]
    fn rows_are_looked_up_and_a_bad_id_is_told() {
        for device in devices::<f32>() {
            let table = [1., 2., 3., 4., 5., 6.];
            let mut y = vec![-1.0; 8];
            assert_eq!(device.gather(0, 2, &table, &[2, 0, 2, 1], &mut y), None);
            assert_eq!(y, [5., 6., 1., 2., 5., 6., 3., 4.]);
            assert_eq!(device.gather(0, 2, &table, &[0, 3, u32::MAX, 1], &mut y), Some(3));
            assert_eq!(y, [1., 2., 0., 0., 0., 0., 3., 4.]);
        }
    }

    #[test]
    fn gradients_add_to_their_rows_and_bad_ids_are_passed_over() {
        for device in devices::<f32>() {
            let mut dtable = vec![1.0; 6];
            device.scatter_add(2, &[2, 0, 2, 3], &[1., 2., 3., 4., 5., 6., 7., 8.], &mut dtable);
            assert_eq!(dtable, [4., 5., 1., 1., 7., 9.]);
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let (cols, vocabulary, n) = (64, 50, 3000);
        let ids: Vec<u32> = random(1, n).iter().map(|x| ((x + 1.0) * 25.0) as u32).collect();
        let dy: Vec<f32> = reals(&random(2, n * cols));
        let run = |threads| {
            on_threads(threads, || {
                let device = devices::<f32>().pop().unwrap();
                let (mut dtable, mut y) = (vec![0.0; vocabulary * cols], dy.clone());
                device.scatter_add(cols, &ids, &dy, &mut dtable);
                device.gather(0, cols, &dtable, &ids, &mut y);
                (dtable, y)
            })
        };
        assert!(run(1) == run(4));
    }

    #[test]
    #[should_panic(expected = "gather: not 2 values an id")]
    fn an_output_of_the_wrong_length_is_refused() {
        devices::<f32>()[0].gather(0, 2, &[0.0; 4], &[0, 1], &mut [0.0; 3]);
    }
}
