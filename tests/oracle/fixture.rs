use std::collections::BTreeMap;
use std::path::PathBuf;

use nn::{Cpu, Isa, kernels};
use safetensors::{Dtype, SafeTensors};

/// One fixture: tensors by name, whatever they hold in double precision.
pub(crate) struct Fixture {
    name: &'static str,
    tensors: BTreeMap<String, Tensor>,
}

/// A tensor of a fixture, with its shape, the batch first.
pub(crate) struct Tensor {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f64>,
    pub(crate) is_ids: bool,
}

impl Tensor {
    /// Indices; a negative one, which stands for "ignore", is the largest.
    pub(crate) fn ids(&self) -> Vec<u32> {
        assert!(self.is_ids);
        self.values.iter().map(|v| if *v < 0.0 { u32::MAX } else { *v as u32 }).collect()
    }

    /// In another precision. Everything drawn is exact in both.
    pub(crate) fn real<E: kernels::Float>(&self) -> Vec<E> {
        assert!(!self.is_ids);
        self.values.iter().map(|v| E::from_f64(*v)).collect()
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/fixtures")
}

/// The names of all fixtures.
pub(crate) fn names() -> impl Iterator<Item = String> {
    let files = std::fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path());
    let fixtures = files.filter(|path| path.extension().is_some_and(|e| e == "safetensors"));
    fixtures.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
}

impl Fixture {
    pub(crate) fn read(name: &'static str) -> Self {
        let path = folder().join(format!("{name}.safetensors"));
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensor = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
            let data = view.data().as_chunks::<8>().0.iter();
            let (values, is_ids) = match view.dtype() {
                Dtype::F64 => (data.map(|b| f64::from_le_bytes(*b)).collect(), false),
                Dtype::I64 => (data.map(|b| i64::from_le_bytes(*b) as f64).collect(), true),
                other => panic!("{name} is {other:?}"),
            };
            (name, Tensor { shape: view.shape().to_vec(), values, is_ids })
        };
        Self { name, tensors: file.tensors().into_iter().map(tensor).collect() }
    }

    #[track_caller]
    pub(crate) fn get(&self, name: &str) -> &Tensor {
        self.tensors.get(name).unwrap_or_else(|| panic!("{} has no `{name}`", self.name))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// `x0`, `x1`, … for the prefix `x`.
    pub(crate) fn numbered(&self, prefix: &str) -> Vec<&Tensor> {
        (0..).map_while(|i| self.tensors.get(&format!("{prefix}{i}"))).collect()
    }

    /// `param.weight`, … for the prefix `param.`, without it.
    pub(crate) fn named(&self, prefix: &str) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().filter_map(move |(name, t)| Some((name.strip_prefix(prefix)?, t)))
    }
}

/// ‖a − b‖/‖b‖; where b vanishes, ‖a‖ against `scale`, the size of what cancels in it.
pub(crate) fn error<E: kernels::Float>(a: &[E], b: &[f64], scale: f64) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| a.to_f64() - b));
    let size = norm(&mut b.iter().copied()).max(scale);
    if difference == 0.0 { 0.0 } else { difference / size }
}

/// Panics unless `a` is `b` within `limit`; NaN is not.
#[track_caller]
pub(crate) fn assert_near<E: kernels::Float>(what: &str, a: &[E], b: &[f64], scale: f64, limit: f64) {
    let error = error(a, b, scale);
    assert!(error <= limit, "{what}: {error:.2e} is more than {limit:.1e}\n   {a:?}\nnot {b:?}");
}

/// The bound on errors in the precision of `E`, where no sum has more than `terms` terms.
pub(crate) fn limit<E>(terms: usize) -> f64 {
    match size_of::<E>() {
        8 => 1e-12,
        _ if terms <= 1 => 1e-6,
        _ => 2e-6 * (terms as f64).sqrt(),
    }
}

/// The processor with each of its instruction sets.
pub(crate) fn devices<E: kernels::cpu::Real>() -> impl Iterator<Item = Cpu<E>> {
    [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Neon].into_iter().filter_map(|isa| Cpu::with_isa(isa).ok())
}

#[test]
fn errors_are_relative_and_nan_is_one() {
    assert_eq!(error(&[3.0, 4.0], &[3.0, 5.0], 0.0), 1.0 / 34f64.sqrt());
    assert_eq!(error(&[0.0], &[0.0], 0.0), 0.0);
    assert_eq!(error(&[1e-9], &[0.0], 1.0), 1e-9);
    assert!(error(&[f64::NAN], &[1.0], 0.0).is_nan());
    let caught = std::panic::catch_unwind(|| assert_near("NaN", &[f64::NAN], &[1.0], 0.0, 1e300));
    assert!(caught.is_err());
}
