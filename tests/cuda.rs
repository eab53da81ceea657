//! The models of the examples, trained on a GPU as on the CPU. With `NN_CUDA=gpu` on a real one; else on the emulator, where
//! a GPU's arithmetic is done by g++. Without g++ nothing is tested, unless `NN_REQUIRE_EMULATOR=1`.

use nn::kernels::cuda::CudaReal;
use nn::*;

/// A GPU, or what stands in for one; `None` if the test is to be skipped.
fn gpu<E: CudaReal>() -> Option<Cuda<E>> {
    if std::env::var("NN_CUDA").as_deref() != Ok("gpu")
        && let Err(missing) = nn_cuda_emulator::install()
    {
        assert!(std::env::var_os("NN_REQUIRE_EMULATOR").is_none(), "{missing}");
        eprintln!("skipped: {missing}");
        return None;
    }
    Some(Cuda::new(0).expect("the device opens"))
}

sequential! {
    /// The digits network, on pictures as small.
    Digits: [1, 8, 8] -> [10] =
        conv1: Conv2D<1, 16, 3, 1, 1>, ReLU,
        conv2: Conv2D<16, 32, 3, 1, 1>, ReLU, MaxPool2D<2>,
        Flatten, Dropout<0.3>,
        fc1: LinearReLU<512, 64>,
        fc2: Linear<64, 10>
}

sequential! {
    /// The policy of the reinforcement learners.
    Policy: [8] -> [4] = LinearTanh<8, 64>, LinearTanh<64, 64>, Linear<64, 4>
}

/// A GPT over characters, small.
#[module]
struct Gpt {
    tok: Embedding<11, 32>,
    pos: PosEmbed<12, 32>,
    drop: Dropout<0.1>,
    blocks: Repeat<DecoderBlock<12, 32, 4, 64>, 2>,
    norm: LayerNorm<32>,
    #[tied = "tok.weight"]
    head: TiedLinear<32, 11>,
}

#[module]
impl Gpt {
    fn forward(&self, ids: Ids<T![..12]>) -> T![..12, 11] {
        self.head(self.norm(self.blocks(self.drop(self.pos(self.tok(ids))))))
    }
}

/// A Llama, smaller.
#[module]
struct Llama {
    tok: Embedding<11, 16>,
    blocks: Repeat<LlamaBlock<9, 16, 4, 2, 24>, 2>,
    norm: RMSNorm<16>,
    head: LinearNoBias<16, 11>,
}

#[module]
impl Llama {
    fn forward(&self, ids: Ids<T![..9]>) -> T![..9, 11] {
        self.head(self.norm(self.blocks(self.tok(ids))))
    }
}

sequential! {
    /// Sinusoids, and queries, keys and values that lie side by side.
    Sines: Ids[..8] -> [..8, 5] =
        Embedding<5, 4>, SinusoidalPosAdd<8, 4>, Linear<4, 12>, CausalAttention<8, 2, 2>, Linear<4, 5>
}

sequential! {
    /// Residual blocks of convolutions.
    ResNet: [2, 6, 6] -> [3] =
        Conv2DNoBias<2, 4, 3, 1, 1>, BatchNorm2D<4>, ReLU,
        Residual<Branch>, ReLU, AvgPool2D<3, 2, 1>, Flatten, Linear<36, 3>
}

sequential! {
    /// What is added.
    Branch: [4, 6, 6] -> [4, 6, 6] =
        Conv2DNoBias<4, 4, 3, 1, 1>, BatchNorm2D<4>, ReLU, Conv2DNoBias<4, 4, 3, 1, 1>, BatchNorm2D<4>
}

fn numbers(n: usize, seed: u64) -> Vec<f64> {
    let mut rng = kernels::philox::Philox::new(seed, 0);
    (0..n).map(|_| rng.normal()).collect()
}

fn ids(n: usize, below: u32, seed: u64) -> Vec<u32> {
    let mut rng = kernels::philox::Philox::new(seed, 1);
    (0..n).map(|_| rng.below(below)).collect()
}

