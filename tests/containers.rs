//! What a call says reaches every layer through every container: mode, random numbers, position, lengths, parameters, state and
//! what forward saved, in both directions.

use std::cell::RefCell;

use nn::check::{Options, Run, Values};
use nn::kernels::ops::Stream;
use nn::*;

type Device64 = Cpu<f64>;

/// What reached a [`Probe`].
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    stream: Stream,
    mode: Mode,
    keeps: bool,
    past: Option<usize>,
    batch: usize,
    lengths: [usize; MAX_LENGTHS],
    gain: Vec<f64>,
    base: Vec<f64>,
    /// How many training passes the layer's state knows of, after this one.
    count: f64,
    /// Forward: whether the state may be written. Vjp: whether the parameters' gradient is wanted.
    writes: bool,
    /// The value, and the indices beside it.
    x: Vec<f64>,
    ids: Vec<u32>,
    /// Vjp: the gradient that arrives.
    dy: Vec<f64>,
    /// What is in the cache.
    tokens: f64,
}

#[derive(Default)]
struct Log {
    forward: Vec<Seen>,
    vjp: Vec<Seen>,
}

thread_local! {
    static LOG: RefCell<Log> = RefCell::default();
}

/// What reached the probes since the last time.
fn log() -> Log {
    LOG.take()
}

/// y = x·γ + b for each token, with γ a parameter and b frozen; indices stand for themselves. Says what reaches it, counts
/// training passes in its state, and spoils the working memory that it is given.
#[layer(own_views)]
pub struct Probe<const N: usize>;

impl<N: Dim> Views for ProbeOf<N> {
    type View<A: Access> = ();
}

impl<N: Dim> ProbeOf<N> {
    const LEAVES: [Leaf; 3] = [
        Leaf::new("gain", Dims::new(&[N::EXTENT]), Role::Weight, Init::Constant(1.0)),
        Leaf::new("count", Dims::of([1]), Role::State, Init::Constant(0.0)),
        Leaf::new("base", Dims::new(&[N::EXTENT]), Role::Frozen, Init::Constant(0.0)),
    ];

    /// Gives a value the shape that indices lack.
    const fn rule(given: &Sig) -> Rule {
        if given.is_poison() || given.is_empty() {
            return Rule::ok(Sig::POISON);
        }
        Rule::ok(match given.tensors()[0].kind {
            Kind::Real => Sig::real(given.dims(0)),
            Kind::Ids => Sig::real(given.dims(0).push(N::EXTENT)),
        })
    }

    fn seen<D: Device, X: Signature>(
        cx: &Ctx<'_, D>,
        params: View<'_, D>,
        state: StateRef<'_, D>,
        x: Tensors<'_, D>,
    ) -> Seen {
        let mut seen = Seen {
            stream: cx.random(),
            mode: cx.mode,
            keeps: cx.keeps(),
            past: cx.past(),
            batch: cx.batch,
            lengths: cx.lengths,
            gain: host(cx, slice::<D>(params, 0, N::N)),
            base: host(cx, state.slice(Self::TREE.leaf_offset(2), N::N).elements()),
            count: host(cx, state.slice(Self::TREE.leaf_offset(1), 1).values())[0],
            writes: false,
            x: Vec::new(),
            ids: Vec::new(),
            dy: Vec::new(),
            tokens: 0.0,
        };
        assert_eq!(cx.place(), seen.stream.place);
        assert_eq!(x.len(), X::SIG.len());
        for tensor in x.iter() {
            match tensor {
                Tensor::Real(view) => seen.x.extend(host(cx, view)),
                Tensor::Ids(view) => {
                    let mut ids = vec![0; D::len(view)];
                    cx.device().download(view, &mut ids);
                    seen.ids.extend(ids);
                }
            }
        }
        seen
    }

    /// x, in the shape of y.
    fn rows<D: Device, X: Signature>(cx: &Ctx<'_, D>, seen: &Seen) -> Vec<f64> {
        match X::SIG.tensors()[0].kind {
            Kind::Real => seen.x[..cx.numel(&X::SIG.dims(0))].to_vec(),
            Kind::Ids => seen.ids.iter().flat_map(|id| vec![f64::from(*id); N::N]).collect(),
        }
    }

