//! Models against the header of a file, at compile time: what is here compiles.
#![deny(warnings)]

use nn::*;

/// Post-norm, with the names of another library.
#[module]
struct Layer<const D: usize> {
    #[fused("attention.self.query", "attention.self.key", "attention.self.value")]
    qkv: Linear<D, { 3 * D }>,
    #[rename = "attention.output.dense"]
    out: Linear<{ 3 * D }, D>,
    #[rename = "attention.output.LayerNorm"]
    norm: LayerNorm<D, 1e-12>,
}
#[module]
impl<const D: usize> Layer<D> {
    fn forward(&self, x: T![4, D]) -> T![4, D] {
        self.norm(x + self.out(self.qkv(x)))
    }
}

#[module(rename_all = "camelCase")]
struct Net {
    #[rename = "embeddings.word_embeddings"]
    words: Embedding<11, 4>,
    #[rename = "encoder.layer"]
    layers: Repeat<Layer<4>, 12>,
    last_norm: BatchNorm1D<4>,
    #[tied = "embeddings.word_embeddings.weight"]
    decoder: TiedLinear<4, 11>,
}
#[module]
impl Net {
    fn forward(&self, ids: Ids<T![4]>) -> T![4, 11] {
        let x = self.layers(self.words(ids));
        self.decoder(self.last_norm(x))
    }
}

checkpoint!("tests/headers/net.json" as Net);
checkpoint!("tests/headers/net.json" as Net, dtype = F32, extra = allow, only = "encoder.layer",);
// Where nothing is left over, nothing is noted.
checkpoint!("tests/headers/net.json" as Net, extra = note);

/// A note is a warning, which can be switched off like any.
#[allow(deprecated, reason = "the norm is noted")]
mod noted {
    nn::checkpoint!("tests/headers/net.json" as super::Net, extra = note, only = "encoder.layer");
}

sequential! { Head: [4, 4] -> [4, 2] = dense: Linear<4, 4>, out: Linear<4, 2> }

#[module]
struct Classifier {
    bert: Layer<4>,
    head: Head,
}
#[module]
impl Classifier {
    fn forward(&self, x: T![4, 4]) -> T![4, 2] {
        self.head(self.bert(x))
    }
}

checkpoint!(
    "tests/headers/net.json" as Classifier,
    prefix = "encoder.layer.3." => "bert.",
    only = "bert.",
    extra = allow
);
// The file's head is another's; ours may be missing.
checkpoint!(
    "tests/headers/net.json" as Classifier,
    prefix = "encoder.layer.3." => "bert.",
    may_lack = "head",
    extra = allow
);
checkpoint!("tests/headers/net.json" as Layer<4>, prefix = "encoder.layer.11.", extra = allow);

/// The header of a file of this model, as it is committed. `NN_BLESS=1` writes it anew.
#[test]
fn the_header_in_the_tree_is_that_of_a_saved_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.safetensors");
    let weights = Weights::<Net, Cpu<f32>>::new(Cpu::default(), 1).unwrap();
    weights.save(&path).unwrap();
    let header = header_json(&path).unwrap();
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/headers/net.json");
    if std::env::var_os("NN_BLESS").is_some() {
        std::fs::write(&golden, &header).unwrap();
    }
    assert_eq!(std::fs::read_to_string(golden).unwrap(), header);
    assert!(header.starts_with(
        "{\n  \"embeddings.word_embeddings.weight\": {\"dtype\": \"F32\", \"shape\": [11, 4]},\n"
    ));
    assert_eq!(header.lines().count(), 2 + weights.parameters().len());
}

#[test]
fn the_header_of_what_is_no_checkpoint_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.json");
    std::fs::write(&path, "{}").unwrap();
    assert!(matches!(header_json(&path), Err(Error::NotACheckpoint { .. })));
    assert!(matches!(header_json(folder.path()), Err(Error::File { .. })));
}
