use nn_kernels::philox::Philox;

use crate::error::Error;

/// Indices of a data set in batches, shuffled anew each epoch. The order depends on the seed and the epoch
/// alone, so it can be resumed.
///
/// ```
/// let mut batches = nn::Batches::new(10, 4, 7);
/// let epoch: Vec<Vec<usize>> = std::iter::from_fn(|| batches.next_batch().map(<[usize]>::to_vec)).collect();
/// assert_eq!(epoch.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2]);
/// let mut seen = epoch.concat();
/// seen.sort();
/// assert_eq!(seen, (0..10).collect::<Vec<_>>());
/// ```
#[derive(Clone, Debug)]
pub struct Batches {
    order: Vec<usize>,
    batch: usize,
    seed: u64,
    epoch: u64,
    at: usize,
}

impl Batches {
    /// `len` samples in batches of `batch`; the last of an epoch may be smaller.
    pub fn new(len: usize, batch: usize, seed: u64) -> Self {
        let mut all = Self { order: vec![0; len], batch: batch.max(1), seed, epoch: 0, at: 0 };
        all.shuffle();
        all
    }

    /// The next batch of this epoch; `None` once at its end, after which the next epoch begins.
    pub fn next_batch(&mut self) -> Option<&[usize]> {
        if self.at >= self.order.len() {
            self.epoch = self.epoch.wrapping_add(1);
            self.at = 0;
            self.shuffle();
            return None;
        }
        let from = self.at;
        self.at = from.saturating_add(self.batch).min(self.order.len());
        Some(&self.order[from..self.at])
    }

    /// The epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Batches an epoch.
    pub fn per_epoch(&self) -> usize {
        self.order.len().div_ceil(self.batch)
    }

    /// Samples in the data.
    pub fn samples(&self) -> usize {
        self.order.len()
    }

    /// Where it stands, for a checkpoint.
    pub(crate) fn position(&self) -> Position {
        Position {
            samples: self.order.len() as u64,
            batch: self.batch as u64,
            seed: self.seed,
            epoch: self.epoch,
            at: self.at as u64,
        }
    }

    /// Where it would stand at `position`, or what speaks against it.
    pub(crate) fn resolve(&self, position: Position) -> Result<Resolved, String> {
        let Position { samples, batch, seed, epoch, at } = position;
        if samples != self.order.len() as u64 {
            return Err(format!(
                "it was saved with {samples} samples of data, and this has {}",
                self.order.len()
            ));
        }
        if at > samples {
            return Err(format!("it was saved at sample {at} of {samples}"));
        }
        match (usize::try_from(batch), usize::try_from(at)) {
            (Ok(batch), Ok(at)) if batch > 0 => Ok(Resolved { batch, seed, epoch, at }),
            _ => Err(format!("its batches are of {batch} samples")),
        }
    }

    /// Goes to a place that was [resolved](Self::resolve).
    pub(crate) fn seek(&mut self, to: Resolved) {
        Resolved { batch: self.batch, seed: self.seed, epoch: self.epoch, at: self.at } = to;
        self.shuffle();
    }

    /// Fisher and Yates, in place: an epoch allocates nothing.
    fn shuffle(&mut self) {
        // Apart from what a model with the same seed draws.
        let mut rng = Philox::new(self.seed, self.epoch ^ 0x6F72_6465_7200_0000);
        self.order.iter_mut().enumerate().for_each(|(i, v)| *v = i);
        for i in (1..self.order.len()).rev() {
            let k = (rng.uniform() * (i + 1) as f64) as usize;
            self.order.swap(i, k.min(i));
        }
    }
}

/// A place in the data, as a checkpoint has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) samples: u64,
    pub(crate) batch: u64,
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
    pub(crate) at: u64,
}

/// A place that is known to exist.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolved {
    batch: usize,
    seed: u64,
    epoch: u64,
    at: usize,
}

/// Copies the samples at `indices`, of `each` values, from `all` to `to`, whose memory is used again.
///
/// # Errors
/// An index is past the end; then `to` is empty.
///
/// ```
/// let mut batch = Vec::new();
/// nn::gather(&[0, 1, 10, 11, 20, 21], 2, &[2, 0], &mut batch)?;
/// assert_eq!(batch, [20, 21, 0, 1]);
/// # Ok::<(), nn::Error>(())
/// ```
pub fn gather<T: Copy>(all: &[T], each: usize, indices: &[usize], to: &mut Vec<T>) -> Result<(), Error> {
    to.clear();
    for &index in indices {
        let range = index.checked_mul(each).and_then(|from| Some(from..from.checked_add(each)?));
        let Some(sample) = range.and_then(|range| all.get(range)) else {
            to.clear();
            return Err(Error::SampleOutOfRange { index, samples: all.len().checked_div(each).unwrap_or(0) });
        };
        to.extend_from_slice(sample);
    }
    Ok(())
}