/// What training left: losses, and the bits of all parameters and statistics.
#[derive(PartialEq)]
struct Trained {
    losses: Vec<f64>,
    params: Vec<f64>,
    state: Vec<f64>,
}

impl Trained {
    fn of<M: Declared, D: Device>(losses: Vec<f64>, model: &Model<M, D>) -> Self {
        let (weights, read) = (model.weights(), |view: kernels::WideView<'_, D>| {
            let mut values = vec![D::Wide::default(); D::len(view)];
            model.weights().device().download(view, &mut values);
            values.iter().map(|v| kernels::Float::to_f64(*v)).collect::<Vec<f64>>()
        });
        Self { losses, params: read(weights.params()), state: read(weights.state()) }
    }

    fn assert_near(&self, other: &Self, limit: f64, what: &str) {
        for (part, found, expected) in [
            ("loss", &self.losses, &other.losses),
            ("params", &self.params, &other.params),
            ("state", &self.state, &other.state),
        ] {
            assert_eq!(found.len(), expected.len());
            for (i, (a, b)) in found.iter().zip(expected).enumerate() {
                let error = (a - b).abs() / b.abs().max(1.0);
                assert!(error <= limit, "{what}: {part} {i}: {a} instead of {b}, {error:e}");
            }
        }
    }
}

const STEPS: usize = 4;

/// A model, and a step of its training.
trait Case {
    type Model: Declared;

    fn step<D: Device>(
        model: &mut Model<Self::Model, D>,
        adam: &mut Adam<D>,
        step: usize,
    ) -> Result<f64, Error>;
}

/// Some steps of training with everything that an optimiser has: a schedule, decay, a limit for the norm.
fn train<C: Case, D: Device>(device: &D) -> Trained
where
    C::Model: Module<D, <C::Model as Declared>::In>,
{
    let weights = Weights::<C::Model, D>::new(device.clone(), 5).unwrap();
    let mut model = Model::new(weights, 7, 3).unwrap();
    let schedule = Schedule::WarmupCosine { warmup: 2, steps: 10, start: 0.1, floor: 0.1 };
    let mut adam = AdamW::new(0.01).clip_norm(0.5).schedule(schedule);
    let losses = (0..STEPS).map(|i| C::step(&mut model, &mut adam, i).unwrap()).collect();
    Trained::of(losses, &model)
}

/// On the CPU and on the GPU, in both precisions; replayed, and launch by launch.
fn trains_alike<C: Case>()
where
    C::Model: Module<Cpu<f64>, <C::Model as Declared>::In>
        + Module<Cuda<f64>, <C::Model as Declared>::In>
        + Module<Cuda<f32>, <C::Model as Declared>::In>
        + Module<Cuda<bf16>, <C::Model as Declared>::In>,
{
    let (Some(double), Some(single), Some(half)) = (gpu::<f64>(), gpu::<f32>(), gpu::<bf16>()) else {
        return;
    };
    let exact = train::<C, _>(&Cpu::<f64>::default());
    let replayed = train::<C, _>(&double);
    assert!(double.replays() > 0, "no step was replayed");
    replayed.assert_near(&exact, 1e-9, "f64");
    double.use_graphs(false);
    assert!(train::<C, _>(&double) == replayed, "a replay gives other bits");
    train::<C, _>(&single).assert_near(&exact, 2e-3, "f32");
    let rounded = train::<C, _>(&half);
    assert!(half.replays() > 0, "no step in bf16 was replayed");
    for (a, b) in rounded.losses.iter().zip(&exact.losses) {
        assert!((a - b).abs() < 0.02 * (0.5 + b), "bf16: a loss of {a} instead of {b}");
    }
    // Adam turns the smallest gradient into a whole step, whatever its sign was rounded to.
    let distance = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
    let start =
        Trained::of(Vec::new(), &Model::<C::Model, _>::new(Weights::new(single, 5).unwrap(), 7, 1).unwrap());
    let (off, moved) = (distance(&rounded.params, &exact.params), distance(&start.params, &exact.params));
    assert!(off < 0.2 * moved, "bf16: parameters moved by {moved}, and are {off} from where they should be");
    assert!(
        distance(&rounded.state, &exact.state) < 0.01 * (1.0 + distance(&exact.state, &[])),
        "bf16: statistics"
    );
}

