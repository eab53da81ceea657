//! Training and inference through `Model`, and every way to call it wrongly.

use nn::*;

sequential! {
    Mlp: [3] -> [2] = fc1: LinearTanh<3, 8>, fc2: Linear<8, 2>
}

#[module]
struct Block {
    norm: LayerNorm<4>,
    up: Linear<4, 4>,
}
#[module]
impl Block {
    fn forward(&self, x: T![4]) -> T![4] {
        x + self.up(self.norm(x))
    }
}

#[module]
struct Nested {
    first: Linear<3, 4>,
    block: Block,
    last: Linear<4, 2>,
}
#[module]
impl Nested {
    fn forward(&self, x: T![3]) -> T![2] {
        self.last(self.block(self.first(x)))
    }
}

sequential! {
    Normed: [2, 2, 2] -> [3] = conv: Conv2D<2, 2, 1>, norm: BatchNorm2D<2>, Flatten, head: Linear<8, 3>
}

#[module]
struct Reader {
    tokens: Embedding<7, 4>,
    head: Linear<4, 5>,
}
#[module]
impl Reader {
    fn forward(&self, ids: Ids<T![3]>) -> T![3, 5] {
        self.head(self.tokens(ids))
    }
}

#[module]
struct Two {
    a: Linear<2, 3>,
    b: Linear<2, 3>,
}
#[module]
impl Two {
    fn forward(&self, x: T![2], y: T![2]) -> (T![3], T![3]) {
        (self.a(x), self.b(y))
    }
}

#[module]
struct Bounded {
    up: Linear<2, 3>,
}
#[module]
impl Bounded {
    fn forward(&self, x: T![..4, 2]) -> T![..4, 3] {
        self.up(x)
    }
}

const X: [f32; 12] = [0.1, -0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.8, 0.9, -1.0, 1.1, 1.2];

/// Everything a call could change: parameters and state, as bits.
fn bits<M: Declared, D: Device<Wide = f32>>(model: &Model<M, D>) -> Vec<u32> {
    let weights = model.weights();
    let all = weights.parameters().iter().flat_map(|p| weights.get(&p.path).unwrap());
    all.map(f32::to_bits).collect()
}

fn message<T>(result: Result<T, Error>) -> String {
    match result {
        Ok(_) => panic!("this is an error"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn everything_is_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<Model<Mlp>>();
    check::<Model<Reader, Cpu<f64>>>();
    check::<Weights<Mlp, Cpu<f32>>>();
    check::<Workspace<Mlp, Cpu<f32>>>();
    check::<Adam>();
    check::<Sgd>();
    check::<Batches>();
    check::<Error>();
    check::<Summary>();
}

#[test]
fn the_seed_decides_the_model() {
    let [a, b, c] = [1, 1, 2].map(|seed| bits(&Model::<Mlp>::init(seed, 1).unwrap()));
    assert_eq!(a, b);
    assert_ne!(a, c);
}

#[test]
fn training_learns_and_evaluation_says_so() {
    let mut net = Model::<Mlp>::init(3, 4).unwrap();
    let target = [0, 1, 1, 0];
    let loss = CrossEntropy::default();
    let mut adam = Adam::new(0.05);
    let before = net.evaluate(&X, &target, &loss).unwrap();
    let first = net.train_step(&X, &target, &loss, &mut adam).unwrap();
    assert!((first - before.loss).abs() < 1e-6, "a step's loss is that before the step");
    for _ in 0..100 {
        net.train_step(&X, &target, &loss, &mut adam).unwrap();
    }
    let after = net.evaluate(&X, &target, &loss).unwrap();
    assert_eq!((after.accuracy, after.samples), (Some(1.0), 4));
    assert!(after.loss < 0.1 * before.loss, "{after:?}");
    assert_eq!(adam.steps(), 101);
}

#[test]
fn evaluation_may_have_more_samples_than_there_is_room_for() {
    let mut small = Model::<Mlp>::init(3, 3).unwrap();
    let mut large = Model::<Mlp>::init(3, 4).unwrap();
    // Parts of three and one sample, one of which does not count.
    let loss = CrossEntropy { ignore: Some(9), ..CrossEntropy::default() };
    let target = [0, 9, 1, 0];
    let (a, b) = (small.evaluate(&X, &target, &loss).unwrap(), large.evaluate(&X, &target, &loss).unwrap());
    assert!((a.loss - b.loss).abs() < 1e-7);
    assert_eq!((a.accuracy, a.samples), (b.accuracy, 4));
    let sum = CrossEntropy { reduction: Reduction::Sum, ..loss };
    let total = small.evaluate(&X, &target, &sum).unwrap().loss;
    assert!((total - 3.0 * a.loss).abs() < 1e-6);
    let squares = small.evaluate(&X, &[0.5f32; 8], &MSE::default()).unwrap();
    assert!((squares.loss - large.evaluate(&X, &[0.5f32; 8], &MSE::default()).unwrap().loss).abs() < 1e-7);
    assert_eq!(squares.accuracy, None);
    // Where nothing counts, there is no mean.
    assert!(small.evaluate(&X, &[9; 4], &loss).unwrap().loss.is_nan());
}

#[test]
fn gradients_of_batches_add_up() {
    let mut net = Model::<Mlp, Cpu<f64>>::init(5, 4).unwrap();
    let x: Vec<f64> = X.iter().map(|v| f64::from(*v)).collect();
    let loss = CrossEntropy { reduction: Reduction::Sum, ..CrossEntropy::default() };
    let whole = net.accumulate(&x, &[0, 1, 1, 0], &loss).unwrap();
    let expected = net.gradients().to_vec();
    net.zero_gradients();
    let mut parts = net.accumulate(&x[..3], &[0], &loss).unwrap();
    parts += net.accumulate(&x[3..], &[1, 1, 0], &loss).unwrap();
    assert!((whole - parts).abs() < 1e-14);
    for (a, b) in net.gradients().iter().zip(&expected) {
        assert!((a - b).abs() < 1e-14);
    }
    let squares: f64 = net.gradient_norms().iter().map(|(_, norm)| norm * norm).sum();
    assert!((squares.sqrt() - net.gradient_norm()).abs() < 1e-14);
    let paths: Vec<_> = net.gradient_norms().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]);
    let norm = net.gradient("fc1.weight").unwrap().iter().map(|g| g * g).sum::<f64>().sqrt();
    assert!((net.gradient_norms()[0].1 - norm).abs() < 1e-15);
}

