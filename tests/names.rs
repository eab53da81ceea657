//! Names of other libraries: renamed fields, and layers that are several in a checkpoint.

use nn::*;

#[module]
struct Separate {
    query: Linear<3, 4>,
    key: Linear<3, 4>,
    value: Linear<3, 4>,
    out: Linear<12, 2>,
}
#[module]
impl Separate {
    fn forward(&self, x: T![3]) -> T![2] {
        self.out(Concat::<0>(self.query(x), self.key(x), self.value(x)))
    }
}

#[module]
struct Fused {
    #[fused("query", "key", "value")]
    qkv: Linear<3, 12>,
    out: Linear<12, 2>,
}
#[module]
impl Fused {
    fn forward(&self, x: T![3]) -> T![2] {
        self.out(self.qkv(x))
    }
}

const X: [f64; 9] = [0.3, -1.2, 0.7, 2.0, 0.1, -0.4, -0.9, 1.1, 0.6];
type Double<M> = Model<M, Cpu<f64>>;

fn paths<M: Declared, D: Device>(model: &Model<M, D>) -> Vec<String> {
    model.weights().parameters().iter().map(|p| p.path.clone()).collect()
}

/// That two models have the same parameters under the same names, to the last bit.
#[track_caller]
fn assert_same<A: Declared, B: Declared>(a: &Double<A>, b: &Double<B>) {
    assert_eq!(paths(a), paths(b));
    for path in paths(a) {
        assert_eq!(a.weights().get(&path).unwrap(), b.weights().get(&path).unwrap(), "{path}");
    }
}

#[track_caller]
fn assert_near(a: &[f64], b: &[f64]) {
    let near = a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-14 * (1.0 + b.abs()));
    assert!(near, "{a:?} is not {b:?}");
}

#[test]
fn a_fused_layer_is_the_layers_it_is_made_of() {
    let mut separate = Double::<Separate>::init(3, 3).unwrap();
    let mut fused = Double::<Fused>::init(3, 3).unwrap();
    // The same first values: each part is initialised by its own name and sizes.
    assert_same(&separate, &fused);
    assert_near(fused.forward(&X).unwrap(), separate.forward(&X).unwrap());
    let (mut a, mut b) = (Adam::new(0.01).clip_norm(0.1), Adam::new(0.01).clip_norm(0.1));
    for _ in 0..5 {
        separate.train_step(&X, &[0.5; 6], &MSE::default(), &mut a).unwrap();
        fused.train_step(&X, &[0.5; 6], &MSE::default(), &mut b).unwrap();
        for (path, norm) in separate.gradient_norms() {
            assert_near(&fused.gradient(&path).unwrap(), &separate.gradient(&path).unwrap());
            assert_near(&[fused.gradient_norms().into_iter().find(|n| n.0 == path).unwrap().1], &[norm]);
        }
    }
    for path in paths(&fused) {
        assert_near(&fused.weights().get(&path).unwrap(), &separate.weights().get(&path).unwrap());
    }
}

#[test]
fn other_initialisers_see_the_parts() {
    // Orthonormal rows in each part: twelve rows of three can't all be.
    let separate = Weights::<Separate, Cpu<f64>>::init_with::<Orthogonal>(Cpu::default(), 5).unwrap();
    let fused = Weights::<Fused, Cpu<f64>>::init_with::<Orthogonal>(Cpu::default(), 5).unwrap();
    for p in separate.parameters() {
        assert_eq!(fused.get(&p.path).unwrap(), separate.get(&p.path).unwrap(), "{}", p.path);
    }
}

#[test]
fn a_part_is_set_alone_and_is_its_rows_of_the_whole() {
    let mut model = Double::<Fused>::init(1, 1).unwrap();
    let before: Vec<_> = paths(&model).into_iter().map(|p| (model.weights().get(&p).unwrap(), p)).collect();
    let values: Vec<f64> = (0..12).map(f64::from).collect();
    model.weights_mut().set("key.weight", &values).unwrap();
    model.weights_mut().set("key.bias", &[10.0, 20.0, 30.0, 40.0]).unwrap();
    for (old, path) in before {
        let now = model.weights().get(&path).unwrap();
        match path.as_str() {
            "key.weight" => assert_eq!(now, values),
            "key.bias" => assert_eq!(now, [10.0, 20.0, 30.0, 40.0]),
            _ => assert_eq!(now, old, "{path}"),
        }
    }
    // Outputs 4 to 7 of the layer are x·Kᵀ + b.
    for i in 0..2 {
        let out: Vec<f64> = (0..12).map(|k| if k / 4 == 1 { f64::from(k * (i + 1)) } else { 0.0 }).collect();
        let both: Vec<f64> = [out.clone(), out.clone()].concat();
        model.weights_mut().set("out.weight", &both).unwrap();
        model.weights_mut().set("out.bias", &[0.0, 0.0]).unwrap();
        let x = [1.0, 10.0, 100.0];
        let key = |r: usize| (0..3).map(|c| values[r * 3 + c] * x[c]).sum::<f64>() + 10.0 * (r + 1) as f64;
        let expected: f64 = (0..4).map(|r| key(r) * out[4 + r]).sum();
        assert_eq!(model.forward(&x).unwrap(), [expected, expected]);
    }
    let error = model.weights_mut().set("key.weight", &[0.0; 36]).unwrap_err().to_string();
    assert_eq!(error, "`key.weight` has 12 values, 36 were given");
    let error = model.weights_mut().set("qkv.weight", &[0.0; 36]).unwrap_err().to_string();
    assert!(error.starts_with("the model has no parameter `qkv.weight`"), "{error}");
}

