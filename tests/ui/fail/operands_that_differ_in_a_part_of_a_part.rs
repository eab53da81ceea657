use nn::*;

#[module]
struct Inner<const D: usize> {
    up: Linear<D, { 2 * D }>,
}

#[module]
impl<const D: usize> Inner<D> {
    fn forward(&self, x: T![D]) -> T![D] {
        let h = Tanh(x);
        h + self.up(h)
    }
}

#[module]
struct Block<const D: usize> {
    norm: LayerNorm<D>,
    inner: Inner<D>,
}

#[module]
impl<const D: usize> Block<D> {
    fn forward(&self, x: T![D]) -> T![D] {
        self.inner(self.norm(x))
    }
}

#[module]
type Eight = Block<8>;

#[module]
struct Plain {
    up: Linear<8, 16>,
}

#[module]
impl Plain {
    fn forward(&self, x: T![8]) -> T![8] {
        let h = Tanh(x);
        h + self.up(h)
    }
}

sequential! {
    Holder: [8] -> [8] = LayerNorm<8>, Plain, ReLU
}

fn main() {}