fn real<E: kernels::Float>(n: usize, seed: usize) -> Vec<E> {
    numbers(n, seed as u64).into_iter().map(E::from_f64).collect()
}

macro_rules! cases {
    ($($(#[$doc:meta])* $name:ident: $model:ident, |$net:ident, $adam:ident, $i:ident| $step:expr;)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            struct This;
            impl Case for This {
                type Model = $model;
                fn step<D: Device>(
                    $net: &mut Model<$model, D>,
                    $adam: &mut Adam<D>,
                    $i: usize,
                ) -> Result<f64, Error> {
                    $step
                }
            }
            trains_alike::<This>();
        }
    )*};
}

cases! {
    the_digits_network_trains: Digits, |net, adam, i| {
        let (x, t) = (real::<D::Wide>(3 * 64, i), ids(3, 10, i as u64));
        net.train_step(&x, &t, &CrossEntropy { smoothing: 0.1, ..CrossEntropy::default() }, adam)
    };
    a_policy_trains: Policy, |net, adam, i| {
        let (x, t) = (real::<D::Wide>(3 * 8, i), real::<D::Wide>(3 * 4, 100 + i));
        net.train_step(&x, &t, &MSE::default(), adam)
    };
    /// Sequences of another length each time.
    a_gpt_trains: Gpt, |net, adam, i| {
        net.set_sequences(3);
        let len = if i < 3 { 12 } else { 5 };
        let text = ids(3 * len, 11, i as u64);
        net.train_step(&text, &text, &CrossEntropy { ignore: Some(4), ..CrossEntropy::default() }, adam)
    };
    a_llama_trains: Llama, |net, adam, i| {
        net.set_sequences(2);
        let text = ids(2 * 9, 11, i as u64);
        let next: Vec<u32> = text.chunks(9).flat_map(|text| text[1..].to_vec()).collect();
        net.train_step(&text, &next, &CrossEntropyRows { first: 8 }, adam)
    };
    a_residual_network_trains: ResNet, |net, adam, i| {
        let (x, t) = (real::<D::Wide>(3 * 72, i), ids(3, 3, i as u64));
        net.train_step(&x, &t, &CrossEntropy::default(), adam)
    };
}

/// Its layers are one launch, and nothing but their number tells.
#[test]
fn a_policys_forward_pass_is_one_launch() {
    fn check<E: CudaReal>(limit: f64) {
        let Some(device) = gpu::<E>() else { return };
        let separate = device.forcing("linear=separate").unwrap();
        let new = |device: &Cuda<E>| {
            Model::<Policy, _>::new(Weights::new(device.clone(), 5).unwrap(), 7, 33).unwrap()
        };
        let (mut fused, mut apart) = (new(&device), new(&separate));
        let mut here =
            Model::<Policy, Cpu<f64>>::new(Weights::new(Cpu::default(), 5).unwrap(), 7, 33).unwrap();
        for rows in [1, 3, 33] {
            let x = numbers(8 * rows, rows as u64);
            let input: Vec<E::Wide> = x.iter().map(|x| E::Wide::from_f64(*x)).collect();
            // What the host gives is rounded first, where it must be.
            let given = u64::from(Cuda::<E>::MIXED);
            let launches = || (device.launches(), separate.launches());
            let before = launches();
            let (found, same) = (fused.forward(&input).unwrap(), apart.forward(&input).unwrap());
            let after = launches();
            assert_eq!((after.0 - before.0, after.1 - before.1), (given + 1, given + 3));
            assert_eq!(found, same);
            for (found, expected) in found.iter().zip(here.forward(&x).unwrap()) {
                assert!((found.to_f64() - expected).abs() < limit, "{found:?} instead of {expected}");
            }
        }
        // A step of training has the same pass in it, whose every layer's output the gradients are of.
        let (x, t) = (real::<E::Wide>(3 * 8, 1), real::<E::Wide>(3 * 4, 2));
        let (mut adam, mut launched) = ([AdamW::new(0.01), AdamW::new(0.01)], [0; 2]);
        for (i, model) in [&mut fused, &mut apart].into_iter().enumerate() {
            let device = model.weights().device().clone();
            let before = device.launches();
            model.train_step(&x, &t, &MSE::default(), &mut adam[i]).unwrap();
            launched[i] = device.launches() - before;
        }
        assert_eq!(launched[0] + 2, launched[1]);
        assert!(Trained::of(Vec::new(), &fused) == Trained::of(Vec::new(), &apart));
    }
    check::<f32>(1e-5);
    check::<f64>(1e-12);
    check::<bf16>(0.02);
}

