//! Functions of one value, in arithmetic that the compiler vectorises: no tables, no branches, no library calls.
//!
//! Each is written once for both precisions; [`Real`] has what differs, above all how long the series are. An
//! infinite or enormous argument is clamped to where the result no longer changes, in a way that lets NaN through.

use super::Real;
use super::simd::Simd;

/// Powers of two up to the argument: eˣ = 2ⁿ·eʳ with a whole n and |r| ≤ ½·log 2. Gives eʳ − 1, and 2ⁿ as two
/// factors, for it may lie out of range where the result does not.
#[inline(always)]
fn reduce<S: Simd, E: Real>(x: E) -> (E, E, E) {
    // Adding this leaves the nearest whole number in the lowest bits.
    let shifted = x.mul_add::<S>(E::lit(std::f64::consts::LOG2_E), E::ROUNDER);
    let n = shifted - E::ROUNDER;
    // The first part of log 2 has so few digits that n times it is exact.
    let r = n.mul_add::<S>(-E::LN_2.1, n.mul_add::<S>(-E::LN_2.0, x));
    let (a, b) = E::powers_of_2(shifted);
    // Taylor's series; its remainder is below a tenth of the last place.
    let tail = polynomial::<S, E>(E::EXP, r);
    ((r * r).mul_add::<S>(tail, r), a, b)
}

/// Σ c[i]·xⁱ.
#[inline(always)]
fn polynomial<S: Simd, E: Real>(c: &[f64], x: E) -> E {
    let mut i = c.len() - 1;
    let mut sum = E::lit(c[i]);
    while i > 0 {
        i -= 1;
        sum = sum.mul_add::<S>(x, E::lit(c[i]));
    }
    sum
}

/// The nearest value in a range; NaN stays NaN.
#[inline(always)]
fn clamp<E: Real>(x: E, low: E, high: E) -> E {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// eˣ.
#[inline(always)]
pub(crate) fn exp<S: Simd, E: Real>(x: E) -> E {
    let (low, high) = E::EXP_RANGE;
    let (p, a, b) = reduce::<S, E>(clamp(x, E::lit(low), E::lit(high)));
    (E::ONE + p) * a * b
}

/// 2ˣ for x up to 100, in half the time; 0 where that is no normal number.
#[inline(always)]
pub(crate) fn exp2<S: Simd, E: Real>(x: E) -> E {
    let low = E::lit(E::EXP2_LOW);
    let in_range = if x < low { low } else { x };
    let shifted = in_range + E::ROUNDER;
    let power = polynomial::<S, E>(E::EXP2, in_range - (shifted - E::ROUNDER)) * E::power_of_2(shifted);
    if x < low { E::ZERO } else { power }
}

/// eˣ − 1, right to the last places near 0 too, for x up to 80.
#[inline(always)]
pub(crate) fn exp_m1<S: Simd, E: Real>(x: E) -> E {
    // Below −40 it is −1 in double precision.
    let (p, a, b) = reduce::<S, E>(clamp(x, E::lit(-40.0), E::lit(80.0)));
    let power = a * b;
    p.mul_add::<S>(power, power - E::ONE)
}

/// tanh x = (e²ˣ − 1) / (e²ˣ + 1).
#[inline(always)]
pub(crate) fn tanh<S: Simd, E: Real>(x: E) -> E {
    // Beyond 20 it is 1 in double precision.
    let e = exp_m1::<S, E>(clamp(x.abs() + x.abs(), E::ZERO, E::lit(40.0)));
    (e / (e + E::lit(2.0))).copysign(x)
}

/// 1 / (1 + e⁻ˣ), without overflow on either side.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd, E: Real>(x: E) -> E {
    let e = exp::<S, E>(-x.abs());
    (if x < E::ZERO { e } else { E::ONE }) / (E::ONE + e)
}

