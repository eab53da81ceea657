use nn_kernels::ops::BatchNormSpec;

use crate::cases;

const SHAPES: [(usize, usize); 6] = [(1, 1), (1, 7), (3, 33), (5, 100), (2, 1100), (70, 40)];

/// Values whose mean is far larger than their spread.
fn off_centre(n: usize) -> Vec<f64> {
    crate::random(1, n).iter().map(|x| f64::from((x + 100.0) as f32)).collect()
}

cases! {
    layer_norm_and_its_gradients within 2e-6 |t| {
        for ((rows, cols), far) in SHAPES.into_iter().flat_map(|s| [(s, false), (s, true)]) {
            let n = rows * cols;
            let x = t.values(&if far { off_centre(n) } else { crate::random(1, n) });
            let (gamma, beta, dy) = (t.random(2, cols), t.random(3, cols), t.random(4, n));
            let (mut y, mut stats, mut dx) = (t.room(n), t.wide_room(2 * rows), t.room(n));
            let (mut dgamma, mut dbeta) = (t.random(5, cols), t.random(6, cols));
            t.d.layer_norm(
                cols, 1e-5, D::view(&x), Some(D::view(&gamma)), Some(D::view(&beta)), D::view_mut(&mut y),
                Some(D::view_mut(&mut stats)),
            );
            t.d.layer_norm_vjp(
                cols, D::view(&x), Some(D::view(&gamma)), D::view(&stats), D::view(&dy), Some(D::view_mut(&mut dx)),
                Some(D::view_mut(&mut dgamma)), Some(D::view_mut(&mut dbeta)),
            );
            t.keep_wide(format!("{rows} {cols} {far} stats"), &stats);
            let all = [("y", &y), ("dx", &dx), ("dgamma", &dgamma), ("dbeta", &dbeta)];
            // A single value has no spread, so that its gradient is made of rounding alone.
            for (name, buffer) in all.into_iter().filter(|(name, _)| cols > 1 || *name != "dx") {
                t.keep_elements(format!("{rows} {cols} {far} {name}"), buffer);
            }
            t.d.layer_norm(cols, 1e-5, D::view(&x), None, None, D::view_mut(&mut y), None);
            t.keep_elements("plain", &y);
            t.d.layer_norm_vjp(
                cols, D::view(&x), None, D::view(&stats), D::view(&dy), None, Some(D::view_mut(&mut dgamma)), None,
            );
            t.keep_elements("dgamma alone", &dgamma);
        }
    }

    rms_norm_and_its_gradients within 2e-6 |t| {
        for (rows, cols) in SHAPES {
            let n = rows * cols;
            let (x, gamma, dy) = (t.random(1, n), t.random(2, cols), t.random(4, n));
            let (mut y, mut stats, mut dx, mut dgamma) = (t.room(n), t.wide_room(rows), t.room(n), t.random(5, cols));
            t.d.rms_norm(
                cols, 1e-4, D::view(&x), Some(D::view(&gamma)), D::view_mut(&mut y), Some(D::view_mut(&mut stats)),
            );
            t.d.rms_norm_vjp(
                cols, D::view(&x), Some(D::view(&gamma)), D::view(&stats), D::view(&dy),
                Some(D::view_mut(&mut dx)), Some(D::view_mut(&mut dgamma)),
            );
            t.keep_wide(format!("{rows} {cols} stats"), &stats);
            for (name, buffer) in [("y", &y), ("dgamma", &dgamma)] {
                t.keep_elements(format!("{rows} {cols} {name}"), buffer);
            }
            if cols > 1 {
                t.keep_elements(format!("{rows} {cols} dx"), &dx);
            }
        }
    }

    batch_norm_and_its_gradients within 2e-6 |t| {
        for (batch, channels, area) in [(2, 1, 1), (3, 5, 1), (200, 40, 1), (1, 3, 7), (3, 4, 30), (5, 2, 900)] {
            let s = BatchNormSpec { batch, channels, area, eps: 1e-5, momentum: 0.1 };
            let n = batch * channels * area;
            let x = t.values(&off_centre(n));
            let (gamma, beta, dy) = (t.random(2, channels), t.random(3, channels), t.random(4, n));
            let (mut means, mut variances) = (t.wide_random(5, channels), t.wide(&vec![0.7; channels]));
            let (mut y, mut stats, mut dx) = (t.room(n), t.wide_room(2 * channels), t.room(n));
            let (mut dgamma, mut dbeta) = (t.random(6, channels), t.random(7, channels));
            t.d.batch_norm_train(
                &s, D::view(&x), D::view(&gamma), D::view(&beta), D::view_mut(&mut y), D::view_mut(&mut stats),
                Some([D::view_mut(&mut means), D::view_mut(&mut variances)]),
            );
            t.keep_elements(format!("{s:?} y"), &y);
            for (name, buffer) in [("stats", &stats), ("means", &means), ("variances", &variances)] {
                t.keep_wide(format!("{s:?} {name}"), buffer);
            }
            for constant in [false, true] {
                if constant {
                    let running = [D::view(&means), D::view(&variances)];
                    t.d.batch_norm_stats(&s, running, D::view_mut(&mut stats));
                    t.d.batch_norm_infer(
                        &s, D::view(&x), D::view(&gamma), D::view(&beta), running, D::view_mut(&mut y),
                    );
                    t.keep_elements(format!("{s:?} inferred"), &y);
                    t.keep_wide(format!("{s:?} running stats"), &stats);
                }
                t.d.batch_norm_vjp(
                    &s, constant, D::view(&x), D::view(&gamma), D::view(&stats), D::view(&dy),
                    Some(D::view_mut(&mut dx)), Some(D::view_mut(&mut dgamma)), Some(D::view_mut(&mut dbeta)),
                );
                for (name, buffer) in [("dgamma", &dgamma), ("dbeta", &dbeta)] {
                    t.keep_elements(format!("{s:?} {constant} {name}"), buffer);
                }
                if n > 2 {
                    t.keep_elements(format!("{s:?} {constant} dx"), &dx);
                }
            }
        }
    }

    softmax_and_its_logarithm within 1e-6 |t| {
        for (rows, cols) in SHAPES {
            let n = rows * cols;
            // Far out, where an exponential without the maximum overflows.
            let x: Vec<f64> = crate::random(1, n).iter().map(|x| f64::from((x * 20.0 + 1e4) as f32)).collect();
            let (x, dy, mut y, mut dx) = (t.values(&x), t.random(2, n), t.room(n), t.room(n));
            t.d.softmax(cols, D::view(&x), D::view_mut(&mut y));
            t.keep_elements(format!("{rows} {cols} softmax"), &y);
            if cols > 1 {
                t.d.softmax_vjp(cols, D::view(&y), D::view(&dy), D::view_mut(&mut dx));
                t.keep_elements(format!("{rows} {cols} softmax dx"), &dx);
            }
            t.d.log_softmax(cols, D::view(&x), D::view_mut(&mut y));
            t.keep_elements(format!("{rows} {cols} log_softmax"), &y);
            if cols > 1 {
                t.d.log_softmax_vjp(cols, D::view(&y), D::view(&dy), D::view_mut(&mut dx));
                t.keep_elements(format!("{rows} {cols} log_softmax dx"), &dx);
            }
        }
    }

    nan_makes_its_row_nan_and_no_other within 1e-6 |t| {
        let mut x = vec![1.0; 40];
        x[23] = f64::NAN;
        let (x, mut y) = (t.values(&x), t.room(40));
        t.d.softmax(20, D::view(&x), D::view_mut(&mut y));
        t.keep_elements("softmax", &y);
    }
}
