//! Memory, and how launches are submitted.

use nn_kernels::cuda::{Buffer, CudaReal};
use nn_kernels::ops::{
    AdamSpec, Elementwise, Linear, LinearSpec, Optim, Random, SgdSpec, Stream, Table, Unary,
};
use nn_kernels::{Cuda, DeviceError, Memory};

use crate::cuda;

type D = Cuda<f64>;

#[test]
fn values_come_back_and_operations_are_done_in_order() {
    let Some(d) = cuda::<f64>() else { return };
    let x: Vec<f64> = (0..1000).map(f64::from).collect();
    let (mut a, mut b) = (d.alloc(1000).unwrap(), d.alloc(1000).unwrap());
    let mut y = vec![f64::NAN; 1000];
    d.download(D::view(&a), &mut y);
    assert!(y.iter().all(|&y| y == 0.0), "memory is zeroed");
    d.upload(&x, D::view_mut(&mut a));
    d.unary(Unary::Affine { scale: 2.0, shift: 1.0 }, D::view(&a), D::view_mut(&mut b));
    d.add_assign(D::view(&a), D::view_mut(&mut b));
    d.download(D::view(&b), &mut y);
    assert!(y.iter().zip(&x).all(|(y, x)| *y == 3.0 * x + 1.0), "{:?}", &y[..5]);
    d.finish().unwrap();
}

/// Operations that take all that changes from one step to the next: dropout, a layer and its gradient, two optimisers.
struct Step<E: CudaReal> {
    d: Cuda<E>,
    /// x, x after dropout, y, and their gradients and parameters.
    x: Buffer<E>,
    dropped: Buffer<E>,
    y: Buffer<E>,
    scratch: Buffer<E>,
    dx: Buffer<E>,
    w: Buffer<E>,
    dw: Buffer<E>,
    moments: [Buffer<E>; 3],
    copy: Buffer<E>,
    squares: Buffer<f64>,
}

const LAYER: LinearSpec = LinearSpec { rows: 3, inputs: 5, outputs: 4, act: Unary::Gelu, transposed: false };

impl<E: CudaReal<Wide = E>> Step<E> {
    fn new(d: &Cuda<E>) -> Self {
        let new = |seed, len| {
            let values: Vec<E> = crate::random(seed, len).into_iter().map(E::from_f64).collect();
            let mut buffer = d.alloc(len).unwrap();
            d.upload(&values, Cuda::<E>::view_mut(&mut buffer));
            buffer
        };
        let zeroed = |len| d.alloc(len).unwrap();
        Self {
            d: d.clone(),
            x: new(1, 15),
            dropped: zeroed(15),
            y: zeroed(12),
            scratch: zeroed(12),
            dx: zeroed(15),
            w: new(2, 20),
            dw: zeroed(20),
            moments: [zeroed(20), zeroed(20), zeroed(20)],
            copy: new(3, 20),
            squares: d.alloc(1).unwrap(),
        }
    }

    fn run(&mut self, step: u64) {
        let Self { d, x, dropped, y, scratch, dx, w, dw, moments: [m, v, velocity], copy, squares } = self;
        let lr = 0.1 / step as f64;
        let stream = Stream { seed: 7, place: 1, step, rank: 0 };
        let adam = AdamSpec {
            lr,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: 0.1,
            decoupled: true,
            clip: Some(1.0),
            step,
        };
        let first = step == 1;
        let sgd = SgdSpec { lr, momentum: 0.9, nesterov: true, weight_decay: 0.1, clip: None, first };
        d.together(|| {
            d.fill(0.0, Cuda::<E>::view_mut(dw));
            d.dropout(stream, 0.3, Cuda::<E>::view(x), Cuda::<E>::view_mut(dropped));
            d.linear(&LAYER, Cuda::<E>::view(dropped), Cuda::<E>::view(w), None, Cuda::<E>::view_mut(y));
            d.linear_vjp(
                &LAYER,
                Cuda::<E>::view(dropped),
                Cuda::<E>::view(w),
                None,
                Cuda::<E>::view(y),
                Cuda::<E>::view(y),
                Some(Cuda::<E>::view_mut(dx)),
                Some(Cuda::<E>::view_mut(dw)),
                None,
                Cuda::<E>::view_mut(scratch),
            );
            d.hash_dropout(stream, 0.3, Cuda::<E>::view(dx), Cuda::<E>::view_mut(dropped));
            d.sum_of_squares(Cuda::<E>::view(dw), Cuda::<E>::view_mut(squares));
            d.adam(
                &adam,
                Cuda::<E>::view(squares),
                Cuda::<E>::view_mut(w),
                Cuda::<E>::view(dw),
                Cuda::<E>::view_mut(m),
                Cuda::<E>::view_mut(v),
            );
            d.sgd(
                &sgd,
                Cuda::<E>::empty(),
                Cuda::<E>::view_mut(copy),
                Cuda::<E>::view(dw),
                Cuda::<E>::view_mut(velocity),
            );
        });
    }