#[test]
fn parts_are_saved_and_loaded_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.safetensors");
    let mut separate = Double::<Separate>::init(3, 3).unwrap();
    separate.save(&path).unwrap();
    let mut fused = Double::<Fused>::init(4, 3).unwrap();
    assert!(fused.load(&path).unwrap().is_exact());
    assert_same(&fused, &separate);
    let bytes = std::fs::read(&path).unwrap();
    fused.save(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "byte by byte the same file");
    // What is trained is taken up exactly, the optimiser's moments in their places.
    let (mut adam, mut batches) = (Adam::new(0.01), Batches::new(3, 3, 1));
    fused.train_step(&X, &[0.5; 6], &MSE::default(), &mut adam).unwrap();
    fused.save_training(&path, &adam, &batches).unwrap();
    let mut resumed = Double::<Fused>::init(9, 3).unwrap();
    let mut other = Adam::new(0.5);
    resumed.load_training(&path, &mut other, &mut batches).unwrap();
    separate.load_training(&path, &mut Adam::new(0.5), &mut batches).unwrap();
    assert_same(&separate, &fused);
    for model in [(&mut fused, &mut adam), (&mut resumed, &mut other)] {
        model.0.train_step(&X, &[0.25; 6], &MSE::default(), model.1).unwrap();
    }
    assert_same(&resumed, &fused);
}

#[test]
fn arenas_are_read_and_written_by_parts() {
    let parameters = parameters_of::<Fused>();
    let model = Double::<Fused>::init(3, 1).unwrap();
    let mut arena = vec![0.0; Fused::TREE.params()];
    let lens: Vec<_> = parameters.iter().map(Parameter::len).collect();
    assert_eq!(lens, [12, 4, 12, 4, 12, 4, 24, 2]);
    for p in &parameters {
        p.write(&model.weights().get(&p.path).unwrap(), &mut arena).unwrap();
    }
    assert_eq!(arena, model.weights().params());
    for p in &parameters {
        assert_eq!(p.read(&arena).unwrap(), model.weights().get(&p.path).unwrap());
        assert!(p.write(&vec![0.0; p.len() + 1], &mut arena).is_err());
    }
    // The last part of the matrix ends with it: an element less is too few.
    assert!(parameters[4].read(&arena[..36]).is_ok() && parameters[4].read(&arena[..35]).is_err());
    assert!(parameters[4].write(&[0.0; 12], &mut arena[..35]).is_err());
    // What decays is what would decay of the whole.
    let runs = model.weights().runs();
    let decays: Vec<_> = runs.iter().map(|r| (r.start, r.len, r.decays)).collect();
    assert_eq!(decays, [(0, 48, true), (48, 16, false), (64, 32, true), (96, 16, false)]);
}

#[test]
fn a_gradient_that_is_not_finite_is_named_by_its_part() {
    let mut model = Model::<Fused>::init(3, 1).unwrap();
    model.check_finite(true);
    // The gradient of the loss overflows on its way to the keys alone.
    let mut out = model.weights().get("out.weight").unwrap();
    out.iter_mut().enumerate().for_each(|(i, v)| *v = if i == 5 { f32::MAX } else { 0.0 });
    model.weights_mut().set("out.weight", &out).unwrap();
    for part in ["query", "key", "value"] {
        model.weights_mut().set(&format!("{part}.weight"), &[0.0; 12]).unwrap();
        model.weights_mut().set(&format!("{part}.bias"), &[0.0; 4]).unwrap();
    }
    let error = model.train_step(&[1.0; 3], &[-9.0; 2], &MSE::default(), &mut Sgd::new(0.1)).unwrap_err();
    assert_eq!(error.to_string(), "the gradient of `key.weight` has a value that is not finite");
}