    fn spoil<D: Device>(cx: &Ctx<'_, D>, mut scratch: Region<'_, D>) {
        cx.device().fill(f64::NAN, scratch.take(N::N));
    }
}

fn host<D: Device, T: Float>(cx: &Ctx<'_, D>, view: D::View<'_, T>) -> Vec<f64> {
    let mut values = vec![T::ZERO; D::len(view)];
    cx.device().download(view, &mut values);
    values.into_iter().map(Float::to_f64).collect()
}

fn put<D: Device>(cx: &Ctx<'_, D>, values: &[f64], to: ViewMut<'_, D>) {
    let values: Vec<_> = values.iter().map(|v| D::Elem::from_f64(*v)).collect();
    cx.device().upload(&values, to);
}

impl<N: Dim> Params for ProbeOf<N> {
    const LABEL: Text = Self::SHOWN;
    const TREE: &'static Node = &Node::of(&Self::LEAVES);
}

impl<X: Signature, N: Dim> Layer<X> for ProbeOf<N> {
    const CAUSAL: bool = true;
    const RULE: Rule = Self::rule(&X::SIG);
    const KEEPS_X: bool = true;
    const KEEPS_Y: bool = true;
    const SAVED: Size = Size::fixed_elements(1);
    const CACHE: Size = Size::fixed_elements(1);
    const SCRATCH: Size = Size::fixed_elements(N::N);
    const VJP_SCRATCH: Size = Size::fixed_elements(N::N);
}

impl<D: Device, X: Signature, N: Dim> Module<D, X> for ProbeOf<N> {
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        Self::spoil(cx, call.scratch);
        let writes = call.state.write().is_some();
        if let (true, Some(state)) = (cx.trains(), call.state.write()) {
            let count = span_mut::<D, _>(state, Self::TREE.leaf_offset(1), 1);
            let one = host(cx, D::read(&count))[0] + 1.0;
            cx.device().upload(&[D::Wide::from_f64(one)], count);
        }
        let mut seen = Seen { writes, ..Self::seen::<D, X>(cx, call.params, call.state.read(), call.x) };
        if cx.past().is_some() || cx.keeps() {
            let mut saved: ViewMut<'_, D> = call.saved.take(1);
            match cx.past() {
                Some(past) => {
                    let before = if past == 0 { 0.0 } else { host(cx, D::read(&saved))[0] };
                    seen.tokens = before + cx.lengths[0] as f64;
                    cx.device().fill(seen.tokens, D::reborrow(&mut saved));
                }
                None => cx.device().fill(f64::from(cx.place()) + 0.5, D::reborrow(&mut saved)),
            }
        }
        assert!(call.saved.is_empty(), "{}: more memory than it asks for", Self::LABEL);
        let rows = Self::rows::<D, X>(cx, &seen);
        let y: Vec<_> =
            rows.iter().enumerate().map(|(i, x)| x * seen.gain[i % N::N] + seen.base[i % N::N]).collect();
        put(cx, &y, call.y.get(0));
        LOG.with_borrow_mut(|log| log.forward.push(seen));
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        Self::spoil(cx, call.scratch);
        let writes = call.dparams.is_some();
        let dy = host(cx, call.dy.get(0));
        let seen = Seen { writes, dy: dy.clone(), ..Self::seen::<D, X>(cx, call.params, call.state, call.x) };
        let saved: View<'_, D> = call.saved.take(1);
        assert_eq!(host(cx, saved), [f64::from(cx.place()) + 0.5], "what another saved");
        let (x, y) = (Self::rows::<D, X>(cx, &seen), host(cx, call.y.get(0)));
        let again = x.iter().enumerate().map(|(i, x)| x * seen.gain[i % N::N] + seen.base[i % N::N]);
        assert_eq!(y, again.collect::<Vec<_>>(), "another's output");
        if let Some(dx) = call.dx.wanted(0) {
            put(cx, &dy.iter().enumerate().map(|(i, dy)| dy * seen.gain[i % N::N]).collect::<Vec<_>>(), dx);
        }
        // Further inputs have no influence.
        for i in 1..X::SIG.len() {
            if let Some(dx) = call.dx.wanted(i) {
                cx.device().fill(0.0, dx);
            }
        }
        if let Some(dparams) = &mut call.dparams {
            let mut dgain = vec![0.0; N::N];
            dy.iter().zip(&x).enumerate().for_each(|(i, (dy, x))| dgain[i % N::N] += dy * x);
            let mut all = slice_mut::<D>(D::reborrow(dparams), 0, N::N);
            let sum: Vec<_> = host(cx, D::read(&all)).iter().zip(&dgain).map(|(a, b)| a + b).collect();
            put(cx, &sum, D::reborrow(&mut all));
        }
        LOG.with_borrow_mut(|log| log.vjp.push(seen));
    }
}