    /// The bits of all that the steps changed.
    fn results(&self) -> Vec<Vec<u64>> {
        let [m, v, velocity] = &self.moments;
        let all = [&self.dropped, &self.y, &self.dx, &self.w, &self.dw, m, v, velocity, &self.copy];
        let bits = |buffer: &Buffer<E>| {
            let mut values = vec![E::ZERO; Cuda::<E>::len(Cuda::<E>::view(buffer))];
            self.d.download(Cuda::<E>::view(buffer), &mut values);
            values.into_iter().map(|x| x.to_f64().to_bits()).collect()
        };
        all.into_iter().map(bits).collect()
    }
}

#[test]
fn a_replayed_graph_sees_new_learning_rates_steps_and_random_numbers() {
    let Some(d) = cuda::<f32>() else { return };
    let eager = cuda::<f32>().unwrap();
    d.use_graphs(true);
    eager.use_graphs(false);
    let (mut replayed, mut launched) = (Step::new(&d), Step::new(&eager));
    for step in 1..=6 {
        replayed.run(step);
        launched.run(step);
        assert_eq!(replayed.results(), launched.results(), "step {step}");
    }
    // The first time it is launched, the second time it is made a graph.
    assert_eq!((d.replays(), eager.replays()), (4, 0));
    d.finish().unwrap();
}

#[test]
fn a_step_in_one_list_gives_what_its_operations_give_one_by_one() {
    let Some(d) = cuda::<f64>() else { return };
    let mut step = Step::new(&d);
    // Inside another one, the list is submitted when the outer one ends.
    d.together(|| step.run(1));
    let together = step.results();
    let mut step = Step::new(&d);
    step.run(1);
    assert_eq!(step.results(), together);
}

#[test]
fn an_id_out_of_range_stops_the_optimiser_and_is_told_once() {
    let Some(d) = cuda::<f64>() else { return };
    let upload = |values: &[f64]| {
        let mut buffer = d.alloc(values.len()).unwrap();
        d.upload(values, D::view_mut(&mut buffer));
        buffer
    };
    let (mut table, g, mut y) = (upload(&[1.0, 2.0]), upload(&[5.0, 5.0]), upload(&[9.0; 3]));
    let mut ids = d.alloc::<u32>(3).unwrap();
    d.upload(&[1_u32, 7, 0], D::view_mut(&mut ids));
    let s = SgdSpec { lr: 1.0, momentum: 0.0, nesterov: false, weight_decay: 0.0, clip: None, first: true };
    let none = d.gather(3, 1, D::view(&table), D::view(&ids), D::view_mut(&mut y));
    assert_eq!(none, None, "it is told later");
    let step = |table: &mut Buffer<f64>| {
        d.sgd(&s, D::empty(), D::view_mut(table), D::view(&g), D::empty_mut());
        d.lerp(1.0, D::view(&g), D::view_mut(table));
    };
    step(&mut table);
    let mut found = [0.0; 2];
    d.download(D::view(&table), &mut found);
    assert_eq!(found, [1.0, 2.0], "parameters stay as they were");
    let mut rows = [0.0; 3];
    d.download(D::view(&y), &mut rows);
    assert_eq!(rows, [2.0, 0.0, 1.0]);
    assert_eq!(d.finish(), Err(DeviceError::IdOutOfRange { place: 3, id: 7, rows: 2 }));
    assert_eq!(d.finish(), Ok(()));
    step(&mut table);
    d.download(D::view(&table), &mut found);
    assert_eq!(found, [5.0, 5.0]);
}

