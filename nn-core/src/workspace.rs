use std::marker::PhantomData;

use nn_kernels::ops::Stream;
use nn_kernels::{Cpu, Device, DeviceError, Memory, Pod, View, ViewMut, cpu};

use crate::ctx::{CallFault, Ctx, Mode};
use crate::describe::{Describe, Row};
use crate::dims::MAX_LENGTHS;
use crate::error::Error;
use crate::host::Host;
use crate::layer::{Declared, Forward, Layer, Module, Vjp};
use crate::loss::Rows;
use crate::region::{Region, RegionRef, State, StateRef};
use crate::signature::{MAX_TENSORS, Sig, Signature};
use crate::tensors::{Known, Tensors, TensorsMut};
use crate::weights::Weights;

/// The memory that runs a model: allocated once, for at most so many samples, and then reused by every call.
/// Several workspaces can share one set of [`Weights`], each in a thread of its own.
pub struct Workspace<M: Declared, D: Device> {
    capacity: usize,
    /// How many sequences a call holds, for a model with a bounded axis.
    sequences: usize,
    pub(crate) arena: Arena<M, D>,
    pub(crate) staging: Staging<D>,
    /// Whether every layer's output is looked at for values that are not finite.
    pub check_finite: bool,
}

/// What the layers work in.
pub(crate) struct Arena<M: Declared, D: Device> {
    saved: Option<D::Buffer<u8>>,
    scratch: D::Buffer<u8>,
    output: D::Buffer<u8>,
    gradient: Option<D::Buffer<u8>>,
    model: PhantomData<fn() -> M>,
}

/// What is copied between the host and a device with memory of its own goes here; empty if it has none.
pub(crate) struct Staging<D: Device> {
    pub(crate) inputs: D::Buffer<u8>,
    /// Made when there are targets, and as large as they need it.
    pub(crate) targets: Option<D::Buffer<u8>>,
    pub(crate) outputs: Option<cpu::Buffer<u8>>,
}

impl<D: Device> Staging<D> {
    fn new(device: &D, inputs: usize, outputs: usize) -> Result<Self, DeviceError> {
        let remote = |bytes| if D::HOST { 0 } else { bytes };
        let outputs = if D::HOST { None } else { Some(Cpu::<f32>::default().alloc(outputs)?) };
        Ok(Self { inputs: device.alloc(remote(inputs))?, targets: None, outputs })
    }

    /// The targets on the device, in the room for them.
    pub(crate) fn bring_targets<'a, T: Pod>(
        room: &'a mut Option<D::Buffer<u8>>,
        device: &D,
        targets: &'a [T],
    ) -> Result<D::View<'a, T>, DeviceError> {
        if D::HOST {
            return Ok(device.bring(targets, D::empty_mut()));
        }
        let bytes = size_of_val(targets);
        if room.as_ref().is_none_or(|room| D::len(D::view(room)) < bytes) {
            *room = Some(device.alloc(bytes)?);
        }
        let room = room.as_mut().map_or_else(D::empty_mut, |room| D::view_mut(room));
        Ok(device.bring(targets, D::cast_mut(D::split_mut(room, bytes).0)))
    }

    /// The output as slices.
    #[inline(always)]
    pub(crate) fn fetch<'a, V: Host>(
        room: &'a mut Option<cpu::Buffer<u8>>,
        device: &D,
        y: Tensors<'a, D>,
    ) -> V::Slices<'a, D::Wide> {
        let mut room = match room {
            Some(room) if !D::HOST => Region::new(room.as_mut_slice()),
            _ => Region::empty(),
        };
        V::fetch(device, y, &mut room).0
    }
}

/// How many samples a call has, and how long its bounded axes are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extents {
    pub(crate) batch: usize,
    pub(crate) lengths: [usize; MAX_LENGTHS],
}

/// What one call is: everything but the values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) extents: Extents,
    pub(crate) mode: Mode,
    pub(crate) keep: bool,
    pub(crate) stream: Stream,
    /// With a cache: how many tokens were given before.
    pub(crate) past: Option<usize>,
    /// Whether every layer's output is looked at.
    pub(crate) watch: bool,
}

impl Call {
    #[inline(always)]
    pub(crate) fn inference(extents: Extents) -> Self {
        Self { extents, mode: Mode::Infer, keep: false, stream: Stream::default(), past: None, watch: false }
    }