#[test]
fn parameters_are_read_and_set_by_path_in_the_layout_of_pytorch() {
    let mut net = Model::<Mlp>::init(0, 1).unwrap();
    let mut rows = vec![0.0; 24];
    rows[..3].copy_from_slice(&[1.0, 2.0, 3.0]);
    net.weights_mut().set("fc1.weight", &rows).unwrap();
    net.weights_mut().set("fc1.bias", &[0.0; 8]).unwrap();
    let mut out = vec![0.0; 16];
    out[0] = 1.0;
    net.weights_mut().set("fc2.weight", &out).unwrap();
    net.weights_mut().set("fc2.bias", &[0.25, 0.5]).unwrap();
    assert_eq!(net.weights().get("fc1.weight").unwrap(), rows);
    let y = net.forward(&[0.1, 0.2, -0.1]).unwrap();
    assert!((y[0] - (0.1f32 + 0.4 - 0.3).tanh() - 0.25).abs() < 1e-6 && y[1] == 0.5, "{y:?}");

    let wrong = message(net.weights_mut().set("fc1.bias", &[0.0; 7]));
    assert_eq!(wrong, "`fc1.bias` has 8 values, 7 were given");
    let wrong = message(net.weights().get("fc1.wieght"));
    assert_eq!(wrong, "the model has no parameter `fc1.wieght`; did you mean `fc1.weight`?");
    assert!(message(net.gradient("fc3")).contains("no parameter `fc3`"));
}

#[test]
fn copies_of_weights_are_their_own() {
    let mut net = Model::<Normed>::init(0, 2).unwrap();
    let copy = net.weights().try_clone().unwrap();
    net.weights_mut().set("head.bias", &[1.0; 3]).unwrap();
    assert_ne!(copy.get("head.bias").unwrap(), net.weights().get("head.bias").unwrap());
    let old = copy.get("head.bias").unwrap();
    net.weights_mut().move_towards(&copy, 0.5);
    for (new, old) in net.weights().get("head.bias").unwrap().iter().zip(&old) {
        assert!((new - (1.0 + old) / 2.0).abs() < 1e-6);
    }
    net.weights_mut().copy_from(&copy);
    assert_eq!(net.weights().get("head.bias").unwrap(), old);
}

