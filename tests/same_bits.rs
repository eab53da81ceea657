//! The same seed gives the same bits: in every run, and for any number of threads.

use nn::*;

sequential! {
    /// Wide enough for work to be spread over threads.
    Mlp: [96] -> [10] = LinearGELU<96, 1024>, Dropout<0.2>, LayerNorm<1024>, LinearTanh<1024, 384>, Linear<384, 10>
}

sequential! {
    Cnn: [3, 24, 24] -> [10] =
        Conv2DTanh<3, 16, 3, 1, 1>, BatchNorm2D<16>, ReLU, MaxPool2D<2>,
        Conv2D<16, 32, 3, 1, 1, 1, 2>, BatchNorm2D<32>, GELUTanh, AvgPool2D<2>, Dropout<0.1>, Flatten,
        Linear<1152, 10>
}

#[module]
struct Language {
    tokens: Embedding<500, 64>,
    turn: RoPE<32, 4, 16>,
    norm: RMSNorm<64>,
    up: LinearSwish<64, 256>,
    down: Linear<256, 64>,
    #[tied = "tokens.weight"]
    head: TiedLinear<64, 500>,
}
#[module]
impl Language {
    fn forward(&self, ids: Ids<T![32]>) -> T![32, 500] {
        let x = self.turn(self.tokens(ids));
        self.head(x + self.down(self.up(self.norm(x))))
    }
}

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 % 1009) as f32) / 500.0 - 1.0).collect()
}

fn ids(n: usize, below: u32) -> Vec<u32> {
    (0..n as u32).map(|i| i * 7919 % below).collect()
}

/// All that training leaves: losses, parameters, state and outputs.
fn bits<M: Declared>(model: &Model<M>, losses: &[f64], outputs: &[f32]) -> Vec<u64> {
    let weights = model.weights();
    let all = weights.parameters().iter().flat_map(|p| weights.get(&p.path).unwrap());
    let values = all.chain(outputs.iter().copied()).map(|v| u64::from(v.to_bits()));
    losses.iter().map(|v| v.to_bits()).chain(values).collect()
}

fn in_a_pool<T: Send>(threads: usize, run: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run)
}

/// `run` gives the same for 1 thread twice and for 2 and 5, and something else for another seed.
#[track_caller]
fn assert_same(run: impl Fn(u64) -> Vec<u64> + Sync) {
    let first = in_a_pool(1, || run(1));
    for threads in [1, 2, 5] {
        let again = in_a_pool(threads, || run(1));
        let differ = first.iter().zip(&again).filter(|(a, b)| a != b).count();
        assert!(first == again, "{differ} of {} values differ for {threads} threads", first.len());
    }
    assert_ne!(in_a_pool(2, || run(2)), first);
}

#[test]
fn a_perceptron() {
    let (x, t) = (values(150 * 96), ids(150, 10));
    assert_same(|seed| {
        let mut model = Model::<Mlp>::init(seed, 64).unwrap();
        let mut adam = Adam::new(1e-3).clip_norm(0.5);
        let mut batches = Batches::new(150, 64, seed);
        let (mut losses, mut bx, mut bt) = (Vec::new(), Vec::new(), Vec::new());
        while losses.len() < 4 {
            let Some(batch) = batches.next_batch() else { continue };
            gather(&x, 96, batch, &mut bx).unwrap();
            gather(&t, 1, batch, &mut bt).unwrap();
            losses.push(model.train_step(&bx, &bt, &CrossEntropy::default(), &mut adam).unwrap());
        }
        losses.push(model.gradient_norm());
        losses.push(model.evaluate(&x, &t, &CrossEntropy::default()).unwrap().loss);
        let outputs = model.forward(&x[..64 * 96]).unwrap().to_vec();
        bits(&model, &losses, &outputs)
    });
}

#[test]
fn a_convolutional_network() {
    let (x, t) = (values(16 * 3 * 576), ids(16, 10));
    assert_same(|seed| {
        let mut model = Model::<Cnn>::init(seed, 16).unwrap();
        let mut sgd = Sgd::new(1e-2).momentum(0.9);
        let loss = CrossEntropy::default();
        let losses: Vec<_> = (0..2).map(|_| model.train_step(&x, &t, &loss, &mut sgd).unwrap()).collect();
        let outputs = model.forward(&x).unwrap().to_vec();
        bits(&model, &losses, &outputs)
    });
}

#[test]
fn a_language_model() {
    let (x, t) = (ids(12 * 32, 500), ids(12 * 32, 499));
    assert_same(|seed| {
        let mut model = Model::<Language>::init(seed, 12).unwrap();
        let mut adam = AdamW::new(1e-3);
        let loss = CrossEntropy { smoothing: 0.1, ..CrossEntropy::default() };
        let losses: Vec<_> = (0..2).map(|_| model.train_step(&x, &t, &loss, &mut adam).unwrap()).collect();
        let outputs = model.forward(&x).unwrap().to_vec();
        bits(&model, &losses, &outputs)
    });
}
