use std::path::Path;

use nn_kernels::ops::{Reduction, Stream};
use nn_kernels::{Cpu, Device, Open, Pod, View, WideView, cpu};

use crate::batches::Batches;
use crate::checkpoint::{self, LoadReport};
use crate::ctx::Mode;
use crate::error::Error;
use crate::host::{Host, fetch_real, part};
use crate::init::Initialiser;
use crate::layer::{Declared, Module};
use crate::loss::{Loss, Rows, Targets, check_outputs};
use crate::optim::{Adam, Optimizer};
use crate::partial::Partial;
use crate::region::{Region, slice, span};
use crate::signature::Signature;
use crate::summary::Summary;
use crate::tensors::{Tensors, TensorsMut};
use crate::weights::Weights;
use crate::workspace::{Call, Extents, Staging, Workspace, finish};

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
    gradients: D::Buffer<D::Wide>,
    /// Where layers add up the gradients of one batch, if elements are rounded; zero between batches.
    fresh: Option<D::Buffer<D::Elem>>,
    /// The running statistics before a step, to go back to if it fails.
    backup: D::Buffer<D::Wide>,
    /// The loss of a batch, or the norm of gradients.
    value: D::Buffer<f64>,
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
            fresh: if D::MIXED { Some(device.alloc(M::TREE.params())?) } else { None },
            backup: device.alloc(weights.changing())?,
            value: device.alloc(1)?,
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
    pub fn gradients(&self) -> WideView<'_, D> {
        D::view(&self.gradients)
    }

    /// Sets the gradients to zero, before the first of the batches that are to be accumulated.
    pub fn zero_gradients(&mut self) {
        self.weights.device().clear(D::view_mut(&mut self.gradients));
    }

    /// The norm of all gradients together.
    pub fn gradient_norm(&mut self) -> f64 {
        norm(
            self.weights.device(),
            D::view(&self.gradients),
            std::iter::once(0..M::TREE.params()),
            &mut self.value,
        )
    }

    /// The norm of each parameter's gradient, by path.
    pub fn gradient_norms(&mut self) -> Vec<(String, f64)> {
        let (device, gradients, value) = (self.weights.device(), D::view(&self.gradients), &mut self.value);
        let optimised = self.weights.parameters().iter().filter(|p| !p.in_state);
        optimised.map(|p| (p.path.clone(), norm(device, gradients, p.stretches(), value))).collect()
    }

    /// The gradient of a parameter by its path, in the checkpoint's order.
    ///
    /// # Errors
    /// There is no such parameter, or it is not optimised.
    pub fn gradient(&self, path: &str) -> Result<Vec<D::Wide>, Error> {
        let i = self.weights.find(path)?;
        if self.weights.parameters()[i].in_state {
            return Err(Error::NotOptimised { path: path.to_owned() });
        }
        let values = self.weights.read_from(i, D::view(&self.gradients));
        self.weights.device().finish()?;
        Ok(values)
    }

    /// Moves the parameters one step along the gradients.
    pub fn apply<O: Optimizer<D>>(&mut self, optimizer: &mut O) -> Result<(), Error> {
        let gradients = D::view(&self.gradients);
        self.weights.step(|device, params, runs| optimizer.step(device, params, gradients, runs))
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

/// The norm of some stretches of an arena together.
fn norm<D: Device>(
    device: &D,
    arena: WideView<'_, D>,
    stretches: impl Iterator<Item = std::ops::Range<usize>>,
    value: &mut D::Buffer<f64>,
) -> f64 {
    let mut squares = 0.0;
    for stretch in stretches {
        device.sum_of_squares(span::<D, _>(arena, stretch.start, stretch.len()), D::view_mut(value));
        squares += read(device, value);
    }
    squares.sqrt()
}

/// The one value there.
fn read<D: Device>(device: &D, value: &D::Buffer<f64>) -> f64 {
    let mut host = [0.0];
    device.download(D::view(value), &mut host);
    host[0]
}

impl<M: Declared<In: Host, Out: Host> + Module<D, <M as Declared>::In>, D: Device> Model<M, D> {
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
    #[inline(always)]
    pub fn forward(
        &mut self,
        x: <M::In as Host>::Slices<'_, D::Wide>,
    ) -> Result<<M::Out as Host>::Slices<'_, D::Wide>, Error> {
        self.workspace.infer(&self.weights, x)
    }

    /// Adds the gradients of a batch's loss to those that are there, and gives the loss. On an error the
    /// model stays as it was, but the gradients are to be set to zero again.
    pub fn accumulate<L: Loss<D>>(
        &mut self,
        x: <M::In as Host>::Slices<'_, D::Wide>,
        target: &(impl Targets<[L::Target]> + ?Sized),
        loss: &L,
    ) -> Result<f64, Error> {
        self.learn(x, target.targets(), loss, None::<&mut Adam<D>>)
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
    pub fn train_step<L: Loss<D>, O: Optimizer<D>>(
        &mut self,
        x: <M::In as Host>::Slices<'_, D::Wide>,
        target: &(impl Targets<[L::Target]> + ?Sized),
        loss: &L,
        optimizer: &mut O,
    ) -> Result<f64, Error> {
        self.learn(x, target.targets(), loss, Some(optimizer))
    }

    /// Adds to the gradients; with an optimiser, from zero, and takes its step.
    fn learn<L: Loss<D>>(
        &mut self,
        x: <M::In as Host>::Slices<'_, D::Wide>,
        target: &[L::Target],
        loss: &L,
        optimizer: Option<&mut impl Optimizer<D>>,
    ) -> Result<f64, Error> {
        const { crate::accept(&check_outputs(&M::LABEL, &<M::Out as Signature>::SIG, L::OUTPUTS)) };
        let extents = self.workspace.extents(x)?;
        loss.check(Workspace::<M, D>::rows(&extents), target)?;
        self.run(x, extents, target, optimizer, |device, rows, y, target, dy, value| {
            loss.value(device, rows, y, target, Some(dy), value);
        })
    }

    /// Forward, loss, vjp, and a step of the optimiser if there is one. On an error all but the gradients is as before.
    fn run<T: Pod>(
        &mut self,
        x: <M::In as Host>::Slices<'_, D::Wide>,
        extents: Extents,
        target: &[T],
        mut optimizer: Option<&mut impl Optimizer<D>>,
        loss: impl FnOnce(&D, Rows, Tensors<'_, D>, D::View<'_, T>, TensorsMut<'_, D>, D::ViewMut<'_, f64>),
    ) -> Result<f64, Error> {
        let call = Call { mode: Mode::Train, keep: true, stream: self.stream, ..Call::inference(extents) };
        let call = self.workspace.call(call);
        let device = self.weights.device().clone();
        let steps = optimizer.as_ref().map(|optimizer| optimizer.steps());
        let Self { weights, gradients, fresh, backup, value, workspace, .. } = self;
        let (arena, staging) = (&mut workspace.arena, &mut workspace.staging);
        let target = Staging::<D>::bring_targets(&mut staging.targets, &device, target)?;
        let x = M::In::bring(&device, x, &mut Region::new(D::view_mut(&mut staging.inputs)));
        let result = device.together(|| {
            weights.save_state(D::view_mut(backup));
            let (params, state) = weights.for_training();
            arena.forward(&device, params, state, x, call)?;
            weights.round_state();
            let (y, dy) = arena.output_and_gradient(&device, call);
            loss(&device, Workspace::<M, D>::rows(&call.extents), y, target, dy, D::view_mut(value));
            if optimizer.is_some() {
                device.clear(D::view_mut(gradients));
            }
            let (params, state) = weights.for_layers();
            {
                let mut dparams = match &mut *fresh {
                    Some(fresh) => D::view_mut(fresh),
                    None => D::elements_mut(D::view_mut(gradients)),
                };
                arena.vjp(&device, params, state, x, D::reborrow(&mut dparams), call)?;
                if call.watch {
                    check_gradients(&device, weights, D::read(&dparams))?;
                }
            }
            if let Some(fresh) = fresh {
                // Rounded within a batch, and summed up over batches without rounding.
                device.collect(D::view_mut(fresh), D::view_mut(gradients));
            }
            if let Some(optimizer) = &mut optimizer {
                let gradients = D::view(gradients);
                weights.step(|device, params, runs| optimizer.step(device, params, gradients, runs))?;
            }
            Ok(())
        });
        let value = read(&device, value);
        // Whatever the operations told: what the device has to tell is not left for the next call.
        let result = result.and(finish::<M, D>(&device)).map(|()| value);
        match result {
            Ok(_) => self.stream.step += 1,
            Err(_) => {
                if let Some(fresh) = fresh {
                    // What a step that was given up had added.
                    device.collect(D::view_mut(fresh), D::view_mut(gradients));
                }
                weights.restore_state(D::view(backup));
                if let (Some(optimizer), Some(steps)) = (optimizer, steps) {
                    optimizer.set_steps(steps);
                }
            }
        }
        result
    }

    /// The loss, and the share of right predictions, over any number of samples, without training.
    pub fn evaluate<L: Loss<D>>(
        &mut self,
        x: <M::In as Host>::Slices<'_, D::Wide>,
        target: &(impl Targets<[L::Target]> + ?Sized),
        loss: &L,
    ) -> Result<Evaluation, Error> {
        const { crate::accept(&check_outputs(&M::LABEL, &<M::Out as Signature>::SIG, L::OUTPUTS)) };
        let all = self.workspace.samples(x)?;
        let (samples, target) = (all.batch, target.targets());
        loss.check(Workspace::<M, D>::rows(&all), target)?;
        let capacity = self.workspace.capacity();
        if capacity == 0 {
            return Err(Error::BatchTooLarge { batch: samples, capacity });
        }
        let (mut sum, mut total, mut right, mut counted) = (0.0, 0.0, 0, 0);
        let mut from = 0;
        while from < samples {
            let to = samples.min(from.saturating_add(capacity));
            let target = part(target, samples, from, to);
            let call = Call::inference(Workspace::<M, D>::part_extents(&all, to - from)?);
            let call = self.workspace.call(call);
            let rows = Workspace::<M, D>::rows(&call.extents);
            let x = M::In::part::<D::Wide>(x, samples, from, to);
            self.workspace.forward_as(&self.weights, x, call, None)?;
            let (device, Workspace { arena, staging, .. }) = (self.weights.device(), &mut self.workspace);
            let y = arena.output(device, call);
            let targets = Staging::<D>::bring_targets(&mut staging.targets, device, target)?;
            loss.value(device, rows, y, targets, None, D::view_mut(&mut self.value));
            let value = read(device, &self.value);
            finish::<M, D>(device)?;
            let weight = loss.weight(to - from, target);
            let mean = loss.reduction() == Reduction::Mean;
            // The mean over nothing is no number.
            if weight > 0.0 || !mean {
                sum += if mean { value * weight } else { value };
                total += weight;
            }
            let mut room = match &mut staging.outputs {
                Some(room) => Region::<Cpu<f32>>::new(room.as_mut_slice()),
                None => Region::empty(),
            };
            if let Some((r, n)) = loss.correct(rows, fetch_real(device, y.get(0), &mut room), target) {
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

impl<M: Declared<In: Host, Out: Host> + Module<Cpu<E>, <M as Declared>::In>, E: cpu::Real> Model<M, Cpu<E>> {
    /// As [`accumulate`](Self::accumulate) with a loss of one's own: `loss` is given the output's slices and
    /// writes the gradient into slices of the same lengths, one a tensor, which are zero to begin with.
    ///
    /// It computes on the host, so this is for models that do. For another device write a [`Loss`] in its operations.
    pub fn accumulate_custom(
        &mut self,
        x: <M::In as Host>::Slices<'_, E>,
        loss: impl FnOnce(<M::Out as Host>::Slices<'_, E>, &mut [&mut [E]]) -> f64,
    ) -> Result<f64, Error> {
        let extents = self.workspace.extents(x)?;
        self.run(x, extents, &[0u8; 0], None::<&mut Adam<Cpu<E>>>, |device, _, y, _, dy, value| {
            let n = dy.len();
            let mut dy = dy.into_slices();
            // The buffer held the last step's gradient, and a loss may write some entries only.
            dy.iter_mut().for_each(|dy| dy.fill(E::ZERO));
            value[0] = loss(M::Out::fetch(device, y, &mut Region::empty()).0, &mut dy[..n]);
        })
    }
}

fn check_gradients<M: Declared, D: Device>(
    device: &D,
    weights: &Weights<M, D>,
    gradients: View<'_, D>,
) -> Result<(), Error> {
    let finite = |stretch: std::ops::Range<usize>| {
        device.all_finite(slice::<D>(gradients, stretch.start, stretch.len()))
    };
    let mut optimised = weights.parameters().iter().filter(|p| !p.in_state);
    let bad = optimised.find(|p| !p.stretches().all(finite));
    bad.map_or(Ok(()), |p| Err(Error::GradientNotFinite { path: p.path.clone() }))
}

impl<M: Declared, D: Device> std::fmt::Debug for Model<M, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("weights", &self.weights)
            .field("workspace", &self.workspace)
            .finish_non_exhaustive()
    }
}