#[test]
fn threads_share_weights() {
    let weights = Weights::<Mlp, Cpu<f32>>::new(Cpu::default(), 3).unwrap();
    let expected = Model::<Mlp>::init(3, 4).unwrap().forward(&X).unwrap().to_vec();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut workspace = Workspace::new(weights.device(), 4).unwrap();
                assert_eq!(workspace.infer(&weights, &X).unwrap(), expected);
            });
        }
    });
}

#[test]
fn a_batch_that_does_not_fit_is_an_error() {
    let mut net = Model::<Mlp>::init(0, 3).unwrap();
    let before = bits(&net);
    let (loss, mut sgd) = (CrossEntropy::default(), Sgd::new(0.1));
    let too_large = "a batch of 4 is more than the 3 samples that the workspace has room for; give `init` a larger capacity";
    assert_eq!(message(net.forward(&X)), too_large);
    assert_eq!(message(net.train_step(&X, &[0; 4], &loss, &mut sgd)), too_large);
    assert_eq!(message(net.forward(&X[..4])), "input 0 has 4 values, which is not a batch of [3]");
    assert_eq!(message(net.forward(&[])), "the batch is empty");
    assert_eq!(message(net.train_step(&[], &[], &loss, &mut sgd)), "the batch is empty");
    assert_eq!(message(net.evaluate(&[], &[], &loss)), "the batch is empty");
    let targets = "3 targets do not go with a batch of 2: 2 are needed";
    assert_eq!(message(net.train_step(&X[..6], &[0; 3], &loss, &mut sgd)), targets);
    assert_eq!(message(net.evaluate(&X[..6], &[0; 3], &loss)), targets);
    // Seven targets are not one for each of four samples, with some to spare.
    assert!(message(net.evaluate(&X, &[0; 7], &loss)).starts_with("7 targets do not go with a batch of 4"));
    assert!(message(net.evaluate(&X, &[0; 3], &loss)).starts_with("3 targets do not go with a batch of 4"));
    assert!(
        message(net.train_step(&X[..6], &[0.0f32; 5], &MSE::default(), &mut sgd)).starts_with("5 targets")
    );
    assert_eq!(
        message(net.train_step(&X[..6], &[0, 2], &loss, &mut sgd)),
        "the target 2 is not below the number of classes, 2"
    );
    assert_eq!(
        message(net.evaluate(&X[..6], &[7, 0], &loss)),
        "the target 7 is not below the number of classes, 2"
    );
    assert_eq!(bits(&net), before);
    assert_eq!(sgd.steps(), 0);
    assert!(net.train_step(&X[..6], &[0, 1], &loss, &mut sgd).is_ok());
}

#[test]
fn impossible_capacities_are_errors() {
    assert!(matches!(Model::<Mlp>::init(0, usize::MAX), Err(Error::Device(DeviceError::OutOfMemory { .. }))));
    assert!(matches!(
        Model::<Mlp>::init(0, usize::MAX / 8),
        Err(Error::Device(DeviceError::OutOfMemory { .. }))
    ));
    let mut none = Model::<Mlp>::init(0, 0).unwrap();
    assert!(matches!(none.forward(&X), Err(Error::BatchTooLarge { batch: 4, capacity: 0 })));
    assert!(matches!(none.evaluate(&X, &[0; 4], &CrossEntropy::default()), Err(Error::BatchTooLarge { .. })));
}

sequential! {
    Absurd: [4] -> [4] = Repeat<Linear<4, 4>, { usize::MAX - 1 }>
}

#[test]
fn more_copies_than_memory_holds_are_an_error() {
    let weights = Weights::<Absurd, Cpu<f32>>::new(Cpu::default(), 0);
    assert!(matches!(weights, Err(Error::Device(DeviceError::OutOfMemory { .. }))));
}

#[test]
fn an_instruction_set_that_is_not_there_is_an_error() {
    const NAME: &str = "sse9";
    // The variable is this process's only where the test runs itself again.
    if std::env::var("NN_ISA").is_ok_and(|name| name == NAME) {
        let made = [Model::<Mlp>::init(0, 1), Model::<Mlp>::init_with::<Xavier>(0, 1)];
        made.into_iter().for_each(|model| println!("said: {}", message(model)));
        return;
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "an_instruction_set_that_is_not_there_is_an_error", "--nocapture"]);
    let output = child.env("NN_ISA", NAME).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.matches("said: NN_ISA=sse9: this machine offers portable").count(), 2, "{said}");
}

