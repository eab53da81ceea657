use std::marker::PhantomData;
use std::ops::Range;
use std::path::Path;

use nn_kernels::{Device, DeviceError, Float, View, WideView, WideViewMut};

use crate::checkpoint::{self, LoadReport};
use crate::error::{Error, nearest};
use crate::init::{Init, Initialiser};
use crate::layer::Declared;
use crate::partial::Partial;
use crate::region::{State, StateRef, slice_mut, span, span_mut};
use crate::table::{Parameter, Run, changing, parameters, runs};

/// A model's parameters and state, each in one flat arena. What runs it is a [`Workspace`](crate::Workspace);
/// many can share one set of weights.
pub struct Weights<M: Declared, D: Device> {
    device: D,
    params: Kept<D>,
    state: Kept<D>,
    table: Vec<Parameter>,
    runs: Vec<Run>,
    /// The stretches of the state arena that a call may change.
    changing: Vec<Range<usize>>,
    model: PhantomData<fn() -> M>,
}

/// An arena as it is kept, and as elements where those are rounded.
struct Kept<D: Device> {
    wide: D::Buffer<D::Wide>,
    elements: Option<D::Buffer<D::Elem>>,
}

impl<D: Device> Kept<D> {
    fn new(device: &D, len: usize) -> Result<Self, DeviceError> {
        let elements = if D::MIXED { Some(device.alloc(len)?) } else { None };
        Ok(Self { wide: device.alloc(len)?, elements })
    }

    #[inline(always)]
    fn wide(&self) -> WideView<'_, D> {
        D::view(&self.wide)
    }

    /// What layers read.
    #[inline(always)]
    fn elements(&self) -> View<'_, D> {
        match &self.elements {
            Some(elements) => D::view(elements),
            None => D::elements(self.wide()),
        }
    }

    /// Those that were rounded; nothing where none are.
    #[inline(always)]
    fn rounded(elements: &Option<D::Buffer<D::Elem>>) -> View<'_, D> {
        elements.as_ref().map_or_else(D::empty, |elements| D::view(elements))
    }

    /// Rounds what changed.
    fn round(&mut self, device: &D, changed: Range<usize>) {
        if let Some(elements) = &mut self.elements {
            let from = span::<D, _>(D::view(&self.wide), changed.start, changed.len());
            device.narrow(from, slice_mut::<D>(D::view_mut(elements), changed.start, changed.len()));
        }
    }

    /// The same, of all of it.
    fn round_all(&mut self, device: &D) {
        self.round(device, 0..D::len(self.wide()));
    }

    fn copy_from(&mut self, device: &D, other: &Self) {
        device.copy_wide(other.wide(), D::view_mut(&mut self.wide));
        self.round_all(device);
    }
}

impl<M: Declared, D: Device> Weights<M, D> {
    /// Initialised as the layers and `#[init(..)]` say. The same seed gives the same values.
    pub fn new(device: D, seed: u64) -> Result<Self, Error> {
        Self::with(device, seed, None)
    }

    /// The same with another initialiser where neither an `#[init(..)]` nor a [`Param`](crate::Param) decides.
    pub fn init_with<I: Initialiser>(device: D, seed: u64) -> Result<Self, Error> {
        Self::with(device, seed, Some(I::INIT))
    }

    fn with(device: D, seed: u64, init: Option<Init>) -> Result<Self, Error> {
        let tree = M::TREE;
        // Before the table: what no machine holds has a table that none holds either.
        let (params, state) = (Kept::new(&device, tree.params())?, Kept::new(&device, tree.state())?);
        let table = parameters(tree, init);
        let (runs, changing) = (runs(&table, tree.params()), changing(&table, tree.state()));
        let mut weights = Self { params, state, runs, changing, table, device, model: PhantomData };
        for i in 0..weights.table.len() {
            let values = weights.table[i].initial(seed);
            weights.write(i, &values);
        }
        Ok(weights)
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Every parameter, state included, in the order of the model's fields.
    pub fn parameters(&self) -> &[Parameter] {
        &self.table
    }

    /// The stretches of the parameter arena that are treated alike.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The parameter arena.
    pub fn params(&self) -> WideView<'_, D> {
        self.params.wide()
    }