    #[inline(always)]
    fn context<D: Device>(self, device: &D) -> Ctx<'_, D> {
        let cx = Ctx::new(device, self.extents.batch)
            .lengths(self.extents.lengths)
            .mode(self.mode)
            .stream(self.stream)
            .watching(self.watch);
        match self.past {
            Some(past) => cx.continuing(past),
            None if self.keep => cx.keeping(),
            None => cx,
        }
    }
}

impl<M: Declared, D: Device> Workspace<M, D> {
    const TAKES: Sig = <M::In as Signature>::SIG;
    const GIVES: Sig = <M::Out as Signature>::SIG;

    /// For inference on at most `capacity` samples at a time.
    pub fn new(device: &D, capacity: usize) -> Result<Self, Error>
    where
        M: Module<D, M::In>,
    {
        Self::with(device, capacity, false)
    }

    /// For training on at most `capacity` samples at a time, and for inference.
    pub fn training(device: &D, capacity: usize) -> Result<Self, Error>
    where
        M: Module<D, M::In>,
    {
        Self::with(device, capacity, true)
    }

    fn with(device: &D, capacity: usize, trains: bool) -> Result<Self, Error>
    where
        M: Module<D, M::In>,
    {
        // A generic model that was never declared concrete is caught here, when it is built.
        const { crate::accept(&<M as Layer<M::In>>::RULE.fault) };
        // What a plan takes wide values for.
        const { assert!(size_of::<D::Wide>() <= 4 || size_of::<D::Wide>() == size_of::<D::Elem>()) };
        let bytes = |size: crate::Size| size.at(capacity, size_of::<D::Elem>());
        let scratch = <M as Layer<M::In>>::SCRATCH;
        let scratch = if trains { scratch.max(<M as Layer<M::In>>::VJP_SCRATCH) } else { scratch };
        let arena = Arena {
            saved: if trains { Some(device.alloc(bytes(<M as Layer<M::In>>::SAVED))?) } else { None },
            scratch: device.alloc(bytes(scratch))?,
            output: device.alloc(bytes(Self::GIVES.size()))?,
            gradient: if trains { Some(device.alloc(bytes(Self::GIVES.size()))?) } else { None },
            model: PhantomData,
        };
        // As the host has them, and rounded.
        let staged = |size: crate::Size| {
            let wide = if D::MIXED { size.at(capacity, size_of::<D::Wide>()) } else { 0 };
            bytes(size).saturating_add(wide)
        };
        let staging = Staging::new(device, staged(Self::TAKES.size()), staged(Self::GIVES.size()))?;
        Ok(Self { capacity, sequences: 1, arena, staging, check_finite: false })
    }

    /// Says how many sequences of one length the next calls hold, if the model has a bounded axis: 1 unless set, since
    /// the number of values alone can't tell two short sequences from a long one. 0 counts as 1.
    pub fn set_sequences(&mut self, sequences: usize) {
        self.sequences = sequences.max(1);
    }

    /// The most samples a call can have.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes it holds.
    pub fn bytes(&self) -> usize {
        let len = |b: &D::Buffer<u8>| D::len(D::view(b));
        let (arena, staging) = (&self.arena, &self.staging);
        len(&arena.scratch)
            + len(&arena.output)
            + arena.saved.as_ref().map_or(0, len)
            + arena.gradient.as_ref().map_or(0, len)
            + len(&staging.inputs)
            + staging.targets.as_ref().map_or(0, len)
    }

