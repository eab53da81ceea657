use nn_kernels::ops::{CrossEntropySpec, Reduction};
use nn_kernels::{Device, Float, Pod};

use crate::Text;
use crate::error::Error;
use crate::fault::Fault;
use crate::signature::Sig;
use crate::tensors::{Tensors, TensorsMut};

/// What a batch of outputs is, as a loss is told: so many samples, that together have so many rows. A row is the
/// output's last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Samples.
    pub samples: usize,
    /// Rows of all samples together.
    pub count: usize,
    /// Values a row.
    pub len: usize,
}

/// What a loss compares with, as an array, a slice or a `Vec`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what this loss compares with",
    label = "the loss takes `{T}`",
    note = "`MSE` takes numbers like the output's, `&[f32]`; `CrossEntropy` takes class indices, `&[u32]`"
)]
pub trait Targets<T: ?Sized> {
    /// The targets.
    fn targets(&self) -> &T;
}
impl<T: ?Sized, S: AsRef<T> + ?Sized> Targets<T> for S {
    fn targets(&self) -> &T {
        self.as_ref()
    }
}

/// A loss on the device `D`: a number from a model's output and a target, and its gradient.
pub trait Loss<D: Device> {
    /// What the output is compared with: a slice of these.
    type Target: Pod;
    /// How many tensors of output it is for; `None` for any number. A model with another number does not compile with it.
    const OUTPUTS: Option<usize> = Some(1);

    /// Whether there are as many targets as go with such an output, and each of them is possible.
    fn check(&self, rows: Rows, target: &[Self::Target]) -> Result<(), Error>;
    /// The loss of a batch, into the one element of `value`; its gradient goes to `dy` if that is given. The targets were
    /// [checked](Self::check).
    fn value(
        &self,
        device: &D,
        rows: Rows,
        y: Tensors<'_, D>,
        target: D::View<'_, Self::Target>,
        dy: Option<TensorsMut<'_, D>>,
        value: D::ViewMut<'_, f64>,
    );
    /// How the losses of a batch become one.
    fn reduction(&self) -> Reduction;
    /// How much the mean over a batch weighs among those of other batches: what was counted in it.
    fn weight(&self, samples: usize, target: &[Self::Target]) -> f64 {
        let _ = target;
        samples as f64
    }
    /// How many predictions are right, and of how many, where that means something. `y` is the output's first tensor.
    fn correct(&self, rows: Rows, y: &[D::Wide], target: &[Self::Target]) -> Option<(usize, usize)> {
        let _ = (rows, y, target);
        None
    }
}

/// Whether a loss is for as many tensors as a model gives.
pub(crate) const fn check_outputs(model: &Text, gives: &Sig, outputs: Option<usize>) -> Option<Fault> {
    match outputs {
        Some(n) if n != gives.len() => {
            let text =
                Text::new().str("the loss is for ").num(n).str(if n == 1 { " output" } else { " outputs" });
            let text = gives.write(text.str(", but `").text(model).str("` gives "));
            Some(Fault::new(text.str(": take `accumulate_custom`")))
        }
        _ => None,
    }
}

/// Whether there are as many targets as there should be.
fn expect(expected: usize, found: usize, samples: usize) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(Error::TargetLength { found, batch: samples, expected }) }
}

/// Mean (or sum) of the squared differences: (1/n)·Σ (y − t)² over all elements.
#[derive(Clone, Copy, Debug, Default)]
pub struct MSE {
    /// How the differences become one number.
    pub reduction: Reduction,
}

impl<D: Device> Loss<D> for MSE {
    type Target = D::Wide;

    fn check(&self, rows: Rows, target: &[D::Wide]) -> Result<(), Error> {
        expect(rows.count * rows.len, target.len(), rows.samples)
    }

    fn value(
        &self,
        device: &D,
        _: Rows,
        y: Tensors<'_, D>,
        target: D::View<'_, D::Wide>,
        mut dy: Option<TensorsMut<'_, D>>,
        value: D::ViewMut<'_, f64>,
    ) {
        device.mse(self.reduction, y.get(0), target, dy.as_mut().and_then(|dy| dy.wanted(0)), value);
    }

