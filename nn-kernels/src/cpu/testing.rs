//! What the tests of the kernels share.

use super::Real;
use super::isa::Available;
use super::kernels::Kernels;
use crate::Isa;
use crate::philox::Philox;

/// The kernels of each instruction set of this machine.
pub(crate) fn devices<E>() -> Vec<Kernels<E>> {
    Isa::available().map(|isa| Kernels::new(Available::checked(isa).unwrap())).collect()
}

/// Numbers in [−1, 1), which single precision holds too.
pub(crate) fn random(seed: u64, len: usize) -> Vec<f64> {
    let mut rng = Philox::new(seed, 0);
    (0..len).map(|_| f64::from((2.0 * rng.uniform() - 1.0) as f32)).collect()
}

/// The same numbers as elements.
pub(crate) fn reals<E: Real>(x: &[f64]) -> Vec<E> {
    x.iter().map(|&x| E::from_f64(x)).collect()
}

/// ‖found − expected‖ ≤ tolerance·‖expected‖.
#[track_caller]
pub(crate) fn assert_close<E: Real>(found: &[E], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: lengths");
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let error = norm(&mut found.iter().zip(expected).map(|(f, e)| f.to_f64() - e));
    let scale = norm(&mut expected.iter().copied());
    assert!(
        error <= tolerance * scale.max(1e-30),
        "{what}: relative error {:e} > {tolerance:e}",
        error / scale
    );
}

/// The gradient of `f` at x by central differences.
pub(crate) fn gradient(x: &[f64], mut f: impl FnMut(&[f64]) -> f64) -> Vec<f64> {
    let step = 1e-5;
    let mut x = x.to_vec();
    (0..x.len())
        .map(|i| {
            let at = x[i];
            x[i] = at + step;
            let above = f(&x);
            x[i] = at - step;
            let below = f(&x);
            x[i] = at;
            (above - below) / (2.0 * step)
        })
        .collect()
}

/// Runs `f` in a pool of so many threads.
#[cfg(feature = "threads")]
pub(crate) fn on_threads<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(f)
}

/// Runs `f`.
#[cfg(not(feature = "threads"))]
pub(crate) fn on_threads<R>(_threads: usize, f: impl FnOnce() -> R) -> R {
    f()
}
