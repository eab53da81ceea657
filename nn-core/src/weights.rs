use std::marker::PhantomData;
use std::path::Path;

use nn_kernels::{Device, Float, View, ViewMut};

use crate::checkpoint::{self, LoadReport};
use crate::error::{Error, nearest};
use crate::init::{Init, Initialiser};
use crate::layer::Declared;
use crate::partial::Partial;
use crate::table::{Parameter, Run, parameters, runs};
use crate::tensors::{State, slice, slice_mut};

/// A model's parameters and state, each in one flat arena. What runs it is a [`Workspace`](crate::Workspace);
/// many can share one set of weights.
pub struct Weights<M: Declared, D: Device> {
    device: D,
    params: D::Buffer<D::Elem>,
    state: D::Buffer<D::Elem>,
    table: Vec<Parameter>,
    runs: Vec<Run>,
    model: PhantomData<fn() -> M>,
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
        let (params, state) = (device.alloc(tree.params())?, device.alloc(tree.state())?);
        let table = parameters(tree, init);
        let mut weights =
            Self { params, state, runs: runs(&table, tree.params()), table, device, model: PhantomData };
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
    pub fn params(&self) -> View<'_, D> {
        D::view(&self.params)
    }

    /// The parameter arena, to be changed.
    pub fn params_mut(&mut self) -> ViewMut<'_, D> {
        D::view_mut(&mut self.params)
    }

    /// The state arena: running statistics.
    pub fn state(&self) -> View<'_, D> {
        D::view(&self.state)
    }

    /// The parameters to be read and the state to be brought up to date.
    pub(crate) fn for_training(&mut self) -> (View<'_, D>, State<'_, D>) {
        (D::view(&self.params), State::Write(D::view_mut(&mut self.state)))
    }

    /// Both arenas, to be changed.
    pub(crate) fn arenas_mut(&mut self) -> (ViewMut<'_, D>, ViewMut<'_, D>) {
        (D::view_mut(&mut self.params), D::view_mut(&mut self.state))
    }

    /// The parameters to be changed, with the stretches that are treated alike.
    pub(crate) fn for_step(&mut self) -> (&D, ViewMut<'_, D>, &[Run]) {
        (&self.device, D::view_mut(&mut self.params), &self.runs)
    }

    /// A parameter by its path, in the checkpoint's order.
    ///
    /// # Errors
    /// There is no such parameter.
    pub fn get(&self, path: &str) -> Result<Vec<D::Elem>, Error> {
        Ok(self.read(self.find(path)?))
    }

    /// Sets a parameter by its path, in the checkpoint's order.
    ///
    /// # Errors
    /// There is no such parameter, or it has another number of values.
    pub fn set(&mut self, path: &str, values: &[D::Elem]) -> Result<(), Error> {
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
            params: self.device.alloc(D::len(self.params()))?,
            state: self.device.alloc(D::len(self.state()))?,
            table: self.table.clone(),
            runs: self.runs.clone(),
            model: PhantomData,
        };
        copy.copy_from(self);
        Ok(copy)
    }

    /// Makes these weights, state included, those of another copy of the model: a target network.
    pub fn copy_from(&mut self, other: &Self) {
        self.device.copy(D::view(&other.params), D::view_mut(&mut self.params));
        self.device.copy(D::view(&other.state), D::view_mut(&mut self.state));
    }

    /// Moves these weights, state included, a share `tau` of the way to those of another copy of the model:
    /// Polyak averaging.
    pub fn move_towards(&mut self, other: &Self, tau: f64) {
        self.device.lerp(tau, D::view(&other.params), D::view_mut(&mut self.params));
        self.device.lerp(tau, D::view(&other.state), D::view_mut(&mut self.state));
    }

    /// Sets the state.
    pub(crate) fn set_state(&mut self, state: View<'_, D>) {
        self.device.copy(state, D::view_mut(&mut self.state));
    }

    pub(crate) fn find(&self, path: &str) -> Result<usize, Error> {
        self.table.iter().position(|p| p.path == path).ok_or_else(|| Error::UnknownParameter {
            path: path.to_owned(),
            nearest: nearest(path, self.table.iter().map(|p| p.path.as_str())),
        })
    }

    /// The values of parameter `i` of an arena laid out as the parameters, in the checkpoint's order.
    pub(crate) fn read_from(&self, i: usize, arena: View<'_, D>) -> Vec<D::Elem> {
        let p = &self.table[i];
        let mut values = vec![D::Elem::ZERO; p.span().len()];
        self.device.download(slice::<D>(arena, p.span().start, p.span().len()), &mut values);
        p.gather(&values)
    }

    /// The values of parameter `i`, in the checkpoint's order.
    pub(crate) fn read(&self, i: usize) -> Vec<D::Elem> {
        let arena = if self.table[i].in_state { &self.state } else { &self.params };
        self.read_from(i, D::view(arena))
    }

    /// Sets parameter `i`, in the checkpoint's order.
    pub(crate) fn write(&mut self, i: usize, values: &[f64]) {
        let p = &self.table[i];
        let arena = if p.in_state { &mut self.state } else { &mut self.params };
        let span = p.span();
        let mut all = vec![D::Elem::ZERO; span.len()];
        if span.len() > values.len() {
            // What lies in between stays as it is.
            self.device.download(slice::<D>(D::view(arena), span.start, span.len()), &mut all);
        }
        let values: Vec<_> = values.iter().map(|v| D::Elem::from_f64(*v)).collect();
        p.scatter(&values, &mut all);
        self.device.upload(&all, slice_mut::<D>(D::view_mut(arena), span.start, span.len()));
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
