use std::path::Path;

use nn_kernels::ops::Elementwise;
use nn_kernels::ops::{Reduction, Stream};
use nn_kernels::{Cpu, Device, Memory, Open, View, cpu};

use crate::batches::Batches;
use crate::checkpoint::{self, LoadReport};
use crate::ctx::Mode;
use crate::error::Error;
use crate::host::Host;
use crate::init::Initialiser;
use crate::layer::{Declared, Module};
use crate::loss::{Loss, Rows, Targets, check_outputs};
use crate::optim::Optimizer;
use crate::partial::Partial;
use crate::region::State;
use crate::signature::Signature;
use crate::summary::Summary;
use crate::tensors::{Tensors, TensorsMut};
use crate::weights::Weights;
use crate::workspace::{Call, Workspace};

/// A model with all it needs to train: weights, gradients, and a workspace for so many samples.
///
/// Everything is allocated when it is made; a step then allocates nothing. It is `Send` and `Sync`; for many
/// threads that infer with one set of weights, take a [`Workspace`] each and share [`Model::weights`].
///
/// ```
/// use nn::{Adam, CrossEntropy, Linear, LinearTanh, Model, sequential};
///
/// sequential! {
///     /// Two layers.
///     Net: [2] -> [2] = LinearTanh<2, 16>, Linear<16, 2>
/// }
///
/// let mut net = Model::<Net>::init(1, 4)?;
/// let mut adam = Adam::new(0.05);
/// let (x, xor) = ([0., 0., 0., 1., 1., 0., 1., 1.], [0, 1, 1, 0]);
/// for _ in 0..200 {
///     net.train_step(&x, &xor, &CrossEntropy::default(), &mut adam)?;
/// }
/// assert_eq!(net.evaluate(&x, &xor, &CrossEntropy::default())?.accuracy, Some(1.0));
/// # Ok::<(), nn::Error>(())
/// ```
pub struct Model<M: Declared, D: Device = Cpu<f32>> {
    weights: Weights<M, D>,
    gradients: D::Buffer<D::Elem>,
    /// The running statistics before a step, to go back to if it fails.
    backup: D::Buffer<D::Elem>,
    workspace: Workspace<M, D>,
    stream: Stream,
}

/// What [`Model::evaluate`] found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The loss over all samples.
    pub loss: f64,
    /// The share of right predictions, where the loss knows what is right.
    pub accuracy: Option<f64>,
    /// How many samples there were.
    pub samples: usize,
}

impl<M: Declared, D: Device + Open> Model<M, D> {
    /// A model with fresh weights and room for `capacity` samples. The same seed gives the same model.
    ///
    /// # Errors
    /// There is not enough memory, or the variable `NN_ISA` names an instruction set that is not there.
    pub fn init(seed: u64, capacity: usize) -> Result<Self, Error>
    where
        M: Module<D, M::In>,
    {
        Self::new(Weights::new(D::open()?, seed)?, seed, capacity)
    }

    /// The same with another initialiser where neither an `#[init(..)]` nor a [`Param`](crate::Param) decides.
    pub fn init_with<I: Initialiser>(seed: u64, capacity: usize) -> Result<Self, Error>
    where
        M: Module<D, M::In>,
    {
        Self::new(Weights::init_with::<I>(D::open()?, seed)?, seed, capacity)
    }
}

impl<M: Declared, D: Device> Model<M, D> {
    /// A model with these weights, on their device.
    pub fn new(weights: Weights<M, D>, seed: u64, capacity: usize) -> Result<Self, Error>
    where
        M: Module<D, M::In>,
    {
        let device = weights.device();
        Ok(Self {
            gradients: device.alloc(M::TREE.params())?,
            backup: device.alloc(weights.changing())?,
            workspace: Workspace::training(device, capacity)?,
            stream: Stream { seed, ..Stream::default() },
            weights,
        })
    }

    /// The weights.
    pub fn weights(&self) -> &Weights<M, D> {
        &self.weights
    }

    /// The weights, to be changed.
    pub fn weights_mut(&mut self) -> &mut Weights<M, D> {
        &mut self.weights
    }

