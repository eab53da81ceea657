//! Whether a layer's gradients are right: for those that write layers of their own.
//!
//! [`gradients`] compares every gradient with finite differences. [`Run`] calls a layer on slices of the host.
//!
//! ```
//! use nn::{LinearTanh, T, Mode, check};
//! check::gradients::<LinearTanh<5, 3>, T![4, 5]>(2, Mode::Train, 1).assert_within(1e-7);
//! ```

use std::fmt::{self, Display};
use std::marker::PhantomData;

use nn_kernels::ops::Stream;
use nn_kernels::philox::Philox;
use nn_kernels::{Cpu, Device, Float, Memory};

use crate::ctx::{CallFault, Ctx, Mode};
use crate::dims::{Dims, MAX_LENGTHS};
use crate::fault::accept;
use crate::layer::{Forward, Module, Vjp};
use crate::region::{Region, State, StateRef};
use crate::signature::{Kind, Sig, Signature};
use crate::size::Size;
use crate::table::{Parameter, parameters};
use crate::tensors::{Tensor, Tensors, TensorsMut};

/// One tensor of a batch in the host's memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Values<E> {
    /// Real numbers.
    Real(Vec<E>),
    /// Indices.
    Ids(Vec<u32>),
}

impl<E> Values<E> {
    /// The real numbers. Panics if they are indices.
    #[track_caller]
    pub fn real(&self) -> &[E] {
        match self {
            Self::Real(values) => values,
            Self::Ids(_) => panic!("these are indices"),
        }
    }

    /// The indices. Panics if they are real numbers.
    #[track_caller]
    pub fn ids(&self) -> &[u32] {
        match self {
            Self::Ids(values) => values,
            Self::Real(_) => panic!("these are real numbers"),
        }
    }
}

impl<E: Float> From<Vec<E>> for Values<E> {
    fn from(values: Vec<E>) -> Self {
        Self::Real(values)
    }
}

/// A layer or module with memory of its own, called on slices of the host.
///
/// It is strict: every buffer that a call must write holds NaN before, so that what is left out shows; what
/// the layer says it does not keep, its vjp does not get; and parameter gradients must be added to.
pub struct Run<M, X, D: Device> {
    device: D,
    batch: usize,
    lengths: [usize; MAX_LENGTHS],
    /// What calls are for.
    pub mode: Mode,
    /// Which random numbers they draw.
    pub stream: Stream,
    /// The parameter arena, as it lies in memory.
    pub params: Vec<D::Elem>,
    /// The state arena; a forward pass in [`Mode::Train`] may change it.
    pub state: Vec<D::Wide>,
    places: Vec<Parameter>,
    kept: Option<Kept<D>>,
    /// How many tokens were given, and what they left.
    past: Option<(usize, D::Buffer<u8>)>,
    fault: Option<(u32, CallFault)>,
    types: PhantomData<fn() -> (M, X)>,
}

/// What a forward pass leaves for the vjp.
struct Kept<D: Memory> {
    x: D::Buffer<u8>,
    y: D::Buffer<u8>,
    saved: D::Buffer<u8>,
}

/// By input; `None` for indices.
type InputGradients<E> = Vec<Option<Vec<E>>>;

/// What a vjp gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients<E> {
    /// By input; `None` for indices.
    pub dx: Vec<Option<Vec<E>>>,
    /// The parameter arena's gradient.
    pub dparams: Vec<E>,
}

impl<M: Module<D, X>, X: Signature, D: Device> Run<M, X, D> {
    /// For batches of this size, with the layer's own initial parameters. Bounded axes have their bound as
    /// length. Panics if the layer does not fit.
    #[track_caller]
    pub fn new(device: &D, batch: usize) -> Self {
        accept(&M::RULE.fault);
        let places = parameters(M::TREE, None);
        let mut run = Self {
            device: device.clone(),
            batch,
            lengths: bounds(&X::SIG),
            mode: Mode::Infer,
            stream: Stream::default(),
            params: vec![D::Elem::ZERO; M::TREE.params()],
            state: vec![D::Wide::ZERO; M::TREE.state()],
            places,
            kept: None,
            past: None,
            fault: None,
            types: PhantomData,
        };
        run.init(0);
        run
    }