#[module]
struct Frozen {
    base: StopGradParams<Fused>,
    #[fused("a", "b")]
    head: Linear<2, 4>,
}
#[module]
impl Frozen {
    fn forward(&self, x: T![3]) -> T![4] {
        self.head(self.base(x))
    }
}

#[test]
fn parts_of_what_is_frozen_stay_and_are_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.safetensors");
    let base = Double::<Fused>::init(3, 1).unwrap();
    base.save(&path).unwrap();
    let mut model = Double::<Frozen>::init(4, 3).unwrap();
    let report = model.load_partial(&path, &Partial::new().prefix("", "base.").only("base")).unwrap();
    assert_eq!(report.kept, ["a.weight", "a.bias", "b.weight", "b.bias"]);
    let before = model.weights().get("a.weight").unwrap();
    model.train_step(&X, &[0.5; 12], &MSE::default(), &mut Adam::new(0.1)).unwrap();
    for path in paths(&base) {
        let frozen = format!("base.{path}");
        assert_eq!(model.weights().get(&frozen).unwrap(), base.weights().get(&path).unwrap(), "{path}");
        assert!(matches!(model.gradient(&frozen), Err(Error::NotOptimised { .. })));
    }
    assert_ne!(model.weights().get("a.weight").unwrap(), before);
    model.save(&path).unwrap();
    let mut again = Double::<Frozen>::init(9, 1).unwrap();
    again.load(&path).unwrap();
    assert_same(&again, &model);
}

#[module(rename_all = "camelCase")]
struct Attention<const D: usize, const KV: usize> {
    #[fused("self.q_proj" = D, "self.k_proj" = { D / KV }, "self.v_proj" = D / KV)]
    qkv: LinearNoBias<D, { D + 2 * (D / KV) }>,
    #[rename = "output.LayerNorm"]
    norm: LayerNorm<{ D + 2 * (D / KV) }>,
    #[init(Zero)]
    last_layer: Linear<{ D + 2 * (D / KV) }, D>,
}
#[module]
impl<const D: usize, const KV: usize> Attention<D, KV> {
    fn forward(&self, x: T![D]) -> T![D] {
        self.last_layer(self.norm(self.qkv(x)))
    }
}

sequential! {
    /// All kinds of layers, whose values lie in the checkpoint's order here.
    #[module(rename_all = "kebab-case")]
    Kinds: [2, 4, 4] -> [6] =
        #[fused("a", "b" , "c")] conv: Conv2D<2, 6, 3>, BatchNorm2D<6>, Flatten,
        #[rename = ""] Linear<24, 5>,
        #[fused(x = 2, r#y = 4)] tied_linear: TiedLinear<5, 6>,
        #[rename = "n"] layer_norm: LayerNorm<6>,
        last_norm: LayerNorm<6>
}

#[module]
struct Whole {
    #[rename = "encoder.layer"]
    blocks: Repeat<Attention<8, 4>, 2>,
}
#[module]
impl Whole {
    fn forward(&self, x: T![8]) -> T![8] {
        self.blocks(x)
    }
}

#[test]
fn names_and_shapes_are_the_other_library_s() {
    let shown = |p: &Parameter| format!("{} {}", p.path, p.dims);
    let all: Vec<_> = parameters_of::<Whole>().iter().map(shown).collect();
    let one = [
        "self.q_proj.weight [8, 8]",
        "self.k_proj.weight [2, 8]",
        "self.v_proj.weight [2, 8]",
        "output.LayerNorm.weight [12]",
        "output.LayerNorm.bias [12]",
        "lastLayer.weight [8, 12]",
        "lastLayer.bias [8]",
    ];
    let expected: Vec<_> = (0..2).flat_map(|i| one.map(|name| format!("encoder.layer.{i}.{name}"))).collect();
    assert_eq!(all, expected);
    let all: Vec<_> = parameters_of::<Kinds>().iter().map(shown).collect();
    let mut expected = Vec::new();
    for part in ["a", "b", "c"] {
        expected.extend([format!("{part}.weight [2, 2, 3, 3]"), format!("{part}.bias [2]")]);
    }
    expected.extend(
        [
            "1.weight [6]",
            "1.bias [6]",
            "1.running_mean [6]",
            "1.running_var [6]",
            "weight [5, 24]",
            "bias [5]",
        ]
        .map(str::to_owned),
    );
    expected.extend(["x.weight [2, 5]", "y.weight [4, 5]", "n.weight [6]", "n.bias [6]"].map(str::to_owned));
    expected.extend(["last-norm.weight [6]", "last-norm.bias [6]"].map(str::to_owned));
    assert_eq!(all, expected);
}

