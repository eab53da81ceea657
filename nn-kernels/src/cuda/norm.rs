use super::compile::File;
use super::launch::{Grid, Kernel};
use super::memory::{View, ViewMut};
use super::sums::{Columns, Term};
use super::{Cuda, CudaReal};
use crate::cpu::norm::{check, rows_of};
use crate::cpu::size::size;
use crate::ops::{BatchNormSpec, Norm};

const fn kernel(name: &'static str) -> Kernel {
    Kernel::new(File::Norm, name)
}

/// A block for each row, of threads enough that each has a few values.
fn rows(rows: usize, cols: usize) -> Grid {
    let threads = match cols {
        0..=64 => 32,
        65..=256 => 64,
        257..=1024 => 128,
        _ => 256,
    };
    Grid::rows(rows, threads)
}

impl<E: CudaReal> Cuda<E> {
    fn normalise(
        &self,
        centred: bool,
        cols: usize,
        eps: f64,
        x: View<'_, E>,
        gamma: Option<View<'_, E>>,
        beta: Option<View<'_, E>>,
        y: &ViewMut<'_, E>,
        stats: Option<&ViewMut<'_, E::Wide>>,
    ) {
        let n = x.len() / cols;
        let mut record = self.record();
        let launch = record.launch(kernel("normalise"), rows(n, cols)).arg(centred).arg(eps);
        launch.arg(x).arg(gamma).arg(beta).arg(y).arg(stats).arg(n).arg(cols).done();
    }

    fn normalise_vjp(
        &self,
        centred: bool,
        cols: usize,
        x: View<'_, E>,
        gamma: Option<View<'_, E>>,
        stats: View<'_, E::Wide>,
        dy: View<'_, E>,
        dx: Option<&ViewMut<'_, E>>,
        [dgamma, dbeta]: [Option<&ViewMut<'_, E>>; 2],
    ) {
        let n = x.len() / cols;
        let parameters = dgamma.is_some() || dbeta.is_some();
        if n == 0 {
            return;
        }
        let columns = Columns::new(n, cols);
        let mut record = self.record();
        let low = if centred && parameters { 8 * n } else { 0 };
        let room = record.scratch(if parameters { low + columns.bytes() } else { 0 });
        let rest = (low > 0).then_some(room);
        if dx.is_some() || rest.is_some() {
            let launch = record.launch(kernel("normalise_vjp"), rows(n, cols)).arg(centred).arg(x).arg(gamma);
            launch.arg(stats).arg(dy).arg(dx).arg(rest).arg(n).arg(cols).done();
        }
        if parameters {
            let term = if centred { Term::LayerNorm } else { Term::RmsNorm };
            let parts = columns.sum(&mut record, room.after(low), term, [x, dy], Some(stats), rest);
            if let Some(dgamma) = dgamma {
                parts.add(&mut record, 1, dgamma);
            }
            if let Some(dbeta) = dbeta {
                parts.add(&mut record, 0, dbeta);
            }
        }
    }

    fn by_rows(&self, name: &'static str, cols: usize, x: View<'_, E>, y: &ViewMut<'_, E>) {
        let n = rows_of(name, cols, x.len());
        check(name, "y", y.len(), x.len());
        self.record().launch(kernel(name), rows(n, cols)).arg(x).arg(y).arg(n).arg(cols).done();
    }

    fn by_rows_vjp(
        &self,
        name: &'static str,
        cols: usize,
        y: View<'_, E>,
        dy: View<'_, E>,
        dx: &ViewMut<'_, E>,
    ) {
        let n = rows_of(name, cols, y.len());
        check(name, "dy", dy.len(), y.len());
        check(name, "dx", dx.len(), y.len());
        self.record().launch(kernel(name), rows(n, cols)).arg(y).arg(dy).arg(dx).arg(n).arg(cols).done();
    }
}

impl<E: CudaReal> Norm for Cuda<E> {
    fn layer_norm(
        &self,
        cols: usize,
        eps: f64,
        x: View<'_, E>,
        gamma: Option<View<'_, E>>,
        beta: Option<View<'_, E>>,
        y: ViewMut<'_, E>,
        stats: Option<ViewMut<'_, E::Wide>>,
    ) {
        let rows = rows_of("layer_norm", cols, x.len());
        check("layer_norm", "y", y.len(), x.len());
        gamma.inspect(|v| check("layer_norm", "gamma", v.len(), cols));
        beta.inspect(|v| check("layer_norm", "beta", v.len(), cols));
        stats.as_ref().inspect(|v| check("layer_norm", "stats", v.len(), 2 * rows));
        self.normalise(true, cols, eps, x, gamma, beta, &y, stats.as_ref());
    }

