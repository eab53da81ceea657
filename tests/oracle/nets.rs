use nn::check::{Run, Values};
use nn::kernels::ops::RopeSpec;
use nn::*;

use crate::fixture::{Fixture, assert_near, devices, limit};
use crate::layers::{Options, check};

/// The fixtures read here.
pub(crate) const READ: &[&str] =
    &["net_lenet", "net_residual_mlp", "rope_interleaved_offset", "rope_theta1e5_offset"];

#[module]
struct ResidualMlp {
    ln: LayerNorm<6>,
    up: LinearGELUTanh<6, 16>,
    down: Linear<16, 6>,
}
#[module]
impl ResidualMlp {
    fn forward(&self, x: T![4, 6]) -> T![4, 6] {
        x + self.down(self.up(self.ln(x)))
    }
}

#[test]
fn net_residual_mlp() {
    let options = Options { terms: 16, ..Options::default() };
    check::<f64, ResidualMlp, T![4, 6]>("net_residual_mlp", &options);
    check::<f32, ResidualMlp, T![4, 6]>("net_residual_mlp", &options);
}

sequential! {
    LeNet: [1, 8, 8] -> [5] =
        conv1: Conv2D<1, 4, 3, 1, 1>, ReLU, MaxPool2D<2>,
        conv2: Conv2D<4, 6, 3, 1, 1>, ReLU, MaxPool2D<2>,
        Flatten, fc1: LinearReLU<24, 10>, fc2: Linear<10, 5>
}

/// Loss, output and gradients as the model gives them to those that train it.
fn lenet<E: kernels::cpu::Real>() {
    let fixture = Fixture::read("net_lenet");
    let (x, t) = (fixture.get("x0").real::<E>(), fixture.get("x1").ids());
    let limit = limit::<E>(3 * 64);
    for device in devices::<E>() {
        let mut model = Model::<LeNet, Cpu<E>>::new(Weights::new(device, 0).unwrap(), 0, 3).unwrap();
        let mut run = Run::<LeNet, T![1, 8, 8], Cpu<E>>::new(&device, 3).mode(Mode::Train);
        for (path, values) in fixture.named("param.") {
            model.weights_mut().set(path, &values.real()).unwrap();
            run.set(path, &values.real());
        }
        let logits = model.forward(&x).unwrap().to_vec();
        assert_near("logits", &logits, &fixture.get("logits").values, 0.0, limit);
        let loss = CrossEntropy::default();
        let value = model.accumulate(&x, &t, &loss).unwrap();
        assert_near("loss", &[value], &fixture.get("y0").values, 0.0, limit);
        for (path, expected) in fixture.named("grad.") {
            assert_near(path, &model.gradient(path).unwrap(), &expected.values, 0.0, limit);
        }
        // A model does not compute its input's gradient: the module does.
        let rows = Rows { samples: 3, count: 3, len: 5 };
        let mut dy = vec![E::ZERO; logits.len()];
        let out = Some(TensorsMut::real(&mut dy[..]));
        loss.value(&device, rows, Tensors::real(&logits[..]), &t, out).unwrap();
        run.forward(&[Values::Real(x.clone())]);
        let gradients = run.vjp(&[Values::Real(dy)]);
        let dx = gradients.dx[0].as_ref().unwrap();
        assert_near("dx0", dx, &fixture.get("dx0").values, 0.0, limit);
    }
}

#[test]
fn net_lenet() {
    lenet::<f64>();
    lenet::<f32>();
}

/// The kernel at positions that do not start at 0, as a cache has them.
fn rope_from<E: kernels::cpu::Real>(name: &'static str, theta: f64, interleaved: bool) {
    use kernels::ops::Layout;
    let fixture = Fixture::read(name);
    let spec = RopeSpec { rows: 8, seq: 4, offset: 37, heads: 3, dim: 6, rotary: 6, theta, interleaved };
    for device in devices::<E>() {
        for (inverse, from, to) in [(false, "x0", "y0"), (true, "dy0", "dx0")] {
            let from = fixture.get(from).real::<E>();
            let mut found = vec![E::ZERO; from.len()];
            device.rope(&spec, inverse, &from, &mut found);
            assert_near(name, &found, &fixture.get(to).values, 0.0, limit::<E>(1));
        }
    }
}

#[test]
fn rope_interleaved_offset() {
    rope_from::<f64>("rope_interleaved_offset", 1e4, true);
    rope_from::<f32>("rope_interleaved_offset", 1e4, true);
}

#[test]
fn rope_theta1e5_offset() {
    rope_from::<f64>("rope_theta1e5_offset", 1e5, false);
    rope_from::<f32>("rope_theta1e5_offset", 1e5, false);
}