// What stands in each container: layers, one behind the other, with a gate between them.
sequential! { Unit: [..4, 3] -> [..4, 3] = a: Probe<3>, gate: GradGate, b: Probe<3> }
sequential! { One: [3] -> [3] = a: Probe<3>, gate: GradGate, b: Probe<3> }
sequential! { FromIds: Ids[..4] -> [..4, 3] = a: Probe<3>, gate: GradGate, b: Probe<3> }
sequential! { OneFromIds: Ids<T![]> -> [3] = a: Probe<3>, gate: GradGate, b: Probe<3> }

/// The same for a value and what is given with it.
#[module]
struct Told {
    a: Probe<3>,
    gate: GradGate,
    b: Probe<3>,
}
#[module]
impl Told {
    fn forward(&self, x: T![..4, 3], ids: Ids<T![..4]>) -> T![..4, 3] {
        self.b(self.gate(self.a(x, ids)), ids)
    }
}

/// How a container differs from one that only passes on.
#[derive(Clone, Copy, Default)]
struct Differs {
    /// Parameters have no gradient.
    frozen: bool,
    /// Forward runs again in the vjp.
    again: bool,
    /// A token is a sample.
    tokens: bool,
}

const LENGTH: usize = 3;
const BATCH: usize = 2;
const STREAM: Stream = Stream { seed: 11, place: 0, step: 5, rank: 3 };

fn numbers(n: usize, seed: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 37 + seed * 11) % 101) as f64 / 50.0 - 1.003).collect()
}

fn values(sig: &Sig, seed: usize, length: usize) -> Vec<Values<f64>> {
    let mut lengths = [0; MAX_LENGTHS];
    lengths[0] = length;
    let each = sig.tensors().iter().map(|t| match t.kind {
        Kind::Real => Values::Real(numbers(BATCH * t.dims.numel_at(&lengths), seed)),
        Kind::Ids => {
            Values::Ids((0..BATCH * t.dims.numel_at(&lengths)).map(|i| (i * 3 + seed) as u32 % 5).collect())
        }
    });
    each.collect()
}

/// The place of a probe.
fn place<M: Module<Device64, X>, X: Signature>(path: &str) -> u32 {
    let rows = Describe::of::<M, Device64, X>().rows;
    assert_eq!(rows.len(), <M as Layer<X>>::PLACES as usize);
    rows.iter().position(|row| row.path == path && row.layer == "Probe<3>").unwrap() as u32
}

/// Gives each parameter and each state numbers of its own.
fn fill<M: Module<Device64, X>, X: Signature>(run: &mut Run<M, X, Device64>) {
    let paths: Vec<_> =
        run.paths().map(|(path, dims)| (path.to_owned(), dims.iter().product::<usize>())).collect();
    for (i, (path, n)) in paths.iter().enumerate() {
        match path.rsplit('.').next() {
            Some("gain") => run.set(path, &numbers(*n, 3 * i + 1)),
            Some("base") => run.set(path, &numbers(*n, 5 * i + 2)),
            Some("count") => run.set(path, &[10.0 * i as f64]),
            _ => {}
        }
    }
}