#[test]
fn inputs_of_different_batches_are_an_error() {
    let mut net = Model::<Two>::init(0, 4).unwrap();
    assert!(net.forward((&X[..4], &X[..4])).is_ok());
    let wrong = message(net.forward((&X[..4], &X[..6])));
    assert_eq!(
        wrong,
        "input 1 has 6 values, which is not a batch of [2] of 2 samples, as the first input has"
    );
    // A loss of one output leaves no gradient behind for the other.
    let loss = net.accumulate_custom((&X[..4], &X[..4]), |_, dy| {
        dy[0].fill(1.0);
        dy[1].fill(1.0);
        0.0
    });
    assert_eq!(loss.unwrap(), 0.0);
    assert!(net.gradient("b.bias").unwrap().iter().all(|g| *g == 2.0));
    net.zero_gradients();
    net.accumulate_custom((&X[..4], &X[..4]), |_, dy| {
        dy[0].fill(1.0);
        0.0
    })
    .unwrap();
    assert!(net.gradient("a.bias").unwrap().iter().any(|g| *g != 0.0));
    assert!(net.gradient("b.bias").unwrap().iter().all(|g| *g == 0.0));
}

#[test]
fn a_bounded_axis_takes_its_length_from_the_input() {
    let mut net = Model::<Bounded>::init(0, 1).unwrap();
    for tokens in 1..=4 {
        assert_eq!(net.forward(&X[..2 * tokens]).unwrap().len(), 3 * tokens);
    }
    assert_eq!(
        message(net.forward(&X[..10])),
        "a length of 5 is more than the model's bound of 4; several sequences are announced with `set_sequences`"
    );
    assert_eq!(message(net.forward(&X[..3])), "input 0 has 3 values, which is not a batch of [..4, 2]");
    assert_eq!(message(net.forward(&[])), "the batch is empty");
    // One target a token.
    let loss = CrossEntropy::default();
    assert!(net.train_step(&X[..6], &[0, 1, 2], &loss, &mut Sgd::new(0.1)).is_ok());
    assert!(message(net.train_step(&X[..6], &[0], &loss, &mut Sgd::new(0.1))).starts_with("1 targets"));
}

#[test]
fn any_number_of_sequences_is_evaluated() {
    let (loss, targets) = (CrossEntropy::default(), [0, 1, 2, 2, 1, 0]);
    let evaluate = |capacity| {
        let mut net = Model::<Bounded>::init(0, capacity).unwrap();
        net.set_sequences(3);
        let found = net.evaluate(&X[..12], &targets, &loss).unwrap();
        // The next call takes as many as were set.
        assert_eq!(net.forward(&X[..12]).is_ok(), capacity == 3);
        found
    };
    let (small, large) = (evaluate(2), evaluate(3));
    assert_eq!((small.samples, small.accuracy), (3, large.accuracy));
    assert!((small.loss - large.loss).abs() < 1e-7);
    let mut net = Model::<Bounded>::init(0, 1).unwrap();
    net.set_sequences(2);
    let long = message(net.evaluate(&[0.0; 20], &[0; 10], &loss));
    assert_eq!(
        long,
        "a length of 5 is more than the model's bound of 4; several sequences are announced with `set_sequences`"
    );
}

#[test]
fn a_row_of_scores_is_the_last_axis() {
    let mut net = Model::<Reader>::init(0, 2).unwrap();
    let value = net.accumulate(&[0, 1, 2, 6, 5, 4], &[4, 0, 1, 2, 3, 4], &CrossEntropy::default()).unwrap();
    assert!((value - 5f64.ln()).abs() < 1.0, "{value}");
    assert!(net.evaluate(&[0, 1, 2], &[4, 0, 1], &CrossEntropy::default()).unwrap().accuracy.is_some());
    let wrong = message(net.accumulate(&[0, 1, 2], &[4, 0, 5], &CrossEntropy::default()));
    assert_eq!(wrong, "the target 5 is not below the number of classes, 5");
}

