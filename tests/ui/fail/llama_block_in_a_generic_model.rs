use nn::*;

#[module]
struct Llama<const S: usize, const D: usize, const H: usize> {
    tok: Embedding<500, D>,
    blocks: Repeat<LlamaBlock<S, D, H, { H / 2 }, { 3 * D }>, 4>,
    norm: RMSNorm<D, 1e-5>,
}

#[module]
impl<const S: usize, const D: usize, const H: usize> Llama<S, D, H> {
    fn forward(&self, ids: Ids<T![..S]>) -> T![..S, D] {
        self.norm(self.blocks(self.tok(ids)))
    }
}

#[module]
type Good = Llama<128, 64, 4>;

#[module]
type Odd = Llama<128, 60, 4>;

#[module]
type NoGroups = Llama<128, 60, 3>;

fn main() {}
