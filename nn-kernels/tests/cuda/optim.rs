use nn_kernels::ops::{AdamSpec, SgdSpec};

use crate::cases;

cases! {
    sgd_with_momentum_and_without within 1e-6 |t| {
        for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
            for (n, clip) in [(1, None), (300, Some(2.0))] {
                let (mut p, mut velocity) = (t.wide_random(1, n), t.wide_room(if momentum == 0.0 { 0 } else { n }));
                let squares = t.upload(&[16.0_f64]);
                for step in 0..3 {
                    let g = t.wide_random(10 + step, n);
                    let first = step == 0;
                    let s = SgdSpec { lr: 0.1, momentum, nesterov, weight_decay: 0.01, clip, first };
                    t.d.sgd(
                        &s, D::view(&squares), D::view_mut(&mut p), D::view(&g), D::view_mut(&mut velocity),
                    );
                }
                t.keep_wide(format!("{momentum} {nesterov} {n}"), &p);
                t.keep_wide("velocity", &velocity);
            }
        }
    }

    adam_with_either_decay within 1e-6 |t| {
        for (decoupled, clip) in [(false, None), (true, Some(2.0))] {
            let (mut p, mut m, mut v) = (t.wide_random(1, 300), t.wide(&[0.0; 300]), t.wide(&[0.0; 300]));
            let squares = t.upload(&[16.0_f64]);
            for step in 1..=3 {
                let g = t.wide_random(10 + step, 300);
                let s = AdamSpec {
                    lr: 1e-2, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1, decoupled, clip, step,
                };
                t.d.adam(
                    &s, D::view(&squares), D::view_mut(&mut p), D::view(&g), D::view_mut(&mut m),
                    D::view_mut(&mut v),
                );
            }
            for (name, buffer) in [("p", &p), ("m", &m), ("v", &v)] {
                t.keep_wide(format!("{decoupled} {name}"), buffer);
            }
        }
    }

    sums_of_squares_and_moving_targets within 1e-6 |t| {
        for n in [1, 33, 20_000] {
            let (x, mut target, mut sum) = (t.wide_random(1, n), t.wide_random(2, n), t.upload(&[f64::NAN]));
            t.d.sum_of_squares(D::view(&x), D::view_mut(&mut sum));
            t.keep::<f64>("sum", &sum);
            t.d.lerp(0.005, D::view(&x), D::view_mut(&mut target));
            t.keep_wide("target", &target);
        }
    }

    what_is_rounded_and_what_is_summed_up_without within 1e-6 |t| {
        for n in [1, 33, 1000] {
            let (x, mut y, mut copy) = (t.wide_random(1, n), t.room(n), t.wide_room(n));
            t.d.narrow(D::view(&x), D::view_mut(&mut y));
            t.keep_elements("narrow", &y);
            t.d.copy_wide(D::view(&x), D::view_mut(&mut copy));
            t.keep_wide("copy", &copy);
            // The second time there is nothing to add.
            let mut g = t.random(2, n);
            for _ in 0..2 {
                t.d.collect(D::view_mut(&mut g), D::view_mut(&mut copy));
                t.keep_wide("sum", &copy);
                t.keep_elements("gradient", &g);
            }
            t.d.clear(D::view_mut(&mut copy));
            t.keep_wide("clear", &copy);
        }
    }
}