    /// Draws the layer's own initial parameters.
    pub fn init(&mut self, seed: u64) {
        for place in &self.places {
            let (initial, span) = (place.initial(seed), place.span());
            match place.in_state {
                true => place.scatter(&initial, &mut self.state[span]),
                false => place.scatter(&initial, &mut self.params[span]),
            }
        }
    }

    /// The same for another purpose.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The same with these lengths for the bounded axes.
    pub fn lengths(mut self, lengths: [usize; MAX_LENGTHS]) -> Self {
        self.lengths = lengths;
        self
    }

    /// Paths of parameters and state, with their shapes in a checkpoint.
    pub fn paths(&self) -> impl Iterator<Item = (&str, Vec<usize>)> {
        self.places.iter().map(|p| (p.path.as_str(), p.dims.to_vec()))
    }

    /// Sets a parameter or a state, given in the checkpoint's layout. Panics if there is none of that name
    /// and size.
    #[track_caller]
    pub fn set(&mut self, path: &str, values: &[D::Elem]) {
        let place = find(&self.places, path);
        assert_eq!(values.len(), place.len(), "`{path}` is {}", place.dims);
        match place.in_state {
            true => place.scatter(values, &mut self.state[place.span()]),
            false => place.scatter(values, &mut self.params[place.span()]),
        }
    }

    /// A parameter or a state, in the checkpoint's layout. Panics if there is none of that name.
    #[track_caller]
    pub fn get(&self, path: &str) -> Vec<D::Elem> {
        let place = find(&self.places, path);
        match place.in_state {
            true => rounded(&place.gather(&self.state[place.span()])),
            false => place.gather(&self.params[place.span()]),
        }
    }

    /// The gradient of a parameter, in the checkpoint's layout. Panics if there is none of that name.
    #[track_caller]
    pub fn gradient(&self, gradients: &Gradients<D::Elem>, path: &str) -> Vec<D::Elem> {
        let place = find(&self.places, path);
        place.gather(&gradients.dparams[place.span()])
    }

    /// How many values each tensor has, over the whole batch.
    pub fn numels(&self, sig: &Sig) -> Vec<usize> {
        let cx = self.cx();
        sig.tensors().iter().map(|t| cx.numel(&t.dims)).collect()
    }

    /// What went wrong in the last forward pass.
    pub fn fault(&self) -> Option<(u32, CallFault)> {
        self.fault
    }

    /// Computes the output, and keeps what the vjp will need.
    #[track_caller]
    pub fn forward(&mut self, inputs: &[Values<D::Elem>]) -> Vec<Values<D::Elem>> {
        self.call(inputs, true)
    }

    /// Computes the output, and keeps nothing.
    #[track_caller]
    pub fn forward_only(&mut self, inputs: &[Values<D::Elem>]) -> Vec<Values<D::Elem>> {
        self.call(inputs, false)
    }

    /// Computes the output for the next so many tokens of a sequence, as a [`KvCache`](crate::KvCache) does. The first call
    /// starts it. Panics if the cache has no room.
    #[track_caller]
    pub fn continuing(&mut self, tokens: usize, inputs: &[Values<D::Elem>]) -> Vec<Values<D::Elem>> {
        if self.past.is_none() {
            self.past = Some((0, self.poisoned(M::CACHE)));
        }
        self.lengths[0] = tokens;
        let outputs = self.call(inputs, false);
        if let Some((past, _)) = &mut self.past {
            *past += tokens;
        }
        outputs
    }

    #[track_caller]
    fn call(&mut self, inputs: &[Values<D::Elem>], keep: bool) -> Vec<Values<D::Elem>> {
        let device = &self.device;
        let (takes, gives) = (X::SIG, M::RULE.out);
        let mut x = self.poisoned(takes.size());
        let mut y = self.poisoned(gives.size());
        let mut saved = self.poisoned(M::SAVED.when(keep));
        let mut scratch = self.poisoned(M::SCRATCH);
        let params = self.uploaded(&self.params);
        let (mut state, elements) =
            (self.uploaded(&self.state), self.uploaded(&rounded::<_, D::Elem>(&self.state)));
        let mut cache = self.past.take();
        let mut cx = match &cache {
            Some((past, _)) => self.cx().continuing(*past),
            None if keep => self.cx().keeping(),
            None => self.cx(),
        };
        self.fill(&takes, inputs, &mut x);
        let x_read = TensorsMut::carve(&cx, &takes, &mut Region::new(D::view_mut(&mut x))).freeze();
        let call = Forward {
            params: D::view(&params),
            state: match self.mode {
                Mode::Train => State::writable(D::view_mut(&mut state), D::view(&elements)),
                Mode::Infer => State::read_only(StateRef::new(D::view(&state), D::view(&elements))),
            },
            x: x_read,
            y: TensorsMut::carve(&cx, &gives, &mut Region::new(D::view_mut(&mut y))),
            saved: Region::new(D::view_mut(match &mut cache {
                Some((_, cache)) => cache,
                None => &mut saved,
            })),
            scratch: Region::new(D::view_mut(&mut scratch)),
        };
        M::forward(&mut cx, call);
        let fault = cx.fault();
        self.past = cache;
        self.fault = fault;
        device.download(D::view(&state), &mut self.state);
        let outputs = TensorsMut::carve(&self.cx(), &gives, &mut Region::new(D::view_mut(&mut y))).freeze();
        let outputs = outputs.iter().map(|t| host(device, t)).collect();
        self.kept = keep.then_some(Kept { x, y, saved });
        outputs
    }