#[test]
fn sgd_with_momentum_is_replayed_too() {
    let Some(device) = gpu::<f64>() else { return };
    fn train<D: Device<Wide = f64>>(device: &D) -> Trained {
        let mut model = Model::<Policy, D>::new(Weights::new(device.clone(), 5).unwrap(), 7, 2).unwrap();
        let mut sgd = Sgd::new(0.1).momentum(0.9).nesterov().weight_decay(0.01);
        let losses = (0..5).map(|i| {
            let (x, t) = (numbers(16, i), numbers(8, 100 + i));
            model.train_step(&x, &t, &MSE::default(), &mut sgd).unwrap()
        });
        let losses = losses.collect();
        Trained::of(losses, &model)
    }
    train(&device).assert_near(&train(&Cpu::<f64>::default()), 1e-10, "sgd");
    assert!(device.replays() > 0);
}

#[test]
fn what_is_inferred_evaluated_and_gone_on_with_is_the_same() {
    let Some(device) = gpu::<f64>() else { return };
    let cpu = Cpu::<f64>::default();
    fn near(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        let error = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(error < 1e-10, "{error:e}");
    }

    let mut here = Model::<Digits, _>::new(Weights::new(cpu, 1).unwrap(), 1, 2).unwrap();
    let mut there = Model::<Digits, _>::new(Weights::new(device.clone(), 1).unwrap(), 1, 2).unwrap();
    let (x, t) = (numbers(5 * 64, 1), ids(5, 10, 1));
    near(there.forward(&x[..64]).unwrap(), here.forward(&x[..64]).unwrap());
    // In three parts.
    let [a, b] = [
        there.evaluate(&x, &t, &CrossEntropy::default()).unwrap(),
        here.evaluate(&x, &t, &CrossEntropy::default()).unwrap(),
    ];
    near(&[a.loss], &[b.loss]);
    assert_eq!((a.accuracy, a.samples), (b.accuracy, 5));
    there.accumulate(&x[..128], &t[..2], &CrossEntropy::default()).unwrap();
    here.accumulate(&x[..128], &t[..2], &CrossEntropy::default()).unwrap();
    near(&there.gradient("conv2.weight").unwrap(), &here.gradient("conv2.weight").unwrap());
    near(&[there.gradient_norm()], &[here.gradient_norm()]);

    let here = Weights::<Llama, _>::new(cpu, 2).unwrap();
    let there = Weights::<Llama, _>::new(device, 2).unwrap();
    let (mut a, mut b) = (KvCache::new(&there, 2).unwrap(), KvCache::new(&here, 2).unwrap());
    for piece in [&[1, 2, 3, 4, 5, 6][..], &[7, 8], &[9, 10]] {
        near(a.forward(&there, piece).unwrap(), b.forward(&here, piece).unwrap());
    }
    assert!(matches!(a.forward(&there, &[0; 10]), Err(Error::ContextOverflow { .. })));
}