/// Whether each call reached each probe as it should, in the order `order` of the probes' paths.
fn reaches_all<M, X: Signature>(order: &[&str], container: Differs)
where
    M: Module<Device64, X> + Declared<In = X>,
{
    // A model: first, body, last. The container's probes stand between the two others.
    let inside = |path: &str| path.starts_with("body");
    let places: Vec<_> = order.iter().map(|path| place::<M, X>(path)).collect();

    for mode in [Mode::Train, Mode::Infer] {
        let mut lengths = [0; MAX_LENGTHS];
        lengths[0] = LENGTH;
        let mut run = Run::<M, X, Device64>::new(&Cpu::default(), BATCH).mode(mode).lengths(lengths);
        fill(&mut run);
        run.stream = STREAM;
        let (gains, bases): (Vec<_>, Vec<_>) = order
            .iter()
            .map(|path| (run.get(&format!("{path}.gain")), run.get(&format!("{path}.base"))))
            .unzip();
        let counts: Vec<_> = order.iter().map(|path| run.get(&format!("{path}.count"))[0]).collect();
        log();
        run.forward(&values(&X::SIG, 1, LENGTH));
        let Log { forward, vjp } = log();
        assert!(vjp.is_empty());
        let trained = f64::from(u8::from(mode == Mode::Train));
        let expected = |i: usize, keeps, writes, seen: &Seen| Seen {
            stream: Stream { place: places[i], ..STREAM },
            mode,
            keeps,
            past: None,
            batch: if container.tokens && inside(order[i]) { BATCH * LENGTH } else { BATCH },
            lengths,
            gain: gains[i].clone(),
            base: bases[i].clone(),
            count: counts[i] + trained,
            writes,
            // What it is given is another layer's work; that it is the same in both directions is checked below.
            x: seen.x.clone(),
            ids: seen.ids.clone(),
            dy: seen.dy.clone(),
            tokens: 0.0,
        };
        assert_eq!(forward.len(), order.len());
        for (i, seen) in forward.iter().enumerate() {
            let keeps = !(container.again && inside(order[i]));
            assert_eq!(
                *seen,
                expected(i, keeps, mode == Mode::Train, seen),
                "forward, {mode:?}, {}",
                order[i]
            );
        }
        for (i, path) in order.iter().enumerate() {
            assert_eq!(run.get(&format!("{path}.count")), [counts[i] + trained], "{mode:?}, {path}");
        }

        // Twice, since `Run` looks whether gradients are added to.
        run.vjp(&values(&M::RULE.out, 2, LENGTH));
        let Log { forward: second, vjp } = log();
        let within = order.iter().filter(|path| inside(path)).count();
        assert_eq!(second.len(), if container.again { 2 * within } else { 0 });
        let body: Vec<_> = (0..order.len()).filter(|i| inside(order[*i])).collect();
        for (i, seen) in body.iter().cycle().zip(&second) {
            let expected = Seen {
                x: forward[*i].x.clone(),
                ids: forward[*i].ids.clone(),
                ..expected(*i, true, false, seen)
            };
            assert_eq!(*seen, expected, "again, {mode:?}, {}", order[*i]);
        }
        assert_eq!(vjp.len(), 2 * order.len());
        for (k, seen) in vjp.iter().enumerate() {
            let i = order.len() - 1 - k % order.len();
            let writes = !(container.frozen && inside(order[i]));
            let expected = Seen {
                x: forward[i].x.clone(),
                ids: forward[i].ids.clone(),
                ..expected(i, true, writes, seen)
            };
            assert_eq!(*seen, expected, "vjp, {mode:?}, {}", order[i]);
        }
    }
}

/// Gradients of all parameters and inputs, each in its place.
fn has_gradients<M: Module<Device64, X>, X: Signature>() {
    for mode in [Mode::Train, Mode::Infer] {
        Options { ids_below: 5, ..Options::new(BATCH, mode, 1) }.check::<M, X>().assert_within(1e-7);
    }
    log();
}

/// A gate that is shut stops the gradient of what is before it, wherever it stands.
fn gates_are_reached<M: Module<Device64, X>, X: Signature>() {
    let mut run = Run::<M, X, Device64>::new(&Cpu::default(), BATCH);
    fill(&mut run);
    let gates: Vec<_> =
        run.paths().filter_map(|(path, _)| path.strip_suffix("gate.stop").map(str::to_owned)).collect();
    assert!(!gates.is_empty());
    for gate in gates {
        let before = place::<M, X>(&format!("{gate}a"));
        for stop in [0.0, 1.0] {
            run.set(&format!("{gate}gate.stop"), &[stop]);
            log();
            run.forward(&values(&X::SIG, 1, 4));
            run.vjp(&values(&M::RULE.out, 2, 4));
            let arrives: Vec<_> = log().vjp.into_iter().filter(|seen| seen.stream.place == before).collect();
            // `Run` calls it twice.
            assert_eq!(arrives.len(), 2);
            for dy in arrives.iter().flat_map(|seen| &seen.dy) {
                assert_eq!(*dy == 0.0, stop == 1.0, "{gate}");
            }
        }
        run.set(&format!("{gate}gate.stop"), &[0.0]);
    }
}