    /// How many samples `x` holds, and how long; every input must agree.
    #[inline(always)]
    pub(crate) fn extents(&self, x: <M::In as Host>::Slices<'_, D::Wide>) -> Result<Extents, Error>
    where
        M::In: Host,
    {
        let extents = self.samples(x)?;
        if extents.batch > self.capacity {
            return Err(Error::BatchTooLarge { batch: extents.batch, capacity: self.capacity });
        }
        if const { Self::TAKES.is_bounded() } {
            check_lengths(&Self::TAKES, &extents.lengths)?;
        }
        Ok(extents)
    }

    /// The same, however many there is room for.
    #[inline(always)]
    pub(crate) fn samples(&self, x: <M::In as Host>::Slices<'_, D::Wide>) -> Result<Extents, Error>
    where
        M::In: Host,
    {
        let (mut lens, mut tensor) = ([0; MAX_TENSORS], 0);
        M::In::lens(x, &mut |len| {
            // A signature has no more tensors than that.
            if let Some(place) = lens.get_mut(tensor) {
                *place = len;
            }
            tensor += 1;
        });
        // What is nearly always so. What is wrong, if anything, is found out below.
        if let (true, Some(each @ 1..)) = (Known::<M::In>::REAL, Known::<M::In>::EACH) {
            let n = lens[0];
            if n > 0 && n.is_multiple_of(each) {
                return Ok(Extents { batch: n / each, lengths: [0; MAX_LENGTHS] });
            }
        }
        extents_of(&Self::TAKES, &lens, self.sequences)
    }

    /// The extents of `samples` of those that `all` tells of; there is room for them.
    pub(crate) fn part_extents(all: &Extents, samples: usize) -> Result<Extents, Error> {
        check_lengths(&Self::TAKES, &all.lengths)?;
        Ok(Extents { batch: samples, ..*all })
    }

    /// The rows of the output's first tensor.
    pub(crate) fn rows(extents: &Extents) -> Rows {
        let dims = Self::GIVES.dims(0);
        let len = if dims.rank() == 0 { 1 } else { dims.axis_at(dims.rank() - 1, &extents.lengths) };
        let count = extents.batch * dims.numel_at(&extents.lengths).checked_div(len).unwrap_or(0);
        Rows { samples: extents.batch, count, len }
    }
}

impl<M: Declared, D: Device> Arena<M, D> {
    /// Runs forward; the output stays in the workspace.
    pub(crate) fn forward(
        &mut self,
        device: &D,
        params: View<'_, D>,
        state: State<'_, D>,
        x: Tensors<'_, D>,
        call: Call,
    ) -> Result<(), Error>
    where
        M: Module<D, M::In>,
    {
        self.forward_with(device, params, state, x, call, None)
    }

    /// The same, with a cache of the tokens that were given before.
    pub(crate) fn forward_with(
        &mut self,
        device: &D,
        params: View<'_, D>,
        state: State<'_, D>,
        x: Tensors<'_, D>,
        call: Call,
        cache: Option<Region<'_, D>>,
    ) -> Result<(), Error>
    where
        M: Module<D, M::In>,
    {
        let mut cx = call.context(device);
        let mut saved = match (cache, &mut self.saved, call.keep) {
            (Some(cache), ..) => cache.shorten(),
            (None, Some(saved), true) => Region::new(D::view_mut(saved)),
            _ => Region::empty(),
        };
        let y = TensorsMut::carve_as::<M::Out>(&cx, &mut Region::new(D::view_mut(&mut self.output)));
        let mut scratch = Region::new(D::view_mut(&mut self.scratch));
        let forward = Forward {
            params: D::shorten(params),
            state: state.shorten(),
            x: x.lend::<M::In>(),
            y: y.shorten(),
            saved: saved.reborrow(),
            scratch: scratch.reborrow(),
        };
        M::forward(&mut cx, forward);
        outcome::<M, D>(&cx)
    }

    /// The output of the last forward pass.
    #[inline(always)]
    pub(crate) fn output(&self, device: &D, call: Call) -> Tensors<'_, D> {
        RegionRef::new(D::view(&self.output)).tensors_as::<M::Out>(&call.context(device))
    }

    /// The output of the last forward pass, and room for its gradient.
    pub(crate) fn output_and_gradient(
        &mut self,
        device: &D,
        call: Call,
    ) -> (Tensors<'_, D>, TensorsMut<'_, D>) {
        let cx = call.context(device);
        let y = RegionRef::new(D::view(&self.output)).tensors_as::<M::Out>(&cx);
        let mut region = match &mut self.gradient {
            Some(gradient) => Region::new(D::view_mut(gradient)),
            None => Region::empty(),
        };
        let mut dy = TensorsMut::carve_gradient_as::<M::Out>(&cx, &mut region);
        if const { <M::Out as Signature>::SIG.len() > 1 } {
            // A loss may look at some of the outputs only.
            dy.zero(&cx);
        }
        (y, dy)
    }

    /// Runs the vjp of the last forward pass, which kept what it needs; adds to `dparams`.
    pub(crate) fn vjp(
        &mut self,
        device: &D,
        params: View<'_, D>,
        state: StateRef<'_, D>,
        x: Tensors<'_, D>,
        dparams: ViewMut<'_, D>,
        call: Call,
    ) -> Result<(), Error>
    where
        M: Module<D, M::In>,
    {
        let mut cx = call.context(device).watching(false);
        let read = |buffer| RegionRef::new(D::view(buffer));
        let saved = self.saved.as_ref().map_or_else(RegionRef::empty, read);
        let mut gradient = self.gradient.as_ref().map_or_else(RegionRef::empty, read);
        let mut scratch = Region::new(D::view_mut(&mut self.scratch));
        let mut dparams = dparams;
        let vjp = Vjp {
            params: D::shorten(params),
            state: state.shorten(),
            x: x.lend::<M::In>(),
            y: read(&self.output).tensors_as::<M::Out>(&cx).lend::<M::Out>(),
            saved: saved.shorten(),
            dy: gradient.gradients_as::<M::Out>(&cx).lend::<M::Out>(),
            dx: TensorsMut::unwanted(const { <M::In as Signature>::SIG.len() }),
            dparams: Some(D::reborrow(&mut dparams)),
            scratch: scratch.reborrow(),
        };
        M::vjp(&mut cx, vjp);
        outcome::<M, D>(&cx)
    }
}

impl<M: Declared<In: Host, Out: Host> + Module<D, <M as Declared>::In>, D: Device> Workspace<M, D> {
    /// Infers: the output for the samples in `x`, as slices of the workspace.
    ///
    /// # Errors
    /// More samples than the workspace has room for, inputs of the wrong length, an index past the end of
    /// a table.
    #[inline(always)]
    pub fn infer(
        &mut self,
        weights: &Weights<M, D>,
        x: <M::In as Host>::Slices<'_, D::Wide>,
    ) -> Result<<M::Out as Host>::Slices<'_, D::Wide>, Error> {
        let call = self.call(Call::inference(self.extents(x)?));
        self.infer_as(weights, x, call, None)
    }

