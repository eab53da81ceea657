//! Loading a part of a checkpoint: for transfer learning, all or nothing.

use std::path::PathBuf;

use nn::*;
use safetensors::tensor::{Dtype, TensorView};

#[module]
struct Encoder {
    embed: Linear<3, 4>,
    norm: BatchNorm1D<4>,
    #[fused("query", "key")]
    qk: Linear<4, 6>,
    pooler: Linear<6, 2>,
}
#[module]
impl Encoder {
    fn forward(&self, x: T![3]) -> T![2] {
        self.pooler(self.qk(self.norm(self.embed(x))))
    }
}

#[module]
struct Classifier {
    encoder: Encoder,
    head: Linear<2, 3>,
}
#[module]
impl Classifier {
    fn forward(&self, x: T![3]) -> T![3] {
        self.head(self.encoder(x))
    }
}

/// A file of a pretrained encoder: `bert.…`, with a head for something else.
struct Pretrained {
    _folder: tempfile::TempDir,
    path: PathBuf,
    weights: Weights<Encoder, Cpu<f32>>,
}

type Raw = (String, Dtype, Vec<usize>, Vec<u8>);

impl Pretrained {
    fn new(change: impl FnOnce(&mut Vec<Raw>)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bert.safetensors");
        let weights = Weights::<Encoder, Cpu<f32>>::new(Cpu::default(), 77).unwrap();
        weights.save(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut tensors: Vec<Raw> = file
            .tensors()
            .into_iter()
            .map(|(name, t)| (format!("bert.{name}"), t.dtype(), t.shape().to_vec(), t.data().to_vec()))
            .collect();
        tensors.push(("bert.norm.num_batches_tracked".to_owned(), Dtype::I64, vec![], vec![0; 8]));
        tensors.push(("cls.decoder.weight".to_owned(), Dtype::F32, vec![9, 2], vec![0; 72]));
        tensors.push(("head.weight".to_owned(), Dtype::F32, vec![9, 2], vec![0; 72]));
        change(&mut tensors);
        let views = tensors
            .iter()
            .map(|(name, dtype, shape, data)| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
        std::fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
        Self { _folder: folder, path, weights }
    }

    /// Loading fails, says this, and changes nothing.
    #[track_caller]
    fn refused(&self, partial: &Partial, says: &[&str]) -> Error {
        let mut model = Model::<Classifier>::init(1, 2).unwrap();
        let before = bits(&model);
        let error = model.load_partial(&self.path, partial).unwrap_err();
        for says in says {
            assert!(error.to_string().contains(says), "{error} does not say {says}");
        }
        assert_eq!(bits(&model), before);
        error
    }
}

fn bits(model: &Model<Classifier>) -> Vec<u32> {
    let weights = model.weights();
    weights.parameters().iter().flat_map(|p| weights.get(&p.path).unwrap()).map(f32::to_bits).collect()
}

fn encoder() -> Partial {
    Partial::new().prefix("bert.", "encoder.").only("encoder")
}

#[test]
fn an_encoder_is_taken_over_under_its_own_prefix() {
    let file = Pretrained::new(|_| {});
    let mut model = Model::<Classifier>::init(1, 2).unwrap();
    let head = model.weights().get("head.weight").unwrap();
    for partial in [encoder(), Partial::new().prefix("bert.", "encoder.").only("encoder.")] {
        let report = model.load_partial(&file.path, &partial).unwrap();
        for p in file.weights.parameters() {
            let loaded = model.weights().get(&format!("encoder.{}", p.path)).unwrap();
            assert_eq!(loaded, file.weights.get(&p.path).unwrap(), "{}", p.path);
        }
        assert_eq!(model.weights().get("head.weight").unwrap(), head);
        assert_eq!(report.kept, ["head.weight", "head.bias"]);
        // A head of another shape is not looked at, nor what PyTorch counts.
        assert_eq!(report.unused, ["cls.decoder.weight", "head.weight"]);
        assert!(report.missing.is_empty() && report.converted.is_empty() && report.misshapen.is_empty());
        let text = report.to_string();
        assert!(
            text.contains("  kept       head.weight\n") && text.contains("  unused     head.weight\n"),
            "{text}"
        );
    }
    // By itself, and with the whole for a prefix taken off.
    let mut weights = Weights::<Encoder, Cpu<f32>>::new(Cpu::default(), 5).unwrap();
    let report = weights.load_partial(&file.path, &Partial::new().prefix("bert.", "")).unwrap();
    assert_eq!((report.kept.len(), report.unused.len()), (0, 2));
    assert_eq!(weights.get("key.weight").unwrap(), file.weights.get("key.weight").unwrap());
    assert!(weights.load(&file.path).is_err(), "loading all of it stays strict");
}

#[test]
fn one_part_of_a_fused_layer_can_be_loaded_alone() {
    let file = Pretrained::new(|_| {});
    let mut model = Model::<Classifier>::init(1, 2).unwrap();
    let query = model.weights().get("encoder.query.weight").unwrap();
    let partial = Partial::new().prefix("bert.", "encoder.").only("encoder.key").only("encoder.embed.bias");
    let report = model.load_partial(&file.path, &partial).unwrap();
    assert_eq!(report.kept.len(), model.weights().parameters().len() - 3);
    assert_eq!(model.weights().get("encoder.query.weight").unwrap(), query);
    for name in ["key.weight", "key.bias", "embed.bias"] {
        let loaded = model.weights().get(&format!("encoder.{name}")).unwrap();
        assert_eq!(loaded, file.weights.get(name).unwrap());
    }
}

#[test]
fn what_may_be_missing_is_kept_and_what_may_not_is_an_error() {
    let file = Pretrained::new(|all| all.retain(|t| !t.0.contains("pooler.weight")));
    file.refused(&encoder(), &["missing    encoder.pooler.weight"]);
    file.refused(&encoder().may_lack("encoder.embed"), &["missing    encoder.pooler.weight"]);
    // A path ends at a dot.
    file.refused(
        &encoder().only("head"),
        &["missing    head.bias", "misshapen  head.weight: the model has [3, 2], the file [9, 2]"],
    );
    let mut model = Model::<Classifier>::init(1, 2).unwrap();
    let old = model.weights().get("encoder.pooler.weight").unwrap();
    let report = model.load_partial(&file.path, &encoder().may_lack("encoder.pooler")).unwrap();
    assert_eq!(report.kept, ["encoder.pooler.weight", "head.weight", "head.bias"]);
    assert_eq!(model.weights().get("encoder.pooler.weight").unwrap(), old);
    // A word of a path will do, as for what every one of many blocks has.
    let report = model.load_partial(&file.path, &encoder().may_lack("pooler")).unwrap();
    assert_eq!(report.kept, ["encoder.pooler.weight", "head.weight", "head.bias"]);
    file.refused(&encoder().may_lack("weigh"), &["the model has no parameter `weigh`"]);
    let bias = model.weights().get("encoder.pooler.bias").unwrap();
    assert_eq!(bias, file.weights.get("pooler.bias").unwrap());
    // The nearest name is the file's own.
    let file = Pretrained::new(|all| {
        all.iter_mut()
            .filter(|t| t.0 == "bert.pooler.weight")
            .for_each(|t| t.0 = "bert.poler.weight".to_owned());
    });
    file.refused(&encoder(), &["missing    encoder.pooler.weight (the file has bert.poler.weight)"]);
}

#[test]
fn wrong_shapes_and_types_are_errors_even_where_a_tensor_may_be_missing() {
    let partial = encoder().may_lack("encoder");
    let file = Pretrained::new(|all| {
        all.iter_mut().filter(|t| t.0 == "bert.key.weight").for_each(|t| t.2 = vec![4, 3]);
    });
    file.refused(&partial, &["misshapen  encoder.key.weight: the model has [3, 4], the file [4, 3]"]);
    let file = Pretrained::new(|all| {
        all.iter_mut().filter(|t| t.0 == "bert.key.bias").for_each(|t| t.1 = Dtype::I32);
    });
    file.refused(&partial, &["mistyped   encoder.key.bias: I32 can't be a parameter"]);
}

#[test]
fn mistakes_in_what_is_asked_for_are_errors() {
    let file = Pretrained::new(|_| {});
    let unknown = |partial: Partial, says: &str| {
        let error = file.refused(&partial, &[says]);
        assert!(matches!(error, Error::UnknownParameter { .. }), "{error:?}");
    };
    unknown(encoder().only("encodr"), "the model has no parameter `encodr`; did you mean `encoder`?");
    unknown(encoder().may_lack("encoder.poolr"), "`encoder.poolr`; did you mean `encoder.pooler`?");
    unknown(encoder().only("encode"), "`encode`; did you mean `encoder`?");
    let typo = Partial::new().prefix("brt.", "encoder.").only("encoder");
    let error = file.refused(&typo, &["can't be loaded in part: no name in it begins with `brt.`"]);
    assert!(matches!(error, Error::NotPartial { .. }));
    // Nothing at all.
    let nothing = Partial::new().only("encoder").may_lack("encoder");
    let says = "none of its tensors is a parameter that is asked for: its first is `bert.embed.bias`, the model's `encoder.embed.weight`";
    file.refused(&nothing, &[says]);
    // Two of the file's that would be one.
    let both = encoder().only("head").prefix("cls.decoder.", "head.");
    file.refused(&both, &["`cls.decoder.weight` and `head.weight` would both be `head.weight`"]);
    let mut model = Model::<Classifier>::init(1, 2).unwrap();
    model
        .load_partial(&file.path, &encoder().prefix("cls.decoder.", "head."))
        .expect("nobody asks for the head");
    // The first prefix that fits is taken.
    model.load_partial(&file.path, &encoder().prefix("bert.norm.", "head.")).unwrap();
}

#[test]
fn conversions_are_reported_and_exact() {
    for dtype in [Dtype::F16, Dtype::BF16, Dtype::F64] {
        let file = Pretrained::new(|all| {
            for t in all.iter_mut().filter(|t| t.1 == Dtype::F32) {
                let values = t.3.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
                t.3 = match dtype {
                    Dtype::F16 => values.flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect(),
                    Dtype::BF16 => values.flat_map(|v| half::bf16::from_f32(v).to_le_bytes()).collect(),
                    _ => values.flat_map(|v| f64::from(v).to_le_bytes()).collect(),
                };
                t.1 = dtype;
            }
        });
        let round = |v: f32| match dtype {
            Dtype::F16 => half::f16::from_f32(v).to_f32(),
            Dtype::BF16 => half::bf16::from_f32(v).to_f32(),
            _ => v,
        };
        let mut model = Model::<Classifier>::init(1, 2).unwrap();
        let report = model.load_partial(&file.path, &encoder()).unwrap();
        assert_eq!(report.converted.len(), file.weights.parameters().len());
        let text = report.to_string();
        assert!(text.contains(&format!("converted  encoder.key.weight from {dtype:?}")), "{text}");
        for p in file.weights.parameters() {
            let expected: Vec<_> = file.weights.get(&p.path).unwrap().into_iter().map(round).collect();
            assert_eq!(model.weights().get(&format!("encoder.{}", p.path)).unwrap(), expected);
        }
    }
}

sequential! {
    Trunk: [..5, 8] -> [..5, 8] = layers: Repeat<LlamaBlock<5, 8, 4, 2, 12>, 3>, norm: RMSNorm<8, 1e-5>
}

/// The same parameters under the names of `transformers`.
#[module]
struct Llama {
    #[rename = "model.layers"]
    layers: Repeat<LlamaLayer, 3>,
    #[rename = "model.norm"]
    norm: RMSNorm<8, 1e-5>,
}
#[module]
struct LlamaLayer {
    input_layernorm: RMSNorm<8>,
    #[rename = "self_attn"]
    attention: SelfAttentionOfLlama,
    post_attention_layernorm: RMSNorm<8>,
    mlp: SwiGLUFeedForward<8, 12>,
}
#[module]
struct SelfAttentionOfLlama {
    #[fused("q_proj" = 8, "k_proj" = 4, "v_proj" = 4)]
    qkv: LinearNoBias<8, 16>,
    o_proj: LinearNoBias<8, 8>,
}
#[module]
impl SelfAttentionOfLlama {
    fn forward(&self, x: T![..5, 8]) -> T![..5, 8] {
        self.o_proj(Slice::<1, 0, 8>(self.qkv(x)))
    }
}
#[module]
impl LlamaLayer {
    fn forward(&self, x: T![..5, 8]) -> T![..5, 8] {
        let h = x + self.attention(self.input_layernorm(x));
        h + self.mlp(self.post_attention_layernorm(h))
    }
}
#[module]
impl Llama {
    fn forward(&self, x: T![..5, 8]) -> T![..5, 8] {
        self.norm(self.layers(x))
    }
}

#[test]
fn parts_of_blocks_have_other_names_in_other_libraries() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("llama.safetensors");
    let theirs = Weights::<Llama, Cpu<f32>>::new(Cpu::default(), 5).unwrap();
    theirs.save(&path).unwrap();
    let mut ours = Weights::<Trunk, Cpu<f32>>::new(Cpu::default(), 6).unwrap();
    let names = Partial::new()
        .prefix("model.", "")
        .rename("input_layernorm", "norm1")
        .rename("post_attention_layernorm", "norm2")
        .rename("self_attn", "attn");
    assert!(ours.load_partial(&path, &names).unwrap().is_exact());
    let mut found = 0;
    for p in theirs.parameters() {
        let path = p.path.replace("model.", "").replace("input_layernorm", "norm1");
        let path = path.replace("post_attention_layernorm", "norm2").replace("self_attn", "attn");
        assert_eq!(ours.get(&path).unwrap(), theirs.get(&p.path).unwrap(), "{path}");
        found += 1;
    }
    assert_eq!(found, ours.parameters().len());
    // Several words, and whole ones only.
    let mut other = Weights::<Trunk, Cpu<f32>>::new(Cpu::default(), 6).unwrap();
    let several = Partial::new()
        .prefix("model.", "")
        .rename("self_attn.o_proj", "attn.o_proj")
        .rename("nor", "mlp")
        .only("layers.1.attn.o_proj");
    let error = other.load_partial(&path, &several).unwrap_err().to_string();
    assert!(error.ends_with("no name in it has the part `nor`"), "{error}");
    let several = Partial::new()
        .prefix("model.", "")
        .rename("self_attn.o_proj", "attn.o_proj")
        .only("layers.1.attn.o_proj");
    other.load_partial(&path, &several).unwrap();
    let loaded = other.get("layers.1.attn.o_proj.weight").unwrap();
    assert_eq!(loaded, theirs.get("model.layers.1.self_attn.o_proj.weight").unwrap());
}

#[module]
struct Conv1D {
    wte: Embedding<3, 2>,
    #[fused("h.q", "h.k")]
    qk: Linear<2, 6>,
    #[rename = "h.square"]
    square: Linear<6, 6>,
}
#[module]
impl Conv1D {
    fn forward(&self, ids: Ids<T![]>) -> T![6] {
        self.square(self.qk(self.wte(ids)))
    }
}

checkpoint!("tests/headers/conv1d.json" as Conv1D, transposed = "h");
sequential! { Square: [6] -> [6] = h: Linear<6, 6> }
checkpoint!(
    "tests/headers/conv1d.json" as Square,
    rename = "h.square" => "proj",
    rename = "proj" => "h",
    rename = "wte" => "",
    extra = allow
);

#[test]
fn matrices_that_are_the_other_way_round_are_turned() {
    let source = Weights::<Conv1D, Cpu<f32>>::new(Cpu::default(), 7).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gpt2.safetensors");
    // Linear's [OUT, IN] as Conv1D's [IN, OUT]; neither the table nor what has one axis.
    let tensors: Vec<Raw> = source
        .parameters()
        .iter()
        .map(|p| {
            let (mut values, mut shape) = (source.get(&p.path).unwrap(), p.dims.to_vec());
            if p.path.starts_with("h.") && shape.len() == 2 {
                let (out, inputs) = (shape[0], shape[1]);
                values = (0..inputs * out).map(|i| values[(i % out) * inputs + i / out]).collect();
                shape.reverse();
            }
            (p.path.clone(), Dtype::F32, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect())
        })
        .collect();
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, data)| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    std::fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    let mut loaded = Weights::<Conv1D, Cpu<f32>>::new(Cpu::default(), 8).unwrap();
    assert!(loaded.load_partial(&path, &Partial::new().transposed("h.")).unwrap().is_exact());
    for p in source.parameters() {
        assert_eq!(loaded.get(&p.path).unwrap(), source.get(&p.path).unwrap(), "{}", p.path);
    }
    let error = loaded.load_partial(&path, &Partial::new()).unwrap_err().to_string();
    assert!(error.contains("misshapen  h.q.weight: the model has [3, 2], the file [2, 3]"), "{error}");
    assert!(!error.contains("wte"), "{error}");
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/headers/conv1d.json");
    assert_eq!(header_json(&path).unwrap(), std::fs::read_to_string(golden).unwrap());
}

#[test]
fn a_checkpoint_for_resuming_is_as_good_as_another() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let mut old = Model::<Encoder>::init(4, 2).unwrap();
    let (mut adam, batches) = (Adam::new(0.1), Batches::new(2, 2, 0));
    old.train_step(&[0.1; 6], &[0.0; 4], &MSE::default(), &mut adam).unwrap();
    old.save_training(&path, &adam, &batches).unwrap();
    let mut model = Model::<Classifier>::init(1, 2).unwrap();
    let report = model.load_partial(&path, &Partial::new().prefix("", "encoder.").only("encoder")).unwrap();
    assert!(report.unused.is_empty(), "{report}");
    assert_eq!(model.weights().get("encoder.key.bias").unwrap(), old.weights().get("key.bias").unwrap());
}
