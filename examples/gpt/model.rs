//! The model: a small Llama over characters.

use nn::{LlamaBlock, RMSNorm, Repeat, T, TiedLinear, module};

use crate::text::VOCAB;

/// At most S characters, D values for each, in N blocks with H heads of queries, KV of keys and values, and FF values between.
/// A character's vector is also what scores it as the next one.
#[module]
pub(crate) struct Gpt<
    const S: usize,
    const D: usize,
    const H: usize,
    const KV: usize,
    const FF: usize,
    const N: usize,
> {
    #[init(nn::Normal02)]
    tok: nn::Embedding<VOCAB, D>,
    blocks: Repeat<LlamaBlock<S, D, H, KV, FF>, N>,
    norm: RMSNorm<D, 1e-5>,
    #[tied = "tok.weight"]
    head: TiedLinear<D, VOCAB>,
}

#[module]
impl<const S: usize, const D: usize, const H: usize, const KV: usize, const FF: usize, const N: usize>
    Gpt<S, D, H, KV, FF, N>
{
    fn forward(&self, ids: nn::Ids<T![..S]>) -> T![..S, VOCAB] {
        self.head(self.norm(self.blocks(self.tok(ids))))
    }
}

#[module]
pub(crate) type Small = Gpt<128, 128, 4, 4, 344, 4>;

#[module]
pub(crate) type Base = Gpt<256, 256, 8, 4, 688, 6>;