    /// The call, watched if the workspace is asked to.
    #[inline(always)]
    pub(crate) fn call(&self, call: Call) -> Call {
        Call { watch: self.check_finite, ..call }
    }

    /// Infers as `call` says, of a size that there is room for.
    #[inline(always)]
    pub(crate) fn infer_as(
        &mut self,
        weights: &Weights<M, D>,
        x: <M::In as Host>::Slices<'_, D::Wide>,
        call: Call,
        cache: Option<Region<'_, D>>,
    ) -> Result<<M::Out as Host>::Slices<'_, D::Wide>, Error> {
        self.forward_as(weights, x, call, cache)?;
        let (device, Self { arena, staging, .. }) = (weights.device(), self);
        let y = Staging::<D>::fetch::<M::Out>(&mut staging.outputs, device, arena.output(device, call));
        finish::<M, D>(device)?;
        Ok(y)
    }

    /// The same, with the output left on the device, which may still be at work.
    #[inline(always)]
    pub(crate) fn forward_as(
        &mut self,
        weights: &Weights<M, D>,
        x: <M::In as Host>::Slices<'_, D::Wide>,
        call: Call,
        cache: Option<Region<'_, D>>,
    ) -> Result<(), Error> {
        let (device, Self { arena, staging, .. }) = (weights.device(), self);
        let x = M::In::bring(device, x, &mut Region::new(D::view_mut(&mut staging.inputs)));
        let (params, state) = weights.for_layers();
        let result =
            device.together(|| arena.forward_with(device, params, State::read_only(state), x, call, cache));
        if result.is_err() {
            // What the device has to tell is not left for the next call.
            let _ = device.finish();
        }
        result
    }
}

/// Waits for the device. What it tells of a layer is told with the layer's path.
#[inline(always)]
pub(crate) fn finish<M: Declared + Module<D, M::In>, D: Device>(device: &D) -> Result<(), Error> {
    device.finish().map_err(|error| match error {
        DeviceError::IdOutOfRange { place, id, rows } => {
            Error::IdOutOfRange { path: path(&Describe::of::<M, D, M::In>().rows, place), id, rows }
        }
        other => other.into(),
    })
}

/// Samples and lengths from the lengths of the inputs. Where an axis is bounded the number of samples is given, and
/// every bounded axis has the length that makes its inputs whole.
fn extents_of(takes: &Sig, lens: &[usize; MAX_TENSORS], sequences: usize) -> Result<Extents, Error> {
    let inputs = || takes.tensors().iter().map(|t| t.dims).zip(*lens).enumerate();
    let wrong = |index: usize, hint: String| Error::InputLength {
        index,
        found: lens[index],
        shape: takes.dims(index).to_string(),
        hint,
    };
    let mut extents = Extents { batch: 1, lengths: [0; MAX_LENGTHS] };
    if takes.is_bounded() {
        extents.batch = sequences;
        extents.lengths = lengths_of(takes, &lens.map(|len| len / sequences));
    } else if let Some((index, (dims, n))) = inputs().next() {
        let each = dims.numel().max(1);
        if !n.is_multiple_of(each) {
            return Err(wrong(index, String::new()));
        }
        extents.batch = n / each;
    }
    for (index, (dims, n)) in inputs() {
        if n == 0 {
            return Err(Error::EmptyBatch);
        }
        if Some(n) != dims.numel_at(&extents.lengths).checked_mul(extents.batch) {
            let hint = match index {
                0 => String::new(),
                _ if takes.is_bounded() => ", given the other inputs".to_owned(),
                _ => format!(" of {} samples, as the first input has", extents.batch),
            };
            return Err(wrong(index, hint));
        }
    }
    Ok(extents)
}

