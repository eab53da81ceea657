//! Sums over rows and over channels, in two steps of a fixed order.

use super::compile::File;
use super::launch::{Address, Grid, Kernel, Record};
use super::memory::{View, ViewMut};
use super::{Cuda, CudaReal};

/// Blocks that keep a GPU busy.
const BUSY: usize = 512;
/// Rows that a block should have at least, of 32 columns.
const ROWS: usize = 64;
/// Values of a channel that a block should have at least.
const VALUES: usize = 2048;

pub(super) const fn kernel(name: &'static str) -> Kernel {
    Kernel::new(File::Sums, name)
}

/// What is summed: two sums each, of which some have one only.
#[derive(Debug, Clone, Copy)]
pub(super) enum Term {
    /// a.
    Plain = 0,
    /// (a − m)².
    Square = 1,
    /// b, and (a − m)·b.
    Gradient = 2,
    /// b, and b times a's row's normalised value.
    LayerNorm = 3,
    /// The same of RMSNorm.
    RmsNorm = 4,
}

/// Parts of sums, `[splits, 2, sums]` of double precision.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    at: Address,
    splits: usize,
    sums: usize,
}

impl Parts {
    /// y += the first sums or the second ones.
    pub(super) fn add<E: CudaReal>(self, record: &mut Record<'_>, which: u32, y: &ViewMut<'_, E>) {
        let launch = record.launch(kernel("add_sums"), Grid::flat(self.sums));
        launch.arg(self.at).arg(self.splits).arg(self.sums).arg(which).arg(y).done();
    }
}

/// How a matrix's columns are summed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Columns {
    rows: usize,
    cols: usize,
    splits: usize,
}

impl Columns {
    pub(super) fn new(rows: usize, cols: usize) -> Self {
        let splits = (BUSY / cols.div_ceil(32).max(1)).clamp(1, rows.div_ceil(ROWS).max(1));
        Self { rows, cols, splits }
    }

    /// Bytes that the parts need.
    pub(super) fn bytes(self) -> usize {
        16 * self.splits * self.cols
    }

    /// Sums into `at`, which has room for [`bytes`](Self::bytes).
    pub(super) fn sum<E: CudaReal>(
        self,
        record: &mut Record<'_>,
        at: Address,
        term: Term,
        [a, b]: [View<'_, E>; 2],
        stats: Option<View<'_, E::Wide>>,
        m: Option<Address>,
    ) -> Parts {
        let Self { rows, cols, splits } = self;
        let launch = record.launch(kernel("column_sums"), Grid::blocks([cols.div_ceil(32), splits, 1], 256));
        let launch = launch.arg(term as u32).arg(a).arg(b).arg(stats).arg(m).arg(at);
        launch.arg(rows).arg(cols).arg(rows.div_ceil(splits)).done();
        Parts { at, splits, sums: cols }
    }
}

/// How values `[batch, channels, area]` are summed by channel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Channels {
    pub(super) batch: usize,
    pub(super) channels: usize,
    pub(super) area: usize,
}

impl Channels {
    fn splits(self) -> usize {
        if self.area == 1 {
            Columns::new(self.batch, self.channels).splits
        } else {
            let values = self.batch * self.area;
            (BUSY / self.channels.max(1)).clamp(1, values.div_ceil(VALUES).max(1))
        }
    }

    /// Bytes that the parts need.
    pub(super) fn bytes(self) -> usize {
        16 * self.splits() * self.channels
    }

    /// Sums into `at`, which has room for [`bytes`](Self::bytes).
    pub(super) fn sum<E: CudaReal>(
        self,
        record: &mut Record<'_>,
        at: Address,
        term: Term,
        [a, b]: [View<'_, E>; 2],
        m: Option<Address>,
    ) -> Parts {
        let Self { batch, channels, area } = self;
        if area == 1 {
            // Neighbours are channels, and not a channel's values.
            return Columns::new(batch, channels).sum(record, at, term, [a, b], None, m);
        }
        let splits = self.splits();
        let launch = record.launch(kernel("channel_sums"), Grid::blocks([channels, splits, 1], 256));
        let launch = launch.arg(term as u32).arg(a).arg(b).arg(m).arg(at);
        launch.arg(batch).arg(channels).arg(area).arg((batch * area).div_ceil(splits)).done();
        Parts { at, splits, sums: channels }
    }

    /// The means that those parts give, into `m`.
    pub(super) fn means(self, record: &mut Record<'_>, parts: Parts, m: Address) {
        let count = (self.batch * self.area) as f64;
        let launch = record.launch(kernel("means"), Grid::flat(self.channels));
        launch.arg(parts.at).arg(parts.splits).arg(parts.sums).arg(count).arg(m).done();
    }
}

/// What a kernel takes of parts: where they are, and how many splits of how many sums.
pub(super) fn described(parts: Parts) -> (Address, usize, usize) {
    (parts.at, parts.splits, parts.sums)
}

impl<E: CudaReal> Cuda<E> {
    /// y += Σ rows of x.
    pub(super) fn add_column_sums(&self, rows: usize, x: View<'_, E>, y: &ViewMut<'_, E>) {
        let columns = Columns::new(rows, y.len());
        let mut record = self.record();
        let at = record.scratch(columns.bytes());
        columns.sum(&mut record, at, Term::Plain, [x, x], None, None).add(&mut record, 0, y);
    }

    /// y += Σ over a channel's values of x.
    pub(super) fn add_channel_sums(&self, channels: Channels, x: View<'_, E>, y: &ViewMut<'_, E>) {
        let mut record = self.record();
        let at = record.scratch(channels.bytes());
        channels.sum(&mut record, at, Term::Plain, [x, x], None).add(&mut record, 0, y);
    }
}