/// The error function. Up to 1 it is x times a polynomial in x²; beyond, 1 − e^(−x²) times a polynomial in
/// 2 / (2 + x). The coefficients are Chebyshev interpolants, made with 60 digits; their error is below a tenth of the
/// last place of the result.
#[inline(always)]
pub(crate) fn erf<S: Simd, E: Real>(x: E) -> E {
    let z = clamp(x.abs(), E::ZERO, E::lit(E::ERF_END));
    let near = z * polynomial::<S, E>(E::ERF_NEAR, z * z);
    let u = (E::lit(2.0) / (E::lit(2.0) + z)).mul_add::<S>(E::lit(E::ERF_MAP.0), E::lit(E::ERF_MAP.1));
    let far = E::ONE - exp::<S, E>(-(z * z)) * polynomial::<S, E>(E::ERF_FAR, u);
    (if z > E::ONE { far } else { near }).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::kernels;
    use crate::cpu::testing::devices;

    /// erf by a series of positive terms, and by a continued fraction of its complement: slow, and right to the last
    /// places.
    fn erf_reference(x: f64) -> f64 {
        let z = x.abs();
        if z > 6.0 {
            1.0f64.copysign(x)
        } else if z < 2.5 {
            let (mut term, mut sum, mut n) = (x, x, 0.0);
            while term.abs() > 1e-19 * sum.abs() {
                n += 1.0;
                term *= 2.0 * x * x / (2.0 * n + 1.0);
                sum += term;
            }
            sum * (-x * x).exp() * std::f64::consts::FRAC_2_SQRT_PI
        } else {
            let fraction = (1..=60).rev().fold(z, |f, k| z + f64::from(k) / 2.0 / f);
            (1.0 - (-z * z).exp() / (fraction * std::f64::consts::PI.sqrt())).copysign(x)
        }
    }

    kernels! {
        fn all<E>(x: &[E], y: &mut [[E; 5]]);
        fn powers<E>(x: &[E], y: &mut [E]);
    }

    #[inline(always)]
    fn powers<S: Simd, E: Real>(x: &[E], y: &mut [E]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = exp2::<S, E>(x);
        }
    }

    fn powers_of_2<E: Real>(last_place: f64) {
        let x: Vec<E> = sweep(-60, 6).into_iter().filter(|x| *x <= 100.0).map(E::from_f64).collect();
        for device in devices::<E>() {
            let mut y = vec![E::ZERO; x.len()];
            run::powers(device.isa, &x, &mut y);
            for (x, y) in x.iter().zip(&y) {
                let expected = if x.to_f64() < E::EXP2_LOW { 0.0 } else { x.to_f64().exp2() };
                let error = (y.to_f64() - expected).abs();
                assert!(error <= 2.0 * last_place * expected, "{device:?} {x}: {y}, not {expected:e}");
            }
            let x = [0.0, -1.0, f64::NEG_INFINITY, f64::NAN, -1e30].map(E::from_f64);
            let mut y = [E::ONE; 5];
            run::powers(device.isa, &x, &mut y);
            assert_eq!([y[0], y[1], y[2], y[4]].map(|y| y.to_f64()), [1.0, 0.5, 0.0, 0.0]);
            assert!(y[3].to_f64().is_nan());
        }
    }

    #[test]
    fn powers_of_2_are_right_to_two_last_places() {
        powers_of_2::<f32>(f64::from(f32::EPSILON));
        powers_of_2::<f64>(f64::EPSILON);
    }

    #[inline(always)]
    fn all<S: Simd, E: Real>(x: &[E], y: &mut [[E; 5]]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = [
                exp::<S, E>(x),
                exp_m1::<S, E>(clamp(x, E::lit(-1e6), E::lit(80.0))),
                tanh::<S, E>(x),
                sigmoid::<S, E>(x),
                erf::<S, E>(x),
            ];
        }
    }

    const NAMES: [&str; 5] = ["exp", "exp_m1", "tanh", "sigmoid", "erf"];

    fn references(x: f64) -> [f64; 5] {
        let sigmoid = if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) };
        [x.exp(), x.clamp(-1e6, 80.0).exp_m1(), x.tanh(), sigmoid, erf_reference(x)]
    }

    /// Every exponent and both signs, a few mantissas each, and a fine grid where the functions live.
    fn sweep(smallest: i32, largest: i32) -> Vec<f64> {
        let step = if cfg!(miri) { 50 } else { 1 };
        let powers =
            (smallest..=largest).step_by(step).flat_map(|e| [1.0, 1.1, 1.37, 1.9].map(|m| m * 2f64.powi(e)));
        let grid = (0..if cfg!(miri) { 20 } else { 20_000 }).map(|i| f64::from(i) * 0.0057);
        powers.chain(grid).flat_map(|x| [x, -x]).collect()
    }

    fn errors<E: Real>(sweep: &[f64], units: f64, last_place: f64, smallest: f64) {
        for device in devices::<E>() {
            let x: Vec<E> = sweep.iter().map(|&x| E::from_f64(x)).collect();
            let mut y = vec![[E::ZERO; 5]; x.len()];
            run::all(device.isa, &x, &mut y);
            for (x, y) in x.iter().zip(&y) {
                let expected = references(x.to_f64());
                for ((name, y), expected) in NAMES.iter().zip(y).zip(expected) {
                    // As it would be rounded: to infinity where it is out of range.
                    if E::from_f64(expected).to_f64().is_infinite() {
                        assert_eq!(y.to_f64(), expected.signum() * f64::INFINITY, "{device:?} {name}({x})");
                        continue;
                    }
                    let allowed = units * last_place * expected.abs().max(smallest);
                    let error = (y.to_f64() - expected).abs();
                    assert!(error <= allowed, "{device:?} {name}({x}) = {y}, not {expected:e}");
                }
            }
        }
    }

    #[test]
    fn single_precision_is_right_to_four_last_places_at_every_exponent() {
        errors::<f32>(&sweep(-149, 127), 4.0, f64::from(f32::EPSILON) / 2.0, f64::from(f32::MIN_POSITIVE));
    }

    #[test]
    fn double_precision_is_right_to_1e_15_at_every_exponent() {
        // An argument of 700 has an error of some places itself after its reduction in the reference.
        errors::<f64>(&sweep(-1074, 1023), 9.0, f64::EPSILON / 2.0, f64::MIN_POSITIVE);
    }

    #[test]
    fn exp_of_single_precision_is_right_to_two_last_places() {
        for device in devices::<f32>() {
            let x: Vec<f32> =
                sweep(-149, 127).into_iter().map(|x| x as f32).filter(|x| x.abs() < 87.0).collect();
            let mut y = vec![[0.0; 5]; x.len()];
            run::all(device.isa, &x, &mut y);
            for (x, y) in x.iter().zip(y) {
                let expected = f64::from(*x).exp();
                let place = f64::from((expected as f32).next_up()) - f64::from(expected as f32);
                assert!((f64::from(y[0]) - expected).abs() <= 2.0 * place, "{device:?} {x}");
            }
        }
    }

    fn special<E: Real>() {
        for device in devices::<E>() {
            let x = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, 1e4, -1e4, f64::NAN].map(E::from_f64);
            let mut y = vec![[E::ZERO; 5]; x.len()];
            run::all(device.isa, &x, &mut y);
            let y: Vec<_> = y.iter().map(|y| y.map(|y| y.to_f64())).collect();
            assert_eq!(y[0], [1.0, 0.0, 0.0, 0.5, 0.0]);
            assert_eq!(y[1], [1.0, 0.0, 0.0, 0.5, 0.0]);
            assert!(
                y[1][2].is_sign_negative() && y[1][4].is_sign_negative(),
                "odd functions keep the sign of zero"
            );
            for at in [2, 4] {
                assert_eq!([y[at][0], y[at][2], y[at][3], y[at][4]], [f64::INFINITY, 1.0, 1.0, 1.0]);
                assert_eq!(y[at + 1], [0.0, -1.0, -1.0, 0.0, -1.0]);
            }
            assert!(y[6].iter().all(|y| y.is_nan()), "{:?}", y[6]);
        }
    }

    #[test]
    fn zeros_infinities_and_nan_come_out_as_they_should() {
        special::<f32>();
        special::<f64>();
    }
}
