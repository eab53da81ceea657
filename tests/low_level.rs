//! Forward and vjp called on slices, without a model or a workspace.

use nn::*;

sequential! {
    Net: [4] -> [3] = LinearTanh<4, 6>, LayerNorm<6>, Linear<6, 3>
}

const X: [f64; 8] = [0.3, -0.1, 0.7, 0.2, -0.5, 0.9, 0.1, -0.3];

#[test]
fn a_module_gives_what_its_model_gives() {
    let device = Cpu::<f64>::default();
    let mut model = Model::<Net, Cpu<f64>>::init(3, 2).unwrap();
    let loss = model.accumulate(&X, &[2, 0], &CrossEntropy::default()).unwrap();

    // The same parameters, by hand.
    let table = parameters_of::<Net>();
    let mut params = vec![0.0; Net::TREE.params()];
    for p in &table {
        p.write(&model.weights().get(&p.path).unwrap(), &mut params).unwrap();
    }
    let mut buffers = Buffers::new::<Net, T![4]>(&device, 2).unwrap();
    let mut y = [f64::NAN; 6];
    let mut cx = Ctx::new(&device, 2).mode(Mode::Train).keeping();
    let (saved, scratch) = buffers.forward();
    let call = Forward::new(&params[..], Tensors::real(&X[..]), TensorsMut::real(&mut y[..]));
    <Net as Module<_, T![4]>>::forward(&mut cx, Forward { saved, scratch, ..call });
    assert!(cx.fault().is_none());

    let rows = Rows { samples: 2, count: 2, len: 3 };
    let (mut dy, mut dx) = ([f64::NAN; 6], [f64::NAN; 8]);
    let target = [2, 0];
    let to = Some(TensorsMut::real(&mut dy[..]));
    let mut value = [f64::NAN];
    CrossEntropy::default().value(&device, rows, Tensors::real(&y[..]), &target, to, &mut value);
    assert_eq!(value, [loss]);

    let mut dparams = vec![0.0; params.len()];
    // Twice: parameter gradients are added to, input gradients written.
    for _ in 0..2 {
        let (saved, scratch) = buffers.vjp();
        let call = Vjp {
            y: Tensors::real(&y[..]),
            saved,
            scratch,
            dparams: Some(&mut dparams[..]),
            ..Vjp::new(
                &params[..],
                Tensors::real(&X[..]),
                Tensors::real(&dy[..]),
                TensorsMut::real(&mut dx[..]),
            )
        };
        <Net as Module<_, T![4]>>::vjp(&mut cx, call);
    }
    for p in &table {
        let twice: Vec<f64> = model.gradient(&p.path).unwrap().iter().map(|g| 2.0 * g).collect();
        for (found, expected) in p.read(&dparams).unwrap().iter().zip(&twice) {
            assert!((found - expected).abs() <= 1e-15 + 1e-14 * expected.abs(), "{}", p.path);
        }
    }

    // The input's gradient, which a model does not compute, against a finite difference.
    let mut at = |i: usize, step: f64| {
        let mut x = X;
        x[i] += step;
        let mut cx = Ctx::new(&device, 2);
        let (_, scratch) = buffers.forward();
        let call = Forward::new(&params[..], Tensors::real(&x[..]), TensorsMut::real(&mut y[..]));
        <Net as Module<_, T![4]>>::forward(&mut cx, Forward { scratch, ..call });
        CrossEntropy::default().value(&device, rows, Tensors::real(&y[..]), &target, None, &mut value);
        value[0]
    };
    for (i, dx) in dx.iter().enumerate() {
        let slope = (at(i, 1e-5) - at(i, -1e-5)) / 2e-5;
        assert!((dx - slope).abs() < 1e-9, "{dx} {slope}");
    }
}

#[test]
fn a_layer_without_needs_is_one_call() {
    let device = Cpu::<f32>::default();
    let (x, mut y) = ([-1.0f32, 2.0, -3.0, 4.0], [0.0f32; 4]);
    let call = Forward::new(&[][..], Tensors::real(&x[..]), TensorsMut::real(&mut y[..]));
    <ReLU as Module<_, T![2]>>::forward(&mut Ctx::new(&device, 2), call);
    assert_eq!(y, [0.0, 2.0, 0.0, 4.0]);
}