    /// Computes the gradients. Panics if there was no [`forward`](Self::forward) before, or if the layer
    /// overwrites parameter gradients instead of adding to them.
    #[track_caller]
    pub fn vjp(&mut self, dy: &[Values<D::Elem>]) -> Gradients<D::Elem> {
        let zeros = vec![D::Elem::ZERO; self.params.len()];
        let ones = vec![D::Elem::ONE; self.params.len()];
        let (dx, dparams) = self.backward(dy, true, Some(zeros));
        let (again, added) = self.backward(dy, true, Some(ones));
        assert!(same_bits(&dx, &again), "{}: two calls give different input gradients", M::LABEL);
        let (dparams, added) = (dparams.unwrap_or_default(), added.unwrap_or_default());
        let eps = match size_of::<D::Elem>() {
            8 => 1e4 * f64::EPSILON,
            4 => 1e4 * f64::from(f32::EPSILON),
            // Seven bits after the first, and 1 and the gradient are each rounded.
            _ => 1.0 / 64.0,
        };
        let mut padding = vec![true; dparams.len()];
        for place in self.places.iter().filter(|p| !p.in_state) {
            for i in place.stretches().flatten() {
                padding[i] = false;
                let (alone, sum) = (dparams[i].to_f64(), added[i].to_f64());
                let near = (sum - 1.0 - alone).abs() <= eps * (1.0 + alone.abs());
                assert!(
                    near || alone.is_nan(),
                    "{}: `{}` is not added to: 0 becomes {alone} and 1 becomes {sum}",
                    M::LABEL,
                    place.path
                );
            }
        }
        let outside = padding.iter().zip(&added).all(|(padding, v)| !padding || *v == D::Elem::ONE);
        assert!(outside, "{}: parameter gradients are written outside their tensors", M::LABEL);
        Gradients { dx, dparams }
    }

    /// One vjp, whose parameter gradients start from `dparams`, if they are wanted.
    #[track_caller]
    fn backward(
        &self,
        dy: &[Values<D::Elem>],
        wants_dx: bool,
        dparams: Option<Vec<D::Elem>>,
    ) -> (InputGradients<D::Elem>, Option<Vec<D::Elem>>) {
        let kept = self.kept.as_ref().expect("a vjp needs a forward pass before it");
        let device = &self.device;
        let (takes, gives) = (X::SIG, M::RULE.out);
        let mut cx = self.cx().keeping();
        // Kept values are copied, for views of them are made from exclusive ones.
        let [mut x, mut y, mut saved] = [&kept.x, &kept.y, &kept.saved].map(|b| self.copied(b));
        let mut gradient = self.poisoned(gives.size());
        self.fill(&gives, dy, &mut gradient);
        let mut dx = self.poisoned(takes.size());
        let mut scratch = self.poisoned(M::VJP_SCRATCH);
        let (params, state) = (self.uploaded(&self.params), self.uploaded(&self.state));
        let elements = self.uploaded(&rounded::<_, D::Elem>(&self.state));
        let mut dparams = dparams.map(|host| (self.uploaded(&host), host));
        let call = Vjp {
            params: D::view(&params),
            state: StateRef::new(D::view(&state), D::view(&elements)),
            x: tensors(&cx, M::KEEPS_X, &takes, &mut x),
            y: tensors(&cx, M::KEEPS_Y, &gives, &mut y),
            saved: Region::<D>::new(D::view_mut(&mut saved)).freeze(),
            dy: tensors(&cx, true, &gives, &mut gradient),
            dx: if wants_dx {
                TensorsMut::carve_gradient(&cx, &takes, &mut Region::new(D::view_mut(&mut dx)))
            } else {
                TensorsMut::unwanted(takes.len())
            },
            dparams: dparams.as_mut().map(|(buffer, _)| D::view_mut(buffer)),
            scratch: Region::new(D::view_mut(&mut scratch)),
        };
        M::vjp(&mut cx, call);
        let read = TensorsMut::carve_gradient(&cx, &takes, &mut Region::new(D::view_mut(&mut dx))).freeze();
        let dx = read.iter().zip(takes.tensors()).map(|(t, of)| match (of.kind, host(device, t)) {
            (Kind::Real, Values::Real(values)) => Some(values),
            _ => None,
        });
        let dx = if wants_dx { dx.collect() } else { vec![None; takes.len()] };
        let dparams = dparams.map(|(buffer, mut host)| {
            device.download(D::view(&buffer), &mut host);
            host
        });
        (dx, dparams)
    }

