//! Doing the same on a GPU and on the CPU.

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
    results: Vec<(String, Vec<f64>)>,
}

impl<D: Device> Trial<D> {
    pub(crate) fn new(d: D) -> Self {
        Self { d, results: Vec::new() }
    }

    pub(crate) fn upload<T: Pod>(&self, values: &[T]) -> D::Buffer<T> {
        let mut buffer = self.d.alloc(values.len()).unwrap();
        self.d.upload(values, D::view_mut(&mut buffer));
        buffer
    }

    pub(crate) fn values(&self, values: &[f64]) -> D::Buffer<D::Elem> {
        self.upload(&values.iter().map(|&x| D::Elem::from_f64(x)).collect::<Vec<_>>())
    }

    /// Random values.
    pub(crate) fn random(&self, seed: u64, len: usize) -> D::Buffer<D::Elem> {
        self.values(&random(seed, len))
    }

    /// Room for values that all must be written.
    pub(crate) fn room(&self, len: usize) -> D::Buffer<D::Elem> {
        self.values(&vec![f64::NAN; len])
    }

    /// Keeps a result.
    #[allow(dead_code, reason = "not all test binaries have results of other types than elements")]
    pub(crate) fn keep<T: Pod + Into<f64>>(&mut self, name: impl Into<String>, buffer: &D::Buffer<T>) {
        let view = D::view(buffer);
        let mut values = vec![T::default(); D::len(view)];
        self.d.download(view, &mut values);
        self.results.push((name.into(), values.into_iter().map(Into::into).collect()));
    }

    /// What elements are.
    pub(crate) fn downloaded(&self, buffer: &D::Buffer<D::Elem>) -> Vec<f64> {
        let view = D::view(buffer);
        let mut values = vec![D::Elem::default(); D::len(view)];
        self.d.download(view, &mut values);
        values.into_iter().map(Float::to_f64).collect()
    }

    /// Keeps a result of elements.
    pub(crate) fn keep_elements(&mut self, name: impl Into<String>, buffer: &D::Buffer<D::Elem>) {
        let values = self.downloaded(buffer);
        self.results.push((name.into(), values));
    }
}

/// What to do on a device.
pub(crate) trait Case {
    fn run<D: Device>(t: &mut Trial<D>);
}

fn close(what: &str, found: &[(String, Vec<f64>)], expected: &[(String, Vec<f64>)], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len(), "{what}, {name}");
        let same = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan();
        let finite = || found.iter().zip(expected).filter(|(f, e)| !same(**f, **e));
        let error = finite().map(|(f, e)| (f - e) * (f - e)).sum::<f64>().sqrt();
        let scale = expected.iter().filter(|e| e.is_finite()).map(|e| e * e).sum::<f64>().sqrt();
        assert!(
            error <= tolerance * scale,
            "{what}, {name}: error {error:e} of {scale:e}\n{found:?}\n{expected:?}"
        );
    }
}

/// Holds the GPU's results in both precisions against those of the CPU in double precision.
pub(crate) fn compare<C: Case>(tolerance: f64) {
    let Some(double) = crate::cuda::<f64>() else { return };
    let mut cpu = Trial::new(Cpu::<f64>::default());
    C::run(&mut cpu);
    let mut gpu = Trial::new(double);
    C::run(&mut gpu);
    gpu.d.finish().unwrap();
    close("double precision", &gpu.results, &cpu.results, 1e-12);
    let mut gpu = Trial::new(crate::cuda::<f32>().expect("a device"));
    C::run(&mut gpu);
    gpu.d.finish().unwrap();
    close("single precision", &gpu.results, &cpu.results, tolerance);
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
