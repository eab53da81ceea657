use nn::*;

const fn half(n: usize) -> usize {
    n / 2
}

#[module]
struct Net<const D: usize> {
    fc: Linear<D, { half(D) }>,
}

#[module]
impl<const D: usize> Net<D> {
    fn forward(&self, x: T![D]) -> T![D] {
        self.fc(x)
    }
}

fn main() {}