/// The lengths that follow from one input each, those that are known from other inputs first. What stays
/// unknown is zero, which fits no input.
fn lengths_of(takes: &Sig, lens: &[usize; MAX_TENSORS]) -> [usize; MAX_LENGTHS] {
    let mut known = [None; MAX_LENGTHS];
    for _ in 0..MAX_TENSORS {
        for (dims, n) in takes.tensors().iter().map(|t| t.dims).zip(*lens) {
            let (mut fixed, mut open, mut times) = (1usize, None, 0);
            let mut clear = true;
            for axis in (0..dims.rank()).map(|i| dims.axis(i)) {
                match axis.length.map(|tag| (tag as usize, known[tag as usize])) {
                    None => fixed = fixed.saturating_mul(axis.n),
                    Some((_, Some(length))) => fixed = fixed.saturating_mul(length),
                    Some((tag, None)) => {
                        clear &= open.is_none_or(|other| other == tag);
                        open = Some(tag);
                        times += 1;
                    }
                }
            }
            if let (Some(tag), true, Some(power)) = (open, clear, n.checked_div(fixed)) {
                known[tag] = Some((power as f64).powf(1.0 / f64::from(times)).round() as usize);
            }
        }
    }
    known.map(|length| length.unwrap_or(0))
}

/// What a call recorded, as an error with the layer's path.
#[inline(always)]
fn outcome<M: Declared + Module<D, M::In>, D: Device>(cx: &Ctx<'_, D>) -> Result<(), Error> {
    if cx.fault().is_none() && cx.not_finite().is_none() { Ok(()) } else { recorded::<M, D>(cx) }
}

#[cold]
fn recorded<M: Declared + Module<D, M::In>, D: Device>(cx: &Ctx<'_, D>) -> Result<(), Error> {
    let rows = Describe::of::<M, D, M::In>().rows;
    let path = |place| path(&rows, place);
    if let Some((place, fault)) = cx.fault() {
        return Err(match fault {
            CallFault::IdOutOfRange { id, rows } => Error::IdOutOfRange { path: path(place), id, rows },
            CallFault::OneValueAChannel => Error::OneValueAChannel { path: path(place) },
        });
    }
    let Some((place, places)) = cx.not_finite_within() else { return Ok(()) };
    // Where all that is inside was finite, it is the whole that is not: what its parts' paths have in common.
    let parts = (place..place.saturating_add(places)).map_while(|place| rows.get(place as usize));
    let whole = parts.map(|r| r.path.as_str()).reduce(common).unwrap_or_default();
    let path = if whole.is_empty() { path(place) } else { whole.to_owned() };
    Err(Error::NotFinite { path })
}

/// The path of the layer at a place; the layer's name if it is the whole model.
fn path(rows: &[Row], place: u32) -> String {
    let row = rows.get(place as usize);
    row.map(|r| if r.path.is_empty() { r.layer.clone() } else { r.path.clone() }).unwrap_or_default()
}

/// The parts that two paths begin with.
fn common<'p>(a: &'p str, b: &str) -> &'p str {
    let parts = a.split('.').zip(b.split('.')).take_while(|(a, b)| a == b);
    // With a dot after each but the last.
    let len = parts.map(|(part, _)| part.len() + 1).sum::<usize>();
    &a[..len.saturating_sub(1)]
}

/// The bound on the lengths of `sig`, checked before anything runs.
fn check_lengths(sig: &Sig, lengths: &[usize; MAX_LENGTHS]) -> Result<(), Error> {
    for tensor in sig.tensors() {
        for i in 0..tensor.dims.rank() {
            let axis = tensor.dims.axis(i);
            if let Some(tag) = axis.length
                && lengths[tag as usize] > axis.n
            {
                return Err(Error::TooLong { length: lengths[tag as usize], bound: axis.n });
            }
        }
    }
    Ok(())
}

impl<M: Declared, D: Device> std::fmt::Debug for Workspace<M, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workspace")
            .field("model", &M::LABEL)
            .field("capacity", &self.capacity)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}