    fn reduction(&self) -> Reduction {
        self.reduction
    }
}

/// Softmax cross-entropy with class indices: −log softmax(y)\[t\], mean or sum over the rows.
///
/// As PyTorch's `cross_entropy`: with label smoothing ε a row's target is (1 − ε) at its class plus ε spread
/// evenly over all classes, and rows whose target is `ignore` count neither in the sum nor in the mean.
/// A row is the output's last axis: a model that gives `[64, 50257]` takes 64 targets a sample.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropy {
    /// How the rows become one number.
    pub reduction: Reduction,
    /// The share of a row's target that is spread evenly.
    pub smoothing: f64,
    /// The target of rows that don't count.
    pub ignore: Option<u32>,
}

impl CrossEntropy {
    fn counts(&self, target: u32) -> bool {
        Some(target) != self.ignore
    }
}

impl<D: Device> Loss<D> for CrossEntropy {
    type Target = u32;

    fn check(&self, rows: Rows, target: &[u32]) -> Result<(), Error> {
        expect(rows.count, target.len(), rows.samples)?;
        possible(rows.len, target.iter().copied().filter(|target| self.counts(*target)))
    }

    fn value(
        &self,
        device: &D,
        rows: Rows,
        y: Tensors<'_, D>,
        target: D::View<'_, u32>,
        mut dy: Option<TensorsMut<'_, D>>,
        value: D::ViewMut<'_, f64>,
    ) {
        let Self { reduction, smoothing, ignore } = *self;
        let s = CrossEntropySpec { reduction, smoothing, ignore, ..CrossEntropySpec::new(rows.len) };
        device.cross_entropy(&s, y.get(0), target, dy.as_mut().and_then(|dy| dy.wanted(0)), value);
    }

    fn reduction(&self) -> Reduction {
        self.reduction
    }

    fn weight(&self, _: usize, target: &[u32]) -> f64 {
        target.iter().filter(|t| self.counts(**t)).count() as f64
    }

    fn correct(&self, rows: Rows, y: &[D::Wide], target: &[u32]) -> Option<(usize, usize)> {
        let rows = y.chunks_exact(rows.len.max(1));
        let counted = rows.zip(target).filter(|(_, t)| self.counts(**t));
        Some(counted.fold((0, 0), |(right, all), (row, t)| {
            (right + usize::from(argmax(row) == *t as usize), all + 1)
        }))
    }
}

/// Softmax cross-entropy of the first rows of each sample: the mean of −log softmax(y)\[t\] over rows 0 to `first` − 1 of
/// every sample.
///
/// The last token of a sequence has nothing after it that it could have predicted: a model that gives `[S, V]` learns the next
/// token from S − 1 rows, with S − 1 targets a sample. The rows after them have neither loss nor gradient. Where the rows that
/// don't count differ from one sample to the next, mark them with [`CrossEntropy::ignore`] instead.
///
/// # Errors
/// [`Error::FirstRows`] unless a sample has that many rows; [`Error::TargetLength`] unless there are `first` targets a
/// sample; [`Error::TargetOutOfRange`] for a class that is none.
///
/// ```
/// use nn::{CrossEntropyRows, Embedding, Error, Model, Sgd, sequential};
///
/// sequential! { Bigram: Ids[..8] -> [..8, 5] = Embedding<5, 5> }
///
/// let mut model = Model::<Bigram>::init(1, 1)?;
/// let ids = [3, 1, 4, 1, 2, 0];
/// // Five of the six tokens have one that follows.
/// let next = CrossEntropyRows { first: 5 };
/// let loss = model.train_step(&ids, &ids[1..], &next, &mut Sgd::new(0.1))?;
/// assert!(loss > 0.0);
/// // Class 0 is seen last, and nothing is learnt about what follows it.
/// assert_eq!(model.gradient("0.weight")?[..5], [0.0; 5]);
///
/// let error = model.train_step(&ids, &ids, &CrossEntropyRows { first: 7 }, &mut Sgd::new(0.1)).unwrap_err();
/// assert_eq!(error.to_string(), "a loss over the first 7 rows of a sample is given samples of 6 rows");
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrossEntropyRows {
    /// How many rows of each sample count.
    pub first: usize,
}

