use nn::*;

#[module]
struct Net {
    tok: StopGradParams<Embedding<5, 4>>,
    #[tied = "tok.weight"]
    head: TiedLinear<4, 5>,
}

#[module]
impl Net {
    fn forward(&self, ids: Ids<T![3]>) -> T![3, 5] {
        self.head(self.tok(ids))
    }
}

fn main() {}