    fn layer_norm_vjp(
        &self,
        cols: usize,
        x: View<'_, E>,
        gamma: Option<View<'_, E>>,
        stats: View<'_, E::Wide>,
        dy: View<'_, E>,
        dx: Option<ViewMut<'_, E>>,
        dgamma: Option<ViewMut<'_, E>>,
        dbeta: Option<ViewMut<'_, E>>,
    ) {
        let rows = rows_of("layer_norm_vjp", cols, x.len());
        gamma.inspect(|v| check("layer_norm_vjp", "gamma", v.len(), cols));
        check("layer_norm_vjp", "stats", stats.len(), 2 * rows);
        check("layer_norm_vjp", "dy", dy.len(), x.len());
        dx.as_ref().inspect(|dx| check("layer_norm_vjp", "dx", dx.len(), x.len()));
        for (name, v) in [("dgamma", &dgamma), ("dbeta", &dbeta)] {
            v.as_ref().inspect(|v| check("layer_norm_vjp", name, v.len(), cols));
        }
        let parameters = [dgamma.as_ref(), dbeta.as_ref()];
        self.normalise_vjp(true, cols, x, gamma, stats, dy, dx.as_ref(), parameters);
    }

    fn rms_norm(
        &self,
        cols: usize,
        eps: f64,
        x: View<'_, E>,
        gamma: Option<View<'_, E>>,
        y: ViewMut<'_, E>,
        stats: Option<ViewMut<'_, E::Wide>>,
    ) {
        let rows = rows_of("rms_norm", cols, x.len());
        check("rms_norm", "y", y.len(), x.len());
        gamma.inspect(|v| check("rms_norm", "gamma", v.len(), cols));
        stats.as_ref().inspect(|v| check("rms_norm", "stats", v.len(), rows));
        self.normalise(false, cols, eps, x, gamma, None, &y, stats.as_ref());
    }

    fn rms_norm_vjp(
        &self,
        cols: usize,
        x: View<'_, E>,
        gamma: Option<View<'_, E>>,
        stats: View<'_, E::Wide>,
        dy: View<'_, E>,
        dx: Option<ViewMut<'_, E>>,
        dgamma: Option<ViewMut<'_, E>>,
    ) {
        let rows = rows_of("rms_norm_vjp", cols, x.len());
        gamma.inspect(|v| check("rms_norm_vjp", "gamma", v.len(), cols));
        check("rms_norm_vjp", "stats", stats.len(), rows);
        check("rms_norm_vjp", "dy", dy.len(), x.len());
        dx.as_ref().inspect(|dx| check("rms_norm_vjp", "dx", dx.len(), x.len()));
        dgamma.as_ref().inspect(|v| check("rms_norm_vjp", "dgamma", v.len(), cols));
        self.normalise_vjp(false, cols, x, gamma, stats, dy, dx.as_ref(), [dgamma.as_ref(), None]);
    }

    fn batch_norm_train(
        &self,
        s: &BatchNormSpec,
        x: View<'_, E>,
        gamma: View<'_, E>,
        beta: View<'_, E>,
        y: ViewMut<'_, E>,
        stats: ViewMut<'_, E::Wide>,
        running: Option<[ViewMut<'_, E::Wide>; 2]>,
    ) {
        self.train_batch_norm(s, x, gamma, beta, &y, &stats, running.as_ref());
    }

    fn batch_norm_infer(
        &self,
        s: &BatchNormSpec,
        x: View<'_, E>,
        gamma: View<'_, E>,
        beta: View<'_, E>,
        running: [View<'_, E::Wide>; 2],
        y: ViewMut<'_, E>,
    ) {
        self.infer_batch_norm(s, x, gamma, beta, running, &y);
    }

    fn batch_norm_vjp(
        &self,
        s: &BatchNormSpec,
        constant: bool,
        x: View<'_, E>,
        gamma: View<'_, E>,
        stats: View<'_, E::Wide>,
        dy: View<'_, E>,
        dx: Option<ViewMut<'_, E>>,
        dgamma: Option<ViewMut<'_, E>>,
        dbeta: Option<ViewMut<'_, E>>,
    ) {
        let parameters = [dgamma.as_ref(), dbeta.as_ref()];
        self.vjp_batch_norm(s, constant, x, gamma, stats, dy, dx.as_ref(), parameters);
    }

    fn batch_norm_stats(
        &self,
        s: &BatchNormSpec,
        running: [View<'_, E::Wide>; 2],
        stats: ViewMut<'_, E::Wide>,
    ) {
        let [means, variances] = running;
        check("batch_norm_stats", "means", means.len(), s.channels);
        check("batch_norm_stats", "variances", variances.len(), s.channels);
        check("batch_norm_stats", "stats", stats.len(), size("batch_norm_stats", &[2, s.channels]));
        let mut record = self.record();
        let launch = record.launch(super::sums::kernel("batch_norm_stats"), Grid::flat(s.channels));
        launch.arg(s.channels).arg(s.eps).arg(means).arg(variances).arg(&stats).done();
    }

    fn softmax(&self, cols: usize, x: View<'_, E>, y: ViewMut<'_, E>) {
        self.by_rows("softmax", cols, x, &y);
    }

    fn softmax_vjp(&self, cols: usize, y: View<'_, E>, dy: View<'_, E>, dx: ViewMut<'_, E>) {
        self.by_rows_vjp("softmax_vjp", cols, y, dy, &dx);
    }

    fn log_softmax(&self, cols: usize, x: View<'_, E>, y: ViewMut<'_, E>) {
        self.by_rows("log_softmax", cols, x, &y);
    }

    fn log_softmax_vjp(&self, cols: usize, y: View<'_, E>, dy: View<'_, E>, dx: ViewMut<'_, E>) {
        self.by_rows_vjp("log_softmax_vjp", cols, y, dy, &dx);
    }
}