/// Values that are not finite are found where they come from, by path.
fn the_first_that_is_not_finite_is_named<M, X>(
    order: &[&str],
    call: impl Fn(&mut Model<M, Device64>, Mode) -> Result<(), Error>,
) where
    M: Module<Device64, X> + Declared<In = X>,
    X: Signature,
{
    for (path, mode) in order.iter().flat_map(|path| [(path, Mode::Train), (path, Mode::Infer)]) {
        let mut model = Model::<M, Device64>::init(1, BATCH).unwrap();
        model.check_finite(true);
        call(&mut model, mode).unwrap();
        model.weights_mut().set(&format!("{path}.gain"), &[1.0, f64::INFINITY, 1.0]).unwrap();
        let error = call(&mut model, mode).unwrap_err();
        assert!(matches!(&error, Error::NotFinite { path: found } if found == path), "{path}: {error}");
        log();
    }
}

/// Every parameter and every state, frozen or not, by path.
fn all<M: Declared>(weights: &Weights<M, Device64>) -> Vec<(String, Vec<f64>)> {
    weights.parameters().iter().map(|p| (p.path.clone(), weights.get(&p.path).unwrap())).collect()
}

/// A target network and a checkpoint have all of it.
fn copies_are_whole<M: Module<Device64, X> + Declared<In = X>, X: Signature>(order: &[&str]) {
    let numbered = |seed: usize| {
        let mut weights = Weights::<M, Device64>::new(Cpu::default(), 1).unwrap();
        let sizes: Vec<_> = weights.parameters().iter().map(|p| (p.path.clone(), p.len())).collect();
        for (i, (path, n)) in sizes.iter().enumerate() {
            weights.set(path, &numbers(*n, 7 * i + seed)).unwrap();
        }
        weights
    };
    let (source, mut target) = (numbered(1), numbered(2));
    let names = all(&source);
    for path in order {
        for name in ["gain", "count", "base"] {
            assert!(names.iter().any(|(found, _)| *found == format!("{path}.{name}")), "{path}.{name}");
        }
    }
    assert!(names.iter().any(|(path, _)| path.starts_with("body") && path.ends_with("gate.stop")));

    let half: Vec<(String, Vec<f64>)> = all(&target)
        .into_iter()
        .zip(&names)
        .map(|((path, a), (_, b))| (path, a.iter().zip(b).map(|(a, b)| a + 0.5 * (b - a)).collect()))
        .collect();
    target.move_towards(&source, 0.5);
    for ((path, found), (_, expected)) in all(&target).iter().zip(&half) {
        let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-15);
        assert!(near && found != &source.get(path).unwrap(), "{path}: {found:?} {expected:?}");
    }
    target.copy_from(&source);
    assert_eq!(all(&target), names);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weights.safetensors");
    source.save(&file).unwrap();
    let mut loaded = numbered(3);
    loaded.load(&file).unwrap();
    assert_eq!(all(&loaded), names);
}

/// A sequence in pieces: each layer knows how many tokens were before, and has a cache of its own.
fn positions_reach_all<M, X>(
    order: &[&str],
    container: Differs,
    forward: impl Fn(&mut KvCache<M, Device64>, &Weights<M, Device64>, usize),
) where
    M: Module<Device64, X> + Declared<In = X>,
    X: Signature,
{
    let weights = Weights::<M, Device64>::new(Cpu::default(), 1).unwrap();
    let mut cache = KvCache::new(&weights, BATCH).unwrap();
    let mut past = 0;
    log();
    for length in [2, 1, 1] {
        forward(&mut cache, &weights, length);
        let Log { forward, .. } = log();
        assert_eq!(forward.len(), order.len());
        for (seen, path) in forward.iter().zip(order) {
            // Each token is a sample of its own: nothing was before it.
            let apart = container.tokens && path.starts_with("body");
            let expected =
                if apart { (None, 0.0, BATCH * length) } else { (Some(past), (past + length) as f64, BATCH) };
            assert_eq!((seen.past, seen.tokens, seen.batch), expected, "{path}");
            assert!(!seen.keeps && !seen.writes && seen.lengths[0] == length, "{path}");
        }
        past += length;
    }
}

