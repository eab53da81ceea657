use nn::{Adam, AdamW, Cpu, Optimizer, Run, Schedule, Sgd, kernels};

use crate::fixture::{Fixture, assert_near, devices, limit};

/// Five steps from `p0` on the gradients `g0`, `g1`, …
fn check<E: kernels::cpu::Real, O: Optimizer<Cpu<E>>>(name: &'static str, make: impl Fn() -> O) {
    let fixture = Fixture::read(name);
    for device in devices::<E>() {
        let mut optimizer = make();
        let mut p = fixture.get("p0").real::<E>();
        let all = [Run { start: 0, len: p.len(), decays: true }];
        for (t, g) in fixture.numbered("g").iter().enumerate() {
            optimizer.step(&device, &mut p, &g.real::<E>(), &all).unwrap();
            let expected = &fixture.get(&format!("p{}", t + 1)).values;
            assert_near(&format!("{name}, p{}, {device:?}", t + 1), &p, expected, 0.0, limit::<E>(1));
        }
        assert_eq!(optimizer.steps(), 5);
    }
}

/// A test an optimiser, in both precisions.
macro_rules! cases {
    ($($name:ident: $make:expr;)*) => {
        /// The fixtures read here.
        pub(crate) const READ: &[&str] = &[
            $(stringify!($name),)*
            "clip_grad_norm",
            "clip_grad_norm_below",
            "schedule_cosine",
            "schedule_linear",
            "schedule_warmup_cosine",
        ];
        $(
            #[test]
            fn $name() {
                check::<f64, _>(stringify!($name), || $make);
                check::<f32, _>(stringify!($name), || $make);
            }
        )*
    };
}

cases! {
    optim_sgd: Sgd::new(0.1);
    optim_sgd_weight_decay: Sgd::new(0.1).weight_decay(0.01);
    optim_sgd_momentum: Sgd::new(0.1).momentum(0.9);
    optim_sgd_momentum_weight_decay: Sgd::new(0.05).momentum(0.9).weight_decay(0.01);
    optim_sgd_nesterov: Sgd::new(0.1).momentum(0.9).nesterov();
    optim_sgd_nesterov_weight_decay: Sgd::new(0.05).momentum(0.8).nesterov().weight_decay(0.01);
    optim_adam: Adam::new(0.01);
    optim_adam_large_eps: Adam::new(0.1).betas(0.8, 0.95).eps(0.1);
    optim_adam_weight_decay: Adam::new(0.01).weight_decay(0.1);
    optim_adamw: AdamW::new(0.01).weight_decay(0.1);
    optim_adamw_large_eps: AdamW::new(0.1).betas(0.8, 0.95).eps(0.1);
}

/// A step of size one on the gradients shows them as they were clipped.
fn clip<E: kernels::cpu::Real>(name: &'static str) {
    use kernels::ops::Optim;
    let fixture = Fixture::read(name);
    let all =
        |prefix: &str| fixture.numbered(prefix).iter().flat_map(|t| t.values.clone()).collect::<Vec<_>>();
    let g: Vec<E> = all("g").iter().map(|v| E::from_f64(*v)).collect();
    for device in devices::<E>() {
        let mut squares = [f64::NAN];
        device.sum_of_squares(&g, &mut squares);
        let norm = E::from_f64(squares[0].sqrt());
        assert_near(name, &[norm], &fixture.get("norm").values, 0.0, limit::<E>(1));
        let mut p = vec![E::ZERO; g.len()];
        let runs =
            [Run { start: 0, len: 4, decays: false }, Run { start: 4, len: g.len() - 4, decays: true }];
        Sgd::new(1.0).clip_norm(1.0).step(&device, &mut p, &g, &runs).unwrap();
        let clipped: Vec<E> = p.iter().map(|v| -*v).collect();
        assert_near(name, &clipped, &all("c"), 0.0, limit::<E>(1));
    }
}

#[test]
fn clip_grad_norm() {
    clip::<f64>("clip_grad_norm");
    clip::<f32>("clip_grad_norm");
}

#[test]
fn clip_grad_norm_below() {
    clip::<f64>("clip_grad_norm_below");
    clip::<f32>("clip_grad_norm_below");
}

/// The rates that an optimiser goes through are those of the fixture, one by one.
#[track_caller]
fn schedule(name: &'static str, schedule: Schedule) {
    let fixture = Fixture::read(name);
    let mut sgd = Sgd::<Cpu<f64>>::new(0.1).schedule(schedule);
    for (t, expected) in fixture.get("lr").values.iter().enumerate() {
        let rate = sgd.rate();
        assert!(
            (rate - expected).abs() <= 1e-12 * expected.abs(),
            "{name}: {rate} is not {expected} at step {t}"
        );
        sgd.step(&Cpu::default(), &mut [0.0], &[0.0], &[Run { start: 0, len: 1, decays: true }]).unwrap();
    }
}

#[test]
fn schedule_cosine() {
    schedule("schedule_cosine", Schedule::Cosine { steps: 20, floor: 0.01 });
}

#[test]
fn schedule_linear() {
    schedule("schedule_linear", Schedule::Warmup { steps: 5, start: 0.25 });
}

#[test]
fn schedule_warmup_cosine() {
    schedule(
        "schedule_warmup_cosine",
        Schedule::WarmupCosine { warmup: 5, steps: 20, start: 0.25, floor: 0.0 },
    );
}