    /// The state arena: running statistics, and what is frozen.
    pub fn state(&self) -> WideView<'_, D> {
        self.state.wide()
    }

    /// Both arenas, as layers read them.
    #[inline(always)]
    pub(crate) fn for_layers(&self) -> (View<'_, D>, StateRef<'_, D>) {
        (self.params.elements(), StateRef::new(self.state.wide(), Kept::<D>::rounded(&self.state.elements)))
    }

    /// The same, with the state to be brought up to date.
    pub(crate) fn for_training(&mut self) -> (View<'_, D>, State<'_, D>) {
        let Kept { wide, elements } = &mut self.state;
        (self.params.elements(), State::writable(D::view_mut(wide), Kept::<D>::rounded(elements)))
    }

    /// Both arenas, to be changed.
    pub(crate) fn arenas_mut(&mut self) -> (WideViewMut<'_, D>, WideViewMut<'_, D>) {
        (D::view_mut(&mut self.params.wide), D::view_mut(&mut self.state.wide))
    }

    /// Moves the parameters, given the stretches that are treated alike.
    pub(crate) fn step(
        &mut self,
        step: impl FnOnce(&D, WideViewMut<'_, D>, &[Run]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        step(&self.device, D::view_mut(&mut self.params.wide), &self.runs)?;
        self.params.round_all(&self.device);
        Ok(())
    }

    /// A parameter by its path, in the checkpoint's order.
    ///
    /// # Errors
    /// There is no such parameter.
    pub fn get(&self, path: &str) -> Result<Vec<D::Wide>, Error> {
        let values = self.read(self.find(path)?);
        self.device.finish()?;
        Ok(values)
    }

    /// Sets a parameter by its path, in the checkpoint's order.
    ///
    /// # Errors
    /// There is no such parameter, or it has another number of values.
    pub fn set(&mut self, path: &str, values: &[D::Wide]) -> Result<(), Error> {
        let i = self.find(path)?;
        self.table[i].expect(values.len())?;
        let values: Vec<_> = values.iter().map(|v| v.to_f64()).collect();
        self.write(i, &values);
        Ok(())
    }

    /// Saves them, state included, as [`Model::save`](crate::Model::save) does.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        checkpoint::save(self, path.as_ref())
    }

    /// Loads them as [`Model::load`](crate::Model::load) does: all, or nothing.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<LoadReport, Error> {
        checkpoint::load(self, path.as_ref())
    }

    /// Loads some of them as [`Model::load_partial`](crate::Model::load_partial) does.
    pub fn load_partial(&mut self, path: impl AsRef<Path>, partial: &Partial) -> Result<LoadReport, Error> {
        checkpoint::load_partial(self, path.as_ref(), partial)
    }

    /// A copy with memory of its own.
    ///
    /// # Errors
    /// The device has no memory left.
    pub fn try_clone(&self) -> Result<Self, Error> {
        let mut copy = Self {
            device: self.device.clone(),
            params: Kept::new(&self.device, D::len(self.params()))?,
            state: Kept::new(&self.device, D::len(self.state()))?,
            table: self.table.clone(),
            runs: self.runs.clone(),
            changing: self.changing.clone(),
            model: PhantomData,
        };
        copy.copy_from(self);
        Ok(copy)
    }

    /// Makes these weights, state included, those of another copy of the model: a target network.
    pub fn copy_from(&mut self, other: &Self) {
        self.params.copy_from(&self.device, &other.params);
        self.state.copy_from(&self.device, &other.state);
    }

    /// Moves these weights, state included, a share `tau` of the way to those of another copy of the model:
    /// Polyak averaging. What is the same in both stays as it is, bit for bit: frozen parameters do. What is
    /// [packed](crate::Stored::Packed) moves as the numbers that it stands for, and is rounded again.
    pub fn move_towards(&mut self, other: &Self, tau: f64) {
        self.device.lerp(tau, other.params(), D::view_mut(&mut self.params.wide));
        self.params.round_all(&self.device);
        let packed: Vec<_> = (0..self.table.len()).filter(|i| self.table[*i].packing().is_some()).collect();
        let moved = packed.iter().map(|i| {
            let both = self.read(*i).into_iter().zip(other.read(*i));
            both.map(|(own, other)| own.to_f64() + tau * (other.to_f64() - own.to_f64())).collect::<Vec<_>>()
        });
        let moved: Vec<_> = moved.collect();
        // What lies between what is packed is numbers.
        let mut places: Vec<_> = packed.iter().map(|i| self.table[*i].span()).collect();
        places.sort_unstable_by_key(|place| place.start);
        let mut at = 0;
        for place in places.into_iter().chain(std::iter::once(D::len(self.state())..usize::MAX)) {
            if place.start > at {
                let len = place.start - at;
                let to = span_mut::<D, _>(D::view_mut(&mut self.state.wide), at, len);
                self.device.lerp(tau, span::<D, _>(other.state(), at, len), to);
            }
            at = at.max(place.end);
        }
        self.state.round_all(&self.device);
        for (i, values) in packed.into_iter().zip(moved) {
            self.write(i, &values);
        }
    }

    /// How many values of the state a call may change.
    pub(crate) fn changing(&self) -> usize {
        self.changing.iter().map(Range::len).sum()
    }

    /// Copies what a call may change of the state, and not what is frozen, which may be large.
    pub(crate) fn save_state(&self, mut to: WideViewMut<'_, D>) {
        let mut at = 0;
        for stretch in &self.changing {
            let (from, len) = (span::<D, _>(self.state(), stretch.start, stretch.len()), stretch.len());
            self.device.copy_wide(from, span_mut::<D, _>(D::reborrow(&mut to), at, len));
            at += len;
        }
    }

    /// Rounds what a call may have changed of the state.
    pub(crate) fn round_state(&mut self) {
        for stretch in &self.changing {
            self.state.round(&self.device, stretch.clone());
        }
    }

    /// Puts back what [`save_state`](Self::save_state) copied.
    pub(crate) fn restore_state(&mut self, from: WideView<'_, D>) {
        let mut at = 0;
        for stretch in &self.changing {
            let to = span_mut::<D, _>(D::view_mut(&mut self.state.wide), stretch.start, stretch.len());
            self.device.copy_wide(span::<D, _>(from, at, stretch.len()), to);
            at += stretch.len();
        }
        self.round_state();
    }

    pub(crate) fn find(&self, path: &str) -> Result<usize, Error> {
        self.table.iter().position(|p| p.path == path).ok_or_else(|| Error::UnknownParameter {
            path: path.to_owned(),
            nearest: nearest(path, self.table.iter().map(|p| p.path.as_str())),
        })
    }

    /// The values of parameter `i` of an arena laid out as the parameters, in the checkpoint's order.
    pub(crate) fn read_from(&self, i: usize, arena: WideView<'_, D>) -> Vec<D::Wide> {
        let p = &self.table[i];
        let mut values = vec![D::Wide::ZERO; p.span().len()];
        self.device.download(span::<D, _>(arena, p.span().start, p.span().len()), &mut values);
        p.gather(&values)
    }

    /// The values of parameter `i`, in the checkpoint's order.
    pub(crate) fn read(&self, i: usize) -> Vec<D::Wide> {
        self.read_from(i, if self.table[i].in_state { self.state() } else { self.params() })
    }

    /// Sets parameter `i`, in the checkpoint's order.
    pub(crate) fn write(&mut self, i: usize, values: &[f64]) {
        let p = &self.table[i];
        let arena = if p.in_state { &mut self.state } else { &mut self.params };
        let place = p.span();
        let mut all = vec![D::Wide::ZERO; place.len()];
        if p.packing().is_some() || place.len() > values.len() {
            // What lies in between, and is no part of it, stays as it is.
            self.device.download(span::<D, _>(arena.wide(), place.start, place.len()), &mut all);
        }
        p.scatter(values, &mut all);
        self.device.upload(&all, span_mut::<D, _>(D::view_mut(&mut arena.wide), place.start, place.len()));
        arena.round(&self.device, place);
    }
}