#[test]
fn an_index_out_of_range_names_the_layer_and_changes_nothing() {
    let mut net = Model::<Reader>::init(0, 2).unwrap();
    let before = bits(&net);
    let (loss, mut adam) = (CrossEntropy::default(), Adam::new(0.1));
    let wrong = "`tokens` has 7 rows, and is asked for row 7";
    assert_eq!(message(net.forward(&[0, 7, 2])), wrong);
    assert_eq!(message(net.train_step(&[0, 7, 9], &[0; 3], &loss, &mut adam)), wrong);
    assert_eq!(message(net.evaluate(&[0, 7, 2], &[0; 3], &loss)), wrong);
    assert_eq!(
        message(net.forward(&[0, u32::MAX, 2])),
        format!("`tokens` has 7 rows, and is asked for row {}", u32::MAX)
    );
    assert_eq!(bits(&net), before);
    assert!(net.train_step(&[0, 6, 2], &[0; 3], &loss, &mut adam).is_ok());
}

#[test]
fn a_step_that_fails_leaves_running_statistics_alone() {
    let mut net = Model::<Normed>::init(0, 2).unwrap();
    let before = bits(&net);
    let mut sgd = Sgd::new(0.1);
    let x: Vec<f32> = (0..16).map(|i| i as f32).collect();
    assert!(net.train_step(&x, &[0, 3], &CrossEntropy::default(), &mut sgd).is_err());
    assert_eq!(bits(&net), before);
    net.forward(&x).unwrap();
    net.evaluate(&x, &[0, 1], &CrossEntropy::default()).unwrap();
    assert_eq!(bits(&net), before, "inference changes nothing");
    net.train_step(&x, &[0, 1], &CrossEntropy::default(), &mut sgd).unwrap();
    assert_ne!(net.weights().get("norm.running_mean").unwrap(), [0.0; 2]);
    let wrong = message(net.gradient("norm.running_mean"));
    assert_eq!(wrong, "`norm.running_mean` is not optimised, so it has no gradient");
}

sequential! {
    Single: [2, 1, 1] -> [2] = norm: BatchNorm2D<2>, Flatten
}

#[test]
fn one_value_a_channel_can_not_be_trained_on() {
    let mut net = Model::<Single>::init(0, 2).unwrap();
    let wrong = message(net.train_step(&[1.0, 2.0], &[0], &CrossEntropy::default(), &mut Sgd::new(0.1)));
    assert_eq!(wrong, "`norm` needs more than one value a channel to train: give it a larger batch");
    assert!(net.forward(&[1.0, 2.0]).is_ok());
}

#[test]
fn what_is_not_finite_spreads_and_is_found_if_asked_for() {
    let mut net = Model::<Nested>::init(0, 2).unwrap();
    let (loss, mut sgd) = (CrossEntropy::default(), Sgd::new(0.1));
    let nan = [0.1, f32::NAN, 0.3];
    assert!(net.forward(&nan).unwrap().iter().all(|y| y.is_nan()));
    assert!(net.evaluate(&nan, &[0], &loss).unwrap().loss.is_nan());
    net.check_finite(true);
    assert!(net.forward(&X[..3]).is_ok());
    let first = "`first` is the first layer that gives a value that is not finite";
    assert_eq!(message(net.forward(&nan)), first);
    assert_eq!(message(net.train_step(&nan, &[0], &loss, &mut sgd)), first);
    assert_eq!(message(net.evaluate(&nan, &[0], &loss)), first);
    // Made deep inside, by an infinite weight.
    net.weights_mut().set("block.up.bias", &[0.0, f32::INFINITY, 0.0, 0.0]).unwrap();
    let inner = "`block.up` is the first layer that gives a value that is not finite";
    assert_eq!(message(net.forward(&X[..3])), inner);
    assert_eq!(message(net.train_step(&X[..3], &[0], &loss, &mut sgd)), inner);
    net.weights_mut().set("block.up.bias", &[0.0; 4]).unwrap();
    assert_eq!(sgd.steps(), 0);
    net.check_finite(false);
    assert!(net.train_step(&nan, &[0], &loss, &mut sgd).unwrap().is_nan());
    assert!(net.weights().get("first.weight").unwrap().iter().any(|w| w.is_nan()), "NaN spreads");
}

sequential! {
    Same: [4] -> [4] = ReLU, ReLU
}

sequential! {
    Wrapped: [4] -> [4] = first: Linear<4, 4>, around: Residual<Same>
}

#[test]
fn a_sum_that_overflows_is_the_wrapper_s() {
    let mut net = Model::<Wrapped>::init_with::<Zero>(0, 1).unwrap();
    net.check_finite(true);
    // What is inside gives x itself, and the sum is twice as much.
    net.weights_mut().set("first.bias", &[0.75 * f32::MAX; 4]).unwrap();
    let wrong = message(net.forward(&[0.0; 4]));
    assert_eq!(wrong, "`around` is the first layer that gives a value that is not finite");
}