/// Token by token, in two sequences: all that changes is where they are.
#[test]
fn decoding_is_replayed() {
    macro_rules! check {
        ($model:ident, $context:literal) => {
            let (Some(device), Some(eager)) = (gpu::<f64>(), gpu::<f64>()) else { return };
            device.use_graphs(true);
            eager.use_graphs(false);
            let there = [&device, &eager].map(|d| Weights::<$model, _>::new(d.clone(), 2).unwrap());
            let here = Weights::<$model, _>::new(Cpu::<f64>::default(), 2).unwrap();
            let mut caches = there.each_ref().map(|weights| KvCache::new(weights, 2).unwrap());
            let mut expected = KvCache::new(&here, 2).unwrap();
            let mut replays = 0;
            for (round, prompt) in [3, 2].into_iter().enumerate() {
                for place in prompt - 1..$context {
                    let given = if place == prompt - 1 { prompt } else { 1 };
                    let text = ids(2 * given, 5, (10 * round + place) as u64);
                    let [replayed, launched] = &mut caches;
                    let replayed = replayed.forward(&there[0], &text).unwrap();
                    assert_eq!(
                        replayed,
                        launched.forward(&there[1], &text).unwrap(),
                        "a replay gives other bits"
                    );
                    for (a, b) in replayed.iter().zip(expected.forward(&here, &text).unwrap()) {
                        assert!((a - b).abs() < 1e-10, "{a} instead of {b} at {place}");
                    }
                }
                // A prompt comes but once. The first token is launched, and the second is made a graph.
                replays += $context - prompt - if round == 0 { 2 } else { 0 };
                assert_eq!(device.replays(), replays as u64, "{}", stringify!($model));
                assert_eq!(eager.replays(), 0);
                caches.iter_mut().for_each(KvCache::reset);
                expected.reset();
            }
        };
    }
    check!(Llama, 9);
    check!(Gpt, 12);
    check!(Sines, 8);
}

/// An index past the end is found out when the step is done: nothing may be left of it.
#[test]
fn a_step_that_fails_leaves_the_model_as_it_was() {
    let Some(device) = gpu::<f32>() else { return };
    let mut model = Model::<Gpt, _>::new(Weights::new(device, 1).unwrap(), 1, 1).unwrap();
    let mut adam = AdamW::new(0.1);
    let (good, bad) = ([1, 2, 3, 4], [1, 2, 11, 4]);
    let step = |model: &mut Model<Gpt, Cuda<f32>>, adam: &mut _, ids: &[u32]| {
        model.train_step(ids, &good, &CrossEntropy::default(), adam)
    };
    for _ in 0..3 {
        step(&mut model, &mut adam, &good).unwrap();
        let before = Trained::of(Vec::new(), &model);
        let steps = Optimizer::<Cuda<f32>>::steps(&adam);
        let error = step(&mut model, &mut adam, &bad).unwrap_err();
        assert_eq!(error.to_string(), "`tok` has 11 rows, and is asked for row 11");
        assert!(Trained::of(Vec::new(), &model) == before, "something changed");
        assert_eq!(Optimizer::<Cuda<f32>>::steps(&adam), steps);
    }
    assert!(matches!(model.forward(&bad), Err(Error::IdOutOfRange { .. })));
    assert!(model.forward(&good).is_ok());
    let evaluated = model.evaluate(&bad, &good, &CrossEntropy::default());
    assert!(matches!(evaluated, Err(Error::IdOutOfRange { .. })));
    // Where an operation fails as well, the index is not told in the next call, or its step would come to nothing.
    let mut others = Sgd::new(0.1).momentum(0.9);
    let device = model.weights().device().clone();
    let mut other = Model::<Policy, _>::new(Weights::new(device, 1).unwrap(), 1, 1).unwrap();
    other.train_step(&[0.5; 8], &[0.5; 4], &MSE::default(), &mut others).unwrap();
    let error = model.train_step(&bad, &good, &CrossEntropy::default(), &mut others).unwrap_err();
    assert!(matches!(error, Error::OtherModel { .. }), "{error}");
    let before = Trained::of(Vec::new(), &model);
    step(&mut model, &mut adam, &good).unwrap();
    assert!(Trained::of(Vec::new(), &model) != before, "the step came to nothing");
    let error = model.train_step(&good, &[0, 1, 2, 11], &CrossEntropy::default(), &mut adam).unwrap_err();
    assert!(matches!(error, Error::TargetOutOfRange { target: 11, classes: 11 }), "{error}");
}