    /// The gradient arena, laid out as the parameters.
    pub fn gradients(&self) -> View<'_, D> {
        D::view(&self.gradients)
    }

    /// Sets the gradients to zero, before the first of the batches that are to be accumulated.
    pub fn zero_gradients(&mut self) {
        self.weights.device().fill(0.0, D::view_mut(&mut self.gradients));
    }

    /// The norm of all gradients together.
    pub fn gradient_norm(&self) -> f64 {
        self.weights.device().sum_of_squares(D::view(&self.gradients)).sqrt()
    }

    /// The norm of each parameter's gradient, by path.
    pub fn gradient_norms(&self) -> Vec<(String, f64)> {
        let device = self.weights.device();
        let norm = |p: &crate::Parameter| {
            let gradients = D::view(&self.gradients);
            let each = p.stretches().map(|s| crate::region::slice::<D>(gradients, s.start, s.len()));
            each.map(|gradient| device.sum_of_squares(gradient)).sum::<f64>().sqrt()
        };
        let optimised = self.weights.parameters().iter().filter(|p| !p.in_state);
        optimised.map(|p| (p.path.clone(), norm(p))).collect()
    }

    /// The gradient of a parameter by its path, in the checkpoint's order.
    ///
    /// # Errors
    /// There is no such parameter, or it is not optimised.
    pub fn gradient(&self, path: &str) -> Result<Vec<D::Elem>, Error> {
        let i = self.weights.find(path)?;
        if self.weights.parameters()[i].in_state {
            return Err(Error::NotOptimised { path: path.to_owned() });
        }
        Ok(self.weights.read_from(i, D::view(&self.gradients)))
    }

    /// Moves the parameters one step along the gradients.
    pub fn apply<O: Optimizer<D>>(&mut self, optimizer: &mut O) -> Result<(), Error> {
        let (device, params, runs) = self.weights.for_step();
        optimizer.step(device, params, D::view(&self.gradients), runs)
    }

    /// Looks at every layer's output from now on, and at every gradient, and makes the first that is not finite an
    /// error that names it: [`Error::NotFinite`], [`Error::GradientNotFinite`].
    pub fn check_finite(&mut self, check: bool) {
        self.workspace.check_finite = check;
    }

    /// The model as a table: layers, shapes, parameters, multiply-adds, memory, and the kernel each got.
    pub fn summary(&self) -> Summary
    where
        M: Module<D, M::In>,
    {
        Summary::of::<M, D>(self.workspace.capacity(), self.workspace.bytes())
    }

    /// Saves the weights, state included, as safetensors under PyTorch's names and layouts. The file is
    /// whole or not there: it is written aside, then renamed.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        checkpoint::save(&self.weights, path.as_ref())
    }

    /// Loads weights: every parameter must be there in its shape, and nothing else; if not, the error's
    /// report says what differs, and the model stays as it was.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<LoadReport, Error> {
        checkpoint::load(&mut self.weights, path.as_ref())
    }

    /// Loads some of the weights, under other names if need be: for transfer learning. The report says what was
    /// converted, what stayed as it was, and what of the file is not used.
    ///
    /// # Errors
    /// A parameter that must be there is missing, or has another shape or no real numbers; nothing at all is
    /// found; a prefix or path is nobody's; two tensors would be one parameter. The model stays as it was.
    pub fn load_partial(&mut self, path: impl AsRef<Path>, partial: &Partial) -> Result<LoadReport, Error> {
        checkpoint::load_partial(&mut self.weights, path.as_ref(), partial)
    }

    /// Saves all that is needed to go on training as if nothing had happened: weights, the optimiser with its
    /// moments, steps, settings and schedule, random numbers, and the place in the data. [`load`](Self::load)
    /// takes the weights out of such a file, too.
    pub fn save_training<O: Optimizer<D>>(
        &self,
        path: impl AsRef<Path>,
        optimizer: &O,
        batches: &Batches,
    ) -> Result<(), Error> {
        checkpoint::save_training(&self.weights, &self.stream, optimizer, batches, path.as_ref())
    }

    /// Takes up what [`save_training`](Self::save_training) saved, so that the steps to come are, bit for bit,
    /// those that would have come.
    ///
    /// Everything is as it was saved, as with PyTorch's `load_state_dict`: the optimiser's settings and schedule
    /// (a rate may have been changed on the way), the seeds, the size of the batches. Change what is to be
    /// different, such as [the rate](crate::Adam::set_rate), after loading.
    ///
    /// # Errors
    /// The file is damaged, of another model or precision, of another kind of optimiser, of data with another
    /// number of samples, or holds weights alone. Model, optimiser and batches stay as they were.
    pub fn load_training<O: Optimizer<D>>(
        &mut self,
        path: impl AsRef<Path>,
        optimizer: &mut O,
        batches: &mut Batches,
    ) -> Result<(), Error> {
        checkpoint::load_training(&mut self.weights, &mut self.stream, optimizer, batches, path.as_ref())
    }
}

