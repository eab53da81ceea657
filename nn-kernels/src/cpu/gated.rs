use super::par::{self, GRAIN, Rows, rows_per_task};
use super::size::size;
use super::{Real, kernels::Kernels};
use crate::ops::GatedSpec;

/// Values that are taken at once: what is computed on the way stays in the first cache.
const BLOCK: usize = 512;

impl GatedSpec {
    /// The gate and the other half, of the first and the second.
    fn order<T>(&self, first: T, second: T) -> (T, T) {
        if self.gate_last { (second, first) } else { (first, second) }
    }

    #[track_caller]
    pub(crate) fn check(&self, name: &str, x: usize, y: usize) {
        let half = size(name, &[self.rows, self.cols]);
        assert_eq!(x, size(name, &[2, half]), "{name}: x or dx is not two halves of {half} values");
        assert_eq!(y, half, "{name}: y or dy is not {half} values");
    }
}

impl<E: Real> Kernels<E> {
    pub(crate) fn gated(&self, s: &GatedSpec, x: &[E], y: &mut [E]) {
        s.check("gated", x.len(), y.len());
        let cols = s.cols;
        if cols == 0 {
            return;
        }
        if s.rows == 1 {
            let (gate, other) = x.split_at(cols);
            par::split(cols, GRAIN, (gate, other, y), &|_, (a, b, y)| self.gate(s, a, b, y));
            return;
        }
        par::split(s.rows, rows_per_task(2 * cols), (Rows(x, 2 * cols), Rows(y, cols)), &|_, (x, y)| {
            for (x, y) in x.0.chunks_exact(2 * cols).zip(y.0.chunks_exact_mut(cols)) {
                let (a, b) = x.split_at(cols);
                self.gate(s, a, b, y);
            }
        });
    }

    fn gate(&self, s: &GatedSpec, first: &[E], second: &[E], y: &mut [E]) {
        let (gate, other) = s.order(first, second);
        for ((gate, other), y) in gate.chunks(BLOCK).zip(other.chunks(BLOCK)).zip(y.chunks_mut(BLOCK)) {
            self.unary_here(s.act, gate, y);
            self.mul_assign_here(other, y);
        }
    }

    pub(crate) fn gated_vjp(&self, s: &GatedSpec, x: &[E], dy: &[E], dx: &mut [E]) {
        s.check("gated_vjp", x.len(), dy.len());
        s.check("gated_vjp", dx.len(), dy.len());
        let cols = s.cols;
        if cols == 0 {
            return;
        }
        if s.rows == 1 {
            let ((a, b), (da, db)) = (x.split_at(cols), dx.split_at_mut(cols));
            par::split(cols, GRAIN, (a, b, dy, da, db), &|_, (a, b, dy, da, db)| {
                self.gate_vjp(s, [a, b], dy, da, db)
            });
            return;
        }
        let views = (Rows(x, 2 * cols), Rows(dy, cols), Rows(dx, 2 * cols));
        par::split(s.rows, rows_per_task(2 * cols), views, &|_, (x, dy, dx)| {
            let rows = x.0.chunks_exact(2 * cols).zip(dy.0.chunks_exact(cols));
            for ((x, dy), dx) in rows.zip(dx.0.chunks_exact_mut(2 * cols)) {
                let ((a, b), (da, db)) = (x.split_at(cols), dx.split_at_mut(cols));
                self.gate_vjp(s, [a, b], dy, da, db);
            }
        });
    }

    fn gate_vjp(&self, s: &GatedSpec, [a, b]: [&[E]; 2], dy: &[E], da: &mut [E], db: &mut [E]) {
        let (gate, other) = s.order(a, b);
        let (dgate, dother) = s.order(da, db);
        let mut product = [E::ZERO; BLOCK];
        let given = gate.chunks(BLOCK).zip(other.chunks(BLOCK)).zip(dy.chunks(BLOCK));
        for (((gate, other), dy), (dgate, dother)) in
            given.zip(dgate.chunks_mut(BLOCK).zip(dother.chunks_mut(BLOCK)))
        {
            let product = &mut product[..dy.len()];
            self.unary_here(s.act, gate, dother);
            self.product_here(dy, other, product);
            self.slope_here(s.act, gate, dother, product, dgate);
            self.mul_assign_here(dy, dother);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, devices, gradient, on_threads, random, reals};
    use crate::ops::Unary;

    fn spec(act: Unary, rows: usize, cols: usize, gate_last: bool) -> GatedSpec {
        GatedSpec { act, rows, cols, gate_last }
    }

    fn silu(x: f64) -> f64 {
        x / (1.0 + (-x).exp())
    }

    #[test]
    fn a_half_of_each_row_gates_the_other() {
        for device in devices::<f64>() {
            // More than a block, so that blocks are put together rightly.
            for (rows, cols) in [(1, 1300), (3, 700), (5, 4)] {
                let x = random(1, 2 * rows * cols);
                let by_hand = |gate_last: bool| -> Vec<f64> {
                    let at = |r: usize, half: usize, j: usize| x[(2 * r + half) * cols + j];
                    let all = (0..rows).flat_map(|r| (0..cols).map(move |j| (r, j)));
                    let (gate, other) = if gate_last { (1, 0) } else { (0, 1) };
                    all.map(|(r, j)| silu(at(r, gate, j)) * at(r, other, j)).collect()
                };
                for gate_last in [false, true] {
                    let mut y = vec![f64::NAN; rows * cols];
                    device.gated(&spec(Unary::Silu, rows, cols, gate_last), &x, &mut y);
                    assert_close(&y, &by_hand(gate_last), 1e-15, "gated");
                }
            }
        }
    }

    #[test]
    fn gradients_match_finite_differences() {
        for device in devices::<f64>() {
            for act in [Unary::Silu, Unary::Sigmoid, Unary::Gelu, Unary::Identity, Unary::Tanh] {
                for (rows, cols, gate_last) in [(1, 7, false), (3, 4, false), (3, 4, true)] {
                    let s = spec(act, rows, cols, gate_last);
                    let (x, dy) = (random(1, 2 * rows * cols), random(2, rows * cols));
                    let loss = |x: &[f64]| {
                        let mut y = vec![0.0; rows * cols];
                        device.gated(&s, x, &mut y);
                        y.iter().zip(&dy).map(|(y, g)| y * g).sum::<f64>()
                    };
                    let mut dx = vec![f64::NAN; x.len()];
                    device.gated_vjp(&s, &x, &dy, &mut dx);
                    assert_close(&dx, &gradient(&x, loss), 1e-8, &format!("{s:?}"));
                }
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        for device in devices::<f32>() {
            for (rows, cols) in [(1, 100_000), (300, 333)] {
                let s = spec(Unary::Gelu, rows, cols, false);
                let x: Vec<f32> = reals(&random(1, 2 * rows * cols));
                let run = |threads| {
                    on_threads(threads, || {
                        let (mut y, mut dx) = (vec![0.0; rows * cols], vec![0.0; x.len()]);
                        device.gated(&s, &x, &mut y);
                        device.gated_vjp(&s, &x, &y, &mut dx);
                        [y, dx]
                    })
                };
                assert!(run(1) == run(4), "{device:?}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "gated: y or dy is not 6 values")]
    fn a_short_y_is_refused() {
        devices::<f32>()[0].gated(&spec(Unary::Silu, 2, 3, false), &[0.0; 12], &mut [0.0; 5]);
    }
}