#[test]
fn checkpoints_go_from_one_device_to_the_other() {
    let Some(device) = gpu::<f32>() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let there = Model::<ResNet, _>::new(Weights::new(device.clone(), 3).unwrap(), 1, 1).unwrap();
    there.save(&path).unwrap();
    let mut here = Model::<ResNet>::init(4, 1).unwrap();
    here.load(&path).unwrap();
    let (a, b) = (Trained::of(Vec::new(), &there), Trained::of(Vec::new(), &here));
    assert!(a == b);
    here.save(&path).unwrap();
    let mut back = Model::<ResNet, _>::new(Weights::new(device, 9).unwrap(), 1, 1).unwrap();
    back.load(&path).unwrap();
    assert!(Trained::of(Vec::new(), &back) == a);
}

sequential! {
    /// y = w·x.
    Slope: [1] -> [1] = LinearNoBias<1, 1>
}

/// Steps and gradients that bfloat16 can't tell from nothing, beside what they are added to.
#[test]
fn what_bf16_would_lose_is_kept_wide() {
    let Some(device) = gpu::<bf16>() else { return };
    let mut net = Model::<Slope, _>::new(Weights::new(device, 1).unwrap(), 1, 1).unwrap();
    let weight = 1.0 + 1.0 / 1024.0;
    net.weights_mut().set("0.weight", &[weight]).unwrap();
    assert_eq!(net.weights().get("0.weight").unwrap(), [weight]);
    // Layers see it rounded.
    assert_eq!(net.forward(&[1.0]).unwrap(), [1.0]);

    // The gradient of the sum of squares is 2·(x·w − t)·x: exact in bfloat16 here.
    let sum = MSE { reduction: kernels::ops::Reduction::Sum };
    net.zero_gradients();
    net.accumulate(&[1.0], &[-127.0], &sum).unwrap();
    for _ in 0..8 {
        net.accumulate(&[1.0], &[0.75], &sum).unwrap();
    }
    assert_eq!(net.gradient("0.weight").unwrap(), [256.0 + 8.0 * 0.5]);
    assert_eq!(net.gradient_norm(), 260.0);

    // Each step is 2⁻¹⁰, a quarter of the distance between numbers above 1.
    let mut sgd = Sgd::new(1.0 / 1024.0);
    for _ in 0..16 {
        net.train_step(&[1.0], &[net_output_less_half(&net)], &sum, &mut sgd).unwrap();
    }
    let after = net.weights().get("0.weight").unwrap()[0];
    assert_eq!(after, weight - 16.0 / 1024.0);
}

/// What the rounded weight gives for 1, less a half: a target whose gradient is 1.
fn net_output_less_half(net: &Model<Slope, Cuda<bf16>>) -> f32 {
    bf16::from_f32(net.weights().get("0.weight").unwrap()[0]).to_f32() - 0.5
}

