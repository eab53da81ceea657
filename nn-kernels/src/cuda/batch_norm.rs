//! Batch normalisation: the trait's methods are in [`norm`](super::norm).

use super::launch::{Address, Grid, Record};
use super::memory::{View, ViewMut};
use super::sums::{Channels, Term, described, kernel};
use super::{Cuda, CudaReal};
use crate::cpu::batch_norm::check;
use crate::ops::BatchNormSpec;

impl Channels {
    fn of(s: &BatchNormSpec) -> Self {
        Self { batch: s.batch, channels: s.channels, area: s.area }
    }

    /// Room for means and other coefficients, of which the means come first, and for parts of sums behind it.
    fn room(self, record: &mut Record<'_>) -> (Address, Address) {
        let coefficients = 4 * 8 * self.channels;
        let all = record.scratch(coefficients + self.bytes());
        (all, all.after(coefficients))
    }

    /// out = p·a + q·(b − m) + r with each channel's coefficients.
    fn combine<E: CudaReal>(
        self,
        record: &mut Record<'_>,
        all: Address,
        [a, b]: [View<'_, E>; 2],
        out: &ViewMut<'_, E>,
    ) {
        let launch = record.launch(kernel("combine"), Grid::flat(out.len())).arg(all).arg(a).arg(b).arg(out);
        launch.arg(self.batch).arg(self.channels).arg(self.area).done();
    }

    fn count(self) -> f64 {
        (self.batch * self.area) as f64
    }
}

impl<E: CudaReal> Cuda<E> {
    pub(super) fn train_batch_norm(
        &self,
        s: &BatchNormSpec,
        x: View<'_, E>,
        gamma: View<'_, E>,
        beta: View<'_, E>,
        y: &ViewMut<'_, E>,
        stats: &ViewMut<'_, E::Wide>,
        running: Option<&[ViewMut<'_, E::Wide>; 2]>,
    ) {
        let parameters = [("gamma", 1, gamma.len()), ("beta", 1, beta.len()), ("stats", 2, stats.len())];
        check(s, &[("x", x.len()), ("y", y.len())], &parameters);
        if let Some([means, variances]) = running {
            let both = [("running means", 1, means.len()), ("running variances", 1, variances.len())];
            check(s, &[], &both);
        }
        let channels = Channels::of(s);
        let mut record = self.record();
        let (all, room) = channels.room(&mut record);
        let parts = channels.sum(&mut record, room, Term::Plain, [x, x], None);
        channels.means(&mut record, parts, all);
        let parts = channels.sum(&mut record, room, Term::Square, [x, x], Some(all));
        let (at, splits, sums) = described(parts);
        let launch = record.launch(kernel("batch_norm_train"), Grid::flat(s.channels));
        let launch = launch.arg(at).arg(splits).arg(sums).arg(channels.count()).arg(s.eps).arg(s.momentum);
        let launch = launch.arg(gamma).arg(beta).arg(stats);
        launch.arg(running.map(|r| &r[0])).arg(running.map(|r| &r[1])).arg(all).done();
        channels.combine(&mut record, all, [x, x], y);
    }

    pub(super) fn infer_batch_norm(
        &self,
        s: &BatchNormSpec,
        x: View<'_, E>,
        gamma: View<'_, E>,
        beta: View<'_, E>,
        [means, variances]: [View<'_, E::Wide>; 2],
        y: &ViewMut<'_, E>,
    ) {
        check(s, &[("x", x.len()), ("y", y.len())], &[("gamma", 1, gamma.len()), ("beta", 1, beta.len())]);
        check(s, &[], &[("running means", 1, means.len()), ("running variances", 1, variances.len())]);
        let channels = Channels::of(s);
        let mut record = self.record();
        let (all, _) = channels.room(&mut record);
        let launch = record.launch(kernel("batch_norm_infer"), Grid::flat(s.channels)).arg(s.channels);
        launch.arg(s.eps).arg(gamma).arg(beta).arg(means).arg(variances).arg(all).done();
        channels.combine(&mut record, all, [x, x], y);
    }

    pub(super) fn vjp_batch_norm(
        &self,
        s: &BatchNormSpec,
        constant: bool,
        x: View<'_, E>,
        gamma: View<'_, E>,
        stats: View<'_, E::Wide>,
        dy: View<'_, E>,
        dx: Option<&ViewMut<'_, E>>,
        [dgamma, dbeta]: [Option<&ViewMut<'_, E>>; 2],
    ) {
        let parameters = [("gamma", 1, gamma.len()), ("stats", 2, stats.len())];
        check(s, &[("x", x.len()), ("dy", dy.len())], &parameters);
        dx.inspect(|dx| check(s, &[("dx", dx.len())], &[]));
        for (name, gradient) in [("dgamma", dgamma), ("dbeta", dbeta)] {
            gradient.inspect(|gradient| check(s, &[], &[(name, 1, gradient.len())]));
        }
        let channels = Channels::of(s);
        let mut record = self.record();
        let (all, room) = channels.room(&mut record);
        if constant {
            let launch = record.launch(kernel("given_means"), Grid::flat(s.channels));
            launch.arg(s.channels).arg(stats).arg(all).done();
        } else {
            // Not the rounded one of `stats`, which is too coarse where it is large.
            let parts = channels.sum(&mut record, room, Term::Plain, [x, x], None);
            channels.means(&mut record, parts, all);
        }
        let parts = channels.sum(&mut record, room, Term::Gradient, [x, dy], Some(all));
        let (at, splits, sums) = described(parts);
        let launch = record.launch(kernel("batch_norm_vjp"), Grid::flat(s.channels)).arg(at).arg(splits);
        let launch = launch.arg(sums).arg(channels.count()).arg(constant).arg(gamma).arg(stats);
        launch.arg(dgamma).arg(dbeta).arg(all).done();
        if let Some(dx) = dx {
            channels.combine(&mut record, all, [dy, x], dx);
        }
    }
}
