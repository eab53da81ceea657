//! Small dense layers that follow one another, in one launch: a policy's whole forward pass, for one.
//!
//! Layers know nothing of it. A product that is recorded right after the one whose result it takes is joined to it: that
//! launch is taken back, and one of both is recorded in its place. All that layers write is written, and with the same
//! bits, so that nothing but the number of launches tells. Whatever is recorded in between ends a chain.

use super::CudaReal;
use super::compile::File;
use super::elementwise::Function;
use super::launch::{Address, Grid, Kernel, Record, Struct};
use super::linear::BUSY;
use super::route::Tiles;

/// Layers of a launch, which are an argument of the kernel, whose arguments may have 4 KiB in all.
const LAYERS: usize = 8;
/// Rows of a tile, as small tiles of a product have: so a launch has no fewer blocks than one of its layers alone,
/// as long as that has no more than 64 columns.
const ROWS: usize = Tiles::Small.rows();
/// Numbers from a column of a tile to the next in shared memory, as in `mlp.cu`.
const COLUMN: usize = ROWS + 4;
/// Bytes of shared memory that the system has of each block.
const SYSTEM: usize = 1 << 10;

/// A layer as the kernel knows it: value (k, column) of the weight is at column·`w_column` + k·`w_k`.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(super) struct Layer {
    pub(super) w: u64,
    /// Or 0.
    pub(super) bias: u64,
    pub(super) y: u64,
    pub(super) w_column: u64,
    pub(super) w_k: u64,
    pub(super) inputs: u64,
    pub(super) outputs: u64,
    pub(super) act: Function,
}

/// The memory from an address to another.
type Span = [u64; 2];

fn overlap([a, a_end]: Span, [b, b_end]: Span) -> bool {
    a < b_end && b < a_end
}

impl Layer {
    /// Where its parameters are.
    fn params<E>(&self) -> [Span; 2] {
        let bytes = size_of::<E>() as u64;
        let biases = if self.bias == 0 { 0 } else { self.outputs };
        [[self.w, self.w + self.inputs * self.outputs * bytes], [self.bias, self.bias + biases * bytes]]
    }

    /// Numbers in shared memory that its parameters take.
    fn room(&self) -> u64 {
        let row = if self.w_k == 1 { self.outputs | 1 } else { self.outputs };
        self.inputs * row + self.outputs
    }
}

/// A product that may be part of a chain.
pub(super) struct Link {
    x: u64,
    rows: usize,
    layer: Layer,
}

impl Link {
    /// Of `rows` rows at `x`.
    pub(super) fn new(x: u64, rows: usize, layer: Layer) -> Self {
        Self { x, rows, layer }
    }

    /// Records it together with the chain before it, if there is one that it goes on with, and a block may have so much
    /// shared memory.
    pub(super) fn join<E: CudaReal>(&self, record: &mut Record<'_>, shared: usize) -> bool {
        let Some(chain) = record.chain().and_then(|chain| chain.with::<E>(self)) else { return false };
        let bytes = chain.shared::<E>();
        // Two blocks, on a multiprocessor that has no more than one may ask for: one computes while the other waits.
        if bytes > (shared.saturating_sub(SYSTEM) / 2) as u64 {
            return false;
        }
        record.take_back();
        chain.launch(record, bytes as usize);
        record.set_chain(chain);
        true
    }

    /// Says that the last launch is this product, and may be gone on with.
    pub(super) fn start(self, record: &mut Record<'_>) {
        record.set_chain(Chain { x: self.x, rows: self.rows, count: 1, layers: [self.layer; LAYERS] });
    }
}

/// Layers of so many rows, of which each takes what the one before it gives.
#[derive(Clone, Copy)]
pub(super) struct Chain {
    x: u64,
    rows: usize,
    count: usize,
    /// Beyond the first `count`, some that nobody reads.
    layers: [Layer; LAYERS],
}

impl Chain {
    fn layers(&self) -> &[Layer] {
        &self.layers[..self.count]
    }

    /// With one more layer, if the result is the same whichever rows are computed first.
    fn with<E>(&self, next: &Link) -> Option<Self> {
        let (last, layer) = (self.layers().last()?, next.layer);
        let follows = next.rows == self.rows && next.x == last.y && layer.inputs == last.outputs;
        if !follows || self.count == LAYERS {
            return None;
        }
        let mut chain = *self;
        chain.layers[self.count] = layer;
        chain.count += 1;
        // Parameters are read before anything is written.
        let mut params = chain.layers().iter().flat_map(Layer::params::<E>);
        let outputs = chain.layers().iter().map(|layer| (layer.y, layer.outputs));
        let span = |(at, columns): (u64, u64)| [at, at + self.rows as u64 * columns * size_of::<E>() as u64];
        if params.any(|params| outputs.clone().any(|y| overlap(params, span(y)))) {
            return None;
        }
        // What an output may lie over: the same rows in the same places, of which a block has its own, and they are read
        // before they are written. Of two outputs the later one stays.
        let x = (chain.x, chain.layers[0].inputs);
        let y = (layer.y, layer.outputs);
        let over = |&before: &(u64, u64)| before != y && overlap(span(before), span(y));
        let clear = !std::iter::once(x).chain(outputs.take(self.count)).any(|before| over(&before));
        clear.then_some(chain)
    }

    /// The most columns that x or an output has.
    fn widest(&self) -> u64 {
        self.layers().iter().map(|layer| layer.inputs.max(layer.outputs)).max().unwrap_or(0)
    }

    /// Bytes of shared memory.
    fn shared<E: CudaReal>(&self) -> u64 {
        let params: u64 = self.layers().iter().map(Layer::room).sum();
        size_of::<E::Wide>() as u64 * (2 * self.widest() * COLUMN as u64 + params)
    }

    fn launch(&self, record: &mut Record<'_>, shared: usize) {
        // Parameters are fetched once by each block: more of them than are busy at once would only fetch them again.
        let blocks = self.rows.div_ceil(ROWS).min(BUSY);
        let grid = Grid::blocks([blocks, 1, 1], Tiles::THREADS).shared(shared);
        let launch = record.launch(Kernel::new(File::Mlp, "mlp"), grid).arg(Struct(&self.layers));
        launch.arg(self.count as u32).arg(Address(self.x)).arg(self.rows).arg(self.widest()).done();
    }
}
