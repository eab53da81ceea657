#![doc = include_str!("../README.md")]
//!
//! # Where to find what
//!
//! * Declaring models: [`module`](macro@module), [`sequential!`], [`T!`], [`layer`](macro@layer).
//! * Parameters by path, or as typed fields: [`Weights::get`], [`Weights::view`].
//! * Running them: [`Model`], or [`Weights`] and [`Workspace`] where threads share one set of weights.
//! * Checkpoints: [`Model::save`], [`Model::load`], [`Model::load_partial`], [`checkpoint!`]; [`porting`] from PyTorch.
//! * Training: [`Loss`], [`Optimizer`], [`Schedule`], [`Batches`], [`Initialiser`].
//! * Writing a layer: [`Params`], [`Layer`], [`Module`], and [`check`] to test it.
//! * Shapes: [`Dim`], [`Signature`], [`Sig`], [`Rule`], [`Fault`].

#[doc(hidden)]
pub use nn_core::__private;
pub use nn_core::*;

/// Declares a module: on a struct of layers, on its `impl` with `forward`, and on a type alias that makes a
/// generic module concrete.
///
/// **On a struct**, each field is a layer or a module. The struct's parameters are dimensions (`const D: usize`), and a
/// field's arguments may compute with them (`{ 4 * D }`, `+ - * /`). Numbers that are not dimensions are literals:
/// `LayerNorm<D, 1e-12>`. Field attributes:
/// * `#[init(Zero)]`: the [`Initialiser`] of everything below, in place of the layers' own;
/// * `#[tied = "tok.weight"]`: no parameter of its own: it uses, and adds its gradient to, the parameter at that path of the same
///   module;
/// * `#[rename = "self.query"]`: its name in a checkpoint, as another library has it. It may have dots; an empty one leaves the
///   field out of the names of its parameters;
/// * `#[fused("query", "key", "value")]`: one layer here, several in a checkpoint: each an equal part of the rows (first axis) of every
///   parameter, or so many: `#[fused("q_proj" = { H * D }, "k_proj" = 64, "v_proj" = 64)]`. The parts are parameters like any
///   other, by their names: each is initialised, saved and loaded alone. In memory they lie together and run as one.
///
/// The struct itself may say how its fields are called in a checkpoint, `#[module(rename_all = "camelCase")]`, or `PascalCase`,
/// `snake_case`, `SCREAMING_SNAKE_CASE`, `kebab-case`, `SCREAMING-KEBAB-CASE`; a field's own `#[rename]` goes before. Paths
/// (of [`Weights::get`], of `#[tied]`, of the summary) are those of the checkpoint.
///
/// **On an impl**, `fn forward(&self, x: T![..], ..) -> T![..]` is read, and its gradient is written. Its body is made of `let` (with
/// tuples), calls of fields (`self.up(x)`), layers without parameters by their type (`ReLU(x)`, `MaxPool2D::<2>(x)`),
/// `+ - * /` of values of one shape and of a value with a number, unary `-`, and tuples. A value may be used several times; then its gradients
/// add. A field may be called several times; then its parameters are shared.
///
/// Next to a struct `Block` there are `BlockOf`, if it has parameters, `BlockFields` and `BlockView`, which [`Weights::view`] gives: these names are taken.
///
/// **On an alias**, the model that it names is checked: `#[module] type Tiny = Gpt<64, 384, 6>;`.
///
/// ```
/// use nn::{LayerNorm, Linear, Model, MSE, ReLU, Sgd, T, module};
///
/// #[module]
/// struct Block<const D: usize> {
///     norm: LayerNorm<D>,
///     up: Linear<D, { 2 * D }>,
///     #[init(nn::Zero)]
///     down: Linear<{ 2 * D }, D>,
/// }
///
/// #[module]
/// impl<const D: usize> Block<D> {
///     fn forward(&self, x: T![3, D]) -> T![3, D] {
///         let h = ReLU(self.up(self.norm(x)));
///         x + self.down(h)
///     }
/// }
///
/// #[module]
/// type Small = Block<4>;
///
/// let mut model = Model::<Small>::init(1, 2)?;
/// let x = [0.25; 2 * 3 * 4];
/// // `down` starts as zero: the block is the identity.
/// assert_eq!(model.forward(&x)?, x);
/// let loss = model.train_step(&x, &[0.0; 24], &MSE::default(), &mut Sgd::new(0.1))?;
/// assert_eq!(loss, 0.0625);
/// # Ok::<(), nn::Error>(())
/// ```
///
/// Under the names of another library:
///
/// ```
/// use nn::{LayerNorm, Linear, Model, Slice, T, module, parameters_of};
///
/// #[module(rename_all = "camelCase")]
/// struct Scores<const D: usize> {
///     #[fused("self.query", "self.key")]
///     query_and_key: Linear<D, { 2 * D }>,
///     #[rename = "output.LayerNorm"]
///     norm: LayerNorm<D, 1e-12>,
///     last_layer: Linear<D, D>,
/// }
///
/// #[module]
/// impl<const D: usize> Scores<D> {
///     fn forward(&self, x: T![D]) -> T![D] {
///         let both = self.query_and_key(x);
///         self.last_layer(self.norm(Slice::<0, 0, 4>(both) * Slice::<0, 4, 8>(both)))
///     }
/// }
///
/// #[module]
/// type Small = Scores<4>;
///
/// let names: Vec<_> = parameters_of::<Small>().iter().map(|p| format!("{} {}", p.path, p.dims)).collect();
/// assert_eq!(names, [
///     "self.query.weight [4, 4]",
///     "self.query.bias [4]",
///     "self.key.weight [4, 4]",
///     "self.key.bias [4]",
///     "output.LayerNorm.weight [4]",
///     "output.LayerNorm.bias [4]",
///     "lastLayer.weight [4, 4]",
///     "lastLayer.bias [4]",
/// ]);
/// # Ok::<(), nn::Error>(())
/// ```
pub use nn_macros::module;