    fn cx(&self) -> Ctx<'_, D> {
        Ctx::new(&self.device, self.batch).mode(self.mode).stream(self.stream).lengths(self.lengths)
    }

    /// A buffer of bytes that are NaN as real numbers and out of range as indices.
    fn poisoned(&self, size: Size) -> D::Buffer<u8> {
        self.uploaded(&vec![0xFF; self.cx().bytes(size)])
    }

    fn uploaded<T: nn_kernels::Pod>(&self, values: &[T]) -> D::Buffer<T> {
        let mut buffer = self.device.alloc(values.len()).expect("memory for a check");
        self.device.upload(values, D::view_mut(&mut buffer));
        buffer
    }

    fn copied(&self, from: &D::Buffer<u8>) -> D::Buffer<u8> {
        let mut bytes = vec![0; D::len(D::view(from))];
        self.device.download(D::view(from), &mut bytes);
        self.uploaded(&bytes)
    }

    #[track_caller]
    fn fill(&self, sig: &Sig, values: &[Values<D::Elem>], buffer: &mut D::Buffer<u8>) {
        assert_eq!(values.len(), sig.len(), "the tensors are {sig}");
        let cx = self.cx();
        let mut to = TensorsMut::carve(&cx, sig, &mut Region::new(D::view_mut(buffer)));
        for (i, (values, tensor)) in values.iter().zip(sig.tensors()).enumerate() {
            match (values, tensor.kind) {
                (Values::Real(values), Kind::Real) => self.device.upload(values, to.get(i)),
                (Values::Ids(values), Kind::Ids) => self.device.upload(values, to.get_ids(i)),
                _ => panic!("tensor {i} of {sig} is of the other kind"),
            }
        }
    }
}

#[track_caller]
fn find<'p>(places: &'p [Parameter], path: &str) -> &'p Parameter {
    places.iter().find(|p| p.path == path).unwrap_or_else(|| panic!("there is no parameter `{path}`"))
}

fn tensors<'a, D: Device>(
    cx: &Ctx<'_, D>,
    kept: bool,
    sig: &Sig,
    buffer: &'a mut D::Buffer<u8>,
) -> Tensors<'a, D> {
    if kept {
        TensorsMut::carve(cx, sig, &mut Region::new(D::view_mut(buffer))).freeze()
    } else {
        Tensors::EMPTY
    }
}

/// Each value as one of another type.
fn rounded<A: Float, B: Float>(values: &[A]) -> Vec<B> {
    values.iter().map(|v| B::from_f64(v.to_f64())).collect()
}

fn host<D: Device>(device: &D, tensor: Tensor<'_, D>) -> Values<D::Elem> {
    match tensor {
        Tensor::Real(view) => {
            let mut values = vec![D::Elem::ZERO; D::len(view)];
            device.download(view, &mut values);
            Values::Real(values)
        }
        Tensor::Ids(view) => {
            let mut values = vec![0; D::len(view)];
            device.download(view, &mut values);
            Values::Ids(values)
        }
    }
}

fn same_bits<E: Float>(a: &[Option<Vec<E>>], b: &[Option<Vec<E>>]) -> bool {
    let bits = |all: &[Option<Vec<E>>]| -> Vec<u64> {
        all.iter().flatten().flatten().map(|v| v.to_f64().to_bits()).collect()
    };
    bits(a) == bits(b)
}