#[test]
fn several_inputs_are_joined_and_gradients_nobody_wants_are_left_out() {
    let device = Cpu::<f32>::default();
    let (a, b, dy) = ([1.0f32, 2.0], [3.0f32, 5.0], [1.0f32, 10.0]);
    let mut y = [0.0f32; 2];
    // Used twice: each call gets views that live as long as its own.
    let x = Tensors::real(&a[..]).join(Tensors::real(&b[..]));
    let mut cx = Ctx::new(&device, 1).keeping();
    type In = (T![2], T![2]);
    <Mul as Module<_, In>>::forward(
        &mut cx,
        Forward::new(&[][..], x.shorten(), TensorsMut::real(&mut y[..])),
    );
    assert_eq!(y, [3.0, 10.0]);
    let mut db = [0.0f32; 2];
    let dx = TensorsMut::unwanted(1).join(TensorsMut::real(&mut db[..]));
    <Mul as Module<_, In>>::vjp(&mut cx, Vjp::new(&[][..], x.shorten(), Tensors::real(&dy[..]), dx));
    assert_eq!(db, [1.0, 20.0]);
}

#[test]
fn state_is_written_in_training_only() {
    type L = BatchNorm2D<2>;
    type In = T![2, 1, 2];
    let device = Cpu::<f32>::default();
    let table = parameters_of::<L>();
    let (mut params, mut state) = (vec![0.0f32; L::TREE.params()], vec![0.0f32; L::TREE.state()]);
    for (path, value) in [("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)] {
        let p = table.iter().find(|p| p.path == path).unwrap();
        let arena = if p.role.in_state() { &mut state } else { &mut params };
        p.write(&[value; 2], arena).unwrap();
    }
    let x = [1.0f32, 3.0, 10.0, 30.0];
    let mut y = [0.0f32; 4];
    let mut buffers = Buffers::new::<L, In>(&device, 1).unwrap();
    let mut cx = Ctx::new(&device, 1).mode(Mode::Train).keeping();
    let (saved, scratch) = buffers.forward();
    let call = Forward::new(&params[..], Tensors::real(&x[..]), TensorsMut::real(&mut y[..]));
    let call = Forward { state: State::of(&mut state[..]), saved, scratch, ..call };
    <L as Module<_, In>>::forward(&mut cx, call);
    assert!((y[0] + 1.0).abs() < 1e-4 && (y[3] - 1.0).abs() < 1e-4, "{y:?}");
    let mean = table.iter().find(|p| p.path == "running_mean").unwrap();
    assert_eq!(mean.read(&state).unwrap(), [0.2, 2.0]);
    let before = state.clone();
    let (_, scratch) = buffers.forward();
    let call = Forward::new(&params[..], Tensors::real(&x[..]), TensorsMut::real(&mut y[..]));
    let call = Forward { state: State::read_only(StateRef::of(&state[..])), scratch, ..call };
    <L as Module<_, In>>::forward(&mut Ctx::new(&device, 1), call);
    assert!(y[0] > 0.5, "by the running statistics");
    assert_eq!(state, before);
}

#[test]
fn what_goes_wrong_is_in_the_context() {
    type L = Embedding<3, 2>;
    let device = Cpu::<f32>::default();
    let params = vec![1.0f32; L::TREE.params()];
    let mut y = [0.0f32; 4];
    let mut cx = Ctx::new(&device, 1);
    let call = Forward::new(&params[..], Tensors::ids(&[2, 3][..]), TensorsMut::real(&mut y[..]));
    <L as Module<_, Ids<T![2]>>>::forward(&mut cx, call);
    assert_eq!(cx.fault(), Some((0, CallFault::IdOutOfRange { id: 3, rows: 3 })));
    assert_eq!(y, [1.0, 1.0, 0.0, 0.0]);
}

#[test]
fn parameters_that_do_not_fit_are_errors() {
    let table = parameters_of::<Linear<3, 2>>();
    assert_eq!(
        table.iter().map(|p| (p.path.as_str(), p.dims.to_vec())).collect::<Vec<_>>(),
        [("weight", vec![2, 3]), ("bias", vec![2])]
    );
    let mut arena = vec![0.0; <Linear<3, 2>>::TREE.params()];
    assert!(matches!(
        table[0].write(&[1.0; 5], &mut arena),
        Err(Error::ParameterLength { expected: 6, found: 5, .. })
    ));
    assert!(matches!(table[1].write(&[1.0; 2], &mut arena[..3]), Err(Error::ParameterLength { .. })));
    assert!(table[1].read(&arena[..3]).is_err());
    assert!(arena.iter().all(|v| *v == 0.0));
    table[0].write(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &mut arena).unwrap();
    assert_eq!(arena[..6], [1.0, 4.0, 2.0, 5.0, 3.0, 6.0], "[IN, OUT] in memory");
    assert_eq!(table[0].read(&arena).unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let too_much = Buffers::<Cpu<f64>>::new::<LinearGELU<3, 2>, T![3]>(&Cpu::default(), usize::MAX);
    assert!(matches!(too_much, Err(Error::Device(DeviceError::OutOfMemory { .. }))));
}