impl<M: Declared<In: Host, Out: Host> + Module<Cpu<E>, <M as Declared>::In>, E: cpu::Real> Model<M, Cpu<E>> {
    /// Says how many sequences of one length the next calls hold, if the model has a bounded axis: 1 unless set, since
    /// the number of values alone can't tell two short sequences from a long one.
    ///
    /// ```
    /// use nn::{Embedding, Model, sequential};
    ///
    /// sequential! { Table: Ids[..8] -> [..8, 2] = Embedding<4, 2> }
    ///
    /// let mut model = Model::<Table>::init(1, 3)?;
    /// model.set_sequences(3);
    /// assert_eq!(model.forward(&[0, 1, 2, 3, 0, 1])?.len(), 3 * 2 * 2);
    /// # Ok::<(), nn::Error>(())
    /// ```
    pub fn set_sequences(&mut self, sequences: usize) {
        self.workspace.set_sequences(sequences);
    }

    /// Infers: the output for the samples in `x`, as slices that live until the next call. How many samples
    /// there are follows from the length; with a bounded axis, from [`set_sequences`](Self::set_sequences).
    ///
    /// # Errors
    /// More samples than the workspace has room for, inputs of the wrong length, an index past the end of
    /// a table.
    pub fn forward(
        &mut self,
        x: <M::In as Host>::Slices<'_, E>,
    ) -> Result<<M::Out as Host>::Slices<'_, E>, Error> {
        self.workspace.infer(&self.weights, x)
    }

    /// Adds the gradients of a batch's loss to those that are there, and gives the loss. On an error the
    /// model stays as it was, but the gradients are to be set to zero again.
    pub fn accumulate<L: Loss<E>>(
        &mut self,
        x: <M::In as Host>::Slices<'_, E>,
        target: &(impl Targets<L::Target> + ?Sized),
        loss: &L,
    ) -> Result<f64, Error> {
        const { crate::accept(&check_outputs(&M::LABEL, &<M::Out as Signature>::SIG, L::OUTPUTS)) };
        let target = target.targets();
        self.accumulate_with(x, |device, rows, y, dy| loss.value(device, rows, y, target, Some(dy)))
    }

    /// One step of training on a batch: forward, loss, vjp, optimiser. Gives the loss.
    ///
    /// A loss compares one tensor of output. A model that gives more does not compile with it: for that there is
    /// [`accumulate_custom`](Self::accumulate_custom).
    ///
    /// ```compile_fail,E0080
    /// # use nn::{Linear, MSE, Model, Sgd, T, module};
    /// #[module]
    /// struct Two {
    ///     a: Linear<3, 2>,
    ///     b: Linear<3, 1>,
    /// }
    /// #[module]
    /// impl Two {
    ///     fn forward(&self, x: T![3]) -> (T![2], T![1]) {
    ///         (self.a(x), self.b(x))
    ///     }
    /// }
    /// let mut model = Model::<Two>::init(1, 1)?;
    /// model.train_step(&[0.0; 3], &[0.0; 2], &MSE::default(), &mut Sgd::new(0.1))?;
    /// # Ok::<(), nn::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`forward`](Self::forward), a target that does not go with the output, and an optimiser that holds
    /// moments for another model. The model stays as it was.
    pub fn train_step<L: Loss<E>, O: Optimizer<Cpu<E>>>(
        &mut self,
        x: <M::In as Host>::Slices<'_, E>,
        target: &(impl Targets<L::Target> + ?Sized),
        loss: &L,
        optimizer: &mut O,
    ) -> Result<f64, Error> {
        self.zero_gradients();
        let value = self.accumulate(x, target, loss)?;
        if let Err(error) = self.apply(optimizer) {
            // The forward pass went well, and left its marks.
            self.weights.restore_state(Cpu::<E>::view(&self.backup));
            self.stream.step -= 1;
            return Err(error);
        }
        Ok(value)
    }

    /// As [`accumulate`](Self::accumulate) with a loss of one's own: `loss` is given the output's slices and
    /// writes the gradient into slices of the same lengths, one a tensor, which are zero to begin with.
    pub fn accumulate_custom(
        &mut self,
        x: <M::In as Host>::Slices<'_, E>,
        loss: impl FnOnce(<M::Out as Host>::Slices<'_, E>, &mut [&mut [E]]) -> f64,
    ) -> Result<f64, Error> {
        self.accumulate_with(x, |_, _, y, dy| {
            let n = dy.len();
            let mut dy = dy.into_slices();
            // The buffer held the last step's gradient, and a loss may write some entries only.
            dy.iter_mut().for_each(|dy| dy.fill(E::ZERO));
            Ok(loss(M::Out::slices(y).0, &mut dy[..n]))
        })
    }

    fn accumulate_with(
        &mut self,
        x: <M::In as Host>::Slices<'_, E>,
        loss: impl FnOnce(&Cpu<E>, Rows, Tensors<'_, Cpu<E>>, TensorsMut<'_, Cpu<E>>) -> Result<f64, Error>,
    ) -> Result<f64, Error> {
        let x = M::In::tensors::<E>(x);
        let extents = self.workspace.extents(&x)?;
        let call = Call { mode: Mode::Train, keep: true, stream: self.stream, ..Call::inference(extents) };
        let device = *self.weights.device();
        self.weights.save_state(Cpu::<E>::view_mut(&mut self.backup));
        let result = self.run(&device, x, call, loss);
        match result {
            Ok(_) => self.stream.step += 1,
            Err(_) => self.weights.restore_state(Cpu::<E>::view(&self.backup)),
        }
        result
    }

    /// Forward, loss and vjp.
    fn run(
        &mut self,
        device: &Cpu<E>,
        x: Tensors<'_, Cpu<E>>,
        call: Call,
        loss: impl FnOnce(&Cpu<E>, Rows, Tensors<'_, Cpu<E>>, TensorsMut<'_, Cpu<E>>) -> Result<f64, Error>,
    ) -> Result<f64, Error> {
        let (params, state) = self.weights.for_training();
        self.workspace.forward(device, params, state, x, call)?;
        let (y, dy) = self.workspace.output_and_gradient(device, call);
        let value = loss(device, Workspace::<M, Cpu<E>>::rows(&call.extents), y, dy)?;
        let dparams = Cpu::<E>::view_mut(&mut self.gradients);
        self.workspace.vjp(device, self.weights.params(), self.weights.state(), x, dparams, call)?;
        if self.workspace.check_finite {
            self.check_gradients(device)?;
        }
        Ok(value)
    }

    fn check_gradients(&self, device: &Cpu<E>) -> Result<(), Error> {
        let gradients = Cpu::<E>::view(&self.gradients);
        let mut optimised = self.weights.parameters().iter().filter(|p| !p.in_state);
        let bad = optimised.find(|p| !p.stretches().all(|stretch| device.all_finite(&gradients[stretch])));
        bad.map_or(Ok(()), |p| Err(Error::GradientNotFinite { path: p.path.clone() }))
    }

    /// The loss, and the share of right predictions, over any number of samples, without training.
    pub fn evaluate<L: Loss<E>>(
        &mut self,
        x: <M::In as Host>::Slices<'_, E>,
        target: &(impl Targets<L::Target> + ?Sized),
        loss: &L,
    ) -> Result<Evaluation, Error> {
        const { crate::accept(&check_outputs(&M::LABEL, &<M::Out as Signature>::SIG, L::OUTPUTS)) };
        let x = M::In::tensors::<E>(x);
        let all = self.workspace.samples(&x)?;
        let samples = all.batch;
        loss.check(Workspace::<M, Cpu<E>>::rows(&all), target.targets())?;
        let capacity = self.workspace.capacity();
        if capacity == 0 {
            return Err(Error::BatchTooLarge { batch: samples, capacity });
        }
        let device = *self.weights.device();
        let (mut sum, mut total, mut right, mut counted) = (0.0, 0.0, 0, 0);
        let mut from = 0;
        while from < samples {
            let to = samples.min(from.saturating_add(capacity));
            let part = self.workspace.part(x, samples, from, to);
            let call = Call::inference(Workspace::<M, Cpu<E>>::part_extents(&all, to - from)?);
            let (params, state) = (self.weights.params(), State::Read(self.weights.state()));
            self.workspace.forward(&device, params, state, part, call)?;
            let y = self.workspace.output(&device, call);
            let target = loss.part(target.targets(), samples, from, to);
            let rows = Workspace::<M, Cpu<E>>::rows(&call.extents);
            let value = loss.value(&device, rows, y, target, None)?;
            let weight = loss.weight(to - from, target);
            let mean = loss.reduction() == Reduction::Mean;
            // The mean over nothing is no number.
            if weight > 0.0 || !mean {
                sum += if mean { value * weight } else { value };
                total += weight;
            }
            if let Some((r, n)) = loss.correct(rows, y, target) {
                right += r;
                counted += n;
            }
            from = to;
        }
        let loss = if loss.reduction() == Reduction::Mean { sum / total } else { sum };
        let accuracy = (counted > 0).then(|| right as f64 / counted as f64);
        Ok(Evaluation { loss, accuracy, samples })
    }
}

impl<M: Declared, D: Device> std::fmt::Debug for Model<M, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("weights", &self.weights)
            .field("workspace", &self.workspace)
            .finish_non_exhaustive()
    }
}