/// The bound of each bounded axis, by tag.
fn bounds(sig: &Sig) -> [usize; MAX_LENGTHS] {
    let mut lengths = [0; MAX_LENGTHS];
    for dims in sig.tensors().iter().map(|t| t.dims) {
        for axis in (0..dims.rank()).map(|i| dims.axis(i)) {
            if let Some(tag) = axis.length {
                lengths[tag as usize] = axis.n;
            }
        }
    }
    lengths
}

/// How [`gradients`] are checked, where its defaults won't do.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Samples.
    pub batch: usize,
    /// What the calls are for.
    pub mode: Mode,
    /// Of inputs, parameters, gradients and the layer's own random numbers.
    pub seed: u64,
    /// Indices are drawn below this.
    pub ids_below: u32,
    /// Lengths of the bounded axes; by default one less than the bound, but at least one.
    pub lengths: Option<[usize; MAX_LENGTHS]>,
    /// How far a value is moved, to both sides.
    pub step: f64,
}

impl Options {
    /// The defaults.
    pub fn new(batch: usize, mode: Mode, seed: u64) -> Self {
        Self { batch, mode, seed, ids_below: 2, lengths: None, step: 1e-5 }
    }

    /// Compares every gradient of `M`, given `X`, with finite differences.
    ///
    /// Panics if the layer does not fit, if its output depends on whether the vjp's needs are kept, or if a
    /// gradient depends on whether another is wanted.
    #[track_caller]
    pub fn check<M: Module<Cpu<f64>, X>, X: Signature>(&self) -> GradientReport {
        let mut rng = Philox::new(self.seed, 1);
        let mut normal = |n: usize| (0..n).map(|_| rng.normal()).collect::<Vec<_>>();
        let mut run = Run::<M, X, Cpu<f64>>::new(&Cpu::default(), self.batch).mode(self.mode);
        run.stream.seed = self.seed;
        run.lengths = self.lengths.unwrap_or(run.lengths.map(|bound| bound.saturating_sub(1).max(1)));
        run.init(self.seed);
        // Not what layers start with: a gain of one and a bias of zero would hide mistakes.
        for (value, z) in run.params.iter_mut().zip(normal(M::TREE.params())) {
            *value += 0.1 * z;
        }
        let start = run.state.clone();
        for (value, z) in run.state.iter_mut().zip(normal(M::TREE.state())) {
            *value += 0.1 * z.abs();
        }
        // What holds packed weights is no numbers to be added to.
        for span in run.places.iter().filter(|p| p.packing().is_some()).map(Parameter::span) {
            run.state[span.clone()].copy_from_slice(&start[span]);
        }
        let mut ids = Philox::new(self.seed, 2);
        let mut inputs: Vec<Values<f64>> = Vec::new();
        for (tensor, n) in X::SIG.tensors().iter().zip(run.numels(&X::SIG)) {
            inputs.push(match tensor.kind {
                Kind::Real => Values::Real(normal(n)),
                Kind::Ids => Values::Ids((0..n).map(|_| ids.below(self.ids_below)).collect()),
            });
        }

        let before = run.state.clone();
        let only = run.forward_only(&inputs);
        run.state.clone_from(&before);
        let y = run.forward(&inputs);
        assert!(run.fault().is_none(), "{}: {:?}", M::LABEL, run.fault());
        assert_eq!(format!("{only:?}"), format!("{y:?}"), "{}: keeping changes the output", M::LABEL);
        let dy: Vec<_> = y
            .iter()
            .map(|y| match y {
                Values::Real(y) => Values::Real(normal(y.len())),
                Values::Ids(y) => Values::Ids(y.clone()),
            })
            .collect();
        let gradients = run.vjp(&dy);
        let (no_dx, dparams) = run.backward(&dy, false, Some(vec![0.0; run.params.len()]));
        assert!(no_dx.iter().all(Option::is_none));
        assert!(
            same_bits(&[dparams], &[Some(gradients.dparams.clone())]),
            "{}: parameter gradients depend on whether that of the input is wanted",
            M::LABEL
        );
        let (dx, _) = run.backward(&dy, true, None);
        assert!(
            same_bits(&dx, &gradients.dx),
            "{}: the input's gradient depends on whether those of parameters are wanted",
            M::LABEL
        );

        let size =
            norm(dy.iter().filter_map(|d| if let Values::Real(d) = d { Some(d) } else { None }).flatten());
        let step = self.step;
        let slope = |run: &mut Run<M, X, Cpu<f64>>, inputs: &mut Vec<Values<f64>>, at: At| {
            let value = at.of(run, inputs);
            let [above, below] = [value + step, value - step].map(|moved| {
                *at.place(run, inputs) = moved;
                run.state.clone_from(&before);
                run.forward_only(inputs)
            });
            *at.place(run, inputs) = value;
            let terms =
                above.iter().zip(&below).zip(&dy).map(|((above, below), dy)| match (above, below, dy) {
                    (Values::Real(a), Values::Real(b), Values::Real(dy)) => {
                        a.iter().zip(b).zip(dy).map(|((a, b), dy)| (a - b) * dy).sum()
                    }
                    _ => 0.0,
                });
            terms.sum::<f64>() / ((value + step) - (value - step))
        };
        let mut report = GradientReport { layer: M::LABEL.as_str().to_owned(), tensors: Vec::new() };
        for (i, gradient) in gradients.dx.iter().enumerate() {
            if let Some(gradient) = gradient {
                let slopes: Vec<_> =
                    (0..gradient.len()).map(|k| slope(&mut run, &mut inputs, At::Input(i, k))).collect();
                report.tensors.push((format!("input {i}"), error(gradient, &slopes, size)));
            }
        }
        let optimised: Vec<_> = run.places.iter().filter(|p| !p.in_state).cloned().collect();
        for p in optimised {
            let elements = || p.stretches().flatten();
            let slopes: Vec<_> = elements().map(|k| slope(&mut run, &mut inputs, At::Param(k))).collect();
            let gradient: Vec<_> = elements().map(|k| gradients.dparams[k]).collect();
            report.tensors.push((p.path, error(&gradient, &slopes, size)));
        }
        report
    }
}

