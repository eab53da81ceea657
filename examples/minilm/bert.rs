//! BERT (Devlin and others, 2018, arXiv:1810.04805), with the parameters' names as they are in files for Hugging Face's transformers.

use nn::{Embedding, LayerNorm, Linear, LinearGELU, Repeat, ScaledDotProductAttentionQKV};
use nn::{Ids, T, module};

/// What a token is, where it stands and which text it is of, added up.
#[module]
struct Embeddings<const V: usize, const S: usize, const D: usize> {
    word_embeddings: Embedding<V, D>,
    position_embeddings: Embedding<S, D>,
    token_type_embeddings: Embedding<2, D>,
    #[rename = "LayerNorm"]
    norm: LayerNorm<D, 1e-12>,
}

#[module]
impl<const V: usize, const S: usize, const D: usize> Embeddings<V, S, D> {
    fn forward(&self, tokens: Ids<T![..S]>, positions: Ids<T![..S]>, types: Ids<T![..S]>) -> T![..S, D] {
        let token = self.word_embeddings(tokens) + self.token_type_embeddings(types);
        self.norm(token + self.position_embeddings(positions))
    }
}

/// Tokens look at each other. The norm comes after the sum.
#[module]
struct Attention<const S: usize, const D: usize, const H: usize> {
    #[fused("self.query", "self.key", "self.value")]
    qkv: Linear<D, { 3 * D }>,
    heads: ScaledDotProductAttentionQKV<S, H, { D / H }>,
    #[rename = "output.dense"]
    out: Linear<D, D>,
    #[rename = "output.LayerNorm"]
    norm: LayerNorm<D, 1e-12>,
}

#[module]
impl<const S: usize, const D: usize, const H: usize> Attention<S, D, H> {
    fn forward(&self, x: T![..S, D]) -> T![..S, D] {
        self.norm(x + self.out(self.heads(self.qkv(x))))
    }
}

/// Attention, then two layers for each token alone.
#[module]
struct Block<const S: usize, const D: usize, const H: usize> {
    attention: Attention<S, D, H>,
    #[rename = "intermediate.dense"]
    up: LinearGELU<D, { 4 * D }>,
    #[rename = "output.dense"]
    down: Linear<{ 4 * D }, D>,
    #[rename = "output.LayerNorm"]
    norm: LayerNorm<D, 1e-12>,
}

#[module]
impl<const S: usize, const D: usize, const H: usize> Block<S, D, H> {
    fn forward(&self, x: T![..S, D]) -> T![..S, D] {
        let x = self.attention(x);
        self.norm(x + self.down(self.up(x)))
    }
}

/// A vector of D values for each of up to S tokens, from N blocks with H heads; V tokens are known.
#[module]
pub(crate) struct Bert<const V: usize, const S: usize, const D: usize, const H: usize, const N: usize> {
    embeddings: Embeddings<V, S, D>,
    #[rename = "encoder.layer"]
    blocks: Repeat<Block<S, D, H>, N>,
}

#[module]
impl<const V: usize, const S: usize, const D: usize, const H: usize, const N: usize> Bert<V, S, D, H, N> {
    fn forward(&self, tokens: Ids<T![..S]>, positions: Ids<T![..S]>, types: Ids<T![..S]>) -> T![..S, D] {
        self.blocks(self.embeddings(tokens, positions, types))
    }
}
