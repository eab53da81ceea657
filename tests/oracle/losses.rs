use nn::{Cpu, CrossEntropy, Loss, MSE, Reduction, Rows, Tensors, TensorsMut, kernels};

use crate::fixture::{Fixture, assert_near, devices, limit};

/// Value and gradient of a loss over `rows`, times the gradient that arrives.
fn gradient<E: kernels::cpu::Real, L: Loss<Cpu<E>>>(
    device: &Cpu<E>,
    loss: &L,
    rows: Rows,
    x: &[E],
    target: &[L::Target],
    dy: f64,
) -> (f64, Vec<E>) {
    let mut dx = vec![E::from_f64(f64::NAN); x.len()];
    let (y, mut value, mut again) = (Tensors::real(x), [f64::NAN], [f64::NAN]);
    loss.check(rows, target).unwrap();
    loss.value(device, rows, y, target, Some(TensorsMut::real(&mut dx[..])), &mut value);
    loss.value(device, rows, y, target, None, &mut again);
    assert_eq!(again, value);
    (value[0], dx.iter().map(|d| E::from_f64(dy * d.to_f64())).collect())
}

fn mse<E: kernels::cpu::Real>(name: &'static str, reduction: Reduction) {
    let fixture = Fixture::read(name);
    let (x, t): (Vec<E>, Vec<E>) = (fixture.get("x0").real(), fixture.get("x1").real());
    let rows = Rows { samples: 4, count: 4, len: 5 };
    for device in devices() {
        let dy = fixture.get("dy0").values[0];
        let (y, dx) = gradient(&device, &MSE { reduction }, rows, &x, &t, dy);
        assert_near(name, &[y], &fixture.get("y0").values, 0.0, limit::<E>(x.len()));
        assert_near(name, &dx, &fixture.get("dx0").values, 0.0, limit::<E>(1));
    }
}

fn cross_entropy<E: kernels::cpu::Real>(name: &'static str, smoothing: f64, ignore: Option<u32>) {
    let fixture = Fixture::read(name);
    let x: Vec<E> = fixture.get("x0").real();
    let (t, y, dy) = (fixture.get("x1").ids(), &fixture.get("y0").values, &fixture.get("dy0").values);
    let reduction = if name.contains("_mean") { Reduction::Mean } else { Reduction::Sum };
    let loss = CrossEntropy { reduction, smoothing, ignore };
    for device in devices() {
        // Where nothing is reduced, every row is a batch of its own.
        let rows = Rows { samples: t.len() / y.len(), count: t.len() / y.len(), len: 5 };
        let (mut found, mut dx) = (Vec::new(), Vec::new());
        for (i, (x, t)) in x.chunks(5 * rows.count).zip(t.chunks(rows.count)).enumerate() {
            let (value, gradient) = gradient(&device, &loss, rows, x, t, dy[i]);
            found.push(value);
            dx.extend(gradient);
        }
        assert_near(&format!("{name}, y0, {device:?}"), &found, y, 0.0, limit::<E>(t.len()));
        assert_near(&format!("{name}, dx0, {device:?}"), &dx, &fixture.get("dx0").values, 0.0, limit::<E>(1));
    }
}

/// A test a fixture, in both precisions.
macro_rules! cases {
    ($($name:ident: $check:ident($($argument:expr),*);)*) => {
        /// The fixtures read here.
        pub(crate) const READ: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            fn $name() {
                $check::<f64>(stringify!($name), $($argument),*);
                $check::<f32>(stringify!($name), $($argument),*);
            }
        )*
    };
}

cases! {
    loss_mse_mean: mse(Reduction::Mean);
    loss_mse_sum: mse(Reduction::Sum);
    loss_cross_entropy_mean: cross_entropy(0.0, None);
    loss_cross_entropy_mean_offset: cross_entropy(0.0, None);
    loss_cross_entropy_mean_smooth: cross_entropy(0.1, None);
    loss_cross_entropy_mean_ignore: cross_entropy(0.0, Some(2));
    loss_cross_entropy_mean_ignore_negative: cross_entropy(0.0, Some(u32::MAX));
    loss_cross_entropy_mean_smooth_ignore: cross_entropy(0.1, Some(2));
    loss_cross_entropy_sum: cross_entropy(0.0, None);
    loss_cross_entropy_sum_smooth: cross_entropy(0.1, None);
    loss_cross_entropy_sum_ignore: cross_entropy(0.0, Some(2));
    loss_cross_entropy_sum_smooth_ignore: cross_entropy(0.1, Some(2));
    loss_cross_entropy_none: cross_entropy(0.0, None);
    loss_cross_entropy_none_smooth: cross_entropy(0.1, None);
    loss_cross_entropy_none_ignore: cross_entropy(0.0, Some(2));
    loss_cross_entropy_none_smooth_ignore: cross_entropy(0.1, Some(2));
}
