use nn::check::{Run, Values};
use nn::kernels::ops::RopeSpec;
use nn::*;

use crate::fixture::{Fixture, assert_near, devices, limit};
use crate::layers::{Options, check};

/// The fixtures read here.
pub(crate) const READ: &[&str] =
    &["net_lenet", "net_lora_block", "net_residual_mlp", "rope_interleaved_offset", "rope_theta1e5_offset"];

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
        conv2: Conv2DReLU<4, 6, 3, 1, 1>, MaxPool2D<2>,
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
        loss.value(&device, rows, Tensors::real(&logits[..]), &t, out, &mut [0.0]);
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

/// Qwen2's block, fine-tuned by matrices of low rank, with a norm and logits.
#[module]
struct LoraBlock {
    norm1: StopGradParams<RMSNorm<16, 1e-6>>,
    q: LoRALinear<16, 16, 3, 1.5>,
    k: LoRALinear<16, 8, 3, 1.5>,
    v: LoRALinear<16, 8, 3, 1.5>,
    attn: GQAAttention<6, 4, 2, 4>,
    o: LoRALinear<16, 16, 3, 1.5, No>,
    norm2: StopGradParams<RMSNorm<16, 1e-6>>,
    gate: LoRALinear<16, 24, 3, 1.5, No>,
    up: LoRALinear<16, 24, 3, 1.5, No>,
    down: LoRALinear<24, 16, 3, 1.5, No>,
    norm: StopGradParams<RMSNorm<16, 1e-6>>,
    head: StopGradParams<LinearNoBias<16, 11>>,
}
#[module]
impl LoraBlock {
    fn forward(&self, x: T![6, 16]) -> T![6, 11] {
        let n = self.norm1(x);
        let q = RoPE::<6, 4, 4>(self.q(n));
        let k = RoPE::<6, 2, 4>(self.k(n));
        let h = x + self.o(self.attn(q, k, self.v(n)));
        let m = self.norm2(h);
        let y = h + self.down(SiLU(self.gate(m)) * self.up(m));
        self.head(self.norm(y))
    }
}

const NEXT: CrossEntropyRows = CrossEntropyRows { first: 5 };

/// The model with the fixture's numbers, and what it is given.
fn lora_block<E: kernels::cpu::Real>(device: Cpu<E>, fixture: &Fixture) -> Model<LoraBlock, Cpu<E>> {
    let mut model = Model::new(Weights::new(device, 0).unwrap(), 0, 2).unwrap();
    for (path, values) in fixture.named("param.").chain(fixture.named("state.")) {
        model.weights_mut().set(path, &values.real()).unwrap();
    }
    model
}

/// Bounds on the relative errors of the loss, and of logits and gradients.
fn lora_block_is_near<E: kernels::cpu::Real>(loss_limit: f64, limit: f64) {
    let fixture = Fixture::read("net_lora_block");
    let (x, t) = (fixture.get("x0").real::<E>(), fixture.get("x1").ids());
    for device in devices::<E>() {
        let mut model = lora_block(device, &fixture);
        let logits = model.forward(&x).unwrap().to_vec();
        assert_near("logits", &logits, &fixture.get("logits").values, 0.0, limit);
        let value = model.accumulate(&x, &t, &NEXT).unwrap();
        assert_near(&format!("loss, {device:?}"), &[value], &fixture.get("y0").values, 0.0, loss_limit);
        let mut paths = Vec::new();
        for (path, expected) in fixture.named("grad.") {
            assert!(expected.values.iter().all(|g| *g != 0.0), "{path}");
            let what = format!("{path}, {device:?}");
            assert_near(&what, &model.gradient(path).unwrap(), &expected.values, 0.0, limit);
            paths.push(path);
        }
        // They are all there are.
        assert_eq!(paths.len(), 14);
        assert_eq!(model.gradient_norms().len(), 14);

        let mut run = Run::<LoraBlock, T![6, 16], Cpu<E>>::new(&device, 2).mode(Mode::Train);
        for (path, values) in fixture.named("param.").chain(fixture.named("state.")) {
            run.set(path, &values.real());
        }
        let mut dy = vec![E::ZERO; logits.len()];
        let rows = Rows { samples: 2, count: 12, len: 11 };
        let out = Some(TensorsMut::real(&mut dy[..]));
        NEXT.value(&device, rows, Tensors::real(&logits[..]), &t, out, &mut [0.0]);
        run.forward(&[Values::Real(x.clone())]);
        let gradients = run.vjp(&[Values::Real(dy)]);
        let dx = gradients.dx[0].as_ref().unwrap();
        assert_near("dx0", dx, &fixture.get("dx0").values, 0.0, limit);
        // The last token's target is nobody's, and no earlier token sees it.
        for sample in dx.chunks(6 * 16) {
            assert_eq!(sample[5 * 16..], [E::ZERO; 16]);
        }
    }
}

#[test]
fn net_lora_block() {
    lora_block_is_near::<f64>(1e-14, 1e-12);
    // The longest sums are of 24 terms, a dozen of them behind one another.
    lora_block_is_near::<f32>(limit::<f32>(1), limit::<f32>(24));
}

#[test]
fn net_lora_block_has_the_gradients_of_finite_differences() {
    let fixture = Fixture::read("net_lora_block");
    let (x, t) = (fixture.get("x0").real::<f64>(), fixture.get("x1").ids());
    let mut model = lora_block::<f64>(Cpu::default(), &fixture);
    model.accumulate(&x, &t, &NEXT).unwrap();
    let step = 1e-5;
    for (path, _) in fixture.named("grad.") {
        let (gradient, at) = (model.gradient(path).unwrap(), model.weights().get(path).unwrap());
        let slope: Vec<f64> = (0..at.len())
            .map(|i| {
                let mut value = |by: f64| {
                    let mut moved = at.clone();
                    moved[i] += by;
                    model.weights_mut().set(path, &moved).unwrap();
                    model.evaluate(&x, &t, &NEXT).unwrap().loss
                };
                (value(step) - value(-step)) / (2.0 * step)
            })
            .collect();
        model.weights_mut().set(path, &at).unwrap();
        assert_near(path, &slope, &gradient, 0.0, 1e-8);
    }
}

#[test]
fn net_lora_block_trains_its_adapters_alone() {
    let fixture = Fixture::read("net_lora_block");
    let (x, t) = (fixture.get("x0").real::<f32>(), fixture.get("x1").ids());
    let mut model = lora_block::<f32>(Cpu::default(), &fixture);
    let mut adam = AdamW::new(1e-2).weight_decay(0.1);
    let before = model.evaluate(&x, &t, &NEXT).unwrap().loss;
    for _ in 0..3 {
        model.train_step(&x, &t, &NEXT, &mut adam).unwrap();
    }
    assert!(model.evaluate(&x, &t, &NEXT).unwrap().loss < before);
    for (path, values) in fixture.named("state.") {
        assert_eq!(model.weights().get(path).unwrap(), values.real::<f32>(), "{path}");
        assert!(matches!(model.gradient(path), Err(Error::NotOptimised { .. })), "{path}");
    }
    for (path, values) in fixture.named("param.") {
        let pairs = model.weights().get(path).unwrap().into_iter().zip(values.real::<f32>());
        assert!(pairs.into_iter().all(|(after, before)| after != before), "{path}");
    }
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
