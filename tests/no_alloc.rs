//! A step allocates nothing, once everything is there.
//!
//! The pool's own threads run the calls: from outside, handing work over to the pool allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use nn::*;

/// Counts what the threads of a pool allocate: those of the test harness may, at any time.
struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);
/// The pool that is counted. The threads of one that is gone end at any time, and allocate on the way.
static POOL: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The pool of this thread, or 0.
    static OF: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    if OF.get() != 0 && OF.get() == POOL.load(Ordering::Relaxed) {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The count is that of all pools, so that tests take turns.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// How often `call` allocates after it has run a few times, in a pool of so many threads.
fn allocations(threads: usize, call: &mut (impl FnMut() + Send)) -> u64 {
    let this = POOL.fetch_add(1, Ordering::Relaxed) + 1;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).start_handler(move |_| OF.set(this));
    pool.build().unwrap().install(|| {
        for _ in 0..2 {
            call();
        }
        let before = COUNT.load(Ordering::Relaxed);
        for _ in 0..4 {
            call();
        }
        COUNT.load(Ordering::Relaxed) - before
    })
}

#[track_caller]
fn assert_none(what: &str, mut call: impl FnMut() + Send) {
    for threads in [1, 2] {
        assert_eq!(allocations(threads, &mut call), 0, "{what}, {threads} threads");
    }
}

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 % 101) as f32) / 50.0 - 1.0).collect()
}

fn ids(n: usize, below: u32) -> Vec<u32> {
    (0..n as u32).map(|i| i * 7 % below).collect()
}

sequential! {
    Mlp: [16] -> [10] = LinearReLU<16, 512>, Dropout<0.1>, LinearGELU<512, 256>, LayerNorm<256>, Linear<256, 10>
}

sequential! {
    Cnn: [1, 16, 16] -> [10] =
        Conv2D<1, 8, 3, 1, 1>, BatchNorm2D<8>, ReLU, MaxPool2D<2>,
        Conv2DSwish<8, 16, 3, 2, 1>, AvgPool2D<2>, Flatten, Linear<64, 10>
}

#[module]
struct Language {
    tokens: Embedding<64, 32>,
    turn: RoPE<24, 2, 16>,
    qkv: Linear<32, 96>,
    attend: CausalAttention<24, 2, 16>,
    norm: RMSNorm<32>,
    up: LinearSwish<32, 96>,
    down: Linear<96, 32>,
    gated: SwiGLUFeedForward<32, 48>,
    wide: FeedForwardGELU<32, 48>,
    positions: PosEmbed<24, 32>,
    waves: SinusoidalPosAdd<24, 32>,
    tuned: LoRALinear<32, 32, 4, 0.5>,
    gate: GradGate,
    drop: HashDropout<0.1>,
    memory: LSTMSeq<32, 32, 24>,
    other_memory: GRUSeq<32, 32, 24>,
    #[tied = "tokens.weight"]
    head: TiedLinear<32, 64>,
}
#[module]
impl Language {
    fn forward(&self, ids: Ids<T![24]>) -> T![24, 64] {
        let x = self.turn(self.tokens(ids));
        let x = x + self.attend(self.qkv(x));
        let x = x + self.down(self.up(self.norm(x)));
        let x = self.tuned(self.waves(self.positions(self.wide(self.gated(x)))));
        let x = self.other_memory(self.memory(self.drop(self.gate(x))));
        self.head(RSample::<32>(x, x))
    }
}

#[test]
fn allocations_are_counted_on_every_thread_of_the_pool() {
    let _alone = alone();
    assert_eq!(allocations(1, &mut || drop(std::hint::black_box(vec![0_u8; 9]))), 4);
    let both = || std::hint::black_box((vec![0_u8; 9], rayon::join(|| vec![0_u8; 9], || vec![0_u8; 9])));
    assert_eq!(allocations(2, &mut || drop(both())), 12);
}

#[test]
fn a_step_of_a_perceptron_allocates_nothing() {
    let _alone = alone();
    let mut model = Model::<Mlp>::init(1, 128).unwrap();
    let (x, t) = (values(128 * 16), ids(128, 10));
    let schedule = Schedule::WarmupCosine { warmup: 5, steps: 50, start: 0.1, floor: 0.0 };
    let mut adam = Adam::new(1e-3).clip_norm(1.0).schedule(schedule);
    let mut sgd = Sgd::new(1e-3).momentum(0.9).nesterov().weight_decay(1e-4);
    let loss = CrossEntropy { smoothing: 0.1, ..CrossEntropy::default() };
    assert_none("train_step with Adam", || {
        model.train_step(&x, &t, &loss, &mut adam).unwrap();
    });
    assert_none("train_step with SGD", || {
        model.train_step(&x, &t, &loss, &mut sgd).unwrap();
    });
    assert_none("forward", || {
        model.forward(&x).unwrap();
    });
    assert_none("evaluate", || {
        model.evaluate(&x, &t, &loss).unwrap();
    });
    assert_none("accumulate_custom", || {
        model.zero_gradients();
        model
            .accumulate_custom(&x, |y, dy| {
                dy[0].copy_from_slice(y);
                0.0
            })
            .unwrap();
        model.gradient_norm();
    });
    model.check_finite(true);
    assert_none("train_step that looks at every value", || {
        model.train_step(&x, &t, &loss, &mut sgd).unwrap();
    });
}

#[test]
fn a_step_of_a_convolutional_network_allocates_nothing() {
    let _alone = alone();
    let mut model = Model::<Cnn>::init(1, 32).unwrap();
    let (x, t) = (values(32 * 256), ids(32, 10));
    let mut adam = Adam::new(1e-3);
    assert_none("train_step", || {
        model.train_step(&x, &t, &CrossEntropy::default(), &mut adam).unwrap();
    });
    assert_none("forward", || {
        model.forward(&x).unwrap();
    });
}

