use nn_kernels::ops::{CrossEntropySpec, Reduction};

use crate::cases;

cases! {
    mean_squared_errors within 1e-6 |t| {
        for (reduction, n) in [Reduction::Mean, Reduction::Sum].into_iter().flat_map(|r| [(r, 1), (r, 9), (r, 9001)]) {
            let (x, target, mut dx) = (t.random(1, n), t.wide_random(2, n), t.room(n));
            let mut value = t.upload(&[f64::NAN]);
            t.d.mse(reduction, D::view(&x), D::view(&target), Some(D::view_mut(&mut dx)), D::view_mut(&mut value));
            t.keep::<f64>(format!("{reduction:?} {n}"), &value);
            t.keep_elements(format!("{reduction:?} {n} dx"), &dx);
            t.d.mse(reduction, D::view(&x), D::view(&target), None, D::view_mut(&mut value));
            t.keep::<f64>(format!("{reduction:?} {n} alone"), &value);
        }
    }

    cross_entropies within 2e-6 |t| {
        for (rows, classes) in [(1, 1), (1, 3), (6, 33), (6, 300)] {
            for (smoothing, ignore) in [(0.0, None), (0.1, None), (0.1, Some(2))] {
                for (reduction, sample, counted) in
                    [(Reduction::Mean, 1, 1), (Reduction::Sum, 1, 1), (Reduction::Mean, 3, 2)]
                {
                    if rows % sample != 0 {
                        continue;
                    }
                    let s = CrossEntropySpec { reduction, classes, smoothing, ignore, rows: sample, counted };
                    let targets: Vec<u32> =
                        (0..rows / sample * counted).map(|i| (i * 7 % classes) as u32).collect();
                    let (x, target) = (t.random(1, rows * classes), t.upload(&targets));
                    let (mut dx, mut value) = (t.room(rows * classes), t.upload(&[f64::NAN]));
                    t.d.cross_entropy(
                        &s, D::view(&x), D::view(&target), Some(D::view_mut(&mut dx)), D::view_mut(&mut value),
                    );
                    t.keep::<f64>(format!("{s:?} {rows}"), &value);
                    t.keep_elements(format!("{s:?} {rows} dx"), &dx);
                    t.d.cross_entropy(&s, D::view(&x), D::view(&target), None, D::view_mut(&mut value));
                    t.keep::<f64>(format!("{s:?} {rows} alone"), &value);
                }
            }
        }
    }

    a_target_out_of_range_makes_its_row_nan_and_no_other within 1e-6 |t| {
        let s = CrossEntropySpec { reduction: Reduction::Sum, ..CrossEntropySpec::new(2) };
        let (x, target) = (t.values(&[0.0; 6]), t.upload(&[0_u32, 2, 1]));
        let (mut dx, mut value) = (t.room(6), t.upload(&[0.0_f64]));
        t.d.cross_entropy(
            &s, D::view(&x), D::view(&target), Some(D::view_mut(&mut dx)), D::view_mut(&mut value),
        );
        t.keep::<f64>("value", &value);
        t.keep_elements("dx", &dx);
    }
}
