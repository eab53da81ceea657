use nn_kernels::philox::Philox;

use crate::dims::Dims;

/// How a parameter gets its first values. `fan_in` and `fan_out` are PyTorch's: the product of all axes but
/// the first, and but the second, of the checkpoint's shape.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Init {
    /// All the same.
    Constant(f64),
    /// U(−bound, bound).
    Uniform(f64),
    /// U(−1/√fan_in, 1/√fan_in): what PyTorch gives weights and biases of linear and convolution layers.
    /// A bias has no fan of its own, so the number is kept here; 0 means the tensor's own.
    PyTorch(usize),
    /// N(0, std²).
    Normal(f64),
    /// N(0, 1/fan_in), cut off at two standard deviations and scaled back to that variance.
    TruncatedNormal,
    /// U(±√(6/fan_in)): He et al. 2015, for ReLU.
    KaimingUniform,
    /// N(0, 2/fan_in): He et al. 2015, for ReLU.
    KaimingNormal,
    /// U(±gain·√(6/(fan_in + fan_out))): Glorot and Bengio 2010.
    XavierUniform(f64),
    /// N(0, gain²·2/(fan_in + fan_out)): Glorot and Bengio 2010.
    XavierNormal(f64),
    /// A matrix with orthonormal rows or columns, times a gain: Saxe et al. 2013.
    Orthogonal(f64),
}

/// An initialiser as a type: for one field, `#[init(Xavier)]`; for a model, `Model::init_with`.
///
/// It replaces what layers choose for their weights; biases become zero, and gains of normalisations stay
/// one. [`Zero`] makes everything zero.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an initialiser",
    note = "take one of `Zero`, `Xavier`, `XavierNormal`, `Kaiming`, `KaimingNormal`, `TruncatedNormal`, `Orthogonal`, `Normal02`"
)]
pub trait Initialiser: 'static {
    /// How weights get their values.
    const INIT: Init;
}

macro_rules! initialisers {
    ($($(#[$doc:meta])* $name:ident $init:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl Initialiser for $name {
            const INIT: Init = $init;
        }
    )*};
}
initialisers! {
    /// Everything zero, gains and biases too: a branch that starts as nothing.
    Zero Init::Constant(0.0);
    /// [`Init::KaimingUniform`].
    Kaiming Init::KaimingUniform;
    /// [`Init::KaimingNormal`].
    KaimingNormal Init::KaimingNormal;
    /// [`Init::XavierUniform`] with gain 1.
    Xavier Init::XavierUniform(1.0);
    /// [`Init::XavierNormal`] with gain 1.
    XavierNormal Init::XavierNormal(1.0);
    /// [`Init::Orthogonal`] with gain 1.
    Orthogonal Init::Orthogonal(1.0);
    /// [`Init::TruncatedNormal`].
    TruncatedNormal Init::TruncatedNormal;
    /// N(0, 0.02²), as GPT-2.
    Normal02 Init::Normal(0.02);
}

impl Init {
    /// Fills `values`, which have the shape `dims` in the checkpoint's layout.
    pub fn fill(self, dims: &Dims, rng: &mut Philox, values: &mut [f64]) {
        let axes = dims.to_vec();
        let rest = |skip: usize| axes.iter().skip(skip).product::<usize>().max(1);
        let fan_in = rest(1) as f64;
        let fan_out = (axes.first().copied().unwrap_or(1) * rest(2)) as f64;
        let mut uniform = |bound: f64, values: &mut [f64]| {
            values.iter_mut().for_each(|v| *v = (2.0 * rng.uniform() - 1.0) * bound);
        };
        match self {
            Self::Constant(c) => values.fill(c),
            Self::Uniform(bound) => uniform(bound, values),
            Self::PyTorch(0) => uniform(1.0 / fan_in.sqrt(), values),
            Self::PyTorch(fan) => uniform(1.0 / (fan as f64).sqrt(), values),
            Self::KaimingUniform => uniform((6.0 / fan_in).sqrt(), values),
            Self::XavierUniform(gain) => uniform(gain * (6.0 / (fan_in + fan_out)).sqrt(), values),
            Self::Normal(std) => normal(std, rng, values),
            Self::KaimingNormal => normal((2.0 / fan_in).sqrt(), rng, values),
            Self::XavierNormal(gain) => normal(gain * (2.0 / (fan_in + fan_out)).sqrt(), rng, values),
            Self::TruncatedNormal => {
                // The standard deviation of a unit normal cut off at ±2.
                const CUT: f64 = 0.879_625_661_034_239_8;
                let std = 1.0 / fan_in.sqrt() / CUT;
                for v in values {
                    *v = loop {
                        let z = rng.normal();
                        if z.abs() <= 2.0 {
                            break z * std;
                        }
                    };
                }
            }
            Self::Orthogonal(gain) => orthogonal(axes.first().copied().unwrap_or(1), gain, rng, values),
        }
    }
}

fn normal(std: f64, rng: &mut Philox, values: &mut [f64]) {
    values.iter_mut().for_each(|v| *v = rng.normal() * std);
}

/// Gram–Schmidt, twice for accuracy, over the shorter side of a Gaussian matrix `[rows, len / rows]`.
fn orthogonal(rows: usize, gain: f64, rng: &mut Philox, values: &mut [f64]) {
    normal(1.0, rng, values);
    let cols = values.len() / rows.max(1);
    let by_row = rows <= cols;
    let (count, len) = if by_row { (rows, cols) } else { (cols, rows) };
    let at = |v: usize, i: usize| if by_row { v * cols + i } else { i * cols + v };
    for v in 0..count {
        for _ in 0..2 {
            for u in 0..v {
                let dot: f64 = (0..len).map(|i| values[at(v, i)] * values[at(u, i)]).sum();
                (0..len).for_each(|i| values[at(v, i)] -= dot * values[at(u, i)]);
            }
            let norm = (0..len).map(|i| values[at(v, i)].powi(2)).sum::<f64>().sqrt();
            (0..len).for_each(|i| values[at(v, i)] /= norm);
        }
    }
    values.iter_mut().for_each(|v| *v *= gain);
}
