use nn::{Embedding, Ids, T, TiedLinear, module};

#[module]
struct Lm<const V: usize, const D: usize> {
    tok: Embedding<V, D>,
    #[tied = "tok.wieght"]
    head: TiedLinear<D, V>,
}

#[module]
impl<const V: usize, const D: usize> Lm<V, D> {
    fn forward(&self, x: Ids<T![4]>) -> T![4, V] {
        self.head(self.tok(x))
    }
}

#[module]
type Small = Lm<3, 2>;

fn main() {}
