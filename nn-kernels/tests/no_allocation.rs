//! After a first call, kernels allocate nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use nn_kernels::ops::*;
use nn_kernels::{Cpu, Device, Float, Isa, Memory};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every method is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Buffers for a step that runs kernels of every kind, large enough to be shared among threads.
struct Step<D: Memory> {
    device: D,
    buffers: [D::Buffer<D::Elem>; 6],
    argmax: D::Buffer<u32>,
    ids: D::Buffer<u32>,
    value: D::Buffer<f64>,
}

const N: usize = 64 * 64 * 64;

impl<E: Float, D: Device<Elem = E, Wide = E>> Step<D> {
    fn new(device: D) -> Self {
        let buffers = std::array::from_fn(|_| device.alloc(N).unwrap());
        let (argmax, ids) = (device.alloc(N).unwrap(), device.alloc(64).unwrap());
        let value = device.alloc(1).unwrap();
        Self { device, buffers, argmax, ids, value }
    }

    fn run(&mut self) {
        let d = &self.device;
        let [a, b, c, e, f, g] = &mut self.buffers;
        let [a, b] = [D::view(a), D::view(b)];
        let [mut c, mut e, mut f, mut g] = [c, e, f, g].map(|buffer| D::view_mut(buffer));
        macro_rules! out {
            ($view:ident, $n:expr) => {
                D::split_mut(D::reborrow(&mut $view), $n).0
            };
        }
        macro_rules! of {
            ($view:ident, $n:expr) => {
                D::split($view, $n).0
            };
        }
        let act = Unary::Gelu;
        let s = LinearSpec { rows: 256, inputs: 300, outputs: 200, act, transposed: false };
        let s_linear = s;
        d.linear(&s, of!(a, 256 * 300), of!(b, 300 * 200), None, out!(c, 256 * 200));
        d.linear_vjp(
            &s,
            of!(a, 256 * 300),
            of!(b, 300 * 200),
            None,
            D::empty(),
            of!(a, 256 * 200),
            Some(out!(c, 256 * 300)),
            Some(out!(e, 300 * 200)),
            Some(out!(f, 200)),
            out!(g, s.vjp_scratch()),
        );
        let s = GatedSpec { act, rows: 64, cols: 32 * 64, gate_last: false };
        d.gated(&s, a, out!(c, N / 2));
        d.gated_vjp(&s, a, of!(b, N / 2), D::reborrow(&mut c));
        for (batch, groups, channels, act) in [
            (8, 1, 16, Unary::Relu),
            (1, 1, 16, Unary::Gelu),
            (8, 16, 16, Unary::Tanh),
            (4, 1, 32, Unary::Silu),
            (8, 1, 16, Unary::Identity),
        ] {
            let s = Conv2dSpec {
                batch,
                in_channels: channels,
                out_channels: channels,
                input: [32, 32],
                output: [32, 32],
                kernel: [3, 3],
                stride: [1, 1],
                padding: [1, 1],
                dilation: [1, 1],
                groups,
                act,
            };
            let (x, w) = (batch * channels * 1024, channels * channels / groups * 9);
            d.conv2d(&s, of!(a, x), of!(b, w), None, out!(c, x), D::empty_mut());
            let (dx, dw, db) = (Some(out!(c, x)), Some(out!(e, w)), Some(out!(f, channels)));
            let (y, dz) = (of!(a, x), out!(g, s.vjp_scratch()));
            d.conv2d_vjp(&s, of!(a, x), of!(b, w), None, y, of!(b, x), dx, dw, db, dz);
        }
        d.layer_norm(64, 1e-5, a, None, None, D::reborrow(&mut c), Some(out!(e, N / 32)));
        d.layer_norm_vjp(
            64,
            a,
            None,
            D::read(&out!(e, N / 32)),
            b,
            Some(D::reborrow(&mut c)),
            Some(out!(f, 64)),
            None,
        );
        d.softmax(64, a, D::reborrow(&mut c));
        let s = BatchNormSpec { batch: 64, channels: 64, area: 64, eps: 1e-5, momentum: 0.1 };
        d.batch_norm_train(&s, a, of!(b, 64), of!(b, 64), D::reborrow(&mut c), out!(e, 128), None);
        let s = Pool2dSpec {
            planes: 64,
            input: [64, 64],
            output: [32, 32],
            kernel: [2, 2],
            stride: [2, 2],
            padding: [0, 0],
        };
        d.max_pool2d(&s, a, out!(c, N / 4), Some(D::split_mut(D::view_mut(&mut self.argmax), N / 4).0));
        let s = RopeSpec {
            rows: 64,
            seq: 64,
            offset: 0,
            heads: 64,
            dim: 64,
            rotary: 64,
            theta: 1e4,
            interleaved: false,
        };
        d.rope(&s, false, a, D::reborrow(&mut c));
        for (d_head, len) in [(64, 200), (16, 70)] {
            let s = AttentionSpec { causal: true, ..AttentionSpec::new(2, len, len, 6, 3, d_head) };
            let (n, kv) = (2 * len * 6 * d_head, 2 * len * 3 * d_head);
            let (x, y) = (of!(a, n), of!(b, n));
            d.attention(&s, x, of!(b, kv), of!(a, kv), None, out!(c, n), Some(out!(e, s.lse())));
            let to =
                AttentionGradients::Apart { q: Some(out!(c, n)), k: Some(out!(e, kv)), v: Some(out!(f, kv)) };
            let lse = of!(b, s.lse());
            d.attention_vjp(&s, x, of!(b, kv), of!(a, kv), None, y, lse, y, to, out!(g, s.vjp_scratch()));
        }
        d.gather(0, 64, a, D::view(&self.ids), out!(c, 64 * 64));
        d.scatter_add(64, D::view(&self.ids), of!(a, 64 * 64), D::reborrow(&mut c));
        d.dropout(Stream::default(), 0.5, a, D::reborrow(&mut c));
        d.hash_dropout(Stream::default(), 0.5, a, D::reborrow(&mut c));
        d.normal(Stream::default(), D::reborrow(&mut c));
        let s = GaussianSpec { cols: 64, squash: true };
        d.gaussian(&s, a, b, Some(a), D::reborrow(&mut c), Some(out!(e, N / 64)));
        d.gaussian_vjp(
            &s,
            a,
            b,
            Some(a),
            a,
            of!(b, N / 64),
            Some(D::reborrow(&mut c)),
            Some(D::reborrow(&mut e)),
        );
        d.sinusoids(&SinusoidSpec { rows: 64, first: 0, dim: 64, theta: 1e4 }, out!(c, 64 * 64));
        for packing in [nn_kernels::Packing::Bf16, nn_kernels::Packing::Q8_0] {
            let s = PackedSpec { rows: 32, inputs: 256, outputs: 300, packing };
            d.packed_linear(&s, of!(a, 32 * 256), of!(b, s.slots()), None, out!(c, 32 * 300));
            d.packed_linear_vjp(&s, of!(b, s.slots()), of!(a, 32 * 300), out!(c, 32 * 256));
        }
        let (n, s) = (64 * 64, LinearSpec { act: Unary::Identity, ..s_linear });
        d.linear_add(&s, of!(a, 256 * 300), of!(b, 300 * 200), out!(c, 256 * 200));
        d.lstm(64, out!(c, 4 * n), of!(a, n), out!(e, n), out!(f, n));
        d.lstm_vjp(64, of!(a, 4 * n), of!(a, n), of!(b, n), of!(b, n), out!(e, n), out!(c, 4 * n));
        d.gru(64, out!(c, 3 * n), of!(a, 3 * n), of!(a, n), out!(e, n));
        d.gru_vjp(64, of!(a, 3 * n), of!(b, 3 * n), of!(b, n), out!(e, n), out!(c, 3 * n), out!(f, 3 * n));
        d.mse(Reduction::Mean, a, b, Some(D::reborrow(&mut c)), D::view_mut(&mut self.value));
        let s = CrossEntropySpec::new(64);
        let (ids, to) = (D::view(&self.ids), Some(out!(c, 64 * 64)));
        d.cross_entropy(&s, of!(a, 64 * 64), ids, to, D::view_mut(&mut self.value));
        d.sum_of_squares(a, D::view_mut(&mut self.value));
        let s = AdamSpec {
            lr: 0.1,
            beta1: 0.9,
            beta2: 0.9,
            eps: 1e-8,
            weight_decay: 0.0,
            decoupled: true,
            clip: Some(1.0),
            step: 1,
        };
        let squares = D::view(&self.value);
        d.adam(&s, squares, D::reborrow(&mut c), a, D::reborrow(&mut e), D::reborrow(&mut f));
    }
}

fn second_run_allocates_nothing<E: Float, D: Device<Elem = E, Wide = E>>(device: D) {
    let mut step = Step::new(device);
    step.run();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    step.run();
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0);
}

// One test, or another's allocations would be counted.
#[test]
fn kernels_allocate_nothing_after_their_first_call() {
    let steps = || {
        for isa in Isa::available() {
            second_run_allocates_nothing(Cpu::<f32>::with_isa(isa).unwrap());
            second_run_allocates_nothing(Cpu::<f64>::with_isa(isa).unwrap());
        }
    };
    // From within the pool: a call from outside queues a task, which allocates.
    #[cfg(feature = "threads")]
    for threads in [1, 3] {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(steps);
    }
    #[cfg(not(feature = "threads"))]
    steps();
}