#[test]
fn bf16_infers_evaluates_goes_on_and_saves() {
    let Some(device) = gpu::<bf16>() else { return };
    fn near(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        let error = found.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
        let size = expected.iter().map(|b| b * b).sum::<f32>().sqrt();
        assert!(error < 0.02 * size, "{error:e} of {size}");
    }
    let cpu = Cpu::<f32>::default();
    let here = Weights::<Llama, _>::new(cpu, 2).unwrap();
    let there = Weights::<Llama, _>::new(device.clone(), 2).unwrap();
    let (mut a, mut b) = (KvCache::new(&there, 2).unwrap(), KvCache::new(&here, 2).unwrap());
    assert!(a.bytes() < b.bytes());
    for piece in [&[1, 2, 3, 4, 5, 6][..], &[7, 8], &[9, 10]] {
        near(a.forward(&there, piece).unwrap(), b.forward(&here, piece).unwrap());
    }

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let mut here = Model::<ResNet, _>::new(Weights::new(cpu, 3).unwrap(), 1, 2).unwrap();
    here.save(&path).unwrap();
    let mut there = Model::<ResNet, _>::new(Weights::new(device, 4).unwrap(), 1, 2).unwrap();
    there.load(&path).unwrap();
    assert!(
        Trained::of(Vec::new(), &there) == Trained::of(Vec::new(), &here),
        "masters are not those of the file"
    );
    let (x, t) = (real::<f32>(5 * 72, 1), ids(5, 3, 1));
    let [a, b] = [
        there.evaluate(&x, &t, &CrossEntropy::default()).unwrap(),
        here.evaluate(&x, &t, &CrossEntropy::default()).unwrap(),
    ];
    near(&[a.loss as f32], &[b.loss as f32]);
    assert_eq!(a.samples, 5);
    near(there.forward(&x[..144]).unwrap(), here.forward(&x[..144]).unwrap());
    // A step that can't be leaves no gradient for the next one.
    there.check_finite(true);
    let mut sgd = Sgd::new(0.1);
    let mut spoilt = x[..144].to_vec();
    spoilt[7] = f32::NAN;
    there.train_step(&spoilt, &t[..2], &CrossEntropy::default(), &mut sgd).unwrap_err();
    there.train_step(&x[..144], &t[..2], &CrossEntropy::default(), &mut sgd).unwrap();
}

/// y = x·scale, for one sample; training makes the scale zero.
#[layer(scale: S1<N>)]
struct Fading<const N: usize>;

impl<N: Dim> FadingOf<N> {
    const LEAVES: [Leaf; 1] = [Leaf::new("scale", Dims::of([N::N]), Role::State, Init::Constant(1.0))];
}

impl<N: Dim> Params for FadingOf<N> {
    const LABEL: Text = Self::SHOWN;
    const TREE: &'static Node = &Node::of(&Self::LEAVES);
}

impl<X: Signature, N: Dim> Layer<X> for FadingOf<N> {
    const RULE: Rule = Rule::ok(X::SIG);
}

impl<D: Device, X: Signature, N: Dim> Module<D, X> for FadingOf<N> {
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        let scale = call.state.read().slice(0, N::N).elements();
        cx.device().binary(kernels::ops::Binary::Mul, call.x.get(0), scale, call.y.get(0));
        if let Some(state) = call.state.write() {
            cx.device().clear(state);
        }
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        let scale = call.state.slice(0, N::N).elements();
        if let Some(dx) = call.dx.wanted(0) {
            cx.device().binary(kernels::ops::Binary::Mul, call.dy.get(0), scale, dx);
        }
    }
}

sequential! {
    Faded: [4] -> [4] = Linear<4, 4>, fading: Fading<4>
}

/// A layer may compute with state that training changes.
#[test]
fn state_that_changed_is_rounded_anew() {
    let Some(device) = gpu::<bf16>() else { return };
    let mut net = Model::<Faded, _>::new(Weights::new(device, 1).unwrap(), 1, 1).unwrap();
    let (x, t, mut sgd) = ([1.0, 2.0, 3.0, 4.0], [0.0; 4], Sgd::new(0.1));
    let before = net.forward(&x).unwrap().to_vec();
    assert!(before.iter().all(|y| *y != 0.0));
    // A step that fails takes it back.
    net.check_finite(true);
    net.train_step(&[f32::NAN; 4], &t, &MSE::default(), &mut sgd).unwrap_err();
    assert_eq!(net.forward(&x).unwrap(), before);
    // A vjp is given the state as forward left it.
    net.train_step(&x, &t, &MSE::default(), &mut sgd).unwrap();
    assert_eq!(net.gradient("0.bias").unwrap(), [0.0; 4]);
    assert_eq!(net.forward(&x).unwrap(), [0.0; 4]);
}

sequential! {
    /// What is frozen, with statistics among it.
    Trunk: [16] -> [16] = Linear<16, 16>, BatchNorm1D<16>, LayerNorm<16>
}