/// Checks every gradient of `M`, given `X`, against central finite differences of Σ y·dy in double precision,
/// at random inputs, parameters and dy. [`Options`] has more to choose.
#[track_caller]
pub fn gradients<M: Module<Cpu<f64>, X>, X: Signature>(
    batch: usize,
    mode: Mode,
    seed: u64,
) -> GradientReport {
    Options::new(batch, mode, seed).check::<M, X>()
}

/// Whether `M`, given sequences piece by piece, gives what it gives for them at once, to the last bit: what [`Layer::CAUSAL`](crate::Layer::CAUSAL)
/// says. X has its run-time length, without a number of its own, on one axis of each tensor.
///
/// ```
/// # use nn_core as nn;
/// use nn::{CausalAttention, Layer, ScaledDotProductAttentionQKV, T, check};
/// assert!(check::causal::<CausalAttention<9, 2, 3>, T![..9, 18]>(1));
/// assert!(!check::causal::<ScaledDotProductAttentionQKV<9, 2, 3>, T![..9, 18]>(1));
/// ```
#[track_caller]
pub fn causal<M: Module<Cpu<f64>, X>, X: Signature>(seed: u64) -> bool {
    const BATCH: usize = 2;
    let all = bounds(&X::SIG)[0];
    let mut random = Philox::new(seed, 0);
    let inputs: Vec<_> = Run::<M, X, Cpu<f64>>::new(&Cpu::default(), BATCH)
        .numels(&X::SIG)
        .into_iter()
        .zip(X::SIG.tensors())
        .map(|(n, t)| match t.kind {
            Kind::Real => Values::Real((0..n).map(|_| random.normal()).collect()),
            Kind::Ids => Values::Ids((0..n).map(|_| random.below(4)).collect()),
        })
        .collect();
    let pieces = |sizes: &[usize]| {
        let mut run = Run::<M, X, Cpu<f64>>::new(&Cpu::default(), BATCH);
        run.init(seed);
        let mut found: Vec<Vec<Vec<f64>>> = vec![Vec::new(); M::RULE.out.len()];
        let mut at = 0;
        for n in sizes {
            let part: Vec<_> = inputs
                .iter()
                .zip(X::SIG.tensors())
                .map(|(x, t)| piece(x, &t.dims, all, at, at + n))
                .collect();
            for ((found, y), t) in found.iter_mut().zip(run.continuing(*n, &part)).zip(M::RULE.out.tensors())
            {
                found.extend((0..*n).map(|i| match piece(&y, &t.dims, *n, i, i + 1) {
                    Values::Real(values) => values,
                    Values::Ids(ids) => ids.into_iter().map(f64::from).collect(),
                }));
            }
            at += n;
        }
        found
    };
    let whole = pieces(&[all]);
    let ones = vec![1; all];
    let tries: [&[usize]; 3] = [&ones, &[all - 1, 1], &[1, all / 2, all - 1 - all / 2]];
    tries.iter().all(|sizes| pieces(sizes) == whole)
}

