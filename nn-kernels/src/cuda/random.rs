use super::compile::File;
use super::launch::{Grid, Kernel, Live};
use super::memory::{View, ViewMut};
use super::{Cuda, CudaReal};
use crate::cpu::random::{check_gaussian, philox_key, threshold};
use crate::hash;
use crate::ops::{GaussianSpec, Random, Stream};

const fn kernel(name: &'static str) -> Kernel {
    Kernel::new(File::Random, name)
}

impl<E: CudaReal> Random for Cuda<E> {
    fn hash_dropout(&self, stream: Stream, rate: f64, x: View<'_, E>, y: ViewMut<'_, E>) {
        assert_eq!(x.len(), y.len(), "hash_dropout: x and y differ in length");
        assert!((0.0..1.0).contains(&rate), "hash_dropout: the rate {rate} is not in [0, 1)");
        let Stream { seed, place, step, rank } = stream;
        let key = hash::key(seed, [u64::from(place), step, u64::from(rank)]);
        let n = x.len();
        let mut record = self.record();
        let launch = record.launch(kernel("hash_dropout"), Grid::flat(n)).arg(Live::Word(key));
        launch.arg(threshold(rate)).arg(1.0 / (1.0 - rate)).arg(x).arg(&y).arg(n).done();
    }

    fn normal(&self, stream: Stream, y: ViewMut<'_, E>) {
        assert!(y.len() as u64 <= 1 << 33, "normal: more than 2³³ elements");
        let n = y.len();
        let mut record = self.record();
        let launch = record.launch(kernel("normal"), Grid::flat(n.div_ceil(2))).arg(Live::Word(stream.step));
        launch.arg(philox_key(stream)).arg(stream.place).arg(&y).arg(n).done();
    }

    fn gaussian(
        &self,
        s: &GaussianSpec,
        mean: View<'_, E>,
        log_std: View<'_, E>,
        noise: Option<View<'_, E>>,
        sample: ViewMut<'_, E>,
        log_prob: Option<ViewMut<'_, E>>,
    ) {
        let lens = [mean.len(), log_std.len(), sample.len()];
        let rows = check_gaussian("gaussian", s, lens, noise.map(View::len));
        assert_eq!(
            log_prob.is_some(),
            s.squash,
            "gaussian: a log-density is given where it squashes, and only there"
        );
        let n = sample.len();
        let mut record = self.record();
        let launch = record.launch(kernel("gaussian"), Grid::flat(n)).arg(s.squash);
        launch.arg(mean).arg(log_std).arg(noise).arg(&sample).arg(n).done();
        if let Some(log_prob) = log_prob {
            assert_eq!(log_prob.len(), rows, "gaussian: log_prob is not {rows} rows");
            let launch = record.launch(kernel("gaussian_log_prob"), Grid::flat(rows));
            launch.arg(mean).arg(log_std).arg(noise).arg(&log_prob).arg(rows).arg(s.cols).done();
        }
    }

    fn gaussian_vjp(
        &self,
        s: &GaussianSpec,
        mean: View<'_, E>,
        log_std: View<'_, E>,
        noise: Option<View<'_, E>>,
        dsample: View<'_, E>,
        dlog_prob: View<'_, E>,
        dmean: Option<ViewMut<'_, E>>,
        dlog_std: Option<ViewMut<'_, E>>,
    ) {
        let lens = [mean.len(), log_std.len(), dsample.len()];
        let rows = check_gaussian("gaussian_vjp", s, lens, noise.map(View::len));
        assert!(!s.squash || dlog_prob.len() == rows, "gaussian_vjp: dlog_prob is not {rows} rows");
        for (name, given) in [("dmean", &dmean), ("dlog_std", &dlog_std)] {
            let same = given.as_ref().is_none_or(|given| given.len() == mean.len());
            assert!(same, "gaussian_vjp: {name} and mean differ in length");
        }
        let n = mean.len();
        let mut record = self.record();
        let launch = record.launch(kernel("gaussian_vjp"), Grid::flat(n)).arg(s.squash).arg(mean);
        let launch = launch.arg(log_std).arg(noise).arg(dsample).arg(dlog_prob);
        launch.arg(dmean.as_ref()).arg(dlog_std.as_ref()).arg(n).arg(s.cols).done();
    }

    fn dropout(&self, stream: Stream, rate: f64, x: View<'_, E>, y: ViewMut<'_, E>) {
        assert_eq!(x.len(), y.len(), "dropout: x and y differ in length");
        assert!((0.0..1.0).contains(&rate), "dropout: the rate {rate} is not in [0, 1)");
        assert!(x.len() as u64 <= 1 << 34, "dropout: more than 2³⁴ elements");
        let n = x.len();
        let mut record = self.record();
        let launch = record.launch(kernel("dropout"), Grid::flat(n.div_ceil(4))).arg(Live::Word(stream.step));
        let launch = launch.arg(philox_key(stream)).arg(stream.place).arg(threshold(rate));
        launch.arg(1.0 / (1.0 - rate)).arg(x).arg(&y).arg(n).done();
    }
}
