use nn_kernels::Device;
use nn_kernels::ops::Stream;

use crate::Size;
use crate::dims::{Dims, MAX_LENGTHS};
use crate::layer::Layer;
use crate::signature::Signature;
use crate::tensors::{Tensor, Tensors};

/// What a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// Dropout drops, batch normalisation uses the batch and moves its running statistics.
    Train,
    /// Neither.
    #[default]
    Infer,
}

/// What went wrong within a call: only what the compiler could not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallFault {
    /// An index past the end of a table.
    IdOutOfRange {
        /// The index.
        id: u32,
        /// How many rows the table has.
        rows: usize,
    },
    /// Batch normalisation in training needs two values a channel.
    OneValueAChannel,
}

/// Everything about a call that changes from one to the next. Nothing that a layer does depends on anything
/// else but this, its parameters, its state and its input.
pub struct Ctx<'d, D: Device> {
    device: &'d D,
    /// How many samples there are.
    pub batch: usize,
    /// The lengths of the bounded axes, by tag.
    pub lengths: [usize; MAX_LENGTHS],
    /// What the call is for.
    pub mode: Mode,
    keep: bool,
    past: Option<usize>,
    stream: Stream,
    place: u32,
    fault: Option<(u32, CallFault)>,
    watch: bool,
    /// The place of the first layer whose output was not finite, and how many places it has.
    not_finite: Option<(u32, u32)>,
}

impl<'d, D: Device> Ctx<'d, D> {
    /// A call for inference.
    #[inline(always)]
    pub fn new(device: &'d D, batch: usize) -> Self {
        Self {
            device,
            batch,
            lengths: [0; MAX_LENGTHS],
            mode: Mode::Infer,
            keep: false,
            past: None,
            stream: Stream::default(),
            place: 0,
            fault: None,
            watch: false,
            not_finite: None,
        }
    }

    /// The same, keeping what the vjp will need.
    #[inline(always)]
    pub fn keeping(mut self) -> Self {
        self.keep = true;
        self
    }

    /// The same, going on with sequences of which `past` tokens were given before: what they left is in the cache.
    #[inline(always)]
    pub fn continuing(mut self, past: usize) -> Self {
        self.past = Some(past);
        self
    }

    /// The same in another mode.
    #[inline(always)]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The same with other random numbers.
    #[inline(always)]
    pub fn stream(mut self, stream: Stream) -> Self {
        self.stream = stream;
        self
    }

    /// The same with these lengths for the bounded axes.
    #[inline(always)]
    pub fn lengths(mut self, lengths: [usize; MAX_LENGTHS]) -> Self {
        self.lengths = lengths;
        self
    }

    /// The same, looking at every layer's output for values that are not finite.
    #[inline(always)]
    pub fn watching(mut self, watch: bool) -> Self {
        self.watch = watch;
        self
    }

    /// Runs `part` as a call of its own, which keeps as it says and goes on with nothing, on so many samples.
    pub(crate) fn apart<T>(&mut self, keep: bool, batch: usize, part: impl FnOnce(&mut Self) -> T) -> T {
        let (was, batch) = ((self.keep, self.past), std::mem::replace(&mut self.batch, batch));
        (self.keep, self.past) = (keep, None);
        let result = part(self);
        ((self.keep, self.past), self.batch) = (was, batch);
        result
    }

    /// The device.
    #[inline(always)]
    pub fn device(&self) -> &'d D {
        self.device
    }

    /// Whether forward must keep what the vjp will need.
    #[inline(always)]
    pub fn keeps(&self) -> bool {
        self.keep
    }

    /// How many tokens were given before, if this call has a cache.
    #[inline(always)]
    pub fn past(&self) -> Option<usize> {
        self.past
    }

    /// The position of the first token.
    #[inline(always)]
    pub fn position(&self) -> usize {
        self.past.unwrap_or(0)
    }

    /// What a layer leaves in this call: for the vjp, for the tokens to come, or nothing.
    #[inline(always)]
    pub fn left<L: Layer<X>, X: Signature>(&self) -> Size {
        match self.past {
            Some(_) => L::CACHE,
            None => L::SAVED.when(self.keep),
        }
    }

    /// Whether this call trains.
    #[inline(always)]
    pub fn trains(&self) -> bool {
        self.mode == Mode::Train
    }

    /// The random numbers of the layer that is running.
    #[inline(always)]
    pub fn random(&self) -> Stream {
        Stream { place: self.place, ..self.stream }
    }

    /// Elements of a tensor over the whole batch.
    #[inline(always)]
    pub fn numel(&self, dims: &Dims) -> usize {
        self.batch * dims.numel_at(&self.lengths)
    }

    /// Rows of a tensor over the whole batch, if a row is its last axis.
    #[inline(always)]
    pub fn rows(&self, dims: &Dims) -> usize {
        let mut rows = self.batch;
        for i in 1..dims.rank() {
            rows *= dims.axis_at(i - 1, &self.lengths);
        }
        rows
    }

    /// Bytes of a planned buffer in this call.
    #[inline(always)]
    pub fn bytes(&self, size: Size) -> usize {
        size.at(self.batch, size_of::<D::Elem>())
    }

    /// Records what went wrong in the layer that is running; the first time counts.
    pub fn fail(&mut self, fault: CallFault) {
        self.fault.get_or_insert((self.place, fault));
    }

    /// What went wrong, and at which place.
    #[inline(always)]
    pub fn fault(&self) -> Option<(u32, CallFault)> {
        self.fault
    }

    /// The first place whose output was not finite, if the call [watches](Self::watching).
    #[inline(always)]
    pub fn not_finite(&self) -> Option<u32> {
        self.not_finite.map(|(place, _)| place)
    }

    /// The same, and how many places the layer has.
    #[inline(always)]
    pub(crate) fn not_finite_within(&self) -> Option<(u32, u32)> {
        self.not_finite
    }

    /// The place of the layer that is running.
    #[inline(always)]
    pub fn place(&self) -> u32 {
        self.place
    }

    /// Goes to a part of the layer that is running, `offset` places further on. Gives the place to
    /// [leave](Self::leave) for.
    #[inline(always)]
    pub fn enter(&mut self, offset: u32) -> u32 {
        let here = self.place;
        self.place += offset;
        here
    }

    /// Goes back.
    #[inline(always)]
    pub fn leave(&mut self, place: u32) {
        self.place = place;
    }

    /// Whether the call [watches](Self::watching), and has seen nothing yet.
    #[inline(always)]
    pub(crate) fn watches(&self) -> bool {
        self.watch && self.not_finite.is_none()
    }

    /// Looks at the output of a layer with so many places.
    #[cold]
    pub(crate) fn look(&mut self, y: Tensors<'_, D>, places: u32) {
        let bad = y.iter().any(|t| match t {
            Tensor::Real(view) => !self.device.all_finite(view),
            Tensor::Ids(_) => false,
        });
        self.not_finite = bad.then_some((self.place, places));
    }
}
