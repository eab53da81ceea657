//! Functions of one value.

use std::f64::consts::PI;

/// The error function: its power series near 0, a continued fraction of its complement further out.
pub(crate) fn erf(x: f64) -> f64 {
    let z = x.abs();
    if z.is_nan() {
        x
    } else if z > 6.0 {
        1.0f64.copysign(x)
    } else if z < 2.5 {
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term.abs() > 1e-18 * sum.abs() {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        sum * 2.0 / PI.sqrt()
    } else {
        let fraction = (1..=60).rev().fold(z, |f, k| z + f64::from(k) / 2.0 / f);
        (1.0 - (-z * z).exp() / (fraction * PI.sqrt())).copysign(x)
    }
}