/// The positions `from..to` of the axis whose length is known only when it runs, of which there are `all`.
fn piece<E: Copy>(values: &Values<E>, dims: &Dims, all: usize, from: usize, to: usize) -> Values<E> {
    fn cut<T: Copy>(values: &[T], inner: usize, all: usize, from: usize, to: usize) -> Vec<T> {
        values.chunks(all * inner).flat_map(|part| &part[from * inner..to * inner]).copied().collect()
    }
    let axis = (0..dims.rank()).find(|i| dims.axis(*i).length.is_some()).unwrap_or(dims.rank());
    let inner = (axis + 1..dims.rank()).map(|i| dims.n(i)).product();
    match values {
        Values::Real(values) => Values::Real(cut(values, inner, all, from, to)),
        Values::Ids(ids) => Values::Ids(cut(ids, inner, all, from, to)),
    }
}

/// A value that a finite difference moves.
#[derive(Clone, Copy)]
enum At {
    Input(usize, usize),
    Param(usize),
}

impl At {
    fn place<'a, M, X, D: Device<Elem = f64>>(
        self,
        run: &'a mut Run<M, X, D>,
        inputs: &'a mut [Values<f64>],
    ) -> &'a mut f64 {
        match self {
            Self::Param(k) => &mut run.params[k],
            Self::Input(i, k) => match &mut inputs[i] {
                Values::Real(values) => &mut values[k],
                Values::Ids(_) => panic!("indices don't move"),
            },
        }
    }

    fn of<M, X, D: Device<Elem = f64>>(self, run: &mut Run<M, X, D>, inputs: &mut [Values<f64>]) -> f64 {
        *self.place(run, inputs)
    }
}