impl CrossEntropyRows {
    /// Rows a sample, if that many can count.
    fn each(&self, rows: Rows) -> Result<usize, Error> {
        let (first, each) = (self.first, rows.count / rows.samples.max(1));
        if first == 0 || first > each { Err(Error::FirstRows { first, rows: each }) } else { Ok(each) }
    }
}

impl<D: Device> Loss<D> for CrossEntropyRows {
    type Target = u32;

    fn check(&self, rows: Rows, target: &[u32]) -> Result<(), Error> {
        self.each(rows)?;
        expect(rows.samples * self.first, target.len(), rows.samples)?;
        possible(rows.len, target.iter().copied())
    }

    fn value(
        &self,
        device: &D,
        rows: Rows,
        y: Tensors<'_, D>,
        target: D::View<'_, u32>,
        mut dy: Option<TensorsMut<'_, D>>,
        value: D::ViewMut<'_, f64>,
    ) {
        let each = rows.count / rows.samples.max(1);
        let s = CrossEntropySpec { rows: each, counted: self.first, ..CrossEntropySpec::new(rows.len) };
        device.cross_entropy(&s, y.get(0), target, dy.as_mut().and_then(|dy| dy.wanted(0)), value);
    }

    fn reduction(&self) -> Reduction {
        Reduction::Mean
    }

    fn correct(&self, rows: Rows, y: &[D::Wide], target: &[u32]) -> Option<(usize, usize)> {
        let each = self.each(rows).ok()?;
        let samples = y.chunks_exact((each * rows.len).max(1));
        let kept = samples.flat_map(|y| y.chunks_exact(rows.len.max(1)).take(self.first));
        let right = kept.zip(target).filter(|(row, t)| argmax(row) == **t as usize).count();
        Some((right, target.len()))
    }
}

/// Whether every target is a class.
fn possible(classes: usize, targets: impl Iterator<Item = u32>) -> Result<(), Error> {
    let mut targets = targets;
    let bad = targets.find(|target| *target as usize >= classes);
    bad.map_or(Ok(()), |target| Err(Error::TargetOutOfRange { target, classes }))
}