#[test]
fn a_gradient_that_is_not_finite_is_found_if_asked_for() {
    let mut net = Model::<Mlp>::init(0, 2).unwrap();
    net.check_finite(true);
    let wrong = net.accumulate_custom(&X[..3], |_, dy| {
        dy[0].fill(f32::INFINITY);
        0.0
    });
    assert!(matches!(wrong, Err(Error::GradientNotFinite { .. })), "{wrong:?}");
}

#[test]
fn an_optimiser_serves_one_model() {
    let mut small = Model::<Two>::init(0, 2).unwrap();
    let mut other = Model::<Nested>::init(0, 2).unwrap();
    let mut adam = Adam::new(0.1);
    small.apply(&mut adam).unwrap();
    let before = bits(&other);
    assert!(matches!(other.apply(&mut adam), Err(Error::OtherModel { .. })));
    assert_eq!(bits(&other), before);
    // Momentum that comes later is no other model.
    let mut sgd = Sgd::new(0.1);
    small.apply(&mut sgd).unwrap();
    let mut sgd = sgd.momentum(0.9);
    small.apply(&mut sgd).unwrap();
}

sequential! {
    Noisy: [2, 2, 2] -> [3] = norm: BatchNorm2D<2>, Flatten, Dropout<0.5>, head: Linear<8, 3>
}

#[test]
fn an_optimiser_that_refuses_leaves_the_model_as_it_was() {
    let x: Vec<f32> = (0..16).map(|i| i as f32).collect();
    let loss = CrossEntropy::default();
    let mut theirs = Adam::new(0.1);
    Model::<Two>::init(0, 2).unwrap().apply(&mut theirs).unwrap();
    let (mut net, mut twin) = (Model::<Noisy>::init(3, 2).unwrap(), Model::<Noisy>::init(3, 2).unwrap());
    let wrong = net.train_step(&x, &[0, 1], &loss, &mut theirs);
    assert!(matches!(wrong, Err(Error::OtherModel { .. })), "{wrong:?}");
    assert_eq!(bits(&net), bits(&twin), "running statistics are as they were");
    let mut own = [Adam::new(0.1), Adam::new(0.1)];
    let losses = [&mut net, &mut twin].into_iter().zip(&mut own);
    let losses: Vec<_> = losses.map(|(m, adam)| m.train_step(&x, &[0, 1], &loss, adam).unwrap()).collect();
    assert_eq!(losses[0], losses[1], "what is dropped is the same");
    assert_eq!(bits(&net), bits(&twin));
}

#[test]
fn batches_visit_every_sample_once_an_epoch_in_another_order() {
    let mut batches = Batches::new(103, 10, 5);
    assert_eq!((batches.per_epoch(), batches.samples()), (11, 103));
    let mut orders = Vec::new();
    for epoch in 0..3 {
        assert_eq!(batches.epoch(), epoch);
        let mut order = Vec::new();
        while let Some(batch) = batches.next_batch() {
            assert!(batch.len() == 10 || batch.len() == 3);
            order.extend_from_slice(batch);
        }
        let mut sorted = order.clone();
        sorted.sort();
        assert_eq!(sorted, (0..103).collect::<Vec<_>>());
        orders.push(order);
    }
    assert!(orders[0] != orders[1] && orders[1] != orders[2]);
    let mut again = Batches::new(103, 10, 5);
    assert_eq!(again.next_batch().unwrap(), &orders[0][..10]);
    assert_ne!(Batches::new(103, 10, 6).next_batch().unwrap(), &orders[0][..10]);
    // No data is no batch, and a batch of zero is one of one.
    assert_eq!(Batches::new(0, 4, 1).next_batch(), None);
    assert_eq!(Batches::new(3, 0, 1).next_batch().unwrap().len(), 1);
}

#[test]
fn shuffling_is_fair() {
    // Each of five samples comes first about equally often.
    let mut first = [0; 5];
    let mut batches = Batches::new(5, 5, 11);
    for _ in 0..5000 {
        first[batches.next_batch().unwrap()[0]] += 1;
        assert_eq!(batches.next_batch(), None);
    }
    assert!(first.iter().all(|n| (900..1100).contains(n)), "{first:?}");
}