/// Declares a chain of layers: `VIS Name: [IN] -> [OUT] = Layer, name: Layer, …`.
///
/// The signature is `[1, 28, 28]` for a tensor, `Ids[512]` for indices, `[..512, 64]` with a bounded axis, or a type. Layers without
/// a name are numbered, as in PyTorch's `Sequential`: `0.weight`, `2.weight`. A chain is a module like any other, so chains nest, and it may have
/// parameters: `Trunk<const D: usize>: [D] -> [D] = …`.
///
/// ```
/// use nn::{Embedding, Linear, Model, ReLU, sequential};
///
/// sequential! {
///     /// Next-character scores.
///     pub Bigram: Ids[..16] -> [..16, 27] = tok: Embedding<27, 8>, ReLU, Linear<8, 27>
/// }
///
/// let mut model = Model::<Bigram>::init(1, 1)?;
/// assert_eq!(model.forward(&[1, 2, 3])?.len(), 3 * 27); // any length up to 16
/// assert_eq!(model.weights().parameters()[1].path, "2.weight");
/// # Ok::<(), nn::Error>(())
/// ```
pub use nn_macros::sequential;

/// Declares a leaf layer: `#[layer(weight: S2<B, A>, bias: Option<S1<B>>)] pub struct Name<const A: usize, const B: usize, …>;`.
///
/// It becomes a struct over dimensions that are types, `NameOf<A, …>`, and the alias `Name` with `const` parameters; with [`Rebind`]
/// implemented, so that its arguments can be computed in a module. Type parameters and defaults pass through. The parameters are named with
/// their shapes in a checkpoint, for [views](Weights::view) of them (`lora_a = "lora_A.weight": S2<R, IN>`, where the name is none in Rust): none, if there are none; `own_views`, to implement [`Views`] by hand. What it computes, one
/// implements: [`Params`], [`Layer`] and [`Module`].
pub use nn_macros::layer;

/// Compares a model with the header of a safetensors file, at compile time: `checkpoint!("model.safetensors" as Model);`.
///
/// A parameter that the file lacks, has in another shape, or in a type that can't be converted is a compile error that names it, as
/// is a tensor that the model has no parameter for. The file is that of the weights, of which only the header is read, or the
/// header alone, a `.json` that is small enough to be committed: [`header_json`] writes it. Its path starts at the folder of the
/// crate's `Cargo.toml`. A change of the file compiles the crate anew; nothing of it gets into the program.
///
/// Options, after commas, as with [`Partial`]:
/// * `extra = deny`, `note` or `allow`: whether tensors that are no parameter are an error (as for [`Model::load`]), a
///   warning (of the lint `deprecated`, the first eight), or nothing (as for [`Model::load_partial`]);
/// * `prefix = "bert." => "encoder."`: what begins so in the file begins so in the model; `prefix = "bert."` takes it off;
/// * `rename = "input_layernorm" => "norm1"`: what is called so in the file, wherever it stands, is called so in the model;
/// * `only = "encoder"`: only the parameters at or below this path are compared;
/// * `may_lack = "encoder.pooler"`: those may be missing, and whatever else has these words in its path;
/// * `transposed = "h"`: the file has the matrices at or below this path the other way round, as GPT-2's `Conv1D`;
/// * `dtype = F32`: the parameters have this type, and not just one of `F64`, `F32`, `F16` and `BF16`, which can be
///   converted.
///
/// ```
/// use nn::{Embedding, Ids, LayerNorm, T, checkpoint, module};
///
/// #[module]
/// struct Embeddings {
///     #[rename = "word_embeddings"]
///     words: Embedding<30522, 384>,
///     #[rename = "LayerNorm"]
///     norm: LayerNorm<384, 1e-12>,
/// }
///
/// #[module]
/// impl Embeddings {
///     fn forward(&self, ids: Ids<T![..512]>) -> T![..512, 384] {
///         self.norm(self.words(ids))
///     }
/// }
///
/// checkpoint!(
///     "examples/minilm/model.header.json" as Embeddings,
///     prefix = "embeddings.",
///     extra = allow,
///     dtype = F32
/// );
/// ```
///
/// A width that is wrong does not compile: "`word_embeddings.weight` is [30522, 512] in `Embeddings`, but [30522, 384] in the
/// checkpoint".
///
/// ```compile_fail
/// # use nn::{Embedding, checkpoint, sequential};
/// sequential! { Embeddings: Ids[..512] -> [..512, 512] = word_embeddings: Embedding<30522, 512> }
/// checkpoint!("examples/minilm/model.header.json" as Embeddings, prefix = "embeddings.", extra = allow);
/// ```
pub use nn_macros::checkpoint;

#[doc = include_str!("../docs/porting.md")]
pub mod porting {}