#[test]
fn views_are_cut_and_read_as_other_values() {
    let Some(d) = cuda::<f32>() else { return };
    type D = Cuda<f32>;
    let mut bytes = d.alloc::<u8>(16).unwrap();
    {
        let (first, rest) = D::split_mut(D::view_mut(&mut bytes), 4);
        d.upload(&[1.5_f32], D::cast_mut::<f32>(first));
        d.upload(&[-2.0_f32, 0.5, 3.0], D::cast_mut::<f32>(rest));
    }
    let mut values = [0.0_f32; 2];
    let (_, rest) = D::split(D::cast::<f32>(D::view(&bytes)), 2);
    d.download(rest, &mut values);
    assert_eq!(values, [0.5, 3.0]);
    let mut room = [0.0_f32; 9];
    assert_eq!(d.fetch(D::cast(D::view(&bytes)), &mut room), [1.5, -2.0, 0.5, 3.0]);
    let host = [4.0_f32, 5.0];
    let mut room = d.alloc::<f32>(3).unwrap();
    let brought = d.bring(&host, D::view_mut(&mut room));
    let mut back = [0.0_f32; 2];
    d.download(brought, &mut back);
    assert_eq!(back, host);
    assert_eq!(D::len(D::empty::<f32>()), 0);
}

/// What a panic says.
fn message(work: impl FnOnce()) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).expect_err("a panic");
    match panic.downcast_ref::<String>() {
        Some(text) => text.clone(),
        None => panic.downcast_ref::<&str>().copied().unwrap_or_default().to_owned(),
    }
}

#[test]
fn sizes_that_do_not_fit_panic_as_on_the_cpu_and_the_device_goes_on() {
    let Some(d) = cuda::<f64>() else { return };
    let (a, mut b) = (d.alloc::<f64>(3).unwrap(), d.alloc::<f64>(4).unwrap());
    let text = message(|| d.unary(Unary::Relu, D::view(&a), D::view_mut(&mut b)));
    assert!(text.contains("unary: x and y differ in length"), "{text}");
    let text = message(|| d.upload(&[1.0], D::view_mut(&mut b)));
    assert!(text.contains("upload: lengths differ"), "{text}");
    let text = message(|| {
        D::split(D::view(&a), 4);
    });
    assert!(text.contains("split"), "{text}");
    let text = message(|| {
        let bytes = d.alloc::<u8>(12).unwrap();
        D::cast::<f64>(D::view(&bytes));
    });
    assert!(text.contains("no whole values"), "{text}");
    let text = message(|| d.together(|| d.copy(D::view(&a), D::view_mut(&mut b))));
    assert!(text.contains("copy: x and y differ in length"), "{text}");
    d.fill(2.0, D::view_mut(&mut b));
    let mut y = [0.0; 4];
    d.download(D::view(&b), &mut y);
    assert_eq!(y, [2.0; 4]);
}

#[test]
fn forms_of_tiles_give_the_same_bits_and_routes_of_convolutions_the_same_numbers() {
    use nn_kernels::ops::{Conv, Conv2dSpec};
    let Some(d) = cuda::<f32>() else { return };
    type D = Cuda<f32>;
    let upload = |d: &D, seed, len| {
        let values: Vec<f32> = crate::random(seed, len).iter().map(|x| *x as f32).collect();
        let mut buffer = d.alloc(len).unwrap();
        d.upload(&values, D::view_mut(&mut buffer));
        buffer
    };
    let linear = |route| {
        let d = d.forcing(route).unwrap();
        let s = LinearSpec { rows: 70, inputs: 600, outputs: 66, act: Unary::Identity, transposed: false };
        let (x, w, mut y) = (upload(&d, 1, 70 * 600), upload(&d, 2, 600 * 66), upload(&d, 3, 70 * 66));
        d.linear(&s, D::view(&x), D::view(&w), None, D::view_mut(&mut y));
        let mut values = vec![0.0; 70 * 66];
        d.download(D::view(&y), &mut values);
        values
    };
    assert!(linear("linear=small") == linear("linear=large"));
    let conv = |route| {
        let d = d.forcing(route).unwrap();
        let s = Conv2dSpec {
            batch: 2,
            in_channels: 3,
            out_channels: 9,
            input: [6, 7],
            output: [3, 4],
            kernel: [3, 3],
            stride: [2, 2],
            padding: [1, 1],
            dilation: [1, 1],
            groups: 3,
            act: Unary::Identity,
        };
        let (x, w) = (upload(&d, 1, 2 * 3 * 42), upload(&d, 2, 81));
        let (dy, mut y) = (upload(&d, 3, 2 * 9 * 12), upload(&d, 4, 2 * 9 * 12));
        let (mut dx, mut dw) = (upload(&d, 5, 2 * 3 * 42), upload(&d, 6, 81));
        d.conv2d(&s, D::view(&x), D::view(&w), None, D::view_mut(&mut y), D::empty_mut());
        d.conv2d_vjp(
            &s,
            D::view(&x),
            D::view(&w),
            None,
            D::empty(),
            D::view(&dy),
            Some(D::view_mut(&mut dx)),
            Some(D::view_mut(&mut dw)),
            None,
            D::empty_mut(),
        );
        [y, dx, dw].map(|buffer| {
            let mut values = vec![0.0_f32; D::len(D::view(&buffer))];
            d.download(D::view(&buffer), &mut values);
            values
        })
    };
    for (a, b) in conv("conv2d=gemm").into_iter().flatten().zip(conv("conv2d=direct").into_iter().flatten()) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    assert!(matches!(d.forcing("linear=slow"), Err(DeviceError::UnknownRoute { .. })));
}