impl<M: Declared, D: Device> std::fmt::Debug for Weights<M, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Weights")
            .field("model", &M::LABEL)
            .field("params", &M::TREE.params())
            .field("state", &M::TREE.state())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchNorm1D, BatchNorm2D, Conv2D, Cpu, Flatten, LoRALinear, sequential};

    sequential! {
        /// State, then what is frozen, then state.
        Mixed: [2, 3, 3] -> [8] =
            first: BatchNorm2D<2>, Conv2D<2, 2, 1>, second: BatchNorm2D<2>, Flatten, tuned: LoRALinear<18, 8, 2, 1.0>,
            last: BatchNorm1D<8>
    }

    #[test]
    fn what_is_frozen_is_not_copied_before_a_step() {
        let mut weights = Weights::<Mixed, Cpu<f32>>::new(Cpu::default(), 1).unwrap();
        // Three normalisations with two statistics of sixteen places each; the frozen matrix has 144 values.
        assert_eq!(weights.changing(), 3 * 2 * 16);
        assert_eq!(weights.changing, [0..64, 64 + 144 + 16..64 + 144 + 16 + 32]);
        assert_eq!(weights.state().len(), 64 + 144 + 16 + 32);
        let mut backup = vec![0.0; weights.changing()];
        weights.save_state(&mut backup);
        let before = weights.state().to_vec();
        for (path, n) in [("first.running_mean", 2), ("last.running_var", 8), ("tuned.weight", 144)] {
            weights.set(path, &vec![7.0; n]).unwrap();
        }
        weights.restore_state(&backup);
        assert_eq!(weights.get("tuned.weight").unwrap(), [7.0; 144]);
        assert_eq!(weights.state()[..64], before[..64]);
        assert_eq!(weights.state()[64 + 144 + 16..], before[64 + 144 + 16..]);
    }
}
