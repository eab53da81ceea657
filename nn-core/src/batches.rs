use nn_kernels::philox::Philox;

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
            self.epoch += 1;
            self.at = 0;
            self.shuffle();
            return None;
        }
        let from = self.at;
        self.at = (from + self.batch).min(self.order.len());
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

    /// Seed, epoch and position, for a checkpoint.
    pub(crate) fn position(&self) -> [u64; 3] {
        [self.seed, self.epoch, self.at as u64]
    }

    /// Goes back to a [`position`](Self::position).
    pub(crate) fn seek(&mut self, [seed, epoch, at]: [u64; 3]) {
        self.seed = seed;
        self.epoch = epoch;
        self.at = usize::try_from(at).unwrap_or(usize::MAX).min(self.order.len());
        self.shuffle();
    }

    /// Fisher and Yates, in place: an epoch allocates nothing.
    fn shuffle(&mut self) {
        let mut rng = Philox::new(self.seed, self.epoch);
        self.order.iter_mut().enumerate().for_each(|(i, v)| *v = i);
        for i in (1..self.order.len()).rev() {
            let k = (rng.uniform() * (i + 1) as f64) as usize;
            self.order.swap(i, k.min(i));
        }
    }
}

/// Copies the samples at `indices`, of `each` values, from `all` to `to`.
///
/// # Panics
/// If an index is past the end.
pub fn gather<T: Copy>(all: &[T], each: usize, indices: &[usize], to: &mut Vec<T>) {
    to.clear();
    for i in indices {
        to.extend_from_slice(&all[i * each..(i + 1) * each]);
    }
}