fn norm<'a>(values: impl IntoIterator<Item = &'a f64>) -> f64 {
    values.into_iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// ‖a − b‖ / ‖b‖; where b is next to nothing as against dy, the rounding of differences must not count.
fn error(a: &[f64], b: &[f64], size: f64) -> f64 {
    let difference: Vec<_> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    let difference = norm(&difference);
    if difference == 0.0 { 0.0 } else { difference / norm(b).max(1e-3 * size) }
}

/// How far gradients are from finite differences.
#[derive(Clone, Debug)]
pub struct GradientReport {
    /// The layer.
    pub layer: String,
    /// ‖a − b‖ / ‖b‖ of each tensor: inputs, and parameters by path.
    pub tensors: Vec<(String, f64)>,
}

impl GradientReport {
    /// Panics unless every error is at most `limit`.
    #[track_caller]
    pub fn assert_within(&self, limit: f64) {
        assert!(self.tensors.iter().all(|(_, error)| *error <= limit), "above {limit:e}: {self}");
    }

    /// The largest error; NaN if there is one.
    pub fn worst(&self) -> f64 {
        let nan_wins = |worst: f64, error: f64| if worst.is_nan() || worst >= error { worst } else { error };
        self.tensors.iter().fold(0.0, |worst, (_, error)| nan_wins(worst, *error))
    }
}

impl Display for GradientReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gradients of `{}`", self.layer)?;
        self.tensors.iter().try_for_each(|(path, error)| write!(f, ", {path}: {error:.1e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dims::Dims;
    use crate::fault::Rule;
    use crate::init::Init;
    use crate::layer::{Layer, Params};
    use crate::tree::{Leaf, Node, Role};
    use crate::{Linear, T, Text};
    use nn_kernels::ops::Unary;

    /// y = x·w, with the mistakes that a layer can have.
    struct Times<const MISTAKE: usize>;
    const WRONG: usize = 1;
    const OVERWRITES: usize = 2;
    const FORGETS: usize = 3;
    const UNDECLARED: usize = 4;
    const SPILLS: usize = 5;

    impl<const MISTAKE: usize> Params for Times<MISTAKE> {
        const LABEL: Text = Text::new().str("Times");
        const TREE: &'static Node =
            &Node::of(&[Leaf::new("weight", Dims::of([4]), Role::Weight, Init::Constant(2.0))]);
    }
    impl<X: Signature, const MISTAKE: usize> Layer<X> for Times<MISTAKE> {
        const RULE: Rule = Rule::ok(X::SIG);
        const KEEPS_X: bool = MISTAKE != UNDECLARED;
        const VJP_SCRATCH: Size = X::SIG.size();
    }
    impl<D: Device, X: Signature, const MISTAKE: usize> Module<D, X> for Times<MISTAKE> {
        fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
            let w = crate::slice::<D>(call.params, 0, 4);
            cx.device().binary(nn_kernels::ops::Binary::Mul, call.x.get(0), w, call.y.get(0));
        }
        fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
            let w = crate::slice::<D>(call.params, 0, 4);
            let mul = nn_kernels::ops::Binary::Mul;
            if let Some(dx) = call.dx.wanted(0) {
                match MISTAKE {
                    FORGETS => {}
                    WRONG => cx.device().unary(Unary::Identity, call.dy.get(0), dx),
                    _ => cx.device().binary(mul, w, call.dy.get(0), dx),
                }
            }
            if let Some(dparams) = call.dparams {
                let (mut dw, padding) = D::split_mut(dparams, 4);
                let x = call.x.get(0);
                let x = if MISTAKE == UNDECLARED && D::len(x) == 0 { call.dy.get(0) } else { x };
                if MISTAKE == OVERWRITES {
                    cx.device().binary(mul, x, call.dy.get(0), dw);
                } else {
                    let mut product = call.scratch.take(4);
                    cx.device().binary(mul, x, call.dy.get(0), D::reborrow(&mut product));
                    cx.device().add_assign(D::freeze(product), D::reborrow(&mut dw));
                }
                if MISTAKE == SPILLS {
                    cx.device().fill(0.0, padding);
                }
            }
        }
    }

    fn report<const MISTAKE: usize>() -> GradientReport {
        gradients::<Times<MISTAKE>, T![4]>(1, Mode::Train, 3)
    }

    #[test]
    fn a_right_layer_passes() {
        report::<0>().assert_within(1e-9);
    }

    #[test]
    fn wrong_and_missing_gradients_show() {
        assert!(report::<WRONG>().worst() > 0.1);
        assert!(report::<FORGETS>().worst().is_nan());
        assert!(report::<UNDECLARED>().worst() > 0.1);
    }

    #[test]
    #[should_panic(expected = "input 0: NaN")]
    fn nan_is_not_within_a_limit() {
        report::<FORGETS>().assert_within(1e300);
    }

    #[test]
    #[should_panic(expected = "`weight` is not added to")]
    fn overwritten_parameter_gradients_are_a_panic() {
        report::<OVERWRITES>();
    }

    #[test]
    #[should_panic(expected = "outside their tensors")]
    fn spilled_parameter_gradients_are_a_panic() {
        report::<SPILLS>();
    }

    #[test]
    #[should_panic(expected = "`Linear<3, 2>` takes [.., 3], but it is given [4]")]
    fn a_layer_that_does_not_fit_is_a_panic() {
        gradients::<Linear<3, 2>, T![4]>(1, Mode::Infer, 0);
    }

    #[test]
    fn parameters_are_set_and_read_in_the_layout_of_checkpoints() {
        let mut run = Run::<Linear<3, 2>, T![3], Cpu<f64>>::new(&Cpu::default(), 1);
        assert_eq!(run.paths().collect::<Vec<_>>(), [("weight", vec![2, 3]), ("bias", vec![2])]);
        run.set("weight", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        run.set("bias", &[0.5, -0.5]);
        assert_eq!(run.get("weight"), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(run.params[..6], [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert_eq!(run.forward(&[vec![1.0, 0.0, -1.0].into()])[0].real(), [-1.5, -2.5]);
        let gradients = run.vjp(&[vec![1.0, 10.0].into()]);
        assert_eq!(run.gradient(&gradients, "weight"), [1.0, 0.0, -1.0, 10.0, 0.0, -10.0]);
        assert_eq!(gradients.dx, [Some(vec![41.0, 52.0, 63.0])]);
    }
}