/// Parameters in every way that there is to keep them.
#[module]
struct Kept {
    frozen: StopGradParams<Trunk>,
    lora: LoRALinear<16, 16, 2, 2.0, Yes>,
    up: LinearNoBias<16, 32>,
    packed: QuantizedLinear<Q8_0, 32, 16, Yes>,
    again: Repeat<Remat<Trunk>, 2>,
    #[tied = "up.weight"]
    tied: LinearNoBias<16, 32>,
    last: LinearGELU<32, 4>,
}

#[module]
impl Kept {
    fn forward(&self, x: T![16]) -> T![4] {
        self.last(self.tied(self.again(self.packed(self.up(self.lora(self.frozen(x)))))))
    }
}

/// Whatever changed the weights, layers compute with what would be read from a file of them, and so do their gradients.
#[test]
fn what_layers_read_goes_with_the_masters() {
    type Net = Model<Kept, Cuda<bf16>>;
    let Some(device) = gpu::<bf16>() else { return };
    let new = |seed| Net::new(Weights::new(device.clone(), seed).unwrap(), 1, 4).unwrap();
    let (folder, x, t) = (tempfile::tempdir().unwrap(), real::<f32>(4 * 16, 1), real::<f32>(4 * 4, 2));
    let path = folder.path().join("model.safetensors");
    let computed = |net: &mut Net| {
        let y = net.forward(&x).unwrap().to_vec();
        // Of a copy: training changes statistics.
        let mut copy = Net::new(net.weights().try_clone().unwrap(), 1, 4).unwrap();
        copy.accumulate(&x, &t, &MSE::default()).unwrap();
        (y, ["lora.lora_A.weight", "up.weight", "again.0.0.weight"].map(|path| copy.gradient(path).unwrap()))
    };
    let check = |net: &mut Net, what: &str| {
        net.save(&path).unwrap();
        let mut other = new(99);
        other.load(&path).unwrap();
        assert!(computed(net) == computed(&mut other), "after {what}");
    };

    let mut net = new(5);
    check(&mut net, "nothing");
    let mut adam = AdamW::new(0.01);
    for _ in 0..3 {
        net.train_step(&x, &t, &MSE::default(), &mut adam).unwrap();
    }
    check(&mut net, "training");
    net.accumulate(&x, &t, &MSE::default()).unwrap();
    net.apply(&mut Sgd::new(0.1)).unwrap();
    check(&mut net, "applying");
    let paths: Vec<_> = net.weights().parameters().iter().map(|p| p.path.clone()).collect();
    for path in &paths {
        let before = computed(&mut net);
        let values: Vec<_> = net.weights().get(path).unwrap().iter().map(|v| 1.5 * v.abs() + 0.1).collect();
        net.weights_mut().set(path, &values).unwrap();
        assert!(computed(&mut net) != before, "{path} changed nothing");
        check(&mut net, path);
    }
    let mut other = new(6);
    other.weights_mut().move_towards(net.weights(), 0.3);
    check(&mut other, "moving");
    other.weights_mut().copy_from(net.weights());
    check(&mut other, "copying");
    other.check_finite(true);
    other.train_step(&[f32::NAN; 64], &t, &MSE::default(), &mut Sgd::new(0.1)).unwrap_err();
    check(&mut other, "a step that failed");

    let mut batches = Batches::new(8, 4, 1);
    net.save_training(&path, &adam, &batches).unwrap();
    let (mut resumed, mut again) = (new(7), AdamW::new(0.5));
    resumed.load_training(&path, &mut again, &mut batches).unwrap();
    let losses = |net: &mut Net, adam: &mut Adam<_>| {
        [0, 1].map(|_| net.train_step(&x, &t, &MSE::default(), adam).unwrap())
    };
    assert_eq!(losses(&mut resumed, &mut again), losses(&mut net, &mut adam));
    assert!(computed(&mut resumed) == computed(&mut net));
    other.load_partial(&path, &Partial::new().only("frozen")).unwrap();
    check(&mut other, "loading a part");
}

#[test]
fn a_layer_without_a_kernel_is_named() {
    trybuild::TestCases::new().compile_fail("tests/ui/cuda/*.rs");
}