#[test]
fn a_rows_bits_do_not_depend_on_the_rows_beside_it() {
    // A library's algorithm is that for all rows together.
    let Some(d) = cuda::<f32>().map(|d| d.forcing("linear=kernels").unwrap()) else { return };
    type D = Cuda<f32>;
    let upload = |seed, len| {
        let values: Vec<f32> = crate::random(seed, len).iter().map(|x| *x as f32).collect();
        let mut buffer = d.alloc(len).unwrap();
        d.upload(&values, D::view_mut(&mut buffer));
        buffer
    };
    const ROWS: usize = 40;
    let (x, w, b) = (upload(1, ROWS * 300), upload(2, 300 * 70), upload(3, 70));
    let run = |first: usize, rows| {
        let s = LinearSpec { rows, inputs: 300, outputs: 70, act: Unary::Gelu, transposed: false };
        let (rest, mut y) = (D::split(D::view(&x), first * 300).1, d.alloc(rows * 70).unwrap());
        let x = D::split(rest, rows * 300).0;
        d.linear(&s, x, D::view(&w), Some(D::view(&b)), D::view_mut(&mut y));
        let mut values = vec![0.0_f32; rows * 70];
        d.download(D::view(&y), &mut values);
        values
    };
    let all = run(0, ROWS);
    for (first, rows) in [(0, 1), (39, 1), (3, 17), (5, 33)] {
        assert!(run(first, rows) == all[first * 70..(first + rows) * 70], "{rows} rows from {first} on");
    }
}

#[test]
fn many_lists_take_turns_among_the_graphs_that_are_kept() {
    let Some(d) = cuda::<f64>() else { return };
    let mut one = d.alloc::<f64>(5).unwrap();
    d.fill(1.0, D::view_mut(&mut one));
    let mut buffers: Vec<_> = (0..20).map(|_| d.alloc::<f64>(5).unwrap()).collect();
    for round in 0..4 {
        for buffer in &mut buffers {
            d.together(|| {
                d.add_assign(D::view(&one), D::view_mut(buffer));
                d.add_assign(D::view(&one), D::view_mut(buffer));
            });
            let mut values = [0.0; 5];
            d.download(D::view(buffer), &mut values);
            assert_eq!(values, [f64::from(2 * (round + 1)); 5]);
        }
    }
}

#[test]
fn an_impossible_size_is_an_error_and_nothing_is_a_buffer_too() {
    let Some(d) = cuda::<f64>() else { return };
    let impossible = |len| d.alloc::<f64>(len).map(|buffer| D::len(D::view(&buffer)));
    assert_eq!(impossible(usize::MAX / 4), Err(DeviceError::OutOfMemory { bytes: usize::MAX }));
    assert_eq!(impossible(1 << 50), Err(DeviceError::OutOfMemory { bytes: 1 << 53 }));
    assert_eq!(impossible(0), Ok(0));
    let mut nothing = d.alloc::<f64>(0).unwrap();
    d.upload(&[], D::view_mut(&mut nothing));
    d.fill(1.0, D::view_mut(&mut nothing));
    d.download(D::view(&nothing), &mut []);
    d.finish().unwrap();
}

#[test]
fn threads_share_a_device() {
    let Some(d) = cuda::<f64>() else { return };
    std::thread::scope(|scope| {
        for seed in 1..4_u32 {
            let d = d.clone();
            scope.spawn(move || {
                let mut x = d.alloc::<f64>(5000).unwrap();
                let mut sum = d.alloc::<f64>(1).unwrap();
                for round in 1..5 {
                    let value = f64::from(seed * round);
                    d.together(|| {
                        d.fill(value, D::view_mut(&mut x));
                        d.sum_of_squares(D::view(&x), D::view_mut(&mut sum));
                    });
                    let mut found = [0.0];
                    d.download(D::view(&sum), &mut found);
                    assert_eq!(found, [5000.0 * value * value]);
                }
            });
        }
    });
    d.finish().unwrap();
}
