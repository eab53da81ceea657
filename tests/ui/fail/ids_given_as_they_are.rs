use nn::*;

#[module]
struct Net {
    tok: Embedding<10, 4>,
}

#[module]
impl Net {
    fn forward(&self, ids: Ids<T![8]>) -> (T![8, 4], Ids<T![8]>) {
        (self.tok(ids), ids)
    }
}

fn main() {}
