//! Doing the same on a GPU and on the CPU.

use half::bf16;
use nn_kernels::philox::Philox;
use nn_kernels::{Cpu, Device, Float, Memory, Pod};

/// Numbers in [−1, 1), which single precision holds too.
pub(crate) fn random(seed: u64, len: usize) -> Vec<f64> {
    let mut rng = Philox::new(seed, 0);
    (0..len).map(|_| f64::from((2.0 * rng.uniform() - 1.0) as f32)).collect()
}

/// A device, and what operations on it gave.
pub(crate) struct Trial<D: Device> {
    pub(crate) d: D,
    /// Whether its elements are rounded to bfloat16 before anything is done with them.
    rounds: bool,
    results: Vec<(String, Vec<f64>)>,
}

impl<D: Device> Trial<D> {
    pub(crate) fn new(d: D) -> Self {
        Self { d, rounds: false, results: Vec::new() }
    }

    /// The same, on values that were rounded to bfloat16.
    pub(crate) fn rounding(d: D) -> Self {
        Self { rounds: true, ..Self::new(d) }
    }

    pub(crate) fn upload<T: Pod>(&self, values: &[T]) -> D::Buffer<T> {
        let mut buffer = self.d.alloc(values.len()).unwrap();
        self.d.upload(values, D::view_mut(&mut buffer));
        buffer
    }

    pub(crate) fn values(&self, values: &[f64]) -> D::Buffer<D::Elem> {
        let rounded = |x: f64| if self.rounds { bf16::from_f64(x).to_f64() } else { x };
        self.upload(&values.iter().map(|&x| D::Elem::from_f64(rounded(x))).collect::<Vec<_>>())
    }

    pub(crate) fn wide(&self, values: &[f64]) -> D::Buffer<D::Wide> {
        self.upload(&values.iter().map(|&x| D::Wide::from_f64(x)).collect::<Vec<_>>())
    }

    /// Random values.
    pub(crate) fn random(&self, seed: u64, len: usize) -> D::Buffer<D::Elem> {
        self.values(&random(seed, len))
    }

    /// Room for values that all must be written.
    pub(crate) fn room(&self, len: usize) -> D::Buffer<D::Elem> {
        self.values(&vec![f64::NAN; len])
    }

    /// What elements are, or wide values.
    pub(crate) fn downloaded<T: Float>(&self, buffer: &D::Buffer<T>) -> Vec<f64> {
        let view = D::view(buffer);
        let mut values = vec![T::default(); D::len(view)];
        self.d.download(view, &mut values);
        values.into_iter().map(Float::to_f64).collect()
    }

    /// Keeps a result of elements.
    pub(crate) fn keep_elements(&mut self, name: impl Into<String>, buffer: &D::Buffer<D::Elem>) {
        let values = self.downloaded(buffer);
        self.results.push((name.into(), values));
    }
}

/// Values of other types than elements.
#[allow(dead_code, reason = "not all test binaries have them")]
impl<D: Device> Trial<D> {
    /// Random wide values.
    pub(crate) fn wide_random(&self, seed: u64, len: usize) -> D::Buffer<D::Wide> {
        self.wide(&random(seed, len))
    }

    /// Room for wide values that all must be written.
    pub(crate) fn wide_room(&self, len: usize) -> D::Buffer<D::Wide> {
        self.wide(&vec![f64::NAN; len])
    }

    /// Keeps a result.
    pub(crate) fn keep<T: Pod + Into<f64>>(&mut self, name: impl Into<String>, buffer: &D::Buffer<T>) {
        let view = D::view(buffer);
        let mut values = vec![T::default(); D::len(view)];
        self.d.download(view, &mut values);
        self.results.push((name.into(), values.into_iter().map(Into::into).collect()));
    }

    /// Keeps a result of wide values.
    pub(crate) fn keep_wide(&mut self, name: impl Into<String>, buffer: &D::Buffer<D::Wide>) {
        let values = self.downloaded(buffer);
        self.results.push((name.into(), values));
    }
}

/// What to do on a device.
pub(crate) trait Case {
    fn run<D: Device>(t: &mut Trial<D>);
}

fn close(
    what: &str,
    found: &[(String, Vec<f64>)],
    expected: &[(String, Vec<f64>)],
    tolerance: f64,
    near_zero: f64,
) {
    assert_eq!(found.len(), expected.len());
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len(), "{what}, {name}");
        let same = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan();
        let finite = || found.iter().zip(expected).filter(|(f, e)| !same(**f, **e));
        let error = finite().map(|(f, e)| (f - e) * (f - e)).sum::<f64>().sqrt();
        let scale = expected.iter().filter(|e| e.is_finite()).map(|e| e * e).sum::<f64>().sqrt();
        let scale = scale + near_zero * (expected.len() as f64).sqrt();
        assert!(
            error <= tolerance * scale,
            "{what}, {name}: error {error:e} of {scale:e}\n{found:?}\n{expected:?}"
        );
    }
}

/// How far results in bfloat16 may be off: each is rounded once, by 2⁻⁹ at most, and some are computed of others: where
/// those cross zero, the share is of a hundredth.
const ROUNDED: f64 = 1.0 / 64.0;

/// Holds the GPU's results in every precision against those of the CPU in double precision.
pub(crate) fn compare<C: Case>(tolerance: f64) {
    let Some(double) = crate::cuda::<f64>() else { return };
    let mut cpu = Trial::new(Cpu::<f64>::default());
    C::run(&mut cpu);
    let mut gpu = Trial::new(double);
    C::run(&mut gpu);
    gpu.d.finish().unwrap();
    close("double precision", &gpu.results, &cpu.results, 1e-12, 0.0);
    let mut gpu = Trial::new(crate::cuda::<f32>().expect("a device"));
    C::run(&mut gpu);
    gpu.d.finish().unwrap();
    close("single precision", &gpu.results, &cpu.results, tolerance, 0.0);
    let mut cpu = Trial::rounding(Cpu::<f64>::default());
    C::run(&mut cpu);
    let mut gpu = Trial::new(crate::cuda::<bf16>().expect("a device"));
    C::run(&mut gpu);
    gpu.d.finish().unwrap();
    close("bfloat16", &gpu.results, &cpu.results, ROUNDED, 1e-2);
}

/// Tests that do the same on every device and compare what it gives.
macro_rules! cases {
    ($($name:ident within $tolerance:literal |$t:ident| $body:block)+) => {
        $(
            #[test]
            fn $name() {
                struct This;
                impl crate::Case for This {
                    fn run<D: nn_kernels::Device>($t: &mut crate::Trial<D>) $body
                }
                crate::compare::<This>($tolerance);
            }
        )+
    };
}
pub(crate) use cases;
