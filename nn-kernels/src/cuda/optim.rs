use super::compile::File;
use super::launch::{Grid, Kernel, Live};
use super::memory::{View, ViewMut};
use super::{Cuda, CudaReal};
use crate::ops::{AdamSpec, Optim, SgdSpec};

const fn kernel(name: &'static str) -> Kernel {
    Kernel::new(File::Optim, name)
}

#[track_caller]
fn check_clip(name: &str, clip: Option<f64>, squares: View<'_, f64>) {
    assert!(clip.is_none() || squares.len() > 0, "{name}: clipped without a sum of squares");
}

impl<E: CudaReal> Optim for Cuda<E> {
    fn sgd(
        &self,
        s: &SgdSpec,
        squares: View<'_, f64>,
        p: ViewMut<'_, E::Wide>,
        g: View<'_, E::Wide>,
        velocity: ViewMut<'_, E::Wide>,
    ) {
        assert_eq!(g.len(), p.len(), "sgd: g and p differ in length");
        check_clip("sgd", s.clip, squares);
        let velocity = (s.momentum != 0.0).then_some(&velocity);
        velocity.inspect(|v| assert_eq!(v.len(), p.len(), "sgd: velocity and p differ in length"));
        let n = p.len();
        let mut record = self.record();
        let fault = record.fault();
        let launch = record.launch(kernel("sgd"), Grid::flat(n)).arg(fault).arg(Live::Real(s.lr));
        let launch = launch.arg(Live::Real(f64::from(u8::from(s.first)))).arg(s.momentum).arg(s.nesterov);
        let launch = launch.arg(s.weight_decay).arg(s.clip.is_some()).arg(s.clip.unwrap_or_default());
        launch.arg(squares).arg(&p).arg(g).arg(velocity).arg(n).done();
    }

    fn adam(
        &self,
        s: &AdamSpec,
        squares: View<'_, f64>,
        p: ViewMut<'_, E::Wide>,
        g: View<'_, E::Wide>,
        m: ViewMut<'_, E::Wide>,
        v: ViewMut<'_, E::Wide>,
    ) {
        assert_eq!(g.len(), p.len(), "adam: g and p differ in length");
        assert_eq!(m.len(), p.len(), "adam: m and p differ in length");
        assert_eq!(v.len(), p.len(), "adam: v and p differ in length");
        assert!(s.step > 0, "adam: steps are counted from 1");
        check_clip("adam", s.clip, squares);
        let correction = |beta: f64| 1.0 - beta.powf(s.step as f64);
        let step = s.lr / correction(s.beta1);
        let root = 1.0 / correction(s.beta2).sqrt();
        let shrink = if s.decoupled { 1.0 - s.lr * s.weight_decay } else { 1.0 };
        let pull = if s.decoupled { 0.0 } else { s.weight_decay };
        let n = p.len();
        let mut record = self.record();
        let fault = record.fault();
        let launch = record.launch(kernel("adam"), Grid::flat(n)).arg(fault);
        let launch = launch.arg(Live::Real(step)).arg(Live::Real(root)).arg(Live::Real(shrink));
        let launch = launch.arg(s.beta1).arg(s.beta2).arg(s.eps).arg(pull);
        let launch = launch.arg(s.clip.is_some()).arg(s.clip.unwrap_or_default()).arg(squares);
        launch.arg(&p).arg(g).arg(&m).arg(&v).arg(n).done();
    }

    fn sum_of_squares(&self, x: View<'_, E::Wide>, sum: ViewMut<'_, f64>) {
        assert!(sum.len() > 0, "sum_of_squares: no room for the sum");
        self.squares(x, &sum);
    }

    fn copy_wide(&self, x: View<'_, E::Wide>, y: ViewMut<'_, E::Wide>) {
        assert_eq!(x.len(), y.len(), "copy: x and y differ in length");
        let n = y.len();
        self.record().launch(kernel("copy_wide"), Grid::flat(n)).arg(x).arg(&y).arg(n).done();
    }

    fn clear(&self, y: ViewMut<'_, E::Wide>) {
        let n = y.len();
        self.record().launch(kernel("clear"), Grid::flat(n)).arg(&y).arg(n).done();
    }

    fn narrow(&self, x: View<'_, E::Wide>, y: ViewMut<'_, E>) {
        assert_eq!(x.len(), y.len(), "narrow: x and y differ in length");
        let n = y.len();
        self.record().launch(kernel("narrow"), Grid::flat(n)).arg(x).arg(&y).arg(n).done();
    }

    fn collect(&self, g: ViewMut<'_, E>, sum: ViewMut<'_, E::Wide>) {
        assert_eq!(g.len(), sum.len(), "collect: g and sum differ in length");
        let n = sum.len();
        self.record().launch(kernel("collect"), Grid::flat(n)).arg(&g).arg(&sum).arg(n).done();
    }

    fn lerp(&self, tau: f64, x: View<'_, E::Wide>, target: ViewMut<'_, E::Wide>) {
        assert_eq!(x.len(), target.len(), "lerp: x and target differ in length");
        let n = x.len();
        let mut record = self.record();
        let fault = record.fault();
        let launch = record.launch(kernel("lerp"), Grid::flat(n)).arg(fault).arg(tau);
        launch.arg(x).arg(&target).arg(n).done();
    }
}