/// What a model is given, as its methods take it.
macro_rules! given {
    (real, $values:expr) => {
        $values[0].real()
    };
    (ids, $values:expr) => {
        $values[0].ids()
    };
    (both, $values:expr) => {
        ($values[0].real(), $values[1].ids())
    };
}

/// The tests of one container: how it differs, what the model takes, its probes in the order in which they run, and the model,
/// `Net`, whose field `body` the container is.
macro_rules! container {
    ($name:ident($differs:expr), $kind:ident $x:ty, [$($path:literal)*], { $($net:tt)* }) => {
        mod $name {
            use super::*;

            $($net)*

            const ORDER: &[&str] = &[$($path),*];

            #[test]
            fn what_a_call_says_reaches_every_layer() {
                reaches_all::<Net, $x>(ORDER, $differs);
            }

            #[test]
            fn gradients_are_those_of_finite_differences() {
                has_gradients::<Net, $x>();
            }

            #[test]
            fn switches_reach_every_layer() {
                gates_are_reached::<Net, $x>();
            }

            #[test]
            fn what_is_not_finite_is_found_by_path() {
                the_first_that_is_not_finite_is_named::<Net, $x>(ORDER, |model, mode| {
                    model.set_sequences(BATCH);
                    let values = values(&<$x as Signature>::SIG, 1, LENGTH);
                    let x = given!($kind, values);
                    match mode {
                        Mode::Train => model.accumulate_custom(x, |_, _| 0.0).map(|_| ()),
                        Mode::Infer => model.forward(x).map(|_| ()),
                    }
                });
            }

            #[test]
            fn copies_and_checkpoints_have_all_parameters_and_states() {
                copies_are_whole::<Net, $x>(ORDER);
            }

            #[test]
            fn positions_and_caches_reach_every_layer() {
                positions_reach_all::<Net, $x>(ORDER, $differs, |cache, weights, length| {
                    let values = values(&<$x as Signature>::SIG, 1, length);
                    cache.forward(weights, given!($kind, values)).unwrap();
                });
            }
        }
    };
}

const ALIKE: Differs = Differs { frozen: false, again: false, tokens: false };

container! { chain(ALIKE), real T![..4, 3], ["first" "body.a" "body.b" "last"], {
    sequential! { Net: [..4, 3] -> [..4, 3] = first: Probe<3>, body: Unit, last: Probe<3> }
} }

container! { chain_of_ids(ALIKE), ids Ids<T![..4]>, ["body.a" "body.b" "last"], {
    sequential! { Net: Ids[..4] -> [..4, 3] = body: FromIds, last: Probe<3> }
} }

container! {
    module_with_branches(ALIKE), real T![..4, 3],
    ["first" "body.left.a" "body.left.b" "body.right.a" "body.right.b" "last"],
    {
        #[module]
        struct Branches {
            right: Unit,
            left: Unit,
        }
        #[module]
        impl Branches {
            fn forward(&self, x: T![..4, 3]) -> T![..4, 3] {
                let a = self.left(x);
                a * x + self.right(a)
            }
        }
        sequential! { Net: [..4, 3] -> [..4, 3] = first: Probe<3>, body: Branches, last: Probe<3> }
    }
}

container! { residual(ALIKE), real T![..4, 3], ["first" "body.a" "body.b" "last"], {
    sequential! { Net: [..4, 3] -> [..4, 3] = first: Probe<3>, body: Residual<Unit>, last: Probe<3> }
} }

container! {
    repeat(ALIKE), real T![..4, 3], ["first" "body.0.a" "body.0.b" "body.1.a" "body.1.b" "body.2.a" "body.2.b" "last"],
    { sequential! { Net: [..4, 3] -> [..4, 3] = first: Probe<3>, body: Repeat<Unit, 3>, last: Probe<3> } }
}

