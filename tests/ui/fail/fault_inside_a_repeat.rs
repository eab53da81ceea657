use nn::*;

#[module]
struct Attention<const D: usize, const H: usize> {
    q: Linear<D, { D / H }>,
    out: Linear<D, D>,
}

#[module]
impl<const D: usize, const H: usize> Attention<D, H> {
    fn forward(&self, x: T![D]) -> T![D] {
        self.out(self.q(x))
    }
}

#[module]
struct Gpt<const D: usize, const H: usize> {
    blocks: Repeat<Residual<Attention<D, H>>, 6>,
    head: Linear<D, 10>,
}

#[module]
impl<const D: usize, const H: usize> Gpt<D, H> {
    fn forward(&self, x: T![D]) -> T![10] {
        self.head(self.blocks(x))
    }
}

#[module]
type Tiny = Gpt<64, 4>;

fn main() {}