#[test]
fn a_step_of_a_language_model_allocates_nothing() {
    let _alone = alone();
    let mut model = Model::<Language>::init(1, 16).unwrap();
    let (x, t) = (ids(16 * 24, 64), ids(16 * 24, 63));
    let mut adam = AdamW::new(1e-3);
    assert_none("train_step", || {
        model.train_step(&x, &t, &CrossEntropy::default(), &mut adam).unwrap();
    });
    assert_none("forward", || {
        model.forward(&x).unwrap();
    });
}

/// What a language model may be made of, in blocks, wrapped in all that wraps.
#[module]
struct Blocks {
    tokens: Embedding<64, 32>,
    first: Repeat<Remat<DecoderBlock<24, 32, 4, 64>>, 2>,
    second: InitWith<Residual<StopGradParams<LlamaBlock<24, 32, 4, 2, 48>>>, Xavier>,
    third: SelfAttention<24, 32, 4, 2, 8, Yes, 1e4, 1e-6, No, No>,
    fourth: Tok<Linear<32, 32>>,
    fifth: LlamaBlock<24, 32, 4, 2, 64, 1e4, 1e-5, Q8_0>,
    sixth: QuantizedLinear<Bf16, 32, 32, Yes>,
    told: RepeatConditional<Add, 3>,
    #[tied = "tokens.weight"]
    head: TiedLinear<32, 64>,
}
#[module]
impl Blocks {
    fn forward(&self, ids: Ids<T![..24]>) -> T![..24, 64] {
        let given = self.tokens(ids);
        let x = self.fourth(self.third(self.second(self.first(given))));
        let x = self.sixth(self.fifth(x));
        self.head(self.told(x, given))
    }
}

#[test]
fn a_step_of_blocks_and_a_step_of_decoding_allocate_nothing() {
    let _alone = alone();
    let mut model = Model::<Blocks>::init(1, 16).unwrap();
    model.set_sequences(16);
    let (x, t) = (ids(16 * 24, 64), ids(16 * 24, 63));
    let mut adam = AdamW::new(1e-3);
    assert_none("train_step", || {
        model.train_step(&x, &t, &CrossEntropy::default(), &mut adam).unwrap();
    });
    let mut cache = KvCache::new(model.weights(), 2).unwrap();
    let mut sampler = Sampler::new(Sampling::TopK { k: 5, temperature: 0.8 }, 64, 1).unwrap();
    assert_none("a prompt and four tokens from the cache", || {
        cache.reset();
        cache.forward(model.weights(), &x[..20]).unwrap();
        for _ in 0..4 {
            let scores = cache.forward(model.weights(), &[1, 2]).unwrap();
            sampler.sample(&scores[..64]).unwrap();
        }
    });
}

#[test]
fn an_epoch_allocates_nothing() {
    let _alone = alone();
    let mut model = Model::<Mlp>::init(1, 8).unwrap();
    let (all, labels) = (values(30 * 16), ids(30, 10));
    let (mut x, mut t) = (Vec::new(), Vec::new());
    let mut batches = Batches::new(30, 8, 1);
    let mut sgd = Sgd::new(1e-3);
    assert_none("an epoch", || {
        while let Some(batch) = batches.next_batch() {
            gather(&all, 16, batch, &mut x).unwrap();
            gather(&labels, 1, batch, &mut t).unwrap();
            model.train_step(&x, &t, &CrossEntropy::default(), &mut sgd).unwrap();
        }
    });
}

#[test]
fn forward_and_vjp_of_a_layer_allocate_nothing() {
    let _alone = alone();
    type L = LinearGELU<64, 96>;
    let device = Cpu::<f32>::default();
    let params = values(L::TREE.params());
    let mut dparams = vec![0.0; params.len()];
    let (x, dy) = (values(32 * 64), values(32 * 96));
    let (mut y, mut dx) = (vec![0.0; 32 * 96], vec![0.0; 32 * 64]);
    let mut buffers = Buffers::new::<L, T![64]>(&device, 32).unwrap();
    assert_none("forward and vjp", || {
        let mut cx = Ctx::new(&device, 32).mode(Mode::Train).keeping();
        let (saved, scratch) = buffers.forward();
        let call = Forward::new(&params[..], Tensors::real(&x[..]), TensorsMut::real(&mut y[..]));
        <L as Module<_, T![64]>>::forward(&mut cx, Forward { saved, scratch, ..call });
        let (saved, scratch) = buffers.vjp();
        let call = Vjp {
            y: Tensors::real(&y[..]),
            saved,
            scratch,
            dparams: Some(&mut dparams[..]),
            ..Vjp::new(
                &params[..],
                Tensors::real(&x[..]),
                Tensors::real(&dy[..]),
                TensorsMut::real(&mut dx[..]),
            )
        };
        <L as Module<_, T![64]>>::vjp(&mut cx, call);
    });
}

#[test]
fn sampling_allocates_nothing() {
    let _alone = alone();
    let logits = values(5000);
    let temperature = 1.5;
    for sampling in [
        Sampling::Greedy,
        Sampling::Temperature { temperature },
        Sampling::TopK { k: 40, temperature },
        // Sorts more than it does at first.
        Sampling::TopP { p: 0.9, temperature },
        Sampling::MinP { p: 0.05, temperature },
    ] {
        let mut sampler = Sampler::new(sampling, logits.len(), 1).unwrap();
        // On one thread: a pool of more may still be starting, and allocate, while so little is done.
        let count = allocations(1, &mut || {
            sampler.sample(&logits).unwrap();
        });
        assert_eq!(count, 0, "{sampling:?}");
    }
}
