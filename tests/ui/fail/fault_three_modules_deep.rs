use nn::*;

#[module]
struct Attention<const D: usize> {
    q: Linear<D, D>,
    out: Linear<{ 2 * D }, D>,
}

#[module]
impl<const D: usize> Attention<D> {
    fn forward(&self, x: T![D]) -> T![D] {
        self.out(self.q(x))
    }
}

#[module]
struct Block<const D: usize> {
    attn: Attention<D>,
}

#[module]
impl<const D: usize> Block<D> {
    fn forward(&self, x: T![D]) -> T![D] {
        x + self.attn(x)
    }
}

#[module]
struct Gpt<const D: usize> {
    blocks: Block<D>,
    head: Linear<D, 10>,
}

#[module]
impl<const D: usize> Gpt<D> {
    fn forward(&self, x: T![D]) -> T![10] {
        self.head(self.blocks(x))
    }
}

#[module]
type Tiny = Gpt<64>;

fn main() {}