/// The index of the first largest value; 0 if there is none.
pub fn argmax<E: Float>(row: &[E]) -> usize {
    let mut best = 0;
    for (i, v) in row.iter().enumerate() {
        if *v > row[best] {
            best = i;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cpu, Embedding, Model, sequential};

    const ROWS: Rows = Rows { samples: 3, count: 12, len: 5 };

    fn numbers(n: usize) -> Vec<f64> {
        (0..n as u32).map(|i| f64::from(i.wrapping_mul(2_654_435_761) >> 16) / 16384.0 - 2.0).collect()
    }

    type D = Cpu<f64>;

    /// The value, and the gradient into `dy`.
    fn of<L: Loss<D>>(loss: &L, rows: Rows, y: &[f64], target: &[L::Target], dy: Option<&mut [f64]>) -> f64 {
        let mut value = [f64::NAN];
        loss.value(&D::default(), rows, Tensors::real(y), target, dy.map(TensorsMut::real), &mut value);
        value[0]
    }

    fn rows(first: usize, y: &[f64], target: &[u32]) -> Result<(f64, Vec<f64>), Error> {
        let mut dy = vec![f64::NAN; y.len()];
        let loss = CrossEntropyRows { first };
        Loss::<D>::check(&loss, ROWS, target)?;
        let value = of(&loss, ROWS, y, target, Some(&mut dy));
        assert_eq!(of(&loss, ROWS, y, target, None), value);
        Ok((value, dy))
    }

    #[test]
    fn the_first_rows_count_as_with_all_others_ignored() {
        let (y, kept) = (numbers(60), [[4, 0, 2], [1, 1, 3], [0, 2, 4]]);
        for first in 1..=3 {
            let target: Vec<u32> = kept.iter().flat_map(|t| &t[..first]).copied().collect();
            let all: Vec<u32> =
                kept.iter().flat_map(|t| (0..4).map(move |i| if i < first { t[i] } else { 9 })).collect();
            let mut expected = vec![0.0; 60];
            let ignoring = CrossEntropy { ignore: Some(9), ..CrossEntropy::default() };
            let value = of(&ignoring, ROWS, &y, &all, Some(&mut expected));
            let (found, dy) = rows(first, &y, &target).unwrap();
            assert!((found - value).abs() <= 1e-15 * value, "{found} {value}");
            for (i, (a, b)) in dy.iter().zip(&expected).enumerate() {
                assert!((a - b).abs() <= 1e-16, "{first}, {i}: {a} {b}");
                assert!((i / 5 % 4 < first) || a.to_bits() == 0);
            }
            let right = Loss::<D>::correct(&CrossEntropyRows { first }, ROWS, &y, &target);
            assert_eq!(right, Loss::<D>::correct(&ignoring, ROWS, &y, &all));
            assert_eq!(right.map(|(_, of)| of), Some(3 * first));
        }
    }

    #[test]
    fn of_one_sample_the_bits_are_those_of_cross_entropy() {
        fn value(loss: &impl Loss<D, Target = u32>) -> (f64, Vec<f64>) {
            let (y, mut dy) = (numbers(20), vec![0.0; 20]);
            let one = Rows { samples: 1, count: 4, len: 5 };
            (of(loss, one, &y, &[4, 0, 1, 1], Some(&mut dy)), dy)
        }
        assert_eq!(value(&CrossEntropyRows { first: 4 }), value(&CrossEntropy::default()));
    }

    #[test]
    fn its_gradient_is_that_of_finite_differences() {
        let (y, target, step) = (numbers(60), [4, 0, 1, 1, 3, 2], 1e-5);
        let (_, dy) = rows(2, &y, &target).unwrap();
        for i in 0..60 {
            let at = |by: f64| {
                let mut y = y.clone();
                y[i] += by;
                rows(2, &y, &target).unwrap().0
            };
            assert!(((at(step) - at(-step)) / (2.0 * step) - dy[i]).abs() < 1e-9, "{i}");
        }
    }

    #[test]
    fn rows_and_targets_that_are_not_there_are_errors() {
        let y = numbers(60);
        let error = |first, n: usize| rows(first, &y, &vec![1; n]).unwrap_err().to_string();
        assert_eq!(error(5, 15), "a loss over the first 5 rows of a sample is given samples of 4 rows");
        assert_eq!(error(0, 0), "a loss over the first 0 rows of a sample is given samples of 4 rows");
        assert_eq!(error(3, 12), "12 targets do not go with a batch of 3: 9 are needed");
        assert_eq!(error(4, 9), "9 targets do not go with a batch of 3: 12 are needed");
        let bad = rows(1, &y, &[0, 1, 5]).unwrap_err();
        assert!(matches!(bad, Error::TargetOutOfRange { target: 5, classes: 5 }), "{bad}");
    }

    sequential! { Bigram: Ids[4] -> [4, 5] = Embedding<5, 5> }

    #[test]
    fn evaluating_in_pieces_weighs_every_row_alike() {
        let ids: Vec<u32> = (0..20).map(|i| i * 3 % 5).collect();
        let target: Vec<u32> = ids.chunks(4).flat_map(|ids| ids[1..].to_vec()).collect();
        let whole = |capacity| {
            let mut model = Model::<Bigram, Cpu<f64>>::init(1, capacity).unwrap();
            model.evaluate(&ids, &target, &CrossEntropyRows { first: 3 }).unwrap()
        };
        let (all, some) = (whole(5), whole(2));
        assert!((all.loss - some.loss).abs() < 1e-15);
        assert_eq!((all.samples, all.accuracy), (some.samples, some.accuracy));
    }
}