#[test]
fn rows_of_what_lies_as_in_the_checkpoint_are_parts_too() {
    let model = Model::<Kinds>::init(1, 1).unwrap();
    let mut arena = vec![f32::NAN; Kinds::TREE.params()];
    let conv: Vec<f32> = (0..6 * 18).map(|i| i as f32).collect();
    let tied: Vec<f32> = (0..30).map(|i| i as f32).collect();
    for p in model.weights().parameters() {
        match p.path.as_str() {
            "a.weight" => p.write(&conv[..36], &mut arena).unwrap(),
            "b.weight" => p.write(&conv[36..72], &mut arena).unwrap(),
            "c.weight" => p.write(&conv[72..], &mut arena).unwrap(),
            "x.weight" => p.write(&tied[..10], &mut arena).unwrap(),
            "y.weight" => p.write(&tied[10..], &mut arena).unwrap(),
            _ => {}
        }
    }
    let find = |values: &[f32]| arena.windows(values.len()).position(|w| w == values);
    assert_eq!(find(&conv), Some(0));
    assert!(find(&tied).is_some());
    assert_eq!(arena.iter().filter(|v| !v.is_nan()).count(), conv.len() + tied.len());
}

#[test]
fn a_part_keeps_its_own_fan() {
    // Uniform in ±1/√8, of every part; of zero where an initialiser says so.
    let model = Model::<Whole>::init(7, 1).unwrap();
    for part in ["q_proj", "k_proj", "v_proj"] {
        let values = model.weights().get(&format!("encoder.layer.1.self.{part}.weight")).unwrap();
        let most = values.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        assert!(most < 8_f32.sqrt().recip() && most > 0.5 * 8_f32.sqrt().recip(), "{part}: {most}");
    }
    assert_eq!(model.weights().get("encoder.layer.0.lastLayer.bias").unwrap(), [0.0; 8]);
}

#[module]
struct Tied {
    #[rename = "transformer.wte"]
    tokens: Embedding<9, 4>,
    #[rename = "lm_head"]
    #[tied = "transformer.wte.weight"]
    head: TiedLinear<4, 9>,
}
#[module]
impl Tied {
    fn forward(&self, ids: Ids<T![]>) -> T![9] {
        self.head(self.tokens(ids))
    }
}

#[test]
fn ties_and_summaries_follow_the_names_of_the_checkpoint() {
    let summary = Model::<Tied>::init(1, 1).unwrap().summary();
    let rows: Vec<_> = summary.rows.iter().map(|r| (r.path.as_str(), r.params)).collect();
    assert_eq!(rows, [("transformer.wte", 36), ("lm_head", 0)]);
    assert_eq!(summary.params, 36);
    let summary = Model::<Fused>::init(1, 1).unwrap().summary();
    let rows: Vec<_> = summary.rows.iter().map(|r| (r.path.as_str(), r.params)).collect();
    assert_eq!(rows, [("qkv", 48), ("out", 26)]);
    assert_eq!(summary.params, 74);
}

#[module(rename_all = "SCREAMING_SNAKE_CASE")]
struct Screaming {
    first_layer: Linear<2, 2>,
    r#type: Linear<2, 2>,
}
#[module]
impl Screaming {
    fn forward(&self, x: T![2]) -> T![2] {
        self.r#type(self.first_layer(x))
    }
}
#[module(rename_all = "SCREAMING-KEBAB-CASE")]
struct Kebab {
    first_layer: Linear<2, 2>,
}
#[module]
impl Kebab {
    fn forward(&self, x: T![2]) -> T![2] {
        self.first_layer(x)
    }
}
#[module(rename_all = "PascalCase")]
struct Pascal {
    first_layer2: Linear<2, 2>,
}
#[module]
impl Pascal {
    fn forward(&self, x: T![2]) -> T![2] {
        self.first_layer2(x)
    }
}
#[module(rename_all = "snake_case")]
struct Snake {
    first_layer: Linear<2, 2>,
}
#[module]
impl Snake {
    fn forward(&self, x: T![2]) -> T![2] {
        self.first_layer(x)
    }
}

#[test]
fn every_case_is_as_it_is_called() {
    fn first<M: Params>() -> String {
        parameters_of::<M>()[0].path.clone()
    }
    assert_eq!(first::<Screaming>(), "FIRST_LAYER.weight");
    assert_eq!(parameters_of::<Screaming>()[2].path, "TYPE.weight");
    assert_eq!(first::<Kebab>(), "FIRST-LAYER.weight");
    assert_eq!(first::<Pascal>(), "FirstLayer2.weight");
    assert_eq!(first::<Snake>(), "first_layer.weight");
}