container! {
    repeat_conditional(ALIKE), both (T![..4, 3], Ids<T![..4]>),
    ["first" "body.0.a" "body.0.b" "body.1.a" "body.1.b" "body.2.a" "body.2.b" "last"],
    {
        #[module]
        struct Net {
            first: Probe<3>,
            body: RepeatConditional<Told, 3>,
            last: Probe<3>,
        }
        #[module]
        impl Net {
            fn forward(&self, x: T![..4, 3], ids: Ids<T![..4]>) -> T![..4, 3] {
                self.last(self.body(self.first(x, ids), ids), ids)
            }
        }
    }
}

const AGAIN: Differs = Differs { again: true, ..ALIKE };

container! { remat(AGAIN), real T![..4, 3], ["first" "body.a" "body.b" "last"], {
    sequential! { Net: [..4, 3] -> [..4, 3] = first: Probe<3>, body: Remat<Unit>, last: Probe<3> }
} }

container! { remat_of_ids(AGAIN), ids Ids<T![..4]>, ["body.a" "body.b" "last"], {
    sequential! { Net: Ids[..4] -> [..4, 3] = body: Remat<FromIds>, last: Probe<3> }
} }

const TOKENS: Differs = Differs { tokens: true, ..ALIKE };

container! { tok(TOKENS), real T![..4, 3], ["first" "body.a" "body.b" "last"], {
    sequential! { Net: [..4, 3] -> [..4, 3] = first: Probe<3>, body: Tok<One>, last: Probe<3> }
} }

container! { tok_of_ids(TOKENS), ids Ids<T![..4]>, ["body.a" "body.b" "last"], {
    sequential! { Net: Ids[..4] -> [..4, 3] = body: Tok<OneFromIds>, last: Probe<3> }
} }

container! { init_with(ALIKE), real T![..4, 3], ["first" "body.a" "body.b" "last"], {
    sequential! { Net: [..4, 3] -> [..4, 3] = first: Probe<3>, body: InitWith<Unit, Zero>, last: Probe<3> }

    #[test]
    fn every_layer_starts_as_it_says() {
        let weights = Weights::<Net, Device64>::new(Cpu::default(), 1).unwrap();
        for (path, starts) in [("first", 1.0), ("body.a", 0.0), ("body.b", 0.0), ("last", 1.0)] {
            assert_eq!(weights.get(&format!("{path}.gain")).unwrap(), [starts; 3], "{path}");
        }
    }
} }

container! { init_with_of_ids(ALIKE), ids Ids<T![..4]>, ["body.a" "body.b" "last"], {
    sequential! { Net: Ids[..4] -> [..4, 3] = body: InitWith<FromIds, Zero>, last: Probe<3> }
} }

const FROZEN: Differs = Differs { frozen: true, ..ALIKE };

container! { stop_grad_params(FROZEN), real T![..4, 3], ["first" "body.a" "body.b" "last"], {
    sequential! { Net: [..4, 3] -> [..4, 3] = first: Probe<3>, body: StopGradParams<Unit>, last: Probe<3> }
} }

container! { stop_grad_params_of_ids(FROZEN), ids Ids<T![..4]>, ["body.a" "body.b" "last"], {
    sequential! { Net: Ids[..4] -> [..4, 3] = body: StopGradParams<FromIds>, last: Probe<3> }
} }

container! {
    pre_norm_block(ALIKE), real T![..4, 3],
    [
        "first" "body.norm1.a" "body.norm1.b" "body.attn.a" "body.attn.b" "body.norm2.a" "body.norm2.b" "body.mlp.a"
        "body.mlp.b" "last"
    ],
    {
        sequential! {
            Net: [..4, 3] -> [..4, 3] = first: Probe<3>, body: PreNormBlock<Unit, Unit, Unit, Unit>, last: Probe<3>
        }
    }
}

container! {
    post_norm_block(ALIKE), real T![..4, 3],
    [
        "first" "body.attn.a" "body.attn.b" "body.norm1.a" "body.norm1.b" "body.mlp.a" "body.mlp.b" "body.norm2.a"
        "body.norm2.b" "last"
    ],
    {
        sequential! {
            Net: [..4, 3] -> [..4, 3] = first: Probe<3>, body: PostNormBlock<Unit, Unit, Unit, Unit>, last: Probe<3>
        }
    }
}