#[test]
fn gathering_past_the_end_is_an_error() {
    let mut to = vec![1];
    assert!(matches!(
        gather(&[1, 2, 3, 4], 2, &[1, 2], &mut to),
        Err(Error::SampleOutOfRange { index: 2, samples: 2 })
    ));
    assert!(gather(&[1, 2, 3, 4], 2, &[usize::MAX], &mut to).is_err());
    assert!(to.is_empty());
    gather(&[1, 2, 3, 4], 2, &[1, 0, 1], &mut to).unwrap();
    assert_eq!(to, [3, 4, 1, 2, 3, 4]);
}

#[module]
struct Mixer {
    norm: LayerNorm<6>,
    up: LinearGELU<6, 12>,
    drop: Dropout<0.2>,
    down: Linear<12, 6>,
}
#[module]
impl Mixer {
    fn forward(&self, x: T![4, 6]) -> T![4, 6] {
        self.down(self.drop(self.up(self.norm(x))))
    }
}

#[module]
struct Deep {
    tokens: Embedding<9, 6>,
    places: Param<T![4, 6]>,
    blocks: Repeat<Residual<Mixer>, 3>,
    #[tied = "tokens.weight"]
    head: TiedLinear<6, 9>,
}
#[module]
impl Deep {
    fn forward(&self, ids: Ids<T![4]>) -> T![4, 9] {
        self.head(self.blocks(self.tokens(ids) + self.places))
    }
}

#[test]
fn copies_and_wrappers_have_paths_of_their_own() {
    let mut net = Model::<Deep>::init(1, 2).unwrap();
    let paths: Vec<_> = net.weights().parameters().iter().map(|p| p.path.clone()).collect();
    assert_eq!(paths[..4], ["tokens.weight", "places", "blocks.0.norm.weight", "blocks.0.norm.bias"]);
    assert_eq!(paths.len(), 2 + 3 * 6, "a tied table is no parameter of its own");
    let summary = net.summary();
    assert_eq!(summary.rows.iter().map(|r| r.params).sum::<usize>(), summary.params);
    assert_eq!(summary.params, 54 + 24 + 3 * (12 + 84 + 78));
    let ids = [0, 1, 8, 3];
    assert_eq!(message(net.forward(&[0, 1, 9, 3])), "`tokens` has 9 rows, and is asked for row 9");
    net.check_finite(true);
    assert!(net.forward(&ids).is_ok());
    for copy in [2, 1, 0] {
        net.weights_mut().set(&format!("blocks.{copy}.up.bias"), &[f32::NAN; 12]).unwrap();
        let found = format!("`blocks.{copy}.up` is the first layer that gives a value that is not finite");
        assert_eq!(message(net.forward(&ids)), found);
        assert_eq!(
            message(net.train_step(&ids, &[1; 4], &CrossEntropy::default(), &mut Sgd::new(0.1))),
            found
        );
    }
    net.weights_mut().set("places", &[f32::INFINITY; 24]).unwrap();
    assert_eq!(
        message(net.forward(&ids)),
        "`places` is the first layer that gives a value that is not finite"
    );
}

#[test]
fn gradients_through_copies_and_ties_are_those_of_finite_differences() {
    let mut net = Model::<Deep, Cpu<f64>>::init(1, 2).unwrap();
    let (ids, t) = ([0, 1, 8, 3, 5, 5, 2, 0], [1, 2, 3, 4, 5, 6, 7, 8]);
    let loss = CrossEntropy { smoothing: 0.1, ..CrossEntropy::default() };
    // Dropout's masks change from one step to the next; another model at the same step draws the same.
    let fresh = Model::<Deep, Cpu<f64>>::init(1, 2).unwrap();
    net.accumulate(&ids, &t, &loss).unwrap();
    for path in
        ["tokens.weight", "places", "blocks.0.up.weight", "blocks.2.norm.weight", "blocks.1.down.bias"]
    {
        let gradient = net.gradient(path).unwrap();
        let values = fresh.weights().get(path).unwrap();
        for i in (0..values.len()).step_by(5) {
            let at = |step: f64| {
                let mut other = Model::<Deep, Cpu<f64>>::init(1, 2).unwrap();
                let mut values = values.clone();
                values[i] += step;
                other.weights_mut().set(path, &values).unwrap();
                other.accumulate(&ids, &t, &loss).unwrap()
            };
            let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
            assert!((gradient[i] - slope).abs() < 1e-8, "{path}[{i}]: {} and {slope}", gradient[i]);
        }
    }
}
